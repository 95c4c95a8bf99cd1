"""The table of arrays is true: what runs store has its types and axes, and what stays is what the plan counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from faults.jobs import KINDS

from ips2_dask import Params, Resources, run
from ips2_dask.cli.main import main
from ips2_dask.plan.plan import make_plan
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.layout import ARRAYS, KEPT, STAGES
from ips2_dask.store.zarr_store import ZarrStore

FAST = ("in-core", "chunked")

BOUNDED = {"neighbors.rows", "neighbors.reach", "label.drawn", "label.edges"}
"""Drawn rows, of which there are a bounded number: for the recall, and for trees."""


@pytest.fixture
def checked_writes(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every array that is stored has one of the forms that the layout says; the names of those that were."""
    seen: set[str] = set()
    for kind in (ZarrStore, MemoryStore):
        write = kind.write

        def checked(
            self: Any, folder: str, part: str, arrays: Mapping[str, Any], facts: Any, write: Any = write
        ) -> Any:
            stage = folder.split("-")[0]
            for name, array in arrays.items():
                found = len(array.shape), array.dtype.name
                forms = [(len(axes), dtype or found[1]) for axes, dtype in ARRAYS[stage][name].forms]
                assert not forms or found in forms, (f"{stage}.{name}", found, forms)
                seen.add(f"{stage}.{name}")
            return write(self, folder, part, arrays, facts)

        monkeypatch.setattr(kind, "write", checked)
    return seen


@pytest.mark.parametrize("kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_arrays_are_stored_as_the_layout_says(
    kind: str, checked_writes: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, write, bounds = KINDS[kind]
    for name, bound in bounds.items():
        monkeypatch.setattr(f"ips2_dask.{name}", bound)
    write(tmp_path / "x.npy")
    out = ["--out", str(tmp_path / "run"), "--partition-rows", "60"]
    assert main(["run", str(tmp_path / "x.npy"), "--serial", *out, *options]) == 0
    assert {name.split(".")[0] for name in checked_writes} >= set(STAGES)


def test_a_dense_run_stores_arrays_as_the_layout_says(checked_writes: set[str]) -> None:
    run(np.random.default_rng(0).normal(size=(60, 3)), Params(n_clusters=2, affinity="gaussian"))
    assert "fuse.fused" in checked_writes


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_what_stays_of_all_samples_is_what_the_plan_counts(vectors: str, tmp_path: Path) -> None:
    m, f, params = 1200, 6, Params(n_clusters=3, shards=5)
    options = Resources(partition_rows=300, vectors=vectors)
    run(np.random.default_rng(1).normal(size=(m, f)), params, options, store=tmp_path / "run")
    found: dict[str, int] = dict.fromkeys(STAGES, 0)
    kept = {name for names in KEPT.values() for name in names}
    for path in (tmp_path / "run").rglob("zarr.json"):
        array, stage = zarr.open(path.parent, mode="r"), path.relative_to(tmp_path / "run").parts[0].split("-")[0]
        if isinstance(array, zarr.Array):
            name = f"{stage}.{path.parent.name}"
            found[stage] += array.nbytes if name in kept else 0
            assert name in kept | BOUNDED or array.nbytes < 2 * m, name
    for planned in make_plan(m, f, params, rows=300, vectors=vectors).stages:
        assert 0.4 * planned.disk_bytes < found[planned.name] <= 1.1 * planned.disk_bytes, planned.name

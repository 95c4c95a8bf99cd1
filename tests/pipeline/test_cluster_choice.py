"""A cluster is started where it has enough to do, or where it is asked for; labels are the same without one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import grid

from ips2_dask import Params, Resources, run
from ips2_dask.executors.base import Executor, Job
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.pipeline.prepare import Inputs, Prepared, prepare
from ips2_dask.pipeline.run import is_worth_a_cluster, run_each
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

PARAMS = Params(n_clusters=3)


class ClusterStarted(Exception):
    pass


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def start(resources: Resources, needed_bytes: Callable[[int, int | None], int]) -> Iterator[Executor]:
        raise ClusterStarted(resources)
        yield

    monkeypatch.setattr("ips2_dask.clusters.executor", start)


@pytest.fixture
def finished(blobs: npt.NDArray[Any], tmp_path: Path) -> Path:
    """The directory of a finished run of the blobs."""
    run(blobs, PARAMS, store=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("change", "fresh"),
    [({}, False), ({}, True), ({"n_clusters": 4}, False), ({"sigma": 2.0}, False), ({"max_clusters": 5}, False)],
)
def test_a_little_work_starts_no_cluster(
    change: dict[str, Any], fresh: bool, blobs: npt.NDArray[Any], finished: Path
) -> None:
    changed = dataclasses.replace(PARAMS, **change)
    found = run(blobs, changed, store=finished, own_cluster=True, fresh=fresh)
    np.testing.assert_array_equal(found.labels, run(blobs, changed).labels)


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    "resources", [Resources(n_workers=1), Resources(memory_limit=4 << 30), Resources(scheduler="tcp://127.0.0.1:1")]
)
def test_machines_that_are_asked_for_start_one(resources: Resources, blobs: npt.NDArray[Any], finished: Path) -> None:
    with pytest.raises(ClusterStarted):
        run(blobs, PARAMS, resources, store=finished, own_cluster=True)


@pytest.mark.usefixtures("no_cluster")
def test_what_starting_over_takes_away_is_work_again(
    blobs: npt.NDArray[Any], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ips2_dask.pipeline.run.START_SECONDS", 1.0)
    run(blobs, PARAMS, store=finished, own_cluster=True)
    with pytest.raises(ClusterStarted):
        run(blobs, PARAMS, store=finished, own_cluster=True, fresh=True)


@pytest.mark.usefixtures("no_cluster")
def test_a_report_of_dasks_needs_a_cluster(blobs: npt.NDArray[Any], finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterStarted):
        run(blobs, PARAMS, store=finished, own_cluster=True, performance_report=tmp_path / "dask.html")


def with_foundation(m: int, f: int, done: int) -> tuple[MemoryStore, Prepared]:
    imagined: Any = SimpleNamespace(name="imagined", shape=(m, f), fingerprint="an input", resident_bytes=0)
    prepared = prepare(Inputs(imagined), PARAMS, Resources())
    store = MemoryStore()
    for name in STAGES[:done]:
        store.put_document(f"{prepared.keys[name].folder}/stage.json", {"facts": {}})
    return store, prepared


@pytest.mark.parametrize(
    ("m", "done", "worth"),
    [(1_797, 0, False), (100_000, 0, True), (100_000, 7, False), (10_000, 4, False), (10_000_000, 4, True)],
)
def test_what_is_left_of_many_samples_is_worth_a_cluster(m: int, done: int, worth: bool) -> None:
    store, prepared = with_foundation(m, 16, done)
    assert is_worth_a_cluster(store, [prepared]) == worth


@pytest.mark.slow
@pytest.mark.parametrize("small_here", [True, *grid(False)])
def test_little_that_is_left_can_be_kept_from_the_workers(
    small_here: bool,
    blobs: npt.NDArray[Any],
    dask_executor: DaskExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages: list[list[str]] = [[]]
    original = DaskExecutor.map

    def noted(self: DaskExecutor, job: Job, *rest: Any) -> list[Receipt]:
        stages[-1].append(job.stage)
        return original(self, job, *rest)

    monkeypatch.setattr(DaskExecutor, "map", noted)
    several = [dataclasses.replace(PARAMS, n_clusters=c) for c in (3, 30)]
    inputs, found = Inputs(open_source(blobs)), []
    runs = [prepare(inputs, params, Resources()) for params in several]
    store = ZarrStore(str(tmp_path / "run"))
    for done in run_each(runs, store, dask_executor, Progress(), small_here=small_here):
        found.append(done.labels)
        stages.append([])
    assert [bool(used) for used in stages] == [not small_here, not small_here, False]
    for params, labels in zip(several, found, strict=True):
        np.testing.assert_array_equal(labels, run(blobs, params).labels)

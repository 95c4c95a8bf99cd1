"""Every array of some runs is that of ``golden.json``: a change that means to change no result changes none.

``python tests/test_golden_arrays.py`` writes the file. Last bits depend on the processor and on versions of libraries:
elsewhere than on the machine of the file labels alone are compared.
"""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import DATA, run_on
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score, pairwise_distances

from ips2_dask import Params, Run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.layout import STAGES
from ips2_dask.typing import AnyArray

FILE = Path(__file__).with_name("golden.json")


@cache
def digits() -> AnyArray:
    """1,797 x 64."""
    return load_digits().data


@cache
def curved() -> AnyArray:
    """6,000 x 16 in twelve clusters that touch."""
    return np.asarray(curved_gaussians(6000, 16, 12, seed=5)[0])


@cache
def merged() -> AnyArray:
    """3,000 rows of 1,200 different samples."""
    rows = make_blobs(1200, 5, centers=6, random_state=3)[0]
    return rows[np.random.default_rng(4).integers(0, 1200, 3000)]


@cache
def islands() -> AnyArray:
    """1,500 samples, of which 60 lie in groups of six far from everything."""
    rng = np.random.default_rng(6)
    far = 200 * rng.normal(size=(10, 4)) + 0
    return np.concatenate(
        [make_blobs(1440, 4, centers=4, random_state=7)[0], np.repeat(far, 6, 0) + rng.normal(size=(60, 4))]
    )


SHARDED: dict[str, Any] = {"graph": "shards", "shards": 6}
RUNS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "default": (digits, {"n_clusters": 10}, {}),
    "chunked": (digits, {"n_clusters": 10}, {"rows": 300, "vectors": "chunked"}),
    "k10": (digits, {"n_clusters": 10, "n_neighbors": 10}, {"rows": 400}),
    "normalized": (digits, {"n_clusters": 10, "fusion": "normalized", "high_order": "abs"}, {}),
    "sharded": (curved, {"n_clusters": 12, **SHARDED}, {}),
    "sharded-chunked": (curved, {"n_clusters": 12, **SHARDED}, {"rows": 1000, "vectors": "chunked"}),
    "merged": (merged, {"n_clusters": 6}, {"rows": 700}),
    "merged-chunked": (merged, {"n_clusters": 6, **SHARDED}, {"rows": 700, "vectors": "chunked"}),
    "islands": (islands, {"n_clusters": 4}, {}),
    "islands-chunked": (islands, {"n_clusters": 4}, {"rows": 500, "vectors": "chunked"}),
    "leiden": (digits, {"assign_labels": "leiden"}, {}),
    "auto": (curved, {"n_clusters": "auto"}, {"rows": 2000}),
    "auto-chunked": (curved, {"n_clusters": "auto"}, {"rows": 2000, "vectors": "chunked"}),
    "gaussian": (DATA["random"], {"n_clusters": 3, "affinity": "gaussian"}, {}),
    "ppc": (digits, {"n_clusters": 10, "method": "ppc"}, {}),
    "decomposable": (digits, {"n_clusters": 10, "tensor": "decomposable"}, {}),
    "tol": (digits, {"n_clusters": 10, "tol": 1e-3}, {}),
    "triplets": (digits, {"n_clusters": 10, "operator": "triplets", "scale": "zscore", "metric": "cosine"}, {}),
    "precomputed": (lambda: pairwise_distances(digits()[:600]), {"n_clusters": 10, "metric": "precomputed"}, {}),
}
"""Data, parameters and layout of each run."""


def machine() -> dict[str, str]:
    """What last bits depend on."""
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    libraries = ("numpy", "scipy", "numba", "scikit-learn", "fast-plscan", "igraph")
    return {"cpu": model[0], "python": platform.python_version(), **{name: version(name) for name in libraries}}


def digests(made: Run, store: MemoryStore) -> dict[str, str]:
    """Of every array of every stage, over its parts in the order of their names."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        folder = made._context.folders.get(stage)
        for part, receipt in sorted(store.parts(folder).items()) if folder else []:
            for name in sorted(receipt["arrays"]):
                values = np.ascontiguousarray(store.read(folder, part, name))
                digest = found.setdefault(f"{stage}/{name}", hashlib.sha256())
                digest.update(f"{values.dtype.str} {values.shape}".encode() + values.tobytes())
    return {name: digest.hexdigest()[:16] for name, digest in found.items()}


def computed(name: str) -> dict[str, Any]:
    """Labels and digests of a run."""
    data, params, layout = RUNS[name]
    store = MemoryStore()
    made = run_on(SerialExecutor(), data(), Params(**params), layout.get("rows"), store, layout.get("vectors", "auto"))
    labels = made.labels.tolist()
    return {"labels": labels[:: max(1, len(labels) // 500)], "arrays": digests(made, store)}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS))
def test_results_are_what_they_were(name: str) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    found, expected = computed(name), golden["runs"][name]
    if machine() == golden["machine"]:
        assert found["arrays"] == expected["arrays"]
        assert found["labels"] == expected["labels"]
    assert adjusted_rand_score(found["labels"], expected["labels"]) > 0.95


if __name__ == "__main__":
    document = {"machine": machine(), "runs": {name: computed(name) for name in RUNS}}
    FILE.write_text(json.dumps(document, indent=0) + "\n", encoding="utf-8")

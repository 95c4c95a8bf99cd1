"""Memory of tasks: at fixed rows of a partition no task of a chunked run holds more where there are more samples.

`gathers` sees each array for itself. Here is what a task holds at one time, small arrays of all partitions among it.
"""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Resources, run
from ips2_dask.executors import base
from ips2_dask.kernels import duplicates, shards
from ips2_dask.progress import Progress
from ips2_dask.stages import sharding
from ips2_dask.store import arrays
from ips2_dask.store.cache import cache

ROWS = 2048
"""Rows of a partition."""

FEATURES = 3
LIMIT = 8
"""Bytes a sample by which a task may grow."""

NOISE = 768 << 10
"""Bytes by which the peak of a task differs from one run to another: partitions and shards are not all alike."""

NEAR, TIMES = {"pair_degrees", "_pair_sums"}, 3
"""Tasks on the pairs of near partitions, of which there are a few more in a larger run, and how much more may differ:
the first to read of a partition keeps its receipt."""

BY_CHUNKS = {"prepare_operator", "graph_chunk"}
"""Tasks of a chunk, which get larger until chunks are as large as they may be."""


class Ended(Exception):
    """The stage that was asked for is over."""


class Until(Progress):
    """Progress that ends a run after a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def begin(self, stage: str) -> None:
        """Nothing."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """End the run where this is the stage."""
        if stage == self._stage:
            raise Ended


def peaks(m: int, stage: str, folder: Path) -> dict[str, int]:
    """Most bytes that a task of each job takes in a run up to a stage, in this process, beside what was there.

    Of two tasks and more it is the second most: what a library keeps on its first use is counted for one of them.
    """
    rng = np.random.default_rng(3)
    X = (rng.normal(size=(m, FEATURES)) + 4 * rng.integers(0, 5, size=(m, 1))).astype(np.float32)
    found: defaultdict[str, list[int]] = defaultdict(list)
    compute_part = base.compute_part

    def measured(item: Any, job: base.Job, context: Any, *rows: Any) -> Any:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        receipt = compute_part(item, job, context, *rows)
        found[job.function.__name__].append(tracemalloc.get_traced_memory()[1] - before)
        return receipt

    cache.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "compute_part", measured)
        patch.setattr(base, "MOST_AT_ONCE", 1)  # tracemalloc counts for all threads: two tasks would count as one
        patch.setattr(cache, "limit", 1 << 20)
        patch.setattr(duplicates, "RANGE_ROWS", 4 * ROWS)
        patch.setattr(shards, "DISTANCE_BYTES", 1 << 18)
        patch.setattr(sharding, "SPLIT_BYTES", 6 * 4 * ROWS * FEATURES)  # too few for a second pass
        tracemalloc.start()
        try:
            run(
                X,
                Params(n_clusters=5, shards=m // ROWS),
                Resources(partition_rows=ROWS, vectors="chunked"),
                store=folder / str(m),
                progress=Until(stage),
            )
        except Ended:
            pass
        finally:
            tracemalloc.stop()
    return {name: sorted(values)[-2:][0] for name, values in found.items()}


def grown(stage: str, folder: Path) -> dict[str, float]:
    """The jobs whose tasks grow by more than they may, and by how many bytes a sample."""
    first, few, many = 8 * ROWS, 24 * ROWS, 72 * ROWS
    _, small, large = (peaks(m, stage, folder) for m in (first, few, many))  # compiled in the first
    return {
        name: round((large[name] - small[name]) / (many - few), 1)
        for name in large
        if name not in BY_CHUNKS
        and large[name] - small[name] > LIMIT * (many - few) + NOISE * (TIMES if name in NEAR else 1)
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_task_holds_more_where_there_are_more_samples(tmp_path: Path) -> None:
    assert grown("fuse", tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_control_rows_that_keep_their_chunks_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = arrays.read_rows

    def whole(location: str, described: Any, low: int = 0, high: int | None = None, kind: Any = None) -> Any:
        return read(location, described, 0, None, kind)[low:high]

    monkeypatch.setattr("ips2_dask.store.zarr_store.read_rows", whole)
    assert "compare" in grown("ingest", tmp_path)

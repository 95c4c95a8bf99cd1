"""Approximate neighbours by pynndescent, with everything pinned that its answer depends on."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from threading import Lock

import numba
import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import nearest_by_metric, refine_candidates

THREADS = 2
"""pynndescent's graph depends on ``n_jobs``: another number changes 5 % of the rows, so it is fixed."""

TIMES = 4
"""How many times as long as wanted pynndescent's lists of a shard are: recall@5 on MNIST's first 10,000 images is then
.99 or more by every metric, while lists of the wanted length have no more than .94 by the Chebyshev one (measured)."""

_ONE_AT_A_TIME = Lock()
"""Two threads of a process must not start Numba's parallel loops at once."""


def candidates(
    X: NDArray[np.float32], n: int, seed: int, metric: str = "euclidean", times: int = 1, threads: int = THREADS
) -> NDArray[np.int32]:
    """Candidates for the n nearest of every row, the row itself among them: (m, times (n + 1)), -1 where there is none.

    Longer lists raise the recall.
    """
    from pynndescent import NNDescent  # noqa: PLC0415  its import and compilation cost half a minute

    width = min(times * (n + 1), len(X))
    with _ONE_AT_A_TIME, _started_threads() as most, warnings.catch_warnings():
        # of few rows or many equal ones it lists too few, which callers see and search for exactly
        warnings.filterwarnings("ignore", "Failed to correctly find n_neighbors")
        index = NNDescent(X, metric, n_neighbors=width, random_state=seed, n_jobs=min(threads, most), verbose=False)
        return np.asarray(index.neighbor_graph[0], np.int32)


@contextlib.contextmanager
def _started_threads() -> Iterator[int]:
    """Numba's number of threads in this process, which the environment may not change any more.

    Numba reads ``NUMBA_NUM_THREADS`` whenever it compiles, and refuses another value once its threads have started: a
    process that has started workers may have had one for them then.
    """
    name = "NUMBA_NUM_THREADS"
    before, most = os.environ.get(name), int(numba.config.NUMBA_NUM_THREADS)
    os.environ[name] = str(most)
    try:
        yield most
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def nearest_in(
    queries: NDArray[np.float32], own: NDArray[np.int64], X: NDArray[np.float32], n: int, *, metric: str, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The n nearest rows of X to each of its rows, as of `neighbors.nearest_by_metric` but for a few of them.

    The queries are all rows of X. Distances are those of the exact search, and rows of which pynndescent lists too few
    neighbours are searched exactly. One thread works on it, so that the cores of a machine change nothing.
    """

    def exact(
        rows: NDArray[np.float32], ids: NDArray[np.int64], Y: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return nearest_by_metric(rows, ids, Y, count, metric=metric)

    if len(X) <= TIMES * (n + 2):
        return nearest_by_metric(queries, own, X, n, metric=metric)
    lists = candidates(X, n + 1, seed, METRICS[metric].external, TIMES, threads=1)
    indices, distances, _ = refine_candidates(X, lists, n + 1, exact, METRICS[metric].code)
    return indices[:, 1:], distances[:, 1:]

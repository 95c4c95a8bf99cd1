"""Approximate neighbours by pynndescent, with everything pinned that its answer depends on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

THREADS = 2
"""pynndescent's graph depends on ``n_jobs``: another number changes 5 % of the rows, so it is fixed."""


def candidates(
    X: NDArray[np.float32], n: int, seed: int, metric: str = "euclidean", times: int = 1
) -> NDArray[np.int32]:
    """Candidates for the n nearest of every row, the row itself among them: (m, times (n + 1)), -1 where there is none.

    Longer lists make for a higher recall of the nearest.
    """
    from pynndescent import NNDescent  # noqa: PLC0415  its import and compilation cost half a minute

    index = NNDescent(X, metric, n_neighbors=times * (n + 1), random_state=seed, n_jobs=THREADS, verbose=False)
    return np.asarray(index.neighbor_graph[0], np.int32)

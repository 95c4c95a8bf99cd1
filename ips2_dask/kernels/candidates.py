"""Exact neighbours by comparing all pairs in blocks, for metrics that no matrix product narrows down."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from ips2_dask.kernels.distances import length
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import Float32, Int32, Int64, _keep
from ips2_dask.kernels.parallel import map_chunks

ROWS = 256
COLUMN_BYTES = 256 << 10
"""A block of X that stays in a core's cache while the queries pass by."""


@njit(nogil=True, cache=True)
def _nearest(queries, place, X, width, first, metric, indices, distances):  # type: ignore[no-untyped-def]
    rows, n = indices.shape
    lengths, ids = np.empty((rows, n)), np.empty((rows, n), np.int64)
    held = np.zeros(rows, np.int64)
    for start in range(0, len(X), width):
        for r in range(rows):
            for j in range(start, min(start + width, len(X))):
                if j != place[r]:
                    held[r] = _keep(lengths[r], ids[r], held[r], length(queries[r], X[j], metric), j)
    for r in range(rows):
        for t in range(held[r]):
            indices[r, t], distances[r, t] = first + ids[r, t], lengths[r, t]


def nearest_in(
    queries: Float32, own: Int64, X: Float32, n: int, first: int = 0, *, metric: str = "manhattan"
) -> tuple[Int32, Float32]:
    """What `neighbors.nearest_in` gives, by another metric: the n nearest rows of X by (distance, id)."""
    indices = np.full((len(queries), n), -1, np.int32)
    distances = np.full((len(queries), n), np.inf, np.float32)
    place = np.where((own >= first) & (own < first + len(X)), own - first, -1)
    width = max(16, COLUMN_BYTES // max(1, X[:1].nbytes))

    def block(a: int, b: int) -> None:
        _nearest(queries[a:b], place[a:b], X, width, first, METRICS[metric].code, indices[a:b], distances[a:b])

    if n > 0 and len(X):
        map_chunks(block, len(queries), ROWS)
    return indices, distances


def all_lengths(X: Float32, Y: Float32, metric: str) -> NDArray[np.float32]:
    """All distances of rows of X to rows of Y: (rows, rows) float32, summed in float64 by SciPy."""
    out = np.empty((len(X), len(Y)), np.float32)
    if METRICS[metric].rows == "presence":  # SciPy's are of sets alone
        X, Y = X != 0, Y != 0
    name = METRICS[metric].scipy

    def block(a: int, b: int) -> None:
        out[a:b] = np.nan_to_num(cdist(X[a:b], Y, name))  # SciPy's Bray-Curtis distance of two rows of zeros is 0 / 0

    map_chunks(block, len(X), ROWS)
    return out

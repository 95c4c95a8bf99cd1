"""Distances that were given: neighbours, blocks and pairs are read from the matrix, and nothing is measured."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ips2_dask.kernels.neighbors import Float32, Int32, _keep
from ips2_dask.kernels.parallel import map_chunks

Float64 = NDArray[np.float64]

SYMMETRIC_TO = 1e-5
"""How far d_ij and d_ji may differ, as a share of the larger: the rounding of whoever computed them."""


@njit(nogil=True, cache=True)
def _nearest(D, start, indices, distances):  # type: ignore[no-untyped-def]
    rows, m = D.shape
    n = indices.shape[1] - 1
    lengths, ids = np.empty(n), np.empty(n, np.int64)
    for r in range(rows):
        held = 0
        for j in range(m):
            if j != start + r and n > 0:
                held = _keep(lengths, ids, held, np.float64(D[r, j]), j)
        indices[r, 0], distances[r, 0] = start + r, 0.0
        for t in range(n):
            indices[r, t + 1], distances[r, t + 1] = ids[t], lengths[t]


def nearest_rows(D: Float32, start: int, n: int) -> tuple[Int32, Float32]:
    """The n nearest samples of rows ``start`` on, from those rows D (rows, m): itself first, then by (distance, id)."""
    indices, distances = np.empty((len(D), n), np.int32), np.empty((len(D), n), np.float32)
    map_chunks(lambda a, b: _nearest(D[a:b], start + a, indices[a:b], distances[a:b]), len(D), 512)
    return indices, distances


def row_squares(D: Float64) -> tuple[int, Float64]:
    """An exponent e, and the sums of squares (rows,) of the rows of D / 2^e, which neither overflow nor underflow."""
    exponent = int(np.clip(np.frexp(D.max(initial=0.0))[1], -1000, 1000))
    return exponent, np.square(D * np.ldexp(1.0, -exponent)).sum(axis=1)


def block_distances(D: Float32, local: Int32) -> Float32:
    """Distances among the samples of each neighbourhood, rows and columns of D: (rows, k (k - 1) / 2)."""
    first, second = np.triu_indices(local.shape[1], 1)
    return np.ascontiguousarray(pair_lengths(D, local[:, first], local[:, second]), np.float32)


def pair_lengths(D: Float32, i: NDArray[np.integer], j: NDArray[np.integer]) -> NDArray[np.float32]:
    """Distances of samples i and j, of any shape: d_ij with i < j, so that rounding in D can't give two of them."""
    return np.asarray(D[np.minimum(i, j), np.maximum(i, j)])


def first_uneven(block: Float32, across: Float32) -> tuple[int, int] | None:
    """Row and column where d_ij of ``block`` and d_ji of ``across`` (its mirror) differ by more than rounding."""
    mirror = across.T
    uneven = np.abs(block - mirror) > SYMMETRIC_TO * np.maximum(np.abs(block), np.abs(mirror))
    if not uneven.any():
        return None
    row, column = np.argwhere(uneven)[0]
    return int(row), int(column)

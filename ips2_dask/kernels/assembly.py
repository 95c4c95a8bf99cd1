"""D^-1/2 R D^-1/2 as CSR straight from block distances and owner bits: no triplets, no sort of all entries.

For small k a product with the stored matrix is faster than one that makes its blocks again; it needs 8 bytes an entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from ips2_dask.kernels.operator import inverse_root
from ips2_dask.kernels.parallel import chunk_bounds, map_chunks
from ips2_dask.kernels.product import element_blocks, product_tables
from ips2_dask.kernels.sorting import sort_together

Float = NDArray[np.floating]
Float64 = NDArray[np.float64]

NEIGHBORHOODS = 1 << 13
"""Neighbourhoods whose block values a piece has in memory at a time."""
PIECES = 4
"""Parts of all neighbourhoods that are entered side by side, each into its own places of every row."""

ROWS = 1 << 14


@njit(nogil=True, cache=True)
def _count(values, ids, ends):  # type: ignore[no-untyped-def]
    """Add each row's entries to ``ends[row]``; those of other owners are zero, and so is what underflowed."""
    q = ids.shape[1]
    for p in range(len(ids)):
        t = 0
        for r in range(q):
            for s in range(r, q):
                if values[p, t] != 0:
                    ends[ids[p, r]] += 1
                    if s > r:
                        ends[ids[p, s]] += 1
                t += 1


@njit(nogil=True, cache=True)
def _fill(values, ids, ends, indices, data):  # type: ignore[no-untyped-def]
    """Put the entries into their rows, moving each row's end on."""
    q = ids.shape[1]
    for p in range(len(ids)):
        t = 0
        for r in range(q):
            for s in range(r, q):
                value = values[p, t]
                t += 1
                if value == 0:
                    continue
                i, j = ids[p, r], ids[p, s]
                indices[ends[i]], data[ends[i]] = j, value
                ends[i] += 1
                if s > r:
                    indices[ends[j]], data[ends[j]] = i, value
                    ends[j] += 1


@njit(nogil=True, cache=True)
def _finish(indptr, indices, data, root, low, high):  # type: ignore[no-untyped-def]
    """Sort rows low .. high - 1 by column, and scale them from both sides."""
    for r in range(low, high):
        a, b = indptr[r], indptr[r + 1]
        sort_together(indices, data, a, b)
        for t in range(a, b):
            data[t] *= root[r] * root[indices[t]]


def assemble_normalized(
    blocks: Float, owned: Any, ids: Any, degrees: Float64, k: int, sigma: float, epsilon: float
) -> sp.csr_array:
    """The normalised operator of `operator.NeighborhoodOperator` as a matrix: CSR (P, P) float32, rows sorted.

    Parameters
    ----------
    blocks : (m, k (k - 1) / 2) float32
    owned : (m, bytes) uint8
        Packed bits of `kernels.tensor.owned_subsets`.
    ids : (m, q) int32
    degrees : (P,) float64
    k : int
    sigma, epsilon : float
    """
    n, q = len(degrees), ids.shape[1]
    tables = product_tables(k, sigma, epsilon)

    def values(a: int, b: int) -> Float:
        out: Float = np.empty((b - a, q * (q + 1) // 2), np.float32)
        element_blocks(blocks[a:b], owned[a:b], *tables, out)
        return out

    cuts = [len(ids) * t // PIECES for t in range(PIECES + 1)]
    ends = np.zeros((PIECES, n), np.int32)

    def count(t: int, _: int) -> None:
        for a, b in chunk_bounds(cuts[t + 1] - cuts[t], NEIGHBORHOODS):
            _count(values(cuts[t] + a, cuts[t] + b), ids[cuts[t] + a : cuts[t] + b], ends[t])

    map_chunks(count, PIECES, 1)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(ends.sum(axis=0, dtype=np.int64), out=indptr[1:])
    places = indptr[:-1] + np.cumsum(ends, axis=0, dtype=np.int64) - ends  # where each piece's part of a row begins
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)

    def fill(t: int, _: int) -> None:
        for a, b in chunk_bounds(cuts[t + 1] - cuts[t], NEIGHBORHOODS):
            _fill(values(cuts[t] + a, cuts[t] + b), ids[cuts[t] + a : cuts[t] + b], places[t], indices, data)

    map_chunks(fill, PIECES, 1)
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    root = inverse_root(degrees).astype(np.float32)
    map_chunks(lambda low, high: _finish(indptr, indices, data, root, low, high), n, ROWS)
    return sp.csr_array((data, indices, indptr), shape=(n, n))

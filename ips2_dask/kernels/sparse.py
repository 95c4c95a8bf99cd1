"""Sparse matrices: reverse neighbour lists, symmetric CSR matrices, and their scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float, Float64, Int32, Int64

Part = tuple[NDArray[np.int32], NDArray[np.floating]]
"""Entries (n, 2), i <= j, sorted by (i, j), and their values (n,)."""

Matrix: TypeAlias = sp.csr_array | NDArray[np.floating]
"""SciPy CSR or dense NumPy, two-dimensional."""


class Reverse(NamedTuple):
    """``centers[start[i]:start[i + 1]]`` are the samples p with i in N(p), ascending."""

    start: Int64  # (m + 1,)
    centers: Int32  # (m k,)


@njit(nogil=True, cache=True)
def _reverse(N, start, centers):  # type: ignore[no-untyped-def]
    m, k = N.shape
    for p in range(m):
        for a in range(k):
            start[N[p, a] + 1] += 1
    for i in range(m):
        start[i + 1] += start[i]
    cursor = start[:-1].copy()
    for p in range(m):
        for a in range(k):
            i = N[p, a]
            centers[cursor[i]] = p
            cursor[i] += 1


def reverse_lists(N: Int32) -> Reverse:
    """Reverse lists of the neighbourhoods N (m, k).

    SciPy's ``tocsc`` gives the same lists, but takes 1.3 to 1.6 times as long and 3.5 times as much memory.
    """
    start = np.zeros(len(N) + 1, np.int64)
    centers = np.empty(N.size, np.int32)
    _reverse(N, start, centers)
    return Reverse(start, centers)


AT_ONCE = 1 << 16
"""Entries of reverse lists, about, whose neighbourhoods are held at a time; those of one hub may be more."""

ROWS = 1 << 14


def product(rows: Matrix, x: Float, out: Float | None = None) -> Float:
    """The product (n, columns) of rows (n, touched) of a matrix with x (touched, columns), on all threads.

    Each row of a CSR matrix is summed by its entries in their order, without fused additions, for any number of rows
    and threads.
    """
    if out is None:
        out = np.empty((rows.shape[0], *x.shape[1:]), np.result_type(rows.dtype, x.dtype))

    def run(a: int, b: int) -> None:
        some = rows[a:b] if isinstance(rows, np.ndarray) else row_view(rows, a, b)
        out[a:b] = some @ x

    map_chunks(run, len(out), ROWS)
    return out


def row_view(rows: sp.csr_array, a: int, b: int) -> sp.csr_array:
    """Rows a .. b - 1 on the same memory, which slicing and SciPy's constructor would copy."""
    low, high = rows.indptr[a], rows.indptr[b]
    view = sp.csr_array((b - a, rows.shape[1]), dtype=rows.dtype)
    view.data, view.indices = rows.data[low:high], rows.indices[low:high]
    view.indptr = (rows.indptr[a : b + 1] - low).astype(rows.indices.dtype)
    return view


def distinct(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """The different ones of some numbers of any shape, ascending: `numpy.unique` hashes them, in ten times the time."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.asarray(ordered[first])


def pairs_of(keys: NDArray[np.integer]) -> Int32:
    """The pairs (n, 2) of the numbers i << 32 | j, whose order is theirs."""
    pairs = np.empty((len(keys), 2), np.int32)
    pairs[:, 0] = keys >> 32
    pairs[:, 1] = keys & 0xFFFFFFFF
    return pairs


NEAR = 32
"""Numbers among which others are looked up by a table where these are so many times as few as the table has rows."""


def places(numbers: NDArray[np.integer], values: NDArray[np.integer]) -> Int32:
    """Where each of some values, of any shape, is among ascending numbers that hold it."""
    if not len(numbers):
        return np.zeros(values.shape, np.int32)
    low, high = int(numbers[0]), int(numbers[-1])
    if high - low > NEAR * len(numbers):
        return np.searchsorted(numbers, values).astype(np.int32)
    table = np.empty(high - low + 1, np.int32)
    table[numbers - low] = np.arange(len(numbers), dtype=np.int32)
    return np.asarray(table[values - low])


def rows_between(rows: Int64, columns: Int64, values: Float, low: int, high: int) -> tuple[Int64, Int64, Float]:
    """Entries of rows low <= i < high of a symmetric matrix, as (i - low, column, value), from its upper triangle."""
    upper = (rows >= low) & (rows < high)
    mirrored = (columns >= low) & (columns < high) & (rows != columns)
    i, j = (np.concatenate([a[upper], b[mirrored]]) for a, b in ((rows, columns), (columns, rows)))
    return i - low, j, np.concatenate([values[upper], values[mirrored]])


def inverse_root(degrees: Float64) -> Float64:
    """degrees^-1/2, and 0 where a degree is 0 (a row whose entries all underflowed)."""
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros(len(degrees)), where=degrees > 0)


def assemble(rows: Int64, columns: Int64, values: Float, n: int) -> sp.csr_array:
    """The symmetric CSR matrix (n, n) of an upper triangle's triplets, each entry given once, rows sorted.

    Sorted rows make the sums of a product independent of the order in which the triplets came.
    """
    kind = np.int32 if max(n, 2 * len(values)) < 2**31 else np.int64
    off = rows != columns
    i = np.concatenate([rows.astype(kind), columns[off].astype(kind)])
    j = np.concatenate([columns.astype(kind), rows[off].astype(kind)])
    csr = sp.coo_array((np.concatenate([values, values[off]]), (i, j)), shape=(n, n)).tocsr()
    csr.sort_indices()
    return csr


def normalized(matrix: Matrix, degrees: Float64, dtype: type = np.float32) -> Matrix:
    """D^-1/2 M D^-1/2 of a symmetric matrix, CSR or dense, with D of these degrees (n,); computed in float64."""
    root = inverse_root(degrees)
    if not sp.issparse(matrix):
        return (matrix * root[:, None] * root).astype(dtype)
    csr: sp.csr_array = matrix
    data = csr.data * np.repeat(root, np.diff(csr.indptr)) * root[csr.indices]
    return sp.csr_array((data.astype(dtype), csr.indices, csr.indptr), shape=csr.shape)


@njit(nogil=True, cache=True)
def enter(numbers, first, second, values, ends, indices, data):  # type: ignore[no-untyped-def]
    """Put entries into their row and into that of their column, moving the ends of these rows on.

    ``values`` (n, each): entry t of item p is at row and column ``numbers[p, first[t]]``, ``numbers[p, second[t]]``;
    zeros are left out. Where ``indices`` is empty, entries are only counted.
    """
    for p in range(len(values)):
        for t in range(len(first)):
            value = values[p, t]
            if value == 0:
                continue
            i, j = numbers[p, first[t]], numbers[p, second[t]]
            if len(indices):
                indices[ends[i]], data[ends[i]] = j, value
            ends[i] += 1
            if i != j:
                if len(indices):
                    indices[ends[j]], data[ends[j]] = i, value
                ends[j] += 1


def symmetric_csr(parts: Callable[[], Iterable[Part]], n: int) -> sp.csr_array:
    """The symmetric CSR matrix (n, n) of an upper triangle in sorted parts, rows sorted; zeros are left out.

    A row gets what stands left of its diagonal while earlier rows are read, and the rest when its own turn comes: so
    nothing has to be sorted. ``parts`` returns the parts in their order; it is called twice.
    """
    ends, first, second = np.zeros(n, np.int64), np.array([0]), np.array([1])
    indices, data = np.empty(0, np.int32), np.empty(0)
    for entries, values in parts():
        enter(entries, first, second, values[:, None], ends, indices, data)
    indptr = np.concatenate([[0], np.cumsum(ends)])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
    ends = indptr[:-1].copy()
    for entries, values in parts():
        enter(entries, first, second, values[:, None], ends, indices, data)
    return sp.csr_array((data, indices, indptr.astype(np.int32) if indptr[-1] < 2**31 else indptr), shape=(n, n))

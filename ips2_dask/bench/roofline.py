"""What a product needs and what the machine can give: bytes and arithmetic a sample, bandwidth and peak rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit, types

from ips2_dask.kernels.llvm import ROWS, WIDTHS, tile_8, tile_32
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.parallel import map_chunks, thread_count

SINGLE = 4
"""Bytes of a float32, and of an int32."""

ENTRY = 41
"""Float32 operations that make one entry: two of the numerator, two sums and a division for each denominator, 15 for
each exponential (a polynomial of degree 5, the scaling before it and after it), their sum, weight and owner."""

TRIAD = 1 << 24
"""Numbers in each of the three arrays of the triad: together 192 MiB, more than caches hold."""

DEPTH, BLOCKS = 128, 1 << 14
"""Columns of a block of 8 rows, and how many times a thread multiplies it by as many rows, for the peak rate: all stay
in the first-level cache, and the sums in registers."""

REPEATS = 15


class Needs(NamedTuple):
    """What one product needs for a sample."""

    moved: float
    """Bytes read and written."""
    flops: float
    """Additions, multiplications and divisions of float32; a fused multiply-add is two."""


class Machine(NamedTuple):
    """What the machine gives to `thread_count` threads."""

    bandwidth: float
    """Bytes a second of a triad a = b + s c: two arrays read and one written."""
    peak: float
    """Float32 operations a second of fused multiply-adds."""


def needs(operator: MatrixOperator | NeighborhoodOperator, m: int, columns: int) -> Needs:
    """Bytes and arithmetic a sample of one product, counted from the operator's arrays.

    Every row of a block vector counts each time that it is read or written, as if no cache kept it from one use to
    the next: a neighbourhood reads q rows of x and adds to q rows of y, and a CSR matrix reads one row of x for
    each entry. Where a cache keeps rows, less moves than is counted here.

    Parameters
    ----------
    operator : MatrixOperator or NeighborhoodOperator
    m : int
        Samples.
    columns : int
        Of the block vector, float32.
    """
    row, P = SINGLE * columns, operator.shape[0]
    if isinstance(operator, MatrixOperator):
        matrix: sp.csr_array = operator.matrix
        moved = matrix.nnz * (2 * SINGLE + row) + P * (row + SINGLE)
        return Needs(moved / m, 2 * matrix.nnz * columns / m)
    counts = operator.counts()
    read, added = counts.rows * (row + 2 * SINGLE), counts.rows * (2 * row + SINGLE)  # x, its scale, and both places
    slots = counts.slots * (4 * row + SINGLE)  # cleared, read once more, added to rows of y
    finish = P * (4 * row + SINGLE)  # y is cleared, then scaled in a pass that also reads x
    multiplied = 2 * counts.products * columns + 2 * counts.rows * columns + counts.slots * columns + 3 * P * columns
    return Needs((counts.stored + read + added + slots + finish) / m, (multiplied + ENTRY * counts.made) / m)


@njit(nogil=True, cache=True, fastmath=True)
def _triad(a, b, c, s):  # type: ignore[no-untyped-def]
    for t in range(len(a)):
        a[t] = b[t] + s * c[t]


@njit(nogil=True, cache=True)
def _multiply(strip, x, out, blocks):  # type: ignore[no-untyped-def]
    """The same block of 8 rows times the same rows of x again and again."""
    n, stride = types.uintp(len(x)), types.uintp(SINGLE * x.shape[1])
    at_strip, at_x, at_out = types.uintp(strip.ctypes.data), types.uintp(x.ctypes.data), types.uintp(out.ctypes.data)
    for _ in range(blocks):
        if x.shape[1] == 32:
            tile_32(at_strip, n, at_x, stride, at_out)
        else:
            tile_8(at_strip, n, at_x, stride, at_out)


def machine() -> Machine:
    """Bandwidth and peak rate of as many threads as `map_chunks` uses here, each the best of some repeats."""
    n = thread_count()
    a, b, c = np.zeros(TRIAD, np.float32), np.ones(TRIAD, np.float32), np.ones(TRIAD, np.float32)
    share = -(-TRIAD // n)
    triad = _least(
        lambda: map_chunks(lambda low, high: _triad(a[low:high], b[low:high], c[low:high], 0.5), TRIAD, share)
    )
    width = 32 if max(WIDTHS) == 32 else 8
    strip, x = np.ones((DEPTH, ROWS), np.float32), np.ones((DEPTH, width), np.float32)

    def multiply(low: int, high: int) -> None:
        for _ in range(low, high):
            _multiply(strip, x, np.empty((ROWS, width), np.float32), BLOCKS)

    peak = _least(lambda: map_chunks(multiply, n, 1))
    return Machine(3 * SINGLE * TRIAD / triad, 2.0 * n * BLOCKS * DEPTH * ROWS * width / peak)


def _least(action: Callable[[], object]) -> float:
    """The fewest seconds of some repeats, after one that is not counted."""
    action()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)

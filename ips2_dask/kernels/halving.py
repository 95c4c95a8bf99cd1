"""An order in which near samples stand near each other: halves along the direction in which they vary most, and so on.

Products with neighbourhoods read and write rows of pairs. Where neighbours stand near each other the rows of one
neighbourhood are still in the processor's caches when the next one comes.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

LEAF = 8
"""Samples that are not halved any more."""

LOOKED_AT = 64
"""Rows of a half that decide its direction."""

STEPS = 4
"""Power iterations towards it."""


@njit(nogil=True, cache=True)
def _direction(X, rows):  # type: ignore[no-untyped-def]
    """Nearly the direction in which evenly spaced ones of these rows of X vary most, zero where they are all equal."""
    f, step = X.shape[1], max(1, len(rows) // LOOKED_AT)
    some = X[rows[::step]].astype(np.float64)
    mean = np.zeros(f)
    for r in range(len(some)):
        mean += some[r]
    mean /= len(some)
    longest, square = 0, -1.0
    for r in range(len(some)):
        some[r] -= mean
        length = 0.0
        for t in range(f):
            length += some[r, t] * some[r, t]
        if length > square:
            longest, square = r, length
    found = some[longest].copy()
    for _ in range(STEPS):
        following = np.zeros(f)
        for r in range(len(some)):
            share = 0.0
            for t in range(f):
                share += some[r, t] * found[t]
            for t in range(f):
                following[t] += share * some[r, t]
        most = np.abs(following).max()
        if most == 0.0:
            break
        found = following / most
    return found


@njit(nogil=True, cache=True)
def _halve(X, order):  # type: ignore[no-untyped-def]
    m = len(order)
    stack = [(0, m)]
    while len(stack):
        low, high = stack.pop()
        if high - low <= LEAF:
            continue
        rows = order[low:high].copy()
        direction = _direction(X, rows)
        along = np.zeros(len(rows))
        for r in range(len(rows)):
            for t in range(X.shape[1]):
                along[r] += X[rows[r], t] * direction[t]
        order[low:high] = rows[np.argsort(along, kind="mergesort")]
        middle = (low + high) // 2
        stack.append((low, middle))
        stack.append((middle, high))


def near_each_other(X: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of rows of X (m, f) in such an order: (n,). Equal rows keep theirs."""
    order = np.array(rows, np.int64)
    _halve(np.ascontiguousarray(X), order)
    return order

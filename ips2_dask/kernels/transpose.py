"""Reverse neighbour lists: which neighbourhoods hold a sample, without sorting anything larger than the graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


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
    at = start[:-1].copy()
    for p in range(m):
        for a in range(k):
            i = N[p, a]
            centers[at[i]] = p
            at[i] += 1


def reverse_lists(N: Int32) -> Reverse:
    """Reverse lists of the neighbourhoods N (m, k)."""
    start = np.zeros(len(N) + 1, np.int64)
    centers = np.empty(N.size, np.int32)
    _reverse(N, start, centers)
    return Reverse(start, centers)


@njit(nogil=True, cache=True)
def _components(N):  # type: ignore[no-untyped-def]
    m, k = N.shape
    root = np.arange(m)
    for p in range(m):
        for a in range(1, k):
            x, y = p, N[p, a]
            while root[x] != x:
                root[x] = root[root[x]]
                x = root[x]
            while root[y] != y:
                root[y] = root[root[y]]
                y = root[y]
            if x < y:
                root[y] = x
            elif y < x:
                root[x] = y
    label = np.empty(m, np.int32)
    count = 0
    for i in range(m):
        x = i
        while root[x] != x:
            x = root[x]
        if x == i:
            label[i] = count
            count += 1
        else:
            label[i] = label[x]
    return label, count


def components(N: Int32) -> tuple[Int32, int]:
    """Connected components of the graph that joins each p with N(p): (m,) labels by smallest member, and their number.

    They are the components of the pair graph too: all pairs of one neighbourhood are joined through (i, i)-(j, j),
    whose entry is 1 whatever sigma is.
    """
    label, count = _components(N)
    return label, int(count)

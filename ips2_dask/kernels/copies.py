"""Equal rows: found by hash, searched once for all of them, so that a crowd of copies costs what one row costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ips2_dask.kernels.neighbors import Nearest, exact_neighbors, nearest_in
from ips2_dask.kernels.projection import Narrowed, projected_nearest

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

WORTHWHILE = 0.9
"""Share of different rows below which copies are searched together."""


class Groups(NamedTuple):
    """Rows by equal content: group g is ``members[start[g]:start[g + 1]]``, ascending, with ``first[g]`` its first."""

    first: Int64  # (groups,)
    start: Int64  # (groups + 1,)
    members: Int64  # (m,)
    group: Int64  # (m,) of each row


@njit(nogil=True, cache=True)
def _hash(words, out):  # type: ignore[no-untyped-def]
    for p in range(words.shape[0]):
        state = np.uint64(14695981039346656037)
        for t in range(words.shape[1]):
            state = (state ^ np.uint64(words[p, t])) * np.uint64(1099511628211)
            state ^= state >> np.uint64(29)
        out[p] = state


def group_rows(X: Float32) -> Groups | None:
    """Groups of equal rows, or None where too few rows are equal for it to be worth while."""
    # adding 0 turns -0 into 0, which equals it but has other bits
    words = np.ascontiguousarray(X + np.float32(0)).view(np.uint32)
    keys = np.empty(len(X), np.uint64)
    _hash(words, keys)
    _, first, group, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    if len(first) > WORTHWHILE * len(X) or not np.array_equal(X[first][group], X):
        return None
    # groups by their first row, so that ties between groups are decided as those between rows are
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    group = rank[group.ravel()]
    start = np.concatenate([[0], np.cumsum(counts[order])])
    return Groups(first[order].astype(np.int64), start, np.argsort(group, kind="stable"), group)


@njit(nogil=True, cache=True)
def _expand(rows, near, lengths, start, members, group, indices, distances):  # type: ignore[no-untyped-def]
    n = indices.shape[1] - 1
    for r in range(len(rows)):
        own = group[rows[r]]
        indices[r, 0], distances[r, 0] = rows[r], 0.0
        held = 0
        for t in range(start[own], min(start[own + 1], start[own] + n + 1)):
            if members[t] != rows[r] and held < n:
                indices[r, held + 1], distances[r, held + 1] = members[t], 0.0
                held += 1
        a = 0
        while held < n and a < near.shape[1] and near[r, a] >= 0:
            # all groups at this distance together, by id
            b = a
            while b < near.shape[1] and near[r, b] >= 0 and lengths[r, b] == lengths[r, a]:
                b += 1
            begin = held
            for g in range(a, b):
                for t in range(start[near[r, g]], min(start[near[r, g] + 1], start[near[r, g]] + n)):
                    at, identity = held, members[t]
                    if held == n:
                        if identity >= indices[r, n]:
                            break
                        at = n - 1
                    else:
                        held += 1
                    while at > begin and indices[r, at] > identity:
                        indices[r, at + 1] = indices[r, at]
                        at -= 1
                    indices[r, at + 1] = identity
                    distances[r, at + 1] = lengths[r, a]
            for t in range(begin, held):
                distances[r, t + 1] = lengths[r, a]
            a = b


def nearest_rows(
    rows: Int64,
    X: Float32,
    groups: Groups | None,
    n: int,
    narrow: Narrowed | None = None,
    nearest: Nearest = nearest_in,
) -> tuple[Int32, Float32]:
    """The n nearest of consecutive rows of X, themselves first, by X's different rows where ``groups`` tells them.

    They are exact unless X in principal directions narrows them down; ``nearest`` is the search of the metric where
    none does.
    """
    if groups is not None:
        return neighbors_among_copies(rows, X, groups, n, narrow, nearest)
    if narrow is not None:
        near, lengths = projected_nearest(X, narrow, rows, n - 1)
        return np.concatenate([rows[:, None], near], axis=1, dtype=np.int32), np.pad(lengths, ((0, 0), (1, 0)))
    return exact_neighbors(X[rows[0] : rows[-1] + 1], int(rows[0]), X, n, nearest)


def neighbors_among_copies(
    rows: Int64,
    X: Float32,
    groups: Groups,
    n: int,
    narrow: Narrowed | None = None,
    nearest: Nearest = nearest_in,
) -> tuple[Int32, Float32]:
    """What `nearest_rows` gives for some rows of X, from its different rows alone.

    Parameters
    ----------
    rows : (rows,) int
    X : (m, f) float32
    groups : Groups
        Of X.
    n : int
        1 <= n <= m.
    narrow : Narrowed, optional
        Of X, for Euclidean distances.
    nearest : callable
        The search of the metric where that is not given.
    """
    wanted, which = np.unique(groups.group[rows], return_inverse=True)
    different = np.ascontiguousarray(X[groups.first])
    most = min(n, len(different) - 1)
    if narrow is None:
        near, lengths = nearest(different[wanted], wanted, different, most)
    else:
        near, lengths = projected_nearest(different, narrow.at(groups.first), wanted, most)
    indices, distances = np.full((len(rows), n), -1, np.int32), np.full((len(rows), n), np.inf, np.float32)
    _expand(rows, near[which], lengths[which], groups.start, groups.members, groups.group, indices, distances)
    return indices, distances

"""Equal rows: found by hash and searched once for all of them, so that many copies cost what one row costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.neighbors import Nearest, exact_neighbors, insert_nearest, nearest_in
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.projection import Projected, projected_nearest
from ips2_dask.typing import Float32, Int32, Int64

WORTHWHILE = 0.9
"""Share of different rows below which copies are searched together."""


class _Groups(NamedTuple):
    """Rows by equal content: group g is ``members[start[g]:start[g + 1]]``, ascending, with ``first[g]`` its first."""

    first: Int64  # (groups,)
    start: Int64  # (groups + 1,)
    members: Int64  # (m,)
    group: Int64  # (m,) of each row


@njit(nogil=True, cache=True)
def _digest(words, out):  # type: ignore[no-untyped-def]
    for p in range(words.shape[0]):
        one, other = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
        for t in range(words.shape[1]):
            word = np.uint64(words[p, t])
            one = (one ^ word) * np.uint64(0xFF51AFD7ED558CCD)
            one ^= one >> np.uint64(33)
            other = (other + word) * np.uint64(0x9FB21C651E98DF25)
            other ^= other >> np.uint64(29)
        out[p, 0] = (one ^ (other << np.uint64(32))) * np.uint64(0xC4CEB9FE1A85EC53)
        out[p, 0] ^= out[p, 0] >> np.uint64(33)
        out[p, 1] = other


def digests(X: Float32) -> NDArray[np.uint64]:
    """128 bits of each row, the same for equal rows: (m, 2) uint64.

    Different rows have the same ones by chance alone: some two of 10^10 rows with probability 10^-19.
    """
    # adding 0 turns -0 into 0, which equals it but has other bits
    words = np.ascontiguousarray(X + np.float32(0)).view(np.uint32)
    hashes = np.empty((len(X), 2), np.uint64)
    map_chunks(lambda a, b: _digest(words[a:b], hashes[a:b]), len(X), 4096)
    return hashes


class Heads(NamedTuple):
    """The different rows of some: of equal ones the first, their head."""

    keys: NDArray[np.uint64]  # (heads, 2) ascending
    places: Int64  # (heads,) of the heads among the rows
    counts: Int32  # (heads,) rows that each stands for, itself among them
    head: Int32  # (n,) the head of each row, by its place


def _differ(ascending: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows (n, 2) differ from the one before them, as the first counts: (n,)."""
    new = np.ones(len(ascending), np.bool_)
    new[1:] = (ascending[1:] != ascending[:-1]).any(axis=1)
    return new


def heads(keys: NDArray[np.uint64]) -> Heads:
    """The different rows of n consecutive ones, by their `digests` (n, 2)."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: of equal rows the first comes first
    starts = np.flatnonzero(_differ(keys[order]))
    places = order[starts]
    counts = np.diff(starts, append=len(order)).astype(np.int32)
    head = np.empty(len(order), np.int32)
    head[order] = np.repeat(places, counts)
    return Heads(keys[places], places, counts, head)


RANGE_ROWS, MOST_RANGE_ROWS = 1 << 18, 1 << 21
"""Rows whose digests are compared in one task, about, and at most in large tables: 24 and 192 MiB with what sorting
them takes."""

SMALL_RANGES = 48
"""Ranges up to which they have the smaller number of rows: each range reads two arrays of every partition."""


def n_ranges(m: int) -> int:
    """How many tasks compare the digests of m rows."""
    return max(-(-m // MOST_RANGE_ROWS), min(-(-m // RANGE_ROWS), SMALL_RANGES))


class _Repeats(NamedTuple):
    """Rows that equal an earlier one."""

    rows: Int64  # (n,) ascending
    firsts: Int64  # (n,) the first row that each equals


def repeats(keys: NDArray[np.uint64], ids: Int64) -> _Repeats:
    """Which rows equal an earlier one, by their `digests`.

    ``keys`` (n, 2) uint64; ``ids`` (n,) int64: numbers of the rows, in any order.
    """
    order = np.lexsort((ids, keys[:, 1], keys[:, 0]))
    ids, new = ids[order], _differ(keys[order])
    firsts = ids[new][np.cumsum(new) - 1]
    rows = ids[~new]
    place = np.argsort(rows)
    return _Repeats(rows[place], firsts[~new][place])


def group_rows(X: Float32) -> _Groups | None:
    """Groups of equal rows, or None where too few rows are equal for it to be worth while."""
    keys = digests(X)[:, 0]
    _, first, group, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    if len(first) > WORTHWHILE * len(X) or not np.array_equal(X[first][group], X):
        return None
    order = np.argsort(first)  # groups by their first row, so that ties are decided as those between rows are
    group = np.argsort(order)[group.ravel()]
    start = np.concatenate([[0], np.cumsum(counts[order])])
    return _Groups(first[order].astype(np.int64), start, np.argsort(group, kind="stable"), group)


@njit(nogil=True, cache=True)
def _expand(rows, near, lengths, start, members, group, indices, distances):  # type: ignore[no-untyped-def]
    n = indices.shape[1] - 1
    far, ids = np.empty(n), np.empty(n, np.int64)
    for r in range(len(rows)):
        indices[r, 0], distances[r, 0] = rows[r], 0.0
        if n == 0:  # a list without room can't be inserted into
            continue
        count, own = 0, group[rows[r]]
        for t in range(start[own], min(start[own + 1], start[own] + n + 1)):
            if members[t] != rows[r]:
                count = insert_nearest(far, ids, count, 0.0, members[t])
        for a in range(near.shape[1]):
            g, length = near[r, a], np.float64(lengths[r, a])
            if g < 0 or (count == n and length > far[n - 1]):
                break
            for t in range(start[g], min(start[g + 1], start[g] + n)):
                count = insert_nearest(far, ids, count, length, members[t])
        for t in range(count):
            indices[r, t + 1], distances[r, t + 1] = ids[t], far[t]


def nearest_rows(
    rows: Int64,
    X: Float32,
    groups: _Groups | None,
    n: int,
    narrow: Projected | None = None,
    nearest: Nearest = nearest_in,
) -> tuple[Int32, Float32]:
    """The n nearest of consecutive rows of X, themselves first, by X's different rows where ``groups`` tells them.

    They are exact unless X in principal directions, ``narrow``, narrows Euclidean distances down; ``nearest`` is the
    search of the metric where that is not given. ``rows`` (rows,) int; ``X`` (m, f) float32; ``n``: 1 <= n <= m.
    """
    if groups is None and narrow is not None:
        near, lengths = projected_nearest(X, narrow, rows, n - 1)
        return np.concatenate([rows[:, None], near], axis=1, dtype=np.int32), np.pad(lengths, ((0, 0), (1, 0)))
    if groups is None:
        return exact_neighbors(X[rows[0] : rows[-1] + 1], int(rows[0]), X, n, nearest)
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

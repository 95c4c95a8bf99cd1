"""The indecomposable tensor by neighbourhoods: active pairs, block distances, who owns an entry, entry values.

Letters, as in docs/method.md: m samples, k samples of a neighbourhood, N (m, k) neighbourhoods, d_ij distances,
q = k (k + 1) / 2 local pairs of one neighbourhood, P active pairs in all, T_ijkl the tensor, R (P, P) its unfolding on
unordered pairs. A local pair r is (first[r], second[r]) with first <= second, in the order (0,0), (0,1), ..., (0,k-1),
(1,1), ...
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.metrics import EUCLIDEAN
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.similarity import pair_lengths
from ips2_dask.kernels.sparse import AT_ONCE, Reverse, distinct, pairs_of
from ips2_dask.typing import Bool, Float32, Int32, Int64

HUB = 256
"""A sample in more neighbourhoods than this is a hub: its reverse list is never walked once for each of its centres."""

FIRSTS = 1 << 10
"""First samples whose pairs are looked for at a time: k^2 numbers of each, which stay in a core's cache."""


class _LocalPairs(NamedTuple):
    """Tables of one neighbourhood's local pairs and of its subsets of one to four samples."""

    first: Int64  # (q,)
    second: Int64  # (q,)
    subset: Int32  # (q, q): which subset {i, j} with {k, l} is
    members: Int32  # (n_subsets, 4) local samples of each subset, padded with -1
    masks: Int64  # (n_subsets,) the same as bits


@lru_cache(maxsize=8)
def local_pairs(k: int) -> _LocalPairs:
    """The tables for neighbourhoods of k samples."""
    first, second = np.triu_indices(k)
    subsets = [c for size in range(1, min(k, 4) + 1) for c in itertools.combinations(range(k), size)]
    number = {frozenset(c): t for t, c in enumerate(subsets)}
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    subset = np.array([[number[frozenset(r + s)] for s in pairs] for r in pairs], np.int32)
    members = np.array([c + (-1,) * (4 - len(c)) for c in subsets], np.int32)
    # of 64 samples the last has the sign bit
    masks = np.array([sum(1 << i for i in c) for c in subsets], np.uint64).view(np.int64)
    return _LocalPairs(first.astype(np.int64), second.astype(np.int64), subset, members, masks)


def owned_pairs(N: Int32, reverse: Reverse, low: int, high: int) -> Int32:
    """Active pairs (i, j), i <= j, whose first sample is in [low, high), sorted: (pairs, 2).

    A pair is active where some neighbourhood holds both (docs/method.md, Unfolding and active pairs). The time is
    linear in the number of neighbourhoods that hold a first sample.
    """

    def pairs(a: int, b: int) -> Int32:
        start = reverse.start[low + a : low + b + 1]
        if start[-1] - start[0] > AT_ONCE and b - a > 1:  # hubs: samples in very many neighbourhoods
            return np.concatenate([pairs(a, (a + b) // 2), pairs((a + b) // 2, b)])
        i = np.repeat(np.arange(low + a, low + b), np.diff(start))[:, None]
        j = N[reverse.centers[start[0] : start[-1]]]
        return pairs_of(distinct((i << 32 | j)[j >= i]))

    return np.concatenate([np.empty((0, 2), np.int32), *map_chunks(pairs, high - low, FIRSTS)])


def block_distances(X: Float32, local: Int32, metric: int | None = EUCLIDEAN) -> Float32:
    """Distances among the samples of each neighbourhood, upper triangle by rows: (rows, k (k - 1) / 2).

    ``X`` (n, f) float32: the samples that the neighbourhoods use; ``local`` (rows, k) int32: neighbourhoods as rows
    of ``X``; ``metric``: a code of `metrics.METRICS`.
    """
    i, j = np.triu_indices(local.shape[1], 1)
    distances = np.empty((len(local), len(i)), np.float32)

    def part(a: int, b: int) -> None:
        pairs = np.stack([local[a:b, i], local[a:b, j]], axis=2).reshape(-1, 2)
        distances[a:b] = pair_lengths(X, pairs, metric).reshape(b - a, len(i))

    map_chunks(part, len(local), 2048)
    return distances


@njit(nogil=True, cache=True)
def _owned_subsets(N, start, centers, low, high, masks, limit, owned, hubs):  # type: ignore[no-untyped-def]
    """Clear ``owned[p - low, u]`` where an earlier neighbourhood holds subset u of N(p), through non-hub members."""
    m, k = N.shape
    n_subsets = len(masks)
    place = np.full(m, -1, np.int32)  # column of a sample in N(p)
    visited = np.full(m, -1, np.int32)
    earlier_masks = np.empty(k * limit + 1, np.int64)
    for p in range(low, high):
        row = owned[p - low]
        hub = 0
        for a in range(k):
            place[N[p, a]] = a
            if start[N[p, a] + 1] - start[N[p, a]] > limit:
                hub |= 1 << a
        hubs[p - low] = hub
        count = 0
        for a in range(k):
            if hub >> a & 1:
                continue
            for t in range(start[N[p, a]], start[N[p, a] + 1]):
                other = centers[t]
                if other >= p:
                    break
                if visited[other] == p:
                    continue
                visited[other] = p
                mask = 0
                for b in range(k):
                    if place[N[other, b]] >= 0:
                        mask |= 1 << place[N[other, b]]
                fresh = True
                for s in range(count):
                    if earlier_masks[s] & mask == mask:
                        fresh = False
                        break
                if fresh:
                    earlier_masks[count] = mask
                    count += 1
        for u in range(n_subsets):
            for s in range(count):
                if masks[u] & earlier_masks[s] == masks[u]:
                    row[u] = False
                    break
        for a in range(k):
            place[N[p, a]] = -1


@njit(nogil=True, cache=True)
def _first_center(N, start, centers, samples):  # type: ignore[no-untyped-def]
    """The smallest centre whose neighbourhood holds all of ``samples``."""
    shortest = samples[0]
    for i in samples:
        if start[i + 1] - start[i] < start[shortest + 1] - start[shortest]:
            shortest = i
    for t in range(start[shortest], start[shortest + 1]):
        p = centers[t]
        holds = True
        for i in samples:
            inside = False
            for a in range(N.shape[1]):
                if N[p, a] == i:
                    inside = True
                    break
            if not inside:
                holds = False
                break
        if holds:
            return p
    return -1


def owned_subsets(N: Int32, reverse: Reverse, low: int, high: int) -> Bool:
    """Which subsets of one to four samples of N(p) no smaller centre's neighbourhood holds: (high - low, n_subsets).

    An entry T_ijkl belongs to the smallest centre whose neighbourhood holds {i, j, k, l}: so each entry has one owner,
    found from the reverse lists of its samples, and is kept once however many neighbourhoods give it. Subsets with a
    sample in few neighbourhoods are decided by walking that sample's list; those of hubs alone, which are few and
    shared by many centres, are looked up once for all centres that hold them.
    """
    tables = local_pairs(N.shape[1])
    owned = np.ones((high - low, len(tables.masks)), np.bool_)
    hubs = np.zeros(high - low, np.int64)
    _owned_subsets(N, reverse.start, reverse.centers, low, high, tables.masks, HUB, owned, hubs)
    with_hubs = np.flatnonzero(hubs)
    if len(with_hubs):
        _decide_hubs(N, reverse, low, tables, owned, hubs, with_hubs)
    return owned


def _decide_hubs(
    N: Int32, reverse: Reverse, low: int, tables: _LocalPairs, owned: Bool, hubs: Int64, rows: Int64
) -> None:
    """Decide the subsets of hubs alone; each set of samples is looked up once, however many neighbourhoods hold it."""
    for pattern in np.unique(hubs[rows]):
        same = rows[hubs[rows] == pattern]
        inside = np.flatnonzero(tables.masks & ~pattern == 0)
        for u in inside:
            columns = tables.members[u][tables.members[u] >= 0]
            samples = np.sort(N[low + same][:, columns], axis=1)
            sets, which = np.unique(samples, axis=0, return_inverse=True)
            first = np.array([_first_center(N, reverse.start, reverse.centers, some) for some in sets])
            owned[same, u] &= first[which.ravel()] == low + same


@njit(nogil=True, cache=True)
def _pair_ids(N, first, second, mates, start, lowest, numbers, ids):  # type: ignore[no-untyped-def]
    for p in range(len(N)):
        for r in range(len(first)):
            i, j = N[p, first[r]], N[p, second[r]]
            if i > j:
                i, j = j, i
            if i < lowest or i - lowest > len(start) - 2:
                continue
            a, b = start[i - lowest], start[i - lowest + 1]
            while b - a > 1:
                middle = (a + b) // 2
                if mates[middle] <= j:
                    a = middle
                else:
                    b = middle
            ids[p, r] = numbers[a] if len(numbers) else a


def pair_ids(
    N: Int32, pairs: Int32, numbers: Int64 | None = None, out: NDArray[np.integer] | None = None
) -> NDArray[np.integer]:
    """Numbers of the local pairs of the neighbourhoods N (rows, k): (rows, q).

    ``pairs`` (n, 2) int32: all active pairs that these neighbourhoods hold, and maybe more, sorted; or those of a
    range of first samples; ``numbers`` (n,) int64: their numbers; None numbers them by place, as int32 where that
    is wide enough; ``out`` (rows, q): where the numbers are put; those of pairs with another first sample stay as
    they are.
    """
    tables = local_pairs(N.shape[1])
    lowest, highest = int(pairs[0, 0]), int(pairs[-1, 0])
    start = np.zeros(highest - lowest + 2, np.int64)
    np.cumsum(np.bincount(pairs[:, 0] - lowest, minlength=highest - lowest + 1), out=start[1:])
    mates = np.ascontiguousarray(pairs[:, 1])
    kind = np.int64 if numbers is not None or len(pairs) >= 2**30 else np.int32
    ids = np.empty((len(N), len(tables.first)), kind) if out is None else out
    pair_numbers = np.empty(0, np.int64) if numbers is None else numbers
    map_chunks(
        lambda a, b: _pair_ids(N[a:b], tables.first, tables.second, mates, start, lowest, pair_numbers, ids[a:b]),
        len(N),
        8192,
    )
    return ids


@njit(nogil=True, cache=True)
def _triplets(blocks, ids, owned, k, first, second, subset, sigma, epsilon, rows, columns, values):  # type: ignore[no-untyped-def]
    """The entries that each neighbourhood owns; `llvm.evaluate` is the same with an exponential of its own."""
    q, count, half, one = len(first), 0, np.float32(np.sqrt(0.5)), np.float32(1.0)
    D = np.zeros((k, k), np.float32)
    for p in range(len(ids)):
        t = 0
        for a in range(k):
            for b in range(a + 1, k):
                D[a, b] = D[b, a] = blocks[p, t]
                t += 1
        for r in range(q):
            i, j = first[r], second[r]
            for s in range(r, q):
                if not owned[p, subset[r, s]]:
                    continue
                g, h = first[s], second[s]
                top = -sigma * (D[i, j] + D[g, h])
                straight = np.exp(top / (D[i, g] + D[j, h] + epsilon))
                crossed = np.exp(top / (D[i, h] + D[j, g] + epsilon))
                values[count] = (straight + crossed) * (half if i == j else one) * (half if g == h else one)
                x, y = ids[p, r], ids[p, s]
                rows[count], columns[count] = min(x, y), max(x, y)
                count += 1


def count_entries(owned: Bool, k: int) -> int:
    """How many entries of R, on and above the diagonal, these neighbourhoods own."""
    tables = local_pairs(k)
    upper = tables.subset[np.triu_indices(len(tables.first))]
    return int((owned.sum(axis=0) * np.bincount(upper, minlength=owned.shape[1])).sum())


def triplets(
    blocks: Float32, ids: Int64, owned: Bool, k: int, sigma: float, epsilon: float
) -> tuple[Int64, Int64, Float32]:
    """Entries of the restricted matrix R that these neighbourhoods own, as (row, column, value), row <= column.

    R is T-hat on unordered pairs in the orthonormal basis (e_ij + e_ji) / sqrt(2), e_ii, with
    T_ijkl = exp(-sigma (d_ij + d_kl) / (d_ik + d_jl + epsilon)), eq. (7) of the paper.

    See docs/method.md, Unfolding and active pairs.

    ``blocks`` (rows, k (k - 1) / 2) float32: from `block_distances`; ``ids`` (rows, q) int64: from `pair_ids`;
    ``owned`` (rows, n_subsets) bool: from `owned_subsets`.
    """
    tables = local_pairs(k)
    n = count_entries(owned, k)
    rows, columns, values = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.float32)
    local = k, tables.first, tables.second, tables.subset
    _triplets(blocks, ids, owned, *local, np.float32(sigma), np.float32(epsilon), rows, columns, values)
    return rows, columns, values

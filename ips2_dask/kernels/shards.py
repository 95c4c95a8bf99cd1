"""Overlapping shards: k-means cells, each sample in its two nearest, and the lists of several cells merged.

Comparing all samples of a cell takes the square of their number. In sub-cells of a fixed size, which are shards of it,
it takes time in proportion to it; a few neighbours across the borders are missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.cluster import KMeans

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.distances import length, squared_distance
from ips2_dask.kernels.draws import mixed
from ips2_dask.kernels.metrics import EUCLIDEAN
from ips2_dask.kernels.neighbors import EXACT_ROWS, insert_nearest
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float32, Int32, Int64

CLOSE = 1e-5
"""Share of their squared norms by which two squared distances by BLAS may differ and be in the other order."""

DISTANCE_BYTES = 16 << 20
"""Bytes of distances to cells that a thread has at one time: so that they don't grow with the cells."""

MAX_IN_TREE = 4096
"""Cells that are put in order by a tree, which needs all their distances: 64 MiB."""


def is_drawn(low: int, high: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which of the samples low .. high - 1 are among a share of all, drawn independently of each other.

    A sample's own number decides, with the seed (SplitMix64; Steele et al. 2014): so no partition changes the draw.
    """
    if share >= 1.0:
        return np.ones(high - low, np.bool_)
    first = np.uint64(np.random.SeedSequence([seed, 3]).generate_state(1)[0])
    hashed = mixed(np.arange(low, high, dtype=np.uint64) + first, np.uint64(0))
    return np.asarray(hashed < np.uint64(min(share, 1.0) * 2.0**64))


def centers(sample: Float32, n_shards: int, seed: int) -> Float32:
    """Centres of the cells, in an order in which neighbours are near: (n_shards, f).

    The sample is given up: k-means works in its memory.
    """
    fitted = KMeans(n_shards, n_init=1, max_iter=10, random_state=seed, init="random", copy_x=False).fit(sample)
    centroids = fitted.cluster_centers_.astype(np.float32)
    return centroids[_in_order(centroids)]


def _in_order(centroids: Float32) -> Int64:
    """The leaves of Ward's tree, or of very many each followed by its nearest one not yet taken: (n_shards,).

    Samples are numbered by cell, and ranges of them are what workers hold. Ranges of a tree's leaves are compact: with
    10,000,000 samples of 16 features in 40 of them, a range's products need .31 times as many pairs of others as it
    has itself, and .51 times along a path (measured).
    """
    if 2 < len(centroids) <= MAX_IN_TREE:
        return np.asarray(leaves_list(linkage(centroids, "ward")), np.int64)
    left = list(range(1, len(centroids)))
    path = [0]
    while left:
        gaps = np.square(centroids[left] - centroids[path[-1]]).sum(axis=1)
        path.append(left.pop(int(np.argmin(gaps))))
    return np.array(path)


def two_nearest(X: Float32, centroids: Float32) -> Int32:
    """The nearest and the second nearest cell of each row: (rows, 2); with one cell, twice that one."""
    if len(centroids) == 1:
        return np.zeros((len(X), 2), np.int32)
    norms = np.einsum("ij,ij->i", centroids, centroids)
    cells = np.empty((len(X), 2), np.int32)

    def block(a: int, b: int) -> None:
        squares = norms - 2 * (X[a:b] @ centroids.T)
        # BLAS rounds a row differently in blocks of other sizes: centres that close are compared by exact distances
        slack = CLOSE * (np.einsum("ij,ij->i", X[a:b], X[a:b]) + norms.max())
        for column in (0, 1):
            nearest = squares.min(axis=1)
            cells[a:b, column] = squares.argmin(axis=1)
            for r in np.flatnonzero((squares <= (nearest + slack)[:, None]).sum(axis=1) > 1):
                close = np.flatnonzero(squares[r] <= nearest[r] + slack[r])
                gaps = [squared_distance(X[a + r], centroids[cell]) for cell in close]
                cells[a + r, column] = close[int(np.argmin(gaps))]
            squares[np.arange(b - a), cells[a:b, column]] = np.inf

    map_chunks(block, len(X), rows_of_block(len(centroids)))
    return cells


def rows_of_block(n_cells: int) -> int:
    """How many rows are compared with all cells at one time: three float32 values for each pair of them."""
    return min(8 * EXACT_ROWS, max(1, DISTANCE_BYTES // (3 * 4 * n_cells)))


class PairCounts(NamedTuple):
    """How many samples have each pair of nearest and second nearest cell, of the pairs that occur."""

    cells: Int32  # (n, 2), ascending
    counts: Int64  # (n,)


def count_pairs(nearest: Int32) -> PairCounts:
    """The pairs of cells (rows, 2) counted."""
    return add_counts([PairCounts(nearest, np.ones(len(nearest), np.int64))])


def add_counts(tables: Sequence[PairCounts]) -> PairCounts:
    """The sum of several tables."""
    cells = np.concatenate([table.cells for table in tables]).astype(np.int64).reshape(-1, 2)
    width = int(cells.max(initial=0)) + 1
    keys, which = np.unique(cells[:, 0] * width + cells[:, 1], return_inverse=True)
    counts = np.zeros(len(keys), np.int64)
    np.add.at(counts, which.ravel(), np.concatenate([table.counts for table in tables]))
    return PairCounts(np.stack([keys // width, keys % width], axis=1).astype(np.int32), counts)


def members_of(table: PairCounts, n_cells: int) -> Int64:
    """How many samples are in each cell, as their nearest or their second nearest: (n_cells,)."""
    first, second = table.cells[:, 0], table.cells[:, 1]
    twice = table.counts * (first != second)
    return (np.bincount(first, table.counts, n_cells) + np.bincount(second, twice, n_cells)).astype(np.int64)


def join_small(table: PairCounts, centroids: Float32, least: int) -> Int32:
    """The cell that each cell becomes part of, so that none has fewer than ``least`` samples: (cells,) int32.

    Each sample then finds as many neighbours in its cells as a list has, however far away it lies.

    ``table``: of the two nearest cells of all samples; ``centroids`` (cells, f): centres of the cells; ``least``:
    at most m.
    """
    cells = np.arange(len(centroids), dtype=np.int32)
    while True:
        members = members_of(PairCounts(cells[table.cells], table.counts), len(centroids))
        small = np.flatnonzero((members > 0) & (members < least))
        if not len(small):
            return cells
        smallest = small[np.argmin(members[small])]
        others = np.flatnonzero((members > 0) & (np.arange(len(centroids)) != smallest))
        gaps = np.square(centroids[others] - centroids[smallest]).sum(axis=1)
        cells[cells == smallest] = others[np.argmin(gaps)]


@njit(nogil=True, cache=True)
def _merge(indices, distances, user, own, others, lengths, sources):  # type: ignore[no-untyped-def]
    rows, n = indices.shape
    squares, keys, samples = np.empty(n - 1), np.empty(n - 1, np.int64), np.empty(n - 1, np.int32)
    changed = 0
    for r in range(rows):
        count = 0
        for part in range(2):
            ids = indices[r] if part == 0 else others[r]
            gaps = distances[r] if part == 0 else lengths[r]
            for t in range(len(ids)):
                j = ids[t]
                if j < 0 or j == own[r]:
                    continue
                repeated = False
                for s in range(count):
                    if keys[s] == user[j]:
                        repeated = True
                        break
                if not repeated:
                    count = insert_nearest(squares, keys, count, np.float64(gaps[t]), user[j])
        for t in range(count):
            samples[t] = sources[keys[t]]
        for t in range(count):
            if indices[r, t + 1] != samples[t]:
                changed += 1
            indices[r, t + 1] = samples[t]
            distances[r, t + 1] = squares[t]
    return changed


def merge_lists(
    indices: Int32, distances: Float32, others: Int32, lengths: Float32, own: Int64, user: Int32, rank: Int32
) -> int:
    """Take better neighbours from ``others`` (rows, width) into the lists, in place; how many entries changed.

    Lists are ordered by (distance, user's id); -1 in ``others`` is passed over.

    ``indices``, ``distances`` (rows, n): column 0 is the sample itself; ``own`` (rows,): the samples, in the run's
    numbering; ``user``, ``rank`` (m,) int32: the user's number of each sample of the run, and the other way round.
    """
    return int(_merge(indices, distances, user, own, others, lengths, rank))


class Lists(NamedTuple):
    """Neighbours of some samples in both numberings; -1 in ``indices`` where there is none."""

    indices: Int32  # (rows, width), the run's numbers
    users: Int32  # (rows, width), the user's
    distances: Float32  # (rows, width)


def no_lists(rows: int, width: int) -> Lists:
    """Lists without an entry."""
    nobody = np.full((rows, width), -1, np.int32)
    return Lists(nobody, nobody.copy(), np.full((rows, width), np.inf, np.float32))


def merge_numbered(lists: Lists, others: Lists, own: Int64, own_users: Int32) -> int:
    """`merge_lists` without arrays over all samples: the user's numbers that occur are numbered anew, in their order.

    ``lists``: column 0 is the sample itself; they are changed in place; ``own``, ``own_users`` (rows,): the
    samples, in the run's and in the user's numbering. Returns int: how many entries changed.
    """
    there, also = lists.indices >= 0, others.indices >= 0
    users = np.unique(np.concatenate([own_users, lists.users[there], others.users[also]]))
    runs = np.empty(len(users), np.int32)

    def numbered(indices: NDArray[np.integer], numbers: Int32, wanted: NDArray[np.bool_]) -> Int32:
        places = np.full(indices.shape, -1, np.int32)
        places[wanted] = np.searchsorted(users, numbers[wanted])
        runs[places[wanted]] = indices[wanted]
        return places

    rows = numbered(own, own_users, np.ones(len(own), np.bool_)).astype(np.int64)
    places = numbered(lists.indices, lists.users, there)
    candidates = numbered(others.indices, others.users, also)
    same = np.arange(len(users), dtype=np.int32)
    changed = merge_lists(places, lists.distances, candidates, others.distances, rows, same, same)
    there = places >= 0
    lists.indices[there], lists.users[there] = runs[places[there]], users[places[there]]
    return changed


@njit(nogil=True, cache=True)
def _take(out, count, j, p, N, both):  # type: ignore[no-untyped-def]
    """Add j to p's candidates unless it shares a cell with p, is in p's list, or is a candidate already."""
    if j < 0:
        return count
    first, second = both[p, 0], both[p, 1]
    if both[j, 0] == first or both[j, 0] == second or both[j, 1] == first or both[j, 1] == second:
        return count
    for t in range(1, N.shape[1]):
        if N[p, t] == j:
            return count
    for t in range(count):
        if out[t] == j:
            return count
    out[count] = j
    return count + 1


@njit(nogil=True, cache=True)
def _candidates(N, start, reverse, both, rows, out):  # type: ignore[no-untyped-def]
    n = N.shape[1]
    for r in range(len(rows)):
        p = rows[r]
        count = 0
        for a in range(1, n):
            for b in range(1, n):
                count = _take(out[r], count, N[N[p, a], b], p, N, both)
        for t in range(start[p], min(start[p + 1], start[p] + n)):
            near = reverse[t]
            count = _take(out[r], count, near, p, N, both)
            for b in range(1, n):
                count = _take(out[r], count, N[near, b], p, N, both)


def second_neighbors(N: Int32, start: Int64, reverse: Int32, both: Int32, rows: Int64) -> Int32:
    """Neighbours of neighbours, and of up to n that name a sample, that share none of its two cells.

    ``N`` (m, n) int32: lists, the sample itself in column 0; ``start``, ``reverse`` (m + 1,), (m n,): in whose
    lists each sample is; ``both`` (m, 2) int32: the two cells of each sample: samples that share one were compared
    when its shard was searched; ``rows`` (rows,). Returns (rows, 2 n^2) int32: each candidate once, padded with -1.
    """
    candidates = np.full((len(rows), 2 * N.shape[1] ** 2), -1, np.int32)
    map_chunks(lambda a, b: _candidates(N, start, reverse, both, rows[a:b], candidates[a:b]), len(rows), 4096)
    return candidates


@njit(nogil=True, cache=True)
def _lengths(X, own, candidates, place, out, metric):  # type: ignore[no-untyped-def]
    for r in range(len(candidates)):
        for t in range(candidates.shape[1]):
            j = candidates[r, t]
            if j >= 0:
                out[r, t] = length(X[own[r]], X[place[j]], metric)


def candidate_lengths(
    X: Float32, own: Int64, candidates: Int32, place: Int32, metric: int | None = EUCLIDEAN
) -> Float32:
    """Distances from rows ``own`` of X to candidates, whose rows ``place`` tells: (rows, width) float32."""
    lengths = np.full(candidates.shape, np.inf, np.float32)
    map_chunks(lambda a, b: _lengths(X, own[a:b], candidates[a:b], place, lengths[a:b], metric), len(candidates), 1024)
    return lengths


# ---- the many samples of a large cell, by sub-cells

Search = Callable[[Float32], tuple[Int32, Float32]]
"""From rows X to the places and distances of each one's nearest among them, the row itself first."""

LARGE = 4
"""Times as many rows as a sub-cell shall have are searched at once still."""

SAMPLE_PER_CELL = 200
"""Rows, per sub-cell, that place the centres."""


def nearest_in_sub_cells(X: Float32, n: int, search: Search, members: int, seed: int) -> tuple[Int32, Float32]:
    """The n nearest rows of X to each of its rows, itself first, but for a few: (m, n) places and distances.

    X alone decides about the sub-cells. Rows of a sub-cell that is large itself are divided again, unless it has more
    than half of them all: no division gets far where most rows are one crowd.

    ``X`` (m, f) float32; ``n``: at most m; ``search``: the search of as few rows as a sub-cell has; of fewer than n
    rows it gives narrower lists; ``members``: rows that a sub-cell shall have. Returns ``places, distances`` (m, n)
    int32, float32: -1 and infinity where fewer rows than n were compared. Ties go by place.
    """
    m = len(X)
    if m <= LARGE * members:
        return _padded(*search(X), n)
    wanted = math.ceil(2 * m / members)
    drawn = X[is_drawn(0, m, SAMPLE_PER_CELL * wanted / m, seed)]
    middle = centers(drawn, min(wanted, len(drawn)), seed)
    nearest = two_nearest(X, middle)
    nearest = join_small(count_pairs(nearest), middle, n)[nearest]
    lists = [(np.full((m, n), -1, np.int32), np.full((m, n), np.inf, np.float32)) for _ in range(2)]
    for cell in range(len(middle)):
        inside = (nearest == cell).any(axis=1)
        rows = np.flatnonzero(inside)
        if not len(rows):
            continue
        if 2 * len(rows) <= m:
            local, lengths = nearest_in_sub_cells(X[rows], min(n, len(rows)), search, members, seed)
        else:
            local, lengths = search(X[rows])
        local, lengths = _padded(local, lengths, n)
        places = np.where(local < 0, -1, rows[local])
        for column, (indices, distances) in enumerate(lists):
            here = nearest[rows, column] == cell
            indices[rows[here]], distances[rows[here]] = places[here], lengths[here]
    same = np.arange(m, dtype=np.int32)
    merge_lists(*lists[0], *lists[1], same.astype(np.int64), same, same)
    return lists[0]


def _padded(places: Int32, distances: Float32, n: int) -> tuple[Int32, Float32]:
    """Lists of width n."""
    more = ((0, 0), (0, n - places.shape[1]))
    return np.pad(places, more, constant_values=-1), np.pad(distances, more, constant_values=np.inf)

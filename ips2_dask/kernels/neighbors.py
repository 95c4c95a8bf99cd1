"""Nearest neighbours: exact searches with every tie decided by (distance, id), approximate ones, and their recall.

Everywhere ``indices`` (m, n) int32 and ``distances`` (m, n) float32 hold the n nearest samples of each sample, the
sample itself in column 0, the others by (distance, id).
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from threading import Lock

import numba
import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.distances import length, squared_distance
from ips2_dask.kernels.metrics import EUCLIDEAN, METRICS
from ips2_dask.kernels.parallel import chunk_bounds, map_chunks
from ips2_dask.typing import Float32, Int32, Int64

Nearest = Callable[..., tuple[NDArray[np.int32], Float32]]
"""A search such as `nearest_in`: (queries, own, X, n, first) to indices and distances."""

EXACT_ROWS = 512
"""Rows of one BLAS product: a block of 512 x 8,192 float32 stays near the cores."""
EXACT_COLUMNS = 8192

COMPARED_ROWS = 256
COMPARED_BYTES = 256 << 10
"""A block of X that stays in a core's cache while the queries of a block are compared with it."""


@njit(nogil=True, cache=True)
def insert_nearest(squares, ids, count, square, identity):  # type: ignore[no-untyped-def]
    """Insert (square, identity) into the first ``count`` sorted entries; the last entry may fall off."""
    n = squares.shape[0]
    if count == n:
        if square > squares[n - 1] or (square == squares[n - 1] and identity >= ids[n - 1]):
            return count
        place = n - 1
    else:
        place = count
        count += 1
    while place > 0 and (squares[place - 1] > square or (squares[place - 1] == square and ids[place - 1] > identity)):
        squares[place], ids[place] = squares[place - 1], ids[place - 1]
        place -= 1
    squares[place], ids[place] = square, identity
    return count


@njit(nogil=True, cache=True)
def _narrow(G, norms_x, norms_y, slack, own, first, bound, low, ids, counts):  # type: ignore[no-untyped-def]
    """Take in a block of columns: each row's n smallest upper limits, and columns with lower limits not above them.

    G holds x.y; the squared distance is norms_x + norms_y - 2 G, right to slack (norms_x + norms_y). ``counts`` becomes
    -1 in a row whose candidates do not fit: too many samples are nearly as near as the n-th.
    """
    rows, columns = G.shape
    n, room = bound.shape[1], low.shape[1]
    for r in range(rows):
        if counts[r] < 0:
            continue
        worst, count = bound[r, n - 1], counts[r]
        for s in range(columns):
            scale = norms_x[r] + norms_y[s]
            middle = scale - np.float32(2.0) * G[r, s]
            lower = middle - slack * scale
            if lower > worst or s == own[r]:
                continue
            upper = middle + slack * scale
            if upper < worst:
                place = n - 1
                while place > 0 and bound[r, place - 1] > upper:
                    bound[r, place] = bound[r, place - 1]
                    place -= 1
                bound[r, place] = upper
                worst = bound[r, n - 1]
            if count == room:
                count = 0
                for t in range(room):
                    if low[r, t] <= worst:
                        low[r, count], ids[r, count] = low[r, t], ids[r, t]
                        count += 1
                if count == room:
                    count = -1
                    break
            low[r, count], ids[r, count] = lower, first + s
            count += 1
        counts[r] = count


@njit(nogil=True, cache=True)
def _measure_narrowed(X_rows, X, bound, low, ids, counts, first, indices, distances):  # type: ignore[no-untyped-def]
    """Measure the candidates by differences, and keep the best by (distance, id)."""
    n = bound.shape[1]
    squares, best = np.empty(n), np.empty(n, np.int64)
    for r in range(len(X_rows)):
        count = 0
        for t in range(counts[r]):
            if low[r, t] <= bound[r, n - 1]:
                count = insert_nearest(squares, best, count, squared_distance(X_rows[r], X[ids[r, t]]), ids[r, t])
        for t in range(count):
            indices[r, t], distances[r, t] = first + best[t], np.sqrt(squares[t])


@njit(nogil=True, cache=True)
def _scan(x, own, X, first, indices, distances):  # type: ignore[no-untyped-def]
    """One row against all samples from their differences: for rows with more near ties than `_narrow` has room for."""
    n = len(indices)
    squares, best = np.empty(n), np.empty(n, np.int64)
    count = 0
    for j in range(len(X)):
        if j != own:
            count = insert_nearest(squares, best, count, squared_distance(x, X[j]), j)
    for t in range(count):
        indices[t], distances[t] = first + best[t], np.sqrt(squares[t])


def rounding_slack(f: int) -> np.float32:
    """How far a float32 squared distance by BLAS may be off, as a share of the two squared norms.

    A sum of f products rounds like a random walk; eight standard deviations, and eight roundings for the rest.
    """
    return np.float32(np.finfo(np.float32).eps * (8.0 + 8.0 * np.sqrt(f)))


def nearest_in(queries: Float32, own: Int64, X: Float32, n: int, first: int = 0) -> tuple[NDArray[np.int32], Float32]:
    """The n nearest rows of X to each query by (distance, id), those with the query's own id left out.

    BLAS narrows each query down to those that could be among the nearest whatever it rounded; those are measured from
    their differences, so that equal distances are equal and the smaller id wins.

    ``queries`` (rows, f) float32; ``own`` (rows,) int: ids of the queries; -1 where a query is no row of X; ``X``
    (m, f) float32: rows with the ids first, first + 1, ... Returns ``indices, distances`` (rows, n) int32, float32:
    -1 and infinity where X has too few rows.
    """
    norms = np.einsum("ij,ij->i", X, X)
    slack = rounding_slack(X.shape[1])
    indices = np.full((len(queries), n), -1, np.int32)
    distances = np.full((len(queries), n), np.inf, np.float32)
    place = np.where((own >= first) & (own < first + len(X)), own - first, -1)

    def block(a: int, b: int) -> None:
        rows, places = queries[a:b], place[a:b]
        bound = np.full((b - a, n), np.inf, np.float32)
        low = np.empty((b - a, max(64, 4 * n)), np.float32)
        ids = np.empty(low.shape, np.int32)
        counts = np.zeros(b - a, np.int64)
        squares = np.einsum("ij,ij->i", rows, rows)
        for c, d in chunk_bounds(len(X), EXACT_COLUMNS):
            G = rows @ X[c:d].T
            _narrow(G, squares, norms[c:d], slack, places - c, c, bound, low, ids, counts)
        _measure_narrowed(rows, X, bound, low, ids, counts, first, indices[a:b], distances[a:b])
        for row in a + np.flatnonzero(counts < 0):
            _scan(queries[row], place[row], X, first, indices[row], distances[row])

    if n > 0 and len(X):
        map_chunks(block, len(queries), EXACT_ROWS)
    return indices, distances


@njit(nogil=True, cache=True)
def _compare(queries, place, X, width, first, metric, indices, distances):  # type: ignore[no-untyped-def]
    rows, n = indices.shape
    lengths, ids = np.empty((rows, n)), np.empty((rows, n), np.int64)
    counts = np.zeros(rows, np.int64)
    for start in range(0, len(X), width):
        for r in range(rows):
            for j in range(start, min(start + width, len(X))):
                if j != place[r]:
                    counts[r] = insert_nearest(lengths[r], ids[r], counts[r], length(queries[r], X[j], metric), j)
    for r in range(rows):
        for t in range(counts[r]):
            indices[r, t], distances[r, t] = first + ids[r, t], lengths[r, t]


def nearest_by_metric(
    queries: Float32, own: Int64, X: Float32, n: int, first: int = 0, *, metric: str = "manhattan"
) -> tuple[Int32, Float32]:
    """The n nearest rows of X to each query by (distance, id), as of `nearest_in`, by a metric of `metrics.METRICS`.

    All pairs are compared, in blocks of X: no matrix product narrows these metrics down.
    """
    indices = np.full((len(queries), n), -1, np.int32)
    distances = np.full((len(queries), n), np.inf, np.float32)
    place = np.where((own >= first) & (own < first + len(X)), own - first, -1)
    width = max(16, COMPARED_BYTES // max(1, X[:1].nbytes))

    def block(a: int, b: int) -> None:
        _compare(queries[a:b], place[a:b], X, width, first, METRICS[metric].code, indices[a:b], distances[a:b])

    if n > 0 and len(X):
        map_chunks(block, len(queries), COMPARED_ROWS)
    return indices, distances


def exact_neighbors(
    X_rows: Float32, start: int, X: Float32, n: int, nearest: Nearest = nearest_in
) -> tuple[Int32, Float32]:
    """The n nearest samples of ``X_rows``, which are the rows from ``start`` on of X, the sample itself first.

    ``X_rows`` (rows, f) float32; ``X`` (m, f) float32; ``n``: 1 <= n <= m; ``nearest``: the search: `nearest_in`
    for Euclidean distances, or that of another metric. Returns ``indices, distances`` (rows, n) int32, float32:
    column 0 is the sample itself, the others are by (distance, id).
    """
    own = np.arange(start, start + len(X_rows))
    indices, distances = nearest(X_rows, own, X, n - 1)
    return (
        np.concatenate([own[:, None].astype(np.int32), indices], axis=1),
        np.concatenate([np.zeros((len(own), 1), np.float32), distances], axis=1),
    )


@njit(nogil=True, cache=True)
def _nearest_of_rows(D, start, indices, distances):  # type: ignore[no-untyped-def]
    rows, m = D.shape
    n = indices.shape[1] - 1
    lengths, ids = np.empty(n), np.empty(n, np.int64)
    for r in range(rows):
        count = 0
        for j in range(m):
            if j != start + r and n > 0:
                count = insert_nearest(lengths, ids, count, np.float64(D[r, j]), j)
        indices[r, 0], distances[r, 0] = start + r, 0.0
        for t in range(n):
            indices[r, t + 1], distances[r, t + 1] = ids[t], lengths[t]


def precomputed_neighbors(D: Float32, start: int, n: int) -> tuple[Int32, Float32]:
    """The n nearest samples of samples ``start`` on, from their distances to all samples.

    ``D`` (rows, m) float32: rows ``start``, ``start`` + 1, ... of the matrix of distances; ``n``: 1 <= n <= m.
    Returns ``indices, distances`` (rows, n) int32, float32: as of `exact_neighbors`.
    """
    indices, distances = np.empty((len(D), n), np.int32), np.empty((len(D), n), np.float32)
    map_chunks(lambda a, b: _nearest_of_rows(D[a:b], start + a, indices[a:b], distances[a:b]), len(D), 512)
    return indices, distances


@njit(nogil=True, cache=True)
def _measure(X_rows, start, X, candidates, indices, distances, metric):  # type: ignore[no-untyped-def]
    rows, width = candidates.shape
    n = indices.shape[1]
    squares, ids = np.empty(n - 1), np.empty(n - 1, np.int64)
    short = np.zeros(rows, np.bool_)
    for r in range(rows):
        count = 0
        for s in range(width):
            j = candidates[r, s]
            if j < 0 or j == start + r:
                continue
            repeated = False
            for t in range(count):
                if ids[t] == j:
                    repeated = True
                    break
            if not repeated:
                x, y = X_rows[r], X[j]
                gap = squared_distance(x, y) if metric is None else length(x, y, metric)
                count = insert_nearest(squares, ids, count, gap, j)
        short[r] = count < n - 1
        indices[r, 0] = start + r
        distances[r, 0] = 0.0
        for t in range(count):
            indices[r, 1 + t] = ids[t]
            distances[r, 1 + t] = np.sqrt(squares[t]) if metric is None else squares[t]
    return short


def refine_candidates(
    X: Float32, candidates: Int32, n: int, nearest: Nearest = nearest_in, metric: int | None = EUCLIDEAN
) -> tuple[Int32, Float32, int]:
    """The n nearest of each sample's ``candidates`` (m, width), measured from differences; short rows done exactly.

    Ids below zero, repeated ids and the sample itself among the candidates are passed over, so that whatever an
    approximate builder returned, each row ends with n different samples, itself first. Rows with too few candidates,
    or with a distance that is not finite, are computed exactly. ``metric`` is a code of `metrics.METRICS`, and
    ``nearest`` its search.

    Returns ``indices, distances`` (m, n) int32, float32; ``repaired`` int: rows that had to be computed exactly.
    """
    m = len(X)
    indices, distances = np.zeros((m, n), np.int32), np.zeros((m, n), np.float32)
    parts = map_chunks(
        lambda a, b: _measure(X[a:b], a, X, candidates[a:b], indices[a:b], distances[a:b], metric), m, 4096
    )
    bad = np.concatenate(parts) | ~np.isfinite(distances).all(axis=1)
    for row in np.flatnonzero(bad):
        indices[row : row + 1], distances[row : row + 1] = exact_neighbors(X[row : row + 1], int(row), X, n, nearest)
    return indices, distances, int(bad.sum())


# ---- approximate neighbours by pynndescent, with everything pinned that its answer depends on

THREADS = 2
"""pynndescent's graph depends on ``n_jobs``: another number changes 5 % of the rows, so it is fixed."""

TIMES = 4
"""How many times as long as wanted pynndescent's lists of a shard are: recall@5 on MNIST's first 10,000 images is then
.99 or more by every metric, while lists of the wanted length have no more than .94 by the Chebyshev one (measured)."""

_ONE_AT_A_TIME = Lock()
"""Two threads of a process must not start Numba's parallel loops at once."""


def descent_candidates(
    X: NDArray[np.float32], n: int, seed: int, metric: str = "euclidean", times: int = 1, threads: int = THREADS
) -> NDArray[np.int32]:
    """Candidates for the n nearest of every row, the row itself among them: (m, times (n + 1)), -1 where there is none.

    Longer lists raise the recall. ``metric`` is a name of `metrics.METRICS`.
    """
    from pynndescent import NNDescent  # noqa: PLC0415  its import and compilation cost half a minute

    width, known = min(times * (n + 1), len(X)), METRICS[metric]
    with _ONE_AT_A_TIME, _started_threads() as most, warnings.catch_warnings():
        # of few rows or many equal ones it lists too few, which callers see and search for exactly
        warnings.filterwarnings("ignore", "Failed to correctly find n_neighbors")
        index = NNDescent(X, known.external, dict(known.arguments), width, random_state=seed, n_jobs=min(threads, most))
        return np.asarray(index.neighbor_graph[0], np.int32)


@contextlib.contextmanager
def _started_threads() -> Iterator[int]:
    """Numba's number of threads in this process, which the environment may not change any more.

    Numba reads ``NUMBA_NUM_THREADS`` whenever it compiles, and refuses another value once its threads have started: a
    process that has started workers may have had one for them then.
    """
    name = "NUMBA_NUM_THREADS"
    before, most = os.environ.get(name), int(numba.config.NUMBA_NUM_THREADS)
    os.environ[name] = str(most)
    try:
        yield most
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def nearest_by_descent(
    queries: NDArray[np.float32], own: NDArray[np.int64], X: NDArray[np.float32], n: int, *, metric: str, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The n nearest rows of X to each of its rows, as of `nearest_by_metric` but for a few of them.

    The queries are all rows of X. Distances are those of the exact search, and rows of which pynndescent lists too few
    neighbours are searched exactly. One thread works on it, so that the cores of a machine change nothing.
    """

    def exact(
        rows: NDArray[np.float32], ids: NDArray[np.int64], Y: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return nearest_by_metric(rows, ids, Y, count, metric=metric)

    if len(X) <= TIMES * (n + 2):
        return nearest_by_metric(queries, own, X, n, metric=metric)
    lists = descent_candidates(X, n + 1, seed, metric, TIMES, threads=1)
    indices, distances, _ = refine_candidates(X, lists, n + 1, exact, METRICS[metric].code)
    return indices[:, 1:], distances[:, 1:]


# ---- the recall of a graph, and the bandwidth

RECALL_ROWS = 400
"""Samples that a recall is measured on: of five neighbours each, its standard error is at most .01 where it is .95. A
thousand took a seventh of the time of MNIST's graph (measured)."""


def recall_rows(m: int, seed: int) -> Int64:
    """The samples whose exact neighbours a graph is measured against, ascending."""
    return np.sort(np.random.default_rng([seed, 2]).choice(m, min(RECALL_ROWS, m), replace=False))


def recall(distances: Float32, reach: Float32) -> float:
    """Share of the listed neighbours that are no farther than the true n-th one.

    Equal distances make several answers right, so that distances are compared and not ids.

    ``distances`` (rows, n) float32: listed distances, the sample itself in column 0; ``reach`` (rows,) float32:
    distance of the true n-th one.
    """
    near = is_near(distances, reach)
    return float(near.mean()) if near.size else 1.0


def is_near(distances: Float32, reach: Float32) -> NDArray[np.bool_]:
    """Which listed neighbours are no farther than the true n-th one, as of `recall`: (rows, n - 1)."""
    return np.asarray(distances[:, 1:] <= reach[:, None] * np.float32(1 + 1e-5))


BANDWIDTH_SAMPLE = 2000
"""Above 5,000 samples the bandwidth comes from the pairs among so many of them: two million pairs."""


def bandwidth_rows(m: int, most: int, seed: int) -> Int64:
    """Samples whose pairs decide the bandwidth: all of them up to ``most``, above it a seeded choice of 2,000."""
    if m <= most:
        return np.arange(m, dtype=np.int64)
    return np.sort(np.random.default_rng([seed, 1]).choice(m, BANDWIDTH_SAMPLE, replace=False))

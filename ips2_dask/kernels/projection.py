"""Directions in which samples vary most: neighbours narrowed down in some of them, and an order in space by halves.

In the principal directions of one shard a product costs a fraction and tells nearly as much: in
||x - y||^2 = ||x||^2 + ||y||^2 - 2 x.y the product x.y is taken in these directions only; what is left out of it are
parts of x and y that point anywhere. A few times n candidates by that are measured in all features.

Halves along the direction of most variance, and halves of those, put near samples near each other. Products with
neighbourhoods read and write rows of pairs: where neighbours stand near each other, the rows of one neighbourhood are
still in the processor's caches when the next one comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.distances import squared_distance
from ips2_dask.kernels.neighbors import EXACT_ROWS, insert_nearest
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float32, Int32, Int64

DIRECTIONS = 64
CANDIDATES = 4
SAMPLED = 1000
"""Principal directions, candidates per neighbour, and rows whose directions are taken. Recall@5 inside shards of MNIST,
784 features, and of a curved manifold in 4,096: .998 and .999 or more, in a quarter of the time of all features. The
directions of all shards together, even 96 of them, give .80 to .99 on that manifold (measured)."""

WORTHWHILE = 192
"""Features above which narrowing down pays."""

LEAF = 8
"""Samples that are not halved any more."""

DIRECTION_ROWS = 64
"""Rows of a half that decide its direction."""

POWER_STEPS = 4
"""Power iterations towards it."""


class Projected(NamedTuple):
    """Rows of X around their mean: in few directions, (m, DIRECTIONS), and their squared lengths in all, (m,)."""

    Z: Float32
    norms: Float32

    def at(self, rows: Int64) -> Projected:
        """Those of some rows."""
        return Projected(np.ascontiguousarray(self.Z[rows]), self.norms[rows])


def project(X: Float32, seed: int) -> Projected | None:
    """X (m, f) in its own leading principal directions, or None where it has no more rows than directions."""
    m = len(X)
    if m <= DIRECTIONS:
        return None
    some = X[np.random.default_rng([seed, 4]).permutation(m)[:SAMPLED]]
    mean = some.mean(axis=0)
    some -= mean
    directions = np.linalg.qr(some[:DIRECTIONS].T)[0]
    directions = np.linalg.qr(some.T @ (some @ directions))[0]
    Z, norms = np.empty((m, DIRECTIONS), np.float32), np.empty(m, np.float32)

    def block(a: int, b: int) -> None:
        Y = X[a:b] - mean
        np.matmul(Y, directions, out=Z[a:b])
        norms[a:b] = np.einsum("ij,ij->i", Y, Y)

    map_chunks(block, m, EXACT_ROWS)
    return Projected(Z, norms)


@njit(nogil=True, cache=True, fastmath=True)
def _nearest(G, norms, own, low, ids, counts):  # type: ignore[no-untyped-def]
    """Take the columns with the smallest norms - 2 G into each row's sorted candidates."""
    rows, columns = G.shape
    room = low.shape[1]
    for r in range(rows):
        count, worst = counts[r], np.float32(np.inf)
        if count == room:
            worst = low[r, room - 1]
        near, nearest = low[r], ids[r]
        for s in range(columns):
            gap = norms[s] - np.float32(2.0) * G[r, s]
            if gap >= worst or s == own[r]:
                continue
            place = count if count < room else room - 1
            count = min(count + 1, room)
            while place > 0 and near[place - 1] > gap:
                near[place], nearest[place] = near[place - 1], nearest[place - 1]
                place -= 1
            near[place], nearest[place] = gap, s
            if count == room:
                worst = near[room - 1]
        counts[r] = count


@njit(nogil=True, cache=True)
def _up_to(x, y, most):  # type: ignore[no-untyped-def]
    """`squared_distance`, or a part of it that is above ``most``: the candidates come with the nearest first."""
    total = 0.0
    for start in range(0, x.shape[0], 512):
        total += squared_distance(x[start : start + 512], y[start : start + 512])
        if total > most:
            return total
    return total


@njit(nogil=True, cache=True)
def _measure(X, own, ids, counts, indices, distances):  # type: ignore[no-untyped-def]
    n = indices.shape[1]
    squares, best = np.empty(n), np.empty(n, np.int64)
    for r in range(len(own)):
        count = 0
        for t in range(counts[r]):
            most = squares[n - 1] if count == n else np.inf
            count = insert_nearest(squares, best, count, _up_to(X[own[r]], X[ids[r, t]], most), ids[r, t])
        for t in range(count):
            indices[r, t], distances[r, t] = best[t], np.sqrt(squares[t])


def projected_nearest(X: Float32, narrow: Projected, own: Int64, n: int) -> tuple[Int32, Float32]:
    """The n nearest rows of X to its rows ``own`` but for a few, by (distance, id), themselves left out.

    ``X`` (m, f) float32; ``narrow``: of X; ``own`` (rows,) int. Returns ``indices, distances`` (rows, n) int32,
    float32: of rows that are among the candidates; -1 and infinity where X has too few.
    """
    Z, norms = narrow
    indices = np.full((len(own), n), -1, np.int32)
    distances = np.full((len(own), n), np.inf, np.float32)
    room = min(max(CANDIDATES * n, 8), len(X))

    def block(a: int, b: int) -> None:
        low, ids = np.empty((b - a, room), np.float32), np.empty((b - a, room), np.int32)
        counts = np.zeros(b - a, np.int64)
        _nearest(Z[own[a:b]] @ Z.T, norms, own[a:b], low, ids, counts)
        _measure(X, own[a:b], ids, counts, indices[a:b], distances[a:b])

    if n > 0 and len(own):
        map_chunks(block, len(own), EXACT_ROWS)
    return indices, distances


# What follows is in plain loops: Numba's own sorts, reductions and slices take four seconds to compile.


@njit(nogil=True, cache=True)
def _direction(X, rows):  # type: ignore[no-untyped-def]
    """Direction in which evenly spaced ones of these rows of X vary most, nearly; zero where all are equal."""
    f, step = X.shape[1], max(1, len(rows) // DIRECTION_ROWS)
    n = (len(rows) + step - 1) // step
    some, mean, direction, following = np.empty((n, f)), np.zeros(f), np.empty(f), np.empty(f)
    for r in range(n):
        for t in range(f):
            some[r, t] = X[rows[r * step], t]
            mean[t] += some[r, t]
    for t in range(f):
        mean[t] /= n
    longest, square = 0, -1.0
    for r in range(n):
        length = 0.0
        for t in range(f):
            some[r, t] -= mean[t]
            length += some[r, t] * some[r, t]
        if length > square:
            longest, square = r, length
    for t in range(f):
        direction[t] = some[longest, t]
    for _ in range(POWER_STEPS):
        for t in range(f):
            following[t] = 0.0
        for r in range(n):
            share = 0.0
            for t in range(f):
                share += some[r, t] * direction[t]
            for t in range(f):
                following[t] += share * some[r, t]
        most = 0.0
        for t in range(f):
            most = max(most, abs(following[t]))
        if most == 0.0:
            break
        for t in range(f):
            direction[t] = following[t] / most
    return direction


@njit(nogil=True, cache=True)
def _sort_by(values, rows, spare):  # type: ignore[no-untyped-def]
    """Sort the places of ``rows`` by their values, equal ones as they are: merged runs, twice as long each time."""
    n = len(values)
    places, merged = np.empty(n, np.int64), np.empty(n, np.int64)
    for t in range(n):
        places[t], spare[t] = t, rows[t]
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for t in range(low, high):
                if i < middle and (j == high or values[places[i]] <= values[places[j]]):
                    merged[t] = places[i]
                    i += 1
                else:
                    merged[t] = places[j]
                    j += 1
        places, merged = merged, places
        width *= 2
    for t in range(n):
        rows[t] = spare[places[t]]


@njit(nogil=True, cache=True)
def _halve(X, order):  # type: ignore[no-untyped-def]
    spare, along = np.empty(len(order), np.int64), np.empty(len(order))
    ranges = np.empty((64, 2), np.int64)  # halves to do, of which there is at most one of each size
    ranges[0, 0], ranges[0, 1], n_ranges = 0, len(order), 1
    while n_ranges > 0:
        n_ranges -= 1
        low, high = ranges[n_ranges]
        if high - low <= LEAF:
            continue
        rows = order[low:high]
        direction = _direction(X, rows)
        for r in range(len(rows)):
            along[r] = 0.0
            for t in range(X.shape[1]):
                along[r] += X[rows[r], t] * direction[t]
        _sort_by(along[: high - low], rows, spare)
        middle = (low + high) // 2
        for begin, end in ((low, middle), (middle, high)):
            ranges[n_ranges, 0], ranges[n_ranges, 1] = begin, end
            n_ranges += 1


def spatial_order(X: Float32, rows: Int64) -> Int64:
    """Rows of X (m, f) in an order in which near ones stand near each other: (n,) numbers. Equal rows keep theirs."""
    order = np.array(rows, np.int64)
    _halve(np.ascontiguousarray(X), order)
    return order

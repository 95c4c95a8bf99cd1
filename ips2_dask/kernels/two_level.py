"""Neighbours among the many samples of a large cell: sub-cells by k-means, a search inside each, and the lists merged.

Comparing all samples of a cell takes the square of their number. In sub-cells of a fixed size, each sample in its two
nearest ones, it takes time in proportion to it; a few neighbours across the borders are missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ips2_dask.kernels import shards
from ips2_dask.typing import Float32, Int32

Search = Callable[[Float32], tuple[Int32, Float32]]
"""From rows X to the places and distances of each one's nearest among them, the row itself first."""

LARGE = 4
"""Times as many rows as a sub-cell shall have are searched at once still."""

SAMPLE_PER_CELL = 200
"""Rows, per sub-cell, that place the centres."""


def nearest_rows(X: Float32, n: int, search: Search, members: int, seed: int) -> tuple[Int32, Float32]:
    """The n nearest rows of X to each of its rows, itself first, but for a few: (m, n) places and distances.

    X alone decides about the sub-cells. Rows of a sub-cell that is large itself are divided again, unless it has more
    than half of them all: no division gets far where most rows are one crowd.

    Parameters
    ----------
    X : (m, f) float32
    n : int
        At most m.
    search : callable
        The search of as few rows as a sub-cell has; of fewer than n rows it gives narrower lists.
    members : int
        Rows that a sub-cell shall have.
    seed : int

    Returns
    -------
    places, distances : (m, n) int32, float32
        -1 and infinity where fewer rows than n were compared. Ties go by place.
    """
    m = len(X)
    if m <= LARGE * members:
        return _padded(*search(X), n)
    wanted = math.ceil(2 * m / members)
    drawn = X[shards.is_drawn(0, m, SAMPLE_PER_CELL * wanted / m, seed)]
    centers = shards.centers(drawn, min(wanted, len(drawn)), seed)
    nearest = shards.two_nearest(X, centers)
    nearest = shards.join_small(shards.count_pairs(nearest), centers, n)[nearest]
    lists = [(np.full((m, n), -1, np.int32), np.full((m, n), np.inf, np.float32)) for _ in range(2)]
    for cell in range(len(centers)):
        inside = (nearest == cell).any(axis=1)
        rows = np.flatnonzero(inside)
        if not len(rows):
            continue
        if 2 * len(rows) <= m:
            local, lengths = nearest_rows(X[rows], min(n, len(rows)), search, members, seed)
        else:
            local, lengths = search(X[rows])
        local, lengths = _padded(local, lengths, n)
        places = np.where(local < 0, -1, rows[local])
        for column, (indices, distances) in enumerate(lists):
            here = nearest[rows, column] == cell
            indices[rows[here]], distances[rows[here]] = places[here], lengths[here]
    same = np.arange(m, dtype=np.int32)
    shards.merge_lists(*lists[0], *lists[1], same.astype(np.int64), same, same)
    return lists[0]


def _padded(places: Int32, distances: Float32, n: int) -> tuple[Int32, Float32]:
    """Lists of width n."""
    more = ((0, 0), (0, n - places.shape[1]))
    return np.pad(places, more, constant_values=-1), np.pad(distances, more, constant_values=np.inf)

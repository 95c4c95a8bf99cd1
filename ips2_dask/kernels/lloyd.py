"""Lloyd's k-means by partial sums: what some of the points add to a round, and the round that follows from all sums.

The rounds are those of scikit-learn's ``KMeans(algorithm="lloyd")`` from given centres, with its rules for stopping.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ips2_dask.typing import Float32, Float64, Int32, Int64

ROWS = 1 << 14
"""Points whose distances to all centres are in memory at a time."""

MOST_ROUNDS = 300
TOL = 1e-4
"""scikit-learn's own limits: rounds end where the centres' squared moves add up to at most this share of a column's
variance."""


class Sums(NamedTuple):
    """What some points add to a round."""

    sums: Float64  # (c, d) sum of the points nearest to each centre
    sizes: Int64  # (c,) how many these are
    inertia: float  # sum of their squared distances to their centres
    labels: bytes  # digest of their labels


class Moments(NamedTuple):
    """What the variance of the columns follows from."""

    rows: int
    sums: Float64  # (d,)
    squares: Float64  # (d,)


def moments(points: Float32) -> Moments:
    """The moments of some points (n, d), summed in float64."""
    wide = points.astype(np.float64)
    return Moments(len(points), wide.sum(axis=0), np.square(wide).sum(axis=0))


def nearest_centers(points: Float32, centers: Float64) -> tuple[Int32, Float64]:
    """The nearest centre of each point (ties: the first), and its squared distance: (n,) int32 and float64."""
    labels, squares = np.empty(len(points), np.int32), np.empty(len(points))
    norms = np.square(centers).sum(axis=1)
    for low in range(0, len(points), ROWS):
        some = points[low : low + ROWS].astype(np.float64)
        gaps = norms - 2.0 * (some @ centers.T)
        nearest = gaps.argmin(axis=1)
        labels[low : low + ROWS] = nearest
        squares[low : low + ROWS] = np.square(some - centers[nearest]).sum(axis=1)
    return labels, squares


def partial_sums(points: Float32, centers: Float64) -> Sums:
    """What points (n, d) add to a round from these centres (c, d), each sum in the order of the points."""
    labels, squares = nearest_centers(points, centers)
    total = np.zeros_like(centers)
    for low in range(0, len(points), ROWS):
        own = labels[low : low + ROWS]
        member = sp.csc_array(
            (np.ones(len(own)), own, np.arange(len(own) + 1)), shape=(len(centers), len(own))
        )  # one row of ones for each centre
        total += member @ points[low : low + ROWS].astype(np.float64)
    counts = np.bincount(labels, minlength=len(centers))
    digest = hashlib.blake2b(labels.tobytes(), digest_size=16).digest()
    return Sums(total, counts, float(squares.sum()), digest)


class Rounds:
    """The centres of one round after another, from the sums of all points.

    Parameters
    ----------
    centers : (c, d) float64
        Those to begin with. A centre that no point is nearest to stays where it is.
    parts : sequence of Moments
        Those of all points, in a fixed order.
    """

    def __init__(self, centers: Float64, parts: list[Moments]) -> None:
        n = sum(part.rows for part in parts)
        mean = np.sum([part.sums for part in parts], axis=0) / n
        variance = np.sum([part.squares for part in parts], axis=0) / n - np.square(mean)
        self._tol = TOL * float(np.maximum(variance, 0.0).mean())
        self.centers, self.number, self.done = np.asarray(centers, np.float64), 0, False
        self._labels: list[bytes] = []

    def take(self, parts: list[Sums]) -> None:
        """Move the centres to the means of their points; ``parts`` are the sums of all, in a fixed order."""
        counts = np.sum([part.sizes for part in parts], axis=0)[:, None]
        sums = np.sum([part.sums for part in parts], axis=0)
        moved = np.divide(sums, counts, out=self.centers.copy(), where=counts > 0)
        shift = float(np.square(moved - self.centers).sum())
        labels = [part.labels for part in parts]
        self.centers, self.number = moved, self.number + 1
        self.done = labels == self._labels or shift <= self._tol or self.number >= MOST_ROUNDS
        self._labels = labels

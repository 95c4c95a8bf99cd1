"""From an embedding to labels, which is called rounding: column weights, k-means, labels spread over U, comparison.

Legend: U fused similarity (m, m), D its row sums, P = D^-1 U the random walk on it, F shares of each cluster (m, c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.density import MAX_LEFT_OUT
from ips2_dask.typing import Float32, Float64, Int32, Int64

if TYPE_CHECKING:
    from ips2_dask.kernels.sparse import Matrix


MIN_WEIGHT = 0.1
"""Weight that the c-th column has at least: groups that all but fall apart would leave the other columns none."""

SPREAD_PRODUCTS = 20
"""Products with P that carry the labels of a density's leaves to the samples that it left out, at least."""

WALK = 5
"""Steps of the random walk whose ends are a sample's shares. Of 1, 2, 3, 5, 10 and 20 steps five tell right labels from
wrong ones best in the mean of 20 open sets (area under the curve .689; .648 with one step, .655 with twenty)."""

KEPT = 10
"""Similarities of a sample that a walk on a dense U keeps to."""

MAX_CUT = 2.0
"""Normalised cut of a density's clusters, as a multiple of the best k-means', up to which they are preferred.

A smaller cut is not always truer: the known classes of 20 open sets have 1.0 to 11 times the cut of the best k-means,
1.85 times in the median. Chosen on these sets by ``ips2 bench roundings``, with five draws of 80 % of each.
"""

CUT_UNIT = 2.0**30
"""Sums of cuts are taken over whole multiples of 1 / 2^30, so that they are the same in any order."""

RESTARTS = 10
"""Starts of k-means, at least."""

FEW_SAMPLES = 500
"""Samples from which k-means has more starts."""


def kmeans_restarts(m: int) -> int:
    """Starts of k-means: ten, and up to fifty for some hundred to some thousand points.

    On the embedding of digits one start in twelve finds the best partition (measured): ten find it every other time.
    """
    return RESTARTS if m < FEW_SAMPLES else min(50, max(RESTARTS, 100_000 // m))


def commute_weights(values: Float64, components: int, n_clusters: int) -> Float64:
    """Weights of an embedding's columns: min(1, sqrt(g_2 / g_j)) with g = 1 - lambda, and 1 for component vectors.

    Distances in the embedding that is scaled by 1 / sqrt(g_j) are commute times of a random walk on U (Fouss et al.
    2007; Saerens et al. 2004); they depend on the ratios of the gaps, not on their scale, which shrinks as samples
    become more. Dividing by row lengths takes out what degrees alone say (von Luxburg 2007, section 6.2).

    ``values`` (columns,): eigenvalues of D^-1/2 U D^-1/2, descending; ``components``: connected components of U: so
    many of ``values`` are 1; ``n_clusters``: c; columns up to the c-th weigh at least `MIN_WEIGHT`.
    """
    gaps = np.maximum(1.0 - np.asarray(values, np.float64), np.finfo(np.float32).eps)
    weights = np.ones(len(gaps))
    inner = gaps[components:]
    if len(inner):
        last = gaps[min(n_clusters, len(gaps)) - 1] if n_clusters > components else inner[0]
        least = max(float(inner[0]), MIN_WEIGHT**2 * float(last))
        weights[components:] = np.sqrt(np.minimum(1.0, least / inner))
        if (
            components >= n_clusters
        ):  # the components are the clusters already: columns that divide one of them count little
            weights[components:] *= MIN_WEIGHT
    return weights


def walk_matrix(U: Matrix, degrees: Float64 | None = None) -> Matrix:
    """P = D^-1 U as float32, CSR or dense; rows without any similarity are zero."""
    if degrees is None:
        degrees = np.asarray(U.sum(axis=1), np.float64).ravel()
    scale = np.divide(1.0, degrees, out=np.zeros(len(degrees)), where=degrees > 0)
    if not sp.issparse(U):
        return (U * scale[:, None]).astype(np.float32)
    csr: sp.csr_array = U
    data = (csr.data * np.repeat(scale, np.diff(csr.indptr))).astype(np.float32)
    return sp.csr_array((data, csr.indices, csr.indptr), shape=csr.shape)


def thinned(U: NDArray[np.floating], kept: int = KEPT) -> sp.csr_array:
    """Each sample's ``kept`` largest similarities to others of a dense U, symmetric by maximum.

    Where all pairs are similar to some degree a walk on all of them is anywhere after a step.
    """
    m, most = len(U), max(0, min(kept, len(U) - 1))
    columns = np.empty((m, most), np.int64)
    for i in range(m):  # of all rows at once it would take five times the memory of U
        others = -U[i]
        others[i] = np.inf
        columns[i] = np.sort(np.argpartition(others, most - 1)[:most])
    values = np.take_along_axis(U, columns, axis=1)
    half = sp.csr_array((values.ravel(), (np.repeat(np.arange(m), most), columns.ravel())), shape=(m, m))
    return sp.csr_array(half.maximum(half.T))


def with_own(F: Float32, labels: Int32) -> Float32:
    """Shares between 0 and 1, and a sample without any similarity to others is its own cluster's, whole."""
    if F.shape[1] == 1:
        return np.ones_like(F)  # one cluster has all, whatever float32 sums end at
    lost = np.flatnonzero(~F.any(axis=1))
    shares: Float32 = np.minimum(F, np.float32(1.0))  # float32 sums may end just above
    shares[lost] = one_hot(labels[lost], F.shape[1])
    return shares


def one_hot(labels: Int32, n_clusters: int) -> Float32:
    """1 in the column of each label, rows of zeros where it is -1: (n, c)."""
    indicators = np.zeros((len(labels), n_clusters), np.float32)
    rows = np.flatnonzero(labels >= 0)
    indicators[rows, labels[rows]] = 1.0
    return indicators


def spread(multiply: Callable[[Float32], Float32], labels: Int32, n_clusters: int) -> Float32:
    """Shares of each cluster where labels are given and the others follow by products with P (Zhu, Ghahramani 2002).

    After `SPREAD_PRODUCTS` products it goes on while labels still reach further samples. Samples that no label
    reaches have a row of zeros.

    ``multiply``: from F to P F; ``labels`` (m,): -1 where a sample has none.
    """
    F = one_hot(labels, n_clusters)
    anchors = np.flatnonzero(labels >= 0)
    rows = F[anchors].copy()
    reached, products = -1, 0
    while True:
        F = multiply(F)
        F[anchors] = rows
        products += 1
        if products >= SPREAD_PRODUCTS:
            now = int(F.any(axis=1).sum())
            if now in (reached, len(F)):
                return F
            reached = now


def largest_share(F: Float32) -> Int32:
    """The cluster of the largest share of each row (ties: the first), -1 for rows of zeros."""
    return np.where(F.any(axis=1), F.argmax(axis=1), -1).astype(np.int32)


class CutSums(NamedTuple):
    """Of each cluster, in whole multiples of 1 / 2^30 of the largest degree's power of two."""

    within: Int64  # similarity of samples of one cluster, each pair from both sides
    volume: Int64  # sum of degrees


def cut_sums(rows: sp.csr_array, labels: Int32, own: Int32, n_clusters: int, scale: float) -> CutSums:
    """Contribution of some rows of U to a partition's normalised cut.

    ``rows`` CSR (n, columns): rows of U; ``labels`` (columns,): of the samples that the columns stand for; ``own``
    (n,): of the samples that the rows stand for; ``scale``: a power of two above every degree.
    """
    row_numbers = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    same = labels[rows.indices] == own[row_numbers]
    within = np.bincount(row_numbers[same], rows.data[same], rows.shape[0])
    volume = np.bincount(row_numbers, rows.data, rows.shape[0])
    sums = []
    for values in (within, volume):
        whole = np.rint(values * (CUT_UNIT / scale)).astype(np.int64)
        total = np.zeros(n_clusters, np.int64)
        np.add.at(total, own, whole)
        sums.append(total)
    return CutSums(*sums)


def normalized_cut(within: Sequence[int], volume: Sequence[int]) -> float:
    """Sum over the clusters of the share of their volume that leads out of them (Shi, Malik 2000)."""
    return float(sum(1.0 - inside / total if total > 0 else 1.0 for inside, total in zip(within, volume, strict=True)))


def cut_of(U: Matrix, labels: Int32, n_clusters: int) -> float:
    """The normalised cut of a partition of all samples on the whole of U."""
    rows = sp.csr_array(U)
    degrees = np.asarray(rows.sum(axis=1), np.float64).ravel()
    sums = cut_sums(rows, labels, labels, n_clusters, power_above(float(degrees.max(initial=1.0))))
    return normalized_cut([int(n) for n in sums.within], [int(n) for n in sums.volume])


def power_above(value: float) -> float:
    """The smallest power of two that is larger."""
    return float(2.0 ** (np.floor(np.log2(max(value, 1e-300))) + 1))


class Candidate(NamedTuple):
    """One way to round the embedding."""

    rounding: str  # "kmeans", "density" or "leiden"
    columns: int  # 0 where the points are no embedding
    clusters: int  # that it has
    cut: float | None  # normalised cut on U, where it was looked at
    left_out: float  # share of the tree's samples that it left out, 0 for k-means


def eligible(candidates: Sequence[Candidate], n_clusters: int) -> Candidate | None:
    """The density that left the fewest samples out, if it has all clusters and left out no more than is allowed.

    Ties go to the one that comes first.
    """
    densities = [
        one
        for one in candidates
        if one.rounding == "density" and one.clusters == n_clusters and one.left_out <= MAX_LEFT_OUT
    ]
    return min(densities, key=lambda one: one.left_out, default=None)


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The density's, unless its normalised cut is more than `MAX_CUT` times that of the best k-means; else that one.

    A density that tells more clusters apart than k-means could is kept whatever its cut.

    The best k-means is the one that could tell the most clusters apart, and of these the one of the smallest cut.
    ``candidates`` hold at most one density, `eligible`, and all have their cut.
    """
    kmeans = [one for one in candidates if one.rounding == "kmeans"]
    best = min(kmeans, key=lambda one: (-one.clusters, one.cut))
    for one in candidates:
        if one.rounding == "density" and (
            one.clusters > best.clusters or one.cut <= MAX_CUT * best.cut  # type: ignore[operator]
        ):
            return one
    return best


ROWS = 1 << 14
"""Points whose distances to all centres are in memory at a time."""


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

"""Clusters cut from density: leaves of HDBSCAN*'s tree on the rows of an embedding, for a given number of clusters.

The tree is that of fast-plscan (Bot et al. 2025): one tree holds the leaves for every smallest size of a cluster, so
that another number of clusters is another cut through it.
"""

from __future__ import annotations

import importlib.util
import itertools
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.neighbors import nearest_in
from ips2_dask.kernels.projection import spatial_order
from ips2_dask.typing import Float32, Float64, Int32, Int64

MIN_SAMPLES = 5
"""Neighbours that decide how dense it is at a point (k of the core distance)."""

TREE_SAMPLES = (50_000, 100_000)
"""Samples that a tree is built on at most: a tenth of all between these limits. The others get their labels from the
fused similarity. MNIST's 70,000 have NMI .893 from 50,000 and .895 from all; a million curved Gaussians .914 from
50,000 and .922 from 100,000."""

DIFFUSE_SAMPLES = 20_000
MAX_DIMENSION = 8.0
"""Samples that a tree is built on at most where the points have more dimensions, locally, than this: there are hardly
any clusters then, and a tree on 60,000 such points takes 45 s where one on MNIST's 70,000 takes two. The embedding of
MNIST has 3.9 dimensions, those of curved Gaussians 3.0, that of noise 12 and more."""

COUNTED_SAMPLES = 10_000
"""Samples that the trees are built on at most from which the number of clusters is chosen: there are at most a hundred
clusters, and on 108 columns a tree of 20,000 takes four times as long."""

ASKED = 1_000
NEIGHBORS_ASKED = 10
"""Points, and neighbours of each, that the dimension is estimated from."""

MAX_LEFT_OUT = 0.25
"""Share of the samples that a cut may leave out at most, to be taken for a clustering of all of them.

Chosen with `kernels.rounding.MAX_CUT` by ``ips2 bench roundings`` on the open sets: shares of .2 to .4 differ by less
than .003 in the mean.
"""


class Cut(NamedTuple):
    """Clusters of one smallest size."""

    labels: Int32  # (n,), -1 where a point is left out
    left_out: float  # share of the points
    smallest: float  # size that a cluster has at least


def available() -> bool:
    """Whether fast-plscan is installed: there may be no wheel of it for a platform."""
    return importlib.util.find_spec("fast_plscan") is not None


def drawn(m: int, most: int, seed: int) -> Int64:
    """The samples that a tree is built on, by the user's numbers, ascending: all of them, or a draw without repeats.

    It depends on m and the seed alone, so neither on partitions nor on how a run numbers its samples.
    """
    if m <= most:
        return np.arange(m)
    return np.sort(np.random.default_rng([seed, 11]).choice(m, most, replace=False))


def tree_samples(m: int) -> int:
    """Samples that a tree of m samples is built on, unless the points have many dimensions."""
    return min(max(TREE_SAMPLES[0], m // 10), TREE_SAMPLES[1])


def dimension(points: Float32, seed: int) -> float:
    """The local dimension of a cloud of points by the distances of near ones (Levina, Bickel 2004; MacKay's mean)."""
    rows = drawn(len(points), ASKED, seed)
    n = min(NEIGHBORS_ASKED, len(points) - 1)
    _, lengths = nearest_in(points[rows], rows, np.ascontiguousarray(points, np.float32), n)
    return dimension_of(np.maximum(lengths, np.finfo(np.float32).tiny))


def dimension_of(lengths: NDArray[np.floating]) -> float:
    """The local dimension by the distances (n, k) of each of n points to its k nearest others, ascending; 0 if unknown.

    Points with others at distance 0 say nothing about it and are left out; nor does a single neighbour.
    """
    lengths = lengths[lengths[:, 0] > 0].astype(np.float64) if lengths.shape[1] > 1 else lengths[:0]
    if not lengths.size:
        return 0.0
    logs = np.log(lengths)
    spread = (logs[:, -1:] - logs[:, :-1]).mean()
    return float(1.0 / spread) if spread > 0 else 0.0


def spanning_tree(points: Float32) -> Float64 | None:
    """Edges (a, b, length) of the minimum spanning tree of mutual reachability, ascending: (n - 1, 3).

    None where there are too few points. By one thread: the bits are the same for any number of them, and as many
    trees are built at once as there are workers.
    """
    if len(points) < MIN_SAMPLES + 2:
        return None
    from fast_plscan import PLSCAN  # noqa: PLC0415  its import takes a second, which other runs do without

    points = np.ascontiguousarray(points, np.float32)
    order = spatial_order(points, np.arange(len(points)))  # points in this order take two thirds of the time
    edges: Float64 = PLSCAN(min_samples=MIN_SAMPLES, num_threads=1).fit(points[order]).minimum_spanning_tree_
    edges[:, :2] = order[edges[:, :2].astype(np.int64)]
    return edges


class Leaves:
    """The leaves of a tree for every smallest size of a cluster."""

    def __init__(self, edges: Float64, n: int) -> None:
        from fast_plscan import PLSCAN  # noqa: PLC0415  see above

        self._tree = PLSCAN(min_samples=MIN_SAMPLES, num_threads=1, metric="precomputed").fit((edges, n))
        leaves: NDArray[np.void] = self._tree.leaf_tree_.to_numpy()[1:]  # the first stands for all points together
        self._low, self._high = leaves["min_size"].astype(np.float64), leaves["max_size"].astype(np.float64)
        self._merged_at = leaves["max_distance"].astype(np.float64)

    def sizes(self) -> Float64:
        """Smallest sizes at which other leaves begin to count, ascending from 2; up to the next one they stay."""
        return np.unique(np.maximum(self._low[self._low < self._high], 2.0))

    def ends(self) -> Float64:
        """All sizes at which the leaves may become others, ascending."""
        return np.unique(np.concatenate([self.sizes(), self._high]))

    def at(self, size: float) -> Int64:
        """The leaves at a smallest size, in the order of the labels that `labels` gives them."""
        return np.flatnonzero((self._low <= size) & (size < self._high))

    def labels(self, size: float) -> Int32:
        """The leaf of each point at a smallest size, (n,); -1 where it is in none."""
        leaf_of, _ = self._tree.min_cluster_size_cut(float(size))
        return np.asarray(leaf_of, np.int32)

    def merged_at(self, size: float) -> Float64:
        """The length at which each leaf of a smallest size becomes one with others."""
        return self._merged_at[self.at(size)]

    def joined_at(self, size: float) -> Float64:
        """The length at which each point becomes one with so many points or more, itself included: (n,)."""
        length, count, above = self._merges
        n = len(length) // 2 + 1
        nodes = np.arange(n)
        for steps in reversed(above):  # to the last node below the size, by steps of halving length
            there = steps[nodes]
            nodes = np.where(count[there] < size, there, nodes)
        return length[above[0][nodes]]

    @cached_property
    def _merges(self) -> tuple[Float64, Float64, list[Int64]]:
        """Of each node of the tree of merges the length, the points below it, and the node 1, 2, 4, ... steps above."""
        merges: Float64 = self._tree.single_linkage_tree_
        n = len(merges) + 1
        length, count = np.zeros(2 * n - 1), np.ones(2 * n - 1)
        length[n:], count[n:] = merges[:, 2], merges[:, 3]
        parent = np.full(2 * n - 1, 2 * n - 2)
        for end in (0, 1):
            parent[merges[:, end].astype(np.int64)] = np.arange(n, 2 * n - 1)
        above = [parent]
        while (above[-1] != 2 * n - 2).any():
            above.append(above[-1][above[-1]])
        return length, count, above


def cut(edges: Float64, n: int, n_clusters: int) -> Cut | None:
    """The leaves of a tree at a smallest size that has ``n_clusters`` of them; None where no size has.

    Of several such sizes the one that leaves the fewest points out; of equal ones the smallest.

    ``edges`` (n - 1, 3): as of `spanning_tree`; ``n``: number of points.
    """
    leaves = Leaves(edges, n)
    best: Cut | None = None
    for size in leaves.sizes():
        if len(leaves.at(size)) != n_clusters:
            continue
        labels = leaves.labels(size)
        left_out = float((labels < 0).mean())
        if len(np.unique(labels[labels >= 0])) == n_clusters and (best is None or left_out < best.left_out):
            best = Cut(labels, left_out, float(size))
    return best


# ---- layers, coarse to fine: the cuts that persist as the smallest size grows

MOST_CLUSTERS = 50
"""Clusters of a layer, at most: more could hardly be looked at, and an embedding of some columns does not part them."""

MOST_LAYERS = 6

LEAST_STABLE = 0.1
"""Share of the largest stability that a layer has at least."""

SAME = 0.9
"""Adjusted Rand index from which on two layers are the same clusters but for some points."""


class Layer(NamedTuple):
    """The leaves of a tree over a range of smallest sizes.

    A point's persistence is 1 - d / D. Here d is the length at which it becomes one with as many points as a cluster
    has to have where the range ends, and D is the length at which its leaf becomes one with others. So a union of
    groups counts for little where it is hardly shorter than what joins it to the rest, however dense these groups are.
    It is a relative of the excess of mass of HDBSCAN* (Campello et al. 2015, equation 3).
    """

    labels: Int32  # (n,), -1 where a point is in no leaf
    stability: float  # persistence times span
    persistence: float  # from 0 to 1: the mean over all points, 0 for those in no leaf
    span: float  # logarithm of the largest size of the range over the smallest
    smallest: float  # the smallest size of the range
    each: Float64  # (clusters,) persistence of each cluster: the mean over its points

    @property
    def n_clusters(self) -> int:
        """Number of leaves."""
        return len(self.each)


def cuts(edges: Float64, n: int, most: int) -> list[Layer]:
    """The cuts of a tree into 2 to ``most`` leaves, one for each number of leaves that it has, with growing numbers.

    While the smallest size of a cluster grows, a tree's leaves stay the same over a range of sizes, and then become
    fewer. Each such range is a cut. Its stability is its persistence times its span: the area that it covers where
    one axis is the length at which points are joined, and the other the logarithm of the smallest size.

    ``edges`` (n - 1, 3): as of `spanning_tree`, or (0, 3) where there is no tree; ``n``: number of points.
    """
    if not len(edges):
        return []
    leaves = Leaves(edges, n)
    ranges = [(low, high) for low, high in itertools.pairwise(leaves.ends()) if 2 <= len(leaves.at(low)) <= most]
    return [_layer(leaves, low, high) for low, high in reversed(ranges)]


def layers(edges: Float64, n: int) -> list[Layer]:
    """The layers of a tree, from the fewest clusters to the most.

    They are those of its `cuts`

    - that are peaks: their stability is not exceeded by that of the next cut into fewer or more;
    - whose stability is at least `LEAST_STABLE` of the largest one;
    - that are not the same clusters as a more stable layer, with an adjusted Rand index of `SAME` or more among the
      points that both have in a leaf.

    At most the `MOST_LAYERS` most stable are kept.

    ``edges`` (n - 1, 3): as of `spanning_tree`; ``n``: number of points. Returns list of Layer: with growing
    numbers of clusters, from 2 to `MOST_CLUSTERS`.
    """
    found = cuts(edges, n, MOST_CLUSTERS)
    heights = np.array([0.0, *(cut.stability for cut in found), 0.0])
    peaks = [
        cut
        for cut, before, after in zip(found, heights[:-2], heights[2:], strict=True)
        if cut.stability > 0 and cut.stability >= max(before, after, LEAST_STABLE * heights.max())
    ]
    kept: list[Layer] = []
    for cut in sorted(peaks, key=lambda one: (-one.stability, one.n_clusters)):
        if len(kept) < MOST_LAYERS and not any(_are_same(cut.labels, other.labels) for other in kept):
            kept.append(cut)
    return sorted(kept, key=lambda one: one.n_clusters)


def _layer(leaves: Leaves, low: float, high: float) -> Layer:
    """The leaves of the smallest sizes from ``low`` up to ``high``."""
    labels, ends = leaves.labels(low), leaves.merged_at(low)
    inside = labels >= 0
    own = labels[inside]
    ratios = np.divide(leaves.joined_at(high)[inside], ends[own], out=np.ones(len(own)), where=ends[own] > 0)
    sums = np.bincount(own, 1.0 - np.minimum(ratios, 1.0), minlength=len(ends))
    each = sums / np.maximum(np.bincount(own, minlength=len(ends)), 1)
    persistence, span = float(sums.sum()) / len(labels), float(np.log(high / low))
    return Layer(labels, persistence * span, persistence, span, float(low), each)


def _are_same(labels: Int32, others: Int32) -> bool:
    """Whether two cuts are the same clusters, (n,) each, but for some points."""
    from sklearn.metrics import adjusted_rand_score  # noqa: PLC0415  a plan, which reads constants, has no use for it

    both = (labels >= 0) & (others >= 0)
    return bool(both.any()) and bool(adjusted_rand_score(labels[both], others[both]) >= SAME)

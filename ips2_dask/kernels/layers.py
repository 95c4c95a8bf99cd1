"""Layers of clusters, coarse to fine: the cuts of a tree of density that persist as the smallest size grows."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from sklearn.metrics import adjusted_rand_score

from ips2_dask.kernels.density import Leaves
from ips2_dask.typing import Float64, Int32

MOST_CLUSTERS = 50
"""Clusters of a layer, at most: more could hardly be looked at, and an embedding of some columns does not part them."""

MOST_LAYERS = 6

LEAST = 0.1
"""Share of the largest stability that a layer has at least."""

SAME = 0.9
"""Adjusted Rand index from which on two layers are the same clusters but for some points."""


class Layer(NamedTuple):
    """The leaves of a tree over a range of smallest sizes."""

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


def layers(edges: Float64, n: int) -> list[Layer]:
    """The layers of a tree, from the fewest clusters to the most.

    While the smallest size of a cluster grows, a tree's leaves stay the same over a range of sizes, and then become
    fewer. Each such range is a cut. Its stability is its persistence times its span: the area that it covers where
    one axis is the length at which points are joined, and the other the logarithm of the smallest size.

    A point's persistence is 1 - d / D. Here d is the length at which it becomes one with at least so many points as a
    cluster has to have, in the middle of the range, and D is the length at which its leaf becomes one with others. So a
    union of groups counts for little where it is hardly shorter than what joins it to the rest, however dense these
    groups are. (`density.levels` takes the point's shortest edge for d: it asks whether there are clusters at all.)

    Layers are those cuts

    - that are peaks: their stability is not exceeded by that of the next smaller or larger range of sizes;
    - whose stability is at least `LEAST` of the largest one;
    - that are not the same clusters as a more stable layer, with an adjusted Rand index of `SAME` or more among the
      points that both have in a leaf.

    At most the `MOST_LAYERS` most stable are kept.

    Parameters
    ----------
    edges : (n - 1, 3)
        As of `density.spanning_tree`.
    n : int
        Number of points.

    Returns
    -------
    list of Layer
        With growing numbers of clusters, from 2 to `MOST_CLUSTERS`.
    """
    leaves = Leaves(edges, n)
    cuts = [
        _cut(leaves, low, high)
        for low, high in itertools.pairwise(leaves.ends())
        if 2 <= len(leaves.at(low)) <= MOST_CLUSTERS
    ]
    heights = np.array([0.0, *(cut.stability for cut in cuts), 0.0])
    peaks = [
        cut
        for cut, before, after in zip(cuts, heights[:-2], heights[2:], strict=True)
        if cut.stability > 0 and cut.stability >= max(before, after, LEAST * heights.max())
    ]
    kept: list[Layer] = []
    for cut in sorted(peaks, key=lambda one: (-one.stability, one.n_clusters)):
        if len(kept) < MOST_LAYERS and not any(_are_same(cut.labels, other.labels) for other in kept):
            kept.append(cut)
    return sorted(kept, key=lambda one: one.n_clusters)


def _cut(leaves: Leaves, low: float, high: float) -> Layer:
    """The leaves of the smallest sizes from ``low`` up to ``high``."""
    labels, ends = leaves.labels(low), leaves.merged_at(low)
    inside = labels >= 0
    own = labels[inside]
    lengths = leaves.joined_at(float(np.sqrt(low * high)))[inside]
    ratios = np.divide(lengths, ends[own], out=np.ones(len(own)), where=ends[own] > 0)
    sums = np.bincount(own, 1.0 - np.minimum(ratios, 1.0), minlength=len(ends))
    each = sums / np.maximum(np.bincount(own, minlength=len(ends)), 1)
    persistence, span = float(sums.sum()) / len(labels), float(np.log(high / low))
    return Layer(labels, persistence * span, persistence, span, float(low), each)


def _are_same(labels: Int32, others: Int32) -> bool:
    """Whether two cuts are the same clusters, (n,) each, but for some points."""
    both = (labels >= 0) & (others >= 0)
    return bool(both.any()) and bool(adjusted_rand_score(labels[both], others[both]) >= SAME)

"""Connected components of a graph on samples: which are large enough for a cluster, and what joins them.

A component that is too small for a cluster is called an island: it takes no part in a solve, and its samples get their
label from the nearest sample that takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, connected_components

from ips2_dask.typing import Float32, Float64, Int32, Int64

MIN_SHARE = 0.1
"""Share of an even cluster's rows (all rows / c) below which a component is an island. Not chosen by labels."""

MAX_IN_ISLANDS = 0.5
"""Share of all rows that islands hold at most. A graph in smaller pieces has no islands. Not chosen by labels."""


class Components(NamedTuple):
    """Connected components, the large ones numbered before the islands."""

    label: Int32  # (m,) component of each sample
    large: int  # components that take part in a solve: those with label < large
    total: int  # of all components

    @property
    def islands(self) -> int:
        """How many components take no part."""
        return self.total - self.large

    @property
    def of_vectors(self) -> Int32:
        """The component vector that each sample belongs to: (m,) int32.

        A sample of an island gets the last one: its entry there is 0, so that any would do.
        """
        return np.minimum(self.label, np.int32(self.large - 1))

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each sample is in a large component: (m,) bool."""
        return self.label < self.large


def smallest_members(edges: NDArray[np.integer], low: int, high: int) -> Int64:
    """The smallest sample that each of the samples low .. high - 1 is joined with by edges among them: (high - low,).

    ``edges`` (n, 2): those that lead out of the range are passed over.
    """
    inside = edges[((edges >= low) & (edges < high)).all(axis=1)] - low
    graph = sp.coo_array((np.ones(len(inside), np.int8), tuple(inside.T)), shape=(high - low, high - low))
    _, first, piece = np.unique(connected_components(graph, directed=False)[1], return_index=True, return_inverse=True)
    return low + first[piece]


class Division(NamedTuple):
    """Which components are large, for numbers of components by their smallest member."""

    rank: Int32  # (total,) number of each component among the large ones, which come first, and the islands
    large: int
    total: int

    @property
    def islands(self) -> int:
        """How many components take no part."""
        return self.total - self.large

    def of(self, label: NDArray[np.integer]) -> Components:
        """The components of samples, from their number by smallest member."""
        return Components(self.rank[label], self.large, self.total)


def divide(
    label: NDArray[np.integer], n_clusters: int, copies: NDArray[np.integer] | None = None, share: float = MIN_SHARE
) -> Components:
    """Components divided into large ones and islands, as `divide_sizes` does it.

    ``label`` (m,): component of each sample, 0 to count - 1; ``n_clusters``: c; ``copies`` (m,): rows of the input
    that each sample stands for; one each without it.
    """
    return divide_sizes(np.bincount(label, copies), n_clusters, share).of(label)


def divide_sizes(rows: NDArray[np.integer] | Float64, n_clusters: int, share: float = MIN_SHARE) -> Division:
    """Components divided into large ones and islands.

    Islands have less than a ``share`` of an even cluster's rows, which are all rows / c. If they would hold more than
    `MAX_IN_ISLANDS` of all rows, all components are large: there is no large graph beside which they would be small.

    ``rows`` (components,): rows of the input in each; ``n_clusters``: c.
    """
    count = len(rows)
    large = rows >= share * rows.sum() / n_clusters
    if rows[~large].sum() > MAX_IN_ISLANDS * rows.sum():
        large[:] = True
    rank = np.empty(count, np.int32)
    rank[np.argsort(~large, kind="stable")] = np.arange(count)
    return Division(rank, int(large.sum()), count)


# ---- the shortest edges between groups of samples

Nearest = Callable[[Int64, Int64, int], tuple[Int64, Float32]]
"""From places of queries and of targets, ascending, and n to the n targets nearest to each query by (length, place), as
places, and their lengths; itself is none of them, and -1 and infinity stand where there are fewer."""

NEAREST = 16
"""Nearest samples of each by which groups are first joined: small ones need no further search."""


class _Tree(NamedTuple):
    """A minimum spanning tree of groups of samples, or a forest where lengths are infinite."""

    edges: Int64  # (n, 2) places of samples, ascending in each row
    lengths: Float32  # (n,) ascending


def shortness(lengths: Float32) -> Float64:
    """The square of the median positive length over each one's, at most 1: (n,).

    Pieces of a ring lie nearer to each other than two rings.
    """
    lengths = np.asarray(lengths, np.float64)
    median = np.median(lengths[lengths > 0]) if lengths.any() else 0.0
    return np.square(np.divide(median, lengths, out=np.ones(len(lengths)), where=lengths > median))


def spanning_tree(group: NDArray[np.integer], nearest: Nearest) -> _Tree:
    """The shortest edges that join all groups of samples, by Boruvka's method (Nesetril et al. 2001).

    Equally long edges are ordered by their samples, so that the tree does not depend on how groups are numbered.

    ``group`` (n,): of each sample; ``nearest``: the search among the samples.
    """
    label, everyone = np.unique(group, return_inverse=True)[1], np.arange(len(group))
    lists, reach = nearest(everyone, everyone, min(NEAREST, len(group)))
    tree = _Tree(np.empty((0, 2), np.int64), np.empty(0, np.float32))
    while label.max(initial=0) > 0:
        outside = (lists >= 0) & (label[lists] != label[:, None])
        first = outside.argmax(axis=1)
        known = outside[everyone, first]
        found = np.where(known, lists[everyone, first], -1)
        lengths = np.where(known, reach[everyone, first], np.float32(np.inf))
        best = np.full(label.max() + 1, np.inf, np.float32)
        np.minimum.at(best, label, lengths)
        unsure = ~known & (reach[:, -1] <= best[label])  # all that is listed is of the own group
        largest = np.bincount(label).argmax()  # the others search for what joins them with it
        for one in np.unique(label[unsure]):
            if one != largest:
                asked = np.flatnonzero(unsure & (label == one))
                places, far = nearest(asked, np.flatnonzero(label != one), 1)
                found[asked], lengths[asked] = places[:, 0], far[:, 0]
        if unsure[label == largest].any():
            lengths[label == largest] = np.inf
        order = np.lexsort((np.maximum(everyone, found), np.minimum(everyone, found), lengths, label))
        ends = order[np.unique(label[order], return_index=True)[1]]
        ends = ends[np.isfinite(lengths[ends])]
        if not len(ends):
            break
        edges, once = np.unique(np.sort(np.stack([ends, found[ends]], axis=1), axis=1), axis=0, return_index=True)
        tree = _Tree(np.concatenate([tree.edges, edges]), np.concatenate([tree.lengths, lengths[ends][once]]))
        label = np.unique(smallest_members(label[edges], 0, len(best))[label], return_inverse=True)[1]
    order = np.lexsort((*tree.edges.T[::-1], tree.lengths))
    return _Tree(tree.edges[order], tree.lengths[order])


def cut_tree(edges: NDArray[np.integer], rows: Float64, least: float, most: int) -> NDArray[np.bool_]:
    """Which edges of a tree of groups stay if the longest ones are cut, until there are ``most`` parts: (n,) bool.

    An edge is cut only where both of the parts that it leaves have ``least`` rows or more: a few samples far from all
    others are no cluster.

    ``edges`` (n, 2): of groups, the shortest one first; ``rows`` (groups,): of each group.
    """
    n, kept = len(rows), np.ones(len(edges), np.bool_)
    graph = sp.coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).tocsr()
    above, below, seen, count = np.full(n, -1), np.array(rows, np.float64), np.zeros(n, np.bool_), 0
    for root in range(n):
        if not seen[root]:
            order, before = breadth_first_order(graph, root, directed=False)
            seen[order], above[order[1:]], count = True, before[order[1:]], count + 1
            for node in order[:0:-1]:
                below[above[node]] += below[node]
    for t in range(len(edges) - 1, -1, -1):
        if count >= most:
            break
        i, j = edges[t]
        lower = j if above[j] == i else i
        if below[lower] < least:
            continue
        path = [above[lower]]
        while above[path[-1]] >= 0:
            path.append(above[path[-1]])
        if below[path[-1]] - below[lower] >= least:
            below[path] -= below[lower]
            above[lower], kept[t], count = -1, False, count + 1
    return kept

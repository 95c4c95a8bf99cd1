"""Connected components of a graph on samples: which are large enough for a cluster, and the sample that stands for one.

A component that is too small for a cluster is called an island: it takes no part in a solve, and its samples get their
label from the nearest sample that takes part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
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


@njit(nogil=True, cache=True)
def _join(root, x, y):  # type: ignore[no-untyped-def]
    """Join the trees of x and y, whose roots are their smallest members."""
    while root[x] != x:
        root[x] = root[root[x]]
        x = root[x]
    while root[y] != y:
        root[y] = root[root[y]]
        y = root[y]
    if x < y:
        root[y] = x
    elif y < x:
        root[x] = y


@njit(nogil=True, cache=True)
def _join_all(root, left, right, low):  # type: ignore[no-untyped-def]
    count = len(root)
    for t in range(len(left)):
        x, y = left[t] - low, right[t] - low
        if 0 <= x < count and 0 <= y < count:
            _join(root, x, y)


@njit(nogil=True, cache=True)
def _flatten(root):  # type: ignore[no-untyped-def]
    for i in range(len(root)):  # a root is the smaller one, and so has been seen to
        root[i] = root[root[i]]


def smallest_members(edges: NDArray[np.integer], low: int, high: int) -> Int64:
    """The smallest sample that each of the samples low .. high - 1 is joined with by edges among them: (high - low,).

    ``edges`` (n, 2): those that lead out of the range are passed over.
    """
    root = np.arange(high - low)
    _join_all(root, edges[:, 0], edges[:, 1], low)
    _flatten(root)
    return low + root


def neighborhood_components(N: Int32) -> tuple[Int32, int]:
    """Connected components of the graph that joins each p with N(p): labels (m,) by smallest member, and their number.

    SciPy's `connected_components` gives the same labels, but takes six to ten times as long and 20 times as much
    memory. They are the components of the pair graph too: all pairs of one neighbourhood are joined through
    (i, i)-(j, j), whose entry is 1 whatever sigma is.
    """
    root, samples = np.arange(len(N)), np.arange(len(N))
    for others in N[:, 1:].T:
        _join_all(root, samples, others, 0)
    _flatten(root)
    is_first = root == samples
    label = (np.cumsum(is_first, dtype=np.int32) - np.int32(1))[root]
    return label, int(np.count_nonzero(is_first))


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
    label: NDArray[np.integer],
    n_clusters: int,
    copies: NDArray[np.integer] | None = None,
    most: int | None = None,
    share: float = MIN_SHARE,
) -> Components:
    """Components divided into large ones and islands, as `divide_sizes` does it.

    ``label`` (m,): component of each sample, 0 to count - 1; ``n_clusters``: c; ``copies`` (m,): rows of the input
    that each sample stands for; one each without it.
    """
    return divide_sizes(np.bincount(label, copies), n_clusters, most, share).of(label)


def divide_sizes(
    rows: NDArray[np.integer] | Float64, n_clusters: int, most: int | None = None, share: float = MIN_SHARE
) -> Division:
    """Components divided into large ones and islands.

    Islands have less than a ``share`` of an even cluster's rows, which are all rows / c. With ``most``, no more
    components than that are large: those with the most rows (ties: the one that comes first). If islands would then
    hold more than `MAX_IN_ISLANDS` of all rows, all components are large: there is no large graph beside which they
    would be small.

    ``rows`` (components,): rows of the input in each; ``n_clusters``: c.
    """
    count = len(rows)
    large = rows >= share * rows.sum() / n_clusters
    if most is not None and large.sum() > most:
        large[:] = False
        large[np.argsort(-rows, kind="stable")[:most]] = True
    if rows[~large].sum() > MAX_IN_ISLANDS * rows.sum():
        large[:] = True
    rank = np.empty(count, np.int32)
    rank[np.argsort(~large, kind="stable")] = np.arange(count)
    return Division(rank, int(large.sum()), count)


def central_rows(X: Float32, starts: Int64) -> Int64:
    """Of each run of rows the one that is nearest to their mean (ties: the first): (runs,) places in X.

    ``X`` (n, f): rows of one component after those of another; ``starts`` (runs,): where each one's rows begin.
    """
    counts = np.diff(starts, append=len(X))
    means = np.add.reduceat(X.astype(np.float64), starts, axis=0) / counts[:, None]
    return _first_smallest(np.square(X - np.repeat(means, counts, axis=0)).sum(axis=1), starts)


def central_of_distances(D: Float32, starts: Int64) -> Int64:
    """Of each run of samples the one with the smallest sum of distances to the others of its run: (runs,) places.

    ``D`` (n, n): distances among the samples; ``starts`` (runs,): where each run begins.
    """
    run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(D)))
    sums = np.where(run[:, None] == run, D, 0).sum(axis=1, dtype=np.float64)
    return _first_smallest(sums, starts)


def _first_smallest(values: Float64, starts: Int64) -> Int64:
    run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    order = np.lexsort((values, run))
    return np.asarray(order[starts], np.int64)


def joined(U: sp.csr_array, i: NDArray[np.integer], j: NDArray[np.integer]) -> sp.csr_array:
    """U with further edges {i, j} that weigh as much as its median edge, which is 1 where it has none."""
    weight = float(np.median(U.data)) if U.nnz else 1.0
    edges = sp.coo_array((np.full(len(i), weight, U.dtype), (i, j)), shape=U.shape).tocsr()
    edges.data[:] = weight  # an edge that was given twice
    return sp.csr_array(U.maximum(edges).maximum(edges.T))

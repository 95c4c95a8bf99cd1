"""Connected components of a graph on samples: which are large enough for a cluster, and the sample that stands for one.

A component that is too small for a cluster is called an island: it takes no part in a solve, and its samples get their
label from the nearest sample that takes part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.typing import Float64, Int32, Int64

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

"""Affinities of other methods whose small components are tied to the nearest one, so that an embedding shows all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components


class Tie(NamedTuple):
    """An edge that joins a loose component to its nearest one."""

    sample: int
    nearest: int
    size: int  # samples of the loose component


def _central(X: Any, members: NDArray[np.intp]) -> int:
    """The member nearest to the mean."""
    center = X[members].mean(axis=0, dtype=np.float64)
    return int(members[np.argmin(np.square(X[members] - center).sum(axis=1))])


def _nearest_outside(X: Any, row: int, label: NDArray[np.int32]) -> int:
    """The nearest sample of another component (ties: smallest id)."""
    squares = np.square(X - X[row]).sum(axis=1)
    squares[label == label[row]] = np.inf
    return int(np.argmin(squares))


def tie_components(U: sp.csr_array, X: Any, n_clusters: int) -> tuple[sp.csr_array, list[Tie], int]:
    """U with each loose component joined to its nearest one by a single edge, the edges, and the components before.

    Loose are components of fewer than m / (10 c) samples, and the smallest ones while there are more than c: a
    spectral embedding of c columns can't tell more than c components apart. The edge runs from the member nearest to
    the component's mean to the nearest sample outside, and weighs as much as the median edge.
    """
    m = U.shape[0]
    count, label = connected_components(U, directed=False)
    before = int(count)
    ties: list[Tie] = []
    weight = float(np.median(U.data)) if U.nnz else 1.0
    while count > 1:
        sizes = np.bincount(label, minlength=count)
        loose = np.flatnonzero(sizes < m / (10 * n_clusters))
        if count - len(loose) > n_clusters:
            surplus = count - n_clusters
            loose = np.argsort(sizes, kind="stable")[: max(surplus, len(loose))]
        if len(loose) == count:
            loose = loose[loose != np.argmax(sizes)]
        if len(loose) == 0:
            break
        members = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
        i = np.array([_central(X, members[component]) for component in loose], np.intp)
        j = np.array([_nearest_outside(X, row, label) for row in i], np.intp)
        new = [Tie(*(int(n) for n in tie)) for tie in zip(i, j, sizes[loose], strict=True)]
        ties += new
        bridge = sp.coo_array((np.full(len(new), weight, U.dtype), (i, j)), shape=U.shape).tocsr()
        U = sp.csr_array(U.maximum(bridge).maximum(bridge.T))
        count, label = connected_components(U, directed=False)
    return U, ties, before

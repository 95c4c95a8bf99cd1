"""Which of the solved eigenpairs a number of clusters needs, when one solve serves several numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

TIE = 1e-6
"""Eigenvalues closer than this to the last wanted one count as tied with it."""


class Leading(NamedTuple):
    """The eigenvalues outside those of the component vectors that V is made of, and what follows them."""

    values: Float64  # (n,) descending, ties included
    gap: float | None  # between the last one and the next, where that is known


def wanted_pairs(n_clusters: int, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 V is made of (DESIGN 1.8)."""
    return n_clusters - components if components < n_clusters else n_clusters


def solved_pairs(n_solved: int, shared: bool, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 are solved for: enough for so many clusters, and for fewer if shared.

    Where there are as many components as clusters, c of them are wanted; one cluster more may need none.
    """
    return max(wanted_pairs(c, components) for c in range(2 if shared else n_solved, n_solved + 1))


def with_ties(values: Float64, wanted: int) -> int:
    """How many of the descending ``values`` V is made of: the wanted ones and those tied with the last of them."""
    wanted = min(wanted, len(values))
    kept = wanted
    while 0 < kept < len(values) and values[kept] > values[wanted - 1] - TIE:
        kept += 1
    return kept


def leading(values: Float64, n_clusters: int, components: int, gap: float | None) -> Leading:
    """What V of c clusters is made of.

    Parameters
    ----------
    values : (n,)
        Stored eigenvalues outside eigenvalue 1, descending.
    n_clusters, components : int
    gap : float or None
        Between the last of ``values`` and the next one.
    """
    kept = with_ties(values, wanted_pairs(n_clusters, components))
    if kept == len(values):
        return Leading(values, gap)
    return Leading(values[:kept], float(values[kept - 1] - values[kept]) if kept else None)

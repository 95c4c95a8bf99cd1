"""How many eigenpairs a number of clusters needs: one solve may serve several, and each takes its share."""

from __future__ import annotations

from typing import NamedTuple

from ips2_dask.typing import Float64

TIE = 1e-6
"""Eigenvalues closer than this to the last wanted one count as tied with it."""


class Leading(NamedTuple):
    """The eigenvalues outside those of the component vectors that V is made of, and the gap after them."""

    values: Float64  # (n,) descending, ties included
    gap: float | None  # between the last one and the next, where that is known


def wanted_pairs(n_clusters: int, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 V is made of (docs/method.md, High-order similarity)."""
    return n_clusters - components if components < n_clusters else n_clusters


def solved_pairs(n_solved: int, shared: bool, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 are solved for: enough for so many clusters, and for fewer if shared.

    Where there are as many components as clusters, c of them are wanted; one cluster more may need none.
    """
    return max(wanted_pairs(c, components) for c in range(2 if shared else n_solved, n_solved + 1))


def with_ties(values: Float64, wanted: int) -> int:
    """How many of the descending ``values`` V is made of: the wanted ones and those tied with the last of them."""
    wanted = min(wanted, len(values))
    count = wanted
    while 0 < count < len(values) and values[count] > values[wanted - 1] - TIE:
        count += 1
    return count


def leading(values: Float64, n_clusters: int, components: int, gap: float | None) -> Leading:
    """The eigenvalues of the eigenvectors that V of c clusters is made of.

    Parameters
    ----------
    values : (n,)
        Stored eigenvalues outside eigenvalue 1, descending.
    n_clusters, components : int
    gap : float or None
        Between the last of ``values`` and the next one.
    """
    count = with_ties(values, wanted_pairs(n_clusters, components))
    if count == len(values):
        return Leading(values, gap)
    return Leading(values[:count], float(values[count - 1] - values[count]) if count else None)

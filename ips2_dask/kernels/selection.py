"""How many: the eigenpairs that a number of clusters needs, and the number of clusters that a spectrum shows.

One solve may serve several numbers of clusters c, so that each takes its share of the solved eigenpairs. The number of
clusters is the one after whose eigenvalue the largest gap follows, relative to how far below 1 the gap ends. The
relative gap after the c-th of the descending eigenvalues lambda_1 = 1, lambda_2, ... of the normalised U is

    r_c = (lambda_c - lambda_c+1) / (1 - lambda_c+1 + floor),    floor = .01.

Measured on 37 sets with up to 20 or 25 clusters (digits, Soybean, Wine, Lung, USPS, USdata1 and 2, the sets of
50 x 500, blobs): in how many c is that of the known labels. Without denominator 29, with its square root 31, with the
denominator and no floor 26 (a piece that hangs by a few edges is then as good as a component), with a floor of .01 or
.03 31.
Where it differs: Soybean 3 for 4 (its graph falls into three components), Lung 4 for 7, Wine 6 for 3, USPS 3 for 10,
USdata1 with 60 features 2 for 3 (two of its clusters overlap under the noise).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

TIE = 1e-6
"""Eigenvalues closer than this to the last wanted one count as tied with it."""

FLOOR = 0.01

MIN_SHARE = 0.5
"""Share of an even cluster's rows, with the largest number of clusters, that a component has at least to be counted.

Five times that of a known number of clusters (`components.MIN_SHARE`), as each one counted moves the gap by one. It
was found on digits, where a component of 27 samples would make 11 clusters of 10, and looked at on no other set."""

CANDIDATES = 5


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


class Choice(NamedTuple):
    """The number of clusters and its evidence."""

    n_clusters: int
    eigenvalues: Float64  # descending
    gaps: Float64  # relative gap after each eigenvalue but the last
    candidates: list[tuple[int, float]]  # c and its relative gap, best first

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "n_clusters": self.n_clusters,
            "eigenvalues": [float(x) for x in self.eigenvalues],
            "relative_gaps": [float(x) for x in self.gaps],
            "candidates": [[c, gap] for c, gap in self.candidates],
        }


def relative_gaps(values: Float64) -> Float64:
    """r_c for c = 1, 2, ... of descending eigenvalues (n,): (n - 1,)."""
    values = np.minimum(np.asarray(values, np.float64), 1.0)
    return (values[:-1] - values[1:]) / (1.0 - values[1:] + FLOOR)


def choose_n_clusters(values: Float64, most: int) -> Choice:
    """The c of the largest relative gap among 2 to ``most``; of equal gaps the smallest c.

    Parameters
    ----------
    values : (n,)
        Leading eigenvalues of the normalised U, descending, better ``most`` + 1 of them.
    most : int
        At least 2. With two eigenvalues or fewer there is nothing to compare, and c is 2.
    """
    gaps = relative_gaps(values)
    possible = np.arange(2, min(most, len(gaps)) + 1)
    if len(possible) == 0:
        return Choice(2, np.asarray(values, np.float64), gaps, [])
    order = possible[np.argsort(-gaps[possible - 1], kind="stable")]
    candidates = [(int(c), float(gaps[c - 1])) for c in order[:CANDIDATES]]
    return Choice(candidates[0][0], np.asarray(values, np.float64), gaps, candidates)

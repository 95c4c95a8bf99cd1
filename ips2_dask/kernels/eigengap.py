"""How many clusters a spectrum shows: the largest gap after an eigenvalue, relative to how far below 1 it ends.

The relative gap after the c-th of the descending eigenvalues lambda_1 = 1, lambda_2, ... of the normalised U is

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

FLOOR = 0.01

LEAST_SHARE = 0.5
"""Share of an even cluster's rows, with the largest number of clusters, that a component has at least to be counted.

Five times that of a known number of clusters (`components.LEAST_SHARE`), as each one counted moves the gap by one. It
was found on digits, where a component of 27 samples would make 11 clusters of 10, and looked at on no other set."""

CANDIDATES = 5


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


def choose(values: Float64, most: int) -> Choice:
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

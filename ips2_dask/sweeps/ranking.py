"""Points of a sweep in order: the mean of their ranks by three criteria."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

CRITERIA = {"stability": 1.0, "silhouette": 1.0, "conductance": -1.0}
"""Whether more of it is better (1), or less (-1)."""

DIGITS = 3
"""Values that are the same to so many decimals share a rank."""


def ranks(values: Sequence[Mapping[str, float]]) -> dict[str, NDArray[np.float64]]:
    """Rank of each point by each criterion, 1 for the best; equal ones share the mean of their ranks."""
    return {
        name: rankdata([-sign * round(one[name], DIGITS) for one in values], method="average")
        for name, sign in CRITERIA.items()
    }


def order(values: Sequence[Mapping[str, float]], clusters: Sequence[int]) -> tuple[list[int], NDArray[np.float64]]:
    """Places of the points from best to worst, and the mean rank of each.

    Of equal mean ranks the larger number of clusters comes first, then the earlier point: two clusters that are one
    are told apart by neither criterion as well as by being found.
    """
    mean = np.mean(list(ranks(values).values()), axis=0)
    places = sorted(range(len(values)), key=lambda at: (mean[at], -clusters[at], at))
    return places, mean

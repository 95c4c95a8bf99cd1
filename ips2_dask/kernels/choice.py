"""The number of clusters that a similarity shows, where it is not given.

It is chosen `by_density`: the cut of a tree of density that is the most stable. Where no tree can be built it is
chosen `by_eigengap`: the largest gap of U's spectrum, relative to how far below 1 it ends,
r_c = (lambda_c - lambda_c+1) / (1 - lambda_c+1 + floor) for descending eigenvalues, floor = .01.

docs/choosing.md says on which data the rule was chosen, and what it gives on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.kernels.density import Layer
from ips2_dask.typing import Float64

FLOOR = 0.01

MIN_SHARE = 0.5
"""Share of an even cluster's rows, with the largest number of clusters, that a component has at least to be counted.

Five times that of a known number of clusters (`components.MIN_SHARE`), as each one counted moves the gap by one. It
was found on digits, where a component of 27 samples would make 11 clusters of 10, and looked at on no other set."""

SHARE = 0.64
"""Share of the embedding's columns that the tree of density is built on, the leading ones: the last ones tell few
clusters apart (docs/choosing.md has what other shares give)."""

CANDIDATES = 5


class Candidate(NamedTuple):
    """A number of clusters with its evidence; the score is of the rule that chose, and larger ones are better."""

    n_clusters: int
    score: float
    persistence: float | None = None  # as of `density.Layer`
    span: float | None = None


class Choice(NamedTuple):
    """The number of clusters, the rule that chose it, and the best candidates, the chosen one first."""

    n_clusters: int
    rule: str
    candidates: list[Candidate]

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "n_clusters": self.n_clusters,
            "rule": self.rule,
            "candidates": [candidate._asdict() for candidate in self.candidates],
        }


def leading(columns: int) -> int:
    """How many of the embedding's columns the tree of density is built on."""
    return max(2, round(SHARE * columns))


def by_density(cuts: Sequence[Layer]) -> Choice | None:
    """The number of leaves whose cut is the most stable; of equal ones the smallest. None where a tree has no cut.

    ``cuts``: as of `density.cuts`.
    """
    found = [Candidate(one.n_clusters, one.stability, one.persistence, one.span) for one in cuts]
    found.sort(key=lambda one: (-one.score, one.n_clusters))
    return Choice(found[0].n_clusters, "density", found[:CANDIDATES]) if found else None


def relative_gaps(values: Float64) -> Float64:
    """r_c for c = 1, 2, ... of descending eigenvalues (n,): (n - 1,)."""
    values = np.minimum(np.asarray(values, np.float64), 1.0)
    return (values[:-1] - values[1:]) / (1.0 - values[1:] + FLOOR)


def by_eigengap(values: Float64, most: int) -> Choice:
    """The c of the largest relative gap among 2 to ``most``; of equal gaps the smallest c.

    ``values`` (n,): leading eigenvalues of the normalised U, descending, better ``most`` + 1 of them; ``most``: at
    least 2. With two eigenvalues or fewer there is nothing to compare, and c is 2.
    """
    gaps = relative_gaps(values)
    possible = np.arange(2, min(most, len(gaps)) + 1)
    if len(possible) == 0:
        return Choice(2, "eigengap", [])
    order = possible[np.argsort(-gaps[possible - 1], kind="stable")]
    candidates = [Candidate(int(c), float(gaps[c - 1])) for c in order[:CANDIDATES]]
    return Choice(candidates[0].n_clusters, "eigengap", candidates)


NOISE = (0.02, 0.75)
"""Where points of d dimensions have no clusters, a persistence is at most a + b / d: uniform and normal points of 1 to
64 dimensions (``python notebooks/research/number_of_clusters.py --noise``)."""


def noise_bound(rule: str, dimension: float | None) -> float | None:
    """The largest persistence that points without clusters give; None by an eigengap or where the dimension is unknown.

    ``dimension``: the local dimension of the samples, as of `density.dimension_of`; None if unknown.
    """
    if rule != "density" or dimension is None:
        return None
    return NOISE[0] + NOISE[1] / dimension


def weakness(choice: Choice, dimension: float | None) -> str | None:
    """What is said of a choice whose evidence is no stronger than that of points without clusters; None of others."""
    bound = noise_bound(choice.rule, dimension)
    if bound is None:
        return None
    best, *others = choice.candidates
    if best.persistence is None or best.persistence > bound:
        return None
    second = f"; the runner-up is {others[0].n_clusters}" if others else ""
    return (
        f"weak evidence for {best.n_clusters} clusters, or for any: points without clusters reach a persistence of "
        f"{bound:.2f} in {dimension:.0f} dimensions, these {best.persistence:.2f}{second}"
    )

"""The number of clusters that a similarity shows, where it is not given.

It is chosen in one of three ways:

- `by_density`: among the cuts of two trees of density, one that separates well and stays the longest;
- `by_modularity`, where there are fewer than `FEW` samples whose density shows little: the fewest clusters with nearly
  the greatest modularity of U;
- `by_eigengap`, where no tree can be built: the largest gap of U's spectrum, relative to how far below 1 it ends,
  r_c = (lambda_c - lambda_c+1) / (1 - lambda_c+1 + floor) for descending eigenvalues, floor = .01.

``ips2 bench numbers`` compares them with others on all open sets; docs/choosing.md says how they were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.density import Level
from ips2_dask.kernels.labels import kmeans_best
from ips2_dask.kernels.rounding import RESTARTS
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.typing import Float64

FLOOR = 0.01

MIN_SHARE = 0.5
"""Share of an even cluster's rows, with the largest number of clusters, that a component has at least to be counted.

Five times that of a known number of clusters (`components.MIN_SHARE`), as each one counted moves the gap by one. It
was found on digits, where a component of 27 samples would make 11 clusters of 10, and looked at on no other set."""

WIDTHS = (1.0, 0.64)
"""Shares of the embedding's columns that trees of density are built on: the leading columns tell fewer clusters apart.

Persistence and span are means over the trees. One tree alone finds 2 clusters for MNIST's 10 or 4 for USPS' 10, for a
slightly other share."""

CLOSE = 0.8
"""Share of the largest score that a cut has at least to be chosen for its span."""

FEW = 100
"""Samples below which modularity chooses c unless the density is plain (`is_plain`): a tree needs several neighbours in
each cluster. Modularity alone divides one of three small blobs, density alone merges Soybean's and Lung's clusters."""

NEARLY = 0.98
"""Share of the greatest modularity that the chosen c has at least."""

CANDIDATES = 5


class Candidate(NamedTuple):
    """A number of clusters with its evidence; the score is of the rule that chose, and larger ones are better."""

    n_clusters: int
    score: float
    persistence: float | None = None  # mean over the trees, as of `density.levels`
    span: float | None = None  # mean over the trees


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


def widths(columns: int) -> list[int]:
    """The numbers of leading columns that trees of density are built on, the most first."""
    return list(dict.fromkeys(max(2, round(share * columns)) for share in WIDTHS))


def by_density(trees: Sequence[Sequence[Level]], columns: Sequence[int]) -> Choice | None:
    """The number of leaves that separates well and stays the longest while the smallest size of a cluster grows.

    The score of c is (1 - 1 / c) times the persistence, so that two clusters have to separate better than many, as one
    of them may be a few samples that lie apart. Of all c whose score is at least `CLOSE` of the largest, the one with
    the widest span is chosen; of equal ones the smallest. Both are means over the trees that could tell so many
    clusters apart, which takes c - 1 columns at least; one of these without a cut into c leaves counts 0. Where not all
    trees could, c is chosen only if no other has a larger score: a span in one tree alone is too much a matter of
    chance.

    ``trees``: the cuts of each tree; ``columns``: columns of the embedding that each tree is built on. Returns
    Choice or None: None where no tree has a cut.
    """
    found: dict[int, list[Level]] = {}
    for levels, width in zip(trees, columns, strict=True):
        for level in levels:
            if level.n_clusters <= width + 1:
                found.setdefault(level.n_clusters, []).append(level)
    if not found:
        return None
    candidates = []
    for c, levels in sorted(found.items()):
        wide = sum(c <= width + 1 for width in columns)
        persistence = sum(level.persistence for level in levels) / wide
        span = sum(level.span for level in levels) / wide
        candidates.append(Candidate(c, persistence * (1.0 - 1.0 / c), persistence, span))
    greatest, narrowest = max(candidate.score for candidate in candidates), min(columns)
    close = [
        candidate
        for candidate in candidates
        if candidate.score == greatest
        or (candidate.score >= CLOSE * greatest and candidate.n_clusters <= narrowest + 1)
    ]
    others = sorted((c for c in candidates if c not in close), key=lambda c: (-c.score, c.n_clusters))
    close.sort(key=lambda c: (-(c.span or 0.0), c.n_clusters))
    return Choice(close[0].n_clusters, "density", [*close, *others][:CANDIDATES])


def modularity(U: Matrix, labels: NDArray[np.integer]) -> float:
    """Newman's modularity of a partition on a weighted graph, whose diagonal counts nothing.

    ``U`` (m, m): symmetric, without negative entries; ``labels`` (m,).
    """
    inner = np.asarray(U.diagonal(), np.float64)
    degrees = np.asarray(U.sum(axis=1), np.float64).ravel() - inner
    total = float(degrees.sum())
    if total <= 0:
        return 0.0
    within = 0.0
    for cluster in np.unique(labels):
        inside = labels == cluster
        within += float((U @ inside.astype(np.float64))[inside].sum() - inner[inside].sum()) / total
        within -= (float(degrees[inside].sum()) / total) ** 2
    return within


def by_modularity(U: Matrix, points: NDArray[np.floating], most: int, seed: int) -> Choice:
    """The fewest clusters, by k-means on points, whose modularity on U is at least `NEARLY` of the greatest.

    ``U`` (m, m): as of `modularity`; ``points`` (m, columns): the embedding of U; ``most``: largest number of
    clusters.
    """
    candidates = []
    for c in range(2, min(most, len(points) - 1) + 1):
        labels = kmeans_best(points, c, seed, [0], RESTARTS).labels
        candidates.append(Candidate(c, modularity(U, labels)))
    if not candidates:
        return Choice(2, "modularity", [])
    greatest = max(candidate.score for candidate in candidates)
    least = min(greatest, NEARLY * greatest)  # a share of one below 0 is above it
    chosen = next(candidate for candidate in candidates if candidate.score >= least)
    others = sorted((c for c in candidates if c != chosen), key=lambda c: -c.score)
    return Choice(chosen.n_clusters, "modularity", [chosen, *others][:CANDIDATES])


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


NOISE = {"density": (0.02, 1.15, 0.9), "modularity": (0.3, 1.0, 0.8)}
"""Where points of d dimensions have no clusters, a persistence and a modularity are at most a + b / d, and at most the
third number: uniform and normal points of 1 to 64 dimensions (``ips2 bench numbers --noise``). The more dimensions, the
less lengths differ for one ratio of densities."""


def noise_bound(rule: str, dimension: float | None) -> float | None:
    """The largest evidence that points without clusters give by a rule; None where that is not known.

    ``rule``: of a choice: the bound is one of the persistence by density, or of the modularity; none of an
    eigengap; ``dimension``: the local dimension of the samples, as of `density.dimension_of`; None if unknown.
    """
    if rule not in NOISE or dimension is None:
        return None
    at_least, by_dimension, at_most = NOISE[rule]
    return min(at_least + by_dimension / dimension, at_most)


def is_plain(choice: Choice | None, dimension: float | None) -> bool:
    """Whether there is more evidence than points without clusters give, as far as that is known."""
    bound = None if choice is None else noise_bound(choice.rule, dimension)
    if choice is None or bound is None or not choice.candidates:
        return False
    best = choice.candidates[0]
    return (best.score if best.persistence is None else best.persistence) > bound


def weakness(choice: Choice, dimension: float | None) -> str | None:
    """What is said of a choice whose evidence is no stronger than that of points without clusters; None of others."""
    bound = noise_bound(choice.rule, dimension)
    if choice.rule == "modularity" and not (choice.candidates and choice.candidates[0].score > 0):
        return "no evidence for any clusters: no division of the samples has a modularity above 0"
    if bound is None or not choice.candidates or is_plain(choice, dimension):
        return None
    best, *others = choice.candidates
    name, value = ("modularity", best.score) if best.persistence is None else ("persistence", best.persistence)
    second = f"; the runner-up is {others[0].n_clusters}" if others else ""
    return (
        f"weak evidence for {choice.n_clusters} clusters, or for any: points without clusters reach a {name} of "
        f"{bound:.2f} in {dimension:.0f} dimensions, these {value:.2f}{second}"
    )

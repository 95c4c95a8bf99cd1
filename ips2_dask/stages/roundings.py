"""The ways to round an embedding that a run looks at, as tasks, and which of them is kept: in core and in chunks."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from ips2_dask.kernels import rounding
from ips2_dask.params import Params
from ips2_dask.store.integrity import Receipt

Labels = TypeVar("Labels")

PREFIX = "rounding-"

MISSING = "fast-plscan is not installed, so labels are k-means' (pip install 'ips2-dask[density]')"


class Rounding(NamedTuple):
    """One task of a way to round: of k-means some starts, of a density the tree; ``number`` tells starts apart."""

    way: str  # "kmeans" or "density"
    columns: int
    number: int

    @property
    def part(self) -> str:
        """The name of its part, after the prefix."""
        return f"{self.way}-{self.columns:04d}-{self.number:02d}"

    @classmethod
    def of(cls, part: str) -> Rounding:
        """The task whose part has this name."""
        way, columns, number = part.split("-")
        return cls(way, int(columns), int(number))


def roundings(params: Params, m: int, dense: bool, tasks: int | None = None) -> list[Rounding]:
    """The tasks: trees first, which take longest, then the starts of k-means; the most columns first.

    ``dense``: whether density can be looked at at all. ``tasks``: those that the starts of a k-means are dealt to, if
    not as many as `kernels.rounding.restart_tasks`.
    """
    if params.clusters_rows:
        widths = [0]
    else:
        most = min(params.n_embedded, m)
        widths = [most] if most <= params.n_clusters else [most, params.n_clusters]
    trees = [Rounding("density", d, 0) for d in widths if params.assign_labels != "kmeans" and dense]
    # where a density is asked for, k-means stands by in case that no cut has as many clusters
    starts = [Rounding("kmeans", d, n) for d in widths for n in range(tasks or rounding.restart_tasks(m))]
    return trees + starts


class Candidates(abc.ABC, Generic[Labels]):
    """Candidate labelings, from the results of the rounding tasks, and the choice of one.

    What labels are is left open: an array in core, the name of parts in chunks.
    """

    def __init__(self, params: Params, receipts: dict[Rounding, Receipt]) -> None:
        self._params, self._c, self._receipts = params, params.n_clusters, receipts
        self._labels: dict[tuple[str, int], Labels] = {}
        self.candidates: list[rounding.Candidate] = []

    @abc.abstractmethod
    def _partition(self, columns: int) -> tuple[Labels, int]:
        """Labels by k-means on so many columns, and how many clusters they have."""

    @abc.abstractmethod
    def _spread(self, one: rounding.Candidate) -> Labels:
        """Labels of all samples from those of a tree's leaves."""

    @abc.abstractmethod
    def _cut(self, labels: Labels) -> float:
        """The normalised cut of labels."""

    def chosen(self) -> tuple[rounding.Candidate, Labels]:
        """The candidate that is kept, and its labels."""
        densities = self._densities()
        for columns in dict.fromkeys(task.columns for task in self._receipts if task.way == "kmeans"):
            self._add_kmeans(columns)
        if self._params.assign_labels == "density":
            cuts = [one for one in densities if one.clusters == self._c]
            winner = min(cuts, key=lambda one: one.left_out, default=None)
        else:
            winner = rounding.eligible(densities, self._c)
        self.candidates = densities + self.candidates
        if winner is not None:
            winner = self._add_cut(winner, self._spread(winner))
        if winner is None or self._params.assign_labels != "density":
            looked_at = [one for one in self.candidates if one.cut is not None]
            winner = looked_at[0] if len(looked_at) == 1 else rounding.choose(looked_at)
        return winner, self._labels[winner.rounding, winner.columns]

    def _densities(self) -> list[rounding.Candidate]:
        trees = [(t.columns, r["facts"]["left_out"]) for t, r in self._receipts.items() if t.way == "density"]
        return [
            rounding.Candidate("density", d, 0 if share is None else self._c, None, 1.0 if share is None else share)
            for d, share in trees
        ]

    def _add_kmeans(self, columns: int) -> None:
        labels, clusters = self._partition(columns)
        self.candidates.append(rounding.Candidate("kmeans", columns, clusters, None, 0.0))
        self._add_cut(self.candidates[-1], labels)

    def _add_cut(self, one: rounding.Candidate, labels: Labels) -> rounding.Candidate:
        """The candidate with its normalised cut, in its old place among the others."""
        self._labels[one.rounding, one.columns] = labels
        candidate = one._replace(cut=self._cut(labels))
        self.candidates[self.candidates.index(one)] = candidate
        return candidate


def facts_of(candidates: Iterable[rounding.Candidate], winner: rounding.Candidate) -> list[dict[str, Any]]:
    """What is told of the candidates."""
    return [{**one._asdict(), "chosen": one == winner} for one in candidates]


def warnings_of(params: Params, winner: rounding.Candidate, clusters: int, has_density: bool) -> list[str]:
    """What is said where a density was asked for and not found, or where clusters could not be told apart."""
    warnings = []
    if params.assign_labels == "density" and winner.rounding != "density" and has_density:
        warnings.append(
            f"no smallest size of a cluster cuts {params.n_clusters} clusters from the density: labels are k-means'"
        )
    if clusters < params.n_clusters:
        warnings.append(f"only {clusters} of {params.n_clusters} clusters could be told apart")
    return warnings

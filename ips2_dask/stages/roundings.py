"""The ways to round an embedding that a run looks at, as tasks, and which of them is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ips2_dask.kernels import rounding
from ips2_dask.params import Params

PREFIX = "rounding-"

FEWER = "fewer"
"""The way of a tree on fewer samples, whose cuts tell the number of clusters."""

MISSING = "fast-plscan is not installed, so labels are k-means' (pip install 'ips2-dask[density]')"


class Rounding(NamedTuple):
    """One task of a way to round: of k-means some starts, of a density the tree; ``number`` tells starts apart."""

    way: str  # "kmeans", "density" or `FEWER`
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


def roundings(params: Params, m: int, dense: bool) -> list[Rounding]:
    """The tasks: trees first, which take longest, then k-means; the most columns first.

    ``dense``: whether density can be looked at at all.
    """
    if params.clusters_rows:
        widths = [0]
    else:
        most = min(params.n_embedded, m)
        widths = [most] if most <= params.n_clusters else [most, params.n_clusters]
    trees = [Rounding("density", d, 0) for d in widths if params.assign_labels != "kmeans" and dense]
    # where a density is asked for, k-means stands by in case that no cut has as many clusters
    return trees + [Rounding("kmeans", d, 0) for d in widths]


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

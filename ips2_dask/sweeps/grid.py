"""The points of a sweep: every combination of the values in its grid."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sklearn.model_selection import ParameterGrid

from ips2_dask.errors import BadInput
from ips2_dask.params import Params

Grid: TypeAlias = "Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]"
"""Names of parameters with the values that are tried, or several such grids one after another."""

CLUSTERS = range(2, 16)
"""Numbers of clusters that are tried unless a grid is given."""

NOT_SWEPT = {
    "max_clusters": "the sweep itself tries numbers of clusters",
    "n_eigenpairs": "one solve serves all of them",
}
"""Parameters that a sweep has no use for, and why."""

MAX_POINTS = 10_000


def points(grid: Grid, params: Params) -> list[Params]:
    """Every combination once, by the number of clusters; what the grid does not name is as in ``params``.

    One solve serves all numbers of clusters: eigenpairs are those of the largest one. Values outside their range, a
    grid without combinations, and labels that can't be judged are refused.
    """
    try:
        combinations = ParameterGrid(grid)
        names = {name: None for one in combinations.param_grid for name in one}
        n_points = len(combinations)
    except (TypeError, ValueError):
        n_points = 0
    if n_points < 1:
        allowed = "a dictionary such as {'n_clusters': [2, 3, 4], 'metric': ['euclidean', 'cosine']}, or a list of such"
        why, remedy = "it would not be known what is tried", "give names of parameters, each with a list of values"
        raise BadInput("grid", textwrap.shorten(repr(grid), 80), allowed, why, remedy)
    for name in names:
        if name not in Params.__dataclass_fields__:
            allowed = "parameters such as n_clusters, n_neighbors, sigma, metric and scale"
            raise BadInput("grid", repr(name), allowed, "nothing would read it", "give a field of Params")
    if n_points > MAX_POINTS:
        found, why = f"{n_points:,} combinations", "it would not end in a lifetime"
        raise BadInput("grid", found, "10,000 at most", why, "give shorter lists")
    several = sorted(
        dict.fromkeys(dataclasses.replace(params, **one) for one in combinations), key=lambda one: one.n_clusters
    )
    for one in several:
        for name, why in NOT_SWEPT.items():
            if getattr(one, name) is not None:
                found, why = f"{getattr(one, name)} in a sweep", f"it would count for nothing: {why}"
                raise BadInput(name, found, "numbers of clusters alone", why, "leave it out")
    if several[0].n_clusters == 1:
        why = "its stability and modularity would say nothing: one cluster is that of any subsample"
        raise BadInput("n_clusters", "1 in a sweep", "numbers of at least 2", why, "leave 1 out")
    most = several[-1].n_clusters
    return [dataclasses.replace(one, n_eigenpairs=None if one.tensor == "decomposable" else most) for one in several]


def varied(several: Sequence[Params]) -> tuple[str, ...]:
    """The number of clusters, and every other parameter that points differ in, in the order of `Params`."""
    names = [name for name in Params.__dataclass_fields__ if name not in NOT_SWEPT]
    return tuple(n for n in names if n == "n_clusters" or len({getattr(one, n) for one in several}) > 1)

"""How much is done: everything, or the quick version; and what a family of experiments is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ips2_dask.paper.experiments.records import Record
from ips2_dask.paper.experiments.settings import BUDGET
from ips2_dask.paper.experiments.tasks import Json, Task

Results = Mapping[str, Json]


@dataclass(frozen=True)
class Scope:
    """Sizes of the experiments.

    Attributes
    ----------
    seed : int
        Of the first run; run r has ``seed + r``, for the method and, where data are drawn, for the data.
    runs : int
    budget : int
        Settings of each method's grid.
    draws : int
        Random draws of 60 BBCSports documents.
    repeats : int
        Of each timed fit.
    large_runs : int
        Of data sets with thousands of samples.
    large_alone : bool
        Whether those run one after another with all cores, as other fits that are timed do; else side by side.
    tunes_beyond : bool
        Whether the small data sets beyond the paper's are tuned too.
    """

    seed: int = 0
    runs: int = 50
    budget: int = BUDGET
    draws: int = 10
    repeats: int = 10
    large_runs: int = 3
    large_alone: bool = True
    tunes_beyond: bool = True


def quick(seed: int = 0) -> Scope:
    """Five runs, a fifth of the grids, one run of large data beside another, and no tuning beyond the paper's data."""
    return Scope(seed=seed, runs=5, budget=BUDGET // 5, large_runs=1, large_alone=False, tunes_beyond=False)


class Family(NamedTuple):
    """Experiments that belong together, under one name of ``--only``."""

    title: str
    datasets: tuple[str, ...]  # that have to be there
    tasks: Callable[[Scope], list[Task]]
    records: Callable[[Scope, Results], list[Record]]

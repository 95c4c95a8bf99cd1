"""Table 3: how long the six methods take, one after the other in one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.paper.experiments import paper
from ips2_dask.paper.experiments.records import Record, record
from ips2_dask.paper.experiments.scope import Family, Results, Scope
from ips2_dask.paper.experiments.settings import METHODS, Setting, default, printed
from ips2_dask.paper.experiments.tasks import Given, Task
from ips2_dask.paper.experiments.trials import load, seconds

DATASETS = ("soybean", "scadi57", "scadi", "bbcsport60", "yale5")


def time_all(given: Given, dataset: str, settings: dict[str, list[Any]], repeats: int, seed: int) -> dict[str, Any]:
    """Seconds of each fit by name; the methods take turns, so that whatever else the machine does meets them all.

    Parameters
    ----------
    given : Given
    dataset : str
    settings : dict of (method, setting)
        By any name.
    repeats : int
        Timed fits of each, after one that is not: it loads what is compiled.
    seed : int
    """
    data = load(dataset, given.data)
    found: dict[str, list[float]] = {name: [] for name in settings}
    for turn in range(repeats + 1):
        for name, (method, setting) in settings.items():
            taken = seconds(method, setting, data, [seed])
            found[name] += taken if turn else []
    return found


def timing(name: str, dataset: str, scope: Scope, repeats: int) -> Task:
    """The task that times all methods with their default settings, and the paper's three with its printed ones."""
    settings: dict[str, tuple[str, Setting]] = {method: (method, default(method)) for method in METHODS}
    settings |= {f"{method}-printed": (method, setting) for method, setting in printed().items()}
    arguments = {"dataset": dataset, "settings": settings, "repeats": repeats, "seed": scope.seed}
    return Task(name, time_all, arguments, timed=True)


def tasks(scope: Scope) -> list[Task]:
    """One for each data set."""
    return [timing(f"table3/{dataset}", dataset, scope, scope.repeats) for dataset in DATASETS]


def time_records(experiment: str, dataset: str, found: dict[str, list[float]]) -> list[Record]:
    """Mean and median seconds; those of the printed settings under a name of their own."""
    out = []
    for name, taken in found.items():
        method, _, variant = name.partition("-")
        params = printed()[method] if variant else default(method)
        theirs = paper.table3(dataset, method)
        kept = f"{experiment}-printed" if variant else experiment
        common: dict[str, Any] = {"runs": len(taken), "params": params, "paper": theirs}
        out.append(
            record(kept, dataset, method, "seconds", mean=float(np.mean(taken)), std=float(np.std(taken)), **common)
        )
        out.append(record(kept, dataset, method, "seconds_median", mean=float(np.median(taken)), **common))
    return out


def records(scope: Scope, results: Results) -> list[Record]:
    """Mean and median seconds of each data set and method."""
    del scope
    return [one for name in DATASETS for one in time_records("table3", name, results[f"table3/{name}"])]


FAMILY = Family("Table 3: time", DATASETS, tasks, records)

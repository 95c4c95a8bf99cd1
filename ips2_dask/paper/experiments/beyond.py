"""Beyond the paper: the same measures and times on ten more data sets, small and large."""

from __future__ import annotations

from ips2_dask.metrics import scores
from ips2_dask.paper.experiments.methods import Fitted
from ips2_dask.paper.experiments.records import SETTINGS, Record, of_summary, record
from ips2_dask.paper.experiments.settings import METHODS, Setting, default
from ips2_dask.paper.experiments.tables import COST, table2_cell, time_records, timing_task
from ips2_dask.paper.experiments.tasks import Family, Results, Scope, Task, TaskContext
from ips2_dask.paper.experiments.trials import Summary, load, score, seeds_of, summary

SMALL = ("wine", "glass", "lung", "colon", "allaml")
LARGE = ("digits", "usps", "pendigits", "mnist10k", "letter")
REPEATS = 3
"""Timed fits of small data."""


def _large_setting(method: str) -> Setting:
    """The default, but SSC by matching pursuit: its ADMM would hold several dense arrays of all pairs."""
    return {**default(method), "solver": "omp"} if method == "SSC" else default(method)


def _by_default(context: TaskContext, dataset: str, method: str, runs: int, seed: int) -> dict[str, Summary]:
    """A method's default setting alone."""
    setting = default(method)
    return {"default": summary(setting, score(method, setting, load(dataset, context.data), seeds_of(seed, runs)))}


def large(context: TaskContext, dataset: str, method: str, runs: int, seed: int) -> dict[str, Summary | float]:
    """A method's default setting on large data, and how long its first fit took."""
    data, setting = load(dataset, context.data), _large_setting(method)
    fitted = Fitted(method, setting, data.X, data.n_clusters)
    measured, taken = [], 0.0
    for s in seeds_of(seed, runs):
        measured.append(scores(data.labels, fitted.labels(s)))
        taken = taken or fitted.seconds
    return {"default": summary(setting, measured), "seconds": taken}


def tasks(scope: Scope) -> list[Task]:
    """One for each data set and method; and one for the times of each small data set."""
    all_tasks = []
    for name in SMALL:
        for method in METHODS:
            common = {"dataset": name, "method": method, "runs": scope.runs, "seed": scope.seed}
            if scope.tunes_beyond:
                arguments = {**common, "budget": scope.budget}
                all_tasks.append(Task(f"beyond/{name}/{method}", table2_cell, arguments, weight=3 * COST[method]))
            else:
                all_tasks.append(Task(f"beyond/{name}/{method}", _by_default, common))
        all_tasks.append(timing_task(f"beyond/{name}/times", name, scope, REPEATS))
    for name in LARGE:
        for method in METHODS:
            arguments = {"dataset": name, "method": method, "runs": scope.large_runs, "seed": scope.seed}
            timed = scope.large_alone
            all_tasks.append(Task(f"beyond/{name}/{method}", large, arguments, weight=2 * COST[method], timed=timed))
    return all_tasks


def scores_of(results: Results) -> list[Record]:
    """The measures of each data set, method and setting."""
    records = []
    for name in (*SMALL, *LARGE):
        for method in METHODS:
            result = results[f"beyond/{name}/{method}"]
            for setting in SETTINGS:
                records += of_summary("beyond", name, method, setting, result[setting], {}) if setting in result else []
    return records


def records(scope: Scope, results: Results) -> list[Record]:
    """The measures, and seconds."""
    del scope
    all_records = scores_of(results)
    for name in SMALL:
        all_records += time_records("beyond", name, results[f"beyond/{name}/times"])
    for name in LARGE:
        for method in METHODS:
            taken = results[f"beyond/{name}/{method}"]["seconds"]
            all_records.append(record("beyond", name, method, "seconds", mean=taken, params=_large_setting(method)))
    return all_records


FAMILY = Family("Beyond the paper: ten more data sets", (*SMALL, *LARGE), tasks, records)

"""Table 2: five measures, six methods, the paper's data sets, three settings; and ten draws of BBCSports."""

from __future__ import annotations

from typing import Any

from ips2_dask.paper.experiments import paper
from ips2_dask.paper.experiments.records import SETTINGS, Record, of_summary
from ips2_dask.paper.experiments.scope import Family, Results, Scope
from ips2_dask.paper.experiments.settings import METHODS
from ips2_dask.paper.experiments.tasks import Given, Task
from ips2_dask.paper.experiments.trials import load, score, seeds_of, summary
from ips2_dask.paper.experiments.tuning import three_settings

DATASETS = ("soybean", "scadi57", "bbcsport60", "yale5", "scadi")
"""The paper's four, and SCADI with all of its 70 samples."""

DRAWS = "bbcsport-draws"

COST = {"SSC": 30.0, "CAVE": 12.0, "PPC": 20.0, "IPS2": 20.0, "HGC": 4.0, "SC": 6.0}


def cell(given: Given, dataset: str, method: str, runs: int, seed: int, budget: int) -> dict[str, Any]:
    """A method's three settings on a data set, and its whole grid."""
    return three_settings(method, load(dataset, given.data), runs, seed, budget)


def draws(given: Given, method: str, chosen: str, runs: int, seed: int, draws: int) -> dict[str, Any]:
    """The three settings chosen on the first 60 documents, on random draws of 60: none is chosen on a draw."""
    each = max(1, runs // draws)
    out = {}
    for setting in SETTINGS:
        params = given.earlier[chosen][setting]["params"]
        found = [
            run
            for draw in range(draws)
            for run in score(method, params, load(f"bbcsport-draw{draw}", given.data), seeds_of(seed, each))
        ]
        out[setting] = summary(params, found)
    return out


def cell_task(scope: Scope, dataset: str, method: str, weight: float = 1.0) -> Task:
    """The task of one cell."""
    arguments = {"dataset": dataset, "method": method, "runs": scope.runs, "seed": scope.seed, "budget": scope.budget}
    return Task(f"table2/{dataset}/{method}", cell, arguments, weight=weight * COST[method])


def tasks(scope: Scope) -> list[Task]:
    """One for each data set and method, and one for each method's draws."""
    out = [cell_task(scope, dataset, method) for dataset in DATASETS for method in METHODS]
    for method in METHODS:
        chosen = f"table2/bbcsport60/{method}"
        arguments = {"method": method, "chosen": chosen, "runs": scope.runs, "seed": scope.seed, "draws": scope.draws}
        out.append(Task(f"table2/{DRAWS}/{method}", draws, arguments, after=(chosen,), weight=COST[method]))
    return out


def of_dataset(dataset: str, results: Results) -> list[Record]:
    """The records of one data set: each method, setting and measure."""
    out = []
    for method in METHODS:
        printed = {measure: paper.table2(dataset, method, measure) for measure in paper.MEASURES}
        found = results[f"table2/{dataset}/{method}"]
        for setting in SETTINGS:
            out += of_summary("table2", dataset, method, setting, found[setting], printed)
    return out


def records(scope: Scope, results: Results) -> list[Record]:
    """A record for each data set, method, setting and measure."""
    del scope
    return [one for dataset in (*DATASETS, DRAWS) for one in of_dataset(dataset, results)]


FAMILY = Family("Table 2: six methods on the paper's data", (*DATASETS, "bbcsport"), tasks, records)

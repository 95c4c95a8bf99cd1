"""Table 1: samples, features and clusters of the paper's data sets."""

from __future__ import annotations

from typing import Any

from ips2_dask.paper.experiments import paper
from ips2_dask.paper.experiments.records import Record, record
from ips2_dask.paper.experiments.scope import Family, Results, Scope
from ips2_dask.paper.experiments.tasks import Given, Task
from ips2_dask.paper.experiments.trials import load

DATASETS = ("soybean", "scadi", "scadi57", "bbcsport60", "yale5")
COUNTS = ("samples", "features", "clusters")


def sizes(given: Given) -> dict[str, list[int]]:
    """Samples, features, clusters of each data set."""
    found = {name: load(name, given.data) for name in DATASETS}
    return {name: [*dataset.X.shape, dataset.n_clusters] for name, dataset in found.items()}


def tasks(scope: Scope) -> list[Task]:
    """One."""
    del scope
    return [Task("table1", sizes)]


def records(scope: Scope, results: Results) -> list[Record]:
    """A record for each number."""
    del scope
    out = []
    for name, numbers in results["table1"].items():
        printed: tuple[Any, ...] = paper.TABLE1.get(name, (None, None, None))
        for count, ours, theirs in zip(COUNTS, numbers, printed, strict=True):
            out.append(record("table1", name, "data", count, mean=ours, paper=theirs))
    return out


FAMILY = Family("Table 1: the data", DATASETS, tasks, records)

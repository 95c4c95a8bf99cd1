"""Mean ranks of the methods over all data sets, with Friedman's test and Nemenyi's critical difference."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from ips2_dask.paper.experiments import beyond, tables
from ips2_dask.paper.experiments.records import SETTINGS, Record, mean_of, record
from ips2_dask.paper.experiments.settings import METHODS
from ips2_dask.paper.experiments.tasks import Family, Results, Scope, Task

PAPER_SETS = ("soybean", "scadi57", "bbcsport60", "yale5")
MEASURES = ("acc", "nmi")
LEVEL = 0.05


def critical_difference(n_methods: int, n_datasets: int) -> float:
    """Nemenyi's: mean ranks that differ by less are not told apart at the level .05 (Demsar 2006)."""
    q = studentized_range.ppf(1 - LEVEL, n_methods, np.inf) / sqrt(2)
    return float(q * sqrt(n_methods * (n_methods + 1) / (6 * n_datasets)))


def tasks(scope: Scope) -> list[Task]:
    """Those of Table 2 and beyond whose scores are ranked."""
    first = [task for task in tables.table2_tasks(scope) if task.name.split("/")[1] in PAPER_SETS]
    return first + [task for task in beyond.tasks(scope) if not task.name.endswith("/times")]


def ranks(scored: list[Record], setting: str, measure: str) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The data sets that have a score of every method, and each method's rank there, 1 the best: (datasets, methods).

    Equal scores, to six digits, share the mean of their ranks.
    """
    names = list(dict.fromkeys(r["dataset"] for r in scored))
    rows, ranked = [], []
    for name in names:
        row = [mean_of(scored, dataset=name, method=m, measure=measure, setting=setting) for m in METHODS]
        if None not in row:
            ranked.append(name)
            rows.append(rankdata(-np.round(np.array(row, np.float64), 6)))
    return ranked, np.array(rows, np.float64).reshape(len(rows), len(METHODS))


def of_scores(scored: list[Record]) -> list[Record]:
    """Mean ranks of the scores in the records of Table 2 and beyond, critical differences, and the test's p."""
    rank_records = []
    for setting in SETTINGS:
        for measure in MEASURES:
            names, table = ranks(scored, setting, measure)
            if len(names) < 2:
                continue
            common: dict[str, Any] = {"runs": len(names), "setting": setting}
            for method, column in zip(METHODS, table.T, strict=True):
                mean, std = float(column.mean()), float(column.std())
                rank_records.append(record("ranks", "all", method, f"rank_{measure}", mean=mean, std=std, **common))
            distance = critical_difference(len(METHODS), len(names))
            p = float(friedmanchisquare(*table.T).pvalue)
            rank_records.append(
                record("ranks", "all", "all", f"critical_difference_{measure}", mean=distance, **common)
            )
            rank_records.append(record("ranks", "all", "all", f"friedman_p_{measure}", mean=p, **common))
    return rank_records


def records(scope: Scope, results: Results) -> list[Record]:
    """A record for each method, setting and ranked measure."""
    del scope
    of_paper = [one for name in PAPER_SETS for one in tables.table2_records_of(name, results)]
    return of_scores(of_paper + beyond.scores_of(results))


FAMILY = Family("Mean ranks over all data sets", (*PAPER_SETS, *beyond.SMALL, *beyond.LARGE), tasks, records)

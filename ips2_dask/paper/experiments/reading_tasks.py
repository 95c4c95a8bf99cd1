"""The readings of the paper's text as an experiment: each alone, a grid of the likely ones, and on draws of samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ips2_dask import datasets
from ips2_dask.datasets import Dataset
from ips2_dask.paper.experiments.readings import BASES, GRID, METHODS, Evaluator, Outcome, Reading, single_changes
from ips2_dask.paper.experiments.records import Record, record
from ips2_dask.paper.experiments.tables import printed_score
from ips2_dask.paper.experiments.tasks import Family, Json, Results, Scope, Task, TaskContext
from ips2_dask.paper.experiments.trials import load

SETS = ("soybean", "scadi57", "bbcsport60", "yale5")
DRAWN = ("bbcsport60", "yale5")
"""Data sets of which the paper doesn't say which samples they hold."""

WITHIN = 0.005
"""How near an accuracy has to be to a printed figure to count as the same: a quarter of a sample of 50."""

DIGITS = 4
CLASS_TRIPLES = tuple((a, b, c) for a in range(1, 6) for b in range(a + 1, 6) for c in range(b + 1, 6))
EACH = 20  # documents of a class
PEOPLE = 5


def allowed(name: str, reading: Reading) -> bool:
    """Whether a reading makes sense on a data set: ``tfidf`` needs counts of terms."""
    return reading.scale != "tfidf" or name.startswith("bbcsport")


def first_documents(whole: Dataset, classes: tuple[int, int, int]) -> Dataset:
    """The first 20 documents of three of bbcsport's five classes, counted from 1; the fifth has 19."""
    names = np.unique(whole.labels)
    rows = np.concatenate([np.flatnonzero(whole.labels == names[c - 1])[:EACH] for c in classes])
    rows = np.sort(rows)
    return Dataset(f"bbcsport-{classes}", whole.X[rows], whole.labels[rows], "", whole.addresses)


def drawn(name: str, seed: int, data: str | None) -> Dataset:
    """60 documents of bbcsport, 20 of each of the classes 2 to 4; or the faces of 5 of Yale's 15 people."""
    if name == "bbcsport60":
        return datasets.bbcsport_draw(seed, data)
    whole = datasets.load("yale", data)
    people = np.random.default_rng(seed).choice(np.unique(whole.labels), PEOPLE, replace=False)
    rows = np.isin(whole.labels, people)
    return Dataset(f"yale-draw{seed}", whole.X[rows], whole.labels[rows], "", whole.addresses)


def grid() -> list[Reading]:
    """All combinations of the likely readings."""
    names = [name.split(", ") for name in GRID]
    readings = []
    for values in product(*GRID.values()):
        changes: dict[str, Any] = {}
        for keys, value in zip(names, values, strict=True):
            changes |= zip(keys, value if len(keys) > 1 else (value,), strict=True)
        readings.append(Reading(**changes))
    return readings


def _rounded(outcome: Outcome) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in outcome._asdict().items()}


def alone(context: TaskContext, dataset: str, base: str, starts: int) -> dict[str, dict[str, Any]]:
    """Each change of one choice of a base: what differs from the printed reading, and the three methods' accuracies."""
    data = load(dataset, context.data)
    evaluator = Evaluator(data, starts)
    return {
        name: {"changes": reading.changes, **{m: _rounded(evaluator.outcome(m, reading)) for m in METHODS}}
        for name, reading in single_changes(BASES[base], data.n_clusters).items()
        if allowed(dataset, reading)
    }


def combined(context: TaskContext, dataset: str, starts: int) -> dict[str, dict[str, list[float]]]:
    """The grid: for each method and statistic the accuracies in the grid's order."""
    evaluator = Evaluator(load(dataset, context.data), starts)
    readings = grid()
    columns: dict[str, dict[str, list[float]]] = {}
    for method in METHODS:
        outcomes = [_rounded(evaluator.outcome(method, reading)) for reading in readings]
        columns[method] = {name: [one[name] for one in outcomes] for name in Outcome._fields}
    return columns


def samples(context: TaskContext, starts: int) -> dict[str, dict[str, Any]]:
    """The printed and the later reading on the first 20 documents of any three classes, and on all of SCADI."""
    whole = datasets.load("bbcsport", context.data)
    sets = {f"bbcsport classes {a}, {b}, {c}": first_documents(whole, (a, b, c)) for a, b, c in CLASS_TRIPLES}
    sets["scadi, 70 samples in 7 classes"] = datasets.load("scadi", context.data)
    found = {}
    for name, data in sets.items():
        evaluator = Evaluator(data, starts)
        found[name] = {
            label: {m: _rounded(evaluator.outcome(m, reading)) for m in METHODS} for label, reading in BASES.items()
        }
    return found


def best_of_grid(columns: dict[str, dict[str, list[float]]]) -> Reading:
    """The grid's reading of the largest mean accuracy of IPS2: it is chosen by the known labels."""
    return grid()[int(np.argmax(columns["IPS2"]["mean"]))]


def draws(context: TaskContext, dataset: str, chosen: str, starts: int, count: int) -> dict[str, dict[str, Any]]:
    """Some readings on random draws of samples: changes, and for each method the mean accuracy of each draw."""
    readings = {**BASES, "best of the grid": best_of_grid(context.earlier[chosen])}
    found: dict[str, dict[str, Any]] = {
        name: {"changes": reading.changes, **{method: [] for method in METHODS}} for name, reading in readings.items()
    }
    for seed in range(count):
        evaluator = Evaluator(drawn(dataset, seed, context.data), starts)
        for name, reading in readings.items():
            for method in METHODS:
                found[name][method].append(round(evaluator.outcome(method, reading).mean, DIGITS))
    return found


def _tasks(scope: Scope) -> list[Task]:
    tasks = [Task("readings/samples", samples, {"starts": scope.starts}, weight=20.0)]
    for name in SETS:
        arguments = {"dataset": name, "starts": scope.starts}
        for base in BASES:
            task = f"readings/{base.replace(' ', '-')}/{name}"
            tasks.append(Task(task, alone, {**arguments, "base": base}, weight=30.0))
        tasks.append(Task(f"readings/grid/{name}", combined, arguments, weight=60.0))
    for name in DRAWN:
        chosen = f"readings/grid/{name}"
        common = {"dataset": name, "chosen": chosen, "starts": scope.starts, "count": scope.reading_draws}
        tasks.append(Task(f"readings/draws/{name}", draws, common, after=(chosen,), weight=100.0))
    return tasks


def within(found: float, paper: float) -> bool:
    """Whether an accuracy counts as the printed one."""
    return abs(found - paper) <= WITHIN


def reaches(found: float, paper: float) -> bool:
    """Whether an accuracy counts as the printed one, or is above."""
    return found >= paper - WITHIN


def paper_accuracy(dataset: str, method: str) -> float:
    """What Table 2 prints."""
    value = printed_score(dataset, method, "acc")
    if value is None:
        raise ValueError(f"Table 2 has no {method} of {dataset}")
    return value


def _records(scope: Scope, results: Results) -> list[Record]:
    """The accuracy of each reading alone; what shares of the grid and of the draws come to the printed figures."""
    records = []
    for dataset in SETS:
        papers = {method: paper_accuracy(dataset, method) for method in METHODS}
        singles = results[f"readings/printed/{dataset}"]
        later = results[f"readings/later-code/{dataset}"]["unchanged"]
        for name, result in {**singles, "later code": later}.items():
            for method in METHODS:
                one, common = result[method], {"setting": name, "params": result["changes"], "runs": scope.starts}
                records.append(
                    record(
                        "readings",
                        dataset,
                        method,
                        "acc",
                        mean=one["mean"],
                        std=one["std"],
                        paper=papers[method],
                        **common,
                    )
                )
        records += list(_shares(dataset, "grid", results[f"readings/grid/{dataset}"], papers))
    for dataset in DRAWN:
        for name, result in results[f"readings/draws/{dataset}"].items():
            for method in METHODS:
                reached, paper = np.array(result[method]), paper_accuracy(dataset, method)
                common = {"setting": name, "params": result["changes"], "runs": len(reached), "paper": paper}
                where = "readings-draws", dataset, method
                records.append(record(*where, "acc", mean=float(reached.mean()), std=float(reached.std()), **common))
                share = float(np.mean([reaches(value, paper) for value in reached]))
                records.append(record(*where, "share_reached", mean=share, **common))
    return records


def _shares(
    dataset: str, setting: str, columns: dict[str, dict[str, list[float]]], papers: dict[str, float]
) -> Iterator[Record]:
    """What share of the grid has, or reaches, a printed accuracy: by the mean of the starts, and by the best one."""
    total = len(columns["IPS2"]["mean"])
    for method in METHODS:
        paper = papers[method]
        common: dict[str, Any] = {"setting": setting, "runs": total, "paper": paper}
        for statistic in ("mean", "best", "least_inertia"):
            values = columns[method][statistic]
            where = "readings-grid", dataset, method
            yield record(*where, f"{statistic}_within", mean=sum(within(v, paper) for v in values) / total, **common)
            yield record(*where, f"{statistic}_reached", mean=sum(reaches(v, paper) for v in values) / total, **common)
            yield record(*where, f"{statistic}_highest", mean=max(values), **common)
    for statistic in ("mean", "best", "least_inertia"):
        together = sum(all(within(columns[m][statistic][i], papers[m]) for m in METHODS) for i in range(total))
        yield record(
            "readings-grid", dataset, "all", f"{statistic}_within", mean=together / total, setting=setting, runs=total
        )


def _document(scope: Scope, results: Results) -> Json:
    """Every accuracy: of single changes, of the grid in the order of its product, and of each draw."""
    return {
        "starts": scope.starts,
        "figures": {name: {m: paper_accuracy(name, m) for m in METHODS} for name in SETS},
        "printed": {name: results[f"readings/printed/{name}"] for name in SETS},
        "later code": {name: results[f"readings/later-code/{name}"] for name in SETS},
        "samples": results["readings/samples"],
        "grid": {"choices": GRID, **{name: results[f"readings/grid/{name}"] for name in SETS}},
        "draws": {name: results[f"readings/draws/{name}"] for name in DRAWN},
    }


FAMILY = Family(
    "Readings of the paper's text: which of them give its figures",
    (*SETS, "scadi", "bbcsport", "yale"),
    _tasks,
    _records,
    _document,
)

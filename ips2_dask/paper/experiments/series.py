"""SC, PPC and IPS2 on generated data: over features, cluster sizes, noise and its level; and IPS2 over k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ips2_dask import datasets
from ips2_dask.datasets import Dataset, usdata1
from ips2_dask.datasets.synthetic import NOISE_LEVELS, USDATA1_FEATURES, USDATA2_THIRDS
from ips2_dask.paper.experiments import tables
from ips2_dask.paper.experiments.records import Record, of_summary, record
from ips2_dask.paper.experiments.settings import COMPARED, Setting, default, printed
from ips2_dask.paper.experiments.tasks import Family, Results, Scope, Task, TaskContext
from ips2_dask.paper.experiments.trials import Summary, score_drawn, seconds, seeds_of, summary

FEATURES = (20, 30, 40, 50, *USDATA1_FEATURES)
"""USdata1's, and fewer: from 260 on it is too easy to tell methods apart."""

NOISES = ("uniform", "gaussian", "rayleigh", "gamma")
NOISY_FEATURES = 60

POINTS: dict[str, dict[str, Mapping[str, object]]] = {
    "usdata1": {str(f): {"kind": "usdata1", "n_features": f} for f in FEATURES},
    "usdata2": {str(n): {"kind": "usdata2", "n_third": n} for n in USDATA2_THIRDS},
    "noises": {noise: {"kind": "usdata1", "n_features": NOISY_FEATURES, "noise": noise} for noise in NOISES},
    "levels": {f"{x:g}": {"kind": "usdata1", "n_features": NOISY_FEATURES, "level": x} for x in NOISE_LEVELS},
}
"""The points of each series, by what stands on its axis, and what is drawn there."""

VARIANTS = ("default", "printed")
"""The methods' default settings; and the paper's printed ones: dense Gaussian S, k = 10, k-means."""


def _setting_of(variant: str, method: str) -> Setting:
    """A method's setting in a variant."""
    return default(method) if variant == "default" else printed()[method]


def draw(kind: str, seed: int, **arguments: Any) -> Dataset:
    """USdata1 or USdata2, drawn with a seed."""
    return datasets.usdata1(seed=seed, **arguments) if kind == "usdata1" else datasets.usdata2(seed=seed, **arguments)


def point(context: TaskContext, drawn: dict[str, Any], runs: int, seed: int) -> dict[str, dict[str, Summary]]:
    """All methods in both variants at one point: each run has data of its own, the same for all of them."""
    del context
    return {
        variant: {
            method: summary(
                _setting_of(variant, method),
                score_drawn(
                    method, _setting_of(variant, method), lambda s: draw(seed=s, **drawn), seeds_of(seed, runs)
                ),
            )
            for method in COMPARED
        }
        for variant in VARIANTS
    }


def _tasks(name: str, scope: Scope) -> list[Task]:
    return [
        Task(
            f"{name}/{label}",
            point,
            {"drawn": drawn, "runs": scope.runs, "seed": scope.seed},
            weight=30.0 if name == "usdata2" else 8.0,
        )
        for label, drawn in POINTS[name].items()
    ]


def experiment_name(name: str, variant: str) -> str:
    """The experiment's name in the records of a variant of a series."""
    return name if variant == "default" else f"{name}-{variant}"


def dataset_name(name: str, at: str) -> str:
    """The data set's name in the records of a point."""
    base = "usdata2" if name == "usdata2" else f"usdata1-{NOISY_FEATURES}"
    return f"usdata1-{at}" if name == "usdata1" else f"{base}-{at}"


def _records(name: str, results: Results) -> list[Record]:
    records = []
    for variant in VARIANTS:
        experiment = experiment_name(name, variant)
        for label in POINTS[name]:
            result = results[f"{name}/{label}"][variant]
            dataset = dataset_name(name, label)
            for method in COMPARED:
                theirs = {"acc": tables.PRINTED_LEVELS.get((label, method))} if name == "levels" else {}
                records += of_summary(experiment, dataset, method, "default", result[method], theirs)
            gain = result["IPS2"]["mean"]["acc"] - result["SC"]["mean"]["acc"]
            params, runs = result["IPS2"]["params"], result["IPS2"]["runs"]
            records.append(record(experiment, dataset, "IPS2", "gain", mean=gain, runs=runs, params=params))
    return records


def family(name: str, title: str) -> Family:
    """The family of one series."""
    return Family(title, (), lambda scope: _tasks(name, scope), lambda _, results: _records(name, results))


FAMILIES = {
    "usdata1": family("usdata1", "USdata1: accuracy over the number of features"),
    "usdata2": family("usdata2", "USdata2: accuracy over the size of the third cluster"),
    "noises": family("noises", f"Four noises on USdata1 with {NOISY_FEATURES} features"),
    "levels": family("levels", f"Levels of Gaussian noise on USdata1 with {NOISY_FEATURES} features"),
}


K = tuple(range(5, 16))
NEIGHBORS_DATASET = f"usdata1-{NOISY_FEATURES}"


def _neighbors_setting(variant: str, k: int) -> Setting:
    return {**_setting_of(variant, "IPS2"), "n_neighbors": k}


def _neighbors_accuracy(context: TaskContext, k: int, runs: int, seed: int) -> dict[str, Summary]:
    """IPS2 with this k, in both variants, each run on data of its own."""
    del context
    seeds = seeds_of(seed, runs)
    return {
        variant: summary(
            _neighbors_setting(variant, k),
            score_drawn("IPS2", _neighbors_setting(variant, k), lambda s: usdata1(NOISY_FEATURES, seed=s), seeds),
        )
        for variant in VARIANTS
    }


def _neighbors_times(context: TaskContext, repeats: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of IPS2's fits on one draw for each k, in both variants, after one that is not counted."""
    del context
    data = usdata1(NOISY_FEATURES, seed=seed)
    return {
        variant: {str(k): seconds("IPS2", _neighbors_setting(variant, k), data, [seed] * (repeats + 1))[1:] for k in K}
        for variant in VARIANTS
    }


def _neighbors_tasks(scope: Scope) -> list[Task]:
    """One for each k, and one for the times of all k."""
    arguments = {"runs": scope.runs, "seed": scope.seed}
    tasks = [Task(f"neighbors/{k}", _neighbors_accuracy, {"k": k, **arguments}, weight=k / 2) for k in K]
    return [
        *tasks,
        Task("neighbors/times", _neighbors_times, {"repeats": scope.repeats, "seed": scope.seed}, timed=True),
    ]


def _neighbors_records(scope: Scope, results: Results) -> list[Record]:
    """The measures and the seconds of each k, which is among the parameters."""
    del scope
    records = []
    for variant in VARIANTS:
        name = experiment_name("neighbors", variant)
        for k in K:
            result = results[f"neighbors/{k}"][variant]
            taken = results["neighbors/times"][variant][str(k)]
            records += of_summary(name, NEIGHBORS_DATASET, "IPS2", "default", result, {})
            common: dict[str, Any] = {"runs": len(taken), "params": result["params"]}
            records.append(
                record(
                    name,
                    NEIGHBORS_DATASET,
                    "IPS2",
                    "seconds",
                    mean=float(np.mean(taken)),
                    std=float(np.std(taken)),
                    **common,
                )
            )
            records.append(
                record(name, NEIGHBORS_DATASET, "IPS2", "seconds_median", mean=float(np.median(taken)), **common)
            )
    return records


NEIGHBORS = Family("Accuracy and time over k", (), _neighbors_tasks, _neighbors_records)

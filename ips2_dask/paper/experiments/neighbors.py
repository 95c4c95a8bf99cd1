"""Accuracy and time of IPS2 over the size k of a neighbourhood, on USdata1."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.datasets import usdata1
from ips2_dask.paper.experiments.records import Record, of_summary, record
from ips2_dask.paper.experiments.scope import Family, Results, Scope
from ips2_dask.paper.experiments.series import NOISY_FEATURES, VARIANTS, experiment_name, setting_of
from ips2_dask.paper.experiments.settings import Setting
from ips2_dask.paper.experiments.tasks import Given, Task
from ips2_dask.paper.experiments.trials import score_drawn, seconds, seeds_of, summary

K = tuple(range(5, 16))
DATASET = f"usdata1-{NOISY_FEATURES}"


def _setting(variant: str, k: int) -> Setting:
    return {**setting_of(variant, "IPS2"), "n_neighbors": k}


def accuracy(given: Given, k: int, runs: int, seed: int) -> dict[str, Any]:
    """IPS2 with this k, in both variants, each run on data of its own."""
    del given
    seeds = seeds_of(seed, runs)
    return {
        variant: summary(
            _setting(variant, k),
            score_drawn("IPS2", _setting(variant, k), lambda s: usdata1(NOISY_FEATURES, seed=s), seeds),
        )
        for variant in VARIANTS
    }


def times(given: Given, repeats: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of IPS2's fits on one draw for each k, in both variants, after one that is not counted."""
    del given
    data = usdata1(NOISY_FEATURES, seed=seed)
    return {
        variant: {str(k): seconds("IPS2", _setting(variant, k), data, [seed] * (repeats + 1))[1:] for k in K}
        for variant in VARIANTS
    }


def tasks(scope: Scope) -> list[Task]:
    """One for each k, and one for all times."""
    arguments = {"runs": scope.runs, "seed": scope.seed}
    out = [Task(f"neighbors/{k}", accuracy, {"k": k, **arguments}, weight=k / 2) for k in K]
    return [*out, Task("neighbors/times", times, {"repeats": scope.repeats, "seed": scope.seed}, timed=True)]


def records(scope: Scope, results: Results) -> list[Record]:
    """The measures and the seconds of each k, which is among the parameters."""
    del scope
    out = []
    for variant in VARIANTS:
        name = experiment_name("neighbors", variant)
        for k in K:
            found = results[f"neighbors/{k}"][variant]
            taken = results["neighbors/times"][variant][str(k)]
            out += of_summary(name, DATASET, "IPS2", "default", found, {})
            common: dict[str, Any] = {"runs": len(taken), "params": found["params"]}
            out.append(
                record(name, DATASET, "IPS2", "seconds", mean=float(np.mean(taken)), std=float(np.std(taken)), **common)
            )
            out.append(record(name, DATASET, "IPS2", "seconds_median", mean=float(np.median(taken)), **common))
    return out


FAMILY = Family("Accuracy and time over k", (), tasks, records)

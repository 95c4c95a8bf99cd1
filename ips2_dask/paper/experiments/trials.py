"""Fits of one setting on one data set: with several seeds, scored; or timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ips2_dask import datasets
from ips2_dask.datasets import Dataset
from ips2_dask.metrics import scores
from ips2_dask.paper.experiments.methods import Fitted, estimator, quiet
from ips2_dask.paper.experiments.paper import MEASURES
from ips2_dask.paper.experiments.settings import Setting

Summary = dict[str, Any]
"""``params``, ``runs``, and ``mean`` and ``std`` of each measure."""


def load(name: str, data: str | None) -> Dataset:
    """A data set by name; ``bbcsport-draw3`` is the draw of 60 documents with seed 3."""
    if name.startswith("bbcsport-draw"):
        return datasets.bbcsport_draw(int(name.removeprefix("bbcsport-draw")), data)
    return datasets.load(name, data)


def summary(setting: Setting, found: Sequence[dict[str, float]]) -> Summary:
    """Mean and standard deviation (of these runs: the divisor is their number) of each measure."""
    table = {name: np.array([run[name] for run in found]) for name in found[0]}
    return {
        "params": setting,
        "runs": len(found),
        "mean": {name: float(values.mean()) for name, values in table.items()},
        "std": {name: float(values.std()) for name, values in table.items()},
    }


def score(method: str, setting: Setting, dataset: Dataset, seeds: Sequence[int]) -> list[dict[str, float]]:
    """The five measures of a setting on a data set for each seed."""
    fitted = Fitted(method, setting, dataset.X, dataset.n_clusters)
    return [scores(dataset.labels, fitted.labels(seed)) for seed in seeds]


def score_drawn(
    method: str, setting: Setting, draw: Callable[[int], Dataset], seeds: Sequence[int]
) -> list[dict[str, float]]:
    """The five measures of a setting for each seed, on data that are drawn with that seed."""
    return [score(method, setting, draw(seed), [seed])[0] for seed in seeds]


def seconds(method: str, setting: Setting, dataset: Dataset, seeds: Sequence[int]) -> list[float]:
    """How long ``fit`` takes with each seed: the estimator alone, on data that are in memory and scaled."""
    found = []
    for seed in seeds:
        unfitted, X = estimator(method, setting, dataset.X, dataset.n_clusters, seed)
        begun = time.perf_counter()
        with quiet():
            unfitted.fit(X)
        found.append(time.perf_counter() - begun)
    return found


def seeds_of(seed: int, runs: int) -> range:
    """``random_state`` of each run."""
    return range(seed, seed + runs)


__all__ = ["MEASURES", "Summary", "load", "score", "score_drawn", "seconds", "seeds_of", "summary"]

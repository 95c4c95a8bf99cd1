"""Fits of a method on one data set: scored with several seeds, timed, and tuned over the method's grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from ips2_dask import datasets
from ips2_dask.datasets import Dataset
from ips2_dask.errors import BadInput
from ips2_dask.metrics import Average, nmi, scores
from ips2_dask.paper.experiments.methods import Fitted, estimator, quiet
from ips2_dask.paper.experiments.settings import Setting, default, grid, published


class Summary(TypedDict):
    """The runs of one setting: their number, and mean and standard deviation of each measure by its name."""

    params: Setting
    runs: int
    mean: dict[str, float]
    std: dict[str, float]


Trial: TypeAlias = dict[str, Any]
"""One run of a setting: ``params``, ``agreement`` with the other settings of the grid, and its scores by name."""

Tuning: TypeAlias = dict[str, Any]
"""``tried``, a list of `Trial`, and a `Summary` under each name of `records.SETTINGS`."""


def load(name: str, data: str | None) -> Dataset:
    """A data set by name; ``bbcsport-draw3`` is the draw of 60 documents with seed 3."""
    if name.startswith("bbcsport-draw"):
        return datasets.bbcsport_draw(int(name.removeprefix("bbcsport-draw")), data)
    return datasets.load(name, data)


def summary(setting: Setting, measured: Sequence[dict[str, float]]) -> Summary:
    """Mean and standard deviation (of these runs: the divisor is their number) of each measure."""
    table = {name: np.array([run[name] for run in measured]) for name in measured[0]}
    return {
        "params": setting,
        "runs": len(measured),
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
    times = []
    for seed in seeds:
        unfitted, X = estimator(method, setting, dataset.X, dataset.n_clusters, seed)
        begun = time.perf_counter()
        with quiet():
            unfitted.fit(X)
        times.append(time.perf_counter() - begun)
    return times


def seeds_of(seed: int, runs: int) -> range:
    """``random_state`` of each run."""
    return range(seed, seed + runs)


FINALISTS = 10
"""Settings of the grid that are run with all seeds before the best is called tuned."""

AVERAGES: tuple[Average, ...] = ("geometric", "max", "min")
"""NMI's other means, kept to see which one the paper used."""


def four_settings(method: str, dataset: Dataset, runs: int, seed: int, budget: int) -> Tuning:
    """Try a method's whole grid once, and run the settings that come out of it.

    ``default`` is the method's one setting for all data sets. ``tuned`` is the best mean ACC of the ten settings that
    did best once: it uses the labels, and is what the paper's figures must be. ``unsupervised`` is the setting whose
    labels agree most with those of all settings in the grid, by the mean adjusted Rand index: it uses none. ``printed``
    is what the paper prints of the method, the same for all data sets.

    Returns
    -------
    dict
        ``tried``: every setting with its scores and its agreement; and a `Summary` for each of the four.
    """
    tried, labels = try_grid(method, dataset, seed, budget)
    agreement = agreements(np.stack(labels))
    for entry, value in zip(tried, agreement, strict=True):
        entry["agreement"] = float(value)
    seeds = seeds_of(seed, runs)

    def run(setting: Setting) -> Summary:
        return summary(setting, score(method, setting, dataset, seeds))

    order = np.argsort([-entry["acc"] for entry in tried], kind="stable")[:FINALISTS]
    finalists = [run(tried[i]["params"]) for i in order]
    tuned = max(finalists, key=lambda finalist: finalist["mean"]["acc"])  # the first of several
    summaries = {repr(finalist["params"]): finalist for finalist in finalists}
    once = tried[int(np.argmax(agreement))]["params"]
    chosen = {"printed": published(method), "default": default(method), "unsupervised": once}
    others = {name: summaries.get(repr(setting)) or run(setting) for name, setting in chosen.items()}
    return {"tried": tried, "tuned": tuned, **others}


def try_grid(
    method: str, dataset: Dataset, seed: int, budget: int
) -> tuple[list[Trial], list[npt.NDArray[np.integer]]]:
    """Each setting's scores with one seed, and its labels; settings that the data do not allow are left out."""
    tried, labels = [], []
    for setting in grid(method, budget):
        try:
            predicted = Fitted(method, setting, dataset.X, dataset.n_clusters).labels(seed)
        except BadInput:  # more neighbours than samples, say
            continue
        others = {f"nmi_{average}": nmi(dataset.labels, predicted, average) for average in AVERAGES}
        tried.append({"params": setting, **scores(dataset.labels, predicted), **others})
        labels.append(predicted)
    return tried, labels


def agreements(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """The mean adjusted Rand index of each labelling with all of them, rounded so that equal ones tie: (n,).

    Parameters
    ----------
    labels : array (n, m)
        One labelling a row.
    """
    n, m = labels.shape
    i, j = np.triu_indices(m, 1)
    together = (labels[:, i] == labels[:, j]).astype(np.float64)  # (n, pairs)
    both, size = together @ together.T, together.sum(axis=1)
    chance = size[:, None] * size / len(i)
    most = (size[:, None] + size) / 2
    # where two labellings are one cluster, or all single samples, chance is all there is: they are the same
    ari = np.divide(both - chance, most - chance, out=np.ones((n, n)), where=most > chance)
    return np.round(ari.mean(axis=1), 12)

"""The matrices of the heat maps: pairwise, high-order and fused similarity, both unfolded tensors; distributions."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score

from ips2_dask import datasets, explicit
from ips2_dask.datasets import Dataset
from ips2_dask.estimator import IPS2
from ips2_dask.paper.experiments import tables
from ips2_dask.paper.experiments.methods import quiet
from ips2_dask.paper.experiments.records import Record, record
from ips2_dask.paper.experiments.settings import Setting, printed
from ips2_dask.paper.experiments.tasks import Family, Results, Scope, Task, TaskContext
from ips2_dask.paper.experiments.trials import load
from ips2_dask.typing import Float64

CELLS = 250
"""Cells a side that an unfolded tensor of 2,500 pairs is drawn with: each is the mean of ten by ten entries."""

BINS = 40
KINDS = {"SC": "pairwise", "PPC": "high_order", "IPS2": "fused"}
"""The similarity that each method clusters."""

SHOWN = ("bbcsport60", "yale5")


class Similarities(TypedDict):
    """The three similarities of a data set, each field but ``params`` by the kind of similarity."""

    params: Setting
    cells: dict[str, list[list[float]]]  # (m, m), samples in order of their classes
    auc: dict[str, float]
    largest: dict[str, float]
    histogram: dict[str, list[int]]  # (BINS,)


class Tensors(TypedDict):
    """S and two unfolded tensors: their variation, and their cells for the heat maps."""

    variation: dict[str, float]
    cells: dict[str, list[list[float]]]  # (CELLS, CELLS) at most


def _cells(M: npt.ArrayLike, digits: int = 4) -> list[list[float]]:
    """A matrix as JSON holds it."""
    rows: list[list[float]] = np.round(np.asarray(M, np.float64), digits).tolist()
    return rows


def _coarse(M: Float64, cells: int) -> Float64:
    """Means of square blocks, so that ``cells`` a side are left."""
    step = len(M) // cells
    return np.asarray(M.reshape(cells, step, cells, step).mean(axis=(1, 3)))


def _variation(M: Float64) -> float:
    """Standard deviation over mean of the entries off the diagonal: near 0 where all pairs look alike."""
    off = M[~np.eye(len(M), dtype=bool)]
    return float(off.std() / off.mean())


def _counts(values: Float64, most: float) -> list[int]:
    """How many of the values are in each of the bins from 0 to the largest."""
    counts: list[int] = np.histogram(values, bins=BINS, range=(0, most))[0].tolist()
    return counts


def tensors(context: TaskContext, seed: int) -> Tensors:
    """Section 3.4's three clusters: S and both unfolded tensors of all quadruples, coarse, and how they vary."""
    del context
    data = datasets.three_clusters(seed)
    S = explicit.pairwise_similarity(data.X, "gaussian")
    decomposable = explicit.unfold(explicit.tensor_similarity(S, "decomposable"))
    indecomposable = explicit.unfold(explicit.tensor_similarity(data.X, "indecomposable"))
    matrices = {"pairwise": S, "decomposable": decomposable, "indecomposable": indecomposable}
    return {
        "variation": {name: _variation(M) for name, M in matrices.items()},
        "cells": {name: _cells(M if len(M) <= CELLS else _coarse(M, CELLS)) for name, M in matrices.items()},
    }


def _three(dataset: Dataset, setting: Setting, seed: int) -> Similarities:
    """S, V and U of a data set, samples sorted by class, and how well each tells classes apart."""
    order = np.argsort(dataset.labels, kind="stable")
    with quiet():
        fitted = IPS2(dataset.n_clusters, random_state=seed, **setting).fit(dataset.X)
    matrices = {
        "pairwise": fitted.pairwise_similarity_,
        "high_order": fitted.high_order_similarity_,
        "fused": fitted.affinity_matrix_,
    }
    dense = {
        name: np.asarray(M.toarray() if sp.issparse(M) else M)[np.ix_(order, order)] for name, M in matrices.items()
    }
    labels = dataset.labels[order]
    i, j = np.triu_indices(len(labels), 1)
    same = labels[i] == labels[j]
    return {
        "params": setting,
        "cells": {name: _cells(M) for name, M in dense.items()},
        "auc": {name: float(roc_auc_score(same, M[i, j])) for name, M in dense.items()},
        "largest": {name: float(M.max()) for name, M in dense.items()},
        "histogram": {name: _counts(M[i, j], M.max()) for name, M in dense.items()},
    }


def similarities(context: TaskContext, seed: int) -> Similarities:
    """The two-cluster set with the paper's printed settings: the three similarities and their distributions."""
    del context
    return _three(datasets.two_clusters(seed), printed()["IPS2"], seed)


def heatmaps(context: TaskContext, dataset: str, chosen: str, seed: int) -> Similarities:
    """A real data set with the setting that Table 2 tuned for IPS2."""
    return _three(load(dataset, context.data), context.earlier[chosen]["tuned"]["params"], seed)


def _tensor_tasks(scope: Scope) -> list[Task]:
    return [Task("tensors", tensors, {"seed": scope.seed}, weight=4.0)]


def _similarity_tasks(scope: Scope) -> list[Task]:
    return [Task("similarities", similarities, {"seed": scope.seed})]


def _heatmap_tasks(scope: Scope) -> list[Task]:
    tasks = []
    for name in SHOWN:
        cell = tables.table2_task(scope, name, "IPS2")
        arguments = {"dataset": name, "chosen": cell.name, "seed": scope.seed}
        tasks += [cell, Task(f"heatmaps/{name}", heatmaps, arguments, after=(cell.name,))]
    return tasks


def _tensor_records(scope: Scope, results: Results) -> list[Record]:
    del scope
    variation = results["tensors"]["variation"]
    return [record("tensors", "three_clusters", name, "variation", mean=value) for name, value in variation.items()]


def _auc_records(experiment: str, dataset: str, setting: str, result: Similarities) -> list[Record]:
    return [
        record(experiment, dataset, method, "auc", mean=result["auc"][kind], setting=setting, params=result["params"])
        for method, kind in KINDS.items()
    ]


def _similarity_records(scope: Scope, results: Results) -> list[Record]:
    del scope
    return _auc_records("similarities", "two_clusters", "default", results["similarities"])


def _heatmap_records(scope: Scope, results: Results) -> list[Record]:
    del scope
    return [r for name in SHOWN for r in _auc_records("heatmaps", name, "tuned", results[f"heatmaps/{name}"])]


FAMILIES = {
    "tensors": Family("Pairwise, decomposable and indecomposable similarity", (), _tensor_tasks, _tensor_records),
    "similarities": Family(
        "The three similarities and their distributions", (), _similarity_tasks, _similarity_records
    ),
    "heatmaps": Family("Similarities of BBCSports and Yale", SHOWN, _heatmap_tasks, _heatmap_records),
}

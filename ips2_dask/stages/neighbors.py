"""Stage 2: the nearest neighbours of every sample, exact by BLAS or by pynndescent, and the kernel's bandwidths."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.executors import Executor, Job, Report
from ips2_dask.kernels import approximate, similarity
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.params import DENSE_MAX_SAMPLES, Params
from ips2_dask.storage.context import Context, part_name

VERSION = 1

EXACT_WORK = 4e12
"""m^2 (f + 64) up to which BLAS is as fast as pynndescent with its compilation (README, measured crossing)."""

RECALL_ROWS = 1000


def depends_on(params: Params) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the input."""
    return {"n_stored": params.n_stored_neighbors, "seed": params.random_state}


def builder(m: int, f: int) -> str:
    """Which graph builder data of this shape gets."""
    return "exact" if m * m * (f + 64) <= EXACT_WORK else "pynndescent"


def all_samples(context: Context) -> np.ndarray[Any, Any]:
    """The whole of X in this process, remembered."""
    size = context.m * context.n_features * 4
    X: np.ndarray[Any, Any] = context.remembered("X", lambda: context.read_all("ingest", "samples"), size)
    return X


def exact(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exact neighbours of one partition's samples among all of them."""
    X = all_samples(context)
    low, high = context.span(b)
    n = min(context.params.n_stored_neighbors, context.m)
    indices, distances = kernel.exact_neighbors(X[low:high], low, X, n)
    return {"indices": indices, "distances": distances}, {}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the graph by partition; returns builder, recall, repaired rows and warnings."""
    facts: dict[str, Any] = {"builder": builder(context.m, context.n_features), "recall": 1.0, "repaired": 0}
    if facts["builder"] == "exact":
        executor.map(Job("neighbors", exact), context, range(context.n_partitions), report)
    else:
        facts |= _approximate(context, report)
    rows = kernel.bandwidth_rows(context.m, DENSE_MAX_SAMPLES, context.params.random_state)
    lengths = similarity.all_lengths(np.asarray(context.rows_of("ingest", "samples", rows)))
    mean, median = similarity.bandwidths(lengths)
    context.store.write(context.folders["neighbors"], "whole", {"bandwidths": np.array([mean, median])}, {})
    return {**facts, "warnings": _duplicates(context)}


def _approximate(context: Context, report: Report) -> dict[str, Any]:
    """The graph by pynndescent in this process, every row checked, its recall measured on an exact sample."""
    X = all_samples(context)
    n, seed = min(context.params.n_stored_neighbors, context.m), context.params.random_state
    indices, distances, repaired = kernel.settle_candidates(X, approximate.candidates(X, n, seed), n)
    rows = np.sort(np.random.default_rng([seed, 2]).choice(context.m, min(RECALL_ROWS, context.m), replace=False))
    truth = np.concatenate([kernel.exact_neighbors(X[r : r + 1], int(r), X, n)[0] for r in rows])
    for b in range(context.n_partitions):
        low, high = context.span(b)
        part = {"indices": indices[low:high], "distances": distances[low:high]}
        context.store.write(context.folders["neighbors"], part_name(b), part, {})
        report(b + 1, context.n_partitions)
    return {"recall": kernel.recall(indices[rows], truth), "repaired": repaired}


def _duplicates(context: Context) -> list[str]:
    k = context.params.n_neighbors
    repeated = crowded = 0
    for b in range(context.n_partitions):
        distances = np.asarray(context.read("neighbors", b, "distances"))
        if distances.shape[1] > 1:
            repeated += int(np.count_nonzero(distances[:, 1] == 0))
            crowded += int(np.count_nonzero(distances[:, min(k, distances.shape[1]) - 1] == 0))
    out = []
    if repeated:
        out.append(f"{repeated} of {context.m} samples have an exact duplicate")
    if crowded:
        out.append(f"{crowded} samples see only copies of themselves among their {k} nearest: they form islands")
    return out

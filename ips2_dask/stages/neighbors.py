"""Stage 2: the nearest neighbours of every sample, exact by BLAS, by shards, or by pynndescent; and the bandwidths."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.executors import Executor, Job, Report
from ips2_dask.kernels import approximate, copies, similarity
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.params import DENSE_MAX_SAMPLES, Params
from ips2_dask.plan import Choices
from ips2_dask.stages import sharding
from ips2_dask.storage.context import Context, part_name

VERSION = 2


def depends_on(params: Params, choices: Choices) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the input."""
    return {
        "n_stored": params.n_stored_neighbors,
        "seed": params.random_state,
        "graph": choices.graph,
        "n_shards": choices.n_shards,
    }


def exact(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exact neighbours of one partition's samples among all of them."""
    X = context.all_samples()
    low, high = context.span(b)
    n = min(context.params.n_stored_neighbors, context.m)
    groups = context.remembered("ingest", "copies", lambda: copies.group_rows(X), 24 * context.m)
    indices, distances = copies.nearest_rows(np.arange(low, high), X, groups, n)
    return {"indices": indices, "distances": distances}, {}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the graph by partition; returns builder, recall, repaired rows and warnings."""
    facts: dict[str, Any] = {
        "builder": context.choices.graph,
        "recall": 1.0,
        "repaired": 0,
        "rounds": 0,
        "warnings": [],
    }
    whole: dict[str, Any] = {}
    if context.choices.graph == "exact":
        executor.map(Job("neighbors", exact), context, range(context.n_partitions), report)
    elif context.choices.graph == "shards":
        found, whole = sharding.run(context, executor, report)
        facts |= found
        context = sharding.adopted(context, facts)
    else:
        facts |= _approximate(context, report)
    rows = kernel.bandwidth_rows(context.m, DENSE_MAX_SAMPLES, context.params.random_state)
    lengths = similarity.all_lengths(np.asarray(context.samples(rows)))
    whole["bandwidths"] = np.array(similarity.bandwidths(lengths))
    context.store.write(context.folders["neighbors"], "whole", whole, {})
    facts["warnings"] = [*facts["warnings"], *_duplicates(context)]
    return facts


def _approximate(context: Context, report: Report) -> dict[str, Any]:
    """The graph by pynndescent in this process, every row checked, its recall measured on an exact sample."""
    X = context.all_samples()
    n, seed = min(context.params.n_stored_neighbors, context.m), context.params.random_state
    indices, distances, repaired = kernel.settle_candidates(X, approximate.candidates(X, n, seed), n)
    rows = kernel.recall_rows(context.m, seed)
    _, truth = kernel.nearest_in(X[rows], rows, X, n - 1)
    for b in range(context.n_partitions):
        low, high = context.span(b)
        part = {"indices": indices[low:high], "distances": distances[low:high]}
        context.store.write(context.folders["neighbors"], part_name(b), part, {})
        report(b + 1, context.n_partitions)
    return {"recall": kernel.recall(distances[rows], truth[:, -1]), "repaired": repaired}


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

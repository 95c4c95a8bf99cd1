"""Stage 2: the nearest neighbours of every sample, exact by BLAS, by shards, or by pynndescent; and the bandwidths."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import distances, duplicates, shards, similarity
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.params import DENSE_MAX_SAMPLES, LEAST_RECALL, Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import graph_refinement, metric_views, sharding, side_inputs
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray

VERSION = 9

LENGTHENED = (1, 2, 4, 8)
"""Factors by which pynndescent's lists are lengthened, one after the other, while the recall of the nearest among them
is too low: of 100,000 x 64 values of plain Gaussian noise it is .13, .36, .85 and .98 (measured)."""

GIVEN_AT_ONCE = 1 << 22
"""Candidates whose distances are measured at once, where a graph was given."""


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the input."""
    own = {
        "n_stored": params.n_stored_neighbors,
        "seed": params.random_state,
        "graph": choices.graph,
        "n_shards": choices.n_shards,
    }
    if choices.graph in ("shards", "pynndescent"):
        own["exact_after"] = choices.exact_after
    # a metric that is Euclidean between the rows that ingest prepared changes no more than those
    metric = METRICS[params.metric]
    if metric.compares_pairs:
        own |= {"metric": params.metric, "distances": distances.VERSION}
    return own | ({"metric": params.metric} if metric.precomputed else {})


def exact(context: Context, b: int) -> TaskResult:
    """Exact neighbours of one partition's samples among all of them."""
    low, high = context.span(b)
    n = min(context.params.n_stored_neighbors, context.m)
    if context.metric.precomputed:
        D = np.asarray(context.samples_of(b))
        indices, lengths = kernel.precomputed_neighbors(D, low, n)
        if np.isinf(lengths).any():  # sparse distances, of which equal rows have become one
            few = int(np.argmax(np.isinf(lengths).sum(axis=1)))
            raise BadInput(
                "metric='precomputed'",
                f"{np.isfinite(lengths[few]).sum() - 1} stored distances of distinct sample {low + few}",
                f"at least {n - 1} to other distinct samples",
                "its neighbourhood would be too small",
                "give the distances of more neighbours, or duplicates='keep'",
            )
        return {"indices": indices, "distances": lengths}, metric_views.copies_listed(context, lengths)
    X = context.all_samples()
    groups = None
    if not context.params.merges_rows:
        groups = context.cached("ingest", "copies", lambda: duplicates.group_rows(X), 24 * context.m)
    nearest = metric_views.search(context)
    indices, distances = duplicates.nearest_rows(np.arange(low, high), X, groups, n, nearest=nearest)
    return {"indices": indices, "distances": distances}, metric_views.copies_listed(context, distances)


def given(context: Context, b: int) -> TaskResult:
    """The nearest of the user's candidates for partition b's samples, by distances measured here."""
    low, high = context.span(b)
    n, width = min(context.params.n_stored_neighbors, context.m), 1
    indices = np.full((high - low, n), -1, np.int32)
    distances = np.full((high - low, n), np.inf, np.float32)
    indices[:, 0], distances[:, 0] = np.arange(low, high), 0.0
    start = low
    while start < high:
        stop = min(high, start + max(1, GIVEN_AT_ONCE // width))
        candidates = side_inputs.given_candidates(context, start, stop)
        if candidates.shape[1] > width and candidates.size > GIVEN_AT_ONCE and stop - start > 1:
            width = candidates.shape[1]  # a hub: fewer rows at once
            continue
        rows = np.arange(start, stop)
        used = np.unique(np.concatenate([candidates[candidates >= 0], rows]))
        own, same = np.searchsorted(used, rows), np.arange(len(used), dtype=np.int32)
        places = np.where(candidates < 0, -1, np.searchsorted(used, candidates)).astype(np.int32)
        X = np.asarray(context.samples(used))
        lengths = shards.candidate_lengths(X, own, places, same, context.metric.code)
        span = slice(start - low, stop - low)
        lists = shards.Lists(indices[span], indices[span].copy(), distances[span])
        shards.merge_numbered(lists, shards.Lists(candidates, candidates, lengths), rows, rows.astype(np.int32))
        start = stop
    short = np.flatnonzero((indices < 0).any(axis=1))
    if len(short):  # all candidates of such a sample are rows that equal it
        X = context.all_samples()
        nearest = metric_views.search(context)
        indices[short, 1:], distances[short, 1:] = nearest(X[low + short], low + short, X, n - 1)
    return {"indices": indices, "distances": distances}, metric_views.copies_listed(context, distances)


def _given(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Make the graph of the user's candidates, and measure its recall against exact neighbours of a sample of rows."""
    parts, folder = range(context.n_partitions), context.folders["neighbors"]
    receipts = executor.map(Job("neighbors", given), context, parts, report)
    rows = kernel.recall_rows(context.m, context.params.random_state)
    context.store.write(folder, "queries", {"rows": np.asarray(context.samples(rows))}, {})
    reach = graph_refinement.true_reach(context, executor, report)
    listed = np.asarray(context.rows_of("neighbors", "distances", rows))
    recall = kernel.recall(listed, reach)
    warnings = []
    if recall < LEAST_RECALL:
        warnings.append(
            f"the graph that was given lists {recall:.3f} of the nearest samples by {context.params.metric} distance: "
            "it was made by another one, or by an approximate search"
        )
    return {"recall": recall, "warnings": [*warnings, *metric_views.copies_warnings(context, receipts)]}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the graph by partition; returns builder, recall, repaired rows and warnings."""
    facts: dict[str, Any] = {
        "builder": context.choices.graph,
        "recall": 1.0,
        "repaired": 0,
        "rounds": 0,
        "warnings": [],
    }
    whole: dict[str, AnyArray] = {}
    if context.choices.graph == "exact":
        facts["warnings"] = _exact(context, executor, report)
    elif context.choices.graph == "given":
        facts |= _given(context, executor, report)
    elif context.choices.graph == "shards":
        shard_facts, whole = sharding.run(context, executor, report)
        facts |= shard_facts
    else:
        facts |= _approximate(context, executor, report)
    if "bandwidths" not in whole:
        rows = kernel.bandwidth_rows(context.m, DENSE_MAX_SAMPLES, context.params.random_state)
        whole["bandwidths"] = np.array(similarity.bandwidths(metric_views.bandwidth_lengths(context, rows)))
    context.store.write(context.folders["neighbors"], "whole", whole, {})
    return facts


def _exact(context: Context, executor: Executor, report: Report) -> list[str]:
    """Compare every pair; returns the warnings."""
    return metric_views.copies_warnings(
        context, executor.map(Job("neighbors", exact), context, range(context.n_partitions), report)
    )


def _approximate(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The graph by pynndescent in this process, every row checked, its recall measured on an exact sample.

    Where that is too low longer lists are tried, and then every pair is compared, as far as the plan affords that.
    """
    X = context.all_samples()
    n, seed = min(context.params.n_stored_neighbors, context.m), context.params.random_state
    nearest = metric_views.search(context)
    rows = kernel.recall_rows(context.m, seed)
    reach = nearest(X[rows], rows, X, n - 1)[1][:, -1]
    history: list[float] = []
    for times in LENGTHENED:
        lists = kernel.descent_candidates(X, n, seed, context.params.metric, times)
        indices, distances, repaired = kernel.refine_candidates(X, lists, n, nearest, context.metric.code)
        history.append(kernel.recall(distances[rows], reach))
        if history[-1] >= LEAST_RECALL:
            break
    facts: dict[str, Any] = {"recall": history[-1], "recall_history": history, "repaired": repaired}
    if history[-1] < LEAST_RECALL and context.choices.exact_after:
        warnings = _exact(context, executor, report)
        return facts | {"recall": 1.0, "repaired": 0, "searched_exactly": True, "warnings": warnings}
    facts["warnings"] = []
    if history[-1] < LEAST_RECALL:
        facts["warnings"] = [
            f"recall@{n - 1} of the sample graph is {history[-1]:.3f} and {LEAST_RECALL} was promised: pynndescent's "
            f"lists of {LENGTHENED[-1] * (n + 1)} were not long enough, and {context.m:,} samples are too many to "
            "compare every pair unasked; graph='exact' (--graph exact) does it"
        ]
    receipts = []
    for b in range(context.n_partitions):
        low, high = context.span(b)
        part = {"indices": indices[low:high], "distances": distances[low:high]}
        counted = metric_views.copies_listed(context, distances[low:high])
        receipts.append(context.store.write(context.folders["neighbors"], part_name(b), part, counted))
        report(b + 1, context.n_partitions)
    facts["warnings"] += metric_views.copies_warnings(context, receipts)
    return facts

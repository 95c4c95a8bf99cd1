"""Stage 3: the active pairs, and each neighbourhood's block with the entries it owns; triplets where asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import tensor as kernel
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import metric_views
from ips2_dask.stages.near import graph_near, store_reverse_lists
from ips2_dask.stages.views import n_pairs, numbered_ids
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context
from ips2_dask.typing import AnyArray

VERSION = 1


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the graph."""
    own: dict[str, object] = {"n_neighbors": params.n_neighbors, "tensor": params.tensor}
    if params.tensor == "indecomposable" and choices.operator == "triplets":
        own |= {"sigma": params.sigma, "epsilon": params.epsilon}
    if choices.vectors == "chunked":
        own["reverse_lists"] = "by partition"
    return own


def pairs(context: Context, b: int) -> TaskResult:
    """Active pairs whose first sample is in partition b.

    In chunked runs it takes the larger of what `graph_near` takes, and the graph with 16 bytes a pair.
    """
    graph = graph_near(context, *context.span(b), context.params.n_neighbors)
    owned = graph.numbers(kernel.owned_pairs(graph.N, graph.reverse, graph.low, graph.high))
    return {"pairs": owned}, {"n_pairs": len(owned)}


def blocks(context: Context, b: int) -> TaskResult:
    """Block distances and owned subsets of partition b's neighbourhoods; their triplets if asked.

    In chunked runs it takes the larger of what `graph_near` takes, and 8 f bytes for each sample of the neighbourhoods
    (X there, read by partition and joined), with 2 k (k - 1) bytes and one for each subset for each sample of b.
    """
    params = context.params
    graph = graph_near(context, *context.span(b), params.n_neighbors, of_members=True)
    owned = kernel.owned_subsets(graph.N, graph.reverse, graph.low, graph.high)
    N = graph.numbers(graph.N[graph.low : graph.high])
    del graph  # before X of the neighbourhoods is read
    distances = metric_views.block_distances(context, N)
    arrays: dict[str, AnyArray] = {"blocks": distances, "owned": np.packbits(owned, axis=1)}
    facts = {"entries": kernel.count_entries(owned, N.shape[1])}
    if context.choices.operator == "triplets":
        ids = numbered_ids(context, N)
        rows, columns, values = kernel.triplets(distances, ids, owned, N.shape[1], params.sigma, params.epsilon)
        arrays |= {"indices_0": rows, "indices_1": columns, "values": values}
        facts["n_pairs_total"] = n_pairs(context)
    return arrays, facts


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store pairs, then blocks; returns their numbers. A decomposable tensor needs the pairs alone."""
    parts = range(context.n_partitions)
    if context.choices.vectors == "chunked":
        store_reverse_lists(context, executor, report)
    receipts = executor.map(Job("tensor", pairs, "pairs-"), context, parts, report)
    counts = [int(r["facts"]["n_pairs"]) for r in receipts]
    facts: dict[str, Any] = {"pair_offsets": [0, *np.cumsum(counts).tolist()], "nnz": None, "warnings": []}
    if context.params.tensor == "indecomposable":
        inner = dataclasses.replace(context, facts={**context.facts, "tensor": facts})
        receipts = executor.map(Job("tensor", blocks), inner, parts, report)
        # of the entries on and above the diagonal one a pair is on it
        facts["nnz"] = 2 * sum(int(r["facts"]["entries"]) for r in receipts) - sum(counts)
    return facts

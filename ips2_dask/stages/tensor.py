"""Stage 3: the active pairs, and each neighbourhood's block with the entries it owns; triplets where asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import tensor as kernel
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import block_operator, metric_views
from ips2_dask.stages.views import n_pairs, neighborhoods, numbered_ids
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context

VERSION = 1


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the graph."""
    own: dict[str, object] = {"n_neighbors": params.n_neighbors, "tensor": params.tensor}
    if params.tensor == "indecomposable" and choices.operator == "triplets":
        own |= {"sigma": params.sigma, "epsilon": params.epsilon}
    if choices.vectors == "chunked":
        own["chunk"] = choices.chunk_samples
    return own


def pairs(context: Context, b: int) -> TaskResult:
    """Active pairs whose first sample is in partition b."""
    N, reverse = neighborhoods(context, context.params.n_neighbors)
    owned = kernel.owned_pairs(N, reverse, *context.span(b))
    return {"pairs": owned}, {"n_pairs": len(owned)}


def blocks(context: Context, b: int) -> TaskResult:
    """Block distances and owned subsets of partition b's neighbourhoods; their triplets if asked."""
    params = context.params
    N, reverse = neighborhoods(context, params.n_neighbors)
    low, high = context.span(b)
    distances = metric_views.block_distances(context, N[low:high])
    owned = kernel.owned_subsets(N, reverse, low, high)
    arrays: dict[str, AnyArray] = {"blocks": distances, "owned": np.packbits(owned, axis=1)}
    facts = {"entries": kernel.count_entries(owned, N.shape[1])}
    if context.choices.operator == "triplets":
        ids = numbered_ids(context, N[low:high])
        rows, columns, values = kernel.triplets(distances, ids, owned, N.shape[1], params.sigma, params.epsilon)
        arrays |= {"indices_0": rows, "indices_1": columns, "values": values}
        facts["n_pairs_total"] = n_pairs(context)
    return arrays, facts


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store pairs, then blocks; returns their numbers. A decomposable tensor needs the pairs alone."""
    parts = range(context.n_partitions)
    receipts = executor.map(Job("tensor", pairs, "pairs-"), context, parts, report)
    counts = [int(r["facts"]["n_pairs"]) for r in receipts]
    facts: dict[str, Any] = {"pair_offsets": [0, *np.cumsum(counts).tolist()], "nnz": None, "warnings": []}
    if context.params.tensor == "indecomposable":
        inner = dataclasses.replace(context, facts={**context.facts, "tensor": facts})
        receipts = executor.map(Job("tensor", blocks), inner, parts, report)
        # of the entries on and above the diagonal one a pair is on it
        facts["nnz"] = 2 * sum(int(r["facts"]["entries"]) for r in receipts) - sum(counts)
        if context.choices.vectors == "chunked":
            inner = dataclasses.replace(context, facts={**context.facts, "tensor": facts})
            chunks = range(len(block_operator.chunk_partitions(inner)))
            job = Job("tensor", block_operator.prepare_operator, "chunk-", block_operator.CHUNK_KIND)
            block_operator.assign_chunk_owners(inner, executor)
            executor.map(job, inner, chunks, report)
    return facts

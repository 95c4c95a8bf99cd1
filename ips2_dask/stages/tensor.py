"""Stage 3: the active pairs, and each neighbourhood's block with the entries it owns; triplets where asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors import Executor, Job, Report
from ips2_dask.kernels import tensor as kernel
from ips2_dask.params import Params
from ips2_dask.storage.context import Context
from ips2_dask.storage.graph import neighborhoods

VERSION = 1


def depends_on(params: Params) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the graph."""
    own: dict[str, Any] = {"n_neighbors": params.n_neighbors, "tensor": params.tensor}
    if params.tensor == "indecomposable":
        own |= {"sigma": params.sigma, "epsilon": params.epsilon}
    return own


def pairs(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Active pairs whose first sample is in partition b."""
    N, reverse = neighborhoods(context, context.params.n_neighbors)
    found = kernel.owned_pairs(N, reverse, *context.span(b))
    return {"pairs": found}, {"n_pairs": len(found)}


def blocks(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Block distances, owned subsets and triplets of the neighbourhoods whose centre is in partition b."""
    params = context.params
    N, reverse = neighborhoods(context, params.n_neighbors)
    low, high = context.span(b)
    used, local = np.unique(N[low:high], return_inverse=True)
    X = np.asarray(context.rows_of("ingest", "samples", used))
    distances = kernel.block_distances(X, local.reshape(high - low, -1).astype(np.int32))
    owned = kernel.owned_subsets(N, reverse, low, high)
    ids = kernel.pair_ids(N, low, high, *_numbered_pairs(context, used))
    rows, columns, values = kernel.triplets(distances, ids, owned, N.shape[1], params.sigma, params.epsilon)
    arrays = {
        "blocks": distances,
        "owned": np.packbits(owned, axis=1),
        "indices_0": rows,
        "indices_1": columns,
        "values": values,
    }
    total = context.facts["tensor"]["pair_offsets"][-1]
    diagonal = int(np.count_nonzero(rows == columns))
    return arrays, {"n_pairs_total": total, "nnz": 2 * len(rows) - diagonal}


def _numbered_pairs(context: Context, used: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """The active pairs whose first sample is among the partitions of ``used``, and their global numbers."""
    offsets = context.facts["tensor"]["pair_offsets"]
    owners = np.unique(context.owner(used)).tolist()
    lists = [np.asarray(context.read("tensor", f"pairs-p{b:06d}", "pairs")) for b in owners]
    numbers = [np.arange(offsets[b], offsets[b + 1]) for b in owners]
    return np.concatenate(lists), np.concatenate(numbers)


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store pairs, then blocks; returns their numbers. A decomposable tensor needs the pairs alone."""
    parts = range(context.n_partitions)
    receipts = executor.map(Job("tensor", pairs, "pairs-"), context, parts, report)
    counts = [int(r["facts"]["n_pairs"]) for r in receipts]
    facts: dict[str, Any] = {"pair_offsets": [0, *np.cumsum(counts).tolist()], "nnz": None, "warnings": []}
    if context.params.tensor == "indecomposable":
        inner = dataclasses.replace(context, facts={**context.facts, "tensor": facts})
        receipts = executor.map(Job("tensor", blocks), inner, parts, report)
        facts["nnz"] = sum(int(r["facts"]["nnz"]) for r in receipts)
    return facts

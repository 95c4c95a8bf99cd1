"""Stage 6: the high-order similarity V from the eigenvectors, and U from S and V, on pairs or on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report, cuts, exchange, received
from ips2_dask.kernels import extension, similarity
from ips2_dask.kernels import fusion as kernel
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import metric_views
from ips2_dask.stages.similarity_views import bandwidth, dense_pairwise, heat_edges, keeps_all_pairs
from ips2_dask.stages.views import components_of, pair_vectors, solved_degrees, unit
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float64, Int32

VERSION = 4

PAIRS_AT_ONCE = 1 << 16
"""Pairs whose eigenvectors' entries are float64 at a time; V of a pair comes of its own alone."""

SHARES, SUMS = "shares-", "sums-"
"""Prefixes of the parts with each partition's share of the row sums, and with the sums of its samples.
"""


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the eigenvectors."""
    del choices
    names = ("affinity", "bandwidth", "high_order", "fusion", "fusion_weight", "method")
    return {**{name: getattr(params, name) for name in names}, "n_clusters": params.n_sought}


def high_order(context: Context, b: int, pairs: Int32) -> Float64:
    """V on the active pairs of partition b, not yet scaled."""
    rule = context.params.high_order
    whole = {name: context.read("eigen", "whole", name) for name in ("volumes", "sums")}
    diagonal = pairs[:, 0] == pairs[:, 1]
    root = np.sqrt(solved_degrees(context, pairs, np.asarray(context.read("assemble", b, "degrees")))) * unit(pairs)
    label = components_of(context, pairs[:, 0]).of_vectors
    trivial = kernel.trivial_values(root, whole["volumes"], label, context.params.n_sought)
    wanted = kernel.wanted_pairs(context.params.n_sought, len(whole["volumes"]))
    n_kept = kernel.with_ties(np.asarray(context.read("eigen", "whole", "values")), wanted)
    vectors = pair_vectors(context, b, pairs, root, n_kept)
    signs = kernel.column_signs(whole["sums"][:n_kept])
    values = np.empty(len(pairs))
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        some = slice(start, start + PAIRS_AT_ONCE)
        values[some] = kernel.high_order_values(vectors(some), trivial[some], diagonal[some], rule, signs)
    return np.where(root > 0, values, 0.0)  # pairs of islands keep entries of the solver's random start


def _decomposable_at(context: Context, pairs: Int32) -> Float64:
    """V of a decomposable tensor at given pairs, not yet scaled."""
    vectors = np.asarray(context.read("eigen", "whole", "sample_vectors"))
    chosen = np.asarray(context.read("eigen", "whole", "chosen"))
    return kernel.high_order_at(vectors, chosen, pairs[:, 0], pairs[:, 1], context.params.high_order)


def entries(context: Context, b: int) -> TaskResult:
    """S and unscaled V on one partition's pairs: active ones and edges of the pairwise graph, i <= j.

    Where they are normalised, V is that of the pairs of S, and of each sample with itself.

    With n eigenvectors outside eigenvalue 1 it takes 55 + 20 n bytes an entry; in chunked runs 55 + 4 n, and 16 n for
    each of `PAIRS_AT_ONCE` pairs; or what `heat_edges` takes (measured).
    """
    pairs = np.asarray(context.read("tensor", "pairs-" + part_name(b), "pairs"))
    folded = context.params.tensor == "decomposable"
    if context.params.affinity == "gaussian":
        joined, S = pairs, similarity.heat(metric_views.pair_lengths(context, pairs), bandwidth(context))
        V = _decomposable_at(context, pairs) if folded else high_order(context, b, pairs)
    else:
        edges, weights = heat_edges(context, *context.span(b))
        V = np.zeros(len(pairs)) if folded else high_order(context, b, pairs)
        joined, S, V = kernel.merge_entries((edges, weights), (pairs, V))
        V = _decomposable_at(context, joined) if folded else V
    largest = float(np.abs(V).max(initial=0.0))
    if context.params.affinity != "gaussian" and extension.is_normalized(context.params.fusion, context.params.method):
        kept = kernel.among(joined, edges) | (joined[:, 0] == joined[:, 1])
        joined, S, V = joined[kept], S[kept], V[kept]
    facts = {"largest": largest, "n_entries": len(joined)}
    return {"entries": joined, "pairwise": S, "high_order": V}, facts


def shares(context: Context, b: int) -> TaskResult:
    """This partition's share of the row sums of S and V, to be sent to whose samples these are, each in two halves.

    Halves add up without rounding, in any order: (samples, 2, 2), of the samples that it has entries of.
    """
    joined = np.asarray(context.read("fuse", b, "entries"))
    touched, local = np.unique(joined, return_inverse=True)
    i, j = local.reshape(joined.shape).T
    sums = np.zeros((2, 2, len(touched)))
    off = i != j
    for row, (name, scale) in enumerate((("pairwise", 1.0), ("high_order", context.facts["fuse"]["largest"]))):
        halves = kernel.exact_halves(np.asarray(context.read("fuse", b, name)) / scale)
        for half, values in enumerate(halves):
            sums[row, half] = np.bincount(i, values, len(touched))
            sums[row, half] += np.bincount(j[off], values[off], len(touched))
    arrays: dict[str, AnyArray] = {
        "touched": touched.astype(np.int32),
        "halves": np.ascontiguousarray(np.moveaxis(sums, 2, 0)),
    }
    return arrays, cuts(context, touched)


def row_sums(context: Context, b: int) -> TaskResult:
    """The row sums of S and V of partition b's samples, from what all partitions have sent."""
    low, high = context.span(b)
    total = np.zeros((high - low, 2, 2))
    for touched, halves in received(context, "fuse", SHARES, b, "touched", "halves"):
        total[touched - low] += halves
    return {"row_sums": total.sum(axis=2)}, {}


def fused(context: Context, b: int) -> TaskResult:
    """U on one partition's pairs.

    It takes 40 bytes an entry, and where S and V are normalised, as the shares of their row sums do, 92 (measured).
    """
    V = np.asarray(context.read("fuse", b, "high_order")) / context.facts["fuse"]["largest"]
    S = np.asarray(context.read("fuse", b, "pairwise"))

    def sums() -> tuple[Float64, Int32, Int32]:
        entries = np.asarray(context.read("fuse", b, "entries"))
        samples, place = np.unique(entries, return_inverse=True)
        i, j = place.reshape(entries.shape).astype(np.int32).T
        return context.rows_of("fuse", "row_sums", samples, SUMS).T, i, j

    return {"fused": _fused(context.params, S, V, sums)}, {}


def _fused(params: Params, S: Float64, V: Float64, sums: Callable[[], tuple[Any, Any, Any]]) -> Float64:
    """U from S and V. ``sums`` gives row sums of both, (2, samples), and indices of a value's row and column there."""
    if params.method == "ppc":
        return V
    if params.fusion == "normalized":
        of_both, i, j = sums()
        s, v = (inverse_root(np.maximum(row, 0.0)) for row in of_both)
        S, V = S * s[i] * s[j], V * v[i] * v[j]
    return kernel.fuse(S, V, params.fusion_weight)


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store S, V and U; returns V's scale and the number of stored entries."""
    if keeps_all_pairs(context):
        return _dense(context, report)
    parts = range(context.n_partitions)
    receipts = executor.map(Job("fuse", entries), context, parts, report)
    facts: dict[str, Any] = {
        "dense": False,
        "largest": max(r["facts"]["largest"] for r in receipts) or 1.0,
        "n_entries": sum(r["facts"]["n_entries"] for r in receipts),
        "warnings": [],
    }
    inner = dataclasses.replace(context, facts={**context.facts, "fuse": facts})
    if extension.is_normalized(context.params.fusion, context.params.method):
        exchange(inner, executor, report, Job("fuse", shares, SHARES), Job("fuse", row_sums, SUMS))
    executor.map(Job("fuse", fused, "fused-"), inner, parts, report)
    inner.store.drop_many(inner.folders["fuse"], [SUMS + part_name(b) for b in parts])
    return facts


def _dense(context: Context, report: Report) -> dict[str, Any]:
    """S, V and U for all pairs, in this process."""
    params, m = context.params, context.m
    S = dense_pairwise(context).astype(np.float64)
    V = np.zeros((m, m))
    if params.tensor == "decomposable":
        i, j = np.indices((m, m)).reshape(2, -1)
        V[i, j] = _decomposable_at(context, np.stack([i, j], axis=1))
    else:
        for b in range(context.n_partitions):
            pairs = np.asarray(context.read("tensor", "pairs-" + part_name(b), "pairs"))
            V[pairs[:, 0], pairs[:, 1]] = V[pairs[:, 1], pairs[:, 0]] = high_order(context, b, pairs)
    largest = float(np.abs(V).max()) or 1.0
    V /= largest
    if extension.is_normalized(params.fusion, params.method):
        V[(S == 0) & ~np.eye(m, dtype=bool)] = 0.0
    every = slice(None)
    U = _fused(params, S, V, lambda: ([M.sum(axis=1) for M in (S, V)], (every, None), every))
    for b in range(context.n_partitions):
        low, high = context.span(b)
        arrays = {"pairwise": S[low:high], "high_order": V[low:high], "fused": U[low:high]}
        context.store.write(context.folders["fuse"], part_name(b), arrays, {})
        report(b + 1, context.n_partitions)
    return {"dense": True, "largest": largest, "n_entries": m * m, "warnings": []}

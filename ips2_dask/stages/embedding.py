"""The spectral embedding of the fused similarity, by partition, and what places new samples in it.

U's components are found by contraction and its eigenvectors are solved for by chunk. The stages label and the choice of
the number of clusters have one each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import extension, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.components import MIN_SHARE
from ips2_dask.kernels.sparse import Matrix, distinct, inverse_root, places
from ips2_dask.stages import chunks, fused_rows, islands, label_parts, sample_space
from ips2_dask.stages.component_labels import COMPONENTS, label_components
from ips2_dask.stages.label_parts import DEGREES, DIVISION, EMBEDDING, FOLLOWED, VECTORS
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float64, Int64

SOLVED, FACTORS = "solved", "factors-"
"""The part with what is told of the solve, and the prefix of each sample's factor in a normalised S."""


def divide(
    context: Context, executor: Executor, report: Report, share: float, most: int | None, asked: dict[str, Any]
) -> Receipt:
    """Store which components of U take part in the solve, and what is ``asked`` of it; returns the part's receipt.

    ``share``, ``most``: as of `kernels.components.divide_sizes`; more large components than ``most`` are joined;
    ``asked``: ``wanted``, ``columns``, ``tol`` and ``settled``, see `label_parts.DIVISION`.
    """
    sizes = label_components(context, executor, report, "label", label_parts.fused_edges)
    stored = context.receipt("label", DIVISION)
    if stored is not None:
        return stored
    limit = len(sizes) if most is None else most
    if context.facts["fuse"]["dense"]:  # all of its components take part
        share, limit = 0.0, len(sizes)
    division, extra, weights = islands.connected(context, executor, report, sizes, share, limit)
    rows = np.bincount(division.rank, sizes, division.total).astype(np.int64)
    n_inside = min(int(rows[: division.large].sum()), context.m)
    facts = {
        **asked,
        "columns": min(asked["columns"], n_inside),
        "wanted": min(asked["wanted"], n_inside),
        "u_components": len(sizes),
        "large": division.large,
        "total": division.total,
    }
    arrays: dict[str, AnyArray] = {"rank": division.rank, "sizes": rows, "extra": extra, "extra_weights": weights}
    return context.store.write(context.folders["label"], DIVISION, arrays, facts)


def solve(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvectors and degrees of the divided U by piece; returns what is told of the solve."""
    receipt = context.receipt("label", SOLVED)
    if receipt is None or not label_parts.is_stored(context, chunks.parts(context, VECTORS, DEGREES)):
        solved = sample_space.solve_fused(context, executor, report)
        context.store.drop(context.folders["label"], SOLVED)
        receipt = context.store.write(context.folders["label"], SOLVED, {}, solved)
    return dict(receipt["facts"])


def embed(context: Context, executor: Executor, report: Report, most: int | None = None) -> dict[str, Any]:
    """Store the embedding by partition; returns its components, residual and warnings.

    Samples of islands take no part in the solve: each gets the row of the sample whose label it takes. What places
    new samples in the embedding is stored with it. Components are joined to at most ``most``, by default c.
    """
    params, store, folder = context.params, context.store, context.folders["label"]
    tol, settled = kernel.solve_limits(params.tol)
    c = params.n_sought
    asked = {"wanted": c, "columns": params.n_embedded, "tol": tol, "settled": settled}
    divided = divide(context, executor, report, MIN_SHARE, most or c, asked)["facts"]
    embedded = context.receipt("label", "embedding")
    if embedded is not None and label_parts.is_complete(context, [EMBEDDING]):
        return dict(embedded["facts"])
    facts: dict[str, Any] = {"u_components": divided["u_components"], "large": divided["large"]}
    warnings = []
    if divided["total"] > divided["large"]:
        rows = store.read(folder, DIVISION, "sizes")[divided["large"] :]
        facts["islands"] = {"fused": len(rows), "rows": int(rows.sum()), "largest": int(rows.max())}
        warnings.append(islands.warning_of(facts))
        _follow(context, executor, report)
    solved = solve(context, executor, report)
    parts = range(context.n_partitions)
    if extension.is_normalized(params.fusion, params.method):
        executor.map(Job("label", factors, FACTORS), context, parts, report)
    executor.map(Job("label", embedding, EMBEDDING), context, parts, report)
    facts |= {
        "embedding_products": solved["products"],
        "embedding_residual": max([0.0, *solved["residuals"]]),
        "embedding_stop": solved["stop"],
        "warnings": warnings,
    }
    store.drop(folder, "embedding")  # of which a partition was lost
    store.write(folder, "embedding", {"u_values": np.array(solved["values"])}, facts)
    label_parts.drop(context, chunks.parts(context, VECTORS, DEGREES))
    label_parts.drop_by_partition(context, FACTORS)
    return facts


def _follow(context: Context, executor: Executor, report: Report) -> None:
    """Store the sample whose label each island takes: the nearest one outside to its central sample."""
    if context.receipt("label", FOLLOWED) is not None:
        return
    division = label_parts.division_of(context)
    place = np.where(division.rank >= division.large, division.rank - division.large, -1).astype(np.int64)
    inside = division.rank < division.large
    found = islands.followed(context, executor, report, place, inside)
    context.store.write(context.folders["label"], FOLLOWED, {"followed": found}, {})


def factors(context: Context, b: int) -> TaskResult:
    """Each sample's own factor in the normalised S: 1 / sqrt(row sum), 0 where that is not above zero."""
    sums = np.asarray(_pairwise_rows(context, b)[0].sum(axis=1)).ravel()
    return {"factors": np.divide(1.0, np.sqrt(np.abs(sums)), out=np.zeros(len(sums)), where=sums > 0)}, {}


def embedding(context: Context, b: int) -> TaskResult:
    """The embedding of partition b, and its part of the basis of new samples; see `kernels.extension.basis`.

    U B follows from the eigenvectors: U D^-1/2 Y / lambda = D^1/2 Y, up to their residuals.
    """
    params, (low, high) = context.params, context.span(b)
    divided, solved = context.receipt("label", DIVISION), context.receipt("label", SOLVED)
    assert divided is not None
    assert solved is not None
    values = np.asarray(solved["facts"]["values"])
    weights = rounding.commute_weights(values, int(divided["facts"]["large"]), params.n_sought)
    inverse = extension.inverse_values(values)

    def vectors(samples: NDArray[np.integer]) -> Float64:
        return np.asarray(chunks.rows_at(context, "label", "vectors", samples, VECTORS), np.float64)

    def bases(samples: NDArray[np.integer]) -> Float64:
        """B at ascending samples, times the weight of each."""
        degrees = fused_rows.degrees(context, samples)
        B = vectors(samples) * inverse_root(degrees)[:, None] * (inverse * weights)
        own = label_parts.weights_at(context, samples)
        return B if own is None else B * own[:, None]

    own = np.arange(low, high)
    arrays: dict[str, AnyArray] = {}
    follows = label_parts.followed_at(context, b)
    used, place = np.unique(follows, return_inverse=True)
    arrays["embedding"] = kernel.normalize_rows(vectors(used) * weights)[place].astype(np.float32)
    degrees = fused_rows.degrees(context, own)
    UB = vectors(own) * np.sqrt(degrees)[:, None] * (values * inverse * weights)
    row_weights = label_parts.weights_at(context, own)
    if row_weights is not None:  # a new sample is one row: its edges count as much as those of its neighbours' rows
        UB /= row_weights[:, None]
    for i, j, weight in _extra_of(context, low, high):  # U has no such edges: the solve alone had
        both = label_parts.weights_at(context, np.array([i, j]))
        UB[i - low] -= weight * bases(np.array([j]))[0] / (1.0 if both is None else float(both.prod()))
    if params.method == "ppc":
        pairwise, high_order = np.zeros(UB.shape), UB
    else:
        S, touched = _pairwise_rows(context, b)
        normalized = extension.is_normalized(params.fusion, params.method)
        factor = context.rows_of("label", "factors", touched, FACTORS) if normalized else np.ones(len(touched))
        mine = (1.0 - params.fusion_weight) * np.asarray(factor)[:, None] * bases(touched)
        at_own = np.searchsorted(touched, own)
        pairwise, high_order = mine[at_own], UB - np.asarray(factor)[at_own, None] * (S @ mine)
    arrays |= {"pairwise_basis": pairwise.astype(np.float32), "high_order_basis": high_order.astype(np.float32)}
    if divided["facts"]["u_components"] > 1:
        arrays["component"] = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    if divided["facts"]["total"] > divided["facts"]["large"]:
        arrays["follows"] = follows.astype(np.int32)
    return arrays, {}


def _pairwise_rows(context: Context, b: int) -> tuple[Matrix, Int64]:
    """S of partition b's samples, (rows, touched), columns ascending, and the samples touched, its own among them."""
    low, high = context.span(b)
    if context.facts["fuse"]["dense"]:
        return np.asarray(context.read("fuse", b, "pairwise")), np.arange(context.m)
    parts = (label_parts.pairwise_entries(context, other) for other in label_parts.sources_of(context, b))
    rows, columns, values = label_parts.row_entries(low, high, parts)
    touched = distinct(np.concatenate([columns, np.arange(low, high)]))
    S = sp.coo_array((values, (rows, places(touched, columns))), shape=(high - low, len(touched))).tocsr()
    S.sort_indices()
    return sp.csr_array(S), touched.astype(np.int64, copy=False)


def _extra_of(context: Context, low: int, high: int) -> list[tuple[int, int, float]]:
    """The edges that join components, as (i, j, weight) with i in low .. high - 1, from either side."""
    edges, weights = label_parts.extra_edges(context)
    both = np.concatenate([edges, edges[:, ::-1]])
    own = (both[:, 0] >= low) & (both[:, 0] < high)
    return [(int(i), int(j), float(w)) for (i, j), w in zip(both[own], np.tile(weights, 2)[own], strict=True)]

"""The spectral embedding of the fused similarity, by partition, and what places new samples in it.

U's components are found by contraction and its eigenvectors are solved for by chunk. The stages label and the choice of
the number of clusters have one each.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import eigen, extension, levels, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.components import MIN_SHARE
from ips2_dask.kernels.eigen import Known
from ips2_dask.kernels.sparse import Matrix, inverse_root
from ips2_dask.stages import chunks, islands, label_parts
from ips2_dask.stages.chunk_levels import CoarseChunk, chunk_of_rows, nodes_of, open_graph, stacked
from ips2_dask.stages.component_labels import COMPONENTS, label_components
from ips2_dask.stages.label_parts import DEGREES, DIVISION, EMBEDDING, FOLLOWED, VECTORS
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float32, Float64

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
    if embedded is not None and label_parts.is_stored(context, label_parts.by_partition(context, EMBEDDING)):
        return dict(embedded["facts"])
    facts: dict[str, Any] = {"u_components": divided["u_components"], "large": divided["large"]}
    warnings = []
    if divided["total"] > divided["large"]:
        rows = store.read(folder, DIVISION, "sizes")[divided["large"] :]
        facts["islands"] = {"fused": len(rows), "rows": int(rows.sum()), "largest": int(rows.max())}
        warnings.append(
            f"the fused similarity falls into {divided['u_components']} components, {len(rows)} of them too small for "
            f"a cluster: their {rows.sum()} rows, at most {rows.max()} in one, have the label of the nearest sample of "
            "the others"
        )
        _follow(context, executor, report)
    solved = solve(context, executor, report)
    parts = range(context.n_partitions)
    if extension.is_normalized(params.fusion, params.method):
        executor.map(Job("label", _factors, FACTORS), context, parts, report)
    executor.map(Job("label", embedding, EMBEDDING), context, parts, report)
    facts |= {
        "embedding_products": solved["products"],
        "embedding_residual": max([0.0, *solved["residuals"]]),
        "embedding_stop": solved["stop"],
        "warnings": warnings,
    }
    store.drop(folder, "embedding")  # of which a partition was lost
    store.write(folder, "embedding", {"u_values": np.array(solved["values"])}, facts)
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


def _factors(context: Context, b: int) -> TaskResult:
    """Each sample's own factor in the normalised S."""
    sums = np.asarray(_pairwise_rows(context, b)[0].sum(axis=1)).ravel()
    return {"factors": extension.pairwise_factors(sums)}, {}


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
        degrees = label_parts.fused_degrees(context, samples)
        B = vectors(samples) * inverse_root(degrees)[:, None] * (inverse * weights)
        own = label_parts.weights_at(context, samples)
        return B if own is None else B * own[:, None]

    own = np.arange(low, high)
    arrays: dict[str, AnyArray] = {}
    follows = label_parts.followed_at(context, b)
    used, place = np.unique(follows, return_inverse=True)
    arrays["embedding"] = kernel.normalize_rows(vectors(used) * weights)[place].astype(np.float32)
    degrees = label_parts.fused_degrees(context, own)
    UB = vectors(own) * np.sqrt(degrees)[:, None] * (values * inverse * weights)
    row_weights = label_parts.weights_at(context, own)
    if row_weights is not None:  # a new sample is one row: its edges count as much as those of its neighbours' rows
        UB /= row_weights[:, None]
    for edge, weight in zip(*label_parts.extra_edges_at(context, low, high), strict=True):  # the solve alone had these
        both = label_parts.weights_at(context, edge)
        UB[edge[0] - low] -= weight * bases(edge[1:])[0] / (1.0 if both is None else float(both.prod()))
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


def _pairwise_rows(context: Context, b: int) -> tuple[Matrix, NDArray[np.integer]]:
    """S of partition b's samples, (rows, touched), columns ascending, and the samples touched, its own among them."""
    low, high = context.span(b)
    if context.facts["fuse"]["dense"]:
        return np.asarray(context.read("fuse", b, "pairwise")), np.arange(context.m)
    parts = (label_parts.pairwise_entries(context, other) for other in label_parts.sources_of(context, b))
    return label_parts.symmetric_rows(low, high, parts)


# ---- the solve


def fused_chunk(context: Context, g: int) -> CoarseChunk:
    """The stored rows of chunk g of U as it is embedded."""
    bounds, among = chunks.sample_bounds(context), label_parts.fused_touched(context, g)
    own = np.arange(*bounds[g : g + 2])
    divided = label_parts.fused_components(context, own)
    nodes = nodes_of(context, g, label_parts.fused_degrees(context, own), divided.of_vectors)
    return chunk_of_rows(label_parts.fused_rows(context, g), among, nodes, bounds, g)


def _store_embedded_rows(context: Context, g: int, known: Known, y: Float32, columns: int) -> dict[str, Receipt]:
    """Store chunk g's rows of so many leading eigenvectors of U by piece: component vectors, then the solver's.

    Returns the receipts of the parts, by name.
    """
    vectors = np.concatenate([known.leading(columns, np.float32), y], axis=1)[:, :columns]
    return chunks.write_rows(context, g, "label", label_parts.VECTORS, "vectors", vectors)


def solve(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvectors and degrees of U by piece, for what the part `label_parts.DIVISION` asks for.

    Returns ``values`` of all columns, those of the components first; ``products``, ``residuals`` of the wanted ones;
    ``stop``, the measure that ended the solve; ``verdict``.
    """
    receipt, store, folder = context.receipt("label", SOLVED), context.store, context.folders["label"]
    if receipt is not None and label_parts.is_stored(context, chunks.parts(context, VECTORS, DEGREES)):
        return dict(receipt["facts"])
    asked = context.finished("label", DIVISION)["facts"]
    columns, count = asked["columns"], asked["large"]
    label_parts.store_fused_rows(context, executor, report)
    more, wanted = max(0, columns - count), max(0, min(asked["wanted"], columns) - count)
    solution = _solved(context, chunks.of_chunks(context, executor), columns, max(wanted, more), wanted, asked)
    values = np.concatenate([np.ones(min(count, columns)), solution.values])[:columns]
    solution.residuals = solution.residuals[:wanted]
    solved = {
        "values": values.tolist(),
        "products": solution.products,
        "residuals": solution.residuals.tolist(),
        "stop": eigen.stop_of(solution, wanted, kernel.EMBEDDING_TOL, asked["settled"])._asdict(),
        "verdict": solution.verdict.name,
    }
    store.drop(folder, SOLVED)
    return dict(store.write(folder, SOLVED, {}, solved)["facts"])


def _solved(
    context: Context, executor: Executor, columns: int, most: int, wanted: int, asked: dict[str, Any]
) -> eigen.Solution:
    """The solution outside the components' eigenvectors, whose rows are stored; in this process where U is small."""
    seed, width = context.params.random_state, eigen.block_width(most)
    if most == 0 or context.m <= levels.COARSEST or context.facts["fuse"]["dense"]:
        return _solved_here(context, columns, asked)
    stored = chunks.StoredBlocks(context, "label", executor)
    graph = open_graph(context, executor, "fused", fused_chunk, asked["large"], stored)
    states = chunks.Checkpoints(context, "label", stored)
    state, found = states.latest(), None
    ends: dict[str, Any] = {"tol": asked["tol"], "settled": asked["settled"], "seed": seed, "checkpoint": states.keep}
    if state is None and asked["settled"] is not None:
        found = levels.start(graph, width, max(wanted, 1), seed)
    if state is None and found is None:
        first = functools.partial(graph.space.random, width, seed)
        solution = eigen.leading_eigenpairs(graph.space, max(wanted, 1), first, **ends)
    else:
        solution = levels.leading(graph.space, found, wanted, state=state, **ends)
    written = graph.for_each(_store_embedded_rows, solution.vectors, context, columns, of=graph.known)
    context.cache_receipts("label", written)
    graph.drop_renewed(stored)
    states.drop()  # the rows of U stay, for walks
    solution.values = solution.values[:most]
    return solution


def _solved_here(context: Context, columns: int, asked: dict[str, Any]) -> eigen.Solution:
    """Solve for the eigenvectors of a small or dense U as a whole, and store their rows by piece."""
    inside = np.flatnonzero(label_parts.fused_components(context, np.arange(context.m)).inside)
    if context.facts["fuse"]["dense"]:
        U: Matrix = read_affinity(context)
    else:
        numbers = range(chunks.n_chunks(context))
        U = stacked((label_parts.fused_rows(context, g), label_parts.fused_touched(context, g)) for g in numbers)
    eigenpairs = kernel.spectrum(
        U if len(inside) == context.m else sp.csr_array(sp.csr_array(U)[inside][:, inside]),
        asked["wanted"],
        asked["tol"],
        context.params.random_state,
        columns=columns,
        settled=asked["settled"],
    )
    vectors = np.zeros((context.m, eigenpairs.vectors.shape[1]), np.float32)
    vectors[inside] = eigenpairs.vectors
    for g, (low, high) in enumerate(itertools.pairwise(chunks.sample_bounds(context))):
        chunks.write_rows(context, g, "label", label_parts.VECTORS, "vectors", vectors[low:high])
    return eigenpairs.solution

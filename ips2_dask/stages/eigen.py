"""Stage 5: Ritz pairs of the pair Laplacian from the sample graph, eigenpairs where asked for, or those of L kron L.

Labels need no solve on pairs: without a tolerance the Ritz vectors in the span of the sample graph's eigenvectors are
stored, as rows of samples and a rotation. With one, and for few samples, eigenpairs are solved for in this process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import eigen as kernel
from ips2_dask.kernels import levels, ritz
from ips2_dask.kernels.fusion import leading_products, solved_pairs, with_ties
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.sparse import Matrix, assemble, distinct, inverse_root, normalized, places
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import chunks
from ips2_dask.stages.chunk_levels import CoarseChunk, Nodes, chunk_of_rows, nodes_of, open_graph
from ips2_dask.stages.near import lists_of, reverse_at
from ips2_dask.stages.similarity_views import dense_pairwise, heat_edges, keeps_all_pairs
from ips2_dask.stages.views import (
    assembled_operator,
    component_division,
    components_of,
    degrees_at,
    graph_rows,
    known_vectors,
    near_pairs,
    neighborhood_operator,
    read_pairs,
    restricted_tensor,
    solved_degrees,
    unit,
)
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.cache import free_pinned
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float, Float32, Float64

VERSION = 8


FLOAT32_TOL = 1e-5
"""Below this tolerance the block vectors are float64: float32 rounds residuals of about 1e-6."""

SETTLED = 2.0
"""Change of the wanted gaps by a filter at which the pairs' eigenvectors are exact enough for labels, where they are
solved for and no tolerance is asked for: the next filter changes them by some 5 % of it (.0 to .18 on the open sets).

Chosen with that of the embedding by ``ips2 bench roundings``, against residuals of 1e-3."""

LARGEST_RESIDUAL = 2.0
"""No residual of a Ritz vector is larger: its operator's spectrum is within -1 and 1. Labels ask for no smaller one."""

RANGE = 1 << 14
MAX_RANGES = 2_000
"""Samples whose pairs are summed at a time, and most tasks of such sums: they follow the number of samples alone, so
that sums have the same bits for any partitions."""

SUMS = "sums-"
"""Prefix of the parts with each range's sums, which are dropped at the end."""

DECOMPOSABLE_TOL = 1e-3
"""Largest residual of the eigenvectors of L of a decomposable tensor, where no tolerance is asked for."""


def _aim(params: Params) -> tuple[float, float | None]:
    """The largest residual that is asked for, and the change of the gaps that also ends a solve (None with ``tol``)."""
    return (FLOAT32_TOL, SETTLED) if params.tol is None else (params.tol, None)


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the Laplacian."""
    own: dict[str, object] = {"n_clusters": choices.n_solved(params), "tol": params.tol, "seed": params.random_state}
    own |= {"assembled": choices.assembled, "exact": choices.exact}
    if choices.shared:
        own["shared"] = True  # enough of them for smaller numbers of clusters too
    if params.tensor == "decomposable":
        own |= {"affinity": params.affinity, "bandwidth": params.bandwidth}
    return own


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvalues and eigenvectors; returns the solve's verdict, products, gap and warnings."""
    report(0, 1)
    facts = _finished(context)
    if facts is None and context.params.tensor == "decomposable":
        facts = _decomposable(context)
    elif facts is None and context.choices.exact:
        facts = _exact(context, executor, report)
    elif facts is None:
        facts = _ritz(context, executor, report)
    chunks.Checkpoints(context, "eigen").drop()
    report(1, 1)
    return facts


def _finished(context: Context) -> dict[str, Any] | None:
    """The facts of a stage all of whose parts are stored: a run that was stopped just before the stage ended."""
    receipt = context.receipt("eigen", "whole")
    folded = context.params.tensor == "decomposable"
    names: list[str] = []
    if receipt is not None and not folded:
        by_pairs = [part_name(b) for b in range(context.n_partitions)]
        names = by_pairs if context.choices.exact else chunks.parts(context, chunks.START)
    complete = len(context.store.receipts(context.folders["eigen"], names)) == len(names)
    return receipt["facts"] if receipt is not None and complete and receipt["facts"] else None


def _exact(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Solve with NumPy blocks in this process, by LAPACK where that is small."""
    params = context.params
    pairs = read_pairs(context)
    count = component_division(context).large
    degrees = solved_degrees(context, pairs, context.read_all("assemble", "degrees"))
    root = np.sqrt(degrees) * unit(pairs)
    component_vectors = known_vectors(context, pairs, degrees)
    tol, settled = _aim(params)
    dtype = np.float32 if tol >= FLOAT32_TOL else np.float64
    operator: MatrixOperator | NeighborhoodOperator
    if context.choices.operator == "triplets":
        operator = MatrixOperator(normalized(restricted_tensor(context), degrees, dtype))
    elif context.choices.assembled and dtype is np.float32:
        operator = MatrixOperator(assembled_operator(context, degrees))
    else:
        operator = neighborhood_operator(context, dtype)
        operator.normalize(degrees)
    del degrees
    wanted = solved_pairs(context.choices.n_solved(params), bool(context.choices.shared), count)
    width = kernel.block_width(wanted)
    if len(pairs) <= kernel.DENSE_BELOW or len(pairs) < 4 * width + count:
        solution = kernel.dense_eigenpairs(operator, component_vectors, wanted + 8)
    else:
        panels = kernel.panels_of(len(pairs), width, dtype)
        space = kernel.ArraySpace(operator, component_vectors, dtype, panels)
        checkpoints = chunks.Checkpoints(context, "eigen")

        def start() -> Float:
            _store_start(context, executor, width)
            w = graph_rows(context, np.arange(context.m))
            context.store.drop_many(context.folders["eigen"], chunks.parts(context, chunks.START))
            if panels > 1:
                free_pinned()  # the graph stood in this process for the start alone
            y = space.random(width, params.random_state)
            ritz.start_rows(w, pairs, root, y[:, : w.shape[1]])
            return y

        def watch(entry: dict[str, float]) -> None:
            report.note(dict(entry) if params.tol is None else {**entry, "tol": params.tol})

        solution = kernel.leading_eigenpairs(
            space,
            wanted,
            start,
            tol=tol,
            settled=settled,
            seed=params.random_state,
            state=checkpoints.latest(),
            checkpoint=checkpoints.keep,
            watch=watch,
        )
    vectors = np.ascontiguousarray(solution.vectors[:, : with_ties(solution.values, wanted)])
    offsets = context.facts["tensor"]["pair_offsets"]
    for b in range(context.n_partitions):
        part = {"vectors": vectors[offsets[b] : offsets[b + 1]]}
        context.store.write(context.folders["eigen"], part_name(b), part, {})
    stop, warnings = kernel.stop_of(solution, wanted, tol, settled), []
    if solution.verdict not in (kernel.Verdict.CONVERGED, kernel.Verdict.SETTLED):
        limit = f"{stop.wanted:g}" if params.tol is None else f"tol {stop.wanted:g}"
        warnings.append(f"eigenpairs: {stop.measure} {stop.found:.2g} above {limit}: {solution.verdict.value}")
    solved = {
        "products": solution.products,
        "verdict": solution.verdict.name.lower(),
        "history": solution.history,
        "stop": stop._asdict(),
    }
    whole = {"volumes": component_vectors.volume, "sums": _sums(unit(pairs), vectors)}
    return _store_whole(context, solution.values, solution.residuals, wanted, whole, solved, warnings)


def _sums(weights: Float64, vectors: Float) -> Float64:
    """weights' vectors in float64, without a copy of all of them."""
    step = 1 << 18
    return np.sum(
        [weights[a : a + step] @ vectors[a : a + step].astype(np.float64) for a in range(0, len(weights), step)], axis=0
    )


# ---- the sample graph, whose eigenvectors a solve begins at and Ritz pairs are in the span of


def graph_chunk(context: Context, g: int) -> CoarseChunk:
    """The rows of chunk g of the symmetric neighbour graph: 1 where i is in the list of j, or j in that of i."""
    bounds = chunks.sample_bounds(context)
    low, high = bounds[g : g + 2]
    own, k = np.arange(low, high), context.params.n_neighbors
    lists, (start, centers) = lists_of(context, own, k), reverse_at(context, own, k)
    i = np.concatenate([np.repeat(own, lists.shape[1]), np.repeat(own, np.diff(start))])
    keys = distinct(i * context.m + np.concatenate([lists.ravel(), centers]))
    i, j = keys // context.m, keys % context.m
    among = distinct(j)  # a sample is in its own list, so that all rows are among them
    indptr = np.searchsorted(i, np.arange(low, high + 1)).astype(np.int32)
    indices = np.searchsorted(among, j).astype(np.int32)
    matrix = sp.csr_array((np.ones(len(j), np.float32), indices, indptr), shape=(high - low, len(among)))
    divided = components_of(context, own)
    degrees = np.where(divided.inside, np.diff(indptr), 0).astype(np.float64)  # of islands, which take no part
    return chunk_of_rows(matrix, among, nodes_of(context, g, degrees, divided.of_vectors), bounds, g)


def store_start_rows(context: Context, g: int, nodes: Nodes, y: Float32, columns: int) -> dict[str, Receipt]:
    """Store w = D^-1/2 u of chunk g's eigenvectors u (n_g, width) by piece, as (rows, columns) float32.

    Returns the receipts of the parts.
    """
    w = np.asarray(y[:, :columns] * inverse_root(nodes.degrees)[:, None], np.float32)
    return chunks.write_rows(context, g, "eigen", chunks.START, "start", w)


def _store_start(context: Context, executor: Executor, columns: int) -> None:
    """Store w, the sample graph's leading eigenvectors times D^-1/2, by piece. Parts that are stored already stay."""
    executor = chunks.of_chunks(context, executor)
    names = chunks.parts(context, chunks.START)
    if len(present(context.store, context.folders["eigen"], names)) == len(names):
        return
    seed = context.params.random_state
    stored = chunks.StoredBlocks(context, "eigen", executor)
    graph = open_graph(context, executor, "graph", graph_chunk, component_division(context).large, stored)
    found, wanted = levels.start(graph, columns, columns * 2 // 3, seed), columns * 2 // 3
    y = graph.solved(columns, wanted, seed)[0] if found is None else found.y
    written = graph.for_each(store_start_rows, y, context, columns)
    context.cache_receipts("eigen", written)
    graph.drop_renewed(stored)


# ---- Ritz pairs in the span of the sample graph's eigenvectors


def _ranges(context: Context) -> list[tuple[int, int]]:
    """The samples of each range."""
    rows = RANGE * -(-context.m // (RANGE * MAX_RANGES))
    return [(low, min(low + rows, context.m)) for low in range(0, context.m, rows)]


def _pair_sums(context: Context, r: int) -> TaskResult:
    """What the pairs of a range add to the sums that Ritz pairs are made of."""
    low, high = _ranges(context)[r]
    parts = [_sums_of(context, a, min(a + RANGE, high)) for a in range(low, high, RANGE)]
    total = parts[0]
    if len(parts) > 1:
        whole = ritz.Total(len(total.linear), component_division(context).large)
        for part in parts:
            whole.add(part)
        total = whole.sums()
    return dict(zip(ritz.Sums._fields, total, strict=True)), {}


def _sums_of(context: Context, low: int, high: int) -> ritz.Sums:
    near = near_pairs(context, low, high)
    pairs = near.pairs
    degrees = degrees_at(context, near.touched, pairs)
    samples = distinct(pairs)
    w = graph_rows(context, samples)
    label = components_of(context, pairs[near.own, 0]).of_vectors
    return ritz.sums(
        near.operator, w, places(samples, pairs), unit(pairs), degrees, label, component_division(context).large
    )


def _ritz(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the sample graph's vectors by partition, and the Ritz pairs of the pairs in their span."""
    params, count = context.params, component_division(context).large
    wanted = solved_pairs(context.choices.n_solved(params), bool(context.choices.shared), count)
    width = kernel.block_width(wanted)
    _store_start(context, executor, width)
    ranges = range(len(_ranges(context)))
    executor.map(Job("eigen", _pair_sums, SUMS, "ranges"), context, ranges, report)
    total, parts = ritz.Total(width, count), [SUMS + part_name(r) for r in ranges]
    folder = context.folders["eigen"]
    arrays = [context.store.read_many(folder, parts, name) for name in ritz.Sums._fields]
    for part in zip(*arrays, strict=True):
        total.add(ritz.Sums(*part))
    found = ritz.ritz(total.sums())
    largest = float(found.residuals[:wanted].max(initial=0.0))
    stop = kernel.Stop("largest residual of the Ritz vectors", LARGEST_RESIDUAL, largest)
    solved = {"products": 1, "verdict": "ritz", "history": [], "stop": stop._asdict()}
    whole = {"volumes": total.volumes, "sums": found.sums, "rotation": found.rotation, "shift": found.shift}
    facts = _store_whole(context, found.values, found.residuals, wanted, whole, solved, [])
    context.store.drop_many(folder, parts)
    return facts


def _store_whole(
    context: Context,
    values: Float64,
    residuals: Float64,
    wanted: int,
    whole: dict[str, AnyArray],
    solved: dict[str, Any],
    warnings: list[str],
) -> dict[str, Any]:
    """Store the small arrays, of the vectors that V is made of: the wanted ones and those tied with the last of them.

    ``whole``: volumes, and arrays whose last axis is that of the vectors. Returns the stage's facts.
    """
    c = context.choices.n_solved(context.params)
    components, n_kept = component_division(context), with_ties(values, wanted)
    if (more := n_kept - min(wanted, len(values))) > 0:
        tied = f"eigenvalue {values[n_kept - more - 1]:.6f} is repeated: {more} tied eigenvectors were added"
        warnings = [tied, *warnings]
    eigenvalues = np.concatenate([np.ones(min(components.large, c)), values[:wanted]])[:c]
    facts = {
        "eigenvalues": eigenvalues.tolist(),
        "components": components.large,
        "islands": components.islands,
        "residual_max": float(residuals[:n_kept].max(initial=0.0)),
        "n_vectors": n_kept,
        "gap": float(values[n_kept - 1] - values[n_kept]) if 0 < n_kept < len(values) else None,
        **solved,
        "warnings": warnings,
    }
    kept = {
        name: array if name == "volumes" else np.ascontiguousarray(array[..., :n_kept]) for name, array in whole.items()
    }
    # written last: its receipt says that all parts are stored
    arrays = {"values": values[:n_kept], "residuals": residuals[:n_kept], **kept}
    context.store.write(context.folders["eigen"], "whole", arrays, facts)
    return facts


def _decomposable(context: Context) -> dict[str, Any]:
    """Eigenpairs of L from both ends of its spectrum, and the c largest products of its eigenvalues."""
    store, folder, params = context.store, context.folders["eigen"], context.params
    if keeps_all_pairs(context):
        S: Matrix = dense_pairwise(context).astype(np.float64)
        degrees = S.sum(axis=1)
        L: Matrix = S * inverse_root(degrees)[:, None] * inverse_root(degrees)
    else:
        edges, values = heat_edges(context, 0, context.m)
        S = assemble(edges[:, 0].astype(np.int64), edges[:, 1].astype(np.int64), values, context.m)
        degrees = np.asarray(S.sum(axis=1)).ravel()
        L = normalized(S, degrees, np.float64)
    tol = DECOMPOSABLE_TOL if params.tol is None else params.tol
    spectrum, vectors, residual = _both_ends(L, params, tol)
    products, chosen = leading_products(spectrum, params.n_sought)
    facts = {
        "eigenvalues": products[: params.n_sought].tolist(),
        "residual_max": residual,
        "n_vectors": len(products),
        "gap": None,
        "products": 0,
        "verdict": "converged",
        "stop": kernel.Stop("largest residual", tol, residual)._asdict(),
        "history": [],
        "warnings": [],
    }
    arrays = {"values": products, "spectrum": spectrum, "chosen": chosen, "sample_vectors": vectors}
    store.write(folder, "whole", arrays, facts)
    return facts


def _both_ends(L: Matrix, params: Params, tol: float) -> tuple[Float64, Float64, float]:
    """Eigenpairs of L: all of a small or dense one, else the c + 2 outermost of each end."""
    m = L.shape[0]
    n = params.n_sought + 2
    if not sp.issparse(L) or m <= 4 * n + 64:
        values, vectors = np.linalg.eigh(L if isinstance(L, np.ndarray) else L.toarray())
        return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1]), 0.0
    ends = []
    for sign in (1.0, -1.0):
        space = kernel.ArraySpace(MatrixOperator(sp.csr_array(L * sign)), None, np.float64)
        start = space.random(kernel.block_width(n), params.random_state)
        ends.append(kernel.leading_eigenpairs(space, n, start, tol=tol))
    values = np.concatenate([ends[0].values[:n], -ends[1].values[:n]])
    vectors = np.concatenate([end.vectors[:, :n] for end in ends], axis=1)
    residual = max(float(end.residuals[:n].max()) for end in ends)
    order = np.argsort(-values, kind="stable")
    return values[order], np.ascontiguousarray(vectors[:, order]), residual

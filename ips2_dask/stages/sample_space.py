"""Solves on samples: the sample graph's eigenvectors, and the embedding of the fused similarity U.

Samples are in chunks, or in one chunk whose tasks run in this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Report
from ips2_dask.kernels import eigen, levels
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.eigen import Known
from ips2_dask.kernels.sparse import distinct, inverse_root
from ips2_dask.stages import checkpoints, fused_rows, label_parts
from ips2_dask.stages.block_tasks import Halo, Rows
from ips2_dask.stages.chunk_levels import ChunkedGraph, CoarseChunk, Nodes, field, needed_rows, sources_of
from ips2_dask.stages.chunks import of_chunks, parts, sample_bounds, user_numbers, write_rows
from ips2_dask.stages.near import lists_of, reverse_at
from ips2_dask.stages.views import component_division, components_of
from ips2_dask.store.base import present
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import Float32, Float64


def open_graph(
    context: Context,
    executor: Executor,
    name: str,
    chunk_of: Callable[[Context, int], CoarseChunk],
    count: int,
    stored: checkpoints.StoredBlocks,
) -> ChunkedGraph:
    """A graph of samples, whose chunks are results of tasks.

    Parameters
    ----------
    context : Context
    executor : Executor
    name : str
        The beginning of the names of its tasks.
    chunk_of : callable
        A function of a module that gives chunk g.
    count : int
        Number of large components.
    stored : StoredBlocks
        For blocks between products.
    """
    shared, bounds = executor.share(context), sample_bounds(context)
    with executor.batch():
        chunks = [executor.submit(f"{name}-chunk-{g}", chunk_of, shared, g) for g in range(len(bounds) - 1)]
        rows, nodes, needed = (
            [executor.submit(f"{name}-{part}-{g}", field, chunk, part) for g, chunk in enumerate(chunks)]
            for part in CoarseChunk._fields
        )
        asked = [executor.submit(f"{name}-sources-{g}", sources_of, some) for g, some in enumerate(needed)]
    halo = Halo(executor, bounds, needed, executor.results(asked))
    return ChunkedGraph(name, halo, rows, nodes, count, context.params.random_state, renewed=stored.renewed)


def _nodes_of(context: Context, g: int, degrees: Float64, label: NDArray[np.integer]) -> Nodes:
    """The nodes of a chunk of samples."""
    return Nodes(degrees, label.astype(np.int32), user_numbers(context, g))


# ---- the sample graph


def graph_chunk(context: Context, g: int) -> CoarseChunk:
    """The rows of chunk g of the symmetric neighbour graph: 1 where i is in the list of j, or j in that of i."""
    bounds = sample_bounds(context)
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
    cuts = np.searchsorted(among, bounds).tolist()
    nodes = _nodes_of(context, g, degrees, divided.of_vectors)
    return CoarseChunk(Rows(matrix, cuts[g]), nodes, needed_rows(among, cuts, bounds, g))


def store_start_rows(context: Context, g: int, columns: int, nodes: Nodes, y: Float32) -> dict[str, Receipt]:
    """Store w = D^-1/2 u of chunk g's eigenvectors u (n_g, width) by piece, as (rows, columns) float32.

    Returns the receipts of the parts.
    """
    w = np.asarray(y[:, :columns] * inverse_root(nodes.degrees)[:, None], np.float32)
    return write_rows(context, g, "eigen", checkpoints.START, "start", w)


def store_start(context: Context, executor: Executor, report: Report, columns: int) -> None:
    """Store w, the sample graph's leading eigenvectors times D^-1/2, by piece. Parts that are stored already stay."""
    del report
    executor = of_chunks(context, executor)
    names = parts(context, checkpoints.START)
    if len(present(context.store, context.folders["eigen"], names)) == len(names):
        return
    seed = context.params.random_state
    stored = checkpoints.StoredBlocks(context, "eigen", executor)
    graph = open_graph(context, executor, "graph", graph_chunk, component_division(context).large, stored)
    found, wanted = levels.start(graph, columns, columns * 2 // 3, seed), columns * 2 // 3
    y = graph.solved(columns, wanted, seed)[0] if found is None else found.y
    written = graph.for_each(store_start_rows, y, context, columns)
    context.cache_receipts("eigen", written)
    graph.drop_renewed(stored)


# ---- the embedding of U


def fused_chunk(context: Context, g: int) -> CoarseChunk:
    """The stored rows of chunk g of U as it is embedded."""
    bounds, among = sample_bounds(context), fused_rows.touched(context, g)
    own = np.arange(*bounds[g : g + 2])
    matrix, divided = fused_rows.rows(context, g), fused_rows.components(context, own)
    cuts = np.searchsorted(among, bounds).tolist()
    nodes = _nodes_of(context, g, fused_rows.degrees(context, own), divided.of_vectors)
    return CoarseChunk(Rows(matrix, cuts[g]), nodes, needed_rows(among, cuts, bounds, g))


def _store_embedded_rows(context: Context, g: int, columns: int, known: Known, y: Float32) -> dict[str, Receipt]:
    """Store chunk g's rows of the leading eigenvectors of U by piece: component vectors, then the solver's.

    Parameters
    ----------
    context : Context
    g : int
    columns : int
        Of all of them, at most.
    known : Known
        The component vectors.
    y : (n_g, width) float32

    Returns
    -------
    dict
        The receipts of the parts, by name.
    """
    vectors = np.concatenate([known.leading(columns, np.float32), y], axis=1)[:, :columns]
    return write_rows(context, g, "label", label_parts.VECTORS, "vectors", vectors)


def solve_fused(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvectors and degrees of U by piece, for what the part `label_parts.DIVISION` asks for.

    Returns
    -------
    dict
        ``values`` of all columns, those of the components first; ``products``, ``residuals`` of the wanted ones;
        ``stop``, the measure that ended the solve; ``verdict``.
    """
    executor = of_chunks(context, executor)
    asked = context.finished("label", label_parts.DIVISION)["facts"]
    columns, count = asked["columns"], asked["large"]
    fused_rows.store_all(context, executor, report)
    more, wanted = max(0, columns - count), max(0, min(asked["wanted"], columns) - count)
    solution = _solved(context, executor, columns, max(wanted, more), wanted, asked)
    values = np.concatenate([np.ones(min(count, columns)), solution.values])[:columns]
    solution.residuals = solution.residuals[:wanted]
    label_parts.drop(context, checkpoints.checkpoint_parts(context))  # the rows of U stay, for walks
    return {
        "values": values.tolist(),
        "products": solution.products,
        "residuals": solution.residuals.tolist(),
        "stop": eigen.stop_of(solution, wanted, kernel.EMBEDDING_TOL, asked["settled"])._asdict(),
        "verdict": solution.verdict.name,
    }


def _solved(
    context: Context, executor: Executor, columns: int, most: int, wanted: int, asked: dict[str, Any]
) -> eigen.Solution:
    """The solution outside the components' eigenvectors, whose rows are stored; in this process where U is small."""
    seed, width = context.params.random_state, eigen.block_width(most)
    if most == 0 or context.m <= levels.COARSEST or context.facts["fuse"]["dense"]:
        return _solved_here(context, columns, asked)
    stored = checkpoints.StoredBlocks(context, "label", executor)
    graph = open_graph(context, executor, "fused", fused_chunk, asked["large"], stored)
    states = checkpoints.Chunked(context, stored, len(graph.known))
    state = states.latest()
    found = None
    if state is None and asked["settled"] is not None:
        found = levels.start(graph, width, max(wanted, 1), seed)
    if state is not None or found is not None:
        solution = levels.leading(
            graph.space,
            found,
            wanted,
            tol=asked["tol"],
            settled=asked["settled"],
            seed=seed,
            state=state,
            checkpoint=states.keep,
        )
    else:
        solution = eigen.leading_eigenpairs(
            graph.space,
            max(wanted, 1),
            lambda: graph.space.random(width, seed),
            tol=asked["tol"],
            seed=seed,
            settled=asked["settled"],
            checkpoint=states.keep,
        )
    written = graph.for_each(_store_embedded_rows, solution.vectors, context, columns, of=graph.known)
    context.cache_receipts("label", written)
    graph.drop_renewed(stored)
    solution.values = solution.values[:most]
    return solution


def _solved_here(context: Context, columns: int, asked: dict[str, Any]) -> eigen.Solution:
    """Solve for the eigenvectors of a small or dense U as a whole, and store their rows by piece."""
    inside = np.flatnonzero(fused_rows.components(context, np.arange(context.m)).inside)
    U = fused_rows.whole(context)
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
    for g, (low, high) in enumerate(itertools.pairwise(sample_bounds(context))):
        write_rows(context, g, "label", label_parts.VECTORS, "vectors", vectors[low:high])
    return eigenpairs.solution

"""Solves on samples in chunks: the start of the pairs' solve from the sample graph, and the embedding of U."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Report
from ips2_dask.kernels import eigen, warm_start
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages import checkpoints, label_parts, sample_operator
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.block_rounds import with_recovery
from ips2_dask.stages.block_space import ChunkedSpace
from ips2_dask.stages.chunk_rows import ROWS
from ips2_dask.store.base import present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

RANDOM_SEED = 5
"""Tells the random columns that fill up a start from other random numbers of a run."""


def is_small(n: int, columns: int, components: int) -> bool:
    """Whether a matrix of n samples is solved as a whole: by LAPACK, or since it has hardly more rows than columns."""
    return n <= eigen.DENSE_BELOW or n < 4 * eigen.block_width(columns) + components


# ---- the start of the pairs' solve


def store_start_rows(context: Context, g: int, columns: int, y: Float32) -> dict[str, Receipt]:
    """Store w = D^-1/2 u of chunk g's eigenvectors u (n_g, width) by partition, as (rows, columns) float32.

    Where the solve gives fewer columns than that, random ones follow. Returns the receipts of the parts.
    """
    first, last = chunk_partitions(context)[g]
    low = context.bounds[first]
    degrees = sample_operator.GRAPH.degrees(context, np.arange(low, context.bounds[last]))
    w = np.asarray(y[:, :columns] * inverse_root(degrees)[:, None], np.float32)
    written: dict[str, Receipt] = {}
    for b in range(first, last):
        rows = w[context.bounds[b] - low : context.bounds[b + 1] - low]
        if rows.shape[1] < columns:
            rng = np.random.default_rng([context.params.random_state, RANDOM_SEED, b])
            more = rng.standard_normal((len(rows), columns - rows.shape[1]), np.float32)
            rows = np.concatenate([rows, more], axis=1)
        part, arrays = checkpoints.start_part(b), {"start": np.ascontiguousarray(rows)}
        written[part] = context.store.write(context.folders["eigen"], part, arrays, {})
    return written


def store_start(context: Context, executor: Executor, report: Report, columns: int) -> None:
    """Store the start of the pairs' solve by partition, from the sample graph's leading eigenvectors.

    See `warm_start.graph_start`, which does the same in one process. Parts that are stored already stay.
    """
    folder = context.folders["eigen"]
    names = [checkpoints.start_part(b) for b in range(context.n_partitions)]
    if len(present(context.store, folder, names)) == len(names):
        return
    sample_operator.store_graph(context, executor, report)
    width = eigen.block_width(columns)
    space = ChunkedSpace(context, executor, width, "graph")

    def solve(state: eigen.State | None) -> eigen.Solution:
        solution = eigen.leading_eigenpairs(
            space, max(1, columns * 2 // 3), lambda: space.random(width, context.params.random_state),
            tol=warm_start.GRAPH_TOL, seed=context.params.random_state, most_products=80, state=state,
            checkpoint=space.copy,
        )  # fmt: skip
        context.cache_receipts("eigen", space.for_each(solution.vectors, store_start_rows, columns))
        return solution

    with_recovery(space, space.copied, solve)  # it is short: nothing of it is stored
    space.finish()
    parts = [sample_operator.GRAPH.part(g) for g in range(len(chunk_partitions(context)))]
    parts += [f"{sample_operator.GRAPH.degrees_prefix}{part_name(b)}" for b in range(context.n_partitions)]
    context.store.drop_many(folder, parts)


# ---- the embedding of U


def store_embedded_rows(context: Context, g: int, columns: int, volumes: Float64, y: Float32) -> dict[str, Receipt]:
    """Store chunk g's rows of the leading eigenvectors of U by partition: component vectors, then the solver's.

    Parameters
    ----------
    context : Context
    g : int
    columns : int
        Of all of them, at most.
    volumes : (components,) float64
        Of the large components.
    y : (n_g, width) float32

    Returns
    -------
    dict
        The receipts of the parts, by name.
    """
    first, last = chunk_partitions(context)[g]
    known = ROWS["fused"].known(context, g, volumes)
    vectors = np.concatenate([known.leading(columns, np.float32), y], axis=1)[:, :columns]
    low = context.bounds[first]
    written: dict[str, Receipt] = {}
    for b in range(first, last):
        rows = np.ascontiguousarray(vectors[context.bounds[b] - low : context.bounds[b + 1] - low])
        part = label_parts.VECTORS + part_name(b)
        written[part] = context.store.write(context.folders["label"], part, {"vectors": rows}, {})
    return written


def solve_fused(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvectors and degrees of U by partition, for what the part `label_parts.DIVISION` asks for.

    Returns
    -------
    dict
        ``values`` of all columns, those of the components first; ``products``, ``residuals`` of the wanted ones;
        ``stop``, the measure that ended the solve; ``verdict``.
    """
    asked = context.finished("label", label_parts.DIVISION)["facts"]
    columns, count = asked["columns"], asked["large"]
    sample_operator.store_fused(context, executor, report)
    more, wanted = max(0, columns - count), max(0, min(asked["wanted"], columns) - count)
    solution = _solved(context, executor, columns, max(wanted, more), wanted, asked)
    values = np.concatenate([np.ones(min(count, columns)), solution.values])[:columns]
    solution.residuals = solution.residuals[:wanted]
    label_parts.drop(context, checkpoints.checkpoint_parts(context))  # the rows of U stay, for walks
    return {
        "values": values.tolist(),
        "products": solution.products,
        "residuals": solution.residuals.tolist(),
        "stop": eigen.stop_of(solution, wanted, asked["tol"], asked["settled"])._asdict(),
        "verdict": solution.verdict.name,
    }


def _solved(
    context: Context, executor: Executor, columns: int, most: int, wanted: int, asked: dict[str, Any]
) -> eigen.Solution:
    """The solution outside the components' eigenvectors, whose rows are stored; in one process where U is small."""
    seed, width = context.params.random_state, eigen.block_width(most)
    if most == 0 or is_small(context.m, most, asked["large"]):
        rows = [sample_operator.FUSED.rows(context, g) for g in range(len(chunk_partitions(context)))]
        touched = [sample_operator.FUSED.touched(context, g) for g in range(len(rows))]
        bounds = sample_operator.sample_bounds(context)
        entries = [
            (one.data, (np.repeat(np.arange(low, high), np.diff(one.indptr)), samples[one.indices]))
            for one, samples, low, high in zip(rows, touched, bounds, bounds[1:], strict=False)
        ]
        data = np.concatenate([values for values, _ in entries])
        i, j = (np.concatenate([places[axis] for _, places in entries]) for axis in (0, 1))
        U = sp.csr_array(sp.coo_array((data, (i, j)), shape=(context.m, context.m)))
        samples = np.arange(context.m)
        components = sample_operator.fused_components(context, samples)
        inside = np.flatnonzero(components.inside)
        eigenpairs = kernel.spectrum(
            sp.csr_array(U[inside][:, inside]), asked["wanted"], asked["tol"], seed, columns=columns,
            settled=asked["settled"],
        )  # fmt: skip
        vectors = np.zeros((context.m, eigenpairs.vectors.shape[1]), np.float32)
        vectors[inside] = eigenpairs.vectors
        for b in range(context.n_partitions):
            part = {"vectors": vectors[slice(*context.span(b))]}
            context.store.write(context.folders["label"], label_parts.VECTORS + part_name(b), part, {})
        return eigenpairs.solution
    space = ChunkedSpace(context, executor, width, "fused", "label")
    solve_checkpoints = checkpoints.Chunked(context, space, "label")

    def solve(state: eigen.State | None) -> eigen.Solution:
        solution = eigen.leading_eigenpairs(
            space, max(wanted, 1), lambda: space.random(width, seed), tol=asked["tol"], seed=seed,
            settled=asked["settled"], state=state, checkpoint=solve_checkpoints.keep,
        )  # fmt: skip
        written = space.for_each(solution.vectors, store_embedded_rows, columns, space.volumes)
        context.cache_receipts("label", written)
        return solution

    solution = with_recovery(space, solve_checkpoints.latest, solve)
    space.finish()
    solution.values = solution.values[:most]
    return solution

"""The operator of the pair Laplacian in chunks: how a chunk's part is prepared, stored and read.

Words
-----
chunk
    The pairs of some consecutive partitions, ``n_g`` of them in chunk g. Chunks follow the partitions alone, so that
    results don't depend on the workers.
block
    The rows of one chunk of a block vector: (n_g, columns) float32. It stays on the worker that owns the chunk
    (`ips2_dask.stages.resident_blocks`). Block vectors are never gathered.
panel
    Some of the columns of a block vector, filtered one panel after the other where all columns would take too much
    memory.
owner
    The worker to which a chunk is assigned. It has the chunk's operator in its memory.

A product needs, beside a chunk's own rows, those of other chunks' pairs that its neighbourhoods hold too: all pairs
that the chunk *touches*. A chunk sums each row that it owns over all neighbourhoods that hold the pair, in the order of
their centres: so the sums have one order, whichever worker computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor
from ips2_dask.kernels.eigen import Float64
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator
from ips2_dask.kernels.sparse import rows_between
from ips2_dask.stages.near import centers_of, lists_of
from ips2_dask.stages.views import (
    component_division,
    numbered_ids,
    solved_degrees,
    triplets_of,
    unit,
)
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context, part_name

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

OPERATOR_ARRAYS = ("near_blocks", "near_owned", "near_ids")
"""Stored arrays of a chunk's operator: of the neighbourhoods that hold a sample of the chunk."""

MATRIX_ARRAYS = ("near_indptr", "near_columns", "near_values")
"""The same where the operator is ``triplets``: the chunk's rows of R as CSR."""

ROWS_AT_ONCE = 1 << 14
"""Neighbourhoods whose pairs are looked up at a time."""

CHUNK_KIND = "chunks"
"""The kind of chunks as items of `ips2_dask.executors.placement`."""


# ---- chunks


def chunk_partitions(context: Context) -> list[tuple[int, int]]:
    """First partition of each chunk, and one past its last."""
    chunks, first = [], 0
    for b in range(context.n_partitions):
        if (
            context.bounds[b + 1] - context.bounds[first] >= context.choices.chunk_samples
            or b == context.n_partitions - 1
        ):
            chunks.append((first, b + 1))
            first = b + 1
    return chunks


def chunk_bounds(context: Context) -> list[int]:
    """First pair of each chunk, and the number of pairs."""
    offsets = context.facts["tensor"]["pair_offsets"]
    return [*(int(offsets[first]) for first, _ in chunk_partitions(context)), int(offsets[-1])]


def assign_chunk_owners(context: Context, executor: Executor) -> list[int]:
    """Divide the chunks among the workers, neighbouring chunks to the same one, with about as many pairs to each.

    Returns
    -------
    list of int
        A number for each chunk; chunks of one worker have the same.
    """
    pairs = np.diff(chunk_bounds(context)).tolist()
    return executor.assign_owners([(CHUNK_KIND, g) for g in range(len(pairs))], pairs)


# ---- a chunk's operator: built once and stored, then read by the chunk's owner


def prepare_operator(context: Context, g: int) -> TaskResult:
    """The arrays of chunk g's operator and the pairs it touches: a part of stage ``tensor``.

    With C centres and q = k (k + 1) / 2 it takes the larger of 32 bytes for each pair of the partitions near the chunk,
    of 2^21 at most, with C (8 q + 4 k) bytes, and C (20 q + 2 k (k - 1)) bytes with 8 for each pair it touches.

    Returns
    -------
    arrays : dict
        `OPERATOR_ARRAYS` or `MATRIX_ARRAYS`, and ``touched``: (n_touched,) int64, ascending numbers of pairs.
    facts : dict
        ``cuts``: where the touched pairs of each chunk begin in ``touched``, and n_touched.
    """
    first, last = chunk_partitions(context)[g]
    low, high = context.bounds[first], context.bounds[last]
    centers = centers_of(context, low, high, context.params.n_neighbors)
    if context.choices.operator == "triplets":
        return _prepare_matrix(context, g, centers)
    ids = numbered_ids(context, lists_of(context, centers, context.params.n_neighbors))
    touched = np.unique(ids)
    local = np.empty(ids.shape, np.int32)  # an inverse by np.unique would be of int64, and take as much again to make
    for start in range(0, len(ids), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        local[some] = np.searchsorted(touched, ids[some])
    del ids
    arrays = {
        "near_blocks": context.rows_of("tensor", "blocks", centers),
        "near_owned": context.rows_of("tensor", "owned", centers),
        "near_ids": local,
        "touched": touched,
    }
    cuts = np.searchsorted(touched, chunk_bounds(context))
    return arrays, {"cuts": cuts.tolist()}


def _prepare_matrix(context: Context, g: int, centers: Int64) -> TaskResult:
    """The rows of R that chunk g owns, as CSR over the pairs they touch, from the triplets of the ``centers``."""
    low, high = chunk_bounds(context)[g : g + 2]
    parts = [rows_between(*triplets_of(context, int(b)), low, high) for b in np.unique(context.owner(centers))]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    touched = np.union1d(columns, np.arange(low, high))
    local = np.searchsorted(touched, columns)
    matrix = sp.coo_array((values, (rows, local)), shape=(high - low, len(touched))).tocsr()
    matrix.sort_indices()
    arrays = {
        "near_indptr": matrix.indptr.astype(np.int64), "near_columns": matrix.indices.astype(np.int32),
        "near_values": matrix.data, "touched": touched,
    }  # fmt: skip
    return arrays, {"cuts": np.searchsorted(touched, chunk_bounds(context)).tolist()}


def operator(context: Context, g: int) -> ChunkOperator | ChunkMatrix:
    """The operator of chunk g, read from the store, not normalised."""
    name, kind = f"chunk-{part_name(g)}", context.choices.operator
    arrays = MATRIX_ARRAYS if kind == "triplets" else OPERATOR_ARRAYS
    first, second, third = (np.asarray(context.store.read(context.folders["tensor"], name, array)) for array in arrays)
    params, cuts = context.params, cuts_of(context, [g])[0]
    own = slice(cuts[g], cuts[g + 1])
    if kind == "triplets":
        index = np.int32 if len(second) < 2**31 else np.int64
        parts = third, second.astype(index, copy=False), first.astype(index)
        return ChunkMatrix(sp.csr_array(parts, shape=(len(first) - 1, cuts[-1])), own)
    k = min(params.n_neighbors, context.m)
    return ChunkOperator(
        first, second, third, cuts[-1], own, k, params.sigma, params.epsilon, elements=kind == "elements"
    )


def operator_bytes(context: Context) -> list[int]:
    """Bytes of each chunk's `operator`."""
    kind, parts = context.choices.operator, [f"chunk-{part_name(g)}" for g in range(len(chunk_partitions(context)))]
    names, receipts = MATRIX_ARRAYS if kind == "triplets" else OPERATOR_ARRAYS, context.receipts("tensor", parts)
    found = []
    for part in parts:
        arrays = receipts[part]["arrays"]
        size = sum(math.prod(arrays[name]["shape"]) * np.dtype(arrays[name]["dtype"]).itemsize for name in names)
        if kind == "elements":
            centers, q = arrays["near_ids"]["shape"]
            size += 4 * centers * q * (q + 1) // 2
        found.append(size)
    return found


def touched_pairs(context: Context, g: int) -> Int32 | Int64:
    """Numbers of the pairs that chunk g touches: (n_touched,), ascending, as int32 where these are enough."""
    dtype = np.int32 if chunk_bounds(context)[-1] < 2**31 else np.int64
    touched = context.store.read(context.folders["tensor"], f"chunk-{part_name(g)}", "touched")
    return cast("Int32 | Int64", touched.astype(dtype))


def cuts_of(context: Context, chunks: Iterable[int]) -> list[list[int]]:
    """Where each chunk's pairs begin among those that some chunks touch, and how many it touches, of each of these."""
    names = [f"chunk-{part_name(g)}" for g in chunks]
    receipts = context.receipts("tensor", names)
    return [receipts[name]["facts"]["cuts"] if name in receipts else [] for name in names]


# ---- stored arrays of pairs, at any ascending numbers of pairs


def _read_at(context: Context, rows: NDArray[np.integer], read: Callable[[int], AnyArray]) -> AnyArray:
    """The array that ``read(b)`` gives of each partition b, at ascending numbers of pairs."""
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    cuts = np.searchsorted(rows, offsets)
    return np.concatenate([
        np.asarray(read(b))[rows[cuts[b] : cuts[b + 1]] - offsets[b]]
        for b in range(len(offsets) - 1)
        if cuts[b] < cuts[b + 1]
    ])  # fmt: skip


def pairs_at(context: Context, rows: NDArray[np.integer]) -> Int32:
    """Samples (i, j) of ascending numbers of pairs: (rows, 2) int32."""
    pairs: Int32 = _read_at(context, rows, lambda b: context.fetch("tensor", f"pairs-p{b:06d}", "pairs"))
    return pairs


def units_at(context: Context, rows: NDArray[np.integer]) -> Float64:
    """The all-ones vector in the basis of the pairs (docs/method.md, Unfolding and active pairs): (rows,)."""
    return unit(pairs_at(context, rows))


def degrees_at(context: Context, rows: NDArray[np.integer]) -> Float64:
    """Degrees of pairs as the solver normalises by them: (rows,)."""
    degrees: Float64 = _read_at(context, rows, lambda b: context.fetch("assemble", b, "degrees"))
    return solved_degrees(context, pairs_at(context, rows), degrees) if component_division(context).islands else degrees


# ---- tasks of chunks: pure functions of the context, the chunk's number and blocks


def degrees(context: Context, g: int) -> list[Float64]:
    """Degrees of chunk g's pairs in the full T-hat, one array a partition."""
    chunk_operator = operator(context, g)
    units = units_at(context, touched_pairs(context, g))
    sums = chunk_operator.product(units[:, None], np.ones(len(units)))[:, 0] / units[chunk_operator.own]
    first, last = chunk_partitions(context)[g]
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    return [sums[offsets[b] - offsets[first] : offsets[b + 1] - offsets[first]] for b in range(first, last)]

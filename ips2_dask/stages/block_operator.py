"""The operator of the pair Laplacian in chunks: the part that a worker holds, and one chunk's part of a product.

Words
-----
chunk
    The pairs of some consecutive partitions, ``n_g`` of them in chunk g. Chunks follow the partitions alone, so that
    results don't depend on the workers.
block
    The rows of one chunk of a block vector: (n_g, columns) float32. It stays on the worker that made it, and the solver
    has a handle of it. Block vectors are never gathered.
panel
    Some of the columns of a block vector, filtered one panel after the other where all columns would take too much
    memory.
owner
    The worker to which a chunk is assigned. It has the chunk's operator in its memory, and its tasks are placed there.

A product needs, beside a chunk's own rows, those of other chunks' pairs that its neighbourhoods hold too: all pairs
that the chunk *touches*. A worker takes these rows from the blocks that it holds itself. Of a block on another worker,
the rows that all of its chunks need are selected there and sent as one array. A chunk sums each row that it owns over
all neighbourhoods that hold the pair, in the order of their centres: so the sums have one order, whichever worker
computes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor
from ips2_dask.kernels import buffers
from ips2_dask.kernels.eigen import Float64
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator
from ips2_dask.kernels.sparse import inverse_root, rows_between
from ips2_dask.stages.views import (
    neighborhoods,
    numbered_ids,
    pair_components,
    solved_degrees,
    triplets_of,
    unit,
    values_key,
)
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

OPERATOR_ARRAYS = ("near_blocks", "near_owned", "near_ids")
"""Stored arrays of a chunk's operator: of the neighbourhoods that hold a sample of the chunk."""

MATRIX_ARRAYS = ("near_indptr", "near_columns", "near_values")
"""The same where the operator is ``triplets``: the chunk's rows of R as CSR."""

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


@dataclasses.dataclass(frozen=True)
class ChunkPlacement:
    """Which worker owns which chunk, and so which rows are sent to which worker.

    Attributes
    ----------
    owners : tuple of int
        A number for each chunk; chunks of one worker have the same. If chunks have been moved to other workers
        meanwhile, Dask sends whole blocks to where they are needed, and the products are the same.
    shared_rows : (chunks, chunks) int64
        ``shared_rows[g, h]`` rows of chunk h are among those that chunk g touches.
    """

    owners: tuple[int, ...]
    shared_rows: Int64

    def neighbors(self, g: int) -> list[int]:
        """The other chunks of which chunk g touches rows, ascending."""
        return [h for h in np.flatnonzero(self.shared_rows[g]).tolist() if h != g]

    def receivers(self, h: int, owner: int) -> list[int]:
        """The chunks of a worker that touch rows of chunk h, ascending."""
        return [g for g in np.flatnonzero(self.shared_rows[:, h]).tolist() if self.owners[g] == owner]

    def section(self, g: int, h: int) -> slice:
        """The rows for chunk g among those that `select_rows` of chunk h sends to chunk g's owner."""
        receivers = self.receivers(h, self.owners[g])
        before = sum(int(self.shared_rows[other, h]) for other in receivers if other < g)
        return slice(before, before + int(self.shared_rows[g, h]))


# ---- a chunk's operator: built once and stored, then read by the chunk's owner


def prepare_operator(context: Context, g: int) -> TaskResult:
    """The arrays of chunk g's operator and the pairs it touches: a part of stage ``tensor``.

    Returns
    -------
    arrays : dict
        `OPERATOR_ARRAYS` or `MATRIX_ARRAYS`, and ``touched``: (n_touched,) int64, ascending numbers of pairs.
    facts : dict
        ``cuts``: where the touched pairs of each chunk begin in ``touched``, and n_touched.
    """
    first, last = chunk_partitions(context)[g]
    low, high = context.bounds[first], context.bounds[last]
    N, reverse = neighborhoods(context, context.params.n_neighbors)
    centers = np.unique(reverse.centers[reverse.start[low] : reverse.start[high]]).astype(np.int64)
    if context.choices.operator == "triplets":
        return _prepare_matrix(context, g, centers)
    ids = numbered_ids(context, N[centers])
    touched, local = np.unique(ids, return_inverse=True)
    arrays = {
        "near_blocks": context.rows_of("tensor", "blocks", centers),
        "near_owned": context.rows_of("tensor", "owned", centers),
        "near_ids": local.reshape(ids.shape).astype(np.int32),
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
    """The operator of chunk g, not normalised, cached in its worker."""

    def read() -> ChunkOperator | ChunkMatrix:
        name, kind = f"chunk-{part_name(g)}", context.choices.operator
        arrays = MATRIX_ARRAYS if kind == "triplets" else OPERATOR_ARRAYS
        first, second, third = (
            np.asarray(context.store.read(context.folders["tensor"], name, array)) for array in arrays
        )
        params, cuts = context.params, _cuts(context, g)
        own = slice(cuts[g], cuts[g + 1])
        if kind == "triplets":
            index = np.int32 if len(second) < 2**31 else np.int64
            parts = third, second.astype(index, copy=False), first.astype(index)
            return ChunkMatrix(sp.csr_array(parts, shape=(len(first) - 1, cuts[-1])), own)
        k = min(params.n_neighbors, context.m)
        return ChunkOperator(
            first, second, third, cuts[-1], own, k, params.sigma, params.epsilon, elements=kind == "elements"
        )

    size = operator_bytes(context, chunk_receipt(context, g))
    cached: ChunkOperator | ChunkMatrix = context.cached("tensor", f"chunk-{g}-{values_key(context)}", read, size)
    return cached


def operator_bytes(context: Context, receipt: Receipt | None) -> int:
    """Memory of a chunk's operator, from the receipt of its part."""
    arrays = {} if receipt is None else receipt["arrays"]
    stored = sum(
        int(np.prod(arrays[a]["shape"])) * np.dtype(arrays[a]["dtype"]).itemsize
        for a in (*OPERATOR_ARRAYS, *MATRIX_ARRAYS) if a in arrays
    )  # fmt: skip
    if context.choices.operator != "elements" or "near_ids" not in arrays:
        return stored
    centers, q = arrays["near_ids"]["shape"]
    return stored + 2 * centers * q * (q + 1)


def touched_pairs(context: Context, g: int) -> Int32 | Int64:
    """Numbers of the pairs that chunk g touches: (n_touched,), ascending, cached as int32 where these are enough."""
    name = f"chunk-{part_name(g)}"
    dtype = np.int32 if chunk_bounds(context)[-1] < 2**31 else np.int64

    def read() -> Int32 | Int64:
        return cast("Int32 | Int64", context.store.read(context.folders["tensor"], name, "touched").astype(dtype))

    size = dtype().itemsize * (_cuts(context, g) or [0])[-1]
    cached: Int32 | Int64 = context.cached("tensor", f"touched-{name}", read, size)
    return cached


def _cuts(context: Context, g: int) -> list[int]:
    """The place at which each chunk's pairs begin among those that chunk g touches, and the number that it touches."""
    receipt = chunk_receipt(context, g)
    return receipt["facts"]["cuts"] if receipt else []


def chunk_receipt(context: Context, g: int) -> Receipt | None:
    """The receipt of the part that `prepare_operator` gave, read once in a process and not in every product."""
    name = f"chunk-{part_name(g)}"
    receipt: Receipt | None = context.cached("tensor", f"receipt-{name}", lambda: context.receipt("tensor", name), 1024)
    return receipt


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
    return solved_degrees(context, pairs_at(context, rows), degrees) if pair_components(context).islands else degrees


# ---- tasks of chunks: pure functions of the context, the chunk's number and blocks


def degrees(context: Context, g: int) -> list[Float64]:
    """Degrees of chunk g's pairs in the full T-hat, one array a partition."""
    chunk_operator = operator(context, g)
    units = units_at(context, touched_pairs(context, g))
    sums = chunk_operator.product(units[:, None], np.ones(len(units)))[:, 0] / units[chunk_operator.own]
    first, last = chunk_partitions(context)[g]
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    return [sums[offsets[b] - offsets[first] : offsets[b + 1] - offsets[first]] for b in range(first, last)]


def _needed_rows(context: Context, g: int, h: int) -> Int32:
    """Rows of chunk h's block that chunk g touches, ascending: (shared_rows[g, h],) int32."""
    cuts = _cuts(context, g)
    pairs = touched_pairs(context, g)[cuts[h] : cuts[h + 1]]
    rows: Int32 = (pairs - chunk_bounds(context)[h]).astype(np.int32)
    return rows


def select_rows(context: Context, h: int, owner: int, placement: ChunkPlacement, y: Float32) -> Float32:
    """The rows of chunk h's block that the chunks of one worker need, to be sent to that worker.

    Parameters
    ----------
    context : Context
    h : int
    owner : int
        The number of the worker in ``placement``.
    placement : ChunkPlacement
    y : (n_h, columns) float32

    Returns
    -------
    (rows, columns) float32
        The rows for each chunk of `ChunkPlacement.receivers`, one chunk's after another's.
    """
    receivers = placement.receivers(h, owner)

    def rows() -> Int32:
        return np.concatenate([_needed_rows(context, g, h) for g in receivers])

    n = int(placement.shared_rows[receivers, h].sum())
    selected: Float32 = y[context.cached("tensor", f"taken-{h}-{'-'.join(map(str, receivers))}", rows, 4 * n)]
    return selected


def product(
    context: Context,
    g: int,
    placement: ChunkPlacement,
    y: Float32,
    others: list[Float32],
    previous: Float32 | None,
    a: float,
    b: float,
    c: float,
) -> Float32:
    """a L y + b y + c previous on chunk g, where L is the normalised operator.

    Parameters
    ----------
    context : Context
    g : int
    placement : ChunkPlacement
    y : (n_g, columns) float32
    others : list of (rows, columns) float32
        For each chunk of `ChunkPlacement.neighbors` its block if it has the same owner, else what `select_rows` sent.
    previous : (n_g, columns) float32, optional
    a, b, c : float

    Returns
    -------
    (n_g, columns) float32
    """
    chunk_operator = operator(context, g)
    cuts = _cuts(context, g)
    scale = context.cached(
        "eigen", f"scale-{g}-{y.dtype.str}",
        lambda: inverse_root(degrees_at(context, touched_pairs(context, g))).astype(y.dtype),
        y.itemsize * chunk_operator.touched,
    )  # fmt: skip
    x = buffers.empty((chunk_operator.touched, y.shape[1]), y.dtype)
    x[chunk_operator.own] = y
    for h, block in zip(placement.neighbors(g), others, strict=True):
        target = x[cuts[h] : cuts[h + 1]]
        if placement.owners[h] == placement.owners[g]:
            needed = partial(_needed_rows, context, g, h)
            rows = context.cached("tensor", f"rows-{g}-{h}", needed, 4 * len(target))
            np.take(block, rows, axis=0, out=target, mode="clip")
        else:
            target[:] = block[placement.section(g, h)]
    result: Float32 = chunk_operator.combine(chunk_operator.product(x, scale), scale, y, previous, a, b, c)
    return result

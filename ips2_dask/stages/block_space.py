"""The space of block vectors in chunks: the solver's block algebra as tasks on the workers.

Only small matrices come to the process of the solver. `ips2_dask.stages.block_operator` explains chunk, block, panel
and owner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels import buffers, warm_start
from ips2_dask.kernels.eigen import Float64, Known, panel_bounds, panels_of
from ips2_dask.plan.memory import REMEMBERED
from ips2_dask.stages.block_operator import (
    CHUNK_KIND,
    ChunkPlacement,
    Float32,
    assign_chunk_owners,
    chunk_bounds,
    chunk_partitions,
    degrees_at,
    operator_bytes,
    pairs_at,
    product,
    select_rows,
    units_at,
)
from ips2_dask.stages.views import known_vectors, pair_components, unit
from ips2_dask.store.context import Context, part_name

T = TypeVar("T")

Block = list[Handle]
"""A block vector: the handle of each chunk's block."""

GRAM_ROWS = 16384
"""Rows that a Gram matrix converts to float64 at a time."""


# ---- known eigenvectors: one of each connected component, on the pairs of a chunk


def _component_vectors(context: Context, g: int, volumes: Float64 | None) -> Known:
    """The component vectors on chunk g's pairs; without ``volumes`` those of its share of the components."""
    low, high = chunk_bounds(context)[g : g + 2]
    rows = np.arange(low, high)
    return known_vectors(context, pairs_at(context, rows), degrees_at(context, rows), volumes)


def _cached_component_vectors(context: Context, g: int) -> Known:
    """The component vectors on chunk g's pairs, cached in its worker."""

    def read() -> Known:
        return _component_vectors(context, g, np.asarray(context.read("eigen", "volumes", "volumes")))

    low, high = chunk_bounds(context)[g : g + 2]
    bytes_of_pair = 8 if pair_components(context).total == 1 else 12
    cached: Known = context.cached("eigen", f"known-{g}", read, bytes_of_pair * (high - low))
    return cached


# ---- tasks: pure functions of the context, a chunk's number and blocks. Chunk g has n_g pairs.


def random_block(context: Context, g: int, columns: int, seed: int) -> Float32:
    """Standard normal entries that depend on the seed and the chunk: (n_g, columns) float32."""
    low, high = chunk_bounds(context)[g : g + 2]
    return np.random.default_rng([seed, g]).standard_normal((high - low, columns), np.float32)


def start_block(context: Context, g: int) -> Float32:
    """The solver's start on chunk g, from the stored start on samples: (n_g, columns) float32."""
    low, high = chunk_bounds(context)[g : g + 2]
    rows = np.arange(low, high)
    pairs = pairs_at(context, rows)
    root = np.sqrt(degrees_at(context, rows)) * unit(pairs)
    samples, local = np.unique(pairs, return_inverse=True)
    w = np.asarray(context.rows_of("eigen", "start", samples, "start-", remember=False))
    block: Float32 = warm_start.start_on_pairs(w, local.reshape(pairs.shape).astype(np.int32), root)
    return block


def component_volumes(context: Context, g: int) -> tuple[NDArray[np.integer], Float64]:
    """The components that have pairs in chunk g: numbers (n,) int32, and volumes in the chunk (n,) float64."""
    vectors = _component_vectors(context, g, None)
    components = np.unique(vectors.label)
    return components, np.asarray(vectors.volume[components], np.float64)


def component_coefficients(context: Context, g: int, y: Float32) -> tuple[NDArray[np.integer], Float64]:
    """Products of y (n_g, columns) with the component vectors: numbers (present,), and (present, columns) float64."""
    components, products = _cached_component_vectors(context, g).coefficients(y)
    return components, products


def subtract_components(
    context: Context, g: int, y: Float32, components: NDArray[np.integer], coefficients: Float64
) -> Float32:
    """y minus the component vectors times their coefficients.

    Parameters
    ----------
    context : Context
    g : int
    y : (n_g, columns) float32
    components : (present,) int
        Those that have pairs in the chunk: they may be few of many, so only their coefficients are sent.
    coefficients : (present, columns) float64

    Returns
    -------
    (n_g, columns) float32
        A new array: another task may still read ``y``.
    """
    vectors = _cached_component_vectors(context, g)
    all_coefficients = np.zeros((vectors.count, y.shape[1]))
    all_coefficients[components] = coefficients
    deflated: Float32 = buffers.empty(y.shape, y.dtype)
    np.copyto(deflated, y)
    result: Float32 = vectors.subtract(deflated, all_coefficients)
    return result


def gram(x: Float32, y: Float32) -> Float64:
    """x' y of blocks (n_g, p) and (n_g, q), summed in float64: (p, q)."""
    total = np.zeros((x.shape[1], y.shape[1]))
    for low in range(0, len(x), GRAM_ROWS):
        rows = slice(low, low + GRAM_ROWS)
        total += x[rows].astype(np.float64).T @ y[rows].astype(np.float64)
    return total


def rotate(y: Float32, C: Float64) -> Float32:
    """y C, with C (p, q) rounded to float32: (n_g, q) float32."""
    return np.matmul(y, C.astype(np.float32), out=buffers.empty((len(y), C.shape[1]), np.float32))


def select_columns(y: Float32, first: int, last: int) -> Float32:
    """A copy of the columns first .. last - 1: (n_g, last - first) float32."""
    selected: Float32 = buffers.empty((len(y), last - first), y.dtype)
    np.copyto(selected, y[:, first:last])
    return selected


def join_columns(*panels: Float32) -> Float32:
    """The columns of all panels (n_g, ...), one panel after another: (n_g, columns) float32."""
    joined: Float32 = buffers.empty((len(panels[0]), sum(panel.shape[1] for panel in panels)), panels[0].dtype)
    return np.concatenate(panels, axis=1, out=joined)


def wait_for(y: Float32) -> None:
    """Return nothing, once the block y is computed."""


def residual_squares(Ly: Float32, y: Float32, values: Float64) -> Float64:
    """Sums of squares of the columns of L y - y diag(values), for blocks (n_g, columns): (columns,) float64."""
    squares: Float64 = np.square((Ly - y * values.astype(np.float32)).astype(np.float64)).sum(axis=0)
    return squares


def store_vectors(context: Context, g: int, y: Float32, n_vectors: int) -> Float64:
    """Store the first columns of chunk g's block (n_g, columns) by partition.

    Returns
    -------
    (n_vectors,) float64
        The sums of their entries in the basis of the pairs (docs/method.md, Unfolding and active pairs).
    """
    first, last = chunk_partitions(context)[g]
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    vectors = np.ascontiguousarray(y[:, :n_vectors])
    for b in range(first, last):
        rows = vectors[offsets[b] - offsets[first] : offsets[b + 1] - offsets[first]]
        context.store.write(context.folders["eigen"], part_name(b), {"vectors": rows}, {})
    sums: Float64 = units_at(context, np.arange(offsets[first], offsets[last])) @ vectors.astype(np.float64)
    return sums


def checkpoint_part(name: str, g: int) -> str:
    """The part of stage ``eigen`` that has chunk g's block of the checkpoint ``name``."""
    return f"{name}-c{g:06d}"


def store_checkpoint(context: Context, g: int, name: str, y: Float32) -> None:
    """Store chunk g's block (n_g, columns) of a checkpoint."""
    context.store.write(context.folders["eigen"], checkpoint_part(name, g), {"state": y}, {})


def read_checkpoint(context: Context, g: int, name: str) -> Float32:
    """The stored block of chunk g of a checkpoint: (n_g, columns) float32."""
    return context.store.read(context.folders["eigen"], checkpoint_part(name, g), "state")


PINNED_TASKS = (
    component_volumes, random_block, start_block, select_rows, product, component_coefficients, subtract_components,
    gram, rotate, select_columns, join_columns, wait_for, residual_squares, store_vectors, store_checkpoint,
    read_checkpoint,
)  # fmt: skip
"""The tasks of a solve. A chunk's owner has the arrays that they need in its memory."""


class ChunkedSpace:
    """Block vectors in chunks on the workers: a `ips2_dask.kernels.eigen.Space`.

    Parameters
    ----------
    context : Context
    executor : Executor
    width : int
        Columns of a block vector.

    Attributes
    ----------
    n : int
        Rows of a block vector: pairs.
    volumes : (components,) float64
        Volume of each connected component.
    whole_products : bool
        As of `Space`.
    """

    def __init__(self, context: Context, executor: Executor, width: int) -> None:
        self._chunks = range(len(chunk_partitions(context)))
        receipts = [context.receipt("tensor", f"chunk-{part_name(g)}") for g in self._chunks]
        # a worker caches the operators of its share of the chunks, with scales, rows and component vectors, and a
        # quarter more as shares differ: what the cache has no room for is made anew in each product
        total_bytes = sum(operator_bytes(context, r) + REMEMBERED * r["facts"]["cuts"][-1] for r in receipts if r)
        context = dataclasses.replace(context, kept=total_bytes * 5 // (4 * max(1, executor.n_workers)))
        self.context, self._executor = context, executor
        self._shared_context = executor.share(context)
        self.n = chunk_bounds(context)[-1]
        self._columns, self._panels = width, panels_of(self.n, width, "chunked")
        self.whole_products = self._panels == 1
        executor.pin_to_owner([f"eigen-{function.__name__}" for function in PINNED_TASKS])
        self._placement = ChunkPlacement((), np.array([np.diff(r["facts"]["cuts"]) for r in receipts if r]))
        self._assign_owners()
        self.volumes = np.zeros(pair_components(context).large)
        for components, volumes in self._results(lambda g: self._task(component_volumes, g)):
            self.volumes[components] += volumes
        if context.receipt("eigen", "volumes") is None:  # read by the workers
            context.store.write(context.folders["eigen"], "volumes", {"volumes": self.volumes}, {})

    def _assign_owners(self) -> None:
        """Divide the chunks among the workers there are now: some may have left or joined."""
        owners = tuple(assign_chunk_owners(self.context, self._executor))
        if owners != self._placement.owners:
            self._placement = dataclasses.replace(self._placement, owners=owners)
            self._shared_placement = self._executor.share(self._placement)

    def _task(
        self,
        function: Callable[..., object],
        g: int,
        *arguments: object,
        placed_with: Handle | None = None,
        urgent: bool = False,
    ) -> Handle:
        """Start a task on chunk g, on its owner or where the result of ``placed_with`` is."""
        item = (CHUNK_KIND, g) if placed_with is None else placed_with
        return self._executor.submit(
            _task_name(function, g), function, self._shared_context, g, *arguments, placed_with=item, urgent=urgent
        )

    def _block_task(self, function: Callable[..., object], g: int, *arguments: object) -> Handle:
        """Start a task on blocks of chunk g alone, without the context and the chunk's number, on its owner."""
        return self._executor.submit(_task_name(function, g), function, *arguments, placed_with=(CHUNK_KIND, g))

    def _each(self, task: Callable[[int], T]) -> list[T]:
        """Start a task of every chunk, in one message; returns their handles."""
        with self._executor.batch():
            return [task(g) for g in self._chunks]

    def _results(self, task: Callable[[int], Handle]) -> list[Any]:
        """Run a task of every chunk; returns their results."""
        return self._executor.results(self._each(task))

    def _replace(self, y: Block, task: Callable[[int], Handle]) -> Block:
        """Start tasks whose results replace ``y``: each chunk of it is freed when its successor is computed."""
        successors = self._each(task)
        y.clear()
        return successors

    def store_checkpoint(self, y: Block, name: str) -> None:
        """Store a block vector under the name of a checkpoint, and wait until that is done."""
        self._results(lambda g: self._task(store_checkpoint, g, name, y[g]))

    def read_checkpoint(self, name: str, placed_with: Block | None = None) -> Block:
        """A stored block vector; each chunk is read where that of ``placed_with`` is, else by its owner.

        Dask makes a lost chunk of it again by reading it, and not by all the tasks that computed what was stored.
        """
        return self._each(
            lambda g: self._task(read_checkpoint, g, name, placed_with=None if placed_with is None else placed_with[g])
        )

    def random(self, columns: int, seed: int) -> Block:
        """As of `Space`."""
        return self._each(lambda g: self._task(random_block, g, columns, seed))

    def start(self) -> Block:
        """The solver's start, from the stored eigenvectors of the sample graph."""
        return self._each(lambda g: self._task(start_block, g))

    def apply(self, y: Block) -> Block:
        """As of `Space`."""
        return self.recur(y, None, 1.0, 0.0, 0.0)

    def recur(self, y: Block, previous: Block | None, a: float, b: float, c: float) -> Block:
        """As of `Space`."""
        placement = self._placement
        selected: dict[tuple[int, int], Handle] = {}  # by chunk and receiving worker

        def chunk_product(g: int) -> Handle:
            others, owner = [], placement.owners[g]
            for h in placement.neighbors(g):
                if placement.owners[h] == owner:
                    others.append(y[h])
                    continue
                if (h, owner) not in selected:
                    selected[h, owner] = self._task(select_rows, h, owner, self._shared_placement, y[h], urgent=True)
                others.append(selected[h, owner])
            before = None if previous is None else previous[g]
            return self._task(product, g, self._shared_placement, y[g], others, before, a, b, c)

        products = self._each(chunk_product)
        if previous is not None:
            previous.clear()
        return products

    def split(self, y: Block) -> list[Block]:
        """As of `Space`. A filter follows, before which chunks may be assigned to other workers."""
        self._assign_owners()
        if self._panels == 1:
            return [y]
        bounds = panel_bounds(self._columns, self._panels)
        parts = self._each(lambda g: [self._block_task(select_columns, g, y[g], a, b) for a, b in bounds])
        y.clear()
        return [list(panel) for panel in zip(*parts, strict=True)]

    def finish(self, panel: Block) -> Block:
        """As of `Space`: wait for the panel, so that workers don't compute, and hold, two panels by turns."""
        if self._panels > 1:
            self._results(lambda g: self._block_task(wait_for, g, panel[g]))
        return panel

    def join(self, parts: list[Block]) -> Block:
        """As of `Space`."""
        if len(parts) == 1:
            return parts.pop()
        joined = self._each(lambda g: self._block_task(join_columns, g, *(part[g] for part in parts)))
        parts.clear()
        return joined

    def deflate(self, y: Block) -> Block:
        """As of `Space`."""
        parts = self._results(lambda g: self._task(component_coefficients, g, y[g]))
        coefficients = np.zeros((len(self.volumes), parts[0][1].shape[1]))
        for components, products in parts:
            coefficients[components] += products

        def subtract(g: int) -> Handle:
            components = parts[g][0]
            return self._task(subtract_components, g, y[g], components, coefficients[components])

        return self._replace(y, subtract)

    def gram(self, x: Block, y: Block) -> Float64:
        """As of `Space`: summed in the order of the chunks."""
        return _sum(self._results(lambda g: self._block_task(gram, g, x[g], y[g])))

    def rotate(self, y: Block, C: Float64) -> Block:
        """As of `Space`."""
        return self._replace(y, lambda g: self._block_task(rotate, g, y[g], C))

    def residuals(self, Ly: Block, y: Block, values: Float64) -> Float64:
        """As of `Space`."""
        return np.sqrt(_sum(self._results(lambda g: self._block_task(residual_squares, g, Ly[g], y[g], values))))

    def store_vectors(self, y: Block, n_vectors: int) -> Float64:
        """Store the first columns as eigenvectors; returns `store_vectors` of all chunks: (n_vectors,) float64."""
        return _sum(self._results(lambda g: self._task(store_vectors, g, y[g], n_vectors)))


def _task_name(function: Callable[..., object], g: int) -> str:
    return f"eigen-{function.__name__}-{g}"


def _sum(parts: Sequence[Float64]) -> Float64:
    """The sum of the chunks' arrays."""
    total: Float64 = np.sum(parts, axis=0)
    return total

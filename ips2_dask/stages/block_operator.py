"""Block vectors in chunks that are never gathered: each holds the pairs of some partitions, where it was made.

A chunk's product needs its own rows and those of pairs that its neighbourhoods share with other chunks. It takes these
from the chunks that are held where it is, and what the chunks of one worker need of a chunk elsewhere is cut out there
and sent in one piece. The chunk sums every row that it owns over all neighbourhoods that hold the pair, its
neighbours' among them, in the order of their centres: so the sums have one order, whoever computes them where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor
from ips2_dask.kernels import buffers, warm_start
from ips2_dask.kernels.eigen import Float64, Known, panel_bounds, panels_of
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator, inverse_root, rows_between
from ips2_dask.plan.memory import REMEMBERED
from ips2_dask.stages.views import (
    known_vectors,
    neighborhoods,
    numbered_ids,
    pair_components,
    solved_degrees,
    triplets_of,
    unit,
    values_key,
)
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.zarr_store import Receipt

Block = list[Any]
"""One handle a chunk."""

OPERATOR = ("near_blocks", "near_owned", "near_ids")
MATRIX = ("near_indptr", "near_columns", "near_values")
"""Arrays of a chunk's operator: its neighbourhoods, or its rows of R from the triplets."""

KIND = "chunks"
"""What tasks on chunks are about: the worker that made a chunk's operator keeps it, and the chunk of each block."""


def chunk_partitions(context: Context) -> list[tuple[int, int]]:
    """Ranges of partitions that make up the chunks: they follow the partitions alone."""
    out, first = [], 0
    for b in range(context.n_partitions):
        if (
            context.bounds[b + 1] - context.bounds[first] >= context.choices.chunk_samples
            or b == context.n_partitions - 1
        ):
            out.append((first, b + 1))
            first = b + 1
    return out


def rows_of_chunks(context: Context) -> list[int]:
    """First pair of each chunk, and the number of pairs."""
    offsets = context.facts["tensor"]["pair_offsets"]
    return [*(int(offsets[first]) for first, _ in chunk_partitions(context)), int(offsets[-1])]


def prepare(context: Context, g: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything that chunk g's products need but the vectors: centres, their blocks and bits, the pairs they touch."""
    first, last = chunk_partitions(context)[g]
    low, high = context.bounds[first], context.bounds[last]
    N, reverse = neighborhoods(context, context.params.n_neighbors)
    held = np.unique(reverse.centers[reverse.start[low] : reverse.start[high]]).astype(np.int64)
    if context.choices.operator == "triplets":
        return _prepare_rows(context, g, held)
    ids = numbered_ids(context, N[held])
    touched, local = np.unique(ids, return_inverse=True)
    arrays = {
        "near_blocks": context.rows_of("tensor", "blocks", held),
        "near_owned": context.rows_of("tensor", "owned", held),
        "near_ids": local.reshape(ids.shape).astype(np.int32),
        "touched": touched,
    }
    cuts = np.searchsorted(touched, rows_of_chunks(context))
    return arrays, {"cuts": cuts.tolist()}


def _prepare_rows(context: Context, g: int, held: NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of R that chunk g owns, as CSR over the pairs they touch, from the triplets of the centres ``held``."""
    low, high = rows_of_chunks(context)[g : g + 2]
    parts = [rows_between(*triplets_of(context, int(b)), low, high) for b in np.unique(context.owner(held))]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    touched = np.union1d(columns, np.arange(low, high))
    local = np.searchsorted(touched, columns)
    matrix = sp.coo_array((values, (rows, local)), shape=(high - low, len(touched))).tocsr()
    matrix.sort_indices()
    arrays = {
        "near_indptr": matrix.indptr.astype(np.int64), "near_columns": matrix.indices.astype(np.int32),
        "near_values": matrix.data, "touched": touched,
    }  # fmt: skip
    return arrays, {"cuts": np.searchsorted(touched, rows_of_chunks(context)).tolist()}


def operator(context: Context, g: int) -> ChunkOperator | ChunkMatrix:
    """The operator of chunk g, not normalised, remembered in its worker."""

    def make() -> ChunkOperator | ChunkMatrix:
        name, kind = f"chunk-{part_name(g)}", context.choices.operator
        arrays = MATRIX if kind == "triplets" else OPERATOR
        first, second, third = (
            np.asarray(context.store.read(context.folders["tensor"], name, array)) for array in arrays
        )
        params, cuts = context.params, _cuts(context, g)
        own = slice(cuts[g], cuts[g + 1])
        if kind == "triplets":
            index = np.int32 if len(second) < 2**31 else np.int64
            parts = third, second.astype(index, copy=False), first.astype(index)
            return ChunkMatrix(sp.csr_array(parts, shape=(len(first) - 1, cuts[-1])), own)
        return ChunkOperator(
            first, second, third, cuts[-1], own, N_columns(context), params.sigma, params.epsilon,
            elements=kind == "elements",
        )  # fmt: skip

    size = _operator_bytes(context, _receipt(context, g))
    made: ChunkOperator | ChunkMatrix = context.remembered("tensor", f"chunk-{g}-{values_key(context)}", make, size)
    return made


def _operator_bytes(context: Context, receipt: Receipt | None) -> int:
    """Memory of a chunk's operator."""
    arrays = {} if receipt is None else receipt["arrays"]
    read = sum(
        int(np.prod(arrays[a]["shape"])) * np.dtype(arrays[a]["dtype"]).itemsize
        for a in (*OPERATOR, *MATRIX) if a in arrays
    )  # fmt: skip
    if context.choices.operator != "elements" or "near_ids" not in arrays:
        return read
    centers, q = arrays["near_ids"]["shape"]
    return read + 2 * centers * q * (q + 1)


def _touched(context: Context, g: int) -> Any:
    """The pairs that chunk g's neighbourhoods hold, ascending, remembered in half the memory where numbers allow it."""
    name = f"chunk-{part_name(g)}"
    kind = np.int32 if rows_of_chunks(context)[-1] < 2**31 else np.int64

    def read() -> Any:
        return context.store.read(context.folders["tensor"], name, "touched").astype(kind)

    size = kind().itemsize * (_cuts(context, g) or [0])[-1]
    return context.remembered("tensor", f"touched-{name}", read, size)


def _cuts(context: Context, g: int) -> list[int]:
    """Where the touched pairs of each chunk begin, and how many there are."""
    receipt = _receipt(context, g)
    return receipt["facts"]["cuts"] if receipt else []


def _receipt(context: Context, g: int) -> Receipt | None:
    """The receipt of what `prepare` stored, fetched once in a process and not in every product."""
    name = f"chunk-{part_name(g)}"
    found: Receipt | None = context.remembered(
        "tensor", f"receipt-{name}", lambda: context.receipt("tensor", name), 1024
    )
    return found


def N_columns(context: Context) -> int:  # noqa: N802  the paper's N
    """k, the columns of N."""
    return min(context.params.n_neighbors, context.m)


def degrees(context: Context, g: int) -> list[Any]:
    """Degrees of chunk g's pairs in the full T-hat, one array a partition."""
    made = operator(context, g)
    ones = _units(context, _touched(context, g))
    sums = made.product(ones[:, None], np.ones(len(ones)))[:, 0] / ones[made.own]
    first, last = chunk_partitions(context)[g]
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    return [sums[offsets[b] - offsets[first] : offsets[b + 1] - offsets[first]] for b in range(first, last)]


def _at(context: Context, rows: Any, read: Callable[[int], Any]) -> Any:
    """``read`` of each partition, at ascending numbers of pairs."""
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    cuts = np.searchsorted(rows, offsets)
    return np.concatenate([
        np.asarray(read(b))[rows[cuts[b] : cuts[b + 1]] - offsets[b]]
        for b in range(len(offsets) - 1)
        if cuts[b] < cuts[b + 1]
    ])  # fmt: skip


def _pairs_at(context: Context, rows: Any) -> Any:
    """Samples (i, j) of ascending numbers of pairs."""
    return _at(context, rows, lambda b: context.fetch("tensor", f"pairs-p{b:06d}", "pairs"))


def _units(context: Context, rows: Any) -> Float64:
    return unit(_pairs_at(context, rows))


def _degrees_at(context: Context, rows: Any) -> Float64:
    """Degrees in the solve."""
    found: Float64 = _at(context, rows, lambda b: context.fetch("assemble", b, "degrees"))
    return solved_degrees(context, _pairs_at(context, rows), found) if pair_components(context).islands else found


def _component_vectors(context: Context, g: int, volumes: Float64 | None) -> Known:
    """The component vectors on chunk g's pairs; without volumes those of its share of the components."""
    low, high = rows_of_chunks(context)[g : g + 2]
    rows = np.arange(low, high)
    pairs = _pairs_at(context, rows)
    return known_vectors(context, pairs, _degrees_at(context, rows), volumes)


def known_of(context: Context, g: int) -> Known:
    """The component vectors on chunk g's pairs, remembered."""

    def make() -> Known:
        return _component_vectors(context, g, np.asarray(context.read("eigen", "volumes", "volumes")))

    low, high = rows_of_chunks(context)[g : g + 2]
    each = 8 if pair_components(context).total == 1 else 12
    known: Known = context.remembered("eigen", f"known-{g}", make, each * (high - low))
    return known


# The tasks of the solver: each is a pure function of the context, a chunk's number and blocks.


def random_rows(context: Context, g: int, columns: int, seed: int) -> Any:
    low, high = rows_of_chunks(context)[g : g + 2]
    return np.random.default_rng([seed, g]).standard_normal((high - low, columns), np.float32)


def start_rows(context: Context, g: int) -> Any:
    low, high = rows_of_chunks(context)[g : g + 2]
    rows = np.arange(low, high)
    pairs = _pairs_at(context, rows)
    root = np.sqrt(_degrees_at(context, rows)) * unit(pairs)
    samples, local = np.unique(pairs, return_inverse=True)
    w = np.asarray(context.rows_of("eigen", "start", samples, "start-", remember=False))
    return warm_start.start_on_pairs(w, local.reshape(pairs.shape).astype(np.int32), root)


@dataclasses.dataclass(frozen=True)
class Homes:
    """Who holds which chunk, and so which rows are sent to whom.

    Attributes
    ----------
    of : tuple of int
        A number for each chunk; equal ones are of the same worker. Where that has changed meanwhile, whole blocks are
        sent, and the products are the same.
    shared : (chunks, chunks) int64
        How many rows of chunk h (the column) are among those that chunk g (the row) touches.
    """

    of: tuple[int, ...]
    shared: NDArray[np.int64]

    def near(self, g: int) -> list[int]:
        """The other chunks of which chunk g needs rows, ascending."""
        return [h for h in np.flatnonzero(self.shared[g]).tolist() if h != g]

    def takers(self, h: int, home: int) -> list[int]:
        """The chunks of a worker that need rows of chunk h, ascending."""
        return [g for g in np.flatnonzero(self.shared[:, h]).tolist() if self.of[g] == home]

    def place(self, g: int, h: int) -> slice:
        """Where chunk g's rows are in what its worker is sent of chunk h."""
        before = sum(int(self.shared[other, h]) for other in self.takers(h, self.of[g]) if other < g)
        return slice(before, before + int(self.shared[g, h]))


def _rows(context: Context, g: int, h: int) -> NDArray[np.int32]:
    """Rows of chunk h's block that chunk g's product needs, ascending."""
    cuts = _cuts(context, g)
    found = _touched(context, g)[cuts[h] : cuts[h + 1]]
    rows: NDArray[np.int32] = (found - rows_of_chunks(context)[h]).astype(np.int32)
    return rows


def take(context: Context, h: int, home: int, homes: Homes, y: Any) -> Any:
    """Rows of chunk h's block for all chunks of a worker that need some, one chunk's after another's."""
    takers = homes.takers(h, home)

    def rows() -> Any:
        return np.concatenate([_rows(context, g, h) for g in takers])

    n = int(homes.shared[takers, h].sum())
    return y[context.remembered("tensor", f"taken-{h}-{'-'.join(map(str, takers))}", rows, 4 * n)]


def product(
    context: Context, g: int, homes: Homes, y: Any, others: list[Any], previous: Any, a: float, b: float, c: float
) -> Any:
    """a L y + b y + c previous on chunk g; ``others`` are the blocks of `Homes.near`, or what was taken of them."""
    made = operator(context, g)
    cuts = _cuts(context, g)
    scale = context.remembered(
        "eigen", f"scale-{g}-{y.dtype.str}",
        lambda: inverse_root(_degrees_at(context, _touched(context, g))).astype(y.dtype), y.itemsize * made.touched,
    )  # fmt: skip
    x = buffers.empty((made.touched, y.shape[1]), y.dtype)
    x[made.own] = y
    for h, block in zip(homes.near(g), others, strict=True):
        into = x[cuts[h] : cuts[h + 1]]
        if homes.of[h] == homes.of[g]:
            rows = context.remembered("tensor", f"rows-{g}-{h}", partial(_rows, context, g, h), 4 * len(into))
            np.take(block, rows, axis=0, out=into, mode="clip")
        else:
            into[:] = block[homes.place(g, h)]
    return made.combine(made.product(x, scale), scale, y, previous, a, b, c)


def volume(context: Context, g: int) -> Any:
    known = _component_vectors(context, g, None)
    held = np.unique(known.label)
    return held, known.volume[held]


def coefficients(context: Context, g: int, y: Any) -> Any:
    return known_of(context, g).coefficients(y)


def subtract(context: Context, g: int, y: Any, held: Any, coefficient: Any) -> Any:
    """The components that a chunk holds may be few of many, so only theirs are sent."""
    known = known_of(context, g)
    whole = np.zeros((known.count, y.shape[1]))
    whole[held] = coefficient
    out = buffers.empty(y.shape, y.dtype)
    np.copyto(out, y)
    return known.subtract(out, whole)


def gram(x: Any, y: Any) -> Any:
    return sum(
        x[a : a + 16384].astype(np.float64).T @ y[a : a + 16384].astype(np.float64) for a in range(0, len(x), 16384)
    )


def rotate(y: Any, C: Any) -> Any:
    return np.matmul(y, C.astype(np.float32), out=buffers.empty((len(y), C.shape[1]), np.float32))


def columns(y: Any, a: int, b: int) -> Any:
    out = buffers.empty((len(y), b - a), y.dtype)
    np.copyto(out, y[:, a:b])
    return out


def side_by_side(*parts: Any) -> Any:
    out = buffers.empty((len(parts[0]), sum(part.shape[1] for part in parts)), parts[0].dtype)
    return np.concatenate(parts, axis=1, out=out)


def nothing(y: Any) -> None:
    """A task that is done when y is there."""


def residual_squares(Ly: Any, y: Any, values: Any) -> Any:
    return np.square((Ly - y * values.astype(np.float32)).astype(np.float64)).sum(axis=0)


def store_rows(context: Context, g: int, y: Any, kept: int) -> Any:
    """Store the first columns of chunk g by partition; returns the sums of their entries in the pairs' own basis."""
    first, last = chunk_partitions(context)[g]
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    vectors = np.ascontiguousarray(y[:, :kept])
    for b in range(first, last):
        rows = vectors[offsets[b] - offsets[first] : offsets[b + 1] - offsets[first]]
        context.store.write(context.folders["eigen"], part_name(b), {"vectors": rows}, {})
    return _units(context, np.arange(offsets[first], offsets[last])) @ vectors.astype(np.float64)


def keep_rows(context: Context, g: int, name: str, y: Any) -> None:
    context.store.write(context.folders["eigen"], f"{name}-c{g:06d}", {"state": y}, {})


def kept_rows(context: Context, g: int, name: str) -> Any:
    return context.store.read(context.folders["eigen"], f"{name}-c{g:06d}", "state")


HELD = (
    volume, random_rows, start_rows, take, product, coefficients, subtract, gram, rotate, columns, side_by_side,
    nothing, residual_squares, store_rows, keep_rows, kept_rows,
)  # fmt: skip
"""The tasks of a solve: a chunk's owner has what they need."""


def _name(function: Callable[..., Any], g: int) -> str:
    return f"eigen-{function.__name__}-{g}"


def settle(context: Context, executor: Executor) -> list[int]:
    """Give the chunks to the workers, neighbours to the same, with about as many pairs to each; a number for each
    worker's."""
    pairs = np.diff(rows_of_chunks(context)).tolist()
    return executor.settle([(KIND, g) for g in range(len(pairs))], pairs)


class ChunkedSpace:
    """What the solver does with block vectors, as tasks on chunks; only small matrices come to this process.

    Parameters
    ----------
    context : Context
    executor : Executor
    width : int
        Columns of a block.
    """

    def __init__(self, context: Context, executor: Executor, width: int) -> None:
        self._chunks = range(len(chunk_partitions(context)))
        receipts = [context.receipt("tensor", f"chunk-{part_name(g)}") for g in self._chunks]
        # of its operators a worker keeps what is its share, with scales, rows and component vectors, and somewhat more
        # where shares differ: what goes for lack of room is made anew in each product
        kept = sum(_operator_bytes(context, r) + REMEMBERED * r["facts"]["cuts"][-1] for r in receipts if r)
        context = dataclasses.replace(context, kept=kept * 5 // (4 * max(1, executor.n_workers)))
        self.context, self._executor = context, executor
        self._shared = executor.share(context)
        self.n = rows_of_chunks(context)[-1]
        self._columns, self._panels = width, panels_of(self.n, width, "chunked")
        self.whole_products = self._panels == 1
        executor.hold([f"eigen-{function.__name__}" for function in HELD])
        self._homes = Homes((), np.array([np.diff(r["facts"]["cuts"]) for r in receipts if r]))
        self._settle()
        self.volumes = np.zeros(pair_components(context).large)
        for held, part in self._results(lambda g: self._task(volume, g)):
            self.volumes[held] += part
        if context.receipt("eigen", "volumes") is None:  # read by the workers
            context.store.write(context.folders["eigen"], "volumes", {"volumes": self.volumes}, {})

    def _settle(self) -> None:
        """Give the chunks to the workers there are: some may have gone or come."""
        of = tuple(settle(self.context, self._executor))
        if of != self._homes.of:
            self._homes = dataclasses.replace(self._homes, of=of)
            self._told_homes = self._executor.share(self._homes)

    def _task(self, function: Any, g: int, *arguments: Any, near: Any = None, first: bool = False) -> Any:
        """Start a task on chunk g, by its owner unless it is to be done where something else is."""
        near = (KIND, g) if near is None else near
        return self._executor.submit(_name(function, g), function, self._shared, g, *arguments, near=near, first=first)

    def _plain(self, function: Any, g: int, *arguments: Any) -> Any:
        """The same, without the context and the chunk's number."""
        return self._executor.submit(_name(function, g), function, *arguments, near=(KIND, g))

    def _each(self, task: Callable[[int], Any]) -> list[Any]:
        """A task of every chunk, sent together; their handles."""
        with self._executor.together():
            return [task(g) for g in self._chunks]

    def _results(self, task: Callable[[int], Any]) -> list[Any]:
        """What the tasks of all chunks return."""
        return self._executor.results(self._each(task))

    def keep(self, y: Block, name: str) -> None:
        """Store a block under a name."""
        self._results(lambda g: self._task(keep_rows, g, name, y[g]))

    def kept(self, name: str, near: Block | None = None) -> Block:
        """A stored block, each chunk where that of ``near`` is; it forgets how it was computed."""
        return self._each(lambda g: self._task(kept_rows, g, name, near=None if near is None else near[g]))

    def random(self, columns: int, seed: int) -> Block:
        """A block of standard normal columns that depends on the seed alone."""
        return self._each(lambda g: self._task(random_rows, g, columns, seed))

    def start(self) -> Block:
        """The start that the sample graph gives."""
        return self._each(lambda g: self._task(start_rows, g))

    def apply(self, y: Block) -> Block:
        """The operator's product with a block."""
        return self.recur(y, None, 1.0, 0.0, 0.0)

    def recur(self, y: Block, previous: Block | None, a: float, b: float, c: float) -> Block:
        """a L y + b y + c previous; ``previous`` is given up."""
        homes = self._homes
        taken: dict[tuple[int, int], Any] = {}

        def of_chunk(g: int) -> Any:
            others = []
            for h in homes.near(g):
                home = homes.of[g]
                if homes.of[h] != home and (h, home) not in taken:
                    taken[h, home] = self._task(take, h, home, self._told_homes, y[h], first=True)
                others.append(y[h] if homes.of[h] == home else taken[h, home])
            before = None if previous is None else previous[g]
            return self._task(product, g, self._told_homes, y[g], others, before, a, b, c)

        out = self._each(of_chunk)
        if previous is not None:
            previous.clear()
        return out

    def split(self, y: Block) -> list[Block]:
        """Panels of the columns where they are large; ``y`` is given up. Before a filter chunks may go elsewhere."""
        self._settle()
        if self._panels == 1:
            return [y]
        bounds = panel_bounds(self._columns, self._panels)
        parts = self._each(lambda g: [self._plain(columns, g, y[g], a, b) for a, b in bounds])
        y.clear()
        return [list(panel) for panel in zip(*parts, strict=True)]

    def finish(self, panel: Block) -> Block:
        """The panel when it is there: else its chunks and those of the next would be worked on, and held, by turns."""
        if self._panels > 1:
            self._results(lambda g: self._plain(nothing, g, panel[g]))
        return panel

    def join(self, parts: list[Block]) -> Block:
        """The block of these panels; they are given up."""
        if len(parts) == 1:
            return parts.pop()
        out = self._each(lambda g: self._plain(side_by_side, g, *(part[g] for part in parts)))
        parts.clear()
        return out

    def deflate(self, y: Block) -> Block:
        """The block without its part in the span of the known eigenvectors; ``y`` is given up."""
        parts = self._results(lambda g: self._task(coefficients, g, y[g]))
        coefficient = np.zeros((len(self.volumes), parts[0][1].shape[1]))
        for held, part in parts:
            coefficient[held] += part
        return self._replace(y, lambda g: self._task(subtract, g, y[g], parts[g][0], coefficient[parts[g][0]]))

    def _replace(self, y: Block, task: Callable[[int], Any]) -> Block:
        """New handles for old ones, which are let go: each chunk when its successor is there."""
        out = self._each(task)
        y.clear()
        return out

    def gram(self, x: Block, y: Block) -> Float64:
        """x' y, summed in float64 in the order of the chunks."""
        return np.sum(self._results(lambda g: self._plain(gram, g, x[g], y[g])), axis=0)

    def rotate(self, y: Block, C: Float64) -> Block:
        """y C; ``y`` is given up."""
        return self._replace(y, lambda g: self._plain(rotate, g, y[g], C))

    def residuals(self, Ly: Block, y: Block, values: Float64) -> Float64:
        """Norms of the columns of L y - y diag(values)."""
        return np.sqrt(np.sum(self._results(lambda g: self._plain(residual_squares, g, Ly[g], y[g], values)), axis=0))

    def write(self, y: Block, kept: int) -> Float64:
        """Store the first ``kept`` columns; returns the sums of their entries in the pairs' own basis."""
        return np.sum(self._results(lambda g: self._task(store_rows, g, y[g], kept)), axis=0)

"""The space of block vectors in chunks: the solver's block algebra as rounds of operations on the workers.

Only small matrices come to the process of the solver. `ips2_dask.stages.block_rounds` sends the rounds,
`ips2_dask.stages.block_operator` explains chunks and panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor
from ips2_dask.kernels import warm_start
from ips2_dask.kernels.eigen import Float64, Progress, panel_bounds, panels_of, panels_on_scratch
from ips2_dask.plan import memory_chunked
from ips2_dask.plan.sizes import Sizes
from ips2_dask.stages import resident_blocks as blocks
from ips2_dask.stages.block_copies import CopiedBlocks
from ips2_dask.stages.block_operator import (
    Float32,
    chunk_bounds,
    chunk_partitions,
    degrees_at,
    pairs_at,
    units_at,
)
from ips2_dask.stages.block_rounds import Block
from ips2_dask.stages.chunk_rows import ROWS
from ips2_dask.stages.views import unit
from ips2_dask.store.context import Context, part_name

STEPS = (3, 12)
"""Products of one round, at least and at most: after each round a solve may be stored, and goes on from there when a
worker is lost."""

ROUND_ENTRIES = 1 << 28
"""Entries of a block that a worker multiplies in one round, within the limits of `STEPS`: about a second of work.
Sending a round through client and scheduler takes some 10 ms, as long as a product of a small block (measured)."""

SCALE_BYTES, PLACE_BYTES, KNOWN_BYTES = 4, 4, 12
"""Bytes that a worker keeps beside its operators: of each row that a chunk touches its scale, of those of other chunks
its place, of those of its own the known vector's entry and component."""


# ---- what a chunk's rows are made of


def random_block(context: Context, g: int, n_rows: int, columns: int, seed: int) -> Float32:
    """Standard normal entries that depend on the seed and the chunk: (n_rows, columns) float32."""
    del context
    return np.random.default_rng([seed, g]).standard_normal((n_rows, columns), np.float32)


def start_block(context: Context, g: int) -> Float32:
    """The pairs' start on chunk g, from the stored start on samples: (n_g, columns) float32."""
    low, high = chunk_bounds(context)[g : g + 2]
    rows = np.arange(low, high)
    pairs = pairs_at(context, rows)
    root = np.sqrt(degrees_at(context, rows)) * unit(pairs)
    samples, local = np.unique(pairs, return_inverse=True)
    w = np.asarray(context.rows_of("eigen", "start", samples, "start-", remember=False))
    block: Float32 = warm_start.start_on_pairs(w, local.reshape(pairs.shape).astype(np.int32), root)
    return block


def store_vectors(context: Context, g: int, n_vectors: int, y: Float32) -> Float64:
    """Store the first columns of chunk g's block of pairs (n_g, columns) by partition.

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


# ---- checkpoints


def checkpoint_part(name: str, g: int) -> str:
    """The part that has chunk g's block of the checkpoint ``name``."""
    return f"{name}-c{g:06d}"


def previous_of(name: str) -> str:
    """The name of the block before the last product of a panel, in the checkpoint ``name``."""
    return f"{name}-previous"


def store_state(context: Context, g: int, stage: str, name: str, y: Float32) -> None:
    """Store chunk g's block (n_g, columns) of a checkpoint in place of an earlier one."""
    folder, part = context.folders[stage], checkpoint_part(name, g)
    context.store.drop(folder, part)
    context.store.write(folder, part, {"state": y}, {})


def read_state(context: Context, g: int, stage: str, name: str) -> Float32:
    """The stored block of chunk g of a checkpoint: (n_g, columns) float32."""
    return context.store.read(context.folders[stage], checkpoint_part(name, g), "state")


# ---- the space


class ChunkedSpace(CopiedBlocks):
    """Block vectors in chunks on the workers: a `ips2_dask.kernels.eigen.Space`.

    Parameters
    ----------
    context : Context
    executor : Executor
    width : int
        Columns of a block vector.
    rows : {"pairs", "graph", "fused"}
        What its rows are.
    stage : str
        The stage whose tasks the rounds are.
    scratch : bool, optional
        Whether blocks lie in files of the workers, but for the panel that is being multiplied; None has them there
        where the plan finds the memory too small for them, of the workers that are there at a `reopen`. It changes no
        result.
    streams : bool, optional
        Whether the panel that is being multiplied lies there too, and operators are read for each product; None has it
        so where the memory is too small for one panel.
    copies : bool, optional
        Whether workers keep copies of one another's blocks; None has them do so where the plan finds it worth its
        memory.
    wide : bool, optional
        Whether blocks in memory are filtered as a whole; None has it in as few panels as the plan finds memory for.
    short_rounds : bool, optional
        Whether every round has the fewest products. `ips2 bench cluster` asks for it, since its small blocks stand for
        large ones.

    Attributes
    ----------
    n : int
        Rows of a block vector.
    volumes : (components,) float64
        Volume of each connected component.
    whole_products : bool
        As of `Space`.
    panels, panels_in_memory : int
        In how many panels a block is filtered, and in how many parts one in memory is kept. There are fewer panels than
        parts where the plan finds the memory for wide ones.
    steps : int
        Products of a panel that were asked for so far, those that were made again after a loss as well.

    Raises
    ------
    BlocksLost
        By every method, when a worker is lost: `reopen` makes an empty space on the workers that are there then.
    """

    def __init__(
        self,
        context: Context,
        executor: Executor,
        width: int,
        rows: str = "pairs",
        stage: str = "eigen",
        *,
        scratch: bool | None = None,
        streams: bool | None = None,
        copies: bool | None = None,
        wide: bool | None = None,
        short_rounds: bool = False,
    ) -> None:
        self.n = ROWS[rows].bounds(context)[-1]
        self._columns, self.panels_in_memory = width, panels_of(self.n, width, "chunked")
        self.whole_products = self.panels_in_memory == 1
        self.panels = self._parts = self.panels_in_memory
        self.steps = 0
        super().__init__(context, executor, rows, stage)
        self._asked, self._streams_asked, self._copies_asked, self._wide_asked = scratch, streams, copies, wide
        self._short_rounds = short_rounds

    def reopen(self) -> None:
        """As of `ChunkedBlocks`; where blocks lie is decided anew, and the known eigenvectors are learnt anew."""
        super().reopen()
        self.volumes = np.zeros(self._kind.n_components(self.context))
        for components, volumes in self._run(blocks.ComponentVolumes()):
            self.volumes[components] += volumes
        self._queue.append(blocks.TakeVolumes(self.volumes))

    def _choose_place(self) -> None:
        """As of `ChunkedBlocks`: by the memory that the rows and operators that are there need."""
        sizes, solve = self._counted()
        needed = solve.needs_scratch(sizes) if self._asked is None else self._asked
        copies = solve.makes_copies(sizes) if self._copies_asked is None else self._copies_asked
        streams = solve.needs_streaming(sizes) if self._streams_asked is None else self._streams_asked
        self._scratch, self._streams, self.makes_copies = needed, needed and streams, copies and not needed
        # a product has the same bits whatever the panel, as long as its rows are whole vectors; what sums over rows
        # has not, and goes by the parts
        self._parts = panels_on_scratch(self.n, self._columns) if needed else self.panels_in_memory
        self.panels = self._parts
        if not needed and self._wide_asked is not False:
            self.panels = 1 if self._wide_asked else solve.filter_panels(sizes)

    def _counted(self) -> tuple[Sizes, memory_chunked.Solve]:
        """The plan's model of this solve, with the rows and operators that the workers have."""
        context, executor = self.context, self._executor
        sizes = Sizes(
            context.m, context.n_features, context.params, context.choices, context.bounds, executor.n_workers,
            executor.worker_memory(),
        )  # fmt: skip
        owners, touched = np.array(self._owners), np.stack(self._touched)
        apart = owners[:, None] != owners
        foreign = touched * apart
        own = np.diff(self._bounds)
        # rows that chunks of one worker both touch count twice here, so that these are most of those exchanged
        received, sent = np.bincount(owners, foreign.sum(axis=1)), np.bincount(owners, foreign.sum(axis=0))
        operators = np.array(self._kind.operator_bytes(context))
        remembered = SCALE_BYTES * touched.sum(axis=1) + PLACE_BYTES * (touched.sum(axis=1) - own) + KNOWN_BYTES * own
        spread = memory_chunked.Spread(
            float(np.bincount(owners, own).max() / self.n), int(max(received.max(), sent.max())),
            int(touched.sum(axis=1).max()),
        )  # fmt: skip
        solve = memory_chunked.Solve(
            self._rows, self.n, int(own.max()), self._columns, int(np.bincount(owners, operators + remembered).max()),
            spread,
        )  # fmt: skip
        return sizes, solve

    def _widths(self, columns: int) -> tuple[int, ...]:
        """Columns of the parts of a block: of several where it is of the width of the iteration."""
        return _widths(columns, self._parts if columns == self._columns else 1)

    def _parks(self, block: Block) -> bool:
        """Whether a block goes into files."""
        return self._scratch and block.columns >= self._columns

    def _make(
        self, columns: int, function: Callable[..., Float32], arguments: Callable[[int], tuple[Any, ...]]
    ) -> Block:
        """A block whose rows a function makes of the context, a chunk and arguments."""
        block = self._new(self._widths(columns))
        of_chunks = [arguments(g) for g in self._chunks]
        self._queue.append(blocks.Make(block.names, block.widths, function, of_chunks, self._parks(block)))
        return block

    # ---- checkpoints

    def store_checkpoint(self, y: Block, name: str, previous: Block | None = None) -> None:
        """Store a block vector, and a panel's ``previous`` one, under the name of a checkpoint, and wait for it."""
        if previous is not None:
            self._queue.append(blocks.Apply(store_state, (self._stage, previous_of(name)), previous.names))
        self._run(blocks.Apply(store_state, (self._stage, name), y.names))

    def read_checkpoint(self, name: str) -> Block:
        """A stored block vector."""
        return self._make(self._columns, read_state, lambda g: (self._stage, name))

    def read_panel(self, name: str, panel: int) -> Block:
        """A panel's stored ``previous`` block."""
        block = self._new(_widths(self._columns, self.panels)[panel : panel + 1])
        arguments = [(self._stage, previous_of(name))] * len(self._chunks)
        self._queue.append(blocks.Make(block.names, block.widths, read_state, arguments, self._scratch))
        return block

    # ---- as of `Space`

    def random(self, columns: int, seed: int) -> Block:
        """As of `Space`."""
        return self._make(columns, random_block, lambda g: (self._bounds[g + 1] - self._bounds[g], columns, seed))

    def start(self) -> Block:
        """The pairs' start, from the stored eigenvectors of the sample graph."""
        return self._make(self._columns, start_block, lambda g: ())

    def apply(self, y: Block) -> Block:
        """As of `Space`."""
        return self.recur(y, None, 1.0, 0.0, 0.0)

    def recur(self, y: Block, previous: Block | None, a: float, b: float, c: float) -> Block:
        """As of `Space`; of blocks in files only the panel that is being multiplied is in memory."""
        result = self._new(y.widths)
        before = [None] * len(y.names) if previous is None else list(previous.names)
        for new, old, last in zip(result.names, y.names, before, strict=True):
            step = blocks.Step(new, old, last, a, b, c)
            loaded = self._scratch and not self._streams
            self._queue += [blocks.Load((old,)), step, blocks.Unload((old,))] if loaded else [step]
            self.steps += 1
        return result

    def filter(self, y: Block, steps: Sequence[tuple[float, float, float]], progress: Progress | None = None) -> Block:
        """As of `Space`: panel by panel, in rounds of several products."""
        columns = y.columns
        y = self._divided(y, _widths(columns, self.panels))
        parts, y = self.split(y), None  # type: ignore[assignment]
        first, done = (0, 0) if progress is None else (progress.panel, progress.step)
        for number in range(first, len(parts)):
            current, previous = parts[number], None
            if done and progress is not None:
                previous = progress.previous
            count = self._steps(current.columns)
            for low in range(done, len(steps), count):
                for a, b, c in steps[low : low + count]:
                    previous, current = current, self.recur(current, previous, a, b, c)
                parts[number] = current
                if low + count < len(steps):
                    self._run(blocks.Drop(()))
                    if progress is not None:
                        progress.store(self.join(list(parts)), previous, number, low + count)
            previous, done = None, 0
            self._run(blocks.Drop(()))
        return self._divided(self.join(parts), self._widths(columns))

    def _divided(self, y: Block, widths: tuple[int, ...]) -> Block:
        """The block with its columns in other parts; ``y`` is given up."""
        if y.widths == widths:
            return y
        result = self._new(widths)
        self._queue.append(blocks.Divide(result.names, result.widths, y.names))
        return result

    def _steps(self, columns: int) -> int:
        """Products of one round of a panel with so many columns."""
        entries = max(1, self.n * columns // len(self._first_chunks))
        return STEPS[0] if self._short_rounds else min(max(ROUND_ENTRIES // entries, STEPS[0]), STEPS[1])

    def split(self, y: Block) -> list[Block]:
        """As of `Space`."""
        return [Block([panel]) for panel in y.panels]

    def join(self, parts: list[Block]) -> Block:
        """As of `Space`."""
        return Block([panel for part in parts for panel in part.panels])

    def deflate(self, y: Block) -> Block:
        """As of `Space`."""
        parts = self._run(blocks.Coefficients(y.names))
        coefficients = np.zeros((len(self.volumes), y.columns))
        for components, products in parts:
            coefficients[components] += products

        def subtract(owner: int) -> blocks.Operation:
            some = {g: (parts[g][0], coefficients[parts[g][0]]) for g in self._team.chunks(owner)}
            return blocks.Subtract(y.names, y.widths, some, self._parks(y))

        self._queue.append(subtract)
        return y

    def gram(self, x: Block, y: Block) -> Float64:
        """As of `Space`: summed in the order of the chunks."""
        return _sum(self._run(blocks.Gram(x.names, y.names)))

    def rotate(self, y: Block, C: Float64) -> Block:
        """As of `Space`."""
        result = self._new(self._widths(C.shape[1]))
        self._queue.append(blocks.Rotate(result.names, result.widths, y.names, C, self._parks(result)))
        return result

    def residuals(self, Ly: Block, y: Block, values: Float64) -> Float64:
        """As of `Space`."""
        return np.sqrt(_sum(self._run(blocks.ResidualSquares(Ly.names, y.names, values))))

    # ---- results

    def store_vectors(self, y: Block, n_vectors: int) -> Float64:
        """Store the first columns as eigenvectors of pairs; returns `store_vectors` of all chunks: (n_vectors,)."""
        return _sum(self.for_each(y, store_vectors, n_vectors))


def _widths(columns: int, panels: int) -> tuple[int, ...]:
    """Columns of each panel."""
    return tuple(b - a for a, b in panel_bounds(columns, panels))


def _sum(parts: Sequence[NDArray[np.float64]]) -> Float64:
    """The sum of the chunks' arrays."""
    total: Float64 = np.sum(parts, axis=0)
    return total

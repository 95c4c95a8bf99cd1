"""Chunks of samples: runs of consecutive samples whose rows of a block vector are one array; blocks that are stored.

Chunks are cut on a grid that follows the number of samples alone, and sums over samples are made by blocks of this
grid. So results are the same bits for any chunks, partitions and workers, and where all samples are one chunk.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle, SerialExecutor
from ips2_dask.kernels.eigen import Block, State
from ips2_dask.kernels.parallel import whole_blocks
from ips2_dask.store.base import MemoryStore, present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float32, Int64

CHUNK_KIND = "chunks"
"""The kind of chunks as items of a job."""

START = "start-"
"""Prefix of the parts of stage ``eigen`` that have rows of the sample graph's vectors, by piece."""

SHARE = 10
"""A state in core is stored once the solve has gone on for so many times as long as storing the last one took."""


def is_chunked(context: Context) -> bool:
    """Whether block vectors of samples are in chunks on the workers; else all samples are one, in this process."""
    return context.choices.vectors == "chunked"


def of_chunks(context: Context, executor: Executor) -> Executor:
    """What runs tasks of chunks: the executor, or this process where all samples are one chunk."""
    return executor if is_chunked(context) else SerialExecutor()


def sample_bounds(context: Context) -> list[int]:
    """First sample of each chunk, and the number of samples."""
    m = context.m
    rows = whole_blocks(m, context.choices.chunk_samples) if is_chunked(context) else m
    return [*range(0, m, rows), m]


def n_chunks(context: Context) -> int:
    """How many chunks there are."""
    return len(sample_bounds(context)) - 1


def _piece_bounds(context: Context) -> list[int]:
    """Limits of partitions and of chunks: what a chunk's task stores and a partition's reads is cut at both."""
    return sorted({*context.bounds, *sample_bounds(context)})


def parts(context: Context, *prefixes: str) -> list[str]:
    """The parts by piece with these prefixes."""
    return [prefix + part_name(n) for prefix in prefixes for n in range(len(_piece_bounds(context)) - 1)]


def write_rows(context: Context, g: int, stage: str, prefix: str, name: str, values: AnyArray) -> dict[str, Receipt]:
    """Store an array of chunk g's rows in its pieces; returns their receipts by part."""
    bounds, (first, last) = _piece_bounds(context), sample_bounds(context)[g : g + 2]
    written = {}
    for n in range(bisect_left(bounds, first), bisect_left(bounds, last)):
        part, rows = prefix + part_name(n), values[bounds[n] - first : bounds[n + 1] - first]
        written[part] = context.store.write(context.folders[stage], part, {name: np.ascontiguousarray(rows)}, {})
    return written


def rows_at(context: Context, stage: str, name: str, samples: NDArray[np.integer], prefix: str) -> AnyArray:
    """Rows of an array that is stored by piece, at ascending samples."""
    return context.rows_of(stage, name, samples, prefix, bounds=_piece_bounds(context))


def partitions_of(context: Context, g: int) -> range:
    """The partitions that have samples of chunk g."""
    low, high = sample_bounds(context)[g : g + 2]
    first, last = context.owner(np.array([low, high - 1])).tolist()
    return range(first, last + 1)


def user_numbers(context: Context, g: int) -> Int64:
    """The user's numbers of chunk g's samples."""
    (low, high), own = sample_bounds(context)[g : g + 2], partitions_of(context, g)
    numbers = np.concatenate([np.asarray(context.user_numbers(b)) for b in own]).astype(np.int64)
    first = context.bounds[own[0]]
    return numbers[low - first : high - first]


# ---- blocks that are stored


def _block_part(place: str, g: int) -> str:
    """The part that has chunk g's rows of a stored block."""
    return f"{place}-c{g:06d}"


def _block_parts(context: Context, *places: str) -> list[str]:
    """The parts of all chunks of stored blocks."""
    return [_block_part(place, g) for place in places for g in range(n_chunks(context))]


def checkpoint_parts(context: Context, name: str) -> list[str]:
    """The parts of the `Checkpoints` of a name."""
    places = f"{name}0", f"{name}1"
    return [*places, *_block_parts(context, *places)]


def _store_rows(context: Context, g: int, y: Float32, stage: str, place: str) -> Receipt:
    """Store chunk g's rows (n_g, columns) of a block in place of earlier ones; returns their receipt."""
    folder, part = context.folders[stage], _block_part(place, g)
    context.store.drop(folder, part)
    return context.store.write(folder, part, {"state": y}, {})


def read_rows(context: Context, g: int, stage: str, place: str) -> Float32:
    """Chunk g's stored rows of a block: (n_g, columns) float32."""
    return context.store.read(context.folders[stage], _block_part(place, g), "state")


class StoredBlocks:
    """Stores block vectors in chunks, in the folder of a stage, and gives blocks that are read from there.

    The scheduler knows every task that a block descends from for as long as it knows the block, and a worker that is
    lost has them computed again. A block that is read from the store descends from nothing.
    """

    def __init__(self, context: Context, stage: str, executor: Executor) -> None:
        self._context, self._stage, self._executor = context, stage, executor
        self._shared = executor.share(context)
        self._turns: dict[str, int] = {}

    def _each(self, function: Callable[..., object], place: str, n: int, *blocks: list[Handle]) -> list[Handle]:
        name, shared = f"{self._stage}-{function.__name__}", [self._shared] * n
        return self._executor.each(name, function, shared, range(n), *blocks, also=(self._stage, place))

    def store(self, place: str, y: list[Handle]) -> None:
        """Store a block under a name, in place of the one that has it."""
        receipts = self._executor.results(self._each(_store_rows, place, len(y), y))
        self._context.cache_receipts(self._stage, [{_block_part(place, g): one} for g, one in enumerate(receipts)])

    def read(self, place: str, n_chunks: int) -> list[Handle]:
        """The block that is stored under a name."""
        return self._each(read_rows, place, n_chunks)

    def renewed(self, name: str, blocks: list[list[Handle]]) -> list[list[Handle]]:
        """The same blocks, read from where they are stored now.

        Two places are used in turn: what is replaced must not be what a block that is being stored is computed from.
        """
        turn = self._turns[name] = 1 - self._turns.get(name, 1)
        places = [f"{name}-{turn}-{i}" for i in range(len(blocks))]
        for place, y in zip(places, blocks, strict=True):
            self.store(place, y)
        return [self.read(place, len(y)) for place, y in zip(places, blocks, strict=True)]

    def drop(self, names: Iterable[str], n_chunks: int) -> None:
        """Delete what renewed blocks of these names were read from, in an earlier run that was stopped, too."""
        places = [f"{name}-{turn}-{i}" for name in names for turn in (0, 1) for i in (0, 1)]
        parts = [_block_part(place, g) for place in places for g in range(n_chunks)]
        self._context.store.drop_many(self._context.folders[self._stage], parts)


class Checkpoints:
    """The state of a solve after a filter, stored beside its results: decides when, and finds the latest one.

    Two checkpoints are written in turn, so that one is always whole: a checkpoint's receipt is written last. In core,
    without ``blocks``, a state waits until storing it takes no large share of the time. In chunks each one is stored,
    and the solve goes on from what is stored: a worker that is lost takes away no more than what followed it.
    """

    def __init__(self, context: Context, stage: str, blocks: StoredBlocks | None = None, name: str = "state") -> None:
        self._context, self._stage, self._blocks = context, stage, blocks
        self._store, self._folder = context.store, context.folders[stage]
        self._places, self._next = (f"{name}0", f"{name}1"), 0
        self._ended, self._took = time.perf_counter(), 0.0

    def keep(self, state: State) -> None:
        """Store a state, unless that would take too much of the time, or the run's store is in memory."""
        begun = time.perf_counter()
        wait = SHARE * self._took if self._blocks is None else 0.0
        if isinstance(self._store, MemoryStore) or begun - self._ended < wait:
            return
        place, self._next = self._places[self._next], 1 - self._next
        self._store.drop(self._folder, place)  # before its parts are replaced
        arrays = {"state_values": state.values, "state_residuals": state.residuals}
        if self._blocks is None:
            arrays["state"] = state.y
        else:
            self._blocks.store(place, state.y)
        facts = {"low": state.low, "products": state.products, "history": state.history}
        self._store.write(self._folder, place, arrays, facts)
        self._took = time.perf_counter() - begun
        if self._blocks is not None:
            state.y = self._blocks.read(place, len(state.y))
        self._ended = time.perf_counter()

    def latest(self) -> State | None:
        """The last state that was stored whole, or None."""
        stored = ((place, self._context.receipt(self._stage, place)) for place in self._places)
        receipts = {place: r for place, r in stored if r is not None and self._is_whole(place)}
        if not receipts:
            return None
        place = max(receipts, key=lambda name: (receipts[name]["facts"]["products"], name))
        self._next = 1 - self._places.index(place)
        values, residuals = (self._store.read(self._folder, place, f"state_{name}") for name in ("values", "residuals"))
        y: Block
        if self._blocks is None:
            y = self._store.read(self._folder, place, "state")
        else:
            y = self._blocks.read(place, n_chunks(self._context))
        return State(y, values, residuals, **receipts[place]["facts"])

    def _is_whole(self, place: str) -> bool:
        """Whether all of a state's blocks are there: one that was damaged has been dropped."""
        names = [] if self._blocks is None else _block_parts(self._context, place)
        return len(present(self._store, self._folder, names)) == len(names)

    def drop(self) -> None:
        """Delete what is stored, which only a solve that goes on needs."""
        self._store.drop_many(self._folder, list(self._places))
        if self._blocks is not None:
            self._store.drop_many(self._folder, _block_parts(self._context, *self._places))

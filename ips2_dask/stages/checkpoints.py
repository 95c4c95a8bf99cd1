"""Checkpoints of a solve: its state after a filter, stored beside its results and deleted after them.

Two checkpoints are written in turn, so that one is always whole: a checkpoint's receipt is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels.eigen import State
from ips2_dask.stages.chunks import n_chunks
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float32

PLACES = ("state0", "state1")
"""Names of the two checkpoints."""

SHARE = 10
"""A state in core is stored once the solve has gone on for so many times as long as storing the last one took."""


class _Checkpoints:
    """Decides when a state is stored, and finds the latest one that was.

    Parameters
    ----------
    context : Context
    stage : str
        In whose folder they are.
    share : float
        A state is stored once the solve has gone on for so many times as long as storing the last one took.
    clock : callable, optional
        Gives the time, in place of this machine's clock.
    """

    def __init__(
        self, context: Context, stage: str, share: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._context, self._stage, self._next, self._clock, self._share = context, stage, 0, clock, share
        self._ended, self._took = clock(), 0.0

    def keep(self, state: State) -> None:
        """Store a state, unless that would take too much of the time, or the run's store is in memory."""
        begun = self._clock()
        if isinstance(self._context.store, MemoryStore) or begun - self._ended < self._share * self._took:
            return
        place, self._next = PLACES[self._next], 1 - self._next
        store, folder = self._context.store, self._context.folders[self._stage]
        store.drop(folder, place)  # before its parts are replaced
        arrays = {"state_values": state.values, "state_residuals": state.residuals, **self._store_block(place, state)}
        facts = {"low": state.low, "products": state.products, "history": state.history}
        store.write(folder, place, arrays, facts)
        self._took = self._clock() - begun
        self._stored(place, state)
        self._ended = self._clock()

    def latest(self) -> State | None:
        """The last state that was stored whole, or None."""
        receipts = {place: r for place in PLACES if (r := self._context.receipt(self._stage, place)) is not None}
        if not receipts:
            return None
        place = max(receipts, key=lambda name: (receipts[name]["facts"]["products"], name))
        self._next = 1 - PLACES.index(place)
        store, folder = self._context.store, self._context.folders[self._stage]
        values, residuals = (store.read(folder, place, f"state_{name}") for name in ("values", "residuals"))
        state = State(None, values, residuals, **receipts[place]["facts"])
        self._read_block(place, state)
        return state

    def _store_block(self, place: str, state: State) -> Mapping[str, AnyArray]:
        """Store a state's block vector; returns the arrays of it that belong into the checkpoint's own part."""
        raise NotImplementedError

    def _stored(self, place: str, state: State) -> None:
        """Do what can be done once a state is stored."""

    def _read_block(self, place: str, state: State) -> None:
        """Set the block vector of a state that was stored."""
        raise NotImplementedError


class InCore(_Checkpoints):
    """Checkpoints of a solve whose block vectors are arrays of this process: (P, columns)."""

    def __init__(self, context: Context, share: float = SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(context, "eigen", share, clock)

    def _store_block(self, place: str, state: State) -> Mapping[str, AnyArray]:
        del place
        return {"state": state.y}

    def _read_block(self, place: str, state: State) -> None:
        state.y = self._context.store.read(self._context.folders[self._stage], place, "state")


def block_part(place: str, g: int) -> str:
    """The part that has chunk g's rows of a stored block."""
    return f"{place}-c{g:06d}"


def _store_rows(context: Context, g: int, stage: str, place: str, y: Float32) -> Receipt:
    """Store chunk g's rows (n_g, columns) of a block in place of earlier ones; returns their receipt."""
    folder, part = context.folders[stage], block_part(place, g)
    context.store.drop(folder, part)
    return context.store.write(folder, part, {"state": y}, {})


def read_rows(context: Context, g: int, stage: str, place: str) -> Float32:
    """Chunk g's stored rows of a block: (n_g, columns) float32."""
    return context.store.read(context.folders[stage], block_part(place, g), "state")


class StoredBlocks:
    """Stores block vectors in chunks, and gives blocks that are read from there.

    The scheduler knows every task that a block descends from for as long as it knows the block, and a worker that is
    lost has them computed again. A block that is read from the store descends from nothing.

    Parameters
    ----------
    context : Context
    stage : str
        In whose folder they are.
    executor : Executor
    """

    def __init__(self, context: Context, stage: str, executor: Executor) -> None:
        self._context, self._stage, self._executor = context, stage, executor
        self._shared = executor.share(context)
        self._turns: dict[str, int] = {}

    def _each(self, function: Callable[..., object], place: str, n: int, y: list[Handle] | None = None) -> list[Handle]:
        name = f"{self._stage}-{function.__name__}"
        with self._executor.batch():
            return [
                self._executor.submit(
                    f"{name}-{g}", function, self._shared, g, self._stage, place, *(() if y is None else (y[g],))
                )
                for g in range(n)
            ]

    def store(self, place: str, y: list[Handle]) -> None:
        """Store a block under a name, in place of the one that has it."""
        receipts = self._executor.results(self._each(_store_rows, place, len(y), y))
        self._context.cache_receipts(self._stage, [{block_part(place, g): one} for g, one in enumerate(receipts)])

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
        parts = [block_part(place, g) for place in places for g in range(n_chunks)]
        self._context.store.drop_many(self._context.folders[self._stage], parts)


class Chunked(_Checkpoints):
    """Checkpoints of the solve for U in chunks: each state is stored, and the solve goes on from what is stored.

    So a worker that is lost takes away no more than what followed the last state.
    """

    def __init__(self, context: Context, blocks: StoredBlocks, n_chunks: int) -> None:
        super().__init__(context, "label", 0.0)
        self._blocks, self._n_chunks = blocks, n_chunks

    def _store_block(self, place: str, state: State) -> Mapping[str, AnyArray]:
        self._blocks.store(place, state.y)
        return {}

    def _stored(self, place: str, state: State) -> None:
        self._read_block(place, state)

    def _read_block(self, place: str, state: State) -> None:
        state.y = self._blocks.read(place, self._n_chunks)


START = "start-"
"""Prefix of the parts of stage ``eigen`` that have rows of the sample graph's vectors, by piece."""


def checkpoint_parts(context: Context) -> list[str]:
    """Names of all parts of checkpoints of a solve in chunks, which only a solve that goes on needs."""
    return [*PLACES, *(block_part(place, g) for place in PLACES for g in range(n_chunks(context)))]


def delete_checkpoints(context: Context) -> None:
    """Delete the checkpoints of the pairs' solve, which only a solve that goes on needs."""
    context.store.drop_many(context.folders["eigen"], list(PLACES))

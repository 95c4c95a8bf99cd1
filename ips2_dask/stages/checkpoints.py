"""Checkpoints of a solve: its state after a filter, stored beside its results and deleted after them.

Two checkpoints are written in turn, so that one is always whole: a checkpoint's receipt is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels.eigen import State
from ips2_dask.stages.chunks import chunk_partitions
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context, part_name
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


def state_part(place: str, g: int) -> str:
    """The part that has chunk g's block of a checkpoint."""
    return f"{place}-c{g:06d}"


def store_state(context: Context, g: int, place: str, y: Float32) -> Receipt:
    """Store chunk g's block (n_g, columns) of a checkpoint in place of an earlier one; returns its receipt."""
    folder, part = context.folders["label"], state_part(place, g)
    context.store.drop(folder, part)
    return context.store.write(folder, part, {"state": y}, {})


def read_state(context: Context, g: int, place: str) -> Float32:
    """The stored block of chunk g of a checkpoint: (n_g, columns) float32."""
    return context.store.read(context.folders["label"], state_part(place, g), "state")


class Chunked(_Checkpoints):
    """Checkpoints of the solve for U in chunks: each state is stored, and the solve goes on from what is stored.

    So a worker that is lost takes away no more than what followed the last state.
    """

    def __init__(self, context: Context, executor: Executor, n_chunks: int) -> None:
        super().__init__(context, "label", 0.0)
        self._executor, self._n_chunks = executor, n_chunks
        self._shared = executor.share(context)

    def _each(
        self, function: Callable[..., object], *arguments: object, blocks: list[Handle] | None = None
    ) -> list[Handle]:
        with self._executor.batch():
            return [
                self._executor.submit(
                    f"label-{function.__name__}-{g}",
                    function,
                    self._shared,
                    g,
                    *arguments,
                    *(() if blocks is None else (blocks[g],)),
                )
                for g in range(self._n_chunks)
            ]

    def _store_block(self, place: str, state: State) -> Mapping[str, AnyArray]:
        receipts = self._executor.results(self._each(store_state, place, blocks=state.y))
        self._context.cache_receipts("label", [{state_part(place, g): one} for g, one in enumerate(receipts)])
        return {}

    def _stored(self, place: str, state: State) -> None:
        self._read_block(place, state)

    def _read_block(self, place: str, state: State) -> None:
        state.y = self._each(read_state, place)


def start_part(b: int) -> str:
    """The part of stage ``eigen`` that has partition b's rows of the sample graph's vectors."""
    return f"start-{part_name(b)}"


def checkpoint_parts(context: Context) -> list[str]:
    """Names of all parts of checkpoints of a solve in chunks, which only a solve that goes on needs."""
    chunks = range(len(chunk_partitions(context)))
    return [*PLACES, *(state_part(place, g) for place in PLACES for g in chunks)]


def delete_checkpoints(context: Context) -> None:
    """Delete the checkpoints of the pairs' solve, which only a solve that goes on needs."""
    context.store.drop_many(context.folders["eigen"], list(PLACES))

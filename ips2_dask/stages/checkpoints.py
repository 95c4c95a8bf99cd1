"""Checkpoints of a solve: its state after a cycle, stored beside the eigenpairs and deleted once these are stored.

Two checkpoints are written in turn, so that one is always whole: a checkpoint's receipt is written last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ips2_dask.executors.base import Handle
from ips2_dask.kernels.eigen import Block, State
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.block_space import ChunkedSpace, checkpoint_part
from ips2_dask.store.base import AnyArray, present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.memory_store import MemoryStore

PLACES = ("state0", "state1")
"""Names of the two checkpoints."""

SHARE = 10
"""A state is stored once the solve has gone on for so many times as long as storing the last one took."""


class _Checkpoints:
    """Decides when a state is stored, and finds the latest one that was."""

    def __init__(self, context: Context) -> None:
        self._context, self._next = context, 0
        self._ended, self._took = time.perf_counter(), 0.0

    def keep(self, state: State) -> None:
        """Store a state, unless that would take more than a tenth of the time, or the run's store is in memory.

        Parameters
        ----------
        state : State
            Of the running solve. Where its block vector is in chunks, ``state.y`` is replaced by the stored block
            vector, which is equal: the solve goes on with that.
        """
        begun = time.perf_counter()
        if isinstance(self._context.store, MemoryStore) or begun - self._ended < SHARE * self._took:
            return
        place, self._next = PLACES[self._next], 1 - self._next
        self._clear(place)
        arrays = {"state_values": state.values, "state_residuals": state.residuals, **self._store_block(place, state.y)}
        state.y = self._stored_block(place, state.y)
        facts = {"low": state.low, "products": state.products, "history": state.history}
        self._context.store.write(self._context.folders["eigen"], place, arrays, facts)
        self._ended = time.perf_counter()
        self._took = self._ended - begun

    def latest(self) -> State | None:
        """The last state that was stored whole, or None."""
        receipts = {place: r for place in PLACES if (r := self._context.receipt("eigen", place)) is not None}
        if not receipts:
            return None
        place = max(receipts, key=lambda name: (receipts[name]["facts"]["products"], name))
        self._next = 1 - PLACES.index(place)
        store, folder = self._context.store, self._context.folders["eigen"]
        values, residuals = (store.read(folder, place, f"state_{name}") for name in ("values", "residuals"))
        return State(self._read_block(place), values, residuals, **receipts[place]["facts"])

    def _clear(self, place: str) -> None:
        """Delete a checkpoint."""
        self._context.store.drop(self._context.folders["eigen"], place)

    def _store_block(self, place: str, y: Block) -> Mapping[str, AnyArray]:
        """Store a block vector; returns the arrays of it that belong into the checkpoint's own part."""
        raise NotImplementedError

    def _stored_block(self, place: str, y: Block) -> Block:
        """The block vector with which the solve goes on, after ``y`` has been stored."""
        raise NotImplementedError

    def _read_block(self, place: str) -> Block:
        """The block vector of a checkpoint."""
        raise NotImplementedError


class InCore(_Checkpoints):
    """Checkpoints of a solve whose block vectors are arrays of this process: (P, columns)."""

    def _store_block(self, place: str, y: Block) -> Mapping[str, AnyArray]:
        del place
        return {"state": y}

    def _stored_block(self, place: str, y: Block) -> Block:
        del place
        return y

    def _read_block(self, place: str) -> Block:
        return self._context.store.read(self._context.folders["eigen"], place, "state")


class Chunked(_Checkpoints):
    """Checkpoints of a solve whose block vectors are in chunks on the workers.

    The solve goes on with the stored block vector, read again on the workers that had it. A chunk that is lost with its
    worker is then read again and the products since are repeated; else Dask would repeat all products from the first.
    """

    def __init__(self, context: Context, space: ChunkedSpace) -> None:
        super().__init__(context)
        self._space = space

    def _clear(self, place: str) -> None:
        super()._clear(place)
        for g in range(len(chunk_partitions(self._context))):
            self._context.store.drop(self._context.folders["eigen"], checkpoint_part(place, g))

    def _store_block(self, place: str, y: list[Handle]) -> Mapping[str, AnyArray]:
        self._space.store_checkpoint(y, place)
        return {}

    def _stored_block(self, place: str, y: list[Handle]) -> list[Handle]:
        return self._space.read_checkpoint(place, placed_with=y)

    def _read_block(self, place: str) -> list[Handle]:
        return self._space.read_checkpoint(place)


def start_part(b: int) -> str:
    """The part of stage ``eigen`` that has partition b's rows of a chunked solve's start."""
    return f"start-{part_name(b)}"


def delete_checkpoints(context: Context) -> None:
    """Delete the checkpoints and the start, which only a solve that goes on needs."""
    folder, parts = context.folders["eigen"], list(PLACES)
    if context.choices.vectors == "chunked":
        parts += [checkpoint_part(place, g) for place in PLACES for g in range(len(chunk_partitions(context)))]
        parts += [start_part(b) for b in range(context.n_partitions)]
    for part in present(context.store, folder, parts):
        context.store.drop(folder, part)

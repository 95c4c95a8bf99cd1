"""Where a solve may go on: its state after a cycle, stored beside the eigenpairs, and taken away once they are there.

Two places are written in turn, so that there is always a whole one; the receipt of a place is written last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ips2_dask.kernels.eigen import State
from ips2_dask.stages.block_operator import ChunkedSpace, chunk_partitions
from ips2_dask.store.base import present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.memory_store import MemoryStore

PLACES = ("state0", "state1")

SHARE = 10
"""A state is stored once the solve has gone on for so many times what storing the last one took."""


class _Checkpoints:
    """Decides when a state is stored, and finds the latest that was."""

    def __init__(self, context: Context) -> None:
        self._context, self._next = context, 0
        self._ended, self._took = time.perf_counter(), 0.0

    def keep(self, state: State) -> None:
        """Store a state, unless that would take more than a tenth of the time, or the run is one in memory."""
        begun = time.perf_counter()
        if isinstance(self._context.store, MemoryStore) or begun - self._ended < SHARE * self._took:
            return
        place, self._next = PLACES[self._next], 1 - self._next
        self._clear(place)
        arrays = {"state_values": state.values, "state_residuals": state.residuals, **self._store_block(place, state)}
        facts = {"low": state.low, "products": state.products, "history": state.history}
        self._context.store.write(self._context.folders["eigen"], place, arrays, facts)
        self._ended = time.perf_counter()
        self._took = self._ended - begun

    def latest(self) -> State | None:
        """The last state that was stored whole, or None."""
        known = [(r["facts"]["products"], p) for p in PLACES if (r := self._context.receipt("eigen", p)) is not None]
        if not known:
            return None
        _, place = max(known)
        self._next = 1 - PLACES.index(place)
        store, folder = self._context.store, self._context.folders["eigen"]
        values, residuals = (store.read(folder, place, f"state_{name}") for name in ("values", "residuals"))
        receipt = self._context.receipt("eigen", place)
        assert receipt is not None
        return State(self._read_block(place), values, residuals, **receipt["facts"])

    def _clear(self, place: str) -> None:
        self._context.store.drop(self._context.folders["eigen"], place)

    def _store_block(self, place: str, state: State) -> Mapping[str, Any]:
        raise NotImplementedError

    def _read_block(self, place: str) -> Any:
        raise NotImplementedError


class InCore(_Checkpoints):
    """States whose block is an array of this process."""

    def _store_block(self, place: str, state: State) -> Mapping[str, Any]:
        del place
        return {"state": state.y}

    def _read_block(self, place: str) -> Any:
        return self._context.store.read(self._context.folders["eigen"], place, "state")


class Chunked(_Checkpoints):
    """States whose block is in chunks on the workers.

    A stored block is read again where it was: so a chunk that a worker takes with it is made again from the store, by
    the tasks since then, and not from the first product on.
    """

    def __init__(self, context: Context, space: ChunkedSpace) -> None:
        super().__init__(context)
        self._space = space

    def _clear(self, place: str) -> None:
        super()._clear(place)
        for g in range(len(chunk_partitions(self._context))):
            self._context.store.drop(self._context.folders["eigen"], f"{place}-c{g:06d}")

    def _store_block(self, place: str, state: State) -> Mapping[str, Any]:
        self._space.keep(state.y, place)
        state.y = self._space.kept(place, near=state.y)
        return {}

    def _read_block(self, place: str) -> Any:
        return self._space.kept(place)


def start_part(b: int) -> str:
    """Where partition b's rows of a chunked solve's start are."""
    return f"start-{part_name(b)}"


def forget(context: Context) -> None:
    """Take away what only a solve that goes on would need."""
    folder, parts = context.folders["eigen"], list(PLACES)
    if context.choices.vectors == "chunked":
        parts += [f"{place}-c{g:06d}" for place in PLACES for g in range(len(chunk_partitions(context)))]
        parts += [start_part(b) for b in range(context.n_partitions)]
    for part in present(context.store, folder, parts):
        context.store.drop(folder, part)

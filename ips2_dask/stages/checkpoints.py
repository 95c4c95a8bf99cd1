"""Checkpoints of a solve: its state after a cycle or within one, stored beside its results and deleted after them.

Two checkpoints are written in turn, so that one is always whole: a checkpoint's receipt is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ips2_dask.kernels.eigen import State
from ips2_dask.stages import block_space
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.block_space import ChunkedSpace, checkpoint_part
from ips2_dask.store.base import AnyArray
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.memory_store import MemoryStore

PLACES = ("state0", "state1")
"""Names of the two checkpoints."""

SHARE = 10
"""A state is stored once the solve has gone on for so many times as long as storing the last one took."""


class _Checkpoints:
    """Decides when a state is stored, and finds the latest one that was.

    Parameters
    ----------
    context : Context
    stage : str
        In whose folder they are.
    share : float, optional
        In place of `SHARE`.
    clock : callable, optional
        Gives the time, in place of this machine's clock.
    """

    def __init__(
        self,
        context: Context,
        stage: str = "eigen",
        share: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context, self._stage, self._next, self._clock = context, stage, 0, clock
        self._share = SHARE if share is None else share
        self._ended, self._took = clock(), 0.0

    def keep(self, state: State) -> None:
        """Store a state, unless that would take more than a tenth of the time, or the run's store is in memory."""
        begun = self._clock()
        if isinstance(self._context.store, MemoryStore) or begun - self._ended < self._share * self._took:
            return
        place, self._next = PLACES[self._next], 1 - self._next
        store, folder = self._context.store, self._context.folders[self._stage]
        store.drop(folder, place)  # before its parts are replaced
        arrays = {
            "state_values": state.values, "state_residuals": state.residuals, **self._store_blocks(place, state)
        }  # fmt: skip
        facts = {
            "low": state.low, "products": state.products, "history": state.history, "panel": state.panel,
            "step": state.step, "panels": self._panels[0],
        }  # fmt: skip
        store.write(folder, place, arrays, facts)
        self._took = self._clock() - begun
        self._stored(place, state)
        self._ended = self._clock()

    def latest(self) -> State | None:
        """The last state that was stored whole, or None."""
        receipts = {place: r for place in PLACES if (r := self._context.receipt(self._stage, place)) is not None}
        panels, before = self._panels
        facts = {
            place: {"panel": 0, "step": 0, "panels": before, **receipt["facts"]} for place, receipt in receipts.items()
        }
        # within a filter of other panels a solve can't go on
        facts = {place: found for place, found in facts.items() if found.pop("panels") == panels or not found["step"]}
        if not facts:
            return None
        place = max(facts, key=lambda name: (*(facts[name][n] for n in ("products", "panel", "step")), name))
        self._next = 1 - PLACES.index(place)
        store, folder = self._context.store, self._context.folders[self._stage]
        values, residuals = (store.read(folder, place, f"state_{name}") for name in ("values", "residuals"))
        state = State(None, values, residuals, **facts[place])
        self._read_blocks(place, state)
        return state

    @property
    def _panels(self) -> tuple[int, int]:
        """In how many panels a block is filtered, and in how many where a checkpoint does not say it."""
        return 1, 1

    def _store_blocks(self, place: str, state: State) -> Mapping[str, AnyArray]:
        """Store a state's block vectors; returns the arrays of them that belong into the checkpoint's own part."""
        raise NotImplementedError

    def _stored(self, place: str, state: State) -> None:
        """Do what can be done once a state is stored."""

    def _read_blocks(self, place: str, state: State) -> None:
        """Set the block vectors of a state that was stored."""
        raise NotImplementedError


class InCore(_Checkpoints):
    """Checkpoints of a solve whose block vectors are arrays of this process: (P, columns)."""

    def _store_blocks(self, place: str, state: State) -> Mapping[str, AnyArray]:
        del place
        return {"state": state.y}

    def _read_blocks(self, place: str, state: State) -> None:
        state.y = self._context.store.read(self._context.folders[self._stage], place, "state")


class Chunked(_Checkpoints):
    """Checkpoints of a solve whose block vectors are in chunks on the workers.

    Where workers have joined meanwhile, the solve goes on with the stored block vectors, divided among all of them.
    """

    def __init__(
        self,
        context: Context,
        space: ChunkedSpace,
        stage: str = "eigen",
        share: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(context, stage, share, clock)
        self._space = space

    def keep(self, state: State) -> None:
        """As of `_Checkpoints`; where workers keep copies of blocks they get those of each state."""
        self._space.copy(state)
        super().keep(state)

    def latest(self) -> State | None:
        """The last state, from copies where workers have them: they are at least as recent as what is stored."""
        return self._space.copied() or super().latest()

    @property
    def _panels(self) -> tuple[int, int]:
        return self._space.panels, self._space.panels_in_memory

    def _store_blocks(self, place: str, state: State) -> Mapping[str, AnyArray]:
        self._space.store_checkpoint(state.y, place, state.previous if state.step else None)
        return {}

    def _stored(self, place: str, state: State) -> None:
        if not state.step and self._space.workers_changed:
            self._space.reopen()
            state.y = self._space.read_checkpoint(place)

    def _read_blocks(self, place: str, state: State) -> None:
        state.y = self._space.read_checkpoint(place)
        if state.step:
            state.previous = self._space.read_panel(place, state.panel)


def start_part(b: int) -> str:
    """The part of stage ``eigen`` that has partition b's rows of a chunked solve's start."""
    return f"start-{part_name(b)}"


def checkpoint_parts(context: Context) -> list[str]:
    """Names of all parts of checkpoints of a solve in chunks, which only a solve that goes on needs."""
    chunks = range(len(chunk_partitions(context)))
    names = [name for place in PLACES for name in (place, block_space.previous_of(place))]
    return [*PLACES, *(checkpoint_part(name, g) for name in names for g in chunks)]


def delete_checkpoints(context: Context) -> None:
    """Delete the checkpoints and the start, which only a solve that goes on needs."""
    folder, parts = context.folders["eigen"], list(PLACES)
    if context.choices.vectors == "chunked":
        parts = [*checkpoint_parts(context), *(start_part(b) for b in range(context.n_partitions))]
    context.store.drop_many(folder, parts)

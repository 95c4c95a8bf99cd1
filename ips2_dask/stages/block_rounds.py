"""Blocks in chunks on the workers of a run: rounds of operations on them, and what is done when a worker is lost.

Operations that give blocks are collected, and sent as one round with the next one whose result is waited for.
`ips2_dask.stages.resident_blocks` explains rounds and blocks, `ips2_dask.stages.block_operator` chunks.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import Lost
from ips2_dask.executors.base import Executor
from ips2_dask.executors.exchange import BlocksLost, LossWatch
from ips2_dask.stages import resident_blocks as blocks
from ips2_dask.stages.block_operator import CHUNK_KIND
from ips2_dask.stages.chunk_rows import ROWS
from ips2_dask.store.context import Context

Float32 = NDArray[np.float32]

ATTEMPTS = 5
"""Losses of workers, one after another without a further checkpoint, after which the work is given up."""

PATIENCE = 3600.0
"""Seconds that a worker waits for another one's rows: far more than a product takes. A worker that is lost is noticed
by the scheduler, and then nobody waits any longer."""


class Panel:
    """Some columns of a block vector; the workers free its rows when nobody refers to it any more.

    Parameters
    ----------
    name : str
        By which the workers know its rows.
    width : int
        Columns.
    garbage : list of str
        Gets the name at the end.
    """

    def __init__(self, name: str, width: int, garbage: list[str]) -> None:
        self.name, self.width, self._garbage = name, width, garbage

    def __del__(self) -> None:
        self._garbage.append(self.name)


class Block:
    """A block vector: its panels, side by side."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self.panels = tuple(panels)

    @property
    def names(self) -> tuple[str, ...]:
        """The panels' names."""
        return tuple(panel.name for panel in self.panels)

    @property
    def widths(self) -> tuple[int, ...]:
        """The panels' columns."""
        return tuple(panel.width for panel in self.panels)

    @property
    def columns(self) -> int:
        """Columns of all panels."""
        return sum(self.widths)


class ChunkedBlocks:
    """Blocks in chunks on the workers, which have none before `reopen`: `with_recovery` calls it.

    Parameters
    ----------
    context : Context
    executor : Executor
    rows : {"pairs", "graph", "fused", "walk"}
        What the rows of the blocks are.
    stage : str
        The stage whose tasks the rounds are.
    scratch : bool, optional
        Whether blocks that are parked lie in files of the workers.

    Attributes
    ----------
    is_open : bool
        Whether the workers have stores of this object's.

    Raises
    ------
    BlocksLost
        By every method, when a worker is lost: `reopen` makes an empty store on the workers that are there then.
    """

    def __init__(self, context: Context, executor: Executor, rows: str, stage: str, *, scratch: bool = False) -> None:
        self.context, self._executor, self._stage = context, executor, stage
        self._rows, self._kind = rows, ROWS[rows]
        self._bounds = self._kind.bounds(context)
        self._chunks = range(len(self._bounds) - 1)
        self._shared_context = executor.share(context)
        self._scratch, self._streams = scratch, False
        self._numbers = itertools.count()
        self._garbage: list[str] = []
        self._watch: LossWatch | None = None
        self._touched = [np.diff(cuts) for cuts in self._kind.all_cuts(context)]  # rows of each chunk, by chunk
        self._near = [[h for h in np.flatnonzero(rows).tolist() if h != g] for g, rows in enumerate(self._touched)]
        self._stores: list[Any] = []
        self._round = self._rounds_done = 0  # of this team: sent, and ended
        self._queue: list[blocks.Operation | Callable[[int], blocks.Operation]] = []
        self.is_open = False
        executor.pin_to_owner([f"{stage}-store", f"{stage}-round"])

    # ---- workers and rounds

    def reopen(self) -> None:
        """Divide the chunks among the workers there are now; all blocks are gone."""
        self.is_open = False
        weights = np.diff(self._bounds).tolist()
        items = [(CHUNK_KIND, g) for g in self._chunks]
        owners = self._executor.assign_owners(items, weights)
        numbers = {owner: position for position, owner in enumerate(sorted(set(owners)))}
        self._owners = tuple(numbers[owner] for owner in owners)
        addresses: dict[int, str] = {}
        for g, owner in enumerate(self._owners):
            addresses.setdefault(owner, self._executor.address_of(items[g]))
        sources: list[set[int]] = [set() for _ in addresses]
        for g in self._chunks:
            sources[self._owners[g]].update(self._owners[h] for h in self._near[g])
        self._team = blocks.Team(
            uuid.uuid4().hex, self._rows, self._owners, tuple(addresses[owner] for owner in sorted(addresses)),
            tuple(tuple(sorted(some - {owner})) for owner, some in enumerate(sources)), PATIENCE,
        )  # fmt: skip
        self._choose_place()
        if self._watch is not None:
            self._watch.close()
        space, n_owners = self._team.space, len(addresses)
        self._watch = self._executor.watch(
            self._team.addresses,
            lambda address: self._executor.end_waiting(space, n_owners, f"the worker at {address} has left"),
        )
        self._first_chunks = [self._owners.index(owner) for owner in sorted(addresses)]
        self._round = self._rounds_done = 0
        self._queue = []
        self._garbage.clear()
        shared = self._executor.share(self._team)
        with self._executor.batch():
            self._stores = [
                self._executor.submit(
                    f"{self._stage}-store-{owner}", blocks.open_store, self._shared_context, shared, owner,
                    self._scratch, self._streams, self._former_space(), placed_with=items[g],
                )
                for owner, g in enumerate(self._first_chunks)
            ]  # fmt: skip
        self._executor.wait(self._stores)
        self._queue.append(blocks.Setup())
        self.is_open = True

    def _choose_place(self) -> None:
        """Decide where blocks lie, once it is known which worker owns which chunk."""

    @property
    def workers_changed(self) -> bool:
        """Whether workers have joined or left since the chunks were divided among them."""
        there = set(self._executor.addresses())
        return bool(there) and there != set(self._team.addresses)

    def wait_until_calm(self) -> None:
        """Wait until no more workers leave: those of a batch system leave many at a time, and are one loss."""
        self._executor.wait_until_calm()

    def lost(self, times: int, last: BlocksLost) -> Lost:
        """The error of a run that has lost workers so many times, the last time by this error."""
        return Lost(
            f"stage {self._stage}: workers were lost {times} times without a new checkpoint between, the last time as "
            f"{last}",
            "find out from the workers' logs why they end, such as by a walltime that is too short",
        )

    def _former_space(self) -> str | None:
        """Name of the team that the next one goes on from, if it keeps copies."""
        return None

    def give_up(self) -> None:
        """Free all blocks after a loss; the next `reopen` goes on from what is kept elsewhere."""
        self.close()

    def finish(self) -> None:
        """Free all blocks once they are not needed any more, and wait until their memory is given back.

        `close` alone leaves the time to Dask: arrays of the next solve then lie between those of this one in the heap,
        which keeps the holes.
        """
        with contextlib.suppress(BlocksLost):
            self._run(blocks.Free())
        self.close()

    def close(self) -> None:
        """Free all blocks."""
        self._stores, self._queue, self.is_open = [], [], False
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _run(self, *operations: blocks.Operation | Callable[[int], blocks.Operation]) -> list[Any]:
        """Send the collected operations and these as one round; the last one's results, chunk by chunk.

        An operation that is not the same for all workers is given as a function of the worker's number.
        """
        queue, self._queue = [*self._queue, *operations], []
        self._drop_garbage()  # not sooner: what is sent now may still read it
        space, number = self._team.space, self._round
        self._round += 1
        with self._executor.batch():
            handles = [
                self._executor.submit(
                    f"{self._stage}-round-{owner}", blocks.run_round, self._shared_context, space, owner, number,
                    [one if isinstance(one, blocks.Operation) else one(owner) for one in queue],
                    placed_with=(CHUNK_KIND, g),
                )
                for owner, g in enumerate(self._first_chunks)
            ]  # fmt: skip
        try:
            parts = self._executor.results(handles)
        except BaseException as error:  # an interrupt as well: no task waits for one that has failed
            self._executor.end_waiting(space, len(self._first_chunks), f"the solve has ended elsewhere: {error!r}")
            if isinstance(error, BlocksLost):
                self.give_up()
            else:
                self.close()
            raise
        self._rounds_done = number + 1
        results: list[Any] = [None] * len(self._chunks)
        for owner, some in enumerate(parts):
            for g, result in zip(self._team.chunks(owner), some, strict=False):
                results[g] = result
        return results

    def _drop_garbage(self) -> None:
        """Have blocks freed that nobody refers to, after what is in the queue."""
        if self._garbage:
            garbage, self._garbage[:] = tuple(self._garbage), []
            self._queue.append(blocks.Drop(garbage))

    def _new(self, widths: Sequence[int]) -> Block:
        """Names for a block of so many columns a panel; what nobody refers to any more goes before it is made.

        Operations that read that are in the queue already. Else Ritz pairs would have the products of two panels in
        memory at once.
        """
        self._drop_garbage()
        return Block([Panel(f"b{next(self._numbers)}", width, self._garbage) for width in widths])

    # ---- blocks

    def make(self, columns: int, function: Callable[..., Float32], *arguments: object) -> Block:
        """A block of one panel from ``function(context, g, *arguments)`` of each chunk: (n_g, columns) float32."""
        result = self._new((columns,))
        of_chunks = [arguments] * len(self._chunks)
        self._queue.append(blocks.Make(result.names, result.widths, function, of_chunks, parked=False))
        return result

    def product(self, y: Block) -> Block:
        """The product of the kind's operator with a block of one panel, which is given up."""
        result = self._new(y.widths)
        for new, old in zip(result.names, y.names, strict=True):
            self._queue.append(blocks.Product(new, old))
        self._queue.append(blocks.Drop(y.names))  # at once: a round may have several products
        return result

    def change(self, y: Block, function: Callable[..., None], *arguments: object) -> None:
        """Have ``function(context, g, *arguments, rows)`` change each chunk's rows (n_g, columns) of one panel."""
        self._queue.append(blocks.Apply(function, arguments, y.names))

    def for_each(self, y: Block, function: Callable[..., object], *arguments: object) -> list[Any]:
        """What ``function(context, g, *arguments, rows)`` returns for each chunk's rows (n_g, columns) of a block."""
        return self._run(blocks.Apply(function, arguments, y.names))


class Reached(Protocol):
    """A stored state of some work."""

    @property
    def reached(self) -> object:
        """How far the work had come: another value for each state."""
        ...


State = TypeVar("State", bound=Reached | None)
Result = TypeVar("Result")


def with_recovery(space: ChunkedBlocks, latest: Callable[[], State], work: Callable[[State], Result]) -> Result:
    """The result of work on blocks in chunks, which goes on from its last checkpoint when a worker is lost.

    The chunks are divided among the workers first, unless they are already.

    Parameters
    ----------
    space : ChunkedBlocks
    latest : callable
        Reads the last checkpoint, or gives None.
    work : callable
        Goes on from a state, or begins with None.

    Raises
    ------
    Lost
        If workers are lost `ATTEMPTS` times, and no further checkpoint is reached meanwhile.
    """
    reached: object = None
    losses = 0
    while True:
        try:
            if not space.is_open:
                space.reopen()
            state = latest()
            mark = None if state is None else state.reached
            if mark != reached:
                losses, reached = 0, mark
            return work(state)
        except BlocksLost as error:
            space.give_up()
            losses += 1
            if losses >= ATTEMPTS:
                raise space.lost(losses, error) from error
            space.wait_until_calm()

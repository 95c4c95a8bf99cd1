"""Copies of a solve's blocks in the memory of other workers: a lost worker costs some products, and not a filter.

Storing a state takes a share of the time, so that it is done seldom. A copy takes as long as sending a panel: each
worker keeps the rows of its chunks as they were at a state, and those of one other worker. When a worker is lost, the
others give the rows of all chunks to those who own them from then on.

A state is copied with the round that follows it, without a round of its own. Where a worker is lost in that round, the
copy of the state before serves: both are kept until then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.exchange import BlocksLost, Sending
from ips2_dask.kernels import buffers
from ips2_dask.kernels.eigen import State
from ips2_dask.stages import resident_blocks as blocks
from ips2_dask.stages.block_rounds import Block, ChunkedBlocks
from ips2_dask.store.context import Context

Float32 = NDArray[np.float32]

MOST_TRIES = 2
"""Times that the solve goes on from the same copies: who lost another worker meanwhile reads a checkpoint."""


def keeper(owner: int, n: int) -> int:
    """The worker, of n, that keeps the rows of a worker's chunks too.

    Workers are numbered by their addresses, so that half of them away there is mostly another machine.
    """
    return (owner + max(1, n // 2)) % n


# ---- operations


def _joined(parts: Sequence[Float32]) -> Float32:
    """Rows of several chunks, one after another."""
    if len(parts) == 1:
        return parts[0]
    together: Float32 = buffers.empty((sum(map(len, parts)), parts[0].shape[1]), np.float32)
    return np.concatenate(parts, out=together)


def _divided(rows: Float32, chunks: Sequence[int], bounds: Sequence[int]) -> dict[int, Float32]:
    """The rows of each of several chunks that were joined, aligned: those of a message may begin at any byte."""
    rows = np.require(rows, requirements="A")
    found, begin = {}, 0
    for g in chunks:
        end = begin + bounds[g + 1] - bounds[g]
        found[g] = rows[begin:end]
        begin = end
    return found


@dataclasses.dataclass(frozen=True)
class Copy(blocks.Operation):
    """Keep a block's rows as they are, and those of another worker's chunks, which it sends."""

    name: str
    together: ClassVar[bool] = True

    def all_chunks(self, store: blocks.BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        team, owner = store.team, store.owner
        for g in store.chunks:  # which no step writes its result to
            store.copies[self.name, g] = store.get(self.name, g)
        n = len(team.addresses)
        if n == 1:
            return
        kept = next(other for other in range(n) if keeper(other, n) == owner)
        rows = _joined([store.copies[self.name, g] for g in store.chunks])
        sending = Sending(team.space, label, owner, {keeper(owner, n): rows}, team.addresses)
        received = store.mailbox.take(label, kept, team.patience)
        for g, some in _divided(received, team.chunks(kept), store.rows.bounds(context)).items():
            store.copies[self.name, g] = some
        sending.wait(team.patience)


@dataclasses.dataclass(frozen=True)
class Forget(blocks.Operation):
    """Free copies."""

    names: tuple[str, ...]
    together: ClassVar[bool] = True

    def all_chunks(self, store: blocks.BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        del context, label
        for key in [key for key in store.copies if key[0] in self.names]:
            del store.copies[key]


@dataclasses.dataclass(frozen=True)
class Restore(blocks.Operation):
    """Block ``result`` from copies of ``name`` that an earlier team of the solve has made.

    Attributes
    ----------
    result, name : str
    width : int
        Columns.
    space : str
        Name of the earlier team.
    number : int
        This worker's in that team; -1 where it was not in it.
    gives : mapping
        By worker: the chunks whose rows it gets from this one.
    takes : mapping
        By worker: the chunks whose rows it sends to this one.
    """

    result: str
    name: str
    width: int
    space: str
    number: int
    gives: Mapping[int, tuple[int, ...]]
    takes: Mapping[int, tuple[int, ...]]
    together: ClassVar[bool] = True

    def all_chunks(self, store: blocks.BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        team, owner = store.team, store.owner
        former = blocks.store_of(self.space, self.number)
        copies = {} if former is None else former.copies
        if any((self.name, g) not in copies for chunks in self.gives.values() for g in chunks):
            raise BlocksLost(f"worker {owner} has not the copies that it had")
        rows = {other: _joined([copies[self.name, g] for g in chunks]) for other, chunks in self.gives.items()}
        own = rows.pop(owner, None)
        sending = Sending(team.space, label, owner, rows, team.addresses)
        bounds = store.rows.bounds(context)
        for other, chunks in self.takes.items():
            some = own if other == owner and own is not None else store.mailbox.take(label, other, team.patience)
            for g, of_chunk in _divided(some, chunks, bounds).items():
                store.put(self.result, g, of_chunk)
                store.restored.add((self.result, g))
        sending.wait(team.patience)


# ---- the process of the solver


@dataclasses.dataclass(frozen=True)
class _Copied:
    """A state of which the workers have copies."""

    state: State  # without its blocks
    y: Sequence[tuple[str, int]]  # name and columns of each panel
    previous: Sequence[tuple[str, int]]
    panels: int
    round: int  # the one that makes the copies

    @property
    def names(self) -> set[str]:
        """Blocks that are kept."""
        return {name for name, _ in (*self.y, *self.previous)}


@dataclasses.dataclass
class _Former:
    """What is left of a team that has lost a worker."""

    team: blocks.Team
    stores: list[Any]  # handles, as long as which the copies stay
    copied: _Copied
    tries: int = 0


class CopiedBlocks(ChunkedBlocks):
    """Blocks in chunks on the workers, of whose states copies are kept where ``makes_copies`` says so.

    Attributes
    ----------
    makes_copies : bool
    panels : int
        In how many panels a block is filtered.
    """

    makes_copies: bool = False
    panels: int

    _copied: tuple[_Copied, ...] = ()
    _former: _Former | None = None

    def copy(self, state: State) -> None:
        """Have the workers keep copies of a state's blocks from the next round on, in place of earlier ones."""
        if not self.makes_copies:
            return
        done = [one for one in self._copied if one.round < self._rounds_done]
        if done:
            self._former = None
        kept = (*done[-1:], *(one for one in self._copied if one.round >= self._rounds_done))
        y, previous = (
            () if block is None else tuple(zip(block.names, block.widths, strict=True))
            for block in (state.y, state.previous if state.step else None)
        )
        bare = dataclasses.replace(state, y=None, previous=None)
        new = _Copied(bare, y, previous, self.panels, self._round)
        names = set[str]().union(*(one.names for one in self._copied))
        still = set[str]().union(*(one.names for one in kept), new.names)
        if names - still:
            self._queue.append(Forget(tuple(sorted(names - still))))
        self._queue += [Copy(name) for name, _ in (*y, *previous) if name not in names]
        self._copied = (*kept, new)

    def copied(self) -> State | None:
        """The state whose copies the workers have had since before one of them was lost, or None."""
        former = self._former
        if former is None:
            return None
        former.tries += 1
        holders = self._holders(former.team)
        # within a filter of other panels a solve can't go on; between filters it can
        is_other = former.copied.panels != self.panels and former.copied.state.step > 0
        if holders is None or former.tries > MOST_TRIES or is_other:
            self._former = None
            return None
        made = former.copied
        y = self._restored(former.team, holders, made.y)
        previous = self._restored(former.team, holders, made.previous) if made.previous else None
        state = dataclasses.replace(made.state, y=y, previous=previous)
        self.copy(state)
        return state

    def _holders(self, former: blocks.Team) -> list[int] | None:
        """The worker of today that has the rows of each chunk; None where there is none for one of them."""
        today = {address: owner for owner, address in enumerate(self._team.addresses)}
        n = len(former.addresses)
        found = []
        for owner in former.owners:
            places = (former.addresses[one] for one in (owner, keeper(owner, n)))
            holder = next((today[place] for place in places if place in today), None)
            if holder is None:
                return None
            found.append(holder)
        return found

    def _restored(self, former: blocks.Team, holders: Sequence[int], panels: Sequence[tuple[str, int]]) -> Block:
        """A block from copies of an earlier team: name and columns of each of its panels."""
        result, numbers = self._new([width for _, width in panels]), list(former.addresses)

        def chunks_of(own: Sequence[int], owner: int, others: Sequence[int]) -> dict[int, tuple[int, ...]]:
            mine = [g for g in self._chunks if own[g] == owner]
            return {other: tuple(g for g in mine if others[g] == other) for other in sorted({others[g] for g in mine})}

        for new, (name, width) in zip(result.names, panels, strict=True):

            def restore(owner: int, new: str = new, name: str = name, width: int = width) -> blocks.Operation:
                address = self._team.addresses[owner]
                return Restore(
                    new, name, width, former.space, numbers.index(address) if address in numbers else -1,
                    chunks_of(holders, owner, self._owners), chunks_of(self._owners, owner, holders),
                )  # fmt: skip

            self._queue.append(restore)
        return result

    # ---- as of `ChunkedBlocks`

    def reopen(self) -> None:
        """As of `ChunkedBlocks`."""
        self._copied = ()
        super().reopen()

    def _former_space(self) -> str | None:
        return None if self._former is None else self._former.team.space

    def give_up(self) -> None:
        """As of `ChunkedBlocks`, but for the copies."""
        done = [one for one in self._copied if one.round < self._rounds_done]
        if done and self._stores:
            self._former = _Former(self._team, self._stores, done[-1])
        former, self._copied = self._former, ()
        self.close()
        self._former = former

    def close(self) -> None:
        """As of `ChunkedBlocks`."""
        self._copied, self._former = (), None
        super().close()

"""A worker's part of a solve or walk in chunks: the blocks that it keeps from round to round, and operations on them.

A round is one task on each worker that owns chunks: a list of operations, which each task applies to its own chunks in
their order. Operations on a chunk alone follow one another chunk by chunk, so that a block is read once for all of
them. A product needs rows of other workers' blocks: the tasks of a round send them to one another while they run. What
a round returns, such as Gram matrices, comes chunk by chunk, and is summed by who started it in the order of the
chunks; so nothing depends on which worker owns which chunk.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.exchange import (
    BlocksLost,
    Mailbox,
    Sending,
    is_short_of_memory,
    mailbox_of,
    open_handler,
    scratch_folder,
    worker_threads,
)
from ips2_dask.kernels import buffers
from ips2_dask.kernels.eigen import Float64, Known
from ips2_dask.kernels.parallel import map_chunks, threads
from ips2_dask.stages.chunk_rows import ROWS, ChunkRows, ChunkRowsOperator
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

PIECES = 1 << 20
"""More than the pieces in which rows are sent for one product: one for each chunk."""

GRAM_ROWS = 16384
"""Rows that a Gram matrix, or a residual, converts to float64 at a time."""


@dataclasses.dataclass(frozen=True)
class Team:
    """The workers of a solve, and which of them owns which chunk.

    Attributes
    ----------
    space : str
        Name of the solve; another one after a worker is lost.
    rows : str
        What the rows of its blocks are: a name in `chunk_rows.ROWS`.
    owners : tuple of int
        The worker of each chunk.
    addresses : tuple of str
        Of the workers, by their numbers.
    sources : tuple of tuple of int
        The workers whose rows each worker needs.
    patience : float
        Seconds that a worker waits for another one's rows.
    """

    space: str
    rows: str
    owners: tuple[int, ...]
    addresses: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    patience: float

    def chunks(self, owner: int) -> list[int]:
        """The chunks of a worker, ascending."""
        return [g for g, one in enumerate(self.owners) if one == owner]

    def receivers(self, owner: int) -> list[int]:
        """The workers that need rows of a worker, ascending."""
        return [other for other, needed in enumerate(self.sources) if owner in needed]


@dataclasses.dataclass
class _Source:
    """Rows that a chunk's product takes from one block, or from what one worker has sent."""

    place: slice  # among the rows that the chunk touches
    chunk: int  # -1 where they were sent
    sender: int
    index: Int32
    piece: int = -1  # which of the sender's, where rows are sent in pieces


@dataclasses.dataclass
class ChunkArrays:
    """Arrays of a chunk that stay in its owner's memory for as long as the solve lasts."""

    operator: ChunkRowsOperator
    scale: Float32
    sources: list[_Source]


_Positions: TypeAlias = dict[int, dict[int, tuple[int, Int32]]]
"""Of the rows that a worker gets of others, by source and chunk: where those of the chunk begin, and which they are."""


def _written(path: Path, block: Float32) -> tuple[Path, tuple[int, int]]:
    """Write a block's rows into a file; returns the file and their shape."""
    with path.open("wb") as stream:
        stream.write(np.ascontiguousarray(block).data.cast("B"))
    return path, (block.shape[0], block.shape[1])


def _mapped(path: Path, shape: tuple[int, int]) -> Float32:
    """The rows in a file, of which the system reads what is looked at."""
    return np.memmap(path, np.float32, "r", shape=shape) if shape[0] else np.empty(shape, np.float32)


class BlockStore:
    """The blocks of one worker of a solve.

    It is the result of a task: Dask frees it when the solve, or the client, is gone. It can't move: to another worker
    goes a string in its place, and the solve goes on from its last checkpoint.

    Parameters
    ----------
    team : Team
    owner : int
        The worker's number.
    context : Context
    scratch : bool
        Whether blocks lie in files in the worker's scratch folder, but for the one that is being multiplied.
    streams : bool
        Whether that one lies there too, and what other workers send of it; then operators are read from the run's store
        for each product, and memory holds what one chunk needs.
    """

    def __init__(self, team: Team, owner: int, context: Context, *, scratch: bool, streams: bool = False) -> None:
        open_handler()
        self.team, self.owner, self.chunks = team, owner, team.chunks(owner)
        self.rows: ChunkRows = ROWS[team.rows]
        self.mailbox = Mailbox(mailbox_of(team.space, owner))
        self.round = 0
        self.failure: Exception | None = None  # what ended a round half-way
        self._context = context
        self._memory: dict[tuple[str, int], Float32] = {}
        self._files: dict[tuple[str, int], tuple[Path, tuple[int, int]]] = {}
        self._folder: Path | None = None
        if scratch:
            self._folder = Path(tempfile.mkdtemp(prefix="ips2-blocks-", dir=scratch_folder()))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._streams = streams
        self._workspaces: deque[Float32] = deque()  # one for each thread that multiplies
        self.is_tidy = False  # whether `tidy` was called since blocks, operators or columns side by side were made
        self._positions: _Positions = {}  # where streams: of the rows that others send
        self._pieces: dict[tuple[int, int], tuple[Path, tuple[int, int]]] = {}  # by sender and number: what was sent
        self._arrays: dict[int, ChunkArrays] = {}
        self._known: dict[int, Known] = {}
        self._sent: dict[int, list[tuple[int, Int32]]] = {}  # by receiver: rows of chunks
        self.volumes: Float64 | None = None
        self.copies: dict[tuple[str, int], Float32] = {}  # by block and chunk: also of another worker's chunks
        self.restored: set[tuple[str, int]] = set()  # blocks whose memory is that of an earlier team's copies
        _stores[self.mailbox_key] = self

    @property
    def mailbox_key(self) -> str:
        """The store's name in its process."""
        return mailbox_of(self.team.space, self.owner)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        if is_short_of_memory():
            # Dask would write it to disk and drop what is in memory; an object that it can't write it keeps
            raise TypeError("blocks of a solve stay in memory")
        return str, (self.mailbox_key,)

    # ---- blocks

    def get(self, name: str, g: int) -> Float32:
        """The rows of chunk g of a block: (n_g, columns)."""
        block = self._memory.get((name, g))
        if block is not None:
            return block
        path, shape = self._files[name, g]
        block = buffers.empty(shape, np.float32)
        with path.open("rb") as stream:
            stream.readinto(block.data.cast("B"))
        return block

    def view(self, name: str, g: int) -> Float32:
        """The rows of chunk g of a block, of which some are wanted: those in a file are not read here."""
        block = self._memory.get((name, g))
        return _mapped(*self._files[name, g]) if block is None else block

    def tidy(self) -> None:
        """Have the allocator give back what an earlier solve, this one's setup and its start have left.

        What these were made from is freed, but leaves holes in the heap that are too small for larger arrays: a fifth
        of a worker's memory at 10,000,000 samples (measured).
        """
        if not self.is_tidy:
            buffers.tidy()
        self.is_tidy = True

    def put(self, name: str, g: int, block: Float32, *, parked: bool = False) -> None:
        """Keep the rows of chunk g of a block; a ``parked`` one in a file, where the store has a folder for them."""
        if not parked or self._folder is None:
            self._memory[name, g] = block
            if (file := self._files.pop((name, g), None)) is not None:
                file[0].unlink()
            return
        self._memory.pop((name, g), None)
        self._files[name, g] = _written(self._folder / f"{name}-{g}", block)

    def may_overwrite(self, name: str, g: int, rows: Float32) -> bool:
        """Whether nobody else looks at the memory of chunk g's rows of a block."""
        return rows.flags.writeable and (name, g) not in self.copies and (name, g) not in self.restored

    def drop(self, name: str, g: int) -> None:
        """Free the rows of chunk g of a block."""
        self._memory.pop((name, g), None)
        self.restored.discard((name, g))
        if (file := self._files.pop((name, g), None)) is not None:
            file[0].unlink()

    def is_parked(self, name: str, g: int) -> bool:
        """Whether a block's rows lie in a file."""
        return (name, g) in self._files

    def load(self, name: str, g: int) -> None:
        """Have a block's rows in memory that lie in a file too."""
        self._memory[name, g] = self.get(name, g)

    def unload(self, name: str, g: int) -> None:
        """Free the memory of a block's rows that lie in a file too."""
        if self.is_parked(name, g):
            self._memory.pop((name, g), None)

    def columns(self, names: Sequence[str], g: int) -> Float32:
        """The columns of several blocks side by side, (n_g, columns): the block itself where it is one."""
        parts = [self.get(name, g) for name in names]
        if len(parts) == 1:
            return parts[0]
        self.is_tidy = False  # the pool keeps this array for the next chunk; products make none of its size
        joined: Float32 = buffers.empty((len(parts[0]), sum(part.shape[1] for part in parts)), parts[0].dtype)
        return np.concatenate(parts, axis=1, out=joined)

    def put_columns(self, names: Sequence[str], widths: Sequence[int], g: int, block: Float32, *, parked: bool) -> None:
        """Keep columns of a block as blocks of their own."""
        if len(names) == 1:
            self.put(names[0], g, block, parked=parked)
            return
        for name, (a, b) in zip(names, itertools.pairwise([0, *itertools.accumulate(widths)]), strict=True):
            panel: Float32 = buffers.empty((len(block), b - a), block.dtype)
            np.copyto(panel, block[:, a:b])
            self.put(name, g, panel, parked=parked)

    def release(self) -> None:
        """Free all but the copies: another team goes on with the solve."""
        for kept in (self._workspaces, self._memory, self._arrays, self._known, self._sent, self._positions):
            kept.clear()

    # ---- arrays of chunks

    def known(self, g: int) -> Known:
        """The known eigenvectors on chunk g's rows."""
        if self._streams:
            return self.rows.known(self._context, g, self.volumes)
        if g not in self._known:
            self._known[g] = self.rows.known(self._context, g, self.volumes)
        return self._known[g]

    def forget_known(self, volumes: Float64) -> None:
        """Take the volumes of all components: the known vectors so far were scaled by those of single chunks."""
        self.volumes = volumes
        self._known.clear()

    def share_rows(self, label: tuple[int, int]) -> None:
        """Tell other workers which rows this one needs of their chunks, and learn which they need of its own."""
        team, context = self.team, self._context
        needed = {g: self.rows.needed(context, g) for g in self.chunks}
        requests: dict[int, list[NDArray[np.int64]]] = {source: [] for source in team.sources[self.owner]}
        positions: _Positions = {}
        for source in requests:
            begin = 0
            positions[source] = {}
            for h in team.chunks(source):
                wanted = [rows for parts in needed.values() if (rows := parts.get(h)) is not None]
                if not wanted:
                    continue
                union = np.unique(np.concatenate(wanted)).astype(np.int32)
                requests[source].append(np.concatenate([np.array([h, len(union)]), union]))
                positions[source][h] = begin, union
                begin += len(union)
        sending = Sending(
            team.space, label, self.owner, {s: np.concatenate(parts) for s, parts in requests.items()}, team.addresses
        )
        for receiver in team.receivers(self.owner):
            flat = self.mailbox.take(label, receiver, team.patience)
            parts, begin = [], 0
            while begin < len(flat):
                h, count = (int(n) for n in flat[begin : begin + 2])
                parts.append((h, flat[begin + 2 : begin + 2 + count].astype(np.int32)))
                begin += 2 + count
            self._sent[receiver] = parts
        sending.wait(team.patience)
        if self._streams:
            self._positions = positions
            return

        def load(low: int, high: int) -> list[tuple[int, ChunkArrays]]:
            return [(g, self._load(g, needed[g], positions)) for g in self.chunks[low:high]]

        self._arrays = dict(itertools.chain.from_iterable(map_chunks(load, len(self.chunks), 1)))
        self.is_tidy = False

    def _load(self, g: int, needed: Mapping[int, Int32], positions: _Positions) -> ChunkArrays:
        """Read what chunk g's products need again and again."""
        operator = self.rows.operator(self._context, g)
        cuts = self.rows.cuts(self._context, g)
        sources = []
        for h, rows in needed.items():
            owner = self.team.owners[h]
            place = slice(cuts[h], cuts[h + 1])
            if owner == self.owner:
                sources.append(_Source(place, h, -1, rows))
            else:
                begin, union = positions[owner][h]
                index, piece = np.searchsorted(union, rows), -1
                if self._streams:
                    piece = list(positions[owner]).index(h)
                else:
                    index += begin
                sources.append(_Source(place, -1, owner, index.astype(np.int32), piece))
        return ChunkArrays(operator, self.rows.scale(self._context, g), sources)

    def multiply(self, label: tuple[int, int], operation: Multiplication, patience: float) -> None:
        """Make the product of an operation on all chunks of this worker, with rows that other workers send."""
        self.tidy()
        if self._streams:
            self._exchange_pieces(label, operation.y, patience)
            self._multiply_chunks(self.chunks, operation, {})
            for path, _ in self._pieces.values():
                path.unlink()
            self._pieces.clear()
            buffers.tidy()
            return
        sending = Sending(
            self.team.space, label, self.owner,
            {receiver: self._rows_at(operation.y, parts) for receiver, parts in self._sent.items()},
            self.team.addresses,
        )  # fmt: skip
        # without rows of others first: the others' are on their way meanwhile
        own = [g for g in self.chunks if all(source.sender < 0 for source in self._arrays[g].sources)]
        if self._folder is not None:  # memory is short: rows for others go before a product needs as much
            own = []
            sending.wait(patience)
        self._multiply_chunks(own, operation, {})
        received = {source: self.mailbox.take(label, source, patience) for source in self.team.sources[self.owner]}
        self._multiply_chunks([g for g in self.chunks if g not in set(own)], operation, received)
        del received
        sending.wait(patience)
        if (
            self._folder is not None
        ):  # others' rows leave holes in the heap, as large as what comes for the next product
            buffers.tidy()

    def _exchange_pieces(self, label: tuple[int, int], name: str, patience: float) -> None:
        """Send and receive the rows of a block for a product chunk by chunk; what is received lies in files."""
        assert self._folder is not None
        number, position = label
        counts = {source: len(self._positions[source]) for source in self.team.sources[self.owner]}
        for i in range(max([*map(len, self._sent.values()), *counts.values()], default=0)):
            piece = number, (position + 1) * PIECES + i
            sending = Sending(
                self.team.space, piece, self.owner,
                {to: self._rows_at(name, parts[i : i + 1]) for to, parts in self._sent.items() if i < len(parts)},
                self.team.addresses,
            )  # fmt: skip
            for source in (source for source, count in counts.items() if i < count):
                rows = self.mailbox.take(piece, source, patience)
                self._pieces[source, i] = _written(self._folder / f"from-{source}-{i}", rows)
            sending.wait(patience)

    def _rows_at(self, name: str, parts: Sequence[tuple[int, Int32]]) -> Float32:
        """Rows of some chunks of a block, one after another: (rows, columns)."""
        blocks = [self.view(name, h) for h, _ in parts]
        shape = sum(len(rows) for _, rows in parts), blocks[0].shape[1]
        together: Float32 = buffers.fresh(shape, blocks[0].dtype)  # not kept in memory once it has been sent
        begin = 0
        for block, (_, rows) in zip(blocks, parts, strict=True):
            buffers.take_rows(block, rows, together[begin : begin + len(rows)])
            begin += len(rows)
        return together

    def _multiply_chunks(
        self, chunks: Sequence[int], operation: Multiplication, received: Mapping[int, Float32]
    ) -> None:
        def some(low: int, high: int) -> None:
            for g in chunks[low:high]:
                self.multiply_chunk(g, operation, received)

        map_chunks(some, len(chunks), 1)

    def multiply_chunk(self, g: int, operation: Multiplication, received: Mapping[int, Float32]) -> None:
        """The rows of chunk g of `multiply`, with the rows that each other worker has sent."""
        arrays = self._arrays.get(g)
        if arrays is None:
            arrays = self._load(g, self.rows.needed(self._context, g), self._positions)
        y = self.get(operation.y, g)
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = np.empty(0, np.float32)
        size = arrays.operator.touched * y.shape[1]
        if len(workspace) < size:  # of the largest chunk, so that it is made once
            most = max((other.operator.touched for other in self._arrays.values()), default=arrays.operator.touched)
            workspace = np.empty(max(size, most * y.shape[1]), np.float32)
        x = workspace[:size].reshape(arrays.operator.touched, y.shape[1])
        x[arrays.operator.own] = y
        for source in arrays.sources:
            if source.sender < 0:
                rows = self.view(operation.y, source.chunk)
            elif source.piece < 0:
                rows = received[source.sender]
            else:
                rows = _mapped(*self._pieces[source.sender, source.piece])
            buffers.take_rows(rows, source.index, x[source.place])
        operation.multiply_chunk(self, g, arrays, x)
        self._workspaces.append(workspace)


_stores: weakref.WeakValueDictionary[str, BlockStore] = weakref.WeakValueDictionary()


def store_of(space: str, owner: int) -> BlockStore | None:
    """The store of a worker of a team, where it is in this process."""
    return _stores.get(mailbox_of(space, owner))


# ---- operations: each has a method for one chunk, or one for all chunks of a worker


class Operation:
    """One step of a round."""

    together: ClassVar[bool] = False
    """Whether it works on all chunks of a worker together."""

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """Work on chunk g alone; what the last operation of a round returns is the round's result for the chunk."""
        raise NotImplementedError

    def all_chunks(self, store: BlockStore, context: Context, label: tuple[int, int]) -> None:
        """Work on all chunks of the worker."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Setup(Operation):
    """Read operators, and learn who needs which rows."""

    together: ClassVar[bool] = True

    def all_chunks(self, store: BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        store.share_rows(label)


@dataclasses.dataclass(frozen=True)
class ComponentVolumes(Operation):
    """The components with rows in a chunk: numbers (n,), and volumes in the chunk (n,) float64."""

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        vectors = store.known(g)
        components = np.unique(vectors.label)
        return components, np.asarray(vectors.volume[components], np.float64)


@dataclasses.dataclass(frozen=True)
class TakeVolumes(Operation):
    """Scale known vectors by the volumes (components,) of whole components."""

    volumes: Float64
    together: ClassVar[bool] = True

    def all_chunks(self, store: BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        store.forget_known(self.volumes)


@dataclasses.dataclass(frozen=True)
class Make(Operation):
    """Blocks ``names`` from ``function(context, g, *arguments[g])`` of each chunk: (n_g, columns) float32."""

    names: tuple[str, ...]
    widths: tuple[int, ...]
    function: Callable[..., Float32]
    arguments: Sequence[tuple[Any, ...]]
    parked: bool

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        block = self.function(context, g, *self.arguments[g])
        store.put_columns(self.names, self.widths, g, block, parked=self.parked)
        store.is_tidy = False
        return None


class Multiplication(Operation):
    """A product of each chunk's operator with rows of a block ``y``, those of other chunks among them."""

    together: ClassVar[bool] = True
    y: str

    def all_chunks(self, store: BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        store.multiply(label, self, store.team.patience)

    def multiply_chunk(self, store: BlockStore, g: int, arrays: ChunkArrays, x: Float32) -> None:
        """Keep the product on chunk g's rows, from y's rows x (touched, columns) that the chunk touches."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Step(Multiplication):
    """``result`` = a L y + b y + c previous, where L is the normalised operator; ``previous`` is dropped.

    Where y lies in a file too, the result goes into one as it is made: y is the only block in memory then.
    """

    result: str
    y: str
    previous: str | None
    a: float
    b: float
    c: float

    def multiply_chunk(self, store: BlockStore, g: int, arrays: ChunkArrays, x: Float32) -> None:
        """As of `Multiplication`."""
        y, before = store.get(self.y, g), None if self.previous is None else store.get(self.previous, g)
        if self.previous is not None and before is not None and not store.may_overwrite(self.previous, g, before):
            before = before.copy()  # the result takes its place in memory
        result = arrays.operator.recur(x, arrays.scale, y, before, self.a, self.b, self.c)
        if self.previous is not None:
            store.drop(self.previous, g)
        store.put(self.result, g, result, parked=store.is_parked(self.y, g))


@dataclasses.dataclass(frozen=True)
class Product(Multiplication):
    """``result`` = R y, where R is the operator as it is, not normalised."""

    result: str
    y: str

    def multiply_chunk(self, store: BlockStore, g: int, arrays: ChunkArrays, x: Float32) -> None:
        """As of `Multiplication`."""
        store.put(self.result, g, arrays.operator.product(x, arrays.scale))


@dataclasses.dataclass(frozen=True)
class Drop(Operation):
    """Free blocks."""

    names: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        for name in self.names:
            store.drop(name, g)
        return None


@dataclasses.dataclass(frozen=True)
class Divide(Operation):
    """Columns of blocks ``y`` side by side as blocks ``results`` of other widths, all in memory; y is dropped."""

    results: tuple[str, ...]
    widths: tuple[int, ...]
    y: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        block = store.columns(self.y, g)
        for name in self.y:
            store.drop(name, g)
        store.put_columns(self.results, self.widths, g, block, parked=False)
        return None


@dataclasses.dataclass(frozen=True)
class Free(Operation):
    """Free all blocks, copies and operators, and give their memory back: what comes next has other sizes."""

    together: ClassVar[bool] = True

    def all_chunks(self, store: BlockStore, context: Context, label: tuple[int, int]) -> None:
        """As of `Operation`."""
        del context, label
        store.release()
        store.copies.clear()
        clear_cache()  # and pooled buffers


@dataclasses.dataclass(frozen=True)
class Load(Operation):
    """Read blocks that lie in files into memory; the files stay."""

    names: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        for name in self.names:
            store.load(name, g)
        return None


@dataclasses.dataclass(frozen=True)
class Unload(Operation):
    """Free the memory of blocks that lie in files too."""

    names: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        for name in self.names:
            store.unload(name, g)
        return None


@dataclasses.dataclass(frozen=True)
class Coefficients(Operation):
    """Products of the known vectors with blocks: numbers of the components there, and (present, columns) float64."""

    names: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        return store.known(g).coefficients(store.columns(self.names, g))


@dataclasses.dataclass(frozen=True)
class Subtract(Operation):
    """Blocks minus the known vectors times their coefficients.

    Attributes
    ----------
    coefficients : mapping
        By chunk: numbers of the components there, and (present, columns) float64.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    coefficients: Mapping[int, tuple[NDArray[np.integer], Float64]]
    parked: bool

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        vectors, (components, products) = store.known(g), self.coefficients[g]
        block = store.columns(self.names, g)
        every = np.zeros((vectors.count, block.shape[1]))
        every[components] = products
        result: Float32 = vectors.subtract(block, every)
        store.put_columns(self.names, self.widths, g, result, parked=self.parked)
        return None


@dataclasses.dataclass(frozen=True)
class Gram(Operation):
    """x' y of blocks (n_g, p) and (n_g, q), summed in float64: (p, q)."""

    x: tuple[str, ...]
    y: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        x = store.columns(self.x, g)
        y = x if self.x == self.y else store.columns(self.y, g)
        total = np.zeros((x.shape[1], y.shape[1]))
        for low in range(0, len(x), GRAM_ROWS):
            rows = slice(low, low + GRAM_ROWS)
            wide = x[rows].astype(np.float64)
            total += wide.T @ (wide if y is x else y[rows].astype(np.float64))
        return total


@dataclasses.dataclass(frozen=True)
class Rotate(Operation):
    """Blocks ``results`` = y C, with C (p, q) rounded to float32; y is dropped."""

    results: tuple[str, ...]
    widths: tuple[int, ...]
    y: tuple[str, ...]
    C: Float64
    parked: bool

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        y = store.columns(self.y, g)
        product = np.matmul(y, self.C.astype(np.float32), out=buffers.empty((len(y), self.C.shape[1]), np.float32))
        for name in self.y:
            store.drop(name, g)
        store.put_columns(self.results, self.widths, g, product, parked=self.parked)
        store.is_tidy = False
        return None


@dataclasses.dataclass(frozen=True)
class ResidualSquares(Operation):
    """Sums of squares of the columns of L y - y diag(values): (columns,) float64."""

    Ly: tuple[str, ...]
    y: tuple[str, ...]
    values: Float64

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        y, Ly, shift = store.columns(self.y, g), store.columns(self.Ly, g), self.values.astype(np.float32)
        total = np.zeros(y.shape[1])
        for low in range(0, len(y), GRAM_ROWS):  # else several arrays of the chunk's size are in memory together
            rows = slice(low, low + GRAM_ROWS)
            squares = np.square((Ly[rows] - y[rows] * shift).astype(np.float64))
            squares[0] += total  # NumPy adds rows of several columns one by one: the sum of all has these bits
            total = squares.sum(axis=0)
        return total


@dataclasses.dataclass(frozen=True)
class Apply(Operation):
    """What ``function(context, g, *arguments, block)`` returns for each chunk's columns of some blocks."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]

    def chunk(self, store: BlockStore, context: Context, g: int) -> object:
        """As of `Operation`."""
        return self.function(context, g, *self.arguments, store.columns(self.names, g))


# ---- tasks


def open_store(
    context: Context, team: Team, owner: int, scratch: bool, streams: bool = False, former: str | None = None
) -> BlockStore:
    """The empty store of one worker, whose process drops what it has cached: no round reads through the cache.

    Of a ``former`` team of the solve this process keeps copies alone.
    """
    clear_cache()
    for store in list(_stores.values()):
        if store.team.space == former:
            store.release()
    return BlockStore(team, owner, context, scratch=scratch, streams=streams)


def run_round(context: Context, space: str, owner: int, number: int, operations: Sequence[Operation]) -> list[object]:
    """Apply the operations of a round to the chunks of one worker; returns the last one's results, chunk by chunk.

    Raises
    ------
    BlocksLost
        If this process is not the one that has the blocks, or they are those of another round.
    """
    store = store_of(space, owner)
    if store is not None and store.failure is not None:
        raise store.failure  # Dask tries a failed task again: what is said of it is why it failed
    if store is None or store.round != number:
        raise BlocksLost(f"the blocks of worker {owner} are not where they were")
    store.round = -1  # what fails here can't be tried again: its blocks are half replaced
    results: list[object] = []
    try:
        with threads(context.threads * worker_threads()):
            for position, (together, some) in enumerate(_groups(operations)):
                if together:
                    some[0].all_chunks(store, context, (number, position))
                else:
                    results = _chunk_by_chunk(store, context, some)
    except Exception as error:
        store.failure = error
        raise
    store.round = number + 1
    return results


def _groups(operations: Sequence[Operation]) -> Iterable[tuple[bool, list[Operation]]]:
    """Operations on all chunks one by one, and those on single chunks as many as follow one another."""
    some: list[Operation] = []
    for operation in operations:
        if operation.together:
            if some:
                yield False, some
                some = []
            yield True, [operation]
        else:
            some.append(operation)
    if some:
        yield False, some


def _chunk_by_chunk(store: BlockStore, context: Context, operations: Sequence[Operation]) -> list[object]:
    """The results of the last operation."""

    def work(low: int, high: int) -> object:
        result: object = None
        for g in store.chunks[low:high]:
            for operation in operations:
                result = operation.chunk(store, context, g)
        return result

    return map_chunks(work, len(store.chunks), 1)

"""Levels of a graph whose rows are in chunks: what `ips2_dask.kernels.levels.Graph` does, as tasks of the executor.

Seeds are chosen, nodes join them and rows are merged chunk by chunk, with halos of small arrays between the steps. The
seeds of some consecutive chunks make a chunk of the coarser graph, about as large as theirs are. A graph of at most
`WHOLE` nodes is brought to one task, which solves it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels import levels as kernel
from ips2_dask.kernels.eigen import Known, Space
from ips2_dask.kernels.parallel import chunk_bounds, grid_rows, whole_blocks
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages.block_tasks import (
    Block,
    Halo,
    Needed,
    Renewed,
    Rows,
    TaskSpace,
    all_touched,
    as_they_are,
    on_touched,
)
from ips2_dask.stages.chunks import StoredBlocks, sample_bounds, user_numbers
from ips2_dask.store.context import Context
from ips2_dask.typing import Float, Float32, Float64, Int8, Int32, Int64, UInt64

WHOLE = 1 << 19
"""Nodes of a graph that one task solves: some 300 MB with the graph and its blocks."""

MOST_LEVELS = 8
"""Levels in chunks, at most: a level has at most `kernel.SHRINKS` of the nodes of the one above it, mostly a sixth."""


EXACT_BITS = 51
"""Bits of the sum of all degrees in whole multiples of the unit that coarse graphs are rounded to: sums of them are
exact in float64."""


class Nodes(NamedTuple):
    """Arrays of a chunk's own nodes."""

    degrees: Float64
    label: Int32
    """Component."""
    samples: Int64
    """The sample that each stands for, by the user's number."""


# ---- tasks: each on one chunk


def normalized_rows(rows: Rows, degrees: Float64) -> Rows:
    """The rows of D^-1/2 A D^-1/2, float32, from the degrees (touched,)."""
    m, root = rows.matrix, inverse_root(degrees)
    data = (m.data * np.repeat(rows.own(root), np.diff(m.indptr)) * root[m.indices]).astype(np.float32)
    return rows._replace(matrix=sp.csr_array((data, m.indices, m.indptr), shape=m.shape))


def volumes_of(nodes: Nodes, grid: int) -> list[tuple[Int64, Float64]]:
    """Of each block of the grid its components, and the share of each one's volume."""
    volumes = []
    for a, b in chunk_bounds(len(nodes.label), grid):
        components, place = np.unique(nodes.label[a:b], return_inverse=True)
        sums = np.bincount(place, nodes.degrees[a:b], len(components)).astype(np.float64)
        volumes.append((components.astype(np.int64), sums))
    return volumes


def _known_of(nodes: Nodes, count: int, volumes: Float64) -> Known:
    """The known eigenvectors on a chunk's rows."""
    label = nodes.label
    if len(label) and (label == label[0]).all():
        label = np.broadcast_to(label[0], label.shape)  # one number, not one a row
    return Known(np.sqrt(nodes.degrees), label, count, volumes)


def _priorities_of(nodes: Nodes, seed: int, depth: int) -> UInt64:
    """The priority of each node."""
    return kernel.priorities(nodes.samples, seed, depth)


def _undecided(nodes: Nodes) -> Int8:
    """The first state of each node."""
    return np.full(len(nodes.degrees), kernel.UNDECIDED, np.int8)


@on_touched
def _choose(state: Int8, rows: Rows, priority: UInt64) -> Int8:
    """As of `kernel.choose_seeds`."""
    return kernel.choose_seeds(rows.matrix, priority, state, rows.first)


@on_touched
def _cover(state: Int8, rows: Rows) -> Int8:
    """As of `kernel.cover`."""
    return kernel.cover(rows.matrix, state, rows.first)


def count_seeds(state: Int8) -> int:
    """Nodes that are seeds in the end: those that are undecided, too."""
    return int(np.count_nonzero(state != kernel.COVERED))


def numbers(state: Int8, first: int) -> Int64:
    """The number of each seed among all of them, -1 of other nodes."""
    is_seed = state != kernel.COVERED
    return np.where(is_seed, first + np.cumsum(is_seed) - 1, -1)


@on_touched
def _join(number: Int64, rows: Rows, degrees: Float64, priority: UInt64) -> Int64:
    """The number of each own node's seed, from those of all touched nodes."""
    state = np.where(number >= 0, kernel.SEED, kernel.COVERED)
    return number[kernel.strongest_seeds(rows.matrix, inverse_root(degrees), priority, state, rows.first)]


class _Share(NamedTuple):
    """A chunk's share of the coarse rows that another one owns: entries, and degrees of its nodes."""

    rows: Int64
    columns: Int64
    values: Float64
    nodes: Int64
    degrees: Float64


@on_touched
def merge(of_touched: Int64, rows: Rows, nodes: Nodes, bounds: list[int], unit: float) -> dict[int, _Share]:
    """Shares of coarse rows by the chunk that owns these, from the seeds' numbers of all touched nodes.

    Values are rounded to multiples of ``unit``, so that their sums are exact and chunks don't show.
    """
    m = rows.matrix
    present, local = np.unique(rows.own(of_touched), return_inverse=True)
    columns, column = np.unique(of_touched, return_inverse=True)
    whole = sp.csr_array((_rounded(m.data, unit), m.indices, m.indptr), shape=m.shape)
    merged = kernel.merged_rows(whole, local, column, (len(present), len(columns)))
    degrees = np.bincount(local, _rounded(nodes.degrees, unit), len(present)).astype(np.float64)
    cuts = np.searchsorted(present, bounds)
    shares = {}
    for h in np.flatnonzero(np.diff(cuts)).tolist():
        low, high = cuts[h], cuts[h + 1]
        begin, end = merged.indptr[low], merged.indptr[high]
        own = present[low:high] - bounds[h]
        row, values = (
            np.repeat(own, np.diff(merged.indptr[low : high + 1])),
            np.asarray(merged.data[begin:end], np.float64),
        )
        shares[h] = _Share(row, columns[merged.indices[begin:end]], values, own, degrees[low:high])
    return shares


def _rounded(values: Float, unit: float) -> Float64:
    """Multiples of a unit, a power of two."""
    return np.rint(values * np.float64(1.0 / unit)) * unit


def owners(shares: dict[int, _Share]) -> list[int]:
    """The chunks that own coarse rows of a share."""
    return sorted(shares)


def share_of(shares: dict[int, _Share], h: int) -> _Share:
    """What goes to one owner."""
    return shares[h]


class CoarseChunk(NamedTuple):
    """A chunk of the coarser graph."""

    rows: Rows
    nodes: Nodes
    needed: Needed


def _seeds_of(state: Int8, nodes: Nodes, first: int, last: int) -> Nodes:
    """The nodes that are a chunk's first .. last - 1 th seeds."""
    seeds = np.flatnonzero(state != kernel.COVERED)[max(first, 0) : last]
    return Nodes(nodes.degrees[seeds], nodes.label[seeds], nodes.samples[seeds])


def coarse_chunk(h: int, bounds: list[int], seeds: Sequence[Nodes], *shares: _Share) -> CoarseChunk:
    """The coarse rows that chunk h owns, from the shares of all chunks in their order, and the seeds of its own."""
    n, low = bounds[h + 1] - bounds[h], bounds[h]
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)  # of a chunk without a seed
    i, j, values = (np.concatenate(parts) for parts in zip(none, *(share[:3] for share in shares), strict=True))
    degrees = np.zeros(n)
    for share in shares:
        degrees[share.nodes] += share.degrees
    among = np.union1d(j, np.arange(low, low + n))
    matrix = sp.coo_array((values, (i, np.searchsorted(among, j))), shape=(n, len(among))).tocsr()
    matrix.sum_duplicates()
    matrix = sp.csr_array(
        (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)), shape=matrix.shape
    )
    label, samples = (np.concatenate([getattr(one, name) for one in seeds]) for name in ("label", "samples"))
    return chunk_of_rows(matrix, among, Nodes(degrees, label, samples), bounds, h)


def chunk_of_rows(
    matrix: sp.csr_array, among: NDArray[np.integer], nodes: Nodes, bounds: list[int], g: int
) -> CoarseChunk:
    """Chunk g from its rows over the nodes ``among``, which ascend."""
    return CoarseChunk(Rows(matrix, int(np.searchsorted(among, bounds[g]))), nodes, needed_rows(among, bounds, g))


def needed_rows(among: NDArray[np.integer], bounds: list[int], g: int) -> Needed:
    """The rows of each other chunk among the touched ones, counted from that chunk's first."""
    cuts = np.searchsorted(among, bounds).tolist()
    return {
        h: (among[cuts[h] : cuts[h + 1]] - bounds[h]).astype(np.int32)
        for h in range(len(bounds) - 1)
        if h != g and cuts[h] < cuts[h + 1]
    }


def stacked(chunks: Iterable[tuple[sp.csr_array, NDArray[np.integer]]]) -> sp.csr_array:
    """The whole matrix (n, n) of rows in chunks, from each chunk's rows and the nodes that they touch."""
    indices, data, lengths = [], [], []
    for matrix, among in chunks:
        indices.append(among[matrix.indices].astype(np.int32, copy=False))
        data.append(matrix.data)
        lengths.append(np.diff(matrix.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int32)
    return sp.csr_array((np.concatenate(data), np.concatenate(indices), indptr), shape=[len(indptr) - 1] * 2)


def field(chunk: NamedTuple, name: str) -> object:
    """One field of a result."""
    return getattr(chunk, name)


class _Solved(NamedTuple):
    """Eigenvectors of a graph that one task has solved, times D^-1/2, and the eigenvalue of the last one."""

    w: Float32
    last: float


def _solve_whole(
    bounds: list[int], count: int, seed: int, depth: int, width: int, wanted: int, *chunks: CoarseChunk
) -> _Solved:
    """Leading eigenvectors of a coarse graph from all of its chunks."""

    def touched(g: int, needed: Needed) -> Int64:
        own = np.arange(bounds[g], bounds[g + 1])
        return np.concatenate([own if h == g else bounds[h] + needed[h] for h in sorted([g, *needed])])

    matrix = stacked((chunk.rows.matrix, touched(g, chunk.needed)) for g, chunk in enumerate(chunks))
    degrees, label, samples = (np.concatenate(part) for part in zip(*(chunk.nodes for chunk in chunks), strict=True))
    graph = kernel.Graph(matrix, degrees, label, count, seed, samples, depth)
    found = kernel.start(graph, width, wanted, seed)
    y, last = graph.solved(width, wanted, seed) if found is None else (found.y, float(found.values[-1]))
    return _Solved(np.asarray(y * inverse_root(degrees)[:, None], np.float32), last)


def last_value(solved: _Solved) -> float:
    """The eigenvalue of the last eigenvector."""
    return solved.last


def from_whole(nodes: Nodes, aggregate: Int64, solved: _Solved) -> Float32:
    """Eigenvectors of a whole coarse graph at the members of its nodes."""
    return np.asarray(solved.w[aggregate] * np.sqrt(nodes.degrees)[:, None], np.float32)


def scaled(nodes: Nodes, y: Float32) -> Float32:
    """D^-1/2 y."""
    return np.asarray(y * inverse_root(nodes.degrees)[:, None], np.float32)


def coarse_sources(aggregate: Int64, bounds: list[int]) -> list[int]:
    """The coarse chunks whose nodes a chunk's nodes belong to."""
    return np.flatnonzero(np.diff(np.searchsorted(np.unique(aggregate), bounds))).tolist()


def members_rows(w: Float32, aggregate: Int64, low: int, high: int) -> Float32:
    """Rows of a coarse chunk, nodes low .. high - 1, at those that a chunk's nodes belong to, ascending."""
    present = np.unique(aggregate)
    return w[present[(present >= low) & (present < high)] - low]


def from_pieces(nodes: Nodes, aggregate: Int64, *pieces: Float32) -> Float32:
    """Eigenvectors of a coarse graph in chunks at the members of its nodes."""
    _, place = np.unique(aggregate, return_inverse=True)
    return np.asarray(np.concatenate(pieces)[place] * np.sqrt(nodes.degrees)[:, None], np.float32)


# ---- levels


class ChunkedGraph:
    """A level whose rows are in chunks: a `ips2_dask.kernels.levels.Level`.

    ``bounds``: first node of each chunk, and the number of nodes; ``chunks``: `CoarseChunk` of each; ``count``: of
    components; ``depth``: levels below the finest; ``volumes`` (count,): volume of each component, which is that of the
    finest level; ``name`` and ``renewed``: as of `TaskSpace`.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        bounds: list[int],
        chunks: list[Handle],
        count: int,
        seed: int,
        depth: int = 0,
        volumes: Float64 | None = None,
        renewed: Renewed = as_they_are,
    ) -> None:
        self._base, self._executor, self._count, self._seed, self._depth = name, executor, count, seed, depth
        self._name, self._renewed = f"{name}-{depth}", renewed
        with executor.batch():
            self._rows, self._nodes, needed = (
                self._each(field, chunks, also=(part,), name=part) for part in CoarseChunk._fields
            )
        self._halo = Halo(executor, self._name, bounds, needed)
        self._volumes = self._sum_volumes() if volumes is None else volumes
        self._degrees = self._halo.each(
            f"{self._name}-degrees", all_touched, self._each(field, self._nodes, also=("degrees",))
        )
        normalized = self._each(normalized_rows, self._rows, self._degrees)
        self.known = self._each(_known_of, self._nodes, also=(count, self._volumes))
        self.space = TaskSpace(self._name, self._halo, normalized, self.known, count, renewed)
        self._aggregate: list[Handle] = []

    def _each(
        self, function: Callable[..., object], *lists: Sequence[object], also: Sequence[object] = (), name: str = ""
    ) -> list[Handle]:
        """One task for each chunk; see `Executor.each`."""
        return self._executor.each(f"{self._name}-{name or function.__name__.strip('_')}", function, *lists, also=also)

    def _sum_volumes(self) -> Float64:
        volumes, grid = np.zeros(self._count), grid_rows(self._halo.bounds[-1])
        parts = self._executor.results(self._each(volumes_of, self._nodes, also=(grid,)))
        for components, some in itertools.chain.from_iterable(parts):
            volumes[components] += some
        return volumes

    def for_each(
        self,
        function: Callable[..., object],
        y: Block,
        context: Context,
        *arguments: object,
        of: list[Handle] | None = None,
    ) -> list[Any]:
        """What ``function(context, g, nodes, y, *arguments)`` returns for each chunk; ``of`` is given for the nodes."""
        shared = [self._executor.share(context)] * len(y)
        of = self._nodes if of is None else of
        return self._executor.results(self._each(function, shared, range(len(y)), of, y, also=arguments))

    def drop_renewed(self, stored: StoredBlocks) -> None:
        """Delete what blocks between products were stored in, at this level and those below."""
        if self._halo.is_long(kernel.MOST_PRODUCTS):
            stored.drop([f"{self._base}-{depth}" for depth in range(MOST_LEVELS)], len(self._halo))

    def coarser(self) -> ChunkedGraph | WholeGraph | None:
        """As of `Level`."""
        n = self._halo.bounds[-1]
        if n <= kernel.COARSEST:
            return None
        rows, nodes = self._rows, self._nodes

        def touched(function: Callable[..., object], values: Block, *lists: Sequence[object]) -> Block:
            return self._halo.each(f"{self._name}-{function.__name__.strip('_')}", function, values, *lists)

        priority = touched(all_touched, self._each(_priorities_of, nodes, also=(self._seed, self._depth)))
        state = self._each(_undecided, nodes)
        for _ in range(kernel.ROUNDS):
            state = touched(_choose, state, rows, priority)
            state = touched(_cover, state, rows)
        counts = self._executor.results(self._each(count_seeds, state))
        ends = np.concatenate([[0], np.cumsum(counts)]).tolist()
        if ends[-1] > kernel.SHRINKS * n:
            return None
        each = whole_blocks(ends[-1], int(np.diff(self._halo.bounds).max()))
        bounds = [*range(0, ends[-1], each), ends[-1]]
        self._aggregate = touched(_join, self._each(numbers, state, ends[:-1]), rows, self._degrees, priority)
        unit = 2.0 ** (math.frexp(float(self._volumes.sum()))[1] - EXACT_BITS)
        several = [[one] * len(counts) for one in (bounds, unit)]
        shares = touched(merge, self._aggregate, rows, nodes, *several)
        seeds = [
            [
                self._executor.submit(
                    f"{self._name}-seeds-{g}", _seeds_of, state[g], nodes[g], low - first, high - first
                )
                for g, (first, last) in enumerate(itertools.pairwise(ends))
                if first < high and last > low
            ]
            for low, high in itertools.pairwise(bounds)
        ]
        chunks = self._coarse_chunks(bounds, seeds, shares)
        self._rows = []  # the normalised rows are all that products need
        coarse = self._base, self._executor, bounds, chunks, self._count, self._seed, self._depth + 1
        return WholeGraph(*coarse) if bounds[-1] <= WHOLE else ChunkedGraph(*coarse, self._volumes, self._renewed)

    def _coarse_chunks(self, bounds: list[int], seeds: list[list[Handle]], shares: list[Handle]) -> list[Handle]:
        sources: list[list[int]] = [[] for _ in seeds]
        for g, some in enumerate(self._executor.results(self._each(owners, shares))):
            for h in some:
                sources[h].append(g)
        made, submit = [], self._executor.submit
        with self._executor.batch():
            for h, some in enumerate(sources):
                parts = [submit(f"{self._name}-share-{h}", share_of, shares[g], h) for g in some]
                made.append(submit(f"{self._name}-coarse-{h}", coarse_chunk, h, bounds, seeds[h], *parts))
        return made

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """As of `Level`: from a random start, as where a graph does not get smaller."""
        found = kernel.refined(self.space, self.space.random(width, seed), 0.0)
        solution = kernel.leading(self.space, found, wanted, tol=kernel.TOL, settled=kernel.SETTLED, seed=seed)
        return solution.vectors, float(solution.values[-1])

    def prolong(self, coarse: ChunkedGraph | WholeGraph, y: Block) -> Block:
        """As of `Level`."""
        if isinstance(coarse, WholeGraph):
            return self._each(from_whole, self._nodes, self._aggregate, y * len(self._nodes))
        bounds, submit = coarse._halo.bounds, self._executor.submit
        w = coarse._each(scaled, coarse._nodes, y)
        made, sources = [], self._executor.results(self._each(coarse_sources, self._aggregate, also=(bounds,)))
        with self._executor.batch():
            for g, (nodes, aggregate, some) in enumerate(zip(self._nodes, self._aggregate, sources, strict=True)):
                name = f"{self._name}-members-{g}"
                pieces = [submit(name, members_rows, w[h], aggregate, *bounds[h : h + 2]) for h in some]
                made.append(submit(f"{self._name}-prolong-{g}", from_pieces, nodes, aggregate, *pieces))
        return made


class WholeGraph:
    """A coarse level that one task solves, all levels below included: a `ips2_dask.kernels.levels.Level`."""

    @property
    def space(self) -> Space:
        """As of `Level`, which nobody asks for."""
        raise NotImplementedError("the task that solves the graph has its blocks")

    def __init__(
        self, name: str, executor: Executor, bounds: list[int], chunks: list[Handle], count: int, seed: int, depth: int
    ) -> None:
        self._name, self._executor, self._bounds, self._chunks = name, executor, bounds, chunks
        self._count, self._seed, self._depth = count, seed, depth

    def coarser(self) -> None:
        """As of `Level`."""
        return

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """As of `Level`."""
        del seed
        numbers = self._bounds, self._count, self._seed, self._depth, width, wanted
        task = self._executor.submit(f"{self._name}-coarsest-0", _solve_whole, *numbers, *self._chunks)
        (last,) = self._executor.results([self._executor.submit(f"{self._name}-last-0", last_value, task)])
        return [task], last

    def prolong(self, coarse: object, y: Block) -> Block:
        """As of `Level`, which nobody asks for."""
        raise NotImplementedError("there is no coarser graph")


# ---- graphs of samples


def open_graph(
    context: Context,
    executor: Executor,
    name: str,
    chunk_of: Callable[[Context, int], CoarseChunk],
    count: int,
    stored: StoredBlocks,
) -> ChunkedGraph:
    """A graph of samples with so many large components, whose chunks are results of tasks.

    ``name``: the beginning of the names of its tasks; ``chunk_of``: a function of a module that gives chunk g;
    ``stored``: for blocks between products.
    """
    bounds = sample_bounds(context)
    shared, numbers = [executor.share(context)] * (len(bounds) - 1), range(len(bounds) - 1)
    chunks = executor.each(f"{name}-chunk", chunk_of, shared, numbers)
    seed = context.params.random_state
    return ChunkedGraph(name, executor, bounds, chunks, count, seed, renewed=stored.renewed)


def nodes_of(context: Context, g: int, degrees: Float64, label: NDArray[np.integer]) -> Nodes:
    """The nodes of a chunk of samples."""
    return Nodes(degrees, label.astype(np.int32), user_numbers(context, g))

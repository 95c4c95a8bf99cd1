"""Levels of a graph whose rows are in chunks: what `ips2_dask.kernels.levels.Graph` does, as tasks of the executor.

Seeds are chosen, nodes join them and rows are merged chunk by chunk, with halos of small arrays between the steps. The
seeds of some consecutive chunks make a chunk of the coarser graph, about as large as theirs are. A graph of at most
`WHOLE` nodes is brought to one task, which solves it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels import levels as kernel
from ips2_dask.kernels.eigen import Known, Space
from ips2_dask.kernels.parallel import chunk_bounds, grid_rows, whole_blocks
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages.block_tasks import MOST_TASKS, Around, Block, Halo, Rows, TaskSpace, touched
from ips2_dask.stages.checkpoints import StoredBlocks
from ips2_dask.store.context import Context
from ips2_dask.typing import Float, Float32, Float64, Int8, Int32, Int64, UInt64

Needed = dict[int, Int32]
"""The rows of every other chunk that a chunk touches, counted from that chunk's first."""

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


def _degrees_of(nodes: Nodes) -> Float64:
    """The degrees alone."""
    return nodes.degrees


def normalized_rows(rows: Rows, degrees: Float64) -> Rows:
    """The rows of D^-1/2 A D^-1/2, float32, from the degrees (touched,)."""
    m, root = rows.matrix, inverse_root(degrees)
    own = root[rows.first : rows.first + m.shape[0]]
    data = (m.data * np.repeat(own, np.diff(m.indptr)) * root[m.indices]).astype(np.float32)
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


def undecided(nodes: Nodes) -> Int8:
    """The first state of each node."""
    return np.full(len(nodes.degrees), kernel.UNDECIDED, np.int8)


def choose(rows: Rows, priority: UInt64, own: Int8, around: Around, needed: Needed, *others: Int8) -> Int8:
    """As of `kernel.choose_seeds`."""
    return kernel.choose_seeds(rows.matrix, priority, touched(own, around, needed, others), rows.first)


def _cover(rows: Rows, own: Int8, around: Around, needed: Needed, *others: Int8) -> Int8:
    """As of `kernel.cover`."""
    return kernel.cover(rows.matrix, touched(own, around, needed, others), rows.first)


def count_seeds(state: Int8) -> int:
    """Nodes that are seeds in the end: those that are undecided, too."""
    return int(np.count_nonzero(state != kernel.COVERED))


def numbers(state: Int8, first: int) -> Int64:
    """The number of each seed among all of them, -1 of other nodes."""
    is_seed = state != kernel.COVERED
    return np.where(is_seed, first + np.cumsum(is_seed) - 1, -1)


def join(
    rows: Rows, degrees: Float64, priority: UInt64, own: Int64, around: Around, needed: Needed, *others: Int64
) -> Int64:
    """The number of each own node's seed, from those of all touched nodes."""
    number = touched(own, around, needed, others)
    state = np.where(number >= 0, kernel.SEED, kernel.COVERED)
    return number[kernel.strongest_seeds(rows.matrix, inverse_root(degrees), priority, state, rows.first)]


class _Shares(NamedTuple):
    """A chunk's share of coarse rows, by the chunk that owns these: rows, columns and values, and degrees."""

    rows: dict[int, tuple[Int64, Int64, Float64]]
    degrees: dict[int, tuple[Int64, Float64]]


def merge(
    rows: Rows, nodes: Nodes, bounds: list[int], unit: float, own: Int64, around: Around, needed: Needed, *others: Int64
) -> _Shares:
    """The share of coarse rows from the seeds' numbers of all touched nodes.

    Values are rounded to multiples of ``unit``, so that their sums are exact and chunks don't show.
    """
    of_touched, m = touched(own, around, needed, others), rows.matrix
    present, local = np.unique(own, return_inverse=True)
    columns, column = np.unique(of_touched, return_inverse=True)
    whole = sp.csr_array((_rounded(m.data, unit), m.indices, m.indptr), shape=m.shape)
    merged = kernel.merged_rows(whole, local, column, (len(present), len(columns)))
    degrees = np.bincount(local, _rounded(nodes.degrees, unit), len(present)).astype(np.float64)
    cuts = np.searchsorted(present, bounds)
    shares = _Shares({}, {})
    for h in np.flatnonzero(np.diff(cuts)).tolist():
        low, high = cuts[h], cuts[h + 1]
        begin, end = merged.indptr[low], merged.indptr[high]
        row = np.repeat(present[low:high] - bounds[h], np.diff(merged.indptr[low : high + 1]))
        shares.rows[h] = row, columns[merged.indices[begin:end]], np.asarray(merged.data[begin:end], np.float64)
        shares.degrees[h] = present[low:high] - bounds[h], degrees[low:high]
    return shares


def _rounded(values: Float, unit: float) -> Float64:
    """Multiples of a unit, a power of two."""
    return np.rint(values * np.float64(1.0 / unit)) * unit


def owners(shares: _Shares) -> list[int]:
    """The chunks that own coarse rows of a share."""
    return sorted(shares.rows)


def share_of(shares: _Shares, h: int) -> _Shares:
    """What goes to one owner."""
    return _Shares({h: shares.rows[h]}, {h: shares.degrees[h]})


class CoarseChunk(NamedTuple):
    """A chunk of the coarser graph."""

    rows: Rows
    nodes: Nodes
    needed: dict[int, Int32]


def _seeds_of(state: Int8, nodes: Nodes, first: int, last: int) -> Nodes:
    """The nodes that are a chunk's first .. last - 1 th seeds."""
    seeds = np.flatnonzero(state != kernel.COVERED)[max(first, 0) : last]
    return Nodes(nodes.degrees[seeds], nodes.label[seeds], nodes.samples[seeds])


def coarse_chunk(h: int, bounds: list[int], seeds: Sequence[Nodes], *shares: _Shares) -> CoarseChunk:
    """The coarse rows that chunk h owns, from the shares of all chunks in their order, and the seeds of its own."""
    n, low = bounds[h + 1] - bounds[h], bounds[h]
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)  # of a chunk without a seed
    i, j, values = (np.concatenate(parts) for parts in zip(none, *(share.rows[h] for share in shares), strict=True))
    degrees = np.zeros(n)
    for share in shares:
        rows, some = share.degrees[h]
        degrees[rows] += some
    among = np.union1d(j, np.arange(low, low + n))
    matrix = sp.coo_array((values, (i, np.searchsorted(among, j))), shape=(n, len(among))).tocsr()
    matrix.sum_duplicates()
    matrix = sp.csr_array(
        (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)), shape=matrix.shape
    )
    cuts = np.searchsorted(among, bounds).tolist()
    label, samples = (np.concatenate([getattr(one, name) for one in seeds]) for name in ("label", "samples"))
    return CoarseChunk(Rows(matrix, cuts[h]), Nodes(degrees, label, samples), needed_rows(among, cuts, bounds, h))


def needed_rows(among: NDArray[np.integer], cuts: list[int], bounds: list[int], g: int) -> dict[int, Int32]:
    """The rows of each other chunk among the touched ones, counted from that chunk's first."""
    return {
        h: (among[cuts[h] : cuts[h + 1]] - bounds[h]).astype(np.int32)
        for h in range(len(bounds) - 1)
        if h != g and cuts[h] < cuts[h + 1]
    }


def field(chunk: NamedTuple, name: str) -> object:
    """One field of a result."""
    return getattr(chunk, name)


def sources_of(needed: Needed) -> dict[int, int]:
    """The chunks that rows are needed of, ascending, and how many."""
    return {h: len(needed[h]) for h in sorted(needed)}


class _Solved(NamedTuple):
    """Eigenvectors of a graph that one task has solved, times D^-1/2, and the eigenvalue of the last one."""

    w: Float32
    last: float


def _solve_whole(
    bounds: list[int], count: int, seed: int, depth: int, width: int, wanted: int, *chunks: CoarseChunk
) -> _Solved:
    """Leading eigenvectors of a coarse graph from all of its chunks."""
    indices, data, lengths = [], [], []
    for g, chunk in enumerate(chunks):
        among = np.concatenate(
            [
                np.arange(bounds[h], bounds[h + 1])
                if h == g
                else bounds[h] + chunk.needed.get(h, np.empty(0, np.int32))
                for h in range(len(chunks))
            ]
        )
        m = chunk.rows.matrix
        indices.append(among[m.indices].astype(np.int32))
        data.append(m.data)
        lengths.append(np.diff(m.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int32)
    matrix = sp.csr_array((np.concatenate(data), np.concatenate(indices), indptr), shape=(bounds[-1], bounds[-1]))
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

    Parameters
    ----------
    name : str
        The beginning of the names of its tasks.
    halo : Halo
    rows, nodes : list of Handle
        `Rows`, not normalised, and `Nodes` of each chunk.
    count : int
        Number of components.
    seed : int
    volumes : (count,) float64, optional
        Volume of each component, which is that of the finest level.
    depth : int
        Levels below the finest.
    renewed : callable, optional
        As of `TaskSpace`.
    """

    def __init__(
        self,
        name: str,
        halo: Halo,
        rows: list[Handle],
        nodes: list[Handle],
        count: int,
        seed: int,
        volumes: Float64 | None = None,
        depth: int = 0,
        renewed: Callable[[str, list[Block]], list[Block]] | None = None,
    ) -> None:
        self._name, self._halo, self._rows, self._nodes = f"{name}-{depth}", halo, rows, nodes
        self._base, self._count, self._seed, self._depth = name, count, seed, depth
        self._executor: Executor = halo.executor
        self._volumes = self._sum_volumes() if volumes is None else volumes
        own_degrees = self._each("degrees", _degrees_of, nodes)
        self._degrees = halo.of_touched(f"{self._name}-degrees", own_degrees)
        normalized = self._each("normalized", normalized_rows, rows, self._degrees)
        self.known = self._each("known", _known_of, nodes, also=(count, self._volumes))
        self._renewed = renewed
        self.space = TaskSpace(self._name, halo, normalized, self.known, count, renewed)
        self._aggregate: list[Handle] = []

    def _each(
        self, name: str, function: Callable[..., object], *arguments: list[Handle], also: tuple[object, ...] = ()
    ) -> list[Handle]:
        with self._executor.batch():
            return [
                self._executor.submit(f"{self._name}-{name}-{g}", function, *items, *also)
                for g, items in enumerate(zip(*arguments, strict=True))
            ]

    def _with_halo(
        self, name: str, function: Callable[..., object], before_values: list[list[Handle]], values: list[Handle]
    ) -> list[Handle]:
        """Tasks that get some results of their own chunk, and ``values``, numbers, at all rows that it touches."""
        with self._executor.batch():
            made = []
            for g, items in enumerate(zip(*before_values, strict=True)):
                task = self._executor.submit(
                    f"{self._name}-{name}-{g}",
                    function,
                    *items,
                    values[g],
                    *self._halo.around(self._name, values, g, small=True),
                )
                made.append(task)
        return made

    def _sum_volumes(self) -> Float64:
        volumes, grid = np.zeros(self._count), grid_rows(self._halo.bounds[-1])
        parts = self._executor.results(self._each("volumes", volumes_of, self._nodes, also=(grid,)))
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
        """What ``function(context, g, *arguments, nodes, y)`` returns for each chunk; ``of`` is given for the nodes."""
        shared, of = self._executor.share(context), self._nodes if of is None else of
        with self._executor.batch():
            tasks = [
                self._executor.submit(
                    f"{self._name}-{function.__name__}-{g}", function, shared, g, *arguments, item, rows
                )
                for g, (item, rows) in enumerate(zip(of, y, strict=True))
            ]
        return self._executor.results(tasks)

    def drop_renewed(self, stored: StoredBlocks) -> None:
        """Delete what blocks between products were stored in, at this level and those below."""
        if self._halo.n_tasks * kernel.MOST_PRODUCTS > MOST_TASKS:
            stored.drop([f"{self._base}-{depth}" for depth in range(MOST_LEVELS)], len(self._halo))

    def coarser(self) -> ChunkedGraph | WholeGraph | None:
        """As of `Level`."""
        n = self._halo.bounds[-1]
        if n <= kernel.COARSEST:
            return None
        rows, nodes = self._rows, self._nodes
        priority = self._each("priority", _priorities_of, nodes, also=(self._seed, self._depth))
        of_touched = self._halo.of_touched(f"{self._name}-priority", priority)
        state = self._each("undecided", undecided, nodes)
        for _ in range(kernel.ROUNDS):
            state = self._with_halo("choose", choose, [rows, of_touched], state)
            state = self._with_halo("cover", _cover, [rows], state)
        counts = self._executor.results(self._each("seeds", count_seeds, state))
        ends = np.concatenate([[0], np.cumsum(counts)]).tolist()
        if ends[-1] > kernel.SHRINKS * n:
            return None
        submit, coarse = self._executor.submit, f"{self._base}-{self._depth + 1}"
        each = whole_blocks(ends[-1], int(np.diff(self._halo.bounds).max()))
        bounds = [*range(0, ends[-1], each), ends[-1]]
        number = self._each("numbers", numbers, state, ends[:-1])
        self._aggregate = self._with_halo("join", join, [rows, self._degrees, of_touched], number)
        unit = 2.0 ** (math.frexp(float(self._volumes.sum()))[1] - EXACT_BITS)
        several = [[one] * len(counts) for one in (bounds, unit)]
        shares = self._with_halo("merge", merge, [rows, nodes, *several], self._aggregate)
        seeds = [
            [
                submit(f"{self._name}-seeds-{g}", _seeds_of, state[g], nodes[g], low - first, high - first)
                for g, (first, last) in enumerate(itertools.pairwise(ends))
                if first < high and last > low
            ]
            for low, high in itertools.pairwise(bounds)
        ]
        chunks = self._coarse_chunks(bounds, seeds, shares)
        self._rows = []  # the normalised rows are all that products need
        depth = self._depth + 1
        if bounds[-1] <= WHOLE:
            return WholeGraph(self._executor, self._base, bounds, chunks, self._count, self._seed, depth)
        with self._executor.batch():
            rows, nodes, needed = (
                [submit(f"{coarse}-{name}-{h}", field, chunk, name) for h, chunk in enumerate(chunks)]
                for name in CoarseChunk._fields
            )
            asked = [submit(f"{coarse}-sources-{h}", sources_of, some) for h, some in enumerate(needed)]
        sources = self._executor.results(asked)
        halo = Halo(self._executor, bounds, needed, sources)
        return ChunkedGraph(self._base, halo, rows, nodes, self._count, self._seed, self._volumes, depth, self._renewed)

    def _coarse_chunks(self, bounds: list[int], seeds: list[list[Handle]], shares: list[Handle]) -> list[Handle]:
        sources: list[list[int]] = [[] for _ in seeds]
        for g, some in enumerate(self._executor.results(self._each("owners", owners, shares))):
            for h in some:
                sources[h].append(g)
        with self._executor.batch():
            made = []
            for h, some in enumerate(sources):
                parts = [self._executor.submit(f"{self._name}-share-{h}", share_of, shares[g], h) for g in some]
                task = self._executor.submit(f"{self._name}-coarse-{h}", coarse_chunk, h, bounds, seeds[h], *parts)
                made.append(task)
        return made

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """As of `Level`: from a random start, as where a graph does not get smaller."""
        found = kernel.refined(self.space, self.space.random(width, seed), 0.0)
        solution = kernel.leading(self.space, found, wanted, tol=kernel.TOL, settled=kernel.SETTLED, seed=seed)
        return solution.vectors, float(solution.values[-1])

    def prolong(self, coarse: ChunkedGraph | WholeGraph, y: Block) -> Block:
        """As of `Level`."""
        if isinstance(coarse, WholeGraph):
            return self._each("prolong", from_whole, self._nodes, self._aggregate, [y[0]] * len(self._nodes))
        bounds = coarse._halo.bounds
        w = coarse._each("scaled", scaled, coarse._nodes, y)
        sources = self._executor.results(
            self._each("members", coarse_sources, self._aggregate, [bounds] * len(self._nodes))
        )
        submit = self._executor.submit
        with self._executor.batch():
            made = []
            for g, some in enumerate(sources):
                pieces = [
                    submit(
                        f"{self._name}-members-{g}", members_rows, w[h], self._aggregate[g], bounds[h], bounds[h + 1]
                    )
                    for h in some
                ]
                task = submit(f"{self._name}-prolong-{g}", from_pieces, self._nodes[g], self._aggregate[g], *pieces)
                made.append(task)
        return made


class WholeGraph:
    """A coarse level that one task solves, all levels below included: a `ips2_dask.kernels.levels.Level`."""

    @property
    def space(self) -> Space:
        """As of `Level`, which nobody asks for."""
        raise NotImplementedError("the task that solves the graph has its blocks")

    def __init__(
        self, executor: Executor, name: str, bounds: list[int], chunks: list[Handle], count: int, seed: int, depth: int
    ) -> None:
        self._executor, self._name, self._bounds, self._chunks = executor, name, bounds, chunks
        self._count, self._seed, self._depth = count, seed, depth

    def coarser(self) -> None:
        """As of `Level`."""
        return

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """As of `Level`."""
        del seed
        task = self._executor.submit(
            f"{self._name}-coarsest-0",
            _solve_whole,
            self._bounds,
            self._count,
            self._seed,
            self._depth,
            width,
            wanted,
            *self._chunks,
        )
        (last,) = self._executor.results([self._executor.submit(f"{self._name}-last-0", last_value, task)])
        return [task], last

    def prolong(self, coarse: object, y: Block) -> Block:
        """As of `Level`, which nobody asks for."""
        raise NotImplementedError("there is no coarser graph")

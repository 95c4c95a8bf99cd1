"""Leading eigenvectors of a similarity of samples by levels: aggregate, solve the smallest graph, refine upwards.

A graph is coarsened by aggregation: a nearly maximal independent set of its nodes, the seeds, takes the others in. The
coarse graph is the Galerkin projection P'AP with degrees P'd on vectors that are constant on every aggregate. From the
coarsest level, which is solved, eigenvectors are copied to the members and filtered, level by level. The products of
the finest level are so few whatever the gaps between eigenvalues are. See docs/method.md, Levels.

Rows are those of one chunk of a matrix, over the nodes that they *touch*: all nodes where the matrix is in one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import draws, eigen
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.sparse import inverse_root, normalized
from ips2_dask.typing import AnyArray, Float, Float64, Int8, Int32, Int64, UInt64

COARSEST = 1 << 13
"""Nodes of a graph that is solved as it is, by the solver that stops when the wanted gaps have settled."""

SHRINKS = 0.8
"""A graph is solved as it is, too, where a coarser one would have more than this share of its nodes."""

PRODUCTS = 12
"""Products of the filter at each level."""

MOST_PRODUCTS = 24
"""Most products of a filter after that, where the gaps between eigenvalues are small: of draws of HTRU2 the mean ARI is
.543 with 12, .561 with 24 and with 64, and .566 from a solve without levels."""

LOWEST = -1.0
"""Lower limit of the spectrum of a normalised similarity without negative entries."""

MOST_HIGH = 0.99999
"""Upper limit of what a filter damps: eigenvalue 1 may be repeated more often than a block has columns."""

ROUNDS = 3
"""Rounds in which seeds are chosen; nodes that neither are seeds nor have one beside them then are seeds themselves."""

PURPOSE = 31
"""Purpose of `kernels.draws`: priorities of nodes, one for each level after it."""

SETTLED, TOL = 0.01, 1e-5
"""What ends the solve of the coarsest graph; see `eigen.leading_eigenpairs`."""

UNDECIDED, SEED, COVERED = np.int8(0), np.int8(1), np.int8(2)

ROWS = 1 << 14


# ---- aggregation, on rows over the nodes that they touch


def _by_rows(rows: sp.csr_array, kind: type, function: Callable[[int, int, AnyArray], AnyArray]) -> AnyArray:
    """``function(a, b, columns)`` for some rows at a time, with the columns of their entries: (n,)."""
    out: AnyArray = np.empty(rows.shape[0], kind)

    def part(a: int, b: int) -> None:
        out[a:b] = function(a, b, rows.indices[rows.indptr[a] : rows.indptr[b]])

    map_chunks(part, len(out), ROWS)
    return out


def _largest(rows: sp.csr_array, a: int, b: int, values: AnyArray) -> AnyArray:
    """The largest value in each of the rows a .. b - 1, from one for each of their entries; 0 in an empty row."""
    ends = rows.indptr[a : b + 1] - rows.indptr[a]
    found: AnyArray = np.maximum.reduceat(np.append(values, values.dtype.type(0)), ends[:-1])
    found[np.diff(ends) == 0] = 0
    return found


def choose_seeds(rows: sp.csr_array, priority: UInt64, state: Int8, first: int) -> Int8:
    """The state of the rows' own nodes once undecided ones of higher priority than all undecided neighbours are seeds.

    ``rows`` (n, touched) CSR; ``priority``, ``state`` (touched,): of the nodes that the rows touch, no two of one
    priority; ``first``: place of the first own node among these. Returns (n,) int8.
    """
    rank = np.where(state == UNDECIDED, priority, np.uint64(0))

    def chosen(a: int, b: int, columns: AnyArray) -> AnyArray:
        own = slice(first + a, first + b)
        is_highest = rank[own] >= _largest(rows, a, b, rank[columns])
        return np.where((state[own] == UNDECIDED) & is_highest, SEED, state[own])

    return _by_rows(rows, np.int8, chosen)


def cover(rows: sp.csr_array, state: Int8, first: int) -> Int8:
    """The state of the rows' own nodes once undecided ones beside a seed are covered; parameters as `choose_seeds`."""

    def covered(a: int, b: int, columns: AnyArray) -> AnyArray:
        own = state[first + a : first + b]
        return np.where((own == UNDECIDED) & _largest(rows, a, b, state[columns] == SEED), COVERED, own)

    return _by_rows(rows, np.int8, covered)


def strongest_seeds(rows: sp.csr_array, scale: Float64, priority: UInt64, state: Int8, first: int) -> Int64:
    """The seed of each own node, as its place among the touched: itself, or the one of the largest a_ij / sqrt(d_j).

    Of equal ones, which are common, it is that of the highest priority. Parameters as those of `choose_seeds`;
    ``scale``, (touched,), is 1 / sqrt(d).
    """

    def strongest(a: int, b: int, columns: AnyArray) -> AnyArray:
        own = np.arange(first + a, first + b)
        row = np.repeat(np.arange(b - a), np.diff(rows.indptr[a : b + 1]))
        beside = np.flatnonzero((state[columns] == SEED) & (state[own] != SEED)[row])
        row, seed = row[beside], columns[beside]
        order = np.lexsort((priority[seed], rows.data[rows.indptr[a] + beside] * scale[seed], row))
        last = order[np.diff(row[order], append=b - a) > 0]
        own[row[last]] = seed[last]
        return own

    return _by_rows(rows, np.int64, strongest)


def merged_rows(rows: sp.csr_array, aggregate: Int64, column: Int64, shape: tuple[int, int]) -> sp.csr_array:
    """P'AP: rows of members summed to those of their aggregates, columns likewise.

    ``rows`` (n, touched) CSR, whose sums are exact in any order; ``aggregate`` (n,), ``column`` (touched,): the row
    of the result that each row belongs to, and the column that each column belongs to; ``shape``: of the result.
    """
    place = np.repeat(aggregate.astype(np.int32), np.diff(rows.indptr)), column.astype(np.int32)[rows.indices]
    return sp.csr_array(sp.coo_array((rows.data, place), shape=shape))


def priorities(seeds: NDArray[np.integer], seed: int, depth: int) -> UInt64:
    """The priority of each node at a level: a hash of the sample that it stands for, so that no numbering shows."""
    return draws.hashes(seeds, seed, PURPOSE + depth)


# ---- the cycle


class Level(Protocol):
    """A graph of a hierarchy: products with it, and the way to the next coarser one."""

    @property
    def space(self) -> eigen.Space:
        """Block vectors of its nodes, with the known eigenvectors."""
        ...

    def coarser(self) -> Level | None:
        """The next coarser graph; None where this one is to be solved as it is."""
        ...

    def solved(self, width: int, wanted: int, seed: int) -> tuple[eigen.Block, float]:
        """Leading eigenvectors of the graph as it is, ``width`` of them, and the eigenvalue of the last one."""
        ...

    def prolong(self, coarse: Any, y: eigen.Block) -> eigen.Block:
        """Eigenvectors of the next coarser graph at the members of its nodes."""
        ...


class Start(NamedTuple):
    """Orthonormal Ritz vectors near the leading eigenvectors outside the known ones, and what they took."""

    y: eigen.Block
    values: Float64
    residuals: Float64
    products: int


def start(level: Level, width: int, wanted: int, seed: int) -> Start | None:
    """Ritz vectors of a graph from its coarser ones, after one filter; None where it has none coarser.

    ``width``: columns; ``wanted``: for how many the coarsest graph's solve shall be exact.
    """
    coarse = level.coarser()
    if coarse is None:
        return None
    found = start(coarse, width, wanted, seed)
    y, last = coarse.solved(width, wanted, seed) if found is None else (found.y, float(found.values[-1]))
    found = None
    return refined(level.space, level.prolong(coarse, y), last)


def refined(space: eigen.Space, y: eigen.Block, last: float) -> Start:
    """Ritz vectors of a block after a filter that damps eigenvalues below ``last``."""
    y = space.filter(y, eigen.chebyshev_steps(LOWEST, min(max(last, -0.9), MOST_HIGH), 1.0, PRODUCTS))
    y, values, residuals, products = eigen.rayleigh_ritz(space, eigen.orthonormalize(space, space.deflate(y)))
    return Start(y, values, residuals, PRODUCTS + products)


class Graph:
    """A level whose graph is a matrix of this process.

    ``matrix`` (n, n) CSR: symmetric, no entry negative, and with sums that are exact in any order; ``degrees`` (n,):
    its row sums, 0 of rows that take no part; ``label`` (n,): the component of each row; ``count``: number of
    components; ``samples`` (n,): the sample that each node stands for; ``depth``: levels below the finest.
    """

    def __init__(
        self,
        matrix: sp.csr_array,
        degrees: Float64,
        label: Int32,
        count: int,
        seed: int,
        samples: NDArray[np.integer],
        depth: int = 0,
    ) -> None:
        self._matrix, self._degrees, self._label, self._count, self._seed = matrix, degrees, label, count, seed
        self._samples, self._depth, self._aggregate = samples, depth, np.empty(0, np.int64)
        self.space = eigen.ArraySpace(
            MatrixOperator(normalized(matrix, degrees)), eigen.Known(np.sqrt(degrees), label, count)
        )

    def coarser(self) -> Graph | None:
        """As of `Level`."""
        matrix, n = self._matrix, len(self._degrees)
        if n <= COARSEST:
            return None
        priority, state = priorities(self._samples, self._seed, self._depth), np.zeros(n, np.int8)
        for _ in range(ROUNDS):
            state = cover(matrix, choose_seeds(matrix, priority, state, 0), 0)
        state[state == UNDECIDED] = SEED
        nearest = strongest_seeds(matrix, inverse_root(self._degrees), priority, state, 0)
        seeds = np.flatnonzero(state == SEED)
        if len(seeds) > SHRINKS * n:
            return None
        number = np.cumsum(state == SEED) - 1
        self._aggregate = number[nearest]
        merged = merged_rows(matrix, self._aggregate, self._aggregate, (len(seeds), len(seeds)))
        degrees = np.bincount(self._aggregate, self._degrees, len(seeds)).astype(np.float64)
        return Graph(
            merged, degrees, self._label[seeds], self._count, self._seed, self._samples[seeds], self._depth + 1
        )

    def solved(self, width: int, wanted: int, seed: int) -> tuple[eigen.Block, float]:
        """As of `Level`: from a random start, or by LAPACK where the graph is small."""
        space = self.space
        if space.n <= eigen.DENSE_BELOW or space.n < 4 * eigen.block_width(width):
            solution = eigen.dense_eigenpairs(space.operator, space.known, width)
        else:
            y = space.random(width, seed)
            solution = eigen.leading_eigenpairs(space, max(wanted, 1), y, tol=TOL, seed=seed, settled=SETTLED)
        y = space.random(width, seed)  # where there are fewer eigenvectors than columns
        y[:, : solution.vectors.shape[1]] = solution.vectors[:, :width]
        return y, float(solution.values[-1]) if len(solution.values) else 0.0

    def prolong(self, coarse: Graph, y: Float) -> Float:
        """As of `Level`."""
        scale, root = inverse_root(coarse._degrees), np.sqrt(self._degrees)
        out: Float = np.empty((len(root), y.shape[1]), np.float32)

        def chunk(a: int, b: int) -> None:
            members = self._aggregate[a:b]
            out[a:b] = y[members] * (scale[members] * root[a:b])[:, None]

        map_chunks(chunk, len(out), ROWS)
        return out


def leading(
    space: eigen.Space,
    found: Start | None,
    wanted: int,
    *,
    tol: float,
    settled: float,
    seed: int,
    state: eigen.State | None = None,
    checkpoint: Callable[[eigen.State], None] | None = None,
) -> eigen.Solution:
    """Leading eigenpairs from what `start` found, or from a stored ``state``; see `eigen.leading_eigenpairs`."""
    if state is None:
        assert found is not None
        residual = float(found.residuals[:wanted].max(initial=0.0))
        history = [{"products": found.products, "residual": residual}]
        state = eigen.State(found.y, found.values, found.residuals, LOWEST, found.products, history)
    return eigen.leading_eigenpairs(
        space,
        max(wanted, 1),
        state.y,
        tol=tol,
        seed=seed,
        settled=settled,
        degree=PRODUCTS,
        most_degree=MOST_PRODUCTS,
        state=state,
        checkpoint=checkpoint,
    )

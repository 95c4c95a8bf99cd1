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
from numba import njit
from numpy.typing import NDArray

from ips2_dask.kernels import draws
from ips2_dask.kernels.eigen import (
    DENSE_BELOW,
    ArraySpace,
    Block,
    Known,
    Solution,
    Space,
    State,
    block_width,
    chebyshev_steps,
    dense_eigenpairs,
    leading_eigenpairs,
    orthonormalize,
    rayleigh_ritz,
)
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.sparse import inverse_root, normalized, sort_together
from ips2_dask.typing import Float, Float64, Int8, Int32, Int64, UInt64

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


@njit(nogil=True, cache=True)
def _choose(indptr, indices, priority, state, first, low, high, out):  # type: ignore[no-untyped-def]
    for r in range(low, high):
        i = first + r
        out[r] = state[i]
        if state[i] != 0:
            continue
        highest = True
        for t in range(indptr[r], indptr[r + 1]):
            j = indices[t]
            if j != i and state[j] == 0 and (priority[j], j) > (priority[i], i):
                highest = False
                break
        if highest:
            out[r] = 1


@njit(nogil=True, cache=True)
def _cover(indptr, indices, state, first, low, high, out):  # type: ignore[no-untyped-def]
    for r in range(low, high):
        i = first + r
        out[r] = state[i]
        if state[i] != 0:
            continue
        for t in range(indptr[r], indptr[r + 1]):
            if state[indices[t]] == 1:
                out[r] = 2
                break


@njit(nogil=True, cache=True)
def _join(indptr, indices, data, scale, priority, state, first, low, high, out):  # type: ignore[no-untyped-def]
    for r in range(low, high):
        i = first + r
        out[r] = i
        if state[i] == 1:
            continue
        best = -1.0
        for t in range(indptr[r], indptr[r + 1]):
            j = indices[t]
            if j == i or state[j] != 1:
                continue
            strength = data[t] * scale[j]
            if strength > best or (strength == best and priority[j] > priority[out[r]]):  # equal ones are common
                best, out[r] = strength, j


def choose_seeds(rows: sp.csr_array, priority: UInt64, state: Int8, first: int) -> Int8:
    """The state of the rows' own nodes once undecided ones of higher priority than all undecided neighbours are seeds.

    Parameters
    ----------
    rows : (n, touched) CSR
    priority, state : (touched,)
        Of the nodes that the rows touch.
    first : int
        Place of the first own node among these.

    Returns
    -------
    (n,) int8
    """
    out = np.empty(rows.shape[0], np.int8)
    map_chunks(lambda a, b: _choose(rows.indptr, rows.indices, priority, state, first, a, b, out), len(out), ROWS)
    return out


def cover(rows: sp.csr_array, state: Int8, first: int) -> Int8:
    """The state of the rows' own nodes once undecided ones beside a seed are covered; parameters as `choose_seeds`."""
    out = np.empty(rows.shape[0], np.int8)
    map_chunks(lambda a, b: _cover(rows.indptr, rows.indices, state, first, a, b, out), len(out), ROWS)
    return out


def strongest_seeds(rows: sp.csr_array, scale: Float64, priority: UInt64, state: Int8, first: int) -> Int64:
    """The seed of each own node, as its place among the touched: itself, or the one of the largest a_ij / sqrt(d_j).

    Of equal ones it is that of the highest priority. Parameters as those of `choose_seeds`; ``scale``, (touched,), is
    1 / sqrt(d).
    """
    out = np.empty(rows.shape[0], np.int64)
    map_chunks(
        lambda a, b: _join(rows.indptr, rows.indices, rows.data, scale, priority, state, first, a, b, out),
        len(out),
        ROWS,
    )
    return out


@njit(nogil=True, cache=True)
def _merge_rows(indptr, indices, data, start, members, column, low, high, seen, place, ends, out, values, write):  # type: ignore[no-untyped-def]
    for aggregate in range(low, high):
        begin = ends[aggregate]
        n = 0
        for s in range(start[aggregate], start[aggregate + 1]):
            r = members[s]
            for t in range(indptr[r], indptr[r + 1]):
                c = column[indices[t]]
                if seen[c] != aggregate:
                    seen[c] = aggregate
                    place[c] = n
                    n += 1
                    if write:
                        out[begin + place[c]], values[begin + place[c]] = c, data[t]
                elif write:
                    values[begin + place[c]] += data[t]
        if write:
            sort_together(out, values, begin, begin + n)
        else:
            ends[aggregate] = n


def merged_rows(rows: sp.csr_array, aggregate: Int64, column: Int64, shape: tuple[int, int]) -> sp.csr_array:
    """P'AP: rows of members summed to those of their aggregates, columns likewise.

    Parameters
    ----------
    rows : (n, touched) CSR
    aggregate : (n,) int64
        The row of the result that each row belongs to.
    column : (touched,) int64
        The column of the result that each column belongs to.
    shape : tuple
        Of the result.

    Returns
    -------
    CSR
        Columns ascending; entries are summed in the order of the members.
    """
    members = np.argsort(aggregate, kind="stable")
    start = np.zeros(shape[0] + 1, np.int64)
    np.cumsum(np.bincount(aggregate, minlength=shape[0]), out=start[1:])
    ends = np.zeros(shape[0] + 1, np.int64)
    indices, values = np.empty(0, np.int32), np.empty(0, rows.data.dtype)
    step = max(ROWS, -(-shape[0] // 16))  # each part has two numbers a column beside it

    def part(write: bool) -> Callable[[int, int], None]:
        def run(a: int, b: int) -> None:
            seen, place = np.full(shape[1], -1, np.int32), np.empty(shape[1], np.int32)
            _merge_rows(
                rows.indptr,
                rows.indices,
                rows.data,
                start,
                members,
                column,
                a,
                b,
                seen,
                place,
                ends,
                indices,
                values,
                write,
            )

        return run

    map_chunks(part(False), shape[0], step)
    ends[:] = np.cumsum(np.concatenate([[0], ends[:-1]]))
    total = int(ends[-1])
    indices, values = np.empty(total, np.int32), np.empty(total, rows.data.dtype)
    map_chunks(part(True), shape[0], step)
    kind = np.int32 if total < 2**31 else np.int64
    return sp.csr_array((values, indices, ends.astype(kind)), shape=shape)


def priorities(seeds: NDArray[np.integer], seed: int, depth: int) -> UInt64:
    """The priority of each node at a level: a hash of the sample that it stands for, so that no numbering shows."""
    return draws.hashes(seeds, seed, PURPOSE + depth)


# ---- the cycle


class Level(Protocol):
    """A graph of a hierarchy: products with it, and the way to the next coarser one."""

    @property
    def space(self) -> Space:
        """Block vectors of its nodes, with the known eigenvectors."""
        ...

    def coarser(self) -> Level | None:
        """The next coarser graph; None where this one is to be solved as it is."""
        ...

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """Leading eigenvectors of the graph as it is, ``width`` of them, and the eigenvalue of the last one."""
        ...

    def prolong(self, coarse: Any, y: Block) -> Block:
        """Eigenvectors of the next coarser graph at the members of its nodes."""
        ...


class Start(NamedTuple):
    """Orthonormal Ritz vectors near the leading eigenvectors outside the known ones, and what they took."""

    y: Block
    values: Float64
    residuals: Float64
    products: int


def start(level: Level, width: int, wanted: int, seed: int) -> Start | None:
    """Ritz vectors of a graph from its coarser ones, after one filter; None where it has none coarser.

    Parameters
    ----------
    level : Level
    width : int
        Columns.
    wanted : int
        For how many the coarsest graph's solve shall be exact.
    seed : int
    """
    coarse = level.coarser()
    if coarse is None:
        return None
    found = start(coarse, width, wanted, seed)
    y, last = coarse.solved(width, wanted, seed) if found is None else (found.y, float(found.values[-1]))
    found = None
    return refined(level.space, level.prolong(coarse, y), last)


def refined(space: Space, y: Block, last: float) -> Start:
    """Ritz vectors of a block after a filter that damps eigenvalues below ``last``."""
    y = space.filter(y, chebyshev_steps(LOWEST, min(max(last, -0.9), MOST_HIGH), 1.0, PRODUCTS))
    y, values, residuals, products = rayleigh_ritz(space, orthonormalize(space, space.deflate(y)))
    return Start(y, values, residuals, PRODUCTS + products)


class Graph:
    """A level whose graph is a matrix of this process.

    Parameters
    ----------
    matrix : (n, n) CSR
        Symmetric, no entry negative.
    degrees : (n,) float64
        Its row sums; 0 of rows that take no part.
    label : (n,) int32
        The component of each row.
    count : int
        Number of components.
    samples : (n,) int
        The sample that each node stands for.
    depth : int
        Levels below the finest.
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
        self._samples = samples
        self._depth, self._aggregate = depth, np.empty(0, np.int64)
        operator = MatrixOperator(normalized(matrix, degrees))
        self.space = ArraySpace(operator, Known(np.sqrt(degrees), label, count))

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

    def solved(self, width: int, wanted: int, seed: int) -> tuple[Block, float]:
        """As of `Level`."""
        solution = solve(self.space, width, wanted, seed)
        y = self.space.random(width, seed)  # where there are fewer eigenvectors than columns
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


def solve(space: ArraySpace, width: int, wanted: int, seed: int) -> Solution:
    """Leading eigenpairs from a random start, for graphs that have no coarser one."""
    if space.n <= DENSE_BELOW or space.n < 4 * block_width(width):
        return dense_eigenpairs(space.operator, space.known, width)
    start = space.random(width, seed)
    return leading_eigenpairs(space, max(wanted, 1), start, tol=TOL, seed=seed, settled=SETTLED)


def leading(
    space: Space,
    found: Start | None,
    wanted: int,
    *,
    tol: float,
    settled: float,
    seed: int,
    state: State | None = None,
    checkpoint: Callable[[State], None] | None = None,
) -> Solution:
    """Leading eigenpairs from what `start` found, or from a stored ``state``; see `eigen.leading_eigenpairs`."""
    if state is None:
        assert found is not None
        residual = float(found.residuals[:wanted].max(initial=0.0))
        history = [{"products": found.products, "residual": residual}]
        state = State(found.y, found.values, found.residuals, LOWEST, found.products, history)
    return leading_eigenpairs(
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

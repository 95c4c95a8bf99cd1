"""Block vectors of samples in chunks, as results of the executor's tasks: a `ips2_dask.kernels.eigen.Space`.

A block vector is a list of handles, one of the rows of each chunk. What a product needs of other chunks, its halo, are
results of tasks, too: the rows that one chunk asks another for. So Dask moves, spills and computes again what it does
with any result. Sums are made by blocks of a grid (`ips2_dask.kernels.parallel.grid_rows`), whose sums come back and
are added in their order: they have the same bits for any chunks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle
from ips2_dask.kernels.eigen import Known, Step
from ips2_dask.kernels.llvm import recur_rows
from ips2_dask.kernels.parallel import chunk_bounds, grid_rows, map_chunks, runs_of
from ips2_dask.kernels.product import combine
from ips2_dask.kernels.sparse import product
from ips2_dask.typing import AnyArray, Float32, Float64, Int32

Block = list[Handle]
"""A handle of the rows (n_g, columns) of each chunk."""

Needed = dict[int, Int32]
"""The rows of every other chunk that a chunk touches, counted from that chunk's first."""

Renewed = Callable[[str, list[Block]], list[Block]]
"""Stores blocks under a name, and gives the same blocks as they are read from there."""

ROWS = 1 << 14

MOST_TASKS = 16_000
"""Tasks that are sent before the ones sent earlier have ended: the scheduler takes some 9 KB for each that it knows."""


SMALL, WHOLE_FROM = 1 << 15, 4
"""Chunks of at most so many rows, or of which a quarter or more is needed, go to other chunks as they are: a task that
takes rows out would cost more."""


class Rows(NamedTuple):
    """The rows of a matrix that one chunk owns, over the rows that they touch."""

    matrix: sp.csr_array
    """(own, touched), columns ascending."""
    first: int
    """Place of the first own row among the touched."""

    def own(self, values: AnyArray) -> AnyArray:
        """Values at the own rows, of those at all touched ones."""
        return values[self.first : self.first + self.matrix.shape[0]]


# ---- tasks


def take(values: AnyArray, needed: Needed, g: int) -> AnyArray:
    """The rows of chunk g that another chunk needs."""
    return values[needed[g]]


def sources_of(needed: Needed) -> dict[int, int]:
    """The chunks that rows are needed of, ascending, and how many."""
    return {h: len(needed[h]) for h in sorted(needed)}


class _Around(NamedTuple):
    """Where a chunk's own rows are among those that it touches, and what it is given of other chunks."""

    before: int
    """How many of the other chunks come before it."""
    whole: dict[int, int]
    """Which of the arrays that it is given are whole chunks, by their place: the number of the chunk."""


def on_touched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The task of a function whose first argument is values at all rows that a chunk touches; see `Halo.each`."""

    @functools.wraps(function)
    def task(around: _Around, needed: Needed, own: AnyArray, others: Sequence[AnyArray], *items: object) -> object:
        if not others:
            return function(own, *items)
        pieces = [one[needed[around.whole[n]]] if n in around.whole else one for n, one in enumerate(others)]
        return function(np.concatenate([*pieces[: around.before], own, *pieces[around.before :]]), *items)

    return task


@on_touched
def all_touched(values: AnyArray) -> AnyArray:
    """The values themselves."""
    return values


@on_touched
def multiply(x: Float32, rows: Rows, previous: Float32 | None, abc: Step) -> Float32:
    """a M y + b y + c previous on the own rows: (own, columns) float32. Each row is summed by ascending columns."""
    m, (a, b, c) = rows.matrix, (np.float32(one) for one in abc)
    own = rows.own(x)
    earlier = own[:0] if previous is None else previous
    if x.shape[1] % 8 or m.indices.dtype != np.int32:
        out = np.asarray(product(m, x), np.float32)
        combine(out, np.ones(len(out), np.float32), own, earlier, a, b, c)
        return out
    out = np.empty(own.shape, np.float32)
    map_chunks(
        lambda low, high: recur_rows(m.indptr, m.indices, m.data, x, own, earlier, a, b, c, out, low, high),
        len(out),
        ROWS,
    )
    return out


def random_rows(first: int, n: int, columns: int, seed: int, grid: int) -> Float32:
    """Standard normal rows first .. first + n - 1: those of a block of the grid depend on the seed and its place."""
    block = np.empty((n, columns), np.float32)

    def fill(a: int, b: int) -> None:
        block[a:b] = np.random.default_rng([seed, first + a]).standard_normal((b - a, columns), np.float32)

    map_chunks(fill, n, runs_of(grid))
    return block


def _block_sums(function: Callable[[int, int], Float64], n: int, grid: int) -> Float64:
    """What ``function(start, stop)`` gives for runs of n rows, summed by blocks of the grid: (blocks, ...) float64."""
    run = runs_of(grid)
    parts, each = map_chunks(function, n, run), grid // run
    return np.stack([np.sum(parts[i : i + each], axis=0) for i in range(0, len(parts), each)])


def _gram(x: Float32, y: Float32, grid: int) -> Float64:
    """x' y of each block of a chunk: (blocks, columns, columns)."""
    return _block_sums(lambda a, b: x[a:b].astype(np.float64).T @ y[a:b].astype(np.float64), len(x), grid)


def _rotated(y: Float32, C: Float32, grid: int) -> Float32:
    out = np.empty((len(y), C.shape[1]), np.float32)

    def run(a: int, b: int) -> None:
        out[a:b] = y[a:b] @ C

    map_chunks(run, len(y), runs_of(grid))
    return out


def _coefficients(known: Known, y: Float32, grid: int) -> list[tuple[NDArray[np.integer], Float64]]:
    return [known.of_rows(a, b).coefficients(y[a:b]) for a, b in chunk_bounds(len(y), grid)]


def _freed(known: Known, y: Float32, coefficients: Float64) -> Float32:
    return np.asarray(known.subtract(y.copy(), coefficients), np.float32)


def _residual_squares(Ly: Float32, y: Float32, values: Float32, grid: int) -> Float64:
    return _block_sums(lambda a, b: np.square((Ly[a:b] - y[a:b] * values).astype(np.float64)).sum(axis=0), len(y), grid)


# ---- the halo, and the space


class Halo:
    """What each chunk needs of others, and how values at these rows are brought to it.

    ``bounds``: first row of each chunk, and the number of rows; ``needed``: a handle of what each chunk needs.
    """

    def __init__(self, executor: Executor, name: str, bounds: list[int], needed: list[Handle]) -> None:
        self.executor, self.bounds, self._needed = executor, bounds, needed
        self._sources: list[dict[int, int]] = executor.results(executor.each(f"{name}-sources", sources_of, needed))

    def __len__(self) -> int:
        return len(self._needed)

    @property
    def n_tasks(self) -> int:
        """Tasks of one product."""
        return sum(1 + sum(not self._is_whole(h, n) for h, n in some.items()) for some in self._sources)

    def _is_whole(self, h: int, n: int) -> bool:
        """Whether chunk h is given as a whole where n of its rows are needed."""
        rows = self.bounds[h + 1] - self.bounds[h]
        return rows <= SMALL or n * WHOLE_FROM >= rows

    def each(
        self, name: str, function: Callable[..., Any], values: Block, *lists: Sequence[Handle], small: bool = True
    ) -> Block:
        """One task of each chunk, `on_touched`: on values at all rows that it touches, and its items of the lists.

        Arrays of a few bytes a row, which are ``small``, are given whole: nine of ten tasks of a coarsening less.
        """
        made = []
        with self.executor.batch():
            for g, (needed, own, *items) in enumerate(zip(self._needed, values, *lists, strict=True)):
                others, whole = [], {}
                for place, (h, n) in enumerate(self._sources[g].items()):
                    if small or self._is_whole(h, n):
                        whole[place] = h
                        others.append(values[h])
                    else:
                        others.append(self.executor.submit(f"{name}-rows-{g}", take, values[h], needed, h))
                around = _Around(sum(h < g for h in self._sources[g]), whole)
                made.append(self.executor.submit(f"{name}-{g}", function, around, needed, own, others, *items))
        return made

    def is_long(self, products: int) -> bool:
        """Whether so many products are too many to be sent together."""
        return products * self.n_tasks > MOST_TASKS

    def repeat(
        self,
        product: Callable[[list[Block], Any], list[Block]],
        blocks: list[Block],
        steps: Sequence[Any],
        renewed: Callable[[list[Block]], list[Block]],
    ) -> None:
        """Replace blocks by those after a product for each step, in place, so that nobody holds on to the former ones.

        Products of some steps are sent together, and blocks between them are ``renewed``: the scheduler would know all
        tasks until the end.
        """
        at_once = max(1, MOST_TASKS // self.n_tasks)
        for begin in range(0, len(steps), at_once):
            with self.executor.batch():
                for step in steps[begin : begin + at_once]:
                    blocks[:] = product(blocks, step)
            if begin + at_once < len(steps):
                blocks[:] = renewed(blocks)


def as_they_are(name: str, blocks: list[Block]) -> list[Block]:
    """Blocks that are not stored."""
    del name
    return blocks


class TaskSpace:
    """Block vectors in chunks: a `ips2_dask.kernels.eigen.Space` whose operations are tasks.

    ``name``: the beginning of the names of its tasks; ``rows``: `Rows` of each chunk; ``known``: the ``count`` known
    eigenvectors on each chunk's rows (`eigen.Known`).
    """

    def __init__(
        self, name: str, halo: Halo, rows: list[Handle], known: list[Handle], count: int, renewed: Renewed = as_they_are
    ) -> None:
        self.halo, self._name, self._rows, self._known, self._count = halo, name, rows, known, count
        self._renewed = renewed
        self._executor, self._grid = halo.executor, grid_rows(halo.bounds[-1])

    def _each(self, function: Callable[..., object], *arguments: Sequence[Handle], also: tuple[object, ...]) -> Block:
        """One task for each chunk, on its item of each argument, and on what all of them get."""
        return self._executor.each(f"{self._name}-{function.__name__.strip('_')}", function, *arguments, also=also)

    def _product(self, blocks: list[Block], step: Step) -> list[Block]:
        """The last of two blocks, or of one, and its product."""
        y, n = blocks[-1], len(self.halo)
        previous = blocks[0] if len(blocks) > 1 else [None] * n
        name = f"{self._name}-product"
        return [y, self.halo.each(name, multiply, y, self._rows, previous, [step] * n, small=False)]

    def random(self, columns: int, seed: int) -> Block:
        """As of `Space`."""
        bounds = self.halo.bounds
        return self._each(random_rows, bounds[:-1], np.diff(bounds).tolist(), also=(columns, seed, self._grid))

    def apply(self, y: Block) -> Block:
        """As of `Space`."""
        return self.recur(y, None, 1.0, 0.0, 0.0)

    def recur(self, y: Block, previous: Block | None, a: float, b: float, c: float) -> Block:
        """As of `Space`."""
        return self._product([y] if previous is None else [previous, y], (a, b, c))[-1]

    def filter(self, y: Block, steps: Sequence[Step]) -> Block:
        """As of `Space`."""
        blocks = [y]
        del y  # the filter needs three blocks, and this would be a fourth
        self.halo.repeat(self._product, blocks, steps, functools.partial(self._renewed, self._name))
        return blocks[-1]

    def split(self, y: Block) -> list[Block]:
        """As of `Space`."""
        return [y]

    def join(self, parts: list[Block]) -> Block:
        """As of `Space`."""
        return parts.pop()

    def deflate(self, y: Block) -> Block:
        """As of `Space`."""
        found = self._executor.results(self._each(_coefficients, self._known, y, also=(self._grid,)))
        total = np.zeros((self._count, found[0][0][1].shape[1]))
        for components, coefficients in itertools.chain.from_iterable(found):
            total[components] += coefficients
        return self._each(_freed, self._known, y, also=(total,))

    def gram(self, x: Block, y: Block) -> Float64:
        """As of `Space`."""
        return self._summed(self._each(_gram, x, y, also=(self._grid,)))

    def _summed(self, parts: Block) -> Float64:
        """The sum of the blocks' sums of all chunks, one after the other."""
        total: Float64 = np.concatenate(self._executor.results(parts)).sum(axis=0)
        return total

    def rotate(self, y: Block, C: Float64) -> Block:
        """As of `Space`."""
        return self._each(_rotated, y, also=(np.ascontiguousarray(C, np.float32), self._grid))

    def residuals(self, Ly: Block, y: Block, values: Float64) -> Float64:
        """As of `Space`."""
        squares = self._each(_residual_squares, Ly, y, also=(values.astype(np.float32), self._grid))
        return np.sqrt(self._summed(squares))

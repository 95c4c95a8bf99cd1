"""Leading eigenpairs of a symmetric operator: Chebyshev-filtered subspace iteration with the known vectors deflated.

The solver touches block vectors only through a `Space`, so that it runs unchanged on NumPy arrays in one process and
on blocks that are spread over workers.

Departures from SciPy's ``eigsh``: (1) a block method, which finds repeated eigenvalues as often as they are repeated;
(2) eigenvectors of eigenvalue 1 are given, never searched for; (3) it says how it ended instead of raising; (4) it
stops at checkpoints from which it goes on to the same bits.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy.linalg

from ips2_dask.kernels.operator import Operator
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float, Float64, Int32, Integer

Block: TypeAlias = Any
"""A block vector in the form that its space gives it: an array (n, columns), or a list of handles of its chunks."""

DEGREE = 12
MAX_DEGREE = 64
"""Products of one filter, at least and at most. Measured on the MNIST tensor: 25 products to 3e-4 with 12 at least, 41
with 8."""

GAIN = 8.0
"""How much a filter raises the last wanted pair above what it damps, if so many products can: one of degree 2 d gains
far more than two of degree d where the gap is small."""

MAX_PRODUCTS = 600
DENSE_BELOW = 256
"""Problems of at most so many unknowns are solved by LAPACK."""

CHUNK = 1 << 14


class Verdict(enum.Enum):
    """How a solve ended, and what to do about it."""

    CONVERGED = "every wanted residual is at or below the tolerance"
    SETTLED = "the wanted gaps 1 - lambda have settled: more products would hardly change labels"
    STAGNATED = "the residuals stopped falling: loosen tol, it is at the limit of the arithmetic"
    OUT_OF_PRODUCTS = "the largest number of products was used up: loosen tol, or lower n_clusters"


Step = tuple[float, float, float]
"""The a, b, c of one step a L y + b y + c previous of a filter."""


class Space(Protocol):
    """Operations of the solver on block vectors of a fixed number of rows."""

    def random(self, columns: int, seed: int) -> Block:
        """A block of standard normal columns that depends on the seed alone."""

    def apply(self, y: Block) -> Block:
        """The operator's product with a block."""

    def recur(self, y: Block, previous: Block | None, a: float, b: float, c: float) -> Block:
        """a L y + b y + c previous; ``previous`` is given up and may be overwritten."""

    def filter(self, y: Block, steps: Sequence[Step]) -> Block:
        """The last of the blocks that ``steps`` of `recur` give, panel by panel; ``y`` is given up."""

    def deflate(self, y: Block) -> Block:
        """The block without its part in the span of the known eigenvectors; ``y`` is given up."""

    def gram(self, x: Block, y: Block) -> Float64:
        """x' y, summed in float64 in a fixed order."""

    def rotate(self, y: Block, C: Float64) -> Block:
        """y C; ``y`` is given up."""

    def residuals(self, Ly: Block, y: Block, values: Float64) -> Float64:
        """Norms of the columns of L y - y diag(values)."""


class Known:
    """The eigenvectors of eigenvalue 1, one for each connected component: sqrt(degree) unit, 0 outside the component
    and scaled to length 1.

    See docs/method.md, Eigenvalue 1.

    ``root`` (n,) float: sqrt(degree) unit of each row; ``label`` (n,) int32: component of each row; ``count``:
    number of components; ``volumes`` (count,) float64: volume of each component, where these rows are a part of
    all; None sums it over them.
    """

    def __init__(self, root: Float, label: Int32, count: int, volumes: Float64 | None = None) -> None:
        root = np.asarray(root, np.float64)
        self.volume = np.bincount(label, weights=root**2, minlength=count) if volumes is None else volumes  # (count,)
        self.label, self.count = label, count
        scale = np.divide(1.0, np.sqrt(self.volume), out=np.zeros(count), where=self.volume > 0)
        self.vector = root * scale[label]  # (n,)

    def of_rows(self, a: int, b: int) -> Known:
        """The same vectors on rows a .. b - 1 alone."""
        part = copy.copy(self)
        part.label, part.vector = self.label[a:b], self.vector[a:b]
        return part

    def coefficients(self, y: Float) -> tuple[Integer, Float64]:
        """Components of these rows, and the products of their vectors with y, summed in float64 by fixed chunks."""

        def partial(a: int, b: int) -> tuple[Integer, Float64]:
            components, position = np.unique(self.label[a:b], return_inverse=True)
            weighted = y[a:b] * self.vector[a:b, None]
            if len(components) == 1:
                return components, weighted.sum(axis=0)[None]
            order = np.argsort(position, kind="stable")
            return components, np.add.reduceat(
                weighted[order], np.flatnonzero(np.diff(position[order], prepend=-1)), axis=0
            )

        parts = map_chunks(partial, len(y), CHUNK)
        components = np.unique(np.concatenate([h for h, _ in parts])) if parts else np.empty(0, np.int64)
        total = np.zeros((len(components), y.shape[1]))
        for some, part in parts:
            total[np.searchsorted(components, some)] += part
        return components, total

    def subtract(self, y: Float, coefficient: Float64) -> Float:
        """``y`` minus the known vectors times their coefficients (count, columns), in place."""

        def chunk(a: int, b: int) -> None:
            y[a:b] -= self.vector[a:b, None] * coefficient[self.label[a:b]]

        map_chunks(chunk, len(y), CHUNK)
        return y

    def project_out(self, y: Float) -> Float:
        """``y`` minus its part in the span of the known vectors, in place."""
        components, total = self.coefficients(y)
        coefficient = np.zeros((self.count, y.shape[1]))
        coefficient[components] = total
        return self.subtract(y, coefficient)

    def leading(self, most: int, dtype: type = np.float64) -> Float:
        """Vectors of the ``most`` largest components, largest volume first (ties: smaller label): (n, <= most)."""
        chosen = np.argsort(-self.volume, kind="stable")[:most]
        vectors: Float = np.zeros((len(self.vector), len(chosen)), dtype)
        for column, component in enumerate(chosen):
            rows = np.flatnonzero(self.label == component)
            vectors[rows, column] = self.vector[rows]
        return vectors


class ArraySpace:
    """The `Space` of NumPy arrays in this process, worked on by fixed chunks of rows in their order.

    ``known``: eigenvectors to be deflated; ``dtype``: of the blocks; ``panels``: in how many panels of columns a
    block is filtered: a filter needs three of what it works on.
    """

    def __init__(
        self, operator: Operator, known: Known | None = None, dtype: type = np.float32, panels: int = 1
    ) -> None:
        self.operator, self.known, self.dtype, self._panels = operator, known, dtype, panels
        self.n = operator.shape[0]

    def random(self, columns: int, seed: int) -> Float:
        block: Float = np.empty((self.n, columns), self.dtype)

        def fill(a: int, b: int) -> None:
            block[a:b] = np.random.default_rng([seed, a]).standard_normal((b - a, columns))

        map_chunks(fill, self.n, CHUNK)
        return block

    def apply(self, y: Float) -> Float:
        return self.operator.matmat(y)

    def recur(self, y: Float, previous: Float | None, a: float, b: float, c: float) -> Float:
        return self.operator.recur(y, previous, a, b, c)

    def split(self, y: Float) -> list[Float]:
        """Panels of the columns, each in memory of its own."""
        if self._panels == 1:
            return [y]
        return [self._copied([y[:, a:b]]) for a, b in _panel_bounds(y.shape[1], self._panels)]

    def filter(self, y: Float, steps: Sequence[Step]) -> Float:
        parts, y = self.split(y), np.empty(0)  # the filter needs three blocks, and this would be a fourth
        for _ in range(len(parts)):
            parts.append(self._filtered(parts.pop(0), steps))
        return self.join(parts)

    def _filtered(self, y: Float, steps: Sequence[Step]) -> Float:
        (a, b, c), *others = steps
        previous, current = y, self.recur(y, None, a, b, c)
        del y  # else it stays for as long as the filter lasts
        for a, b, c in others:
            previous, current = current, self.recur(current, previous, a, b, c)
        return current

    def join(self, parts: list[Float]) -> Float:
        """The block of these panels; their memory is given up, and so is that of the operator's spare block."""
        if self._panels == 1:
            return parts.pop()
        self.operator.release()
        block = self._copied(parts)
        parts.clear()
        return block

    def _copied(self, parts: list[Float]) -> Float:
        """Columns side by side in a new block."""
        block: Float = np.empty((self.n, sum(part.shape[1] for part in parts)), self.dtype)
        map_chunks(lambda a, b: np.concatenate([part[a:b] for part in parts], axis=1, out=block[a:b]), self.n, CHUNK)
        return block

    def deflate(self, y: Float) -> Float:
        return y if self.known is None else self.known.project_out(y)

    def gram(self, x: Float, y: Float) -> Float64:
        parts = map_chunks(lambda a, b: x[a:b].astype(np.float64).T @ y[a:b].astype(np.float64), self.n, CHUNK)
        return np.sum(parts, axis=0)

    def rotate(self, y: Float, C: Float64) -> Float:
        """y C, in place where C is square."""
        rotation: Float = C.astype(self.dtype)
        target: Float = y if C.shape[0] == C.shape[1] else np.empty((self.n, C.shape[1]), self.dtype)

        def chunk(a: int, b: int) -> None:
            target[a:b] = y[a:b] @ rotation

        map_chunks(chunk, self.n, CHUNK)
        return target

    def residuals(self, Ly: Float, y: Float, values: Float64) -> Float64:
        shift: Float = values.astype(self.dtype)
        parts = map_chunks(
            lambda a, b: np.square((Ly[a:b] - y[a:b] * shift).astype(np.float64)).sum(axis=0), self.n, CHUNK
        )
        return np.sqrt(np.sum(parts, axis=0))


@dataclasses.dataclass
class Solution:
    """Eigenpairs of the deflated operator, descending, and how they were found."""

    values: Float64  # (columns,)
    vectors: Block  # a block of the space, (n, columns)
    residuals: Float64  # (columns,)
    verdict: Verdict
    products: int
    history: list[dict[str, float]]


@dataclasses.dataclass
class State:
    """State of the iteration after a filter: a solve that stops here goes on from it to the same bits."""

    y: Block
    values: Float64
    residuals: Float64
    low: float
    products: int
    history: list[dict[str, float]]


def orthonormalize(space: Space, y: Block) -> Block:
    """An orthonormal block of the same span, by two rounds of SVQB with Gram matrices in float64.

    Two rounds of Cholesky QR broke down on filtered blocks, which are nearly rank-deficient (measured). Columns of
    zeros stay zeros: a graph may have fewer eigenvectors than the block has columns.
    """
    tiny = np.finfo(np.float32).tiny
    for _ in range(2):
        G = space.gram(y, y)
        squares = np.diag(G)
        scale = np.where(squares > tiny, 1.0 / np.sqrt(np.maximum(squares, tiny)), 0.0)
        values, vectors = scipy.linalg.eigh(G * scale[:, None] * scale)
        values = np.maximum(values, values[-1] * 1e-14)
        y = space.rotate(y, scale[:, None] * vectors / np.sqrt(values))
    return y


def rayleigh_ritz(space: Space, y: Block) -> tuple[Block, Float64, Float64, int]:
    """Ritz pairs in the span of the orthonormal block y, descending: block, values, residual norms, products made."""
    Ly = space.apply(y)
    H = space.gram(y, Ly)
    values, C = scipy.linalg.eigh((H + H.T) / 2)
    values, C = values[::-1].copy(), np.ascontiguousarray(C[:, ::-1])
    y, Ly = space.rotate(y, C), space.rotate(Ly, C)
    return y, values, space.residuals(Ly, y, values), 1


def chebyshev_steps(low: float, high: float, top: float, degree: int) -> list[Step]:
    """Steps to p(L) y with p the Chebyshev polynomial of a degree that is small on [low, high] and 1 at ``top``."""
    half, middle = (high - low) / 2, (high + low) / 2
    sigma1 = half / (top - middle)
    sigma = sigma1
    steps = [(sigma1 / half, -middle * sigma1 / half, 0.0)]
    for _ in range(degree - 1):
        following = 1.0 / (2.0 / sigma1 - sigma)
        a = 2.0 * following / half
        steps.append((a, -a * middle, -sigma * following))
        sigma = following
    return steps


def chebyshev_filter(space: Space, y: Block, low: float, high: float, top: float, degree: int) -> Block:
    """p(L) y with p the Chebyshev polynomial that is small on [low, high] and 1 at ``top``; ``y`` is given up."""
    blocks, y = [y], None  # whose only reference the filter gets
    return space.filter(blocks.pop(), chebyshev_steps(low, high, top, degree))


MAX_GAIN = 1e6
"""Largest factor by which a filter may raise the top of the spectrum above the last wanted pair: beyond it rounding
errors of the top exceed that pair."""


def _filter_degree(last: float, low: float, high: float, least: int, most: int = MAX_DEGREE) -> int:
    """Products of the next filter, which shall raise eigenvalue ``last`` `GAIN` times above [low, high].

    At least ``least`` and at most ``most``, unless eigenvalue 1 would be raised more than `MAX_GAIN` times above
    ``last``: a spectrum that falls fast, like that of a dense Gaussian affinity, is parted by few products as well.
    """
    half, middle = (high - low) / 2, (high + low) / 2
    top, wanted = (math.acosh(max(1.0, (x - middle) / half)) for x in (1.0, last))
    most = max(most, least)
    enough = math.ceil(math.acosh(GAIN) / wanted) if wanted * most > math.acosh(GAIN) else most
    for degree in range(max(least, enough), 1, -1):
        if math.cosh(degree * top) <= MAX_GAIN * math.cosh(degree * wanted):
            return degree
    return 1


def _lowest_estimate(space: Space, seed: int, steps: int = 8) -> float:
    """A lower limit of the spectrum that is safe in practice, not below -1, from a few Lanczos steps."""
    v = space.deflate(space.random(1, seed))
    v = space.rotate(v, 1.0 / np.sqrt(np.maximum(space.gram(v, v), np.finfo(np.float64).tiny)))
    alphas: list[float] = []
    betas: list[float] = []
    previous = None
    for _ in range(steps):
        alpha = float(space.gram(v, space.apply(v))[0, 0])
        w = space.recur(v, previous, 1.0, -alpha, -(betas[-1] if betas else 0.0))
        beta = float(np.sqrt(space.gram(w, w)[0, 0]))
        alphas.append(alpha)
        betas.append(beta)
        if beta < 1e-6:
            break
        previous, v = v, space.rotate(w, np.array([[1.0 / beta]]))
    lowest = float(scipy.linalg.eigh_tridiagonal(np.array(alphas), np.array(betas[:-1]))[0][0])
    return max(-1.0, lowest - betas[-1])


def leading_eigenpairs(
    space: Space,
    wanted: int,
    start: Block | Callable[[], Block],
    *,
    tol: float,
    seed: int = 0,
    settled: float | None = None,
    most_products: int = MAX_PRODUCTS,
    degree: int = DEGREE,
    most_degree: int = MAX_DEGREE,
    state: State | None = None,
    checkpoint: Callable[[State], None] | None = None,
    watch: Callable[[dict[str, float]], None] = lambda entry: None,
) -> Solution:
    """The leading eigenpairs of the operator outside the span of the known vectors.

    Parameters
    ----------
    space : Space
        The operator and its block vectors.
    wanted : int
        How many residuals must come down to ``tol``; the block is wider, by guard columns.
    start : block or callable
        Any starting block, or a function that returns one and keeps no reference; the iteration has its width.
    tol : float
        Largest residual norm ||L y - lambda y|| of a wanted pair, y of norm 1.
    settled : float, optional
        Stop also where the last filter lowered the sum of the wanted gaps 1 - lambda by no more than so many times what
        it is now: the next filter would lower it by a small part of that. The sum is the normalised cut that the span
        allows, and two all but equal vectors may still be mixed.
    state : State, optional
        State in which an earlier solve stopped: this one goes on from it to the same bits.
    checkpoint, watch : callable
        Called with the state after each filter, and with each new entry of the history.

    Returns
    -------
    Solution
        All columns of the block, descending; the verdict tells whether the wanted ones converged.
    """
    if state is None:
        low = _lowest_estimate(space, seed + 1)
        y, start = start() if callable(start) else start, None
        y, values, residuals, products = rayleigh_ritz(space, orthonormalize(space, space.deflate(y)))
        history = [{"products": products, "residual": float(residuals[:wanted].max())}]
        state = State(y, values, residuals, low, products, history)
    watch(state.history[-1])
    verdict = _verdict(state, tol, most_products, settled)
    while verdict is None:
        low = min(state.low, float(state.values[-1]) - 1e-3)
        high = max(float(state.values[-1]), low + 1e-3)
        top = max(float(state.values[0]), high + 1e-3)
        steps = _filter_degree(float(state.values[min(wanted, len(state.values)) - 1]), low, high, degree, most_degree)
        before, history = state.products + steps, state.history
        blocks, state.y, y = [state.y], None, None  # the filter gets the only reference
        y = chebyshev_filter(space, blocks.pop(), low, high, top, steps)
        y, values, residuals, products = rayleigh_ritz(space, orthonormalize(space, space.deflate(y)))
        products += before
        before_gaps, gaps = (float(np.maximum(1.0 - v[:wanted], 0.0).sum()) for v in (state.values, values))
        entry = {
            "products": products,
            "residual": float(residuals[:wanted].max()),
            "change": (before_gaps - gaps) / max(gaps, wanted * float(np.finfo(np.float32).eps)),
        }
        history = [*history, entry]
        state = State(y, values, residuals, low, products, history)
        watch(history[-1])
        verdict = _verdict(state, tol, most_products, settled)
        if checkpoint is not None and verdict is None:
            checkpoint(state)
    return Solution(state.values, state.y, state.residuals, verdict, state.products, state.history)


def _verdict(state: State, tol: float, most_products: int, settled: float | None) -> Verdict | None:
    worst = [entry["residual"] for entry in state.history]
    if worst[-1] <= tol:
        return Verdict.CONVERGED
    if settled is not None and state.history[-1].get("change", math.inf) <= settled:
        return Verdict.SETTLED
    if len(worst) > 6 and min(worst[-3:]) > 0.8 * min(worst[:-3]) and worst[-1] < 50 * np.finfo(np.float32).eps:
        return Verdict.STAGNATED
    return Verdict.OUT_OF_PRODUCTS if state.products >= most_products else None


class Stop(NamedTuple):
    """The measure that ended a solve, its limit and its value."""

    measure: str
    wanted: float
    found: float


def stop_of(solution: Solution, wanted: int, tol: float, settled: float | None) -> Stop:
    """The measure that ended a solve: the largest residual, or the change of the gaps where that had a limit."""
    worst = float(np.max(solution.residuals[:wanted], initial=0.0))
    if settled is None or worst <= tol:
        return Stop("largest residual", tol, worst)
    change = solution.history[-1].get("change", math.inf) if solution.history else math.inf
    return Stop("change of the sum of 1 - lambda by the last filter", settled, change)


def dense_eigenpairs(operator: Operator, known: Known | None, most: int) -> Solution:
    """The solution of `leading_eigenpairs`, by LAPACK on the dense deflated matrix, for small problems."""
    n = operator.shape[0]
    count = min(most, n - (0 if known is None else known.count))
    if count <= 0:
        empty = np.zeros(0)
        return Solution(empty, np.zeros((n, 0)), empty, Verdict.CONVERGED, 0, [])
    L = np.asarray(operator.matmat(np.eye(n)), np.float64)
    L = (L + L.T) / 2
    if known is not None:
        # a known vector's eigenvalue 1 is moved below the spectrum, where no wanted one is
        K = known.leading(known.count)
        L = L - 3.0 * (K @ K.T)
    values, y = scipy.linalg.eigh(L, subset_by_index=(n - count, n - 1))
    values, y = values[::-1].copy(), np.ascontiguousarray(y[:, ::-1])
    residuals = np.linalg.norm(L @ y - y * values, axis=0)
    return Solution(values, y, residuals, Verdict.CONVERGED, 0, [])


PANELS_ABOVE = 1 << 30
"""Bytes of a block above which it is filtered in two panels: two blocks are in memory then and not three. A matrix-free
product makes its neighbourhoods' values once for each panel."""


def panels_of(n: int, columns: int, dtype: type = np.float32) -> int:
    """In how many panels a block (n, columns) is worked on: that follows its size alone, since products of panels may
    round otherwise."""
    return 1 if n * columns * np.dtype(dtype).itemsize <= PANELS_ABOVE else 2


def blocks_held(n: int, columns: int) -> int:
    """Most bytes of blocks of at most n rows that a solve holds at once.

    A filter holds the three that it works on, of a panel where there are two with the other panel, and half of one
    where pairs that pieces share are summed.
    """
    block = 4 * n * columns
    return max(int(3.5 * min(block, PANELS_ABOVE)), int(2.5 * block) if block > PANELS_ABOVE else 0)


def _panel_bounds(columns: int, panels: int) -> list[tuple[int, int]]:
    """Columns of each panel, multiples of 8 where that is possible, so that rows of a panel are whole vectors."""
    each = -(-columns // panels)
    each = min(columns, -(-each // 8) * 8)
    return [(a, min(a + each, columns)) for a in range(0, columns, each)]


def block_width(wanted: int) -> int:
    """Columns of the iteration for so many wanted pairs: a third more, at least seven.

    These guard columns make the wanted pairs converge (docs/method.md, The solver). The width is a multiple of 8, so
    that rows of a block are whole vectors.
    """
    return -(-(wanted + max(7, wanted // 3)) // 8) * 8

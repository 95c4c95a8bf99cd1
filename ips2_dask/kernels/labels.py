"""From the fused similarity U to points and labels: a spectral embedding, k-means, numbering."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ips2_dask.kernels import eigen
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.rounding import commute_weights
from ips2_dask.kernels.sparse import Matrix, normalized
from ips2_dask.typing import Float, Float32, Float64, Int32

FEW_VALUES = 1 << 20
"""Values of points up to which k-means starts by `_PlusPlus`, which copies them in float64."""

EMBEDDING_TOL = 1e-5
"""Largest residual of the embedding's eigenvectors, whatever the pairs' tolerance is: they are cheap, and where
eigenvalues are close a residual of 1e-4 still turns the embedding enough to change labels (digits, measured)."""

SETTLED = 0.01
"""Change of the wanted gaps by a filter at which the embedding's eigenvectors are exact enough, where no tolerance is
asked for; see `kernels.eigen.leading_eigenpairs`."""


def solve_limits(tol: float | None) -> tuple[float, float | None]:
    """Largest residual of the embedding's eigenvectors, and `SETTLED` where no tolerance was asked for."""
    return (EMBEDDING_TOL, SETTLED) if tol is None else (min(tol, EMBEDDING_TOL), None)


class _Spectrum(NamedTuple):
    """Top eigenpairs of D^-1/2 U D^-1/2: those of the components first, then the solver's."""

    vectors: Float64  # (m, columns)
    values: Float64  # (columns,)
    degrees: Float64  # (m,)
    components: int
    wanted: int  # eigenpairs outside eigenvalue 1 that the solution is exact for
    solution: eigen.Solution


def spectrum(
    U: Matrix,
    n_clusters: int,
    tol: float,
    seed: int,
    start: Float | None = None,
    columns: int | None = None,
    settled: float | None = None,
) -> _Spectrum:
    """Top eigenpairs of D^-1/2 U D^-1/2: c of them to ``tol``, and as many more as ``columns`` asks for.

    Connected components give the eigenvectors of eigenvalue 1, the largest components first. Eigenpairs
    after the c-th have the residuals of guard columns, some ten times those of the others. ``start``, (m, columns),
    holds vectors that may be near the other ones; without it the start is random. ``settled`` is that of
    `eigen.leading_eigenpairs`.
    """
    m = U.shape[0]
    columns = n_clusters if columns is None else columns
    degrees = np.asarray(U.sum(axis=1), np.float64).ravel()
    root = np.sqrt(degrees)
    count, label = 1, np.zeros(m, np.int32)
    if sp.issparse(U) or m <= 1000:
        count, label = connected_components(sp.csr_array(U), directed=False)
    count = int(count)
    component_vectors = eigen.Known(root, np.asarray(label, np.int32), count)
    more, wanted = max(0, columns - count), max(0, min(n_clusters, columns) - count)
    operator = MatrixOperator(normalized(U, degrees))
    solution = _solve(operator, component_vectors, wanted, tol, seed, start, more, settled)
    vectors = np.concatenate([component_vectors.leading(columns), solution.vectors], axis=1)[:, :columns]
    values = np.concatenate([np.ones(min(count, columns)), solution.values])[: vectors.shape[1]]
    return _Spectrum(np.asarray(vectors, np.float64), np.asarray(values, np.float64), degrees, count, wanted, solution)


def _solve(
    operator: MatrixOperator,
    known: eigen.Known,
    wanted: int,
    tol: float,
    seed: int,
    start: Float | None = None,
    most: int | None = None,
    settled: float | None = None,
) -> eigen.Solution:
    """The ``wanted`` leading eigenpairs outside eigenvalue 1 to ``tol``, and the following ones up to ``most`` in all.

    By LAPACK where that is small. The start is random, but for its first columns where ``start`` is given. Residuals
    are those of the wanted ones.
    """
    n = operator.shape[0]
    most = max(wanted, most or 0)
    width = eigen.block_width(most)
    if most == 0 or n <= eigen.DENSE_BELOW or n < 4 * width + known.count:
        solution = eigen.dense_eigenpairs(operator, known, most)
    else:
        space = eigen.ArraySpace(operator, known)
        block = space.random(width, seed)
        if start is not None:
            initial = np.asarray(start[:, :width], block.dtype)
            # a column in the span of the known vectors would vanish: a trace of the random one stays in each
            block[:, : initial.shape[1]] *= 1e-3 * np.sqrt(np.square(initial).mean()) + np.finfo(block.dtype).tiny
            block[:, : initial.shape[1]] += initial
        solution = eigen.leading_eigenpairs(space, max(wanted, 1), block, tol=tol, seed=seed, settled=settled)
    # without guard columns, which have not converged and are of no use
    solution.values, solution.residuals = solution.values[:most], solution.residuals[:wanted]
    solution.vectors = solution.vectors[:, :most]
    return solution


def embedding(eigenpairs: _Spectrum, n_clusters: int) -> Float32:
    """Rows of the eigenvectors, their columns weighed by commute times, scaled to length 1 (m, columns)."""
    weights = commute_weights(eigenpairs.values, eigenpairs.components, n_clusters)
    return normalize_rows(eigenpairs.vectors * weights).astype(np.float32)


def leading_columns(embedding: Float, columns: int) -> Float32:
    """The embedding of fewer columns: the first ones, rows scaled to length 1 again (m, columns)."""
    if columns >= embedding.shape[1]:
        return np.asarray(embedding, np.float32)
    return normalize_rows(embedding[:, :columns]).astype(np.float32)


def normalize_rows(vectors: Float) -> Float64:
    """Rows scaled to length 1; rows of zeros stay."""
    vectors = np.asarray(vectors, np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


class Partitioning(NamedTuple):
    """One k-means result."""

    inertia: float
    labels: Int32


def kmeans_best(points: Matrix, n_clusters: int, seed: int, numbers: Sequence[int], starts: int = 1) -> Partitioning:
    """The best of several k-means++ starts of k-means: so many for each (seed, number), which decides them.

    One call for all of them: of some hundred points its checks take longer than a start.
    """
    states = [_state(seed, number) for number in numbers]
    with coinciding():
        if isinstance(points, np.ndarray) and points.dtype == np.float32 and points.size <= FEW_VALUES:
            return _fitted(KMeans(n_clusters, init=_PlusPlus(states, starts), n_init=len(states) * starts), points)
        return best([_fitted(KMeans(n_clusters, n_init=starts, random_state=state), points) for state in states])


def _fitted(kmeans: KMeans, points: Matrix) -> Partitioning:
    kmeans.fit(points)
    return Partitioning(float(kmeans.inertia_), kmeans.labels_.astype(np.int32))


class _PlusPlus:
    """The first centres of scikit-learn's k-means++, the same bits, without its checks and conversions for each centre.

    Of some thousand points these take most of a start's time. Each of ``states`` decides so many starts.
    """

    def __init__(self, states: Sequence[int], starts: int) -> None:
        self._states = itertools.chain.from_iterable([np.random.RandomState(state)] * starts for state in states)
        self._wide: Float64 | None = None

    def __call__(self, X: Float32, n_clusters: int, random_state: object) -> Float32:
        """The centres (c, d) of the next start: each is the best of some that are drawn by their squared distances."""
        random_state = next(self._states)
        if self._wide is None:  # of all starts, which get the same points around their mean
            self._wide = X.astype(np.float64)
            self._norms = np.einsum("ij,ij->i", self._wide, self._wide)
        m, ones = len(X), np.ones(len(X), np.float32)
        chosen = [random_state.choice(m, p=ones / ones.sum())]
        nearest = self._squares(chosen)[0]
        total = nearest @ ones
        for _ in range(1, n_clusters):
            shares = random_state.uniform(size=2 + int(np.log(n_clusters))) * total
            tried = np.minimum(np.searchsorted(np.cumsum(nearest), shares), m - 1)
            squares = np.minimum(nearest, self._squares(tried))
            totals = squares @ ones
            best = totals.argmin()
            total, nearest = totals[best], squares[best]
            chosen.append(tried[best])
        return X[chosen]

    def _squares(self, rows: Any) -> Float32:
        """Squared distances of some rows to all, in float64 before they are rounded."""
        wide, norms = cast("Float64", self._wide), self._norms
        return np.maximum(
            (-2.0 * (wide[rows] @ wide.T) + norms[rows, None] + norms).astype(np.float32), np.float32(0.0)
        )


@contextlib.contextmanager
def coinciding() -> Iterator[None]:
    """Let k-means have fewer clusters than it is asked for, where points coincide: a run says so by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
        yield


def _state(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 7, number]).generate_state(1)[0] >> 1)


def best(partitionings: list[Partitioning]) -> Partitioning:
    """The one of the smallest inertia; the first of several."""
    return min(partitionings, key=lambda p: p.inertia)


def renumber(labels: Int32) -> Int32:
    """Clusters numbered by their first sample, so that equal partitions have equal labels; -1 stays -1."""
    if (labels < 0).any():
        numbers, labelled = labels.copy(), labels >= 0
        numbers[labelled] = renumber(labels[labelled])
        return numbers
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]

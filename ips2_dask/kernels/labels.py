"""From the fused similarity U to points and labels: loose components tied, a spectral embedding, k-means, numbering."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans

from ips2_dask.kernels.eigen import (
    DENSE_BELOW,
    ArraySpace,
    Known,
    Solution,
    block_width,
    dense_eigenpairs,
    leading_eigenpairs,
)
from ips2_dask.kernels.operator import MatrixOperator, inverse_root
from ips2_dask.kernels.restarts import SAMPLE, SAMPLED_ABOVE
from ips2_dask.kernels.rounding import commute_weights

Float = NDArray[np.floating]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Affinity = Any  # SciPy CSR or a dense array (m, m)

EMBEDDING_TOL = 1e-5
"""Largest residual of the embedding's eigenvectors, whatever the pairs' tolerance is: they are cheap, and where
eigenvalues are close a residual of 1e-4 still turns the embedding enough to change labels (digits, measured)."""

SETTLED = 0.01
"""Change of the wanted gaps by a filter at which the embedding's eigenvectors are exact enough, where no tolerance is
asked for; see `kernels.eigen.leading_eigenpairs`."""

BLOCK_VALUES = 1 << 22
"""Values of X that are looked at together for what is nearest to loose components."""


CENTRAL = 1 << 14
"""Samples of a component that are looked at, about, for the one nearest to their mean."""


class Tie(NamedTuple):
    """An edge that joins a loose component to its nearest one."""

    sample: int
    nearest: int
    size: int  # samples of the loose component


def _central(X: Any, members: NDArray[np.intp], metric: str) -> int:
    """The member nearest to the mean; of given distances, with the smallest sum of them to the others."""
    if metric == "precomputed":
        return int(members[np.argmin(X[members][:, members].sum(axis=1, dtype=np.float64))])
    center = X[members].mean(axis=0, dtype=np.float64)
    return int(members[np.argmin(np.square(X[members] - center).sum(axis=1))])


def _nearest_outside(X: Any, rows: NDArray[np.intp], label: Int32, metric: str) -> NDArray[np.intp]:
    """The nearest sample of another component to each of the samples ``rows`` (ties: smallest id).

    One pass over X for all of them, which may be read from a store.
    """
    if metric == "precomputed":
        return np.array([np.argmin(np.where(label == label[row], np.inf, X[row])) for row in rows], np.intp)
    gap = np.abs if metric == "manhattan" else np.square
    points = X[rows]
    best, at = np.full(len(rows), np.inf), np.full(len(rows), -1, np.intp)
    step = max(1, min(1 << 16, BLOCK_VALUES // points.shape[1]))
    for start in range(0, len(X), step):
        block, component = X[start : start + step], label[start : start + step]
        for t, row in enumerate(rows):
            length = gap(block - points[t]).sum(axis=1)
            length[component == label[row]] = np.inf
            candidate = int(np.argmin(length))
            if length[candidate] < best[t]:
                best[t], at[t] = length[candidate], start + candidate
    return at


def tie_components(
    U: sp.csr_array, X: Any, n_clusters: int, metric: str = "euclidean"
) -> tuple[sp.csr_array, list[Tie], int]:
    """U with each loose component joined to its nearest one by a single edge, the edges, and the components before.

    Loose are components of fewer than m / (10 c) samples, and the smallest ones while there are more than c: a
    spectral embedding of c columns can't tell more than c components apart. The edge runs from the member nearest to
    the component's mean to the nearest sample outside, and weighs as much as the median edge.
    """
    m = U.shape[0]
    count, label = connected_components(U, directed=False)
    before = int(count)
    ties: list[Tie] = []
    weight = float(np.median(U.data)) if U.nnz else 1.0
    while count > 1:
        sizes = np.bincount(label, minlength=count)
        loose = np.flatnonzero(sizes < m / (10 * n_clusters))
        if count - len(loose) > n_clusters:
            surplus = count - n_clusters
            loose = np.argsort(sizes, kind="stable")[: max(surplus, len(loose))]
        if len(loose) == count:
            loose = loose[loose != np.argmax(sizes)]
        if len(loose) == 0:
            break
        members = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
        i = np.array([_central(X, members[component], metric) for component in loose], np.intp)
        j = _nearest_outside(X, i, label, metric)
        new = [Tie(*(int(n) for n in tie)) for tie in zip(i, j, sizes[loose], strict=True)]
        ties += new
        bridge = sp.coo_array((np.full(len(new), weight, U.dtype), (i, j)), shape=U.shape).tocsr()
        U = sp.csr_array(U.maximum(bridge).maximum(bridge.T))
        count, label = connected_components(U, directed=False)
    return U, ties, before


class Spectrum(NamedTuple):
    """Top eigenpairs of D^-1/2 U D^-1/2: those of the components first, then the solver's."""

    vectors: Float64  # (m, columns)
    values: Float64  # (columns,)
    degrees: Float64  # (m,)
    components: int
    wanted: int  # eigenpairs outside eigenvalue 1 that the solution is exact for
    solution: Solution


def spectrum(
    U: Affinity,
    n_clusters: int,
    tol: float,
    seed: int,
    start: Float | None = None,
    columns: int | None = None,
    settled: float | None = None,
) -> Spectrum:
    """Top eigenpairs of D^-1/2 U D^-1/2: c of them to ``tol``, and as many more as ``columns`` asks for.

    Connected components give the eigenvectors of eigenvalue 1, the largest components first. What comes after the c-th
    has the residual that guard columns have when the others are done, some ten times theirs. ``start``, (m, columns),
    holds what may be near the others; without it the start is random. With ``settled`` it also stops there.
    """
    m = U.shape[0]
    columns = n_clusters if columns is None else columns
    degrees = np.asarray(U.sum(axis=1), np.float64).ravel()
    root = np.sqrt(degrees)
    if sp.issparse(U):
        count, label = connected_components(U, directed=False)
    else:
        count, label = (
            connected_components(sp.csr_array(U), directed=False) if m <= 1000 else (1, np.zeros(m, np.int32))
        )
    scale = inverse_root(degrees)
    if sp.issparse(U):
        L = sp.csr_array(
            ((U.data * np.repeat(scale, np.diff(U.indptr)) * scale[U.indices]).astype(np.float32), U.indices, U.indptr),
            shape=U.shape,
        )
    else:
        L = (U * scale[:, None] * scale).astype(np.float32)
    known = Known(root, np.asarray(label, np.int32), int(count))
    more, wanted = max(0, columns - int(count)), max(0, min(n_clusters, columns) - int(count))
    solution = solve(MatrixOperator(L), known, wanted, tol, seed, start, more, settled)
    vectors = np.concatenate([known.leading(columns), solution.vectors], axis=1)[:, :columns]
    values = np.concatenate([np.ones(min(int(count), columns)), solution.values])[: vectors.shape[1]]
    return Spectrum(
        np.asarray(vectors, np.float64), np.asarray(values, np.float64), degrees, int(count), wanted, solution
    )


def solve(
    operator: MatrixOperator,
    known: Known,
    wanted: int,
    tol: float,
    seed: int,
    start: Float | None = None,
    most: int | None = None,
    settled: float | None = None,
) -> Solution:
    """The ``wanted`` leading eigenpairs outside eigenvalue 1 to ``tol``, and what follows them up to ``most`` in all.

    By LAPACK where that is small. The start is random, but for its first columns where ``start`` is given. Residuals
    are those of the wanted ones.
    """
    n = operator.shape[0]
    most = max(wanted, most or 0)
    width = block_width(most)
    if most == 0 or n <= DENSE_BELOW or n < 4 * width + known.count:
        solution = dense_eigenpairs(operator, known, most)
    else:
        space = ArraySpace(operator, known)
        block = space.random(width, seed)
        if start is not None:
            given = np.asarray(start[:, :width], block.dtype)
            # a column in the span of the known vectors would vanish: a trace of the random one stays in each
            block[:, : given.shape[1]] *= 1e-3 * np.sqrt(np.square(given).mean()) + np.finfo(block.dtype).tiny
            block[:, : given.shape[1]] += given
        solution = leading_eigenpairs(space, max(wanted, 1), block, tol=tol, seed=seed, settled=settled)
    # the other guard columns have not converged, and are nobody's business
    solution.values, solution.residuals = solution.values[:most], solution.residuals[:wanted]
    solution.vectors = solution.vectors[:, :most]
    return solution


def embedding(found: Spectrum, n_clusters: int) -> Float32:
    """Rows of the eigenvectors, their columns weighed by commute times, scaled to length 1 (m, columns)."""
    weights = commute_weights(found.values, found.components, n_clusters)
    return normalize_rows(found.vectors * weights).astype(np.float32)


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


def labels_of_unreached(X: Any, labels: Int32, component: Int32, metric: str) -> Int32:
    """Labels where samples that have none (-1) take, component by component, that of the nearest sample that has one.

    The component's sample nearest to its mean decides for all of it.
    """
    lost = np.flatnonzero(labels < 0)
    if len(lost) == 0:
        return labels
    _, at = np.unique(component[lost], return_inverse=True)
    members = np.split(lost[np.argsort(at, kind="stable")], np.cumsum(np.bincount(at))[:-1])
    centers = np.array([_central(X, some[:: 1 + len(some) // CENTRAL], metric) for some in members], np.intp)
    sides = np.where(labels < 0, 0, 1).astype(np.int32)
    nearest = _nearest_outside(X, centers, sides, metric)
    out = labels.copy()
    for some, other in zip(members, nearest, strict=True):
        out[some] = labels[other]
    return out


class Partitioning(NamedTuple):
    """One k-means result."""

    inertia: float
    labels: Int32


def kmeans_best(points: Affinity, n_clusters: int, seed: int, number: int, starts: int) -> Partitioning:
    """The best of several k-means++ starts of k-means, all of them decided by (seed, number).

    One call for all of them: of some hundred points its checks take longer than a start. Of more than half a million
    points the starts see a sample, and all points move the best one's means on until they stay. (scikit-learn's
    mini-batches would take time that grows with the square of m: each draw goes through all points.)
    """
    m, state = points.shape[0], _state(seed, number)
    fitted = KMeans(n_clusters, n_init=starts, random_state=state)
    if m > SAMPLED_ABOVE:
        rows = np.sort(np.random.default_rng(state).choice(m, SAMPLE, replace=False))
        fitted = KMeans(n_clusters, n_init=1, init=fitted.fit(points[rows]).cluster_centers_)
    fitted.fit(points)
    return Partitioning(float(fitted.inertia_), fitted.labels_.astype(np.int32))


def _state(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 7, number]).generate_state(1)[0] >> 1)


def best(partitionings: list[Partitioning]) -> Partitioning:
    """The one of the smallest inertia; the first of several."""
    return min(partitionings, key=lambda p: p.inertia)


def renumber(labels: Int32) -> Int32:
    """Clusters numbered by their first sample, so that equal partitions have equal labels; -1 stays what it is."""
    if (labels < 0).any():
        out, labelled = labels.copy(), labels >= 0
        out[labelled] = renumber(labels[labelled])
        return out
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]

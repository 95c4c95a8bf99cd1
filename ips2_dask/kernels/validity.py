"""How good a partition is without known labels: modularity on a graph, and stability when samples are left out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from ips2_dask.kernels import density, leiden
from ips2_dask.kernels.components import divide
from ips2_dask.kernels.labels import coinciding, leading_columns, spectrum
from ips2_dask.kernels.labels import embedding as embedded
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.rounding import largest_share, spread, thinned, walk_matrix
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.typing import Float, Int32, Int64

Edges = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.floating]]

SHARE = 0.8
"""Of the samples that a replicate keeps."""

STARTS = 3
"""Of k-means in a replicate."""

CENTRES_FROM = 2_000
"""Rows of a replicate that its k-means sees, a seeded sample; all the others take the nearest centre."""

TREE_SAMPLES = 5_000
"""Samples that the tree of a replicate is built on, at most."""

RESAMPLED_TOL = 1e-3
"""Largest residual of a replicate's eigenvectors: leaving samples out changes labels more than such an error."""


def modularity(parts: Iterable[Edges], labels: Int32, n_clusters: int) -> float:
    """Newman's modularity of a partition of a weighted graph, from its edges part by part; 0 without an edge.

    ``parts`` iterable of (i, j, weight): every edge of the graph once, none of a sample with itself, no weight
    negative; ``labels`` (m,).
    """
    between = np.zeros(n_clusters * n_clusters)
    for i, j, weight in parts:
        a, b = labels[i].astype(np.int64), labels[j]
        between += np.bincount(a * n_clusters + b, weight, len(between))
    table = between.reshape(n_clusters, n_clusters)
    table = table + table.T  # an edge counts at both of its ends
    shares = table / (table.sum() or 1.0)
    return float(np.trace(shares) - (shares.sum(axis=1) ** 2).sum())


def replicate(
    U: Matrix,
    labels: Int32,
    n_clusters: int,
    seed: int,
    number: int,
    *,
    columns: int | None = None,
    embedding: Float | None = None,
    rows: bool = False,
    rounding: str = "kmeans",
    width: int | None = None,
) -> float:
    """Agreement (adjusted Rand index) of a partition with one of a seeded subsample, on the samples of both.

    U is restricted to the subsample and embedded and clustered anew. Islands of the restricted U, in the
    sense of `components.divide`, are left out of it.

    ``U`` (m, m) CSR or dense; ``labels`` (m,); ``seed``, ``number`` decide the subsample and the starts of k-means;
    ``columns``: of the subsample's embedding, ``n_clusters`` without it; ``embedding`` (m, columns): of all samples,
    from whose rows the solver starts, with fewer products to the same tolerance; ``rows``: whether k-means works on
    the rows of U instead of an embedding; ``rounding`` {"kmeans", "density", "leiden"}: how the partition came from
    the embedding, or from U; where the subsample's density has no such cut, k-means rounds; ``width``: how many of
    the embedding's columns it came from, all of them without it.
    """
    rng, chosen = _subsample(len(labels), n_clusters, seed, number)
    some = U[chosen][:, chosen]
    if sp.issparse(some):
        some = sp.csr_array(some)
        inside = divide(connected_components(some, directed=False)[1], n_clusters).inside
        if not inside.all():
            chosen, some = chosen[inside], sp.csr_array(some[inside][:, inside])
    if len(chosen) <= n_clusters:
        return 0.0
    if rounding == "leiden":
        upper = sp.coo_array(sp.triu(sp.csr_array(some), 1))
        graph = leiden.Graph(len(chosen), upper.row, upper.col, upper.data)
        return float(adjusted_rand_score(labels[chosen], graph.so_many(n_clusters, seed).found.labels))
    near = None if embedding is None else embedding[chosen]
    points = some if rows else _embedded(some, near, n_clusters, columns, seed)
    if width is not None and not rows:
        points = leading_columns(points, width)
    if rounding == "density" and not rows:
        cut = _cut(some, points, n_clusters, seed)
        if cut is not None:
            return float(adjusted_rand_score(labels[chosen], cut))
    return float(adjusted_rand_score(labels[chosen], _means(points, n_clusters, rng)))


def replicate_rows(
    embedding: Float, labels: Int32, n_clusters: int, seed: int, number: int, *, rounding: str, width: int | None
) -> float:
    """Agreement of a partition with one of a seeded subsample of rows of its embedding, which are clustered anew.

    As `replicate`, but for samples too many to be embedded anew: what a subsample changes in U is not seen. Of a
    density those rows count that its tree does not leave out.

    ``embedding`` (n, columns): drawn rows; ``labels`` (n,): of these rows; ``n_clusters``, ``seed``, ``number``,
    ``rounding``, ``width``: as of `replicate`.
    """
    rng, chosen = _subsample(len(labels), n_clusters, seed, number)
    points = embedding[chosen] if width is None else leading_columns(embedding[chosen], width)
    if rounding == "density":
        rows, leaves = _leaves(points, n_clusters, seed + number)
        if leaves is not None:
            return float(adjusted_rand_score(labels[chosen][rows][leaves >= 0], leaves[leaves >= 0]))
    return float(adjusted_rand_score(labels[chosen], _means(points, n_clusters, rng)))


def _subsample(n: int, n_clusters: int, seed: int, number: int) -> tuple[np.random.Generator, Int64]:
    """A seeded subsample, ascending, and the generator that has drawn it."""
    rng = np.random.default_rng([seed, 31, number])
    return rng, np.sort(rng.choice(n, min(n, max(n_clusters + 1, round(SHARE * n))), replace=False))


def _means(points: Matrix, n_clusters: int, rng: np.random.Generator) -> Int32:
    """Labels of k-means on some rows of the points; all the others take the nearest centre."""
    n = points.shape[0]
    some = np.sort(rng.choice(n, min(n, max(CENTRES_FROM, 20 * n_clusters)), replace=False))
    with coinciding():
        model = KMeans(n_clusters, n_init=STARTS, random_state=int(rng.integers(2**31))).fit(points[some])
    found: Int32 = model.predict(points)
    return found


def _leaves(points: Matrix, n_clusters: int, seed: int) -> tuple[Int64, Int32 | None]:
    """Drawn rows, and their labels by a cut of the tree on them; None where none has so many clusters."""
    rows = density.drawn(len(points), TREE_SAMPLES, seed)
    edges = density.spanning_tree(points[rows])
    cut = None if edges is None else density.cut(edges, len(rows), n_clusters)
    return rows, None if cut is None else cut.labels


def _cut(U: Matrix, points: Matrix, n_clusters: int, seed: int) -> Int32 | None:
    """Labels cut from the density of an embedding and spread over U, or None where no cut has so many clusters."""
    rows, leaves = _leaves(points, n_clusters, seed)
    if leaves is None:
        return None
    labels = np.full(len(points), -1, np.int32)
    labels[rows] = leaves
    walk = walk_matrix(U if sp.issparse(U) else thinned(U))
    return np.where(labels >= 0, labels, largest_share(spread(MatrixOperator(walk).matmat, labels, n_clusters)))


def _embedded(U: Matrix, near: Float | None, n_clusters: int, columns: int | None, seed: int) -> Float:
    """The embedding of a subsample; ``near`` is that of all samples at its rows, of length 1."""
    columns = None if columns is None else min(columns, U.shape[0])
    start = None
    if near is not None:  # rows of eigenvectors are as long as the root of the degree, inside a plain cluster
        start = near * np.sqrt(np.asarray(U.sum(axis=1), np.float64).ravel())[:, None]
    return embedded(spectrum(U, n_clusters, RESAMPLED_TOL, seed, start, columns), n_clusters)

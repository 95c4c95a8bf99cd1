"""Points in the plane for a graph or for vectors: UMAP where umap-learn is installed, else scikit-learn's t-SNE."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.parallel import threads
from ips2_dask.kernels.rounding import thinned
from ips2_dask.typing import Float32, Float64

MIN_DIST, SPREAD = 0.5, 1.0
"""How close points may come, and the scale of their distances: scanpy's defaults. With UMAP's own .1 the groups of
digits are so dense that their points hide one another, and nearest neighbours agree in their labels no more often."""

STRONGEST = 30
"""Entries of each row that are kept of a matrix of all pairs: UMAP pulls along each entry in each epoch."""

NEIGHBORS = 15
"""Nearest neighbours of UMAP's graph of vectors, its default."""

PERPLEXITY = 30.0
"""t-SNE's, scikit-learn's default; less where there are few points."""

EXTENT, NOISE = 10.0, 1e-4
"""Largest coordinate of a start, and the noise that parts equal points, as UMAP scales its own starts."""


def available() -> bool:
    """Whether umap-learn is installed."""
    return importlib.util.find_spec("umap") is not None


def of_graph(graph: sp.csr_array | NDArray[np.floating], start: NDArray[np.floating], seed: int) -> Float32:
    """UMAP's optimiser on a graph of our own: its attraction along the edges, its repulsion between random pairs.

    ``graph`` (n, n) CSR or dense: symmetric and not negative; the diagonal is ignored. Of a dense one each row's
    `STRONGEST` entries are taken; ``start`` (n, columns): where the points begin: see `_first_places`. Returns (n,
    2) float32: the same bits for the same arguments: one thread computes. Points without edges stay near their
    start.
    """
    edges = _edges(graph)
    random = np.random.RandomState(seed)
    places = _first_places(start, random)
    if not edges.nnz or len(places) < 3:  # nothing to optimise
        return places
    with _quietly():
        from umap import umap_  # noqa: PLC0415  an extra, and its import takes seconds

        a, b = umap_.find_ab_params(SPREAD, MIN_DIST)
        # two columns, the first rate, a, b, gamma, negative samples an edge, and as many epochs as UMAP thinks
        rates = 2, 1.0, a, b, 1.0, 5, None
        plain = {"metric": "euclidean", "metric_kwds": {}, "densmap": False, "densmap_kwds": {}, "output_dens": False}
        found, _ = umap_.simplicial_set_embedding(None, sp.coo_matrix(edges), *rates, places, random, **plain)
    return np.ascontiguousarray(found, np.float32)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """One thread, and no warnings: of what is not installed, of that thread, of rounding at points far from all."""
    with warnings.catch_warnings(), threads(1):
        warnings.simplefilter("ignore")
        yield


def of_vectors(vectors: NDArray[np.floating], seed: int) -> Float32:
    """UMAP of vectors, on its own graph of their nearest neighbours.

    ``vectors`` (n, columns). Returns (n, 2) float32: the same bits for the same arguments.
    """
    places = _first_places(vectors, np.random.RandomState(seed))
    if len(places) < 4:
        return places
    with _quietly():
        from umap import UMAP  # noqa: PLC0415  an extra, and its import takes seconds

        n = min(NEIGHBORS, len(places) - 1)
        layout = UMAP(n_neighbors=n, min_dist=MIN_DIST, spread=SPREAD, init=places, random_state=seed, n_jobs=1)
        found = layout.fit_transform(np.asarray(vectors, np.float32))
    return np.ascontiguousarray(found, np.float32)


def t_sne(vectors: NDArray[np.floating], seed: int) -> Float32:
    """Scikit-learn's t-SNE of vectors, by Barnes and Hut's tree; the time grows with n log n.

    ``vectors`` (n, columns). Returns (n, 2) float32: the same bits for the same arguments: sums of several threads
    would differ from one call to the next.
    """
    places = _first_places(vectors, np.random.RandomState(seed))
    if len(places) < 4:
        return places
    from sklearn.manifold import TSNE  # noqa: PLC0415  its import takes its time

    start = places * (1e-4 / float(places[:, 0].std()))  # as t-SNE scales its own; the noise is not 0
    perplexity = min(PERPLEXITY, (len(places) - 1) / 3)
    with _quietly():
        layout = TSNE(2, perplexity=perplexity, init=start, random_state=seed, n_jobs=1)
        found = layout.fit_transform(np.asarray(vectors, np.float32))
    return np.ascontiguousarray(found, np.float32)


def _first_places(vectors: NDArray[np.floating], random: np.random.RandomState) -> Float32:
    """Two columns of a spectral embedding, scaled as UMAP scales its own start: (n, 2) float32.

    They are the second and the third, as the first hardly differs between samples of a connected graph; where there
    are no three, what there is. A column that is missing is noise.
    """
    columns = np.asarray(vectors, np.float64)
    columns = columns[:, 1:3] if columns.shape[1] >= 3 else columns[:, :2]
    places = np.zeros((len(columns), 2))
    places[:, : columns.shape[1]] = columns - (columns.mean(axis=0) if len(columns) else 0.0)
    largest = float(np.abs(places).max(initial=0.0))
    places *= EXTENT / largest if largest > 0 else 0.0
    return (places + random.normal(scale=NOISE, size=places.shape)).astype(np.float32)


def spectral_columns(graph: sp.csr_array | NDArray[np.floating], columns: int, seed: int) -> Float64:
    """Leading eigenvectors of a graph's normalised adjacency, for a run that keeps no embedding: (n, columns).

    They are approximate, which a start and a picture can do with.
    """
    from sklearn.utils.extmath import randomized_svd  # noqa: PLC0415  its import takes its time

    edges = _edges(graph)
    degrees = np.asarray(edges.sum(axis=1), np.float64).ravel()
    inverse = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    lazy = sp.csr_array(0.5 * (sp.diags_array(inverse) @ edges @ sp.diags_array(inverse) + sp.eye_array(len(degrees))))
    with threads(1):  # half of it beside half of the identity has no negative eigenvalues, of which none is wanted
        left, _, _ = randomized_svd(lazy, min(columns, len(degrees)), n_iter=20, random_state=seed)
    return np.asarray(left, np.float64)


def _edges(graph: sp.csr_array | NDArray[np.floating]) -> sp.csr_array:
    """A graph's edges as CSR, both directions of each, without loops and scaled to at most 1."""
    edges = sp.csr_array(
        thinned(graph, STRONGEST) if isinstance(graph, np.ndarray) else graph, dtype=np.float64, copy=True
    )
    edges.setdiag(0.0)
    edges.eliminate_zeros()
    edges.sort_indices()
    if edges.nnz:
        edges.data /= edges.data.max()
    return edges

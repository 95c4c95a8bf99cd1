"""SC: spectral clustering (Ng, Jordan, Weiss 2002), and what the other baselines share with it."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from sklearn.metrics import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Bool, Float64, Integer

Affinity: TypeAlias = Any  # (m, m), Float64 or a scipy.sparse array

DENSE_EIGH = 2000  # samples up to which LAPACK solves; above it Lanczos costs less (guess, within a factor of two)
ALL_PAIRS = 5000  # samples up to which a bandwidth is taken over all pairs
BANDWIDTH_ROWS = 2000  # samples whose pairs give the bandwidth above that
EXACT_WORK = 2**33  # m * m * f up to which distances are taken by differences, some seconds; BLAS above
BLOCK = 2**24  # distances held at a time while neighbours are searched, 128 MiB

ONE = 1 - 1e-10  # an eigenvalue from here on is 1: its vector belongs to a connected component


def check_option(thing: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is none of the allowed words."""
    if not (isinstance(value, str) and value in allowed):
        raise BadInput(thing, repr(value), " or ".join(map(repr, allowed)), "no method would be chosen", "take one")


def check_count(
    thing: str, value: object, low: int, high: float = np.inf, why: str = "nothing could be computed"
) -> int:
    """Return an integer of low..high, or refuse it, saying why."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        allowed = f"an integer of at least {low}" if np.isinf(high) else f"an integer from {low} to {int(high)}"
        raise BadInput(thing, repr(value), allowed, why, f"give {thing} in that range")
    return int(value)


def check_positive(thing: str, value: object, high: float = np.inf) -> float:
    """Return a number in (0, high], or refuse it."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and 0 < float(value) <= high and float(value) < np.inf):  # type: ignore[arg-type]
        allowed = "a positive number" if np.isinf(high) else f"a number above 0 and up to {high:g}"
        raise BadInput(thing, repr(value), allowed, "the result would mean nothing", f"give {thing} in that range")
    return float(value)  # type: ignore[arg-type]


def distances(A: Float64, X: Float64) -> Float64:
    """Euclidean distances of the rows of A (a, f) and X (m, f), (a, m): by differences while fast, else by BLAS.

    Equal rows have distance 0 and equal differences equal distances in the first case, up to rounding in the second.
    """
    if len(X) ** 2 * X.shape[1] <= EXACT_WORK:
        return np.asarray(cdist(A, X))
    centre = X.mean(axis=0)  # keeps the digits that |a|^2 - 2ax + |x|^2 would lose far from the origin
    return np.asarray(euclidean_distances(A - centre, X - centre))


def nearest_others(X: Float64, k: int) -> tuple[Integer, Float64]:
    """The k nearest other samples of each, by (distance, id), and their distances, both (m, k)."""
    step = max(1, BLOCK // len(X))
    N, d = zip(*(_nearest_of_block(X, p, min(p + step, len(X)), k) for p in range(0, len(X), step)), strict=True)
    return np.vstack(N), np.vstack(d)


def neighborhoods(X: Float64, k: int) -> Integer:
    """N(p): each sample, then its k - 1 nearest others by (distance, id), (m, k)."""
    own = np.arange(len(X))[:, None]
    return own if k == 1 else np.hstack([own, nearest_others(X, k - 1)[0]])


def _nearest_of_block(X: Float64, start: int, stop: int, k: int) -> tuple[Integer, Float64]:
    D = distances(X[start:stop], X)  # (b, m)
    b = np.arange(len(D))
    D[b, start + b] = np.inf
    # All candidates up to the k-th distance, ties included, so that the sort below, not the partition, settles ties.
    row, column = np.nonzero(np.partition(D, k - 1, axis=1)[:, k - 1 : k] >= D)
    order = np.lexsort((column, D[row, column], row))
    first = np.searchsorted(row, b)  # (b,) row is sorted, and so stays under this order
    N = column[order][first[:, None] + np.arange(k)]  # (b, k)
    return N, D[b[:, None], N]


def bandwidth_of(X: Float64, rule: str | float, rng: np.random.RandomState) -> float:
    """The Gaussian's bandwidth t: the mean or median distance over i < j, or the number given.

    Above ``ALL_PAIRS`` samples the pairs are those of ``BANDWIDTH_ROWS`` seeded rows. Where all samples are equal it is
    1, so that their affinity is 1 and not 0 / 0.
    """
    if not isinstance(rule, str):
        return check_positive("bandwidth", rule)
    check_option("bandwidth", rule, ("mean", "median"))
    rows = X if len(X) <= ALL_PAIRS else X[np.sort(rng.choice(len(X), BANDWIDTH_ROWS, replace=False))]
    D = distances(rows, rows)
    t = D.sum() / (D.size - len(D)) if rule == "mean" else np.median(D[np.triu_indices(len(D), 1)])
    return float(t) if t > 0 else 1.0


def gaussian(D: Float64, t: float) -> Float64:
    """exp(-D^2 / 2t^2), written over D."""
    np.square(D, out=D)
    D /= -2 * t * t
    return np.exp(D, out=D)


def spectral_labels(W: Affinity, c: int, rng: np.random.RandomState) -> Integer:
    """Labels (m,) of an affinity: ``embedding``, then k-means (k-means++, best of 10)."""
    return np.asarray(KMeans(c, n_init=10, random_state=rng).fit(embedding(W, c, rng)).labels_, dtype=np.intp)


def embedding(W: Affinity, c: int, rng: np.random.RandomState) -> Float64 | sp.csr_array:
    """Rows of length 1 from the c leading eigenvectors of D^-1/2 W D^-1/2, (m, c): Ng, Jordan, Weiss 2002.

    Shi and Malik's normalised cut takes the same vectors times D^-1/2, which scales whole rows: once the rows have
    length 1 the two are the same. A sample without any affinity is a component of its own. With r > c connected
    components the leading c vectors are an arbitrary part of the eigenspace of 1, so all of it is taken, CSR (m, r):
    the component that a sample is in. That is announced by an `IPS2Warning`. ``rng`` gives the start of Lanczos, above
    ``DENSE_EIGH`` samples.
    """
    d = np.asarray(W.sum(axis=1), dtype=np.float64).ravel()
    lonely = d <= 0
    scale = 1 / np.sqrt(np.where(lonely, 1, d))
    V = _leading_dense(W, scale, lonely, c) if len(d) <= DENSE_EIGH else _leading_sparse(W, d, scale, c, rng)
    if V is None:
        return _components_only(W, c)
    norm = np.linalg.norm(V, axis=1, keepdims=True)
    return np.asarray(np.divide(V, norm, out=np.zeros_like(V), where=norm > 0))


def _components_only(W: Affinity, c: int) -> sp.csr_array:
    """One axis for each connected component, CSR (m, r), r > c."""
    r, component = connected_components(W, directed=False)
    text = f"the affinity falls into {r} components, more than the {c} clusters asked for: they alone decide the labels"
    warnings.warn(text, IPS2Warning, stacklevel=5)  # where fit was called
    m = len(component)
    ends = np.arange(m + 1, dtype=np.int32)  # k-means refuses 64-bit indices
    return sp.csr_array((np.ones(m), component.astype(np.int32), ends), shape=(m, r))


def _leading_dense(W: Affinity, scale: Float64, lonely: Bool, c: int) -> Float64 | None:
    """The c leading eigenvectors by LAPACK, or None where eigenvalue 1 has more than c."""
    L = (W if isinstance(W, np.ndarray) else W.toarray()) * scale[:, None] * scale
    L[lonely, lonely] = 1
    m = len(L)
    values, vectors = eigh(L, subset_by_index=[max(m - c - 1, 0), m - 1], overwrite_a=True, check_finite=False)
    return None if len(values) > c and values[0] >= ONE else np.asarray(vectors[:, -c:])


def _leading_sparse(W: Affinity, d: Float64, scale: Float64, c: int, rng: np.random.RandomState) -> Float64 | None:
    """The same by Lanczos; vectors of eigenvalue 1 come from a graph search, since Lanczos finds only one of them."""
    r, component = connected_components(W, directed=False)
    if r > c:
        return None
    m = len(d)
    Q = np.zeros((m, r))  # (m, r) orthonormal: the component vectors
    Q[np.arange(m), component] = np.sqrt(np.where(d > 0, d, 1))
    Q /= np.linalg.norm(Q, axis=0)
    if r == c:
        return Q

    def deflated(x: Float64) -> Float64:
        x = np.ravel(x)
        return np.asarray(scale * (W @ (scale * x)) - Q @ (Q.T @ x))

    L = LinearOperator((m, m), matvec=deflated, dtype=np.float64)
    start = rng.uniform(-1, 1, m)
    # 1e-6 is far below what moves a label; wide Krylov spaces because the leading eigenvalues of a graph crowd at 1
    vectors = eigsh(L, k=c - r, which="LA", v0=start, ncv=min(m, max(4 * c, 40)), tol=1e-6)[1]
    return np.hstack([Q, vectors[:, ::-1]])


class Baseline(ClusterMixin, BaseEstimator):
    """What fitting has in common: checks, an affinity, and its spectral clustering; subclasses are data classes."""

    n_clusters: int
    random_state: int | np.random.RandomState | None

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Cluster X (m, f); y is ignored. `BadInput` where a parameter is out of range."""
        refuse_masked(X, "X")
        data = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._cluster(data, check_random_state(self.random_state))
        return self

    def _cluster(self, X: Float64, rng: np.random.RandomState) -> None:
        m = len(X)
        c = check_count("n_clusters", self.n_clusters, 1, m, f"some of the clusters of {m} samples would be empty")
        self.affinity_matrix_ = self._affinity(X, rng)
        self.labels_ = spectral_labels(self.affinity_matrix_, c, rng)

    def _affinity(self, X: Float64, rng: np.random.RandomState) -> Affinity:
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class SC(Baseline):
    """Spectral clustering: Gaussian affinity, normalised Laplacian, rows of length 1, k-means.

    A = exp(-d_ij^2 / 2t^2), L = D^-1/2 A D^-1/2, its ``n_clusters`` leading eigenvectors as columns, each row scaled to
    length 1, k-means on the rows (steps 1-6 of the paper's algorithm).

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) array, CSR where ``heat-knn``
    n_features_in_ : int
    """

    n_clusters: int = 8  # at most the number of samples
    _: KW_ONLY
    # gaussian: all pairs, dense. heat-knn: the same kernel where one of two samples is among the n_neighbors nearest
    # others of the other, symmetric by maximum, zero diagonal, sparse
    affinity: str = "gaussian"
    # t: the mean or median distance over i < j, or a number; above 5,000 samples over the pairs of 2,000 seeded ones
    bandwidth: str | float = "mean"
    n_neighbors: int = 5  # of heat-knn, the sample itself not counted
    zero_diagonal: bool = True  # of gaussian: 0, as in the paper, or 1
    random_state: int | np.random.RandomState | None = 0  # of k-means and of Lanczos

    def _affinity(self, X: Float64, rng: np.random.RandomState) -> Affinity:
        check_option("affinity", self.affinity, ("gaussian", "heat-knn"))
        if self.affinity == "heat-knn":
            k = check_count("n_neighbors", self.n_neighbors, 1, len(X) - 1, f"{len(X)} samples have no more others")
            return _heat_knn(X, k, bandwidth_of(X, self.bandwidth, rng))
        W = gaussian(distances(X, X), bandwidth_of(X, self.bandwidth, rng))
        np.fill_diagonal(W, 0 if self.zero_diagonal else 1)
        return W


def _heat_knn(X: Float64, k: int, t: float) -> sp.csr_array:
    """exp(-d_ij^2 / 2t^2) where j is among the k nearest others of i or the reverse, CSR (m, m), zero diagonal."""
    N, d = nearest_others(X, k)
    m = len(N)
    graph = sp.csr_array((gaussian(d, t).ravel(), N.ravel(), np.arange(m + 1) * k), shape=(m, m))
    return sp.csr_array(graph.maximum(graph.T))

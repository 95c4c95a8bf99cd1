"""Shared parts of the baselines: argument checks, distances and neighbours, and the clustering of an affinity."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics import euclidean_distances

from ips2_dask.errors import BadInput, IPS2Warning

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.intp]
Affinity: TypeAlias = Any  # (m, m), Floats or a scipy.sparse array

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
    if (
        not isinstance(value, Real)
        or isinstance(value, bool)
        or not (0 < float(value) <= high and float(value) < np.inf)
    ):
        allowed = "a positive number" if np.isinf(high) else f"a number above 0 and up to {high:g}"
        raise BadInput(thing, repr(value), allowed, "the result would mean nothing", f"give {thing} in that range")
    return float(value)


def check_clusters(n_clusters: object, m: int) -> int:
    """Return the number of clusters, or refuse one that m samples can't fill."""
    return check_count("n_clusters", n_clusters, 1, m, f"some of the clusters of {m} samples would be empty")


def distances(A: Floats, X: Floats) -> Floats:
    """Euclidean distances of the rows of A (a, f) and X (m, f), (a, m): by differences while fast, else by BLAS.

    Equal rows have distance 0 and equal differences equal distances in the first case, up to rounding in the second.
    """
    if len(X) ** 2 * X.shape[1] <= EXACT_WORK:
        return np.asarray(cdist(A, X))
    centre = X.mean(axis=0)  # keeps the digits that |a|^2 - 2ax + |x|^2 would lose far from the origin
    return np.asarray(euclidean_distances(A - centre, X - centre))


def nearest_others(X: Floats, k: int) -> tuple[Ints, Floats]:
    """The k nearest other samples of each, by (distance, id), and their distances, both (m, k)."""
    m = len(X)
    step = max(1, BLOCK // m)
    N, d = zip(*(_nearest_of_block(X, slice(p, min(p + step, m)), k) for p in range(0, m, step)), strict=True)
    return np.vstack(N), np.vstack(d)


def neighborhoods(X: Floats, k: int) -> Ints:
    """N(p): each sample, then its k - 1 nearest others by (distance, id), (m, k)."""
    own = np.arange(len(X))[:, None]
    return own if k == 1 else np.hstack([own, nearest_others(X, k - 1)[0]])


def _nearest_of_block(X: Floats, block: slice, k: int) -> tuple[Ints, Floats]:
    """The rows of nearest_others for one block of samples."""
    D = distances(X[block], X)  # (b, m)
    b = np.arange(len(D))
    D[b, block.start + b] = np.inf
    # All candidates up to the k-th distance, ties included, so that the sort below, not the partition, settles ties.
    row, column = np.nonzero(np.partition(D, k - 1, axis=1)[:, k - 1 : k] >= D)
    order = np.lexsort((column, D[row, column], row))
    first = np.searchsorted(row, b)  # (b,) row is sorted, and so stays under this order
    N = column[order][first[:, None] + np.arange(k)]  # (b, k)
    return N, D[b[:, None], N]


def bandwidth_of(X: Floats, rule: str | float, rng: np.random.RandomState) -> float:
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


def gaussian(D: Floats, t: float) -> Floats:
    """exp(-D^2 / 2t^2), written over D."""
    np.square(D, out=D)
    D /= -2 * t * t
    return np.exp(D, out=D)


def spectral_labels(W: Affinity, c: int, rng: np.random.RandomState) -> Ints:
    """Labels (m,) of an affinity: ``embedding``, then k-means (k-means++, best of 10)."""
    return np.asarray(KMeans(c, n_init=10, random_state=rng).fit(embedding(W, c, rng)).labels_, dtype=np.intp)


def embedding(W: Affinity, c: int, rng: np.random.RandomState) -> Floats | sp.csr_array:
    """Rows of length 1 from the c leading eigenvectors of D^-1/2 W D^-1/2, (m, c): Ng, Jordan, Weiss 2002.

    Shi and Malik's normalised cut takes the same vectors times D^-1/2, which scales whole rows: once the rows have
    length 1 the two are the same. A sample without any affinity is a component of its own. With r > c connected
    components the leading c vectors are an arbitrary part of the eigenspace of 1, so all of it is taken, CSR (m, r):
    the component that a sample is in. That is announced by an `IPS2Warning`.

    Parameters
    ----------
    W : array or sparse array (m, m)
        Symmetric affinity, not negative.
    c : int
        Clusters.
    rng : RandomState
        Gives the start of Lanczos, above ``DENSE_EIGH`` samples.
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


def _leading_dense(W: Affinity, scale: Floats, lonely: npt.NDArray[np.bool_], c: int) -> Floats | None:
    """The c leading eigenvectors by LAPACK, or None where eigenvalue 1 has more than c."""
    L = (W if isinstance(W, np.ndarray) else W.toarray()) * scale[:, None] * scale
    L[lonely, lonely] = 1
    m = len(L)
    values, vectors = eigh(L, subset_by_index=[max(m - c - 1, 0), m - 1], overwrite_a=True, check_finite=False)
    return None if len(values) > c and values[0] >= ONE else np.asarray(vectors[:, -c:])


def _leading_sparse(W: Affinity, d: Floats, scale: Floats, c: int, rng: np.random.RandomState) -> Floats | None:
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

    def deflated(x: Floats) -> Floats:
        x = np.ravel(x)
        return np.asarray(scale * (W @ (scale * x)) - Q @ (Q.T @ x))

    L = LinearOperator((m, m), matvec=deflated, dtype=np.float64)
    start = rng.uniform(-1, 1, m)
    # 1e-6 is far below what moves a label; wide Krylov spaces because the leading eigenvalues of a graph crowd at 1
    vectors = eigsh(L, k=c - r, which="LA", v0=start, ncv=min(m, max(4 * c, 40)), tol=1e-6)[1]
    return np.hstack([Q, vectors[:, ::-1]])

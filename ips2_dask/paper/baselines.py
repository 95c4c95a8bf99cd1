"""The methods that IPS2 is compared with, as scikit-learn estimators with one surface: SC, CAVE, SSC and HGC.

They are dense where that is simple, for the paper's data sets of some hundred samples at most.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh, svd
from scipy.optimize import lsq_linear
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from scipy.special import betaln, digamma, gammaln
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from sklearn.linear_model import orthogonal_mp
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.fields import between, checked, made, mean_or_number, number, one_of, whole
from ips2_dask.paper.explicit import bandwidth_of, kernel, nearest, on_neighbors
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Float64, Integer

Affinity: TypeAlias = Any  # (m, m), Float64 or a scipy.sparse array

MEANINGLESS = "the result would mean nothing"

ONE = 1 - 1e-10  # an eigenvalue from here on is 1: its vector belongs to a connected component


def _above(default: float) -> Any:
    return between(default, 0, np.inf, MEANINGLESS)


def _count(default: int) -> Any:
    return number(default, 1, None, "nothing could be computed")


def spectral_labels(W: Affinity, c: int, rng: np.random.RandomState) -> Integer:
    """Labels (m,) of an affinity: ``embedding``, then k-means (k-means++, best of 10)."""
    return np.asarray(KMeans(c, n_init=10, random_state=rng).fit(embedding(W, c)).labels_, dtype=np.intp)


def embedding(W: Affinity, c: int) -> Float64 | sp.csr_array:
    """Rows of length 1 from the c leading eigenvectors of D^-1/2 W D^-1/2, (m, c): Ng, Jordan, Weiss 2002.

    Shi and Malik's normalised cut takes the same vectors times D^-1/2, which scales whole rows: once the rows have
    length 1 the two are the same. A sample without any affinity is a component of its own. With r > c connected
    components the leading c vectors are an arbitrary part of the eigenspace of 1, so all of it is taken, CSR (m, r):
    the component that a sample is in. That is announced by an `IPS2Warning`. LAPACK solves, which suits the paper's
    sizes.
    """
    d = np.asarray(W.sum(axis=1), dtype=np.float64).ravel()
    lonely = d <= 0
    scale = 1 / np.sqrt(np.where(lonely, 1, d))
    L = (W if isinstance(W, np.ndarray) else W.toarray()) * scale[:, None] * scale
    L[lonely, lonely] = 1
    m = len(L)
    values, vectors = eigh(L, subset_by_index=[max(m - c - 1, 0), m - 1], overwrite_a=True, check_finite=False)
    if len(values) > c and values[0] >= ONE:
        return _components_only(W, c)
    V = np.asarray(vectors[:, -c:])
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


class Baseline(ClusterMixin, BaseEstimator):
    """What fitting has in common: checks, an affinity, and its spectral clustering; subclasses are data classes."""

    n_clusters: int
    random_state: int | np.random.RandomState | None

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Cluster X (m, f); y is ignored. `BadInput` where a parameter is out of range."""
        checked(self)
        refuse_masked(X, "X")
        data = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._cluster(data, check_random_state(self.random_state))
        return self

    def _cluster(self, X: Float64, rng: np.random.RandomState) -> None:
        m = len(X)
        c = whole("n_clusters", self.n_clusters, 1, m, f"some of the clusters of {m} samples would be empty")
        self.affinity_matrix_ = self._affinity(X)
        self.labels_ = spectral_labels(self.affinity_matrix_, c, rng)

    def _affinity(self, X: Float64) -> Affinity:
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
    affinity: str = one_of("gaussian", "heat-knn")
    bandwidth: str | float = made("mean", mean_or_number)  # t: the mean or median distance over i < j, or a number
    n_neighbors: int = 5  # of heat-knn, the sample itself not counted
    zero_diagonal: bool = True  # of gaussian: 0, as in the paper, or 1
    random_state: int | np.random.RandomState | None = 0  # of k-means

    def _affinity(self, X: Float64) -> Affinity:
        D = cdist(X, X)
        W = kernel(D, bandwidth_of(D, self.bandwidth))
        if self.affinity == "heat-knn":
            k = whole("n_neighbors", self.n_neighbors, 1, len(X) - 1, f"{len(X)} samples have no more others")
            return sp.csr_array(on_neighbors(W, D, k))
        np.fill_diagonal(W, 0 if self.zero_diagonal else 1)
        return W


# CAVE: clique averaging of nearest-neighbour hyperedges, then normalised cut (Agarwal et al. 2005)


@dataclass(eq=False, repr=False)
class CAVE(Baseline):
    """Clique averaging and normalised cut: a hypergraph, the graph that approximates it best, its partition.

    Hyperedge e is a sample with its ``n_neighbors`` - 1 nearest others; its weight h_e is the mean Gaussian affinity
    exp(-d_ij^2 / 2t^2) of its C(k, 2) pairs. Clique averaging looks for the graph whose edges reproduce the hyperedges
    in least squares: each h_e is taken for a noisy average of the weights w_ij on the clique of e (the paper's
    generalised mean with exponent 1). The graph is cut by the normalised cut: the leading generalised eigenvectors of
    (W, D), rows scaled to length 1, k-means.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) CSR, the weights w_ij, zero diagonal
    hyperedges_ : (m, k) int, the samples of each hyperedge, its own first
    hyperedge_weights_ : (m,) float, h_e
    n_features_in_ : int
    """

    n_clusters: int = 8  # at most the number of samples
    _: KW_ONLY
    n_neighbors: int = 5  # samples k of a hyperedge, its own sample counted, from 2 to m
    # separate: w_ij = mean of h_e over the hyperedges that hold i and j, which minimises sum_e sum_{ij in e}
    # (w_ij - h_e)^2 pair by pair. joint: minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, all pairs
    # together; with fewer hyperedges than pairs the answer is not unique, and the smallest is taken where it lies
    # within the bounds
    averaging: str = one_of("separate", "joint")
    bandwidth: str | float = made("mean", mean_or_number)  # t, as of SC
    random_state: int | np.random.RandomState | None = 0  # of k-means

    def _affinity(self, X: Float64) -> sp.csr_array:
        m = len(X)
        k = whole("n_neighbors", self.n_neighbors, 2, m, f"a hyperedge of {m} samples would have no pair or no k")
        D = cdist(X, X)
        self.hyperedges_ = nearest(D, k)
        i, j = np.triu_indices(k, 1)
        pairs = kernel(D, bandwidth_of(D, self.bandwidth))[self.hyperedges_[:, i], self.hyperedges_[:, j]]
        self.hyperedge_weights_ = pairs.mean(axis=1)
        average = _average_separately if self.averaging == "separate" else _average_jointly
        return average(self.hyperedges_, self.hyperedge_weights_, m)


def _average_separately(hyperedges: Integer, h: Float64, m: int) -> sp.csr_array:
    """w_ij = mean of h_e (n,) over the hyperedges (n, k) that hold i and j, CSR (m, m), symmetric, zero diagonal."""
    n, k = hyperedges.shape
    H = sp.csr_array((np.ones(n * k), hyperedges.ravel(), np.arange(n + 1) * k), shape=(n, m))
    total, count = sp.csr_array(H.T @ (H * h[:, None])), sp.csr_array(H.T @ H)
    for A in (total, count):
        A.setdiag(0)
        A.eliminate_zeros()
    count.data = 1 / count.data
    return sp.csr_array(total.multiply(count))


def _average_jointly(hyperedges: Integer, h: Float64, m: int) -> sp.csr_array:
    """w that minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, CSR (m, m), symmetric, zero diagonal."""
    i, j = np.triu_indices(hyperedges.shape[1], 1)
    first, second = np.sort(np.stack([hyperedges[:, i], hyperedges[:, j]]), axis=0)  # (n, q) each
    pairs, pair = np.unique((first * m + second).ravel(), return_inverse=True)
    n, q = first.shape
    G = sp.csr_array((np.full(n * q, 1 / q), pair.ravel(), np.arange(n + 1) * q), shape=(n, len(pairs)))
    w = np.clip(lsq_linear(G, h, bounds=(0, 1), lsmr_tol=1e-12).x, 0, 1)
    W = sp.csr_array((w, (pairs // m, pairs % m)), shape=(m, m))
    W.eliminate_zeros()
    return sp.csr_array(W + W.T)


# SSC: sparse subspace clustering (Elhamifar, Vidal 2013), also by matching pursuit (You, Robinson, Vidal 2016)

MOTION: dict[str, float | bool] = {"alpha": 800.0, "affine": True, "outliers": False, "keep": 0.7}
"""The authors' settings for Hopkins 155."""

FACES: dict[str, float | bool] = {"alpha": 20.0, "affine": False, "outliers": True, "keep": 1.0}
"""The authors' settings for Extended Yale B."""

ROUNDING = 1e-8  # products of unit vectors below this are taken for 0
EXPRESSED = 1e-6  # length of what is left of a sample, of 1, that counts as nothing


@dataclass(eq=False, repr=False)
class SSC(Baseline):
    """Sparse subspace clustering: each sample as a sparse combination of the others, then spectral clustering.

    With samples as columns, Y = X', program (13) of the paper:

        min |C|_1 + lambda_e |E|_1 + lambda_z / 2 |Y - YC - E|_F^2,  diag(C) = 0  (and 1'C = 1' where ``affine``),

    lambda_z = alpha / mu_z, lambda_e = alpha_e / mu_e, mu_z = min_i max_{j != i} |y_i' y_j|, mu_e = min_i max_{j != i}
    |y_j|_1 (14). Columns of C are divided by their largest |c|, W = |C| + |C|', and W is clustered (Algorithm 1). The
    defaults are those of the authors' program; ``MOTION`` and ``FACES`` are what they used for their two experiments.

    Departures: (1) the authors' program for outliers makes Y = YC + E exact; this is (13), with the noise term. (2) A
    sample that is orthogonal to all others would make mu_z 0; it is left out of that minimum.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) array, CSR where ``omp``
    coefficients_ : (m, m) array: C, its column i expresses sample i
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    """

    n_clusters: int = 8  # at most the number of samples
    _: KW_ONLY
    # admm: the program above. omp: orthogonal matching pursuit on samples of length 1; it has neither the affine
    # constraint nor outliers
    solver: str = one_of("admm", "omp")
    alpha: float = _above(20.0)  # weight of the noise term, above 1; also ADMM's penalty (the authors' choice)
    affine: bool = False  # whether the coefficients of a sample sum to 1: affine subspaces instead of linear ones
    outliers: bool = False  # whether E is there; without it E = 0
    alpha_e: float = _above(20.0)  # weight of E, above 1
    keep: float = between(
        1.0, 1e-30, 1.0, MEANINGLESS, closed=True
    )  # share in (0, 1] of a column's |c|_1 kept in W, its largest coefficients (the authors' rho)
    tol: float = _above(2e-4)  # ADMM stops when no entry of C, E or the constraints moves or fails by more
    max_iter: int = _count(200)  # ADMM's limit; as published it is reached without a word, see converged_
    n_nonzero: int = _count(10)  # coefficients that omp gives a sample at most: the dimension expected of a subspace
    random_state: int | np.random.RandomState | None = 0  # of k-means

    def _affinity(self, X: Float64) -> Affinity:
        if self.solver == "omp":
            if self.affine or self.outliers:
                options = f"affine={self.affine}, outliers={self.outliers}"
                raise BadInput("solver='omp'", options, "neither", "they would be ignored", "take solver='admm'")
            found = _express_by_omp(X, self.n_nonzero)
        else:
            # |y_j|_1; the minimum over i of the maximum over j != i is the second
            sizes = np.sort(np.abs(X).sum(axis=1))
            lambda_e = self.alpha_e / _or_one(sizes[-2]) if self.outliers else None
            lambda_z = self.alpha / _coherence(X)
            found = _express_by_admm(X, lambda_z, lambda_e, self.alpha, bool(self.affine), self.tol, self.max_iter)
        self.coefficients_, self.n_iter_, self.converged_ = found
        W = _affinity_of(self.coefficients_, self.keep)
        return sp.csr_array(W) if self.solver == "omp" else W


_Expression: TypeAlias = tuple[Float64, int, bool]
"""C (m, m), the iterations it took, and whether the stopping rule was met."""


def _or_one(x: np.floating) -> float:
    """A scale of the data, or 1 where all of it is 0 and no scale matters."""
    return float(x) if x > 0 else 1.0


def _coherence(X: Float64) -> float:
    """mu_z = min_i max_{j != i} |x_i . x_j|, over the samples that are not orthogonal to all others (14)."""
    G = np.abs(X @ X.T)
    np.fill_diagonal(G, 0)
    largest = G.max(axis=1)
    return _or_one(largest[largest > ROUNDING * largest.max()].min(initial=largest.max()))


def shrink(A: Float64, threshold: float) -> Float64:
    """Soft thresholding T: sign(a) max(|a| - threshold, 0)."""
    return A - np.clip(A, -threshold, threshold)


def _express_by_admm(
    X: Float64, lambda_z: float, lambda_e: float | None, rho: float, affine: bool, tol: float, max_iter: int
) -> _Expression:
    """C (m, m), zero diagonal, of program (13) by the alternating direction method of multipliers (Algorithm 2).

    Letters are the paper's: A the copy of C in the quadratic term, Delta and delta the multipliers of A = C - diag(C)
    and 1'A = 1', rho the penalty of the splitting. With ``lambda_e`` None there is no E.
    """
    m = len(X)
    Y = X.T  # (f, m)
    solve = _ridge_solver(np.hstack([np.sqrt(lambda_z) * X, np.full((m, int(affine)), np.sqrt(rho))]), rho)
    target = lambda_z * (X @ Y) + (rho if affine else 0)  # the part of the right side that does not move, (m, m)
    C, A, Delta, delta, E = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)), np.zeros(m), np.zeros(Y.shape)
    change_E = 0.0
    for n_iter in range(1, max_iter + 1):
        right = target + rho * C - Delta
        if lambda_e is not None:
            right -= lambda_z * (X @ E)
        if affine:
            right -= delta  # 1 delta': every row loses delta'
        before, A = A, solve(right)
        C = shrink(A + Delta / rho, 1 / rho)
        np.fill_diagonal(C, 0)
        if lambda_e is not None:
            E_before, E = E, shrink(Y - Y @ A, lambda_e / lambda_z)
            change_E = _largest(E - E_before)
        gap, excess = A - C, A.sum(axis=0) - 1 if affine else np.zeros(m)
        Delta += rho * gap
        delta += rho * excess
        if max(_largest(gap), _largest(excess), _largest(A - before), change_E) <= tol:
            return C, n_iter, True
    return C, max_iter, False


def _largest(A: Float64) -> float:
    return float(np.abs(A).max())


def _ridge_solver(Z: Float64, rho: float) -> Callable[[Float64], Float64]:
    """R -> (Z Z' + rho I)^-1 R for Z (m, q), by one singular value decomposition; in factors where that is cheaper."""
    U, s, _ = svd(Z, full_matrices=False, check_finite=False)
    shares = s**2 / (s**2 + rho)
    if 2 * len(s) < len(Z):
        return lambda R: (R - U @ (shares[:, None] * (U.T @ R))) / rho
    inverse = (np.eye(len(Z)) - (U * shares) @ U.T) / rho
    return lambda R: inverse @ R


def _express_by_omp(X: Float64, n_nonzero: int) -> _Expression:
    """C by orthogonal matching pursuit (You, Robinson, Vidal 2016) on samples of length 1.

    A sample has at most ``n_nonzero``, m - 1 and f coefficients, fewer where they express it already, as a zero one.
    """
    X, m = normalize(X), len(X)
    most, C = min(n_nonzero, m - 1, X.shape[1]), np.zeros((m, m))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing is left to express
        for i in range(m):
            others = np.delete(np.arange(m), i)
            C[others, i] = orthogonal_mp(X[others].T, X[i], n_nonzero_coefs=most)
    left = np.linalg.norm(X.T - X.T @ C, axis=0)
    return C, max(1, int(np.count_nonzero(C, axis=0).max())), bool((left <= EXPRESSED).all())


def _affinity_of(C: Float64, keep: float = 1.0) -> Float64:
    """W = |C| + |C|' after each column of C was cut to its largest entries and divided by the largest (Algorithm 1).

    Of each column the fewest largest |c| that hold the share ``keep`` of its sum stay; 1 keeps all.
    """
    A = np.abs(C)
    order = np.argsort(-A, axis=0, kind="stable")
    value = np.take_along_axis(A, order, axis=0)
    if keep < 1:
        larger = np.cumsum(value, axis=0) - value  # what larger ones of the column hold
        value[larger >= keep * value.sum(axis=0)] = 0
    np.put_along_axis(A, order, value / np.where(value[0] > 0, value[0], 1), axis=0)
    return A + A.T


# HGC: hypergraph communities by a Bayesian mixture and its variational solution (Vazquez 2009)


@dataclass(eq=False, repr=False)
class HGC(Baseline):
    """Hypergraph communities: a mixture whose vertices of group g are in hyperedge j with probability theta_gj.

    Vertex i has a hidden group g_i with probability pi_g; its incidence a_ij with hyperedge j is Bernoulli(theta_gj).
    Priors: theta_gj ~ Beta(alpha, beta), pi ~ Dirichlet(gamma, ..., gamma). Variational Bayes maximises the evidence
    lower bound over q(g) q(theta) q(pi) in turns; groups that explain nothing are left empty. The best of ``n_init``
    random starts, by the bound, is kept. The defaults are the author's: priors 1e-6 (their non-informative limit),
    random memberships to start from, stop at a relative change of 1e-6. That limit favours theta of exactly 0 or 1,
    which a group of one vertex always has, so odd vertices may stand alone; flat priors (1, 1, 1) keep them in theirs.

    Attributes
    ----------
    labels_ : (m,) int, the groups that are not empty, numbered from 0
    membership_ : (m, n_clusters) float, q(g_i): posterior probabilities of the groups
    affinity_matrix_ : (m, m) float, posterior probability of being in the same group
    n_groups_ : int, groups that are not empty
    elbo_ : float, evidence lower bound of the start that was kept
    elbo_path_ : (n_iter_,) float, its way there, the random start first
    n_iter_ : int
    n_features_in_ : int
    """

    n_clusters: int = _count(8)  # groups at most; superfluous ones stay empty
    _: KW_ONLY
    # knn: hyperedge j is sample j with its n_neighbors - 1 nearest others. knn-others: its n_neighbors nearest others,
    # as the author reads a graph
    incidence: str = one_of("knn", "knn-others")
    n_neighbors: int = 10  # samples of a hyperedge
    alpha: float = _above(1e-6)  # priors
    beta: float = _above(1e-6)
    gamma: float = _above(1e-6)
    n_init: int = _count(10)  # random starts
    tol: float = _above(1e-6)  # relative change of the bound at which a start has converged
    max_iter: int = _count(1000)  # points of a start's way at most, the start itself counted
    random_state: int | np.random.RandomState | None = 0  # of the starts

    def _cluster(self, X: Float64, rng: np.random.RandomState) -> None:
        m, others = len(X), self.incidence == "knn-others"
        why = f"{m} samples do not fill a hyperedge"
        k = whole("n_neighbors", self.n_neighbors, 1, m - 1 if others else m, why)
        self._explain(_knn_incidence(X, k, others), rng)

    def _explain(self, A: sp.csr_array, rng: np.random.RandomState) -> None:
        """Find the groups of an incidence (m, n) of 0 and 1, vertices in rows."""
        prior = _Prior(self.alpha, self.beta, self.gamma)
        starts = (rng.uniform(size=(A.shape[0], self.n_clusters)) for _ in range(self.n_init))
        climbs = (_climb(A, q, prior, self.tol, self.max_iter) for q in starts)
        self.membership_, self.elbo_path_ = max(climbs, key=lambda climbed: climbed[1][-1])
        self.elbo_, self.n_iter_ = float(self.elbo_path_[-1]), len(self.elbo_path_)
        groups, self.labels_ = np.unique(self.membership_.argmax(axis=1), return_inverse=True)
        self.n_groups_ = len(groups)

    @property
    def affinity_matrix_(self) -> Float64:
        """Posterior probability that two samples are of one group, (m, m); computed when asked for."""
        W = self.membership_ @ self.membership_.T
        np.fill_diagonal(W, 1)
        return np.asarray(W)


def _knn_incidence(X: Float64, k: int, others: bool = False) -> sp.csr_array:
    """Hyperedge j is sample j with its k - 1 nearest others, or its k nearest others: CSR (m, m) of 0 and 1."""
    m = len(X)
    members = nearest(cdist(X, X), k + others)[:, int(others) :]  # (m, k)
    by_hyperedge = sp.csr_array((np.ones(members.size), members.ravel(), np.arange(m + 1) * k), shape=(m, m))
    return sp.csr_array(by_hyperedge.T)


class _Prior(NamedTuple):
    """Beta(alpha, beta) of each theta_gj and Dirichlet(gamma, ..., gamma) of pi."""

    alpha: float
    beta: float
    gamma: float


_Posterior: TypeAlias = tuple[Float64, Float64, Float64]
"""q(theta_gj) = Beta(alpha_gj, beta_gj), both (K, n), and q(pi) = Dirichlet(gamma), (K,)."""


def _climb(A: sp.csr_array, start: Float64, prior: _Prior, tol: float, max_iter: int) -> tuple[Float64, Float64]:
    """Coordinate ascent of the evidence lower bound, which never falls up to rounding, for an incidence A (m, n).

    It begins with memberships ``start`` (m, K), positive, which are scaled to rows of sum 1, and returns those that it
    arrives at with the bound after each iteration.
    """
    q = start / start.sum(axis=1, keepdims=True)
    posterior = _posterior_of(A, q, prior)
    path = [_elbo_of(q, posterior, prior)]
    while len(path) < max_iter:
        q = _memberships(A, posterior)
        posterior = _posterior_of(A, q, prior)
        path.append(_elbo_of(q, posterior, prior))
        if abs(path[-1] - path[-2]) <= tol * (abs(path[-1]) + abs(path[-2])) / 2:
            break
    return q, np.array(path)


def _posterior_of(A: sp.csr_array, q: Float64, prior: _Prior) -> _Posterior:
    """The best q(theta) and q(pi) for memberships q: prior counts plus expected counts."""
    inside = np.asarray((A.T @ q).T)  # (K, n) expected vertices of group g in hyperedge j
    size = q.sum(axis=0)  # (K,)
    outside = np.maximum(size[:, None] - inside, 0)  # rounding must not make it negative
    return prior.alpha + inside, prior.beta + outside, prior.gamma + size


def _memberships(A: sp.csr_array, posterior: _Posterior) -> Float64:
    """The best q(g) for q(theta) and q(pi), (m, K): softmax of E[log pi_g] + sum_j E[log Bernoulli(a_ij; theta_gj)]."""
    alpha, beta, gamma = posterior
    log_in, log_out = digamma(alpha), digamma(beta)  # both less digamma(alpha + beta), which cancels in the difference
    constant = digamma(gamma) + (log_out - digamma(alpha + beta)).sum(axis=1)  # (K,)
    score = A @ (log_in - log_out).T + constant
    score -= score.max(axis=1, keepdims=True)
    np.exp(score, out=score)
    score /= score.sum(axis=1, keepdims=True)
    return np.asarray(score)


def _elbo_of(q: Float64, posterior: _Posterior, prior: _Prior) -> float:
    """The bound on log p(A), where ``posterior`` is the best for q: the evidence given q, plus q's entropy."""
    alpha, beta, gamma = posterior
    entropy = -float(np.sum(q * np.log(np.where(q > 0, q, 1))))
    theta = float(np.sum(betaln(alpha, beta) - betaln(prior.alpha, prior.beta)))
    K = len(gamma)
    pi = np.sum(gammaln(gamma)) - gammaln(np.sum(gamma)) - K * gammaln(prior.gamma) + gammaln(K * prior.gamma)
    return entropy + theta + float(pi)

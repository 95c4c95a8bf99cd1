"""HGC: hypergraph communities by a Bayesian mixture and its variational solution (Vazquez 2009)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import betaln, digamma, gammaln

from ips2_dask.paper.baselines import spectral
from ips2_dask.paper.baselines.spectral import Baseline, check_count, check_option, check_positive
from ips2_dask.typing import Float64


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

    n_clusters: int = 8  # groups at most; superfluous ones stay empty
    _: KW_ONLY
    # knn: hyperedge j is sample j with its n_neighbors - 1 nearest others. knn-others: its n_neighbors nearest others,
    # as the author reads a graph
    incidence: str = "knn"
    n_neighbors: int = 10  # samples of a hyperedge
    alpha: float = 1e-6  # priors, positive
    beta: float = 1e-6
    gamma: float = 1e-6
    n_init: int = 10  # random starts
    tol: float = 1e-6  # relative change of the bound at which a start has converged
    max_iter: int = 1000  # points of a start's way at most, the start itself counted
    random_state: int | np.random.RandomState | None = 0  # of the starts

    def _cluster(self, X: Float64, rng: np.random.RandomState) -> None:
        check_option("incidence", self.incidence, ("knn", "knn-others"))
        m, others = len(X), self.incidence == "knn-others"
        why = f"{m} samples do not fill a hyperedge"
        k = check_count("n_neighbors", self.n_neighbors, 1, m - 1 if others else m, why)
        self._explain(knn_incidence(X, k, others), rng)

    def _explain(self, A: sp.csr_array, rng: np.random.RandomState) -> None:
        """Find the groups of an incidence (m, n) of 0 and 1, vertices in rows."""
        K = check_count("n_clusters", self.n_clusters, 1)
        n_init, max_iter = check_count("n_init", self.n_init, 1), check_count("max_iter", self.max_iter, 1)
        tol = check_positive("tol", self.tol)
        prior = Prior(*(check_positive(name, getattr(self, name)) for name in Prior._fields))
        starts = (rng.uniform(size=(A.shape[0], K)) for _ in range(n_init))
        best = max((climb(A, q, prior, tol, max_iter) for q in starts), key=lambda attempt: attempt.elbo[-1])
        self.membership_, self.elbo_path_ = best
        self.elbo_, self.n_iter_ = float(best.elbo[-1]), len(best.elbo)
        groups, self.labels_ = np.unique(best.q.argmax(axis=1), return_inverse=True)
        self.n_groups_ = len(groups)

    @property
    def affinity_matrix_(self) -> Float64:
        """Posterior probability that two samples are of one group, (m, m); computed when asked for."""
        W = self.membership_ @ self.membership_.T
        np.fill_diagonal(W, 1)
        return np.asarray(W)


def knn_incidence(X: Float64, k: int, others: bool = False) -> sp.csr_array:
    """Hyperedge j is sample j with its k - 1 nearest others, or its k nearest others: CSR (m, m) of 0 and 1."""
    m = len(X)
    members = spectral.nearest_others(X, k)[0] if others else spectral.neighborhoods(X, k)  # (m, k)
    by_hyperedge = sp.csr_array((np.ones(members.size), members.ravel(), np.arange(m + 1) * k), shape=(m, m))
    return sp.csr_array(by_hyperedge.T)


class Prior(NamedTuple):
    """Beta(alpha, beta) of each theta_gj and Dirichlet(gamma, ..., gamma) of pi."""

    alpha: float
    beta: float
    gamma: float


class Posterior(NamedTuple):
    """q(theta_gj) = Beta(alpha_gj, beta_gj), both (K, n), and q(pi) = Dirichlet(gamma), (K,)."""

    alpha: Float64
    beta: Float64
    gamma: Float64


class Climb(NamedTuple):
    """Memberships q (m, K) that a start arrived at, and the bound after each iteration."""

    q: Float64
    elbo: Float64


def climb(A: sp.csr_array, start: Float64, prior: Prior, tol: float, max_iter: int) -> Climb:
    """Coordinate ascent of the evidence lower bound, which never falls up to rounding, for an incidence A (m, n).

    It begins with memberships ``start`` (m, K), positive, which are scaled to rows of sum 1.
    """
    q = start / start.sum(axis=1, keepdims=True)
    posterior = posterior_of(A, q, prior)
    path = [_elbo_of(q, posterior, prior)]
    while len(path) < max_iter:
        q = memberships(A, posterior)
        posterior = posterior_of(A, q, prior)
        path.append(_elbo_of(q, posterior, prior))
        if abs(path[-1] - path[-2]) <= tol * (abs(path[-1]) + abs(path[-2])) / 2:
            break
    return Climb(q, np.array(path))


def posterior_of(A: sp.csr_array, q: Float64, prior: Prior) -> Posterior:
    """The best q(theta) and q(pi) for memberships q: prior counts plus expected counts."""
    inside = np.asarray((A.T @ q).T)  # (K, n) expected vertices of group g in hyperedge j
    size = q.sum(axis=0)  # (K,)
    outside = np.maximum(size[:, None] - inside, 0)  # rounding must not make it negative
    return Posterior(prior.alpha + inside, prior.beta + outside, prior.gamma + size)


def memberships(A: sp.csr_array, posterior: Posterior) -> Float64:
    """The best q(g) for q(theta) and q(pi), (m, K): softmax of E[log pi_g] + sum_j E[log Bernoulli(a_ij; theta_gj)]."""
    alpha, beta, gamma = posterior
    log_in, log_out = digamma(alpha), digamma(beta)  # both less digamma(alpha + beta), which cancels in the difference
    constant = digamma(gamma) + (log_out - digamma(alpha + beta)).sum(axis=1)  # (K,)
    score = A @ (log_in - log_out).T + constant
    score -= score.max(axis=1, keepdims=True)
    np.exp(score, out=score)
    score /= score.sum(axis=1, keepdims=True)
    return np.asarray(score)


def _elbo_of(q: Float64, posterior: Posterior, prior: Prior) -> float:
    """The bound on log p(A), where ``posterior`` is the best for q: the evidence given q, plus q's entropy."""
    alpha, beta, gamma = posterior
    entropy = -float(np.sum(q * np.log(np.where(q > 0, q, 1))))
    theta = float(np.sum(betaln(alpha, beta) - betaln(prior.alpha, prior.beta)))
    K = len(gamma)
    pi = np.sum(gammaln(gamma)) - gammaln(np.sum(gamma)) - K * gammaln(prior.gamma) + gammaln(K * prior.gamma)
    return entropy + theta + float(pi)

"""HGC: planted groups are recovered, the bound is a bound and never falls, its updates are those of naive loops."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln, digamma, gammaln, logsumexp
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines import HGC, hgc

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


# incidence="precomputed" is left out: the checks hand over real numbers, and it takes 0 and 1 only
@pytest.mark.slow
@parametrize_with_checks([HGC(), HGC(incidence="knn-others", n_neighbors=5)])  # type: ignore[untyped-decorator]
def test_hgc_is_a_scikit_learn_estimator(estimator: HGC, check: Any) -> None:
    check(estimator)


def planted(seed: int, theta: Array, size: int = 20) -> tuple[Array, Labels]:
    """A hypergraph drawn from the model: ``size`` vertices of each group, theta (groups, hyperedges)."""
    y = np.repeat(np.arange(len(theta)), size)
    return (np.random.default_rng(seed).random((len(y), theta.shape[1])) < theta[y]).astype(np.float64), y


def communities(noise: float = 0.05) -> Array:
    """Three groups with 15 hyperedges each: .75 of a group are in its own ones, ``noise`` of it in the others."""
    return np.kron(np.eye(3), np.full((1, 15), 0.75 - noise)) + noise


FLAT: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "gamma": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_recovered_and_superfluous_ones_are_empty(seed: int) -> None:
    A, y = planted(seed, communities())
    fitted = HGC(8, incidence="precomputed", **FLAT).fit(A)
    assert fitted.n_groups_ == 3
    assert adjusted_rand_score(y, fitted.labels_) == 1
    assert (fitted.membership_.sum(axis=0) < 1e-3).sum() == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_authors_priors_recover_groups_that_share_no_hyperedge(seed: int) -> None:
    A, y = planted(seed, communities(noise=0))
    fitted = HGC(8, incidence="precomputed", n_init=50).fit(A)
    assert fitted.n_groups_ == 3
    assert adjusted_rand_score(y, fitted.labels_) == 1


def test_under_the_authors_priors_an_odd_vertex_may_stand_alone() -> None:
    """Their limit favours theta of exactly 0 or 1, which a group of one vertex always has."""
    A, y = planted(2, communities())
    fitted = HGC(8, incidence="precomputed").fit(A)
    start = np.eye(8)[y] + 1e-9
    at_truth = hgc.climb(sp.csr_array(A), start, hgc.Prior(1e-6, 1e-6, 1e-6), 1e-6, 100)
    assert adjusted_rand_score(y, at_truth.q.argmax(axis=1)) == 1
    assert fitted.elbo_ > at_truth.elbo[-1]
    assert 1 in np.bincount(fitted.labels_)
    assert adjusted_rand_score(y, fitted.labels_) > 0.9


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_that_share_hyperedges_without_being_dense_are_recovered_too(seed: int) -> None:
    """Groups are told apart by their profile, not by density inside: any theta will do."""
    A, y = planted(seed, np.random.default_rng(1).choice([0.1, 0.9], (4, 40)))
    assert adjusted_rand_score(y, HGC(8, incidence="precomputed", **FLAT).fit_predict(A)) == 1


def test_clusters_of_samples_are_found_through_their_neighbourhoods() -> None:
    X, y = make_blobs(90, centers=[[0, 0], [8, 0], [0, 8]], random_state=0)
    assert adjusted_rand_score(y, HGC(3, n_neighbors=20).fit_predict(X)) == 1


def small(seed: int, m: int = 5, n: int = 4) -> sp.csr_array:
    return sp.csr_array((np.random.default_rng(seed).random((m, n)) < 0.5).astype(np.float64))


priors = st.builds(hgc.Prior, *[st.floats(1e-6, 3)] * 3)
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, prior=priors, K=st.integers(1, 4))
def test_the_bound_never_falls(seed: int, prior: hgc.Prior, K: int) -> None:
    start = np.random.default_rng(seed).uniform(size=(12, K))
    path = hgc.climb(small(seed, 12, 9), start, prior, 1e-12, 200).elbo
    assert (np.diff(path) >= -1e-9 * np.abs(path[1:])).all()


def log_evidence(A: Array, K: int, prior: hgc.Prior) -> float:
    """log p(A), the sum over all K^m groupings, each integrated over theta and pi."""
    m = len(A)
    terms = []
    for grouping in itertools.product(range(K), repeat=m):
        g = np.array(grouping)
        size = np.bincount(g, minlength=K)
        term = gammaln(K * prior.gamma) - gammaln(K * prior.gamma + m)
        term += sum(gammaln(prior.gamma + s) - gammaln(prior.gamma) for s in size)
        for k, j in itertools.product(range(K), range(A.shape[1])):
            inside = A[g == k, j].sum()
            term += betaln(prior.alpha + inside, prior.beta + size[k] - inside) - betaln(prior.alpha, prior.beta)
        terms.append(term)
    return float(logsumexp(terms))


@settings(deadline=None, max_examples=20)
@given(seed=seeds, prior=st.builds(hgc.Prior, *[st.floats(0.1, 3)] * 3), K=st.integers(1, 3))
def test_the_bound_is_below_the_evidence_and_equal_to_it_for_one_group(seed: int, prior: hgc.Prior, K: int) -> None:
    A = small(seed)
    bound = hgc.climb(A, np.random.default_rng(seed).uniform(size=(5, K)), prior, 1e-12, 500).elbo[-1]
    evidence = log_evidence(A.toarray(), K, prior)
    assert bound <= evidence + 1e-9
    assert K > 1 or bound == pytest.approx(evidence)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, prior=priors)
def test_one_update_is_that_of_the_formulas_in_loops(seed: int, prior: hgc.Prior) -> None:
    A, K = small(seed).toarray(), 3
    m, n = A.shape
    q = np.random.default_rng(seed).dirichlet(np.ones(K), m)
    log_q = np.zeros((m, K))
    gamma = [prior.gamma + sum(q[i, k] for i in range(m)) for k in range(K)]
    for k in range(K):
        log_q[:, k] += digamma(gamma[k]) - digamma(sum(gamma))
        for j in range(n):
            alpha = prior.alpha + sum(q[i, k] for i in range(m) if A[i, j] == 1)
            beta = prior.beta + sum(q[i, k] for i in range(m) if A[i, j] == 0)
            for i in range(m):
                log_q[i, k] += (digamma(alpha) if A[i, j] == 1 else digamma(beta)) - digamma(alpha + beta)
    expected = np.exp(log_q - logsumexp(log_q, axis=1, keepdims=True))
    sparse = sp.csr_array(A)
    np.testing.assert_allclose(hgc.memberships(sparse, hgc.posterior_of(sparse, q, prior)), expected, atol=1e-7)


def test_memberships_and_co_memberships_are_probabilities() -> None:
    fitted = HGC(4, incidence="precomputed").fit(planted(0, communities())[0])
    q, W = fitted.membership_, fitted.affinity_matrix_
    np.testing.assert_allclose(q.sum(axis=1), 1)
    np.testing.assert_array_equal(W.diagonal(), 1)
    assert W[3, 7] == pytest.approx(sum(q[3] * q[7]))
    np.testing.assert_array_equal(W, W.T)


def test_more_starts_never_end_lower() -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    one, ten = (HGC(6, n_init=n).fit(X).elbo_ for n in (1, 10))
    assert ten >= one


def test_the_iteration_stops_at_its_limit() -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    fitted = HGC(6, max_iter=3).fit(X)
    assert fitted.n_iter_ == len(fitted.elbo_path_) == 3
    assert fitted.elbo_ == fitted.elbo_path_[-1]


def test_a_sparse_incidence_gives_the_labels_of_the_dense_one() -> None:
    A, _ = planted(0, communities())
    estimator = HGC(5, incidence="precomputed")
    np.testing.assert_array_equal(estimator.fit_predict(sp.csr_array(A)), estimator.fit_predict(A))


def test_hyperedges_are_neighbourhoods_with_or_without_their_sample() -> None:
    X = np.array([[0.0], [1.0], [3.0], [7.0]])
    with_own = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]  # vertices in rows, hyperedges in columns
    without = [[0, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(hgc.knn_incidence(X, 2).toarray(), with_own)
    np.testing.assert_array_equal(hgc.knn_incidence(X, 2, others=True).toarray(), without)


def test_a_seed_decides_the_labels() -> None:
    X = np.random.default_rng(3).standard_normal((80, 4))
    first, again, other = (HGC(5, random_state=s).fit(X) for s in (7, 7, 8))
    np.testing.assert_array_equal(first.labels_, again.labels_)
    assert (first.membership_ != other.membership_).any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"incidence": "graph"}, "incidence: found 'graph'"),
        ({"incidence": "precomputed"}, "incidence='precomputed': found the entry 2, allowed is 0 and 1"),
        ({"n_clusters": 0}, "n_clusters: found 0, allowed is an integer of at least 1"),
        ({"n_neighbors": 7}, "n_neighbors: found 7, allowed is an integer from 1 to 6"),
        ({"n_neighbors": 6, "incidence": "knn-others"}, "n_neighbors: found 6, allowed is an integer from 1 to 5"),
        ({"alpha": 0}, "alpha: found 0"),
        ({"beta": -1.0}, "beta: found -1.0"),
        ({"gamma": "flat"}, "gamma: found 'flat'"),
        ({"n_init": 0}, "n_init: found 0"),
        ({"tol": 0}, "tol: found 0"),
        ({"max_iter": 1.5}, "max_iter: found 1.5"),
    ],
)
def test_bad_input_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        HGC(**{"n_clusters": 2, "n_neighbors": 2, **parameters}).fit(np.arange(12.0).reshape(6, 2) % 5)

"""The baselines against what is not ours: cases made by hand, naive loops, scikit-learn, and their papers' promises."""

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
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.linear_model import Lasso
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.paper import baselines
from ips2_dask.paper.baselines import CAVE, FACES, HGC, MOTION, SC, SSC

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def expected_failures(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, SSC) and estimator.solver == "omp":
        return {"check_clustering": "its three blobs in the plane are no three subspaces: two samples span the plane"}
    return {}


@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        *(SC(), SC(affinity="heat-knn"), CAVE(), CAVE(averaging="joint")),
        *(SSC(), SSC(**MOTION), SSC(**FACES), SSC(solver="omp")),
        *(HGC(), HGC(incidence="knn-others", n_neighbors=5)),
    ],
    expected_failed_checks=expected_failures,
)
def test_baselines_are_scikit_learn_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "baseline", [SC(5), SC(5, affinity="heat-knn"), CAVE(5), SSC(4), SSC(4, solver="omp"), HGC(5)], ids=repr
)
def test_a_seed_decides_the_labels(baseline: Any) -> None:
    X = np.random.default_rng(3).standard_normal((80, 4))
    first, again = (baseline.set_params(random_state=7).fit_predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


# SC


def rings(n: int = 60) -> tuple[Array, npt.NDArray[np.int64]]:
    """Two concentric circles of radius 1 and 3, n samples each, a little noise."""
    rng = np.random.default_rng(0)
    angle = np.linspace(0, 2 * np.pi, n, endpoint=False)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    return np.vstack([circle, 3 * circle]) + 0.03 * rng.standard_normal((2 * n, 2)), np.repeat([0, 1], n)


def test_two_rings_are_told_apart_where_k_means_fails() -> None:
    X, y = rings()
    assert adjusted_rand_score(y, SC(2, bandwidth=0.2).fit_predict(X)) == 1
    assert adjusted_rand_score(y, KMeans(2, n_init=10, random_state=0).fit_predict(X)) < 0.1


def test_two_rings_are_told_apart_on_the_neighbour_graph() -> None:
    X, y = rings()
    assert adjusted_rand_score(y, SC(2, affinity="heat-knn").fit_predict(X)) == 1


def labelled(W: Any, c: int) -> Labels:
    """The labels of an affinity."""
    return baselines.spectral_labels(W, c, np.random.RandomState(0))


def block_affinity(*sizes: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Affinity 1 within blocks of the given sizes and 0 between."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    return (y[:, None] == y).astype(np.float64), y


def test_an_ideal_block_affinity_embeds_each_block_in_one_of_orthogonal_points() -> None:
    W, y = block_affinity(3, 5, 2)
    V: Any = baselines.embedding(W, 3)
    np.testing.assert_allclose(V @ V.T, W, atol=1e-12)
    assert adjusted_rand_score(y, labelled(W, 3)) == 1


def test_a_sparse_affinity_gives_the_labels_of_the_dense_one() -> None:
    W = SC(affinity="heat-knn").fit(rings()[0]).affinity_matrix_
    assert isinstance(W, sp.csr_array)
    np.testing.assert_array_equal(labelled(W, 4), labelled(W.toarray(), 4))


def test_a_sample_without_any_affinity_is_a_cluster_of_its_own() -> None:
    W, y = block_affinity(4, 1, 5)
    W[4] = 0
    assert adjusted_rand_score(y, labelled(W, 3)) == 1


RIGHT_TRIANGLE = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])  # distances 3, 4, 5


@pytest.mark.parametrize(("bandwidth", "t"), [("mean", 4), ("median", 4), (2.5, 2.5)])
def test_the_gaussian_affinity_is_that_of_the_paper(bandwidth: Any, t: float) -> None:
    W = SC(2, bandwidth=bandwidth).fit(RIGHT_TRIANGLE).affinity_matrix_
    a, b, c = np.exp(-np.array([9, 16, 25]) / (2 * t**2))
    np.testing.assert_allclose(W, [[0, a, b], [a, 0, c], [b, c, 0]], rtol=1e-14)


def test_the_diagonal_can_be_one() -> None:
    np.testing.assert_array_equal(SC(2, zero_diagonal=False).fit(RIGHT_TRIANGLE).affinity_matrix_.diagonal(), 1)


def naive_neighbors(X: Array, k: int) -> list[list[int]]:
    """The k nearest others of each sample by (distance, id)."""
    d = [[float(np.linalg.norm(x - z)) for z in X] for x in X]
    return [sorted((j for j in range(len(X)) if j != i), key=lambda j: (d[i][j], j))[:k] for i in range(len(X))]


def tied_samples(seed: int, m: int) -> Array:
    """Samples on a small integer grid, so that many distances are equal."""
    return np.random.default_rng(seed).integers(0, 3, (m, 2)).astype(np.float64)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 20), data=st.data())
def test_neighbours_are_ordered_by_distance_and_id(seed: int, m: int, data: st.DataObject) -> None:
    X, k = tied_samples(seed, m), data.draw(st.integers(1, m - 1))
    near = baselines.nearest(np.linalg.norm(X[:, None] - X, axis=2), k + 1)
    np.testing.assert_array_equal(near[:, 0], range(m))
    np.testing.assert_array_equal(near[:, 1:], naive_neighbors(X, k))


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_heat_knn_is_the_maximum_of_both_directions(seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((12, 3))
    d = np.array([[np.linalg.norm(x - z) for z in X] for x in X])
    t = d.sum() / (12 * 11)
    W = np.zeros((12, 12))
    for i, neighbors in enumerate(naive_neighbors(X, 5)):
        for j in neighbors:
            W[i, j] = W[j, i] = np.exp(-(d[i, j] ** 2) / (2 * t**2))
    np.testing.assert_allclose(SC(2, affinity="heat-knn").fit(X).affinity_matrix_.toarray(), W, rtol=1e-12)


def test_more_components_than_clusters_are_announced_and_never_split() -> None:
    W, y = block_affinity(6, 5, 2, 1)
    with pytest.warns(IPS2Warning, match="4 components, more than the 3 clusters"):
        labels = labelled(W, 3)
    assert adjusted_rand_score(np.minimum(y, 2), labels) == 1  # the two smallest share a cluster


def test_equal_samples_have_affinity_one() -> None:
    W = SC(1, zero_diagonal=False).fit(np.ones((4, 2))).affinity_matrix_
    np.testing.assert_array_equal(W, 1)


# CAVE


FIVE_VERTICES = np.array([[0, 1, 2], [3, 1, 2], [2, 4, 3]])
WEIGHTS = np.array([0.9, 0.6, 0.3])


def symmetric(m: int, weights: dict[tuple[int, int], float]) -> Array:
    """The array with these weights at (i, j) and (j, i)."""
    W = np.zeros((m, m))
    for (i, j), w in weights.items():
        W[i, j] = W[j, i] = w
    return W


def test_clique_weights_of_five_vertices_are_those_by_hand() -> None:
    by_hand = {(0, 1): 0.9, (0, 2): 0.9, (1, 2): 0.75, (1, 3): 0.6, (2, 3): 0.45, (2, 4): 0.3, (3, 4): 0.3}
    W = baselines._average_separately(FIVE_VERTICES, WEIGHTS, 5)
    np.testing.assert_allclose(W.toarray(), symmetric(5, by_hand), rtol=1e-14)


def test_joint_clique_weights_of_five_vertices_reproduce_the_hyperedges() -> None:
    """By hand: the smallest w sums one value l per hyperedge: 3 l0 + l1 = 3 h0, l0 + 3 l1 + l2 = 3 h1, and so on."""
    h = WEIGHTS / 2
    W = baselines._average_jointly(FIVE_VERTICES, h, 5).toarray()
    l0, l1, l2 = np.linalg.solve([[3, 1, 0], [1, 3, 1], [0, 1, 3]], 3 * h)
    by_hand = {(0, 1): l0, (0, 2): l0, (1, 2): l0 + l1, (1, 3): l1, (2, 3): l1 + l2, (2, 4): l2, (3, 4): l2}
    np.testing.assert_allclose(W, symmetric(5, by_hand), atol=1e-9)
    for members, weight in zip(FIVE_VERTICES, h, strict=True):
        assert np.mean([W[i, j] for i, j in itertools.combinations(members, 2)]) == pytest.approx(weight)


def random_hyperedges(seed: int, m: int, k: int, n: int) -> tuple[npt.NDArray[np.int64], Array]:
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(m, k, replace=False) for _ in range(n)]), rng.random(n)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(4, 10), k=st.integers(2, 4), n=st.integers(1, 12))
def test_separate_averages_are_the_mean_over_the_hyperedges_of_a_pair(seed: int, m: int, k: int, n: int) -> None:
    hyperedges, h = random_hyperedges(seed, m, k, n)
    W = np.zeros((m, m))
    for i, j in itertools.combinations(range(m), 2):
        holding = [w for members, w in zip(hyperedges, h, strict=True) if i in members and j in members]
        W[i, j] = W[j, i] = np.mean(holding) if holding else 0
    np.testing.assert_allclose(baselines._average_separately(hyperedges, h, m).toarray(), W, rtol=1e-12)


def test_joint_averages_give_back_a_graph_when_all_its_triples_are_known() -> None:
    """Ten triples, ten pairs: the averages of a graph's triangles determine it."""
    hyperedges = np.array(list(itertools.combinations(range(5), 3)))
    rng = np.random.default_rng(0)
    graph = symmetric(5, {pair: rng.random() for pair in itertools.combinations(range(5), 2)})
    h = np.array([np.mean([graph[i, j] for i, j in itertools.combinations(e, 2)]) for e in hyperedges])
    np.testing.assert_allclose(baselines._average_jointly(hyperedges, h, 5).toarray(), graph, atol=1e-6)


def test_joint_averages_stay_between_zero_and_one() -> None:
    hyperedges = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]])
    W = baselines._average_jointly(hyperedges, np.array([1.0, 1.0, 0.0, 0.0]), 4).toarray()
    unbounded = np.linalg.lstsq(
        [[sum(p in e for p in pair) == 2 for pair in itertools.combinations(range(4), 2)] for e in hyperedges],
        np.array([3.0, 3.0, 0, 0]),
    )[0]
    assert unbounded.min() < 0 or unbounded.max() > 1
    assert W.min() >= 0
    assert W.max() <= 1
    np.testing.assert_array_equal(W, W.T)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_hyperedge_weighs_the_mean_affinity_of_its_pairs(seed: int) -> None:
    X = 1e4 + np.random.default_rng(seed).standard_normal((9, 4))
    fitted = CAVE(2, n_neighbors=4, bandwidth=1.3).fit(X)
    h = [
        np.mean([np.exp(-np.sum((X[i] - X[j]) ** 2) / (2 * 1.3**2)) for i, j in itertools.combinations(members, 2)])
        for members in fitted.hyperedges_
    ]
    np.testing.assert_allclose(fitted.hyperedge_weights_, h, rtol=1e-7)


@pytest.mark.parametrize("averaging", ["separate", "joint"])
def test_separate_clusters_are_found(averaging: str) -> None:
    X, y = make_blobs(90, centers=[[0, 0], [4, 0], [0, 4]], cluster_std=0.7, random_state=0)
    fitted = CAVE(3, averaging=averaging).fit(X)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    assert fitted.hyperedges_.shape == (90, 5)
    np.testing.assert_array_equal(fitted.hyperedges_[:, 0], np.arange(90))
    W = fitted.affinity_matrix_.toarray()
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_array_equal(W.diagonal(), 0)


def test_hyperedges_of_all_samples_are_allowed() -> None:
    X = np.random.default_rng(0).standard_normal((6, 2))
    fitted = CAVE(2, n_neighbors=6).fit(X)
    assert np.ptp(fitted.hyperedge_weights_) < 1e-14  # they are one hyperedge, so nothing tells pairs apart
    W = fitted.affinity_matrix_.toarray()
    np.testing.assert_allclose(W, fitted.hyperedge_weights_[0] * (1 - np.eye(6)), rtol=1e-14)


# SSC


def linear_subspaces(seed: int = 0, n: int = 20, dimension: int = 3, ambient: int = 30) -> tuple[Array, Labels]:
    """Three random subspaces, which are independent: their dimensions add up; n samples each."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((n, dimension)) @ rng.standard_normal((dimension, ambient)) for _ in range(3)]
    return np.vstack(parts), np.repeat([0, 1, 2], n)


def share_across(W: Any, y: Labels) -> float:
    """Share of an affinity's weight that joins samples of different classes."""
    W = W if isinstance(W, np.ndarray) else W.toarray()
    return float(W[y[:, None] != y].sum() / W.sum())


@pytest.mark.parametrize("seed", range(5))
def test_independent_subspaces_are_recovered_exactly_by_both_solvers(seed: int) -> None:
    X, y = linear_subspaces(seed)
    by_admm, by_omp = SSC(3).fit(X), SSC(3, solver="omp").fit(X)
    assert adjusted_rand_score(y, by_admm.labels_) == adjusted_rand_score(y, by_omp.labels_) == 1
    assert share_across(by_admm.affinity_matrix_, y) < 2e-3
    assert share_across(by_omp.affinity_matrix_, y) < 1e-10  # expressed exactly, so by the own subspace alone
    assert by_omp.converged_


def parallel_lines() -> tuple[Array, Labels]:
    """Three parallel lines of three-space; two of them span the same plane, so as linear subspaces they are one."""
    along, feet = np.outer(np.linspace(0, 3, 12), [1, 0, 0]), np.array([[0, 1, 0], [0, -1, 0], [0, 0, 1]])
    return np.vstack([foot + along for foot in feet]), np.repeat([0, 1, 2], 12)


def test_affine_subspaces_need_the_affine_constraint() -> None:
    X, y = parallel_lines()
    affine, linear = SSC(3, affine=True).fit(X), SSC(3).fit(X)
    assert adjusted_rand_score(y, affine.labels_) == 1
    assert share_across(affine.affinity_matrix_, y) < 0.02 < 0.2 < share_across(linear.affinity_matrix_, y)
    np.testing.assert_allclose(affine.coefficients_.sum(axis=0), 1, atol=0.01)


def test_the_authors_settings_for_motion_recover_affine_subspaces() -> None:
    X, y = parallel_lines()
    assert adjusted_rand_score(y, SSC(3, **MOTION).fit_predict(X)) == 1


def test_the_authors_settings_for_faces_see_through_outlying_entries() -> None:
    X, y = linear_subspaces(ambient=60)
    rng = np.random.default_rng(1)
    outlying = rng.random(X.shape) < 0.03
    X[outlying] += rng.choice([-8.0, 8.0], outlying.sum())
    assert adjusted_rand_score(y, SSC(3, **FACES).fit_predict(X)) > 0.95
    assert adjusted_rand_score(y, SSC(3).fit_predict(X)) < 0.5


def test_without_constraint_and_outliers_the_columns_solve_the_lasso() -> None:
    X = np.random.default_rng(0).standard_normal((12, 6))
    lambda_z = 5.0
    C, _, _ = baselines._express_by_admm(X, lambda_z, None, 5.0, False, 1e-10, 20_000)
    for i in range(12):
        others = np.delete(np.arange(12), i)
        lasso = Lasso(1 / (lambda_z * 6), fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X[others].T, X[i])
        np.testing.assert_allclose(C[others, i], lasso.coef_, atol=1e-6)
        assert C[i, i] == 0


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("lambda_e", [None, 0.4])
def test_the_optimality_conditions_hold(affine: bool, lambda_e: float | None) -> None:
    """Program (13) is convex; optimal is X lambda_z (R - E) = sign(c) + nu on the support and within 1 of nu off it."""
    lambda_z = 3.0
    X = np.random.default_rng(0).standard_normal((10, 5))
    C, _, converged = baselines._express_by_admm(X, lambda_z, lambda_e, 3.0, affine, 1e-10, 50_000)
    assert converged
    R = X.T - X.T @ C
    E = np.zeros_like(R) if lambda_e is None else baselines.shrink(R, lambda_e / lambda_z)
    assert (lambda_e is not None) == bool(E.any())
    gradient = X @ (lambda_z * (R - E))
    for i in range(10):
        others = np.delete(np.arange(10), i)
        c, g = C[others, i], gradient[others, i]
        nu = np.mean((g - np.sign(c))[c != 0]) if affine else 0.0
        np.testing.assert_allclose(g[c != 0] - nu, np.sign(c[c != 0]), atol=1e-6)
        assert np.abs(g - nu).max() <= 1 + 1e-6
        assert not affine or c.sum() == pytest.approx(1, abs=1e-8)
        assert C[i, i] == 0


@pytest.mark.parametrize("q", [3, 30])
def test_the_ridge_system_is_solved_in_factors_and_as_a_whole(q: int) -> None:
    rng = np.random.default_rng(0)
    Z, R = rng.standard_normal((20, q)), rng.standard_normal((20, 4))
    np.testing.assert_allclose(
        baselines._ridge_solver(Z, 0.7)(R), np.linalg.solve(Z @ Z.T + 0.7 * np.eye(20), R), atol=1e-10
    )


def test_copies_express_each_other_and_a_zero_sample_nothing() -> None:
    X = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 1.0, 0], [0, 3.0, 0], [0, 0, 0]])
    C, _, _ = baselines._express_by_omp(X, 3)
    expected = np.zeros((5, 5))
    expected[[0, 1, 2, 3], [1, 0, 3, 2]] = 1
    np.testing.assert_allclose(C, expected, atol=1e-12)


@pytest.mark.parametrize("solver", ["admm", "omp"])
def test_orthogonal_samples_are_left_alone(solver: str) -> None:
    fitted = SSC(5, solver=solver).fit(np.eye(5))
    np.testing.assert_array_equal(np.sort(fitted.labels_), np.arange(5))


def test_mu_is_the_smallest_of_the_largest_products() -> None:
    X = np.array([[1.0, 0, 0], [2.0, 1.0, 0], [0, 5.0, 0], [0, 0, 7.0]])
    assert baselines._coherence(X) == 2  # 2 for the first, 5 for the next two; the last is orthogonal to all


COEFFICIENTS = np.array([[0, 2.0, 0.5], [-6.0, 0, 0], [4.0, -1.0, 0]])


@pytest.mark.parametrize(
    ("keep", "scaled"),
    [
        (1.0, [[0, 1, 1], [1, 0, 0], [4 / 6, 0.5, 0]]),
        (0.6, [[0, 1, 1], [1, 0, 0], [0, 0, 0]]),  # 6 of 10 are enough of the first column, 2 of 3 of the second
        (0.61, [[0, 1, 1], [1, 0, 0], [4 / 6, 0, 0]]),
    ],
)
def test_the_affinity_keeps_the_largest_coefficients_of_each_column(keep: float, scaled: Any) -> None:
    W = baselines._affinity_of(COEFFICIENTS, keep)
    np.testing.assert_allclose(W, np.array(scaled) + np.array(scaled).T, rtol=1e-14)


def test_the_iteration_stops_by_its_rule_or_at_its_limit() -> None:
    X, _ = linear_subspaces()
    stopped, limited = SSC(3, tol=0.05).fit(X), SSC(3, max_iter=7).fit(X)
    assert stopped.converged_
    assert stopped.n_iter_ < 200
    assert (limited.n_iter_, limited.converged_) == (7, False)


# HGC


def planted(seed: int, theta: Array, size: int = 20) -> tuple[Array, Labels]:
    """A hypergraph drawn from the model: ``size`` vertices of each group, theta (groups, hyperedges)."""
    y = np.repeat(np.arange(len(theta)), size)
    return (np.random.default_rng(seed).random((len(y), theta.shape[1])) < theta[y]).astype(np.float64), y


def communities(noise: float = 0.05) -> Array:
    """Three groups with 15 hyperedges each: .75 of a group are in its own ones, ``noise`` of it in the others."""
    return np.kron(np.eye(3), np.full((1, 15), 0.75 - noise)) + noise


def groups(A: Array, K: int = 8, **arguments: Any) -> HGC:
    """HGC of an incidence that is given."""
    found = HGC(K, **arguments)
    found._explain(sp.csr_array(A), np.random.RandomState(0))
    return found


FLAT: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "gamma": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_recovered_and_superfluous_ones_are_empty(seed: int) -> None:
    A, y = planted(seed, communities())
    fitted = groups(A, **FLAT)
    assert fitted.n_groups_ == 3
    assert adjusted_rand_score(y, fitted.labels_) == 1
    assert (fitted.membership_.sum(axis=0) < 1e-3).sum() == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_authors_priors_recover_groups_that_share_no_hyperedge(seed: int) -> None:
    A, y = planted(seed, communities(noise=0))
    fitted = groups(A, n_init=50)
    assert fitted.n_groups_ == 3
    assert adjusted_rand_score(y, fitted.labels_) == 1


def test_under_the_authors_priors_an_odd_vertex_may_stand_alone() -> None:
    """Their limit favours theta of exactly 0 or 1, which a group of one vertex always has."""
    A, y = planted(2, communities())
    fitted = groups(A)
    start = np.eye(8)[y] + 1e-9
    q, elbo = baselines._climb(sp.csr_array(A), start, baselines._Prior(1e-6, 1e-6, 1e-6), 1e-6, 100)
    assert adjusted_rand_score(y, q.argmax(axis=1)) == 1
    assert fitted.elbo_ > elbo[-1]
    assert 1 in np.bincount(fitted.labels_)
    assert adjusted_rand_score(y, fitted.labels_) > 0.9


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_that_share_hyperedges_without_being_dense_are_recovered_too(seed: int) -> None:
    """Groups are told apart by their profile, not by density inside: any theta will do."""
    A, y = planted(seed, np.random.default_rng(1).choice([0.1, 0.9], (4, 40)))
    assert adjusted_rand_score(y, groups(A, **FLAT).labels_) == 1


def test_clusters_of_samples_are_found_through_their_neighbourhoods() -> None:
    X, y = make_blobs(90, centers=[[0, 0], [8, 0], [0, 8]], random_state=0)
    assert adjusted_rand_score(y, HGC(3, n_neighbors=20).fit_predict(X)) == 1


def small(seed: int, m: int = 5, n: int = 4) -> sp.csr_array:
    return sp.csr_array((np.random.default_rng(seed).random((m, n)) < 0.5).astype(np.float64))


priors = st.builds(baselines._Prior, *[st.floats(1e-6, 3)] * 3)
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, prior=priors, K=st.integers(1, 4))
def test_the_bound_never_falls(seed: int, prior: baselines._Prior, K: int) -> None:
    start = np.random.default_rng(seed).uniform(size=(12, K))
    path = baselines._climb(small(seed, 12, 9), start, prior, 1e-12, 200)[1]
    assert (np.diff(path) >= -1e-9 * np.abs(path[1:])).all()


def log_evidence(A: Array, K: int, prior: baselines._Prior) -> float:
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
@given(seed=seeds, prior=st.builds(baselines._Prior, *[st.floats(0.1, 3)] * 3), K=st.integers(1, 3))
def test_the_bound_is_below_the_evidence_and_equal_to_it_for_one_group(
    seed: int, prior: baselines._Prior, K: int
) -> None:
    A = small(seed)
    bound = baselines._climb(A, np.random.default_rng(seed).uniform(size=(5, K)), prior, 1e-12, 500)[1][-1]
    evidence = log_evidence(A.toarray(), K, prior)
    assert bound <= evidence + 1e-9
    assert K > 1 or bound == pytest.approx(evidence)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, prior=priors)
def test_one_update_is_that_of_the_formulas_in_loops(seed: int, prior: baselines._Prior) -> None:
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
    np.testing.assert_allclose(
        baselines._memberships(sparse, baselines._posterior_of(sparse, q, prior)), expected, atol=1e-7
    )


def test_memberships_and_co_memberships_are_probabilities() -> None:
    fitted = groups(planted(0, communities())[0], 4)
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


def test_hyperedges_are_neighbourhoods_with_or_without_their_sample() -> None:
    X = np.array([[0.0], [1.0], [3.0], [7.0]])
    with_own = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]  # vertices in rows, hyperedges in columns
    without = [[0, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(baselines._knn_incidence(X, 2).toarray(), with_own)
    np.testing.assert_array_equal(baselines._knn_incidence(X, 2, others=True).toarray(), without)


# refusals

ROWS = np.arange(12.0).reshape(6, 2)
SPACES = linear_subspaces()[0]


@pytest.mark.parametrize(
    ("baseline", "parameters", "X", "message"),
    [
        (SC, {"affinity": "cosine"}, RIGHT_TRIANGLE, "affinity: found 'cosine', allowed is one of gaussian, heat-knn"),
        (
            SC,
            {"n_clusters": 4},
            RIGHT_TRIANGLE,
            "n_clusters: found 4, allowed is a whole number of at least 1 and at most 3",
        ),
        (SC, {"n_clusters": 2.0}, RIGHT_TRIANGLE, "n_clusters: found 2.0"),
        (
            SC,
            {"affinity": "heat-knn"},
            RIGHT_TRIANGLE,
            "n_neighbors: found 5, allowed is a whole number of at least 1 and at most 2",
        ),
        (SC, {"bandwidth": "mode"}, RIGHT_TRIANGLE, "bandwidth: found 'mode'"),
        (SC, {"bandwidth": 0.0}, RIGHT_TRIANGLE, "bandwidth: found 0.0, allowed is a number above 0"),
        (CAVE, {"averaging": "median"}, ROWS, "averaging: found 'median', allowed is one of separate, joint"),
        (CAVE, {"n_neighbors": 1}, ROWS, "n_neighbors: found 1, allowed is a whole number of at least 2 and at most 6"),
        (CAVE, {"n_neighbors": 7}, ROWS, "n_neighbors: found 7, allowed is a whole number of at least 2 and at most 6"),
        (CAVE, {"n_clusters": 0}, ROWS, "n_clusters: found 0, allowed is a whole number of at least 1 and at most 6"),
        (CAVE, {"bandwidth": -1}, ROWS, "bandwidth: found -1"),
        (SSC, {"solver": "lars"}, SPACES, "solver: found 'lars'"),
        (
            SSC,
            {"solver": "omp", "affine": True},
            SPACES,
            "solver='omp': found affine=True, outliers=False, allowed is neither",
        ),
        (SSC, {"solver": "omp", "n_nonzero": 0}, SPACES, "n_nonzero: found 0"),
        (SSC, {"alpha": 0}, SPACES, "alpha: found 0, allowed is a number above 0"),
        (SSC, {"alpha_e": np.inf, "outliers": True}, SPACES, "alpha_e: found inf"),
        (SSC, {"keep": 1.5}, SPACES, "keep: found 1.5, allowed is a number from 1e-30 to 1"),
        (SSC, {"tol": 0.0}, SPACES, "tol: found 0.0"),
        (SSC, {"max_iter": 0}, SPACES, "max_iter: found 0"),
        (
            SSC,
            {"n_clusters": 61},
            SPACES,
            "n_clusters: found 61, allowed is a whole number of at least 1 and at most 60",
        ),
        (HGC, {"incidence": "graph"}, ROWS % 5, "incidence: found 'graph'"),
        (HGC, {"n_clusters": 0}, ROWS % 5, "n_clusters: found 0, allowed is a whole number of at least 1"),
        (
            HGC,
            {"n_neighbors": 7},
            ROWS % 5,
            "n_neighbors: found 7, allowed is a whole number of at least 1 and at most 6",
        ),
        (
            HGC,
            {"n_neighbors": 6, "incidence": "knn-others"},
            ROWS % 5,
            "n_neighbors: found 6, allowed is a whole number of at least 1 and at most 5",
        ),
        (HGC, {"alpha": 0}, ROWS % 5, "alpha: found 0"),
        (HGC, {"beta": -1.0}, ROWS % 5, "beta: found -1.0"),
        (HGC, {"gamma": "flat"}, ROWS % 5, "gamma: found 'flat'"),
        (HGC, {"n_init": 0}, ROWS % 5, "n_init: found 0"),
        (HGC, {"tol": 0}, ROWS % 5, "tol: found 0"),
        (HGC, {"max_iter": 1.5}, ROWS % 5, "max_iter: found 1.5"),
    ],
)
def test_bad_input_is_named(baseline: Any, parameters: dict[str, Any], X: Array, message: str) -> None:
    few = {} if baseline is not HGC else {"n_neighbors": 2}
    with pytest.raises(BadInput, match=re.escape(message)):
        baseline(**{"n_clusters": 2, **few, **parameters}).fit(X)

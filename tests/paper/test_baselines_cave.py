"""CAVE: clique weights by hand, both averages against what they minimise, clusters found."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines import CAVE, cave, spectral

Array = npt.NDArray[np.float64]
Hyperedges = npt.NDArray[np.int64]


@pytest.mark.slow
@parametrize_with_checks([CAVE(), CAVE(averaging="joint")])  # type: ignore[untyped-decorator]
def test_cave_is_a_scikit_learn_estimator(estimator: CAVE, check: Any) -> None:
    check(estimator)


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
    W = cave.average_separately(FIVE_VERTICES, WEIGHTS, 5)
    np.testing.assert_allclose(W.toarray(), symmetric(5, by_hand), rtol=1e-14)


def test_joint_clique_weights_of_five_vertices_reproduce_the_hyperedges() -> None:
    """By hand: the smallest w sums one value l per hyperedge: 3 l0 + l1 = 3 h0, l0 + 3 l1 + l2 = 3 h1, and so on."""
    h = WEIGHTS / 2
    W = cave.average_jointly(FIVE_VERTICES, h, 5).toarray()
    l0, l1, l2 = np.linalg.solve([[3, 1, 0], [1, 3, 1], [0, 1, 3]], 3 * h)
    by_hand = {(0, 1): l0, (0, 2): l0, (1, 2): l0 + l1, (1, 3): l1, (2, 3): l1 + l2, (2, 4): l2, (3, 4): l2}
    np.testing.assert_allclose(W, symmetric(5, by_hand), atol=1e-9)
    for members, weight in zip(FIVE_VERTICES, h, strict=True):
        assert np.mean([W[i, j] for i, j in itertools.combinations(members, 2)]) == pytest.approx(weight)


def random_hyperedges(seed: int, m: int, k: int, n: int) -> tuple[Hyperedges, Array]:
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
    np.testing.assert_allclose(cave.average_separately(hyperedges, h, m).toarray(), W, rtol=1e-12)


def test_joint_averages_give_back_a_graph_when_all_its_triples_are_known() -> None:
    """Ten triples, ten pairs: the averages of a graph's triangles determine it."""
    hyperedges = np.array(list(itertools.combinations(range(5), 3)))
    rng = np.random.default_rng(0)
    graph = symmetric(5, {pair: rng.random() for pair in itertools.combinations(range(5), 2)})
    h = np.array([np.mean([graph[i, j] for i, j in itertools.combinations(e, 2)]) for e in hyperedges])
    np.testing.assert_allclose(cave.average_jointly(hyperedges, h, 5).toarray(), graph, atol=1e-6)


def test_joint_averages_stay_between_zero_and_one() -> None:
    hyperedges = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]])
    W = cave.average_jointly(hyperedges, np.array([1.0, 1.0, 0.0, 0.0]), 4).toarray()
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
    hyperedges, _ = random_hyperedges(seed, 9, 4, 6)
    h = [
        np.mean([np.exp(-np.sum((X[i] - X[j]) ** 2) / (2 * 1.3**2)) for i, j in itertools.combinations(members, 2)])
        for members in hyperedges
    ]
    np.testing.assert_allclose(cave.mean_affinities(X, hyperedges, 1.3), h, rtol=1e-7)


def test_weights_do_not_depend_on_the_blocks_in_which_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((30, 3))
    N = spectral.neighborhoods(X, 4)
    whole = cave.mean_affinities(X, N, 1.0)
    monkeypatch.setattr(cave, "BLOCK", 100)
    np.testing.assert_array_equal(cave.mean_affinities(X, N, 1.0), whole)


@pytest.mark.parametrize("averaging", cave.AVERAGINGS)
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


def test_a_seed_decides_the_labels() -> None:
    X = np.random.default_rng(3).standard_normal((80, 4))
    first, again = (CAVE(5, random_state=7).fit_predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"averaging": "median"}, "averaging: found 'median', allowed is 'separate' or 'joint'"),
        ({"n_neighbors": 1}, "n_neighbors: found 1, allowed is an integer from 2 to 6"),
        ({"n_neighbors": 7}, "n_neighbors: found 7, allowed is an integer from 2 to 6"),
        ({"n_clusters": 0}, "n_clusters: found 0, allowed is an integer from 1 to 6"),
        ({"bandwidth": -1}, "bandwidth: found -1"),
    ],
)
def test_bad_input_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        CAVE(**{"n_clusters": 2, **parameters}).fit(np.arange(12.0).reshape(6, 2))

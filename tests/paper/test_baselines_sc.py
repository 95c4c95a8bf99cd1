"""SC: what its paper promises, its affinities against loops, and the parts that all baselines share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.paper.baselines import SC, spectral

Array = npt.NDArray[np.float64]


def expected_failures(estimator: SC) -> dict[str, str]:
    if estimator.affinity == "precomputed":
        return {"check_clustering": "it hands samples (50, 2) to whoever asks for an affinity (m, m)"}
    return {}


@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [SC(), SC(affinity="heat-knn"), SC(affinity="precomputed")], expected_failed_checks=expected_failures
)
def test_sc_is_a_scikit_learn_estimator(estimator: SC, check: Any) -> None:
    check(estimator)


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


def block_affinity(*sizes: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Affinity 1 within blocks of the given sizes and 0 between."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    return (y[:, None] == y).astype(np.float64), y


def test_an_ideal_block_affinity_embeds_each_block_in_one_of_orthogonal_points() -> None:
    W, y = block_affinity(3, 5, 2)
    V: Any = spectral.embedding(W, 3, np.random.RandomState(0))
    np.testing.assert_allclose(V @ V.T, W, atol=1e-12)
    assert adjusted_rand_score(y, SC(3, affinity="precomputed").fit_predict(W)) == 1


def test_a_sparse_affinity_gives_the_labels_of_the_dense_one() -> None:
    W = SC(affinity="heat-knn").fit(rings()[0]).affinity_matrix_
    assert isinstance(W, sp.csr_array)
    given_sparse, given_dense = SC(4, affinity="precomputed"), SC(4, affinity="precomputed")
    np.testing.assert_array_equal(given_sparse.fit_predict(W), given_dense.fit_predict(W.toarray()))


def test_a_sample_without_any_affinity_is_a_cluster_of_its_own() -> None:
    W, y = block_affinity(4, 1, 5)
    W[4] = 0
    assert adjusted_rand_score(y, SC(3, affinity="precomputed").fit_predict(W)) == 1


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
    np.testing.assert_array_equal(spectral.nearest_others(X, k)[0], naive_neighbors(X, k))


def test_neighbours_do_not_depend_on_the_block_in_which_they_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    X = tied_samples(0, 50)
    whole = spectral.nearest_others(X, 7)
    monkeypatch.setattr(spectral, "BLOCK", 120)
    for a, b in zip(whole, spectral.nearest_others(X, 7), strict=True):
        np.testing.assert_array_equal(a, b)


def test_distances_by_blas_are_those_by_differences_even_far_from_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    X = 1e6 + np.random.default_rng(0).standard_normal((40, 5))
    exact = spectral.distances(X, X)
    monkeypatch.setattr(spectral, "EXACT_WORK", 0)
    by_blas = spectral.distances(X, X)
    assert (by_blas != exact).any()
    np.testing.assert_allclose(by_blas, exact, atol=1e-6)


@settings(deadline=None, max_examples=20)
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


@pytest.mark.parametrize("c", [2, 3, 5])
def test_lanczos_spans_what_lapack_spans(c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a graph of two components: the rows' inner products do not depend on the basis."""
    X = np.vstack([rings()[0][:60], 100 + make_blobs(60, centers=3, random_state=0)[0]])
    W = SC(2, affinity="heat-knn").fit(X).affinity_matrix_
    by_lapack: Any = spectral.embedding(W, c, np.random.RandomState(0))
    monkeypatch.setattr(spectral, "DENSE_EIGH", 10)
    by_lanczos: Any = spectral.embedding(W, c, np.random.RandomState(0))
    assert by_lanczos.shape == (120, c)
    np.testing.assert_allclose(by_lanczos @ by_lanczos.T, by_lapack @ by_lapack.T, atol=1e-5)


@pytest.mark.parametrize("limit", [10_000, 2])
def test_more_components_than_clusters_are_announced_and_never_split(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectral, "DENSE_EIGH", limit)
    W, y = block_affinity(6, 5, 2, 1)
    with pytest.warns(IPS2Warning, match="4 components, more than the 3 clusters"):
        labels = SC(3, affinity="precomputed").fit_predict(W)
    assert adjusted_rand_score(np.minimum(y, 2), labels) == 1  # the two smallest share a cluster


def test_above_a_size_the_bandwidth_comes_from_a_seeded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((60, 2))
    every = spectral.bandwidth_of(X, "mean", np.random.RandomState(0))
    monkeypatch.setattr(spectral, "ALL_PAIRS", 50)
    monkeypatch.setattr(spectral, "BANDWIDTH_ROWS", 30)
    first, again, other = (spectral.bandwidth_of(X, "mean", np.random.RandomState(s)) for s in (1, 1, 2))
    assert first == again != other
    assert first == pytest.approx(every, rel=0.3)


def test_equal_samples_have_affinity_one() -> None:
    W = SC(1, zero_diagonal=False).fit(np.ones((4, 2))).affinity_matrix_
    np.testing.assert_array_equal(W, 1)


@pytest.mark.parametrize("affinity", ["gaussian", "heat-knn"])
def test_a_seed_decides_the_labels(affinity: str) -> None:
    X = np.random.default_rng(3).standard_normal((80, 4))
    first, again = (SC(5, affinity=affinity, random_state=7).fit_predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


SQUARE = np.ones((3, 3))


@pytest.mark.parametrize(
    ("parameters", "X", "message"),
    [
        ({"affinity": "cosine"}, RIGHT_TRIANGLE, "affinity: found 'cosine', allowed is 'gaussian' or"),
        ({"n_clusters": 4}, RIGHT_TRIANGLE, "n_clusters: found 4, allowed is an integer from 1 to 3"),
        ({"n_clusters": 2.0}, RIGHT_TRIANGLE, "n_clusters: found 2.0"),
        ({"affinity": "heat-knn"}, RIGHT_TRIANGLE, "n_neighbors: found 5, allowed is an integer from 1 to 2"),
        ({"bandwidth": "mode"}, RIGHT_TRIANGLE, "bandwidth: found 'mode'"),
        ({"bandwidth": 0.0}, RIGHT_TRIANGLE, "bandwidth: found 0.0, allowed is a positive number"),
        ({"affinity": "precomputed"}, RIGHT_TRIANGLE, "found shape (3, 2)"),
        ({"affinity": "precomputed"}, -SQUARE, "Negative values in data"),
        ({"affinity": "precomputed"}, np.triu(SQUARE), "found W and W' 1 apart"),
    ],
)
def test_bad_input_is_named(parameters: dict[str, Any], X: Array, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        SC(**{"n_clusters": 2, **parameters}).fit(X)

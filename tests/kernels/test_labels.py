"""Labels: blocks are told apart, the same seed gives the same, numbers follow samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
from harness import block_affinity
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from ips2_dask.kernels import labels, rounding

Array = npt.NDArray[Any]


def embed(U: Any, c: int, tol: float, seed: int) -> tuple[Array, Any]:
    found = labels.spectrum(U, c, tol, seed)
    return labels.normalize_rows(found.vectors), found.solution


def labelled(U: Any, c: int, seed: int = 0) -> Array:
    points, _ = embed(U, c, 1e-6, seed)
    return labels.renumber(labels.kmeans_best(points, c, seed, range(rounding.RESTARTS)).labels)


@pytest.mark.parametrize("sizes", [(150, 150), (30, 5, 14), (9, 9, 9, 9), (200, 100, 60)])
@pytest.mark.parametrize("dense", [True, False])
def test_blocks_are_told_apart_exactly(sizes: tuple[int, ...], dense: bool) -> None:
    U, truth = block_affinity(*sizes)
    found = labelled(U.toarray() if dense else U, len(sizes))
    np.testing.assert_array_equal(found, labels.renumber(truth.astype(np.int32)))


@pytest.mark.parametrize("dense", [True, False])
def test_the_embedding_of_as_many_blocks_as_clusters_is_one_corner_each(dense: bool) -> None:
    U, truth = block_affinity(120, 80, 100)
    points, solution = embed(U.toarray() if dense else U, 3, 1e-6, 0)
    np.testing.assert_allclose(points @ points.T, truth[:, None] == truth, atol=1e-10)
    assert len(solution.values) == 0


@pytest.mark.parametrize("m", [60, 400])
def test_the_embedding_spans_the_leading_eigenvectors_of_the_normalised_affinity(m: int) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(m, 2)) + 4 * rng.integers(0, 3, (m, 1))
    U = np.exp(-np.square(X[:, None] - X).sum(axis=2) / 8)  # a spectrum that falls fast: 1, .95, .86, .26, ...
    points, solution = embed(U, 3, 1e-6, 0)
    vectors = np.linalg.eigh(reference.laplacian(U))[1][:, :-4:-1]
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(points @ points.T, expected @ expected.T, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    assert solution.residuals.max() <= 1e-6


@pytest.mark.parametrize("m", [60, 400])
def test_columns_are_weighed_by_commute_times(m: int) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(m, 2)) + 3 * rng.integers(0, 5, (m, 1))
    U = np.exp(-np.square(X[:, None] - X).sum(axis=2) / 2)
    found = labels.spectrum(sp.csr_array(np.where(U > 1e-3, U, 0)), 4, 1e-6, 0, columns=9)
    points = labels.embedding(found, 4)
    assert points.shape == (m, 9)
    expected = reference.embedding(np.where(U > 1e-3, U, 0), 4, 9)
    np.testing.assert_allclose(points @ points.T, expected @ expected.T, atol=1e-3)
    plain = labels.normalize_rows(found.vectors)
    assert np.abs(points @ points.T - plain @ plain.T).max() > 0.05


@pytest.mark.parametrize("columns", [2, 5, 9])
def test_fewer_columns_of_an_embedding_are_that_of_fewer_columns(columns: int) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 2)) + 3 * rng.integers(0, 5, (300, 1))
    found = labels.spectrum(sp.csr_array(np.exp(-np.square(X[:, None] - X).sum(axis=2) / 2)), 4, 1e-6, 0, columns=9)
    weights = rounding.commute_weights(found.values, found.components, 4)
    expected = labels.normalize_rows((found.vectors * weights)[:, :columns])
    np.testing.assert_allclose(labels.leading_columns(labels.embedding(found, 4), columns), expected, atol=1e-6)


@pytest.mark.parametrize("sizes", [(9, 9, 9, 9), (150, 80, 70, 40)])
def test_more_blocks_than_clusters_all_count(sizes: tuple[int, ...]) -> None:
    U, truth = block_affinity(*sizes)
    found = labels.spectrum(U, 2, 1e-6, 0, columns=len(sizes))
    points = labels.embedding(found, 2)
    np.testing.assert_allclose(points @ points.T, truth[:, None] == truth, atol=1e-6)


@pytest.mark.parametrize("columns", [2, 3])
def test_fewer_columns_than_clusters_are_the_leading_ones(columns: int) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 2)) + 3 * rng.integers(0, 5, (300, 1))
    U = np.exp(-np.square(X[:, None] - X).sum(axis=2) / 2)
    found = labels.spectrum(U, 4, 1e-6, 0, columns=columns)
    points = labels.embedding(found, 4)
    expected = reference.embedding(U, columns, columns)
    np.testing.assert_allclose(points @ points.T, expected @ expected.T, atol=1e-4)


def test_a_dense_and_a_sparse_affinity_give_the_same_embedding() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 2))
    U = np.exp(-np.square(reference.distances(X)))
    U[U < 0.3] = 0
    dense, sparse = (embed(matrix, 5, 1e-6, 0)[0] for matrix in (U, sp.csr_array(U)))
    np.testing.assert_allclose(dense @ dense.T, sparse @ sparse.T, atol=1e-5)


def test_rows_of_zeros_stay() -> None:
    found = labels.normalize_rows(np.array([[3.0, 4.0], [0, 0], [0, -2]]))
    assert found.tolist() == [[0.6, 0.8], [0, 0], [0, -1]]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_clusters_are_numbered_by_their_first_sample(given_labels: list[int]) -> None:
    array = np.array(given_labels, np.int32)
    found = labels.renumber(array)
    _, first = np.unique(found, return_index=True)
    assert (np.diff(first) > 0).all()
    assert set(found.tolist()) == set(range(len(set(given_labels))))
    pairs = {(a, b) for a, b in zip(given_labels, found.tolist(), strict=True)}
    assert len(pairs) == len(set(given_labels))
    np.testing.assert_array_equal(labels.renumber(found), found)
    assert found.dtype == np.int32


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.permutations(range(5)))
def test_equal_partitions_get_equal_numbers_whatever_they_were_called(
    given_labels: list[int], names: list[int]
) -> None:
    array = np.array(given_labels, np.int32)
    np.testing.assert_array_equal(labels.renumber(np.array(names, np.int32)[array]), labels.renumber(array))


def test_a_restart_is_decided_by_seed_and_number() -> None:
    points = np.random.default_rng(5).normal(size=(300, 3))
    first, second = (labels.kmeans_best(points, 6, 0, [3]) for _ in range(2))
    assert first.inertia == second.inertia
    np.testing.assert_array_equal(first.labels, second.labels)
    others = [labels.kmeans_best(points, 6, seed, [number]).labels for seed, number in ((0, 4), (1, 3))]
    assert all((labels.renumber(other) != labels.renumber(first.labels)).any() for other in others)


def test_several_starts_in_one_call_are_decided_by_seed_and_number_and_no_worse_than_one() -> None:
    points = np.random.default_rng(5).normal(size=(300, 3))
    one = labels.kmeans_best(points, 6, 0, [0])
    many, again = (labels.kmeans_best(points, 6, 0, [0], 10) for _ in range(2))
    assert many.inertia < one.inertia
    np.testing.assert_array_equal(many.labels, again.labels)
    alone = labels.kmeans_best(points, 6, 0, [0])
    np.testing.assert_array_equal(alone.labels, one.labels)


@pytest.mark.parametrize(("m", "d", "c"), [(1797, 18, 10), (120, 2, 3), (300, 40, 40), (9, 1, 8)])
def test_starts_on_few_points_are_scikit_learns_to_the_bit(m: int, d: int, c: int) -> None:
    rng = np.random.default_rng(m)
    points = (rng.normal(size=(m, d)) + 4 * rng.normal(size=(c, d))[rng.integers(c, size=m)]).astype(np.float32)
    alone = [KMeans(c, n_init=2, random_state=labels._state(7, number)).fit(points) for number in (3, 5)]
    fitted = min(alone, key=lambda one: one.inertia_)
    found = labels.kmeans_best(points, c, 7, [3, 5], 2)
    assert found.inertia == fitted.inertia_
    np.testing.assert_array_equal(found.labels, fitted.labels_)


def test_k_means_takes_dense_and_sparse_points() -> None:
    rng = np.random.default_rng(6)
    truth = np.repeat([0, 1, 2], 30)
    points = rng.normal(size=(90, 3)) * 0.1 + 5 * np.eye(3)[truth]
    for given_points in (points, sp.csr_array(points)):
        found = labels.kmeans_best(given_points, 3, 0, [0])
        assert adjusted_rand_score(truth, found.labels) == 1
        assert found.labels.dtype == np.int32


def test_the_best_is_the_first_of_the_smallest_inertia() -> None:
    tried = [labels.Partitioning(value, np.array([at], np.int32)) for at, value in enumerate((3.0, 1.0, 2.0, 1.0))]
    assert labels.best(tried) is tried[1]

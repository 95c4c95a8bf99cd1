"""The oracle agrees with cases worked out by hand, and with the dense paper of `ips2_dask.explicit`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ips2_dask import explicit

LINE = np.array([[0.0], [1.0], [3.0]])  # distances 1, 3, 2


def blobs(seed: int, m: int = 18, f: int = 3) -> reference.Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(m, f)) + 4 * rng.integers(0, 3, size=(m, 1)))


def islands(n: int, size: int = 5) -> reference.Floats:
    """Far groups, so that neighbourhoods of ``size`` samples never leave one."""
    rng = np.random.default_rng(n)
    return np.concatenate([rng.normal(size=(size, 2)) + 1000 * g for g in range(n)])


def test_distances_of_a_right_triangle() -> None:
    d = reference.distances([[0, 0], [3, 0], [0, 4]])
    assert d.tolist() == [[0, 3, 4], [3, 0, 5], [4, 5, 0]]


def test_neighborhoods_break_ties_by_id_and_start_with_the_sample_itself() -> None:
    d = reference.distances([[0.0], [1.0], [-1.0], [0.0]])  # 3 is a copy of 0; 1 and 2 are as near as one another
    assert reference.neighborhoods(d, 3).tolist() == [[0, 3, 1], [1, 0, 3], [2, 0, 3], [3, 0, 1]]


@pytest.mark.parametrize(("bandwidth", "t"), [("mean", 2.0), ("median", 2.0), (0.5, 0.5)])
def test_gaussian_similarity_of_three_points_on_a_line(bandwidth: str | float, t: float) -> None:
    S = reference.pairwise_similarity(reference.distances(LINE), "gaussian", bandwidth)
    assert S[0, 1] == pytest.approx(math.exp(-1 / (2 * t * t)))
    assert S[0, 2] == pytest.approx(math.exp(-9 / (2 * t * t)))
    assert np.diag(S).tolist() == [1, 1, 1]


def test_heat_knn_keeps_five_others_a_sample_and_either_direction() -> None:
    X = np.arange(9.0)[:, None] ** 2  # gaps grow: the last one's five nearest do not have it among theirs
    S = reference.pairwise_similarity(reference.distances(X), "heat-knn")
    assert np.diag(S).tolist() == [0] * 9
    assert (S == S.T).all()
    assert np.flatnonzero(S[8]).tolist() == [3, 4, 5, 6, 7]
    assert np.flatnonzero(S[0]).tolist() == [1, 2, 3, 4, 5]
    assert np.flatnonzero(S[3]).tolist() == [0, 1, 2, 4, 5, 6, 7, 8]


def test_similarity_of_equal_samples_is_one() -> None:
    d = reference.distances(np.ones((4, 2)))
    assert (reference.pairwise_similarity(d, "gaussian") == 1).all()
    assert (reference.pairwise_similarity(d) == 1 - np.eye(4)).all()


def test_tensor_entries_follow_the_equation() -> None:
    d = reference.distances(LINE)
    T = reference.tensor(d, reference.neighborhoods(d, 3), sigma=2.0, epsilon=5e-4)
    assert T[0, 1, 2, 1] == pytest.approx(math.exp(-2 * (1 + 2) / (3 + 0 + 5e-4)))
    assert T[0, 1, 1, 0] == pytest.approx(math.exp(-2 * (1 + 1) / (1 + 1 + 5e-4)))
    assert T[0, 0, 2, 2] == 1
    assert T[0, 1, 0, 1] == 0  # exp(-8,000) is zero in float64, and still an entry


def test_a_quadruple_without_a_common_neighborhood_is_zero() -> None:
    d = reference.distances([[0.0], [1.0], [10.0], [11.0]])
    T = reference.tensor(d, reference.neighborhoods(d, 2))
    assert T[0, 1, 1, 0] > 0
    assert (T[:2, :, 2:] == 0).all()
    assert (T[:2, 2:] == 0).all()


def test_an_entry_of_several_neighborhoods_counts_once() -> None:
    d = reference.distances(LINE)
    whole = reference.neighborhoods(d, 3)
    assert (reference.tensor(d, whole) == reference.tensor(d, whole[:1])).all()


def test_tensor_has_both_symmetries() -> None:
    d = reference.distances(blobs(0))
    T = reference.tensor(d, reference.neighborhoods(d, 4))
    np.testing.assert_allclose(T, T.transpose(2, 3, 0, 1), rtol=1e-13)
    np.testing.assert_allclose(T, T.transpose(1, 0, 3, 2), rtol=1e-13)


def test_fold_inverts_the_order_of_unfold() -> None:
    T = np.random.default_rng(0).random((4, 4, 4, 4))
    T_hat = reference.unfold(T)
    m, (i, j, k, l) = 4, (2, 1, 4, 3)  # noqa: E741 - counted from 1, as Definition 3.1 does
    assert T_hat[m * (j - 1) + i - 1, m * (l - 1) + k - 1] == T[i - 1, j - 1, k - 1, l - 1]
    assert (reference.fold(T_hat[:, m * (l - 1) + k - 1]) == T[:, :, k - 1, l - 1]).all()


def test_laplacian_of_a_path_of_three() -> None:
    L = reference.laplacian(np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    half = math.sqrt(0.5)
    np.testing.assert_allclose(L, [[0, half, 0], [half, 0, half], [0, half, 0]])


def test_laplacian_leaves_a_zero_row_zero() -> None:
    assert reference.laplacian(np.diag([4.0, 0.0])).tolist() == [[1, 0], [0, 0]]


def test_active_pairs_share_a_neighborhood_and_are_sorted() -> None:
    pairs = reference.active_pairs(np.array([[0, 2], [1, 2], [2, 0]]))
    assert pairs.tolist() == [[0, 0], [0, 2], [1, 1], [1, 2], [2, 2]]


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_restricted_is_the_unfolding_between_symmetric_unit_vectors(k: int) -> None:
    d = reference.distances(blobs(k))
    m, N = len(d), reference.neighborhoods(d, k)
    T, pairs = reference.tensor(d, N), reference.active_pairs(N)
    basis = np.zeros((m * m, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        basis[[m * j + i, m * i + j], column] = 1 if i == j else math.sqrt(0.5)
    R, T_hat = reference.restricted(T, pairs), reference.unfold(T)
    np.testing.assert_allclose(R, basis.T @ T_hat @ basis, atol=1e-14)
    np.testing.assert_allclose(reference.degrees(R, pairs), T_hat.sum(axis=1)[m * pairs[:, 1] + pairs[:, 0]])


def test_no_row_outside_the_active_pairs_has_an_entry() -> None:
    d = reference.distances(blobs(1))
    m, N = len(d), reference.neighborhoods(d, 3)
    active = {int(row) for i, j in reference.active_pairs(N) for row in (m * j + i, m * i + j)}
    rows = reference.unfold(reference.tensor(d, N)).sum(axis=1)
    assert set(np.flatnonzero(rows).tolist()) == active


def test_components_are_numbered_by_their_first_row() -> None:
    M = np.zeros((5, 5))
    M[0, 3] = M[3, 0] = M[1, 4] = M[4, 1] = 1
    assert reference.components(M).tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_component_vectors_are_eigenvectors_of_eigenvalue_one(n: int) -> None:
    d = reference.distances(islands(n))
    N = reference.neighborhoods(d, 4)
    pairs = reference.active_pairs(N)
    R = reference.restricted(reference.tensor(d, N), pairs)
    degree, label = reference.degrees(R, pairs), reference.components(R)
    L_hat = reference.laplacian(R, degree)
    Z = reference.component_vectors(degree, pairs, label)
    assert Z.shape[1] == n
    np.testing.assert_allclose(L_hat @ Z, Z, atol=1e-12)
    np.testing.assert_allclose(Z.T @ Z, np.eye(n), atol=1e-12)
    assert (reference.eigenpairs(L_hat)[0] > 1 - 1e-9).sum() == n
    assert reference.volumes(degree, pairs, label).sum() == pytest.approx(1)


@pytest.mark.parametrize(("n", "c", "expected"), [(1, 3, 3), (2, 3, 3), (3, 3, 6), (4, 3, 7)])
def test_leading_takes_c_vectors_or_c_beside_the_components(n: int, c: int, expected: int) -> None:
    d = reference.distances(islands(n))
    N = reference.neighborhoods(d, 4)
    pairs = reference.active_pairs(N)
    values, vectors, weights = reference.leading(reference.restricted(reference.tensor(d, N), pairs), pairs, c)
    assert len(values) == len(weights) == vectors.shape[1] == expected
    assert (values[:n] == 1).all()
    assert (values[n:] < 1 - 1e-9).all()
    assert (np.diff(values) <= 0).all()
    assert ((weights[:n] ** 2).sum() == pytest.approx(1)) if n >= c else (weights == 1).all()
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(expected), atol=1e-10)


def test_ties_are_taken_whole() -> None:
    assert reference.with_ties(np.array([0.9, 0.8, 0.8, 0.8, 0.5]), 2) == 4
    assert reference.with_ties(np.array([0.9, 0.8, 0.8, 0.8, 0.5]), 1) == 1
    assert reference.with_ties(np.array([0.9]), 3) == 1


def test_high_order_similarity_by_hand() -> None:
    pairs = np.array([[0, 0], [0, 1], [1, 1]])
    vectors = np.array([[0.6, 0.0], [0.0, -1.0], [0.8, 0.0]])
    ones = np.ones(2)
    root = math.sqrt(0.5)
    rms = reference.high_order_similarity(vectors, ones, pairs, "rms")
    np.testing.assert_allclose(rms, np.array([[0.6, root], [root, 0.8]]) / 0.8)
    signed = reference.high_order_similarity(vectors, ones, pairs, "signed")
    np.testing.assert_allclose(signed, rms)
    halved = reference.high_order_similarity(vectors, np.array([1.0, 0.5]), pairs, "abs")
    np.testing.assert_allclose(halved, np.array([[0.6, root / 2], [root / 2, 0.8]]) / 0.8)


def test_fusion_averages_what_it_is_told() -> None:
    S, V = np.array([[0.0, 2], [2, 0]]), np.array([[1.0, 3], [3, 1]])
    assert reference.fuse(S, V).tolist() == [[0.5, 2.5], [2.5, 0.5]]
    assert reference.fuse(S, V, weight=1).tolist() == V.tolist()
    np.testing.assert_allclose(reference.fuse(S, V, "normalized"), [[0.125, 0.875], [0.875, 0.125]])


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(4, 14),
    grid=st.booleans(),
    k=st.integers(2, 14),
    c=st.integers(1, 5),
    rule=st.sampled_from(["rms", "abs", "signed"]),
)
def test_the_oracle_and_the_explicit_paper_agree(seed: int, m: int, grid: bool, k: int, c: int, rule: Any) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(m, 2)).astype(np.float64) if grid else rng.normal(size=(m, 3))  # a grid has duplicates
    k = min(k, m)
    d = reference.distances(X)
    N = reference.neighborhoods(d, k)
    T, pairs = reference.tensor(d, N), reference.active_pairs(N)
    np.testing.assert_allclose(explicit.tensor_similarity(X, n_neighbors=k), T, rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(explicit.unfold(T), reference.unfold(T), rtol=0, atol=0)
    for affinity in ("heat-knn", "gaussian"):
        S = reference.pairwise_similarity(d, affinity, "median")
        np.testing.assert_allclose(explicit.pairwise_similarity(X, affinity, "median"), S, rtol=1e-10)
    chosen = reference.leading(reference.restricted(T, pairs), pairs, c)
    if rule != "rms" and len(set(np.round(chosen.values[chosen.values < 1], 7))) < (chosen.values < 1).sum():
        return  # of a repeated eigenvalue only the root mean square is defined
    if rule == "signed" and np.isclose(chosen.vectors.max(axis=0), -chosen.vectors.min(axis=0)).any():
        return  # its entries of largest size have either sign, so that last bits decide which one is made positive
    V = reference.high_order_similarity(chosen.vectors, chosen.weights, pairs, rule)
    np.testing.assert_allclose(explicit.high_order_similarity(T, c, rule), V, atol=1e-7)


def test_a_repeated_eigenvalue_is_taken_whole_so_that_v_has_the_symmetry_of_the_samples() -> None:
    angle = 2 * np.pi * np.arange(8) / 8
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    d = reference.distances(X)
    N = reference.neighborhoods(d, 3)  # each and its two sides
    T, pairs = reference.tensor(d, N), reference.active_pairs(N)
    values, vectors, weights = reference.leading(reference.restricted(T, pairs), pairs, 2)
    assert len(values) == 3  # the second and the third turn into one another with the ring
    V = reference.high_order_similarity(vectors, weights, pairs)
    np.testing.assert_allclose(np.roll(V, (1, 1), axis=(0, 1)), V, atol=1e-10)
    np.testing.assert_allclose(explicit.high_order_similarity(T, 2), V, atol=1e-10)

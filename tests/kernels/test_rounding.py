"""Rounding: weights follow ratios of gaps, labels spread as in the naive loop, cuts are the definition's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ips2_dask.kernels import rounding
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.rounding import Candidate

Array = npt.NDArray[Any]


def affinity(m: int = 60, seed: int = 0) -> Array:
    """Symmetric, sparse, with entries on the diagonal."""
    rng = np.random.default_rng(seed)
    U = rng.uniform(0, 1, (m, m)) * (rng.uniform(0, 1, (m, m)) < 0.1)
    return np.asarray(U + U.T)


@given(st.lists(st.floats(1e-3, 0.5), min_size=2, max_size=12), st.floats(1e-3, 1.0))
def test_weights_do_not_change_when_all_gaps_shrink_by_a_factor(gaps: list[float], factor: float) -> None:
    g = np.sort([0.0, *gaps])
    one, other = (rounding.commute_weights(1 - scale * g, 1, len(g) - 1) for scale in (1.0, factor))
    np.testing.assert_allclose(one, other, rtol=1e-3)  # eigenvalues next to 1 hold few digits of their gap
    assert (np.diff(one) <= 1e-12).all()
    np.testing.assert_array_equal(one[:2], 1.0)


def test_weights_are_roots_of_ratios_of_gaps() -> None:
    found = rounding.commute_weights(np.array([1.0, 0.99, 0.96, 0.91]), 1, 3)
    np.testing.assert_allclose(found, [1, 1, 1 / 2, 1 / 3])


def test_component_vectors_weigh_one_and_the_first_gap_behind_them_counts() -> None:
    found = rounding.commute_weights(np.array([1.0, 1.0, 1.0, 0.99, 0.96]), 3, 4)
    np.testing.assert_allclose(found, [1, 1, 1, 1, 1 / 2])


def test_groups_that_all_but_fall_apart_leave_the_other_columns_a_tenth() -> None:
    found = rounding.commute_weights(np.array([1.0, 1 - 1e-6, 0.9, 0.9, 0.6]), 1, 4)
    np.testing.assert_allclose(found, [1, 1, 0.1, 0.1, 0.05], rtol=1e-3)


@pytest.mark.parametrize("sparse", [True, False])
def test_labels_spread_as_in_the_naive_loop(sparse: bool) -> None:
    U = affinity()
    labels = np.where(np.arange(60) % 5 == 0, np.arange(60) % 3, -1).astype(np.int32)
    P = U / np.maximum(U.sum(axis=1, keepdims=True), 1e-300)
    F = np.zeros((60, 3))
    for step in range(rounding.SPREAD_PRODUCTS + 1):
        if step:
            F = P @ F
        for i, label in enumerate(labels):
            if label >= 0:
                F[i] = np.eye(3)[label]
    matrix = rounding.walk_matrix(sp.csr_array(U) if sparse else U)
    found = rounding.spread(MatrixOperator(matrix).matmat, labels, 3)
    # all samples are reached early, so that no product is added but the one that sees it
    np.testing.assert_allclose(found, P @ F * (labels < 0)[:, None] + F * (labels >= 0)[:, None], atol=2e-2)
    np.testing.assert_array_equal(rounding.largest_share(found)[labels >= 0], labels[labels >= 0])


def test_labels_go_on_spreading_along_a_chain_and_not_beyond_it() -> None:
    m = 90
    U = np.zeros((m + 2, m + 2))
    U[np.arange(m - 1), np.arange(1, m)] = 1.0
    U[m, m + 1] = 1.0  # a component without a label
    U = U + U.T
    labels = np.full(m + 2, -1, np.int32)
    labels[0] = 1
    F = rounding.spread(MatrixOperator(rounding.walk_matrix(sp.csr_array(U))).matmat, labels, 2)
    np.testing.assert_array_equal(rounding.largest_share(F), [1] * m + [-1, -1])


def naive_cut(U: Array, labels: Array, c: int) -> float:
    total = 0.0
    for cluster in range(c):
        inside = labels == cluster
        total += U[inside][:, ~inside].sum() / U[inside].sum()
    return total


def test_the_normalised_cut_is_the_definitions() -> None:
    U = affinity()
    labels = (np.arange(60) % 4).astype(np.int32)
    expected = naive_cut(U, labels, 4)
    assert rounding.cut_of(sp.csr_array(U), labels, 4) == pytest.approx(expected, rel=1e-6)
    assert rounding.cut_of(U, labels, 4) == pytest.approx(expected, rel=1e-6)


def test_a_cluster_without_volume_counts_as_cut_off_whole() -> None:
    assert rounding.normalized_cut([5, 0], [10, 0]) == pytest.approx(1.5)


@given(st.lists(st.integers(1, 59), max_size=6), st.integers(0, 5))
def test_a_cut_is_the_same_to_the_bit_however_its_rows_are_parted(ends: list[int], seed: int) -> None:
    U = sp.csr_array(affinity(seed=seed))
    labels = np.random.default_rng(seed).integers(0, 3, 60).astype(np.int32)
    scale = rounding.power_above(float(U.sum(axis=1).max()))
    bounds = [0, *sorted(set(ends)), 60]
    parts = [
        rounding.cut_sums(sp.csr_array(U[a:b]), labels, labels[a:b], 3, scale) for a, b in itertools.pairwise(bounds)
    ]
    within, volume = ([sum(int(part[at][c]) for part in parts) for c in range(3)] for at in (0, 1))
    assert rounding.normalized_cut(within, volume) == rounding.cut_of(U, labels, 3)


def kmeans(columns: int, cut: float, clusters: int = 3) -> Candidate:
    return Candidate("kmeans", columns, clusters, cut, 0.0)


def density(columns: int, cut: float | None, left_out: float = 0.1, clusters: int = 3) -> Candidate:
    return Candidate("density", columns, clusters, cut, left_out)


def test_the_density_that_left_fewer_out_is_eligible_if_it_has_all_clusters_and_left_out_a_quarter_at_most() -> None:
    assert rounding.eligible([density(11, None, 0.2), density(3, None, 0.1)], 3) == density(3, None, 0.1)
    assert rounding.eligible([density(11, None, 0.2), density(3, None, 0.1, clusters=0)], 3) == density(11, None, 0.2)
    assert rounding.eligible([density(11, None, 0.26)], 3) is None
    assert rounding.eligible([density(11, None, 0.25)], 3) == density(11, None, 0.25)
    assert rounding.eligible([], 3) is None


def test_the_density_is_chosen_up_to_twice_the_best_k_means_cut() -> None:
    two = [kmeans(11, 0.5), kmeans(3, 0.4)]
    assert rounding.choose([density(3, 0.8), *two]) == density(3, 0.8)
    assert rounding.choose([density(3, 0.81), *two]) == two[1]
    assert rounding.choose(two) == two[1]


def test_k_means_that_tells_more_clusters_apart_is_the_better_one() -> None:
    assert rounding.choose([kmeans(11, 0.1, clusters=2), kmeans(3, 0.9)]) == kmeans(3, 0.9)
    assert rounding.choose([density(3, 0.9), kmeans(11, 0.1, clusters=2)]) == density(3, 0.9)

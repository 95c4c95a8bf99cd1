"""V and U of given eigenvectors are the oracle's: every rule, few components and many, average and decomposable."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from ips2_dask.kernels import fusion
from ips2_dask.kernels.sparse import symmetric_csr

Array = npt.NDArray[Any]
RULES = ["rms", "abs", "signed"]


def components_of(sizes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Pairs of samples that share a component, their degrees, and their component."""
    label = np.repeat(np.arange(len(sizes)), sizes)
    m = len(label)
    pairs = np.array([p for p in itertools.combinations_with_replacement(range(m), 2) if label[p[0]] == label[p[1]]])
    degree = np.random.default_rng(len(sizes)).uniform(0.5, 3, len(pairs))
    return pairs, degree, label[pairs[:, 0]]


def orthonormal(n: int, columns: int, against: Array) -> Array:
    y = np.random.default_rng(n).normal(size=(n, columns))
    return np.linalg.qr(np.hstack([against, y]))[0][:, against.shape[1] :]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sizes", [(7,), (4, 5), (3, 4, 5), (2, 3, 2, 4, 3)])
def test_high_order_similarity_is_the_oracles_for_fewer_as_many_and_more_components_than_clusters(
    rule: str, sizes: tuple[int, ...]
) -> None:
    c, r = 3, len(sizes)
    pairs, degree, label = components_of(sizes)
    Z = reference.component_vectors(degree, pairs, label)
    y = orthonormal(len(pairs), c - r if r < c else c, Z)
    weights = np.ones(r) if r < c else np.sqrt(reference.volumes(degree, pairs, label))
    root = np.sqrt(degree) * reference.unit(pairs)
    volumes = np.bincount(label, weights=root**2).astype(np.float64)
    trivial = fusion.trivial_values(root, volumes, label.astype(np.int32), c)
    diagonal = pairs[:, 0] == pairs[:, 1]
    signs = fusion.column_signs(reference.unit(pairs) @ y)
    values = fusion.high_order_values(y, trivial, diagonal, rule, signs)
    expected = reference.high_order_similarity(
        np.hstack([Z, y]), np.concatenate([weights, np.ones(y.shape[1])]), pairs, rule
    )
    np.testing.assert_allclose(values / values.max(), expected[pairs[:, 0], pairs[:, 1]], atol=1e-12)


def test_the_root_mean_square_depends_on_the_span_alone() -> None:
    rng = np.random.default_rng(0)
    y = np.linalg.qr(rng.normal(size=(30, 4)))[0]
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    trivial, diagonal = rng.random(30), rng.random(30) < 0.3
    values = [fusion.high_order_values(basis, trivial, diagonal, "rms", np.ones(4)) for basis in (y, y @ turn, -y)]
    np.testing.assert_allclose(values[1], values[0], atol=1e-14)
    np.testing.assert_allclose(values[2], values[0], atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_depends_on_the_signs_a_solver_happened_to_give(rule: str) -> None:
    rng = np.random.default_rng(1)
    y, trivial, diagonal = rng.normal(size=(30, 4)), rng.random(30), rng.random(30) < 0.3
    flip = np.array([1, -1, -1, 1.0])
    first, second = (
        fusion.high_order_values(z, trivial, diagonal, rule, fusion.column_signs(z.sum(axis=0))) for z in (y, y * flip)
    )
    np.testing.assert_allclose(first, second, atol=1e-13)


def test_a_sum_of_zero_counts_as_positive() -> None:
    assert fusion.column_signs(np.array([-2.0, 0.0, 3.0])).tolist() == [-1, 1, 1]


def test_with_many_components_no_tiny_island_sets_the_maximum() -> None:
    pairs, degree, label = components_of((12, 2, 2, 2))
    root = np.sqrt(degree) * reference.unit(pairs)
    volumes = np.bincount(label, weights=root**2).astype(np.float64)
    few = fusion.trivial_values(root, volumes, label.astype(np.int32), 5)
    many = fusion.trivial_values(root, volumes, label.astype(np.int32), 4)
    assert few[label == 0].max() < few[label > 0].max()
    np.testing.assert_allclose(many, root / np.sqrt(volumes.sum()))
    np.testing.assert_allclose(np.bincount(label, weights=many**2), reference.volumes(degree, pairs, label))


def test_components_without_volume_count_nothing() -> None:
    found = fusion.trivial_values(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0, 1], np.int32), 3)
    assert found.tolist() == [1, 0]


entries = st.dictionaries(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (min(pair), max(pair))), st.floats(0.1, 1)
)


def as_entries(held: dict[tuple[int, int], float]) -> tuple[Array, Array]:
    pairs = sorted(held)
    return np.array(pairs, np.int32).reshape(-1, 2), np.array([held[pair] for pair in pairs])


@given(first=entries, second=entries)
def test_merging_keeps_every_pair_once_in_order_with_both_values(
    first: dict[tuple[int, int], float], second: dict[tuple[int, int], float]
) -> None:
    pairs, one, other = fusion.merge_entries(as_entries(first), as_entries(second))
    union = sorted({*first, *second})
    assert [tuple(pair) for pair in pairs.tolist()] == union
    assert one.tolist() == [first.get(pair, 0.0) for pair in union]
    assert other.tolist() == [second.get(pair, 0.0) for pair in union]
    assert pairs.dtype == np.int32


def test_pairs_of_the_largest_numbers_are_merged() -> None:
    m = 2_000_000_000
    pairs = np.array([[m - 2, m - 1]], np.int32)
    found, _, _ = fusion.merge_entries((pairs, np.ones(1)), (pairs, np.ones(1)))
    np.testing.assert_array_equal(found, pairs)


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_fusion_is_the_oracles_average(weight: float) -> None:
    S, V = np.random.default_rng(2).random((2, 6, 6))
    np.testing.assert_array_equal(fusion.fuse(S, V, weight), reference.fuse(S, V, weight=weight))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("c", [2, 3, 5, 9])
def test_high_order_of_a_decomposable_tensor_is_the_oracles_of_s_kron_s(rule: str, c: int) -> None:
    rng = np.random.default_rng(3)
    S = rng.random((6, 6)) + np.eye(6)
    S = S + S.T
    values, vectors = reference.eigenpairs(reference.laplacian(S))
    products, chosen = fusion.leading_products(values, c)
    i, j = np.indices((6, 6)).reshape(2, -1)
    V = fusion.high_order_at(vectors, chosen, i, j, rule).reshape(6, 6)
    pairs = np.argwhere(np.triu(np.ones((6, 6))))
    leading = reference.leading(reference.restricted(reference.decomposable(S), pairs), pairs, c)
    np.testing.assert_allclose(products, leading.values, atol=1e-12)
    expected = reference.high_order_similarity(leading.vectors, leading.weights, pairs, rule)
    np.testing.assert_allclose(V / V.max(), expected, atol=1e-10)


@given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=200), data=st.data())
def test_halves_add_up_to_the_same_bits_in_any_order_and_lose_less_than_rounding(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))
    halves = fusion.exact_halves(np.array(values))
    sums = [np.bincount(np.zeros(len(values), int), half)[0] for half in halves]
    again = [np.bincount(np.zeros(len(values), int), half[np.array(order)])[0] for half in halves]
    assert sums == again
    assert sum(sums) == pytest.approx(math.fsum(values), abs=len(values) * 2.0**-52)


@pytest.mark.parametrize("cuts", [1, 2, 5])
def test_a_symmetric_matrix_from_sorted_parts_is_what_scipy_assembles(cuts: int) -> None:
    rng = np.random.default_rng(cuts)
    dense = np.triu(rng.standard_normal((30, 30)) * (rng.random((30, 30)) < 0.2)).astype(np.float64)
    entries = np.argwhere(np.triu(np.ones((30, 30)))).astype(np.int32)  # most of the values are zero
    values = dense[entries[:, 0], entries[:, 1]]
    pieces = list(zip(np.array_split(entries, cuts), np.array_split(values, cuts), strict=True))
    found = symmetric_csr(lambda: pieces, 30)
    assert found.has_sorted_indices
    assert found.nnz == np.count_nonzero(dense + np.triu(dense, 1).T)
    assert np.array_equal(found.toarray(), dense + np.triu(dense, 1).T)

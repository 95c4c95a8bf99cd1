"""The paper letter by letter: its two theorems, its definitions, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ips2_dask import explicit
from ips2_dask.errors import BadInput

Rule = Literal["rms", "abs", "signed"]
Array = npt.NDArray[np.float64]


def random_similarity(seed: int, m: int) -> Array:
    S = np.random.default_rng(seed).random((m, m))
    return np.asarray((S + S.T) / 2)


seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(2, 9)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, m=sizes)
def test_theorem_3_1_the_decomposable_tensor_unfolds_to_the_kronecker_product(seed: int, m: int) -> None:
    S = random_similarity(seed, m)
    T_hat = explicit.unfold(explicit.tensor_similarity(S, kind="decomposable"))
    np.testing.assert_allclose(T_hat, np.kron(S, S), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, m=sizes)
def test_theorem_3_1_needs_no_symmetric_similarity(seed: int, m: int) -> None:
    S = np.random.default_rng(seed).random((m, m))
    T_hat = explicit.unfold(explicit.tensor_similarity(S, kind="decomposable"))
    np.testing.assert_allclose(T_hat, np.kron(S, S), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, m=sizes)
def test_theorem_3_2_the_laplacian_is_the_kronecker_product_of_the_laplacians(seed: int, m: int) -> None:
    S = random_similarity(seed, m)
    L, L_hat = explicit.laplacian(S), explicit.laplacian(explicit.unfold(explicit.tensor_similarity(S, "decomposable")))
    np.testing.assert_allclose(L_hat, np.kron(L, L), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3_2_the_dominant_eigenvector_is_the_kronecker_product(seed: int) -> None:
    S = random_similarity(seed, 8)
    L = explicit.laplacian(S)
    v = np.linalg.eigh(L)[1][:, -1]
    v_hat = np.linalg.eigh(explicit.laplacian(explicit.unfold(explicit.tensor_similarity(S, "decomposable"))))[1][:, -1]
    np.testing.assert_allclose(v_hat * np.sign(v_hat.sum()), np.kron(v, v), rtol=0, atol=1e-10)
    np.testing.assert_allclose(explicit.fold(np.kron(v, v)), np.outer(v, v), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, m=st.integers(1, 5))
def test_fold_gives_back_what_unfold_took_apart(seed: int, m: int) -> None:
    T = np.random.default_rng(seed).random((m, m, m, m))
    assert (explicit.fold(explicit.unfold(T)) == T).all()
    assert (explicit.fold(explicit.unfold(T[0, 0])) == T[0, 0]).all()


def test_unfold_counts_pairs_as_definition_3_1() -> None:
    m, (i, j, k, l) = 3, (2, 3, 3, 1)  # noqa: E741 - counted from 1, the paper's letters
    T = np.random.default_rng(0).random((m, m, m, m))
    r, s = m * (j - 1) + i, m * (l - 1) + k
    assert explicit.unfold(T)[r - 1, s - 1] == T[i - 1, j - 1, k - 1, l - 1]


def test_definition_3_3_as_printed_folds_to_the_transpose() -> None:
    V = np.random.default_rng(0).random((4, 4))
    v = explicit.unfold(V)
    printed = np.array([[v[(j + 4 * (i - 1)) - 1] for j in range(1, 5)] for i in range(1, 5)])
    assert (printed == V.T).all()
    assert (explicit.fold(v) == V).all()


def test_all_quadruples_are_what_one_neighborhood_of_all_samples_gives() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    assert (explicit.tensor_similarity(X) == explicit.tensor_similarity(X, n_neighbors=9)).all()


def test_the_tensor_is_least_where_the_pairs_i_k_and_j_l_lie_in_two_clusters() -> None:
    T = explicit.tensor_similarity([[0.0], [1.0], [50.0], [51.5]])
    distinct = [T[quadruple] for quadruple in itertools.permutations(range(4))]
    assert T[0, 2, 1, 3] == min(distinct)  # i, k in one cluster and j, l in the other, as the paper has it
    assert T[0, 1, 2, 3] == max(distinct) > 0.97


@settings(deadline=None, max_examples=20)
@given(seed=seeds)
def test_moving_scaling_and_turning_the_samples_changes_next_to_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Q = rng.normal(size=(10, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    T = explicit.tensor_similarity(X, n_neighbors=4, epsilon=1e-4)
    np.testing.assert_allclose(explicit.tensor_similarity(X @ Q + 3, n_neighbors=4), T, atol=1e-8)
    # epsilon has the unit of X
    np.testing.assert_allclose(explicit.tensor_similarity(5 * X, n_neighbors=4, epsilon=5e-4), T, atol=1e-8)


def test_relabelling_the_samples_permutes_the_high_order_similarity() -> None:
    rng = np.random.default_rng(3)
    X, order = rng.normal(size=(12, 2)), rng.permutation(12)
    V = explicit.high_order_similarity(explicit.tensor_similarity(X, n_neighbors=4), 3)
    moved = explicit.high_order_similarity(explicit.tensor_similarity(X[order], n_neighbors=4), 3)
    np.testing.assert_allclose(moved, V[np.ix_(order, order)], atol=1e-10)


def test_v_is_a_symmetric_similarity_with_maximum_one() -> None:
    X = np.random.default_rng(0).normal(size=(12, 2))
    T = explicit.tensor_similarity(X, n_neighbors=4)
    rules: list[Rule] = ["rms", "abs", "signed"]
    for rule in rules:
        V = explicit.high_order_similarity(T, 3, rule)
        assert V.shape == (12, 12)
        assert V.max() == 1
        np.testing.assert_allclose(V, V.T, atol=1e-14)


def test_the_laplacian_alone_gives_the_same_v() -> None:
    X = np.random.default_rng(0).normal(size=(12, 2))
    T = explicit.tensor_similarity(X, n_neighbors=4)
    V = explicit.high_order_similarity(explicit.laplacian(explicit.unfold(T)), 3)
    np.testing.assert_allclose(V, explicit.high_order_similarity(T, 3), atol=1e-12)


def test_v_of_a_decomposable_tensor_is_made_of_products_of_the_pairwise_eigenvectors() -> None:
    S = random_similarity(4, 7)
    values, vectors = np.linalg.eigh(explicit.laplacian(S))
    products = []
    for a in range(7):
        for b in range(a, 7):
            both = np.outer(vectors[:, a], vectors[:, b])
            both = both if a == b else (both + both.T) / np.sqrt(2)
            products.append((values[a] * values[b], both))
    products.sort(key=lambda product: -product[0])
    V = np.sqrt(np.mean([both**2 for _, both in products[:4]], axis=0))
    found = explicit.high_order_similarity(explicit.tensor_similarity(S, "decomposable"), 4)
    np.testing.assert_allclose(found, V / V.max(), atol=1e-10)


def test_v_joins_no_samples_of_two_components_and_keeps_both() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(6, 2)), rng.normal(size=(5, 2)) + 100])
    V = explicit.high_order_similarity(explicit.tensor_similarity(X, n_neighbors=3), 2)
    assert (V[:6, 6:] == 0).all()
    assert (np.diag(V) > 0).all()


def test_an_island_is_weighted_by_its_share_of_the_volume() -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(20, 2)), [[100.0, 0.0], [100.5, 0.0]]])
    V = explicit.high_order_similarity(explicit.tensor_similarity(X, n_neighbors=2), 1)
    assert V.max() == 1
    assert 0 < V[20:, 20:].max() < 1


def test_heat_knn_of_few_samples_joins_all() -> None:
    S = explicit.pairwise_similarity(np.random.default_rng(0).normal(size=(4, 2)))
    assert ((S > 0) == ~np.eye(4, dtype=bool)).all()


X = np.random.default_rng(0).normal(size=(6, 2))
T = explicit.tensor_similarity(X)


L_HAT = explicit.laplacian(explicit.unfold(T))
HUGE = np.broadcast_to(0.0, (101**2, 101**2))  # takes no memory


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (explicit.tensor_similarity, {"data": np.zeros((101, 2))}, "m = 101"),
        (explicit.tensor_similarity, {"data": np.zeros((101, 101)), "kind": "decomposable"}, "ips2_dask.run"),
        (explicit.high_order_similarity, {"T": HUGE, "n_clusters": 2}, "m = 101"),
        (explicit.tensor_similarity, {"data": X, "kind": "mixed"}, "'mixed'"),
        (explicit.tensor_similarity, {"data": X, "kind": "decomposable"}, "shape (6, 2)"),
        (explicit.tensor_similarity, {"data": np.eye(6), "kind": "decomposable", "n_neighbors": 3}, "n_neighbors"),
        (explicit.tensor_similarity, {"data": X, "n_neighbors": 7}, "at most 6"),
        (explicit.tensor_similarity, {"data": X, "n_neighbors": 1}, "found 1"),
        (explicit.tensor_similarity, {"data": X, "n_neighbors": 2.5}, "found 2.5"),
        (explicit.tensor_similarity, {"data": X, "sigma": 0}, "sigma"),
        (explicit.tensor_similarity, {"data": X, "sigma": float("nan")}, "sigma"),
        (explicit.tensor_similarity, {"data": X, "epsilon": 0.001}, "epsilon"),
        (explicit.tensor_similarity, {"data": X, "epsilon": 0}, "epsilon"),
        (explicit.pairwise_similarity, {"X": X, "affinity": "cosine"}, "'cosine'"),
        (explicit.pairwise_similarity, {"X": X, "bandwidth": "mode"}, "'mode'"),
        (explicit.pairwise_similarity, {"X": X, "bandwidth": -1.0}, "-1.0"),
        (explicit.pairwise_similarity, {"X": [[1.0, 2.0]]}, "shape (1, 2)"),
        (explicit.pairwise_similarity, {"X": [["a"], ["b"]]}, "of <U1"),
        (explicit.pairwise_similarity, {"X": [[1.0, 2.0], [3.0, np.nan]]}, "nan in row 1, column 1"),
        (explicit.unfold, {"T": np.zeros((2, 2, 3, 2))}, "(2, 2, 3, 2)"),
        (explicit.fold, {"v": np.zeros(5)}, "(5,)"),
        (explicit.fold, {"v": np.zeros((4, 9))}, "(4, 9)"),
        (explicit.laplacian, {"M": np.zeros((2, 3))}, "(2, 3)"),
        (explicit.laplacian, {"M": np.array([[-1.0]])}, "row 0"),
        (explicit.high_order_similarity, {"T": T, "n_clusters": 0}, "n_clusters"),
        (explicit.high_order_similarity, {"T": T, "n_clusters": 2, "rule": "max"}, "'max'"),
        (explicit.high_order_similarity, {"T": np.zeros_like(T), "n_clusters": 2}, "zeros alone"),
        (explicit.high_order_similarity, {"T": np.zeros((5, 5)), "n_clusters": 2}, "shape (5, 5)"),
        (explicit.high_order_similarity, {"T": L_HAT, "n_clusters": 1}, "pass the tensor"),
    ],
)
def test_what_is_refused_is_named(function: Callable[..., object], arguments: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput) as refusal:
        function(**arguments)
    assert named in str(refusal.value)

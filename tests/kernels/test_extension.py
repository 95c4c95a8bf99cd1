"""Extension: a training sample's own row gives its own point, estimates sum to one, probabilities follow distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from ips2_dask.kernels import extension, labels

Array = npt.NDArray[Any]


def parts(m: int = 40, seed: int = 0) -> tuple[Array, Array]:
    """A symmetric S with zero diagonal and a symmetric V."""
    rng = np.random.default_rng(seed)
    S, V = rng.uniform(0, 1, (2, m, m))
    S, V = S + S.T, V + V.T
    np.fill_diagonal(S, 0.0)
    return S, V


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_two_parts_of_the_basis_add_up_to_the_eigenvectors(normalized: bool, sparse: bool) -> None:
    S, V = parts()
    scale = [1 / np.sqrt(M.sum(axis=1)) if normalized else np.ones(len(S)) for M in (S, V)]
    w = 0.3
    S_, V_ = (M * s[:, None] * s for M, s in zip((S, V), scale, strict=True))
    U = (1 - w) * S_ + w * V_
    found = labels.spectrum(U, 4, 1e-6, 0)
    B = found.vectors / np.sqrt(found.degrees)[:, None] * extension.inverse_values(found.values)
    given: Any = (sp.csr_array(U), sp.csr_array(S)) if sparse else (U, S)
    kept = extension.basis(*given, B, w, normalized)
    pairwise = extension.pairwise_part(S, kept.pairwise, normalized)
    extended = labels.normalize_rows(pairwise + kept.high_order)
    np.testing.assert_allclose(extended, labels.normalize_rows(found.vectors), atol=2e-5)


def test_without_a_pairwise_part_everything_is_high_order() -> None:
    _, V = parts()
    B = np.random.default_rng(1).normal(size=(40, 3))
    kept = extension.basis(V, None, B, 0.5, False)
    assert not kept.pairwise.any()
    np.testing.assert_allclose(kept.high_order, V @ B, rtol=1e-5)


def test_shares_sum_to_one_and_a_copy_takes_all() -> None:
    shares = extension.shares(np.array([[1.0, 2.0, np.inf], [0.0, 3.0, 4.0], [0.0, 0.0, 5.0], [np.inf] * 3]))
    np.testing.assert_allclose(shares, [[0.8, 0.2, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]])


def test_shares_go_over_to_the_copys_as_a_sample_approaches_it() -> None:
    shares = extension.shares(np.array([[1e-9, 1.0, 2.0]]))
    np.testing.assert_allclose(shares, [[1, 0, 0]], atol=1e-12)


def test_an_eigenvalue_next_to_zero_is_left_out() -> None:
    np.testing.assert_allclose(extension.inverse_values(np.array([1.0, 0.5, 1e-9, -0.25])), [1, 2, 0, -4])


def test_distances_to_mean_rows_are_those_of_the_rows_themselves() -> None:
    _, U = parts()
    label = np.arange(40, dtype=np.int32) % 3
    B = extension.mean_rows(sp.csr_array(U), label, 3)
    np.testing.assert_allclose(B.T, [U[label == c].mean(axis=0) for c in range(3)])
    found = extension.gaps_of_products(U @ B, np.square(B).sum(axis=0)) + extension.squared_lengths(U)[:, None]
    np.testing.assert_allclose(found, np.square(U[:, None] - B.T[None]).sum(axis=2))


def test_nothing_is_near_an_empty_cluster() -> None:
    points = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.9]])
    means = np.array([[0.0, 0.95], [1.0, 0.0], [np.nan, np.nan]])
    squares = extension.gaps(points, means)
    assert np.isinf(squares[:, 2]).all()
    np.testing.assert_array_equal(squares.argmin(axis=1), [0, 1, 0])
    np.testing.assert_allclose(squares[0, :2], [0.05**2, 2.0])


def test_probabilities_sum_to_one_and_the_largest_is_the_nearest() -> None:
    squares = np.random.default_rng(0).uniform(0, 4, (20, 5))
    squares[:, 4] = np.inf
    P = extension.responsibilities(squares, 0.2)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    np.testing.assert_array_equal(P.argmax(axis=1), squares.argmin(axis=1))
    assert (P[:, 4] == 0).all()

"""Centring and scaling do not depend on how rows are cut, cost no digit, and are scikit-learn's up to a shift."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import MinMaxScaler, StandardScaler, normalize

from ips2_dask.kernels import ingest

Array = npt.NDArray[Any]


def centering_by(X: Array, bounds: list[int], scale: str) -> tuple[Array, Array]:
    """Centre and divisor from the statistics of the parts between ``bounds``."""
    wide = X.astype(np.float64)
    parts = [ingest.column_statistics(wide[a:b], wide[0]) for a, b in itertools.pairwise(bounds)]
    return ingest.centering(ingest.merge(parts), wide[0], len(X), scale)


def prepared(X: Array, scale: str) -> Array:
    """What the ingest stage makes of X in one piece."""
    wide = ingest.unit_rows(X.astype(np.float64)) if scale == "l2" else X.astype(np.float64)
    center, spread = centering_by(wide, [0, len(X)], scale)
    return ingest.standardize(X, center, spread, scale)[0]


values = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
matrices = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=25), elements=values)


@given(X=matrices, data=st.data(), scale=st.sampled_from(["none", "zscore", "minmax"]))
@settings(deadline=None)
def test_centre_and_divisor_are_the_same_bits_for_any_cuts(X: Array, data: st.DataObject, scale: str) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(X)), max_size=6))
    center, spread = centering_by(X, [0, len(X)], scale)
    again = centering_by(X, sorted([0, *cuts, len(X)]), scale)
    assert again[0].tobytes() == center.tobytes()
    assert again[1].tobytes() == spread.tobytes()


@given(X=matrices)
@settings(deadline=None)
def test_sums_keep_twice_the_digits(X: Array) -> None:
    shift = X[0]
    found = ingest.column_statistics(X, shift)
    z = (X - shift).astype(np.longdouble)
    total = np.ldexp(found.total.sum(axis=0), found.exponent)
    np.testing.assert_allclose(total, z.sum(axis=0).astype(np.float64), rtol=1e-12, atol=1e-12)
    rounded = ((X - shift) * (X - shift)).astype(np.longdouble)
    square = np.ldexp(found.square.sum(axis=0), 2 * found.exponent)
    np.testing.assert_allclose(square, rounded.sum(axis=0).astype(np.float64), rtol=1e-12)
    np.testing.assert_array_equal(found.low, X.min(axis=0))
    np.testing.assert_array_equal(found.high, X.max(axis=0))


def test_a_small_sum_beside_large_ones_is_not_lost() -> None:
    X = np.array([[0.0], [1e17], [1.0], [-1e17], [1.0]])
    found = ingest.column_statistics(X, np.zeros(1))
    assert np.ldexp(found.total.sum(), found.exponent[0]) == 2.0


@given(
    X=hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=st.integers(-9999, 9999)),
    dtype=st.sampled_from([np.int64, np.int32, np.float64]),
)
@settings(deadline=None)
def test_differences_of_whole_numbers_are_exact(X: Array, dtype: type) -> None:
    found = prepared(X.astype(dtype), "none")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, None] - found, X[:, None] - X)


@given(X=matrices)
@settings(deadline=None)
def test_the_centre_is_within_the_spread_of_the_mean(X: Array) -> None:
    center, spread = centering_by(X, [0, len(X)], "none")
    assert (np.abs(center - X.mean(axis=0)) <= X.std(axis=0) * (1 + 1e-6) + 1e-9 * np.abs(X).max(axis=0)).all()
    assert (spread == 1).all()


def test_numbers_far_from_zero_keep_their_distances() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3)) + np.array([1e9, -3e7, 0])
    found = prepared(X, "none")
    difference = X[:, None] - X
    np.testing.assert_allclose(found[:, None].astype(np.float64) - found, difference, atol=2e-6)


def centred(X: Array) -> Array:
    return X - X.mean(axis=0)


def awkward(seed: int) -> Array:
    """Columns of very different scales, one far from zero, one constant, one with an outlier."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(150, 6)) * np.array([1, 1e-4, 1e5, 1, 1, 1]) + np.array([0, 0, 0, 1e4, 0, 0])
    X[:, 4] = 7.25
    X[3, 5] = 1e4
    return X


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("zscore", lambda X: StandardScaler().fit_transform(X)),
        ("minmax", lambda X: MinMaxScaler().fit_transform(X)),
        ("l2", lambda X: normalize(X)),
        ("none", lambda X: X),
    ],
)
def test_scaling_is_scikit_learns_up_to_a_shift_of_each_column(seed: int, scale: str, expected: Any) -> None:
    X = awkward(seed)
    found = centred(prepared(X, scale).astype(np.float64))
    wanted = centred(expected(X))
    size = np.abs(wanted).max(axis=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * size.max(initial=1.0) if scale == "none" else 2e-6)


@pytest.mark.parametrize("scale", ["none", "zscore", "minmax"])
def test_a_constant_column_becomes_zero(scale: str) -> None:
    X = np.column_stack([np.full(50, 0.1), np.arange(50)])  # 50 times 0.1 does not sum to 5 exactly
    found = prepared(X, scale)
    assert (found[:, 0] == 0).all()
    assert found[:, 1].std() > 0


def test_rows_of_length_one_and_rows_of_zeros() -> None:
    X = np.array([[3.0, 4.0], [0, 0], [1e-300, 0], [-1e200, 1e200]])
    root = 0.5**0.5
    np.testing.assert_allclose(ingest.unit_rows(X), np.array([[0.6, 0.8], [0, 0], [1, 0], [-root, root]]))


def test_whole_numbers_that_float32_rounds_are_counted() -> None:
    X = np.array([[0], [2**24 + 1], [5], [2**25 + 4]])
    center, spread = np.zeros(1), np.ones(1)
    assert ingest.standardize(X, center, spread, "none")[1] == 1
    assert ingest.standardize(X.astype(np.float64), center, spread, "none")[1] == 0  # floats have no digits to promise
    assert ingest.standardize(X, center, spread * 3, "minmax")[1] == 0


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.uint64, np.float16, np.float32, np.float64])
def test_every_real_type_gives_the_same_float32(dtype: type) -> None:
    X = np.random.default_rng(1).integers(0, 2, size=(40, 3))
    np.testing.assert_array_equal(prepared(X.astype(dtype), "zscore"), prepared(X, "zscore"))


@given(X=matrices)
@settings(deadline=None)
def test_what_is_prepared_is_finite(X: Array) -> None:
    assume(len(X) > 1)
    for scale in ("none", "zscore", "minmax", "l2"):
        assert np.isfinite(prepared(X, scale)).all()

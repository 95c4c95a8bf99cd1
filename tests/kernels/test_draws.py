"""The nearest centre of each point, and draws by hash."""

from __future__ import annotations

import numpy as np

from ips2_dask.kernels import draws, rounding


def test_points_are_labelled_as_by_all_differences() -> None:
    rng = np.random.default_rng(1)
    X, centers = rng.normal(size=(700, 5)).astype(np.float32), rng.normal(size=(9, 5))
    gaps = np.square(X[:, None] - centers).sum(axis=2)
    labels, squares = rounding.nearest_centers(X, centers)
    np.testing.assert_array_equal(labels, gaps.argmin(axis=1))
    np.testing.assert_allclose(squares, gaps.min(axis=1))


def test_hashes_are_the_published_outputs_of_splitmix64() -> None:
    found = draws.mixed(np.arange(3, dtype=np.uint64), np.uint64(1234567))
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_draw_is_the_same_wherever_its_numbers_lie_and_smaller_ones_are_parts_of_larger_ones() -> None:
    numbers = np.random.default_rng(0).permutation(200_000)
    hashed = draws.hashes(numbers, 0, 1)
    np.testing.assert_array_equal(hashed[500:700], draws.hashes(numbers[500:700], 0, 1))
    few, many = (draws.among(hashed, wanted, len(numbers)) for wanted in (20_000, 50_000))
    assert abs(few.sum() - 20_000) < 600
    assert abs(many.sum() - 50_000) < 1_000
    assert many[few].all()
    assert draws.among(hashed, 200_000, 200_000).all()
    other = draws.among(draws.hashes(numbers, 0, 2), 20_000, len(numbers))
    assert abs((few & other).sum() - 2_000) < 250  # draws for two purposes know nothing of each other

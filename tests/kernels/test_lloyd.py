"""Lloyd's rounds by partial sums, against scikit-learn's k-means from the same centres; draws by hash."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from ips2_dask.kernels import draws, rounding


def rounds_of(X: np.ndarray, centers: np.ndarray, cuts: list[int]) -> rounding.Rounds:
    parts = np.split(X, cuts)
    rounds = rounding.Rounds(centers, [rounding.moments(part) for part in parts])
    while not rounds.done:
        rounds.take([rounding.partial_sums(part, rounds.centers) for part in parts])
    return rounds


@pytest.mark.parametrize("spread", [1.0, 2.5])
def test_partial_sums_give_scikit_learns_partition(spread: float) -> None:
    X, _ = make_blobs(100_000, 6, centers=12, cluster_std=spread, random_state=3)
    X = X.astype(np.float32)
    start = X[np.random.default_rng(0).choice(len(X), 12, replace=False)].astype(np.float64)
    theirs = KMeans(12, n_init=1, init=start, algorithm="lloyd").fit(X.astype(np.float64))
    ours = rounds_of(X, start, [7, 40_000, 99_998])
    labels, squares = rounding.nearest_centers(X, ours.centers)
    assert squares.sum() == pytest.approx(theirs.inertia_, rel=1e-9)
    assert (labels != theirs.labels_).sum() <= 5
    assert ours.number == theirs.n_iter_


def test_a_centre_without_points_stays() -> None:
    X = np.array([[0.0], [1.0], [10.0], [11.0]], np.float32)
    rounds = rounds_of(X, np.array([[0.0], [10.0], [99.0]]), [1])
    np.testing.assert_allclose(rounds.centers[:, 0], [0.5, 10.5, 99.0])


def test_points_are_labelled_as_by_all_differences() -> None:
    rng = np.random.default_rng(1)
    X, centers = rng.normal(size=(700, 5)).astype(np.float32), rng.normal(size=(9, 5))
    gaps = np.square(X[:, None] - centers).sum(axis=2)
    labels, squares = rounding.nearest_centers(X, centers)
    np.testing.assert_array_equal(labels, gaps.argmin(axis=1))
    np.testing.assert_allclose(squares, gaps.min(axis=1))


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

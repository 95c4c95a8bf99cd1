"""Copies of rows are searched together, and nobody can tell from the answer."""

from __future__ import annotations

import numpy as np
import pytest

from ips2_dask.kernels.duplicates import group_rows, nearest_rows
from ips2_dask.kernels.neighbors import exact_neighbors


@pytest.mark.parametrize("seed", range(25))
def test_neighbors_among_copies_are_those_of_all_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, f = int(rng.integers(12, 80)), int(rng.integers(1, 4))
    X = rng.integers(0, 3, (m, f)).astype(np.float32)
    groups = group_rows(X)
    assert groups is not None
    for n in (1, 2, 5, 12):
        expected = exact_neighbors(X, 0, X, n)
        found = nearest_rows(np.arange(m), X, groups, n)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        part = nearest_rows(np.arange(3, 9), X, groups, n)
        np.testing.assert_array_equal(part[0], expected[0][3:9])


def test_rows_that_differ_are_not_grouped() -> None:
    assert group_rows(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)) is None


def test_negative_zero_is_zero() -> None:
    X = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]], np.float32)
    groups = group_rows(X)
    assert groups is not None
    assert groups.members.tolist() == [0, 1, 2]
    assert len(groups.first) == 1

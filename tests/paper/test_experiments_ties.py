"""Small components of other methods' affinities are tied to the nearest one by an edge each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from harness import block_affinity
from scipy.sparse.csgraph import connected_components

from ips2_dask.paper.experiments.methods import tie_components

Array = npt.NDArray[Any]


def line(truth: Array) -> Array:
    """Points whose groups lie at 0, 100, 200, ...; inside a group they differ by less than one."""
    rng = np.random.default_rng(1)
    return np.column_stack([100.0 * truth + rng.random(len(truth)), rng.random(len(truth))]).astype(np.float32)


def test_small_components_are_tied_to_their_nearest_by_the_median_edge() -> None:
    U, truth = block_affinity(100, 100, 3, 2)
    place = np.array([0.0, 300.0, 10.0, 290.0])  # the third lies by the first, the fourth by the second
    X = line(truth)
    X[:, 0] += (place[truth] - 100 * truth).astype(np.float32)
    tied, ties, before = tie_components(U, X, 2)
    assert before == 4
    assert sorted(tie.size for tie in ties) == [2, 3]
    for tie in ties:
        home, near = truth[tie.sample], truth[tie.nearest]
        assert {2: 0, 3: 1}[home] == near
        outside = np.flatnonzero(truth != home)
        distance = np.linalg.norm(X[outside].astype(np.float64) - X[tie.sample], axis=1)
        assert tie.nearest == outside[np.argmin(distance)]
    change = sp.coo_array(tied - U)
    assert change.nnz == 2 * len(ties)
    np.testing.assert_allclose(change.data, np.median(U.data))
    assert (abs(tied - tied.T)).max() == 0
    assert connected_components(tied, directed=False)[0] == 2


def test_the_edge_starts_at_the_member_nearest_to_the_components_mean() -> None:
    U, truth = block_affinity(60, 3)
    X = line(truth)
    members = np.flatnonzero(truth == 1)
    X[members, 0] = [1000.0, 1001.0, 1005.0]  # mean 1002
    _, (tie,), _ = tie_components(U, X, 2)
    assert tie.sample == members[1]


def test_components_that_are_large_enough_and_not_too_many_are_left_alone() -> None:
    U, truth = block_affinity(40, 50, 30)
    tied, ties, before = tie_components(U, line(truth), 3)
    assert ties == []
    assert before == 3
    assert (tied != U).nnz == 0


@pytest.mark.parametrize("c", [2, 3, 5])
def test_more_components_than_clusters_are_tied_until_there_are_no_more_the_smallest_first(c: int) -> None:
    U, truth = block_affinity(40, 38, 36, 34, 32, 30, 12)
    tied, ties, before = tie_components(U, line(truth), c)
    count, _ = connected_components(tied, directed=False)
    assert before == 7
    assert count == c
    assert len(ties) >= 7 - c
    assert [tie.size for tie in ties[: 7 - c]] == [12, 30, 32, 34, 36, 38][: 7 - c]


def test_where_all_components_are_loose_the_largest_is_what_the_others_are_tied_to() -> None:
    rng = np.random.default_rng(4)
    sizes = (3, *[2] * 30)
    U, truth = block_affinity(*sizes)
    X = np.column_stack([rng.random(len(truth)), 10.0 * truth]).astype(np.float32)
    tied, ties, before = tie_components(U, X, 2)
    assert before == 31
    assert connected_components(tied, directed=False)[0] <= 2
    assert all(tie.sample != tie.nearest for tie in ties)


def test_nothing_but_single_samples_is_tied_too() -> None:
    U = sp.csr_array((25, 25))
    tied, ties, before = tie_components(U, np.arange(25.0)[:, None], 3)
    assert before == 25
    assert connected_components(tied, directed=False)[0] <= 3
    assert len(ties) >= 22

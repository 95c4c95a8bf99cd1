"""Density: cuts have as many clusters as are asked for, agree with HDBSCAN, and do not depend on threads or order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fast_plscan import PLSCAN
from sklearn.cluster import HDBSCAN
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from ips2_dask.kernels import density

Array = npt.NDArray[Any]


@pytest.fixture(scope="module", name="blobs")
def blobs_of_four() -> tuple[Array, Array]:
    X, y = make_blobs([60, 90, 120, 150], 3, cluster_std=0.8, random_state=1)
    return X.astype(np.float32), y


def found(X: Array, c: int) -> density.Cut:
    edges = density.spanning_tree(X)
    assert edges is not None
    cut = density.cut(edges, len(X), c)
    assert cut is not None
    return cut


def test_blobs_are_the_leaves_and_what_is_left_out_is_said(blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    cut = found(X, 4)
    kept = cut.labels >= 0
    assert adjusted_rand_score(y[kept], cut.labels[kept]) == 1
    assert cut.left_out == pytest.approx(1 - kept.mean())
    assert cut.left_out < 0.1
    assert set(cut.labels.tolist()) - {-1} == {0, 1, 2, 3}


def test_the_leaves_are_those_of_hdbscan_with_the_same_smallest_size(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    cut = found(X, 4)
    # scikit-learn counts the point itself among the neighbours, fast-plscan does not
    model = HDBSCAN(
        min_cluster_size=int(cut.smallest) + 1,
        min_samples=density.MIN_SAMPLES + 1,
        cluster_selection_method="leaf",
        copy=True,
    ).fit(X)
    both = (cut.labels >= 0) & (model.labels_ >= 0)
    assert adjusted_rand_score(model.labels_[both], cut.labels[both]) == 1
    assert both.sum() >= 0.95 * (cut.labels >= 0).sum()


def test_of_several_sizes_the_one_that_leaves_the_fewest_out(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    edges = density.spanning_tree(X)
    assert edges is not None
    cut = density.cut(edges, len(X), 2)
    assert cut is not None
    tree = density_tree(edges, len(X))
    shares = []
    for size in np.unique(np.concatenate([tree.leaf_tree_.to_numpy()[n] for n in ("min_size", "max_size")])):
        labels, _ = tree.min_cluster_size_cut(max(2.0, float(size)))
        if len(set(labels[labels >= 0])) == 2:
            shares.append(float((labels < 0).mean()))
    assert cut.left_out == pytest.approx(min(shares))


def density_tree(edges: Array, n: int) -> Any:
    return PLSCAN(min_samples=density.MIN_SAMPLES, metric="precomputed").fit((edges, n))


def test_a_number_that_no_size_gives_is_none(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    edges = density.spanning_tree(X)
    assert edges is not None
    assert density.cut(edges, len(X), 400) is None


@pytest.mark.parametrize("m", [1, 3, 6])
def test_too_few_points_have_no_tree(m: int) -> None:
    assert density.spanning_tree(np.zeros((m, 2), np.float32)) is None


def test_copies_of_points_are_taken() -> None:
    X = np.repeat(np.array([[0, 0], [0, 9], [9, 0]], np.float32), 40, axis=0)
    cut = found(X + np.random.default_rng(0).normal(0, 1e-3, X.shape).astype(np.float32), 3)
    assert adjusted_rand_score(np.repeat(np.arange(3), 40), cut.labels) > 0.9
    edges = density.spanning_tree(X)
    assert edges is not None
    assert np.isfinite(edges).all()
    density.cut(edges, len(X), 3)  # may have none, and does not fail


def test_the_order_of_the_points_changes_nothing_but_their_places(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    order = np.random.default_rng(3).permutation(len(X))
    one, other = found(X, 4), found(X[order], 4)
    assert adjusted_rand_score(one.labels[order], other.labels) == 1
    np.testing.assert_array_equal(one.labels[order] < 0, other.labels < 0)


def test_edges_join_the_points_that_they_are_as_long_as(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    edges = density.spanning_tree(X)
    assert edges is not None
    assert edges.shape == (len(X) - 1, 3)
    assert (np.diff(edges[:, 2]) >= 0).all()
    a, b = edges[:, :2].astype(int).T
    distance = np.linalg.norm(X[:, None].astype(np.float64) - X, axis=2)
    core = np.sort(distance, axis=1)[:, density.MIN_SAMPLES]
    reach = np.maximum(np.maximum(core[a], core[b]), distance[a, b])
    np.testing.assert_allclose(edges[:, 2], reach, rtol=1e-4)


def test_samples_are_drawn_by_the_users_number_and_the_seed() -> None:
    np.testing.assert_array_equal(density.drawn(9, 10, 0), np.arange(9))
    one, again, other = density.drawn(1000, 100, 0), density.drawn(1000, 100, 0), density.drawn(1000, 100, 1)
    np.testing.assert_array_equal(one, again)
    assert (np.diff(one) > 0).all()
    assert len(one) == 100
    assert (one != other).any()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_dimension_of_a_cube_is_its_own(d: int) -> None:
    rng = np.random.default_rng(d)
    X = np.zeros((4000, 9), np.float32)
    X[:, :d] = rng.uniform(size=(4000, d))
    assert density.dimension(X, 0) == pytest.approx(d, rel=0.15)


def test_copies_have_no_dimension() -> None:
    assert density.dimension(np.ones((50, 3), np.float32), 0) == 0.0


@pytest.mark.parametrize(("m", "n"), [(90, 100), (150, 100), (1500, 150), (9000, 200)])
def test_a_tree_is_built_on_a_tenth_between_its_limits(m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "TREE_SAMPLES", (100, 200))
    assert density.tree_samples(m) == n

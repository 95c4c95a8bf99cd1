"""Layers of a tree: the rule against a plain computation, and which cuts of planted trees are layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from planted import blobs_of_blobs
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from ips2_dask.kernels import density

Array = npt.NDArray[Any]


def tree(X: Array) -> Array:
    edges = density.spanning_tree(X.astype(np.float32))
    assert edges is not None
    return edges


def test_a_point_is_joined_where_its_component_has_so_many_points() -> None:
    X = make_blobs(80, 2, centers=3, random_state=2)[0]
    edges = tree(X)
    leaves = density.Leaves(edges, len(X))
    for size in (1.5, 4.0, 25.0, 80.0):
        want = np.full(len(X), np.inf)
        for length in np.unique(edges[:, 2])[::-1]:
            a, b = edges[edges[:, 2] <= length, :2].astype(int).T
            label = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(80, 80)), directed=False)[1]
            want[np.bincount(label)[label] >= size] = length
        np.testing.assert_allclose(leaves.joined_at(size), want, rtol=1e-6)


def test_stability_is_persistence_times_span_and_persistence_the_mean_over_the_points() -> None:
    X, _, _ = blobs_of_blobs(1200, 2, 0)
    edges = tree(X)
    leaves = density.Leaves(edges, len(X))
    found = density.layers(edges, len(X))
    assert len(found) >= 2
    for one in found:
        assert one.stability == pytest.approx(one.persistence * one.span)
        np.testing.assert_array_equal(one.labels, leaves.labels(one.smallest))
        sizes = np.bincount(one.labels[one.labels >= 0])
        assert len(sizes) == one.n_clusters == len(one.each)
        assert one.persistence == pytest.approx((sizes * one.each).sum() / len(X))
        assert 0 <= one.each.min() <= one.each.max() <= 1
        joined = leaves.joined_at(one.smallest * np.exp(one.span))
        ends = leaves.merged_at(one.smallest)
        for leaf in range(one.n_clusters):
            own = joined[one.labels == leaf]
            assert one.each[leaf] == pytest.approx(np.maximum(1 - own / ends[leaf], 0).mean())


def test_layers_are_peaks_and_no_two_are_nearly_the_same() -> None:
    for seed in range(3):
        X = make_blobs(600, 2, centers=6, random_state=seed)[0]
        found = density.layers(tree(X), len(X))
        assert 1 <= len(found) <= density.MOST_LAYERS
        numbers = [one.n_clusters for one in found]
        assert numbers == sorted(set(numbers))
        assert min(one.stability for one in found) >= density.LEAST_STABLE * max(one.stability for one in found)
        for i, one in enumerate(found):
            for other in found[:i]:
                both = (one.labels >= 0) & (other.labels >= 0)
                assert adjusted_rand_score(one.labels[both], other.labels[both]) < density.SAME


@pytest.mark.parametrize("c", [3, 5, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_flat_blobs_have_one_layer_that_stands_out(c: int, seed: int) -> None:
    X, y = make_blobs(1500, 10, centers=c, random_state=seed)
    found = sorted(density.layers(tree(X), len(X)), key=lambda one: -one.stability)
    assert found[0].n_clusters == c
    assert adjusted_rand_score(y, found[0].labels) > 0.9
    assert all(one.stability < found[0].stability / 2 for one in found[1:])


def test_groups_that_are_all_equally_far_have_no_coarse_layer() -> None:
    """Ties are broken somehow, and unions of groups come of it, which are hardly shorter than what joins them."""
    rng = np.random.default_rng(0)
    X = np.repeat(np.eye(9), 100, axis=0) + 0.02 * rng.normal(size=(900, 9))
    assert [one.n_clusters for one in density.layers(tree(X), 900)] == [9]


def test_copies_of_one_point_have_no_layer() -> None:
    assert density.layers(tree(np.zeros((60, 2))), 60) == []

"""Components too small for a cluster: which they are, that no solve sees them, and whose label their samples take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from ips2_dask import Params, Resources, run
from ips2_dask.kernels import components
from ips2_dask.stages import islands

Array = npt.NDArray[Any]


def far_groups(*sizes: int) -> tuple[Array, Array]:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(5)
    return rng.normal(size=(len(truth), 3)) + 100 * np.array([[g % 4, g // 4, 0] for g in truth]), truth


def labels_of(*sizes: int) -> Array:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_islands_have_less_than_a_tenth_of_an_even_clusters_rows() -> None:
    label = labels_of(100, 4, 91, 5)  # 200 samples: with four clusters a tenth of an even one is 5
    found = components.divide(label, 4)
    assert (found.large, found.islands, found.total) == (3, 1, 4)
    np.testing.assert_array_equal(found.inside, label != 1)
    assert components.divide(label, 2).islands == 2


def test_large_components_keep_their_order_and_come_first() -> None:
    label = labels_of(2, 100, 3, 90)
    found = components.divide(label, 3)
    np.testing.assert_array_equal(found.label, np.array([2, 0, 3, 1])[label])


def test_a_component_counts_with_all_rows_that_its_samples_stand_for() -> None:
    label = labels_of(100, 4, 91, 5)
    copies = np.where(label == 1, 10, 1)
    assert components.divide(label, 4, copies).inside[label == 1].all()
    assert not components.divide(label, 4, copies).inside[label == 3].any()  # a tenth is 5.9 now


def test_a_graph_in_small_pieces_has_no_islands() -> None:
    label = labels_of(*[10] * 50)
    assert components.divide(label, 2).large == 50
    assert components.divide(labels_of(300, *[10] * 20), 2).large == 1
    assert components.divide(labels_of(190, *[10] * 20), 2).large == 21


def test_an_island_changes_no_label_of_the_others() -> None:
    X, _ = far_groups(150, 150, 7)
    X[150:300, 0] -= 96.5  # the two large groups touch
    X = X / 8
    whole, without = run(X, Params(n_clusters=2, n_neighbors=6)), run(X[:300], Params(n_clusters=2, n_neighbors=6))
    assert whole.report()["islands"] == {"pairs": 1, "fused": 1, "rows": 7, "largest": 7}
    assert without.report()["islands"]["fused"] == 0
    # the bandwidth is the mean distance of all neighbours, so that similarities differ a little
    assert adjusted_rand_score(whole.labels[:300], without.labels) > 0.97
    assert len(set(whole.labels[300:])) == 1
    assert (whole.similarity("high_order")[300:].sum()) == 0


@pytest.mark.parametrize("rounding", ["auto", "kmeans", "density"])
def test_islands_take_the_label_at_the_other_end_of_their_shortest_edge(rounding: str) -> None:
    X, truth = far_groups(200, 200, 7, 8, 9, 7)
    order = np.random.default_rng(3).permutation(len(X))
    X, truth = X[order], truth[order]
    found = run(X, Params(n_clusters=2, assign_labels=rounding), Resources(partition_rows=17))
    report = found.report()
    # one of the large groups loses an outlier in the graph of fewer neighbours
    assert report["islands"] == {"pairs": 5, "fused": 4, "rows": 31, "largest": 9}
    assert any("too small for a cluster" in text for text in report["warnings"])
    assert all(one["kept"] for one in report["promises"])
    large = np.flatnonzero(truth < 2)
    assert adjusted_rand_score(truth[large], found.labels[large]) == 1
    for group in range(2, 6):
        members = np.flatnonzero(truth == group)
        nearest = large[np.argmin(cdist(X[members], X[large]).min(axis=0))]
        assert set(found.labels[members]) == {found.labels[nearest]}
        np.testing.assert_array_equal(found.embedding[members], found.embedding[[nearest] * len(members)])


@pytest.mark.parametrize("resources", [Resources(partition_rows=40), Resources(vectors="chunked", partition_rows=40)])
def test_islands_are_the_same_in_any_partition_and_chunk(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ips2_dask.kernels.eigen.DENSE_BELOW", 50)
    X, _ = far_groups(180, 180, 7, 8)
    X[180:360, 0] -= 96
    first = run(X, Params(n_clusters=3))
    other = run(X, Params(n_clusters=3), resources)
    np.testing.assert_array_equal(first.labels, other.labels)
    np.testing.assert_allclose(first.eigenvalues, other.eigenvalues, atol=1e-4)
    vectors = other.eigenvectors
    apart = (other.pairs >= 360).any(axis=1)
    assert apart.any()
    assert np.abs(first.eigenvectors[apart]).max() < 1e-5
    assert np.abs(vectors[apart]).max() < 1e-5


def test_edges_between_drawn_samples_find_the_followed_ones_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few drawn samples the edges are longer, but an island follows the nearest of all to its own end."""
    X, truth = far_groups(200, 200, 7, 8)
    monkeypatch.setattr(islands, "SEARCH_WORK", 100**2 * 67)
    found = [
        run(X, Params(n_clusters=2), Resources(partition_rows=rows, vectors=vectors))
        for rows, vectors in ((17, "in-core"), (60, "chunked"))
    ]
    np.testing.assert_array_equal(found[0].labels, found[1].labels)
    for group in (2, 3):
        members, large = np.flatnonzero(truth == group), np.flatnonzero(truth < 2)
        nearest = large[cdist(X[members], X[large]).argmin(axis=1)]
        assert set(found[0].labels[members]) <= set(found[0].labels[nearest])


def rings(*radii: float, step: float = 0.35) -> tuple[Array, Array]:
    """Points on rings, at random places of each: the graph of five neighbours falls into many pieces."""
    rng, points = np.random.default_rng(1), []
    for radius in radii:
        at = rng.uniform(0, 2 * np.pi, round(radius / step * 6))
        points.append(np.stack([radius * np.cos(at), radius * np.sin(at)], axis=1))
    return np.concatenate(points), np.repeat(np.arange(len(radii)), [len(some) for some in points])


def test_rings_in_pieces_are_joined_by_their_shortest_edges() -> None:
    X, truth = rings(10, 20, 30)
    found = run(X, Params(n_clusters=3))
    assert found._context.facts["label"]["u_components"] > 6
    assert adjusted_rand_score(truth, found.labels) == 1
    assert adjusted_rand_score(truth, run(X, Params(n_clusters=3), Resources(vectors="chunked")).labels) == 1


def test_a_join_that_is_longer_than_the_median_weighs_less_by_the_square() -> None:
    assert components.shortness(np.array([0, 1, 2, 2, 8], np.float32)).tolist() == [1, 1, 1, 1, 1 / 16]
    assert components.shortness(np.zeros(3, np.float32)).tolist() == [1, 1, 1]
    assert components.shortness(np.zeros(0, np.float32)).tolist() == []


def brute_force(X: Array) -> components.Nearest:
    def nearest(queries: Array, targets: Array, n: int) -> tuple[Array, Array]:
        lengths = cdist(X[queries], X[targets]).astype(np.float32)
        lengths[queries[:, None] == targets] = np.inf
        places = np.argsort(lengths, axis=1, kind="stable")[:, :n]
        found = np.take_along_axis(lengths, places, axis=1)
        return np.where(np.isfinite(found), targets[places], -1), found

    return nearest


@pytest.mark.parametrize("groups", [2, 5, 40])
@pytest.mark.parametrize("grid", [False, True])
def test_the_tree_of_groups_is_the_minimum_spanning_tree(groups: int, grid: bool) -> None:
    rng = np.random.default_rng(groups)
    X, group = rng.normal(size=(120, 2)), rng.permutation(np.arange(120) % groups)
    X, group = (np.rint(2 * X), group) if grid else (X, group)  # many equal lengths
    between = np.full((groups, groups), np.inf)
    D = cdist(X, X).astype(np.float32).astype(float)
    for i, j in np.argwhere(group[:, None] != group):
        between[group[i], group[j]] = min(between[group[i], group[j]], D[i, j] + 1)  # SciPy takes 0 for no edge
    wanted = np.sort(minimum_spanning_tree(np.where(np.isfinite(between), between, 0)).data) - 1
    tree = components.spanning_tree(group, brute_force(X))
    np.testing.assert_allclose(tree.lengths, wanted, atol=1e-6)
    assert (np.diff(tree.lengths) >= 0).all()
    graph = np.zeros((groups, groups))
    graph[tuple(group[tree.edges].T)] = 1
    assert connected_components(graph, directed=False)[0] == 1
    renamed = components.spanning_tree(rng.permutation(groups)[group], brute_force(X))
    np.testing.assert_array_equal(tree.edges, renamed.edges)


def test_the_longest_edges_that_part_enough_rows_are_cut() -> None:
    edges = np.array([[0, 1], [2, 3], [1, 2], [3, 4], [4, 5]])  # a path, its last edge the longest
    rows = np.array([40.0, 40, 40, 40, 40, 2])
    np.testing.assert_array_equal(components.cut_tree(edges, rows, 5, 2), [True, True, True, False, True])
    np.testing.assert_array_equal(components.cut_tree(edges, rows, 1, 2), [True, True, True, True, False])
    np.testing.assert_array_equal(components.cut_tree(edges, rows, 42, 9), [True, True, False, False, True])
    np.testing.assert_array_equal(components.cut_tree(edges[:4], rows[:5], 5, 9), [False] * 4)
    np.testing.assert_array_equal(components.cut_tree(edges[[0, 1, 3, 4]], rows, 5, 2), [True] * 4)  # two trees


def test_a_graph_in_pieces_is_joined_before_it_is_cut() -> None:
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(size=(40, 2)) * 8, rng.normal(size=(40, 2)) * 8 + 300])
    X = np.repeat(places, 12, axis=0) + rng.normal(size=(960, 2)) * 1e-3
    found = run(X, Params(n_clusters=2))
    assert found.report()["islands"]["fused"] == 0
    assert adjusted_rand_score(np.repeat([0, 1], 480), found.labels) == 1


@pytest.mark.slow
def test_the_oracles_v_leaves_islands_out() -> None:
    X, _ = far_groups(70, 70, 6)
    found = run(X, Params(n_clusters=2, n_neighbors=4, tol=1e-6, fusion="average"))
    d = reference.distances(X)
    N = reference.neighborhoods(d, 4)
    pairs = reference.active_pairs(N)
    leading = reference.leading(reference.restricted(reference.tensor(d, N), pairs), pairs, 2)
    V = reference.high_order_similarity(leading.vectors, leading.weights, pairs, "rms")
    np.testing.assert_allclose(found.similarity("high_order").toarray(), V, atol=2e-5)
    assert V[140:].sum() == 0

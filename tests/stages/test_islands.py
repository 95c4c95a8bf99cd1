"""Components too small for a cluster: which they are, that no solve sees them, and whose label their samples take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from sklearn.metrics import adjusted_rand_score

from ips2_dask import Params, Resources, run
from ips2_dask.kernels import components

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


def test_no_more_components_than_are_wanted_are_large() -> None:
    label = labels_of(40, 60, 50, 60)
    found = components.divide(label, 2, most=2)
    np.testing.assert_array_equal(found.inside, (label == 1) | (label == 3))


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
def test_islands_take_the_label_of_the_sample_nearest_to_their_central_one(rounding: str) -> None:
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
        central = members[np.argmin(np.square(X[members] - X[members].mean(axis=0)).sum(axis=1))]
        nearest = large[np.argmin(np.square(X[large] - X[central]).sum(axis=1))]
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
    found = run(X, Params(n_clusters=2, n_neighbors=4, tol=1e-6))
    d = reference.distances(X)
    N = reference.neighborhoods(d, 4)
    pairs = reference.active_pairs(N)
    leading = reference.leading(reference.restricted(reference.tensor(d, N), pairs), pairs, 2)
    V = reference.high_order_similarity(leading.vectors, leading.weights, pairs, "rms")
    np.testing.assert_allclose(found.similarity("high_order").toarray(), V, atol=2e-5)
    assert V[140:].sum() == 0

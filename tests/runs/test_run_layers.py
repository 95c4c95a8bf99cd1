"""Layers of a run: planted hierarchies are seen, every sample has a label, and splits are shares of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from planted import blobs_of_blobs
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from ips2_dask import BadInput, Features, Params, Resources, Run, run
from ips2_dask.kernels import rounding
from ips2_dask.kernels.labels import renumber
from ips2_dask.runs import layers
from ips2_dask.stages.similarity_views import read_affinity

Array = npt.NDArray[Any]

GROUPS, BLOBS = 4, 12


def check_planted(found: Run, group: Array, blob: Array) -> None:
    """The two most stable layers are those that were planted, and all others are far less stable."""
    first, second, *others = sorted(found.layers, key=lambda layer: -layer.stability)
    coarse, fine = sorted((first, second), key=lambda layer: layer.n_clusters)
    assert (coarse.n_clusters, fine.n_clusters) == (GROUPS, BLOBS)
    assert all(layer.stability < second.stability / 2 for layer in others)
    assert adjusted_rand_score(group, coarse.labels) > 0.99
    assert adjusted_rand_score(blob, fine.labels) > 0.85


@pytest.mark.parametrize("f", [8, 64])
def test_both_layers_of_a_planted_hierarchy_are_the_most_stable_ones(f: int) -> None:
    X, group, blob = blobs_of_blobs(1200, f, 0)
    check_planted(run(X, Params(n_clusters=GROUPS)), group, blob)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1200, 6000])
@pytest.mark.parametrize(("f", "seed"), [(2, 0), (8, 0), (8, 1), (8, 2), (64, 0), (64, 1), (64, 2)])
@pytest.mark.parametrize("n_clusters", [GROUPS, BLOBS, "auto"])
def test_planted_layers_are_seen_whatever_was_asked_for(m: int, f: int, seed: int, n_clusters: int | str) -> None:
    X, group, blob = blobs_of_blobs(m, f, seed)
    asked = Params(max_clusters=20) if n_clusters == "auto" else Params(n_clusters=n_clusters)
    check_planted(run(X, asked), group, blob)


def test_flat_blobs_have_one_layer_that_counts() -> None:
    X, y = make_blobs(600, 6, centers=5, random_state=3)
    layer, *finer = run(X, Params(n_clusters=5)).layers
    assert all(one.stability < 0.2 * layer.stability for one in finer)  # some blob falls into parts for a while
    assert adjusted_rand_score(y, layer.labels) > 0.99


@pytest.mark.parametrize("f", [2, 5, 20])
def test_layers_of_points_without_clusters_are_hardly_stable(f: int) -> None:
    layers = run(np.random.default_rng(0).normal(size=(2000, f)), Params(n_clusters=4)).layers
    assert max(layer.stability for layer in layers) < 0.1
    assert max(layer.persistence for layer in layers) < 0.25


@pytest.fixture(scope="module", name="planted")
def planted_run() -> Run:
    """With rows that occur twice, and rows left out for a gap."""
    X, _, _ = blobs_of_blobs(1200, 8, 1)
    X = np.concatenate([X, X[:60]]).astype(np.float64)
    X[[5, 77], 0] = np.nan
    return run(X, Params(n_clusters=4), features=Features(missing="drop"))


def test_every_row_has_a_label_by_first_row_and_equal_rows_the_same(planted: Run) -> None:
    for layer in planted.layers:
        assert layer.labels.dtype == np.int32
        assert layer.labels.shape == (1260,)
        assert np.flatnonzero(layer.labels < 0).tolist() == [5, 77]
        np.testing.assert_array_equal(layer.labels, renumber(layer.labels))
        np.testing.assert_array_equal(layer.sizes, np.bincount(layer.labels[layer.labels >= 0]))
        assert len(layer.sizes) == len(layer.each) == layer.n_clusters
        copies = np.setdiff1d(np.arange(60), [5])
        np.testing.assert_array_equal(layer.labels[1200 + copies], layer.labels[copies])


def test_splits_are_the_shares_of_the_next_finer_layer(planted: Run) -> None:
    coarse, fine = planted.layers
    for cluster, parts in enumerate(coarse.splits):
        own = coarse.labels == cluster
        assert sum(part.share for part in parts) == pytest.approx(1.0)
        shares = [part.share for part in parts]
        assert shares == sorted(shares, reverse=True)
        for part in parts:
            assert part.share == pytest.approx((fine.labels[own] == part.cluster).mean())
        assert len(coarse.parts(cluster)) == 3
    assert fine.splits == ()


def test_layers_in_words(planted: Run) -> None:
    assert repr(planted.layers).startswith("<Layers: 4 clusters (stability ")
    assert repr(planted.layers[0]).startswith("<Layer of 4 clusters")
    assert len(planted.layers[:1]) == 1
    assert planted.layers is planted.layers


def test_a_persistence_belongs_to_the_cluster_whose_points_are_joined_early() -> None:
    """One blob is far denser than the others: its number changes with the order of rows, its persistence does not."""
    rng = np.random.default_rng(5)
    centers = np.array([[0, 0], [6, 0], [0, 6]], float)
    X = np.concatenate([center + rng.normal(size=(150, 2)) for center in centers])
    order = rng.permutation(450)
    found = (run(rows, Params(n_clusters=3)).layers for rows in (X, X[order]))
    layer, shuffled = (next(one for one in layers if one.n_clusters == 3) for layers in found)
    place = {int(a): int(b) for a, b in zip(layer.labels[order], shuffled.labels, strict=True)}
    np.testing.assert_allclose([shuffled.each[place[k]] for k in range(3)], layer.each, atol=0.05)


def test_a_run_in_chunks_has_the_layers_of_one_in_core(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, _ = blobs_of_blobs(600, 8, 0)
    whole, chunks = (
        run(X, Params(n_clusters=4), Resources(partition_rows=150, vectors=vectors))
        for vectors in ("in-core", "chunked")
    )
    assert [layer.n_clusters for layer in whole.layers] == [layer.n_clusters for layer in chunks.layers]
    for one, other in zip(whole.layers, chunks.layers, strict=True):
        assert adjusted_rand_score(one.labels, other.labels) > 0.99
    monkeypatch.setattr(layers, "MOST_SAMPLES", 100)
    fresh = run(X, Params(n_clusters=4), Resources(partition_rows=150, vectors="chunked"))
    with pytest.raises(BadInput, match=r"layers: found 600 samples of a run in chunks.*at most 100"):
        fresh.layers  # noqa: B018


@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_a_component_without_a_leaf_has_the_label_of_the_nearest_sample(vectors: str) -> None:
    rng = np.random.default_rng(2)
    middles = np.repeat(np.array([0.0, 100.0, 130.0]), 60)
    found = run(
        np.column_stack([middles, np.zeros(180)]) + rng.normal(size=(180, 2)),
        Params(n_clusters=3),
        Resources(partition_rows=70, vectors=vectors),
    )
    context = found._context
    drawn, _ = layers._read_tree(context, "layers", "")
    order = context.order()
    rows = drawn if order is None else order[drawn]
    leaf_of = np.where(middles[rows] == 0, 0, np.where(middles[rows] == 100, 1, -1)).astype(np.int32)
    labels = layers._spread(context, rounding.walk_matrix(read_affinity(context)), drawn, leaf_of)
    np.testing.assert_array_equal(labels, np.repeat([0, 1, 1], 60))


def test_without_a_tree_there_are_no_layers() -> None:
    X = make_blobs(100, 3, centers=3, random_state=0)[0]
    with pytest.raises(BadInput, match="layers: found a run without a tree of density"):
        run(X, Params(n_clusters=3, assign_labels="kmeans")).layers  # noqa: B018


def test_too_few_samples_for_a_tree_have_no_layer() -> None:
    found = run(np.arange(12.0).reshape(6, 2) ** 2, Params(n_clusters=2, n_neighbors=3)).layers
    assert len(found) == 0
    assert repr(found) == "<Layers: none>"

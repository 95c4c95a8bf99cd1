"""Layouts in the plane: groups stay together, the same bits again, and odd graphs and vectors are laid out too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph

from ips2_dask.kernels import layout
from ips2_dask.kernels.rounding import thinned

Array = npt.NDArray[Any]

needs_umap = pytest.mark.skipif(not layout.available(), reason="needs umap-learn: pip install 'ips2-dask[layout]'")


def groups(n: int = 150) -> tuple[Array, Array]:
    """Five groups of points, (n, 5), and the group of each."""
    X, y = make_blobs(n, 5, centers=5, random_state=2)
    return X.astype(np.float32), y


def graph(X: Array) -> sp.csr_array:
    """A weighted symmetric graph of seven nearest neighbours."""
    G = sp.csr_array(kneighbors_graph(X, 7, mode="distance"))
    G.data = np.exp(-np.square(G.data / G.data.max()))
    return sp.csr_array(G.maximum(G.T))


def agreement(points: Array, labels: Array) -> float:
    """Share of the points that have the label of most of their five neighbours."""
    return float((KNeighborsClassifier(6).fit(points, labels).predict(points) == labels).mean())


# UMAP takes many seconds to compile, so that tests of it are slow ones
WAYS = {
    "graph": pytest.param(lambda X: layout.of_graph(graph(X), X, 0), marks=needs_umap),
    "all pairs": pytest.param(lambda X: layout.of_graph(np.exp(-_squared(X) / 20), X, 0), marks=needs_umap),
    "vectors": pytest.param(lambda X: layout.of_vectors(X, 0), marks=needs_umap),
    "t-SNE": pytest.param(lambda X: layout.t_sne(X, 0)),
}


def _squared(X: Array) -> Array:
    return np.square(X[:, None] - X).sum(axis=2)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_groups_stay_together_and_the_same_bits_come_again(way: Any) -> None:
    X, y = groups()
    points, again = way(X), way(X)
    assert points.shape == (len(X), 2)
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    assert agreement(points, y) > 0.98
    assert points.tobytes() == again.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_few_points_are_laid_out(way: Any, n: int) -> None:
    X = np.eye(5, dtype=np.float32)[:n]
    if way is WAYS["graph"].values[0]:  # no point has seven neighbours
        way = lambda X: layout.of_graph(sp.csr_array(1 - np.eye(n)), X, 0)  # noqa: E731
    points = way(X)
    assert points.shape == (n, 2)
    assert np.isfinite(points).all()


@pytest.mark.slow
@needs_umap
def test_scale_order_of_entries_and_diagonal_of_a_graph_say_nothing() -> None:
    X, _ = groups()
    G = graph(X)
    points = layout.of_graph(G, X, 0)
    doubled = sp.csr_array(4 * G)
    doubled.setdiag(9.0)
    kept = doubled.copy()
    for row in range(len(X)):  # each row's entries from the last to the first
        part = slice(doubled.indptr[row], doubled.indptr[row + 1])
        doubled.indices[part], doubled.data[part] = doubled.indices[part][::-1].copy(), doubled.data[part][::-1].copy()
    doubled.has_sorted_indices = False
    np.testing.assert_array_equal(doubled.toarray(), kept.toarray())
    assert layout.of_graph(doubled, X, 0).tobytes() == points.tobytes()
    assert G.diagonal().max() == 0  # what was given is as it was


@pytest.mark.slow
@needs_umap
def test_points_without_edges_and_graphs_without_any_stay_at_their_start() -> None:
    X, y = groups()
    G = graph(X)
    alone = np.arange(len(X)) % 50 == 0
    staying = sp.diags_array((~alone).astype(float))
    points = layout.of_graph(sp.csr_array(staying @ G @ staying), X, 0)
    assert np.isfinite(points).all()
    assert agreement(points[~alone], y[~alone]) == 1.0
    start = layout._first_places(X, np.random.RandomState(0))
    nothing = layout.of_graph(sp.csr_array((len(X), len(X))), X, 0)
    np.testing.assert_array_equal(nothing, start)


def test_a_start_is_made_of_the_second_and_third_column_scaled_to_ten() -> None:
    X, _ = groups()
    start = layout._first_places(X, np.random.RandomState(0))
    for column in range(2):
        assert np.corrcoef(start[:, column], X[:, 1 + column])[0, 1] > 0.9999
    assert np.abs(start).max() == pytest.approx(10, abs=0.01)
    one = layout._first_places(X[:, :1], np.random.RandomState(0))
    assert np.corrcoef(one[:, 0], X[:, 0])[0, 1] > 0.9999
    assert 0 < np.abs(one[:, 1]).max() < 0.01
    assert np.abs(layout._first_places(np.ones((9, 4)), np.random.RandomState(0))).max() < 0.01


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("way", [pytest.param("graph", marks=[needs_umap, pytest.mark.slow]), "t-SNE"])
def test_equal_rows_and_few_columns_do(way: str, columns: int) -> None:
    X, _ = groups()
    rows = np.repeat(np.eye(5, dtype=np.float32)[:, :columns], 30, axis=0)
    points = layout.of_graph(graph(X), rows, 0) if way == "graph" else layout.t_sne(rows, 0)
    assert np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) > 100


def test_eigenvectors_of_a_graph_tell_its_groups_apart() -> None:
    X, y = groups()
    columns = layout.spectral_columns(graph(X), 6, 0)
    assert columns.shape == (len(X), 6)
    assert agreement(columns, y) == 1.0
    assert columns.tobytes() == layout.spectral_columns(graph(X), 6, 0).tobytes()


def test_of_a_dense_matrix_the_strongest_entries_of_each_row_are_kept() -> None:
    S = np.random.default_rng(0).random((80, 80))
    S = np.maximum(S, S.T)
    kept = thinned(S, layout.STRONGEST).toarray()
    np.fill_diagonal(S, -np.inf)
    wanted = np.zeros_like(S, bool)
    np.put_along_axis(wanted, np.argsort(-S, axis=1)[:, : layout.STRONGEST], True, axis=1)
    np.testing.assert_array_equal(kept > 0, wanted | wanted.T)
    np.testing.assert_array_equal(kept[kept > 0], S[kept > 0])


@pytest.mark.slow
def test_umap_is_not_imported_before_a_layout_is_asked_for() -> None:
    code = "import sys, ips2_dask.kernels.layout, ips2_dask.runs.run, ips2_dask.plots; print('umap' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert said.stdout.split() == ["False"]

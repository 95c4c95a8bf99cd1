"""Pictures of a run: their numbers against a naive computation, and that every one draws on a given axis."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from matplotlib.figure import Figure
from planted import blobs_of_blobs
from sklearn.metrics import silhouette_samples

from ips2_dask import PAPER, Params, Resources, Run, plots, run
from ips2_dask.kernels import layout as layout_kernel
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.plots.style import KINDS, MARKERS, PALETTE, color, marker, saved, sheet
from ips2_dask.readers import open_source
from ips2_dask.runs.layers import Layers
from ips2_dask.runs.layout import Layout
from ips2_dask.stages.similarity_views import numbered_parts, user_numbers

Array = npt.NDArray[Any]
C = 3

WAYS: dict[str, tuple[Params, Resources]] = {
    "sparse": (Params(n_clusters=C), Resources(partition_rows=25)),
    "all pairs": (Params(n_clusters=C, affinity="gaussian"), Resources(partition_rows=25)),
    "sharded and chunked": (Params(n_clusters=C, shards=3), Resources(partition_rows=25, vectors="chunked")),
    "normalized": (Params(n_clusters=C, fusion="normalized"), Resources()),
    "PPC": (Params(n_clusters=C, method="ppc"), Resources()),
    "decomposable": (Params(n_clusters=C, tensor="decomposable"), Resources()),
    "signed": (Params(n_clusters=C, high_order="signed"), Resources()),
    "k-means on rows": (Params(**{**PAPER, "n_clusters": C}), Resources()),
}


@pytest.fixture(scope="module")
def rows() -> Array:
    """Three groups that overlap: (60, 4)."""
    rng = np.random.default_rng(16)
    return rng.normal(size=(60, 4)) + 2.2 * rng.integers(0, C, size=(60, 1))


@pytest.fixture(scope="module", params=WAYS)
def any_run(request: pytest.FixtureRequest, rows: Array) -> Run:
    """A run of each way of storing the similarities."""
    return run(rows, *WAYS[request.param])


@pytest.fixture(scope="module")
def some_run(rows: Array) -> Run:
    return run(rows, *WAYS["sparse"])


def dense(found: Run, kind: str) -> Array:
    """A similarity of all pairs, without its diagonal."""
    M = found.similarity(kind)
    M = np.array(M.toarray() if sp.issparse(M) else M, np.float64)
    np.fill_diagonal(M, 0.0)
    return M


def test_the_parts_of_the_similarities_hold_every_stored_pair_once(any_run: Run) -> None:
    m = len(any_run.labels)
    for kind in KINDS:
        M, times = np.zeros((m, m)), np.zeros((m, m), int)
        for part in numbered_parts(any_run._context):
            assert (part.i < part.j).all()
            i, j = np.sort(user_numbers(any_run._context, np.stack([part.i, part.j])), axis=0)
            np.add.at(M, (i, j), getattr(part, kind))
            np.add.at(times, (i, j), 1)
        assert times.max() == 1
        np.testing.assert_allclose(M, np.triu(dense(any_run, kind)), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("cells", [7, pytest.param(60, marks=pytest.mark.slow)])
def test_cells_are_means_of_blocks_in_the_order_of_labels(any_run: Run, cells: int) -> None:
    shown = plots.summarize(any_run, cells=cells)
    numbers = any_run._context.order()  # within a cluster samples are in the run's order
    m = len(any_run.labels)
    order = np.lexsort((np.arange(m) if numbers is None else np.argsort(numbers), any_run.labels))
    cell = np.arange(m) * cells // m
    off = ~np.eye(m, dtype=bool)
    for kind in KINDS:
        M = dense(any_run, kind)[np.ix_(order, order)]
        for a in range(cells):
            for b in range(cells):
                block = np.outer(cell == a, cell == b) & off
                expected = M[block].mean() if block.any() else np.nan
                np.testing.assert_allclose(shown.cells[kind][a, b], expected, rtol=1e-6, atol=1e-12)


def test_distributions_and_means_are_those_of_the_pairs(any_run: Run) -> None:
    shown = plots.summarize(any_run)
    labels, m = any_run.labels, len(any_run.labels)
    i, j = np.triu_indices(m, 1)
    same = labels[i] == labels[j]
    for kind in KINDS:
        values = dense(any_run, kind)[i, j]
        found = shown.distributions[kind]
        for counts, kept, pairs in ((found.within, same, found.pairs[0]), (found.between, ~same, found.pairs[1])):
            assert counts.sum() == np.count_nonzero(values[kept])
            assert pairs == kept.sum()
        for a in range(C):
            for b in range(C):
                pair = (np.minimum(labels[i], labels[j]) == min(a, b)) & (np.maximum(labels[i], labels[j]) == max(a, b))
                np.testing.assert_allclose(shown.means[kind][a, b], values[pair].mean(), rtol=1e-6, atol=1e-12)
    U = np.abs(dense(any_run, "fused"))
    own = (U * (labels[:, None] == labels)).sum(axis=1) / U.sum(axis=1)
    np.testing.assert_allclose(shown.own, own, rtol=1e-6)


def test_where_no_embedding_is_stored_the_mean_similarity_to_each_cluster_stands_for_it(rows: Array) -> None:
    found = run(rows, *WAYS["k-means on rows"])
    assert found.embedding is None
    seen = plots.points(found)
    U, sizes = dense(found, "fused"), np.bincount(found.labels)
    profile = U @ np.eye(C)[found.labels] / sizes
    np.testing.assert_allclose(seen.values, profile / np.linalg.norm(profile, axis=1, keepdims=True), rtol=1e-6)


def test_silhouettes_are_scikit_learns_and_those_of_a_seeded_sample_above_a_limit(some_run: Run) -> None:
    seen = plots.points(some_run)
    found = plots.silhouette(seen, some_run.labels)
    embedding = np.asarray(some_run.embedding, np.float64)
    np.testing.assert_allclose(found.values, silhouette_samples(embedding, some_run.labels))
    first, again = (plots.silhouette(seen, some_run.labels, most=40) for _ in range(2))
    assert first.samples.tolist() == again.samples.tolist() == sorted(set(first.samples.tolist()))
    assert len(first.samples) == 40
    expected = silhouette_samples(embedding[first.samples], some_run.labels[first.samples])
    np.testing.assert_allclose(first.values, expected)


def test_the_first_coordinate_is_the_direction_in_which_the_centres_spread_most(some_run: Run) -> None:
    seen, labels = plots.points(some_run), some_run.labels
    found = plots.coordinates(seen, labels)
    spread = [np.var(np.array([found.values[labels == c, d].mean() for c in range(C)])[labels]) for d in range(C)]
    assert spread == sorted(spread, reverse=True)
    assert (np.diff(found.shares) <= 0).all()
    assert found.shares.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    X = seen.values - seen.values.mean(axis=0)
    for _ in range(50):  # no other direction parts the centres more
        v = rng.normal(size=X.shape[1])
        at = X @ (v / np.linalg.norm(v))
        assert np.var(np.array([at[labels == c].mean() for c in range(C)])[labels]) <= spread[0] + 1e-5


def test_a_samples_margin_compares_its_centre_with_the_nearest_other_one(some_run: Run) -> None:
    seen, labels = plots.points(some_run), some_run.labels
    found = plots.certainty(seen, labels)
    centers = np.stack([seen.values[labels == c].mean(axis=0) for c in range(C)])
    for sample in range(len(labels)):
        d = np.linalg.norm(centers - seen.values[sample], axis=1)
        a, b = d[labels[sample]], np.delete(d, labels[sample]).min()
        assert found.margin[sample] == pytest.approx((b - a) / max(a, b), abs=1e-6)
        assert d[found.other[sample]] == pytest.approx(b)
        assert found.other[sample] != labels[sample]


def test_the_spectrum_ends_with_the_gap(some_run: Run) -> None:
    shown = plots.spectrum(some_run)
    np.testing.assert_allclose(shown.values, some_run.eigenvalues)
    assert shown.gap is not None
    assert shown.following == pytest.approx(some_run.eigenvalues[-1] - shown.gap)


def test_as_many_components_as_clusters_are_left_out_of_the_spectrum() -> None:
    rng = np.random.default_rng(5)
    X = np.concatenate([rng.normal(size=(15, 2)) + 100 * k for k in range(4)])
    found = run(X, Params(n_clusters=2))
    shown = plots.spectrum(found)
    assert (shown.components, shown.left_out) == (0, 4)
    assert (shown.values < 1 - 1e-6).all()


def test_the_memory_that_is_shown_as_planned_is_the_plan_of_the_run(rows: Array) -> None:
    params, given = WAYS["sharded and chunked"]
    plan = plan_run(open_source(rows), params, given)
    planned = {stage.name: (stage.worker_bytes, stage.client_bytes, stage.disk_bytes) for stage in plan.stages}
    shown = plots.spent(run(rows, params, given))
    assert {stage.name: (stage.worker_bytes, stage.client_bytes, stage.disk_bytes) for stage in shown} == planned


@pytest.mark.parametrize("most", [2_000, 30])
def test_points_are_as_opaque_as_their_labels_are_certain(some_run: Run, most: int) -> None:
    found = plots.coordinates(plots.points(some_run), some_run.labels)
    ax = plots.embedding(some_run, Figure().subplots(), precomputed=found, most=most)
    seen = []
    for cluster, drawn in enumerate(ax.collections[:C]):
        for offset, opacity in zip(drawn.get_offsets(), drawn.get_facecolors()[:, 3], strict=True):
            sample = int(np.argmin(np.square(found.values[:, :2] - offset).sum(axis=1)))
            assert some_run.labels[sample] == cluster
            assert opacity == pytest.approx(max(some_run.certainty[sample], 0.15), abs=0.0051)
            seen.append(sample)
    assert len(set(seen)) == min(most, len(some_run.labels))
    assert np.ptp(some_run.certainty[seen]) > 0.3  # else all points would look alike
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["certainty .2", ".6", "1"]


@pytest.mark.parametrize("most", [2_000, 30])
def test_a_layout_is_drawn_without_ticks_by_cluster_and_certainty(some_run: Run, most: int) -> None:
    found = Layout(np.random.default_rng(0).normal(size=(60, 2)), some_run.distinct, "t-sne", "spectral embedding")
    ax = plots.layout(some_run, Figure().subplots(), precomputed=found, most=most)
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("Layout by t-SNE", "t-SNE 1", "t-SNE 2")
    assert len(ax.get_xticks()) == len(ax.get_yticks()) == 0
    seen = []
    for cluster, drawn in enumerate(ax.collections[:C]):
        for offset, opacity in zip(drawn.get_offsets(), drawn.get_facecolors()[:, 3], strict=True):
            sample = int(np.argmin(np.square(found.points - offset).sum(axis=1)))
            assert some_run.labels[sample] == cluster
            assert opacity == pytest.approx(max(some_run.certainty[sample], 0.15), abs=0.0051)
            seen.append(sample)
    assert len(set(seen)) == min(most, 60)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1", "2"]
    numbers = {text.get_text(): text.xy for text in ax.texts}
    assert sorted(numbers) == ["0", "1", "2"]
    for number, place in numbers.items():  # at a sample of the cluster
        at = np.flatnonzero((found.points == place).all(axis=1))
        assert some_run.labels[at].tolist() == [int(number)]


def test_a_layout_of_some_rows_has_the_labels_of_these(some_run: Run) -> None:
    some = np.arange(1, 60, 3)
    found = Layout(np.random.default_rng(0).normal(size=(20, 2)), some, "umap", "spectral embedding")
    ax = plots.layout(some_run, Figure().subplots(), precomputed=found)
    drawn = [len(mark.get_offsets()) for mark in ax.collections[:C]]
    assert drawn == np.bincount(some_run.labels[some], minlength=C).tolist()


@pytest.fixture(scope="module")
def layered() -> Run:
    """Four groups of three blobs: (600, 8)."""
    return run(blobs_of_blobs(600, 8, 0)[0], Params(n_clusters=4))


@pytest.mark.parametrize("size", [(4.7, 3.3), (9.0, 5.0)])
def test_layers_are_rows_of_nodes_that_do_not_overlap_and_lines_that_do_not_cross(
    layered: Run, size: tuple[float, float]
) -> None:
    found = layered.layers
    assert [layer.n_clusters for layer in found] == [4, 12]
    ax = plots.layers(layered, Figure(size, layout="constrained").subplots())
    ax.figure.draw_without_rendering()
    scale = ax.get_window_extent().width / np.diff(ax.get_xlim())[0] * 72 / ax.figure.dpi
    rows = [np.asarray(nodes.get_offsets()) for nodes in ax.collections]
    for row, (layer, nodes, places) in enumerate(zip(found, ax.collections, rows, strict=True)):
        assert len(places) == layer.n_clusters
        assert (places[:, 1] == row).all()
        areas = nodes.get_sizes()
        np.testing.assert_allclose(areas / areas.sum(), layer.sizes / layer.sizes.sum(), rtol=1e-6)
        order = np.argsort(places[:, 0])
        across = np.sqrt(areas[order])
        assert (np.diff(places[order, 0]) * scale > (across[:-1] + across[1:]) / 2).all()
    lines = [line.get_xdata() for line in ax.lines if len(line.get_xdata())]
    assert len(lines) == sum(part.share >= 0.02 for parts in found[0].splits for part in parts)
    assert sorted(x for _, x in lines) == sorted(rows[1][:, 0])
    assert not any((a[0] - b[0]) * (a[1] - b[1]) < 0 for a in lines for b in lines)
    tones = [text.get_text() for text in ax.get_yticklabels()]
    assert tones == [f"{layer.n_clusters} clusters\nstability {layer.stability:.2f}" for layer in found]
    numbers = [text.get_text() for text in ax.texts]
    assert numbers == [str(k) for layer in found for k in range(layer.n_clusters)]


def test_clusters_of_a_layer_are_the_darker_the_more_they_persist(layered: Run) -> None:
    ax = plots.layers(layered.layers, Figure().subplots())
    for layer, nodes in zip(layered.layers, ax.collections, strict=True):
        brightness = nodes.get_facecolors()[:, :3].sum(axis=1)
        assert (np.diff(brightness[np.argsort(layer.each)]) <= 1e-9).all()


def test_without_a_layer_the_picture_says_so() -> None:
    ax = plots.layers(Layers([]), Figure().subplots())
    assert [text.get_text() for text in ax.texts] == ["no cut of the tree persists"]


def test_clusters_differ_in_colour_and_marker_together() -> None:
    n = len(PALETTE) * len(MARKERS)
    assert len({(color(i), marker(i)) for i in range(n)}) == n


@pytest.mark.parametrize(
    "draw",
    [
        plots.eigenvalues,
        plots.convergence,
        plots.similarity,
        plots.distribution,
        plots.embedding,
        plots.layers,
        plots.layout,
        plots.cluster_sizes,
        plots.silhouettes,
        plots.stage_times,
        plots.stage_memory,
    ],
)
def test_every_picture_is_drawn_on_the_axis_it_is_given(
    draw: Any, some_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_kernel, "available", lambda: False)  # t-SNE: UMAP takes many seconds to compile
    ax = Figure().subplots()
    assert draw(some_run, ax=ax) is ax
    ax.figure.savefig(io.BytesIO(), format="png", dpi=40)
    assert ax.get_title(loc="left")
    assert ax.get_xlabel()


def test_the_criteria_of_a_sweep_are_three_panels_with_the_best_point_ringed() -> None:
    names = ("rank", "n_clusters", "n_neighbors", "sigma", "stability", "modularity", "score")
    table = [(2, 3, 5, 1.0, 0.5, 0.4, 2.0), (1, 4, 5, 1.0, 0.9, 0.6, 1.0), (3, 4, 7, 1.0, 0.2, 0.1, 3.0)]
    axes = Figure(layout="constrained").subplots(1, 3).tolist()
    plots.criteria([dict(zip(names, row, strict=True)) for row in table], axes)
    assert [ax.get_ylabel() for ax in axes] == ["stability", "modularity", "score"]
    for ax, column in zip(axes, range(4, 7), strict=True):
        *lines, ring = (line.get_xydata().tolist() for line in ax.lines)
        assert lines == [[[3, table[0][column]], [4, table[1][column]]], [[4, table[2][column]]]]
        assert ring == [[4, table[1][column]]]
    assert [text.get_text() for text in axes[0].figure.legends[0].get_texts()] == ["k = 5", "k = 7"]


def test_a_sweep_is_drawn_over_words_and_mixed_values_too() -> None:
    """Of the parameters the one with the most values has the axis, numbers before words."""
    values = [("mean", "none"), (2.0, "none"), (0.5, "zscore"), ("mean", "zscore")]
    rows = [
        {"rank": n + 1, "n_clusters": 5, "bandwidth": b, "scale": s, **dict.fromkeys(plots.run.CRITERIA, n)}
        for n, (b, s) in enumerate(values)
    ]
    axes = Figure(layout="constrained").subplots(1, 3).tolist()
    plots.criteria(rows, axes)
    assert [text.get_text() for text in axes[0].get_xticklabels()] == ["0.5", "2", "mean"]
    assert [line.get_xydata().tolist() for line in axes[0].lines] == [[[1, 1], [2, 0]], [[0, 2], [2, 3]], [[2, 0]]]
    assert axes[0].get_xlabel() == "bandwidth"


def test_a_saved_figure_is_the_same_bytes_again_and_nothing_leaves_it(some_run: Run) -> None:
    files = []
    for _ in range(2):
        with sheet(4.7, 3.3) as figure:
            plots.silhouettes(some_run, figure.subplots())
            files.append(saved(figure))
            box = figure.get_tightbbox()
            assert min(box.x0, box.y0) > -0.03
            assert box.x1 < 4.73
            assert box.y1 < 3.33
    assert files[0] == files[1]
    assert files[0].startswith(b"\x89PNG")

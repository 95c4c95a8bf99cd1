"""The clusters: samples as points and their silhouettes, as numbers and pictures, sizes, and the layers as a tree."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sklearn
from sklearn.isotonic import isotonic_regression
from sklearn.metrics import silhouette_samples
from sklearn.metrics.pairwise import euclidean_distances

from ips2_dask.plots.similarities import Summary, summarize
from ips2_dask.plots.style import INK, LAYOUTS, MUTED, SEQUENTIAL, axis, bar, halo, legend, look, scale, titled
from ips2_dask.runs.layers import Layer, Layers
from ips2_dask.runs.layout import Layout
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import shown
from ips2_dask.typing import Float, Float32, Float64, Int32, Int64, Integer

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

SAMPLED = 10_000
"""Samples above which silhouettes are those of a seeded sample: they compare every pair."""


class Points(NamedTuple):
    """The vectors of the samples that were clustered, or their nearest substitute."""

    values: Float64  #: (m, d)
    what: str


class Coordinates(NamedTuple):
    """Samples in the directions in which the clusters' centres spread most."""

    values: Float64  #: (m, 2 or 3)
    shares: Float64  #: (2 or 3,) of the spread between the centres
    what: str


class Silhouettes(NamedTuple):
    """Silhouettes of some samples."""

    samples: Int64  #: (n,) ascending
    values: Float64  #: (n,)


class Certainty(NamedTuple):
    """How far each sample is from its own cluster's centre and from the next one's."""

    margin: Float64  #: (m,) (b - a) / max(a, b) of the distances a to the own centre, b to the nearest other one
    other: Int64  #: (m,) the cluster of that other centre


def points(run: Run, summary: Summary | None = None) -> Points:
    """The stored embedding of the samples shown; after k-means on rows of U, the mean similarity to each cluster.

    All samples are shown but of a very large run: see `ips2_dask.runs.sample.shown`.
    """
    run = shown(run)
    stored = run.embedding
    if stored is not None:
        return Points(stored, "spectral embedding")
    if summary is None or summary.profile is None:
        summary = summarize(run, cells=2, profile=True)
    assert summary.profile is not None
    length = np.linalg.norm(summary.profile, axis=1, keepdims=True)
    return Points(summary.profile / np.where(length > 0, length, 1.0), "mean similarity to each cluster")


def coordinates(rows: Points, labels: Integer, most: int = 3) -> Coordinates:
    """The principal axes of the clusters' centres, weighted by size; ties are broken by those of all points."""
    X, what = rows
    sizes = np.bincount(labels)
    mean = X.mean(axis=0)
    spread = centers(X, labels) - mean
    between = (spread * sizes[:, None]).T @ spread / len(X)
    total = X.T @ X / len(X) - np.outer(mean, mean)
    # two clusters have one direction between them: the second coordinate is then where the points themselves vary
    values, vectors = np.linalg.eigh(between + 1e-6 * total)
    vectors = vectors[:, ::-1][:, : min(most, X.shape[1])]
    vectors *= np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])])
    shares = values[::-1][: vectors.shape[1]] / max(float(values.clip(0).sum()), np.finfo(float).tiny)
    return Coordinates((X - mean) @ vectors, shares, what)


def centers(X: Float64, labels: Integer) -> Float64:
    """Mean of the samples ``X`` (m, d) of each cluster: (c, d)."""
    sizes = np.bincount(labels)
    sums = [np.bincount(labels, column, len(sizes)) for column in X.T]
    means: Float64 = np.stack(sums, axis=1) / np.maximum(sizes, 1)[:, None]
    return means


def silhouette(rows: Points, labels: Integer, *, most: int = SAMPLED, seed: int = 0) -> Silhouettes:
    """Silhouettes of all samples, or of a seeded sample of ``most`` of them; 0 where a cluster is alone."""
    m = len(labels)
    chosen = np.arange(m) if m <= most else np.sort(np.random.default_rng([seed, 21]).choice(m, most, replace=False))
    some = labels[chosen]
    if not 2 <= len(np.unique(some)) < len(some):
        return Silhouettes(chosen, np.zeros(len(chosen)))
    with sklearn.config_context(working_memory=64):
        return Silhouettes(chosen, np.asarray(silhouette_samples(rows.values[chosen], some), np.float64))


def certainty(found: Points, labels: Integer) -> Certainty:
    """The margin of each sample, and the next cluster; a margin near 0 or below means a doubtful label."""
    d, rows = euclidean_distances(found.values, centers(found.values, labels)), np.arange(len(labels))
    d[:, np.bincount(labels) == 0] = np.inf  # clusters that none of the samples shown is of
    a = d[rows, labels]
    d[rows, labels] = np.inf
    other = np.argmin(d, axis=1)
    b = d[rows, other]
    with np.errstate(invalid="ignore"):  # inf / inf, where there is one cluster
        ratio = (b - a) / np.maximum(np.maximum(a, b), np.finfo(float).tiny)
    return Certainty(np.where(np.isfinite(b), ratio, 1.0), other)


# ---- pictures of points

DRAWN = 2_000  # points of a scatter: more would hide one another
PALEST = 0.15  # opacity of the points of the lowest certainty, which stay visible
LISTED = 20  # clusters up to which a layout has a legend of them; more would be taller than the picture
STRIPS = 120  # steps of the stairs that draw the silhouettes, over all clusters together


def layout(run: Run, ax: Axes | None = None, *, precomputed: Layout | None = None, most: int = DRAWN) -> Axes:
    """Draw the samples in the plane as `Run.layout` has them, each cluster with a colour, a marker and its number.

    The lower a sample's certainty (`Run.certainty`), the paler its point. Places have no unit and no direction, so
    that the axes have no ticks.

    Parameters
    ----------
    precomputed : Layout, optional
        `Run.layout`, or another layout of rows of this run.
    most : int
        Points that are drawn, a seeded sample of those that were laid out.
    """
    run = shown(run)
    found = run.layout if precomputed is None else precomputed
    labels, sure = _labels_at(run, found.samples)
    ax, count = axis(ax, grid=None), int(labels.max(initial=-1)) + 1
    certainties = _scatter(ax, found.points, labels, sure, most)
    for cluster in range(count):
        own = found.points[labels == cluster]
        if len(own):
            middle = np.median(own, axis=0)  # which may be far from all, between two parts of a cluster
            _number(ax, cluster, own[np.argmin(np.square(own - middle).sum(axis=1))])
    if count <= LISTED:
        marks = [ax.scatter([], [], s=16, **look(cluster)) for cluster in range(count)]
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handletextpad": 0.1}
        names = [str(cluster) for cluster in range(count)]
        title = legend(ax, marks, names, title="cluster", title_fontproperties={"size": "small"}, **place).get_title()
        title.set_color(INK)
        ax.add_artist(certainties)  # a second legend takes the place of the first
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_aspect("equal", adjustable="datalim")
    name = LAYOUTS[found.method]
    return titled(ax, f"Layout by {name}", f"{name} 1", f"{name} 2")


def _labels_at(run: Run, rows: Int64) -> tuple[Int32, Float32]:
    """Labels and certainty, (n,) each, of some rows, ascending."""
    labels, certainty = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    for block in run.iter_labels():
        low, high = np.searchsorted(rows, [block.first, block.first + len(block.labels)])
        own = rows[low:high] - block.first
        labels[low:high], certainty[low:high] = block.labels[own], block.certainty[own]
    return labels, certainty


def embedding(
    run: Run,
    ax: Axes | None = None,
    *,
    axes: tuple[int, int] = (0, 1),
    precomputed: Coordinates | None = None,
    most: int = DRAWN,
) -> Axes:
    """Draw the embedding as a scatter, each cluster with a colour and a marker of its own and its number.

    The lower a sample's certainty (`Run.certainty`), the paler its point.

    Parameters
    ----------
    axes : (int, int)
        Which of the discriminating coordinates, from 0 on.
    precomputed : Coordinates, optional
        The answer of `coordinates`, if it is computed already.
    most : int
        Points that are drawn, a seeded sample of all.
    """
    run = shown(run)
    labels, ax = run.labels, axis(ax)
    found = coordinates(points(run), labels) if precomputed is None else precomputed
    positions = found.values[:, list(axes)]
    _scatter(ax, positions, labels, run.certainty, most)
    for cluster in np.unique(labels).tolist():
        _number(ax, cluster, np.median(positions[labels == cluster], axis=0))
    names = [f"coordinate {a + 1} ({found.shares[a]:.0%})" for a in axes]
    return titled(ax, f"Coordinates {axes[0] + 1} and {axes[1] + 1}", *names)


def _number(ax: Axes, cluster: int, place: Float) -> None:
    halo(ax.annotate(str(cluster), (place[0], place[1]), ha="center", va="center", color=INK, fontweight="bold"))


def _scatter(ax: Axes, positions: Float, labels: Integer, certainty: Float, most: int) -> Legend:
    """Draw at most so many points, a seeded sample of all, as pale as their labels are uncertain, and a legend of that.

    Positions are (m, 2), labels and certainty (m,).
    """
    m = len(labels)
    chosen = np.arange(m) if m <= most else np.sort(np.random.default_rng(20).choice(m, most, replace=False))
    area, alpha = 26 if len(chosen) <= 300 else 12, np.clip(certainty, PALEST, 1.0)
    for cluster in range(int(labels.max(initial=-1)) + 1):
        some = chosen[labels[chosen] == cluster]
        x, y = positions[some].T
        ax.scatter(x, y, s=area, alpha=alpha[some], **look(cluster))
    tones = [ax.scatter([], [], s=26, alpha=a, **look(0) | {"facecolor": INK}) for a in (0.2, 0.6, 1.0)]
    return scale(ax, tones, ["certainty .2", ".6", "1"])


def cluster_sizes(run: Run, ax: Axes | None = None) -> Axes:
    """Draw how many samples each cluster has."""
    ax = axis(ax, grid="x")
    for cluster, n in enumerate(run.sizes):
        ax.barh(cluster, n, 0.78, linewidth=1.2, **bar(cluster))
        text = ax.annotate(f"{n:,}", (n, cluster), (3, 0), textcoords="offset points", va="center", color=INK)
        text.set_fontsize("small")
    ax.margins(x=0.14)
    _numbered(ax, len(run.sizes))
    return titled(ax, "Cluster sizes", "samples", "cluster")


def silhouettes(run: Run, ax: Axes | None = None, *, precomputed: Silhouettes | None = None) -> Axes:
    """Draw each cluster's silhouettes, sorted, and their mean.

    Parameters
    ----------
    precomputed : Silhouettes, optional
        The answer of `silhouette`, if it is computed already.
    """
    run = shown(run)
    labels = run.labels
    found = silhouette(points(run), labels) if precomputed is None else precomputed
    ax, count = axis(ax, grid="x"), int(labels.max()) + 1
    for cluster in range(count):
        values = np.sort(found.values[labels[found.samples] == cluster])[::-1]
        n = min(max(8, STRIPS // count), len(values))
        if n:  # a stair of n steps within the cluster's row
            levels = [float(part.mean()) for part in np.array_split(values, n)]
            edges = np.repeat(cluster - 0.4 + 0.8 * np.arange(n + 1) / n, 2)[1:-1]
            ax.fill_betweenx(edges, 0, np.repeat(levels, 2), linewidth=1, **bar(cluster))
    mean = float(found.values.mean())
    ax.axvline(mean, color=INK, linestyle="--", linewidth=1)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    text = ax.annotate(f"mean {mean:.2f}", (mean, count - 0.5), (-3, 1), textcoords="offset points", color=INK)
    halo(text).set(ha="right", va="bottom", fontsize="small")
    ax.set_xlim(min(-0.05, float(found.values.min())), 1.02)
    _numbered(ax, count)
    return titled(ax, "Silhouettes", "silhouette", "cluster")


def _numbered(ax: Axes, count: int) -> None:
    """Order the clusters from the top down, and number at most 40 of them, so that the numbers can be read."""
    ax.set_yticks(range(0, count, -(-count // 40)))
    ax.set_ylim(count - 0.45, -0.55)


# ---- layers

WIDEST, NARROWEST = 42.0, 3.0  # diameters of nodes in points
NUMBERED, DIGIT = 11.0, 5.0  # diameter from which on a digit fits inside, and what each further one takes
ROOM = 13.0  # points for each cluster of a row from which on numbers stand below nodes that are too small
THICKEST, THINNEST = 7.0, 0.4  # widths of lines in points: of a whole cluster that goes on, and the least
LEAST_SHARE = 0.02  # of a cluster, below which no line is drawn
INSIDE = 0.8  # share of an axis' width that nodes take before Matplotlib has made room for the labels
DARKEST = 0.85  # tone of the largest persistence: a number can still be read on it


def layers(run: Run | Layers, ax: Axes | None = None) -> Axes:
    """Draw `Run.layers` as a tree, the coarsest layer at the top.

    Each cluster is a node, its area by its rows and the darker the larger its persistence. Lines go to the clusters
    of the next finer layer that have a part of it, their width by the share of the cluster that goes there; shares
    below 2 % are left out. Clusters stand below the one that most of their rows come from.
    """
    found = run if isinstance(run, Layers) else run.layers
    ax = axis(ax, grid=None)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks([])
    rows = range(len(found))
    extent = ax.get_window_extent()
    points = 72.0 / ax.figure.dpi
    width, height = INSIDE * extent.width * points, INSIDE * extent.height * points
    diameters, places = _arranged(found, width, height)
    for row, layer in enumerate(found[:-1]):
        thickest = min(THICKEST, 0.6 * float(np.median(diameters[row + 1])))
        for x, parts in zip(places[row], layer.splits, strict=True):
            for part in parts:
                if part.share >= LEAST_SHARE:
                    ends, wide = [x, places[row + 1][part.cluster]], max(THINNEST, thickest * part.share)
                    line = ax.plot(ends, [row, row + 1], color=MUTED, alpha=0.45, linewidth=wide, zorder=1)[0]
                    line.set_solid_capstyle("butt")
    for row, (layer, across, x) in enumerate(zip(found, diameters, places, strict=True)):
        _nodes(ax, layer, row, across, x, width / layer.n_clusters >= ROOM)
    ax.set_yticks(rows, [f"{layer.n_clusters} clusters\nstability {layer.stability:.2f}" for layer in found])
    ax.set_xlim(-0.01 * width, 1.01 * width)
    ax.set_ylim(len(found) - 0.4, -0.6)
    if len(found):
        marks = [
            ax.plot([], [], "o", markersize=6, markerfacecolor=_tone(value), markeredgecolor=INK, markeredgewidth=0.6)
            for value in (0.1, 0.5, 0.9)
        ]
        scale(ax, [mark[0] for mark in marks], ["persistence .1", ".5", ".9"])
    else:
        ax.annotate("no cut of the tree persists", (0.5, 0.5), xycoords="axes fraction", ha="center", color=MUTED)
    return titled(ax, "Layers", "area: rows; width of a line: share that goes there")


def _arranged(found: Layers, width: float, height: float) -> tuple[list[Float64], list[Float64]]:
    """Diameter of each cluster's node and its place from the left, in points, layer by layer.

    Nodes are as large as fit side by side. Clusters with most rows from one cluster stand beside each other, so that
    the thickest lines to a cluster cross none of the other clusters', and above the middle of those they split into.
    """
    roots = [np.sqrt(layer.sizes / layer.sizes.sum()) for layer in found]
    most = min([WIDEST, 0.6 * height / max(len(found), 1), *(0.75 * width / root.sum() for root in roots)])
    diameters: list[Float64] = [np.maximum(most * root, NARROWEST) for root in roots]
    flows = [_flows(above, below.n_clusters) for above, below in itertools.pairwise(found)]
    orders = [np.arange(len(root)) for root in roots[:1]]
    for rows in flows:
        rank = np.argsort(orders[-1])
        middle = (rows * rank[:, None]).sum(axis=0) / np.maximum(rows.sum(axis=0), 1e-9)
        orders.append(np.lexsort((np.arange(rows.shape[1]), middle, rank[rows.argmax(axis=0)])))
    places: list[Float64] = [np.empty(len(root)) for root in roots]
    for row in reversed(range(len(found))):
        own, across = orders[row], diameters[row]
        apart = (across[own][:-1] + across[own][1:]) / 2  # where nodes touch
        if row == len(found) - 1:
            free = max(width - float(across.sum()), 0.0) / len(own)
            wanted = across[own[0]] / 2 + free / 2 + np.concatenate([[0.0], np.cumsum(apart + free)])
        else:
            rows = flows[row]
            main = np.where(rows.argmax(axis=0) == np.arange(len(rows))[:, None], rows, 0.0)
            weights = np.where(main.any(axis=1, keepdims=True), main, rows)[own]
            wanted = weights @ places[row + 1] / weights.sum(axis=1)
        offsets = np.concatenate([[0.0], np.cumsum(1.05 * apart + 1.0)])
        places[row][own] = isotonic_regression(wanted - offsets) + offsets
    return diameters, places


def _flows(layer: Layer, n_finer: int) -> Float64:
    """Rows that each cluster shares with each of the next finer layer: (clusters, finer)."""
    rows = np.zeros((layer.n_clusters, n_finer))
    for cluster, parts in enumerate(layer.splits):
        for part in parts:
            rows[cluster, part.cluster] = part.share * layer.sizes[cluster]
    return rows


def _nodes(ax: Axes, layer: Layer, row: int, diameters: Float64, places: Float64, has_room: bool) -> None:
    """Draw a layer's clusters and their numbers: inside large ones, below small ones where there is room."""
    tones = [_tone(value) for value in layer.each.tolist()]
    looks: dict[str, Any] = {"facecolor": tones, "edgecolor": INK, "linewidth": 0.6, "zorder": 2}
    ax.scatter(places, np.full(len(places), row), s=np.square(diameters), **looks)
    for cluster, (x, across) in enumerate(zip(places, diameters, strict=True)):
        inside = across >= NUMBERED + DIGIT * (len(str(cluster)) - 1)
        if inside or has_room:
            offset, side = (0.0, "center") if inside else (-across / 2 - 1.5, "top")
            number = ax.annotate(str(cluster), (x, row), (0, offset), textcoords="offset points", va=side, zorder=3)
            halo(number).set(ha="center", color=INK, fontsize="small")


def _tone(persistence: float) -> tuple[float, float, float, float]:
    """The colour of a node."""
    from matplotlib import colormaps  # noqa: PLC0415  the extra [report]

    red, green, blue, alpha = colormaps[SEQUENTIAL](DARKEST * min(max(persistence, 0.0), 1.0))
    return red, green, blue, alpha

"""The clusters: layout and embedding as scatters, sizes, silhouettes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ips2_dask.plots.points import Coordinates, Silhouettes, coordinates, points, silhouette, stored_certainty
from ips2_dask.plots.style import INK, LAYOUTS, MUTED, PAPER, axis, color, halo, hatch, marker, titled
from ips2_dask.runs.layout import Layout, labels_at
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import shown

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

DRAWN = 2_000
"""Points of a scatter: more would hide one another."""

PALEST = 0.15
"""Opacity of the points of the lowest certainty, which stay visible."""

LISTED = 20
"""Clusters up to which a layout has a legend of them; more would be taller than the picture."""

STRIPS = 120
"""Steps of the stairs that draw the silhouettes, over all clusters together."""


def layout(run: Run, ax: Axes | None = None, *, precomputed: Layout | None = None, most: int = DRAWN) -> Axes:
    """Draw the samples in the plane as `Run.layout` has them, each cluster with a colour, a marker and its number.

    The lower a sample's certainty (`Run.certainty`), the paler its point. Places have no unit and no direction, so
    that the axes have no ticks.

    Parameters
    ----------
    run : Run
    ax : matplotlib.axes.Axes, optional
        None takes pyplot's current one.
    precomputed : Layout, optional
        `Run.layout`, or another layout of rows of this run.
    most : int
        Points that are drawn, a seeded sample of those that were laid out.

    Returns
    -------
    matplotlib.axes.Axes
    """
    run = shown(run)
    found = run.layout if precomputed is None else precomputed
    labels, sure = labels_at(run.iter_labels(), found.samples)
    ax = axis(ax, grid=None)
    positions, count = found.points, int(labels.max(initial=-1)) + 1
    _scatter(ax, positions, labels, sure, most)
    for cluster in range(count):
        own = positions[labels == cluster]
        if not len(own):
            continue
        middle = np.median(own, axis=0)  # which may be far from all, between two parts of a cluster
        nearest = own[np.argmin(np.square(own - middle).sum(axis=1))]
        halo(ax.annotate(str(cluster), nearest, ha="center", va="center", color=INK, fontweight="bold"))
    certainties = None if sure is None else _certainties(ax)
    if count <= LISTED:
        marks = [
            ax.scatter([], [], s=16, marker=marker(cluster), facecolor=color(cluster), edgecolor=PAPER, linewidth=0.3)
            for cluster in range(count)
        ]
        legend = ax.legend(
            marks,
            [str(cluster) for cluster in range(count)],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            labelcolor=INK,
            fontsize="small",
            handletextpad=0.1,
            title="cluster",
            title_fontproperties={"size": "small"},
        )
        legend.get_title().set_color(INK)
        if certainties is not None:
            ax.add_artist(certainties)  # a second legend takes the place of the first
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_aspect("equal", adjustable="datalim")
    name = LAYOUTS[found.method]
    return titled(ax, f"Layout by {name}", f"{name} 1", f"{name} 2")


def embedding(
    run: Run,
    ax: Axes | None = None,
    *,
    axes: tuple[int, int] = (0, 1),
    precomputed: Coordinates | None = None,
    most: int = DRAWN,
) -> Axes:
    """Draw the embedding as a scatter, each cluster with a colour and a marker of its own and its number.

    The lower a sample's certainty (`Run.certainty`), the paler its point. A run of an earlier version keeps no
    certainty: none of its points is pale.

    Parameters
    ----------
    run : Run
    ax : matplotlib.axes.Axes, optional
        None takes pyplot's current one.
    axes : (int, int)
        Which of the discriminating coordinates, from 0 on.
    precomputed : Coordinates, optional
        The answer of `coordinates`, if it is computed already.
    most : int
        Points that are drawn, a seeded sample of all.

    Returns
    -------
    matplotlib.axes.Axes
    """
    run = shown(run)
    labels = run.labels
    precomputed = coordinates(points(run), labels) if precomputed is None else precomputed
    ax = axis(ax)
    sure = stored_certainty(run)
    positions = precomputed.values[:, list(axes)]
    _scatter(ax, positions, labels, sure, most)
    for cluster in range(int(labels.max()) + 1):
        if not (labels == cluster).any():  # none of them was drawn
            continue
        middle = np.median(positions[labels == cluster], axis=0)
        halo(ax.annotate(str(cluster), middle, ha="center", va="center", color=INK, fontweight="bold"))
    if sure is not None:
        _certainties(ax)
    names = [f"coordinate {a + 1} ({precomputed.shares[a]:.0%})" for a in axes]
    return titled(ax, f"Coordinates {axes[0] + 1} and {axes[1] + 1}", *names)


def _scatter(
    ax: Axes,
    positions: NDArray[np.floating],
    labels: NDArray[np.integer],
    certainty: NDArray[np.floating] | None,
    most: int,
) -> None:
    """Draw at most so many points, a seeded sample of all, as pale as their labels are uncertain."""
    m = len(labels)
    chosen = np.arange(m) if m <= most else np.sort(np.random.default_rng(20).choice(m, most, replace=False))
    size = 26 if len(chosen) <= 300 else 12
    alpha = None if certainty is None else opacity(certainty)
    for cluster in range(int(labels.max(initial=-1)) + 1):
        some = chosen[labels[chosen] == cluster]
        x, y = positions[some].T
        ax.scatter(
            x,
            y,
            s=size,
            marker=marker(cluster),
            facecolor=color(cluster),
            edgecolor=PAPER,
            linewidth=0.3,
            alpha=None if alpha is None else alpha[some],
        )


def opacity(certainty: NDArray[np.floating]) -> NDArray[np.floating]:
    """Opacity of each sample's point, (m,): the certainty of its label, but at least `PALEST`."""
    alpha: NDArray[np.floating] = np.clip(certainty, PALEST, 1.0).round(2)  # more digits would only make a page longer
    return alpha


def _certainties(ax: Axes) -> Legend:
    """Draw a legend of three certainties on the line of the title."""
    shown = np.array([0.2, 0.6, 1.0])
    marks = [
        ax.scatter([], [], s=26, marker="o", facecolor=INK, edgecolor=PAPER, linewidth=0.3, alpha=alpha)
        for alpha in opacity(shown).tolist()
    ]
    return ax.legend(
        marks,
        ["certainty .2", ".6", "1"],
        ncols=3,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        labelcolor=INK,
        fontsize="small",
        handletextpad=0.1,
        columnspacing=0.8,
        borderaxespad=0.2,
    )


def cluster_sizes(labels: Run | NDArray[np.integer], ax: Axes | None = None) -> Axes:
    """Draw how many samples each cluster has.

    Parameters
    ----------
    labels : Run or (m,) int
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    sizes = labels.sizes if isinstance(labels, Run) else np.bincount(labels)
    ax = axis(ax, grid="x")
    for cluster, n in enumerate(sizes):
        ax.barh(cluster, n, 0.78, facecolor="none", edgecolor=color(cluster), hatch=hatch(cluster), linewidth=1.2)
        text = ax.annotate(f"{n:,}", (n, cluster), (3, 0), textcoords="offset points", va="center", color=INK)
        text.set_fontsize("small")
    ax.margins(x=0.14)
    _numbered(ax, len(sizes))
    return titled(ax, "Cluster sizes", "samples", "cluster")


def silhouettes(
    run: Run,
    ax: Axes | None = None,
    *,
    precomputed: Silhouettes | None = None,
    labels: NDArray[np.integer] | None = None,
) -> Axes:
    """Draw each cluster's silhouettes, sorted, and their mean.

    Parameters
    ----------
    run : Run
    ax : matplotlib.axes.Axes, optional
    precomputed : Silhouettes, optional
        The answer of `silhouette`, if it is computed already.
    labels : (m,) int, optional
        Instead of the run's.

    Returns
    -------
    matplotlib.axes.Axes
    """
    run = shown(run)
    labels = run.labels if labels is None else labels
    precomputed = silhouette(points(run), labels) if precomputed is None else precomputed
    ax = axis(ax, grid="x")
    count = int(labels.max()) + 1
    for cluster in range(count):
        values = np.sort(precomputed.values[labels[precomputed.samples] == cluster])[::-1]
        if len(values):
            _strip(ax, cluster, values, max(8, STRIPS // count))
    mean = float(precomputed.values.mean())
    ax.axvline(mean, color=INK, linestyle="--", linewidth=1)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    text = ax.annotate(f"mean {mean:.2f}", (mean, count - 0.5), (-3, 1), textcoords="offset points", color=INK)
    halo(text).set(ha="right", va="bottom", fontsize="small")
    ax.set_xlim(min(-0.05, float(precomputed.values.min())), 1.02)
    _numbered(ax, count)
    return titled(ax, "Silhouettes", "silhouette", "cluster")


def _strip(ax: Axes, cluster: int, values: NDArray[np.float64], steps: int) -> None:
    """Draw a cluster's silhouettes, (n,) descending, as a stair of at most ``steps`` steps within its row."""
    n = min(steps, len(values))
    levels = [float(part.mean()) for part in np.array_split(values, n)]
    edges = cluster - 0.4 + 0.8 * np.arange(n + 1) / n
    ax.fill_betweenx(
        np.repeat(edges, 2)[1:-1],
        0,
        np.repeat(levels, 2),
        facecolor="none",
        edgecolor=color(cluster),
        hatch=hatch(cluster),
        linewidth=1,
    )


def _numbered(ax: Axes, count: int) -> None:
    """Order the clusters from the top down, and number at most 40 of them, so that the numbers can be read."""
    step = -(-count // 40)
    ax.set_yticks(range(0, count, step))
    ax.set_ylim(count - 0.45, -0.55)

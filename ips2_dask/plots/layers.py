"""The layers of clusters as a tree: a row for each layer, a node for each cluster, lines to what it splits into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.isotonic import isotonic_regression

from ips2_dask.plots.style import INK, MUTED, SEQUENTIAL, axis, halo, titled
from ips2_dask.runs.layers import Layer, Layers
from ips2_dask.runs.run import Run
from ips2_dask.typing import Float64, Int64

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes


WIDEST, NARROWEST = 42.0, 3.0
"""Diameters of nodes in points, at most and at least."""

NUMBERED, DIGIT = 11.0, 5.0
"""Diameter from which on a node has its number inside, of one digit, and what each further digit takes."""

ROOM = 13.0
"""Points for each cluster of a row from which on numbers stand below nodes that are too small."""

THICKEST, THINNEST = 7.0, 0.4
"""Widths of lines in points: of a whole cluster that goes on, and the least."""

LEAST_SHARE = 0.02
"""Share of a cluster below which no line is drawn."""

INSIDE = 0.8
"""Share of an axis' width that nodes take before Matplotlib has made room for the labels."""

DARKEST = 0.85
"""Tone of the largest persistence: a number can still be read on it."""


def layers(run: Run | Layers, ax: Axes | None = None) -> Axes:
    """Draw `Run.layers` as a tree, the coarsest layer at the top.

    Each cluster is a node, its area by its rows and the darker the larger its persistence. Lines go to the clusters
    of the next finer layer that have a part of it, their width by the share of the cluster that goes there; shares
    below 2 % are left out. Clusters stand below the one that most of their rows come from.

    Parameters
    ----------
    run : Run or Layers
    ax : matplotlib.axes.Axes, optional
        None takes pyplot's current one.

    Returns
    -------
    matplotlib.axes.Axes
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
    diameters = _diameters(found, width, height)
    places = _places(found, diameters, width)
    for row, layer in enumerate(found[:-1]):
        thickest = min(THICKEST, 0.6 * float(np.median(diameters[row + 1])))
        _lines(ax, layer, row, places[row], places[row + 1], thickest)
    for row, (layer, across, x) in enumerate(zip(found, diameters, places, strict=True)):
        _nodes(ax, layer, row, across, x, width / layer.n_clusters >= ROOM)
    ax.set_yticks(rows, [f"{layer.n_clusters} clusters\nstability {layer.stability:.2f}" for layer in found])
    ax.set_xlim(-0.01 * width, 1.01 * width)
    ax.set_ylim(len(found) - 0.4, -0.6)
    if len(found):
        _legend(ax)
    else:
        ax.annotate("no cut of the tree persists", (0.5, 0.5), xycoords="axes fraction", ha="center", color=MUTED)
    return titled(ax, "Layers", "area: rows; width of a line: share that goes there")


def order(found: Layers) -> list[Int64]:
    """The clusters of each layer from the left to the right: those with most rows from one cluster beside each other.

    So the thickest lines to a cluster cross none of the other clusters'.
    """
    orders: list[Int64] = []
    for row, layer in enumerate(found):
        if row == 0:
            orders.append(np.arange(layer.n_clusters))
            continue
        above, rank = found[row - 1], np.argsort(orders[-1])
        rows = _flows(above, layer.n_clusters)
        parent = rows.argmax(axis=0)
        middle = (rows * rank[:, None]).sum(axis=0) / np.maximum(rows.sum(axis=0), 1e-9)
        orders.append(np.lexsort((np.arange(layer.n_clusters), middle, rank[parent])))
    return orders


def _flows(layer: Layer, n_finer: int) -> Float64:
    """Rows that each cluster shares with each of the next finer layer: (clusters, finer)."""
    rows = np.zeros((layer.n_clusters, n_finer))
    for cluster, parts in enumerate(layer.splits):
        for part in parts:
            rows[cluster, part.cluster] = part.share * layer.sizes[cluster]
    return rows


def _diameters(found: Layers, width: float, height: float) -> list[Float64]:
    """The diameter of each cluster's node in points, as large as fit side by side, row below row."""
    most = min(WIDEST, 0.6 * height / max(len(found), 1))
    for layer in found:
        shares = np.sqrt(layer.sizes / layer.sizes.sum())
        most = min(most, 0.75 * width / shares.sum())
    return [np.maximum(most * np.sqrt(layer.sizes / layer.sizes.sum()), NARROWEST) for layer in found]


def _places(found: Layers, diameters: list[Float64], width: float) -> list[Float64]:
    """Where each cluster's node stands from the left, in points: above the middle of those it splits into."""
    places: list[Float64] = [np.empty(layer.n_clusters) for layer in found]
    orders = order(found)
    for row in reversed(range(len(found))):
        own, across = orders[row], diameters[row]
        n = len(own)
        apart = (across[own][:-1] + across[own][1:]) / 2  # where nodes touch
        if row == len(found) - 1:
            free = max(width - float(across.sum()), 0.0) / n
            wanted = across[own[0]] / 2 + free / 2 + np.concatenate([[0.0], np.cumsum(apart + free)])
        else:
            rows = _flows(found[row], found[row + 1].n_clusters)
            main = rows.argmax(axis=0)
            wanted = np.empty(n)
            for place, cluster in enumerate(own):
                weights = np.where(main == cluster, rows[cluster], 0.0)
                weights = weights if weights.any() else rows[cluster]
                wanted[place] = float(np.average(places[row + 1], weights=weights))
        offsets = np.concatenate([[0.0], np.cumsum(1.05 * apart + 1.0)])
        places[row][own] = isotonic_regression(wanted - offsets) + offsets
    return places


def _lines(ax: Axes, layer: Layer, row: int, above: Float64, below: Float64, thickest: float) -> None:
    """Draw the lines from a layer's clusters to those of the next, at most so many points wide."""
    for cluster, parts in enumerate(layer.splits):
        for part in parts:
            if part.share >= LEAST_SHARE:
                ax.plot(
                    [above[cluster], below[part.cluster]],
                    [row, row + 1],
                    color=MUTED,
                    alpha=0.45,
                    zorder=1,
                    linewidth=max(THINNEST, thickest * part.share),
                    solid_capstyle="butt",
                )


def _nodes(ax: Axes, layer: Layer, row: int, diameters: Float64, places: Float64, has_room: bool) -> None:
    """Draw a layer's clusters and their numbers: inside large ones, below small ones where there is room."""
    ax.scatter(
        places,
        np.full(len(places), row),
        s=np.square(diameters),
        zorder=2,
        facecolor=[_tone(value) for value in layer.each.tolist()],
        edgecolor=INK,
        linewidth=0.6,
    )
    for cluster, (x, across) in enumerate(zip(places, diameters, strict=True)):
        text = str(cluster)
        inside = across >= NUMBERED + DIGIT * (len(text) - 1)
        if inside or has_room:
            offset = 0.0 if inside else -across / 2 - 1.5
            number = ax.annotate(
                text,
                (x, row),
                (0, offset),
                textcoords="offset points",
                ha="center",
                va="center" if inside else "top",
                color=INK,
                fontsize="small",
                zorder=3,
            )
            halo(number)


def _legend(ax: Axes) -> None:
    """Draw three tones with their persistence on the line of the title."""
    marks = [
        ax.plot([], [], "o", markersize=6, markerfacecolor=_tone(value), markeredgecolor=INK, markeredgewidth=0.6)[0]
        for value in (0.1, 0.5, 0.9)
    ]
    ax.legend(
        marks,
        ["persistence .1", ".5", ".9"],
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


def _tone(persistence: float) -> tuple[float, float, float, float]:
    """The colour of a node."""
    from matplotlib import colormaps  # noqa: PLC0415  the extra [report]

    red, green, blue, alpha = colormaps[SEQUENTIAL](DARKEST * min(max(persistence, 0.0), 1.0))
    return red, green, blue, alpha

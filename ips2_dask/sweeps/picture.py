"""The sweep's one figure: each criterion and the mean rank over the number of clusters, a line for each k and sigma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.plots.style import INK, MARKERS, MUTED, PALETTE, axis, titled
from ips2_dask.sweeps.result import Point, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "stability": "Stability (more is better)",
    "silhouette": "Silhouette (more is better)",
    "conductance": "Conductance (less is better)",
    "mean_rank": "Mean rank (less is better)",
}
LINES = ("-", "--", ":", "-.")


def draw(sweep: Sweep, axes: Sequence[Axes]) -> None:
    """Draw on four axes; the best point is ringed in all of them.

    Parameters
    ----------
    sweep : Sweep
    axes : sequence of 4 matplotlib.axes.Axes
    """
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        _panel(axis(ax), sweep, name)
        titled(ax, title, "clusters c", name.replace("_", " "))
    if len(_families(sweep)) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(
            handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, labelcolor=INK
        )


def _families(sweep: Sweep) -> Mapping[tuple[int, float], list[Point]]:
    """Points by k and sigma, in order of c."""
    families: dict[tuple[int, float], list[Point]] = {}
    for point in sorted(sweep.points, key=lambda p: (p.params.n_neighbors, p.params.sigma, p.params.n_clusters)):
        families.setdefault((point.params.n_neighbors, point.params.sigma), []).append(point)
    return families


def value(point: Point, name: str) -> float:
    """A criterion, or the mean rank."""
    return point.mean_rank if name == "mean_rank" else point.criteria[name]


def _panel(ax: Axes, sweep: Sweep, name: str) -> None:
    families = _families(sweep)
    ks = sorted({k for k, _ in families})
    sigmas = sorted({sigma for _, sigma in families})
    for (k, sigma), points in families.items():
        c = [point.params.n_clusters for point in points]
        ax.plot(
            c,
            [value(point, name) for point in points],
            markersize=4,
            label=f"k = {k}, sigma = {sigma:g}",
            color=PALETTE[ks.index(k) % len(PALETTE)],
            linestyle=LINES[sigmas.index(sigma) % len(LINES)],
            marker=MARKERS[sigmas.index(sigma) % len(MARKERS)],
        )
    best = sweep.best
    position = best.params.n_clusters, value(best, name)
    ax.plot(*position, marker="o", markersize=12, markerfacecolor="none", color=INK, linestyle="none")
    ax.annotate(f"{position[1]:.3g}", position, (9, 6), textcoords="offset points", color=INK, fontsize="small")
    ax.margins(y=0.12)
    counts = np.unique([point.params.n_clusters for point in sweep.points])
    if len(counts) <= 16:
        ax.set_xticks(counts)
    ax.tick_params(colors=MUTED)
    if name == "mean_rank":
        ax.invert_yaxis()

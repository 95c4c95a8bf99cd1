"""The similarities as heat maps in the order of labels, and their distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.plots.similarities import Summary, summarize
from ips2_dask.plots.style import INK, MUTED, PALETTE, SEQUENTIAL, axis, heading, titled
from ips2_dask.runs.run import Run

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

from ips2_dask.typing import Int64

LABELLED = 0.04
"""Share of all samples that a cluster must have for its number to be written on the axes."""


def similarity(run: Run | Summary, kind: str = "fused", ax: Axes | None = None) -> Axes:
    """Draw a similarity as a heat map, samples in the order of their labels, down-sampled by block means.

    Parameters
    ----------
    run : Run or Summary
    kind : {"pairwise", "high_order", "fused"}
    ax : matplotlib.axes.Axes, optional
        None takes pyplot's current one.

    Returns
    -------
    matplotlib.axes.Axes
    """
    from matplotlib.colors import Normalize, PowerNorm  # noqa: PLC0415  the extra [report]

    summary = summarize(run) if isinstance(run, Run) else run
    ax = axis(ax, grid=None)
    M = np.nan_to_num(summary.cells[kind])
    low, high = min(0.0, float(M.min())), float(M.max()) or 1.0
    # block means of a sparse matrix span decades: a root shows the weak blocks too
    norm = PowerNorm(1 / 3, low, high) if summary.sparse and low == 0 else Normalize(low, high)
    m = int(summary.limits[-1])
    image = ax.imshow(M, cmap=SEQUENTIAL, norm=norm, extent=(0, m, m, 0), interpolation="nearest")
    ax.spines[["top", "right"]].set_visible(True)
    ax.spines[:].set_color(MUTED)
    _clusters(ax, summary.limits)
    _bar(ax, image, norm)
    return titled(ax, heading(kind), "samples by cluster", "")


def _clusters(ax: Axes, limits: Int64) -> None:
    """Draw lines between the clusters, and the numbers of those that are wide enough; ``limits``: (c + 1,) int."""
    sizes, m = np.diff(limits), limits[-1]
    for limit in limits[1:-1] if len(sizes) <= 40 else ():
        ax.axhline(limit, color=MUTED, linewidth=0.4, alpha=0.45)
        ax.axvline(limit, color=MUTED, linewidth=0.4, alpha=0.45)
    roomy = np.flatnonzero(sizes >= LABELLED * m)
    middle = (limits[:-1] + limits[1:])[roomy] / 2
    ax.set_xticks(middle, [str(i) for i in roomy])
    ax.set_yticks(middle, [str(i) for i in roomy])
    ax.tick_params(length=0)


def _bar(ax: Axes, image: AxesImage, norm: Normalize) -> None:
    """Draw a colour bar beside the matrix, as an image."""
    strip = ax.inset_axes((1.03, 0.0, 0.045, 1.0))
    levels = np.linspace(0, 1, 128)[:, None]
    strip.imshow(norm.inverse(levels), cmap=image.cmap, norm=norm, aspect="auto", origin="lower", extent=(0, 1, 0, 1))
    marks = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    strip.set_yticks(marks, [f"{value:.2g}" for value in np.ravel(norm.inverse(marks))])
    strip.yaxis.tick_right()
    strip.tick_params(length=2, colors=INK, labelsize="small")
    strip.set_xticks([])
    strip.spines[:].set_visible(False)


def distribution(run: Run | Summary, kind: str = "fused", ax: Axes | None = None) -> Axes:
    """Draw how often each value of a similarity occurs within clusters and between them; zeros are left out.

    Parameters as of `similarity`.
    """
    shown = (summarize(run) if isinstance(run, Run) else run).distributions[kind]
    ax = axis(ax, grid="y")
    ax.set_yscale("log")
    # 0 has no place on a logarithmic axis: an empty bin stays empty
    within, between = (np.where(counts > 0, counts, np.nan) for counts in (shown.within, shown.between))
    floor = 0.7
    width = np.diff(shown.edges)
    ax.bar(
        shown.edges[:-1],
        np.nan_to_num(within - floor),
        width,
        bottom=floor,
        align="edge",
        facecolor="none",
        edgecolor=PALETTE[0],
        hatch="////",
        linewidth=0.6,
        label="within a cluster",
    )
    ax.stairs(
        np.nan_to_num(between, nan=floor),
        shown.edges,
        baseline=floor,
        color=PALETTE[1],
        linewidth=1.6,
        label="between clusters",
    )
    most = max(np.nanmax(within, initial=1.0), np.nanmax(between, initial=1.0))
    ax.set_ylim(floor, most * 30)
    ax.legend(frameon=False, labelcolor=INK, loc="upper right", fontsize="small")
    return titled(ax, heading(kind), "similarity", "pairs")

"""Plots of the time and memory of each stage, beside what the plan expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ips2_dask.plots.style import INK, MUTED, PALETTE, axis, titled
from ips2_dask.runs.run import Run

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes


class Spent(NamedTuple):
    """A stage's measured time and memory, and the plan's upper bounds for it."""

    name: str
    seconds: float
    reused: bool  # taken from an earlier run, not computed by this one
    peak_bytes: int  # largest process up to the end of the stage
    worker_bytes: int  # planned
    client_bytes: int
    disk_bytes: int


def spent(run: Run) -> list[Spent]:
    """The time and memory of every stage of a run, in the order of the stages."""
    planned = {stage["name"]: stage for stage in run.manifest["plan"]}
    return [
        Spent(
            stage["name"],
            stage["seconds"],
            stage["skipped"],
            stage["peak_rss_bytes"],
            *(planned[stage["name"]][name] for name in ("worker_bytes", "client_bytes", "disk_bytes")),
        )
        for stage in run.manifest["stages"]
    ]


def stage_times(run: Run | list[Spent], ax: Axes | None = None) -> Axes:
    """Draw the seconds of each stage; a stage that an earlier run computed has a bar without hatch.

    Parameters
    ----------
    run : Run or list of Spent
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    stages = spent(run) if isinstance(run, Run) else run
    ax = axis(ax, grid="x")
    for row, stage in enumerate(stages):
        hatch = "" if stage.reused else "////"
        ax.barh(row, stage.seconds, 0.7, facecolor="none", edgecolor=PALETTE[0], hatch=hatch, linewidth=1.2)
        text = f"{stage.seconds:.2f} s" + (" (earlier)" if stage.reused else "")
        ax.annotate(
            text, (stage.seconds, row), (3, 0), textcoords="offset points", va="center", color=INK, fontsize="small"
        )
    ax.margins(x=0.3 if any(stage.reused for stage in stages) else 0.2)
    _named(ax, stages)
    return titled(ax, "Time of the stages", "seconds")


def stage_memory(run: Run | list[Spent], ax: Axes | None = None) -> Axes:
    """Draw the largest process after each stage beside what had been planned; parameters as of `stage_times`."""
    stages = spent(run) if isinstance(run, Run) else run
    ax = axis(ax, grid="x")
    rows, mib = np.arange(len(stages)), 2.0**20
    ax.barh(
        rows,
        [s.peak_bytes / mib for s in stages],
        0.7,
        facecolor="none",
        edgecolor=PALETTE[0],
        hatch="////",
        linewidth=1.2,
        label="largest process so far",
    )
    planned = [max(s.worker_bytes, s.client_bytes) / mib for s in stages]
    ax.plot(planned, rows, marker="D", linestyle="none", color=PALETTE[1], markersize=6, label="planned for one")
    ax.hlines(rows, 0, planned, color=MUTED, linewidth=0.6, linestyle=":")
    ax.margins(x=0.08)
    _named(ax, stages)
    ax.legend(frameon=False, labelcolor=INK, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize="small")
    titled(ax, "", "MiB")
    ax.set_title("Memory beside the plan", loc="left", color=INK, fontsize="medium", fontweight="bold", pad=22)
    return ax


def _named(ax: Axes, stages: list[Spent]) -> None:
    ax.set_yticks(range(len(stages)), [stage.name for stage in stages])
    ax.set_ylim(len(stages) - 0.4, -0.6)

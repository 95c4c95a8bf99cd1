"""Figures of a study on Matplotlib axes: growth with its fits, workers, memory beside the plan, time by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.bench.document import Record
from ips2_dask.bench.study.fits import Row, growth_table, memory_table, stage_table, strong_table, weak_table
from ips2_dask.plots.style import HATCHES, INK, MARKERS, MUTED, PALETTE, axis, titled
from ips2_dask.store.layout import STAGES

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes

GIB = 2**30


def draw_growth(records: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Seconds of all stages together over the number of samples, on logarithmic axes, with the fitted powers."""
    ax = axis(ax)
    ax.set(xscale="log", yscale="log")
    fits = {(f["k"], f["operator"]): f for f in growth_table(records) if f["stage"] == "stages"}
    for index, (k, operator) in enumerate(sorted({(row["k"], row["operator"]) for row in stage_table(records)})):
        rows = [r for r in stage_table(records) if (r["k"], r["operator"]) == (k, operator) and r.get("stages")]
        m, seconds = np.array([[r["m"], r["stages"]] for r in rows], float).T
        color, fit = PALETTE[index % len(PALETTE)], fits.get((k, operator))
        ax.plot(m, seconds, MARKERS[index % len(MARKERS)], color=color, label=f"k = {k}, {operator}")
        if fit is not None:
            b = fit["exponent"]
            level = np.exp(np.mean(np.log(seconds) - b * np.log(m)))
            ends = np.array([m.min(), m.max()])
            ax.plot(ends, level * ends**b, color=color, linewidth=1, label=f"m^{b:.2f}{_interval(fit)}")
    ax.legend(frameon=False, labelcolor=INK, fontsize="small")
    return titled(ax, "Time over samples", "samples m", "seconds")


def _interval(fit: Row) -> str:
    return "" if fit["low"] is None else f" ({fit['low']:.2f} to {fit['high']:.2f})"


def draw_workers(records: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Efficiency over the number of workers: of one size (strong), and of sizes that grow with them (weak)."""
    ax = axis(ax)
    for index, (name, rows) in enumerate((("strong", strong_table(records)), ("weak", weak_table(records)))):
        if rows:
            label = f"{name}: {rows[0]['m']:,} samples" + (" a worker" if name == "weak" else "")
            x, y = [r["workers"] for r in rows], [r["efficiency"] for r in rows]
            ax.plot(x, y, marker=MARKERS[index], color=PALETTE[index], label=label)
    ax.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    ax.set_ylim(0, 1.15)
    ax.locator_params(axis="x", integer=True)
    ax.legend(frameon=False, labelcolor=INK, fontsize="small", loc="lower left")
    return titled(ax, "Efficiency over workers", "workers", "efficiency")


def draw_memory(records: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Peak memory of the whole process tree beside what the plan said of it."""
    ax = axis(ax)
    ax.set(xscale="log", yscale="log")
    rows = memory_table(records)
    for index, (k, operator) in enumerate(sorted({(r["k"], r["operator"]) for r in rows})):
        own = [r for r in rows if (r["k"], r["operator"]) == (k, operator)]
        m = [r["m"] for r in own]
        color, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        ax.plot(m, [r["planned_bytes"] / GIB for r in own], "--", color=color, label=f"planned, k = {k}, {operator}")
        ax.plot(m, [r["peak_bytes"] / GIB for r in own], marker=marker, color=color, label=f"peak, k = {k}, {operator}")
    ax.legend(frameon=False, labelcolor=INK, fontsize="small")
    return titled(ax, "Memory beside the plan", "samples m", "GiB, all processes")


def draw_stages(records: Sequence[Record], ax: Axes | None = None) -> Axes:
    """The share of each stage in the time of all, by size, of the first k and operator."""
    ax = axis(ax, grid="x")
    table = stage_table(records)
    first = min(((r["k"], r["operator"]) for r in table), default=None)
    rows = sorted((r for r in table if (r["k"], r["operator"]) == first), key=lambda r: r["m"])
    left = np.zeros(len(rows))
    for index, stage in enumerate(STAGES):
        seconds = np.array([r.get(stage) or 0.0 for r in rows])
        share = seconds / np.array([sum(r.get(s) or 0.0 for s in STAGES) for r in rows])
        ax.barh(
            range(len(rows)),
            share,
            0.7,
            left=left,
            color=PALETTE[index % len(PALETTE)],
            label=stage,
            edgecolor="white",
            hatch=HATCHES[index % len(HATCHES)],
            linewidth=0.5,
        )
        left += share
    ax.set_yticks(range(len(rows)), [f"{r['m']:,}" for r in rows])
    ax.set_xlim(0, 1)
    ax.legend(
        frameon=False, labelcolor=INK, fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.18)
    )
    return titled(ax, "Time by stage", "share of the time of all stages", "samples m")

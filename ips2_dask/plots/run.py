"""What a run went through: eigenvalues, convergence, time and memory of its stages; and what a sweep compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ips2_dask.params import Params
from ips2_dask.plots.style import INK, MARKERS, MUTED, PALETTE, axis, legend, titled
from ips2_dask.runs.run import Run
from ips2_dask.typing import Float64
from ips2_dask.wording import heading, plain, setting

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes


class Spectrum(NamedTuple):
    """Leading eigenvalues of the tensor's Laplacian, and the first one that does not enter V."""

    values: Float64  #: (n,) descending, those of the component vectors first
    components: int  #: how many of them are eigenvalue 1 of connected components
    left_out: int  #: component vectors that are not shown, where there are as many as clusters or more
    following: float | None  #: the next eigenvalue, where the solve gave it
    gap: float | None
    c: int


def spectrum(run: Run) -> Spectrum:
    """The leading eigenvalues of a run, as `eigenvalues` draws them."""
    c, gap, inner = run.params.n_sought, run.gap, run.inner_eigenvalues
    count = 0 if run.params.tensor == "decomposable" else int(run._context.facts["eigen"]["components"])
    following = float(inner[-1] - gap) if gap is not None and len(inner) else None
    if count >= c:
        return Spectrum(inner, 0, count, following, gap, c)
    return Spectrum(np.concatenate([np.ones(count), inner]), count, 0, following, gap, c)


def eigenvalues(run: Run | Spectrum, ax: Axes | None = None) -> Axes:
    """Draw the leading eigenvalues, the next one, and the gap between them."""
    shown = spectrum(run) if isinstance(run, Run) else run
    ax, n, first = axis(ax, grid="y"), len(shown.values), shown.components
    numbers = np.arange(1, n + 1)
    ax.plot(numbers, shown.values, color=MUTED, linewidth=0.8, zorder=1)
    marks: dict[str, Any] = {"marker": "s", "markerfacecolor": "none", "color": PALETTE[1], "linestyle": "none"}
    if first:
        ax.plot(numbers[:first], shown.values[:first], **marks, label="of a connected component")
    if first < n:
        marks = {"marker": "o", "color": PALETTE[0], "linestyle": "none", "markersize": 5}
        ax.plot(numbers[first:], shown.values[first:], **marks, label="V is made of")
    if shown.following is not None:
        _gap(ax, n, float(shown.values[-1]), shown.following)
    legend(ax, loc="lower left")
    ax.margins(x=0.06, y=0.14)
    if shown.following is not None:
        ax.set_xlim(right=1.16 * (n + 1))  # for the gap's number
    ax.locator_params(axis="x", integer=True)
    return titled(ax, f"Eigenvalues, c = {shown.c}", "number", "eigenvalue")


def _gap(ax: Axes, n: int, last: float, following: float) -> None:
    """Draw the next eigenvalue, and a bracket over the gap between it and the last one."""
    ax.plot([n, n + 1], [last, following], color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    marks: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none", "markersize": 5}
    ax.plot([n + 1], [following], color=INK, label="the next one", **marks)
    arrow = {"arrowstyle": "|-|,widthA=.25,widthB=.25", "lw": 1, "color": INK, "shrinkA": 5, "shrinkB": 0}
    ax.annotate("", (n + 1, last), (n + 1, following), arrowprops=arrow)
    text, place = f"gap\n{last - following:.2g}", (n + 1, (last + following) / 2)
    ax.annotate(text, place, (6, 0), textcoords="offset points", va="center", color=INK, fontweight="bold")


def convergence(run: Run, ax: Axes | None = None) -> Axes:
    """Draw the solver's largest wanted residual over its products.

    The tolerance is drawn beside it where one was asked for. A small problem is solved at once by LAPACK, and has no
    such history.
    """
    history, ax = run._context.facts["eigen"]["history"], axis(ax)
    ax.set_yscale("log")
    products, residuals = ([entry[name] for entry in history] for name in ("products", "residual"))
    ax.plot(products, residuals, marker="o", markersize=4, color=PALETTE[0], label="largest residual")
    if run.params.tol is not None:
        ax.axhline(run.params.tol, color=PALETTE[1], linestyle="--", label=f"tolerance {run.params.tol:g}")
    legend(ax)
    return titled(ax, "Convergence of the eigenpairs", "products with the Laplacian", "residual")


# ---- stages


class Spent(NamedTuple):
    """A stage's measured time and memory, and the plan's upper bounds for it."""

    name: str
    seconds: float
    reused: bool  #: taken from an earlier run, not computed by this one
    peak_bytes: int  #: largest process up to the end of the stage
    worker_bytes: int  #: planned
    client_bytes: int
    disk_bytes: int


def spent(run: Run) -> list[Spent]:
    """The time and memory of every stage of a run, in the order of the stages."""
    planned = {stage["name"]: stage for stage in run.manifest["plan"]}
    found = []
    for stage in run.manifest["stages"]:
        of = planned.get(stage["name"], {})  # a plan leaves out stages that need little
        bounds = [of.get(name, 0) for name in ("worker_bytes", "client_bytes", "disk_bytes")]
        found.append(Spent(stage["name"], stage["seconds"], stage["skipped"], stage["peak_rss_bytes"], *bounds))
    return found


def stage_times(run: Run | list[Spent], ax: Axes | None = None) -> Axes:
    """Draw the seconds of each stage; a stage that an earlier run computed has a bar without hatch."""
    stages = spent(run) if isinstance(run, Run) else run
    ax = axis(ax, grid="x")
    for row, stage in enumerate(stages):
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": PALETTE[0], "hatch": "" if stage.reused else "////"}
        ax.barh(row, stage.seconds, 0.7, linewidth=1.2, **look)
        text = f"{stage.seconds:.2f} s" + (" (earlier)" if stage.reused else "")
        said = ax.annotate(text, (stage.seconds, row), (3, 0), textcoords="offset points", va="center", color=INK)
        said.set_fontsize("small")
    ax.margins(x=0.3 if any(stage.reused for stage in stages) else 0.2)
    _named(ax, stages)
    return titled(ax, "Time of the stages", "seconds")


def stage_memory(run: Run | list[Spent], ax: Axes | None = None) -> Axes:
    """Draw the largest process after each stage beside what had been planned."""
    stages = spent(run) if isinstance(run, Run) else run
    ax, rows, mib = axis(ax, grid="x"), np.arange(len(stages)), 2.0**20
    look: dict[str, Any] = {"facecolor": "none", "edgecolor": PALETTE[0], "hatch": "////", "linewidth": 1.2}
    ax.barh(rows, [s.peak_bytes / mib for s in stages], 0.7, label="largest process so far", **look)
    planned = [max(s.worker_bytes, s.client_bytes) / mib for s in stages]
    ax.plot(planned, rows, marker="D", linestyle="none", color=PALETTE[1], markersize=6, label="planned for one")
    ax.hlines(rows, 0, planned, color=MUTED, linewidth=0.6, linestyle=":")
    ax.margins(x=0.08)
    _named(ax, stages)
    legend(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return titled(ax, "Memory beside the plan", "MiB", pad=22)


def _named(ax: Axes, stages: list[Spent]) -> None:
    ax.set_yticks(range(len(stages)), [stage.name for stage in stages])
    ax.set_ylim(len(stages) - 0.4, -0.6)


# ---- sweeps

CRITERIA = ("stability", "modularity", "score")
"""What is drawn of a sweep's points; more is better."""

LINES = ("-", "--", ":", "-.")


def criteria(rows: Sequence[Mapping[str, Any]], axes: Sequence[Axes]) -> None:
    """Draw each criterion and the score of a sweep over the parameter that has the most values.

    There is a line for each combination of the others: the first of these has colours, the rest dashes and marks.

    Parameters
    ----------
    rows : list of dict
        `Sweep.table`; the point of rank 1 is ringed.
    axes : sequence of 3 matplotlib.axes.Axes
    """
    names = [name for name in rows[0] if name in Params.__dataclass_fields__]
    values = {name: sorted({row[name] for row in rows}, key=_numbers_first) for name in names}
    over = max(names, key=lambda name: len(values[name]))  # of equals the first
    ticks = values[over] if all(isinstance(value, int | float) for value in values[over]) else range(len(values[over]))
    others = [name for name in names if name != over and len(values[name]) > 1]
    rows = sorted(rows, key=lambda row: [values[name].index(row[name]) for name in (*others, over)])
    places = [ticks[values[over].index(row[over])] for row in rows]
    of = [tuple(row[name] for name in others) for row in rows]
    families = list(dict.fromkeys(of))
    first, rest = ([*dict.fromkeys(family[part] for family in families)] for part in (slice(1), slice(1, None)))
    best = min(range(len(rows)), key=lambda at: rows[at]["rank"])
    for ax, name in zip(map(axis, axes), CRITERIA, strict=True):
        for family in families:
            some = [at for at in range(len(rows)) if of[at] == family]
            look, tone = rest.index(family[1:]), PALETTE[first.index(family[:1]) % len(PALETTE)]
            how: dict[str, Any] = {"linestyle": LINES[look % len(LINES)], "marker": MARKERS[look % len(MARKERS)]}
            text = setting(dict(zip(others, family, strict=True)))
            ax.plot([places[at] for at in some], [rows[at][name] for at in some], color=tone, label=text, ms=4, **how)
        place = places[best], rows[best][name]
        ax.plot(*place, marker="o", markersize=12, markerfacecolor="none", color=INK, linestyle="none")
        ax.annotate(f"{place[1]:.3g}", place, (9, 6), textcoords="offset points", color=INK, fontsize="small")
        ax.margins(y=0.12)
        if len(ticks) <= 16:
            ax.set_xticks(ticks, [plain(value) for value in values[over]])
        ax.tick_params(colors=MUTED)
        titled(ax, name.capitalize(), "clusters c" if over == "n_clusters" else heading(over), name)
    if len(families) > 1:
        marks, texts = axes[0].get_legend_handles_labels()
        columns = min(4, len(texts), max(1, 120 // (10 + max(map(len, texts)))))
        place_of: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False}
        axes[0].figure.legend(marks, texts, labelcolor=INK, **place_of)


def _numbers_first(value: Any) -> tuple[bool, Any]:
    return (False, value) if isinstance(value, int | float) else (True, str(value))

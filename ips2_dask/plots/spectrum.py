"""The eigenvalues with the gap at c, and how the solver's residual fell to the tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.plots.style import INK, MUTED, PALETTE, axis, titled
from ips2_dask.runs.run import Run

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes


class Spectrum(NamedTuple):
    """Leading eigenvalues of the tensor's Laplacian, and the first one that does not enter V."""

    values: NDArray[np.float64]  # (n,) descending, those of the component vectors first
    components: int  # how many of them are eigenvalue 1 of connected components
    left_out: int  # component vectors that are not shown, where there are as many as clusters or more
    following: float | None  # the next eigenvalue, where the solve gave it
    gap: float | None
    c: int


def spectrum(run: Run) -> Spectrum:
    """The leading eigenvalues of a run, as `eigenvalues` draws them."""
    facts = stage_facts(run)
    c, gap, inner = run.params.n_sought, run.gap, run.inner_eigenvalues
    count = 0 if run.params.tensor == "decomposable" else _large_components(facts)
    following = float(inner[-1] - gap) if gap is not None and len(inner) else None
    if count >= c:
        return Spectrum(inner, 0, count, following, gap, c)
    return Spectrum(np.concatenate([np.ones(count), inner]), count, 0, following, gap, c)


def _large_components(facts: dict[str, dict[str, Any]]) -> int:
    """Components of the pairs that take part in the solve; all of them in runs of earlier versions."""
    return int(facts["eigen"].get("components", facts["assemble"]["components"]))


def stage_facts(run: Run) -> dict[str, dict[str, Any]]:
    """The facts that each stage of a run stored, by its name."""
    return {stage["name"]: stage["facts"] for stage in run.manifest["stages"]}


def eigenvalues(run: Run | Spectrum, ax: Axes | None = None) -> Axes:
    """Draw the leading eigenvalues, the next one, and the gap between them.

    Parameters
    ----------
    run : Run or Spectrum
    ax : matplotlib.axes.Axes, optional
        None takes pyplot's current one.

    Returns
    -------
    matplotlib.axes.Axes
    """
    shown = spectrum(run) if isinstance(run, Run) else run
    ax = axis(ax, grid="y")
    n, components = len(shown.values), shown.components
    numbers = np.arange(1, n + 1)
    marks: dict[str, Any]
    ax.plot(numbers, shown.values, color=MUTED, linewidth=0.8, zorder=1)
    if components:
        marks = {"marker": "s", "markerfacecolor": "none", "color": PALETTE[1], "linestyle": "none"}
        ax.plot(numbers[:components], shown.values[:components], **marks, label="of a connected component")
    if components < n:
        marks = {"marker": "o", "color": PALETTE[0], "linestyle": "none", "markersize": 5}
        ax.plot(numbers[components:], shown.values[components:], **marks, label="V is made of")
    if shown.following is not None:
        _gap(ax, n, float(shown.values[-1]), shown.following)
    ax.legend(frameon=False, labelcolor=INK, loc="lower left", fontsize="small")
    ax.margins(x=0.06, y=0.14)
    if shown.following is not None:
        ax.set_xlim(right=n + 1 + 0.16 * (n + 1))  # for the gap's number
    ax.locator_params(axis="x", integer=True)
    return titled(ax, f"Eigenvalues, c = {shown.c}", "number", "eigenvalue")


def _gap(ax: Axes, n: int, last: float, following: float) -> None:
    """Draw the next eigenvalue, and a bracket over the gap between it and the last one."""
    ax.plot([n, n + 1], [last, following], color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    marks: dict[str, Any] = {
        "marker": "D",
        "markerfacecolor": "none",
        "color": INK,
        "linestyle": "none",
        "markersize": 5,
    }
    ax.plot([n + 1], [following], **marks, label="the next one")
    ax.annotate(
        "",
        (n + 1, last),
        (n + 1, following),
        arrowprops={"arrowstyle": "|-|,widthA=.25,widthB=.25", "lw": 1, "color": INK, "shrinkA": 5, "shrinkB": 0},
    )
    ax.annotate(
        f"gap\n{last - following:.2g}",
        (n + 1, (last + following) / 2),
        (6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontweight="bold",
    )


def convergence(run: Run, ax: Axes | None = None) -> Axes:
    """Draw the solver's largest wanted residual over its products; parameters as of `eigenvalues`.

    The tolerance is drawn beside it where one was asked for. A small problem is solved at once by LAPACK, and has no
    such history.
    """
    history = stage_facts(run)["eigen"]["history"]
    ax = axis(ax)
    ax.set_yscale("log")
    products, residuals = ([entry[name] for entry in history] for name in ("products", "residual"))
    ax.plot(products, residuals, marker="o", markersize=4, color=PALETTE[0], label="largest residual")
    if run.params.tol is not None:
        ax.axhline(run.params.tol, color=PALETTE[1], linestyle="--", label=f"tolerance {run.params.tol:g}")
    ax.legend(frameon=False, labelcolor=INK, fontsize="small")
    return titled(ax, "Convergence of the eigenpairs", "products with the Laplacian", "residual")

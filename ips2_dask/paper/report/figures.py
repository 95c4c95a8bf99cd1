"""The figures of the report, each from records or the results of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ips2_dask.paper.experiments import series
from ips2_dask.paper.experiments.ranks import PAPER_SETS
from ips2_dask.paper.experiments.records import SETTINGS, Record, mean_of, select
from ips2_dask.paper.experiments.series import K
from ips2_dask.paper.experiments.settings import COMPARED, METHODS
from ips2_dask.paper.experiments.similarities import Similarities
from ips2_dask.paper.experiments.tables import PRINTED_LEVELS
from ips2_dask.paper.report.drawing import COLORS, MARKERS
from ips2_dask.plots.figures import Figure, canvas, save

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes

TITLES = {
    "pairwise": "pairwise similarity S",
    "high_order": "high-order similarity V",
    "fused": "fused similarity U",
    "decomposable": "unfolded decomposable tensor",
    "indecomposable": "unfolded indecomposable tensor",
}

VARIANT = {"default": "default settings", "printed": "the paper's printed settings"}

AXES = {
    "usdata1": "features",
    "usdata2": "samples of the third cluster",
    "noises": "noise",
    "levels": "standard deviation of the noise",
}


def heat_maps(folder: Path, name: str, caption: str, rows: Mapping[str, Mapping[str, ArrayLike]]) -> Figure:
    """Matrices side by side, a row for each data set, each on a scale from 0 to its own largest entry."""
    first = next(iter(rows.values()))
    with canvas(3.1 * len(first), 2.8 * len(rows), len(rows), len(first)) as (sheet, axes):
        for (title, matrices), line in zip(rows.items(), axes, strict=True):
            for (kind, cells), ax in zip(matrices.items(), line, strict=True):
                M = np.asarray(cells)
                image = ax.imshow(M, cmap="viridis", vmin=0, vmax=M.max())
                ax.set_title(f"{title}: {TITLES[kind]}" if title else TITLES[kind], fontsize=8)
                ax.set(xticks=[], yticks=[])
                sheet.colorbar(image, ax=ax, shrink=0.8)
        return save(sheet, folder, name, caption)


def distributions(folder: Path, name: str, caption: str, result: Similarities) -> Figure:
    """How often each value of a similarity occurs among the pairs."""
    with canvas(9.3, 2.4, 1, 3) as (sheet, axes):
        for (kind, counts), ax in zip(result["histogram"].items(), axes[0], strict=True):
            edges = np.linspace(0, result["largest"][kind], len(counts) + 1)
            ax.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color="#444444")
            ax.set(xlabel=TITLES[kind], ylabel="pairs")
        return save(sheet, folder, name, caption)


def measures(folder: Path, records: Sequence[Record], name: str, caption: str) -> Figure:
    """ACC of each method on the paper's data: the four settings beside the paper's figure."""
    marks = {
        "printed": ("v", COLORS["SC"]),
        "default": ("o", "white"),
        "unsupervised": ("s", "#bbbbbb"),
        "tuned": ("D", "black"),
    }
    with canvas(9.3, 2.8, 1, len(PAPER_SETS), sharey=True) as (sheet, axes):
        for dataset, ax in zip(PAPER_SETS, axes[0], strict=True):
            for x, method in enumerate(METHODS):
                rows = select(list(records), experiment="table2", dataset=dataset, method=method, measure="acc")
                for r in rows:
                    marker, face = marks[r["setting"]]
                    ax.plot(x, r["mean"], marker, markerfacecolor=face, color="black", markersize=5)
                ax.plot([x - 0.3, x + 0.3], [rows[0]["paper"]] * 2, color=COLORS["IPS2"], linewidth=2)
            ax.set(title=dataset, ylim=(0, 1.03))
            ax.set_xticks(range(len(METHODS)), METHODS, rotation=90)
        axes[0][0].set_ylabel("ACC")
        handles = [axes[0][0].plot([], [], m, markerfacecolor=f, color="black")[0] for m, f in marks.values()]
        handles += axes[0][0].plot([], [], color=COLORS["IPS2"], linewidth=2)
        sheet.legend(handles, [*marks, "the paper's figure"], loc="outside lower center", ncols=5, frameon=False)
        return save(sheet, folder, name, caption)


def over_draws(
    folder: Path, name: str, caption: str, drawn: Mapping[str, Mapping[str, Any]], papers: Mapping[str, float]
) -> Figure:
    """How often draws of samples have each accuracy of IPS2, a panel for each data set and reading."""
    readings = list(next(iter(drawn.values())))
    with canvas(9.3, 2.3 * len(drawn), len(drawn), len(readings), sharex=True, sharey="row") as (sheet, axes):
        for (dataset, results), line in zip(drawn.items(), axes, strict=True):
            for (reading, result), ax in zip(results.items(), line, strict=True):
                ax.hist(result["IPS2"], bins=np.linspace(0.25, 1, 31), color="#888888")
                ax.axvline(papers[dataset], color=COLORS["IPS2"], linewidth=2)
                ax.set_title(f"{dataset}: {reading}", fontsize=8)
            line[0].set_ylabel("draws")
        for ax in axes[-1]:
            ax.set_xlabel("ACC of IPS2")
        return save(sheet, folder, name, caption)


def curves(folder: Path, records: Sequence[Record], name: str, caption: str) -> Figure:
    """ACC of SC, PPC and IPS2 over a series, with the gain of IPS2 over SC, in both variants."""
    points = list(series.POINTS[name])
    with canvas(9.3, 3.2, 1, 2, sharey=True) as (sheet, axes):
        for variant, ax in zip(series.VARIANTS, axes[0], strict=True):
            experiment = series.experiment_name(name, variant)
            records_at = {
                point: select(list(records), experiment=experiment, dataset=series.dataset_name(name, point))
                for point in points
            }
            gains = [mean_of(records_at[point], measure="gain") for point in points]
            ax.bar(range(len(points)), gains, color="#dddddd", label="gain of IPS2 over SC")
            for method in COMPARED:
                of = [select(records_at[point], method=method, measure="acc")[0] for point in points]
                mean, std = (np.array([r[key] for r in of]) for key in ("mean", "std"))
                line = {"color": COLORS[method], "marker": MARKERS[method], "label": method}
                ax.errorbar(range(len(points)), mean, std / np.sqrt(of[0]["runs"]), capsize=2, linewidth=1.2, **line)
            if name == "levels":
                _printed_levels(ax, points)
            ax.set(title=VARIANT[variant], xlabel=AXES[name])
            ax.set_xticks(range(len(points)), points, rotation=45 if len(points) > 7 else 0)
        axes[0][0].set_ylabel("ACC")
        axes[0][0].legend(fontsize=7)
        return save(sheet, folder, name, caption)


def _printed_levels(ax: Axes, points: list[str]) -> None:
    for (point, method), value in PRINTED_LEVELS.items():
        ax.plot(points.index(point), value, "x", color=COLORS[method], markersize=8)


def over_k(folder: Path, records: Sequence[Record], measure: str, name: str, caption: str) -> Figure:
    """A measure of IPS2 over k, in both variants."""
    with canvas(5.2, 2.8) as (sheet, axes):
        ax = axes[0][0]
        for variant, style in zip(series.VARIANTS, ("-", "--"), strict=True):
            experiment = series.experiment_name("neighbors", variant)
            rows = select(list(records), experiment=experiment, measure=measure)
            values = {r["params"].get("n_neighbors"): r["mean"] for r in rows}
            ax.plot(K, [values[k] for k in K], style, marker="*", color=COLORS["IPS2"], label=VARIANT[variant])
        ax.set(xlabel="k", ylabel="ACC" if measure == "acc" else "seconds")
        ax.set_xticks(K)
        ax.legend(fontsize=7)
        return save(sheet, folder, name, caption, timed=measure != "acc")


def mean_ranks(folder: Path, records: Sequence[Record], measure: str, name: str, caption: str) -> Figure:
    """Mean ranks of each setting; a bar joins methods that the critical difference does not tell apart."""
    shown = [s for s in SETTINGS if select(list(records), experiment="ranks", measure=f"rank_{measure}", setting=s)]
    with canvas(8.2, 1.6 * len(shown), len(shown), 1, sharex=True) as (sheet, axes):
        for setting, (ax,) in zip(shown, axes, strict=True):
            of = select(list(records), experiment="ranks", setting=setting)
            ranked = sorted((mean_of(of, method=m, measure=f"rank_{measure}") or 0.0, m) for m in METHODS)
            distance = mean_of(of, measure=f"critical_difference_{measure}") or 0.0
            for place, (rank, method) in enumerate(ranked):
                ax.plot(rank, 0, MARKERS[method], color=COLORS[method], markersize=8)
                ax.annotate(
                    f"{method} {rank:.2f}",
                    (rank, 0),
                    (0, 9 + 11 * (place % 3)),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
            for level, (low, high) in enumerate(groups([rank for rank, _ in ranked], distance)):
                ax.plot([low - 0.03, high + 0.03], [-0.25 - 0.16 * level] * 2, color="#666666", linewidth=3)
            n = select(of, measure=f"rank_{measure}")[0]["runs"]
            ax.set(xlim=(0.8, 6.2), ylim=(-1.1, 1.3), yticks=[])
            ax.set_title(f"{setting}: {n} data sets, critical difference {distance:.2f}", fontsize=8)
        axes[-1][0].set_xlabel(f"mean rank by {measure.upper()} (1 is best)")
        return save(sheet, folder, name, caption)


def groups(ranked: Sequence[float], distance: float) -> list[tuple[float, float]]:
    """The longest stretches of sorted ranks that lie within a distance, of two or more methods, none inside another."""
    stretches: list[tuple[float, float]] = []
    for i, low in enumerate(ranked):
        inside = [rank for rank in ranked[i:] if rank - low < distance]
        if len(inside) > 1 and (not stretches or inside[-1] > stretches[-1][1]):
            stretches.append((low, inside[-1]))
    return stretches

"""The paper's figures, from records or matrices, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask.paper.experiments import POINTS, PRINTED, VARIANTS, K, dataset_name, experiment_name
from ips2_dask.paper.methods import COMPARED
from ips2_dask.paper.work import Record, mean_of, select
from ips2_dask.plots.style import axis, saved, sheet
from ips2_dask.store.files import write_atomically

LINES: dict[str, dict[str, str]] = {
    "SC": {"color": "#0072B2", "marker": "o"},
    "PPC": {"color": "#009E73", "marker": "s"},
    "IPS2": {"color": "#D55E00", "marker": "*"},
}
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

KINDS = {
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


@contextmanager
def _sheet(
    folder: Path, name: str, size: tuple[float, float], rows: int, columns: int, **options: Any
) -> Iterator[Any]:
    """A figure and its axes (rows, columns), saved when it is left."""
    folder.mkdir(parents=True, exist_ok=True)
    with sheet(*size) as figure:
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        for ax in axes.flat:
            axis(ax, grid=None)
        yield figure, axes
        write_atomically(folder / f"{name}.png", saved(figure))
        write_atomically(folder / f"{name}.svg", saved(figure, "svg"))


def _heat_maps(folder: Path, name: str, rows: Mapping[str, Any]) -> None:
    """Matrices side by side, a row for each data set, each on a scale from 0 to its own largest entry."""
    columns = len(next(iter(rows.values())))
    with _sheet(folder, name, (3.1 * columns, 2.8 * len(rows)), len(rows), columns) as (figure, axes):
        for (title, cells), line in zip(rows.items(), axes, strict=True):
            for (kind, M), ax in zip(cells.items(), line, strict=True):
                image = ax.imshow(M, cmap="viridis", vmin=0, vmax=M.max())
                ax.set_title(f"{title}: {KINDS[kind]}" if title else KINDS[kind], fontsize=8)
                ax.set(xticks=[], yticks=[])
                figure.colorbar(image, ax=ax, shrink=0.8)


def _distributions(folder: Path, histograms: Mapping[str, tuple[Any, Any]]) -> None:
    """How often each value of a similarity occurs among the pairs."""
    with _sheet(folder, "distributions", (9.3, 2.4), 1, 3) as (_, axes):
        for (kind, (counts, edges)), ax in zip(histograms.items(), axes[0], strict=True):
            ax.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color="#444444")
            ax.set(xlabel=KINDS[kind], ylabel="pairs")


def curves(folder: Path, records: Sequence[Record], name: str) -> None:
    """ACC of SC, PPC and IPS2 over a series, with the gain of IPS2 over SC, in both variants."""
    points = list(POINTS[name])
    with _sheet(folder, name, (9.3, 3.2), 1, 2, sharey=True) as (_, axes):
        for variant, ax in zip(VARIANTS, axes[0], strict=True):
            of = select(records, experiment=experiment_name(name, variant))
            at = [select(of, dataset=dataset_name(name, point)) for point in points]
            ax.bar(range(len(points)), [mean_of(one, measure="gain") for one in at], color="#dddddd", label="gain")
            for method in COMPARED:
                accuracies = [select(one, method=method, measure="acc")[0] for one in at]
                mean, std = (np.array([r[key] for r in accuracies]) for key in ("mean", "std"))
                error = std / np.sqrt(accuracies[0]["runs"])
                ax.errorbar(range(len(points)), mean, error, capsize=2, linewidth=1.2, label=method, **LINES[method])
            for point, values in PRINTED["levels"].items() if name == "levels" else ():
                for method, value in values.items():
                    ax.plot(points.index(point), value, "x", color=LINES[method]["color"], markersize=8)
            ax.set(title=VARIANT[variant], xlabel=AXES[name])
            ax.set_xticks(range(len(points)), points, rotation=45 if len(points) > 7 else 0)
        axes[0][0].set_ylabel("ACC")
        axes[0][0].legend(fontsize=7)


def _over_k(folder: Path, records: Sequence[Record], measure: str, name: str) -> None:
    """A measure of IPS2 over k, in both variants."""
    with _sheet(folder, name, (5.2, 2.8), 1, 1) as (_, ((ax,),)):
        for variant, style in zip(VARIANTS, ("-", "--"), strict=True):
            rows = select(records, experiment=experiment_name("neighbors", variant), measure=measure)
            values = {r["params"].get("n_neighbors"): r["mean"] for r in rows}
            ax.plot(K, [values[k] for k in K], style, label=VARIANT[variant], **LINES["IPS2"])
        ax.set(xlabel="k", ylabel="ACC" if measure == "acc" else "seconds")
        ax.set_xticks(K)
        ax.legend(fontsize=7)


def draw(family: str, folder: Path, records: Sequence[Record], more: Mapping[str, Any]) -> None:
    """Draw what there is to draw of a family, of its records and of what `Work.more` holds."""
    if family in ("tensors", "similarities", "heatmaps"):
        _heat_maps(folder, family, more[family])
    if family == "similarities":
        _distributions(folder, more["distributions"])
    if family in POINTS:
        curves(folder, records, family)
    if family == "neighbors":
        _over_k(folder, records, "acc", "neighbors")
        _over_k(folder, records, "seconds_median", "neighbors_time")

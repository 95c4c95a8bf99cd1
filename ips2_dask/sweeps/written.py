"""The files of a sweep: its table as CSV and JSON, its figure as PNG and SVG, and one page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from ips2_dask.kernels.validity import SHARE
from ips2_dask.plots.figures import Figure, canvas, save
from ips2_dask.reports.html import Cell, Row, Section, article, image, paragraph, table
from ips2_dask.store.files import write_atomically
from ips2_dask.sweeps.picture import draw
from ips2_dask.sweeps.result import CRITERIA, DIGITS, FOLDER, SILHOUETTES, Sweep
from ips2_dask.wording import count

HEAD = {
    "rank": "rank",
    "clusters": "c",
    "neighbors": "k",
    "sigma": "sigma",
    "mean_rank": "mean rank",
    "stability": "stability",
    "silhouette": "silhouette",
    "conductance": "conductance",
    "smallest": "smallest",
    "largest": "largest",
    "nmi": "NMI",
    "acc": "ACC",
    "seconds": "seconds",
}


def write(result: Sweep) -> Path:
    """Write all files, and return where the page is.

    The same points give the same bytes, but for seconds.
    """
    folder = result.path / FOLDER
    rows = result.table()
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "table.csv", buffer.getvalue())
    facts = {
        "input": result.input,
        "shape": list(result.shape),
        "criteria": explained(result),
        "computed": result.computed,
    }
    write_atomically(folder / "table.json", json.dumps({**facts, "points": rows}, indent=1) + "\n")
    with canvas(8.6, 6.2, 2, 2) as (sheet, axes):
        draw(result, axes.ravel().tolist())
        figure = save(sheet, folder, "sweep", _caption(result))
    path = folder / "sweep.html"
    write_atomically(path, _page(result, figure))
    return path


def explained(result: Sweep) -> dict[str, str]:
    """An explanation of each column of the ranking."""
    m = result.shape[0]
    samples = "all samples" if m <= SILHOUETTES else f"a seeded sample of {SILHOUETTES:,} samples"
    settings = result.settings
    return {
        "stability": f"mean adjusted Rand index of the labels and those of {count(settings.resamples, 'subsample')} of "
        f"{SHARE:.0%} of the samples, embedded and clustered anew (seed {settings.seed})",
        "silhouette": f"mean silhouette of {samples} in the embedding",
        "conductance": "mean over the clusters of the weight of edges of S that leave the cluster, divided by the "
        "smaller volume, its own or the rest's",
        "mean_rank": f"mean of the ranks by the three; values that agree to {DIGITS} decimals share a rank, and of "
        "equal mean ranks the larger number of clusters comes first",
    }


def _caption(result: Sweep) -> str:
    return f"The criteria over the number of clusters; a ring marks the best point, {result.best.setting}."


def shared(result: Sweep) -> str:
    """How often each stage was computed, in a line."""
    return ", ".join(f"{stage} {n}" for stage, n in result.computed.items())


def _page(result: Sweep, figure: Figure) -> str:
    rows = result.table()
    names = [name for name in HEAD if name in rows[0]]
    best = {name: max(sign * row[name] for row in rows) * sign for name, sign in CRITERIA.items()}
    body = [
        Row([_cell(name, row[name], row["rank"] == 1 or best.get(name) == row[name]) for name in names]) for row in rows
    ]
    m, f = result.shape
    explanations = explained(result)
    intro = [
        paragraph(f"{result.input}: {m:,} samples x {f:,} features, {count(len(rows), 'point')}."),
        paragraph(f"Best by the mean rank: {result.best.setting}."),
    ]
    sections = [
        Section("figure", "Criteria", [image(figure)], short="criteria"),
        Section(
            "table",
            "Points",
            [table("Best first; the best value of each criterion is bold", [HEAD[n] for n in names], body)],
            short="points",
        ),
        Section(
            "how",
            "How they are ranked",
            [paragraph(f"{name.replace('_', ' ')}: {text}.") for name, text in explanations.items()]
            + [paragraph(f"How often each stage was computed for the {len(rows)} points: {shared(result)}.")],
            short="ranking",
        ),
    ]
    return article(f"Sweep of {result.input}", intro, sections)


def _cell(name: str, value: float, best: bool) -> Cell:
    text = (
        f"{value:.3f}" if isinstance(value, float) and name not in ("sigma", "mean_rank", "seconds") else f"{value:,}"
    )
    if name in ("mean_rank", "seconds"):
        text = f"{value:.2f}"
    if name == "sigma":
        text = f"{value:g}"
    return Cell(text, "best" if best and name in CRITERIA else "", "time" if name == "seconds" else "")

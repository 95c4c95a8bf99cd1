"""How often labels are right among samples of a certainty, on known data: records of certainty.json, and its figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from known_sets import labelled_data, measuring, script, table
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import roc_auc_score

from ips2_dask.bench.harness import Record
from ips2_dask.metrics import contingency
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.plots.style import INK, axis, color, marker, titled
from ips2_dask.typing import Bool

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.figure import Figure

COLUMNS = ("data", "tenth", "least", "most", "samples", "accuracy", "auc")


def right(known: ArrayLike, labels: ArrayLike) -> Bool:
    """Whether each label is right under the best matching of clusters to classes: (m,).

    Labels of a cluster that is matched to no class are wrong.
    """
    classes, clusters = (np.unique(each, return_inverse=True)[1] for each in (known, labels))
    rows, columns = linear_sum_assignment(contingency(classes, clusters).toarray(), maximize=True)
    class_of = np.full(int(clusters.max()) + 1, -1)
    class_of[columns] = rows
    return class_of[clusters] == classes


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each tenth of the samples of a set, the least certain first.

    ``auc``, the same for all tenths, is the probability that a right label has a larger certainty than a wrong one;
    None if all are right or all wrong.
    """
    for name in names:
        data = labelled_data(name)
        with measuring():
            finished = run(data.X, Params(n_clusters=data.classes, random_state=seed))
        hit, certainty = right(data.known, finished.labels), np.asarray(finished.certainty, np.float64)
        auc = float(roc_auc_score(hit, certainty)) if hit.any() and not hit.all() else None
        for tenth, rows in enumerate(np.array_split(np.argsort(certainty, kind="stable"), 10), start=1):
            if len(rows):
                yield {
                    **{"data": name, "m": len(hit), "classes": data.classes, "tenth": tenth},
                    **{"least": float(certainty[rows[0]]), "most": float(certainty[rows[-1]]), "samples": len(rows)},
                    **{"accuracy": float(hit[rows].mean()), "auc": auc},
                }


def draw(records: Sequence[Record]) -> Figure:
    """Accuracy over the tenths of the samples, the least certain first: a line for each set."""
    from matplotlib.figure import Figure  # noqa: PLC0415  the extra [report]

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    ax = axis(figure.add_subplot())
    for index, name in enumerate(dict.fromkeys(str(r["data"]) for r in records)):
        of = [r for r in records if r["data"] == name]
        tenths, hits = (np.array([r[key] for r in of], float) for key in ("tenth", "accuracy"))
        text = f"{name}, {of[0]['m']:,} samples"
        ax.plot(tenths, hits, marker=marker(index), markersize=5, color=color(index), label=text)
    ax.set_xticks(range(1, 11))
    ax.set_ylim(0, 1.02)
    ax.legend(frameon=False, labelcolor=INK, loc="lower right")
    titled(ax, "How often labels are right", "tenth of the samples, the least certain first", "accuracy")
    return figure


def markdown(records: Sequence[Record]) -> str:
    """A table for each set."""
    parts = []
    for name in dict.fromkeys(str(r["data"]) for r in records):
        of = [r for r in records if r["data"] == name]
        area = "" if of[0]["auc"] is None else f"; right above wrong with probability {of[0]['auc']:.3f}"
        rows = [[str(r["tenth"]), f"{r['least']:.3f} to {r['most']:.3f}", f"{r['accuracy']:.3f}"] for r in of]
        text = table(["tenth of the samples", "certainty", "accuracy"], rows)
        parts.append(f"{name}, {of[0]['m']:,} samples{area}\n\n{text}")
    return "\n".join(parts)


if __name__ == "__main__":
    script(measure, COLUMNS, ["mnist"], draw)

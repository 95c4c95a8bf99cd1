"""`ips2 bench certainty`: how often labels are right among samples of a certainty, on known data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import roc_auc_score

from ips2_dask.evaluation.bench.document import Record
from ips2_dask.evaluation.bench.roundings import given, measuring
from ips2_dask.evaluation.metrics import contingency
from ips2_dask.params import Params
from ips2_dask.pipeline import run

COLUMNS = ("data", "tenth", "least", "most", "samples", "accuracy", "auc")


def right(known: Any, labels: Any) -> Any:
    """Which labels are right under the best matching of clusters to classes, as `metrics.accuracy` counts them: (m,).

    A cluster without a class is wrong.
    """
    classes, clusters = (np.unique(each, return_inverse=True)[1] for each in (known, labels))
    rows, columns = linear_sum_assignment(contingency(classes, clusters).toarray(), maximize=True)
    class_of = np.full(int(clusters.max()) + 1, -1)
    class_of[columns] = rows
    return class_of[clusters] == classes


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each tenth of the samples of a set, the least certain first.

    ``auc``, the same for all tenths, is the area under the curve of right labels told from wrong ones by certainty:
    the probability that a right one has the larger certainty; None where all are right or all wrong. Where samples of
    equal certainty fall into two tenths, the earlier ones come first.

    Parameters
    ----------
    names : sequence of str
        As of `roundings.given`.
    seed : int
    """
    for name in names:
        data = given(name)
        with measuring():
            found = run(data.X, Params(n_clusters=data.classes, random_state=seed))
        hit, certainty = right(data.known, found.labels), np.asarray(found.certainty, np.float64)
        auc = float(roc_auc_score(hit, certainty)) if hit.any() and not hit.all() else None
        for tenth, rows in enumerate(np.array_split(np.argsort(certainty, kind="stable"), 10), start=1):
            if len(rows):
                yield {
                    "data": name, "m": len(hit), "classes": data.classes, "tenth": tenth,
                    "least": float(certainty[rows[0]]), "most": float(certainty[rows[-1]]), "samples": len(rows),
                    "accuracy": float(hit[rows].mean()), "auc": auc,
                }  # fmt: skip


def markdown(records: Sequence[Record]) -> str:
    """A table for each set."""
    parts = []
    for name in dict.fromkeys(str(r["data"]) for r in records):
        of = [r for r in records if r["data"] == name]
        area = "" if of[0]["auc"] is None else f"; right above wrong with probability {of[0]['auc']:.3f}"
        lines = [
            f"{name}, {of[0]['m']:,} samples{area}", "",
            "| tenth of the samples | certainty | accuracy |", "|---|---|---|",
        ]  # fmt: skip
        lines += [f"| {r['tenth']} | {r['least']:.3f} to {r['most']:.3f} | {r['accuracy']:.3f} |" for r in of]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)

"""Shapes of a published battery, told c and not: records of battery.json.

The battery is that of Gagolewski (SoftwareX 20, 2022, 101270), whose folder ``battery`` stands in ``IPS2_DATA``. A set
may have several reference labelings, each with its own number of clusters. Its score is the best ARI over them. Points
that a reference takes for noise are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from known_sets import measuring, number, script, table
from sklearn.metrics import adjusted_rand_score

from ips2_dask.bench.harness import Record
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.typing import Float, Integer

COLUMNS = ("data", "told", "clusters", "found", "ari")


def folder() -> Path:
    """The folder of the battery, whose parts are folders of sets."""
    return Path(os.environ.get("IPS2_DATA", ".")) / "battery"


def sets() -> list[str]:
    """``part/name`` of each set."""
    return sorted(str(path.relative_to(folder())).removesuffix(".data.gz") for path in folder().glob("*/*.data.gz"))


def shapes(name: str) -> tuple[Float, list[Integer]]:
    """The points of a set, (m, f), and its reference labelings of two clusters or more: (m,) each, 0 for noise."""
    references = [np.loadtxt(path, dtype=int) for path in sorted(folder().glob(f"{name}.labels*.gz"))]
    return np.loadtxt(folder() / f"{name}.data.gz", ndmin=2), [one for one in references if one.max() > 1]


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """Two records for each set ``part/name``: told the number of clusters of each reference, and not told any."""
    for name in names:
        X, references = shapes(name)
        with measuring():
            counts = sorted({int(one.max()) for one in references})
            found = {c: run(X, Params(n_clusters=c, random_state=seed)).labels for c in counts}
            chosen = run(X, Params(n_clusters="auto", random_state=seed)).labels
        for told in (True, False):
            scored = [(score(one, found[one.max()] if told else chosen), int(one.max())) for one in references]
            best, clusters = max(scored)
            labels = found[clusters] if told else chosen
            yield {
                **{"data": name, "m": len(X), "f": X.shape[1], "told": told, "clusters": clusters},
                **{"found": int(labels.max()) + 1, "ari": best},
            }


def score(reference: Integer, labels: Integer) -> float:
    """The adjusted Rand index where the reference has no noise."""
    return float(adjusted_rand_score(reference[reference > 0], labels[reference > 0]))


def markdown(records: Sequence[Record]) -> str:
    """The mean of all sets, and each set of which less than .95 is found."""
    told, chosen = ({str(r["data"]): r for r in records if r["told"] == which} for which in (True, False))
    mean = ["mean", *(number(float(np.mean([r["ari"] for r in of.values()]))) for of in (told, chosen)), ""]
    rows = []
    for name, of in told.items():
        other = chosen[name]
        if min(of["ari"], other["ari"]) < 0.95:
            many = f"{other['found']} of {other['clusters']}"
            rows.append([name.partition("/")[2], number(of["ari"]), number(other["ari"]), many])
    exact = str(len(told) - len(rows))
    return table(
        ["set", "told c", "not told", "clusters found"], [mean, *rows, [f"{exact} others", "≥ .95", "≥ .95", ""]]
    )


if __name__ == "__main__":
    script(measure, COLUMNS, sets())

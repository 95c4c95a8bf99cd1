"""Data sets with known classes, as every system of these scripts gets them, and what the scripts share.

A script is run by hand: ``python notebooks/research/roundings.py --out notebooks/results/roundings.json``. Its records
justify constants of the package; `page_tables` shows them in docs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler, normalize

from ips2_dask.bench import harness
from ips2_dask.bench.harness import Record
from ips2_dask.datasets import load
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.typing import Float, Integer

OPEN = (
    *("soybean", "scadi", "bbcsport", "yale", "allaml", "lung", "wine", "glass", "usps", "pendigits", "letter"),
    *("mnist10k", "digits", "iris", "breast_cancer", "colon", "leukemia", "bbcsport-l2"),
)
TABLES = ("htru2", "satimage")
SCALED = ("htru2", "iris", "breast_cancer", "scadi", "wine", "glass", "kddcup-all")
"""Data sets whose columns have other units: they are standardised for every system."""

LENGTH_1 = "-l2"
"""Suffix of the names of sets whose rows are scaled to length 1."""

SHARE = 0.8
"""Share of the samples of a set that a draw holds."""

SCORES = ("nmi", "acc", "ari")


class LabelledData(NamedTuple):
    """A data set or a part of it, as every system gets it."""

    name: str
    draw: int  # 0 for the whole
    X: Float  # (m, f)
    known: Integer  # (m,) classes, for scoring
    scale: str

    @property
    def classes(self) -> int:
        """Number of known classes, the c that every system is given."""
        return len(np.unique(self.known))


def labelled_data(name: str, draw: int = 0, seed: int = 0) -> LabelledData:
    """A set of `datasets.load`, or a seeded draw of `SHARE` of it, scaled; with ``-l2`` at its end rows of length 1."""
    dataset = load(name.removesuffix(LENGTH_1))
    X, true_labels = np.asarray(dataset.X, np.float64), np.unique(dataset.labels, return_inverse=True)[1]
    if draw:
        rows = np.random.default_rng([seed, draw]).choice(len(X), round(SHARE * len(X)), replace=False)
        rows.sort()
        X, true_labels = X[rows], true_labels[rows]
    if name.endswith(LENGTH_1):
        return LabelledData(name, draw, normalize(X), true_labels, "l2")
    if name in SCALED:
        return LabelledData(name, draw, StandardScaler().fit_transform(X), true_labels, "zscore")
    return LabelledData(name, draw, X, true_labels, "none")


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Use all cores, and ignore warnings about a result's quality, which the script measures."""
    with warnings.catch_warnings(), threads(usable_cores()):
        warnings.simplefilter("ignore")
        yield


def script(
    measure: Callable[..., Iterator[Record]],
    columns: Sequence[str],
    sets: Sequence[str],
    draw: Callable[[Sequence[Record]], Any] | None = None,
    **more: Any,
) -> None:
    """Run a script: ``measure(names, seed=...)`` printed, and written to ``--out``.

    Other options, by their names with the arguments of `add_argument`, are given to ``measure`` too. ``draw`` makes the
    figure that ``--figure`` asks for.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, description=sys.modules["__main__"].__doc__)
    parser.add_argument("--data", default=",".join(sets), metavar="NAME,...", help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the records with their origin")
    if draw is not None:
        parser.add_argument("--figure", type=Path, metavar="FILE")
    for name, arguments in more.items():
        parser.add_argument(f"--{name}", **arguments)
    options = parser.parse_args()
    found = measure(options.data.split(","), seed=options.seed, **{name: getattr(options, name) for name in more})
    results = harness.record(found, columns, options.out, ["python", *sys.argv], options.seed)
    if draw is not None and options.figure is not None:
        draw(results).savefig(options.figure, dpi=150)


def number(value: float, sign: str = "") -> str:
    """Three decimals without the nought before them."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1)


def share(which: Collection[bool]) -> str:
    """``3 of 8``."""
    return f"{sum(which)} of {len(which)}" if which else "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], dashes: str = "---") -> str:
    """A table in Markdown."""
    rule = [f"|{'---|' * len(head)}"] if dashes == "---" else [f"| {' | '.join([dashes.strip()] * len(head))} |"]
    return "\n".join([f"| {' | '.join(head)} |", *rule, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

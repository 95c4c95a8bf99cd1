"""Data sets with known classes for benchmarks of quality, scaled as every system gets them, and the scores."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler, normalize

from ips2_dask.datasets import load
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.typing import Float, Integer

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
    """A data set, or a draw of `SHARE` of it without repeats, scaled as it is for every system.

    Parameters
    ----------
    name : str
        Of `datasets.load`; with ``-l2`` at its end its rows have length 1.
    draw : int
        0 for the whole set.
    seed : int
    """
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
    """Use all cores, and ignore warnings about a result's quality, which the benchmark measures."""
    with warnings.catch_warnings(), threads(usable_cores()):
        warnings.simplefilter("ignore")
        yield

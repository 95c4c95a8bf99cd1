"""One surface for the six methods: an affinity fitted once, labels for any seed, the same preprocessing for all."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from ips2_dask.errors import IPS2Warning
from ips2_dask.estimator import IPS2, PPC
from ips2_dask.kernels import ingest
from ips2_dask.paper.baselines import CAVE, HGC, SC, SSC
from ips2_dask.paper.baselines._common import ALL_PAIRS, bandwidth_of, spectral_labels
from ips2_dask.paper.experiments.settings import Setting
from ips2_dask.paper.experiments.ties import tie_components

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.integer]

ESTIMATORS: dict[str, Any] = {"SC": SC, "SSC": SSC, "CAVE": CAVE, "HGC": HGC, "PPC": PPC, "IPS2": IPS2}
BY_AFFINITY = ("SC", "SSC", "CAVE")
"""Methods that are an affinity and its spectral clustering: a seed changes the second alone (see `Fitted`)."""


def scaled(X: npt.ArrayLike, scale: str) -> Floats:
    """X as ``IPS2(scale=...)`` would take it, but in float64: what the other methods are given.

    Parameters
    ----------
    X : array (m, f)
    scale : {"none", "l2", "zscore", "minmax"}
    """
    X = np.asarray(X, np.float64)
    if scale == "none":
        return X
    if scale == "l2":
        return ingest.unit_rows(X)
    shift = X[0]
    center, spread = ingest.centering(ingest.column_statistics(X, shift), shift, len(X), scale)
    return (X - center) / spread


def estimator(method: str, setting: Setting, X: npt.ArrayLike, c: int, seed: int) -> tuple[Any, Floats]:
    """An unfitted estimator of a setting, and the data to fit it on.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    setting : dict
        Arguments, ``scale``, and ``bandwidth_times``: the bandwidth as a multiple of the mean distance.
    X : array (m, f)
        Raw data.
    c : int
    seed : int
        ``random_state``.
    """
    arguments = dict(setting)
    # similarities are compared here, each labelled by the c columns of Ng et al. (2002)
    if method in ("PPC", "IPS2") and setting.get("embedding") != "none":
        arguments.setdefault("n_components", c)
    # PPC and IPS2 scale for themselves
    data = np.asarray(X, np.float64) if method in ("PPC", "IPS2") else scaled(X, arguments.pop("scale"))
    if "bandwidth_times" in arguments:
        times = arguments.pop("bandwidth_times")
        arguments["bandwidth"] = times * bandwidth_of(data, "mean", np.random.RandomState(seed))
    return ESTIMATORS[method](c, random_state=seed, **arguments), data


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what estimators say of a result's worth, which is measured here, and k-means of equal points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IPS2Warning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


class Fitted:
    """A method with a setting on a data set: labels for any seed, what no seed changes computed once.

    The affinities of SC, SSC and CAVE do not depend on the seed (up to 5,000 samples; above, their bandwidth is that
    of seeded rows), so they are fitted once; clustering them with a seed gives what a fresh fit with it would. All
    others are fitted anew for each seed.

    Where such an affinity is sparse, its loose components are tied to their nearest one, see `tie_components`:
    spectral clustering can't tell more components apart than there are clusters.

    Parameters
    ----------
    method, setting, X, c
        As of `estimator`.
    """

    def __init__(self, method: str, setting: Setting, X: npt.ArrayLike, c: int) -> None:
        self.method, self.setting, self.X, self.c = method, setting, np.asarray(X), c
        self.seconds = 0.0  # of the last fit, preprocessing and scoring left out
        self.affinity: Any = None  # of SC, SSC and CAVE
        self.once = method == "SSC" or (method in BY_AFFINITY and len(self.X) <= ALL_PAIRS)

    def labels(self, seed: int) -> Labels:
        """Labels (m,) with this ``random_state``."""
        with quiet():
            if self.method not in BY_AFFINITY:
                return np.asarray(self._fit(seed)[0].labels_)
            if self.affinity is None or not self.once:
                self.affinity = self._affinity(seed)
            return spectral_labels(self.affinity, self.c, np.random.RandomState(seed))

    def _fit(self, seed: int) -> tuple[Any, Floats]:
        unfitted, data = estimator(self.method, self.setting, self.X, self.c, seed)
        begun = time.perf_counter()
        fitted = unfitted.fit(data)
        self.seconds = time.perf_counter() - begun
        return fitted, data

    def _affinity(self, seed: int) -> Any:
        fitted, data = self._fit(seed)
        W = fitted.affinity_matrix_
        if sp.issparse(W):
            W, _, _ = tie_components(sp.csr_array(W), data, self.c)
        return W

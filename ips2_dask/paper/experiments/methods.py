"""One interface to the six methods: an affinity fitted once, labels for any seed, the same preprocessing for all."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ips2_dask.errors import IPS2Warning
from ips2_dask.estimator import IPS2, PPC
from ips2_dask.kernels import ingest
from ips2_dask.paper.baselines import CAVE, HGC, SC, SSC
from ips2_dask.paper.baselines._common import ALL_PAIRS, Affinity, bandwidth_of, spectral_labels
from ips2_dask.paper.experiments.settings import Setting
from ips2_dask.typing import Float64, Integer


class Tie(NamedTuple):
    """An edge that joins a loose component to its nearest one."""

    sample: int
    nearest: int
    size: int  # samples of the loose component


def _central(X: Float64, members: NDArray[np.intp]) -> int:
    """The member nearest to the mean."""
    center = X[members].mean(axis=0, dtype=np.float64)
    return int(members[np.argmin(np.square(X[members] - center).sum(axis=1))])


def _nearest_outside(X: Float64, row: int, label: NDArray[np.int32]) -> int:
    """The nearest sample of another component (ties: smallest id)."""
    squares = np.square(X - X[row]).sum(axis=1)
    squares[label == label[row]] = np.inf
    return int(np.argmin(squares))


def tie_components(U: sp.csr_array, X: Float64, n_clusters: int) -> tuple[sp.csr_array, list[Tie], int]:
    """U with each loose component joined to its nearest one by a single edge, the edges, and the components before.

    Loose are components of fewer than m / (10 c) samples, and the smallest ones while there are more than c: a
    spectral embedding of c columns can't tell more than c components apart. The edge runs from the member nearest to
    the component's mean to the nearest sample outside, and weighs as much as the median edge.
    """
    m = U.shape[0]
    count, label = connected_components(U, directed=False)
    before = int(count)
    ties: list[Tie] = []
    weight = float(np.median(U.data)) if U.nnz else 1.0
    while count > 1:
        sizes = np.bincount(label, minlength=count)
        loose = np.flatnonzero(sizes < m / (10 * n_clusters))
        if count - len(loose) > n_clusters:
            surplus = count - n_clusters
            loose = np.argsort(sizes, kind="stable")[: max(surplus, len(loose))]
        if len(loose) == count:
            loose = loose[loose != np.argmax(sizes)]
        if len(loose) == 0:
            break
        members = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
        i = np.array([_central(X, members[component]) for component in loose], np.intp)
        j = np.array([_nearest_outside(X, row, label) for row in i], np.intp)
        new = [Tie(*(int(n) for n in tie)) for tie in zip(i, j, sizes[loose], strict=True)]
        ties += new
        bridge = sp.coo_array((np.full(len(new), weight, U.dtype), (i, j)), shape=U.shape).tocsr()
        U = sp.csr_array(U.maximum(bridge).maximum(bridge.T))
        count, label = connected_components(U, directed=False)
    return U, ties, before


ESTIMATORS: dict[str, type[BaseEstimator]] = {"SC": SC, "SSC": SSC, "CAVE": CAVE, "HGC": HGC, "PPC": PPC, "IPS2": IPS2}
BY_AFFINITY = ("SC", "SSC", "CAVE")
"""Methods that are an affinity and its spectral clustering: a seed changes the second alone (see `Fitted`)."""


def scaled(X: npt.ArrayLike, scale: str) -> Float64:
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


def estimator(method: str, setting: Setting, X: npt.ArrayLike, c: int, seed: int) -> tuple[BaseEstimator, Float64]:
    """An unfitted estimator of a setting, and the data to fit it on.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    setting : dict
        Arguments, ``scale``, and ``bandwidth_times``: the bandwidth as a multiple of the mean distance. That of SC,
        SSC and CAVE may hold ``embedding``, which is no argument of theirs: `affinity_labels` takes it.
    X : array (m, f)
        Raw data.
    c : int
    seed : int
        ``random_state``.
    """
    arguments = dict(setting)
    if method in BY_AFFINITY:
        arguments.pop("embedding", None)  # labels are not the estimator's then, see `affinity_labels`
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
    """Ignore warnings about a result's quality, which is measured here, and k-means' about equal points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IPS2Warning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def affinity_labels(W: Affinity, c: int, how: str, rng: np.random.RandomState) -> Integer:
    """Labels (m,) of an affinity, in one of the ways that ``IPS2(embedding=...)`` offers for its own.

    Parameters
    ----------
    W : array or sparse array (m, m)
    c : int
    how : {"spectral", "rows", "none"}
        Its spectral embedding; that of the heat-kernel graph on its rows, loose components tied; or its rows.
    rng : RandomState
        Of k-means, the best of ten starts.
    """
    if how == "spectral":
        return spectral_labels(W, c, rng)
    rows = np.asarray(W.toarray() if sp.issparse(W) else W, np.float64)
    if how == "none":
        return np.asarray(KMeans(c, n_init=10, random_state=rng).fit(rows).labels_)
    graph = sp.csr_array(SC(c, affinity="heat-knn", random_state=rng).fit(rows).affinity_matrix_)
    return spectral_labels(tie_components(graph, rows, c)[0], c, rng)


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
        self.affinity: Affinity | None = None  # of SC, SSC and CAVE
        self.once = method == "SSC" or (method in BY_AFFINITY and len(self.X) <= ALL_PAIRS)

    def labels(self, seed: int) -> Integer:
        """Labels (m,) with this ``random_state``."""
        with quiet():
            if self.method not in BY_AFFINITY:
                return np.asarray(self._fit(seed)[0].labels_)
            if self.affinity is None or not self.once:
                self.affinity = self._affinity(seed)
            how = self.setting.get("embedding", "spectral")
            return affinity_labels(self.affinity, self.c, how, np.random.RandomState(seed))

    def _fit(self, seed: int) -> tuple[BaseEstimator, Float64]:
        unfitted, data = estimator(self.method, self.setting, self.X, self.c, seed)
        begun = time.perf_counter()
        fitted = unfitted.fit(data)
        self.seconds = time.perf_counter() - begun
        return fitted, data

    def _affinity(self, seed: int) -> Affinity:
        fitted, data = self._fit(seed)
        W = fitted.affinity_matrix_
        if sp.issparse(W):
            W, _, _ = tie_components(sp.csr_array(W), data, self.c)
        return W

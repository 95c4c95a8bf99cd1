"""The six methods as the experiments run them: their settings and grids, one interface to labels, scores and times."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.estimator import IPS2, PPC
from ips2_dask.kernels import ingest
from ips2_dask.metrics import accuracy, scores
from ips2_dask.paper.baselines import CAVE, FACES, HGC, MOTION, SC, SSC, Affinity, spectral_labels
from ips2_dask.paper.data import Dataset
from ips2_dask.paper.explicit import bandwidth_of
from ips2_dask.params import PAPER
from ips2_dask.typing import Bool, Float64, Integer

Setting = dict[str, Any]
"""Arguments of a method, and ``scale``; ``bandwidth_times`` stands for that multiple of the mean distance, and
``embedding`` for the way to labels of `_affinity_labels`."""

ESTIMATORS: dict[str, type[BaseEstimator]] = {"SC": SC, "SSC": SSC, "CAVE": CAVE, "HGC": HGC, "PPC": PPC, "IPS2": IPS2}
METHODS = tuple(ESTIMATORS)
"""The paper's six, in the order of its Table 2."""

COMPARED = ("SC", "PPC", "IPS2")
"""Those that the paper draws curves of."""

BY_AFFINITY = ("SC", "SSC", "CAVE")
"""Methods that are an affinity and its spectral clustering: a seed changes the second alone (see `labels_of`)."""

BUDGET = 200
"""Settings that each method is tried with."""

SHUFFLE = 20190509
"""Seed of the order in which a grid that is longer than the budget is cut off."""

SCALES = ("none", "l2", "zscore", "minmax")

DEFAULTS: dict[str, Setting] = {method: {} for method in METHODS}
DEFAULTS["SC"] = {
    "affinity": "heat-knn"
}  # the pairwise similarity that IPS2 starts from, so that they differ by V alone
"""One setting for all data sets: the estimators' own defaults, data as they are."""

PUBLISHED: dict[str, tuple[Setting, ...]] = {
    "SC": ({"affinity": "gaussian"},),
    "SSC": (dict(MOTION), dict(FACES)),
    "CAVE": (),
    "HGC": ({"alpha": 1.0, "beta": 1.0, "gamma": 1.0},),
    "PPC": ({name: value for name, value in PAPER.items() if name != "affinity"},),
    "IPS2": (dict(PAPER),),
}
"""Settings that a method's paper or authors name: in every grid, with each scale, before the rest is cut off."""


# settings


def _cross(**choices: tuple[object, ...]) -> Iterator[Setting]:
    return (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


def _kernels() -> tuple[Setting, ...]:
    return ({"bandwidth": "mean"}, {"bandwidth": "median"}, *({"bandwidth_times": t} for t in (0.25, 0.5, 2.0)))


def _sc() -> Iterator[Setting]:
    for kernel in _kernels():
        for zero in (True, False):
            yield {"affinity": "gaussian", "zero_diagonal": zero, **kernel}
        for k in (2, 3, 4, 5, 6, 7, 9, 14):
            yield {"affinity": "heat-knn", "n_neighbors": k, **kernel}


def _ssc() -> Iterator[Setting]:
    alphas = (5.0, 10.0, 20.0, 50.0, 100.0, 800.0)
    yield from _cross(alpha=alphas, affine=(False, True), outliers=(False, True), keep=(1.0, 0.7))
    yield from _cross(solver=("omp",), n_nonzero=(3, 5, 10, 20))


def _cave() -> Iterator[Setting]:
    for shape in _cross(n_neighbors=(3, 4, 5, 6, 7, 8, 10, 12, 15), averaging=("separate", "joint")):
        yield from ({**shape, **kernel} for kernel in _kernels()[:4])


def _hgc() -> Iterator[Setting]:
    for shape in _cross(n_neighbors=(3, 5, 7, 10, 12, 15, 20), incidence=("knn", "knn-others")):
        yield from ({**shape, "alpha": prior, "beta": prior, "gamma": prior} for prior in (1e-6, 1e-2, 0.5, 1.0))


def _ppc() -> Iterator[Setting]:
    rules, ways = ("rms", "abs"), ("spectral", "rows", "none")
    yield from _cross(n_neighbors=(5, 7, 10, 15), sigma=(0.5, 1.0, 2.0, 4.0), high_order=rules, embedding=ways)


def _ips2() -> Iterator[Setting]:
    similarities = (("heat-knn", "mean"), ("gaussian", "mean"), ("gaussian", "median"))
    for tensor, (affinity, bandwidth), fusion in product(_ppc(), similarities, ("average", "normalized")):
        yield {**tensor, "affinity": affinity, "bandwidth": bandwidth, "fusion": fusion}


_FULL = {"SC": _sc, "SSC": _ssc, "CAVE": _cave, "HGC": _hgc, "PPC": _ppc, "IPS2": _ips2}


def default(method: str) -> Setting:
    """The one setting of a method for all data sets."""
    return {"scale": "none", **DEFAULTS[method]}


def published(method: str) -> Setting:
    """What the paper prints of a method: dense Gaussian S, k = 10, k-means on rows; of a baseline, what its authors do.

    The paper refers to the authors of SSC and HGC for theirs. Of CAVE neither says anything, so this is its default.
    """
    return {"scale": "none", **(PUBLISHED[method] or (DEFAULTS[method],))[0]}


def grid(method: str, budget: int = BUDGET) -> list[Setting]:
    """The settings that a method is tuned over: ``budget`` distinct ones, the default first.

    After the default and the published settings (with each scale) come those of the full product in a seeded random
    order, as many as there is room for, so that all methods are tried equally often. The products differ in size.
    Labels are found in the same three ways from every affinity; HGC's groups are its labels.
    """
    ways = [{}, {"embedding": "rows"}, {"embedding": "none"}] if method in BY_AFFINITY else [{}]
    whole = [{"scale": scale, **one, **way} for scale in SCALES for one in _FULL[method]() for way in ways]
    first = [{"scale": scale, **s} for s in (DEFAULTS[method], *PUBLISHED[method]) for scale in SCALES]
    order = np.random.default_rng(SHUFFLE).permutation(len(whole))
    chosen: dict[str, Setting] = {}
    for setting in (default(method), *first, *(whole[i] for i in order)):
        chosen.setdefault(repr(sorted(setting.items())), setting)
    return list(chosen.values())[:budget]


# labels


def _edge(X: Float64, inside: Bool) -> tuple[int, int]:
    """The member of a component nearest to its mean, and the sample outside nearest to it (ties: smallest id)."""
    members = np.flatnonzero(inside)
    central = members[np.argmin(np.square(X[members] - X[members].mean(axis=0, dtype=np.float64)).sum(axis=1))]
    squares = np.square(X - X[central]).sum(axis=1)
    squares[inside] = np.inf
    return int(central), int(np.argmin(squares))


def tie_components(U: sp.csr_array, X: Float64, n_clusters: int) -> sp.csr_array:
    """U with each loose component joined to its nearest one by a single edge.

    Loose are components of fewer than m / (10 c) samples, and the smallest ones while there are more than c: a
    spectral embedding of c columns can't tell more than c components apart. The edge runs from the member nearest to
    the component's mean to the nearest sample outside, and weighs as much as the median edge.
    """
    m = U.shape[0]
    count, label = connected_components(U, directed=False)
    weight = float(np.median(U.data)) if U.nnz else 1.0
    while count > 1:
        sizes = np.bincount(label, minlength=count)
        loose = np.flatnonzero(sizes < m / (10 * n_clusters))
        if count - len(loose) > n_clusters:
            loose = np.argsort(sizes, kind="stable")[: max(count - n_clusters, len(loose))]
        if len(loose) == count:
            loose = loose[loose != np.argmax(sizes)]
        if len(loose) == 0:
            break
        ends = np.transpose([_edge(X, label == component) for component in loose])
        bridge = sp.coo_array((np.full(len(loose), weight, U.dtype), tuple(ends)), shape=U.shape).tocsr()
        U = sp.csr_array(U.maximum(bridge).maximum(bridge.T))
        count, label = connected_components(U, directed=False)
    return U


def scaled(X: npt.ArrayLike, scale: str) -> Float64:
    """X (m, f) as ``IPS2(scale=...)`` would take it, but in float64: what the other methods are given."""
    X = np.asarray(X, np.float64)
    if scale == "none":
        return X
    if scale == "l2":
        return ingest.unit_rows(X)
    shift = X[0]
    center, spread = ingest.centering(ingest.column_statistics(X, shift), shift, len(X), scale)
    return (X - center) / spread


def estimator(method: str, setting: Setting, X: npt.ArrayLike, c: int, seed: int) -> tuple[BaseEstimator, Float64]:
    """An unfitted estimator of a setting for c clusters with this ``random_state``, and the data to fit it on.

    An ``embedding`` that is no argument of the method is left out: labels are those of `_affinity_labels` then.
    """
    arguments = dict(setting)
    data = np.asarray(X, np.float64)
    if method in ("PPC", "IPS2"):  # they scale for themselves
        if arguments.get("embedding") == "rows":
            del arguments["embedding"]
        if arguments.get("embedding") != "none":
            # similarities are compared here, each labelled by the c columns of Ng et al. (2002)
            arguments.setdefault("n_components", c)
    else:
        arguments.pop("embedding", None)
        data = scaled(X, arguments.pop("scale"))
    if "bandwidth_times" in arguments:
        times = arguments.pop("bandwidth_times")
        arguments["bandwidth"] = times * bandwidth_of(cdist(data, data), "mean")
    return ESTIMATORS[method](c, random_state=seed, **arguments), data


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings about a result's quality, which is measured here, and k-means' about equal points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IPS2Warning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _affinity_labels(W: Affinity, c: int, how: str, rng: np.random.RandomState) -> Integer:
    """Labels (m,) of an affinity (m, m), dense or sparse.

    ``how`` is ``spectral``: its spectral embedding; ``rows``: that of the heat-kernel graph on its rows, loose
    components tied; or ``none``: its rows. k-means on these points is the best of ten starts.
    """
    if how == "spectral":
        return spectral_labels(W, c, rng)
    rows = np.asarray(W.toarray() if sp.issparse(W) else W, np.float64)
    if how == "none":
        return np.asarray(KMeans(c, n_init=10, random_state=rng).fit(rows).labels_)
    graph = sp.csr_array(SC(c, affinity="heat-knn", random_state=rng).fit(rows).affinity_matrix_)
    return spectral_labels(tie_components(graph, rows, c), c, rng)


def labels_of(method: str, setting: Setting, X: npt.ArrayLike, c: int, seeds: Iterable[int]) -> Iterator[Integer]:
    """Labels (m,) of a method with a setting for each seed, what no seed changes computed once.

    The affinities of SC, SSC and CAVE do not depend on the seed, so they are fitted once; clustering them with a seed
    gives what a fresh fit with it would. All others are fitted anew for each seed. Where such an affinity is sparse,
    its loose components are tied to their nearest one, see `tie_components`.
    """
    how, affinity = setting.get("embedding", "spectral"), None
    for seed in seeds:
        with quiet():
            if affinity is None or method not in BY_AFFINITY:
                unfitted, data = estimator(method, setting, X, c, seed)
                fitted = unfitted.fit(data)
            if method in BY_AFFINITY:
                if affinity is None:
                    W = fitted.affinity_matrix_
                    affinity = tie_components(sp.csr_array(W), data, c) if sp.issparse(W) else W
                labels = _affinity_labels(affinity, c, how, np.random.RandomState(seed))
            elif how == "rows":
                labels = _affinity_labels(fitted.affinity_matrix_, c, how, np.random.RandomState(seed))
            else:
                labels = np.asarray(fitted.labels_)
        yield labels


# scores


Summary: TypeAlias = dict[str, Any]
"""Of one setting: ``params``, number of ``runs``, and ``mean`` and ``std``, each measure's by its name."""

FINALISTS = 10
"""Settings of the grid that are run with all seeds before the best is called tuned."""


def summary(setting: Setting, measured: Sequence[dict[str, float]]) -> Summary:
    """Mean and standard deviation (of these runs: the divisor is their number) of each measure."""
    table = {name: np.array([run[name] for run in measured]) for name in measured[0]}
    mean, std = ({name: float(f(values)) for name, values in table.items()} for f in (np.mean, np.std))
    return {"params": setting, "runs": len(measured), "mean": mean, "std": std}


def score(method: str, setting: Setting, dataset: Dataset, seeds: Sequence[int]) -> list[dict[str, float]]:
    """The five measures of a setting on a data set for each seed."""
    found = labels_of(method, setting, dataset.X, dataset.n_clusters, seeds)
    return [scores(dataset.labels, labels) for labels in found]


def seconds(method: str, setting: Setting, dataset: Dataset, seed: int) -> float:
    """How long ``fit`` takes: the estimator alone, on data that are in memory and scaled."""
    unfitted, X = estimator(method, setting, dataset.X, dataset.n_clusters, seed)
    begun = time.perf_counter()
    with quiet():
        unfitted.fit(X)
    return time.perf_counter() - begun


def three_settings(method: str, dataset: Dataset, runs: int, seed: int, budget: int) -> dict[str, Summary]:
    """Try a method's whole grid once, and run the settings that come out of it.

    ``default`` is the method's one setting for all data sets. ``tuned`` is the best mean ACC of the ten settings that
    did best once: it uses the labels, and is what the paper's figures must be. ``printed`` is what the paper prints of
    the method, the same for all data sets.
    """

    def run(setting: Setting) -> Summary:
        return summary(setting, score(method, setting, dataset, range(seed, seed + runs)))

    settings, accuracies = try_grid(method, dataset, seed, budget)
    finalists = [run(settings[i]) for i in np.argsort(np.negative(accuracies), kind="stable")[:FINALISTS]]
    tuned = max(finalists, key=lambda finalist: finalist["mean"]["acc"])  # the first of several
    return {"tuned": tuned, "printed": run(published(method)), "default": run(default(method))}


def try_grid(method: str, dataset: Dataset, seed: int, budget: int) -> tuple[list[Setting], list[float]]:
    """The settings that the data allow, and the ACC of each with one seed."""
    settings, accuracies = [], []
    for setting in grid(method, budget):
        with contextlib.suppress(BadInput):  # more neighbours than samples, say
            (found,) = labels_of(method, setting, dataset.X, dataset.n_clusters, [seed])
            settings.append(setting)
            accuracies.append(accuracy(dataset.labels, found))
    return settings, accuracies

"""What the paper's text leaves open, read in every way that was thought of: dense and explicit, for a hundred samples.

`Reading` names the choices; its defaults are the settings that the paper prints. `Evaluator` gives the accuracy of SC,
PPC and IPS2 under a reading. The experiment tries each reading alone, a grid of the likely ones, and some on draws of
samples. Nothing here is part of the method that the package offers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans

from ips2_dask.metrics import accuracy
from ips2_dask.paper import data as sets
from ips2_dask.paper import explicit
from ips2_dask.paper.baselines import embedding
from ips2_dask.paper.data import YALE_SUBJECTS, Dataset
from ips2_dask.paper.experiments import PAPER_SETS, printed_score
from ips2_dask.paper.methods import COMPARED, quiet, scaled
from ips2_dask.paper.work import Family, Record, Work
from ips2_dask.typing import Float64

Result = TypeVar("Result")

EPSILON = 1e-4
TUNING_NEIGHBOR = 7
"""The neighbour whose distance is a sample's own bandwidth (Zelnik-Manor and Perona 2004)."""

WITHIN = 0.005
"""How near an accuracy has to be to a printed figure to count as the same: a quarter of a sample of 50."""

DRAWN = ("bbcsport60", "yale5")
"""Data sets of which the paper doesn't say which samples they hold."""

DIGITS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read the paper: a value of each choice. The defaults are its printed settings, `ips2_dask.PAPER`."""

    scale: str = "none"  # log: log(1 + x); tfidf: counts times log(m / documents that have the term), rows to length 1
    metric: str = "euclidean"  # cosine is 1 - cos
    affinity: str = "gaussian"  # S of all pairs, or of five nearest others
    # t of exp(-d^2 / 2t^2); own: t^2 is half of the product of both samples' distances to their 7th neighbour
    bandwidth: str = "mean"
    diagonal: int = 1  # of a Gaussian S
    k: int = 10  # samples of a neighbourhood, the sample itself included
    support: str = "neighborhoods"  # quadruples of one neighbourhood, or all
    counting: str = "once"  # whether an entry that several neighbourhoods give counts once or is added up
    sigma: float | str = 1.0  # 1/mean: over the mean distance; 1/centre: of a neighbourhood's centre to all
    tensor_distance: str = "plain"  # d in the tensor
    normalisation: str = "symmetric"  # eigenvectors of D^-1/2 T D^-1/2, with walk of D^-1 T, with none of T
    vectors: str = "c"  # how many leading eigenvectors; below: the c after those of eigenvalue 1
    rule: str = "rms"  # how they become V, see `explicit.combined`
    v_scale: str = "max"  # the largest size is 1; unit vectors as they are; V's norm is that of S; V's range is 0 to 1
    fusion: str = "average"
    # k-means on the rows of the similarity, as printed; on c eigenvectors of its Laplacian with rows of length 1, or
    # with rows as they are; or on those of a heat-kernel graph whose points are the similarity's rows
    labels: str = "rows"

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from the printed settings."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != getattr(PRINTED, name)}

    def part(self, *names: str) -> tuple[Hashable, ...]:
        """The values of some choices."""
        return tuple(getattr(self, name) for name in names)


PRINTED = Reading()

DISTANCE = ("scale", "metric")
PAIRWISE = (*DISTANCE, "affinity", "bandwidth", "diagonal")
SPECTRUM = (*DISTANCE, "k", "support", "counting", "sigma", "tensor_distance", "normalisation")
HIGH_ORDER = (*SPECTRUM, "vectors", "rule")


Outcome = dict[str, float]
"""ACC over several starts of k-means: their ``mean``, ``std`` and ``best``, and that of the ``least_inertia``."""


class Evaluator:
    """Accuracies of readings on at most a hundred samples, over single starts of k-means with the seeds 0, 1, ...

    What readings share is computed once.
    """

    def __init__(self, dataset: Dataset, starts: int = 20) -> None:
        self.X, self.truth, self.c = np.asarray(dataset.X, np.float64), dataset.labels, dataset.n_clusters
        self.starts = starts
        self._kept: dict[tuple[Hashable, ...], Any] = {}

    def outcome(self, method: str, reading: Reading) -> Outcome:
        """The accuracy of SC, PPC or IPS2 under a reading."""
        names = {"SC": PAIRWISE, "PPC": (*HIGH_ORDER, "v_scale"), "IPS2": tuple(dataclasses.asdict(reading))}[method]
        key = (method, "outcome", *reading.part(*names, "labels"))
        return self._once(key, lambda: self._score(self.similarity(method, reading), reading.labels))

    def similarity(self, method: str, reading: Reading) -> Float64:
        """S, V or U under a reading, (m, m)."""
        if method == "SC":
            return self.pairwise(reading)
        V = self.high_order(reading)
        if method == "PPC":
            return V
        return _fused(self.pairwise(reading), V, reading.fusion)

    def pairwise(self, reading: Reading) -> Float64:
        """S, (m, m)."""
        d = self._distances(reading)
        return self._once(("S", *reading.part(*PAIRWISE)), partial(_pairwise, d, reading))

    def high_order(self, reading: Reading) -> Float64:
        """V, (m, m)."""
        d = self._distances(reading)
        found = self._once(("spectrum", *reading.part(*SPECTRUM)), partial(_spectrum, d, reading, 2 * self.c))
        n = {"1": 1, "c": self.c, "below": self.c, "c+1": self.c + 1, "2c": 2 * self.c}[reading.vectors]
        V = self._once(
            ("V", *reading.part(*HIGH_ORDER)),
            partial(explicit.combined, found, n, reading.rule, reading.vectors == "below"),
        )
        norm = np.linalg.norm(self.pairwise(reading)) if reading.v_scale == "norm" else 1.0
        return _scaled_high_order(V, reading.v_scale, float(norm))

    def _distances(self, reading: Reading) -> Float64:
        key = ("d", *reading.part(*DISTANCE))
        return self._once(key, lambda: _distances(_transformed(self.X, reading.scale), reading.metric))

    def _once(self, key: tuple[Hashable, ...], make: Callable[[], Result]) -> Result:
        if key not in self._kept:
            self._kept[key] = make()
        found: Result = self._kept[key]
        return found

    def _score(self, M: Float64, labels: str) -> Outcome:
        with quiet():
            points = _points(M, labels, self.c)
            fits = [KMeans(self.c, n_init=1, random_state=seed).fit(points) for seed in range(self.starts)]
        reached = np.array([accuracy(self.truth, fit.labels_) for fit in fits])
        least = int(np.argmin([fit.inertia_ for fit in fits]))
        found = {"mean": reached.mean(), "std": reached.std(), "best": reached.max(), "least_inertia": reached[least]}
        return {name: round(float(value), DIGITS) for name, value in found.items()}


def _transformed(X: Float64, scale: str) -> Float64:
    if scale == "log":
        return np.asarray(np.log1p(X))
    if scale == "tfidf":
        documents = np.count_nonzero(X, axis=0)
        idf = np.log(len(X) / np.maximum(documents, 1))
        return scaled(X * idf, "l2")
    return scaled(X, scale)


def _distances(X: Float64, metric: str) -> Float64:
    return np.asarray(squareform(pdist(X, {"manhattan": "cityblock"}.get(metric, metric))))


def _pairwise(d: Float64, reading: Reading) -> Float64:
    if reading.bandwidth == "own":
        own = np.sort(d, axis=1)[:, min(TUNING_NEIGHBOR, len(d) - 1)]
        own = np.maximum(own, own[own > 0].min())  # a sample with seven duplicates
        S = np.exp(-(d**2) / np.outer(own, own))
    else:
        above = squareform(d, checks=False)
        mean = float(above.mean())
        t = {"mean": mean, "mean/2": mean / 2, "median": float(np.median(above)), "one": 1.0}[reading.bandwidth]
        S = explicit.kernel(d, t)
    if reading.affinity == "heat-knn":
        return explicit.on_neighbors(S, d)
    np.fill_diagonal(S, reading.diagonal)
    return S


def tensor(d: Float64, reading: Reading) -> Float64:
    """The unfolded tensor of distances d (m, m) over ordered pairs, (m^2, m^2)."""
    e = d**2 if reading.tensor_distance == "squared" else d
    near = None if reading.support == "all" else explicit.nearest(d, reading.k)
    mean = float(squareform(e, checks=False).mean())
    sigma = 1 / mean if isinstance(reading.sigma, str) else float(reading.sigma)
    of_centre = reading.sigma == "1/centre" and near is not None
    sigmas = (len(e) - 1) / e.sum(axis=1) if of_centre else sigma
    return explicit.unfold(explicit.quadruples(e, near, sigmas, EPSILON, reading.counting == "each"))


def _spectrum(d: Float64, reading: Reading, n: int) -> explicit.Spectrum:
    divide: Any = {"symmetric": "both", "walk": "left", "none": "none"}[reading.normalisation]
    found = explicit.spectrum(tensor(d, reading), n, divide)
    if divide != "none":
        return found
    order = np.argsort(-found.values, kind="stable")  # no eigenvalue belongs to a component
    return explicit.Spectrum(found.values[order], found.matrices[order], np.zeros(0))


def _scaled_high_order(V: Float64, how: str, norm: float) -> Float64:
    if how == "range":
        return np.asarray((V - V.min()) / (V.max() - V.min()))
    factor = {"max": 1 / np.abs(V).max(), "norm": norm / np.linalg.norm(V), "none": 1.0}[how]
    return np.asarray(V * factor)


def _fused(S: Float64, V: Float64, how: str) -> Float64:
    if how == "normalized":
        return (explicit.laplacian(S) + explicit.laplacian(np.maximum(V, 0))) / 2
    return {"average": (S + V) / 2, "product": S * V, "maximum": np.maximum(S, V)}[how]


def _points(M: Float64, labels: str, c: int) -> Float64 | sp.csr_array:
    """What k-means clusters."""
    if labels == "rows":
        return M
    if labels == "graph":
        M = explicit.pairwise_similarity(M, "heat-knn")
    if labels == "unscaled":
        degree = np.maximum(M.sum(axis=1), 1e-300)
        L = M / np.sqrt(degree)[:, None] / np.sqrt(degree)
        m = len(L)
        return np.asarray(eigh(L, subset_by_index=[m - c, m - 1])[1])
    return embedding(M, c)


LATER = Reading(affinity="heat-knn", sigma="1/centre", rule="signed", labels="graph")
"""As in the group's public code for a later paper (arXiv 2302.01569), signs made definite."""

BASES = {"printed": PRINTED, "later code": LATER}
"""Readings that others differ from by one choice, by name."""


def single_changes(base: Reading, c: int) -> dict[str, Reading]:
    """A reading, as ``unchanged``, and each change of one choice, by name; signs have patterns for c vectors."""
    choices: dict[str, Sequence[Any]] = {
        "scale": ("none", "zscore", "minmax", "l2", "log", "tfidf"),
        "metric": ("euclidean", "manhattan", "cosine"),
        "affinity": ("gaussian", "heat-knn"),
        "bandwidth": ("mean", "median", "mean/2", "one", "own"),
        "diagonal": (1, 0),
        "k": (5, 6, 7, 8, 9, 10, 11, 12, 15),
        "support": ("neighborhoods", "all"),
        "counting": ("once", "each"),
        "sigma": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, "1/mean", "1/centre"),
        "tensor_distance": ("plain", "squared"),
        "normalisation": ("symmetric", "walk", "none"),
        "vectors": ("1", "c", "c+1", "2c", "below"),
        "rule": ("rms", "abs", "signed", "square", "centred", *(f"signs {n}" for n in range(1, 2 ** (c - 1)))),
        "v_scale": ("max", "none", "norm", "range"),
        "fusion": ("average", "normalized", "product", "maximum"),
        "labels": ("rows", "spectral", "unscaled", "graph"),
    }
    if base.affinity == "heat-knn":
        del choices["diagonal"]  # is zero there
    named = {"unchanged": base}
    for name, values in choices.items():
        for value in values:
            if value != getattr(base, name):
                changed: dict[str, Any] = {name: value}
                named[f"{name} {value}"] = dataclasses.replace(base, **changed)
    return named


GRID: dict[str, tuple[Any, ...]] = {
    "scale": ("none", "zscore", "minmax", "l2"),
    "affinity, bandwidth": (("gaussian", "mean"), ("gaussian", "median"), ("gaussian", "own"), ("heat-knn", "mean")),
    "k": (5, 7, 10),
    "sigma": (0.5, 1.0, 2.0, "1/centre"),
    "rule": ("rms", "signed"),
    "labels": ("rows", "spectral", "graph"),
}
"""The choices that are combined; all others stay as printed."""


def grid() -> list[Reading]:
    """All combinations of the likely readings."""
    return [Reading(**dict(pair for part in parts for pair in part)) for parts in product(*map(_values, GRID))]


def _values(names: str) -> list[list[tuple[str, Any]]]:
    """What a line of the grid may be: values of one choice, or of two at once."""
    keys = names.split(", ")
    return [list(zip(keys, one if len(keys) > 1 else (one,), strict=True)) for one in GRID[names]]


def allowed(name: str, reading: Reading) -> bool:
    """Whether a reading makes sense on a data set: ``tfidf`` needs counts of terms."""
    return reading.scale != "tfidf" or name.startswith("bbcsport")


def drawn(name: str, seed: int, data: str | None) -> Dataset:
    """60 documents of bbcsport, 20 of each of the classes 2 to 4; or the faces of 5 of Yale's 15 people."""
    if name == "bbcsport60":
        return sets.bbcsport_draw(seed, data)
    whole = sets.load("yale", data)
    people = np.random.default_rng(seed).choice(np.unique(whole.labels), YALE_SUBJECTS, replace=False)
    rows = np.isin(whole.labels, people)
    return Dataset(f"yale-draw{seed}", whole.X[rows], whole.labels[rows], "", whole.addresses)


def alone(data: str | None, dataset: str, base: str, starts: int) -> dict[str, dict[str, Any]]:
    """Each change of one choice of a base: what differs from the printed reading, and the three methods' accuracies."""
    loaded = sets.load(dataset, data)
    evaluator = Evaluator(loaded, starts)
    return {
        name: {"changes": reading.changes, **{m: evaluator.outcome(m, reading) for m in COMPARED}}
        for name, reading in single_changes(BASES[base], loaded.n_clusters).items()
        if allowed(dataset, reading)
    }


def _combined(data: str | None, dataset: str, starts: int) -> dict[str, dict[str, list[float]]]:
    """The grid: for each method and statistic the accuracies in the grid's order."""
    evaluator, columns = Evaluator(sets.load(dataset, data), starts), {}
    for method in COMPARED:
        outcomes = [evaluator.outcome(method, reading) for reading in grid()]
        columns[method] = {name: [one[name] for one in outcomes] for name in outcomes[0]}
    return columns


def draws(data: str | None, dataset: str, best: dict[str, Any], starts: int, count: int) -> dict[str, dict[str, Any]]:
    """Some readings on random draws of samples: changes, and for each method the mean accuracy of each draw.

    ``best`` are the changes that were best on the grid, by data set.
    """
    readings = {**BASES, "best of the grid": Reading(**best[dataset])}
    found: dict[str, dict[str, Any]] = {
        name: {"changes": reading.changes, **{method: [] for method in COMPARED}} for name, reading in readings.items()
    }
    for seed in range(count):
        evaluator = Evaluator(drawn(dataset, seed, data), starts)
        for (name, reading), method in product(readings.items(), COMPARED):
            found[name][method].append(evaluator.outcome(method, reading)["mean"])
    return found


def within(found: float, paper: float) -> bool:
    """Whether an accuracy counts as the printed one."""
    return abs(found - paper) <= WITHIN


def make(work: Work) -> list[Record]:
    """Every accuracy, as a document: of single changes, of the grid in the order of its product, and of each draw."""
    starts = {"starts": work.scope.starts}

    def of_each(kind: str, function: Callable[..., Any], names: Sequence[str], **given: Any) -> dict[str, Any]:
        """The results on some data sets."""
        calls = {(kind, name): {"dataset": name, **starts, **given} for name in names}
        return {name: found for (_, name), found in work.each("readings", function, calls).items()}

    on_grid = of_each("grid", _combined, PAPER_SETS)
    # the best is chosen by the known labels
    best = {name: grid()[int(np.argmax(on_grid[name]["IPS2"]["mean"]))].changes for name in DRAWN}
    work.more["readings"] = {
        **starts,
        "figures": {name: {m: printed_score(name, m, "acc") or 0.0 for m in COMPARED} for name in PAPER_SETS},
        **{base: of_each(base, alone, PAPER_SETS, base=base) for base in BASES},
        "grid": {"choices": GRID, **on_grid},
        "draws": of_each("draws", draws, DRAWN, best=best, count=work.scope.reading_draws),
    }
    return []


FAMILY = Family((*PAPER_SETS, "bbcsport", "yale"), make)

"""What the paper's text leaves open, read in every way that was thought of: dense and explicit, for a hundred samples.

`Reading` names the choices; its defaults are the settings that the paper prints. `Evaluator` gives the accuracy of SC,
PPC and IPS2 under a reading. Nothing here is part of the method that the package offers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans

from ips2_dask import explicit
from ips2_dask.datasets import Dataset
from ips2_dask.metrics import accuracy
from ips2_dask.paper.baselines._common import embedding
from ips2_dask.paper.experiments.methods import quiet, scaled
from ips2_dask.typing import Float64

Result = TypeVar("Result")

EPSILON = 1e-4
HEAT_NEIGHBORS = 5
TUNING_NEIGHBOR = 7
"""The neighbour whose distance is a sample's own bandwidth (Zelnik-Manor and Perona 2004)."""

TIE = 1e-9
DENSE_PAIRS = 400
"""Pairs of a component up to which LAPACK solves; above it Lanczos costs less."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read the paper. The defaults are its printed settings, as `ips2_dask.PAPER` has them.

    Attributes
    ----------
    scale : {"none", "zscore", "minmax", "l2", "log", "tfidf"}
        ``log``: log(1 + x). ``tfidf``: counts times log(m / documents that have the term), rows to length 1.
    metric : {"euclidean", "manhattan", "cosine"}
        ``cosine`` is 1 - cos.
    affinity : {"gaussian", "heat-knn"}
        S of all pairs, or of five nearest others.
    bandwidth : {"mean", "median", "mean/2", "one", "own"}
        t of exp(-d^2 / 2t^2); ``own``: t^2 is half of the product of both samples' distances to their 7th neighbour.
    diagonal : {0, 1}
        Of a Gaussian S.
    k : int
        Samples of a neighbourhood, the sample itself included.
    support : {"neighborhoods", "all"}
        Quadruples of one neighbourhood, or all.
    counting : {"once", "each"}
        Whether an entry that several neighbourhoods give counts once or is added up.
    sigma : float or str
        ``1/mean``: over the mean distance. ``1/centre``: over the mean distance of a neighbourhood's centre to all.
    tensor_distance : {"plain", "squared"}
        d in the tensor.
    normalisation : {"symmetric", "walk", "none"}
        Eigenvectors of D^-1/2 T D^-1/2, of D^-1 T or of T.
    vectors : {"c", "1", "c+1", "2c", "below"}
        How many leading eigenvectors; ``below``: the c after those of eigenvalue 1.
    rule : str
        How they become V: ``rms``, ``abs``, ``signed`` (each with the sign that makes its sum positive), ``square``
        (mean of squares), ``centred`` (the signed ones less their means), or ``signs N``: the mean of signed ones,
        those flipped whose bit is set in N, the lowest bit being the second vector's.
    v_scale : {"max", "none", "norm", "range"}
        The largest size of V's entries is 1; unit vectors as they are; V's norm is that of S; V's range is 0 to 1.
    fusion : {"average", "normalized", "product", "maximum"}
    labels : {"rows", "spectral", "unscaled", "graph"}
        k-means on the rows of the similarity, as printed; on c eigenvectors of its Laplacian with rows of length 1,
        or with rows as they are; or on those of a heat-kernel graph whose points are the similarity's rows.
    """

    scale: str = "none"
    metric: str = "euclidean"
    affinity: str = "gaussian"
    bandwidth: str = "mean"
    diagonal: int = 1
    k: int = 10
    support: str = "neighborhoods"
    counting: str = "once"
    sigma: float | str = 1.0
    tensor_distance: str = "plain"
    normalisation: str = "symmetric"
    vectors: str = "c"
    rule: str = "rms"
    v_scale: str = "max"
    fusion: str = "average"
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


class Outcome(NamedTuple):
    """ACC over several starts of k-means: their mean, spread and best, and that of the least inertia."""

    mean: float
    std: float
    best: float
    least_inertia: float


class Spectrum(NamedTuple):
    """Leading eigenvectors as matrices, those of eigenvalue 1 first, one a component."""

    values: Float64  # (n,) descending after the first
    matrices: Float64  # (n, m, m)
    shares: Float64  # (r,) each component's share of the volume


class Evaluator:
    """Accuracies of readings on one data set; what readings share is computed once.

    Parameters
    ----------
    dataset : Dataset
        At most `explicit.MOST_SAMPLES` samples.
    starts : int
        Single starts of k-means, with the seeds 0, 1, ...
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
        found = self._once(("spectrum", *reading.part(*SPECTRUM)), partial(spectrum, d, reading, 2 * self.c))
        V = self._once(("V", *reading.part(*HIGH_ORDER)), partial(_combined, found, reading, self.c))
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
        return Outcome(float(reached.mean()), float(reached.std()), float(reached.max()), float(reached[least]))


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


def _order(d: Float64) -> npt.NDArray[np.intp]:
    """All samples by distance from each, itself first, ties by id: (m, m)."""
    return np.argsort(d - np.eye(len(d)), axis=1, kind="stable")


def _pairwise(d: Float64, reading: Reading) -> Float64:
    above = squareform(d, checks=False)
    if reading.bandwidth == "own":
        own = np.sort(d, axis=1)[:, min(TUNING_NEIGHBOR, len(d) - 1)]
        own = np.maximum(own, own[own > 0].min())  # a sample with seven duplicates
        kernel = np.exp(-(d**2) / np.outer(own, own))
    else:
        mean = float(above.mean())
        t = {"mean": mean, "mean/2": mean / 2, "median": float(np.median(above)), "one": 1.0}[reading.bandwidth]
        kernel = np.exp(-0.5 * (d / t) ** 2)
    if reading.affinity == "heat-knn":
        near = np.zeros(d.shape, np.bool_)
        np.put_along_axis(near, _order(d)[:, 1 : HEAT_NEIGHBORS + 1], True, axis=1)
        return np.where(near | near.T, kernel, 0.0)
    np.fill_diagonal(kernel, reading.diagonal)
    return kernel


def _tensor(d: Float64, reading: Reading) -> sp.csr_array:
    """The unfolded tensor over ordered pairs (i, j), row ``m i + j``: (m^2, m^2)."""
    m = len(d)
    e = d**2 if reading.tensor_distance == "squared" else d
    mean = float(squareform(e, checks=False).mean())
    one = 1 / mean if reading.sigma in ("1/mean", "1/centre") else float(reading.sigma)
    if reading.support == "all":
        ratio = (e[:, :, None, None] + e[None, None]) / (e[:, None, :, None] + e[None, :, None, :] + EPSILON)
        return sp.csr_array(np.exp(-one * ratio).reshape(m * m, m * m))
    sigma = (m - 1) / e.sum(axis=1) if reading.sigma == "1/centre" else np.full(m, one)
    near = _order(d)[:, : reading.k]
    i, j, k, l = (np.moveaxis(near[:, :, None, None, None], 1, axis) for axis in (1, 2, 3, 4))  # noqa: E741
    row, column = np.broadcast_arrays(m * i + j, m * k + l)
    ratio = (e[i, j] + e[k, l]) / (e[i, k] + e[j, l] + EPSILON)  # (m, k, k, k, k)
    values = np.exp(-sigma[:, None, None, None, None] * ratio).ravel()
    row, column = row.ravel(), column.ravel()
    if reading.counting == "once":  # the first centre's
        _, first = np.unique(row.astype(np.int64) * (m * m) + column, return_index=True)
        row, column, values = row[first], column[first], values[first]
    return sp.csr_array(sp.coo_array((values, (row, column)), shape=(m * m, m * m)))


def _symmetric_basis(m: int) -> sp.csr_array:
    """Columns (e_ij + e_ji) / sqrt(2) for i < j and e_ii, (m^2, m (m + 1) / 2)."""
    i, j = np.triu_indices(m)
    weight = np.where(i == j, 0.5, np.sqrt(0.5))  # e_ii is written twice and summed
    column = np.arange(len(i))
    entries = np.tile(weight, 2), (np.concatenate([m * i + j, m * j + i]), np.tile(column, 2))
    return sp.csr_array(sp.coo_array(entries, shape=(m * m, len(i))))


def spectrum(d: Float64, reading: Reading, n: int) -> Spectrum:
    """The leading swap-symmetric eigenvectors of the tensor, at least the n after those of the components.

    Parameters
    ----------
    d : array (m, m)
        Distances.
    reading : Reading
    n : int
    """
    m = len(d)
    T = _tensor(d, reading)
    degree = np.asarray(T.sum(axis=1)).ravel()
    root = np.sqrt(degree) if reading.normalisation != "none" else np.ones(m * m)
    inverse = sp.diags_array(np.divide(1.0, root, out=np.zeros(m * m), where=root > 0))
    B = _symmetric_basis(m)
    L = sp.csr_array(B.T @ (inverse @ T @ inverse) @ B)
    volumes = B.T @ degree  # of a pair i < j, times sqrt(2)
    volumes = np.where(np.diff(B.tocsc().indptr) == 1, volumes, volumes * np.sqrt(2))
    active = np.flatnonzero(np.asarray(L.sum(axis=1)).ravel() > 0)
    count, label = connected_components(L[active][:, active], directed=False)
    firsts, others, shares = [], [], []
    for component in range(int(count)):
        rows = active[label == component]
        values, vectors = _leading(L[rows][:, rows], n + 4)
        whole = np.zeros((len(values), L.shape[0]))
        whole[:, rows] = vectors.T
        found = [(float(value), _folded(B, v, reading, root)) for value, v in zip(values, whole, strict=True)]
        firsts.append(found[0])
        others += found[1:]
        shares.append(volumes[rows].sum() / degree.sum())
    others.sort(key=lambda pair: -pair[0])
    if reading.normalisation == "none":  # no eigenvalue belongs to a component
        others, firsts, shares = sorted([*firsts, *others], key=lambda pair: -pair[0]), [], []
    every = [*firsts, *others]
    return Spectrum(np.array([v for v, _ in every]), np.stack([M for _, M in every]), np.array(shares))


def _folded(B: sp.csr_array, v: Float64, reading: Reading, root: Float64) -> Float64:
    """A vector over unordered pairs as a matrix, of D^-1 T where that is read."""
    whole = B @ v
    if reading.normalisation == "walk":
        whole = np.divide(whole, root, out=np.zeros_like(whole), where=root > 0)
    m = round(len(whole) ** 0.5)
    return np.asarray(whole.reshape(m, m))


def _leading(L: sp.csr_array, n: int) -> tuple[Float64, Float64]:
    """Up to n leading eigenpairs of a component, values descending, vectors as columns."""
    size = L.shape[0]
    if size <= max(DENSE_PAIRS, 3 * n):
        values, vectors = eigh(L.toarray(), subset_by_index=[max(0, size - n), size - 1])
    else:
        start = np.random.default_rng(0).uniform(0.5, 1, size)
        values, vectors = eigsh(L, n, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]


def _combined(found: Spectrum, reading: Reading, c: int) -> Float64:
    """V before it is scaled, (m, m), by the rule of `explicit.high_order_similarity` for components and ties."""
    r = len(found.shares)
    n = {"1": 1, "c": c, "below": c, "c+1": c + 1, "2c": 2 * c}[reading.vectors]
    weights = np.ones(len(found.values))
    first = 0
    if reading.vectors == "below":
        first, last = r, r + _through_ties(found.values[r:], n)
    elif r < n:
        last = r + _through_ties(found.values[r:], n - r)
    else:
        weights[:r] = np.sqrt(found.shares)
        last = r + _through_ties(found.values[r:], n)
    stack = found.matrices[first:last] * weights[first:last, None, None]
    return _one_matrix(stack, reading.rule)


def _through_ties(values: Float64, n: int) -> int:
    while 0 < n < len(values) and values[n - 1] - values[n] < TIE:
        n += 1
    return min(n, len(values))


def _one_matrix(stack: Float64, rule: str) -> Float64:
    if rule == "rms":
        return np.asarray(np.sqrt(np.mean(stack**2, axis=0)))
    if rule == "square":
        return np.asarray(np.mean(stack**2, axis=0))
    if rule == "abs":
        return np.asarray(np.mean(np.abs(stack), axis=0))
    signed = np.where(stack.sum(axis=(1, 2), keepdims=True) < 0, -stack, stack)
    if rule == "centred":
        signed -= signed.mean(axis=(1, 2), keepdims=True)
    elif rule.startswith("signs "):
        bits = int(rule.removeprefix("signs ")) << 1
        signed *= np.array([-1.0 if bits >> a & 1 else 1.0 for a in range(len(signed))])[:, None, None]
    elif rule != "signed":
        raise ValueError(f"no rule {rule!r}")
    return np.asarray(signed.mean(axis=0))


def _scaled_high_order(V: Float64, how: str, norm: float) -> Float64:
    if how == "max":
        return np.asarray(V / np.abs(V).max())
    if how == "norm":
        return np.asarray(V * (norm / np.linalg.norm(V)))
    if how == "range":
        return np.asarray((V - V.min()) / (V.max() - V.min()))
    return V


def _fused(S: Float64, V: Float64, how: str) -> Float64:
    if how == "product":
        return S * V
    if how == "maximum":
        return np.maximum(S, V)
    if how == "normalized":
        return (explicit.laplacian(S) + explicit.laplacian(np.maximum(V, 0))) / 2
    return (S + V) / 2


def _points(M: Float64, labels: str, c: int) -> Float64 | sp.csr_array:
    """What k-means clusters, (m, columns)."""
    if labels == "rows":
        return M
    if labels == "graph":
        M = explicit.pairwise_similarity(M, "heat-knn")
    if labels == "unscaled":
        degree = np.maximum(M.sum(axis=1), 1e-300)
        L = M / np.sqrt(degree)[:, None] / np.sqrt(degree)
        m = len(L)
        return np.asarray(eigh(L, subset_by_index=[m - c, m - 1])[1])
    return embedding(M, c, np.random.RandomState(0))


METHODS = ("SC", "PPC", "IPS2")


LATER = Reading(affinity="heat-knn", sigma="1/centre", rule="signed", labels="graph")
"""As in the group's public code for a later paper (arXiv 2302.01569), signs made definite."""

BASES = {"printed": PRINTED, "later code": LATER}
"""Readings that others differ from by one choice, by name."""


def single_changes(base: Reading, c: int) -> dict[str, Reading]:
    """A reading, as ``unchanged``, and each change of one of its choices, by name.

    Parameters
    ----------
    base : Reading
    c : int
        Clusters: they decide how many patterns of signs there are.
    """
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

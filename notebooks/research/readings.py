"""What the paper's text leaves open, read in the likely ways: dense and explicit, for a hundred samples.

`Reading` names the choices; its defaults are the settings that the paper prints. `Evaluator` gives the accuracy of SC,
PPC and IPS2 under a reading. The script tries each choice alone, a grid of them, and some readings on draws of samples:
``python notebooks/research/readings.py --out notebooks/results/paper/readings.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from known_sets import table
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans

from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.metrics import accuracy
from ips2_dask.paper import data as sets
from ips2_dask.paper import explicit
from ips2_dask.paper.baselines import embedding
from ips2_dask.paper.data import YALE_SUBJECTS, Dataset
from ips2_dask.paper.experiments import PAPER_SETS, printed_score
from ips2_dask.paper.methods import COMPARED, quiet, scaled
from ips2_dask.paper.work import Scope, Work, mean_of, select
from ips2_dask.store.files import write_atomically
from ips2_dask.typing import Float64

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

    scale: str = "none"
    affinity: str = "gaussian"  # S of all pairs, or of five nearest others
    # t of exp(-d^2 / 2t^2); own: t^2 is half of the product of both samples' distances to their 7th neighbour
    bandwidth: str = "mean"
    k: int = 10  # samples of a neighbourhood, the sample itself included
    sigma: float | str = 1.0  # 1/centre: over the mean distance of a neighbourhood's centre to all others
    rule: str = "rms"  # how the eigenvectors become V, see `explicit.combined`
    # k-means on the rows of the similarity, as printed; on c eigenvectors of its Laplacian with rows of length 1; or on
    # those of a heat-kernel graph whose points are the similarity's rows
    labels: str = "rows"

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from the printed settings."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != getattr(PRINTED, name)}


PRINTED = Reading()
LATER = Reading(affinity="heat-knn", sigma="1/centre", rule="signed", labels="graph")
"""As in the group's public code for a later paper (arXiv 2302.01569), signs made definite."""

BASES = {"printed": PRINTED, "later code": LATER}
"""Readings that others differ from by one choice, by name."""

CHOICES: dict[str, Sequence[Any]] = {
    "scale": ("none", "zscore", "minmax", "l2"),
    "affinity": ("gaussian", "heat-knn"),
    "bandwidth": ("mean", "median", "own"),
    "k": (5, 6, 7, 8, 9, 10, 11, 12, 15),
    "sigma": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, "1/centre"),
    "rule": ("rms", "abs", "signed"),
    "labels": ("rows", "spectral", "graph"),
}
"""What each choice may be where it is the only one that is changed."""

GRID: dict[str, tuple[Any, ...]] = {
    "scale": ("none", "zscore", "minmax", "l2"),
    "affinity, bandwidth": (("gaussian", "mean"), ("gaussian", "median"), ("gaussian", "own"), ("heat-knn", "mean")),
    "k": (5, 7, 10),
    "sigma": (0.5, 1.0, 2.0, "1/centre"),
    "rule": ("rms", "signed"),
    "labels": ("rows", "spectral", "graph"),
}
"""The choices that are combined."""


def single_changes(base: Reading) -> dict[str, Reading]:
    """A reading, as ``unchanged``, and each change of one choice, by name."""
    changes = [{name: value} for name, values in CHOICES.items() for value in values if value != getattr(base, name)]
    named = {f"{name} {value}": change for change in changes for name, value in change.items()}
    return {"unchanged": base, **{name: dataclasses.replace(base, **change) for name, change in named.items()}}


def grid() -> list[Reading]:
    """All combinations of the likely readings."""
    return [
        Reading(scale=scale, affinity=affinity, bandwidth=bandwidth, k=k, sigma=sigma, rule=rule, labels=labels)
        for scale, (affinity, bandwidth), k, sigma, rule, labels in product(*GRID.values())
    ]


MATTERS = {
    "SC": ("scale", "affinity", "bandwidth", "labels"),
    "PPC": ("scale", "k", "sigma", "rule", "labels"),
    "IPS2": tuple(CHOICES),
}
"""The choices that a method's accuracy depends on."""

Outcome = dict[str, float]
"""ACC over several starts of k-means: their ``mean``, ``std`` and ``best``, and that of the ``least_inertia``."""


class Evaluator:
    """Accuracies of readings on at most a hundred samples, over single starts of k-means with the seeds 0, 1, ...

    What readings share is computed once.
    """

    def __init__(self, dataset: Dataset, starts: int = 20) -> None:
        self.X, self.truth, self.c = np.asarray(dataset.X, np.float64), dataset.labels, dataset.n_clusters
        self.starts = starts
        self._distances, self._spectrum = cache(self._measured), cache(self._solved)
        self._outcome = cache(lambda method, reading: self._score(self.similarity(method, reading), reading.labels))

    def outcome(self, method: str, reading: Reading) -> Outcome:
        """The accuracy of SC, PPC or IPS2 under a reading."""
        found: Outcome = self._outcome(method, Reading(**{name: getattr(reading, name) for name in MATTERS[method]}))
        return found

    def similarity(self, method: str, reading: Reading) -> Float64:
        """S, V or U under a reading, (m, m)."""
        if method == "SC":
            return _pairwise(self._distances(reading.scale), reading)
        found = self._spectrum(reading.scale, reading.k, reading.sigma)
        V = explicit.combined(found, self.c, reading.rule)
        V = np.asarray(V / np.abs(V).max())
        return V if method == "PPC" else (self.similarity("SC", reading) + V) / 2

    def _measured(self, scale: str) -> Float64:
        return np.asarray(squareform(pdist(scaled(self.X, scale))))

    def _solved(self, scale: str, k: int, sigma: float | str) -> explicit.Spectrum:
        return explicit.spectrum(tensor(self._distances(scale), k, sigma), 2 * self.c)

    def _score(self, M: Float64, labels: str) -> Outcome:
        with quiet():
            points = _points(M, labels, self.c)
            fits = [KMeans(self.c, n_init=1, random_state=seed).fit(points) for seed in range(self.starts)]
        reached = np.array([accuracy(self.truth, fit.labels_) for fit in fits])
        least = int(np.argmin([fit.inertia_ for fit in fits]))
        found = {"mean": reached.mean(), "std": reached.std(), "best": reached.max(), "least_inertia": reached[least]}
        return {name: round(float(value), DIGITS) for name, value in found.items()}


def _pairwise(d: Float64, reading: Reading) -> Float64:
    """S of distances d, (m, m)."""
    if reading.bandwidth == "own":
        own = np.sort(d, axis=1)[:, min(TUNING_NEIGHBOR, len(d) - 1)]
        own = np.maximum(own, own[own > 0].min())  # a sample with seven duplicates
        S = np.exp(-(d**2) / np.outer(own, own))
    else:
        S = explicit.kernel(d, explicit.bandwidth_of(d, reading.bandwidth))
    return explicit.on_neighbors(S, d) if reading.affinity == "heat-knn" else S


def tensor(d: Float64, k: int, sigma: float | str) -> Float64:
    """The unfolded tensor of distances d (m, m) over ordered pairs, (m^2, m^2)."""
    sigmas = (len(d) - 1) / d.sum(axis=1) if isinstance(sigma, str) else sigma
    return explicit.unfold(explicit.quadruples(d, explicit.nearest(d, k), sigmas, EPSILON))


def _points(M: Float64, labels: str, c: int) -> Float64 | sp.csr_array:
    """What k-means clusters."""
    if labels == "rows":
        return M
    return embedding(explicit.pairwise_similarity(M, "heat-knn") if labels == "graph" else M, c)


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
    evaluator = Evaluator(sets.load(dataset, data), starts)
    return {
        name: {"changes": reading.changes, **{m: evaluator.outcome(m, reading) for m in COMPARED}}
        for name, reading in single_changes(BASES[base]).items()
    }


def combined(data: str | None, dataset: str, starts: int) -> dict[str, dict[str, list[float]]]:
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


def make(work: Work, starts: int, n_draws: int) -> dict[str, Any]:
    """Every accuracy: of single changes, of the grid in the order of its product, and of each draw."""

    def of_each(kind: str, function: Callable[..., Any], names: Sequence[str], **given: Any) -> dict[str, Any]:
        """The results on some data sets."""
        calls = {(kind, name): {"dataset": name, "starts": starts, **given} for name in names}
        return {name: found for (_, name), found in work.each("readings", function, calls).items()}

    on_grid = of_each("grid", combined, PAPER_SETS)
    # the best is chosen by the known labels
    best = {name: grid()[int(np.argmax(on_grid[name]["IPS2"]["mean"]))].changes for name in DRAWN}
    return {
        "starts": starts,
        "figures": {name: {m: printed_score(name, m, "acc") or 0.0 for m in COMPARED} for name in PAPER_SETS},
        **{base: of_each(base, alone, PAPER_SETS, base=base) for base in BASES},
        "grid": {"choices": GRID, **on_grid},
        "draws": of_each("draws", draws, DRAWN, best=best, count=n_draws),
    }


def overview(document: Mapping[str, Any]) -> str:
    """ACC of IPS2 on the paper's four data sets as a table: the paper's, each setting's, and the readings'."""
    readings, of = document["readings"], select(document["results"], experiment="table2", measure="acc")
    papers, on_grid = readings["figures"], readings["grid"]

    def counts(condition: Callable[[float, float], bool]) -> list[str]:
        return [str(sum(condition(v, p["IPS2"]) for v in on_grid[d]["IPS2"]["mean"])) for d, p in papers.items()]

    rows = [["IPS2 in the paper", *(f"{p['IPS2']:.3f}" for p in papers.values())]]
    for setting, how in (("printed", "as printed"), ("default", "by default"), ("tuned", "tuned by the known labels")):
        for method in ("IPS2", "SC"):
            means = [mean_of(of, dataset=dataset, method=method, setting=setting) for dataset in papers]
            rows.append([f"{method} {how}", *(f"{mean:.3f}" for mean in means)])
    later = [readings["later code"][d]["unchanged"]["IPS2"]["mean"] for d in papers]
    rows.append(["IPS2 by the later code's recipe", *(f"{mean:.3f}" for mean in later)])
    rows.append([f"of {len(grid()):,} readings have the figure", *counts(within)])
    rows.append([f"of {len(grid()):,} readings are above it", *counts(lambda v, p: v > p + WITHIN)])
    return table(["ACC", *papers], rows, " --- ")


def main() -> None:
    """Try them all, in as many processes as there are cores."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--data", metavar="DIR", help="data sets (default: the environment variable IPS2_DATA)")
    parser.add_argument("--starts", type=int, default=20, help="of k-means, for each reading (default %(default)s)")
    parser.add_argument("--draws", type=int, default=200, help="random draws of samples (default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ips2-readings-") as folder:
        work = Work(Path(folder), options.data, Scope(), usable_cores(), print)
        write_atomically(options.out, json.dumps(make(work, options.starts, options.draws)) + "\n")


if __name__ == "__main__":
    importlib.import_module("readings").main()  # so that other processes find its functions

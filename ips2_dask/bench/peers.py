"""`ips2 bench peers`: IPS2 and what a user would pick instead, fed the same raw X, each in a fresh process."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from sklearn.cluster import KMeans, SpectralClustering

from ips2_dask.bench.harness import Data, Outcome, Record, work_apart
from ips2_dask.estimator import IPS2
from ips2_dask.kernels import density
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.typing import Float, Integer

COLUMNS = (
    *("system", "outcome", "threads", "graph", "k", "seconds", "seconds_least", "seconds_most", "ratio", "nmi", "acc"),
    *("ari", "clusters", "noise", "peak_bytes"),
)
MEASURED = ("nmi", "acc", "ari", "clusters", "noise", "threads", "graph", "k", "recall")
SPECTRAL, SPECTRAL_NEIGHBORS = "spectral-", 10
"""Prefix of the names of scikit-learn's SpectralClustering, whose fastest one that finished has ratio 1; and its k."""


class Fit(NamedTuple):
    """Labels of a fit, and the graph of nearest neighbours that it was made from: "exact" or "approximate"."""

    labels: Integer
    graph: str | None = None
    k: int | None = None  # neighbours of a sample, as the call counts them
    recall: float | None = None  # of the graph, where it was measured


class Method(NamedTuple):
    """A way to cluster, as a user would write it, and what it needs besides our dependencies."""

    call: str
    fit: Callable[[Float, int, int], Fit]  # from X, c and seed
    module: str = ""

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None


def _ips2(call: str, c_columns: bool = False, **arguments: Any) -> Method:
    """IPS2; with ``c_columns`` it embeds into c columns, as scikit-learn does, in place of c + 8."""

    def fit(X: Float, c: int, seed: int) -> Fit:
        columns = {"n_components": c} if c_columns else {}
        result = IPS2(**{"n_clusters": c, "random_state": seed, **columns, **arguments}).fit(X).run_
        report = result.report()
        graph = "exact" if report["builder"] == "exact" else "approximate"
        return Fit(result.labels, graph, arguments.get("n_neighbors", Params().n_neighbors), report["recall"])

    return Method(call, fit)


def _spectral(solver: str, module: str = "") -> Method:
    k = SPECTRAL_NEIGHBORS

    def fit(X: Float, c: int, seed: int) -> Fit:
        given = {"n_neighbors": k, "eigen_solver": solver, "random_state": seed}
        return Fit(SpectralClustering(c, affinity="nearest_neighbors", **given).fit(X).labels_, "exact", k, 1.0)

    call = f'SpectralClustering(c, affinity="nearest_neighbors", n_neighbors={k}, eigen_solver="{solver}")'
    return Method(call, fit, module)


def _kmeans(X: Float, c: int, seed: int) -> Fit:
    return Fit(KMeans(c, random_state=seed).fit(X).labels_)


def _evoc(X: Float, c: int, seed: int) -> Fit:
    """EVoC with its defaults: a seed would make it take a slower, reproducible path."""
    del c, seed
    model = importlib.import_module("evoc").EVoC()
    return Fit(model.fit(X).labels_, "approximate", int(model.n_neighbors))


SYSTEMS = {
    "ips2": _ips2("IPS2(c)"),
    "ips2-auto": _ips2('IPS2("auto")', n_clusters="auto"),
    "ips2-k10": _ips2("IPS2(c, n_neighbors=10)", n_neighbors=10),
    "ips2-k10-c": _ips2("IPS2(c, n_neighbors=10, n_components=c)", c_columns=True, n_neighbors=10),
    "ips2-kmeans": _ips2('IPS2(c, assign_labels="kmeans")', assign_labels="kmeans"),
    "spectral-lobpcg": _spectral("lobpcg"),
    "spectral-amg": _spectral("amg", "pyamg"),
    "spectral-arpack": _spectral("arpack"),
    "kmeans": Method("KMeans(c)", _kmeans),
    "evoc": Method("EVoC()", _evoc, "evoc"),
}


def measure(
    data: Data,
    folder: Path,
    systems: Sequence[str],
    clusters: int | None = None,
    limit: float | None = None,
    repeats: int = 3,
    seed: int = 0,
    compiled: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Record]:
    """A record for each system.

    ``seconds`` is the median over ``repeats`` fresh processes of the time of `fit` on the raw X in memory, without
    imports, Numba's start and the reading of X. ``ratio`` is ``seconds`` over those of the fastest of scikit-learn's
    SpectralClustering that finished; None where none did. All systems run by turns, each with the threads that it
    takes by itself on the cores that all have. One that does not finish is not run again. An exact graph costs a search
    that an approximate one saves. ``noise`` is the share of samples that a system puts into no cluster: they are scored
    as a cluster of their own, which ``clusters`` does not count. A system whose package is missing is named and left
    out. ``compiled`` makes one fit of each system first that is not counted, for the time from a user's second run on;
    otherwise every process starts with an empty folder for Numba's compiled code, and the time holds compilation.
    ``report`` is told of each fit when it ends: the records come when all have.
    """
    job: dict[str, Any] = {"X": data.X, "labels": data.labels, "c": clusters or data.c, "seed": seed}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in systems}
    for _ in range(repeats + compiled):
        for name, ended in outcomes.items():
            if not SYSTEMS[name].missing and all(outcome.finished for outcome in ended):
                ended.append(work_apart(__name__, {**job, "system": name}, folder, limit, cold=not compiled))
                report(f"{name}: {ended[-1].word} {ended[-1].answer.get('seconds', '')}")
    if compiled:
        outcomes = {name: ended[1:] or ended for name, ended in outcomes.items()}
    spectral = (_seconds(ended) for name, ended in outcomes.items() if name.startswith(SPECTRAL))
    fastest = min((statistics.median(of) for of in spectral if of), default=None)
    for name, ended in outcomes.items():
        seconds, first = _seconds(ended), ended[0].answer if ended else {}  # fits of one seed have the same labels
        median = statistics.median(seconds) if seconds else None
        yield {
            **{"system": name, "call": SYSTEMS[name].call, "data": data.name, "m": data.m, "f": data.f, "c": job["c"]},
            "outcome": ended[-1].word if ended else f"skipped: {SYSTEMS[name].module} is not installed",
            "seconds": median,
            "seconds_least": min(seconds, default=None),
            "seconds_most": max(seconds, default=None),
            **{field: first.get(field) for field in MEASURED},
            "ratio": median / fastest if median and fastest else None,
            **{"repeats": len(ended), "limit_seconds": limit, "compilation": "before" if compiled else "included"},
            "peak_bytes": max((o.peak_bytes for o in ended if o.peak_bytes), default=None),
        }


def _seconds(ended: Sequence[Outcome]) -> list[float]:
    """Seconds of the fits; none if one of them did not finish."""
    return [outcome.answer["seconds"] for outcome in ended] if all(outcome.finished for outcome in ended) else []


def work(job: Mapping[str, Any]) -> Record:
    """One fit, in a process of its own: X and the known labels of their files, c, seed and system."""
    system = SYSTEMS[job["system"]]
    for module in {system.module, "fast_plscan" * density.available()} - {""}:  # a fit of ours imports it
        importlib.import_module(module)
    numba.njit(lambda: None)()  # Numba's own start, a third of a second, is a part of EVoC's import
    X, true_labels = np.load(job["X"]), np.load(job["labels"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a result is worth is measured here
        begun = time.perf_counter()
        fit = system.fit(X, job["c"], job["seed"])
        seconds = time.perf_counter() - begun
    labels = np.asarray(fit.labels)
    clusters, noise = len(np.unique(labels[labels >= 0])), float(np.mean(labels < 0))
    facts = {**scores(true_labels, labels), "clusters": clusters, "noise": noise, "threads": usable_cores()}
    return {"seconds": seconds, **{name: {**facts, **fit._asdict()}[name] for name in MEASURED}}

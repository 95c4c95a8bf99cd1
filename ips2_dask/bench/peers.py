"""`ips2 bench peers`: IPS2 and what a user would pick instead, fed the same raw X, each in a fresh process."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, SpectralClustering

from ips2_dask.bench.document import Record, Value
from ips2_dask.bench.inputs import Data
from ips2_dask.bench.process import FINISHED, Outcome, peak, work_apart
from ips2_dask.estimator import IPS2
from ips2_dask.metrics import scores
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run

COLUMNS = ("system", "outcome", "seconds", "ratio", "nmi", "acc", "ari", "clusters", "noise", "peak_bytes")
MEASURED = ("nmi", "acc", "ari", "clusters", "noise")
SPECTRAL = "spectral-"
"""Prefix of the names of scikit-learn's SpectralClustering, whose fastest one that finished has ratio 1."""

Floats = NDArray[np.floating]
Labels = NDArray[np.integer]


class Method(NamedTuple):
    """A way to cluster, as a user would write it, and what it needs besides our dependencies."""

    call: str
    fit: Callable[[Floats, int, int, int], Labels]  # from X, c, seed and workers to labels
    module: str = ""


def _ips2(**arguments: Any) -> Callable[[Floats, int, int, int], Labels]:
    def fit(X: Floats, c: int, seed: int, workers: int) -> Labels:
        if not workers:
            return IPS2(c, random_state=seed, **arguments).fit(X).labels_
        params = Params(n_clusters=c, random_state=seed, **arguments)
        return run(X, params, Resources(n_workers=workers), own_cluster=True).labels

    return fit


def _spectral(solver: str) -> Callable[[Floats, int, int, int], Labels]:
    def fit(X: Floats, c: int, seed: int, workers: int) -> Labels:
        del workers
        model = SpectralClustering(
            c, affinity="nearest_neighbors", n_neighbors=10, eigen_solver=solver, random_state=seed
        )
        return model.fit(X).labels_

    return fit


def _kmeans(X: Floats, c: int, seed: int, workers: int) -> Labels:
    del workers
    return KMeans(c, random_state=seed).fit(X).labels_


def _evoc(X: Floats, c: int, seed: int, workers: int) -> Labels:
    """EVoC with its defaults: a seed would make it take a slower, reproducible path."""
    del c, seed, workers
    return importlib.import_module("evoc").EVoC().fit(X).labels_


def _spectral_method(solver: str, module: str = "") -> Method:
    call = f'SpectralClustering(c, affinity="nearest_neighbors", n_neighbors=10, eigen_solver="{solver}")'
    return Method(call, _spectral(solver), module)


SYSTEMS = {
    "ips2": Method("IPS2(c)", _ips2()),
    "ips2-k10": Method("IPS2(c, n_neighbors=10)", _ips2(n_neighbors=10)),
    "ips2-kmeans": Method('IPS2(c, assign_labels="kmeans")', _ips2(assign_labels="kmeans")),
    "spectral-lobpcg": _spectral_method("lobpcg"),
    "spectral-amg": _spectral_method("amg", "pyamg"),
    "spectral-arpack": _spectral_method("arpack"),
    "kmeans": Method("KMeans(c)", _kmeans),
    "evoc": Method("EVoC()", _evoc, "evoc"),
}


class Job(TypedDict):
    """The argument of `work`: files of X and of the known labels, and one system with its arguments."""

    X: str
    labels: str
    c: int
    seed: int
    workers: int
    system: str


def measure(
    data: Data,
    folder: Path,
    systems: Sequence[str] = tuple(SYSTEMS),
    clusters: int | None = None,
    workers: int = 0,
    limit: float | None = None,
    repeats: int = 1,
    seed: int = 0,
    cold: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Record]:
    """A record for each system.

    ``seconds`` is the median over ``repeats`` fresh processes of the time of `fit` on the raw X in memory: imports and
    the reading of X are left out, compilation is not, for every process starts with an empty folder for Numba's
    compiled code (``cold``). ``ratio`` is ``seconds`` over those of the fastest of scikit-learn's SpectralClustering
    that finished; None where none did. All systems run by turns, with the threads that they take by themselves; one
    that does not finish is not run again. ``noise`` is the share of samples that a system puts into no cluster: they
    are scored as a cluster of their own, which ``clusters`` does not count.

    Parameters
    ----------
    data : Data
    folder : Path
        For temporary files.
    systems : sequence of str
        Of ``SYSTEMS``; one whose package is missing is named and left out.
    clusters : int, optional
        c; by default the data's number of classes.
    workers : int
        Processes of a local cluster for IPS2, its start counted; 0 for `IPS2` in one process on all cores.
    limit : float, optional
        Seconds of one fit with its imports, after which its processes are killed.
    repeats : int
    seed : int
    cold : bool
        False leaves Numba's folder as it is: the time from a user's second run on.
    report : callable, optional
        Is told of each fit when it ends: the records come when all have.
    """
    job = {"X": data.X, "labels": data.labels, "c": clusters or data.c, "seed": seed, "workers": workers}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, ended in outcomes.items():
            if not _missing(name) and all(outcome.finished for outcome in ended):
                ended.append(work_apart("peers", {**job, "system": name}, folder, limit, cold=cold))
                report(f"{name}: {ended[-1].word} {ended[-1].answer.get('seconds', '')}")
    fastest = min(
        (seconds for name, ended in outcomes.items() if name.startswith(SPECTRAL) if (seconds := _seconds(ended))),
        default=None,
    )
    for name, ended in outcomes.items():
        seconds = _seconds(ended)
        yield {
            "system": name,
            "call": SYSTEMS[name].call,
            "data": data.name,
            "m": data.m,
            "f": data.f,
            "c": clusters or data.c,
            "outcome": ended[-1].word if ended else f"skipped: {SYSTEMS[name].module} is not installed",
            "seconds": seconds,
            **_scores(ended),
            "ratio": seconds / fastest if seconds and fastest else None,
            "repeats": len(ended),
            "limit_seconds": limit,
            "compilation": "included" if cold else "as Numba's cache had it",
            "workers": workers if name.startswith("ips2") else None,
            "peak_bytes": max((most.tree for o in ended if (most := peak(o.samples))), default=None),
        }


def _missing(name: str) -> bool:
    return bool(SYSTEMS[name].module) and importlib.util.find_spec(SYSTEMS[name].module) is None


def _seconds(ended: Sequence[Outcome]) -> float | None:
    """Median seconds of the fits; None if there are none, or if one of them did not finish."""
    if not ended or any(outcome.word != FINISHED for outcome in ended):
        return None
    return statistics.median(outcome.answer["seconds"] for outcome in ended)


def _scores(ended: Sequence[Outcome]) -> dict[str, Value]:
    """Scores of the first fit; the other fits have the same seed, and so the same labels."""
    answer = ended[0].answer if ended else {}
    return {name: answer.get(name) for name in MEASURED}


def work(job: Job) -> Record:
    """One fit, in a process of its own."""
    system = SYSTEMS[job["system"]]
    if system.module:
        importlib.import_module(system.module)
    X, true_labels = np.load(job["X"]), np.load(job["labels"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a result is worth is measured here
        begun = time.perf_counter()
        labels = system.fit(X, job["c"], job["seed"], job["workers"])
        seconds = time.perf_counter() - begun
    labels = np.asarray(labels)
    labelled = labels >= 0
    facts = {
        **scores(true_labels, labels),
        "clusters": len(np.unique(labels[labelled])),
        "noise": float(np.mean(~labelled)),
    }
    return {"seconds": seconds, **{name: facts[name] for name in MEASURED}}

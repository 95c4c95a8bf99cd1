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
from sklearn.cluster import KMeans, SpectralClustering
from threadpoolctl import threadpool_info

from ips2_dask.bench.document import Record, Value
from ips2_dask.bench.inputs import Data
from ips2_dask.bench.process import FINISHED, Outcome, check_cores, peak, work_apart
from ips2_dask.estimator import IPS2
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.metrics import scores
from ips2_dask.params import MAX_CLUSTERS, Params, Resources
from ips2_dask.pipeline.run import run
from ips2_dask.typing import Float, Integer

COLUMNS = (
    "system",
    "outcome",
    "threads",
    "graph",
    "k",
    "seconds",
    "seconds_least",
    "seconds_most",
    "ratio",
    "nmi",
    "acc",
    "ari",
    "clusters",
    "noise",
    "peak_bytes",
)
MEASURED = ("nmi", "acc", "ari", "clusters", "noise", "threads", "graph", "k", "recall")
SPECTRAL = "spectral-"
"""Prefix of the names of scikit-learn's SpectralClustering, whose fastest one that finished has ratio 1."""


class Fit(NamedTuple):
    """Labels of a fit, and the graph of nearest neighbours that it was made from: "exact" or "approximate"."""

    labels: Integer
    graph: str | None = None
    k: int | None = None  # neighbours of a sample, as the call counts them
    recall: float | None = None  # of the graph, where it was measured


class Method(NamedTuple):
    """A way to cluster, as a user would write it, and what it needs besides our dependencies."""

    call: str
    fit: Callable[[Float, int, int, int], Fit]  # from X, c, seed and workers
    module: str = ""
    threads: Callable[[], int] = usable_cores  # that it may take in this process


def _of_libraries() -> int:
    """Threads that OpenMP and BLAS may take, whichever has more."""
    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=1)


def _of_numba() -> int:
    return int(importlib.import_module("numba").get_num_threads())


def _ips2(
    as_many_columns: bool = False, told_c: bool = True, **arguments: Any
) -> Callable[[Float, int, int, int], Fit]:
    """IPS2; with ``as_many_columns`` it embeds into c columns, as scikit-learn does, in place of c + 8.

    Without ``told_c`` it chooses c among its default numbers.
    """

    def fit(X: Float, c: int, seed: int, workers: int) -> Fit:
        columns: dict[str, Any] = {"n_components": c} if as_many_columns else {}
        known: dict[str, Any] = {"n_clusters": c} if told_c else {"max_clusters": MAX_CLUSTERS}
        params = Params(**known, random_state=seed, **columns, **arguments)
        if workers:
            result = run(X, params, Resources(n_workers=workers), own_cluster=True)
        else:
            result = IPS2(c if told_c else "auto", random_state=seed, **columns, **arguments).fit(X).run_
        report = result.report()
        graph = "exact" if report["builder"] == "exact" else "approximate"
        return Fit(result.labels, graph, params.n_neighbors, report["recall"])

    return fit


SPECTRAL_NEIGHBORS = 10


def _spectral(solver: str) -> Callable[[Float, int, int, int], Fit]:
    def fit(X: Float, c: int, seed: int, workers: int) -> Fit:
        del workers
        model = SpectralClustering(
            c, affinity="nearest_neighbors", n_neighbors=SPECTRAL_NEIGHBORS, eigen_solver=solver, random_state=seed
        )
        return Fit(model.fit(X).labels_, "exact", SPECTRAL_NEIGHBORS, 1.0)

    return fit


def _kmeans(X: Float, c: int, seed: int, workers: int) -> Fit:
    del workers
    return Fit(KMeans(c, random_state=seed).fit(X).labels_)


def _evoc(X: Float, c: int, seed: int, workers: int) -> Fit:
    """EVoC with its defaults: a seed would make it take a slower, reproducible path."""
    del c, seed, workers
    model = importlib.import_module("evoc").EVoC()
    return Fit(model.fit(X).labels_, "approximate", int(model.n_neighbors))


def _spectral_method(solver: str, module: str = "") -> Method:
    call = f'SpectralClustering(c, affinity="nearest_neighbors", n_neighbors=10, eigen_solver="{solver}")'
    return Method(call, _spectral(solver), module, _of_libraries)


SYSTEMS = {
    "ips2": Method("IPS2(c)", _ips2()),
    "ips2-auto": Method('IPS2("auto")', _ips2(told_c=False)),
    "ips2-k10": Method("IPS2(c, n_neighbors=10)", _ips2(n_neighbors=10)),
    "ips2-k10-c": Method("IPS2(c, n_neighbors=10, n_components=c)", _ips2(True, n_neighbors=10)),
    "ips2-kmeans": Method('IPS2(c, assign_labels="kmeans")', _ips2(assign_labels="kmeans")),
    "spectral-lobpcg": _spectral_method("lobpcg"),
    "spectral-amg": _spectral_method("amg", "pyamg"),
    "spectral-arpack": _spectral_method("arpack"),
    "kmeans": Method("KMeans(c)", _kmeans, threads=_of_libraries),
    "evoc": Method("EVoC()", _evoc, "evoc", _of_numba),
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
    repeats: int = 3,
    seed: int = 0,
    cold: bool = True,
    threads: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Record]:
    """A record for each system.

    ``seconds`` is the median over ``repeats`` fresh processes of the time of `fit` on the raw X in memory: imports and
    the reading of X are left out, compilation is not, for every process starts with an empty folder for Numba's
    compiled code (``cold``), or after one fit that is not counted. ``ratio`` is ``seconds`` over those of the fastest
    of scikit-learn's SpectralClustering that finished; None where none did. ``seconds_least`` and ``seconds_most`` are
    the shortest and the longest fit. All systems run by turns, each with the threads that it takes by itself on the
    cores that all have: ``threads`` says how many it may take. One that does not finish is not run again. ``graph``,
    ``k`` and ``recall`` tell of the graph of nearest neighbours that a system is made from: an exact one costs a search
    that an approximate one saves. ``ips2-k10-c`` has the k and the number of embedded columns of scikit-learn's calls.
    ``noise`` is the share of samples that a system puts into no cluster: they are scored as a cluster of their own,
    which ``clusters`` does not count.

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
        False leaves Numba's folder as it is, and each system makes one fit first that is not counted: the time from a
        user's second run on.
    threads : int, optional
        Cores that each fit is held to; by default it has all.
    report : callable, optional
        Is told of each fit when it ends: the records come when all have.
    """
    check_cores(threads)
    job = {"X": data.X, "labels": data.labels, "c": clusters or data.c, "seed": seed, "workers": workers}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in systems}
    for _ in range(repeats if cold else 1 + repeats):
        for name, ended in outcomes.items():
            if not _missing(name) and all(outcome.finished for outcome in ended):
                ended.append(work_apart("peers", {**job, "system": name}, folder, limit, cold=cold, cores=threads))
                report(f"{name}: {ended[-1].word} {ended[-1].answer.get('seconds', '')}")
    if not cold:
        outcomes = {name: ended[1:] or ended for name, ended in outcomes.items()}
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
            "seconds_least": min(_all_seconds(ended)) if seconds else None,
            "seconds_most": max(_all_seconds(ended)) if seconds else None,
            **_scores(ended),
            "ratio": seconds / fastest if seconds and fastest else None,
            "repeats": len(ended),
            "limit_seconds": limit,
            "compilation": "included" if cold else "before",
            "workers": workers if name.startswith("ips2") else None,
            "peak_bytes": max((most.tree for o in ended if (most := peak(o.samples))), default=None),
        }


def _missing(name: str) -> bool:
    return bool(SYSTEMS[name].module) and importlib.util.find_spec(SYSTEMS[name].module) is None


def _seconds(ended: Sequence[Outcome]) -> float | None:
    """Median seconds of the fits; None if there are none, or if one of them did not finish."""
    if not ended or any(outcome.word != FINISHED for outcome in ended):
        return None
    return statistics.median(_all_seconds(ended))


def _all_seconds(ended: Sequence[Outcome]) -> list[float]:
    return [float(outcome.answer["seconds"]) for outcome in ended]


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
        fit = system.fit(X, job["c"], job["seed"], job["workers"])
        seconds = time.perf_counter() - begun
    labels = np.asarray(fit.labels)
    labelled = labels >= 0
    facts = {
        **scores(true_labels, labels),
        "clusters": len(np.unique(labels[labelled])),
        "noise": float(np.mean(~labelled)),
        "threads": system.threads(),
        **fit._asdict(),
    }
    return {"seconds": seconds, **{name: facts[name] for name in MEASURED}}

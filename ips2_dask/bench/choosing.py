"""`ips2 bench choosing`: what a user without labels gets on known data sets, beside what others offer, with time."""

from __future__ import annotations

import importlib.util
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from sklearn.preprocessing import StandardScaler

from ips2_dask.bench.document import Record
from ips2_dask.datasets import load
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.sweeps import sweep

COLUMNS = ("data", "m", "classes", "system", "outcome", "clusters", "k", "sigma", "nmi", "acc", "ari", "seconds")

SCALED = ("scadi", "wine", "glass")
"""Data sets whose columns have other units: they are standardised for every system."""

MOST = 30
"""Clusters up to which auto and the sweep look."""

NEIGHBORS = (5, 10)
FEW = 1_000
"""Up to so many samples a sweep tries all of these k; above it, where k = 10 costs ten times as much, the first."""


class Problem(NamedTuple):
    """The input of every method: data, the number of known classes, a graph, and a seed."""

    X: NDArray[np.floating]  # (m, f)
    classes: int
    graph: sp.csr_array  # S of IPS2's defaults (m, m), for those that work on a graph
    folder: Path
    seed: int


class Clustering(NamedTuple):
    """The labels (m,) of a method, and more fields of its record."""

    labels: NDArray[np.integer]
    facts: Record


def _default(problem: Problem) -> Clustering:
    return Clustering(run(problem.X, Params(n_clusters=problem.classes, random_state=problem.seed)).labels, {})


def _plain(problem: Problem) -> Clustering:
    params = Params(n_clusters=problem.classes, n_components=problem.classes, random_state=problem.seed)
    return Clustering(run(problem.X, params).labels, {})


def _auto(problem: Problem) -> Clustering:
    most = min(MOST, len(problem.X) - 1)
    return Clustering(run(problem.X, Params(max_clusters=most, random_state=problem.seed)).labels, {})


def _sweep(problem: Problem) -> Clustering:
    most = min(MOST, len(problem.X) // 3)
    neighbors = NEIGHBORS if len(problem.X) <= FEW else NEIGHBORS[:1]
    params = Params(random_state=problem.seed)
    with tempfile.TemporaryDirectory(dir=problem.folder) as name:
        result = sweep(problem.X, range(2, most + 1), neighbors, params=params, store=f"{name}/sweep", files=False)
        best = result.best.params
        return Clustering(
            result.run().labels, {"k": best.n_neighbors, "sigma": best.sigma, "points": len(result.points)}
        )


def _spectral(problem: Problem) -> Clustering:
    k = min(10, len(problem.X) - 1)
    model = SpectralClustering(problem.classes, affinity="nearest_neighbors", n_neighbors=k, random_state=problem.seed)
    return Clustering(model.fit(problem.X).labels_, {})


def _kmeans(problem: Problem) -> Clustering:
    return Clustering(KMeans(problem.classes, n_init=10, random_state=problem.seed).fit(problem.X).labels_, {})


def _hdbscan(problem: Problem) -> Clustering:
    labels = HDBSCAN(copy=True).fit(problem.X).labels_
    return Clustering(labels, {"noise": float(np.mean(labels < 0))})


def _leiden(problem: Problem) -> Clustering:
    import igraph  # noqa: PLC0415  the extra [bench]
    import leidenalg  # noqa: PLC0415  the same

    upper = sp.triu(problem.graph, 1).tocoo()
    graph = igraph.Graph(n=problem.graph.shape[0], edges=np.stack([upper.row, upper.col], axis=1))
    partition = leidenalg.find_partition(
        graph, leidenalg.ModularityVertexPartition, weights=upper.data.astype(float), seed=problem.seed
    )
    return Clustering(np.array(partition.membership), {})


class Method(NamedTuple):
    """A way to cluster, whether it is told the number of classes, and the package that it needs."""

    call: str
    fit: Callable[[Problem], Clustering]
    knows_c: bool
    module: str = ""


SYSTEMS = {
    "ips2": Method("IPS2(c)", _default, True),
    "plain": Method("IPS2(c, n_components=c)", _plain, True),
    "auto": Method(f'IPS2("auto", max_clusters={MOST})', _auto, False),
    "sweep": Method(
        f"sweep(X, range(2, {MOST + 1}), {NEIGHBORS}), above {FEW:,} samples {NEIGHBORS[:1]}", _sweep, False
    ),
    "spectral": Method('SpectralClustering(c, affinity="nearest_neighbors")', _spectral, True),
    "kmeans": Method("KMeans(c, n_init=10)", _kmeans, True),
    "hdbscan": Method("HDBSCAN()", _hdbscan, False),
    "leiden": Method("leidenalg, modularity, on IPS2's S", _leiden, False, "leidenalg"),
}


def measure(names: Sequence[str], systems: Sequence[str], folder: Path, seed: int = 0) -> Iterator[Record]:
    """A record for each data set and system: clusters found, scores, seconds in this process, kernels compiled before.

    Parameters
    ----------
    names : sequence of str
        Of `datasets.load`.
    systems : sequence of str
        Of ``SYSTEMS``; one whose package is missing is named and left out.
    folder : Path
        For temporary files.
    seed : int
    """
    rng = np.random.default_rng(seed)
    run(rng.standard_normal((60, 3)), Params(n_clusters=2))  # compiles
    for name in names:
        data = load(name)
        X = np.asarray(data.X, np.float64)
        if name in SCALED:
            X = StandardScaler().fit_transform(X)
        true_labels = np.unique(data.labels, return_inverse=True)[1]
        graph = sp.csr_array(run(X, Params(n_clusters=2, random_state=seed)).similarity("pairwise"))
        problem = Problem(X, data.n_clusters, graph, folder, seed)
        for system in systems:
            yield {
                "data": name, "m": len(X), "f": X.shape[1], "classes": data.n_clusters,
                "scale": "zscore" if name in SCALED else "none", "system": system,
                **_measured(system, problem, true_labels),
            }  # fmt: skip


def _measured(name: str, problem: Problem, known: NDArray[np.integer]) -> Record:
    system = SYSTEMS[name]
    record: Record = {"call": system.call, "knows_c": system.knows_c}
    if system.module and importlib.util.find_spec(system.module) is None:
        return {**record, "outcome": f"skipped: {system.module} is not installed"}
    with warnings.catch_warnings(), threads(usable_cores()):
        warnings.simplefilter("ignore")  # the scores below show the quality of a result
        begun = time.perf_counter()
        labels, facts = system.fit(problem)
        seconds = time.perf_counter() - begun
    measures = scores(known, labels)
    clusters = len(np.unique(labels[labels >= 0]))
    return {
        **record, "outcome": "finished", "clusters": clusters, **facts, "nmi": measures["nmi"], "acc": measures["acc"],
        "ari": measures["ari"], "seconds": seconds,
    }  # fmt: skip


def markdown(records: Sequence[Record]) -> str:
    """The records as a table: NMI, seconds, and the number of clusters where a system has chosen it."""
    names = list(dict.fromkeys(str(r["system"]) for r in records))
    lines = [
        "| data, samples x features, classes | " + " | ".join(HEADS[name] for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for data in dict.fromkeys(str(r["data"]) for r in records):
        of = {str(r["system"]): r for r in records if r["data"] == data}
        first = next(iter(of.values()))
        best = max(float(r["nmi"]) for r in of.values() if r.get("nmi") is not None)  # type: ignore[arg-type]
        cells = [_cell(of.get(name), best) for name in names]
        lines.append(f"| {data}, {first['m']:,} x {first['f']:,}, {first['classes']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


HEADS = {
    "ips2": "IPS2(c)", "plain": "IPS2(c), c columns", "auto": 'IPS2("auto")', "sweep": "best of a sweep",
    "spectral": "SpectralClustering(c)", "kmeans": "KMeans(c)", "hdbscan": "HDBSCAN", "leiden": "Leiden",
}  # fmt: skip


def _cell(record: Record | None, best: float) -> str:
    """One result; the best of its line is bold."""
    if record is None or record.get("nmi") is None:
        return "–"
    nmi, seconds = float(record["nmi"]), float(record["seconds"])  # type: ignore[arg-type]
    text = f"{nmi:.3f}".removeprefix("0") if nmi < 1 else "1"
    text = f"**{text}**" if nmi > best - 5e-4 else text
    chosen = "" if record["knows_c"] else f", c = {record['clusters']}"
    return f"{text} ({_short(seconds)}{chosen})"


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"

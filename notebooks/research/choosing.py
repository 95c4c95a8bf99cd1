"""What a user without labels gets on known data sets, beside what others offer, with time: records of choosing.json."""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from known_sets import OPEN, SCORES, TABLES, labelled_data, number, script, table
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from ips2_dask.bench.harness import FINISHED, Record
from ips2_dask.kernels import leiden
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.metrics import accuracy, scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.sweeps import sweep
from ips2_dask.typing import Float, Integer

COLUMNS = (
    *("data", "m", "classes", "system", "outcome", "clusters", "left_out", "k", "sigma", "nmi", "acc", "ari"),
    *("threads", "seconds"),
)
FITS = 3
"""Of each system: the second may still compile a part that the first had no need of."""

MOST = 30
"""Clusters up to which auto and the sweep look."""

NEIGHBORS, FEW = (5, 10), 1_000
"""Up to so many samples a sweep tries all of these k; above it, where k = 10 costs ten times as much, the first."""

SCANPY_NEIGHBORS, SCANPY_COLUMNS = 15, 50
"""Scanpy's defaults: neighbours of a sample, itself included, and principal components that wider data become."""


class Problem(NamedTuple):
    """The input of every system."""

    X: Float  # (m, f)
    classes: int
    seed: int


Clustering = tuple[Integer, Record]
"""The labels (m,) of a system, -1 for samples that it puts into no cluster, and more fields of its record."""


class System(NamedTuple):
    """A way to cluster: its call as users would write it, and the packages that it needs besides our dependencies."""

    call: str
    fit: Callable[[Problem], Clustering]
    knows_c: bool
    modules: tuple[str, ...] = ()
    threads: int = usable_cores()  # that it may take; not each of its steps takes them all


def _ips2(knows_c: bool, c_columns: bool = False, **more: Any) -> Callable[[Problem], Clustering]:
    """A run; with ``c_columns`` it embeds into c columns in place of c + 8."""

    def fit(problem: Problem) -> Clustering:
        most = {"max_clusters": min(MOST, len(problem.X) - 1)}
        columns = {"n_components": problem.classes} if c_columns else {}
        given = {"n_clusters": problem.classes, **columns} if knows_c else most
        return run(problem.X, Params(**given, random_state=problem.seed, **more)).labels, {}

    return fit


def _sweep(problem: Problem) -> Clustering:
    most = min(MOST, len(problem.X) // 3)
    neighbors = NEIGHBORS if len(problem.X) <= FEW else NEIGHBORS[:1]
    with tempfile.TemporaryDirectory() as name:
        params, grid = Params(random_state=problem.seed), {"n_clusters": range(2, most + 1), "n_neighbors": neighbors}
        result = sweep(problem.X, grid, params, store=f"{name}/sweep", files=False)
        best = result.best.params
        return result.run().labels, {"k": best.n_neighbors, "sigma": best.sigma, "points": len(result.points)}


def _spectral(problem: Problem) -> Clustering:
    given = {"n_neighbors": min(10, len(problem.X) - 1), "random_state": problem.seed}
    return SpectralClustering(problem.classes, affinity="nearest_neighbors", **given).fit(problem.X).labels_, {}


def _kmeans(problem: Problem) -> Clustering:
    return KMeans(problem.classes, n_init=10, random_state=problem.seed).fit(problem.X).labels_, {}


def _hdbscan(problem: Problem) -> Clustering:
    return HDBSCAN(copy=True).fit(problem.X).labels_, {}


def _umap(problem: Problem) -> Clustering:
    """HDBSCAN on UMAP's embedding, as umap-learn's documentation has it ("Using UMAP for Clustering").

    HDBSCAN's smallest cluster has 1/140 of the samples, at least 5, its own default: the page's value for MNIST's
    70,000 is 500. Without a seed, which would hold UMAP to one thread.
    """
    import umap  # noqa: PLC0415  the extra [bench]

    m = len(problem.X)
    model = umap.UMAP(n_neighbors=min(30, m - 1), min_dist=0.0, n_components=min(10, m - 2))
    embedding, smallest = model.fit_transform(problem.X), max(5, round(m / 140))
    labels = HDBSCAN(min_samples=min(10, m), min_cluster_size=smallest, copy=True).fit(embedding).labels_
    return labels, {"min_cluster_size": smallest}


def _evoc(knows_c: bool) -> Callable[[Problem], Clustering]:
    """EVoC with its defaults: a seed would make it take a slower, reproducible path."""

    def fit(problem: Problem) -> Clustering:
        model = importlib.import_module("evoc").EVoC(approx_n_clusters=problem.classes if knows_c else None)
        return model.fit(problem.X.astype(np.float32)).labels_, {}

    return fit


def _leiden(knows_c: bool) -> Callable[[Problem], Clustering]:
    def fit(problem: Problem) -> Clustering:
        graph = _scanpy_graph(problem.X)
        many = graph.so_many(problem.classes, problem.seed).found if knows_c else graph.communities(1.0, problem.seed)
        return many.labels, {"resolution": many.resolution}

    return fit


def _scanpy_graph(X: Float) -> leiden.Graph:
    """The graph that Scanpy gives Leiden: UMAP's connectivities of nearest neighbours in principal components.

    `scanpy.pp.neighbors` with its defaults, but that neighbours are exact however many samples there are.
    """
    from umap.umap_ import fuzzy_simplicial_set  # noqa: PLC0415  the extra [bench]

    m, f = X.shape
    if f > SCANPY_COLUMNS:
        X = PCA(min(SCANPY_COLUMNS, m - 1), svd_solver="arpack", random_state=0).fit_transform(X)
    k = min(SCANPY_NEIGHBORS, m)
    distances, neighbors = NearestNeighbors(n_neighbors=k).fit(X).kneighbors(X)  # (m, k) each
    no_samples = sp.coo_array((m, 1))  # what Scanpy gives: the neighbours are there
    connectivities = fuzzy_simplicial_set(no_samples, k, None, None, knn_indices=neighbors, knn_dists=distances)[0]
    upper = sp.triu(connectivities, 1, format="coo")
    joins = upper.data > 0
    return leiden.Graph(m, upper.row[joins], upper.col[joins], upper.data[joins])


_AUTO, _SCANPY = f'IPS2("auto", max_clusters={MOST}', "Leiden of igraph on Scanpy's connectivities (k = 15)"
_UMAP = "UMAP(n_neighbors=30, min_dist=0, n_components=10)"
_SWEEP = (
    f'sweep(X, {{"n_clusters": range(2, {MOST + 1}), "n_neighbors": {NEIGHBORS}}}), above {FEW:,} samples '
    f"{NEIGHBORS[:1]}"
)
_SPECTRAL = 'SpectralClustering(c, affinity="nearest_neighbors")'
SYSTEMS = {
    "ips2": System("IPS2(c)", _ips2(True), True),
    "plain": System("IPS2(c, n_components=c)", _ips2(True, c_columns=True), True),
    "pairwise": System("IPS2(c, fusion_weight=0)", _ips2(True, fusion_weight=0.0), True),
    "ips2-leiden-c": System('IPS2(c, assign_labels="leiden")', _ips2(True, assign_labels="leiden"), True, ("igraph",)),
    "spectral": System(_SPECTRAL, _spectral, True),
    "kmeans": System("KMeans(c, n_init=10)", _kmeans, True),
    "leiden-c": System(f"{_SCANPY}, resolution sought by bisection", _leiden(True), True, ("igraph", "umap")),
    "evoc-c": System("EVoC(approx_n_clusters=c)", _evoc(True), True, ("evoc",)),
    "auto": System(f"{_AUTO})", _ips2(False), False),
    "ips2-leiden": System(
        f'{_AUTO}, assign_labels="leiden")', _ips2(False, assign_labels="leiden"), False, ("igraph",)
    ),
    "sweep": System(_SWEEP, _sweep, False),
    "hdbscan": System("HDBSCAN()", _hdbscan, False, threads=1),
    "umap": System(f"HDBSCAN(min_samples=10, min_cluster_size=max(5, m / 140)) on {_UMAP}", _umap, False, ("umap",)),
    "evoc": System("EVoC()", _evoc(False), False, ("evoc",)),
    "leiden": System(f"{_SCANPY}, resolution 1", _leiden(False), False, ("igraph", "umap")),
}


def measure(names: Sequence[str], systems: str = ",".join(SYSTEMS), seed: int = 0) -> Iterator[Record]:
    """A record for each data set and system: clusters found, scores and seconds.

    Each system is fitted three times with the threads that it takes by itself. The labels are the last fit's, and
    ``seconds`` those of the faster of the last two, for which all or nearly all is compiled. UMAP and EVoC have no
    seed, which would make them slower: their scores differ a little from run to run. ``left_out`` is the share of
    samples that a system puts into no cluster.
    """
    for name in names:
        data = labelled_data(name)
        X = np.asarray(data.X, np.float64)
        facts: Record = {"data": name, "m": len(X), "f": X.shape[1], "classes": data.classes, "scale": data.scale}
        for label in systems.split(","):
            system = SYSTEMS[label]
            described: Record = {"system": label, "call": system.call, "knows_c": system.knows_c}
            try:
                measured = _measured(system, Problem(X, data.classes, seed), data.known)
            except Exception as error:
                if not system.modules:
                    raise
                measured = {"outcome": f"failed: {type(error).__name__}"}  # what another package raises is its result
            yield {**facts, **described, **measured}


def _measured(system: System, problem: Problem, true_labels: Integer) -> Record:
    """Scores of a system's last fit, and its seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scores show the quality of a result
        for module in system.modules:
            importlib.import_module(module)
        seconds = []
        for _ in range(FITS):
            begun = time.perf_counter()
            labels, facts = system.fit(problem)
            seconds.append(time.perf_counter() - begun)
    scored = scores_with_noise(true_labels, labels)
    clusters = {"clusters": len(np.unique(labels[labels >= 0])), **facts}
    return {"outcome": FINISHED, **clusters, **scored, "threads": system.threads, "seconds": min(seconds[1:])}


def scores_with_noise(true_labels: Integer, labels: Integer) -> dict[str, float]:
    """NMI, ACC and ARI, where labels below 0 say that a sample is in no cluster, and the share of these samples.

    For NMI and ARI they are one cluster of their own; for ACC each of them is wrong.
    """
    labels = np.maximum(labels, -1)
    labelled = labels >= 0
    share = float(np.mean(labelled))
    right = share * accuracy(true_labels[labelled], labels[labelled]) if share else 0.0
    found = scores(true_labels, labels)
    return {"left_out": 1 - share, "nmi": found["nmi"], "acc": right, "ari": found["ari"]}


# ---- tables


def means(records: Sequence[Record]) -> str:
    """The records as two tables, systems that are told c and those that are not: means over the data sets.

    The best of each score is bold, among systems that have a result on every set.
    """
    titles = {True: "Told c, the number of classes:", False: "Not told c:"}
    chosen = {title: [r for r in records if r["knows_c"] is knows_c] for knows_c, title in titles.items()}
    return "\n".join(f"{title}\n\n{_table(of)}" for title, of in chosen.items() if of)


def each_set(records: Sequence[Record]) -> str:
    """The ARI of every system on each data set, with the number of clusters where the system has chosen it."""
    systems = list(dict.fromkeys(str(r["system"]) for r in records))
    found = {(r["data"], r["system"]): r for r in records}
    rows = []
    for data in dict.fromkeys(r["data"] for r in records):
        of = [found.get((data, name), {}) for name in systems]
        shape = next(r for r in of if r)
        head = f"{data}, {shape.get('m', 0):,} x {shape.get('f', 0):,}, {shape.get('classes', 0)}"
        rows.append([head, *(_ari(r) for r in of)])
    head = ["data, samples x features, classes", *(f"`{name}`" for name in systems)]
    return f"ARI on each set, with the number of clusters where the system is not told it:\n\n{table(head, rows)}"


def _ari(record: Record) -> str:
    text = _score(record.get("ari"))
    return text if text == "–" or record["knows_c"] else f"{text} ({record.get('clusters')})"


def _table(records: Sequence[Record]) -> str:
    rows = {name: [r for r in records if r["system"] == name] for name in dict.fromkeys(r["system"] for r in records)}
    counts = {name: len(_values(of, "nmi")) for name, of in rows.items()}
    rivals = [of for name, of in rows.items() if counts[name] == max(counts.values())]
    best = {score: max((_mean(of, score) or 0.0 for of in rivals), default=0.0) for score in SCORES}
    lines = []
    for name, of in rows.items():
        scores = [_score(_mean(of, score), best[score] if of in rivals else None) for score in SCORES]
        left_out, seconds = _mean(of, "left_out"), _mean(of, "seconds")
        threads = " or ".join(map(str, sorted(set(_values(of, "threads")))))
        lines.append(
            [
                *(f"`{name}`", f"`{of[0]['call']}`", *scores, "–" if left_out is None else f"{left_out:.0%}"),
                *(str(counts[name]), threads or "–", "–" if seconds is None else _short(seconds)),
            ]
        )
    head = ["system", "call", *(score.upper() for score in SCORES), "left out", "sets", "threads", "seconds"]
    return table(head, lines)


def _values(records: Sequence[Record], field: str) -> list[Any]:
    return [r[field] for r in records if r.get(field) is not None]


def _mean(records: Sequence[Record], field: str) -> float | None:
    values = _values(records, field)
    return statistics.fmean(values) if values else None


def _score(score: Any, best: float | None = None) -> str:
    if score is None:
        return "–"
    text = number(score) if abs(score) < 0.9995 else f"{score:.0f}"
    return f"**{text}**" if best is not None and score > best - 5e-4 else text


def _short(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"


if __name__ == "__main__":
    script(measure, COLUMNS, (*OPEN, *TABLES), systems={"default": ",".join(SYSTEMS), "metavar": "NAME,..."})

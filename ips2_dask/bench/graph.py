"""`ips2 bench graph`: builders of the sample graph at equal recall, ours and others', each in a fresh process."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import Data, centred
from ips2_dask.bench.process import check_cores, peak, work_apart
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import approximate
from ips2_dask.kernels.neighbors import exact_neighbors, nearest_in, recall, recall_rows, refine_candidates
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan.plan import make_plan
from ips2_dask.progress import Progress, Reporter
from ips2_dask.readers import open_source
from ips2_dask.stages import ingest, sharding
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context
from ips2_dask.typing import Float32, Int32

Index: TypeAlias = Any
"""A library's index, of which only that library knows the type."""

SEED = 0
QUIET = Reporter(Progress(), "")


class NeighborLists(NamedTuple):
    """The n nearest of each sample, itself first, by (distance, id); ``order`` as of `Context.order`."""

    indices: Int32  # (m, n)
    distances: Float32  # (m, n)
    order: Int32 | None = None  # the given number of each sample, where the builder renumbered them


class Builder(NamedTuple):
    """A library that builds the graph, and the functions that call it.

    Attributes
    ----------
    package : str
        What must be installed, as pip calls it; "" for ours.
    module : str
        What it is imported as.
    builds : tuple of dict
        Settings of the index from cheap to thorough, by their names; a builder without any has the one {}.
    efforts : tuple of int
        Settings of the search from fast to thorough; a builder without any has the one 0.
    build : callable
        From X, number of threads and the settings of one of ``builds`` to an index.
    search : callable
        From index, X, n, effort and number of threads to `NeighborLists`.
    prepare : callable
        From X to what ``build`` is given instead, not timed.
    """

    package: str
    module: str
    builds: tuple[dict[str, int], ...]
    efforts: tuple[int, ...]
    build: Callable[..., Index]
    search: Callable[[Index, Float32, int, int, int], NeighborLists]
    prepare: Callable[[Float32, int], Any] = lambda X, _: X

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None


def warm_up(module: str, X: Float32) -> None:
    """Import a library, and compile what checks its answers: neither is the library's time."""
    importlib.import_module(module)
    _settled(X[:2], np.array([[0, 1], [0, 1]]), 2)


def _settled(X: Float32, candidates: NDArray[np.integer], n: int) -> NeighborLists:
    """`NeighborLists` of a library's candidates (m, n), checked and measured as a run does it."""
    with threads(usable_cores()):
        indices, distances, _ = refine_candidates(X, np.ascontiguousarray(candidates, np.int32), n)
    return NeighborLists(indices, distances)


def _nothing(prepared: Index, n_threads: int) -> Index:
    del n_threads
    return prepared


def _exact(_: object, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    del effort
    with threads(n_threads):
        return NeighborLists(*exact_neighbors(X, 0, X, n))


class _Descent(NamedTuple):
    """pynndescent's index is its graph, which `_pynndescent` builds: its setting alone goes before."""

    extra: int


def _longer(X: Float32, n_threads: int, *, extra: int) -> _Descent:
    del X, n_threads
    return _Descent(extra)


def _pynndescent(index: _Descent, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    """Lists with ``extra`` neighbours more than asked for have a higher recall."""
    del effort
    return _settled(X, approximate.candidates(X, n + index.extra, SEED, threads=n_threads), n)


def _ingested(X: Float32, n: int) -> Context:
    """A run in memory up to its ingest stage, whose graph is to be sharded."""
    params = Params(n_clusters=2, n_neighbors=n, graph="shards", random_state=SEED)
    m, f = X.shape
    plan = make_plan(m, f, params)
    folders = {"ingest": "ingest", "neighbors": "neighbors"}
    context = Context(
        MemoryStore(), params, plan.bounds, plan.f, plan.choices, folders, threads=usable_cores(), source=open_source(X)
    )
    with threads(usable_cores()):
        context.facts["ingest"] = ingest.run(context, SerialExecutor(), QUIET)
    return context


def _shards(context: Context, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    """The sharded graph, its recall measured and refined, as the neighbors stage makes it in one process."""
    del X, effort
    with threads(n_threads):
        facts, _ = sharding.run(context, SerialExecutor(), QUIET)
        adopted = sharding.adopted(context, facts)
        indices, distances = (adopted.read_all("neighbors", name)[:, :n] for name in ("indices", "distances"))
    return NeighborLists(indices, distances * np.float32(adopted.unit), adopted.order())


def _build_ivf(X: Float32, n_threads: int, *, cells: int) -> Index:
    """``cells`` times the root of the samples, as far as faiss has the 39 training rows that it asks for in each."""
    import faiss  # noqa: PLC0415  optional

    faiss.omp_set_num_threads(n_threads)
    m, f = X.shape
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(f), f, max(1, min(int(cells * np.sqrt(m)), m // 39)))
    index.train(X)
    index.add(X)
    return index


def _search_ivf(index: Index, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    del n_threads  # as of its building
    index.nprobe = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_faiss_hnsw(X: Float32, n_threads: int, *, M: int, ef_construction: int) -> Index:
    import faiss  # noqa: PLC0415  optional

    faiss.omp_set_num_threads(n_threads)
    index = faiss.IndexHNSWFlat(X.shape[1], M)
    index.hnsw.efConstruction = ef_construction
    index.add(X)
    return index


def _search_faiss_hnsw(index: Index, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    del n_threads  # as of its building
    index.hnsw.efSearch = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_hnswlib(X: Float32, n_threads: int, *, M: int, ef_construction: int) -> Index:
    import hnswlib  # noqa: PLC0415  optional

    index = hnswlib.Index(space="l2", dim=X.shape[1])
    index.init_index(max_elements=len(X), M=M, ef_construction=ef_construction, random_seed=SEED)
    index.add_items(X, num_threads=n_threads)
    return index


def _search_hnswlib(index: Index, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    index.set_ef(effort)
    return _settled(X, index.knn_query(X, n, num_threads=n_threads)[0].astype(np.int64), n)


def _build_usearch(X: Float32, n_threads: int, *, M: int, ef_construction: int) -> Index:
    from usearch.index import Index  # noqa: PLC0415  optional

    index = Index(ndim=X.shape[1], metric="l2sq", dtype="f32", connectivity=M, expansion_add=ef_construction)
    index.add(np.arange(len(X)), X, threads=n_threads)
    return index


def _search_usearch(index: Index, X: Float32, n: int, effort: int, n_threads: int) -> NeighborLists:
    index.expansion_search = effort
    matches = index.search(X, n, threads=n_threads)
    keys = matches.keys.astype(np.int64)
    keys[np.arange(n) >= np.asarray(matches.counts)[:, None]] = -1  # places that it did not fill
    return _settled(X, keys, n)


SEARCHES = (8, 12, 16, 24, 32, 64, 128, 256)
LAYERED = tuple({"M": M, "ef_construction": ef} for M, ef in ((8, 30), (8, 60), (16, 40), (16, 100), (32, 200)))
"""Settings of the libraries that search a hierarchy of graphs (HNSW)."""

BUILDERS = {
    "exact": Builder("", "", ({},), (0,), _nothing, _exact),
    "shards": Builder("", "", ({},), (0,), _nothing, _shards, _ingested),
    "pynndescent": Builder(
        "pynndescent", "pynndescent", tuple({"extra": extra} for extra in (0, 2, 4, 8)), (0,), _longer, _pynndescent
    ),
    "faiss-ivf": Builder(
        "faiss-cpu",
        "faiss",
        tuple({"cells": cells} for cells in (1, 2, 4, 8)),
        (1, 2, 4, 8, 16, 32, 64),
        _build_ivf,
        _search_ivf,
    ),
    "faiss-hnsw": Builder("faiss-cpu", "faiss", LAYERED, SEARCHES, _build_faiss_hnsw, _search_faiss_hnsw),
    "hnswlib": Builder("hnswlib", "hnswlib", LAYERED, SEARCHES, _build_hnswlib, _search_hnswlib),
    "usearch": Builder("usearch", "usearch", LAYERED, SEARCHES, _build_usearch, _search_usearch),
}


def lists_of(name: str, X: Float32, n: int) -> NeighborLists:
    """The graph by a builder at its most thorough settings: for benchmarks that need one and do not measure it."""
    builder, n_threads = BUILDERS[name], usable_cores()
    index = builder.build(builder.prepare(X, n), n_threads, **builder.builds[-1])
    return builder.search(index, X, n, builder.efforts[-1], n_threads)


LEAST_NEIGHBORS = N_AFFINITY_NEIGHBORS + 1
"""Columns of the graph of a run with the default k: the sample itself and five others."""


COLUMNS = (
    "kind",
    "builder",
    "build",
    "outcome",
    "threads",
    "seconds",
    "recall",
    "reached",
    "compile_seconds",
    "build_seconds",
    "search_seconds",
    "effort",
)
RECALL = 0.95

TRIED, CHEAPEST = "tried", "cheapest"
"""Kinds of records: a setting of a builder's index, and the one of them that counts."""


class Job(TypedDict):
    """The argument of `work`: a builder, a setting of its index, and files of X and of the distances of recall."""

    builder: str
    build: int  # position in `Builder.builds`
    X: str
    reach: str
    neighbors: int
    least_recall: float


def measure(
    data: Data,
    folder: Path,
    neighbors: int = LEAST_NEIGHBORS,
    builders: Sequence[str] = tuple(BUILDERS),
    least_recall: float = RECALL,
    limit: float | None = None,
    n_threads: int | None = None,
) -> Iterator[Record]:
    """A record for each setting of each builder's index, then one of kind "cheapest" for the builder.

    Each setting builds an index and looks up the neighbours of all samples, first in a process that has compiled
    nothing (``first_seconds``), then again (``build_seconds`` + ``search_seconds``, which make ``seconds``); the
    difference is ``compile_seconds``. If its recall is too low, the search alone is repeated with more effort until it
    is not, or no effort is left. The cheapest is the setting of the fewest seconds that has reached the recall; where
    none has, that of the highest recall, and ``reached`` is False. As it is the least of several timings, chance
    favours the libraries that have many settings. Ours have one. Every time holds the check of the candidates that a
    run makes of any builder's answer; ours by shards holds the measurement of the recall that it is refined by.

    Parameters
    ----------
    data : Data
    folder : Path
        For temporary files.
    neighbors : int
        Columns of the lists, the sample itself included; the recall is that of the others.
    builders : sequence of str
        Of ``BUILDERS``; one whose package is missing is named and left out.
    least_recall : float
    limit : float, optional
        Seconds that a setting of a builder may take in all.
    n_threads : int, optional
        Cores that every builder is held to, and threads that it is told to take; by default all.
    """
    check_cores(n_threads)
    job = {"neighbors": neighbors, "least_recall": least_recall, **_truth(data, neighbors, folder)}
    for name in builders:
        shape: Record = {"data": data.name, "m": data.m, "f": data.f, "neighbors": neighbors, "builder": name}
        if BUILDERS[name].missing:
            outcome = f"skipped: {BUILDERS[name].package} is not installed"
            yield {**shape, "kind": CHEAPEST, "outcome": outcome, "seconds": None}
            continue
        tried = []
        for at, settings in enumerate(BUILDERS[name].builds):
            ended = work_apart(
                "graph", {**job, "builder": name, "build": at}, folder, limit, cold=True, cores=n_threads
            )
            most = peak(ended.samples)
            record: Record = {
                **shape,
                "build": spelled(settings),
                "threads": n_threads or usable_cores(),
                "outcome": ended.word,
                "seconds": None,
                **ended.answer,
                "peak_bytes": most.tree if most else None,
            }
            yield {"kind": TRIED, **record}
            tried.append(record)
        yield {"kind": CHEAPEST, **cheapest(tried)}


def spelled(settings: Mapping[str, int]) -> str | None:
    """``M=8, ef_construction=30``; None without settings."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or None


def cheapest(tried: Sequence[Record]) -> Record:
    """Of the settings of one builder that of the fewest seconds with the recall; else that of the highest recall."""
    there = [record for record in tried if record["seconds"] is not None]
    if not there:
        return tried[0]
    reached = [record for record in there if record["reached"]]
    if reached:
        return min(reached, key=lambda record: float(str(record["seconds"])))
    return max(there, key=lambda record: float(str(record["recall"])))


def _truth(data: Data, n: int, folder: Path) -> dict[str, str]:
    """Files of the centred X, and of the distance to the n-th neighbour for each row that recall is measured on."""
    X = centred(np.load(data.X))
    rows = recall_rows(len(X), SEED)
    with threads(usable_cores()):
        reach = nearest_in(X[rows], rows, X, n - 1)[1][:, -1]
    files = {"X": str(folder / "centred.npy"), "reach": str(folder / "reach.npy")}
    np.save(files["X"], X)
    np.save(files["reach"], reach)
    return files


def work(job: Job) -> Record:
    """One setting of a builder, in a process of its own."""
    builder, n_threads = BUILDERS[job["builder"]], usable_cores()
    settings = builder.builds[job["build"]]
    X, reach, n = np.load(job["X"]), np.load(job["reach"]), job["neighbors"]
    if builder.module:
        warm_up(builder.module, X)
    _, first, _ = _once(builder, settings, X, n)
    lists, seconds, index = _once(builder, settings, X, n)
    compiling = max(0.0, sum(first) - sum(seconds))
    build, search = seconds
    effort = builder.efforts[0]
    for more in builder.efforts[1:]:
        if _recall(lists, reach) >= job["least_recall"]:
            break
        effort = more
        begun = time.perf_counter()
        lists = builder.search(index, X, n, effort, n_threads)
        search = time.perf_counter() - begun
    return {
        "seconds": build + search,
        "build_seconds": build,
        "search_seconds": search,
        "first_seconds": sum(first),
        "compile_seconds": compiling,
        "recall": _recall(lists, reach),
        "reached": _recall(lists, reach) >= job["least_recall"],
        "effort": effort,
    }


def _once(
    builder: Builder, settings: Mapping[str, int], X: Float32, n: int
) -> tuple[NeighborLists, tuple[float, float], Index]:
    """Lists at the first effort, seconds of build and search, and the index."""
    prepared, n_threads = builder.prepare(X, n), usable_cores()
    begun = time.perf_counter()
    index = builder.build(prepared, n_threads, **settings)
    built = time.perf_counter()
    lists = builder.search(index, X, n, builder.efforts[0], n_threads)
    return lists, (built - begun, time.perf_counter() - built), index


def _recall(lists: NeighborLists, reach: Float32) -> float:
    """Recall on the sampled rows, which are renumbered if the builder has renumbered the samples."""
    rows = recall_rows(len(lists.distances), SEED)
    if lists.order is not None:
        rank = np.empty(len(lists.order), np.int64)
        rank[lists.order] = np.arange(len(lists.order))
        rows = rank[rows]
    return recall(lists.distances[rows], reach)

"""`ips2 bench graph`: builders of the sample graph at equal recall, ours and others', each in a fresh process."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import Data, centred
from ips2_dask.bench.process import peak, work_apart
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import approximate
from ips2_dask.kernels.neighbors import exact_neighbors, nearest_in, recall, recall_rows, refine_candidates
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan.plan import make_plan
from ips2_dask.progress import Progress, Reporter
from ips2_dask.readers import open_source
from ips2_dask.stages import ingest, sharding
from ips2_dask.store.context import Context
from ips2_dask.store.memory_store import MemoryStore

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

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
    efforts : tuple of int
        Settings of the search from fast to thorough; a builder without any has the one 0.
    build : callable
        From X to an index.
    search : callable
        From index, X, n and effort to `NeighborLists`.
    prepare : callable
        From X to what ``build`` is given instead, not timed.
    """

    package: str
    module: str
    efforts: tuple[int, ...]
    build: Callable[..., Index]
    search: Callable[[Index, Float32, int, int], NeighborLists]
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


def _nothing(prepared: Index) -> Index:
    return prepared


def _exact(_: object, X: Float32, n: int, effort: int) -> NeighborLists:
    del effort
    with threads(usable_cores()):
        return NeighborLists(*exact_neighbors(X, 0, X, n))


def _pynndescent(_: object, X: Float32, n: int, effort: int) -> NeighborLists:
    del effort
    return _settled(X, approximate.candidates(X, n, SEED), n)


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


def _shards(context: Context, X: Float32, n: int, effort: int) -> NeighborLists:
    """The sharded graph, its recall measured and refined, as the neighbors stage makes it in one process."""
    del X, effort
    with threads(usable_cores()):
        facts, _ = sharding.run(context, SerialExecutor(), QUIET)
        adopted = sharding.adopted(context, facts)
        indices, distances = (adopted.read_all("neighbors", name)[:, :n] for name in ("indices", "distances"))
    return NeighborLists(indices, distances * np.float32(adopted.unit), adopted.order())


def _build_ivf(X: Float32) -> Index:
    import faiss  # noqa: PLC0415  optional

    m, f = X.shape
    cells = max(1, min(int(4 * np.sqrt(m)), m // 39))  # faiss asks for 39 training rows a cell
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(f), f, cells)
    index.train(X)
    index.add(X)
    return index


def _search_ivf(index: Index, X: Float32, n: int, effort: int) -> NeighborLists:
    index.nprobe = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_faiss_hnsw(X: Float32) -> Index:
    import faiss  # noqa: PLC0415  optional

    index = faiss.IndexHNSWFlat(X.shape[1], 16)
    index.hnsw.efConstruction = 100
    index.add(X)
    return index


def _search_faiss_hnsw(index: Index, X: Float32, n: int, effort: int) -> NeighborLists:
    index.hnsw.efSearch = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_hnswlib(X: Float32) -> Index:
    import hnswlib  # noqa: PLC0415  optional

    index = hnswlib.Index(space="l2", dim=X.shape[1])
    index.init_index(max_elements=len(X), M=16, ef_construction=100, random_seed=SEED)
    index.add_items(X)
    return index


def _search_hnswlib(index: Index, X: Float32, n: int, effort: int) -> NeighborLists:
    index.set_ef(effort)
    return _settled(X, index.knn_query(X, n)[0].astype(np.int64), n)


def _build_usearch(X: Float32) -> Index:
    from usearch.index import Index  # noqa: PLC0415  optional

    index = Index(ndim=X.shape[1], metric="l2sq", dtype="f32", connectivity=16, expansion_add=100)
    index.add(np.arange(len(X)), X)
    return index


def _search_usearch(index: Index, X: Float32, n: int, effort: int) -> NeighborLists:
    index.expansion_search = effort
    matches = index.search(X, n)
    keys = matches.keys.astype(np.int64)
    keys[np.arange(n) >= np.asarray(matches.counts)[:, None]] = -1  # places that it did not fill
    return _settled(X, keys, n)


SEARCHES = (16, 32, 64, 128, 256)

BUILDERS = {
    "exact": Builder("", "", (0,), _nothing, _exact),
    "shards": Builder("", "", (0,), _nothing, _shards, _ingested),
    "pynndescent": Builder("pynndescent", "pynndescent", (0,), _nothing, _pynndescent),
    "faiss-ivf": Builder("faiss-cpu", "faiss", (2, 4, 8, 16, 32, 64), _build_ivf, _search_ivf),
    "faiss-hnsw": Builder("faiss-cpu", "faiss", SEARCHES, _build_faiss_hnsw, _search_faiss_hnsw),
    "hnswlib": Builder("hnswlib", "hnswlib", SEARCHES, _build_hnswlib, _search_hnswlib),
    "usearch": Builder("usearch", "usearch", SEARCHES, _build_usearch, _search_usearch),
}


def lists_of(name: str, X: Float32, n: int) -> NeighborLists:
    """The graph by a builder at its first effort: for benchmarks that need one and do not measure it."""
    builder = BUILDERS[name]
    return builder.search(builder.build(builder.prepare(X, n)), X, n, builder.efforts[0])


LEAST_NEIGHBORS = N_AFFINITY_NEIGHBORS + 1
"""Columns of the graph of a run with the default k: the sample itself and five others."""


COLUMNS = ("builder", "outcome", "seconds", "recall", "compile_seconds", "build_seconds", "search_seconds", "effort")
RECALL = 0.95


class Job(TypedDict):
    """The argument of `work`: one builder, and files of X and of the distances that recall is measured by."""

    builder: str
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
) -> Iterator[Record]:
    """A record for each builder.

    Each builds an index and looks up the neighbours of all samples, first in a process that has compiled nothing
    (``first_seconds``), then again (``build_seconds`` + ``search_seconds``, which make ``seconds``); the difference
    is ``compile_seconds``. If its recall is too low, the search alone is repeated with more effort until it is not, or
    no effort is left. Every time holds the check of the candidates that a run makes of any builder's answer; ours by
    shards holds the measurement of the recall that it is refined by.

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
        Seconds that a builder may take in all.
    """
    job = {"neighbors": neighbors, "least_recall": least_recall, **_truth(data, neighbors, folder)}
    for name in builders:
        record: Record = {"data": data.name, "m": data.m, "f": data.f, "neighbors": neighbors, "builder": name}
        if BUILDERS[name].missing:
            yield {**record, "outcome": f"skipped: {BUILDERS[name].package} is not installed", "seconds": None}
            continue
        outcome = work_apart("graph", {**job, "builder": name}, folder, limit, cold=True)
        most = peak(outcome.samples)
        yield {
            **record,
            "threads": usable_cores(),
            "outcome": outcome.word,
            "seconds": None,
            **outcome.answer,
            "peak_bytes": most.tree if most else None,
        }


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
    """One builder, in a process of its own."""
    builder = BUILDERS[job["builder"]]
    X, reach, n = np.load(job["X"]), np.load(job["reach"]), job["neighbors"]
    if builder.module:
        warm_up(builder.module, X)
    _, first, _ = _once(builder, X, n)
    lists, seconds, index = _once(builder, X, n)
    compiling = max(0.0, sum(first) - sum(seconds))
    build, search = seconds
    effort = builder.efforts[0]
    for more in builder.efforts[1:]:
        if _recall(lists, reach) >= job["least_recall"]:
            break
        effort = more
        begun = time.perf_counter()
        lists = builder.search(index, X, n, effort)
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


def _once(builder: Builder, X: Float32, n: int) -> tuple[NeighborLists, tuple[float, float], Index]:
    """Lists at the first effort, seconds of build and search, and the index."""
    prepared = builder.prepare(X, n)
    begun = time.perf_counter()
    index = builder.build(prepared)
    built = time.perf_counter()
    lists = builder.search(index, X, n, builder.efforts[0])
    return lists, (built - begun, time.perf_counter() - built), index


def _recall(lists: NeighborLists, reach: Float32) -> float:
    """Recall on the sampled rows, which are renumbered if the builder has renumbered the samples."""
    rows = recall_rows(len(lists.distances), SEED)
    if lists.order is not None:
        rank = np.empty(len(lists.order), np.int64)
        rank[lists.order] = np.arange(len(lists.order))
        rows = rank[rows]
    return recall(lists.distances[rows], reach)

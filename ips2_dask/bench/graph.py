"""`ips2 bench graph`: builders of the sample graph at equal recall, ours and others', each in a fresh process."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.bench.harness import Data, Record, centred, work_apart
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import Params
from ips2_dask.plan.plan import make_plan
from ips2_dask.progress import Progress, Reporter
from ips2_dask.readers import open_source
from ips2_dask.stages import ingest, sharding
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context
from ips2_dask.typing import Float32, Int32, Integer

COLUMNS = (
    *("kind", "builder", "build", "outcome", "threads", "seconds", "recall", "reached", "compile_seconds"),
    *("build_seconds", "search_seconds", "effort"),
)
SEED = 0
QUIET = Reporter(Progress(), "")


class _NeighborLists(NamedTuple):
    """The n nearest of each sample, itself first, by (distance, id); ``order`` as of `Context.order`."""

    indices: Int32  # (m, n)
    distances: Float32  # (m, n)
    order: Int32 | None = None  # the given number of each sample, where the builder renumbered them


class _Builder(NamedTuple):
    """A library that builds the graph, on all cores, and the functions that call it."""

    package: str  # that must be installed, as pip calls it; "" for ours
    module: str  # as it is imported
    builds: tuple[dict[str, int], ...]  # settings of the index from cheap to thorough; the one {} without any
    efforts: tuple[int, ...]  # settings of the search from fast to thorough; the one 0 without any
    build: Callable[..., Any]  # from X and one of ``builds`` to an index
    search: Callable[[Any, Float32, int, int], _NeighborLists]  # from index, X, n and effort
    prepare: Callable[[Float32, int], Any] = lambda X, _: X  # what ``build`` is given in place of X, not timed

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None


def _settled(X: Float32, candidates: Integer, n: int) -> _NeighborLists:
    """`_NeighborLists` of a library's candidates (m, n), checked and measured as a run does it."""
    with threads(usable_cores()):
        indices, distances, _ = kernel.refine_candidates(X, np.ascontiguousarray(candidates, np.int32), n)
    return _NeighborLists(indices, distances)


def _exact(_: object, X: Float32, n: int, effort: int) -> _NeighborLists:
    del effort
    with threads(usable_cores()):
        return _NeighborLists(*kernel.exact_neighbors(X, 0, X, n))


def _pynndescent(extra: int, X: Float32, n: int, effort: int) -> _NeighborLists:
    """Its index is its graph. Lists with ``extra`` neighbours more than asked for have a higher recall."""
    del effort
    return _settled(X, kernel.descent_candidates(X, n + extra, SEED, threads=usable_cores()), n)


def in_memory(X: Float32, n: int) -> Context:
    """A run in memory up to its ingest stage, whose graph is to be sharded."""
    params = Params(n_clusters=2, n_neighbors=n, graph="shards", random_state=SEED)
    plan = make_plan(X.shape[0], X.shape[1], params)
    folders, n = {"ingest": "ingest", "neighbors": "neighbors"}, usable_cores()
    source = open_source(X)
    context = Context(MemoryStore(), params, plan.bounds, plan.f, plan.choices, folders, threads=n, source=source)
    with threads(usable_cores()):
        context.facts["ingest"] = ingest.run(context, SerialExecutor(), QUIET)
    return context


def _shards(context: Context, X: Float32, n: int, effort: int) -> _NeighborLists:
    """The sharded graph, its recall measured and refined, as the neighbors stage makes it in one process."""
    del X, effort
    with threads(usable_cores()):
        facts, _ = sharding.run(context, SerialExecutor(), QUIET)
        adopted = sharding.adopted(context, facts)
        indices, distances = (adopted.read_all("neighbors", name)[:, :n] for name in ("indices", "distances"))
    return _NeighborLists(indices, distances * np.float32(adopted.unit), adopted.order())


def _build_ivf(X: Float32, *, cells: int) -> Any:
    """``cells`` times the root of the samples, as far as faiss has the 39 training rows that it asks for in each."""
    import faiss  # noqa: PLC0415  optional

    faiss.omp_set_num_threads(usable_cores())
    m, f = X.shape
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(f), f, max(1, min(int(cells * np.sqrt(m)), m // 39)))
    index.train(X)
    index.add(X)
    return index


def _build_faiss_hnsw(X: Float32, *, M: int, ef_construction: int) -> Any:
    import faiss  # noqa: PLC0415  optional

    faiss.omp_set_num_threads(usable_cores())
    index = faiss.IndexHNSWFlat(X.shape[1], M)
    index.hnsw.efConstruction = ef_construction
    index.add(X)
    return index


def _search_faiss(index: Any, X: Float32, n: int, effort: int) -> _NeighborLists:
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = effort
    else:
        index.nprobe = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_hnswlib(X: Float32, *, M: int, ef_construction: int) -> Any:
    import hnswlib  # noqa: PLC0415  optional

    index = hnswlib.Index(space="l2", dim=X.shape[1])
    index.init_index(max_elements=len(X), M=M, ef_construction=ef_construction, random_seed=SEED)
    index.add_items(X, num_threads=usable_cores())
    return index


def _search_hnswlib(index: Any, X: Float32, n: int, effort: int) -> _NeighborLists:
    index.set_ef(effort)
    return _settled(X, index.knn_query(X, n, num_threads=usable_cores())[0].astype(np.int64), n)


def _build_usearch(X: Float32, *, M: int, ef_construction: int) -> Any:
    from usearch.index import Index  # noqa: PLC0415  optional

    index = Index(ndim=X.shape[1], metric="l2sq", dtype="f32", connectivity=M, expansion_add=ef_construction)
    index.add(np.arange(len(X)), X, threads=usable_cores())
    return index


def _search_usearch(index: Any, X: Float32, n: int, effort: int) -> _NeighborLists:
    index.expansion_search = effort
    matches = index.search(X, n, threads=usable_cores())
    keys = matches.keys.astype(np.int64)
    keys[np.arange(n) >= np.asarray(matches.counts)[:, None]] = -1  # places that it did not fill
    return _settled(X, keys, n)


SEARCHES, PROBES = (8, 12, 16, 24, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32, 64)
LAYERED = tuple({"M": M, "ef_construction": ef} for M, ef in ((8, 30), (8, 60), (16, 40), (16, 100), (32, 200)))
"""Settings of the libraries that search a hierarchy of graphs (HNSW)."""

LONGER, CELLS = ({"extra": extra} for extra in (0, 2, 4, 8)), ({"cells": cells} for cells in (1, 2, 4, 8))
BUILDERS = {
    "exact": _Builder("", "", ({},), (0,), lambda X: X, _exact),
    "shards": _Builder("", "", ({},), (0,), lambda context: context, _shards, in_memory),
    "pynndescent": _Builder("pynndescent", "pynndescent", tuple(LONGER), (0,), lambda X, extra: extra, _pynndescent),
    "faiss-ivf": _Builder("faiss-cpu", "faiss", tuple(CELLS), PROBES, _build_ivf, _search_faiss),
    "faiss-hnsw": _Builder("faiss-cpu", "faiss", LAYERED, SEARCHES, _build_faiss_hnsw, _search_faiss),
    "hnswlib": _Builder("hnswlib", "hnswlib", LAYERED, SEARCHES, _build_hnswlib, _search_hnswlib),
    "usearch": _Builder("usearch", "usearch", LAYERED, SEARCHES, _build_usearch, _search_usearch),
}


def measure(
    data: Data, folder: Path, neighbors: int, builders: Sequence[str], recall: float, limit: float | None = None
) -> Iterator[Record]:
    """A record for each setting of each builder's index, then one of kind "cheapest" for the builder.

    Each setting builds an index and looks up the neighbours of all samples, first in a process that has compiled
    nothing (``first_seconds``), then again (``seconds``); the difference is ``compile_seconds``. If its recall is too
    low, the search alone is repeated with more effort until it is not, or none is left. The cheapest is the setting of
    the fewest seconds that has reached the recall; where none has, that of the highest recall. As it is the least of
    several timings, chance favours the libraries that have many settings. Ours have one. Every time holds the check of
    the candidates that a run makes; ours by shards holds the measurement of the recall that it is refined by. A builder
    whose package is missing is named and left out.
    """
    job = {"neighbors": neighbors, "recall": recall, **_truth(data, neighbors, folder)}
    for name in builders:
        shape: Record = {"data": data.name, "m": data.m, "f": data.f, "neighbors": neighbors, "builder": name}
        if BUILDERS[name].missing:
            outcome = f"skipped: {BUILDERS[name].package} is not installed"
            yield {**shape, "kind": "cheapest", "outcome": outcome, "seconds": None}
            continue
        tried: list[Record] = []
        for at, settings in enumerate(BUILDERS[name].builds):
            ended = work_apart(__name__, {**job, "builder": name, "build": at}, folder, limit, cold=True)
            build = ", ".join(f"{name}={value}" for name, value in settings.items()) or None
            how: Record = {"build": build, "threads": usable_cores(), "outcome": ended.word}
            tried.append({**shape, **how, "seconds": None, **ended.answer, "peak_bytes": ended.peak_bytes})
            yield {"kind": "tried", **tried[-1]}
        yield {"kind": "cheapest", **cheapest(tried)}


def cheapest(tried: Sequence[Record]) -> Record:
    """Of the settings of one builder that of the fewest seconds with the recall; else that of the highest recall."""
    there = [record for record in tried if record["seconds"] is not None]
    reached = [record for record in there if record["reached"]]
    if reached:
        return min(reached, key=lambda record: float(str(record["seconds"])))
    return max(there, key=lambda record: float(str(record["recall"])), default=tried[0])


def _truth(data: Data, n: int, folder: Path) -> dict[str, str]:
    """Files of the centred X, and of the distance to the n-th neighbour for each row that recall is measured on."""
    X = centred(np.load(data.X))
    rows = kernel.recall_rows(len(X), SEED)
    with threads(usable_cores()):
        reach = kernel.nearest_in(X[rows], rows, X, n - 1)[1][:, -1]
    files = {"X": str(folder / "centred.npy"), "reach": str(folder / "reach.npy")}
    np.save(files["X"], X)
    np.save(files["reach"], reach)
    return files


def work(job: Mapping[str, Any]) -> Record:
    """One setting (its position in `Builder.builds`) of a builder, in a process of its own."""
    builder = BUILDERS[job["builder"]]
    settings = builder.builds[job["build"]]
    X, reach, n = np.load(job["X"]), np.load(job["reach"]), job["neighbors"]
    if builder.module:  # its import and what compiles to check its answers is not the library's time
        importlib.import_module(builder.module)
        _settled(X[:2], np.array([[0, 1], [0, 1]]), 2)
    first = sum(_once(builder, settings, X, n)[1:3])
    lists, build, search, index = _once(builder, settings, X, n)
    effort, compiling = builder.efforts[0], max(0.0, first - build - search)
    for more in builder.efforts[1:]:
        if _recall(lists, reach) >= job["recall"]:
            break
        effort, begun = more, time.perf_counter()
        lists = builder.search(index, X, n, effort)
        search = time.perf_counter() - begun
    reached = _recall(lists, reach)
    return {
        **{"seconds": build + search, "build_seconds": build, "search_seconds": search, "first_seconds": first},
        **{"compile_seconds": compiling, "recall": reached, "reached": reached >= job["recall"], "effort": effort},
    }


def _once(
    builder: _Builder, settings: Mapping[str, int], X: Float32, n: int
) -> tuple[_NeighborLists, float, float, Any]:
    """Lists at the first effort, seconds of build and of search, and the index."""
    prepared, begun = builder.prepare(X, n), time.perf_counter()
    index = builder.build(prepared, **settings)
    built = time.perf_counter()
    lists = builder.search(index, X, n, builder.efforts[0])
    return lists, built - begun, time.perf_counter() - built, index


def _recall(lists: _NeighborLists, reach: Float32) -> float:
    """Recall on the sampled rows, which are renumbered if the builder has renumbered the samples."""
    rows = kernel.recall_rows(len(lists.distances), SEED)
    if lists.order is not None:
        rank = np.empty(len(lists.order), np.int64)
        rank[lists.order] = np.arange(len(lists.order))
        rows = rank[rows]
    return kernel.recall(lists.distances[rows], reach)

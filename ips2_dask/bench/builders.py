"""Builders of the nearest-neighbour graph: ours, and other libraries', all ending with lists that a run could use."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import approximate
from ips2_dask.kernels.neighbors import exact_neighbors, refine_candidates
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan.plan import make_plan
from ips2_dask.progress import Reporter, Silent
from ips2_dask.readers import open_source
from ips2_dask.stages import ingest, sharding
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import MemoryStore

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

SEED = 0
QUIET = Reporter(Silent(), "")


class Lists(NamedTuple):
    """The n nearest of each sample, itself first, by (distance, id); ``order`` as of `Context.order`."""

    indices: Int32  # (m, n)
    distances: Float32  # (m, n)
    order: Int32 | None = None  # the given number of each sample, where the builder renumbered them


class Builder(NamedTuple):
    """How a library builds the graph.

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
        From index, X, n and effort to `Lists`.
    prepare : callable
        From X to what ``build`` is given instead, not timed.
    """

    package: str
    module: str
    efforts: tuple[int, ...]
    build: Callable[..., Any]
    search: Callable[[Any, Float32, int, int], Lists]
    prepare: Callable[[Float32, int], Any] = lambda X, _: X

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None


def warm_up(module: str, X: Float32) -> None:
    """Import a library, and compile what checks its answers: neither is the library's time."""
    importlib.import_module(module)
    _settled(X[:2], np.array([[0, 1], [0, 1]]), 2)


def _settled(X: Float32, candidates: Any, n: int) -> Lists:
    """Lists of whatever a library found, checked and measured as a run does it."""
    with threads(usable_cores()):
        indices, distances, _ = refine_candidates(X, np.ascontiguousarray(candidates, np.int32), n)
    return Lists(indices, distances)


def _nothing(prepared: Any) -> Any:
    return prepared


def _exact(_: Any, X: Float32, n: int, effort: int) -> Lists:
    del effort
    with threads(usable_cores()):
        return Lists(*exact_neighbors(X, 0, X, n))


def _pynndescent(_: Any, X: Float32, n: int, effort: int) -> Lists:
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


def _shards(context: Context, X: Float32, n: int, effort: int) -> Lists:
    """The sharded graph, its recall measured and refined, as the neighbors stage makes it in one process."""
    del X, effort
    with threads(usable_cores()):
        facts, whole = sharding.run(context, SerialExecutor(), QUIET)
        adopted = sharding.adopted(context, facts)
        indices, distances = (adopted.read_all("neighbors", name)[:, :n] for name in ("indices", "distances"))
    return Lists(indices, distances * np.float32(adopted.unit), whole["order"])


def _build_ivf(X: Float32) -> Any:
    import faiss  # noqa: PLC0415  optional

    m, f = X.shape
    cells = max(1, min(int(4 * np.sqrt(m)), m // 39))  # faiss asks for 39 training rows a cell
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(f), f, cells)
    index.train(X)
    index.add(X)
    return index


def _search_ivf(index: Any, X: Float32, n: int, effort: int) -> Lists:
    index.nprobe = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_faiss_hnsw(X: Float32) -> Any:
    import faiss  # noqa: PLC0415  optional

    index = faiss.IndexHNSWFlat(X.shape[1], 16)
    index.hnsw.efConstruction = 100
    index.add(X)
    return index


def _search_faiss_hnsw(index: Any, X: Float32, n: int, effort: int) -> Lists:
    index.hnsw.efSearch = effort
    return _settled(X, index.search(X, n)[1], n)


def _build_hnswlib(X: Float32) -> Any:
    import hnswlib  # noqa: PLC0415  optional

    index = hnswlib.Index(space="l2", dim=X.shape[1])
    index.init_index(max_elements=len(X), M=16, ef_construction=100, random_seed=SEED)
    index.add_items(X)
    return index


def _search_hnswlib(index: Any, X: Float32, n: int, effort: int) -> Lists:
    index.set_ef(effort)
    return _settled(X, index.knn_query(X, n)[0].astype(np.int64), n)


def _build_usearch(X: Float32) -> Any:
    from usearch.index import Index  # noqa: PLC0415  optional

    index = Index(ndim=X.shape[1], metric="l2sq", dtype="f32", connectivity=16, expansion_add=100)
    index.add(np.arange(len(X)), X)
    return index


def _search_usearch(index: Any, X: Float32, n: int, effort: int) -> Lists:
    index.expansion_search = effort
    found = index.search(X, n)
    keys = found.keys.astype(np.int64)
    keys[np.arange(n) >= np.asarray(found.counts)[:, None]] = -1  # places that it did not fill
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


def lists_of(name: str, X: Float32, n: int) -> Lists:
    """The graph by a builder at its first effort: for benchmarks that need one and do not measure it."""
    builder = BUILDERS[name]
    return builder.search(builder.build(builder.prepare(X, n)), X, n, builder.efforts[0])


LEAST_NEIGHBORS = N_AFFINITY_NEIGHBORS + 1
"""Columns of the graph of a run with the default k: the sample itself and five others."""

"""Levels of a graph in chunks are those of the same graph in one piece, wherever the tasks run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from scipy.spatial import cKDTree

from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import levels
from ips2_dask.kernels.parallel import threads
from ips2_dask.stages import chunk_levels
from ips2_dask.stages.chunk_levels import ChunkedGraph, CoarseChunk, Nodes, WholeGraph, chunk_of_rows

Array = npt.NDArray[Any]
BOUNDS = [0, 250, 300, 301, 640, 900]
SEED = 3


class Case:
    """A graph with its degrees and components; samples are numbered by the user in an order of their own."""

    def __init__(self, groups: int = 1, island: int = 0, isolated: int = 0, *, weighted: bool = False) -> None:
        m, k = BOUNDS[-1], 7
        rng = np.random.default_rng(0)
        group = np.arange(m) % groups
        group[:island] = groups
        X = rng.normal(size=(m, 2)) + np.column_stack([100 * group, np.arange(m) / 50])
        distance, N = cKDTree(X).query(X, k)
        values = np.exp(-(distance**2)) if weighted else np.ones_like(distance)
        i, j = np.repeat(np.arange(m), k), N.ravel()
        alone = np.zeros(m, np.bool_)
        alone[m - isolated :] = True
        kept = ~(alone[i] | alone[j]) | ((i == j) & (not weighted))
        A = sp.coo_array((values.ravel()[kept].astype(np.float32), (i[kept], j[kept])), shape=(m, m)).tocsr()
        A = sp.csr_array(A.maximum(A.T))
        A.sort_indices()
        self.A = sp.csr_array((A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)), shape=A.shape)
        self.degrees = np.asarray(A.sum(axis=1), np.float64).ravel()
        inside = (group < groups) & ~alone
        self.degrees[~inside] = 0
        self.count, label = sp.csgraph.connected_components(A[inside][:, inside], directed=False)
        self.label = np.zeros(m, np.int32)
        self.label[inside] = label
        self.samples = rng.permutation(m)

    def whole(self) -> levels.Graph:
        return levels.Graph(self.A, self.degrees, self.label, self.count, SEED, self.samples)

    def chunk(self, g: int) -> CoarseChunk:
        low, high = BOUNDS[g : g + 2]
        own = self.A[low:high]
        among = np.union1d(own.indices, np.arange(low, high))
        matrix = sp.csr_array(
            (own.data, np.searchsorted(among, own.indices).astype(np.int32), own.indptr), shape=(high - low, len(among))
        )
        nodes = Nodes(self.degrees[low:high], self.label[low:high], self.samples[low:high])
        return chunk_of_rows(matrix, among, nodes, BOUNDS, g)

    def chunked(self, executor: Executor | None = None) -> ChunkedGraph:
        executor = executor or SerialExecutor()
        chunks = [executor.submit(f"chunk-{g}", self.chunk, g) for g in range(len(BOUNDS) - 1)]
        return ChunkedGraph("graph", executor, BOUNDS, chunks, self.count, SEED)


CASES = {
    "plain": Case(),
    "weighted": Case(weighted=True),
    "components": Case(groups=3),
    "an island": Case(groups=2, island=20),
    "isolated nodes": Case(isolated=9),
    "rows without an entry": Case(isolated=9, weighted=True),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: BLAS sums in another order with another number of threads."""
    with threads(1):
        yield


@pytest.fixture(autouse=True)
def _small_graphs_have_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "COARSEST", 60)


def assembled(bounds: list[int], chunks: list[CoarseChunk]) -> Array:
    """The matrix whose rows are in chunks."""
    dense = np.zeros((bounds[-1], bounds[-1]))
    for g, chunk in enumerate(chunks):
        needed = {**chunk.needed, g: np.arange(bounds[g + 1] - bounds[g])}
        among = np.concatenate([bounds[h] + needed[h] for h in sorted(needed)])
        assert among[chunk.rows.first] == bounds[g] or bounds[g] == bounds[g + 1]
        dense[bounds[g] : bounds[g + 1], among] = chunk.rows.matrix.toarray()
    return dense


def test_the_coarse_graph_is_that_of_the_whole(case: Case) -> None:
    fine, chunked = case.whole(), case.chunked()
    coarse, other = fine.coarser(), chunked.coarser()
    assert coarse is not None
    assert isinstance(other, WholeGraph)
    nodes = [chunk.nodes for chunk in other._chunks]
    np.testing.assert_array_equal(np.concatenate([one.samples for one in nodes]), coarse._samples)
    np.testing.assert_array_equal(np.concatenate([one.label for one in nodes]), coarse._label)
    np.testing.assert_allclose(np.concatenate([one.degrees for one in nodes]), coarse._degrees, rtol=1e-12)
    np.testing.assert_array_equal(np.concatenate(chunked._aggregate), fine._aggregate)
    np.testing.assert_allclose(assembled(other._bounds, other._chunks), coarse._matrix.toarray(), rtol=1e-5)


def test_the_start_is_that_of_the_whole(case: Case) -> None:
    fine, chunked = case.whole(), case.chunked()
    one, other = levels.start(fine, 16, 8, SEED), levels.start(chunked, 16, 8, SEED)
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(other.values, one.values, atol=1e-5)
    np.testing.assert_allclose(other.residuals, one.residuals, atol=1e-4)
    alike(np.concatenate(other.y), one.y)


def alike(y: Array, z: Array) -> None:
    """Two orthonormal blocks have one span, but for what the last columns leave open."""
    np.testing.assert_allclose(y.T @ y, np.eye(y.shape[1]), atol=1e-4)
    assert np.linalg.svd(y.T @ z[:, :8], compute_uv=False).min() > 0.999


@pytest.mark.parametrize("name", ["plain", "weighted", "an island", "rows without an entry"])
def test_levels_may_be_in_chunks_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_levels, "WHOLE", 60)
    case, kinds = CASES[name], []
    for kind in (ChunkedGraph, WholeGraph):
        init = kind.__init__
        monkeypatch.setattr(
            kind, "__init__", lambda self, *a, init=init, **b: kinds.append(type(self).__name__) or init(self, *a, **b)
        )
    other = levels.start(case.chunked(), 16, 8, SEED)
    assert kinds == ["ChunkedGraph", "ChunkedGraph", "WholeGraph"]
    one = levels.start(case.whole(), 16, 8, SEED)
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(other.values[:8], one.values[:8], atol=1e-3)
    alike(np.concatenate(other.y), one.y)


def test_a_chunk_without_a_seed_has_no_coarse_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the chunk of one row; whether the level below is in chunks or not."""
    case = Case()
    chosen = next(s for s in range(100) if covers(case, BOUNDS[2], s))
    monkeypatch.setattr("test_chunk_levels.SEED", chosen)
    for most in (1000, 60):
        monkeypatch.setattr(chunk_levels, "WHOLE", most)
        other, one = levels.start(case.chunked(), 8, 4, chosen), levels.start(case.whole(), 8, 4, chosen)
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(other.values[:4], one.values[:4], atol=1e-3)


def covers(case: Case, node: int, seed: int) -> bool:
    graph = levels.Graph(case.A, case.degrees, case.label, case.count, seed, case.samples)
    coarse = graph.coarser()
    return coarse is not None and case.samples[node] not in coarse._samples


def test_a_graph_that_does_not_get_smaller_is_solved_in_chunks() -> None:
    """Pairs of nodes: none but them are similar, and each is a component."""
    case = Case()
    m = BOUNDS[-1]
    case.A = sp.eye_array(m, dtype=np.float32, format="csr")
    case.A = sp.csr_array((case.A.data, case.A.indices.astype(np.int32), case.A.indptr.astype(np.int32)), shape=(m, m))
    case.degrees, case.label, case.count = np.ones(m), np.zeros(m, np.int32), 1
    graph = case.chunked()
    assert graph.coarser() is None
    y, last = graph.solved(8, 4, SEED)
    np.testing.assert_allclose(last, 1, atol=1e-5)
    found = np.concatenate(y)
    np.testing.assert_allclose(found.T @ found, np.eye(8), atol=1e-4)


def test_a_small_graph_has_no_level_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "COARSEST", BOUNDS[-1])
    assert Case().chunked().coarser() is None


@pytest.mark.slow
@pytest.mark.parametrize("most", [1000, 60])
def test_workers_give_the_bits_of_one_process(
    most: int, dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_levels, "WHOLE", most)
    case, found = CASES["components"], []
    before = dask_executor.client.run(getattr, levels, "COARSEST")
    dask_executor.client.run(setattr, levels, "COARSEST", levels.COARSEST)  # one task solves all levels from some on
    try:
        for executor in (SerialExecutor(), dask_executor):
            start = levels.start(case.chunked(executor), 8, 4, SEED)
            assert start is not None
            arrays = (*executor.results(start.y), start.values, start.residuals)
            found.append([array.tobytes() for array in arrays])
    finally:
        dask_executor.client.run(setattr, levels, "COARSEST", *set(before.values()))
    assert found[0] == found[1]


def test_coefficients_of_components_are_summed_over_all_chunks() -> None:
    graph = CASES["components"].chunked()
    whole = CASES["components"].whole().space.known
    assert whole is not None
    vectors = np.concatenate([known.vector for known in graph.known])
    np.testing.assert_allclose(vectors, whole.vector, rtol=1e-12)
    assert sum(b - a for a, b in itertools.pairwise(BOUNDS)) == len(vectors)

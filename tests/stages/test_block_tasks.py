"""Block vectors as results of tasks: what arrays in one process give, with the same bits wherever the tasks run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import eigen
from ips2_dask.kernels.eigen import ArraySpace, Known
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import threads
from ips2_dask.kernels.sparse import normalized
from ips2_dask.stages import block_tasks
from ips2_dask.stages.block_tasks import Halo, Rows, TaskSpace
from ips2_dask.stages.chunk_levels import needed_rows

Array = npt.NDArray[Any]
BOUNDS = [0, 90, 91, 200, 280, 400]
"""One chunk has one row, and the last has no row in common with the first."""
COUNT = 2


def similarity() -> sp.csr_array:
    """Rows near in number are similar; the last 100 are a component of their own, and row 150 has no entry."""
    m = BOUNDS[-1]
    rng = np.random.default_rng(0)
    i = rng.integers(0, m, 2400)
    j = np.clip(i + rng.integers(-60, 61, 2400), 0, m - 1)
    kept = ((i < 300) == (j < 300)) & (i != 150) & (j != 150)
    A = sp.coo_array((rng.random(kept.sum()).astype(np.float32), (i[kept], j[kept])), shape=(m, m)).tocsr()
    A = sp.csr_array(A + A.T)
    A.sort_indices()
    return A


def known(A: sp.csr_array, low: int, high: int, volumes: Array | None = None) -> Known:
    root = np.sqrt(np.asarray(A.sum(axis=1), np.float64).ravel()[low:high])
    return Known(root, (np.arange(low, high) >= 300).astype(np.int32), COUNT, volumes)


def array_space() -> ArraySpace:
    A = similarity()
    return ArraySpace(MatrixOperator(normalized(A, np.asarray(A.sum(axis=1), np.float64).ravel())), known(A, 0, 400))


def task_space(executor: Executor, kind: type = np.int32) -> TaskSpace:
    A = similarity()
    L, m = normalized(A, np.asarray(A.sum(axis=1), np.float64).ravel()), BOUNDS[-1]
    volumes = known(A, 0, m).volume
    rows, needed, vectors = [], [], []
    for g, (low, high) in enumerate(itertools.pairwise(BOUNDS)):
        among = np.union1d(L[low:high].indices, np.arange(low, high))
        own = L[low:high]
        indices, indptr = np.searchsorted(among, own.indices).astype(kind), own.indptr.astype(kind)
        matrix = sp.csr_array((own.data, indices, indptr), shape=(high - low, len(among)))
        cuts = np.searchsorted(among, BOUNDS).tolist()
        rows.append(executor.share(Rows(matrix, cuts[g])))
        needed.append(executor.share(needed_rows(among, BOUNDS, g)))
        vectors.append(executor.share(known(A, low, high, volumes)))
    halo = Halo(executor, "test", BOUNDS, needed)
    assert 4 not in halo._sources[0]
    return TaskSpace("test", halo, rows, vectors, COUNT)


def gathered(space: TaskSpace, y: list[Any]) -> Array:
    return np.concatenate(space.halo.executor.results(y))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: BLAS sums in another order with another number of threads."""
    with threads(1):
        yield


@pytest.fixture(params=["whole", "rows"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other chunks' blocks as they are, and as the rows that are needed."""
    if request.param == "rows":
        monkeypatch.setattr(block_tasks, "SMALL", 0)
        monkeypatch.setattr(block_tasks, "WHOLE_FROM", 0)


def algebra(space: Any, y: Any, steps: list[Any]) -> list[Any]:
    """One of everything that a solver asks for; blocks first."""
    w = space.filter(space.deflate(space.recur(y, None, 1.0, 0.0, 0.0)), steps)
    product = space.apply(w)
    residuals = space.residuals(product, w, np.linspace(1, 2, 8))
    combined = space.recur(product, w, 0.5, -0.25, 2.0)  # w is given up
    narrow = space.rotate(combined, np.random.default_rng(1).normal(size=(8, 3)))
    numbers = [space.gram(product, product), space.gram(product, narrow)]
    return [product, combined, narrow, numbers, residuals]


STEPS = eigen.chebyshev_steps(-1.0, 0.4, 1.0, 5)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_operations_agree_with_those_on_arrays(kind: type) -> None:
    arrays, tasks = array_space(), task_space(SerialExecutor(), kind)
    first = np.random.default_rng(0).standard_normal((400, 8), np.float32)
    chunks = [first[a:b].copy() for a, b in itertools.pairwise(BOUNDS)]
    *expected, numbers, residuals = algebra(arrays, first.copy(), STEPS)
    *found, found_numbers, found_residuals = algebra(tasks, chunks, STEPS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(gathered(tasks, one), other, atol=1e-4)
    for one, other in zip(found_numbers, numbers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found_residuals, residuals, rtol=1e-5)
    np.testing.assert_array_equal(np.concatenate(chunks), first), "tasks change no argument"


def test_known_vectors_are_taken_out() -> None:
    tasks = task_space(SerialExecutor())
    y = gathered(tasks, tasks.deflate(tasks.random(16, 0)))
    np.testing.assert_allclose(y, array_space().deflate(gathered(tasks, tasks.random(16, 0))), atol=1e-6)
    A = similarity()
    vectors = known(A, 0, 400).leading(COUNT)
    np.testing.assert_allclose(vectors.T @ y, 0, atol=1e-6)


def test_random_blocks_depend_on_the_seed_and_are_not_alike() -> None:
    tasks = task_space(SerialExecutor())
    one, again, other = (gathered(tasks, tasks.random(8, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(np.corrcoef(np.concatenate([one, other], axis=1).T) - np.eye(16)).max() < 0.3


def test_a_solve_finds_the_eigenvalues() -> None:
    A = similarity()
    space = task_space(SerialExecutor())
    solution = eigen.leading_eigenpairs(space, 4, space.random(16, 0), tol=1e-4)
    assert solution.verdict is eigen.Verdict.CONVERGED
    dense = normalized(A, np.asarray(A.sum(axis=1), np.float64).ravel(), np.float64).toarray()
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(values[:COUNT], 1)
    np.testing.assert_allclose(solution.values[:4], values[COUNT : COUNT + 4], atol=1e-6)
    y = gathered(space, solution.vectors)[:, :4]
    np.testing.assert_allclose(dense @ y, y * solution.values[:4], atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("columns", [8, 3])
def test_workers_give_the_bits_of_one_process(columns: int, dask_executor: DaskExecutor) -> None:
    found = []
    for executor in (SerialExecutor(), dask_executor):
        space = task_space(executor)
        y = eigen.orthonormalize(space, space.deflate(space.filter(space.random(columns, 0), STEPS)))
        y, values, residuals, _ = eigen.rayleigh_ritz(space, y)
        found.append([array.tobytes() for array in (gathered(space, y), values, residuals)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_filter_is_the_same_in_parts_that_are_sent_alone(
    dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = task_space(SerialExecutor())
    whole = gathered(space, space.filter(space.random(8, 0), STEPS))
    monkeypatch.setattr(block_tasks, "MOST_TASKS", 1)
    renewed: list[int] = []
    space = task_space(dask_executor)
    space._renewed = lambda name, blocks: renewed.append(len(blocks)) or blocks
    parts = gathered(space, space.filter(space.random(8, 0), STEPS))
    assert renewed == [2] * (len(STEPS) - 1)
    assert parts.tobytes() == whole.tobytes()


def test_the_number_of_tasks_of_a_product_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    submit = SerialExecutor.submit
    monkeypatch.setattr(
        SerialExecutor, "submit", lambda self, name, *more: sent.append(name) or submit(self, name, *more)
    )
    for small in (block_tasks.SMALL, 0):
        monkeypatch.setattr(block_tasks, "SMALL", small)
        space = task_space(SerialExecutor())
        y = space.random(8, 0)
        sent.clear()
        space.apply(y)
        assert len(sent) == space.halo.n_tasks
    assert space.halo.n_tasks > len(BOUNDS)

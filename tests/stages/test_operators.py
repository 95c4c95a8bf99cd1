"""An operator that is asked for is the one that is used, where block vectors are in chunks as well as in core."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from harness import run_on
from sklearn.metrics import adjusted_rand_score

from ips2_dask import Params, Run, open_run
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels.sparse import rows_between
from ips2_dask.plan.choices import choose
from ips2_dask.plan.plan import make_plan
from ips2_dask.stages import views

Array = npt.NDArray[Any]
OPERATORS = ("triplets", "matrix-free")


def groups(m: int = 150) -> tuple[Array, Array]:
    """Three groups that touch."""
    rng, y = np.random.default_rng(8), np.arange(m) % 3
    return rng.normal(size=(m, 4)) + 2.5 * np.eye(3, 4)[y], y


def found_with(operator: str, executor: Any = None, store: Path | None = None, k: int = 5, rows: int = 19) -> Run:
    params = Params(n_clusters=3, operator=operator, n_neighbors=k, tol=1e-5)
    return run_on(executor or SerialExecutor(), groups()[0], params, rows=rows, store=store, vectors="chunked")


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 7])
@pytest.mark.parametrize("operator", OPERATORS)
def test_chunks_of_any_operator_have_the_oracles_rows_and_degrees(operator: str, k: int) -> None:
    found = found_with(operator, k=k)
    assert found.manifest["choices"]["operator"] == operator
    assert found.manifest["choices"]["vectors"] == "chunked"
    d = reference.distances(groups()[0])
    N = reference.neighborhoods(d, k)
    pairs = reference.active_pairs(N)
    R = reference.restricted(reference.tensor(d, N, 1.0, 1e-4 * found.unit), pairs)
    np.testing.assert_array_equal(found.pairs, pairs)
    np.testing.assert_allclose(found.tensor().toarray(), R, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.degrees, reference.degrees(R, pairs), rtol=1e-4)
    x = np.random.default_rng(k).normal(size=(len(pairs), 3))
    for low, high in itertools.pairwise([0, 7, 50, 51, 120, 150]):  # of samples, whatever the partitions are
        near = views.near_pairs(found._context, low, high)
        span = np.flatnonzero((pairs[:, 0] >= low) & (pairs[:, 0] < high))
        np.testing.assert_array_equal(near.touched[near.own], span)
        np.testing.assert_array_equal(near.pairs, pairs[near.touched])
        product = near.operator.product(x[near.touched], np.ones(len(near.touched)))
        np.testing.assert_allclose(product, R[span] @ x, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_eigenvalues_in_chunks_are_those_of_the_oracle_and_labels_those_of_the_groups(operator: str) -> None:
    found = found_with(operator)
    d = reference.distances(groups()[0])
    N = reference.neighborhoods(d, 5)
    pairs = reference.active_pairs(N)
    R = reference.restricted(reference.tensor(d, N, 1.0, 1e-4 * found.unit), pairs)
    root = np.sqrt(reference.degrees(R, pairs))
    values = np.linalg.eigvalsh(R / root[:, None] / root)[::-1]
    np.testing.assert_allclose(found.eigenvalues, values[:3], atol=1e-5)
    assert adjusted_rand_score(groups()[1], found.labels) > 0.6


@pytest.mark.slow
def test_workers_give_the_bits_of_one_process(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    one, other = found_with("triplets", rows=40), found_with("triplets", dask_executor, tmp_path / "run", rows=40)
    for name in ("labels", "eigenvectors", "degrees", "eigenvalues"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


@pytest.mark.slow
def test_triplets_are_stored_by_partition_and_read_again(tmp_path: Path) -> None:
    found = found_with("triplets", store=tmp_path / "run")
    context = open_run(tmp_path / "run")._context
    entries = 0
    for b in range(context.n_partitions):
        rows, columns = (context.store.read(context.folders["tensor"], f"p{b:06d}", f"indices_{i}") for i in (0, 1))
        assert (rows <= columns).all()
        entries += len(rows) + np.count_nonzero(rows != columns)
    assert entries == found.tensor().nnz
    again = found_with("triplets", store=tmp_path / "run")
    assert all(stage["skipped"] for stage in again.manifest["stages"])


@pytest.mark.slow
def test_another_epsilon_in_one_directory_is_another_operator(tmp_path: Path) -> None:
    X = groups(60)[0]
    X[1:] *= 1e-4  # so that epsilon counts beside the distances

    def degrees(epsilon: float, store: Path | None) -> bytes:
        params = Params(n_clusters=3, operator="matrix-free", epsilon=epsilon)
        return run_on(SerialExecutor(), X, params, rows=15, store=store, vectors="chunked").degrees.tobytes()

    found = [degrees(epsilon, tmp_path / "run") for epsilon in (1e-4, 9.9e-4)]
    assert found == [degrees(epsilon, None) for epsilon in (1e-4, 9.9e-4)]
    assert found[0] != found[1]


def test_rows_of_a_symmetric_matrix_from_its_upper_triangle() -> None:
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((9, 9)) * (rng.random((9, 9)) < 0.4))
    rows, columns = (a.astype(np.int64) for a in np.nonzero(upper))
    dense = np.zeros((4, 9))
    i, j, values = rows_between(rows, columns, upper[rows, columns], 3, 7)
    dense[i, j] = values
    np.testing.assert_array_equal(dense, (upper + np.triu(upper, 1).T)[3:7])
    assert len(values) == np.count_nonzero(dense)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_a_plan_has_the_operator_that_is_asked_for(operator: str, vectors: str) -> None:
    params = Params(n_clusters=10, operator=operator)
    assert choose(50_000_000, 16, params, vectors="auto") == choose(50_000_000, 16, params, vectors="chunked")
    assert choose(50_000_000, 16, params).operator == operator
    assert choose(5_000, 16, params, vectors=vectors).operator == operator
    needed = {kind: make_plan(10**6, 16, Params(operator=kind), vectors="chunked") for kind in OPERATORS}
    assert needed["triplets"].disk_bytes > needed["matrix-free"].disk_bytes

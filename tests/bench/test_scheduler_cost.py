"""`notebooks/research/scheduler_cost.py`: the real scheduler with simulated workers; its counts, never its times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scheduler_cost as cluster
from simulated_workers import Solve, place_of

from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import levels, rounding
from ips2_dask.stages import block_tasks
from ips2_dask.stages.block_tasks import Halo, TaskSpace

WORKERS, CHUNKS, NEAR = 4, 8, 2


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("cluster")
    return {str(one["kind"]): one for one in cluster.measure(WORKERS, CHUNKS, NEAR, 4_000_000, 4, folder)}


@pytest.mark.slow
def test_all_solves_of_a_run_are_simulated(records: dict[str, dict[str, Any]]) -> None:
    assert list(records) == ["graph", "embedding", "walk", "all", "loss"]
    filter_products = levels.PRODUCTS + 1
    assert records["graph"]["products"] == filter_products
    most = filter_products + cluster.FILTERS * (levels.MOST_PRODUCTS + 1)
    assert (1 + cluster.FILTERS) * filter_products <= records["embedding"]["products"] <= most
    assert records["walk"]["products"] >= rounding.SPREAD_PRODUCTS + rounding.WALK
    solves = [records[kind] for kind in ("graph", "embedding", "walk")]
    for name in ("products", "tasks"):
        assert records["all"][name] == sum(one[name] for one in solves)
    assert records["all"]["scheduler_peak_bytes"] == max(one["scheduler_peak_bytes"] for one in solves) > 0
    assert records["all"]["scheduler_cpu"] > 0
    assert all(one["again"] == 0 for one in solves)


@pytest.mark.slow
def test_a_filter_sends_what_its_halo_says(records: dict[str, dict[str, Any]]) -> None:
    products = levels.PRODUCTS + 1
    of_chunks = 2 + 2 * 2 + 3 + 1 + 1  # deflate, Gram matrices and rotations, those of Ritz, residuals, the state
    tasks = CHUNKS * (products * (1 + NEAR) + of_chunks)
    assert tasks <= records["loss"]["tasks"] - records["loss"]["again"] <= tasks + CHUNKS


@pytest.mark.slow
def test_a_lost_worker_repeats_less_than_a_filter(records: dict[str, dict[str, Any]]) -> None:
    assert 0 <= records["loss"]["products_again"] < CHUNKS * (levels.PRODUCTS + 1)
    assert records["loss"]["products_again"] <= records["loss"]["again"]


@pytest.mark.slow
def test_gram_matrices_of_all_chunks_sum_up_to_what_a_solver_can_go_on_with(tmp_path: Path) -> None:
    """Through the scheduler and the client, as a run gets them."""
    solve = Solve(CHUNKS, 1000, NEAR, 8)
    with cluster.simulated_cluster(2, solve, tmp_path) as simulated:
        executor = DaskExecutor(simulated.client)
        bounds = [1000 * g for g in range(CHUNKS + 1)]
        handles = [executor.share(g) for g in range(CHUNKS)]
        space = TaskSpace("some", Halo(executor, "some", bounds, handles), handles, handles, 1)
        y = space.random(8, 0)
        np.testing.assert_allclose(space.gram(y, y), np.eye(8))
        values = np.diag(space.gram(y, space.apply(y)))
    assert (np.diff(values) < 0).all()
    assert 0 < values[-1] < values[0] < 1


def test_a_task_s_key_names_its_level_and_chunk() -> None:
    assert place_of("fused-2-product-17-0123abcd") == (2, 17)
    assert place_of("label-step-17-0123abcd") == (0, 17)
    assert place_of("share-context-0123abcd") == (0, 0)


def test_near_chunks_are_the_nearest_by_number() -> None:
    solve = Solve(10, 100, 4, 8)
    assert solve.near_to(5, 0) == [3, 4, 6, 7]
    assert solve.near_to(0, 0) == [1, 2, 3, 4]
    assert solve.near_to(9, 0) == [5, 6, 7, 8]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_workers_keep_the_scheduler_s_limits(tmp_path: Path) -> None:
    """The solves of a run of 100 million samples in the plan's 382 chunks."""
    found = {str(one["kind"]): one for one in cluster.measure(200, None, 20, 100_000_000, 20, tmp_path)}
    assert found["all"]["chunks"] == 191
    assert found["all"]["scheduler_cpu"] <= 150
    assert found["all"]["scheduler_peak_bytes"] <= 1 << 30


def test_tasks_that_are_sent_at_once_are_bounded() -> None:
    """The scheduler takes some 9 KB for each: less than a quarter of a GiB."""
    assert block_tasks.MOST_TASKS * 9_000 < 1 << 28


def test_sizes_that_no_run_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 near chunks of 4"):
        cluster.setting(100_000_000, 4, 4, 20, tmp_path)
    with pytest.raises(ValueError, match="has no levels"):
        cluster.setting(levels.COARSEST, 4, 2, 20, tmp_path)


def test_without_a_number_of_chunks_there_are_as_many_as_planned(tmp_path: Path) -> None:
    context, solve = cluster.setting(100_000_000, None, 20, 20, tmp_path)
    assert solve.chunks == 191
    assert 100_000_000 - solve.chunks < context.m <= 100_000_000

"""`ips2 bench cluster`: the real scheduler with simulated workers; its counts, never its times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import WorkerPlugin

from ips2_dask.bench import cluster, simulated_workers
from ips2_dask.bench.simulated_workers import FakeBlock, Solve
from ips2_dask.cli.main import main
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import eigen
from ips2_dask.plan import memory_chunked
from ips2_dask.stages import block_space, checkpoints
from ips2_dask.stages.resident_blocks import Gram

WORKERS, CHUNKS, NEAR = 4, 8, 2


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("cluster") / "out.json"
    options = {"workers": WORKERS, "chunks": CHUNKS, "near": NEAR, "products": 20, "samples": 1_000_000}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert main(["bench", "cluster", *words, "--json", str(file)]) == 0
    return {record["kind"]: record for record in json.loads(file.read_text())["results"]}


def test_a_whole_solve_is_simulated(records: dict[str, dict[str, Any]]) -> None:
    assert list(records) == ["filter", "solve", "loss"]
    assert records["solve"]["products"] >= 20
    for record in records.values():
        assert record["scheduler_cpu"] > 0
        assert 0 < record["most_tasks"] < 10 * WORKERS
        assert record["tasks_a_product"] == round(record["tasks"] / record["products"])


def test_a_filter_sends_a_task_a_worker_for_every_three_products(records: dict[str, dict[str, Any]]) -> None:
    rounds = -(-eigen.DEGREE // block_space.STEPS[0])
    gram = 1
    assert records["filter"]["tasks"] == WORKERS * (rounds + gram)


def test_a_lost_worker_repeats_at_most_what_followed_the_last_checkpoint(records: dict[str, dict[str, Any]]) -> None:
    lost, solve = records["loss"], records["solve"]
    assert lost["products"] == solve["products"]
    # besides what is between checkpoints a round is made again, or the products of Ritz values after the last one
    most = checkpoints.SHARE * lost["writing"] + 2 * block_space.STEPS[0]
    assert 0 < lost["redone"] <= most * lost["panels"]


def test_of_many_workers_a_lost_one_repeats_two_rounds(tmp_path: Path) -> None:
    """Each has copies of another one's blocks, so that a state need not be stored."""
    workers = memory_chunked.COPIED_FROM
    found = {one["kind"]: one for one in cluster.measure(workers, 2 * workers, 2, 20, 1_000_000, 4, tmp_path)}
    assert 0 < found["loss"]["redone"] <= 2 * block_space.STEPS[0]


@pytest.mark.slow
def test_two_hundred_workers_keep_the_scheduler_s_limits(tmp_path: Path) -> None:
    """A solve of 100 million samples in the plan's 382 chunks."""
    for record in cluster.measure(200, None, 38, 50, 100_000_000, 20, tmp_path):
        assert record["chunks"] == 382
        assert record["tasks_a_product"] <= 2 * 200 * record["panels"]
        assert record["most_tasks"] <= 60_000
        assert record["scheduler_bytes"] <= 1 << 30
        assert record["redone_share"] <= 0.05


@pytest.mark.parametrize("text", ["-1", "inf", "nan"])
def test_no_writing_takes_less_than_nothing(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cluster", "--writing", text]) == 2
    assert "--writing" in capsys.readouterr().err


def test_gram_matrices_of_all_chunks_sum_up_to_what_a_solver_can_go_on_with() -> None:
    blocks = simulated_workers.FakeBlocks(Solve(4, 8))
    blocks |= {"x": FakeBlock(8), "Lx": FakeBlock(8, True)}
    np.testing.assert_allclose(sum(blocks.result(Gram(("x",), ("x",))) for _ in range(4)), np.eye(8))
    values = np.diag(sum(blocks.result(Gram(("x",), ("Lx",))) for _ in range(4)))
    assert (np.diff(values) < 0).all()
    assert 0 < values[-1] < values[0] < 1


class _Nothing(WorkerPlugin):  # type: ignore[misc]
    """A plugin that does nothing."""


def test_simulated_workers_take_a_plugin_and_give_results_back(tmp_path: Path) -> None:
    chosen = cluster.setting(1_000_000, 4, 2, 4, tmp_path)
    with cluster.simulated_cluster(2, chosen, tmp_path) as (client, _):
        client.register_plugin(_Nothing(), name="nothing")
        space = block_space.ChunkedSpace(chosen.context, DaskExecutor(client), chosen.width)
        space.reopen()
        y = space.random(3, 0)
        np.testing.assert_allclose(space.gram(y, y), np.eye(3))


def test_more_near_chunks_than_there_are_others_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cluster", "--chunks", "4", "--near", "4"]) == 2
    assert "--near" in capsys.readouterr().err


def test_without_a_number_of_chunks_there_are_as_many_as_planned(tmp_path: Path) -> None:
    assert cluster.setting(100_000_000, None, 38, 20, tmp_path).chunks == 382

"""A cluster that has no worker any more, or none at work, is given up in one line and not waited for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from harness import run_on

from ips2_dask import Params, Resources, run
from ips2_dask.clusters.config import load
from ips2_dask.errors import Lost
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.failures import PATIENCE, Watch, losses, patience_of

X = np.random.default_rng(3).normal(size=(60, 4))
PARAMS = Params(n_clusters=3)


@pytest.fixture
def client() -> Iterator[Client]:
    """A cluster in this process that can lose its worker."""
    with (
        LocalCluster(n_workers=1, processes=False, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        yield made


def leave(client: Client) -> None:
    """Its worker goes, and none comes."""
    client.cluster.scale(0)
    while client.scheduler_info()["workers"]:
        client.cluster.sync(client.cluster._correct_state)


@pytest.mark.slow
def test_a_run_whose_workers_are_gone_ends_and_goes_on_when_there_are_others(client: Client, tmp_path: Path) -> None:
    executor = DaskExecutor(client, patience=2.0)
    leave(client)
    with pytest.raises(Lost, match=r"has had no worker for 2 s; every finished partition is kept.*start workers"):
        run_on(executor, X, PARAMS, 20, tmp_path / "run")
    client.cluster.scale(1)
    found = run_on(executor, X, PARAMS, 20, tmp_path / "run")
    np.testing.assert_array_equal(found.labels, run(X, PARAMS, Resources(partition_rows=20)).labels)


@pytest.mark.slow
def test_handles_whose_workers_are_gone_are_given_up(client: Client) -> None:
    executor = DaskExecutor(client, patience=2.0)
    leave(client)
    with pytest.raises(Lost, match="no worker for"):
        executor.results([executor.submit("one", abs, -1)])


def test_a_task_that_waited_without_a_worker_runs_on_any_that_comes(client: Client) -> None:
    executor = DaskExecutor(client)
    leave(client)
    handle = executor.submit("one", abs, -1)
    while not client.cluster.scheduler.tasks:
        time.sleep(0.01)
    client.cluster.scale(1)
    assert handle.result(timeout=20) == 1


@pytest.mark.slow
def test_workers_that_are_all_paused_are_no_workers_and_the_remedy_is_memory(client: Client) -> None:
    (address,) = client.scheduler_info()["workers"]
    client.cluster.sync(pause, client.cluster, address)
    handle = client.submit(abs, -1)
    with pytest.raises(Lost, match=r"all 1 have been paused.*memory_limit"), losses(client, 2.0, [handle]):
        client.gather([handle])


def test_of_many_workers_one_is_asked_for_its_state_as_long_as_it_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, identity = list[int](), client.cluster.scheduler.identity

    def counted(n_workers: int = -1) -> dict[str, object]:
        asked.append(n_workers)
        return identity(n_workers)

    monkeypatch.setitem(client.cluster.scheduler.handlers, "identity", counted)
    watch = Watch(client, 2.0, None)
    asked.clear()
    assert watch._missing(30) is None
    assert -1 not in asked
    (address,) = client.scheduler_info(n_workers=1)["workers"]
    client.cluster.sync(pause, client.cluster, address)
    missing = watch._missing(30)
    assert missing is not None
    assert "all 1 have been paused" in missing[0]
    assert -1 in asked


@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_is_not_waited_for_once_the_wait_is_in_vain(client: Client, gone: bool) -> None:
    def ends() -> None:
        if gone:
            client.close()
        else:
            watch.error = Lost("scheduler: it has not answered", "start another")

    timer = threading.Timer(0.2, ends)
    with pytest.raises(Lost, match="the connection is lost" if gone else "has not answered"), losses(client) as watch:
        waits(watch, timer)


def waits(watch: Watch, timer: threading.Timer) -> None:
    timer.start()
    watch.result(asyncio.sleep(3600))


def test_an_answer_and_its_error_arrive(client: Client) -> None:
    async def fails() -> None:
        raise TimeoutError("of its own")

    with losses(client) as watch:
        assert watch.result(asyncio.sleep(0, "answer")) == "answer"
        with pytest.raises(TimeoutError, match="of its own"):
            watch.result(fails())


async def pause(cluster: LocalCluster, address: str) -> None:
    """What Dask does to a worker whose memory is nearly full."""
    cluster.scheduler.handle_worker_status_change("paused", address, "test")


def test_who_sets_dasks_own_timeout_is_obeyed() -> None:
    assert (patience_of(), patience_of(7)) == (PATIENCE, 7)
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "12s"}):
        assert patience_of(7) == 12
    assert load("local").timeout == PATIENCE

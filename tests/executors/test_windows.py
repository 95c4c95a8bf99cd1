"""A job's tasks are sent in windows: few are known at a time, results come in order, and the first error counts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Future

from ips2_dask import Params
from ips2_dask.clusters import cluster
from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import Job
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.failures import Watch
from ips2_dask.executors.windows import WindowedGather
from ips2_dask.plan import tasks
from ips2_dask.plan.choices import choose
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import ZarrStore

SIZE, COUNT = 4, 80


class Report:
    """Receives progress, and calls a function with each."""

    def __init__(self, function: Any = lambda: None) -> None:
        self.seen: list[tuple[int, int]] = []
        self._function = function

    def __call__(self, done: int, total: int) -> None:
        self.seen.append((done, total))
        self._function()


@pytest.fixture(name="context")
def in_a_folder(tmp_path: Path) -> Context:
    params = Params()
    bounds = tuple(range(COUNT + 1))
    folders = {"ingest": "ingest-0123456789abcdef"}
    return Context(ZarrStore(str(tmp_path / "run")), params, bounds, 1, choose(COUNT, 1, params), folders)


@pytest.fixture(name="small", autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LEAST_IN_WINDOW", SIZE)
    monkeypatch.setattr(tasks, "WINDOW_TASKS_A_THREAD", 1)


def known(executor: DaskExecutor) -> int:
    return int(executor.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))


def numbered(context: Context, item: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    time.sleep(0.02)
    return {"statistics": np.zeros((6, 1))}, {"item": item}


@pytest.mark.parametrize("size", [SIZE, COUNT])
def test_the_scheduler_knows_a_few_windows_of_tasks_at_most(
    dask_executor: DaskExecutor, context: Context, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(tasks, "LEAST_IN_WINDOW", size)
    executor = DaskExecutor(dask_executor.client)
    before, seen = known(executor), []
    report = Report(lambda: seen.append(known(executor) - before))
    receipts = executor.map(Job("ingest", numbered), context, range(COUNT), report)
    assert [receipt["facts"]["item"] for receipt in receipts] == list(range(COUNT))
    assert [done for done, _ in report.seen] == list(range(COUNT + 1))
    if size == SIZE:
        assert max(seen) <= COUNT / 2  # two windows, and those that it has been told to forget but lately
    else:
        assert max(seen) > COUNT / 2


def test_the_first_error_in_order_is_raised_and_nothing_more_is_sent(
    dask_executor: DaskExecutor, context: Context
) -> None:
    def fails(context: Context, item: Any) -> Any:
        if item == 5:
            time.sleep(0.3)
        if item in (5, 6):
            raise ZeroDivisionError(item)
        return numbered(context, item)

    executor = DaskExecutor(dask_executor.client)
    with pytest.raises(ZeroDivisionError, match="5"):
        executor.map(Job("ingest", fails), context, range(COUNT), Report())
    assert 6 <= len(context.store.parts(context.folders["ingest"])) < COUNT / 2
    receipts = executor.map(Job("ingest", numbered), context, range(COUNT), Report())
    assert [receipt["facts"]["item"] for receipt in receipts] == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_result_that_was_lost_with_its_worker_is_computed_again(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    """Its worker dies when its task has ended and the result has not been fetched."""
    fetch, lost = WindowedGather._results_of, tmp_path / "lost"

    def kills(self: WindowedGather, futures: list[Future], watch: Watch) -> dict[Future, Any]:
        if futures and not lost.exists():
            lost.touch()
            for pid in client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)
        return fetch(self, futures, watch)

    def again(context: Context, item: Any) -> Any:
        if fails and item == 0 and lost.exists():
            raise ZeroDivisionError(item)
        return {}, {"item": item}

    monkeypatch.setattr(WindowedGather, "_results_of", kills)
    with cluster("local", workers=1) as client:
        executor, job = DaskExecutor(client), Job("ingest", again)
        if fails:
            with pytest.raises(ZeroDivisionError, match="0"):
                executor.map(job, context, range(SIZE), Report())
        else:
            receipts = executor.map(job, context, range(SIZE), Report())
            assert [receipt["facts"]["item"] for receipt in receipts] == list(range(SIZE))
    assert lost.exists()
    assert "Couldn't gather keys" not in capfd.readouterr().err


@pytest.mark.slow
def test_after_workers_died_their_tasks_are_tried_alone_and_the_rest_is_sent(context: Context, tmp_path: Path) -> None:
    def dies(context: Context, item: Any) -> Any:
        tries = tmp_path / f"tries-{item}"
        if item in (2, 3):
            with tries.open("a") as file:
                file.write(".")
            if tries.stat().st_size <= allowed + 1:  # of Dask's own tries none succeeds
                os.kill(os.getpid(), signal.SIGKILL)
        return numbered(context, item)

    with cluster("local", workers=1) as client:
        allowed = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures)
        executor = DaskExecutor(client)
        receipts = executor.map(Job("ingest", dies), context, range(COUNT), Report())
    assert [receipt["facts"]["item"] for receipt in receipts] == list(range(COUNT))


@pytest.mark.slow
def test_a_task_that_ends_every_worker_is_named_by_its_item(context: Context) -> None:
    def dies(context: Context, item: Any) -> Any:
        if item == "c00031":
            os.kill(os.getpid(), signal.SIGKILL)
        return numbered(context, item)

    with cluster("local", workers=1) as client:
        items = [f"c{i:05d}" for i in range(COUNT)]
        with pytest.raises(FatalTask, match="part x-c00031"):
            DaskExecutor(client).map(Job("ingest", dies, "x-", "cells"), context, items, Report())

"""A partition's blocks are read by the worker that wrote them if the store is local, and graphs hold nothing large."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import get_worker

from ips2_dask import Params, Resources, run
from ips2_dask.executors import dask as dask_executor
from ips2_dask.executors.base import Job, partition_item
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.placement import Placement
from ips2_dask.plan.choices import choose
from ips2_dask.progress import Progress, Reporter
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import ZarrStore

PARTS = 12


@pytest.fixture(name="executor")
def without_stealing(dask_executor: DaskExecutor) -> Iterator[DaskExecutor]:
    """An executor that knows of no owner, on a cluster whose idle workers take nothing from busy ones."""

    def stealing(on: bool) -> None:
        def turn(dask_scheduler: Any) -> None:
            extension = dask_scheduler.extensions["stealing"]
            dask_scheduler.loop.add_callback(extension.start if on else extension.stop)

        dask_executor.client.run_on_scheduler(turn)

    stealing(False)
    yield DaskExecutor(dask_executor.client)
    stealing(True)


@pytest.fixture(name="context")
def in_a_folder(tmp_path: Path) -> Context:
    params = Params()
    folders = {"ingest": "ingest-0123456789abcdef"}
    bounds = tuple(range(PARTS + 1))
    return Context(ZarrStore(str(tmp_path / "run")), params, bounds, 1, choose(PARTS, 1, params), folders)


def workers_of(executor: DaskExecutor, context: Context, prefix: str, **how: Any) -> list[str]:
    """Who does the tasks of a job."""

    def task(context: Context, item: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"statistics": np.zeros((6, 1))}, {"worker": get_worker().address}

    job, report = Job("ingest", task, prefix, **how), Reporter(Progress(), "ingest")
    return [receipt["facts"]["worker"] for receipt in executor.map(job, context, range(PARTS), report)]


def test_a_partition_stays_with_the_worker_that_wrote_it(executor: DaskExecutor, context: Context) -> None:
    first = workers_of(executor, context, "a-")
    assert len(set(first)) == 2
    assert workers_of(executor, context, "b-") == first
    assert workers_of(executor, context, "c-") == first
    assert [executor.placement.owner(partition_item(context, b)) for b in range(PARTS)] == first


def test_what_is_made_of_a_partition_is_made_by_its_worker(executor: DaskExecutor, context: Context) -> None:
    first = workers_of(executor, context, "a-")
    near = workers_of(
        executor, context, "d-", over="chunks", placed_with=lambda context, g: partition_item(context, PARTS - 1 - g)
    )
    assert near == first[::-1]
    assert workers_of(executor, context, "e-", over="chunks") == near


def test_an_owner_that_is_gone_keeps_nobody_from_the_work(executor: DaskExecutor, context: Context) -> None:
    executor.placement.use_store(context.store.location)
    items = [partition_item(context, b) for b in range(PARTS)]
    executor.placement.assign(items, ["tcp://127.0.0.1:9"] * PARTS)
    assert "tcp://127.0.0.1:9" not in workers_of(executor, context, "a-")


def test_a_store_that_all_reach_alike_binds_no_partition(
    executor: DaskExecutor, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "is_remote", lambda place: True)
    workers_of(executor, context, "a-")
    assert executor.placement.owner(partition_item(context, 0)) is None


def where_it_runs(seconds: float) -> str:
    time.sleep(seconds)  # a task that is worth stealing
    return str(get_worker().address)


def test_pinned_tasks_stay_with_their_owner_while_others_are_stolen(dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    address = min(executor.client.scheduler_info(n_workers=-1)["workers"])
    executor.placement.assign([("chunks", 0)], [address])
    executor.pin_to_owner(["pinned"])

    def places(name: str) -> set[str]:
        handles = [executor.submit(name, where_it_runs, 0.15, placed_with=("chunks", 0)) for _ in range(40)]
        return set(executor.results(handles))

    assert places("pinned-0") == {address}
    assert len(places("stolen-0")) == 2


def when_it_begins(seconds: float) -> float:
    begun = time.monotonic()
    time.sleep(seconds)
    return begun


def test_what_others_wait_for_goes_before_what_was_there_earlier(dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    address = min(executor.client.scheduler_info(n_workers=-1)["workers"])
    executor.placement.assign([("chunks", 0)], [address])
    executor.pin_to_owner(["queued"])
    busy = executor.submit("queued-0", when_it_begins, 1.0, placed_with=("chunks", 0))
    queued = [executor.submit("queued-0", when_it_begins, 0.05, placed_with=("chunks", 0)) for _ in range(6)]
    time.sleep(0.2)  # what is submitted within a tenth of a second is of one age, and of that the last goes first
    urgent = executor.submit("queued-0", when_it_begins, 0.05, placed_with=("chunks", 0), urgent=True)
    begun = executor.results([busy, *queued, urgent])
    assert sorted(begun)[:2] == [begun[0], begun[-1]]


def where_and_sum(*terms: Any) -> tuple[str, float]:
    return get_worker().address, sum(term if isinstance(term, float) else total(term) for term in terms)


def total(term: Any) -> float:
    return sum(map(total, term)) if isinstance(term, list) else float(term[1])


def test_what_is_sent_together_is_what_would_be_sent_one_by_one(dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    addresses = sorted(executor.client.scheduler_info(n_workers=-1)["workers"])
    items = [("chunks", 0), ("chunks", 1)]
    executor.placement.assign(items, addresses)
    executor.pin_to_owner(["summed"])
    earlier = executor.submit("summed-0", where_and_sum, 1.0, placed_with=items[1])
    with executor.batch():
        first = [
            executor.submit("summed-0", where_and_sum, earlier, float(g), placed_with=items[g % 2]) for g in range(4)
        ]
        last = executor.submit("summed-0", where_and_sum, first, 0.5, placed_with=items[0], urgent=True)
        anywhere = executor.submit("summed-0", where_and_sum, last)
        assert not last.done()
    *found, end, free = executor.results([*first, last, anywhere])
    assert found == [(addresses[g % 2], 1.0 + g) for g in range(4)]
    assert end == (addresses[0], 10.5)
    assert free[0] in addresses
    assert free[1] == 10.5


def test_what_was_to_be_sent_together_is_not_sent_after_an_error(dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    kept = []

    def interrupted() -> None:
        with executor.batch():
            kept.append(executor.submit("summed-0", where_and_sum, 1.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    after = executor.submit("summed-0", where_and_sum, 2.0)
    assert executor.results([after])[0][1] == 2.0
    assert kept[0].status == "pending"


def test_one_request_finds_the_holders_of_all_results_of_a_batch(
    dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = DaskExecutor(dask_executor.client)
    addresses = sorted(executor.client.scheduler_info(n_workers=-1)["workers"])
    items = [("chunks", g) for g in range(6)]
    executor.placement.assign(items, addresses * 3)
    executor.pin_to_owner(["summed"])
    earlier = [executor.submit("summed-0", where_and_sum, 1.0, placed_with=item) for item in items]
    executor.results(earlier)
    asked, who_has = [], executor.client.who_has
    monkeypatch.setattr(executor.client, "who_has", lambda futures: asked.append(len(futures)) or who_has(futures))
    with executor.batch():
        later = [executor.submit("summed-0", where_and_sum, 2.0, placed_with=handle) for handle in earlier]
    assert [address for address, _ in executor.results(later)] == addresses * 3
    assert asked == [6]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_items_are_assigned_in_even_ranges(count: int, dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    addresses = sorted(executor.client.scheduler_info(n_workers=-1)["workers"])
    items = [("chunks", g) for g in range(count)]
    numbers = executor.assign_owners(items, [3.0] * count)
    assert numbers == sorted(numbers)
    assert abs(numbers.count(0) - numbers.count(1)) <= 1
    assert [executor.placement.owner(item) for item in items] == [addresses[number] for number in numbers]


def test_items_are_assigned_while_the_client_asks_for_everything_but_the_workers(dask_executor: DaskExecutor) -> None:
    client = dask_executor.client
    asking = True

    async def ask() -> None:  # as a client does every two seconds
        while asking:
            await client._update_scheduler_info()

    asked = asyncio.run_coroutine_threadsafe(ask(), client.loop.asyncio_loop)
    try:
        found = [dask_executor.addresses() for _ in range(100)]
    finally:
        asking = False
        asked.result(10)
    assert all(found)


def test_heavy_items_count_for_more(dask_executor: DaskExecutor) -> None:
    executor = DaskExecutor(dask_executor.client)
    assert executor.assign_owners([("chunks", g) for g in range(7)], [5, 1, 1, 1, 1, 1, 1]) == [0, 1, 1, 1, 1, 1, 1]
    assert executor.assign_owners([("chunks", g) for g in range(5)], [1, 1, 1, 1, 4]) == [0, 0, 0, 0, 1]


def test_owners_of_another_store_or_numbering_are_not_asked(context: Context) -> None:
    placement = Placement()
    placement.use_store("here")
    placement.assign([partition_item(context, 0)], ["tcp://a:1"])
    assert placement.owner(partition_item(context, 0)) == "tcp://a:1"
    context.bounds = (0, 2, PARTS)
    assert placement.owner(partition_item(context, 0)) is None
    placement.use_store("there")
    context.bounds = tuple(range(PARTS + 1))
    assert placement.owner(partition_item(context, 0)) is None


@pytest.mark.parametrize("vectors", ["in-core", pytest.param("chunked", marks=pytest.mark.slow)])
def test_no_graph_that_is_sent_to_the_scheduler_holds_a_large_object(
    vectors: str, dask_executor: DaskExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ips2_dask.executors.dask.BATCH_BYTES", LARGE // 4)
    rng = np.random.default_rng(5)
    islands = 10 * rng.normal(size=(600, 12))  # each a component of its own: the solver deflates them all
    X = np.repeat(islands, 7, axis=0) + 0.01 * rng.normal(size=(4200, 12))
    assert X.nbytes > 6 * LARGE
    params, resources = Params(n_clusters=3), Resources(partition_rows=350, vectors=vectors)
    # in chunks a round has the coefficients of all components of its chunks: 600 x 24 float64 on one worker at most
    limit = LARGE if vectors == "in-core" else LARGE + 8 * 600 * 24
    assert limit < X.nbytes / 2
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": limit}), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(X, params, resources, store=tmp_path / "run", client=dask_executor.client)
    assert found.report()["components"] == 600


LARGE = 64_000
"""Bytes of a graph that are too many here; the largest of Dask's own graphs of this run has a third of it."""

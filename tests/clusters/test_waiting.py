"""A run waits for workers with enough memory, or says that they did not come, and keeps those that are there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from ips2_dask import BadInput, Params, Refused, Resources
from ips2_dask.clusters import kubernetes
from ips2_dask.clusters.config import load
from ips2_dask.clusters.connect import executor, wait_for_workers, with_least_workers
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.pipeline.prepare import Prepared, open_inputs, plan_run, prepare
from ips2_dask.pipeline.run import needed_bytes
from ips2_dask.plan.work import USABLE

GIB = 1 << 30


@pytest.fixture
def client() -> Iterator[Client]:
    """A cluster in this process of one worker with 1 GiB, which can get more."""
    with (
        LocalCluster(
            n_workers=1, processes=False, threads_per_worker=1, memory_limit=GIB, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        yield made


@pytest.mark.slow
def test_a_cluster_that_follows_the_work_keeps_the_workers_whose_memory_suffices(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.yaml"
    file.write_text("manager: local\nadaptive: {minimum: 1, maximum: 4}\nworker: {memory: 1GiB}\n")
    with executor(Resources(cluster=str(file)), shared(3 * GIB)) as found:
        assert found.n_workers == 3
        time.sleep(8)  # an idle cluster of this kind loses workers after five seconds or so
        assert found.n_workers == 3


@pytest.mark.parametrize(("total", "minimum"), [(1, 0), (3, 3), (9, 0)])
def test_the_least_number_of_workers_is_raised_to_what_a_run_needs(total: int, minimum: int) -> None:
    """Where all are too few the config stays, and the plan is refused before."""
    config = load({"manager": "slurm", "adaptive": {"minimum": 0, "maximum": 4}, "worker": {"memory": "1GiB"}})
    changed = with_least_workers(config, shared(total * GIB))
    assert changed.adaptive is not None
    assert (changed.adaptive.minimum, changed.adaptive.maximum) == (minimum, 4)


def shared(total: int) -> Any:
    """What each of some workers needs of so many bytes."""
    return lambda n, limit: int(USABLE * total) // n


def test_one_worker_is_enough_for_what_it_can_do_alone(client: Client) -> None:
    assert wait_for_workers(client, shared(GIB), 100, 60) == 1


def test_a_run_waits_until_the_memory_of_all_suffices(client: Client) -> None:
    seen = list[int]()

    def needed(n: int, limit: int | None) -> int:
        assert limit == GIB
        seen.append(n)
        if len(seen) == 1:
            threading.Timer(0.3, client.cluster.scale, [3]).start()
        return int(USABLE * 3 * GIB) // n

    assert wait_for_workers(client, needed, 100, 60) == 3
    assert seen[0] == 1


def test_all_that_were_asked_for_are_not_waited_beyond_and_must_have_the_memory(client: Client) -> None:
    with pytest.raises(Refused, match=r"each of the 1 may use 1\.00 GiB, 0\.9 of which .* needs 1\.01 GiB") as caught:
        wait_for_workers(client, lambda n, limit: int(1.01 * GIB), 1, 60)
    assert "\n" not in str(caught.value)


def test_of_workers_that_others_start_nobody_knows_how_many_will_come(client: Client) -> None:
    def needed(n: int, limit: int | None) -> int:
        client.cluster.scale(3)
        return int(USABLE * 3 * GIB) // n

    assert wait_for_workers(client, needed, None, 60) == 3
    with pytest.raises(BadInput, match=r"found 3 workers after 0\.3 s, which have 1\.00 GiB each"):
        wait_for_workers(client, shared(50 * GIB), None, 0.3)


def test_a_running_scheduler_s_workers_are_looked_at() -> None:
    asked = list[tuple[int, int | None]]()

    def needed(n: int, limit: int | None) -> int:
        asked.append((n, limit))
        return GIB // 2

    with LocalCluster(
        n_workers=3, processes=False, protocol="tcp", memory_limit=GIB, dashboard_address="127.0.0.1:0"
    ) as cluster:
        with executor(Resources(scheduler=cluster.scheduler_address), needed) as made:
            assert made.n_workers == 3
        assert asked == [(3, GIB)]


def test_workers_that_do_not_come_are_told_in_one_line(client: Client) -> None:
    line = r"timeout: found 1 of 20 workers after 0\.3 s, which have 1\.00 GiB each where so few need 36\.00 GiB"
    with pytest.raises(BadInput, match=line) as caught:
        wait_for_workers(client, shared(40 * GIB), 20, 0.3)
    assert "all together need 1.80 GiB each" in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_the_plan_says_what_so_many_workers_need() -> None:
    class Shaped:
        name, shape, resident_bytes = "a table", (10_000_000, 16), 0

    params, resources = Params(n_clusters=10), Resources(n_workers=20)
    plan = plan_run(Shaped(), params, resources)
    run = Prepared(None, params, resources, params, plan)  # type: ignore[arg-type]
    needed = needed_bytes([run])
    assert needed(20, None) == plan.worker_bytes
    assert needed(2, None) > needed(20, None)
    assert needed(2, 3 * GIB) <= USABLE * 3 * GIB < needed(2, None)  # results go to disk there


def test_a_small_run_waits_for_one_worker() -> None:
    resources = Resources(n_workers=2)
    prepared = prepare(open_inputs(np.eye(9)), Params(n_clusters=2), resources)
    assert needed_bytes([prepared])(1, None) < 2 * GIB


# ---- what keeps a cluster


def test_a_driver_that_works_alone_keeps_its_cluster_awake(client: Client) -> None:
    def transitions() -> int:
        return int(client.cluster.scheduler.transition_counter)

    def goes_on(before: int) -> bool:
        deadline = time.monotonic() + 60
        while transitions() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return transitions() != before

    with contextlib.ExitStack() as stack:
        kubernetes.keep_awake(client, 0.05, stack)
        assert goes_on(transitions())
        assert goes_on(transitions())
    thread = next((thread for thread in threading.enumerate() if thread.name == "ips2-awake"), None)
    if thread is not None:
        thread.join(60)
    assert not any(thread.name == "ips2-awake" for thread in threading.enumerate())


@pytest.mark.parametrize("seconds", [0, 300, 7200])
def test_a_timeout_of_kubernetes_is_none_or_long_enough_to_be_kept(seconds: int) -> None:
    given: dict[str, Any] = {"manager": "kubernetes", "insecure": True, "worker": {"memory": "4GiB"}}
    config = load({**given, "kubernetes": {"idle_timeout": seconds}})
    manifest: Any = kubernetes.cluster_manifest(config, "ips2-x")
    assert manifest["spec"]["idleTimeout"] == seconds
    job: Any = kubernetes.job_manifest(config, "ips2-x", ["x.zarr"])
    assert job["spec"]["cluster"]["spec"]["idleTimeout"] == 0  # the operator deletes it with the driver's pod


@pytest.mark.parametrize("seconds", [-1, 10, True, "600"])
def test_another_timeout_of_kubernetes_is_refused(seconds: object) -> None:
    given: dict[str, Any] = {"manager": "kubernetes", "worker": {"memory": "4GiB"}}
    with pytest.raises(BadInput, match=r"kubernetes\.idle_timeout.*0, or a whole number of at least 300"):
        load({**given, "kubernetes": {"idle_timeout": seconds}})
    assert load(given).machine.idle_timeout == 0  # type: ignore[union-attr]


def made(folder: Path, g: int) -> int:
    """A result, whose making leaves a file that nobody else has left."""
    (folder / str(g)).touch(exist_ok=False)
    return 10 * g


def test_results_of_a_worker_that_leaves_are_with_another_one(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, processes=False, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = DaskExecutor(client)
        handles = [executor.submit(f"made-{g}", made, tmp_path, g) for g in range(8)]
        executor.results(handles)
        leaving, staying = sorted(client.scheduler_info(n_workers=-1)["workers"])
        assert [leaving] in map(list, client.who_has(handles).values())
        client.retire_workers([leaving])  # as a worker does whose lifetime is over
        assert executor.results(handles) == [10 * g for g in range(8)]
        assert set(client.scheduler_info(n_workers=-1)["workers"]) == {staying}

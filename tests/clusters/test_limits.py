"""The memory that a config gives a worker and a driver is compared with the plan before anything starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Refused, Resources, run
from ips2_dask.clusters import limit_for_blocks, limits_of, load, memory_limits
from ips2_dask.clusters.limits import DRIVER_MEMORY, submitted_driver_memory
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.plan.memory import usable

GIB = 1 << 30
X = np.random.default_rng(0).normal(size=(90, 4))


def config(manager: str, **more: Any) -> dict[str, Any]:
    return {"manager": manager, "insecure": True, "worker": {"memory": "6GiB"}, **more}


@pytest.mark.parametrize("manager", ["local", "ssh", "slurm", "pbs", "lsf", "sge", "kubernetes"])
def test_a_worker_may_use_what_its_config_gives_it(manager: str) -> None:
    assert memory_limits(load(config(manager)))[:2] == (6 * GIB, None)


@pytest.mark.parametrize("manager", ["scheduler", "gateway"])
def test_nothing_is_known_of_workers_that_others_start(manager: str) -> None:
    assert memory_limits(load({"manager": manager})) == (None, None, None)


@pytest.mark.parametrize("manager", ["slurm", "pbs", "lsf", "sge", "kubernetes"])
def test_a_submitted_driver_may_use_what_its_job_has(manager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(config(manager, driver={"memory": "8GiB"}))
    assert submitted_driver_memory(found) == 8 * GIB
    monkeypatch.setenv(DRIVER_MEMORY, str(8 * GIB))  # as its job does
    assert memory_limits(found)[:2] == (6 * GIB, 8 * GIB)


def test_a_scheduler_s_pod_may_use_as_much_as_a_driver_s() -> None:
    assert memory_limits(load(config("kubernetes", driver={"memory": "8GiB"})))[2] == 8 * GIB
    assert memory_limits(load(config("slurm", driver={"memory": "8GiB"})))[2] is None  # it is in the driver


@pytest.mark.parametrize("manager", ["local", "ssh"])
def test_the_driver_of_other_managers_may_use_what_its_machine_has(manager: str) -> None:
    assert submitted_driver_memory(load({"manager": manager})) is None


def test_a_limit_of_each_process_is_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits_of(Resources()) == (None, None, None)
    assert limits_of(Resources(memory_limit=5)) == (5, 5, None)
    monkeypatch.setenv(DRIVER_MEMORY, "3")
    assert limits_of(Resources(memory_limit=5)) == (5, 3, None)
    assert limits_of(Resources()) == (None, 3, None)
    assert limits_of(Resources(scheduler="tcp://127.0.0.1:1")) == (None, 3, None)


def test_local_workers_without_a_limit_keep_blocks_in_half_of_the_machine_s_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ips2_dask.clusters.limits.usable_cores", lambda: 4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=24 * GIB))
    limit = limit_for_blocks(Resources(n_workers=2))
    assert limit is not None
    assert usable(limit) == pytest.approx(6 * GIB, abs=2)
    assert limit_for_blocks(Resources(n_workers=2, memory_limit=7 * GIB)) == 7 * GIB
    assert limit_for_blocks(Resources(n_workers=200)) is None  # workers of other machines, which are planned for
    assert limit_for_blocks(Resources(scheduler="tcp://127.0.0.1:1")) is None


def test_forty_million_samples_have_results_on_disk_on_a_machine_of_24_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ips2_dask.clusters.limits.usable_cores", lambda: 2)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=24 * GIB))
    blocks = []
    for m in (1_000_000, 40_000_000):
        source = SimpleNamespace(shape=(m, 16), name="a table", resident_bytes=0)
        blocks.append(plan_run(source, Params(n_clusters=10), Resources(n_workers=2, vectors="chunked")).blocks)
    assert blocks == ["memory", "disk"]


@pytest.mark.parametrize("role", ["worker", "driver"])
def test_a_run_that_its_workers_or_its_driver_could_not_hold_is_refused_before_it_starts(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(f"manager: slurm\ninsecure: true\nworker: {{memory: {'100MiB' if role == 'worker' else '4GiB'}}}\n")
    if role == "driver":
        monkeypatch.setenv(DRIVER_MEMORY, str(100 << 20))
    with pytest.raises(Refused, match=r"needs 0\.\d+ GiB"):
        run(X, Params(n_clusters=3), Resources(cluster=str(path)), store=tmp_path / "run", own_cluster=True)
    assert not (tmp_path / "run").exists()

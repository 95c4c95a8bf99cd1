"""The memory that a config gives a worker and a driver is compared with the plan before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Refused, Resources, run
from ips2_dask.clusters.config import DRIVER_MEMORY
from ips2_dask.clusters.resources import Machines, machines_of
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.plan.work import usable

GIB = 1 << 30
X = np.random.default_rng(0).normal(size=(90, 4))


def config(manager: str, **more: Any) -> dict[str, Any]:
    return {"manager": manager, "insecure": True, "worker": {"memory": "6GiB"}, **more}


def machines(tmp_path: Path, content: dict[str, Any], **given: Any) -> Machines:
    """The machines of a run with a config."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(content))
    return machines_of(Resources(cluster=str(path), **given))


@pytest.mark.parametrize("manager", ["local", "ssh", "slurm", "pbs", "lsf", "sge", "kubernetes"])
def test_a_worker_and_a_submitted_driver_may_use_what_their_config_gives_them(
    manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = config(manager)
    if manager not in ("local", "ssh"):
        content["driver"] = {"memory": "8GiB"}
    own = 8 * GIB if manager == "kubernetes" else None  # of the scheduler's pod, which is as large as a driver's
    assert machines(tmp_path, content).limits == (6 * GIB, None, own)
    monkeypatch.setenv(DRIVER_MEMORY, str(8 * GIB))  # as the job of a driver does
    assert machines(tmp_path, content).limits == (6 * GIB, 8 * GIB, own)
    assert machines(tmp_path, content, memory_limit="5GiB").limits == (5 * GIB, 5 * GIB, own)


@pytest.mark.parametrize("manager", ["scheduler", "gateway"])
def test_nothing_is_known_of_workers_that_others_start(manager: str, tmp_path: Path) -> None:
    found = machines(tmp_path, {"manager": manager})
    assert found == (1, (None, None, None), None, True)


@pytest.mark.parametrize(
    ("content", "n_workers", "apart"),
    [
        (config("local", workers=3), 3, False),
        (config("slurm"), 1, False),
        (config("sge", adaptive={"minimum": 0, "maximum": 7}), 7, False),
        (config("ssh", ssh={"hosts": ["a", "b", "c"], "processes": 2}), 4, True),
        (config("kubernetes", workers=5), 5, True),
    ],
)
def test_a_plan_knows_how_many_workers_come_and_where_the_scheduler_is(
    content: dict[str, Any], n_workers: int, apart: bool, tmp_path: Path
) -> None:
    found = machines(tmp_path, content)
    assert (found.n_workers, found.scheduler_apart) == (n_workers, apart)


def test_a_limit_of_each_process_is_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machines_of(Resources()).limits == (None, None, None)
    assert machines_of(Resources(memory_limit=5)).limits == (5, 5, None)
    monkeypatch.setenv(DRIVER_MEMORY, "3")
    assert machines_of(Resources(memory_limit=5)).limits == (5, 3, None)
    assert machines_of(Resources()).limits == (None, 3, None)
    assert machines_of(Resources(scheduler="tcp://127.0.0.1:1")).limits == (None, 3, None)


def test_local_workers_without_a_limit_keep_blocks_in_half_of_the_machine_s_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ips2_dask.clusters.resources.usable_cores", lambda: 4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=24 * GIB))
    limit = machines_of(Resources(n_workers=2)).blocks_limit
    assert limit is not None
    assert usable(limit) == pytest.approx(6 * GIB, abs=2)
    assert machines_of(Resources(n_workers=2, memory_limit=7 * GIB)).blocks_limit == 7 * GIB
    assert machines_of(Resources(n_workers=200)).blocks_limit is None  # of other machines, which are planned for
    assert machines_of(Resources(scheduler="tcp://127.0.0.1:1")).blocks_limit is None


def test_forty_million_samples_have_results_on_disk_on_a_machine_of_24_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ips2_dask.clusters.resources.usable_cores", lambda: 2)
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

"""What is lost on the way does not change the labels: a job, a worker process, the whole cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from processes import until
from s3_server import S3
from shell import Shell, Table, kill
from slurm_server import Slurm
from ssh_server import SSH

from ips2_dask import open_run
from ips2_dask.store.zarr_store import ZarrStore

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def stages(out: str) -> list[str]:
    """The stages that a run has done."""
    manifest = ZarrStore(out).get_document("manifest.json")
    return [] if manifest is None else [stage["name"] for stage in manifest["stages"]]


@pytest.mark.parametrize("manager", ["slurm", "sge"])
def test_a_worker_whose_job_is_cancelled_leaves_the_labels_as_they_are(
    manager: str, ips2: Shell, in_s3: S3, table: Table, request: pytest.FixtureRequest
) -> None:
    served, config = request.getfixturevalue(manager)
    out = in_s3.url(f"lost/{manager}")
    others = set(served.queue())
    started = ips2.where(served.environment).start("run", table.url, "--out", out, *table.options, "--cluster", config)
    try:
        until(lambda: "ingest" in stages(out), "no stage is done", 300)
        workers = sorted(set(served.queue("running")) - others)
        served.cancel(workers[0][0])
        assert "label" not in stages(out)
        _, said = started.communicate(timeout=600)
    finally:
        kill(started)
    assert started.returncode == 0, said
    np.testing.assert_array_equal(open_run(out).labels, table.labels)
    until(lambda: set(served.queue()) <= others, "jobs of workers are left")


def test_a_worker_that_is_killed_leaves_the_labels_as_they_are(
    ips2: Shell, in_s3: S3, ssh: tuple[SSH, Path], table: Table
) -> None:
    served, config = ssh
    out = in_s3.url("lost/kill")
    started = ips2.start("run", table.url, "--out", out, *table.options, "--cluster", config)
    try:
        until(lambda: "ingest" in stages(out), "no stage is done", 300)
        os.kill(_workers(served)[0], signal.SIGKILL)
        assert "label" not in stages(out)
        _, said = started.communicate(timeout=600)
    finally:
        kill(started)
    assert started.returncode == 0, said
    np.testing.assert_array_equal(open_run(out).labels, table.labels)


def _workers(served: SSH) -> list[int]:
    """The worker processes that nannies behind the server have started."""
    below = psutil.Process(served.pid).children(recursive=True)
    return [process.pid for process in below if any("spawn_main" in word for word in process.cmdline())]


def test_a_run_that_dies_on_this_machine_is_finished_on_a_cluster(
    ips2: Shell, in_s3: S3, slurm: tuple[Slurm, Path], table: Table
) -> None:
    served, config = slurm
    out = in_s3.url("lost/moved")
    command = ("run", table.url, "--out", out, *table.options)
    started = ips2.start(*command, "--workers", 2)
    try:
        until(lambda: "ingest" in stages(out), "no stage is done", 300)
    finally:
        kill(started)
    done = stages(out)
    assert "label" not in done
    ips2.where(served.environment)(*command, "--cluster", config)
    finished = open_run(out)
    np.testing.assert_array_equal(finished.labels, table.labels)
    assert [stage["name"] for stage in finished.manifest["stages"] if stage["skipped"]] == done

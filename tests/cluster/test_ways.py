"""Every way to a cluster gives the labels of a run in one process, from a table and to a run in an object store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until
from s3_server import S3
from sge_server import Sge
from shell import Shell, Table

from ips2_dask import cluster, open_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

BATCH = ("slurm", "sge")


@pytest.fixture(params=["local", "scheduler", "ssh", *BATCH], name="way")
def machines(request: pytest.FixtureRequest, ips2: Shell) -> tuple[Shell, list[Any]]:
    """A shell, and the options that say where the work is done."""
    if request.param == "local":
        return ips2, ["--workers", 2]
    served = request.getfixturevalue("tls" if request.param == "scheduler" else request.param)
    if request.param == "scheduler":
        return ips2, ["--scheduler", served.address, "--tls", served.certificates]
    server, config = served
    return (ips2.where(server.environment) if request.param in BATCH else ips2), ["--cluster", config]


def test_labels_are_the_same_whoever_computes_them(
    way: tuple[Shell, list[Any]], in_s3: S3, table: Table, request: pytest.FixtureRequest
) -> None:
    shell, where = way
    out = in_s3.url(f"ways/{request.node.callspec.id}")
    shell("run", table.url, "--out", out, *table.options, *where)
    np.testing.assert_array_equal(open_run(out).labels, table.labels)


@pytest.mark.parametrize("manager", ["ssh", *BATCH])
def test_a_started_worker_reaches_the_store(
    manager: str, ips2: Shell, in_s3: S3, request: pytest.FixtureRequest
) -> None:
    server, config = request.getfixturevalue(manager)
    shell = ips2.where(server.environment) if manager in BATCH else ips2
    said = shell("cluster", "check", config, "--start", "--store", in_s3.url("check"), "--json").stdout
    assert json.loads(said.splitlines()[-1])["amiss"] == []


@pytest.mark.parametrize("manager", BATCH)
def test_a_submitted_run_has_the_same_labels(
    manager: str, ips2: Shell, in_s3: S3, table: Table, request: pytest.FixtureRequest
) -> None:
    served, config = request.getfixturevalue(manager)
    shell, out = ips2.where(served.environment), in_s3.url(f"submitted/{manager}")
    job = shell("jobs", "submit", table.url, "--out", out, *table.options, "--cluster", config).stdout.split()[-1]
    assert _state(shell, job) in ("pending", "running")
    until(lambda: _state(shell, job) not in ("pending", "running"), f"{job} goes on", 600)
    assert _state(shell, job) == "done", shell("jobs", "logs", job).stdout
    assert f"{table.options[1]} clusters" in shell("jobs", "logs", job).stdout
    np.testing.assert_array_equal(open_run(out).labels, table.labels)
    until(lambda: not served.queue(), "jobs of workers are left")


@pytest.mark.parametrize("manager", BATCH)
def test_a_cancelled_submission_takes_its_workers_with_it_and_can_be_made_again(
    manager: str, ips2: Shell, in_s3: S3, table: Table, request: pytest.FixtureRequest
) -> None:
    served, config = request.getfixturevalue(manager)
    shell, out = ips2.where(served.environment), in_s3.url(f"cancelled/{manager}")
    command = ("jobs", "submit", table.url, "--out", out, *table.options, "--cluster", config)
    job = shell(*command).stdout.split()[-1]
    until(lambda: len(served.queue("running")) > 1, "no worker has been started")
    shell("jobs", "cancel", job)
    until(lambda: not served.queue(), "jobs are left")
    assert _state(shell, job) == "cancelled"
    again = shell(*command).stdout.split()[-1]
    until(lambda: _state(shell, again) not in ("pending", "running"), f"{again} goes on", 600)
    np.testing.assert_array_equal(open_run(out).labels, table.labels)


@pytest.mark.parametrize(("directive", "state"), [("-h", "pending"), ("-wd /nowhere", "pending (Eqw)")])
def test_a_driver_that_grid_engine_does_not_start_is_pending_and_can_be_cancelled(
    directive: str, state: str, ips2: Shell, sge: tuple[Sge, Path], tmp_path: Path
) -> None:
    served, config = sge
    held = tmp_path / "held.yaml"
    held.write_text(config.read_text().replace("sge: {", f'sge: {{directives: ["{directive}"], '))
    shell = ips2.where(served.environment)
    job = shell("jobs", "submit", "x.npy", "--out", "run", "--clusters", 5, "--cluster", held).stdout.split()[-1]
    until(lambda: _state(shell, job) == state, "it was started")
    shell("jobs", "cancel", job)
    assert _state(shell, job) == "cancelled"
    assert not served.queue()


def test_a_worker_whose_addresses_are_limited_may_use_its_memory(
    sge: tuple[Sge, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, config = sge
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    with cluster(config, workers=1) as client:
        held = client.submit(np.empty, int(0.89 * (2 << 30)), np.uint8)  # of a worker of 2 GiB, which spills above .9
        assert held.exception() is None
    until(lambda: not served.queue(), "a job is left")


def _state(shell: Shell, job: str) -> str:
    known = {entry["id"]: entry["state"] for entry in json.loads(shell("jobs", "--json").stdout)}
    return str(known[job])

"""A whole run handed to the first host of a cluster by SSH: its driver lives there, and is asked after by SSH."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from processes import until
from shell import Shell, groups
from ssh_server import SSH

from ips2_dask import Params, open_run, run
from ips2_dask.store.zarr_store import ZarrStore

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(params=["the same home", "homes of their own"], name="mine")
def this_machine(request: pytest.FixtureRequest, ips2: Shell, tmp_path: Path) -> Shell:
    """A shell whose records of jobs are where those of the host are, or elsewhere."""
    return ips2 if request.param == "the same home" else ips2.where({"IPS2_STATE": str(tmp_path / "mine")})


def entry(shell: Shell, job: str) -> dict[str, object]:
    """What ``ips2 jobs`` knows of a job."""
    return next(dict(row) for row in json.loads(shell("jobs", "--json").stdout) if row["id"] == job)


def recorded(shell: Shell, job: str) -> dict[str, Any]:
    """What is kept of a job here: a command that asks for it takes seconds, in which a run may come to its end."""
    return dict(json.loads(Path(shell.environment["IPS2_STATE"], "jobs", job, "job.json").read_text()))


def stages(out: Path) -> list[str]:
    """The stages that a run has done."""
    manifest = ZarrStore(str(out)).get_document("manifest.json")
    return [] if manifest is None else [stage["name"] for stage in manifest["stages"]]


def spawned(served: SSH) -> list[int]:
    """The processes of schedulers and workers behind the server."""
    below = psutil.Process(served.pid).children(recursive=True)
    return [process.pid for process in below if "distributed.cli" in " ".join(command(process))]


def command(process: psutil.Process) -> list[str]:
    """A process's command line; none where it has gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ended(shell: Shell, job: str) -> bool:
    """Whether a job has come to an end."""
    return entry(shell, job)["state"] not in ("pending", "running")


def test_the_driver_lives_on_the_host_and_its_labels_are_the_same(
    mine: Shell, ssh: tuple[SSH, Path], tmp_path: Path
) -> None:
    served, config = ssh
    X = groups(400)
    np.save(tmp_path / "x.npy", X)
    job = mine("jobs", "submit", "x.npy", "--out", "run", "--clusters", 5, "--cluster", config).stdout.split()[-1]
    known = entry(mine, job)
    assert known["native"]["by"] == "127.0.0.1"  # type: ignore[index]
    if known["state"] == "running":
        driver = psutil.Process(known["native"]["pid"])  # type: ignore[index]
        assert os.getsid(driver.pid) == driver.pid  # no session of the server's, which would end with the connection
        assert served.pid not in [parent.pid for parent in driver.parents()]
    assert "5 clusters" in mine("jobs", "logs", job, "--follow").stdout
    until(lambda: ended(mine, job), "the driver goes on")
    assert entry(mine, job)["state"] == "done"
    np.testing.assert_array_equal(open_run(tmp_path / "run").labels, run(X, Params(n_clusters=5)).labels)


def test_a_cancelled_driver_takes_its_workers_with_it_and_a_killed_one_is_continued(
    mine: Shell, ssh: tuple[SSH, Path], tmp_path: Path
) -> None:
    served, config = ssh
    np.save(tmp_path / "x.npy", groups(9000, 20))
    options = ("--clusters", 5, "--neighbors", 14, "--partition-rows", 1000, "--cluster", config)
    command = ("jobs", "submit", "x.npy", "--out", "run", *options)
    for end in ("jobs", "cancel", "kill"):
        job = mine(*command).stdout.split()[-1]
        until(lambda: bool(spawned(served)) and "ingest" in stages(tmp_path / "run"), "the first stage goes on")
        driver = psutil.Process(recorded(mine, job)["native"]["pid"])
        if end == "cancel":
            mine("jobs", "cancel", job)
        else:
            os.kill(driver.pid, signal.SIGKILL)
        until(lambda job=job: ended(mine, job), "the driver goes on")
        assert entry(mine, job)["state"] == {"cancel": "cancelled", "kill": "lost"}[end]
        until(lambda: not spawned(served), "workers are left")
    again = mine(*command).stdout.split()[-1]
    assert "there already" in mine("jobs", "logs", again, "--follow").stdout
    until(lambda: ended(mine, again), "the driver goes on")
    assert entry(mine, again)["state"] == "done"


def test_a_host_that_does_not_answer_is_named_and_its_jobs_are_said_to_be_there(
    ips2: Shell, ssh: tuple[SSH, Path], tmp_path: Path
) -> None:
    served, config = ssh
    nobody = tmp_path / "nobody.yaml"
    nobody.write_text(config.read_text().replace(f"port: {served.port}", "port: 1"))
    command = ("jobs", "submit", "x.npy", "--out", "run", "--clusters", 5, "--cluster")
    said = ips2(*command, nobody, status=2).stderr
    assert len(said.splitlines()) == 1
    assert "ssh.hosts" in said
    job = ips2(*command, config).stdout.split()[-1]
    record = Path(ips2.environment["IPS2_STATE"], "jobs", job)
    until(lambda: ended(ips2, job), "the driver goes on")
    assert entry(ips2, job)["state"] == "failed (2)"  # there is no x.npy
    (record / "exit.json").unlink()
    (record / "cluster.yaml").write_text(nobody.read_text())
    assert entry(ips2, job)["state"] == "on 127.0.0.1"

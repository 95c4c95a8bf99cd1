"""Submitted jobs: a detached driver does the run, its record says how it stands, and its death loses nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from ips2_dask import BadInput, open_run
from ips2_dask.cli.main import main
from ips2_dask.clusters.config import load
from ips2_dask.clusters.jobs import Job, cancel, find, jobs, log_lines, new, state, submit

DEADLINE = 120


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for each test."""
    monkeypatch.setenv("IPS2_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three groups."""
    X = np.random.default_rng(0).normal(size=(90, 4)) + 5 * (np.arange(90) % 3)[:, None]
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def submitted(capsys: pytest.CaptureFixture[str], *arguments: str) -> Job:
    """Submit a run by the command line; its last line is the id."""
    assert main(["jobs", "submit", *arguments]) == 0
    return find(capsys.readouterr().out.splitlines()[-1])


def test_a_record_is_for_its_owner_alone() -> None:
    assert stat.S_IMODE(new("local", ["run"], "out").folder.stat().st_mode) == 0o700


def test_a_submitted_run_goes_on_by_itself_and_is_done(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the paths of the command are the driver's too
    job = submitted(capsys, "x.npy", "--clusters", "3", "--out", "run", "--serial", "--seed", "1")
    assert os.getsid(job.native["pid"]) != os.getsid(0)
    elsewhere = dataclasses.replace(job, native={**job.native, "host": "far-away"})
    if job.exit_status is None:
        assert state(elsewhere) == "on far-away"
        with pytest.raises(BadInput, match="on far-away"):
            cancel(elsewhere)
    text = "".join(log_lines(job, follow=True))
    assert "3 clusters" in text
    until(lambda: state(job) != "running")
    assert state(job) == state(elsewhere) == "done"
    assert json.loads((job.folder / "exit.json").read_text())["status"] == 0
    assert not cancel(job).cancelled  # it has ended
    assert len(set(open_run(tmp_path / "run").labels.tolist())) == 3
    assert main(["jobs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["id"], row["state"], row["manager"]) == (job.id, "done", "local")
    assert main(["jobs", "logs", job.id[:-1]]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.slow
def test_a_driver_that_refuses_its_input_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = submitted(capsys, str(tmp_path / "none.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), "--serial")
    until(lambda: state(job) not in ("running", "pending"))
    assert state(job) == "failed (2)"
    assert "none.npy" in "".join(log_lines(job))


@pytest.mark.slow
def test_a_cancelled_driver_ends_its_workers_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "long.npy", np.random.default_rng(0).normal(size=(9000, 20)))
    out = str(tmp_path / "run")
    job = submitted(
        capsys,
        str(tmp_path / "long.npy"),
        "--clusters",
        "9",
        "--neighbors",
        "14",
        "--out",
        out,
        "--cluster",
        "local",
        "--workers",
        "1",
    )
    driver = psutil.Process(job.native["pid"])
    until(lambda: "ingest" in "".join(log_lines(job)))
    family = driver.children(recursive=True)
    assert family
    assert main(["jobs", "cancel", job.id]) == 0
    until(lambda: state(find(job.id)) not in ("running", "pending"))
    assert state(find(job.id)) == "cancelled"
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


@pytest.mark.slow
def test_a_killed_driver_is_lost_and_the_same_submission_continues_its_run(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(table), "--clusters", "3", "--out", str(tmp_path / "run"), "--serial"]
    first = submitted(capsys, *arguments)
    until(lambda: "1/7" in "".join(log_lines(first)))
    os.kill(first.native["pid"], signal.SIGKILL)
    until(lambda: state(first) != "running")
    if state(first) == "done":
        pytest.skip("the run was faster than the signal")
    assert state(first) == "lost"
    second = submitted(capsys, *arguments)
    text = "".join(log_lines(second, follow=True))
    until(lambda: state(second) == "done")
    assert "ingest    there already" in text
    assert [job.id for job in jobs()] == sorted([first.id, second.id])


def test_what_is_wrong_is_refused_before_anything_is_handed_over(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["jobs", "submit", str(table), "--clusters", "3", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--cluster", "slrm"]) == 2
    assert main([*arguments, "--sigma", "0"]) == 2
    assert main([*arguments, "--cluster", "slurm", "--tls", str(tmp_path)]) == 2
    assert "ips2 cluster certs" in capsys.readouterr().err
    assert not jobs()


def test_a_batch_system_that_is_not_there_leaves_no_record(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["jobs", "submit", str(table), "--clusters", "3", "--out", str(tmp_path / "run"), "--insecure"]
    (tmp_path / "pbs.yaml").write_text("manager: pbs\nworker: {memory: 1GiB}\n")
    assert main([*arguments, "--cluster", str(tmp_path / "pbs.yaml")]) == 2
    assert "`qsub`, which can't be run" in capsys.readouterr().err
    assert not jobs()


def test_an_unknown_job_is_bad_input() -> None:
    with pytest.raises(BadInput, match="ips2 jobs"):
        find("nothing")


def test_no_job_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs"]) == 0
    assert "none was submitted" in capsys.readouterr().out


ANSWERS = {
    "slurm": ("Submitted", {"PENDING\n": "pending", "RUNNING\n": "running", "": None}),
    "pbs": ("", {"    job_state = Q\n": "pending", "    job_state = R\n": "running", "    job_state = F\n": None}),
    "lsf": ("Job <", {"PEND\n": "pending", "USUSP\n": "running", "DONE\n": None}),
    "sge": (
        "",
        {
            f"job-ID prior\n{line}\n": state
            for line, state in {
                "    417 0.5 ips2 me Eqw 01/01": "pending (Eqw)",
                "    417 0.5 ips2 me hqw 01/01": "pending",
                "    417 0.5 ips2 me r 01/01": "running",
                "    418 0.5 ips2 me r 01/01": None,
            }.items()
        },
    ),
    "kubernetes": (
        "daskjob.kubernetes.dask.org/ips2-",
        {
            "status:": "pending",
            "status:ClusterCreated": "pending",
            "status:Running": "running",
            "status:Successful": "done",
            "status:Failed": "failed",
            "": None,
        },
    ),
}
"""What each system says before a job's number, and of what answer a job has which state."""


@pytest.mark.parametrize("manager", ANSWERS)
def test_a_job_of_a_system_is_submitted_asked_after_and_ended_by_its_commands(
    manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manager != "kubernetes":
        pytest.importorskip("dask_jobqueue")
    before, states = ANSWERS[manager]
    called: list[tuple[list[str], str | None]] = []

    def say(words: list[str], input: str | None = None, **more: object) -> subprocess.CompletedProcess[str]:  # noqa: A002
        called.append((words, input))
        return subprocess.CompletedProcess(words, 0, f"{before}417>\n" if input else answer, "")

    monkeypatch.setattr(subprocess, "run", say)
    namespace = {"kubernetes": {"namespace": "science"}} if manager == "kubernetes" else {}
    given = {"manager": manager, "insecure": True, "worker": {"memory": "1GiB"}, **namespace}
    answer = ""
    job = submit(["x.npy", "--out", "run"], load(given), None, "run")
    number = "417" if manager != "kubernetes" else f"{before}417>"
    assert job.native["job"].split()[0] == number
    assert called[-1][1] == (job.folder / "script").read_text()
    for answer, expected in states.items():  # noqa: B007 - `say` gives it
        assert state(job) == (expected or "lost")
    answer = next(iter(states))
    assert cancel(job).cancelled
    assert number in called[-1][0]
    assert all("--namespace=science" in words for words, _ in called) == (manager == "kubernetes")
    if manager != "kubernetes":
        job.log.write_text("a line\n")
        answer = list(states)[-1]
        assert list(log_lines(job, follow=True)) == ["a line\n"]

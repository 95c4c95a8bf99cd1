"""Every job of every stage survives a killed worker, three of four workers that leave, and a full disk.

The jobs are those in the code, so that a new one is tried without a word here. Each test is a run of the command in
processes of its own, which is stopped as a worker is about to store the job's first part. Labels are then those of an
undisturbed run bit for bit, and no part of another stage is made twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults.file_systems import SmallDisk
from faults.jobs import KINDS, JobName, jobs_in_code
from faults.scene import Scene, end_session, outside_workers, until

JOBS = jobs_in_code()
QUICK = {"tensor-chunk"}
"""Jobs whose fault is not left to the long tests."""


class Undisturbed(dict[str, Scene]):
    """A run of each kind to which nothing happens, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, kind: str) -> Scene:
        folder = self._folder / kind
        folder.mkdir()
        KINDS[kind].write(folder / "x.npy")
        options, _, bounds = KINDS[kind]
        self[kind] = Scene(folder / "scene", folder / "x.npy", *options, bounds=bounds)
        self[kind].complete()
        return self[kind]

    def kind_with(self, job: JobName) -> str:
        """The first kind of run that has a job."""
        for kind in KINDS:
            if any(line.what == "wrote" and job.is_of(line.name) for line in self[kind].log):
                return kind
        raise LookupError(f"no kind of run in tests/faults/jobs.py has {job}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


class Case:
    """A job, a run of a kind that has it, and the same run without a fault."""

    def __init__(self, job: JobName, undisturbed: Undisturbed, folder: Path) -> None:
        kind = undisturbed.kind_with(job)
        self.job, self.expected = job, undisturbed[kind]
        options, _, bounds = KINDS[kind]
        self.scene = Scene(folder, self.expected.source, *options, bounds=bounds)

    def arm(self, do: str = "wait") -> None:
        self.scene.arm(f"write {self.job.pattern}", do)

    def assert_nothing_is_lost(self) -> None:
        """Equal labels, and of other stages no part that a worker made twice."""
        np.testing.assert_array_equal(self.scene.labels, self.expected.labels)
        assert any(line.what == "reached" for line in self.scene.log)
        others = {name for name in self.scene.repeated() if name.partition("/")[0] != self.job.stage}
        assert not others


@pytest.fixture
def case(request: pytest.FixtureRequest, undisturbed: Undisturbed, tmp_path: Path) -> Iterator[Case]:
    made = Case(request.param, undisturbed, tmp_path)
    yield made
    made.scene.close()


each_job = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            job,
            id=job.label,
            marks=[pytest.mark.timeout(900), pytest.mark.faults if job.label in QUICK else pytest.mark.long],
        )
        for job in JOBS
    ],
    indirect=True,
)
every_job = pytest.mark.parametrize(
    "case",
    [pytest.param(job, id=job.label, marks=[pytest.mark.timeout(900), pytest.mark.long]) for job in JOBS],
    indirect=True,
)


def test_the_jobs_in_the_code_are_found() -> None:
    found = {job.label for job in JOBS}
    assert {"ingest-statistics", "neighbors-shard", "tensor-pairs", "eigen-sums", "fuse-fused"} <= found
    assert JobName("neighbors", "").is_of("neighbors/p000001")
    assert not JobName("neighbors", "").is_of("neighbors/search-p000001")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_job_in_the_code_is_in_some_kind_of_run(undisturbed: Undisturbed) -> None:
    without = []
    for job in JOBS:
        try:
            undisturbed.kind_with(job)
        except LookupError:
            without.append(job.label)
    assert not without


@each_job
def test_a_worker_that_is_killed_in_a_job_is_replaced(case: Case) -> None:
    case.arm()
    process = case.scene.start()
    pid = case.scene.reached(process)
    assert pid != process.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid) or len(case.scene.workers(process)) == 2, "another worker")
    case.scene.go()
    assert case.scene.end(process) == (0, "")
    case.assert_nothing_is_lost()


@every_job
def test_a_job_goes_on_with_one_of_four_workers(case: Case) -> None:
    case.arm()
    with outside_workers(case.scene, 4) as (address, pool):
        process = case.scene.start("--scheduler", address, workers=False)
        there = case.scene.reached(process)
        assert there != process.pid
        session = os.getsid(there)  # who came there is among those that leave
        leaving = [*(one for one in pool if one.pid == session), *(one for one in pool if one.pid != session)][:3]
        for worker in leaving:
            end_session(worker)
        case.scene.go()
        assert case.scene.end(process) == (0, "")
    case.assert_nothing_is_lost()


@every_job
def test_a_job_whose_disk_is_full_is_said_and_goes_on_when_there_is_room(case: Case, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        case.scene.out = disk.path / "run"
        case.arm("fill")
        process = case.scene.start(IPS2_TEST_FILLER=str(disk.filler))
        case.scene.reached(process)
        status, said = case.scene.end(process)
        assert status == 1, said
        assert len(said.splitlines()) == 1, said
        assert str(disk.path) in said
        assert "Remedy: " in said
        disk.filler.unlink()
        case.scene.complete()
        case.assert_nothing_is_lost()

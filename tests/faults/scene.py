"""Runs of the command in processes of their own, stopped or harmed at a point that a test chooses, and their log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from ips2_dask import open_run

HOOK = Path(__file__).parent / "hook"
DEADLINE = 150.0
OPTIONS = ["--clusters", "8", "--partition-rows", "50", "--seed", "3", "--quiet"]


class Line(NamedTuple):
    """Something that a process of a run said."""

    pid: int
    what: str
    name: str


def write_input(path: Path) -> Path:
    """A cloud without groups, so that the solve takes some cycles: (300, 10)."""
    np.save(path, np.random.default_rng(7).normal(size=(300, 10)))
    return path


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """What a condition gives once it is true; fails after a while."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.01)
    return found


def family(session: int) -> list[psutil.Process]:
    """Living processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Scene:
    """A run directory, the log of all that was done for it, and the commands that work on it.

    Parameters
    ----------
    folder, source, out : Path
    *options : str
        Of the command.
    bounds : mapping of str to int
        Constants of the package's modules, as ``stages.sharding.MOST_BATCHES``, and what they are in all processes.
    """

    def __init__(
        self,
        folder: Path,
        source: Path,
        *options: str,
        out: Path | None = None,
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        self.folder, self.source, self.options = folder, source, options
        self.bounds = json.dumps(dict(bounds or {}))
        self.out = folder / "run" if out is None else out
        self.control = folder / "control"
        self.control.mkdir(parents=True)
        self._sessions: list[subprocess.Popen[str]] = []
        self._failed_at: int | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of processes that are watched."""
        path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ,
            "PYTHONPATH": path,
            "IPS2_TEST_FAULT": str(self.control),
            "IPS2_TEST_BOUNDS": self.bounds,
            **more,
        }

    def spawn(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """A Python process in a session of its own."""
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._sessions.append(process)
        return process

    def arm(self, at: str, do: str = "wait", after: int = 0, past: str = "") -> None:
        """Have something done at an event's ``after`` + 1st time, counted once the part ``past`` is stored."""
        (self.control / "fault.json").write_text(json.dumps({"at": at, "do": do, "after": after, "past": past}))

    def start(self, *options: str, workers: bool = True, **more: str) -> subprocess.Popen[str]:
        """The command, on a local cluster of two workers where nothing else is said."""
        machine = ["--workers", "2"] if workers else []
        command = ["-m", "ips2_dask.cli", "run", str(self.source), "--out", str(self.out)]
        return self.spawn(*command, *OPTIONS, *self.options, *machine, *options, **more)

    def reached(self, process: subprocess.Popen[str]) -> int:
        """The process that came to the armed event, which may wait there."""

        def look() -> bool:
            assert process.poll() is None or (self.control / "reached").exists(), process.communicate()
            return (self.control / "reached").exists()

        until(look, "the point of the fault")
        return int((self.control / "reached").read_text())

    def go(self) -> None:
        """Let who waits go on."""
        (self.control / "go").touch()

    def workers(self, process: subprocess.Popen[str]) -> list[int]:
        """Worker processes of a command's local cluster, the oldest first."""
        found = [p for p in family(process.pid) if any("spawn_main" in word for word in p.cmdline())]
        return [p.pid for p in sorted(found, key=lambda p: p.create_time())]

    def end(self, process: subprocess.Popen[str], seconds: float = DEADLINE) -> tuple[int, str]:
        """Exit status and standard error of a command, whose workers must be gone soon after."""
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            process.kill()
            raise AssertionError(f"it did not end: {process.communicate()[1]}") from None
        until(lambda: not family(process.pid), f"the end of {family(process.pid)}", 30)
        if process.returncode and self._failed_at is None:
            self._failed_at = len(self.log)
        return process.returncode, said

    def complete(self, cluster: bool = False) -> None:
        """Run the same command to its end; in one process unless a cluster is asked for, as no label depends on it."""
        (self.control / "fault.json").unlink(missing_ok=True)
        status, said = self.end(self.start() if cluster else self.start("--serial", workers=False))
        assert status == 0, said

    @property
    def log(self) -> list[Line]:
        """All that the run's processes said, in order."""
        path = self.control / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Line(int(pid), what, name) for pid, what, name, *_ in (line.split() for line in lines)]

    def count(self, what: str, name: str) -> int:
        """How often something was said."""
        return sum((line.what, line.name) == (what, name) for line in self.log)

    def repeated(self) -> set[str]:
        """Parts that were stored more than once; a checkpoint is a new one each time."""
        stored = Counter(line.name for line in self.log if line.what == "wrote")
        return {name for name, times in stored.items() if times > 1 and not name.startswith("eigen/state")}

    def before_fault(self) -> list[Line]:
        """What was said before the run ended, or lost a worker."""
        lines = self.log
        return lines[: self._failed_at or next(at for at, line in enumerate(lines) if line.what == "reached")]

    def since_checkpoint(self, name: str) -> int:
        """Calls since the last checkpoint before the fault: what a solve may have to do again."""
        lines = self.before_fault()
        stored = [at for at, line in enumerate(lines) if line.what == "wrote" and line.name in CHECKPOINTS]
        stored = stored or [0]  # before the first checkpoint all of them
        return sum((line.what, line.name) == ("called", name) for line in lines[stored[-1] :])

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """The finished run's labels."""
        return open_run(self.out).labels

    def close(self) -> None:
        """End whatever the test has left."""
        for process in self._sessions:
            for member in family(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    os.kill(member.pid, signal.SIGKILL)
            process.communicate()


CHECKPOINTS = ("eigen/state0", "eigen/state1")


@contextlib.contextmanager
def outside_workers(scene: Scene, n_workers: int) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """Address of a scheduler, and the process of each of its workers: their sessions can be ended one by one."""
    note = scene.folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--scheduler-file", str(note)]
    scheduler = scene.spawn("-m", "dask", "scheduler", "--port", "0", "--no-dashboard", *options)
    until(lambda: note.exists() and note.read_text().endswith("}"), "the scheduler")
    words = ["-m", "dask", "worker", "--scheduler-file", str(note), "--nthreads", "1", "--no-dashboard"]
    scratch = ["--local-directory", str(scene.folder / "scratch")]
    pool = [scene.spawn(*words, *scratch) for _ in range(n_workers)]
    try:
        yield json.loads(note.read_text())["address"], pool
    finally:
        for process in (scheduler, *pool):
            end_session(process)


def end_session(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started."""
    for member in family(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


@contextlib.contextmanager
def outside_cluster(scene: Scene) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address and process of a scheduler, with two workers, started as a user starts them."""
    note = scene.folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--scheduler-file", str(note)]
    scheduler = scene.spawn("-m", "dask", "scheduler", "--port", "0", "--no-dashboard", *options)
    until(lambda: note.exists() and note.read_text().endswith("}"), "the scheduler")
    workers = ["-m", "dask", "worker", "--scheduler-file", str(note), "--nworkers", "2", "--nthreads", "1"]
    pool = scene.spawn(*workers, "--no-dashboard", "--local-directory", str(scene.folder / "scratch"))
    try:
        yield json.loads(note.read_text())["address"], scheduler
    finally:
        for process in (scheduler, pool):
            for member in family(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    os.kill(member.pid, signal.SIGKILL)

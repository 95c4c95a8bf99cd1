"""A benchmark's function, run in a fresh process with a time limit, and the peak memory of its process tree."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ips2_dask.errors import BadInput

INTERVAL = 0.05
SHARE = 10
"""Seconds between samples: at least .05, and at least 10 times what a sample takes, so that it costs 10 % of a core."""


class Sample(NamedTuple):
    """Memory of the process tree at one moment, in bytes."""

    at: float  # time.monotonic, one clock for all processes of a machine
    tree: int
    root: int
    largest_child: int


class Peak(NamedTuple):
    """The largest of each over some time, not necessarily at one moment, in bytes."""

    tree: int
    root: int
    largest_child: int


def peak(samples: Sequence[Sample], begin: float = float("-inf"), end: float = float("inf")) -> Peak | None:
    """The peak from ``begin`` to ``end``; None where nothing was sampled."""
    inside = [s for s in samples if begin <= s.at <= end]
    if not inside:
        return None
    return Peak(*(max(column) for column in list(zip(*inside, strict=True))[1:]))


class TreeSampler:
    """Samples a process and its descendants while the ``with`` block lasts.

    PSS counts a page that n processes share as 1/n in each, so that the sum over a tree is what the tree takes. Where
    there is no /proc (macOS, Windows) ``samples`` stays empty.

    Parameters
    ----------
    root : int
        Process id.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TreeSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._done.wait(pause):
            moment = time.monotonic()
            root = proportional_bytes(self.root)
            if root:
                others = [proportional_bytes(pid) for pid in descendants(self.root)]
                self.samples.append(Sample(moment, root + sum(others), root, max(others, default=0)))
            pause = max(INTERVAL, SHARE * (time.monotonic() - moment))


def proportional_bytes(pid: int) -> int:
    """PSS of a process in bytes; 0 where it is gone or can't be read."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has just ended
        pass
    return 0


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    pids: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return pids
    for task in tasks:
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += [child, *descendants(child)]
    return pids


CORES = "IPS2_BENCH_CORES"
"""Environment variable of a process that is to take only so many cores, which it sees before it imports anything."""

FINISHED = "finished"
GRACE = 10.0


class Outcome(NamedTuple):
    """How a piece of work ended.

    ``word`` is "finished", "stopped at the limit", "ended by signal 9" or "failed: MemoryError".
    """

    word: str
    answer: dict[str, Any]  # empty unless it finished
    samples: list[Sample]

    @property
    def finished(self) -> bool:
        """Whether there is an answer."""
        return self.word == FINISHED


def work_apart(
    module: str,
    job: Mapping[str, object],
    folder: Path,
    limit: float | None = None,
    *,
    cold: bool = False,
    cores: int | None = None,
) -> Outcome:
    """``work(job)`` of a module of this package in a fresh interpreter.

    Parameters
    ----------
    module : str
        Name of the module in this package.
    job : mapping
        The argument of `work`; it and the result of `work` must be serialisable as JSON.
    folder : Path
        Temporary files go in here, those of the work too.
    limit : float, optional
        Seconds from the start of the interpreter after which the process and its descendants are killed.
    cold : bool
        Give it an empty folder for Numba's compiled code, so that its time holds compilation.
    cores : int, optional
        Hold the process and its descendants to so many cores, of which every library makes its number of threads; by
        default they have all that this process has.

    Returns
    -------
    Outcome
        Work that fails shows the end of its standard error on ours.
    """
    with tempfile.TemporaryDirectory(prefix=f"{module}-", dir=folder, ignore_cleanup_errors=True) as name:
        return _work(module, job, Path(name), limit, cold, cores)


def check_cores(cores: int | None) -> None:
    """Refuse a number of cores that a process can't be held to.

    Raises
    ------
    BadInput
    """
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    if cores is not None and cores > most:
        allowed = f"1 to {most}" if most else "none: this system holds no process to cores"
        raise BadInput(
            "--threads",
            str(cores),
            allowed,
            "the record would name threads that nobody had",
            f"give --threads {most}" if most else "leave --threads out",
        )


def _work(
    module: str, job: Mapping[str, object], place: Path, limit: float | None, cold: bool, cores: int | None
) -> Outcome:
    (place / "job.json").write_text(json.dumps(dict(job)))
    environment = {**os.environ, "TMPDIR": str(place)}
    if cores is not None:
        environment[CORES] = str(cores)
    if cold:
        environment["NUMBA_CACHE_DIR"] = str(place / "numba")
    with (place / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, module, str(place)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            with TreeSampler(process.pid) as sampler:
                status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return Outcome("stopped at the limit", {}, sampler.samples)
        finally:
            _end(process)
    if status == 0:
        return Outcome(FINISHED, json.loads((place / "answer.json").read_text()), sampler.samples)
    return Outcome(_failure(status, place / "errors"), {}, sampler.samples)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and its descendants, which share a process group of their own."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait(GRACE)
    if process.stdin is not None:
        process.stdin.close()


def _failure(status: int, errors: Path) -> str:
    """How it failed, in a few words without paths; the end of what it said goes to standard error."""
    if status < 0:
        return f"ended by signal {-status}"
    lines = errors.read_text(errors="replace").strip().splitlines() or ["no message"]
    print("\n".join(lines[-5:]), file=sys.stderr)
    name = lines[-1].partition(":")[0].rpartition(".")[2]
    return f"failed: {name}" if name.isidentifier() else f"failed with status {status}"


def _end_with_parent() -> None:
    """Kill this process and its descendants when nobody holds the other end of standard input any more."""
    os.read(0, 1)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(module: str, place: Path) -> None:
    """Do the work in the fresh interpreter, and write its answer."""
    if CORES in os.environ:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ[CORES])])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = importlib.import_module(f"ips2_dask.bench.{module}").work
    answer = work(json.loads((place / "job.json").read_text()))
    (place / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

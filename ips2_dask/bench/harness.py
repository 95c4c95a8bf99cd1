"""What benchmarks share: data in files, work in a fresh process with its peak memory, and records with their origin."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from ips2_dask.datasets import BLOCK, curved_gaussians, load
from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.paper.work import commit
from ips2_dask.store.files import write_atomically
from ips2_dask.typing import Float, Float32

Value = bool | int | float | str | None
Record = dict[str, Value]


class Data(NamedTuple):
    """Samples and known labels in files; ``c`` known classes."""

    name: str
    X: str  # (m, f), raw values
    labels: str  # (m,) int64
    m: int
    f: int
    c: int


def generated(m: int, f: int, c: int, seed: int, folder: Path) -> Data:
    """`datasets.curved_gaussians`, written block by block: it needs memory for one block."""
    data = Data("curved_gaussians", str(folder / f"X-{m}x{f}.npy"), str(folder / f"labels-{m}x{f}.npy"), m, f, c)
    X = np.lib.format.open_memmap(data.X, "w+", np.float32, (m, f))
    labels = np.lib.format.open_memmap(data.labels, "w+", np.int64, (m,))
    for start in range(0, m, BLOCK):
        rows = slice(start, min(start + BLOCK, m))
        X[rows], labels[rows] = curved_gaussians(m, f, c, seed, rows)
    X.flush()
    labels.flush()
    return data


def named(name: str, folder: Path) -> Data:
    """A data set of `datasets.load`, as the publisher has it; `BadInput` where it is not there."""
    dataset = load(name)
    m, f = dataset.X.shape
    data = Data(name, str(folder / "X.npy"), str(folder / "labels.npy"), m, f, dataset.n_clusters)
    np.save(data.X, dataset.X)
    np.save(data.labels, np.unique(dataset.labels, return_inverse=True)[1].astype(np.int64))
    return data


def kept(folder: Path, make: Callable[[Path], Data]) -> Data:
    """The data in ``folder``, made by ``make`` if there are none, only once: a run tells its input by its mtime."""
    facts = folder / "data.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not facts.exists():
            facts.write_text(json.dumps(make(folder)._asdict()))
        return Data(**json.loads(facts.read_text()))
    except BadInput:
        folder.rmdir()  # nothing was made
        raise
    except (OSError, ValueError, TypeError) as error:
        allowed = "a folder that can be written, or one of a benchmark that was kept"
        raise BadInput(
            "--keep", f"{folder}: {error}", allowed, "there would be no data", "name another folder"
        ) from error


def centred(X: Float) -> Float32:
    """X as a run sees it after ingest: centred in float64, then float32 (docs/method.md, Samples and distances)."""
    return np.ascontiguousarray(X - X.mean(axis=0, dtype=np.float64), np.float32)


INTERVAL, SHARE = 0.05, 10
"""Seconds between samples: at least .05, and at least 10 times what a sample takes, so that it costs 10 % of a core."""


class Sample(NamedTuple):
    """Memory of a process tree in bytes, at one moment of `time.monotonic`, which all processes of a machine share."""

    at: float
    tree: int
    root: int
    largest_child: int


def peak(samples: Sequence[Sample], begin: float = float("-inf"), end: float = float("inf")) -> Sample | None:
    """The largest of each from ``begin`` to ``end``, not at one moment; None where nothing was sampled."""
    inside = [sample for sample in samples if begin <= sample.at <= end]
    return Sample(*map(max, zip(*inside, strict=True))) if inside else None


class TreeSampler:
    """Samples a process and its descendants while the ``with`` block lasts, into ``samples``.

    PSS counts a page that n processes share as 1/n in each, so that the sum over a tree is what the tree takes. Where a
    system has none, resident memory stands for it. ``root`` is a process id.
    """

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TreeSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._done.wait(pause):
            moment = time.monotonic()
            with contextlib.suppress(psutil.Error):  # the root has ended
                root = _memory_of(self._root)
                others = [_memory_of(process) for process in self._root.children(recursive=True)]
                if root:
                    self.samples.append(Sample(moment, root + sum(others), root, max(others, default=0)))
            pause = max(INTERVAL, SHARE * (time.monotonic() - moment))


def _memory_of(process: psutil.Process) -> int:
    """Bytes of a process; 0 where it has just ended."""
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(found, "pss", found.rss))


FINISHED = "finished"


class Outcome(NamedTuple):
    """How a piece of work ended."""

    word: str  # "finished", "stopped at the limit", "ended by signal 9" or "failed: MemoryError"
    answer: dict[str, Any]  # empty unless it finished
    samples: list[Sample]

    @property
    def finished(self) -> bool:
        """Whether there is an answer."""
        return self.word == FINISHED

    @property
    def peak_bytes(self) -> int | None:
        """The peak of all of its processes together."""
        largest = peak(self.samples)
        return largest.tree if largest else None


def work_apart(
    module: str, job: Mapping[str, object], folder: Path, limit: float | None = None, *, cold: bool = False
) -> Outcome:
    """``work(job)`` of a module in a fresh interpreter, whose failure shows the end of its standard error on ours.

    The job and the result are serialisable as JSON. Temporary files go into the folder, those of the work too. After
    ``limit`` seconds from the start of the interpreter the process and its descendants are killed. ``cold`` gives it an
    empty folder for Numba's compiled code, so that its time holds compilation.
    """
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder, ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / "job.json").write_text(json.dumps(dict(job)))
        environment = {**os.environ, "TMPDIR": name}
        environment |= {"NUMBA_CACHE_DIR": str(place / "numba")} if cold else {}
        command = [sys.executable, "-m", __name__, module, name]
        with (place / "errors").open("wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment, start_new_session=True
            )
            try:
                with TreeSampler(process.pid) as sampler:
                    status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return Outcome("stopped at the limit", {}, sampler.samples)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # what is left of it and of its descendants
                process.communicate()
        if status == 0:
            return Outcome(FINISHED, json.loads((place / "answer.json").read_text()), sampler.samples)
        return Outcome(_failure(status, place / "errors"), {}, sampler.samples)


def _failure(status: int, errors: Path) -> str:
    """How work failed, in a few words without paths; the end of what it said goes to standard error."""
    if status < 0:
        return f"ended by signal {-status}"
    lines = errors.read_text(errors="replace").strip().splitlines() or ["no message"]
    print("\n".join(lines[-5:]), file=sys.stderr)
    name = lines[-1].partition(":")[0].rpartition(".")[2]
    return f"failed: {name}" if name.isidentifier() else f"failed with status {status}"


def _end_with_parent() -> None:
    """Kill this process and its descendants when nobody holds the other end of standard input any more."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _main(module: str, place: Path) -> None:
    """Do the work in the fresh interpreter, and write its answer."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = importlib.import_module(module).work(json.loads((place / "job.json").read_text()))
    (place / "answer.json").write_text(json.dumps(answer))


PEERS = ("evoc", "faiss-cpu", "fast-plscan", "hnswlib", "igraph", "pyamg", "umap-learn", "usearch")
"""Optional packages that some benchmark measures."""


def record(
    results: Iterable[Record],
    columns: Sequence[str],
    file: Path | None,
    arguments: Sequence[str],
    seed: int | None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Print records as they come, by these columns; when they are all there, write them with their origin.

    ``results`` are measured as they are gone through, after `BadInput` for a file that can't be written. ``arguments``
    are the command as typed. ``stopped`` says whether an interrupt was lost in a callback of the garbage collector.
    """
    if file is not None:
        _check_writable(file)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    begun, before, busy = time.monotonic(), psutil.getloadavg()[0], _busy_seconds()
    found = []
    for one in results:
        print(_line(one, columns), flush=True)
        found.append(one)
        if stopped():
            raise KeyboardInterrupt
    seconds = time.monotonic() - begun
    if file is not None:
        head = {"commit": commit(), "date": date, "seconds": round(seconds, 1), "complete": True, "seed": seed}
        others = round(max(0.0, (_busy_seconds() - busy) / max(seconds, 1e-9)), 3)
        load = {"average_before": before, "average_after": psutil.getloadavg()[0], "others": others}
        facts = {"machine": machine(), "threads": _pools(), "load": load, "versions": versions()}
        write(file, {**head, **facts, "command": command_line(arguments)}, found)
    return found


def machine() -> Record:
    """The machine that was measured on: processor, cores, memory, system; no name, no path."""
    cpu, memory, system = platform.processor() or platform.machine(), psutil.virtual_memory().total, platform.platform()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    with contextlib.suppress(OSError, ValueError):  # no control group that holds this process to fewer, or "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with contextlib.suppress(OSError, KeyError):
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return {"cpu": cpu, "cores": usable_cores(), "memory_bytes": memory, "os": system}


def _pools() -> dict[str, int]:
    """Threads that the pools of this process may take: ours, BLAS's, OpenMP's and Numba's."""
    import numba  # noqa: PLC0415  the parser of `ips2 bench` does without
    from threadpoolctl import threadpool_info  # noqa: PLC0415  the same

    most = {"ours": usable_cores(), "blas": 1, "openmp": 1, "numba": int(numba.config.NUMBA_NUM_THREADS)}
    for pool in threadpool_info():
        most[pool["user_api"]] = max(most.get(pool["user_api"], 1), int(pool["num_threads"]))
    return most


IDLE = ("idle", "iowait", "guest", "guest_nice")  # times in which a core did nothing, and those that count twice


def _busy_seconds() -> float:
    """CPU seconds of all other processes since the system's start, on the cores that this process may use.

    Descendants count as ours while they live, and when their parents have waited for them.
    """
    times = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        times = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    taken = sum(value for core in times for name, value in core._asdict().items() if name not in IDLE)
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            taken -= sum(process.cpu_times()[:4])  # user and system, its own and of children that have ended
    return float(taken)


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, those of optional peers where they are installed."""
    from ips2_dask.pipeline.manifest import versions as versions_of_the_run  # noqa: PLC0415  it loads every stage

    packages = dict(versions_of_the_run())
    for name in PEERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return packages


def command_line(arguments: Sequence[str]) -> str:
    """The command, folders left out: a file says what was run and not where."""
    words = (re.sub(r"[^=]*/", "", text) for text in arguments)
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def _check_writable(path: Path) -> None:
    """Refuse a result file that could not be written, before hours are spent on what goes in."""
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK) or path.is_dir():
        found = "a directory, or a file in one that does not exist or where this user may not write"
        allowed = "a file, new or to be replaced, in a directory that exists"
        raise BadInput(str(path), found, allowed, "the results would be lost", "give another --json")


def write(path: Path, facts: Mapping[str, object], results: Sequence[Record]) -> None:
    """Write facts and ``results`` whole; `ValueError` where a record holds NaN or an infinity."""
    text = json.dumps({**facts, "results": list(results)}, indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")


def _line(one: Record, columns: Sequence[str]) -> str:
    """A record for people: the named columns that it has, in one line."""
    return "  ".join(f"{name} {_spelled(one[name])}" for name in columns if one.get(name) is not None)


def _spelled(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))

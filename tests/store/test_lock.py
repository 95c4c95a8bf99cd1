"""One run at a time: who is kept out, whose lock is broken, and when it is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ips2_dask import BadInput, Params, StoreFailure, open_run, run, status
from ips2_dask.cli.main import main
from ips2_dask.store import lock
from ips2_dask.store.files import LocalFiles, RemoteFiles
from ips2_dask.store.integrity import sealed

X = np.random.default_rng(3).normal(size=(30, 2))
PARAMS = Params(n_clusters=2)

HOLD = """
import sys
from ips2_dask.store.files import LocalFiles
from ips2_dask.store.lock import Lock
with Lock(LocalFiles(sys.argv[1]), sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A finished run."""
    np.save(tmp_path / "x.npy", X)
    run(tmp_path / "x.npy", PARAMS, store=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the run."""
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def owner(**change: Any) -> dict[str, Any]:
    """The lock of a process that is there: the one that started this one."""
    parent = os.getppid()
    return {**lock._myself(), "pid": parent, "process_started": lock._started(parent), **change}


def test_a_second_run_is_refused_in_one_line_and_readers_are_not(
    directory: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(directory.parent / "x.npy"), "--clusters", "2", "--out", str(directory), "--serial"]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"a run that is going on (process {holder.pid} of " in line
    assert main(["verify", "--gc", str(directory)]) == 2
    assert open_run(directory).labels.shape == (30,)
    assert str(holder.pid) in status(directory)["running"]
    assert main(["verify", str(directory), "--quiet"]) == 0


def test_the_lock_of_a_killed_run_is_broken_at_once(directory: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
    assert (directory / lock.NAME).exists()
    assert run(directory.parent / "x.npy", PARAMS, store=directory).manifest["finished"]
    assert not (directory / lock.NAME).exists()


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({}, True),
        ({"process_started": 1.0}, False),  # another process has its number now
        ({"machine": "elsewhere"}, True),
        ({"machine": "elsewhere", "heartbeat": time.time() - lock.STALE - 1}, False),
        ({"heartbeat": 0.0}, True),  # frozen, on this machine, and alive
    ],
)
def test_a_lock_is_broken_only_when_its_owner_is_dead(directory: Path, change: dict[str, Any], alive: bool) -> None:
    (directory / lock.NAME).write_text(sealed(owner(**change)))
    if alive:
        with pytest.raises(BadInput, match="one run at a time"):
            run(directory.parent / "x.npy", PARAMS, store=directory)
        assert (directory / lock.NAME).exists()
    else:
        run(directory.parent / "x.npy", PARAMS, store=directory)
        assert not (directory / lock.NAME).exists()


def test_a_lock_that_this_process_could_not_give_back_does_not_keep_it_out(directory: Path) -> None:
    (directory / lock.NAME).write_text(sealed(lock._myself()))
    assert run(directory.parent / "x.npy", PARAMS, store=directory).manifest["finished"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_lock_is_given_back_however_a_run_ends(tmp_path: Path, error: type[BaseException]) -> None:
    class Stop:
        """Progress that ends the run."""

        def begin(self, stage: str) -> None:
            assert (tmp_path / "run" / lock.NAME).exists()
            if stage == "tensor":
                raise error

        def advance(self, stage: str, done: int, total: int) -> None: ...
        def end(self, stage: str, seconds: float, skipped: bool) -> None: ...

    with pytest.raises(error):
        run(X, PARAMS, store=tmp_path / "run", progress=Stop())
    assert not (tmp_path / "run" / lock.NAME).exists()
    assert run(X, PARAMS, store=tmp_path / "run").labels.shape == (30,)


def test_a_run_whose_directory_was_taken_over_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    files = LocalFiles(str(tmp_path))
    with lock.Lock(files, str(tmp_path)) as held:
        held.check()
        held._thread.join(0.05)
        held.check()
        deadline = time.monotonic() + 60
        while held._thread.is_alive() and time.monotonic() < deadline:  # a heartbeat in between may undo it
            files.write(lock.NAME, sealed(owner(token="another")))
            held._thread.join(0.05)
        with pytest.raises(StoreFailure, match="taken this directory over"):
            held.check()
    assert lock.owner_of(files)["token"] == "another"  # and the other one's lock stays


def test_a_heartbeat_goes_on_and_keeps_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    files = LocalFiles(str(tmp_path))
    with lock.Lock(files, str(tmp_path)):
        first = lock.owner_of(files)
        deadline = time.monotonic() + 60
        while (lock.owner_of(files) or first)["heartbeat"] == first["heartbeat"] and time.monotonic() < deadline:
            pass
        later = lock.owner_of(files)
        assert later is not None
        assert later["heartbeat"] > first["heartbeat"]
        assert later["token"] == first["token"]


class Plain(RemoteFiles):
    """An object store without conditional puts."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        plain = self._system

        class System:
            """The same, where `mode` is unknown."""

            def __getattr__(self, name: str) -> Any:
                return getattr(plain, name)

            def pipe_file(self, path: str, value: bytes) -> None:
                plain.pipe_file(path, value)

        self._system = System()


@pytest.mark.parametrize("kind", [RemoteFiles, Plain])
def test_object_stores_give_the_lock_to_one(kind: type[RemoteFiles]) -> None:
    files = kind("memory://locked")
    fsspec.filesystem("memory").store.clear()
    with lock.Lock(files, "memory://locked"):
        with pytest.raises(BadInput, match="one run at a time"), lock.Lock(files, "memory://locked"):
            pass
        assert files.names("") == [lock.NAME]
    assert files.names("") == []


def test_a_run_in_memory_and_one_in_a_folder_of_its_own_hold_no_lock_afterwards(tmp_path: Path) -> None:
    assert run(X, PARAMS).path is None
    run(X, PARAMS, store=tmp_path / "run")
    assert not [path.name for path in (tmp_path / "run").iterdir() if "lock" in path.name]

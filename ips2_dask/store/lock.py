"""One run at a time in a directory: a lock with its owner and a heartbeat, broken only when the owner is dead.

On the owner's machine an owner is dead when its process is gone, or when another process has its number (they differ
in when they started). On another machine nobody can look: there, an owner whose heartbeat is older than `STALE` seconds
counts as dead, which asks for clocks that agree to within a minute or two. An object store gives the lock by a
conditional put where it has one (see `RemoteFiles.create`). Whoever finds at a heartbeat that the lock is no longer its
own stops; parts that two runs wrote at the same time are attempts of their own and do not mix.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil

from ips2_dask.errors import BadInput, StoreFailure, Unreachable
from ips2_dask.store.files import Files
from ips2_dask.store.integrity import Document, opened, sealed

NAME = "lock.json"

HEARTBEAT = 10.0
"""Seconds between two heartbeats."""

STALE = 300.0
"""Seconds without a heartbeat after which an owner on another machine counts as dead."""

FAILURES = (OSError, StoreFailure, Unreachable)
"""Of a store that a lock is in: what the run itself writes says them, and the next heartbeat may be better off."""

Owner = Document

_held_here: set[str] = set()
"""Tokens of the locks that this process holds: another lock with its number is of an earlier process."""


def owner_of(files: Files) -> Owner | None:
    """The owner of the lock of a directory, dead or alive, or None."""
    content, whole = opened(files.read(NAME))
    return content if whole else None


def running(files: Files) -> str | None:
    """Which run is at work in a directory, in words; None where there is none."""
    owner = owner_of(files)
    return _described(owner) if owner is not None and is_alive(owner) else None


def is_alive(owner: Owner) -> bool:
    """Whether an owner may still be at work."""
    if owner["machine"] == _machine():
        if owner["pid"] == os.getpid():
            return owner["token"] in _held_here
        return _started(owner["pid"]) == owner["process_started"]
    return _heartbeat_age(owner) < STALE


def _heartbeat_age(owner: Owner) -> float:
    """Seconds since the last heartbeat."""
    return max(0.0, time.time() - float(owner["heartbeat"]))


def _described(owner: Owner) -> str:
    """An owner in words."""
    since = datetime.datetime.fromtimestamp(owner["since"], datetime.UTC).isoformat(timespec="seconds")
    return (
        f"process {owner['pid']} of {owner['user']} on {owner['host']}, since {since}, "
        f"last heartbeat {_heartbeat_age(owner):.0f} s ago"
    )


class Lock:
    """A directory's lock, held within a ``with`` block; `check` raises where another run has taken it."""

    def __init__(self, files: Files, location: str) -> None:
        self._files, self._location = files, location
        self._owner = _myself()
        self._ended, self._lost = threading.Event(), False
        self._thread = threading.Thread(target=self._beat, name="ips2-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Take the lock, from a dead owner if need be; raises ``BadInput`` where its owner is alive."""
        with one_at_a_time(self._location):
            for _ in range(3):  # another one may have been faster where `one_at_a_time` can't hold it
                if self._files.create(NAME, sealed(self._owner)):
                    break
                owner = owner_of(self._files)
                if owner is not None and is_alive(owner):
                    raise _refusal(self._location, owner)
                self._files.remove(NAME)
            else:
                raise _refusal(self._location, owner or self._owner)
            _held_here.add(self._owner["token"])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; a lock that another run has taken stays."""
        self._ended.set()
        self._thread.join()
        _held_here.discard(self._owner["token"])
        with contextlib.suppress(*FAILURES):
            if self._is_mine():
                self._files.remove(NAME)

    def check(self) -> None:
        """Raise ``StoreFailure`` where another run has taken the lock."""
        if self._lost:
            raise StoreFailure(
                f"{self._location}: found that another run has taken this directory over, because this one gave no "
                f"sign of life for {STALE:.0f} s; allowed is one run at a time; otherwise both would write there. "
                "What was finished is kept. Remedy: wait until the other run has ended."
            )

    def _is_mine(self) -> bool:
        owner = owner_of(self._files)
        return owner is not None and owner["token"] == self._owner["token"]

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with contextlib.suppress(*FAILURES):
                if not self._is_mine():
                    self._lost = True
                    return
                self._files.write(NAME, sealed({**self._owner, "heartbeat": time.time()}))


def _refusal(location: str, owner: Owner) -> BadInput:
    remedy = "wait until it has ended, or give another --out"
    if owner["machine"] != _machine():
        remedy += f" (if that process is dead, its lock is broken {STALE:.0f} s after its last heartbeat)"
    return BadInput(
        location, f"a run that is going on ({_described(owner)})", "one run at a time", "both would write there", remedy
    )


def _myself() -> Owner:
    now = time.time()
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "process_started": _started(os.getpid()),
        "user": _user(),
        "token": uuid.uuid4().hex,
        "since": now,
        "heartbeat": now,
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in many containers
        return str(os.getuid())


def _machine() -> str:
    """The scope in which a process number is unique: host, boot, and container."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _started(pid: int) -> float | None:
    """When a process started, on a clock of the machine's own; None where it is gone, or dead and not yet buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    except (OSError, IndexError):
        pass
    try:
        return None if Path("/proc/self/stat").exists() else float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


@contextlib.contextmanager
def one_at_a_time(location: str) -> Iterator[None]:
    """Keep other processes out of the same folder's block, where it is a local one and the system has such locks."""
    descriptor = None
    with contextlib.suppress(OSError, ImportError):
        import fcntl  # noqa: PLC0415  not on every system

        descriptor = os.open(location, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)

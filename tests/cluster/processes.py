"""Server processes of the tests: started, waited for with a deadline, and ended by the one who started them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

SECONDS = 120.0
"""What a server may take to come up, or a job to end: far more than either needs."""

_LEASH = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
"""What ends a server when this process dies without ending it (util-linux)."""


def until(true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Look ten times a second whether something is so; raise ``TimeoutError`` with its name if it never is."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}, and {seconds:.0f} s have passed")
        time.sleep(0.1)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def server(
    command: Sequence[str], log: Path, ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready when the block begins and gone when it ends, or when this process dies.

    Parameters
    ----------
    command : sequence of str
        Something that stays in the foreground.
    log : Path
        Where both of its outputs go; its end is part of the error of one that never gets ready.
    ready : callable
        Whether it serves.
    environment : mapping, optional
        Variables besides those of this process.
    """
    with log.open("ab") as stream:
        started = subprocess.Popen(
            [*_LEASH, *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **(environment or {})},
            process_group=0,  # so that Ctrl-C reaches the tests alone, and they end their servers
        )

    def is_up() -> bool:
        if started.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with status {started.returncode}: {_tail(log)}")
        return ready()

    try:
        until(is_up, f"{command[0]} is not ready ({log})")
        yield started
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:])

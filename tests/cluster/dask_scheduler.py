"""A Dask scheduler and workers as processes of their own, in the open or with TLS, started as their manual says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from processes import server

DASK = [sys.executable, "-m", "dask"]


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A running scheduler, and the folder with everybody's certificates where it speaks TLS."""

    address: str
    certificates: Path | None


@contextlib.contextmanager
def dask_scheduler(
    folder: Path, certificates: Path | None, environment: Mapping[str, str], workers: int = 2
) -> Iterator[Scheduler]:
    """A scheduler on 127.0.0.1 with workers of one thread each."""
    file = folder / "scheduler.json"
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    command = [*DASK, "scheduler", "--port", "0", "--scheduler-file", str(file), *here]
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            server([*command, *tls(certificates, "scheduler")], folder / "scheduler.log", file.exists, environment)
        )
        address = json.loads(file.read_text())["address"]
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            own = ["--nthreads", "1", "--local-directory", str(folder), "--name", f"worker-{number}"]
            command = [*DASK, "worker", address, *own, *here, *tls(certificates, "worker")]
            stack.enter_context(server(command, log, lambda log=log: _registered(log), environment))
        yield Scheduler(address, certificates)


def tls(certificates: Path | None, who: str) -> list[str]:
    """What tells a process its certificate."""
    if certificates is None:
        return []
    files = {"ca-file": "ca.pem", "cert": f"{who}.pem", "key": f"{who}.key"}
    return [word for name, file in files.items() for word in (f"--tls-{name}", str(certificates / file))] + [
        "--protocol",
        "tls",
    ]


def stranger(address: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What becomes of a worker whose certificate the scheduler's authority has not signed."""
    subject = ["-subj", "/CN=stranger", "-days", "1", "-nodes", "-newkey", "rsa:2048"]
    key, certificate = str(folder / "stranger.key"), str(folder / "stranger.pem")
    command = ["openssl", "req", "-x509", *subject, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    own = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]
    return alone([address, "--protocol", "tls", *own], environment)


def alone(options: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A worker that gives up when it can't get in for some seconds."""
    command = [*DASK, "worker", *options, "--no-nanny", "--no-dashboard", "--death-timeout", "5"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def _registered(log: Path) -> bool:
    return "Registered to" in log.read_text(errors="replace")

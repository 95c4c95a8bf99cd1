"""A Dask scheduler and workers as processes of their own, in the open or with TLS, started as their manual says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
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


def _registered(log: Path) -> bool:
    return "Registered to" in log.read_text(errors="replace")

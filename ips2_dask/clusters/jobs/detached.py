"""A driver as a process of this machine in a session of its own, which lives on when the terminal closes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil

from ips2_dask.clusters.config import Config
from ips2_dask.clusters.jobs.record import Job
from ips2_dask.errors import BadInput

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Drivers that this process started: kept, so that Python neither warns of them nor leaves them as zombies."""


def command(job: Job) -> list[str]:
    """What runs a job's driver."""
    return [sys.executable, "-m", "ips2_dask.cli.driver", str(job.folder)]


def launch(job: Job, config: Config | None = None) -> dict[str, Any]:
    """Start the driver and return at once."""
    del config
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command(job), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=job.cwd,
            start_new_session=True,
        )  # fmt: skip
    _children[process.pid] = process
    created = psutil.Process(process.pid).create_time()
    return {"pid": process.pid, "created": created, "host": socket.gethostname()}


def _elsewhere(job: Job) -> bool:
    return bool(job.native["host"] != socket.gethostname())


def _process(job: Job) -> psutil.Process | None:
    """The driver's process: not another one that got its number later, nor what is left of it."""
    pid = job.native["pid"]
    if pid in _children:
        _children[pid].poll()
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - job.native["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
        return process if same else None
    except psutil.NoSuchProcess:
        return None


def state(job: Job) -> str | None:
    """``running``, ``on HOST`` where another machine must be asked, or None where the process is gone."""
    if _elsewhere(job):
        return f"on {job.native['host']}"
    return "running" if _process(job) is not None else None


def cancel(job: Job) -> None:
    """Ask the driver to end: it closes its cluster first.

    Raises
    ------
    BadInput
        Where it is a process of another machine.
    """
    if _elsewhere(job):
        host = job.native["host"]
        raise BadInput(
            "job", f"{job.id}, a process of {host}", "a job that this machine reaches", "another process might end",
            f"run `ips2 cancel {job.id}` on {host}",
        )  # fmt: skip
    process = _process(job)
    if process is not None:
        os.kill(process.pid, signal.SIGTERM)

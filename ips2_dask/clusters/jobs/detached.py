"""A driver as a process of this machine in a session of its own, which lives on when the terminal closes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import psutil

from ips2_dask.clusters.config import Config
from ips2_dask.clusters.jobs.record import Job

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Drivers that this process started: kept, so that Python neither warns of them nor leaves them as zombies."""


def command(job: Job) -> list[str]:
    """What runs a job's driver."""
    return [sys.executable, "-m", "ips2_dask.driver", str(job.folder)]


def launch(job: Job, config: Config) -> dict[str, Any]:
    """Start the driver and return at once."""
    del config
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command(job), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=job.cwd,
            start_new_session=True,
        )  # fmt: skip
    _children[process.pid] = process
    return {"pid": process.pid, "created": psutil.Process(process.pid).create_time()}


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
    """``running``, or None where the process is gone."""
    return "running" if _process(job) is not None else None


def cancel(job: Job) -> None:
    """Ask the driver to end: it closes its cluster first."""
    process = _process(job)
    if process is not None:
        os.kill(process.pid, signal.SIGTERM)

"""A driver as a process of this machine in a session of its own, which goes on when the terminal closes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import psutil

from ips2_dask.clusters.config import Config
from ips2_dask.clusters.jobs.record import Job, Native
from ips2_dask.errors import BadInput

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Drivers that this process started, by their process id. Without a reference Python warns, and leaves zombies."""


def command(job: Job) -> list[str]:
    """The command of a job's driver."""
    return [sys.executable, "-m", "ips2_dask.cli.driver", str(job.folder)]


def launch(job: Job, config: Config | None = None) -> Native:
    """Start the driver and return at once."""
    del config
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command(job),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.cwd,
            start_new_session=True,
        )
    _children[process.pid] = process
    created = psutil.Process(process.pid).create_time()
    return {"pid": process.pid, "created": created, "host": socket.gethostname()}


def _is_remote(job: Job) -> bool:
    """Whether the driver is a process of another machine."""
    return bool(job.native["host"] != socket.gethostname())


def _process(job: Job) -> psutil.Process | None:
    """The driver's process, or None if it has ended: another process may have its id now, or it may be a zombie."""
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
    """``running``, ``on HOST`` if only another machine can tell, or None if the process has ended."""
    if _is_remote(job):
        return f"on {job.native['host']}"
    return "running" if _process(job) is not None else None


def cancel(job: Job) -> None:
    """Ask the driver to end: it closes its cluster first.

    Raises
    ------
    BadInput
        If it is a process of another machine.
    """
    if _is_remote(job):
        host = job.native["host"]
        raise BadInput(
            "job",
            f"{job.id}, a process of {host}",
            "a job that this machine reaches",
            "another process might end",
            f"run `ips2 jobs cancel {job.id}` on {host}",
        )
    process = _process(job)
    if process is not None:
        os.kill(process.pid, signal.SIGTERM)

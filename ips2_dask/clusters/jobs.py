"""Submitted jobs, runs whose driver, too, runs on a cluster or by itself here: submit, list, read and cancel them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psutil

from ips2_dask.clusters import batch, tls
from ips2_dask.clusters.checks import refuse_secrets
from ips2_dask.clusters.config import Config
from ips2_dask.clusters.job_record import CONFIG, Job, find, jobs, new
from ips2_dask.clusters.loading import find as find_config
from ips2_dask.errors import BadInput

__all__ = ["Job", "cancel", "find", "jobs", "log_lines", "state", "submit"]

ENDS = {0: "done", 130: "interrupted"}

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Drivers that this process started, by their process id. Without a reference Python warns, and leaves zombies."""


def submit(arguments: Sequence[str], config: Config, name: str | None, out: str) -> Job:
    """Submit a run to the batch system or Kubernetes, or else to a process that outlives the terminal, and return.

    Parameters
    ----------
    arguments : sequence of str
        The arguments of ``ips2 run`` without ``--cluster``.
    config : Config
        The cluster, settled.
    name : str or None
        File or name of its config, which is copied into the job's folder; None for an address or this machine.
    out : str
        The run directory.
    """
    for word in arguments:
        refuse_secrets("submit", "", word)
    tls.security(config.tls)  # missing certificates are refused here, not in a log
    job = new(config.manager, arguments, out)
    try:
        words = ["run", *arguments]
        if name is not None:
            shutil.copyfile(find_config(name), job.folder / CONFIG)
            words += ["--cluster", str(job.folder / CONFIG)]
        job = dataclasses.replace(job, arguments=tuple(words)).save()  # before the driver reads it
        native = batch.launch(job, config) if job.manager in batch.SYSTEMS else _start(job)
        return dataclasses.replace(job, native=native).save()
    except BaseException:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise


def _start(job: Job) -> dict[str, Any]:
    with job.log.open("ab") as log:
        words, none = [sys.executable, "-m", "ips2_dask.cli.driver", str(job.folder)], subprocess.DEVNULL
        process = subprocess.Popen(words, stdin=none, stdout=log, stderr=log, cwd=job.cwd, start_new_session=True)
    _children[process.pid] = process
    created = psutil.Process(process.pid).create_time()
    return {"pid": process.pid, "created": created, "host": socket.gethostname()}


def _process(job: Job) -> psutil.Process | None:
    """The driver's process, or None if it has ended: another process may have its id now, or it may be a zombie."""
    pid = job.native["pid"]
    if pid in _children:
        _children[pid].poll()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if abs(process.create_time() - job.native["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _reply(job: Job) -> str | None:
    """What the manager says of the driver, or None where that has ended."""
    if job.manager in batch.SYSTEMS:
        return batch.state(job)
    if job.native["host"] != socket.gethostname():
        return f"on {job.native['host']}"
    return None if _process(job) is None else "running"


def state(job: Job) -> str:
    """``pending``, ``running``, ``on HOST``, ``done``, ``failed (STATUS)``, ``interrupted``, ``cancelled`` or ``lost``.

    ``on HOST``: a process of another machine, which alone can tell. ``pending (Eqw)``: Grid Engine could not start it;
    ``qstat -j`` says why. ``lost``: it ended without an exit status; the same submission again continues the run.
    """
    status = job.exit_status
    if status is None:
        reply = _reply(job) if job.native else None
        status = job.exit_status  # the driver may have written it in the meantime
        if status is None:
            return reply or ("cancelled" if job.cancelled else "lost")
    if status == 130 and job.cancelled:
        return "cancelled"
    return ENDS.get(status, f"failed ({status})")


def cancel(job: Job) -> Job:
    """Ask a job to end; its run directory stays, and the same submission again continues it."""
    if not state(job).startswith(("pending", "running", "on ")):
        return job
    if job.manager in batch.SYSTEMS:
        batch.cancel(job)
    elif (host := job.native["host"]) != socket.gethostname():
        found, remedy = f"{job.id}, a process of {host}", f"run `ips2 jobs cancel {job.id}` on {host}"
        raise BadInput("job", found, "a job that this machine reaches", "another process might end", remedy)
    elif _process(job) is not None:
        os.kill(job.native["pid"], signal.SIGTERM)  # it closes its cluster first
    return dataclasses.replace(job, cancelled=True).save()


def log_lines(job: Job, follow: bool = False) -> Iterator[str]:
    """The lines of the driver's log; with ``follow`` also those that it still writes, until it ends."""
    if job.manager == "kubernetes":
        yield from batch.log_of_pod(job, follow)
        return
    with contextlib.ExitStack() as stack:
        stream: Iterable[str] = ()
        while True:
            unfinished = follow and state(job) in ("pending", "running")  # before the read, which may be the last
            if not stream and job.log.exists():
                stream = stack.enter_context(job.log.open(encoding="utf-8", errors="replace"))
            yield from stream
            if not unfinished:
                return
            time.sleep(0.5)

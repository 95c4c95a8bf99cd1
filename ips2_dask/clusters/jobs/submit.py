"""Submission of a run with its driver, and the state, cancellation and log of a submitted job."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from types import ModuleType

from ips2_dask.clusters import tls
from ips2_dask.clusters.checks import refuse_secrets
from ips2_dask.clusters.config import Config
from ips2_dask.clusters.jobs.record import CONFIG, Job, new
from ips2_dask.clusters.loading import find as find_config

LAUNCHERS = {
    "local": "detached",
    "scheduler": "detached",
    "ssh": "ssh_job",
    "gateway": "detached",
    "slurm": "batch",
    "pbs": "batch",
    "lsf": "batch",
    "sge": "batch",
    "kubernetes": "daskjob",
}
"""The module of this package that runs the driver of each manager's jobs."""

ENDS = {0: "done", 130: "interrupted"}
POLL_SECONDS = 0.5


def _launcher(manager: str) -> ModuleType:
    return importlib.import_module(f"ips2_dask.clusters.jobs.{LAUNCHERS[manager]}")


def submit(arguments: Sequence[str], config: Config, name: str | None, out: str) -> Job:
    """Submit a run and return at once.

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

    Returns
    -------
    Job

    Raises
    ------
    BadInput
        If the manager refuses it; the job's folder is removed then.
    """
    for word in arguments:
        refuse_secrets("submit", "", word)
    tls.security(config.tls)  # missing certificates are refused here, not in a log
    job = new(config.manager, arguments, out)
    try:
        if name is not None:
            shutil.copyfile(find_config(name), job.folder / CONFIG)
            job = dataclasses.replace(job, arguments=("run", *arguments, "--cluster", str(job.folder / CONFIG)))
        else:
            job = dataclasses.replace(job, arguments=("run", *arguments))
        job.save()  # before the driver reads it
        return dataclasses.replace(job, native=_launcher(config.manager).launch(job, config)).save()
    except BaseException:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise


def state(job: Job) -> str:
    """``pending``, ``running``, ``on HOST``, ``done``, ``failed (STATUS)``, ``interrupted``, ``cancelled`` or ``lost``.

    ``pending (Eqw)``: Grid Engine could not start the driver; ``qstat -j`` says why.
    ``lost``: the driver ended without an exit status; the same submission again continues its run directory.
    """
    status = job.exit_status
    if status is None:
        reply = _launcher(job.manager).state(job) if job.native else None
        status = job.exit_status  # the driver may have written it in the meantime
        if status is None:
            return str(reply or ("cancelled" if job.cancelled else "lost"))
    if status == 130 and job.cancelled:
        return "cancelled"
    return ENDS.get(status, f"failed ({status})")


def cancel(job: Job) -> Job:
    """Ask a job to end; its run directory stays, and the same submission again continues it."""
    now = state(job)
    if now.startswith(("pending", "running", "on ")):
        _launcher(job.manager).cancel(job)
        job = dataclasses.replace(job, cancelled=True).save()
    return job


def log_lines(job: Job, follow: bool = False) -> Iterator[str]:
    """The lines of the driver's log; with ``follow`` also those that it still writes, until it ends."""
    launcher = _launcher(job.manager)
    if hasattr(launcher, "log_lines"):
        yield from launcher.log_lines(job, follow)
        return
    while follow and not job.log.exists() and state(job) in ("pending", "running"):
        time.sleep(POLL_SECONDS)
    if not job.log.exists():
        return
    with job.log.open(encoding="utf-8", errors="replace") as stream:
        while True:
            unfinished = follow and state(job) in ("pending", "running")  # before the read, which may be the last
            yield from stream
            if not unfinished:
                return
            time.sleep(POLL_SECONDS)

"""Handing a whole job over, driver included, and asking after it later."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ips2_dask.clusters import tls
from ips2_dask.clusters.checks import refuse_secrets
from ips2_dask.clusters.config import Config
from ips2_dask.clusters.jobs.record import CONFIG, Job, new
from ips2_dask.clusters.loading import find as find_config

LAUNCHERS = {
    "local": "detached", "scheduler": "detached", "ssh": "by_ssh", "gateway": "detached", "slurm": "batch",
    "pbs": "batch", "lsf": "batch", "sge": "batch", "kubernetes": "daskjob",
}  # fmt: skip
"""Which file of this folder runs the driver of a manager's job."""

ENDS = {0: "done", 130: "interrupted"}
POLL_SECONDS = 0.5


def _launcher(manager: str) -> Any:
    return importlib.import_module(f"ips2_dask.clusters.jobs.{LAUNCHERS[manager]}")


def submit(arguments: Sequence[str], config: Config, name: str | None, out: str) -> Job:
    """Hand a run over and return at once.

    Parameters
    ----------
    arguments : sequence of str
        Of ``ips2 run``, the cluster left out.
    config : Config
        The cluster, settled.
    name : str or None
        File or name of its config, which is copied beside the job's record; None for an address or this machine.
    out : str
        The run directory.

    Returns
    -------
    Job

    Raises
    ------
    BadInput
        Where the manager refuses it; nothing of the job stays then.
    """
    for word in arguments:
        refuse_secrets("submit", "", word)
    tls.security(config.tls)  # certificates that are missing show here, not in a log
    job = new(config.manager, arguments, out)
    try:
        if name is not None:
            shutil.copyfile(find_config(name), job.folder / CONFIG)
            job = dataclasses.replace(job, arguments=("run", *arguments, "--cluster", str(job.folder / CONFIG)))
        else:
            job = dataclasses.replace(job, arguments=("run", *arguments))
        job.save()  # before the driver looks for it
        return dataclasses.replace(job, native=_launcher(config.manager).launch(job, config)).save()
    except BaseException:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise


def state(job: Job) -> str:
    """``pending``, ``running``, ``on HOST``, ``done``, ``failed (STATUS)``, ``interrupted``, ``cancelled`` or ``lost``.

    A lost job's driver died without a word; the same submission again continues its run directory.
    """
    status = job.exit_status
    if status is None:
        found = _launcher(job.manager).state(job) if job.native else None
        status = job.exit_status  # which may have come while the manager was asked
        if status is None:
            return str(found or ("cancelled" if job.cancelled else "lost"))
    if status == 130 and job.cancelled:
        return "cancelled"
    return ENDS.get(status, f"failed ({status})")


def cancel(job: Job) -> Job:
    """Ask for a job's end; the run directory stays as it is, and the same submission continues it."""
    now = state(job)
    if now in ("pending", "running") or now.startswith("on "):
        _launcher(job.manager).cancel(job)
        job = dataclasses.replace(job, cancelled=True).save()
    return job


def log_lines(job: Job, follow: bool = False) -> Iterator[str]:
    """What the driver has printed; with ``follow`` also what it goes on to print, until it ends."""
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
            going_on = follow and state(job) in ("pending", "running")  # asked before the read that may be the last
            yield from stream
            if not going_on:
                return
            time.sleep(POLL_SECONDS)

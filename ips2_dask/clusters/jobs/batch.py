"""A driver as a job of a batch system: its script, and the system's commands to submit, watch and cancel it."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess

from ips2_dask.clusters import jobqueue
from ips2_dask.clusters.config import Config, Queue, Worker
from ips2_dask.clusters.jobs import detached
from ips2_dask.clusters.jobs.record import Job, Native
from ips2_dask.clusters.limits import DRIVER_MEMORY, submitted_driver_memory
from ips2_dask.errors import BadInput


@dataclasses.dataclass(frozen=True)
class System:
    """The commands of a batch system, and patterns of the states it prints; a script goes to standard input.

    Where ``{job}`` stands in a command or a pattern, the job's number is put.
    """

    submit: tuple[str, ...]
    state: tuple[str, ...]
    cancel: str
    log: tuple[str, ...]
    pending: str
    running: str


SYSTEMS = {
    "slurm": System(
        ("sbatch", "--parsable"),
        ("squeue", "-h", "-o", "%T", "-j", "{job}"),
        "scancel",
        ("#SBATCH -o {log}", "#SBATCH --open-mode=append", "#SBATCH --signal=B:TERM@60"),
        r"PENDING|CONFIGURING|REQUEUE|SUSPENDED",
        r"RUNNING|COMPLETING",
    ),
    "pbs": System(
        ("qsub",),
        ("qstat", "-f", "{job}"),
        "qdel",
        ("#PBS -o {log}", "#PBS -j oe"),
        r"job_state = [QHWT]",
        r"job_state = [RE]",
    ),
    # qdel and the walltime kill at once, unless -notify has SIGUSR2 come a minute earlier; SIGUSR1 goes before a stop
    "sge": System(
        ("qsub", "-terse"),
        ("qstat",),
        "qdel",
        ('#$ -o "{log}"', "#$ -notify", "trap '' USR1"),
        r"(?m)^ *{job}(?: +\S+){3} +(?:(?P<stuck>E\w*)|\w*qw)",
        r"(?m)^ *{job} ",
    ),
    "lsf": System(
        ("bsub",),
        ("bjobs", "-noheader", "-o", "stat", "{job}"),
        "bkill",
        ("#BSUB -o {log}",),
        r"PEND|PSUSP|WAIT",
        r"RUN|SUSP",
    ),
}


def script(job: Job, config: Config) -> str:
    """The script of the driver's job, with the resources of the config's ``driver`` section."""
    machine, driver = config.kind(Queue), config.driver
    driver_queue = dataclasses.replace(
        machine, processes=1, walltime=driver.walltime or machine.walltime, name="ips2-driver", logs=None, margin=10
    )
    resources = Worker(threads=driver.threads, memory=driver.memory)
    header = jobqueue.header(dataclasses.replace(config, machine=driver_queue, worker=resources))
    log = [line.format(log=job.log) for line in SYSTEMS[config.manager].log]
    run = shlex.join([machine.python or detached.command(job)[0], *detached.command(job)[1:]])
    # `exec`: the system's signals reach the driver itself, which closes its cluster before it goes
    variables = jobqueue.exports({DRIVER_MEMORY: str(submitted_driver_memory(config))})
    change = f"cd {shlex.quote(job.cwd)}"
    lines = ["#!/usr/bin/env bash", header, *log, *variables, *machine.prologue, change, f"exec {run}"]
    return "\n".join(lines) + "\n"


def launch(job: Job, config: Config) -> Native:
    """Submit the driver's job."""
    text = script(job, config)
    (job.folder / "script").write_text(text, encoding="utf-8")
    reply = _call(config.manager, SYSTEMS[config.manager].submit, text)
    number = re.search(r"\d+[\w.\[\]-]*", reply)
    if number is None:
        raise _failed(config.manager, f"what holds no number of a job ({reply.strip()!r})")
    return {"job": number[0]}


def state(job: Job) -> str | None:
    """``pending`` or ``running``, or None if the system no longer knows the job.

    ``pending (Eqw)`` is a job that Grid Engine could not start and will not try again.
    """
    system, number = SYSTEMS[job.manager], str(job.native["job"])
    try:
        reply = _call(job.manager, tuple(word.replace("{job}", number) for word in system.state))
    except BadInput:
        return None  # systems forget jobs that ended a while ago
    pending, running = (
        re.search(pattern.replace("{job}", re.escape(number)), reply) for pattern in (system.pending, system.running)
    )
    if pending:
        stuck = pending.groupdict().get("stuck")
        return f"pending ({stuck})" if stuck else "pending"
    return "running" if running else None


def cancel(job: Job) -> None:
    """Have the system end the job; the driver gets a signal and closes its cluster."""
    _call(job.manager, (SYSTEMS[job.manager].cancel, job.native["job"]))


def _call(manager: str, command: tuple[str, ...], text: str | None = None) -> str:
    """The standard output of a command of a batch system."""
    try:
        process = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(manager, f"`{command[0]}`, which can't be run ({error})") from error
    if process.returncode:
        raise _failed(manager, f"`{shlex.join(command)}` said: {process.stderr.strip() or process.stdout.strip()}")
    return process.stdout


def _failed(manager: str, found: str) -> BadInput:
    return BadInput(
        manager,
        found,
        f"a machine where {manager.upper()}'s commands work",
        "the job would not run",
        "do it on a login node, and look at the directives with `ips2 cluster check`",
    )

"""Drivers as jobs of a batch system or of Kubernetes: their scripts, and the commands to submit, watch and end them."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ips2_dask.clusters import jobqueue, kubernetes
from ips2_dask.clusters.config import DRIVER_MEMORY, Config, Kubernetes, Queue, Worker
from ips2_dask.clusters.job_record import Job
from ips2_dask.errors import BadInput


class System(NamedTuple):
    """The commands of a system, lines of a script, and by what pattern of its answer a job has which state.

    A script goes to the standard input of ``submit``. ``{job}`` stands for what ``number`` matched in the reply.
    """

    submit: str
    ask: str
    cancel: str
    lines: tuple[str, ...]
    states: dict[str, str]
    number: str = r"\d+[\w.\[\]-]*"


SYSTEMS = {
    "slurm": System(
        "sbatch --parsable",
        "squeue -h -o %T -j {job}",
        "scancel {job}",
        ("#SBATCH -o {log}", "#SBATCH --open-mode=append", "#SBATCH --signal=B:TERM@60"),
        {"pending": "PENDING|CONFIGURING|REQUEUE|SUSPENDED", "running": "RUNNING|COMPLETING"},
    ),
    "pbs": System(
        "qsub",
        "qstat -f {job}",
        "qdel {job}",
        ("#PBS -o {log}", "#PBS -j oe"),
        {"pending": "job_state = [QHWT]", "running": "job_state = [RE]"},
    ),
    # qdel and the walltime kill at once, unless -notify has SIGUSR2 come a minute earlier; SIGUSR1 goes before a stop.
    # Eqw: Grid Engine could not start the job and will not try again
    "sge": System(
        "qsub -terse",
        "qstat",
        "qdel {job}",
        ('#$ -o "{log}"', "#$ -notify", "trap '' USR1"),
        {
            "pending (Eqw)": r"(?m)^ *{job}(?: +\S+){3} +E\w*",
            "pending": r"(?m)^ *{job}(?: +\S+){3} +\w*qw",
            "running": r"(?m)^ *{job} ",
        },
    ),
    "lsf": System(
        "bsub",
        "bjobs -noheader -o stat {job}",
        "bkill {job}",
        ("#BSUB -o {log}",),
        {"pending": "PEND|PSUSP|WAIT", "running": "RUN|SUSP"},
    ),
    "kubernetes": System(
        "kubectl create -o name -f - {job}",
        "kubectl get {job} --ignore-not-found -o jsonpath=status:{.status.jobStatus}",
        "kubectl delete {job} --wait=false --ignore-not-found",
        (),
        {"running": "Running", "done": "Successful", "failed": "Failed", "pending": "status:"},
        r"\S+",
    ),
}


FLAGS, WITH_VALUE = ("--insecure",), ("--workers", "--tls", "--cluster")
"""Options of a cluster, which the driver in a pod does not start: it is given the address of its scheduler."""


def run_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of ``ips2 run`` in a pod: without those that would start a cluster."""
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word not in FLAGS and not word.startswith(tuple(f"{name}=" for name in WITH_VALUE)):
            yield word


def script(job: Job, config: Config) -> str:
    """The script or the manifest of the driver's job, with the resources of the config's ``driver`` section."""
    if config.manager == "kubernetes":
        name = f"{config.kind(Kubernetes).name}-{job.id}"
        return kubernetes.as_yaml(kubernetes.job_manifest(config, name, list(run_arguments(job.arguments[1:]))))
    machine, driver = config.kind(Queue), config.driver
    walltime = driver.walltime or machine.walltime
    queue = dataclasses.replace(machine, processes=1, walltime=walltime, name="ips2-driver", logs=None, margin=10)
    worker = Worker(threads=driver.threads, memory=driver.memory)
    as_worker = jobqueue.worker_job(dataclasses.replace(config, machine=queue, worker=worker))
    words = [machine.python or sys.executable, "-m", "ips2_dask.cli.driver", str(job.folder)]
    lines = [
        "#!/usr/bin/env bash",
        str(as_worker.job_header),
        *(line.format(log=job.log) for line in SYSTEMS[config.manager].lines),
        *jobqueue.exports({DRIVER_MEMORY: str(driver.memory)}),
        *machine.prologue,
        f"cd {shlex.quote(job.cwd)}",
        # `exec`: the system's signals reach the driver itself, which closes its cluster before it goes
        f"exec {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def launch(job: Job, config: Config) -> dict[str, Any]:
    """Submit the driver's job and return at once, with its number or name."""
    system, text, namespace = SYSTEMS[config.manager], script(job, config), getattr(config.machine, "namespace", None)
    where = f"--namespace={namespace}" if namespace else ""
    (job.folder / "script").write_text(text, encoding="utf-8")
    reply = _call(config.manager, system.submit, where, text)
    number = re.search(system.number, reply)
    if number is None:
        raise _failed(config.manager, f"what holds no number of a job ({reply.strip()!r})")
    return {"job": f"{number[0]} {where}".strip()}


def state(job: Job) -> str | None:
    """One of the states of `SYSTEMS`, or None if the system no longer knows the job."""
    system, number = SYSTEMS[job.manager], str(job.native["job"])
    try:
        reply = _call(job.manager, system.ask, number)
    except BadInput:
        if job.manager == "kubernetes":
            raise
        return None  # the others forget jobs that ended a while ago
    patterns = {word: pattern.replace("{job}", re.escape(number)) for word, pattern in system.states.items()}
    return next((word for word, pattern in patterns.items() if re.search(pattern, reply)), None)


def cancel(job: Job) -> None:
    """Have the system end the job; the driver gets a signal and closes its cluster."""
    _call(job.manager, SYSTEMS[job.manager].cancel, job.native["job"])


def log_of_pod(job: Job, follow: bool) -> Iterator[str]:
    """The lines of the log of the driver's pod."""
    number = job.native["job"]
    pod = _call(job.manager, "kubectl get {job} --ignore-not-found -o jsonpath={.status.jobRunnerPodName}", number)
    if not pod:
        found, allowed = f"{job.id}, which has no pod", "one that is running, or has ended and was not deleted"
        raise BadInput("job", found, allowed, "there would be nothing to show", "look at `ips2 jobs list`")
    words = ["kubectl", "logs", pod, *number.split()[1:], *(["--follow"] if follow else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from process.stdout


def _call(manager: str, line: str, number: str, text: str | None = None) -> str:
    """The standard output of a command of a system."""
    words = line.replace("{job}", number).split()
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise _failed(manager, f"`{shlex.join(words)}` said: {error.stderr.strip() or error.stdout.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(manager, f"`{words[0]}`, which can't be run ({error})") from error


def _failed(manager: str, found: str) -> BadInput:
    if manager == "kubernetes":
        return kubernetes.no_kubernetes(found)
    remedy = "do it on a login node, and look at the directives with `ips2 cluster check`"
    return BadInput(manager, found, f"a machine where {manager.upper()}'s commands work", "no job would run", remedy)

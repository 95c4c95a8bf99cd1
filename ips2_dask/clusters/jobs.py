"""Submitted jobs, runs whose driver, too, runs on a cluster or by itself here: submit, ask after, read and end them.

The driver is a job of the batch system or of Kubernetes, or a process that outlives the terminal. A job's record is a
folder below the user's state folder that this user alone can read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import psutil

from ips2_dask.clusters import jobqueue, kubernetes, tls
from ips2_dask.clusters.config import DRIVER_MEMORY, Config, Kubernetes, Queue, Worker, refuse_secrets
from ips2_dask.clusters.config import find as find_config
from ips2_dask.errors import BadInput
from ips2_dask.store.files import LocalFiles

VARIABLE = "IPS2_STATE"  # of the environment: it names another state folder
CONFIG = "cluster.yaml"  # the copy of the cluster's config in a job's folder

ENDS = {0: "done", 130: "interrupted"}

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Drivers that this process started, by their process id. Without a reference Python warns, and leaves zombies."""


def _state_folder() -> Path:
    """The folder of the records: of the environment variable, or of the platform (``$XDG_STATE_HOME/ips2_dask``)."""
    own = os.environ.get(VARIABLE)
    folder = Path(os.path.expanduser(own)) if own else platformdirs.user_state_path("ips2_dask", appauthor=False)
    return folder.absolute() / "jobs"


# ---- records


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job; ``native`` is the manager's identifier of its driver, ``out`` the run directory."""

    id: str
    manager: str
    arguments: tuple[str, ...]
    cwd: str
    out: str
    submitted: str
    native: dict[str, Any] = dataclasses.field(default_factory=dict)
    cancelled: bool = False

    @property
    def folder(self) -> Path:
        """The folder of its record, config, script and log."""
        return _state_folder() / self.id

    @property
    def log(self) -> Path:
        """The file of its driver's log."""
        return self.folder / "log"

    @property
    def exit_status(self) -> int | None:
        """The exit status of its driver, or None if the driver has not ended in order."""
        text = LocalFiles(str(self.folder)).read("exit.json")
        return None if text is None else int(json.loads(text)["status"])

    def save(self) -> Job:
        """Write the record atomically."""
        LocalFiles(str(self.folder)).write("job.json", json.dumps(dataclasses.asdict(self), indent=1))
        return self


def new(manager: str, arguments: Sequence[str], out: str) -> Job:
    """A job with a folder of its own, not submitted yet."""
    now = datetime.datetime.now(datetime.UTC)
    name = f"{now:%y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    out = out if "://" in out else os.path.abspath(out)
    job = Job(name, manager, tuple(arguments), os.getcwd(), out, now.isoformat(timespec="seconds"))
    try:
        job.folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        found = f"{str(_state_folder())!r}, where no folder can be made ({error.strerror})"
        otherwise, remedy = "the job could not be found again", f"set {VARIABLE} to another folder"
        raise BadInput(VARIABLE, found, "one of this user", otherwise, remedy) from error
    return job


def jobs() -> list[Job]:
    """All records, the oldest first; other files are ignored."""
    found = []
    for path in sorted(_state_folder().glob("*/job.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append(Job(**{**content, "arguments": tuple(content["arguments"])}))
    return found


def find(name: str) -> Job:
    """The record of a job, by its id or an unambiguous prefix of it."""
    records = jobs()
    matches = [job for job in records if job.id == name] or [job for job in records if name and job.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    newest = ", ".join(job.id for job in records[:-4:-1]) or "none was submitted"
    found = f"{name!r}, which {'is several' if matches else 'is not known'}"
    allowed = f"the id of a job ({newest})"
    raise BadInput("job", found, allowed, "there would be nothing to show", "look at `ips2 jobs list`")


# ---- drivers as jobs of a batch system or of Kubernetes


class _System(NamedTuple):
    """The commands of a system: a script goes to the standard input of ``submit``, ``{job}`` stands for its number."""

    submit: str
    ask: str
    cancel: str


SYSTEMS = {
    "slurm": _System("sbatch --parsable", "squeue -h -o %T -j {job}", "scancel {job}"),
    "pbs": _System("qsub", "qstat -f {job}", "qdel {job}"),
    "sge": _System("qsub -terse", "qstat", "qdel {job}"),
    "lsf": _System("bsub", "bjobs -noheader -o stat {job}", "bkill {job}"),
    "kubernetes": _System(
        "kubectl create -o name -f - {job}",
        "kubectl get {job} --ignore-not-found -o jsonpath=status:{.status.jobStatus}",
        "kubectl delete {job} --wait=false --ignore-not-found",
    ),
}

LINES = {
    "slurm": ("#SBATCH -o {log}", "#SBATCH --open-mode=append", "#SBATCH --signal=B:TERM@60"),
    "pbs": ("#PBS -o {log}", "#PBS -j oe"),
    # qdel and the walltime kill at once, unless -notify has SIGUSR2 come a minute earlier; SIGUSR1 goes before a stop
    "sge": ('#$ -o "{log}"', "#$ -notify", "trap '' USR1"),
    "lsf": ("#BSUB -o {log}",),
}
"""Lines of a script beside those of dask-jobqueue."""

STATES = {
    "slurm": {"pending": "PENDING|CONFIGURING|REQUEUE|SUSPENDED", "running": "RUNNING|COMPLETING"},
    "pbs": {"pending": "job_state = [QHWT]", "running": "job_state = [RE]"},
    "sge": {
        "pending (Eqw)": r"(?m)^ *{job}(?: +\S+){3} +E\w*",  # Grid Engine could not start it and will not try again
        "pending": r"(?m)^ *{job}(?: +\S+){3} +\w*qw",
        "running": r"(?m)^ *{job} ",
    },
    "lsf": {"pending": "PEND|PSUSP|WAIT", "running": "RUN|SUSP"},
    "kubernetes": {"running": "Running", "done": "Successful", "failed": "Failed", "pending": "status:"},
}
"""By what pattern of a system's answer a job has which state."""


def script(job: Job, config: Config) -> str:
    """The script or the manifest of the driver's job, with the resources of the config's ``driver`` section."""
    if config.manager == "kubernetes":
        name = f"{config.kind(Kubernetes).name}-{job.id}"
        return kubernetes.as_yaml(kubernetes.job_manifest(config, name, job.arguments[1:]))
    machine, driver = config.kind(Queue), config.driver
    walltime = driver.walltime or machine.walltime
    queue = dataclasses.replace(machine, processes=1, walltime=walltime, name="ips2-driver", logs=None, margin=10)
    worker = Worker(threads=driver.threads, memory=driver.memory)
    as_worker = jobqueue.worker_job(dataclasses.replace(config, machine=queue, worker=worker))
    words = [machine.python or sys.executable, "-m", "ips2_dask.cli.driver", str(job.folder)]
    lines = [
        "#!/usr/bin/env bash",
        str(as_worker.job_header),
        *(line.format(log=job.log) for line in LINES[config.manager]),
        *jobqueue.exports({DRIVER_MEMORY: str(driver.memory)}),
        *machine.prologue,
        f"cd {shlex.quote(job.cwd)}",
        # `exec`: the system's signals reach the driver itself, which closes its cluster before it goes
        f"exec {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def _launch(job: Job, config: Config) -> dict[str, Any]:
    """Submit the driver's job and return at once, with its number or name."""
    text, namespace = script(job, config), getattr(config.machine, "namespace", None)
    where = f"--namespace={namespace}" if namespace else ""
    (job.folder / "script").write_text(text, encoding="utf-8")
    reply = _call(config.manager, SYSTEMS[config.manager].submit, where, text)
    number = re.search(r"\S+" if config.manager == "kubernetes" else r"\d+[\w.\[\]-]*", reply)
    if number is None:
        raise _failed(config.manager, f"what holds no number of a job ({reply.strip()!r})")
    return {"job": f"{number[0]} {where}".strip()}


def _asked(job: Job) -> str | None:
    """One of `STATES`, or None if the system no longer knows the job, or a process of this machine has ended."""
    if job.manager not in SYSTEMS:
        host = job.native["host"]
        return f"on {host}" if host != socket.gethostname() else None if _process(job) is None else "running"
    number = str(job.native["job"])
    try:
        reply = _call(job.manager, SYSTEMS[job.manager].ask, number)
    except BadInput:
        if job.manager == "kubernetes":
            raise
        return None  # the others forget jobs that ended a while ago
    patterns = {word: pattern.replace("{job}", re.escape(number)) for word, pattern in STATES[job.manager].items()}
    return next((word for word, pattern in patterns.items() if re.search(pattern, reply)), None)


def _log_of_pod(job: Job, follow: bool) -> Iterator[str]:
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


# ---- what is done with jobs


def submit(arguments: Sequence[str], config: Config, name: str | None, out: str) -> Job:
    """Submit a run to the batch system or Kubernetes, or else to a process that outlives the terminal, and return.

    Parameters
    ----------
    arguments : sequence of str
        The arguments of ``ips2 run``; of a ``--cluster`` among them the copy in the job's folder takes the place.
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
        native = _launch(job, config) if job.manager in SYSTEMS else _start(job)
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


def state(job: Job) -> str:
    """``pending``, ``running``, ``on HOST``, ``done``, ``failed (STATUS)``, ``interrupted``, ``cancelled`` or ``lost``.

    ``on HOST``: a process of another machine, which alone can tell. ``pending (Eqw)``: Grid Engine could not start it;
    ``qstat -j`` says why. ``lost``: it ended without an exit status; the same submission again continues the run.
    """
    status = job.exit_status
    if status is None:
        reply = _asked(job) if job.native else None
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
    if job.manager in SYSTEMS:
        _call(job.manager, SYSTEMS[job.manager].cancel, job.native["job"])  # the driver closes its cluster first
    elif (host := job.native["host"]) != socket.gethostname():
        found, remedy = f"{job.id}, a process of {host}", f"run `ips2 jobs cancel {job.id}` on {host}"
        raise BadInput("job", found, "a job that this machine reaches", "another process might end", remedy)
    elif _process(job) is not None:
        os.kill(job.native["pid"], signal.SIGTERM)  # it closes its cluster first
    return dataclasses.replace(job, cancelled=True).save()


def log_lines(job: Job, follow: bool = False) -> Iterator[str]:
    """The lines of the driver's log; with ``follow`` also those that it still writes, until it ends."""
    if job.manager == "kubernetes":
        yield from _log_of_pod(job, follow)
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

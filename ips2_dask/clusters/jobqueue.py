"""Workers as jobs of a batch system (SLURM, PBS, LSF, Grid Engine), through dask-jobqueue."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client
from tornado.ioloop import PeriodicCallback

from ips2_dask.clusters import need, tls, workers
from ips2_dask.clusters.config import Config, Lsf, Queue, Sge
from ips2_dask.clusters.resources import is_loopback

if TYPE_CHECKING:  # dask-jobqueue is the extra [jobqueue]
    from dask_jobqueue.core import Job, JobQueueCluster

KEEP_SECONDS = 10
"""Seconds between two checks for jobs that have died, each of which is submitted again."""

ADDRESSES = 2 << 30
"""Bytes of addresses that a job may take beyond its memory: libraries, stacks, and the arenas of threads. On two cores
a worker and its nanny took 1.2 GB more than their memory, and a driver 1.4 GB; more cores make more threads."""


def exports(variables: dict[str, str]) -> list[str]:
    """The lines of a script that set environment variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def options(config: Config) -> dict[str, Any]:
    """The arguments of dask-jobqueue's cluster: a job has ``processes`` workers of ``threads`` cores each."""
    machine, worker, bind, manager = config.kind(Queue), config.worker, config.bind, config.manager
    minutes, seconds = divmod(machine.walltime, 60)
    words = [*workers.arguments(config), "--lifetime", f"${{{workers.LIFETIME}}}s"]
    if worker.threads > 1:
        words += ["--nthreads", "1"]  # one task at a time, which has all the threads
    if bind.host and is_loopback(bind.host):
        words += ["--host", bind.host]
    # both ignore the script's first line, and bash is not the default of every queue or user; the user's own lines win
    directives = ["-S /bin/bash"] if manager in ("pbs", "sge") else []
    own: dict[str, object] = {"account" if manager in ("slurm", "pbs") else "project": machine.account}
    if isinstance(machine, Lsf):
        own |= {"lsf_units": machine.units, "use_stdin": True}
    if isinstance(machine, Sge):
        limits_addresses = machine.memory_resource in ("h_vmem", "s_vmem")
        size = (worker.memory or 0) + limits_addresses * ADDRESSES
        own["resource_spec"] = f"{machine.memory_resource}={-(-size // (worker.threads << 20))}M"  # of each slot
        if machine.parallel_environment:
            directives.append(f"-pe {machine.parallel_environment} {machine.processes * worker.threads}")
    arguments: dict[str, object] = {
        "cores": machine.processes * worker.threads,
        "processes": machine.processes,
        "memory": f"{machine.processes * (worker.memory or 0)}B",
        "queue": machine.queue,
        "walltime": f"{minutes // 60:02d}:{minutes % 60:02d}" + (f":{seconds:02d}" if manager != "lsf" else ""),
        "job_name": machine.name,
        "python": machine.python,
        "local_directory": worker.scratch,
        "death_timeout": workers.PATIENCE,
        "log_directory": machine.logs and os.path.abspath(os.path.expanduser(os.path.expandvars(machine.logs))),
        "job_script_prologue": [
            *exports({**workers.as_environment(workers.MEMORY), **workers.environment(config)}),
            *machine.prologue,
            *workers.lifetime_lines(machine),
        ],
        "job_extra_directives": [*directives, *machine.directives],
        "worker_extra_args": words,
        "interface": bind.interface,
        "scheduler_options": {
            "port": bind.port,
            "dashboard_address": bind.dashboard,
            **({"host": bind.host} if bind.host else {}),
        },
        **own,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _cluster_class(config: Config) -> type[JobQueueCluster]:
    module = need("dask_jobqueue", "jobqueue", f"a cluster on {config.manager.upper()}")
    return getattr(module, f"{config.manager.upper()}Cluster")


def worker_job(config: Config, logs: str | None = None) -> Job:
    """A worker's job as dask-jobqueue has it; the scheduler's address is not known yet."""
    arguments = {**options(config), **({"log_directory": logs} if logs else {})}
    del arguments["scheduler_options"]
    if config.tls:
        arguments |= {"protocol": "tls://", "security": tls.named(config.tls)}
    address = f"{arguments.get('protocol', 'tcp://')}SCHEDULER:PORT"
    return _cluster_class(config).job_cls(address, name="ips2-0", **arguments)


def preview(config: Config) -> str:
    """The script of a worker's job."""
    with tempfile.TemporaryDirectory() as aside:  # dask-jobqueue would create a missing folder of logs
        logs = options(config).get("log_directory")
        script = str(worker_job(config, aside if logs else None).job_script())
    return script.replace(aside, logs) if logs else script


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start a scheduler in this process and submit the workers' jobs; a job that dies is replaced."""
    made, security = _cluster_class(config), tls.security(config.tls)
    stack.enter_context(dask.config.set(workers.settings(workers.LOGS)))
    cluster = stack.enter_context(made(**options(config), security=security, silence_logs="error"))
    if config.adaptive is None:
        _keep(cluster, config.workers or 1, stack)
    return stack.enter_context(Client(cluster, security=security, set_as_default=False))


def _keep(cluster: JobQueueCluster, n_workers: int, stack: contextlib.ExitStack) -> None:
    """Scale to a number of workers, and again periodically, which replaces jobs that died or reached their lifetime."""
    cluster.scale(n_workers)
    again = PeriodicCallback(lambda: cluster.scale(n_workers), KEEP_SECONDS * 1000)
    cluster.loop.add_callback(again.start)
    stack.callback(cluster.loop.add_callback, again.stop)

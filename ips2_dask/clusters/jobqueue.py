"""Workers as jobs of a batch system (SLURM, PBS, LSF, Grid Engine), through dask-jobqueue."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from typing import TYPE_CHECKING

import dask
from distributed import Client
from tornado.ioloop import PeriodicCallback

from ips2_dask.clusters import tls, workers
from ips2_dask.clusters.config import Config, Lsf, Queue, Sge
from ips2_dask.clusters.extras import need

if TYPE_CHECKING:  # dask-jobqueue is the extra [jobqueue]
    from dask_jobqueue.core import Job, JobQueueCluster

CLASSES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster", "sge": "SGECluster"}

KEEP_SECONDS = 10
"""Seconds between two checks for jobs that have died, each of which is submitted again."""

ADDRESSES = 2 << 30
"""Bytes of addresses that a job may take beyond its memory: libraries, stacks, and the arenas of threads. On two cores
a worker and its nanny took 1.2 GB more than their memory, and a driver 1.4 GB; more cores make more threads."""


def _wall(seconds: int, manager: str) -> str:
    """A walltime in the notation of a batch system."""
    hours, rest = divmod(seconds, 3600)
    minutes = f"{hours:02d}:{rest // 60:02d}"
    return minutes if manager == "lsf" else f"{minutes}:{rest % 60:02d}"


def exports(variables: dict[str, str]) -> list[str]:
    """The lines of a script that set environment variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def options(config: Config) -> dict[str, object]:
    """The arguments of dask-jobqueue's cluster: a job has ``processes`` workers of ``threads`` cores each."""
    machine = config.kind(Queue)
    cores = machine.processes * config.worker.threads
    memory = machine.processes * (config.worker.memory or 0)
    arguments: dict[str, object] = {
        "cores": cores,
        "processes": machine.processes,
        "memory": f"{memory}B",
        "queue": machine.queue,
        "walltime": _wall(machine.walltime, config.manager),
        "job_name": machine.name,
        "python": machine.python,
        "local_directory": config.worker.scratch,
        "death_timeout": workers.PATIENCE,
        "log_directory": machine.logs and os.path.abspath(os.path.expanduser(os.path.expandvars(machine.logs))),
        "job_script_prologue": [
            *exports({**workers.as_environment(workers.memory_settings()), **workers.environment(config)}),
            *machine.prologue,
            *workers.lifetime_lines(machine),
        ],
        "job_extra_directives": [*_directives(config, machine, cores), *machine.directives],
        "worker_extra_args": _arguments(config),
        "interface": config.bind.interface,
        "scheduler_options": _scheduler(config),
        **_special(config, machine),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _arguments(config: Config) -> list[str]:
    words = [*workers.arguments(config), "--lifetime", f"${{{workers.LIFETIME}}}s"]
    if config.worker.threads > 1:
        words += ["--nthreads", "1"]  # one task at a time, which has all the threads
    if config.bind.host and tls.is_loopback(config.bind.host):
        words += ["--host", config.bind.host]
    return words


def _scheduler(config: Config) -> dict[str, object]:
    arguments: dict[str, object] = {"port": config.bind.port, "dashboard_address": config.bind.dashboard}
    if config.bind.host:
        arguments["host"] = config.bind.host
    return arguments


def _directives(config: Config, machine: Queue, cores: int) -> list[str]:
    """The lines before the user's own, which win over them."""
    if config.manager not in ("pbs", "sge"):
        return []
    shell = ["-S /bin/bash"]  # both ignore the script's first line, and bash is not the default of every queue or user
    if isinstance(machine, Sge) and machine.parallel_environment:
        return [*shell, f"-pe {machine.parallel_environment} {cores}"]
    return shell


def _special(config: Config, machine: Queue) -> dict[str, object]:
    """The arguments that differ between the systems."""
    account: dict[str, object] = {"account" if config.manager in ("slurm", "pbs") else "project": machine.account}
    if isinstance(machine, Lsf):
        return {**account, "lsf_units": machine.units, "use_stdin": True}
    if isinstance(machine, Sge):
        limits_addresses = machine.memory_resource in ("h_vmem", "s_vmem")
        size = (config.worker.memory or 0) + limits_addresses * ADDRESSES
        memory = -(-size // (config.worker.threads << 20))  # MiB of each slot
        return {**account, "resource_spec": f"{machine.memory_resource}={memory}M"}
    return account


def _job_class(config: Config) -> type[Job]:
    module = need("dask_jobqueue", "jobqueue", f"a cluster on {config.manager.upper()}")
    return getattr(module, CLASSES[config.manager]).job_cls


def preview(config: Config) -> str:
    """The script of a worker's job; the scheduler's address is not known yet."""
    arguments = options(config)
    arguments.pop("scheduler_options")
    scheme = "tcp"
    if config.tls:
        scheme, arguments["protocol"], arguments["security"] = "tls", "tls://", tls.named(config.tls)
    with tempfile.TemporaryDirectory() as aside:  # dask-jobqueue would create a missing folder of logs
        logs = arguments.get("log_directory")
        if logs:
            arguments["log_directory"] = aside
        script = str(_job_class(config)(f"{scheme}://SCHEDULER:PORT", name="ips2-0", **arguments).job_script())
    return script.replace(aside, str(logs)) if logs else script


def header(config: Config) -> str:
    """The directives at the head of a job's script."""
    arguments = options(config)
    arguments.pop("scheduler_options")
    return str(_job_class(config)("tcp://SCHEDULER:PORT", name=config.kind(Queue).name, **arguments).job_header)


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start a scheduler in this process and submit the workers' jobs; a job that dies is replaced."""
    module = need("dask_jobqueue", "jobqueue", f"a cluster on {config.manager.upper()}")
    security = tls.security(config.tls)
    stack.enter_context(dask.config.set(workers.log_settings()))
    cluster = stack.enter_context(
        getattr(module, CLASSES[config.manager])(**options(config), security=security, silence_logs="error")
    )
    client = stack.enter_context(Client(cluster, security=security, set_as_default=False))
    if config.adaptive is not None:
        cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
    else:
        _keep(cluster, config.workers or 1, stack)
    return client


def _keep(cluster: JobQueueCluster, n_workers: int, stack: contextlib.ExitStack) -> None:
    """Scale to a number of workers, and again periodically, which replaces jobs that died or reached their lifetime."""
    cluster.scale(n_workers)
    again = PeriodicCallback(lambda: cluster.scale(n_workers), KEEP_SECONDS * 1000)
    cluster.loop.add_callback(again.start)
    stack.callback(cluster.loop.add_callback, again.stop)

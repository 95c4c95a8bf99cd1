"""A scheduler and workers on hosts that are reached by SSH, through Dask's own SSHCluster."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import dask
from distributed import Client, SSHCluster

from ips2_dask.clusters import tls, workers
from ips2_dask.clusters.config import Config, Ssh
from ips2_dask.clusters.extras import need
from ips2_dask.errors import BadInput

ALONE = "ips2_dask.clusters.scheduler_preload"
"""The preload that ends a scheduler whose driver died: nobody else would."""


def connection(machine: Ssh) -> dict[str, Any]:
    """What asyncssh is given; what is left out is its default: the user's agent, keys and known_hosts."""
    out: dict[str, Any] = {"port": machine.port}
    if machine.username:
        out["username"] = machine.username
    if machine.keys:
        out["client_keys"] = [os.path.expanduser(path) for path in machine.keys]
    if machine.known_hosts:
        out["known_hosts"] = os.path.expanduser(machine.known_hosts)
    return out


def options(config: Config) -> dict[str, Any]:
    """What `SSHCluster` is given: the first host runs the scheduler, each of the others its workers."""
    machine = config.kind(Ssh)
    protocol = {"protocol": "tls://"} if config.tls else {}
    bind: dict[str, Any] = {"port": config.bind.port, "dashboard_address": config.bind.dashboard, **protocol}
    bind["preload"] = [ALONE]
    worker: dict[str, Any] = {"nthreads": 1, "n_workers": machine.processes, "dashboard": False, **protocol}
    for name in ("host", "interface"):
        if getattr(config.bind, name):
            bind[name] = getattr(config.bind, name)
    if config.bind.interface:
        worker["interface"] = config.bind.interface
    elif config.bind.host and tls.is_loopback(config.bind.host):
        worker["host"] = config.bind.host  # all hosts are this one
    if config.worker.memory:
        worker["memory_limit"] = config.worker.memory
    if config.worker.scratch:
        worker["local_directory"] = config.worker.scratch
    worker["death_timeout"] = workers.PATIENCE  # a killed scheduler leaves no workers behind
    worker["env"] = workers.environment(config)
    if workers.preloads(config):
        worker["preload"] = workers.preloads(config)
    hosts = machine.hosts if len(machine.hosts) > 1 else machine.hosts * 2
    return {
        "hosts": list(hosts),
        "connect_options": connection(machine),
        "scheduler_options": bind,
        "worker_options": worker,
        "remote_python": machine.python,
    }


def preview(config: Config) -> str:
    """What would be started, in words."""
    chosen = options(config)
    scheduler, *others = chosen["hosts"]
    each = chosen["worker_options"]["n_workers"]
    return f"by SSH: the scheduler on {scheduler}, {each} worker process(es) on each of {', '.join(others)}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start the cluster and a client of it; both end with the stack.

    Raises
    ------
    BadInput
        Where a host can't be reached.
    """
    asyncssh = need("asyncssh", "ssh", "a cluster by SSH")
    secured = tls.security(config.tls)
    settings = {"distributed.nanny.pre-spawn-environ": workers.environment(config), **tls.settings(config.tls)}
    stack.enter_context(dask.config.set(settings))  # which Dask hands to the processes on the hosts
    try:
        cluster = stack.enter_context(SSHCluster(**options(config), security=secured))
    except (OSError, asyncssh.Error, RuntimeError) as error:
        raise unreachable(config.kind(Ssh), error) from error
    return stack.enter_context(Client(cluster, security=secured, set_as_default=False))


def unreachable(machine: Ssh, error: BaseException) -> BadInput:
    """The error of hosts that can't be used."""
    return BadInput(
        "ssh.hosts", f"{', '.join(machine.hosts)} ({type(error).__name__}: {error})",
        "hosts where this user may log in without a password and this package runs", "nothing could be started there",
        "try `ssh HOST true`, then look at keys, known_hosts and python in the config",
    )  # fmt: skip

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

SCHEDULER_PRELOAD = "ips2_dask.clusters.scheduler_preload"
"""The preload that closes a scheduler whose driver has died, which nothing else would do."""


def connection(machine: Ssh) -> dict[str, object]:
    """The arguments of asyncssh, whose defaults are the user's agent, keys and known_hosts."""
    arguments: dict[str, object] = {"port": machine.port}
    if machine.username:
        arguments["username"] = machine.username
    if machine.keys:
        arguments["client_keys"] = [os.path.expanduser(path) for path in machine.keys]
    if machine.known_hosts:
        arguments["known_hosts"] = os.path.expanduser(machine.known_hosts)
    return arguments


def options(config: Config) -> dict[str, Any]:
    """The arguments of `SSHCluster`: the first host runs the scheduler, the others run the workers."""
    machine = config.kind(Ssh)
    protocol = {"protocol": "tls://"} if config.tls else {}
    bind: dict[str, object] = {"port": config.bind.port, "dashboard_address": config.bind.dashboard, **protocol}
    bind["preload"] = [SCHEDULER_PRELOAD]
    worker: dict[str, object] = {"nthreads": 1, "n_workers": machine.processes, "dashboard": False, **protocol}
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
    worker["death_timeout"] = workers.PATIENCE  # the workers of a killed scheduler close
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
    """The cluster that would be started, in words."""
    arguments = options(config)
    scheduler, *others = arguments["hosts"]
    each = arguments["worker_options"]["n_workers"]
    return f"by SSH: the scheduler on {scheduler}, {each} worker process(es) on each of {', '.join(others)}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start the cluster and a client of it; both end with the stack.

    Raises
    ------
    BadInput
        If a host can't be reached.
    """
    asyncssh = need("asyncssh", "ssh", "a cluster by SSH")
    security = tls.security(config.tls)
    settings = {
        "distributed.nanny.pre-spawn-environ": workers.environment(config),
        **workers.memory_settings(),
        **workers.log_settings(),
        **tls.settings(config.tls),
    }
    stack.enter_context(dask.config.set(settings))  # Dask passes its configuration on to the hosts
    try:
        cluster = stack.enter_context(SSHCluster(**options(config), security=security))
    except (OSError, asyncssh.Error, RuntimeError) as error:
        raise unreachable(config.kind(Ssh), error) from error
    return stack.enter_context(Client(cluster, security=security, set_as_default=False))


def unreachable(machine: Ssh, error: BaseException) -> BadInput:
    """The error of hosts that can't be used."""
    return BadInput(
        "ssh.hosts",
        f"{', '.join(machine.hosts)} ({type(error).__name__}: {error})",
        "hosts where this user may log in without a password and this package runs",
        "nothing could be started there",
        "try `ssh HOST true`, then look at keys, known_hosts and python in the config",
    )

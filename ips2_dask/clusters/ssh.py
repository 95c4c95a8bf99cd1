"""A scheduler and workers on hosts that are reached by SSH, through Dask's own SSHCluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import dask
from distributed import Client, SSHCluster

from ips2_dask.clusters import need, tls, workers
from ips2_dask.clusters.config import Config, Ssh
from ips2_dask.clusters.resources import is_loopback
from ips2_dask.errors import BadInput


def _given(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments without those that say nothing."""
    return {name: value for name, value in arguments.items() if value not in (None, [])}


def options(config: Config) -> dict[str, Any]:
    """The arguments of `SSHCluster`: the first host runs the scheduler, the others run the workers."""
    machine, bind, worker = config.kind(Ssh), config.bind, config.worker
    protocol = "tls://" if config.tls else None
    own = {
        "port": machine.port,
        "username": machine.username,
        "client_keys": [os.path.expanduser(path) for path in machine.keys],
        "known_hosts": machine.known_hosts and os.path.expanduser(machine.known_hosts),
    }
    scheduler = {
        "port": bind.port,
        "dashboard_address": bind.dashboard,
        "protocol": protocol,
        "preload": [workers.PRELOAD],  # it closes a scheduler whose driver has died, which nothing else would do
        "host": bind.host,
        "interface": bind.interface,
    }
    each = {
        "nthreads": 1,
        "n_workers": machine.processes,
        "dashboard": False,
        "protocol": protocol,
        "host": bind.host if bind.host and is_loopback(bind.host) else None,  # then all hosts are this one
        "interface": bind.interface,
        "memory_limit": worker.memory,
        "local_directory": worker.scratch,
        "death_timeout": workers.PATIENCE,  # the workers of a killed scheduler close
        "env": workers.environment(config),
        "preload": workers.preloads(config),
    }
    return {
        "hosts": list(machine.hosts if len(machine.hosts) > 1 else machine.hosts * 2),
        "connect_options": _given(own),  # asyncssh's defaults are the user's agent, keys and known_hosts
        "scheduler_options": _given(scheduler),
        "worker_options": _given(each),
        "remote_python": machine.python,
    }


def preview(config: Config) -> str:
    """The cluster that would be started, in words."""
    arguments = options(config)
    scheduler, *others = arguments["hosts"]
    each = arguments["worker_options"]["n_workers"]
    return f"by SSH: the scheduler on {scheduler}, {each} worker process(es) on each of {', '.join(others)}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start the cluster and a client of it; both end with the stack."""
    asyncssh = need("asyncssh", "ssh", "a cluster by SSH")
    security = tls.security(config.tls)
    settings = {
        "distributed.nanny.pre-spawn-environ": workers.environment(config),
        **workers.settings({**workers.MEMORY, **workers.LOGS}),
        **tls.settings(config.tls),
    }
    stack.enter_context(dask.config.set(settings))  # Dask passes its configuration on to the hosts
    try:
        cluster = stack.enter_context(SSHCluster(**options(config), security=security))
    except (OSError, asyncssh.Error, RuntimeError) as error:
        found = f"{', '.join(config.kind(Ssh).hosts)} ({type(error).__name__}: {error})"
        allowed = "hosts where this user may log in without a password and this package runs"
        remedy = "try `ssh HOST true`, then look at keys, known_hosts and python in the config"
        raise BadInput("ssh.hosts", found, allowed, "nothing could be started there", remedy) from error
    return stack.enter_context(Client(cluster, security=security, set_as_default=False))

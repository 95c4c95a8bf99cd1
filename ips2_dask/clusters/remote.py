"""Clusters through Dask's own classes: hosts reached by SSH, a Gateway server, or a scheduler that runs already."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

import dask
from distributed import Client, Security, SSHCluster

from ips2_dask.clusters import need, tls, workers
from ips2_dask.clusters.config import Config, Gateway, Scheduler, Ssh
from ips2_dask.clusters.resources import is_loopback
from ips2_dask.errors import BadInput


def preview(config: Config) -> str:
    """What a run would start, in words."""
    machine = config.machine
    if isinstance(machine, Scheduler):
        certificates = f"the certificates in {config.tls}" if config.tls else "Dask's own configuration of TLS"
        encryption = f", with {certificates}" if machine.address.startswith("tls://") else ""
        return f"nothing: the scheduler at {machine.address} is used{encryption}, and left running"
    if isinstance(machine, Gateway):
        n = f"{config.adaptive.minimum} to {config.adaptive.maximum}" if config.adaptive else str(config.workers or 1)
        choices = ", ".join(f"{name}={value}" for name, value in machine.options.items()) or "the server's own options"
        return f"{n} worker(s) of the Dask Gateway at {machine.address} with {choices}"
    arguments = _ssh_options(config)
    scheduler, *others = arguments["hosts"]
    each = arguments["worker_options"]["n_workers"]
    return f"by SSH: the scheduler on {scheduler}, {each} worker process(es) on each of {', '.join(others)}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """A client, which closes with the stack; what was started for it ends with the stack, too."""
    starts = {Scheduler: _connect, Gateway: _start_by_gateway, Ssh: _start_by_ssh}
    return starts[type(config.machine)](config, stack)


# ---- by SSH


def _given(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments without those that say nothing."""
    return {name: value for name, value in arguments.items() if value not in (None, [])}


def _ssh_options(config: Config) -> dict[str, Any]:
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


def _start_by_ssh(config: Config, stack: contextlib.ExitStack) -> Client:
    asyncssh = need("asyncssh", "ssh", "a cluster by SSH")
    security = tls.security(config.tls)
    settings = {
        "distributed.nanny.pre-spawn-environ": workers.environment(config),
        **workers.settings({**workers.MEMORY, **workers.LOGS}),
        **tls.settings(config.tls),
    }
    stack.enter_context(dask.config.set(settings))  # Dask passes its configuration on to the hosts
    try:
        cluster = stack.enter_context(SSHCluster(**_ssh_options(config), security=security))
    except (OSError, asyncssh.Error, RuntimeError) as error:
        found = f"{', '.join(config.kind(Ssh).hosts)} ({type(error).__name__}: {error})"
        allowed = "hosts where this user may log in without a password and this package runs"
        remedy = "try `ssh HOST true`, then look at keys, known_hosts and python in the config"
        raise BadInput("ssh.hosts", found, allowed, "nothing could be started there", remedy) from error
    return stack.enter_context(Client(cluster, security=security, set_as_default=False))


# ---- a Gateway server


def _start_by_gateway(config: Config, stack: contextlib.ExitStack) -> Client:
    module, machine = need("dask_gateway", "gateway", "a cluster of Dask Gateway"), config.kind(Gateway)
    # what is None says Dask's configuration
    given = _given({"address": machine.address, "proxy_address": machine.proxy_address, "auth": machine.auth})
    try:
        cluster = stack.enter_context(module.GatewayCluster(**{**given, **machine.options}))
    except (OSError, ValueError, module.GatewayClusterError, module.GatewayServerError) as error:
        found = f"{machine.address} ({type(error).__name__}: {error})"
        allowed, remedy = "a Dask Gateway server", "look at address, auth and options in the config"
        raise BadInput("gateway.address", found, allowed, "there would be no workers", remedy) from error
    if config.adaptive is None:
        cluster.scale(config.workers or 1)
    return stack.enter_context(cluster.get_client(set_as_default=False))


# ---- a scheduler that runs already


def _connect(config: Config, stack: contextlib.ExitStack) -> Client:
    address = config.kind(Scheduler).address
    security = tls.security(config.tls)
    if security is None and address.startswith("tls://"):
        security = Security(require_encryption=True)  # with the certificates that Dask's own configuration names
        if not (security.tls_ca_file and security.tls_client_cert):
            found, allowed = "nothing, with an address of tls://", "a folder of `ips2 cluster certs`, or Dask's own"
            why, remedy = "the scheduler would refuse this client", "give --tls DIR (in a config: tls: DIR)"
            raise BadInput("tls", found, allowed, why, remedy)
    _check_address(address)
    try:
        client = Client(address, timeout="30s", set_as_default=False, security=security)
    except (OSError, ValueError, RuntimeError) as error:  # what Dask raises if the other side speaks another protocol
        raise _no_scheduler(f"{address!r}, which does not answer as a scheduler ({error})") from error
    stack.enter_context(client)
    try:
        client.wait_for_workers(1, timeout=min(config.timeout, 60))
    except TimeoutError as error:
        raise _no_scheduler(f"{address!r}, a scheduler without a worker") from error
    return client


def _check_address(address: str) -> None:
    """Refuse an address where nothing listens, for which Dask would wait."""
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        raise _no_scheduler(f"{address!r}, which is no address")
    if scheme in ("", "tcp", "tls"):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            raise _no_scheduler(f"{address!r}, where nothing answers ({error})") from error


def _no_scheduler(found: str) -> BadInput:
    allowed = "the address of a running Dask scheduler, such as tcp://127.0.0.1:8786"
    otherwise, remedy = "the run would wait for ever", "start `dask scheduler`, or leave the option out"
    return BadInput("scheduler", found, allowed, otherwise, remedy)

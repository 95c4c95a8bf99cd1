"""A cluster that a Dask Gateway server starts."""

from __future__ import annotations

import contextlib

from distributed import Client

from ips2_dask.clusters import need
from ips2_dask.clusters.config import Config, Gateway
from ips2_dask.errors import BadInput


def preview(config: Config) -> str:
    """The cluster that would be asked for, in words."""
    machine = config.kind(Gateway)
    n = f"{config.adaptive.minimum} to {config.adaptive.maximum}" if config.adaptive else str(config.workers or 1)
    choices = ", ".join(f"{name}={value}" for name, value in machine.options.items()) or "the server's own options"
    return f"{n} worker(s) of the Dask Gateway at {machine.address} with {choices}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Ask the server for a cluster and connect to it; it is shut down with the stack."""
    module, machine = need("dask_gateway", "gateway", "a cluster of Dask Gateway"), config.kind(Gateway)
    connection = {"address": machine.address, "proxy_address": machine.proxy_address, "auth": machine.auth}
    # what is None says Dask's configuration
    given = {name: value for name, value in connection.items() if value is not None}
    try:
        cluster = stack.enter_context(module.GatewayCluster(**{**given, **machine.options}))
    except (OSError, ValueError, module.GatewayClusterError, module.GatewayServerError) as error:
        found = f"{machine.address} ({type(error).__name__}: {error})"
        allowed, remedy = "a Dask Gateway server", "look at address, auth and options in the config"
        raise BadInput("gateway.address", found, allowed, "there would be no workers", remedy) from error
    if config.adaptive is None:
        cluster.scale(config.workers or 1)
    return stack.enter_context(cluster.get_client(set_as_default=False))

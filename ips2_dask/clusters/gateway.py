"""A cluster that a Dask Gateway server starts for its users."""

from __future__ import annotations

import contextlib
from typing import Any

from distributed import Client

from ips2_dask.clusters.config import Config, Gateway
from ips2_dask.clusters.extras import need
from ips2_dask.errors import BadInput


def options(config: Config) -> dict[str, Any]:
    """What `GatewayCluster` is given; who the user is comes from Dask's configuration and the environment."""
    machine = config.kind(Gateway)
    given = {"address": machine.address, "proxy_address": machine.proxy_address, "auth": machine.auth}
    return {**{name: value for name, value in given.items() if value is not None}, **machine.options}


def preview(config: Config) -> str:
    """What would be asked of the server, in words."""
    machine = config.kind(Gateway)
    n = f"{config.adaptive.minimum} to {config.adaptive.maximum}" if config.adaptive else str(config.workers or 1)
    asked = ", ".join(f"{name}={value}" for name, value in machine.options.items()) or "the server's own options"
    return f"{n} worker(s) of the Dask Gateway at {machine.address} with {asked}"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Ask the server for a cluster and connect to it; it is shut down with the stack.

    Raises
    ------
    BadInput
        Where the server does not answer.
    """
    module = need("dask_gateway", "gateway", "a cluster of Dask Gateway")
    machine = config.kind(Gateway)
    try:
        cluster = stack.enter_context(module.GatewayCluster(**options(config)))
    except (OSError, ValueError, module.GatewayClusterError, module.GatewayServerError) as error:
        raise BadInput(
            "gateway.address", f"{machine.address} ({type(error).__name__}: {error})", "a Dask Gateway server",
            "there would be no workers", "look at address, auth and options in the config",
        ) from error  # fmt: skip
    if config.adaptive is not None:
        cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
    else:
        cluster.scale(config.workers or 1)
    return stack.enter_context(cluster.get_client(set_as_default=False))

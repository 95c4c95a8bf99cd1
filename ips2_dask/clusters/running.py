"""A scheduler that runs already: connected to, and left running."""

from __future__ import annotations

import contextlib
import socket

from distributed import Client, Security

from ips2_dask.clusters import tls
from ips2_dask.clusters.config import Config, Running
from ips2_dask.errors import BadInput


def preview(config: Config) -> str:
    """What would be started: nothing."""
    machine = config.kind(Running)
    with_what = f"the certificates in {config.tls}" if config.tls else "Dask's own configuration of TLS"
    how = f", with {with_what}" if machine.address.startswith("tls://") else ""
    return f"nothing: the scheduler at {machine.address} is used{how}, and left running"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """A client of the scheduler, which closes with the stack.

    Raises
    ------
    BadInput
        Where nothing listens, or something that is no scheduler with at least one worker.
    """
    address = config.kind(Running).address
    secured = tls.security(config.tls)
    if secured is None and address.startswith("tls://"):
        secured = _configured()
    check_address(address)
    try:
        client = Client(address, timeout="30s", set_as_default=False, security=secured)
    except (OSError, ValueError, RuntimeError) as error:  # what Dask raises when nobody answers in its language
        raise _no_scheduler(f"{address!r}, which does not answer as a scheduler ({error})") from error
    stack.enter_context(client)
    try:
        client.wait_for_workers(1, timeout=min(config.timeout, 60))
    except TimeoutError as error:
        raise _no_scheduler(f"{address!r}, a scheduler without a worker") from error
    return client


def _configured() -> Security:
    """The certificates that Dask's own configuration names."""
    secured = Security(require_encryption=True)
    if not (secured.tls_ca_file and secured.tls_client_cert):
        raise BadInput(
            "tls", "nothing, with an address of tls://", "a folder of `ips2 certs`, or Dask's configuration of TLS",
            "the scheduler would refuse this client", "give --tls DIR (in a config: tls: DIR)",
        )  # fmt: skip
    return secured


def check_address(address: str) -> None:
    """Refuse a scheduler address that Dask could only wait for.

    Raises
    ------
    BadInput
        Where nothing listens there.
    """
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    found = None
    if not host or not port.isdigit():
        found = f"{address!r}, which is no address"
    elif scheme in ("", "tcp", "tls"):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            found = f"{address!r}, where nothing answers ({error})"
    if found:
        raise _no_scheduler(found)


def _no_scheduler(found: str) -> BadInput:
    return BadInput(
        "scheduler", found, "the address of a running Dask scheduler, such as tcp://127.0.0.1:8786",
        "the run would wait for a cluster that never comes", "start `dask scheduler`, or leave the option out",
    )  # fmt: skip

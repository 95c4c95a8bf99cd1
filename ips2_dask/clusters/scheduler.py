"""A connection to a scheduler that runs already, and is left running."""

from __future__ import annotations

import contextlib
import socket

from distributed import Client, Security

from ips2_dask.clusters import tls
from ips2_dask.clusters.config import Config, Scheduler
from ips2_dask.errors import BadInput


def preview(config: Config) -> str:
    """What a run would do, in words: start nothing and connect."""
    address = config.kind(Scheduler).address
    certificates = f"the certificates in {config.tls}" if config.tls else "Dask's own configuration of TLS"
    encryption = f", with {certificates}" if address.startswith("tls://") else ""
    return f"nothing: the scheduler at {address} is used{encryption}, and left running"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """A client of the scheduler, which closes with the stack."""
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

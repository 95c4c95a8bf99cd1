"""Security of a cluster: the certificates that `ips2 certs` made, and a refusal of ports that anyone could use."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from distributed import Security
from distributed.utils import get_ip_interface

from ips2_dask.clusters.config import Bind, Config
from ips2_dask.errors import BadInput

ROLES = ("scheduler", "worker", "client")
CA = "ca.pem"
_ENDS = (("cert", "pem"), ("key", "key"))


def folder_of(tls: str) -> Path:
    """The folder of certificates, with ``~`` and variables expanded; the ``~`` of an unknown user stays as it is."""
    return Path(os.path.expanduser(os.path.expandvars(tls))).absolute()


def named(tls: str, roles: Sequence[str] = ROLES) -> Security:
    """Dask's record of the certificates of some roles in a folder; the files need not exist."""
    folder = folder_of(tls)
    files = {f"tls_{role}_{kind}": str(folder / f"{role}.{end}") for role in roles for kind, end in _ENDS}
    return Security(require_encryption=True, tls_ca_file=str(folder / CA), **files)


def missing(tls: str) -> list[str]:
    """The files of a client that the folder lacks."""
    folder = folder_of(tls)
    return [name for name in (CA, "client.pem", "client.key") if not (folder / name).is_file()]


def security(tls: str | None) -> Security | None:
    """Dask's record of the certificates in a folder, whose files are checked; None without a folder.

    Raises
    ------
    BadInput
        If a file of the client is missing.
    """
    if tls is None:
        return None
    folder, lacking = folder_of(tls), missing(tls)
    if lacking:
        raise BadInput(
            "tls",
            f"{folder}, which lacks {', '.join(lacking)}",
            "a folder of certificates",
            "nobody could connect",
            "run: ips2 cluster certs DIR, with a new DIR, and give tls=DIR"
            if folder.is_dir() and any(folder.iterdir())
            else f"run: ips2 cluster certs {tls}",
        )
    return named(tls, [role for role in ROLES if (folder / f"{role}.pem").is_file()])


def settings(tls: str | None) -> dict[str, object]:
    """The certificates of a folder as keys of Dask's configuration, for processes that inherit it."""
    if tls is None:
        return {}
    folder = folder_of(tls)
    paths = {
        f"distributed.comm.tls.{role}.{kind}": str(folder / f"{role}.{end}") for role in ROLES for kind, end in _ENDS
    }
    return {"distributed.comm.require-encryption": True, "distributed.comm.tls.ca-file": str(folder / CA), **paths}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the ports of a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(bind: Bind) -> bool:
    """Whether only this machine can reach the scheduler."""
    if bind.interface is not None:
        try:
            return is_loopback(get_ip_interface(bind.interface))
        except ValueError:
            return bind.interface == "lo"
    return bind.host is not None and is_loopback(bind.host)


def check_bind(config: Config) -> None:
    """Refuse a scheduler that others could reach without a certificate, and a dashboard that others could reach.

    Raises
    ------
    BadInput
    """
    if config.insecure:
        return
    remedy = "run `ips2 cluster certs DIR` and write tls: DIR, or allow it with --insecure (insecure: true)"
    if config.manager == "kubernetes":  # whose operator does without certificates
        remedy = "write insecure: true"
    if config.tls is None and not _is_local(config.bind):
        raise BadInput(
            "bind",
            f"{config.bind.host or config.bind.interface or 'all interfaces'} without tls",
            "127.0.0.1, or any interface with tls",
            "whoever reaches the port could run code as this user",
            remedy,
        )
    host = config.bind.dashboard.rpartition(":")[0]
    if not is_loopback(host):
        raise BadInput(
            "bind.dashboard",
            config.bind.dashboard,
            "127.0.0.1 and a port",
            "the dashboard asks for no password",
            "write 127.0.0.1:8787 and use an SSH tunnel, or add --insecure",
        )

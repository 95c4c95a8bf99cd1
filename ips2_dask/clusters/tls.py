"""Certificates of a cluster: a folder of them, Dask's record of that folder, and a folder that is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from distributed import Security

from ips2_dask.clusters import need
from ips2_dask.errors import BadInput

ROLES = ("scheduler", "worker", "client")
CA = "ca.pem"
_ENDS = (("cert", "pem"), ("key", "key"))


def _folder_of(tls: str) -> Path:
    """The folder of certificates, with ``~`` and variables expanded; the ``~`` of an unknown user stays as it is."""
    return Path(os.path.expanduser(os.path.expandvars(tls))).absolute()


def named(tls: str, roles: Sequence[str] = ROLES) -> Security:
    """Dask's record of the certificates of some roles in a folder; the files need not exist."""
    folder = _folder_of(tls)
    files = {f"tls_{role}_{kind}": str(folder / f"{role}.{end}") for role in roles for kind, end in _ENDS}
    return Security(require_encryption=True, tls_ca_file=str(folder / CA), **files)


def missing(tls: str) -> list[str]:
    """The files of a client that the folder lacks."""
    return [name for name in (CA, "client.pem", "client.key") if not (_folder_of(tls) / name).is_file()]


def security(tls: str | None) -> Security | None:
    """Dask's record of the certificates in a folder, whose client's files must be there; None without a folder."""
    if tls is None:
        return None
    folder, lacking = _folder_of(tls), missing(tls)
    if lacking:
        found, remedy = f"{folder}, which lacks {', '.join(lacking)}", f"run: ips2 cluster certs {tls}"
        if folder.is_dir() and any(folder.iterdir()):
            remedy = "run: ips2 cluster certs DIR, with a new DIR, and give tls=DIR"
        raise BadInput("tls", found, "a folder of certificates", "nobody could connect", remedy)
    return named(tls, [role for role in ROLES if (folder / f"{role}.pem").is_file()])


def settings(tls: str | None) -> dict[str, object]:
    """The certificates of a folder as keys of Dask's configuration, for processes that inherit it."""
    if tls is None:
        return {}
    names = {"ca-file": CA, **{f"{role}.{kind}": f"{role}.{end}" for role in ROLES for kind, end in _ENDS}}
    files = {f"distributed.comm.tls.{key}": str(_folder_of(tls) / name) for key, name in names.items()}
    return {"distributed.comm.require-encryption": True, **files}


def make(directory: str | Path) -> list[Path]:
    """Make a new folder with one certificate of Dask's making and its key, under the names of all roles: the files.

    Whoever has the key of a role may run code on the cluster, so that a key for each would keep nobody out.
    """
    need("cryptography", "tls", "making certificates")
    folder = _folder_of(str(directory))
    fault = None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if names := sorted(path.name for path in folder.iterdir()):
            fault = f"which holds {', '.join(names[:3])}"
    except OSError as error:
        fault = f"which can't be made ({error.strerror})"
    if fault:
        allowed, otherwise = "a new or an empty folder", "keys that are in use would be lost"
        raise BadInput("certs", f"{str(folder)!r}, {fault}", allowed, otherwise, "give another folder")
    made = Security.temporary()
    files = {CA: made.tls_ca_file}
    for role in ROLES:
        files |= {f"{role}.{end}": getattr(made, f"tls_{role}_{kind}") for kind, end in _ENDS}
    for name, content in files.items():
        mode = 0o600 if name.endswith(".key") else 0o644  # from the start: nobody else may read a key for a moment
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
            stream.write(content)
    return [folder / name for name in files]

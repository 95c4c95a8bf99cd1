"""An OpenSSH server on 127.0.0.1 for this user, with keys that are thrown away."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from processes import answers, free_port, server

PROGRAM = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")


def missing() -> str | None:
    """Why there can be no SSH server here, or None."""
    if PROGRAM is None or shutil.which("ssh-keygen") is None:
        return "SSH: no sshd and ssh-keygen (apt-get install openssh-server)"
    return "SSH: no asyncssh (pip install asyncssh)" if importlib.util.find_spec("asyncssh") is None else None


@dataclasses.dataclass(frozen=True)
class SSH:
    """A running server, and how one gets in."""

    pid: int
    port: int
    user: str
    key: Path
    known_hosts: Path


@contextlib.contextmanager
def ssh_server(folder: Path, environment: Mapping[str, str]) -> Iterator[SSH]:
    """A server whose sessions have some variables, as a user's login shell gives them."""
    port = free_port()
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized_keys").write_bytes((folder / "key.pub").read_bytes())
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "PidFile": "none",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "SetEnv": " ".join(f'"{name}={value}"' for name, value in environment.items()),
    }
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items() if value))
    with _privilege_folder():
        command = [str(PROGRAM), "-D", "-e", "-f", str(folder / "sshd_config")]
        with server(command, folder / "sshd.log", lambda: answers(port)) as started:
            yield SSH(started.pid, port, getpass.getuser(), folder / "key", folder / "known_hosts")


@contextlib.contextmanager
def _privilege_folder() -> Iterator[None]:
    """The empty folder that root's sshd wants; it goes again if it was not there."""
    folder = Path("/run/sshd")
    made = os.geteuid() == 0 and not folder.exists()
    if made:
        folder.mkdir(mode=0o755)
    try:
        yield
    finally:
        if made:
            folder.rmdir()

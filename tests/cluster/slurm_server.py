"""A SLURM cluster of one node on 127.0.0.1: munged, slurmctld and slurmd in the foreground, without systemd."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from processes import free_port, server, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
PARTITION = "short"
CPUS = 8
"""Of the node, whatever the machine has: room for a driver beside its workers."""


def missing() -> str | None:
    """Why there can be no SLURM here, or None."""
    absent = [program for program in PROGRAMS if _find(program) is None]
    if absent:
        return f"SLURM: no {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "SLURM: slurmd starts jobs as their users, so it needs root"


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


@dataclasses.dataclass(frozen=True)
class Slurm:
    """A running cluster.

    Attributes
    ----------
    environment : dict
        What a process that is to use it is given.
    """

    environment: dict[str, str]

    def call(self, *command: str) -> str:
        """What a command of SLURM prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def queue(self, state: str | None = None) -> list[tuple[str, str]]:
        """Number and name of the jobs that have not ended, oldest first."""
        wanted = ["--states", state] if state else []
        lines = self.call("squeue", "--noheader", "--sort=i", "--format=%i %j", *wanted).splitlines()
        return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]

    def cancel(self, number: str) -> None:
        """End a job."""
        self.call("scancel", number)


def _configuration(folder: Path, host: str) -> dict[str, str]:
    """The lines of slurm.conf, as few as there can be."""
    return {
        "ClusterName": "tests",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(free_port()),
        "SlurmdPort": str(free_port()),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder / 'munge.socket'}",
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": str(folder / "spool"),
        "SlurmctldPidFile": str(folder / "slurmctld.pid"),
        "SlurmdPidFile": str(folder / "slurmd.pid"),
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "KillWait": "30",
    }


@contextlib.contextmanager
def slurm_cluster(folder: Path, memory: int = 16_000) -> Iterator[Slurm]:
    """A cluster whose only partition is ``PARTITION``; its node has ``CPUS`` cores and ``memory`` MB."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    lines = [f"{name}={value}" for name, value in _configuration(folder, host).items()]
    lines.append(f"NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory={memory} State=UNKNOWN")
    lines.append(f"PartitionName={PARTITION} Nodes={host} Default=YES MaxTime=INFINITE State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").touch()
    cluster = Slurm({"SLURM_CONF": str(folder / "slurm.conf")})
    with contextlib.ExitStack() as stack:
        stack.enter_context(_munged(folder, key))
        conf = ["-D", "-f", str(folder / "slurm.conf")]
        for command, ready in (
            (["slurmctld", *conf], lambda: _says(cluster, "UP", "scontrol", "ping")),
            (["slurmd", *conf, "-N", host], lambda: _says(cluster, "idle", "sinfo", "--noheader", "--format=%T")),
        ):
            found = _find(command[0])
            stack.enter_context(server([str(found), *command[1:]], folder / f"{command[0]}.log", ready))
        stack.callback(_cancel_all, cluster)
        yield cluster


def _munged(folder: Path, key: Path) -> contextlib.AbstractContextManager[object]:
    socket_ = folder / "munge.socket"
    files = [f"--{name}-file={folder / f'munge.{name}'}" for name in ("pid", "log", "seed")]
    command = [str(_find("munged")), "--foreground", "--force", f"--key-file={key}", f"--socket={socket_}", *files]
    return server(command, folder / "munged.log", socket_.exists)


def _says(cluster: Slurm, word: str, *command: str) -> bool:
    try:
        return word in cluster.call(*command)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return False


def _cancel_all(cluster: Slurm) -> None:
    """End all jobs and wait for it, by SIGKILL those that don't: their processes are not children of slurmd's."""
    for number, _ in cluster.queue():
        cluster.cancel(number)
    try:
        until(lambda: not cluster.queue(), "jobs are left")
    finally:
        for number, _ in cluster.queue():
            cluster.call("scancel", "--signal", str(signal.SIGKILL.value), "--full", number)

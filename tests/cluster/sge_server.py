"""A cell of Grid Engine of one node on 127.0.0.1: Debian's sge_qmaster and sge_execd in the foreground."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from processes import free_port, server, until

SYSTEM = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
DAEMONS = {"/usr/sbin/sge_qmaster": "-sh", "/usr/sbin/sge_execd": "-sel"}
"""Each with the option of ``qconf`` that prints this host once it serves."""
QUEUE = "short"
PARALLEL_ENVIRONMENT = "smp"
SLOTS = 8
"""Of the node, whatever the machine has: room for a driver beside its workers."""


def missing() -> str | None:
    """Why there can be no Grid Engine here, or None."""
    if not all(map(shutil.which, ("qsub", "qconf", *DAEMONS))):
        return "Grid Engine: no server (apt-get install gridengine-master gridengine-exec gridengine-client)"
    return None if os.geteuid() == 0 else "Grid Engine: sge_execd starts jobs as their users, so it needs root"


@dataclasses.dataclass(frozen=True)
class Sge:
    """A running cell.

    Attributes
    ----------
    environment : dict
        What a process that is to use it is given.
    """

    environment: dict[str, str]

    def call(self, *command: str, check: bool = True) -> str:
        """What a command of Grid Engine prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=check, timeout=60
        )
        return done.stdout

    def queue(self, state: str | None = None) -> list[tuple[str, str]]:
        """Number and name of the jobs that have not ended, oldest first."""
        wanted = ["-s", {"running": "r", "pending": "p"}[state]] if state else []
        told = self.call("qstat", "-u", "*", "-r", *wanted)
        return sorted(re.findall(r"^ *(\d+) .*\n +Full jobname: +(.*)$", told, re.M), key=lambda job: int(job[0]))

    def cancel(self, number: str) -> None:
        """End a job."""
        self.call("qdel", number)


def _settings(template: str, changed: Mapping[str, object]) -> str:
    """A configuration that ``qconf`` prints, with other values."""
    kept = [line for line in template.splitlines() if line.split(maxsplit=1)[:1] and line.split()[0] not in changed]
    return "\n".join([*kept, *(f"{name} {value}" for name, value in changed.items())]) + "\n"


def _lay_out(folder: Path, host: str) -> None:
    """The files of a cell that its qmaster reads before it answers anyone."""
    common, spool = folder / "default" / "common", folder / "spool"
    for made in (common, spool / "qmaster" / "job_scripts", spool / "execd"):
        made.mkdir(parents=True)
    for name in ("bin", "lib", "utilbin", "util"):
        (folder / name).symlink_to(Path("/var/lib/gridengine", name))
    (common / "act_qmaster").write_text(f"{host}\n")
    (common / "host_aliases").write_text(f"{host} localhost\n")  # which name 127.0.0.1 has is up to the machine
    bootstrap = {
        "admin_user": "none",
        "default_domain": "none",
        "ignore_fqdn": "true",
        "security_mode": "none",
        "spooling_method": "classic",
        "spooling_lib": "libspoolc",
        "spooling_params": f"{common};{spool / 'qmaster'}",
        "binary_path": folder / "bin",
        "qmaster_spool_dir": spool / "qmaster",
        "listener_threads": 2,
        "worker_threads": 2,
        "scheduler_threads": 1,
        "jvm_threads": 0,
    }
    (common / "bootstrap").write_text(_settings("", bootstrap))
    own = {
        "execd_spool_dir": spool / "execd",
        "mailer": "/bin/true",
        "min_uid": 0,
        "min_gid": 0,
        "load_report_time": "00:00:01",
    }
    (folder / "configuration").write_text(_settings((SHARED / "default-configuration").read_text(), own))


def _configure(cell: Sge, folder: Path, host: str, memory: int) -> None:
    """A queue of ``SLOTS`` slots, whose jobs share the node's memory, as a site would set it up."""

    def take(option: str, text: str) -> None:
        (folder / "given").write_text(text)
        cell.call("qconf", option, str(folder / "given"))

    scheduler = {"schedule_interval": "0:0:1", "flush_submit_sec": 1, "flush_finish_sec": 1}
    take("-Msconf", _settings(cell.call("qconf", "-ssconf"), scheduler))
    kept = [line for line in cell.call("qconf", "-sc").splitlines() if line.split()[0] != "h_vmem"]
    take("-Mc", "\n".join([*kept, "h_vmem h_vmem MEMORY <= YES YES 0 0"]) + "\n")
    cell.call("qconf", "-mattr", "exechost", "complex_values", f"h_vmem={memory}M", host)
    cores = {"pe_name": PARALLEL_ENVIRONMENT, "slots": SLOTS}
    take("-Ap", _settings((SHARED / "util/resources/pe/smp").read_text(), cores))
    queue = {
        "qname": QUEUE,
        "hostlist": host,
        "slots": SLOTS,
        "pe_list": PARALLEL_ENVIRONMENT,
        "load_thresholds": "NONE",  # a machine that does other things takes jobs all the same
    }
    take("-Aq", _settings(cell.call("qconf", "-sq"), queue))


@contextlib.contextmanager
def sge_cell(folder: Path, inherited: Mapping[str, str], memory: int = 16_000) -> Iterator[Sge]:
    """A cell whose only queue is ``QUEUE``; its node has ``SLOTS`` slots and ``memory`` MB.

    Jobs have the variables ``inherited``: Grid Engine hands them none of their submitter's.
    """
    host = socket.gethostname().partition(".")[0]
    ports = {"SGE_QMASTER_PORT": str(free_port()), "SGE_EXECD_PORT": str(free_port())}
    cell = Sge({"SGE_ROOT": str(folder), "SGE_CELL": "default", **ports})
    _lay_out(folder, host)
    spool = f"{folder / 'default' / 'common'};{folder / 'spool' / 'qmaster'}"
    cell.call(str(SYSTEM / "spoolinit"), "classic", "libspoolc", spool, "init")
    for kind, source in (
        ("configuration", str(folder / "configuration")),
        ("complexes", str(SHARED / "util/resources/centry")),
        ("usersets", str(SHARED / "util/resources/usersets")),
        ("managers", "root"),
    ):
        cell.call(str(SYSTEM / "spooldefaults"), kind, source)
    foreground = {**inherited, **cell.environment, "SGE_ND": "1"}
    with contextlib.ExitStack() as stack:
        for daemon, asked in DAEMONS.items():
            log = folder / f"{Path(daemon).name}.log"
            serves = functools.partial(_names, cell, asked, host)
            stack.enter_context(server([daemon], log, serves, foreground))
        cell.call("qconf", "-as", host)
        _configure(cell, folder, host, memory)
        stack.callback(_delete_all, cell)
        yield cell


def _names(cell: Sge, asked: str, host: str) -> bool:
    return host in cell.call("qconf", asked, check=False).split()


def _delete_all(cell: Sge) -> None:
    """End all jobs and wait for it: their processes are not children of sge_execd's."""
    cell.call("qdel", "-f", "-u", "*", check=False)
    until(lambda: not cell.queue(), "jobs are left")

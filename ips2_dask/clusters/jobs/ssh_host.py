"""The commands on a job's driver that run on the SSH host: ``python -m ips2_dask.clusters.jobs.ssh_host VERB``.

Standard input is one line of JSON, which holds the job's record; standard output is one line of JSON, or the log.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ips2_dask.clusters.jobs import detached
from ips2_dask.clusters.jobs.record import CONFIG, Job, from_record
from ips2_dask.clusters.jobs.submit import log_lines

Message = Mapping[str, Any]
"""A line of JSON that comes from the user's machine, or goes back to it."""


def _local_job(record: Message) -> Job:
    """The job of a record, as a process of this machine."""
    return dataclasses.replace(from_record(record), manager="local")


def start(request: Message) -> Message:
    """Start the driver in a session of its own, which lives on when the connection ends.

    If the hosts share a home, the job's folder exists already; else it is made, for this user alone.
    """
    job = _local_job(request["record"])
    shared = (job.folder / "job.json").exists()
    if not shared:
        job.folder.mkdir(parents=True, mode=0o700)
        (job.folder / CONFIG).write_text(request["config_text"], encoding="utf-8")
        arguments = [str(job.folder / CONFIG) if word == request["config_path"] else word for word in job.arguments]
        cwd = job.cwd if Path(job.cwd).is_dir() else str(Path.home())
        job = dataclasses.replace(job, arguments=tuple(arguments), cwd=cwd).save()
    native = detached.launch(job)
    if not shared:
        dataclasses.replace(job, native=native).save()  # so that it is a job here too
    return native


def look(request: Message) -> Message:
    """The state of the driver, and its exit status."""
    job = _local_job(request["record"])
    state = detached.state(job)  # before the status: a driver that ends between the two has left its status
    return {"state": state, "status": job.exit_status}


def cancel(request: Message) -> Message:
    """Ask the driver to end."""
    detached.cancel(_local_job(request["record"]))
    return {}


def logs(request: Message) -> None:
    """Print the log of the driver."""
    for line in log_lines(_local_job(request["record"]), request["follow"]):
        sys.stdout.write(line)
        sys.stdout.flush()


VERBS: dict[str, Callable[[Message], Message | None]] = {"start": start, "look": look, "cancel": cancel, "logs": logs}

if __name__ == "__main__":
    answer = VERBS[sys.argv[1]](json.loads(sys.stdin.readline()))
    if answer is not None:
        print(json.dumps(answer))

"""What the first host of a cluster by SSH does with a driver: ``python -m ips2_dask.clusters.jobs.there VERB``.

One line of JSON on standard input says of which job; the answer is one on standard output, or the log.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ips2_dask.clusters.jobs import detached
from ips2_dask.clusters.jobs.record import CONFIG, Job, from_record
from ips2_dask.clusters.jobs.submit import log_lines

Asked = dict[str, Any]


def _own(record: Asked) -> Job:
    """The job as a process of this machine."""
    return dataclasses.replace(from_record(record), manager="local")


def start(asked: Asked) -> Asked:
    """Start the driver in a session of its own, which lives on when the connection ends.

    Where hosts share a home the job's folder is there already; else it is made, for this user alone.
    """
    job = _own(asked["record"])
    shared = (job.folder / "job.json").exists()
    if not shared:
        job.folder.mkdir(parents=True, mode=0o700)
        (job.folder / CONFIG).write_text(asked["config_text"], encoding="utf-8")
        here = [str(job.folder / CONFIG) if word == asked["config_path"] else word for word in job.arguments]
        cwd = job.cwd if Path(job.cwd).is_dir() else str(Path.home())
        job = dataclasses.replace(job, arguments=tuple(here), cwd=cwd).save()
    native = detached.launch(job)
    if not shared:
        dataclasses.replace(job, native=native).save()  # so that it is a job here too
    return native


def look(asked: Asked) -> Asked:
    """Whether the driver is at work, and the exit status that it left."""
    job = _own(asked["record"])
    now = detached.state(job)
    return {"state": now, "status": job.exit_status}  # in this order: a driver that ends between the two has left it


def cancel(asked: Asked) -> Asked:
    """Ask the driver to end."""
    detached.cancel(_own(asked["record"]))
    return {}


def logs(asked: Asked) -> None:
    """Print what the driver prints."""
    for line in log_lines(_own(asked["record"]), asked["follow"]):
        sys.stdout.write(line)
        sys.stdout.flush()


VERBS: dict[str, Callable[[Asked], Asked | None]] = {"start": start, "look": look, "cancel": cancel, "logs": logs}

if __name__ == "__main__":
    answer = VERBS[sys.argv[1]](json.loads(sys.stdin.readline()))
    if answer is not None:
        print(json.dumps(answer))

"""``ips2 jobs``: what was submitted, and what became of it."""

from __future__ import annotations

import argparse
import json

from ips2_dask.cli.console import print_jobs
from ips2_dask.clusters.jobs import jobs, state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 jobs``."""
    parser.add_argument("--json", action="store_true", help="one JSON array as the last line of standard output")


def command(options: argparse.Namespace) -> int:
    """``ips2 jobs``: a line a job, the oldest first."""
    rows = [
        {"id": job.id, "state": state(job), "manager": job.manager, "submitted": job.submitted, "out": job.out}
        | {"native": job.native}
        for job in jobs()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        print_jobs(rows)
    return 0

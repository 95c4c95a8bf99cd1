"""``ips2 cancel``: end a submitted job."""

from __future__ import annotations

import argparse

from ips2_dask.clusters.jobs import cancel, find, state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 cancel``."""
    parser.add_argument("job", metavar="ID", help="of `ips2 submit` or `ips2 jobs`, or an unmistakable beginning of it")


def command(options: argparse.Namespace) -> int:
    """``ips2 cancel``: ask for the job's end, and say how it stands."""
    job = cancel(find(options.job))
    now = state(job)
    print(f"{job.id}: {'told to end' if job.cancelled and now in ('running', 'pending') else now}")
    return 0

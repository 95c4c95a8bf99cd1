"""Commands on submitted jobs: ``ips2 submit``, ``jobs``, ``logs`` and ``cancel``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ips2_dask.clusters.jobs import cancel, find, jobs, log_lines, state, submit

if TYPE_CHECKING:  # it loads SciPy and Numba
    from ips2_dask.cli.console import JobRow

JOB_HELP = "of `ips2 submit` or `ips2 jobs`, or an unmistakable beginning of it"


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 submit``, which are those of ``ips2 run``."""
    from ips2_dask.cli.run import add_run_arguments  # noqa: PLC0415  it loads SciPy and Numba; logs and cancel don't

    add_run_arguments(parser)


def submit_command(options: argparse.Namespace) -> int:
    """Check the options on this machine, submit the run to the cluster, and print the job's id."""
    from ips2_dask.cli.options import features_of, params_of, resources_of, text_of  # noqa: PLC0415  they load SciPy
    from ips2_dask.clusters import config_of  # noqa: PLC0415  it loads SciPy and Numba
    from ips2_dask.pipeline.prepare import check_params  # noqa: PLC0415  for this command alone

    params, resources = params_of(options), resources_of(options)
    check_params(params, resources)
    features_of(options)
    text_of(options)
    config = config_of(resources)
    job = submit(list(_without_cluster(options.given)), config, options.cluster, options.out)
    if not options.quiet:
        print(f"submitted; ips2 logs {job.id} --follow, ips2 jobs, ips2 cancel {job.id}", file=sys.stderr)
    print(job.id)
    return 0


def _without_cluster(words: Sequence[str]) -> Iterator[str]:
    """The command's arguments without its name and without ``--cluster``, which the job's record keeps."""
    rest = iter(words[words.index("submit") + 1 :])
    for word in rest:
        if word == "--cluster":
            next(rest, None)
        elif not word.startswith("--cluster="):
            yield word


def add_jobs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 jobs``."""
    parser.add_argument("--json", action="store_true", help="one JSON array as the last line of standard output")


def jobs_command(options: argparse.Namespace) -> int:
    """Print one line for each submitted job, the oldest first."""
    rows: list[JobRow] = [
        {
            "id": job.id,
            "state": state(job),
            "manager": job.manager,
            "submitted": job.submitted,
            "out": job.out,
            "native": job.native,
        }
        for job in jobs()
    ]
    if options.json:
        print(json.dumps(rows))
        return 0
    from ips2_dask.cli.console import print_jobs  # noqa: PLC0415  it loads SciPy and Numba; logs and cancel don't

    print_jobs(rows)
    return 0


def add_logs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 logs``."""
    parser.add_argument("job", metavar="ID", help=JOB_HELP)
    parser.add_argument("--follow", action="store_true", help="go on until the job ends")


def logs_command(options: argparse.Namespace) -> int:
    """Print the log of a job's driver; with ``--follow`` also the lines that it still writes."""
    for line in log_lines(find(options.job), options.follow):
        sys.stdout.write(line)
        sys.stdout.flush()
    return 0


def add_cancel_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 cancel``."""
    parser.add_argument("job", metavar="ID", help=JOB_HELP)


def cancel_command(options: argparse.Namespace) -> int:
    """Ask a job to end, and print its state."""
    job = cancel(find(options.job))
    now = state(job)
    print(f"{job.id}: {'told to end' if job.cancelled and now in ('running', 'pending') else now}")
    return 0

"""``ips2 logs``: what the driver of a submitted job prints."""

from __future__ import annotations

import argparse
import sys

from ips2_dask.clusters.jobs import find, log_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 logs``."""
    parser.add_argument("job", metavar="ID", help="of `ips2 submit` or `ips2 jobs`, or an unmistakable beginning of it")
    parser.add_argument("--follow", action="store_true", help="go on until the job ends")


def command(options: argparse.Namespace) -> int:
    """``ips2 logs``: print it, and what comes."""
    for line in log_lines(find(options.job), options.follow):
        sys.stdout.write(line)
        sys.stdout.flush()
    return 0

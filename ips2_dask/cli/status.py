"""``ips2 status``: what a run has done, and why."""

from __future__ import annotations

import argparse
import json

from ips2_dask.cli.console import print_status
from ips2_dask.runs.maintenance import status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 status``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--why", action="store_true", help="say for each stage because of what it was computed or not")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")


def command(options: argparse.Namespace) -> int:
    """``ips2 status``: what a run has done."""
    found = status(options.directory)
    if options.json:
        print(json.dumps(found))
    else:
        print_status(found, options.why)
    return 0

"""``ips2 gc``: take away what no key of a run points to."""

from __future__ import annotations

import argparse
import json

from ips2_dask.cli.console import print_garbage
from ips2_dask.runs.maintenance import gc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 gc``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and take nothing away")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def command(options: argparse.Namespace) -> int:
    """``ips2 gc``: take away what no key points to, and say what and how much."""
    collected = gc(options.directory, options.dry_run)
    if options.json:
        print(json.dumps(collected.as_dict()))
    elif not options.quiet:
        print_garbage(collected)
    return 0

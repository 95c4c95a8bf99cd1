"""``ips2 verify``: a whole run against its digests."""

from __future__ import annotations

import argparse
import json

from ips2_dask.cli.console import print_verification
from ips2_dask.runs.maintenance import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 verify``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit status says it")


def command(options: argparse.Namespace) -> int:
    """``ips2 verify``: 0 where every byte is what was written, else 1."""
    found = verify(options.directory)
    if options.json:
        print(json.dumps(found.as_dict()))
    elif not options.quiet:
        print_verification(found)
    return 0 if found.sound else 1

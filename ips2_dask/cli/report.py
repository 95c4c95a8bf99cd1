"""``ips2 report``: one page on a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ips2_dask.errors import BadInput
from ips2_dask.reports import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 report``."""
    parser.add_argument("directory", metavar="DIR", help="directory of a finished run")
    parser.add_argument("--out", dest="page", metavar="FILE", help="the page (default: DIR/report.html)")
    parser.add_argument("--quiet", action="store_true", help="do not say where the page is")


def command(options: argparse.Namespace) -> int:
    """``ips2 report``: write the page, and say where it is."""
    if options.page is None and "://" in options.directory:
        raise BadInput(
            "--out", f"nothing, and the run is at {options.directory}", "a local file", "the page would have no place",
            "give --out report.html",
        )  # fmt: skip
    out = Path(options.page or f"{options.directory}/report.html")
    if out.is_dir():
        raise BadInput("--out", f"the directory {out}", "a file", "it can't be written", f"give {out}/report.html")
    written = report(options.directory, out)
    if not options.quiet:
        print(written)
    return 0

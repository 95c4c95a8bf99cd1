"""Commands on a run directory: ``ips2 status``, ``verify``, ``export`` and ``report``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ips2_dask.cli import console
from ips2_dask.errors import BadInput
from ips2_dask.runs.export import write_labels
from ips2_dask.runs.maintenance import gc, status, verify
from ips2_dask.runs.run import open_run


def status_command(options: argparse.Namespace) -> int:
    """Print the state of each stage of a run."""
    summary = status(options.directory)
    if options.json:
        print(json.dumps(summary))
    else:
        console.print_status(summary, options.why)
    return 0


def verify_command(options: argparse.Namespace) -> int:
    """Compare a run with its digests; the exit status is 0 if every byte is as it was written, else 1.

    With ``--gc`` remove what no key of the run points to, and print what was removed.
    """
    if options.gc or options.dry_run:
        collected = gc(options.directory, options.dry_run)
        if options.json:
            print(json.dumps(collected.as_dict()))
        elif not options.quiet:
            console.print_garbage(collected)
        return 0
    verification = verify(options.directory)
    if options.json:
        print(json.dumps(verification.as_dict()))
    elif not options.quiet:
        console.print_verification(verification)
    return 0 if verification.sound else 1


def export_command(options: argparse.Namespace) -> int:
    """Write sample names and labels to a file; an .h5ad gets the embedding and the similarity too."""
    print(write_labels(open_run(options.directory), options.to, options.input))
    return 0


def report_command(options: argparse.Namespace) -> int:
    """Write the HTML page of a run, and print its path."""
    from ips2_dask.reports import report  # noqa: PLC0415  it loads Matplotlib, which the other commands don't need

    if options.page is None and "://" in options.directory:
        found = f"nothing, and the run is at {options.directory}"
        raise BadInput("--out", found, "a local file", "the page would have no place", "give --out report.html")
    page = Path(options.page or f"{options.directory}/report.html")
    if page.is_dir():
        raise BadInput("--out", f"the directory {page}", "a file", "it can't be written", f"give {page}/report.html")
    written = report(options.directory, page)
    if not options.quiet:
        print(written)
    return 0

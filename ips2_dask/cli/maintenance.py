"""Commands on a run directory: ``ips2 status``, ``verify``, ``gc``, ``export`` and ``report``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ips2_dask.cli.console import print_garbage, print_status, print_verification
from ips2_dask.errors import BadInput
from ips2_dask.runs.export import write_labels
from ips2_dask.runs.maintenance import gc, status, verify
from ips2_dask.runs.run import open_run

JSON_HELP = "one JSON object as the last line of standard output"


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 status``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--why", action="store_true", help="say for each stage because of what it was computed or not")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def status_command(options: argparse.Namespace) -> int:
    """Print the state of each stage of a run."""
    summary = status(options.directory)
    if options.json:
        print(json.dumps(summary))
    else:
        print_status(summary, options.why)
    return 0


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 verify``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit status says it")


def verify_command(options: argparse.Namespace) -> int:
    """Compare a run with its digests; the exit status is 0 if every byte is as it was written, else 1."""
    verification = verify(options.directory)
    if options.json:
        print(json.dumps(verification.as_dict()))
    elif not options.quiet:
        print_verification(verification)
    return 0 if verification.sound else 1


def add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 gc``."""
    parser.add_argument("directory", help="run directory or URL")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and take nothing away")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def gc_command(options: argparse.Namespace) -> int:
    """Remove files and folders that no key of a run points to, and print what was removed."""
    collected = gc(options.directory, options.dry_run)
    if options.json:
        print(json.dumps(collected.as_dict()))
    elif not options.quiet:
        print_garbage(collected)
    return 0


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 export``."""
    parser.add_argument("directory", help="run directory")
    parser.add_argument("--to", required=True, metavar="FILE", help="labels.csv, .parquet or .h5ad")
    parser.add_argument("--input", metavar="FILE", help="the .h5ad to copy (default: what was clustered)")


def export_command(options: argparse.Namespace) -> int:
    """Write sample names and labels to a file; an .h5ad gets the embedding and the similarity too."""
    print(write_labels(open_run(options.directory), options.to, options.input))
    return 0


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 report``."""
    parser.add_argument("directory", metavar="DIR", help="directory of a finished run")
    parser.add_argument("--out", dest="page", metavar="FILE", help="the page (default: DIR/report.html)")
    parser.add_argument("--quiet", action="store_true", help="do not say where the page is")


def report_command(options: argparse.Namespace) -> int:
    """Write the HTML page of a run, and print its path."""
    from ips2_dask.reports import report  # noqa: PLC0415  it loads Matplotlib, which the other commands don't need

    if options.page is None and "://" in options.directory:
        raise BadInput(
            "--out",
            f"nothing, and the run is at {options.directory}",
            "a local file",
            "the page would have no place",
            "give --out report.html",
        )
    page = Path(options.page or f"{options.directory}/report.html")
    if page.is_dir():
        raise BadInput("--out", f"the directory {page}", "a file", "it can't be written", f"give {page}/report.html")
    written = report(options.directory, page)
    if not options.quiet:
        print(written)
    return 0

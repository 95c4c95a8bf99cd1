"""What a command that ends in a run shows of it, and the exit status that follows."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ips2_dask.cli.console import print_report
from ips2_dask.metrics import scores
from ips2_dask.params import LEAST_RECALL
from ips2_dask.runs.run import Run


def add_said(parser: argparse.ArgumentParser) -> None:
    """The options on what is shown."""
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")
    parser.add_argument(
        "--log-json", metavar="FILE|-", help="progress as JSON lines; - writes them to standard output, and no report"
    )
    parser.add_argument(
        "--strict", action="store_true",
        help=f"exit with 3 if a promise was not kept: residuals to tol, recall of {LEAST_RECALL:g}, as many clusters "
        "as were asked for and no more components, no empty pair",
    )  # fmt: skip


def _summary(finished: Run) -> dict[str, Any]:
    report = finished.report()
    clustered = finished.clustered  # rows that were left out have no cluster
    if clustered.known_labels is not None:
        report |= scores(clustered.known_labels, clustered.labels)
    return report


def finish(finished: Run, options: argparse.Namespace) -> int:
    """Print what was asked for; returns 3 where ``--strict`` finds a promise that was not kept."""
    summary = _summary(finished)
    if not options.quiet and options.log_json != "-":
        print_report(summary, finished.manifest["input"]["name"])
    broken = _broken(summary) if options.strict else []
    for text in broken:
        print(f"ips2: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 3 if broken else 0


def _broken(summary: dict[str, Any]) -> list[str]:
    """The promises that a run has not kept, in words."""
    return [
        f"promise not kept: {one['promise']}: found {one['found']:.4g}, wanted {one['rule']} {one['wanted']:g}"
        for one in summary["promises"]
        if not one["kept"]
    ]

"""What a command that ends in a run shows of it, and the exit status that follows."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ips2_dask.console import print_report
from ips2_dask.evaluation.metrics import scores
from ips2_dask.storage.run import Run

LEAST_RECALL = 0.95
"""What the graph promises; ``--strict`` holds a run to it, and to ``--tol``."""


def add_said(parser: argparse.ArgumentParser) -> None:
    """The options on what is shown."""
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")
    parser.add_argument(
        "--log-json", metavar="FILE|-", help="progress as JSON lines; - writes them to standard output, and no report"
    )
    parser.add_argument(
        "--strict", action="store_true", help=f"exit with 3 if a residual is above tol or recall below {LEAST_RECALL}"
    )


def _summary(finished: Run) -> dict[str, Any]:
    report = finished.report()
    if finished.known_labels is not None:
        report |= scores(finished.known_labels, finished.labels)
    return report


def finish(finished: Run, options: argparse.Namespace) -> int:
    """Print what was asked for; returns 3 where ``--strict`` finds a promise that was not kept."""
    summary = _summary(finished)
    if not options.quiet and options.log_json != "-":
        print_report(summary, finished.manifest["input"]["name"])
    broken = _broken(summary, finished.params.tol) if options.strict else []
    for text in broken:
        print(f"ips2: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 3 if broken else 0


def _broken(summary: dict[str, Any], tol: float) -> list[str]:
    """The promises that a run has not kept, in words."""
    out = []
    if not summary["residual_max"] <= tol:
        out.append(f"the largest residual is {summary['residual_max']:.2g}, and --tol asks for {tol:g}")
    if not summary["recall"] >= LEAST_RECALL:
        out.append(f"the graph's recall is {summary['recall']:.4f}, and {LEAST_RECALL} is promised")
    return out

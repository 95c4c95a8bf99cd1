"""``ips2 study``: a scaling study from a YAML file, through its notebook."""

from __future__ import annotations

import argparse
import json
import sys

from ips2_dask.bench.study import read_config, study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 study``."""
    parser.add_argument("config", metavar="CONFIG.yaml", help="sizes, workers, operators, k, and where to measure")
    parser.add_argument("--out", required=True, metavar="DIR", help="executed notebook, its page, records, summary")
    parser.add_argument("--again", action="store_true", help="measure again what an earlier call has measured")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")


def command(options: argparse.Namespace) -> int:
    """``ips2 study``: measure, fit, draw, and say where everything is."""
    told = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr))
    done = study(read_config(options.config), options.out, again=options.again, progress=told)
    summary = json.loads(done.summary.read_text())
    if not options.quiet:
        for row in summary["growth"]:
            if row["stage"] == "stages":
                interval = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
                print(f"growth     k = {row['k']}, operator {row['operator']}: m^{row['exponent']:.2f}{interval}")
        for name in ("strong", "weak"):
            for row in summary[name]:
                print(f"{name:<10} {row['workers']} workers, {row['m']:,} samples: {row['seconds']:.1f} s, "
                      f"efficiency {row['efficiency']:.2f}")  # fmt: skip
        for path in (done.notebook, done.page, done.records, done.summary):
            if path is not None:
                print(f"written    {path}")
    if options.json:
        print(json.dumps(summary))
    return 0

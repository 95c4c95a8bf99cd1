"""``ips2 reproduce``: the paper's experiments again, beside its printed figures."""

from __future__ import annotations

import argparse

from ips2_dask.paper import reproduce


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 reproduce``."""
    parser.add_argument("--data", metavar="DIR", help="data sets (default: the environment variable IPS2_DATA)")
    parser.add_argument("--out", required=True, metavar="DIR", help="results; what an earlier call did is kept")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="some experiments, such as table2; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="five runs and smaller grids, in minutes")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes side by side (default: cores, up to 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first run (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")


def command(options: argparse.Namespace) -> int:
    """``ips2 reproduce``: run what is missing, and write the report."""
    return reproduce.command(options)

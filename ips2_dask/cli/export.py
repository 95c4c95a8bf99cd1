"""``ips2 export``: a finished run's labels in a file of the user's."""

from __future__ import annotations

import argparse

from ips2_dask.runs.export import write_labels
from ips2_dask.runs.run import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 export``."""
    parser.add_argument("directory", help="run directory")
    parser.add_argument("--to", required=True, metavar="FILE", help="labels.csv, .parquet or .h5ad")
    parser.add_argument("--input", metavar="FILE", help="the .h5ad to copy (default: what was clustered)")


def command(options: argparse.Namespace) -> int:
    """``ips2 export``: write sample names and labels; an .h5ad gets embedding and similarity too."""
    print(write_labels(open_run(options.directory), options.to, options.input))
    return 0

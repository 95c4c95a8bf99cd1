"""``ips2 certs``: certificates for a cluster."""

from __future__ import annotations

import argparse

from ips2_dask.clusters.certs import make


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 certs``."""
    parser.add_argument(
        "directory", metavar="DIR", help="a new folder; the shipped configs use ~/.config/ips2_dask/tls"
    )
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="a machine that they name; may be repeated"
    )


def command(options: argparse.Namespace) -> int:
    """``ips2 certs``: make the folder, and say what is in it."""
    for path in make(options.directory, options.host):
        print(path)
    return 0

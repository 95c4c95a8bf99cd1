"""``ips2 status``: what a run has done."""

from __future__ import annotations

import argparse

from ips2_dask.console import print_status
from ips2_dask.storage.run import read_manifest
from ips2_dask.storage.store import ZarrStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 status``."""
    parser.add_argument("directory")


def command(options: argparse.Namespace) -> int:
    """``ips2 status``: what a run has done."""
    print_status(read_manifest(ZarrStore(options.directory)), options.directory)
    return 0

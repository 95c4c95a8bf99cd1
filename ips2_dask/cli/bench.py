"""``ips2 bench``: measure a part of the package, or all of it, beside what others offer."""

from __future__ import annotations

import argparse

from ips2_dask.bench.command import bench
from ips2_dask.bench.options import add_benchmarks
from ips2_dask.cli.options import add_params, add_resources, params_of, resources_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmarks and their options."""
    add_benchmarks(parser, add_params, add_resources)


def command(options: argparse.Namespace) -> int:
    """``ips2 bench``: measure, print, and write what ``--json`` asks for."""
    return bench(options, params_of, resources_of)

"""``ips2 plan``: what a run would do; runs nothing."""

from __future__ import annotations

import argparse

from ips2_dask.commands.options import add_input, add_params, add_resources, params_of, resources_of
from ips2_dask.console import print_plan
from ips2_dask.pipeline import plan_run
from ips2_dask.storage.readers import open_source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 plan``."""
    add_input(parser)
    add_params(parser)
    add_resources(parser)


def command(options: argparse.Namespace) -> int:
    """``ips2 plan``: what would be computed; runs nothing."""
    params, resources = params_of(options), resources_of(options)
    source = open_source(options.input, labels_column=options.labels_column, transpose=options.transpose)
    return 0 if print_plan(plan_run(source, params, resources), source, resources) else 4

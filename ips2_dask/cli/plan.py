"""``ips2 plan``: what a run would do; runs nothing."""

from __future__ import annotations

import argparse
import dataclasses
import re

from ips2_dask.cli.console import print_plan
from ips2_dask.cli.options import add_input, add_params, add_resources, features_of, params_of, resources_of
from ips2_dask.clusters import expected_workers
from ips2_dask.errors import BadInput
from ips2_dask.pipeline.run import Shaped, plan_run
from ips2_dask.plan.traffic import PARTS, WHOLE, product_traffic
from ips2_dask.readers import open_source

CASES = {"whole groups": WHOLE, "parts of groups": PARTS}
"""What is said of a product."""


@dataclasses.dataclass(frozen=True)
class Imagined:
    """A table that need not be there: a plan follows from the shape alone."""

    shape: tuple[int, int]
    name: str = "a table"
    resident_bytes: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 plan``."""
    add_input(parser, optional=True)
    parser.add_argument("--shape", metavar="MxF", help="samples x features, such as 1000000x64, in place of an input")
    add_params(parser)
    add_resources(parser)


def command(options: argparse.Namespace) -> int:
    """``ips2 plan``: what would be computed; runs nothing."""
    params, resources = params_of(options), resources_of(options)
    source = _source(options)
    plan = plan_run(source, params, resources)
    n_workers = expected_workers(resources)
    products = {words: product_traffic(plan, params, n_workers, case) for words, case in CASES.items()}
    sent = {words: product for words, product in products.items() if product is not None}
    return 0 if print_plan(plan, source, resources, sent) else 4


def _source(options: argparse.Namespace) -> Shaped:
    if (options.input is None) == (options.shape is None):
        raise BadInput(
            "--shape", "both an input and a shape" if options.shape else "neither an input nor a shape", "one of them",
            "there would be nothing to plan", "name a file, or give --shape 1000000x64",
        )  # fmt: skip
    if options.shape is None:
        return open_source(
            options.input, labels_column=options.labels_column, transpose=options.transpose,
            features=features_of(options),
        )  # fmt: skip
    match = re.fullmatch(r"(\d{1,12})x(\d{1,9})", options.shape)
    if match is None:
        raise BadInput(
            "--shape", repr(options.shape), "samples x features", "there would be nothing to plan",
            "write it as 1000000x64",
        )  # fmt: skip
    return Imagined((int(match[1]), int(match[2])))

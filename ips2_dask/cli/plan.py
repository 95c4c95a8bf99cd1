"""``ips2 plan``: what a run would do, need and take, before anything is computed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re

from ips2_dask.cli.console import print_plan
from ips2_dask.cli.options import add_input, add_params, add_resources, features_of, params_of, resources_of, text_of
from ips2_dask.errors import BadInput
from ips2_dask.pipeline.prepare import Shaped, memory_limits, plan_run
from ips2_dask.plan.checks import disk_warning, keeps_limits
from ips2_dask.readers import open_source


@dataclasses.dataclass(frozen=True)
class TableShape:
    """A table without data: a plan needs only the shape, the name and the memory of its input."""

    shape: tuple[int, int]
    name: str = "a table"
    resident_bytes: int = 0


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 plan``."""
    add_input(parser, optional=True)
    parser.add_argument("--shape", metavar="MxF", help="samples x features, such as 1000000x64, in place of an input")
    parser.add_argument("--out", metavar="DIR", help="the run directory, whose disk's free space is compared")
    parser.add_argument("--json", action="store_true", help="the whole plan as one JSON object, and no table")
    add_params(parser)
    add_resources(parser)


def plan_command(options: argparse.Namespace) -> int:
    """Print what a run would compute; the exit status is 4 if it would need more memory than the limit."""
    params, resources = params_of(options), resources_of(options)
    source = _planned_source(options)
    plan = plan_run(source, params, resources)
    if options.out is not None and "://" not in options.out:
        text = disk_warning(plan, options.out)
        plan = dataclasses.replace(plan, warnings=(*plan.warnings, *([text] if text else [])))
    limits = memory_limits(resources)
    fits = keeps_limits(plan, *limits)
    if options.json:
        print(json.dumps(plan.document() | {"fits": fits}))
        return 0 if fits else 4
    print_plan(plan, source, limits)
    return 0 if fits else 4


def _planned_source(options: argparse.Namespace) -> Shaped:
    """The input, or a table of the shape that ``--shape`` gives."""
    if (options.input is None) == (options.shape is None):
        raise BadInput(
            "--shape",
            "both an input and a shape" if options.shape else "neither an input nor a shape",
            "one of them",
            "there would be nothing to plan",
            "name a file, or give --shape 1000000x64",
        )
    if options.shape is None:
        return open_source(
            options.input,
            labels_column=options.labels_column,
            transpose=options.transpose,
            features=features_of(options),
            text=text_of(options),
        )
    match = re.fullmatch(r"(\d{1,12})x(\d{1,9})", options.shape)
    if match is None:
        raise BadInput(
            "--shape",
            repr(options.shape),
            "samples x features",
            "there would be nothing to plan",
            "write it as 1000000x64",
        )
    return TableShape((int(match[1]), int(match[2])))

"""``ips2 run``: cluster an input into a run directory."""

from __future__ import annotations

import argparse

from ips2_dask.cli.console import progress
from ips2_dask.cli.options import add_beside, add_input, add_params, add_resources, features_of, params_of, resources_of
from ips2_dask.cli.outcome import add_said, finish
from ips2_dask.executors.process_memory import limited
from ips2_dask.pipeline.run import run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 run``."""
    add_input(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory; an earlier run is continued")
    add_beside(parser)
    parser.add_argument("--fresh", action="store_true", help="take away what earlier runs left there, and start over")
    parser.add_argument(
        "--verify", action="store_true", help="read every byte of what is reused, and compute again what is damaged"
    )
    parser.add_argument("--performance-report", metavar="FILE", help="Dask's own report of the run, an HTML file")
    add_said(parser)
    add_params(parser)
    add_resources(parser)


def command(options: argparse.Namespace) -> int:
    """``ips2 run``: cluster an input into a run directory."""
    params, resources = params_of(options), resources_of(options)
    with limited(resources.memory_limit), progress(options.quiet, options.log_json) as told:
        finished = run(
            options.input,
            params,
            resources,
            store=options.out,
            labels_column=options.labels_column,
            transpose=options.transpose,
            features=features_of(options),
            progress=options.stopping.told(told),
            own_cluster=not options.serial,
            similarity=options.similarity,
            knn_graph=options.knn_graph,
            fresh=options.fresh,
            verify=options.verify,
            performance_report=options.performance_report,
        )
    return finish(finished, options)

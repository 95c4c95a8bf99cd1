"""``ips2 submit``: hand a whole run over to a cluster, driver included, and return at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ips2_dask.cli import run
from ips2_dask.cli.options import features_of, params_of, resources_of
from ips2_dask.clusters import config_of
from ips2_dask.clusters.jobs import submit
from ips2_dask.pipeline.option_checks import check_params


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 run``."""
    run.add_arguments(parser)


def _without_cluster(given: Sequence[str]) -> Iterator[str]:
    """The arguments of the command without its name and its cluster, which the job's record keeps."""
    words = iter(given[given.index("submit") + 1 :])
    for word in words:
        if word == "--cluster":
            next(words, None)
        elif not word.startswith("--cluster="):
            yield word


def command(options: argparse.Namespace) -> int:
    """``ips2 submit``: check what can be checked here, hand over, print the id."""
    params, resources = params_of(options), resources_of(options)
    check_params(params, resources)
    features_of(options)
    config = config_of(resources)
    job = submit(list(_without_cluster(options.given)), config, options.cluster, options.out)
    if not options.quiet:
        print(f"submitted; ips2 logs {job.id} --follow, ips2 jobs, ips2 cancel {job.id}", file=sys.stderr)
    print(job.id)
    return 0

"""``ips2 demo``: cluster scikit-learn's digits on a local cluster."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from ips2_dask.cli.console import progress
from ips2_dask.cli.options import add_place
from ips2_dask.cli.outcome import add_said, finish
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run
from ips2_dask.readers import Source
from ips2_dask.readers.matrices import matrix_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 demo``."""
    parser.add_argument("--out", default="ips2-demo", metavar="DIR", help="run directory (default: ips2-demo)")
    add_place(parser, serial=False)
    add_said(parser)


def _digits() -> Source:
    X, y = load_digits(return_X_y=True)
    return matrix_table(X, "scikit-learn's digits", read_labels=partial(np.array, y))


def _resources(options: argparse.Namespace) -> Resources:
    """Two processes of this machine, unless another place is asked for."""
    return Resources(
        n_workers=None if options.cluster or options.scheduler else 2,
        cluster=options.cluster,
        scheduler=options.scheduler,
        tls=options.tls,
        insecure=options.insecure,
        partition_rows=512,
    )


def command(options: argparse.Namespace) -> int:
    """``ips2 demo``: cluster scikit-learn's digits on a local cluster."""
    params, resources = Params(n_clusters=10), _resources(options)
    with progress(options.quiet, options.log_json) as told:
        told = options.stopping.told(told)
        finished = run(_digits(), params, resources, store=options.out, progress=told, own_cluster=True)
    status = finish(finished, options)
    if not (options.quiet or options.json or options.log_json == "-"):
        print(f"look into it    ips2 status {options.out}, or ips2_dask.open_run({options.out!r}) in Python")
    return status

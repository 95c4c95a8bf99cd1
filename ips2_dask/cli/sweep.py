"""``ips2 sweep``: many settings of one input, ranked without known labels."""

from __future__ import annotations

import argparse
import json
import sys

from ips2_dask.cli.console import print_sweep
from ips2_dask.cli.options import add_beside, add_input, add_params, add_resources, features_of, params_of, resources_of
from ips2_dask.progress import Silent
from ips2_dask.sweeps import CLUSTERS, RESAMPLES, Point, sweep
from ips2_dask.sweeps.grid import numbers, whole_numbers

SWEPT = ("n_clusters", "n_neighbors", "sigma", "max_clusters", "n_eigenpairs")
"""Parameters that the lists decide."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 sweep``."""
    add_input(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory; an earlier sweep is continued")
    group = parser.add_argument_group("what is tried: a list such as 7,10 or a range such as 5:15, both ends included")
    group.add_argument(
        "--clusters", dest="swept_clusters", type=whole_numbers, default=tuple(CLUSTERS), metavar="LIST",
        help=f"values of c (default {CLUSTERS[0]}:{CLUSTERS[-1]})",
    )  # fmt: skip
    group.add_argument("--neighbors", dest="swept_neighbors", type=whole_numbers, metavar="LIST", help="values of k")
    group.add_argument("--sigma", dest="swept_sigma", type=numbers, metavar="LIST", help="values of sigma")
    group.add_argument(
        "--resamples", type=int, default=RESAMPLES, metavar="N", help=f"subsamples for stability (default {RESAMPLES})"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="points that are shown (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")
    add_beside(parser)
    add_params(parser, without=SWEPT)
    add_resources(parser)


def _tell(done: int, total: int, point: Point, found_there: bool) -> None:
    """A line on standard error for every point that is done."""
    p, took = point.params, "there already"
    if not found_there:
        took = f"{sum(point.facts['seconds'].values()):.1f} s"
    found = "  ".join(f"{name} {value:.3f}" for name, value in point.criteria.items())
    line = f"{done:>4}/{total} c={p.n_clusters} k={p.n_neighbors} sigma={p.sigma:g}  {found}  {took}"
    print(line, file=sys.stderr, flush=True)


def command(options: argparse.Namespace) -> int:
    """``ips2 sweep``: run what is missing, rank all, and show the best."""
    found = sweep(
        options.input,
        options.swept_clusters,
        options.swept_neighbors,
        options.swept_sigma,
        params_of(options),
        resources_of(options),
        store=options.out,
        labels_column=options.labels_column,
        transpose=options.transpose,
        features=features_of(options),
        own_cluster=not options.serial,
        similarity=options.similarity,
        knn_graph=options.knn_graph,
        resamples=options.resamples,
        progress=options.stopping.told(Silent()),
        on_point=None if options.quiet else _tell,
    )
    if not options.quiet:
        print_sweep(found.table(), found.input, found.shape, found.computed, options.out, options.top)
    if options.json:
        print(json.dumps({"computed": found.computed, "points": found.table(), "run_dir": str(found.path)}))
    return 0

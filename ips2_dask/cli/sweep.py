"""Commands of many runs: ``ips2 sweep``, and the measurements ``ips2 bench`` and ``reproduce``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from typing import TYPE_CHECKING

from ips2_dask.cli.options import (
    add_input,
    add_params,
    add_resources,
    add_side_inputs,
    features_of,
    params_of,
    resources_of,
    text_of,
)
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from ips2_dask.sweeps import Point

SWEPT = ("n_clusters", "n_neighbors", "sigma", "max_clusters", "n_eigenpairs")
"""Parameters whose values a sweep takes from its lists."""


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 sweep``."""
    from ips2_dask.sweeps import CLUSTERS, RESAMPLES  # noqa: PLC0415  it loads Dask, which a study does not need here
    from ips2_dask.sweeps.grid import numbers, whole_numbers  # noqa: PLC0415

    add_input(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory; an earlier sweep is continued")
    group = parser.add_argument_group("what is tried: a list such as 7,10 or a range such as 5:15, both ends included")
    group.add_argument(
        "--clusters",
        dest="swept_clusters",
        type=whole_numbers,
        default=tuple(CLUSTERS),
        metavar="LIST",
        help=f"values of c (default {CLUSTERS[0]}:{CLUSTERS[-1]})",
    )
    group.add_argument("--neighbors", dest="swept_neighbors", type=whole_numbers, metavar="LIST", help="values of k")
    group.add_argument("--sigma", dest="swept_sigma", type=numbers, metavar="LIST", help="values of sigma")
    group.add_argument(
        "--resamples", type=int, default=RESAMPLES, metavar="N", help=f"subsamples for stability (default {RESAMPLES})"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="points that are shown (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")
    add_side_inputs(parser)
    add_params(parser, without=SWEPT)
    add_resources(parser)


def sweep_command(options: argparse.Namespace) -> int:
    """Run the points that are missing, rank all points, and print the best."""
    from ips2_dask.cli.console import print_sweep  # noqa: PLC0415  a table of rich, for this command alone
    from ips2_dask.progress import Progress  # noqa: PLC0415
    from ips2_dask.sweeps import sweep  # noqa: PLC0415  it loads Dask

    result = sweep(
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
        text=text_of(options),
        own_cluster=not options.serial,
        similarity=options.similarity,
        knn_graph=options.knn_graph,
        resamples=options.resamples,
        progress=options.stopping.guard(Progress()),
        on_point=None if options.quiet else _print_point,
    )
    if not options.quiet:
        print_sweep(result.table(), result.input, result.shape, result.computed, options.out, options.top)
    if options.json:
        print(json.dumps({"computed": result.computed, "points": result.table(), "run_dir": str(result.path)}))
    return 0


def _print_point(done: int, total: int, point: Point, found_there: bool) -> None:
    """Print a line on standard error for a point that is done."""
    p = point.params
    seconds = "there already" if found_there else f"{sum(point.facts['seconds'].values()):.1f} s"
    criteria = "  ".join(f"{name} {value:.3f}" for name, value in point.criteria.items())
    line = f"{done:>4}/{total} c={p.n_clusters} k={p.n_neighbors} sigma={p.sigma:g}  {criteria}  {seconds}"
    print(line, file=sys.stderr, flush=True)


def _lacks(package: str, parser: argparse.ArgumentParser) -> bool:
    """Whether a package of a checkout is not installed; then a command takes whatever words it is given."""
    missing = importlib.util.find_spec(f"ips2_dask.{package}") is None
    if missing:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="needs a checkout")
    return missing


def _check_checkout(package: str) -> None:
    """Refuse a command whose package a wheel does not have."""
    if importlib.util.find_spec(f"ips2_dask.{package}") is None:
        raise BadInput(
            f"ips2_dask.{package}",
            "an installation from a wheel",
            "a checkout, installed by `pip install -e .`",
            "there would be nothing to measure",
            "clone the repository, and install that",
        )


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmarks and their options."""
    if _lacks("bench", parser):
        return
    from ips2_dask.bench.command import add_benchmarks  # noqa: PLC0415  for this command alone

    add_benchmarks(parser, add_params, add_resources)


def bench_command(options: argparse.Namespace) -> int:
    """Run a benchmark, print its records, and write them to the file of ``--json``; or run all of them."""
    _check_checkout("bench")
    from ips2_dask.bench.command import bench  # noqa: PLC0415  for this command alone

    return bench(options, params_of, resources_of)


def add_reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 reproduce``."""
    if _lacks("paper", parser):
        return
    parser.add_argument("--data", metavar="DIR", help="data sets (default: the environment variable IPS2_DATA)")
    parser.add_argument("--out", required=True, metavar="DIR", help="results; what an earlier call did is kept")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="some experiments, such as table2; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="five runs and smaller grids, in minutes")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes side by side (default: cores, up to 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first run (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")


def reproduce_command(options: argparse.Namespace) -> int:
    """Run the experiments that are missing, and write the report."""
    _check_checkout("paper")
    from ips2_dask.paper import reproduce  # noqa: PLC0415  it loads every experiment

    return reproduce.command(options)

"""Commands that compute: ``ips2 run``, ``demo``, ``predict``, ``plan`` and ``sweep``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from ips2_dask import clusters
from ips2_dask.cli import console
from ips2_dask.cli.display import progress
from ips2_dask.cli.options import input_of, params_of, resources_of, text_of
from ips2_dask.clusters.resources import machines_of
from ips2_dask.errors import BadInput
from ips2_dask.executors.process_memory import limited
from ips2_dask.fields import parse_bytes
from ips2_dask.metrics import scores_of_table
from ips2_dask.params import PRESETS, Params
from ips2_dask.pipeline.prepare import check_machines, plan_run
from ips2_dask.pipeline.run import run
from ips2_dask.plan.plan import disk_warning, keeps_limits
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.readers.base import matrix_table, rebatch
from ips2_dask.readers.labels import classes_of
from ips2_dask.runs.export import check_prediction_file, prediction_writer
from ips2_dask.runs.label_results import Columns
from ips2_dask.runs.run import Run, open_run

if TYPE_CHECKING:
    from ips2_dask.sweeps import Point


# ---- run


def run_command(options: argparse.Namespace) -> int:
    """Cluster an input into a run directory."""
    params, resources = params_of(options), resources_of(options)
    with limited(parse_bytes(resources.memory_limit)), progress(options.quiet, options.log_json) as display:
        finished = run(
            options.input,
            params,
            resources,
            store=options.out,
            **input_of(options),
            progress=options.stopping.guard(display),
            own_cluster=not options.serial,
            **{name: getattr(options, name) for name in ("similarity", "knn_graph", "fresh", "verify")},
            performance_report=options.performance_report,
        )
    return _finish(finished, options)


def demo_command(options: argparse.Namespace) -> int:
    """Cluster scikit-learn's digits, on two processes of this machine unless a cluster is named."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  for this command alone

    options.workers = None if options.cluster or options.scheduler else 2
    options.serial, options.partition_rows = False, 512
    X, y = load_digits(return_X_y=True)
    source = matrix_table(X, "scikit-learn's digits", label_pieces=partial(iter, [y]))
    with progress(options.quiet, options.log_json) as display:
        told, resources = options.stopping.guard(display), resources_of(options)
        finished = run(source, Params(n_clusters=10), resources, store=options.out, progress=told, own_cluster=True)
    status = _finish(finished, options)
    if not (options.quiet or options.json or options.log_json == "-"):
        print(f"look into it    ips2 status {options.out}, or ips2_dask.open_run({options.out!r}) in Python")
    return status


def _finish(finished: Run, options: argparse.Namespace) -> int:
    """Print a finished run; the exit status is 3 if ``--strict`` finds a promise that was not kept."""
    summary = finished.report()
    table = finished.known_table()
    if table is not None:
        summary |= scores_of_table(table)
    if not options.quiet and options.log_json != "-":
        console.print_report(summary, finished.manifest["input"]["name"])
    broken = [promise for promise in summary["promises"] if not promise["kept"]] if options.strict else []
    for promise in broken:
        print(f"ips2: promise not kept: {console.unkept(promise)}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 3 if broken else 0


# ---- predict


def predict_command(options: argparse.Namespace) -> int:
    """Write the labels of new samples, predicted in this process or on the workers that the options name."""
    path = check_prediction_file(options.out, not (options.proba or options.embedding))
    finished, resources = open_run(options.directory), resources_of(options)
    on_workers = not options.serial and any((resources.scheduler, resources.cluster, resources.n_workers))
    if not on_workers and resources.memory_limit is not None:
        found, why = "no --workers, --cluster or --scheduler", "it would count for nothing: this process predicts alone"
        raise BadInput("--memory-limit", found, "a limit of workers", why, "add --workers, or leave it out")
    check_machines(resources, client=False, own_cluster=on_workers)
    source = finished.open_new(
        options.new,
        labels_column=options.labels_column,
        transpose=options.transpose,
        handle_unknown=options.handle_unknown,
        text=text_of(options, finished.text_format),
    )
    classes, names = classes_of(source), source.sample_names
    begun, done = time.perf_counter(), 0
    sizes, codes = np.zeros(finished.params.n_clusters, np.int64), None
    table = csr_array((0 if classes is None else len(classes.names), len(sizes)), dtype=np.int64)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(clusters.executor(resources)).client if on_workers else None
        write = stack.enter_context(prediction_writer(path, source.shape[0]))
        for prediction in finished.predictions(source, client=client):
            labels, certain = prediction.labels, prediction.probabilities
            columns: Columns = {} if names is None else {"sample": names[done : done + len(labels)]}
            columns |= {"label": labels, "certainty": certain[np.arange(len(labels)), labels]}
            if options.proba:
                columns |= {f"p{c}": column for c, column in enumerate(certain.T)}
            if options.embedding:
                columns |= {f"e{c}": column for c, column in enumerate(finished.coordinates(prediction).T)}
            write(columns)
            done += len(labels)
            predicted = labels >= 0  # a row with a missing value has the label -1
            sizes += np.bincount(labels[predicted], minlength=len(sizes))
            if classes is not None:
                codes = codes or rebatch(classes.pieces(), len(labels))  # all blocks but the last have as many rows
                pairs = next(codes)[predicted], labels[predicted]
                table = csr_array(table + csr_array((np.ones(len(pairs[0]), np.int64), pairs), shape=table.shape))
    n_predicted, seconds = int(sizes.sum()), time.perf_counter() - begun
    summary: dict[str, Any] = {"n": done, "sizes": sizes.tolist(), "seconds": seconds, "out": options.out}
    if n_predicted < done:
        summary["dropped"] = done - n_predicted
    if classes is not None and n_predicted:
        summary |= scores_of_table(table)
    if not options.quiet:
        console.print_prediction(summary)
    if options.json:
        print(json.dumps(summary))
    return 0


# ---- plan


def plan_command(options: argparse.Namespace) -> int:
    """Print what a run would compute; the exit status is 4 if it would need more memory than the limit."""
    params, resources = params_of(options), resources_of(options)
    nothing = "there would be nothing to plan"
    if (options.input is None) == (options.shape is None):
        found = "both an input and a shape" if options.shape else "neither an input nor a shape"
        raise BadInput("--shape", found, "one of them", nothing, "name a file, or give --shape 1000000x64")
    if options.shape is None:
        source: Any = open_source(options.input, **input_of(options))
    elif match := re.fullmatch(r"(\d{1,12})x(\d{1,9})", options.shape):
        source = SimpleNamespace(shape=(int(match[1]), int(match[2])), name="a table", resident_bytes=0)
    else:
        raise BadInput("--shape", repr(options.shape), "samples x features", nothing, "write it as 1000000x64")
    plan = plan_run(source, params, resources)
    if options.out is not None and "://" not in options.out:
        text = disk_warning(plan, options.out)
        plan = dataclasses.replace(plan, warnings=(*plan.warnings, *([text] if text else [])))
    limits = machines_of(resources).limits
    fits = keeps_limits(plan, *limits)
    if options.json:
        print(json.dumps(plan.document() | {"fits": fits}))
    else:
        console.print_plan(plan, source, limits)
    return 0 if fits else 4


# ---- sweep


def sweep_command(options: argparse.Namespace) -> int:
    """Run the points that are missing, rank all points, and print the best."""
    from ips2_dask.sweeps import sweep  # noqa: PLC0415  for this command alone
    from ips2_dask.sweeps.grid import CLUSTERS  # noqa: PLC0415  the same

    given = {name: getattr(options, name, None) for name in Params.__dataclass_fields__}
    result = sweep(
        options.input,
        {"n_clusters": CLUSTERS, **{name: values for name, values in given.items() if values is not None}},
        Params(**PRESETS[options.preset]),
        resources_of(options),
        store=options.out,
        **input_of(options),
        own_cluster=not options.serial,
        similarity=options.similarity,
        knn_graph=options.knn_graph,
        resamples=options.resamples,
        progress=options.stopping.guard(Progress()),
        on_point=None if options.quiet else _print_point,
    )
    if not options.quiet:
        console.print_sweep(result.table(), result.input, result.shape, result.computed, options.out, options.top)
    if options.json:
        print(json.dumps({"computed": result.computed, "points": result.table(), "run_dir": str(result.path)}))
    return 0


def _print_point(done: int, total: int, point: Point, found_there: bool) -> None:
    """Print a line on standard error for a point that is done."""
    seconds = "there already" if found_there else f"{sum(point.facts['seconds'].values()):.1f} s"
    criteria = "  ".join(f"{name} {value:.3f}" for name, value in point.criteria.items())
    print(f"{done:>4}/{total} {point.setting}  {criteria}  {seconds}", file=sys.stderr, flush=True)

"""Commands on the samples of an input: ``ips2 run``, ``demo`` and ``predict``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ips2_dask import clusters
from ips2_dask.cli.console import print_prediction, print_report
from ips2_dask.cli.display import progress
from ips2_dask.cli.options import (
    add_cluster,
    add_input,
    add_params,
    add_resources,
    add_side_inputs,
    add_text_format,
    features_of,
    params_of,
    resources_of,
    text_of,
)
from ips2_dask.errors import BadInput
from ips2_dask.executors.process_memory import limited
from ips2_dask.metrics import scores_of_table
from ips2_dask.params import LEAST_RECALL, Params, Resources, parse_bytes
from ips2_dask.pipeline.option_checks import check_machines
from ips2_dask.pipeline.run import run
from ips2_dask.readers.base import matrix_table
from ips2_dask.readers.features import HANDLE_UNKNOWN
from ips2_dask.readers.labels import CodeReader, classes_of
from ips2_dask.runs.export import check_prediction_file, prediction_writer
from ips2_dask.runs.label_results import Columns
from ips2_dask.runs.run import Run, open_run


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 run``."""
    add_input(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory; an earlier run is continued")
    add_side_inputs(parser)
    parser.add_argument("--fresh", action="store_true", help="take away what earlier runs left there, and start over")
    parser.add_argument(
        "--verify", action="store_true", help="read every byte of what is reused, and compute again what is damaged"
    )
    parser.add_argument("--performance-report", metavar="FILE", help="Dask's own report of the run, an HTML file")
    _add_output(parser)
    add_params(parser)
    add_resources(parser)


def run_command(options: argparse.Namespace) -> int:
    """Cluster an input into a run directory."""
    params, resources = params_of(options), resources_of(options)
    with limited(parse_bytes(resources.memory_limit)), progress(options.quiet, options.log_json) as display:
        finished = run(
            options.input,
            params,
            resources,
            store=options.out,
            labels_column=options.labels_column,
            transpose=options.transpose,
            features=features_of(options),
            text=text_of(options),
            progress=options.stopping.guard(display),
            own_cluster=not options.serial,
            similarity=options.similarity,
            knn_graph=options.knn_graph,
            fresh=options.fresh,
            verify=options.verify,
            performance_report=options.performance_report,
        )
    return _finish(finished, options)


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 demo``."""
    parser.add_argument("--out", default="ips2-demo", metavar="DIR", help="run directory (default: ips2-demo)")
    add_cluster(parser, serial=False)
    _add_output(parser)


def demo_command(options: argparse.Namespace) -> int:
    """Cluster scikit-learn's digits, on two processes of this machine unless a cluster is named."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  for this command alone

    resources = Resources(
        n_workers=None if options.cluster or options.scheduler else 2,
        cluster=options.cluster,
        scheduler=options.scheduler,
        tls=options.tls,
        insecure=options.insecure,
        partition_rows=512,
    )
    X, y = load_digits(return_X_y=True)
    source = matrix_table(X, "scikit-learn's digits", label_pieces=partial(iter, [y]))
    with progress(options.quiet, options.log_json) as display:
        finished = run(
            source,
            Params(n_clusters=10),
            resources,
            store=options.out,
            progress=options.stopping.guard(display),
            own_cluster=True,
        )
    status = _finish(finished, options)
    if not (options.quiet or options.json or options.log_json == "-"):
        print(f"look into it    ips2 status {options.out}, or ips2_dask.open_run({options.out!r}) in Python")
    return status


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that set what is printed of a run, and its exit status."""
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no report")
    parser.add_argument(
        "--log-json", metavar="FILE|-", help="progress as JSON lines; - writes them to standard output, and no report"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help=f"exit with 3 if a promise was not kept: residuals to tol, recall of {LEAST_RECALL:g}, as many clusters "
        "as were asked for and no more components, no empty pair",
    )


def _finish(finished: Run, options: argparse.Namespace) -> int:
    """Print a finished run; the exit status is 3 if ``--strict`` finds a promise that was not kept."""
    summary = finished.report()
    table = finished.known_table()
    if table is not None:
        summary |= scores_of_table(table)
    if not options.quiet and options.log_json != "-":
        print_report(summary, finished.manifest["input"]["name"])
    broken = [promise for promise in summary["promises"] if not promise["kept"]] if options.strict else []
    for promise in broken:
        wanted = f"wanted {promise['rule']} {promise['wanted']:g}"
        print(f"ips2: promise not kept: {promise['promise']}: found {promise['found']:.4g}, {wanted}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 3 if broken else 0


# ---- predict


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 predict``."""
    parser.add_argument("directory", help="directory of a finished run")
    parser.add_argument("new", help="new samples: data file, file::dataset, folder or URL of a Zarr array")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="labels and their certainty: .csv, .tsv or .parquet; labels: .npy"
    )
    parser.add_argument("--proba", action="store_true", help="also the probability of each cluster")
    parser.add_argument("--embedding", action="store_true", help="also the extended embedding")
    parser.add_argument("--labels-column", metavar="NAME", help="column of known labels, by name or number: for scores")
    parser.add_argument("--transpose", action="store_true", help="the new samples are features by samples")
    parser.add_argument(
        "--handle-unknown",
        choices=HANDLE_UNKNOWN,
        default=HANDLE_UNKNOWN[0],
        help="a category that the run has not seen: refuse it (default), or make all features of its column 0",
    )
    add_text_format(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no report")
    add_resources(parser, cuts=False)


def predict_command(options: argparse.Namespace) -> int:
    """Write the labels of new samples, predicted in this process or on the workers that the options name."""
    path = check_prediction_file(options.out, not (options.proba or options.embedding))
    finished, resources = open_run(options.directory), resources_of(options)
    on_workers = not options.serial and any((resources.scheduler, resources.cluster, resources.n_workers))
    if not on_workers and resources.memory_limit is not None:
        raise BadInput(
            "--memory-limit",
            "no --workers, --cluster or --scheduler",
            "a limit of workers",
            "it would count for nothing, as this process predicts alone",
            "add --workers, or leave it out",
        )
    check_machines(resources, client=False, own_cluster=on_workers)
    source = finished.open_new(
        options.new,
        labels_column=options.labels_column,
        transpose=options.transpose,
        handle_unknown=options.handle_unknown,
        text=text_of(options, finished.text_format),
    )
    classes, names = classes_of(source), source.sample_names
    begun = time.perf_counter()
    codes = None if classes is None else CodeReader(classes)
    sizes, n_predicted = np.zeros(finished.params.n_clusters, np.int64), 0
    table = csr_array((0 if classes is None else len(classes.names), len(sizes)), dtype=np.int64)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(clusters.executor(resources)).client if on_workers else None
        writer = stack.enter_context(prediction_writer(path))
        done = 0
        for prediction in finished.predictions(source, client=client):
            labels = prediction.labels
            columns: Columns = {}
            if names is not None:
                columns["sample"] = names[done : done + len(labels)]
            columns["label"] = labels
            columns["certainty"] = prediction.probabilities[np.arange(len(labels)), labels]
            if options.proba:
                columns |= {f"p{c}": column for c, column in enumerate(prediction.probabilities.T)}
            if options.embedding:
                columns |= {f"e{c}": column for c, column in enumerate(finished.coordinates(prediction).T)}
            writer.write(columns)
            done += len(labels)
            predicted = labels >= 0  # a row with a missing value has the label -1
            sizes += np.bincount(labels[predicted], minlength=len(sizes))
            n_predicted += int(np.count_nonzero(predicted))
            if codes is not None:
                pairs = codes.read(len(labels))[predicted], labels[predicted]
                table = csr_array(table + csr_array((np.ones(len(pairs[0]), np.int64), pairs), shape=table.shape))
    summary: dict[str, Any] = {
        "n": done,
        "sizes": sizes.tolist(),
        "seconds": time.perf_counter() - begun,
        "out": options.out,
    }
    if n_predicted < done:
        summary["dropped"] = done - n_predicted
    if classes is not None and n_predicted:
        summary |= scores_of_table(table)
    if not options.quiet:
        print_prediction(summary)
    if options.json:
        print(json.dumps(summary))
    return 0

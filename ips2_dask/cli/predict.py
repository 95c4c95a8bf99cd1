"""``ips2 predict``: the clusters of new samples, by a run that is there."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from typing import Any

import numpy as np

from ips2_dask import clusters
from ips2_dask.cli.options import add_resources, resources_of
from ips2_dask.errors import BadInput
from ips2_dask.metrics import scores
from ips2_dask.pipeline.option_checks import check_machines
from ips2_dask.readers.features import HANDLE_UNKNOWN
from ips2_dask.runs.export import check_prediction_file, prediction_writer
from ips2_dask.runs.run import open_run
from ips2_dask.wording import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 predict``."""
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
        "--handle-unknown", choices=HANDLE_UNKNOWN, default=HANDLE_UNKNOWN[0],
        help="a category that the run has not seen: refuse it (default), or make all features of its column 0",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--quiet", action="store_true", help="no report")
    add_resources(parser, cuts=False)


def command(options: argparse.Namespace) -> int:
    """``ips2 predict``: write the labels of new samples; in this process, or on the workers that are asked for."""
    path = check_prediction_file(options.out, not (options.proba or options.embedding))
    finished, resources = open_run(options.directory), resources_of(options)
    on_workers = not options.serial and any((resources.scheduler, resources.cluster, resources.n_workers))
    if not on_workers and resources.memory_limit is not None:
        raise BadInput(
            "--memory-limit", "no --workers, --cluster or --scheduler", "a limit of workers",
            "it would count for nothing, as this process predicts alone", "add --workers, or leave it out",
        )  # fmt: skip
    check_machines(resources, client=False, own_cluster=on_workers)
    source = finished.open_new(
        options.new, labels_column=options.labels_column, transpose=options.transpose,
        handle_unknown=options.handle_unknown,
    )  # fmt: skip
    known, names = source.labels(), source.sample_names
    begun = time.perf_counter()
    labels: list[Any] = []
    with contextlib.ExitStack() as stack:
        client = None
        if on_workers:
            client = stack.enter_context(clusters.executor(resources)).client
        writer = stack.enter_context(prediction_writer(path))
        done = 0
        for found in finished.predictions(source, client=client):
            columns: dict[str, Any] = {}
            if names is not None:
                columns["sample"] = names[done : done + len(found.labels)]
            columns["label"] = found.labels
            columns["certainty"] = found.probabilities[np.arange(len(found.labels)), found.labels]
            if options.proba:
                columns |= {f"p{c}": column for c, column in enumerate(found.probabilities.T)}
            if options.embedding:
                columns |= {f"e{c}": column for c, column in enumerate(finished.coordinates(found).T)}
            writer.write(columns)
            labels.append(found.labels)
            done += len(found.labels)
    whole = np.concatenate(labels) if labels else np.empty(0, np.int32)
    _say(options, finished.params.n_clusters, whole, known, time.perf_counter() - begun)
    return 0


def _say(options: argparse.Namespace, c: int, labels: Any, known: Any, seconds: float) -> None:
    kept = labels >= 0
    sizes, dropped = np.bincount(labels[kept], minlength=c).tolist(), int(np.count_nonzero(~kept))
    summary: dict[str, Any] = {"n": len(labels), "sizes": sizes, "seconds": seconds, "out": options.out}
    if dropped:
        summary["dropped"] = dropped
    if known is not None and kept.any():
        summary |= scores(known[kept], labels[kept])
    if not options.quiet:
        print(f"{len(labels):,} samples in {seconds:.1f} s; samples a cluster: {' '.join(map(str, sizes))}")
        if dropped:
            print(f"left out        {count(dropped, 'row')} with a missing value: label -1")
        if known is not None and kept.any():
            print(f"known labels    ACC {summary['acc']:.3f}  NMI {summary['nmi']:.3f}  ARI {summary['ari']:.3f}")
        print(f"written         {options.out}")
    if options.json:
        print(json.dumps(summary))

"""The command line: parses and prints; everything it does is a call that Python users can make."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from ips2_dask._version import __version__
from ips2_dask.console import LiveProgress, PlainProgress, print_plan, print_report, print_status
from ips2_dask.errors import IPS2Error
from ips2_dask.evaluation.metrics import scores
from ips2_dask.params import CHOICES, PRESETS, Params, Resources, parse_bytes
from ips2_dask.pipeline import Silent, plan_run, run
from ips2_dask.storage.readers import open_source
from ips2_dask.storage.run import Run, read_manifest
from ips2_dask.storage.store import ZarrStore

SPELLED = {"n_clusters": "clusters", "n_neighbors": "neighbors", "assign_labels": "labels", "random_state": "seed"}
"""Parameters whose option has a shorter name."""

HELP = {
    "n_clusters": "number of clusters c",
    "n_neighbors": "size k of a neighbourhood, the sample itself included",
    "sigma": "sigma of the tensor",
    "epsilon": "epsilon of the tensor, below 0.001",
    "tensor": "which tensor similarity",
    "affinity": "pairwise similarity S",
    "bandwidth": "mean, median or a number: t of exp(-d^2 / 2 t^2)",
    "high_order": "how eigenvectors become V",
    "fusion": "how S and V become U",
    "fusion_weight": "w of U = (1 - w) S + w V",
    "method": "ips2, or ppc for V alone",
    "assign_labels": "how U becomes labels",
    "scale": "what is done to the columns (l2: rows) first",
    "operator": "how far the tensor is assembled",
    "tol": "largest residual of an eigenpair",
    "random_state": "seed of everything random",
}

KINDS: dict[str, type] = {"int": int, "float": float}


def _option(name: str) -> str:
    return "--" + SPELLED.get(name, name).replace("_", "-")


def _bandwidth(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _label_column(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdigit() else text


def _add_params(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument("--preset", choices=sorted(PRESETS), default="default", help="a set of the options below")
    for name, field in Params.__dataclass_fields__.items():
        extra: dict[str, Any] = {"choices": CHOICES[name]} if name in CHOICES else {}
        if name == "bandwidth":
            extra = {"type": _bandwidth}
        elif name not in CHOICES:
            extra = {"type": KINDS[str(field.type)]}
        group.add_argument(
            _option(name), dest=name, default=None, help=f"{HELP[name]} (default {field.default})", **extra
        )


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="data file, or file::dataset")
    parser.add_argument(
        "--labels-column", type=_label_column, help="column of known labels, by name or number: scored, never used"
    )
    parser.add_argument("--transpose", action="store_true", help="the input is features by samples")


def _add_resources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--workers", type=int, help="worker processes of the local cluster (default: one per core, at most 4)"
    )
    group.add_argument("--memory-limit", help="bytes a process may use, such as 4GiB")
    group.add_argument("--scheduler", help="address of a running Dask scheduler")
    group.add_argument("--scratch", help="folder for what workers spill")
    group.add_argument("--partition-rows", type=int, help="samples in a partition (default: by the shape of the data)")
    group.add_argument("--serial", action="store_true", help="no cluster: everything in this process")


def _params(options: argparse.Namespace) -> Params:
    given = {name: getattr(options, name) for name in Params.__dataclass_fields__}
    return Params(**{**PRESETS[options.preset], **{name: value for name, value in given.items() if value is not None}})


def _resources(options: argparse.Namespace) -> Resources:
    return Resources(
        n_workers=options.workers,
        memory_limit=parse_bytes(options.memory_limit, "--memory-limit"),
        scheduler=options.scheduler,
        scratch=options.scratch,
        partition_rows=options.partition_rows,
    )


def _progress(options: argparse.Namespace) -> Silent | LiveProgress | PlainProgress:
    if options.quiet:
        return Silent()
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


def _summary(finished: Run) -> dict[str, Any]:
    report = finished.report()
    if finished.known_labels is not None:
        report |= scores(finished.known_labels, finished.labels)
    return report


def _finish(finished: Run, options: argparse.Namespace) -> int:
    summary = _summary(finished)
    if not options.quiet:
        print_report(summary)
    if options.json:
        print(json.dumps(summary))
    return 0


def command_run(options: argparse.Namespace) -> int:
    """``ips2 run``: cluster an input into a run directory."""
    finished = run(
        options.input,
        _params(options),
        _resources(options),
        store=options.out,
        labels_column=options.labels_column,
        transpose=options.transpose,
        progress=_progress(options),
        own_cluster=not options.serial,
    )
    return _finish(finished, options)


def command_demo(options: argparse.Namespace) -> int:
    """``ips2 demo``: cluster scikit-learn's digits on a local cluster."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  only the demo needs it

    X, y = load_digits(return_X_y=True)
    source = open_source(X)
    finished = run(
        source, Params(n_clusters=10), Resources(n_workers=2, partition_rows=512), store=options.out,
        progress=_progress(options), own_cluster=True,
    )  # fmt: skip
    summary = {**_summary(finished), **scores(y, finished.labels)}
    print_report(summary)
    if options.json:
        print(json.dumps(summary))
    return 0


def command_plan(options: argparse.Namespace) -> int:
    """``ips2 plan``: what would be computed; runs nothing."""
    source = open_source(options.input, labels_column=options.labels_column, transpose=options.transpose)
    params, resources = _params(options), _resources(options)
    print_plan(plan_run(source, params, resources), source, resources)
    return 0


def command_status(options: argparse.Namespace) -> int:
    """``ips2 status``: what a run has done."""
    print_status(read_manifest(ZarrStore(options.directory)), options.directory)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ips2", description="Clustering by tensor similarity, out of core, on Dask.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    said = argparse.ArgumentParser(add_help=False)
    said.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    said.add_argument("--quiet", action="store_true", help="no progress and no report")

    parser_run = commands.add_parser("run", parents=[said], help="cluster an input into a run directory")
    _add_input(parser_run)
    parser_run.add_argument("--out", required=True, help="run directory; an earlier run there is continued")
    _add_params(parser_run)
    _add_resources(parser_run)
    parser_run.set_defaults(function=command_run)

    parser_plan = commands.add_parser("plan", help="show what a run would do, and run nothing")
    _add_input(parser_plan)
    _add_params(parser_plan)
    _add_resources(parser_plan)
    parser_plan.set_defaults(function=command_plan)

    parser_status = commands.add_parser("status", help="what a run has done")
    parser_status.add_argument("directory")
    parser_status.set_defaults(function=command_status)

    parser_demo = commands.add_parser("demo", parents=[said], help="cluster scikit-learn's digits")
    parser_demo.add_argument("--out", default="ips2-demo", help="run directory (default: ips2-demo)")
    parser_demo.set_defaults(function=command_demo)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1, 2, 3, 4 or 130."""
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    options = _parser().parse_args(arguments)
    try:
        return int(options.function(options))
    except IPS2Error as error:
        print(f"ips2: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("ips2: interrupted; the same command continues the run", file=sys.stderr)
        return 130
    except Exception:
        traceback.print_exc()
        print("ips2: this is a fault of ips2_dask, please report it", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

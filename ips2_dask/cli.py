"""The command line: parses and prints; everything it does is a call that Python users can make."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from sklearn.datasets import load_digits

from ips2_dask._version import __version__
from ips2_dask.console import print_plan, print_report, print_status, progress
from ips2_dask.errors import IPS2Error
from ips2_dask.evaluation.bench.options import add_benchmarks
from ips2_dask.evaluation.metrics import scores
from ips2_dask.params import CHOICES, PRESETS, Params, Resources, parse_bytes
from ips2_dask.pipeline import plan_run, run
from ips2_dask.stopping import Stopping
from ips2_dask.storage.readers import Source, open_source
from ips2_dask.storage.readers.arrays import held_table
from ips2_dask.storage.run import Run, read_manifest
from ips2_dask.storage.store import ZarrStore

LEAST_RECALL = 0.95
"""What the graph promises; ``--strict`` holds a run to it, and to ``--tol``."""

SPELLED = {
    "n_clusters": "clusters", "n_neighbors": "neighbors", "assign_labels": "labels", "random_state": "seed",
    "n_workers": "workers",
}  # fmt: skip
"""Parameters whose option has another name."""

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
    "graph": "how the nearest neighbours are found",
    "tol": "largest residual of an eigenpair",
    "random_state": "seed of everything random",
}

KINDS: dict[str, type] = {"int": int, "float": float}
METAVARS = {"int": "N", "float": "X", "str | float": "mean|median|X"}


def _option(name: str) -> str:
    return "--" + SPELLED.get(name, name).replace("_", "-")


def _bandwidth(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _add_params(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument("--preset", choices=sorted(PRESETS), default="default", help="a set of the options below")
    for name, field in Params.__dataclass_fields__.items():
        extra: dict[str, Any] = {"choices": CHOICES[name]} if name in CHOICES else {}
        if name not in CHOICES:
            kind = str(field.type)
            extra = {"type": KINDS.get(kind, _bandwidth), "metavar": METAVARS[kind]}
        group.add_argument(
            _option(name), dest=name, default=None, help=f"{HELP[name]} (default {field.default})", **extra
        )


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="data file, file::dataset, folder or URL of a Zarr array")
    parser.add_argument("--labels-column", metavar="NAME", help="column of known labels, by name or number: for scores")
    parser.add_argument("--transpose", action="store_true", help="the input is features by samples")


def _add_resources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    who = group.add_mutually_exclusive_group()
    who.add_argument(
        "--workers", type=int, metavar="N", help="processes of the local cluster (default: cores, up to 4)"
    )
    who.add_argument("--scheduler", metavar="ADDRESS", help="address of a running Dask scheduler")
    who.add_argument("--serial", action="store_true", help="no cluster: everything in this process")
    group.add_argument("--memory-limit", metavar="SIZE", help="bytes a process may use, such as 4GiB")
    group.add_argument("--scratch", metavar="DIR", help="folder for what workers spill")
    group.add_argument("--partition-rows", type=int, metavar="N", help="samples in a partition (default: by the shape)")
    group.add_argument("--shards", type=int, metavar="N", help="shards of the sample graph (default: by the shape)")
    group.add_argument(
        "--vectors", choices=CHOICES["vectors"], default="auto", help="where block vectors live (default auto)"
    )


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
        shards=options.shards,
        vectors=options.vectors,
    )


def _summary(finished: Run) -> dict[str, Any]:
    report = finished.report()
    if finished.known_labels is not None:
        report |= scores(finished.known_labels, finished.labels)
    return report


def _finish(finished: Run, options: argparse.Namespace) -> int:
    """Print what was asked for; returns 3 where ``--strict`` finds a promise that was not kept."""
    summary = _summary(finished)
    if not options.quiet:
        print_report(summary, finished.manifest["input"]["name"])
    broken = _broken(summary, finished.params.tol) if options.strict else []
    for text in broken:
        print(f"ips2: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 3 if broken else 0


def _broken(summary: dict[str, Any], tol: float) -> list[str]:
    """The promises that a run has not kept, in words."""
    out = []
    if not summary["residual_max"] <= tol:
        out.append(f"the largest residual is {summary['residual_max']:.2g}, and --tol asks for {tol:g}")
    if not summary["recall"] >= LEAST_RECALL:
        out.append(f"the graph's recall is {summary['recall']:.4f}, and {LEAST_RECALL} is promised")
    return out


def command_run(options: argparse.Namespace) -> int:
    """``ips2 run``: cluster an input into a run directory."""
    params, resources = _params(options), _resources(options)
    with progress(options.quiet) as told:
        finished = run(
            options.input,
            params,
            resources,
            store=options.out,
            labels_column=options.labels_column,
            transpose=options.transpose,
            progress=options.stopping.told(told),
            own_cluster=not options.serial,
        )
    return _finish(finished, options)


def _digits() -> Source:
    X, y = load_digits(return_X_y=True)
    return held_table(X, "scikit-learn's digits", read_labels=partial(np.array, y))


def command_demo(options: argparse.Namespace) -> int:
    """``ips2 demo``: cluster scikit-learn's digits on a local cluster."""
    params, resources = Params(n_clusters=10), Resources(n_workers=2, partition_rows=512)
    with progress(options.quiet) as told:
        told = options.stopping.told(told)
        finished = run(_digits(), params, resources, store=options.out, progress=told, own_cluster=True)
    status = _finish(finished, options)
    if not (options.quiet or options.json):
        print(f"look into it    ips2 status {options.out}, or ips2_dask.open_run({options.out!r}) in Python")
    return status


def command_plan(options: argparse.Namespace) -> int:
    """``ips2 plan``: what would be computed; runs nothing."""
    params, resources = _params(options), _resources(options)
    source = open_source(options.input, labels_column=options.labels_column, transpose=options.transpose)
    return 0 if print_plan(plan_run(source, params, resources), source, resources) else 4


def command_status(options: argparse.Namespace) -> int:
    """``ips2 status``: what a run has done."""
    print_status(read_manifest(ZarrStore(options.directory)), options.directory)
    return 0


def command_bench(options: argparse.Namespace) -> int:
    """``ips2 bench``: measure a part of the package, or all of it, beside what others offer."""
    # peers and SciPy's solvers, which no other command needs
    from ips2_dask.evaluation.bench.command import bench  # noqa: PLC0415

    return bench(options, _params, _resources)


def command_reproduce(options: argparse.Namespace) -> int:
    """``ips2 reproduce``: the paper's experiments again, beside its printed figures."""
    # the baselines and the report, which no other command needs
    from ips2_dask.evaluation.reproduce import command  # noqa: PLC0415

    return command(options)


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(function=command_reproduce)


class _Parser(argparse.ArgumentParser):
    """Whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"ips2: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ips2", description="Clustering by tensor similarity, out of core, on Dask.", allow_abbrev=False,
        epilog="exit status: 0 done, 1 a fault of ours, 2 bad input, 3 --strict and a promise was not kept, "
        "4 refused by the plan, 130 interrupted",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = partial(commands.add_parser, allow_abbrev=False)

    said = _Parser(add_help=False)
    said.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    said.add_argument("--quiet", action="store_true", help="no progress and no report")
    said.add_argument(
        "--strict", action="store_true", help=f"exit with 3 if a residual is above tol or recall below {LEAST_RECALL}"
    )

    parser_run = add("run", parents=[said], help="cluster an input into a run directory")
    _add_input(parser_run)
    parser_run.add_argument("--out", required=True, metavar="DIR", help="run directory; an earlier run is continued")
    _add_params(parser_run)
    _add_resources(parser_run)
    parser_run.set_defaults(function=command_run)

    parser_plan = add("plan", help="show what a run would do, and run nothing")
    _add_input(parser_plan)
    _add_params(parser_plan)
    _add_resources(parser_plan)
    parser_plan.set_defaults(function=command_plan)

    parser_status = add("status", help="what a run has done")
    parser_status.add_argument("directory")
    parser_status.set_defaults(function=command_status)

    parser_demo = add("demo", parents=[said], help="cluster scikit-learn's digits")
    parser_demo.add_argument("--out", default="ips2-demo", metavar="DIR", help="run directory (default: ips2-demo)")
    parser_demo.set_defaults(function=command_demo)

    parser_bench = add("bench", help="measure on this machine: product, graph, solve, end-to-end, peers, scaling")
    parser_bench.set_defaults(function=command_bench)
    add_benchmarks(parser_bench, _add_params, _add_resources)

    _add_reproduce(add("reproduce", help="the paper's experiments again, beside its printed figures"))
    return parser


def _spelled(message: str) -> str:
    """An error's text with options where the Python names of parameters are."""
    names = "|".join([*Params.__dataclass_fields__, *Resources.__dataclass_fields__])
    message = re.sub(rf"^({names})(?=:)", lambda match: _option(match[1]), message)
    return re.sub(
        rf"\b(give|use|lower|raise) ({names})\b(?:='?([^\s'.]+)'?)?",
        lambda match: " ".join(filter(None, (match[1], _option(match[2]), match[3]))),
        message,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1, 2, 3, 4 or 130."""
    with Stopping() as stopping:
        return _main(arguments, stopping)


def _main(arguments: Sequence[str] | None, stopping: Stopping) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace(out=None, stopping=stopping, given=given)
    try:
        _parser().parse_args(arguments, options)
        return int(options.function(options))
    except SystemExit as asked:  # by argparse, after --help or an error
        return int(asked.code or 0)
    except IPS2Error as error:
        print(f"ips2: {_spelled(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        remedy = f"; the same command continues the run in {options.out}" if options.out else ""
        print(f"ips2: interrupted{remedy}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read standard output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception:
        traceback.print_exc()
        print("ips2: this is a fault of ips2_dask, please report it", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

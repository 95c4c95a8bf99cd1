"""The command line: parses and prints; everything it does is a call that Python users can make."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ips2_dask import __version__
from ips2_dask.cli.stopping import Stopping
from ips2_dask.errors import IPS2Error
from ips2_dask.params import Params, Resources
from ips2_dask.wording import option

COMMANDS = {
    "run": ("cluster an input into a run directory", "run"),
    "plan": ("show what a run would do, and run nothing", "plan"),
    "predict": ("clusters of new samples, by a run that is there", "predict"),
    "sweep": ("many settings of one input, ranked without known labels", "sweep"),
    "export": ("write a run's labels to a CSV, Parquet or .h5ad file", "export"),
    "status": ("what a run has done, and why", "status"),
    "report": ("write one page on a finished run", "report"),
    "verify": ("check a run against its digests", "verify"),
    "gc": ("take away what no key of a run points to", "gc"),
    "demo": ("cluster scikit-learn's digits", "demo"),
    "submit": ("hand a whole run over to a cluster, and return at once", "submit"),
    "jobs": ("what was submitted, and what became of it", "jobs"),
    "logs": ("what a submitted job prints", "logs"),
    "cancel": ("end a submitted job", "cancel"),
    "cluster": ("check a cluster's config, and try it", "cluster"),
    "certs": ("make certificates for a cluster (TLS)", "certs"),
    "bench": (
        "measure on this machine: product, graph, solve, end-to-end, peers, scaling, choosing, sweep, change",
        "bench",
    ),
    "study": ("a scaling study from a YAML file: notebook, fits, figures", "study"),
    "completion": ("a script that completes commands and options in bash, zsh or fish", "completion"),
    "reproduce": ("the paper's experiments again, beside its printed figures", "reproduce"),
}
"""What each command is for, and its file in ``ips2_dask/commands``."""


class _Parser(argparse.ArgumentParser):
    """Whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"ips2: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def whole_parser() -> argparse.ArgumentParser:
    """All commands with all of their options."""
    return _parser([], every=True)


def _parser(given: Sequence[str], every: bool = False) -> argparse.ArgumentParser:
    """All commands by name, with the options of the one that is asked for: the others need not be imported."""
    chosen = next((word for word in given if not word.startswith("-")), None)
    parser = _Parser(
        prog="ips2", description="Clustering by tensor similarity, out of core, on Dask.", allow_abbrev=False,
        epilog="exit status: 0 done, 1 damage, a store that fails or a fault of ours, 2 bad input, "
        "3 --strict and a promise was not kept, 4 refused by the plan, 130 interrupted",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, _) in COMMANDS.items():
        parser_of_one = commands.add_parser(name, allow_abbrev=False, help=what, description=what)
        if every or name == chosen:
            module = importlib.import_module(f"ips2_dask.cli.{COMMANDS[name][1]}")
            module.add_arguments(parser_of_one)
            parser_of_one.set_defaults(function=module.command)
    return parser


def _spelled(message: str) -> str:
    """An error's text with options where the Python names of parameters are."""
    names = "|".join([*Params.__dataclass_fields__, *Resources.__dataclass_fields__, "similarity", "knn_graph"])
    message = re.sub(rf"^({names})(?=:)", lambda match: option(match[1]), message)
    return re.sub(
        rf"\b(give|use|lower|raise) ({names})\b(?:='?([^\s'.]+)'?)?",
        lambda match: " ".join(filter(None, (match[1], option(match[2]), match[3]))),
        message,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1, 2, 3, 4 or 130."""
    with Stopping() as stopping:
        return _main(arguments, stopping)


def _main(arguments: Sequence[str] | None, stopping: Stopping) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace(out=None, stopping=stopping, given=given, whole_parser=whole_parser)
    try:
        _parser(given).parse_args(given, options)
        return int(options.function(options))
    except SystemExit as asked:  # by argparse, after --help or an error
        return int(asked.code or 0)
    except IPS2Error as error:
        print(f"ips2: {_spelled(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        again = shlex.join(["ips2", *given])
        remedy = f"; the same command continues the run in {options.out}: {again}" if options.out else ""
        print(f"ips2: interrupted{remedy}", file=sys.stderr)
        return 130
    except MemoryError as error:
        remedy = "give a larger --memory-limit, or --vectors chunked; `ips2 plan` shows what each stage needs"
        print(f"ips2: memory: this process got no more ({error}); what is stored stays. Remedy: {remedy}",
              file=sys.stderr)  # fmt: skip
        return 1
    except BrokenPipeError:  # whoever read standard output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception:
        traceback.print_exc()
        print("ips2: this is a fault of ips2_dask, please report it", file=sys.stderr)
        return 1


def entry() -> NoReturn:
    """The command ``ips2``."""
    status = main()
    gc.freeze()  # the interpreter looks through all that is left before it ends: half a second for nothing
    sys.exit(status)

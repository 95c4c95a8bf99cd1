"""The command line: parses and prints; everything it does is a call that Python users can make."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ips2_dask import __version__
from ips2_dask.cli.stopping import Stopping
from ips2_dask.errors import BadInput, IPS2Error, IPS2Warning
from ips2_dask.params import Params, Resources
from ips2_dask.wording import option

COMMANDS = {
    "run": ("run", "cluster an input into a run directory"),
    "plan": ("plan", "show what a run would do, and run nothing"),
    "predict": ("run", "clusters of new samples, by a run that is there"),
    "sweep": ("sweep", "many settings of one input, ranked without known labels"),
    "export": ("maintenance", "write a run's labels to a CSV, Parquet or .h5ad file"),
    "status": ("maintenance", "what a run has done, and why"),
    "report": ("maintenance", "write one page on a finished run"),
    "verify": ("maintenance", "check a run against its digests"),
    "gc": ("maintenance", "take away what no key of a run points to"),
    "demo": ("run", "cluster scikit-learn's digits"),
    "submit": ("jobs", "hand a whole run over to a cluster, and return at once"),
    "jobs": ("jobs", "what was submitted, and what became of it"),
    "logs": ("jobs", "what a submitted job prints"),
    "cancel": ("jobs", "end a submitted job"),
    "cluster": ("cluster", "check a cluster's config, and try it"),
    "certs": ("cluster", "make certificates for a cluster (TLS)"),
    "bench": ("sweep", "measure speed, memory and quality on this machine (`ips2 bench --help` lists what)"),
    "completion": ("main", "a script that completes commands and options in bash, zsh or fish"),
    "reproduce": ("sweep", "the paper's experiments again, beside its printed figures"),
}
"""The file of each command in ``ips2_dask/cli``, and its help.

For the command ``NAME`` the file has the functions ``add_NAME_arguments(parser)`` and ``NAME_command(options)``, which
returns the exit status. A file is imported when one of its commands is called, so that no command waits for the imports
of the others.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"ips2: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def _parser(words: Sequence[str], every: bool = False) -> argparse.ArgumentParser:
    """The parser of a command line: it knows all commands, but only the options of the one that ``words`` call.

    With ``every`` it knows the options of all commands, for which all of their files are imported.
    """
    called = next((word for word in words if not word.startswith("-")), None)
    parser = _Parser(
        prog="ips2",
        description="Clustering by tensor similarity, out of core, on Dask.",
        allow_abbrev=False,
        epilog="exit status: 0 done, 1 damage, a store that fails or a fault of ours, 2 bad input, "
        "3 --strict and a promise was not kept, 4 refused by the plan, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (file, summary) in COMMANDS.items():
        subparser = commands.add_parser(name, allow_abbrev=False, help=summary, description=summary)
        if every or name == called:
            module = importlib.import_module(f"ips2_dask.cli.{file}")
            getattr(module, f"add_{name}_arguments")(subparser)
            subparser.set_defaults(function=getattr(module, f"{name}_command"))
    return parser


SHELLS = ("bash", "zsh", "fish")
FILES = frozenset({"input", "new", "to", "page", "knn_graph", "similarity", "performance_report", "log_json"})
FOLDERS = frozenset({"directory", "out", "store", "scratch", "data"})
"""Arguments that a shell completes with the names of files, and of folders; ~ in them is the home."""


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of ``ips2 completion``."""
    parser.add_argument("shell", choices=SHELLS)


def completion_command(options: argparse.Namespace) -> int:
    """Print the completion script of all commands for a shell."""
    try:
        import shtab  # noqa: PLC0415  an extra that this command alone needs
    except ImportError:
        raise BadInput(
            "completion",
            "no shtab",
            "shtab, which writes the scripts",
            "there would be no script",
            "pip install 'ips2-dask[completion]'",
        ) from None
    parser = _parser([], every=True)
    for action in _actions(parser):
        if action.dest in FILES | FOLDERS and action.choices is None:
            action.complete = shtab.FILE if action.dest in FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _expand_homes(options: argparse.Namespace) -> None:
    """Put the home in place of ~ in paths: a shell does not where an option ends in =, as in --out=~/run."""
    for name, value in vars(options).items():
        if name in (FILES | FOLDERS) - {"scratch"} and isinstance(value, str):  # scratch is of other machines
            setattr(options, name, os.path.expanduser(value))


def _check_parts(options: argparse.Namespace, further: Sequence[str]) -> None:
    """Refuse Parquet files that follow the input, as the shell makes them of a pattern that is not in quotes."""
    first = str(vars(options).get("new", vars(options).get("input")))
    if all(word.endswith(".parquet") for word in (first, *further)):
        folder = os.path.dirname(first) or "."
        raise BadInput(
            first,
            f"{len(further)} more Parquet files after it",
            "a file, a folder or a pattern",
            "they would be left out",
            f"put the pattern in quotes, as in '{os.path.join(folder, '*.parquet')}', or name the folder, {folder}",
        )


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)


def _with_options(message: str) -> str:
    """The text of an error with the options of the command line in place of the parameters' names in Python."""
    fields = [*Params.__dataclass_fields__, *Resources.__dataclass_fields__, "similarity", "knn_graph"]
    names, unlike_words = "|".join(fields), "|".join(name for name in fields if "_" in name)
    message = re.sub(rf"^({names})(?=:)", lambda match: option(match[1]), message)
    said, word, remedy = message.rpartition("Remedy: ")
    remedy = re.sub(
        rf"(?<![\w.'/-])({names})='?([^\s',;]*[^\s',;.])'?", lambda match: f"{option(match[1])} {match[2]}", remedy
    )
    remedy = re.sub(
        rf"\b(give|use|leave|lower|raise) ({names})\b", lambda match: f"{match[1]} {option(match[2])}", remedy
    )
    remedy = re.sub(rf"(?<![\w.'/-])({unlike_words})\b(?!['(])", lambda match: option(match[1]), remedy)
    return said + word + remedy


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each warning of this package as a line, without the place in the code."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, IPS2Warning):
            print(f"ips2: {message}", file=sys.stderr)
        else:
            shown_otherwise(message, category, *place, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("always", IPS2Warning)
        shown_otherwise, warnings.showwarning = warnings.showwarning, show
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1, 2, 3, 4 or 130."""
    with Stopping() as stopping:
        return _main(arguments, stopping)


def _main(arguments: Sequence[str] | None, stopping: Stopping) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace(out=None, stopping=stopping, given=words)
    try:
        parser = _parser(words)
        _, further = parser.parse_known_args(words, options)
        if further:
            _check_parts(options, further)
            parser.error(f"unrecognized arguments: {' '.join(further)}")
        _expand_homes(options)
        with _warnings_as_lines():
            return int(options.function(options))
    except SystemExit as end:  # of argparse, after --help or an error
        return int(end.code or 0)
    except IPS2Error as error:
        print(f"ips2: {_with_options(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        again = shlex.join(["ips2", *words])
        remedy = f"; the same command continues the run in {options.out}: {again}" if options.out else ""
        print(f"ips2: interrupted{remedy}", file=sys.stderr)
        return 130
    except MemoryError as error:
        remedy = "give a larger --memory-limit, or --vectors chunked; `ips2 plan` shows what each stage needs"
        print(
            f"ips2: memory: this process got no more ({error}); what is stored stays. Remedy: {remedy}", file=sys.stderr
        )
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

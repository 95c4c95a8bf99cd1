"""The command line: parses, prints and ends in order; everything it does is a call that Python users can make."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NoReturn, Self

from ips2_dask import __version__
from ips2_dask.errors import BadInput, IPS2Error, IPS2Warning
from ips2_dask.params import Params, Resources
from ips2_dask.progress import Progress, Relay
from ips2_dask.wording import option

COMMANDS = {
    "run": ("cli.run", "cluster an input into a run directory"),
    "plan": ("cli.run", "show what a run would do, and run nothing"),
    "predict": ("cli.run", "clusters of new samples, by a run that is there"),
    "sweep": ("cli.run", "many settings of one input, ranked without known labels"),
    "export": ("cli.maintenance", "write a run's labels to a CSV, Parquet or .h5ad file"),
    "status": ("cli.maintenance", "what a run has done, and why"),
    "report": ("cli.maintenance", "write one page on a finished run"),
    "verify": ("cli.maintenance", "check a run against its digests, or take away what it does not need (--gc)"),
    "demo": ("cli.run", "cluster scikit-learn's digits"),
    "jobs": ("cli.cluster", "whole runs on a cluster: submit one, list, follow or cancel those that were submitted"),
    "cluster": ("cli.cluster", "check a cluster's config and try it, or make certificates for it (TLS)"),
    "bench": ("bench.command", None),
}
"""The module of each command in the package, and its help; one without help is not listed.

For the command ``NAME`` the module has a function ``NAME_command(options)`` that returns the exit status, and for a
word that follows it ``NAME_WORD(options)``. What they take is in `options`, or the module has ``OPTIONS``. A module is
imported when one of its commands is called, so that no command waits for the imports of the others.
"""

RENAMED = {
    "gc": "ips2 verify --gc",
    "submit": "ips2 jobs submit",
    "logs": "ips2 jobs logs",
    "cancel": "ips2 jobs cancel",
    "certs": "ips2 cluster certs",
    "study": "ips2 bench scaling",
    "reproduce": "ips2 bench reproduce",
    "completion": "shtab --prog ips2 --shell bash ips2_dask.cli.main.whole_parser",
}
"""What commands of the last version are called now."""

_PATHS = {"input", "new", "to", "page", "knn_graph", "similarity", "performance_report", "log_json"}
_PATHS |= {"directory", "out", "store", "data"}
"""Arguments in which ~ is the home; not that of scratch, which is of other machines."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which gets its options when it is first used, by ``fill``."""

    def __init__(self, *args: Any, fill: Callable[[argparse.ArgumentParser], None] | None = None, **more: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | more)
        self._fill = fill

    def filled(self) -> Self:
        """The parser with all of its options."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with all options."""
        return super(_Parser, self.filled()).parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        print(f"ips2: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> _Parser:
    """The parser of all commands, each of which gets its options when it is called."""
    parser = _Parser(
        prog="ips2",
        description="Clustering by tensor similarity, out of core, on Dask.",
        epilog="Measurements: ips2 bench --help. Exit status: 0 done, 1 damage, a store that fails or a fault of ours, "
        "2 bad input, 3 --strict and a promise was not kept, 4 refused by the plan, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (file, summary) in COMMANDS.items():
        more: dict[str, Any] = {"fill": partial(_fill, name, file)} | ({"help": summary} if summary else {})
        commands.add_parser(name, description=summary, **more)
    return parser


def _fill(name: str, file: str, parser: argparse.ArgumentParser) -> None:
    """Give a command its options and its function."""
    from ips2_dask.cli import options  # noqa: PLC0415  not for `ips2 --help` alone

    if importlib.util.find_spec(f"ips2_dask.{file.partition('.')[0]}") is None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="needs a checkout")
        parser.set_defaults(function=_needs_checkout)
        return
    module = importlib.import_module(f"ips2_dask.{file}")
    function, words = getattr(module, f"{name}_command", None), options.WORDS.get(name, {})
    parser.set_defaults(function=function)
    options.add(parser, *(options.OPTIONS[name] if name in options.OPTIONS else module.OPTIONS[name]))
    if not words:
        return
    verbs = parser.add_subparsers(required=function is None, dest="verb", metavar="WHAT")
    for word, (text, parts) in words.items():
        verb = verbs.add_parser(word, help=text, description=text)
        verb.set_defaults(function=getattr(module, f"{name}_{word}"))
        options.add(verb, *parts)


def _needs_checkout(options: argparse.Namespace) -> NoReturn:
    """Refuse a command whose module no wheel has."""
    found, allowed = "an installation from a wheel", "a checkout, installed by `pip install -e .`"
    otherwise, remedy = "there would be nothing to measure", "clone the repository, and install that"
    raise BadInput(options.command, found, allowed, otherwise, remedy)


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the options of all commands: `shtab --prog ips2 --shell bash ips2_dask.cli.main.whole_parser`."""
    parsers: list[argparse.ArgumentParser] = [_parser()]
    for parser in parsers:
        for action in (parser.filled() if isinstance(parser, _Parser) else parser)._actions:
            parsers += action.choices.values() if isinstance(action, argparse._SubParsersAction) else []
    return parsers[0]


def _check_parts(options: argparse.Namespace, further: Sequence[str]) -> None:
    """Refuse Parquet files that follow the input, as the shell makes them of a pattern that is not in quotes."""
    first = str(vars(options).get("new", vars(options).get("input")))
    if all(word.endswith(".parquet") for word in (first, *further)):
        folder = os.path.dirname(first) or "."
        found, allowed = f"{len(further)} more Parquet files after it", "a file, a folder or a pattern"
        remedy = f"put the pattern in quotes, as in '{os.path.join(folder, '*.parquet')}', or name the folder, {folder}"
        raise BadInput(first, found, allowed, "they would be left out", remedy)


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


class Stopping:
    """A context in which the first SIGINT, SIGTERM or SIGUSR2 raises KeyboardInterrupt in the main thread.

    The first ends the cluster in order, the second ends this process at once. SIGUSR2 is what Grid Engine sends a
    minute before it kills a job that was submitted with ``-notify``.

    Python loses an exception that is raised inside a callback of its garbage collector, and distributed has such a
    callback (about every thirtieth interrupt was lost, measured). So `guard` raises it again at the next event.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)

    def __init__(self) -> None:
        self.interrupted = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in self.SIGNALS}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self.interrupted:
            logging.disable(logging.NOTSET)
        sys.unraisablehook = self._hook

    def guard(self, progress: Progress) -> Progress:
        """A progress that passes events on to another one, and raises a KeyboardInterrupt that Python lost."""
        return Relay(progress, check=self._check)

    def _check(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def _stop(self, *_: object) -> NoReturn:
        if self.interrupted:  # workers end themselves when their pipe to this process closes
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # live progress hid it
            print(f"{show_cursor}ips2: interrupted again", file=sys.stderr, flush=True)
            os._exit(130)
        self.interrupted = True
        logging.disable(logging.CRITICAL)  # Dask would log an error for each task that it gives up
        raise KeyboardInterrupt

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            self._hook(unraisable)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1, 2, 3, 4 or 130."""
    with Stopping() as stopping:
        return _main(list(sys.argv[1:] if arguments is None else arguments), stopping)


def _main(words: list[str], stopping: Stopping) -> int:
    options = argparse.Namespace(out=None, json=False, stopping=stopping, given=words)
    if words and words[0] in RENAMED:
        print(f"ips2 {words[0]}: is now `{RENAMED[words[0]]}`", file=sys.stderr)
        return 2
    try:
        parser = _parser()
        _, further = parser.parse_known_args(words, options)
        if further:
            _check_parts(options, further)
            parser.error(f"unrecognized arguments: {' '.join(further)}")
        for name, value in vars(options).items():  # as a shell does not where an option ends in =, as in --out=~/run
            if name in _PATHS and isinstance(value, str):
                setattr(options, name, os.path.expanduser(value))
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

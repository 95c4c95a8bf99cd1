"""``ips2 completion``: a script that teaches a shell the commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ips2_dask.errors import BadInput

SHELLS = ("bash", "zsh", "fish")
FILES = frozenset({"input", "to", "knn_graph", "similarity"})
FOLDERS = frozenset({"directory", "out", "scratch", "data"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 completion``."""
    parser.add_argument("shell", choices=SHELLS)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser for a shell."""
    try:
        import shtab  # noqa: PLC0415  an extra that this command alone needs
    except ImportError:
        raise BadInput(
            "completion", "no shtab", "shtab, which writes the scripts", "there would be no script",
            "pip install 'ips2-dask[completion]'",
        ) from None  # fmt: skip
    for action in _actions(parser):
        if action.dest in FILES | FOLDERS and action.choices is None:
            action.complete = shtab.FILE if action.dest in FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def command(options: argparse.Namespace) -> int:
    """``ips2 completion``: print the script; what to do with it is in its shell's manual, and in the README."""
    print(script(options.whole_parser(), options.shell))
    return 0

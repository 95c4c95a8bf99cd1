"""Whether a record is older than the code that it measures, by a checkout's history; and the records that may be."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path

BEFORE = "made before records knew their commit; made again by `ips2 bench all`"
BUSY = "made beside other work, while its commit was not the last one; made again by `ips2 bench all`"
CELLS = "made before a task placed the cells of shards, which are the same; made again by `ips2 bench all`"

EXCEPTIONS = {
    "peers-compiled": CELLS, "scaling": CELLS, "million-k10": CELLS,
    "two-workers": CELLS, "ten-million": CELLS,
    "graph-mnist": BEFORE, "graph-500k": BEFORE, "peers": BEFORE,
    "choosing": BUSY, "roundings": BEFORE, "numbers": BEFORE, "noise": BEFORE, "copies": BEFORE,
    "paper": BEFORE,
    "notebook-01": BEFORE, "notebook-02": BEFORE, "notebook-03": BEFORE, "notebook-04": BEFORE,
    "notebook-05": BEFORE, "notebook-06": BEFORE,
}  # fmt: skip
"""Records that may be older than their code, and why. A line goes when its record has been made again."""


class NoHistory(Exception):
    """There is no checkout, or one without the commits that would tell."""


def git(folder: Path, *arguments: str) -> str:
    """What git says; `NoHistory` where it can't."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoHistory(f"no git ({error})") from error
    if done.returncode:
        raise NoHistory(done.stderr.strip() or f"git {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def check_history(folder: Path) -> None:
    """Raise `NoHistory` in a shallow clone and outside of a checkout."""
    if git(folder, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise NoHistory("a shallow clone, which has not all commits")
    if Path(git(folder, "rev-parse", "--show-toplevel").strip()).resolve() != folder.resolve():
        raise NoHistory("no checkout of its own")


def staleness(folder: Path, commit: str | None, patterns: Sequence[str]) -> str | None:
    """In words how a record of ``commit`` is older than the files of ``patterns``; None where it is not.

    A file is newer if its code differs in HEAD from that commit; changed comments, docstrings and layout don't count.
    """
    if commit is None:
        return "its commit is not known"
    if commit.endswith("-dirty"):
        return f"it was made by files that differ from {commit.removesuffix('-dirty')[:9]}"
    try:
        git(folder, "merge-base", "--is-ancestor", commit, "HEAD")
    except NoHistory:
        return f"its commit {commit[:9]} is not in this history"
    globs = [f":(glob){pattern}" for pattern in patterns]
    changed = git(folder, "diff", "--name-only", "--no-renames", commit, "HEAD", "--", *globs).split()
    newer = [name for name in changed if _code(folder, commit, name) != _code(folder, "HEAD", name)]
    if not newer:
        return None
    last = git(folder, "log", "-1", "--format=%h", f"{commit}..HEAD", "--", *newer).strip()
    return f"it is of {commit[:9]}, and {last} has changed {', '.join(newer)}"


def _code(folder: Path, commit: str, name: str) -> str | None:
    """A file's code without comments and docstrings; its text if it is no Python; None where it is not there."""
    try:
        text = git(folder, "show", f"{commit}:{name}")
    except NoHistory:
        return None
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)

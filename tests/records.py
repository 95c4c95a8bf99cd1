"""Whether a record is older than the code that it measures, by a checkout's history; and the records that may be."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path

ALL_MAY_BE_OLDER = "inputs, solver and house are being changed; every record is made again when that is done"
"""Why any record may be older than its code for now; empty where none may but those below."""

EXCEPTIONS = {
    "ten-million": "made before tasks were sent in windows and one of them placed the cells of shards: the same arrays"
}
"""Records that may be older than their code, and why. A line goes when its record has been made again."""

SUCCESSORS = {
    "0b2cb71f2b816625e6aca8022e5ad43e18f08eb9": "fc9428e",
    "ad20789b1efe86c3500f7cc0da169dbffbf5ed6b": "fc9428e",
    "def5eb4ecdebfbdb3b08516d4cc402b1a921f508": "fc9428e",
    "ecc8c054f504dc7114bab41cfccf5f7480546689": "fc9428e",
}
"""Commits of records that never came into this history, and the commit in it that has the same code of the package.

They were compared before they were lost; nobody can do so again. A line goes when its records have been made again.
"""


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
    commit = SUCCESSORS.get(commit, commit)
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

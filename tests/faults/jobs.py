"""The jobs of all stages, read from the code, and kinds of runs that have each of them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

import ips2_dask

WORD = r"\w+"
"""A pattern of what is put into an f-string."""

PACKAGE = Path(ips2_dask.__file__).parent


class JobName(NamedTuple):
    """The parts of one job, by their stage and the pattern of what their names begin with."""

    stage: str
    prefix: str

    @property
    def pattern(self) -> str:
        """A pattern of the names of its parts, with their stage."""
        return rf"{self.stage}/{self.prefix}" + (r"[\w.-]+" if self.prefix else r"p\d+")

    def is_of(self, part: str) -> bool:
        """Whether a part, by its name with its stage, is one of this job's."""
        return re.fullmatch(self.pattern, part) is not None

    @property
    def label(self) -> str:
        """The name in the list of tests."""
        return f"{self.stage}-{self.prefix.replace(WORD, 'N').rstrip('-') or 'p'}"


def jobs_in_code() -> list[JobName]:
    """The jobs that stages make, each once: what ``Job(stage, function, prefix)`` names, wherever it is called.

    Raises
    ------
    ValueError
        Where stage or prefix are neither text, nor f-strings, nor names of such.
    """
    found = {job for path in sorted(PACKAGE.glob("stages/**/*.py")) for job in _jobs_of(path)}
    return sorted(found)


def _jobs_of(path: Path) -> Iterator[JobName]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or _name(call.func) != "Job":
            continue
        given = dict(zip(("stage", "function", "prefix"), call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg}
        try:
            stage = _pattern(given["stage"], tree, path)
            prefix = _pattern(given["prefix"], tree, path) if "prefix" in given else ""
        except LookupError as error:
            raise ValueError(f"{path}:{call.lineno}: {ast.unparse(call)}: what is {error}?") from error
        yield JobName(stage, prefix)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _pattern(node: ast.expr, tree: ast.Module, path: Path) -> str:
    """A pattern of a text in the code: what is put into an f-string may be any number or word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value).replace(r"\-", "-")
    if isinstance(node, ast.JoinedStr):
        return "".join(_pattern(part, tree, path) if isinstance(part, ast.Constant) else WORD for part in node.values)
    if isinstance(node, ast.Name):
        for statement in ast.walk(tree):  # assigned in this module, in a function or outside
            if isinstance(statement, ast.Assign) and node.id in map(_name, statement.targets):
                return _pattern(statement.value, tree, path)
        if any(isinstance(one, ast.arg) and one.arg == node.id for one in ast.walk(tree)):
            return WORD  # a function's parameter
    if isinstance(node, ast.Call):  # such as the prefix of a round of refinement: what a function here returns
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name == _name(node.func):
                (returned,) = (one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value)
                return _pattern(returned, tree, path)
        return WORD + "-"  # a function of another module
    module = importlib.import_module(".".join(("ips2_dask", *path.relative_to(PACKAGE).with_suffix("").parts)))
    value = eval(compile(ast.Expression(node), str(path), "eval"), vars(module))  # a constant of a module
    if not isinstance(value, str):
        raise LookupError(ast.unparse(node))
    return re.escape(value).replace(r"\-", "-")


# ---- runs that have them


class Kind(NamedTuple):
    """Options of a run, what its input is, and bounds of the package that only large runs reach, as they are in it."""

    options: tuple[str, ...]
    write: Callable[[Path], None]
    bounds: Mapping[str, int] = MappingProxyType({})


def _cloud(m: int = 300) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(7).normal(size=(m, 10))


def _write_cloud(path: Path) -> None:
    """A cloud without groups: (300, 10)."""
    np.save(path, _cloud())


def _write_repeats(path: Path) -> None:
    """A cloud in which some rows are equal: (300, 10)."""
    np.save(path, np.concatenate([_cloud(280), _cloud(20)]))


def _write_gaps(path: Path) -> None:
    """A cloud that lacks some values: (300, 10)."""
    X = _cloud()
    X[::17, 3] = np.nan
    np.save(path, X)


def _write_distances(path: Path) -> None:
    """The distances of a cloud: (300, 300)."""
    X = _cloud()
    np.save(path, np.linalg.norm(X[:, None] - X[None], axis=2))


def _write_groups(path: Path) -> None:
    """Three groups far apart: (300, 10)."""
    np.save(path, _cloud() + 20.0 * (np.arange(300) % 3)[:, None])


def _write_island(path: Path) -> None:
    """Three groups far apart, and six rows far from each: (300, 10)."""
    np.save(path, _cloud() + 40.0 * (np.arange(300) // 98)[:, None])


def _write_pieces(path: Path) -> None:
    """Thirty groups of ten, far apart: (300, 10)."""
    places = np.random.default_rng(1).normal(size=(30, 10))
    np.save(path, 0.5 * _cloud() + 40.0 * places[np.arange(300) % 30])


QUICK = ("--tol", "1e-2")
CHUNKED = ("--vectors", "chunked", *QUICK)
KINDS = {
    "chunked": Kind(CHUNKED, _write_cloud),
    "sharded": Kind(("--shards", "6", *CHUNKED), _write_cloud),
    "exact-after-shards": Kind(("--shards", "60", "--neighbors", "10", *CHUNKED), _write_cloud),
    "scaled": Kind(("--metric", "cosine", "--scale", "zscore", *CHUNKED), _write_cloud),
    "in-core": Kind(("--vectors", "in-core", "--operator", "matrix-free", *QUICK), _write_cloud),
    "repeats": Kind(CHUNKED, _write_repeats),
    "gaps": Kind(("--missing", "median", *CHUNKED), _write_gaps),
    "distances": Kind(("--metric", "precomputed", *CHUNKED), _write_distances),
    "normalized": Kind(("--fusion", "normalized", *CHUNKED), _write_cloud),
    "density": Kind(("--labels", "density", *CHUNKED), _write_groups),
    "batches": Kind(("--shards", "6", *CHUNKED), _write_cloud, {"stages.sharding.MOST_BATCHES": 3}),
    "islands": Kind(("--clusters", "3", *CHUNKED), _write_island),
    "drawn islands": Kind(("--clusters", "3", *CHUNKED), _write_island, {"stages.islands.SEARCH_WORK": 60**2 * 74}),
    "pieces": Kind(CHUNKED, _write_pieces),
    "levels": Kind(
        ("--vectors", "chunked"), _write_cloud, {"plan.choices.EXACT_PAIRS": 0, "kernels.levels.COARSEST": 20}
    ),
}
"""Kinds of runs, the plainest first: a job is tried in the first one that has it."""

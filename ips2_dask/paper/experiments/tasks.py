"""Tasks of the experiments: pure functions, each with one JSON file as its result; families of tasks; their sizes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ips2_dask
from ips2_dask.kernels.parallel import threads
from ips2_dask.paper.experiments.records import Record
from ips2_dask.paper.experiments.settings import BUDGET
from ips2_dask.store.files import write_atomically

Json = Any

NOT_RESULTS = ("bench/", "cli/", "paper/report/", "paper/reproduce.py", "plots/", "reports/", "sweeps/")
"""Files of the package that no result of a task depends on."""


class TaskContext(NamedTuple):
    """The first argument of a task's function: the data directory, and the results of earlier tasks."""

    data: str | None  # directory of the data sets
    earlier: Mapping[str, Json]  # results of the tasks it comes after, by their names


@dataclass(frozen=True, eq=False)
class Task:
    """Work that is done once, unless its arguments or the code change.

    Attributes
    ----------
    name : str
        Also its file: ``table2/soybean/IPS2`` is ``tasks/table2/soybean/IPS2.json`` below the output directory.
    function : callable
        Of `TaskContext` and the arguments; returns what JSON can hold. A function of a module, so that workers find it.
    arguments : dict
        Plain values.
    after : tuple of str
        Names of tasks whose results it needs.
    timed : bool
        Whether it measures time, so that nothing else may run meanwhile.
    weight : float
        How long it takes, roughly, relative to others: the longest begin first.
    """

    name: str
    function: Callable[..., Json]
    arguments: Mapping[str, object] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    timed: bool = False
    weight: float = 1.0

    def file(self, out: Path) -> Path:
        """The file of its result below the output directory."""
        return out / "tasks" / f"{self.name}.json"


class Done(NamedTuple):
    """A finished task: how long it took, and whether an earlier call had already done it."""

    name: str
    seconds: float
    skipped: bool


@cache
def _code_digest() -> str:
    """Digest of the package's source files that results depend on."""
    root = Path(ips2_dask.__file__).parent
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    digest = hashlib.sha256()
    for name in names:
        if not name.startswith(NOT_RESULTS):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()


def digests(tasks: list[Task]) -> dict[str, str]:
    """The digest of each task: of its function, its arguments, the code, and of what it comes after.

    Tasks come in an order in which each stands behind those it needs.
    """
    digest_of: dict[str, str] = {}
    for task in tasks:
        content = {
            "function": f"{task.function.__module__}.{task.function.__qualname__}",
            "arguments": task.arguments,
            "after": {name: digest_of[name] for name in task.after},
            "code": _code_digest(),
        }
        digest_of[task.name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return digest_of


def read_result(task: Task, out: Path, digest: str) -> Json | None:
    """The result of a task, or None where it is not there, not whole, or not of this digest."""
    try:
        document = json.loads(task.file(out).read_text())
        return document["result"] if document["digest"] == digest else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def perform(task: Task, out: Path, data: str | None, digest_of: Mapping[str, str], earlier: Mapping[str, Task]) -> Done:
    """Do a task, unless it is done, and write its result whole: aside, then renamed.

    Every task runs with one thread of BLAS, which sums in another order with another number of threads.
    """
    if read_result(task, out, digest_of[task.name]) is not None:
        return Done(task.name, 0.0, True)
    results = {name: read_result(earlier[name], out, digest_of[name]) for name in task.after}
    begun = time.perf_counter()
    with threads(1):
        result = task.function(TaskContext(data, results), **task.arguments)
    write_atomically(task.file(out), json.dumps({"task": task.name, "digest": digest_of[task.name], "result": result}))
    return Done(task.name, time.perf_counter() - begun, False)


Results = Mapping[str, Json]


@dataclass(frozen=True)
class Scope:
    """Sizes of the experiments.

    Attributes
    ----------
    seed : int
        Of the first run; run r has ``seed + r``, for the method and, where data are drawn, for the data.
    runs : int
    budget : int
        Settings of each method's grid.
    draws : int
        Random draws of 60 BBCSports documents.
    repeats : int
        Of each timed fit.
    large_runs : int
        Of data sets with thousands of samples.
    large_alone : bool
        Whether those run one after another with all cores, as other fits that are timed do; else side by side.
    tunes_beyond : bool
        Whether the small data sets beyond the paper's are tuned too.
    starts : int
        Of k-means, for each reading of the text.
    reading_draws : int
        Random draws of samples, for the readings that are tried on such.
    """

    seed: int = 0
    runs: int = 50
    budget: int = BUDGET
    draws: int = 10
    repeats: int = 10
    large_runs: int = 3
    large_alone: bool = True
    tunes_beyond: bool = True
    starts: int = 20
    reading_draws: int = 200


def quick(seed: int = 0) -> Scope:
    """Five runs, a fifth of the grids, one run of large data beside another, and no tuning beyond the paper's data."""
    return Scope(
        seed=seed,
        runs=5,
        budget=BUDGET // 5,
        large_runs=1,
        large_alone=False,
        tunes_beyond=False,
        starts=5,
        reading_draws=20,
    )


class Family(NamedTuple):
    """Experiments that belong together, under one name of ``--only``."""

    title: str
    datasets: tuple[str, ...]  # that have to be there
    tasks: Callable[[Scope], list[Task]]
    records: Callable[[Scope, Results], list[Record]]
    document: Callable[[Scope, Results], Json] | None = None  # what the records leave out, in a file of its own

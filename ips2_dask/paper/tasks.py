"""Tasks of the experiments, whose results are kept; their families and sizes; flat records of what they find."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from joblib import Memory, Parallel, delayed

import ips2_dask
from ips2_dask.kernels.parallel import threads
from ips2_dask.paper.methods import BUDGET, Summary

Results: TypeAlias = Mapping[str, Any]
"""What tasks returned, by their names."""

NOT_RESULTS = ("bench/", "cli/", "paper/figures.py", "paper/reproduce.py", "plots/", "reports/", "sweeps/")
"""Files of the package that no result of a task depends on."""

FIELDS = ("experiment", "dataset", "method", "measure", "setting", "params", "runs", "mean", "std", "paper")
SETTINGS = ("printed", "default", "tuned", "unsupervised")

Record: TypeAlias = dict[str, Any]
"""A cell of a table or a point of a curve, with all ``FIELDS``; ``paper`` is None where the paper prints nothing."""


class Task(NamedTuple):
    """Work that is done once, unless its arguments or the code change."""

    name: str
    function: Callable[..., Any]  # of a module, so that workers find it; first comes ``data``, the data sets' directory
    # the other arguments; or a function that makes them of the results of tasks whose arguments are a dict
    arguments: Mapping[str, Any] | Callable[[Results], Mapping[str, Any]]
    timed: bool = False  # whether it measures time, so that nothing else may run meanwhile
    weight: float = 1.0  # how long it takes, roughly, relative to others: the longest begin first


@dataclass(frozen=True)
class Scope:
    """Sizes of the experiments."""

    seed: int = 0  # of the first run; run r has ``seed + r``, for the method and, where data are drawn, for the data
    runs: int = 50
    budget: int = BUDGET  # settings of each method's grid
    draws: int = 10  # random draws of 60 BBCSports documents
    repeats: int = 10  # of each timed fit
    large_runs: int = 3  # of data sets with thousands of samples
    large_alone: bool = True  # whether those run one after another with all cores, as other fits that are timed do
    tunes_beyond: bool = True  # whether the small data sets beyond the paper's are tuned too
    starts: int = 20  # of k-means, for each reading of the text
    reading_draws: int = 200  # random draws of samples, for the readings that are tried on such

    @property
    def seeds(self) -> dict[str, int]:
        """The arguments of most tasks."""
        return {"runs": self.runs, "seed": self.seed}


def quick(seed: int = 0) -> Scope:
    """Five runs, a fifth of the grids, one run of large data beside another, and no tuning beyond the paper's data."""
    small: dict[str, Any] = {"large_runs": 1, "large_alone": False, "tunes_beyond": False}
    return Scope(seed=seed, runs=5, budget=BUDGET // 5, starts=5, reading_draws=20, **small)


class Family(NamedTuple):
    """Experiments that belong together, under one name of ``--only``."""

    datasets: tuple[str, ...]  # that have to be there
    tasks: Callable[[Scope], list[Task]]
    records: Callable[[Scope, Results], list[Record]] = lambda scope, results: []
    document: Callable[[Scope, Results], Any] | None = None  # what is no record, in a file of its own


def run_tasks(
    tasks: Iterable[Task], out: Path, data: str | None, jobs: int, tell: Callable[[str], object]
) -> dict[str, Any]:
    """Do all tasks that are not done yet, and return all results by name.

    joblib keeps each result below ``out / "tasks"``, in a folder of the code that made it. Tasks run in so many
    processes; those that measure time come last, and in this one. Each has one thread of BLAS, which sums in another
    order with another number of threads. ``tell`` is called with a line for each task that is done; where one raises
    an error, those that were done stay done.
    """
    by_name = {task.name: task for task in tasks}
    memory = Memory(out / "tasks" / _code_digest(), verbose=0)
    results: dict[str, Any] = {}
    ordered = sorted(by_name.values(), key=lambda task: -task.weight)
    together = [task for task in ordered if not task.timed]
    waves = (
        ([task for task in together if not callable(task.arguments)], jobs),
        ([task for task in together if callable(task.arguments)], jobs),
        ([task for task in ordered if task.timed], 1),
    )
    for wave, n_jobs in waves:
        work = [delayed(_perform)(memory, task.name, task.function, data, _arguments(task, results)) for task in wave]
        parallel = Parallel(n_jobs=max(1, min(n_jobs, len(wave))), batch_size=1, return_as="generator_unordered")
        for name, result, took in parallel(work):
            results[name] = result
            tell(f"{len(results):>4}/{len(by_name)} {name:<34} {took}")
    return results


def _arguments(task: Task, results: Results) -> Mapping[str, Any]:
    return task.arguments(results) if callable(task.arguments) else task.arguments


def _perform(
    memory: Memory, name: str, function: Callable[..., Any], data: str | None, arguments: Mapping[str, Any]
) -> tuple[str, Any, str]:
    """The name and the result of a task, and how long it took."""
    kept = memory.cache(function, ignore=["data"])
    is_there, begun = kept.check_call_in_cache(data, **arguments), time.perf_counter()
    with threads(1):
        result = kept(data, **arguments)
    return name, result, "there already" if is_there else f"{time.perf_counter() - begun:.1f} s"


def _code_digest() -> str:
    """Digest of the package's source files that results depend on."""
    root = Path(ips2_dask.__file__).parent
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")):
        if not name.startswith(NOT_RESULTS):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def record(experiment: str, dataset: str, method: str, measure: str, **values: Any) -> Record:
    """One record; ``values`` are those of other fields."""
    names = {"experiment": experiment, "dataset": dataset, "method": method, "measure": measure}
    return {**names, "setting": "default", "params": {}, "runs": 1, "mean": None, "std": None, "paper": None} | values


def of_summary(
    experiment: str, dataset: str, method: str, setting: str, one: Summary, paper: Mapping[str, float | None]
) -> list[Record]:
    """A record for each measure of a summary."""
    common: dict[str, Any] = {"setting": setting, "params": one["params"], "runs": one["runs"]}
    return [
        record(experiment, dataset, method, name, mean=mean, std=one["std"][name], paper=paper.get(name), **common)
        for name, mean in one["mean"].items()
    ]


def select(records: Iterable[Record], **wanted: object) -> list[Record]:
    """The records whose fields have these values."""
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


def mean_of(records: Iterable[Record], **wanted: object) -> float | None:
    """The mean of the one record with these values, or None."""
    matches = select(records, **wanted)
    return float(matches[0]["mean"]) if matches else None

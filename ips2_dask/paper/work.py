"""Pieces of the experiments, computed side by side and kept; the experiments' sizes; flat records of what they find."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from joblib import Memory, Parallel, delayed

from ips2_dask.kernels.parallel import threads
from ips2_dask.paper.methods import BUDGET

PACKAGE = Path(__file__).parents[1]
NOT_RESULTS = ("bench/", "cli/", "paper/figures.py", "paper/reproduce.py", "plots/", "reports/", "sweeps/")
"""Files of the package that no kept result depends on."""

FIELDS = ("experiment", "dataset", "method", "measure", "setting", "params", "runs", "mean", "std", "paper")
SETTINGS = ("printed", "default", "tuned")

Key = TypeVar("Key", bound=tuple[str, ...])

Record: TypeAlias = dict[str, Any]
"""A cell of a table or a point of a curve, with all ``FIELDS``; ``paper`` is None where the paper prints nothing."""


@dataclass(frozen=True)
class Scope:
    """Sizes of the experiments."""

    seed: int = 0  # of the first run; run r has ``seed + r``, for the method and, where data are drawn, for the data
    runs: int = 50
    budget: int = BUDGET  # settings of each method's grid
    draws: int = 10  # random draws of 60 BBCSports documents
    repeats: int = 10  # of each timed fit

    @property
    def seeds(self) -> dict[str, int]:
        """The arguments of most pieces."""
        return {"runs": self.runs, "seed": self.seed}


def quick(seed: int = 0) -> Scope:
    """Five runs and a fifth of the grids."""
    return Scope(seed=seed, runs=5, budget=BUDGET // 5)


class Work:
    """Computes pieces of experiments in ``jobs`` processes; joblib keeps each result in a folder of the code.

    ``tell`` is called with a line for each piece that is done. Where one raises an error, those that were done stay
    done. ``more`` holds what families of experiments found beside their records: matrices to draw.
    """

    def __init__(
        self,
        out: Path,
        data: str | None,
        scope: Scope,
        jobs: int = 1,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.data, self.scope, self.more = data, scope, dict[str, Any]()
        self._memory, self._jobs, self._tell = Memory(out / "tasks" / _code_digest(), verbose=0), jobs, tell

    def each(
        self, name: str, function: Callable[..., Any], calls: Mapping[Key, Mapping[str, Any]], *, alone: bool = False
    ) -> dict[Key, Any]:
        """``function(data, **arguments)`` for the arguments of each call, by the calls' keys.

        The function is one of a module, so that workers find it; ``data`` is the data sets' directory. A call is done
        once, unless its arguments or the code change. With ``alone``, for calls that measure time, one is done after
        the other in this process. Each has one thread of BLAS, which sums in another order with another number.
        """
        jobs = 1 if alone else max(1, min(self._jobs, len(calls)))
        pieces = [delayed(_perform)(self._memory, key, function, self.data, given) for key, given in calls.items()]
        found: dict[Key, Any] = {}
        for key, result, took in Parallel(jobs, batch_size=1, return_as="generator_unordered")(pieces):
            found[key] = result
            self._tell(f"{len(found):>4}/{len(calls)} {'/'.join((name, *key)):<34} {took}")
        return {key: found[key] for key in calls}


def _perform(
    memory: Memory, key: Key, function: Callable[..., Any], data: str | None, arguments: Mapping[str, Any]
) -> tuple[Key, Any, str]:
    """The key and the result of a call, and how long it took."""
    kept = memory.cache(function, ignore=["data"])
    is_there, begun = kept.check_call_in_cache(data, **arguments), time.perf_counter()
    with threads(1):
        result = kept(data, **arguments)
    return key, result, "there already" if is_there else f"{time.perf_counter() - begun:.1f} s"


def _code_digest() -> str:
    """Digest of the package's source files that results depend on."""
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")):
        if not name.startswith(NOT_RESULTS):
            digest.update(name.encode() + b"\0" + (PACKAGE / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def commit(package: Path = PACKAGE) -> str | None:
    """The commit of a package's folder, with ``-dirty`` behind it where its files differ; None outside of a checkout.

    Files outside the package don't count: records and pictures are files of the checkout too, and are written while
    others are still measured.
    """
    git = partial(subprocess.check_output, cwd=package, text=True, stderr=subprocess.DEVNULL)
    try:
        git(["git", "ls-files", "--error-unmatch", "__init__.py"])  # fails in a copy without its history
        dirty = "-dirty" if git(["git", "status", "--porcelain", "."]) else ""
        return git(["git", "rev-parse", "HEAD"]).strip() + dirty
    except (OSError, subprocess.CalledProcessError):
        return None


class Family(NamedTuple):
    """Experiments that belong together, under one name of ``--only``."""

    datasets: tuple[str, ...]  # that have to be there
    make: Callable[[Work], list[Record]]


def record(experiment: str, dataset: str, method: str, measure: str, **values: Any) -> Record:
    """One record; ``values`` are those of other fields."""
    names = {"experiment": experiment, "dataset": dataset, "method": method, "measure": measure}
    return {**names, "setting": "default", "params": {}, "runs": 1, "mean": None, "std": None, "paper": None} | values


def select(records: Iterable[Record], **wanted: object) -> list[Record]:
    """The records whose fields have these values."""
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


def mean_of(records: Iterable[Record], **wanted: object) -> float | None:
    """The mean of the one record with these values, or None."""
    matches = select(records, **wanted)
    return float(matches[0]["mean"]) if matches else None

"""`ips2 bench sweep`: seconds of a sweep beside those of one run with the largest c and k of it."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import psutil

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import Data
from ips2_dask.bench.process import Outcome, peak, work_apart
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run
from ips2_dask.store.layout import STAGES
from ips2_dask.sweeps import Point, sweep

COLUMNS = (
    "kind",
    "stage",
    "times",
    "outcome",
    "points",
    "seconds",
    "cpu_seconds",
    "run_seconds",
    "ratio",
    "nmi",
    "peak_bytes",
)


class SweptValues(NamedTuple):
    """The values of each swept parameter."""

    clusters: Sequence[int]
    neighbors: Sequence[int]
    sigma: Sequence[float]


class Job(TypedDict):
    """The argument of `work`: a run's input and arguments, and for a sweep the swept values."""

    source: str
    params: dict[str, Any]  # arguments of `Params`
    resources: dict[str, Any]  # and of `Resources`
    swept: NotRequired[dict[str, Any]]  # fields of `SweptValues`


def measure(
    data: Data, swept: SweptValues, params: Params, resources: Resources, folder: Path, limit: float | None = None
) -> Iterator[Record]:
    """A run that compiles; a run, the sweep and the run again, each in a fresh process; then their ratio.

    ``seconds`` go from the call to its return, the cluster's start included, and for the sweep its table, figure and
    page too. The ratio is that of the sweep to the mean of the two runs around it. Between them stand records of kind
    "part": seconds of each stage over all points, and of the criteria, which other processes compute meanwhile.
    ``cpu_seconds`` are those of all processes.
    """
    alone = dataclasses.replace(params, n_clusters=max(swept.clusters), n_neighbors=max(swept.neighbors))
    shape: Record = {"data": data.name, "m": data.m, "f": data.f, "workers": resources.n_workers}
    common = {"source": data.X, "resources": dataclasses.asdict(resources)}
    single = {**common, "params": alone.as_dict()}
    many = {**common, "params": params.as_dict(), "swept": swept._asdict()}
    times: dict[str, list[float]] = {"run": [], "sweep": []}
    for kind, job in (("first run", single), ("run", single), ("sweep", many), ("run", single)):
        outcome = work_apart("sweeping", job, folder, limit)
        yield {"kind": kind, **shape, **_record(outcome)}
        for name, seconds in outcome.answer.get("parts", {}).items():
            yield {"kind": "part", "stage": name, "seconds": seconds, "times": outcome.answer["times"].get(name)}
        if outcome.finished:
            times.setdefault(kind, []).append(outcome.answer["seconds"])
    if times["run"] and times["sweep"]:
        beside, took = statistics.mean(times["run"]), times["sweep"][0]
        yield {"kind": "ratio", **shape, "seconds": took, "run_seconds": beside, "ratio": took / beside}


def _record(outcome: Outcome) -> Record:
    most = peak(outcome.samples)
    names = ("seconds", "cpu_seconds", "points")
    plain: Record = {name: outcome.answer[name] for name in names if name in outcome.answer}
    return {"outcome": outcome.word, "seconds": None, **plain, "peak_bytes": most.tree if most else None}


def work(job: Job) -> dict[str, object]:
    """Do a run, or a sweep if the job has swept values, in a process of its own."""
    params, resources = Params(**job["params"]), Resources(**job["resources"])
    answer: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        begun, store = time.perf_counter(), f"{folder}/run"
        if "swept" in job:
            result = sweep(
                job["source"], **job["swept"], params=params, resources=resources, store=store, own_cluster=True
            )
            answer = {"points": len(result.points), "times": result.computed, "parts": parts(result.points)}
        else:
            run(job["source"], params, resources, store=store, own_cluster=True)
        return {"seconds": time.perf_counter() - begun, "cpu_seconds": _used(), **answer}


def parts(points: Sequence[Point]) -> dict[str, float]:
    """Seconds of each stage summed over all points, and of the criteria that compare the points."""
    seconds = {
        stage: sum(p.stages[stage]["seconds"] for p in points if p.stages[stage]["state"] != "reused")
        for stage in STAGES
    }
    return {**seconds, "criteria": sum(point.facts["seconds"]["criteria"] for point in points)}


def _used() -> float:
    """Seconds that this process and those it has started and ended have kept a core busy."""
    used = psutil.Process().cpu_times()
    return float(used.user + used.system + used.children_user + used.children_system)

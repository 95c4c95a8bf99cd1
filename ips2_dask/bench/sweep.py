"""`ips2 bench sweep`: seconds of a sweep beside those of one run with the largest c and k of it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ips2_dask.bench.harness import Data, Record, work_apart
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run
from ips2_dask.store.layout import STAGES
from ips2_dask.sweeps import Point, sweep

COLUMNS = (*("kind", "stage", "times", "outcome", "points", "seconds", "run_seconds", "ratio", "peak_bytes"),)


def measure(
    data: Data,
    clusters: Sequence[int],
    neighbors: Sequence[int],
    sigma: Sequence[float],
    workers: int,
    folder: Path,
    limit: float | None = None,
    seed: int = 0,
) -> Iterator[Record]:
    """A run that compiles; a run, the sweep and the run again, each in a fresh process; then their ratio.

    ``seconds`` go from the call to its return, the cluster's start included, and for the sweep its table, figure and
    page too. The ratio is that of the sweep to the mean of the two runs around it. Between them stand records of kind
    "part": seconds of each stage over all points, and of the criteria, which other processes compute meanwhile.
    """
    swept = {"n_clusters": clusters, "n_neighbors": neighbors, "sigma": sigma}
    shape: Record = {"data": data.name, "m": data.m, "f": data.f, "workers": workers}
    many = {"source": data.X, "workers": workers, "params": {"random_state": seed}, "swept": swept}
    alone = {"random_state": seed, "n_clusters": max(clusters), "n_neighbors": max(neighbors)}
    single = {**many, "params": alone, "swept": None}
    times: dict[str, list[float]] = {"run": [], "sweep": []}
    for kind, job in (("first run", single), ("run", single), ("sweep", many), ("run", single)):
        outcome = work_apart(__name__, job, folder, limit)
        names = ("seconds", "points")
        plain: Record = {name: outcome.answer[name] for name in names if name in outcome.answer}
        how: Record = {"outcome": outcome.word, "seconds": None, **plain, "peak_bytes": outcome.peak_bytes}
        yield {"kind": kind, **shape, **how}
        for name, seconds in outcome.answer.get("parts", {}).items():
            yield {"kind": "part", "stage": name, "seconds": seconds, "times": outcome.answer["times"].get(name)}
        if outcome.finished:
            times.setdefault(kind, []).append(outcome.answer["seconds"])
    if times["run"] and times["sweep"]:
        beside, took = statistics.mean(times["run"]), times["sweep"][0]
        yield {"kind": "ratio", **shape, "seconds": took, "run_seconds": beside, "ratio": took / beside}


def work(job: Mapping[str, Any]) -> dict[str, object]:
    """Do a run, or a sweep if the job has swept values, in a process of its own."""
    params, resources = Params(**job["params"]), Resources(n_workers=job["workers"])
    answer: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        begun, store = time.perf_counter(), f"{folder}/run"
        if job["swept"]:
            result = sweep(job["source"], job["swept"], params, resources, store=store, own_cluster=True)
            answer = {"points": len(result.points), "times": result.computed, "parts": _parts(result.points)}
        else:
            run(job["source"], params, resources, store=store, own_cluster=True)
        return {"seconds": time.perf_counter() - begun, **answer}


def _parts(points: Sequence[Point]) -> dict[str, float]:
    """Seconds of each stage summed over all points, and of the criteria that compare the points."""
    seconds = {
        stage: sum(p.stages[stage]["seconds"] for p in points if p.stages[stage]["state"] != "reused")
        for stage in STAGES
    }
    return {**seconds, "criteria": sum(point.facts["seconds"]["criteria"] for point in points)}

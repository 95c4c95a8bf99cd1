"""One run as `ips2 run` does it, in a fresh process: seconds and peak memory of each stage, the plan's beside them."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from ips2_dask.bench.document import Record
from ips2_dask.bench.process import Outcome, Sample, peak, work_apart
from ips2_dask.metrics import scores
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.pipeline.run import run
from ips2_dask.plan.plan import Plan
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.store.layout import STAGES as RUN_STAGES

START = "start"
STAGES = "stages"
TOTAL = "total"
REUSED = "reused"


class Input(NamedTuple):
    """The input of a run, and where its known labels are: a .npy file, a column of the input, or nowhere."""

    name: str
    source: str
    labels: str | None = None
    labels_column: str | None = None
    transpose: bool = False


class Clock(Progress):
    """Progress that notes when each stage began and ended."""

    def __init__(self) -> None:
        self.spans: dict[str, list[float]] = {}
        self.reused: list[str] = []

    def connected(self, dashboard: str | None) -> None:
        """Nothing to note: no stage has begun."""

    def begin(self, stage: str) -> None:
        """Note the time."""
        self.spans[stage] = [time.monotonic()]

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Note the time, and whether there was nothing to do."""
        self.spans[stage].append(time.monotonic())
        if skipped:
            self.reused.append(stage)


class Job(TypedDict):
    """The argument of `work`: the fields of an `Input`, and the arguments of the run on it."""

    name: str
    source: str
    labels: str | None
    labels_column: str | None
    transpose: bool
    store: str | None  # None for a temporary run directory
    params: dict[str, Any]  # arguments of `Params`
    resources: dict[str, Any]  # and of `Resources`
    serial: bool


def run_apart(
    source: Input,
    params: Params,
    resources: Resources,
    serial: bool,
    folder: Path,
    limit: float | None = None,
    keep: Path | None = None,
) -> Outcome:
    """A run in a fresh process on a cluster of its own, or serially; its directory goes when it is done.

    With ``keep`` that directory is used and stays; if it holds an earlier run, that run is resumed, and seconds are
    those of the resumed part.
    """
    job = {
        **source._asdict(),
        "store": None if keep is None else str(keep.absolute()),
        "params": params.as_dict(),
        "resources": dataclasses.asdict(resources),
        "serial": serial,
    }
    return work_apart("runs", job, folder, limit)


def work(job: Job) -> dict[str, object]:
    """The run, in a process of its own."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        store = job["store"] or f"{folder}/run"
        finished = run(
            job["source"],
            Params(**job["params"]),
            Resources(**job["resources"]),
            store=store,
            labels_column=job["labels_column"],
            transpose=job["transpose"],
            progress=clock,
            own_cluster=not job["serial"],
        )
        ended = time.monotonic()
        report = finished.report()
        true_labels = np.load(job["labels"]) if job["labels"] else finished.known_labels
        facts: dict[str, object] = {
            "builder": report["builder"],
            "recall": report["recall"],
            "P": report["P"],
            "components": report["components"],
            "products": report["products"],
            "residual": report["residual_max"],
            "verdict": report["verdict"],
            "partitions": report["partitions"],
            "warnings": len(report["warnings"]),
            "peak_process_rss_bytes": report["peak_rss_bytes"],
            "disk_bytes": sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file()),
        }
        if true_labels is not None:
            measures = scores(true_labels, finished.labels)
            facts |= {"nmi": measures["nmi"], "acc": measures["acc"]}
    first, last = clock.spans[RUN_STAGES[0]][0], clock.spans[RUN_STAGES[-1]][1]
    spans = {START: [begun, first], **clock.spans, STAGES: [first, last], TOTAL: [begun, ended]}
    taken = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    taken[STAGES] = sum(taken.values())
    return {"spans": spans, "reused": clock.reused, "taken": taken, "facts": facts}


def records(given: Input, params: Params, resources: Resources, serial: bool, outcome: Outcome) -> list[Record]:
    """Records of a run's time and memory: each stage, "start", "stages" and "total"; "total" alone if it failed.

    "start" is all before the first stage (the input opened, workers started), "stages" from the first stage's
    beginning to the last one's end, "total" by the clock from call to return. ``peak_bytes`` is the summed PSS of all
    processes of the run, ``peak_client_bytes`` and ``peak_worker_bytes`` that of one; None where a stage was too short
    for a sample. ``peak_process_rss_bytes`` is the system's own figure of the largest process. If a run was
    resumed, ``seconds`` are those of the resumed part, and ``computed_seconds`` what each stage took when it was
    computed.
    """
    source = open_source(given.source, labels_column=given.labels_column, transpose=given.transpose)
    plan = plan_run(source, params, resources)
    workers = 0 if serial else resources.n_workers
    shape: Record = {
        "data": given.name,
        "m": plan.m,
        "f": plan.f,
        "c": params.n_clusters,
        "k": params.n_neighbors,
        "workers": workers,
        "outcome": outcome.word,
    }
    if not outcome.finished:
        return [{**shape, "stage": TOTAL, "seconds": None, **_measured(outcome.samples, None)}]
    results = []
    for stage, (begin, end) in outcome.answer["spans"].items():
        record = {**shape, "stage": stage, "seconds": end - begin, **_measured(outcome.samples, (begin, end))}
        if stage in outcome.answer["reused"]:
            record["outcome"] = REUSED
        if outcome.answer["reused"] and stage in outcome.answer["taken"]:
            record["computed_seconds"] = outcome.answer["taken"][stage]
        results.append({**record, **_projected(plan, stage, workers)})
    chosen = {name: getattr(plan.choices, name) for name in ("operator", "vectors", "n_shards")}
    results[-1] |= {**chosen, **outcome.answer["facts"]}
    return results


def _measured(samples: Sequence[Sample], span: tuple[float, float] | None) -> Record:
    """Peaks over a span of time; None where it was too short for a sample."""
    largest = peak(samples, *(span or ()))
    return {
        "peak_bytes": largest.tree if largest else None,
        "peak_client_bytes": largest.root if largest else None,
        "peak_worker_bytes": largest.largest_child if largest else None,
    }


def _projected(plan: Plan, stage: str, workers: int | None) -> Record:
    """The plan's bounds for a stage, or for the whole run; empty for its start."""
    stages = [s for s in plan.stages if stage in (s.name, STAGES, TOTAL)]
    if not stages:
        return {}
    client, worker = max(s.client_bytes for s in stages), max(s.worker_bytes for s in stages)
    # serially one process does both parts, one after the other
    tree = client + workers * worker if workers else max(client, worker)
    return {
        "projected_bytes": tree,
        "projected_client_bytes": client,
        "projected_worker_bytes": worker,
        "projected_disk_bytes": sum(s.disk_bytes for s in stages),
    }

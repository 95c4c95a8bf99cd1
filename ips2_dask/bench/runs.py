"""`ips2 bench end-to-end` and `scaling`: whole runs in fresh processes, seconds and memory by stage beside the plan."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from ips2_dask.bench.harness import Data, Outcome, Record, generated, peak, work_apart
from ips2_dask.metrics import scores
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.pipeline.run import run
from ips2_dask.plan.choices import choose
from ips2_dask.plan.plan import Plan
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.store.layout import STAGES as RUN_STAGES

COLUMNS = (
    *("kind", "m", "workers", "stage", "outcome", "seconds", "peak_bytes", "projected_bytes", "builder", "recall"),
    *("residual", "nmi", "acc", "against", "ratio", "exponent", "low", "high"),
)
START, STAGES, TOTAL, REUSED = "start", "stages", "total", "reused"
TOGETHER = ("tensor", "eigen")  # they build and multiply the tensor, and get a speedup of their summed time too
REPORTED = ("builder", "recall", "P", "components", "products", "verdict", "partitions")  # in a run's report too
WARM_UP = 2_000  # samples of a run that compiles


class How(NamedTuple):
    """What several runs have in common."""

    params: Params
    resources: Resources
    folder: Path  # for temporary files, X and run directories; one that the workers of another cluster share
    serial: bool = False  # whether there is no cluster
    limit: float | None = None  # seconds that a run may take in all


class _Clock(Progress):
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


def _run_apart(data: Data, how: How, keep: Path | None = None) -> list[Record]:
    """Records of a run in a fresh process on a cluster of its own, or serially; its directory goes when it is done.

    With ``keep`` that directory is used and stays; if it holds an earlier run, that run is resumed. Each stage has a
    record, then "start" (all before the first stage), "stages" (from the first stage's beginning to the last one's end)
    and "total" (from call to return), "total" alone if it failed. ``peak_bytes`` is the summed PSS of all processes,
    ``peak_client_bytes`` and ``peak_worker_bytes`` that of one; None where a stage was too short for a sample. If a run
    was resumed, ``seconds`` are those of the resumed part, and ``computed_seconds`` what each stage took before.
    """
    where = {"X": data.X, "labels": data.labels, "store": None if keep is None else str(keep.absolute())}
    given = {"params": how.params.as_dict(), "resources": dataclasses.asdict(how.resources), "serial": how.serial}
    return _records(data, how, work_apart(__name__, {**where, **given}, how.folder, how.limit))


def work(job: Mapping[str, Any]) -> dict[str, object]:
    """The run, in a process of its own."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        begun, store = time.monotonic(), job["store"] or f"{folder}/run"
        given: Any = {"store": store, "progress": clock, "own_cluster": not job["serial"]}
        finished = run(job["X"], Params(**job["params"]), Resources(**job["resources"]), **given)
        ended = time.monotonic()
        report, measures = finished.report(), scores(np.load(job["labels"]), finished.labels)
        facts: dict[str, object] = {
            **{name: report[name] for name in REPORTED},
            **{name: measures[name] for name in ("nmi", "acc")},
            "residual": report["residual_max"],
            "warnings": len(report["warnings"]),
            "peak_process_rss_bytes": report["peak_rss_bytes"],
            "disk_bytes": sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file()),
        }
    first, last = clock.spans[RUN_STAGES[0]][0], clock.spans[RUN_STAGES[-1]][1]
    spans = {START: [begun, first], **clock.spans, STAGES: [first, last], TOTAL: [begun, ended]}
    taken = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return {"spans": spans, "reused": clock.reused, "taken": {**taken, STAGES: sum(taken.values())}, "facts": facts}


def _records(data: Data, how: How, outcome: Outcome) -> list[Record]:
    plan, params = plan_run(open_source(data.X), how.params, how.resources), how.params
    workers = 0 if how.serial else how.resources.n_workers
    shape: Record = {"data": data.name, "m": plan.m, "f": plan.f, "c": params.n_clusters, "k": params.n_neighbors}
    shape |= {"workers": workers, "outcome": outcome.word}
    if not outcome.finished:
        return [{**shape, "stage": TOTAL, "seconds": None, **_measured(outcome)}]
    results = []
    for stage, (begin, end) in outcome.answer["spans"].items():
        record = {**shape, "stage": stage, "seconds": end - begin, **_measured(outcome, begin, end)}
        if stage in outcome.answer["reused"]:
            record["outcome"] = REUSED
        if outcome.answer["reused"] and stage in outcome.answer["taken"]:
            record["computed_seconds"] = outcome.answer["taken"][stage]
        results.append({**record, **_projected(plan, stage, workers)})
    chosen = {name: getattr(plan.choices, name) for name in ("operator", "vectors", "n_shards")}
    results[-1] |= {**chosen, **outcome.answer["facts"]}
    return results


def _measured(outcome: Outcome, *span: float) -> Record:
    """Peaks over a span of time, by default over all; None where it was too short for a sample."""
    largest = peak(outcome.samples, *span)
    names = ("peak_bytes", "peak_client_bytes", "peak_worker_bytes")
    return dict(zip(names, largest[1:] if largest else (None, None, None), strict=True))


def _projected(plan: Plan, stage: str, workers: int | None) -> Record:
    """The plan's bounds for a stage, or for the whole run; empty for its start."""
    stages = [s for s in plan.stages if stage in (s.name, STAGES, TOTAL)]
    if not stages:
        return {}
    client, worker = max(s.client_bytes for s in stages), max(s.worker_bytes for s in stages)
    # serially one process does both parts, one after the other
    tree = client + workers * worker if workers else max(client, worker)
    disk = sum(s.disk_bytes for s in stages)
    of_each = {"projected_client_bytes": client, "projected_worker_bytes": worker, "projected_disk_bytes": disk}
    return {"projected_bytes": tree, **of_each}


def end_to_end(
    data: Data, how: How, repeats: int = 1, against: int | None = None, keep: Path | None = None
) -> Iterator[Record]:
    """The records of each of ``repeats`` runs, of kind "time"; then speedups, if ``against`` is given.

    So many workers have other runs then, made by turns with these. A record of kind "speedup" for each stage holds as
    ``ratio`` the median of their seconds over the median of these. With ``keep``, for one run only, its directory stays
    there; a run that it holds is resumed.
    """
    n_workers = how.resources.n_workers
    times: dict[int | None, list[dict[str, float]]] = {n: [] for n in (against, n_workers)}
    for repeat in range(repeats):
        for n in [n_workers] if against is None else [against, n_workers]:
            found = _run_apart(data, _on(how, n), keep)
            yield from ({"kind": "time", **record, "repeat": repeat} for record in found)
            times[n].append({str(r["stage"]): r["seconds"] for r in found if isinstance(r["seconds"], float)})
    if against is not None:
        shape: Record = {"data": data.name, "c": how.params.n_clusters, "k": how.params.n_neighbors}
        for stage, ratio in speedups(times[against], times[n_workers]).items():
            pair: Record = {"workers": n_workers, "stage": stage, "against": against}
            yield {"kind": "speedup", **shape, **pair, "ratio": ratio, "repeats": repeats}


def _on(how: How, n: int | None) -> How:
    return how._replace(resources=dataclasses.replace(how.resources, n_workers=n))


def speedups(slow: Sequence[Mapping[str, float]], fast: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds of each stage that all runs finished, over those of the other runs; and of `TOGETHER` in one."""
    runs = [{**run, " and ".join(TOGETHER): sum(run.get(s, 0.0) for s in TOGETHER)} for run in (*slow, *fast)]
    shared = [stage for stage in runs[0] if all(run.get(stage) for run in runs)]
    first, second = runs[: len(slow)], runs[len(slow) :]
    return {s: statistics.median(r[s] for r in first) / statistics.median(r[s] for r in second) for s in shared}


class _Growth(NamedTuple):
    """time ~ m^exponent, with the limits of a 95 % interval; None with fewer than three sizes."""

    exponent: float
    low: float | None
    high: float | None


def growth(sizes: Sequence[float], seconds: Sequence[float]) -> _Growth:
    """The exponent of time against at least two sizes: least squares of log time on log size."""
    fit = scipy.stats.linregress(np.log(sizes), np.log(seconds))
    if len(sizes) < 3:
        return _Growth(float(fit.slope), None, None)
    reach = float(scipy.stats.t.ppf(0.975, len(sizes) - 2) * fit.stderr)
    return _Growth(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach)


def scaling(sizes: Sequence[int], features: int, how: How, warm_up: bool = True) -> Iterator[Record]:
    """Records of `timed`, whose parameters these are, for each size; then one of kind "growth" for each stage.

    It holds the exponent of the stage's seconds over the sizes.
    """
    times: dict[str, dict[int, float]] = {}  # by stage and samples
    for r in timed([(m, None) for m in sizes], features, how, warm_up):
        yield r
        if isinstance(r["seconds"], float) and isinstance(r["m"], int) and r["stage"] != START:
            times.setdefault(str(r["stage"]), {})[r["m"]] = r["seconds"]
    for stage, seconds in times.items():
        if len(seconds) > 1:
            fit = growth(list(seconds), list(seconds.values()))
            yield {"kind": "growth", "stage": stage, "sizes": len(seconds), **fit._asdict()}


def timed(points: Iterable[tuple[int, int | None]], features: int, how: How, warm_up: bool = True) -> Iterator[Record]:
    """Records of kind "time" for each stage of a run for each point: so many samples on so many workers.

    Data are `datasets.curved_gaussians` with as many clusters as ``params`` asks for, written before the clock starts.
    Each run is a fresh process on a cluster of its own; before them, small runs with the choices that they will make
    compile the kernels that Numba caches on disk. ``compiled`` says that they did, and ``start_included`` whether
    ``seconds`` hold the start of the interpreter's workers: those of "total" do, from the call of `run` to its return;
    those of "stages" go from the first stage's beginning to the last one's end, and are the README's `all, s`. None for
    the workers leaves those of ``how``.
    """
    runs = [(m, how if n is None else _on(how, n)) for m, n in points]
    if warm_up and runs:
        chosen = (choose(m, features, how.params, how.resources.vectors) for m, _ in runs)
        for graph, operator, vectors in sorted({(c.graph, c.operator, c.vectors) for c in chosen}):
            params = dataclasses.replace(how.params, graph=graph, operator=operator, shards=None)
            small = runs[0][1]._replace(
                params=params, resources=dataclasses.replace(runs[0][1].resources, vectors=vectors)
            )
            _on_generated(max(WARM_UP, 2 * int(params.n_clusters)), features, small)
    for m, here in runs:
        for record in _on_generated(m, features, here):
            start = record["stage"] in (START, TOTAL)
            yield {"kind": "time", **record, "compiled": warm_up, "start_included": start}


def _on_generated(m: int, features: int, how: How) -> list[Record]:
    """A run on generated data, which go at once: ten million samples should not wait on disk for the next size."""
    data = generated(m, features, int(how.params.n_clusters), how.params.random_state, how.folder)
    try:
        return _run_apart(data, how)
    finally:
        for file in (data.X, data.labels):
            Path(file).unlink()

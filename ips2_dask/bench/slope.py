"""`ips2 bench slope`: bytes that each sample more takes in the driver and in a worker, by stage.

The sizes are runs in fresh processes, at the same rows of a partition. Before each stage the system's record of every
process's peak resident memory is reset, so that a stage has a peak of its own; Linux alone can do that. The cache of a
process and the batches of rows that are sorted by shard grow with the samples up to a limit, and no further: here the
limits are so low that all sizes reach them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import generated
from ips2_dask.bench.process import descendants, work_apart
from ips2_dask.clusters import cluster, config_of
from ips2_dask.errors import BadInput
from ips2_dask.executors.process_memory import limit_memory
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.pipeline.run import run
from ips2_dask.plan.plan import Plan
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.stages.sharding import limit_batches
from ips2_dask.store.cache import limit_cache
from ips2_dask.store.layout import STAGES

COLUMNS = (
    "kind",
    "m",
    "stage",
    "outcome",
    "seconds",
    "driver_peak_bytes",
    "worker_peak_bytes",
    "planned_worker_bytes",
    "from",
    "to",
    "driver_bytes_a_sample",
    "worker_bytes_a_sample",
    "planned_worker_bytes_a_sample",
)
SIZES = (1_000_000, 2_000_000, 4_000_000)
STACK_BYTES = 1 << 20
"""Bytes of the stack of each thread of the driver."""

CACHE_BYTES = 8 << 20
"""Most bytes of the cache of each process, so small that it is full at the smallest of the sizes."""

BATCH_BYTES = 8 << 20
"""Most bytes of a batch of rows, a quarter of the smallest of the sizes."""

RESET_PEAK = "5"
"""What resets a process's peak resident memory, written into its ``/proc/PID/clear_refs``."""


class Peaks(NamedTuple):
    """Peak resident memory of a stage in one run, in bytes."""

    driver: int
    worker: int  # of the worker that had most


def peaks(pid: int) -> Peaks:
    """The peaks of a process and of its descendants since they were last reset."""
    return Peaks(_peak(pid), max((_peak(child) for child in descendants(pid)), default=0))


def reset_peaks(pid: int) -> None:
    """Begin anew with the peaks of a process and of its descendants: each is what it holds now."""
    for process in (pid, *descendants(pid)):
        try:
            Path(f"/proc/{process}/clear_refs").write_text(RESET_PEAK)
        except ProcessLookupError:  # it has just ended
            continue
        except FileNotFoundError:
            if process == pid:
                raise


def _peak(pid: int) -> int:
    """Bytes of a process's peak resident memory; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


class StagePeaks(Progress):
    """Progress that writes a line of JSON for each stage as it ends: its seconds, and its peaks.

    Parameters
    ----------
    pid : int
        The driver's process id.
    file : Path
    """

    def __init__(self, pid: int, file: Path) -> None:
        self._pid, self._file = pid, file
        self._begun = 0.0

    def begin(self, stage: str) -> None:
        """Reset the peaks, and name the stage: it may never end."""
        reset_peaks(self._pid)
        self._begun = time.monotonic()
        self._write({"stage": stage})

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Write what the stage took."""
        del seconds, skipped
        self._write({"stage": stage, "seconds": time.monotonic() - self._begun, **peaks(self._pid)._asdict()})

    def _write(self, line: Mapping[str, object]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Job(TypedDict):
    """The argument of `work`."""

    source: str
    store: str
    stages: str  # the file for `StagePeaks`
    limit: int | None  # bytes of the driver
    params: dict[str, Any]
    resources: dict[str, Any]


def work(job: Job) -> dict[str, object]:
    """A run on a cluster of its own, the driver under its limit, in a process of its own."""
    resources = Resources(**job["resources"])
    # the limit counts the stack of a thread as soon as it starts, 8 MiB by default, though little of it is ever touched
    threading.stack_size(STACK_BYTES)
    limit_cache(CACHE_BYTES)
    limit_batches(BATCH_BYTES)
    with cluster(config_of(resources)) as client:
        client.run(limit_cache, CACHE_BYTES)
        if job["limit"] is not None:
            limit_memory(job["limit"])
        run(
            job["source"],
            Params(**job["params"]),
            dataclasses.replace(resources, n_workers=None, memory_limit=None, scratch=None),
            store=job["store"],
            client=client,
            progress=StagePeaks(os.getpid(), Path(job["stages"])),
        )
    return {}


def measure(
    sizes: Sequence[int],
    f: int,
    params: Params,
    resources: Resources,
    driver_limit: int | None,
    folder: Path,
    limit: float | None = None,
) -> Iterator[Record]:
    """A record of kind "peak" for each size and stage, and one of kind "slope" for each stage and two sizes in turn.

    Of more than two sizes another slope is that from the first to the last: the longest step says most, since the peaks
    of one size differ from run to run.

    Parameters
    ----------
    sizes : sequence of int
    f : int
        Features.
    params : Params
    resources : Resources
        With ``partition_rows``: at other rows of a partition its arrays are of another size.
    driver_limit : int, optional
        Bytes that the driver may hold; a run that needs more ends, and the record of its stage says so.
    folder : Path
        For temporary files.
    limit : float, optional
        Seconds that a run may take.

    Raises
    ------
    BadInput
        Where this system doesn't tell peaks, or the rows of a partition are not given.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise BadInput(
            "bench slope",
            f"the system {sys.platform}",
            "Linux, which resets the peak of a process's memory",
            "stages would have no peaks of their own",
            "run it on Linux",
        )
    if resources.partition_rows is None:
        raise BadInput(
            "--partition-rows",
            "nothing",
            "a number of rows",
            "partitions of the sizes would differ",
            "give --partition-rows 65536",
        )
    before: dict[str, Record] = {}
    first: dict[str, Record] = {}
    for m in sizes:
        found: dict[str, Record] = {}
        for record in _size(m, f, params, resources, driver_limit, folder, limit):
            yield record
            found[str(record["stage"])] = record
        for stage, record in found.items():
            if stage in before and record["driver_peak_bytes"] is not None:
                yield _slope(before[stage], record)
        before = {stage: record for stage, record in found.items() if record["driver_peak_bytes"] is not None}
        first = first or before
    if len(sizes) > 2:
        yield from (_slope(first[stage], record) for stage, record in before.items() if stage in first)


def _size(
    m: int, f: int, params: Params, resources: Resources, driver_limit: int | None, folder: Path, limit: float | None
) -> Iterator[Record]:
    """The records of one size."""
    data = generated(m, f, params.n_clusters, params.random_state, folder)
    stages = folder / f"stages-{m}.jsonl"
    job: dict[str, object] = {
        "source": data.X,
        "store": str(folder / f"run-{m}"),
        "stages": str(stages),
        "limit": driver_limit,
        "params": params.as_dict(),
        "resources": dataclasses.asdict(resources),
    }
    outcome = work_apart("slope", job, folder, limit)
    plan = plan_run(open_source(data.X), params, resources)
    lines = [json.loads(line) for line in stages.read_text().splitlines()] if stages.exists() else []
    ended = {line["stage"]: line for line in lines if "driver" in line}
    for stage in dict.fromkeys(line["stage"] for line in lines):
        line = ended.get(stage, {})
        yield {
            "kind": "peak",
            "m": m,
            "f": f,
            "c": params.n_clusters,
            "workers": resources.n_workers,
            "stage": stage,
            "outcome": "finished" if line else outcome.word,
            "seconds": line.get("seconds"),
            "driver_peak_bytes": line.get("driver"),
            "worker_peak_bytes": line.get("worker"),
            "planned_worker_bytes": _planned(plan, stage),
            "driver_limit_bytes": driver_limit,
        }
    if not lines:
        yield {
            "kind": "peak",
            "m": m,
            "f": f,
            "c": params.n_clusters,
            "workers": resources.n_workers,
            "stage": STAGES[0],
            "outcome": outcome.word,
            "seconds": None,
            "driver_peak_bytes": None,
            "worker_peak_bytes": None,
            "planned_worker_bytes": None,
            "driver_limit_bytes": driver_limit,
        }
    for path in (data.X, data.labels):
        Path(path).unlink()


def _planned(plan: Plan, stage: str) -> int | None:
    """The plan's bound of a worker in a stage."""
    return next((s.worker_bytes for s in plan.stages if s.name == stage), None)


def _slope(small: Mapping[str, Any], large: Mapping[str, Any]) -> Record:
    """Bytes a sample by which a stage's peaks grew from one size to the next."""
    more = large["m"] - small["m"]

    def a_sample(name: str) -> float | None:
        low, high = small[name], large[name]
        return None if low is None or high is None else (high - low) / more

    return {
        "kind": "slope",
        "stage": large["stage"],
        "from": small["m"],
        "to": large["m"],
        "driver_bytes_a_sample": a_sample("driver_peak_bytes"),
        "worker_bytes_a_sample": a_sample("worker_peak_bytes"),
        "planned_worker_bytes_a_sample": a_sample("planned_worker_bytes"),
    }

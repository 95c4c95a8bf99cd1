"""`ips2 bench end-to-end`: seconds, peak memory and the plan's projection of each stage of a run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ips2_dask.bench.document import Record
from ips2_dask.bench.runs import Input, records, run_apart
from ips2_dask.params import Params, Resources

COLUMNS = (
    "kind",
    "workers",
    "stage",
    "outcome",
    "seconds",
    "peak_bytes",
    "projected_bytes",
    "builder",
    "recall",
    "residual",
    "nmi",
    "acc",
    "against",
    "ratio",
)
TOGETHER = ("tensor", "eigen")
"""The stages that build and multiply the tensor: they also get a speedup of their summed time."""


def measure(
    source: Input,
    params: Params,
    resources: Resources,
    folder: Path,
    serial: bool = False,
    repeats: int = 1,
    limit: float | None = None,
    against: int | None = None,
    keep: Path | None = None,
) -> Iterator[Record]:
    """The records of each of ``repeats`` runs, as of `runs.records`; then speedups, if ``against`` is given.

    Parameters
    ----------
    source : Input
    params : Params
    resources : Resources
    folder : Path
        For temporary files, the run directory among them.
    serial : bool
        Whether there is no cluster.
    repeats : int
    limit : float, optional
        Seconds that a run may take in all.
    against : int, optional
        Workers of other runs, made by turns with these. A record of kind "speedup" for each stage then holds as
        ``ratio`` the median of their seconds over the median of these.
    keep : Path, optional
        The run's directory, which stays; a run that it holds is resumed. For one run only.
    """
    numbers = [resources.n_workers] if against is None else [against, resources.n_workers]
    times: dict[int, list[dict[str, float]]] = {n: [] for n in numbers if n is not None}
    for repeat in range(repeats):
        for n in numbers:
            here = dataclasses.replace(resources, n_workers=n)
            outcome = run_apart(source, params, here, serial, folder, limit, keep)
            seconds: dict[str, float] = {}
            for record in records(source, params, here, serial, outcome):
                yield {"kind": "time", **record, "repeat": repeat}
                if isinstance(record["seconds"], float):
                    seconds[str(record["stage"])] = record["seconds"]
            if n is not None:
                times[n].append(seconds)
    if against is not None and resources.n_workers is not None:
        for stage, ratio in speedups(times[against], times[resources.n_workers]).items():
            shape: Record = {"data": source.name, "c": params.n_clusters, "k": params.n_neighbors}
            yield {
                "kind": "speedup",
                **shape,
                "workers": resources.n_workers,
                "stage": stage,
                "against": against,
                "ratio": ratio,
                "repeats": repeats,
            }


def speedups(slow: Sequence[Mapping[str, float]], fast: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds of each stage that all runs finished, over those of the other runs; and of `TOGETHER` in one."""
    runs = [{**run, " and ".join(TOGETHER): sum(run.get(s, 0.0) for s in TOGETHER)} for run in (*slow, *fast)]
    shared = [stage for stage in runs[0] if all(run.get(stage) for run in runs)]
    first, second = runs[: len(slow)], runs[len(slow) :]
    return {s: statistics.median(r[s] for r in first) / statistics.median(r[s] for r in second) for s in shared}

"""The runs of a study, each in a fresh process, and the file that their records are appended to."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ips2_dask.bench.activity import Watch
from ips2_dask.bench.document import Record, machine, versions
from ips2_dask.bench.inputs import generated
from ips2_dask.bench.origin import now, present
from ips2_dask.bench.runs import Input, records, run_apart
from ips2_dask.bench.scaling import compile_kernels
from ips2_dask.bench.study.config import Study
from ips2_dask.errors import BadInput
from ips2_dask.params import Params, Resources


class PlannedRun(NamedTuple):
    """One run of a study: its size, its parameters, its workers."""

    part: str  # "growth", "strong" or "weak"
    m: int
    k: int
    operator: str
    workers: int

    def key(self, study: Study) -> dict[str, Record | int | str | float | None]:
        """The fields that two records of the same planned run have in common."""
        where = study.scheduler or study.cluster or "local"
        return {
            **self._asdict(),
            "f": study.features,
            "c": study.clusters,
            "seed": study.seed,
            "cluster": Path(where).name,
        }


def planned_runs(study: Study) -> list[PlannedRun]:
    """All runs of a study, in their order."""
    k, operator = study.neighbors[0], study.operators[0]
    runs = [
        PlannedRun("growth", m, each_k, each, study.workers)
        for each in study.operators
        for each_k in study.neighbors
        for m in study.sizes
    ]
    if study.strong_samples:
        runs += [PlannedRun("strong", study.strong_samples, k, operator, w) for w in study.strong_workers]
    if study.weak_samples:
        runs += [PlannedRun("weak", study.weak_samples * w, k, operator, w) for w in study.weak_workers]
    return runs


def results_file(study: Study, results: str | Path) -> Path:
    """The file of a study's records."""
    return Path(results) / f"{study.name}.jsonl"


def kept(study: Study, results: str | Path) -> list[Record]:
    """The records of a study that are in its file, the last ones of each run."""
    keys = {json.dumps(planned.key(study), sort_keys=True) for planned in planned_runs(study)}
    return [
        r
        for key, results_of_run in _by_run(results_file(study, results)).items()
        if key in keys
        for r in results_of_run
    ]


def read_bench(path: str | Path) -> list[Record]:
    """The records of a file of ``ips2 bench scaling --json``, as those of a study's growth part.

    Raises
    ------
    BadInput
        Where it is no such file.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return [{**r, "where": document["machine"]["cpu"]} for r in as_growth(document["results"])]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(
            str(path),
            "no file of that kind",
            "what `ips2 bench scaling --json FILE` writes",
            "figures would be made of something else",
            "give another file",
        ) from None


def as_growth(results: Sequence[Record]) -> list[Record]:
    """The records of ``ips2 bench scaling`` as those of a study's growth part."""
    return [{**r, "part": "growth", "operator": "auto"} for r in results if r["kind"] == "time"]


def measure(
    study: Study, results: str | Path, *, again: bool = False, report: Callable[[str], None] = print
) -> list[Record]:
    """Make the runs that the file of results does not have on this machine and version, and append their records.

    Every run is a fresh process on a cluster of its own (or on ``study.scheduler``), on data that were written before
    the clock starts.

    Parameters
    ----------
    study : Study
    results : path
        Folder of the file ``NAME.jsonl``.
    again : bool
        Make all runs, whatever is there.
    report : callable
        Is given a line for each run.

    Returns
    -------
    list of dict
        A flat record for each run and stage: seconds, peak memory and what the plan said of it; machine and versions
        (``where``), date (``when``), commit and changes as of `bench.origin.Code`, and the cores that other processes
        took meanwhile (``others``).
    """
    file = results_file(study, results)
    file.parent.mkdir(parents=True, exist_ok=True)
    here = _here()
    there = {} if again else {k: r for k, r in _by_run(file).items() if r[0].get("where") == here}
    todo = [run for run in planned_runs(study) if json.dumps(run.key(study), sort_keys=True) not in there]
    with _folder(study) as folder:
        if todo and study.warm_up:
            for operator, k in sorted({(run.operator, run.k) for run in todo}):
                sizes = [run.m for run in todo if (run.operator, run.k) == (operator, k)]
                params, resources = _params(study, k, operator), _resources(study, study.workers)
                compile_kernels(sizes, study.features, params, resources, study.workers == 0, folder)
        for number, run in enumerate(todo, 1):
            watch = Watch()
            measured = list(_run(study, run, folder))
            made = {"where": here, "when": now(), **present()._asdict(), "others": round(watch.others(), 3)}
            with file.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps({**r, **run.key(study), **made}) + "\n" for r in measured)
            report(f"{number}/{len(todo)} {_said(run, measured)}")
    if not todo:
        report("all runs were there already")
    return kept(study, results)


def _params(study: Study, k: int, operator: str) -> Params:
    return Params(n_clusters=study.clusters, n_neighbors=k, operator=operator, random_state=study.seed)


def _resources(study: Study, workers: int) -> Resources:
    if workers == 0:  # one process computes alone
        return Resources()
    if study.scheduler is not None:
        return Resources(scheduler=study.scheduler)
    return Resources(n_workers=workers, cluster=study.cluster)


def _run(study: Study, run: PlannedRun, folder: Path) -> Iterator[Record]:
    data = generated(run.m, study.features, study.clusters, study.seed, folder)
    source, serial = Input(data.name, data.X, data.labels), run.workers == 0
    params, resources = _params(study, run.k, run.operator), _resources(study, run.workers)
    try:
        outcome = run_apart(source, params, resources, serial, folder, study.limit)
        for record in records(source, params, resources, serial, outcome):
            # `operator` is the requested one; the one that a run chose for "auto" is stored as `chosen_operator`
            chosen = {"chosen_operator": record["operator"]} if "operator" in record else {}
            yield {**record, **chosen}
    finally:
        for file in (data.X, data.labels):
            Path(file).unlink(missing_ok=True)


def _said(run: PlannedRun, measured: list[Record]) -> str:
    total = next((r for r in measured if r["stage"] == "total"), measured[-1])
    seconds = total["seconds"]
    took = f"{seconds:.1f} s" if isinstance(seconds, float) else str(total["outcome"])
    workers = f"{run.workers} workers" if run.workers else "serial"
    return f"{run.part}: {run.m:,} samples, k = {run.k}, operator {run.operator}, {workers}: {took}"


def _by_run(file: Path) -> dict[str, list[Record]]:
    """Records by their runs; of several measurements of one run the last counts.

    Raises
    ------
    BadInput
        Where a line is no record.
    """
    by_key: dict[str, list[Record]] = {}
    when: dict[str, object] = {}
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line)
            key = json.dumps(
                {n: record[n] for n in ("part", "m", "k", "operator", "workers", "f", "c", "seed", "cluster")},
                sort_keys=True,
            )
            stage, moment = record["stage"], record["when"]
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                str(file),
                f"line {number}, which is no record",
                "a record of `ips2 study` a line",
                "figures would be made of something else",
                "take that line out",
            ) from None
        if any(old["stage"] == stage for old in by_key.get(key, ())) and when[key] != moment:
            by_key[key] = []
        by_key.setdefault(key, []).append(record)
        when[key] = moment
    return by_key


def _here() -> str:
    """Machine and versions in a line: measurements of others are not mixed with ours."""
    facts, version = machine(), versions()
    return (
        f"{facts['cpu']}, {facts['cores']} cores, ips2_dask {version['ips2_dask']}, numpy {version['numpy']}, "
        f"numba {version['numba']}, dask {version['dask']}"
    )


@contextlib.contextmanager
def _folder(study: Study) -> Iterator[Path]:
    """A folder for data and runs, which goes afterwards."""
    if study.scratch is not None:
        Path(study.scratch).mkdir(parents=True, exist_ok=True)
    name = tempfile.mkdtemp(prefix="ips2-study-", dir=study.scratch)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)

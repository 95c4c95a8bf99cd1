"""Every family of experiments by its name, and its tasks run on Dask, side by side unless they measure time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import dask
from dask.delayed import Delayed, delayed
from distributed import as_completed

from ips2_dask import clusters, datasets
from ips2_dask.errors import BadInput
from ips2_dask.paper.experiments import beyond, ranks, reading_tasks, series, similarities, tables
from ips2_dask.paper.experiments.records import Record
from ips2_dask.paper.experiments.tasks import Done, Family, Json, Results, Scope, Task, digests, perform, read_result
from ips2_dask.params import Resources


class Progress(Protocol):
    """Receives the number of tasks, and each task as it finishes."""

    def begin(self, total: int) -> None:
        """``total`` tasks are asked for; the results of some may be stored already."""
        ...

    def done(self, task: Done) -> None:
        """One more task is done."""
        ...


def ordered(tasks: Iterable[Task]) -> list[Task]:
    """Distinct tasks, each behind those it needs, the longest first where that leaves a choice.

    Raises
    ------
    ValueError
        A task needs one that is not there.
    """
    by_name = {task.name: task for task in tasks}
    placed: dict[str, Task] = {}

    def place(task: Task) -> None:
        if task.name in placed:
            return
        for name in task.after:
            if name not in by_name:
                raise ValueError(f"task {task.name} needs {name}, which is not there")
            place(by_name[name])
        placed[task.name] = task

    for task in sorted(by_name.values(), key=lambda task: (-task.weight, task.name)):
        place(task)
    return list(placed.values())


def run_tasks(tasks: Iterable[Task], out: Path, data: str | None, jobs: int, progress: Progress) -> Mapping[str, Json]:
    """Do all tasks that are not done yet, and return all results by name.

    Parameters
    ----------
    tasks : iterable of Task
    out : Path
        Where results are kept.
    data : str or None
        Directory of the data sets.
    jobs : int
        Processes; with 1 everything runs in this one. Tasks that measure time come last and run in this one, always.
    progress : Progress

    Raises
    ------
    BadInput
        What a task raises; those that were done stay done.
    """
    every = ordered(tasks)
    digest_of, by_name = digests(every), {task.name: task for task in every}
    progress.begin(len(every))
    missing = []
    for task in every:
        if read_result(task, out, digest_of[task.name]) is None:
            missing.append(task)
        else:
            progress.done(Done(task.name, 0.0, True))

    def work(task: Task) -> partial[Done]:
        needed = {name: by_name[name] for name in task.after}
        return partial(_perform, task, out, data, {name: digest_of[name] for name in (task.name, *task.after)}, needed)

    together = [task for task in missing if not task.timed]
    if jobs > 1 and len(together) > 1:
        _side_by_side({task: work(task) for task in together}, min(jobs, len(together)), progress)
    else:
        _in_turn([work(task) for task in together], progress)
    _in_turn([work(task) for task in missing if task.timed], progress)
    return {task.name: read_result(task, out, digest_of[task.name]) for task in every}


def _perform(
    task: Task, out: Path, data: str | None, digest_of: Mapping[str, str], earlier: Mapping[str, Task], *waits: Done
) -> Done:
    """`perform` as a Dask task; ``waits`` orders it behind the tasks it needs, whose results it reads from files."""
    del waits
    return perform(task, out, data, digest_of, earlier)


def _in_turn(work: list[partial[Done]], progress: Progress) -> None:
    """On Dask's synchronous scheduler in this process, in the order given."""
    for one in work:
        progress.done(dask.compute(delayed(one, traverse=False)(), scheduler="synchronous")[0])


def _side_by_side(work: Mapping[Task, partial[Done]], jobs: int, progress: Progress) -> None:
    """On a local cluster of processes that ends with the work; the first error ends it."""
    nodes: dict[str, Delayed] = {}
    for task, one in work.items():
        waits = [nodes[name] for name in task.after if name in nodes]
        nodes[task.name] = delayed(one, traverse=False)(*waits)
    with clusters.executor(Resources(n_workers=jobs)) as executor:
        client = executor.client
        futures = [client.compute(nodes[task.name], priority=len(work) - i) for i, task in enumerate(work)]
        try:
            for future in as_completed(futures, loop=client.loop):
                progress.done(future.result())
        finally:
            client.cancel(futures)


FAMILIES: dict[str, Family] = {
    "table1": tables.TABLE1,
    "table2": tables.TABLE2,
    "readings": reading_tasks.FAMILY,
    "table3": tables.TABLE3,
    **similarities.FAMILIES,
    **series.FAMILIES,
    "neighbors": series.NEIGHBORS,
    "beyond": beyond.FAMILY,
    "ranks": ranks.FAMILY,
}
"""In the order of the report."""


def chosen(only: Sequence[str]) -> dict[str, Family]:
    """The families that ``--only`` names, in the order of the report; all of them where it names none.

    Raises
    ------
    BadInput
        A name that is none of theirs.
    """
    for name in only:
        if name not in FAMILIES:
            raise BadInput(
                "--only", repr(name), ", ".join(FAMILIES), "nothing would be computed", "give some of these names"
            )
    return {name: family for name, family in FAMILIES.items() if not only or name in only}


def runnable(data: str | None = None) -> list[str]:
    """Names of the families whose data sets are there; by default where the variable IPS2_DATA says."""
    there = set(datasets.available(data))
    return [name for name, family in FAMILIES.items() if set(family.datasets) <= there]


def _check_data(families: Mapping[str, Family], data: str | None) -> None:
    """Refuse before the first task where a data set is missing or is not the publisher's.

    Raises
    ------
    BadInput
        It says what to fetch, and from where.
    """
    for name in dict.fromkeys(name for family in families.values() for name in family.datasets):
        datasets.load(name, data)


def experiments(
    families: Mapping[str, Family], scope: Scope, out: Path, data: str | None, jobs: int, progress: Progress
) -> tuple[list[Record], Results]:
    """Do what is not done of some families: their records, and the results of their tasks.

    Raises
    ------
    BadInput
        A data set is missing.
    """
    _check_data(families, data)
    tasks = [task for family in families.values() for task in family.tasks(scope)]
    results = run_tasks(tasks, out, data, jobs, progress)
    return [one for family in families.values() for one in family.records(scope, results)], results

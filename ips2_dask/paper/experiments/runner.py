"""Run tasks on Dask, resuming what is there: side by side on a local cluster, those that measure time alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import dask
from dask.delayed import Delayed, delayed
from distributed import as_completed

from ips2_dask import clusters
from ips2_dask.paper.experiments.tasks import Done, Json, Task, digests, perform, read_result
from ips2_dask.params import Resources


class Progress(Protocol):
    """Is told what has been done."""

    def begin(self, total: int) -> None:
        """So many tasks are to be done, some of which may be."""
        ...

    def done(self, task: Done) -> None:
        """One more is done."""
        ...


def ordered(tasks: Iterable[Task]) -> list[Task]:
    """Distinct tasks, each behind those it needs, the longest first where that leaves a choice.

    Raises
    ------
    ValueError
        A task needs one that is not there.
    """
    known = {task.name: task for task in tasks}
    out: dict[str, Task] = {}

    def place(task: Task) -> None:
        if task.name in out:
            return
        for name in task.after:
            if name not in known:
                raise ValueError(f"task {task.name} needs {name}, which is not there")
            place(known[name])
        out[task.name] = task

    for task in sorted(known.values(), key=lambda task: (-task.weight, task.name)):
        place(task)
    return list(out.values())


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
    found, by_name = digests(every), {task.name: task for task in every}
    progress.begin(len(every))
    missing = []
    for task in every:
        if read_result(task, out, found[task.name]) is None:
            missing.append(task)
        else:
            progress.done(Done(task.name, 0.0, True))

    def work(task: Task) -> partial[Done]:
        needed = {name: by_name[name] for name in task.after}
        return partial(_perform, task, out, data, {name: found[name] for name in (task.name, *task.after)}, needed)

    together = [task for task in missing if not task.timed]
    if jobs > 1 and len(together) > 1:
        _side_by_side({task: work(task) for task in together}, min(jobs, len(together)), progress)
    else:
        _in_turn([work(task) for task in together], progress)
    _in_turn([work(task) for task in missing if task.timed], progress)
    return {task.name: read_result(task, out, found[task.name]) for task in every}


def _perform(
    task: Task, out: Path, data: str | None, found: Mapping[str, str], earlier: Mapping[str, Task], *waits: Any
) -> Done:
    """`perform`, once Dask has what it waits for: that is in files, and only has to be there."""
    del waits
    return perform(task, out, data, found, earlier)


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

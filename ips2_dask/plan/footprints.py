"""The memory and disk of each stage, of runs in core and in chunks, with the scheduler's share."""

from __future__ import annotations

import dataclasses

from ips2_dask.plan import memory, memory_chunked
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.tasks import stage_tasks
from ips2_dask.plan.terms import Footprint, scheduler

SCHEDULER_BYTES = 200 << 20
"""Bytes of a scheduler that knows no task: Python, Dask, its dashboard (estimated)."""

TASK_BYTES = 8_500
"""Bytes that the scheduler keeps of a task that it knows (measured: 7.3 to 9.3 kB)."""

WORKER_BYTES = 1 << 20
"""Bytes that it keeps of a worker: connections, and what it has heard of the worker's state (estimated)."""


def footprints(sizes: Sizes, resident: int, *, scheduler_apart: bool = False) -> dict[str, Footprint]:
    """The footprint of each stage.

    Parameters
    ----------
    sizes : Sizes
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    scheduler_apart : bool
        Whether the scheduler is a process of its own; else it shares the driver's.
    """
    stages = {
        "ingest": memory.ingest(sizes, resident),
        "neighbors": memory.neighbors(sizes),
        "tensor": memory.tensor(sizes),
        "assemble": memory.degrees(sizes),
        "eigen": memory.eigen(sizes),
        "fuse": memory.fuse(sizes),
        "label": memory.label(sizes),
    }
    if sizes.is_chunked:
        stages |= {
            "neighbors": memory_chunked.neighbors(sizes),
            "tensor": memory_chunked.tensor(sizes),
            "assemble": memory_chunked.degrees(sizes),
            "eigen": memory_chunked.eigen(sizes),
            "fuse": memory_chunked.fuse(sizes),
            "label": memory_chunked.label(sizes),
        }
    known = {stage: tasks.known for stage, tasks in stage_tasks(sizes).items()}
    return {
        stage: _with_scheduler(footprint, TASK_BYTES * known[stage], WORKER_BYTES * sizes.n_workers, scheduler_apart)
        for stage, footprint in stages.items()
    }


def _with_scheduler(footprint: Footprint, tasks: int, workers: int, apart: bool) -> Footprint:
    """A stage's footprint with the scheduler's terms: in a process of its own, or in the driver's."""
    terms = {"tasks that the scheduler knows": tasks, "its workers": workers}
    if apart:
        own = scheduler("scheduler", process=SCHEDULER_BYTES).plus(terms)
        return dataclasses.replace(footprint, phases=(*footprint.phases, own))
    phases = tuple(phase.plus(terms) if phase.role == "driver" else phase for phase in footprint.phases)
    return dataclasses.replace(footprint, phases=phases)

"""The plan of a run before it starts: its choices, the projections of each stage, and checks against its machines."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ips2_dask.errors import BadInput, Refused
from ips2_dask.params import MAX_INDEX, Params
from ips2_dask.plan import work
from ips2_dask.plan.choices import Choices, PlanRequest, choose
from ips2_dask.plan.sizes import Role, Sizes
from ips2_dask.plan.work import EXACT, ROLES, USABLE, Row, usable
from ips2_dask.wording import size

FORMAT = 2
"""Of `Plan.document`: raised whenever a key goes or changes its meaning; new keys leave it as it is."""


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Projections of one stage; tasks are those of a graph that needs no refinement."""

    name: str
    what: str
    tasks: int
    tasks_known: int  # most that the scheduler knows at a time
    products: int  # of the solve of the pairs, 0 where there is none
    seconds: float
    phases: tuple[Row, ...]  # of all roles; a process needs the bytes of its largest one
    disk_bytes: int  # what it leaves in the run directory
    transient_bytes: int  # what it has there besides until it ends
    scratch_bytes: int  # what Dask writes to each worker's disk, where results of tasks don't fit into its memory

    def peak(self, role: Role) -> Row | None:
        """The phase in which a process of a role needs the most memory; None where there is no such process."""
        return max((one for one in self.phases if one.role == role), key=lambda one: one.bytes, default=None)

    def bytes_of(self, role: Role) -> int:
        """Peak of a process of a role, 0 where there is none."""
        return 0 if (phase := self.peak(role)) is None else phase.bytes

    @property
    def worker_bytes(self) -> int:
        """Peak of a worker."""
        return self.bytes_of("worker")

    @property
    def client_bytes(self) -> int:
        """Peak of the driver."""
        return self.bytes_of("driver")

    def document(self) -> dict[str, Any]:
        """The stage as plain values, with each role's phases and their terms."""
        names = ("name", "what", "tasks", "tasks_known", "products", "seconds")
        disk = {"kept": self.disk_bytes, "transient": self.transient_bytes, "scratch": self.scratch_bytes}
        memory: dict[str, Any] = dict.fromkeys(ROLES)
        for role in ROLES:
            shown = {n.name: {"bytes": n.bytes, "terms": dict(n.terms)} for n in self.phases if n.role == role}
            if (peak := self.peak(role)) is not None:
                memory[role] = {"bytes": peak.bytes, "phase": peak.name, "phases": shown}
        return {**{name: getattr(self, name) for name in names}, "disk": disk, "memory": memory}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that follows from the shape of the data and the parameters, decided before the first task."""

    m: int
    f: int
    bounds: tuple[int, ...]
    choices: Choices
    stages: tuple[StagePlan, ...]
    warnings: tuple[str, ...]
    request: PlanRequest
    exact_seconds: float  # about how much longer a run takes whose graph needs an exact search, see `Choices`; or 0

    def of_distinct(self, m: int, params: Params) -> Plan:
        """This plan with choices and projections for the m distinct samples that the ingest has counted."""
        f = m if params.metric == "precomputed" else self.f
        distinct = make_plan(m, f, params, **dataclasses.asdict(self.request))
        stages = (self.stages[0], *distinct.stages[1:])
        plan = dataclasses.replace(self, choices=distinct.choices, stages=stages)
        return plan.of_given_graph() if self.choices.graph == "given" else plan

    def of_given_graph(self) -> Plan:
        """This plan without a search for neighbours, whose candidates the caller gives."""
        choices = dataclasses.replace(self.choices, graph="given", n_shards=0, exact_after=False)
        return dataclasses.replace(self, choices=choices, exact_seconds=0.0)

    def peak(self, role: Role) -> tuple[StagePlan, Row]:
        """The stage and phase in which a worker, or the driver, needs the most memory."""
        found = [(stage, phase) for stage in self.stages if (phase := stage.peak(role)) is not None]
        return max(found, key=lambda one: one[1].bytes)

    @property
    def worker_bytes(self) -> int:
        """Projected peak of a worker process."""
        return max(stage.worker_bytes for stage in self.stages)

    @property
    def client_bytes(self) -> int:
        """Projected peak of the client process."""
        return max(stage.client_bytes for stage in self.stages)

    @property
    def scheduler_bytes(self) -> int:
        """Projected peak of a scheduler that is a process of its own; else 0."""
        return max(stage.bytes_of("scheduler") for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Projected size of the run directory."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def peak_disk_bytes(self) -> int:
        """Projected largest size of the run directory while the run goes on."""
        kept = itertools.accumulate(stage.disk_bytes for stage in self.stages)
        return max(there + stage.transient_bytes for there, stage in zip(kept, self.stages, strict=True))

    @property
    def scratch_bytes(self) -> int:
        """Projected bytes on a worker's local disk."""
        return max(stage.scratch_bytes for stage in self.stages)

    @property
    def seconds(self) -> float:
        """About how long the stages take, see `ips2_dask.plan.work`."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def blocks(self) -> str:
        """Where workers have blocks of vectors in chunks: ``"memory"`` or ``"disk"``; ``"driver"`` in core."""
        of_workers = "disk" if self.scratch_bytes else "memory"
        return of_workers if self.choices.vectors == "chunked" else "driver"

    def document(self) -> dict[str, Any]:
        """The plan as plain values for JSON: what ``ips2 plan --json`` prints. docs/plan.md explains the keys."""
        choices, roles = self.choices, {"driver": self.client_bytes, "scheduler": self.scheduler_bytes or None}
        chosen = {name: getattr(choices, name) for name in ("graph", "operator", "vectors", "exact")}
        chunk = choices.chunk_samples if choices.vectors == "chunked" else None
        return {
            **{"format": FORMAT, "samples": self.m, "features": self.f, "workers": self.request.n_workers},
            **{"partitions": len(self.bounds) - 1, "partition_rows": self.bounds[1]},
            "choices": {**chosen, "shards": choices.n_shards, "chunk_samples": chunk, "blocks": self.blocks},
            "memory": {"worker": self.worker_bytes, **roles},
            "disk": {"kept": self.disk_bytes, "peak": self.peak_disk_bytes, "scratch": self.scratch_bytes},
            "tasks": sum(stage.tasks for stage in self.stages),
            **{"seconds": self.seconds, "exact_seconds": self.exact_seconds},
            **{"stages": [stage.document() for stage in self.stages], "warnings": list(self.warnings)},
        }


def make_plan(m: int, f: int, params: Params, **options: Any) -> Plan:
    """The plan for m samples of f features; ``options`` are those of `PlanRequest`."""
    request = PlanRequest(**options)
    sizes = Sizes(m, f, params, choose(m, f, params, request.vectors, request.rows), request)
    stages = tuple(_stages(sizes, request))
    return Plan(m, f, sizes.bounds, sizes.choices, stages, _warnings(sizes, stages), request, work.exact_seconds(sizes))


def _stages(sizes: Sizes, request: PlanRequest) -> Iterator[StagePlan]:
    """The plans of the stages, from the table of their work."""
    purposes, parts = _purposes(sizes), 0
    process = {"worker": work.PROCESS, "driver": work.PROCESS, "scheduler": work.SCHEDULER_BYTES}
    for name, (rows, seconds, transient, scratch, products) in work.work(sizes, request.resident).items():
        parts += sum(row.tasks(sizes) for row in rows if row.over in ("rows", "partitions"))
        tasks, known = max(1, sum(row.tasks(sizes) for row in rows)), max(row.known(sizes) for row in rows)
        seconds += work.OVERHEAD + work.TASK * tasks + work.DRIVER_PARTS * work.PART * sizes.n_made
        if name == "fuse":
            process |= {role: work.PROCESS + more for role, more in work.AFTER_SOLVE.items()}
        more = {role: {"process": held} for role, held in process.items()}
        more["driver"]["receipts"] = work.RECEIPT_BYTES * parts
        more["scheduler" if request.scheduler_apart else "driver"] |= {
            "tasks that the scheduler knows": work.TASK_BYTES * known,
            "its workers": work.WORKER_BYTES * sizes.n_workers,
        }
        idle = [Row(role, "idle", ()) for role in (ROLES if request.scheduler_apart else ROLES[:2])]
        phases = (
            row._replace(terms=tuple(term for term in (*more[row.role].items(), *row.terms) if term[1]))
            for row in (*idle, *(one for one in rows if one.terms))
        )
        disk = sizes.kept_bytes(name), transient, scratch
        yield StagePlan(name, purposes.get(name, name), tasks, known, products, seconds, tuple(phases), *disk)


def _purposes(sizes: Sizes) -> dict[str, str]:
    """The purpose of each stage, in the words of `ips2 plan`."""
    tol, clusters = sizes.params.tol, f"{sizes.params.n_clusters} clusters"
    if sizes.params.assign_labels == "leiden":
        clusters = f"{clusters} by Leiden" if sizes.params.max_clusters is None else "as many clusters as Leiden finds"
    solved = f"{sizes.n_solved} {'eigenpairs' if sizes.choices.exact else 'Ritz pairs'}"
    return {
        "ingest": "check, centre and scale X",
        "neighbors": f"{sizes.params.n_stored_neighbors} nearest of each sample",
        "tensor": f"{sizes.n_pairs:,} pairs at most, {2 * sizes.entries:,} entries at most",
        "assemble": "degrees and components",
        "eigen": solved if tol is None else f"{solved} to {tol:g}",
        "fuse": "S, V, U",
        "label": f"embedding, {clusters}",
    }


def _warnings(sizes: Sizes, stages: tuple[StagePlan, ...]) -> tuple[str, ...]:
    """Warnings of workers without work, and of a scheduler with too much."""
    found = (("partitions", len(sizes.bounds) - 1, 2), ("chunks of vectors", sizes.n_chunks, 0.9))
    warnings = [
        f"{count} {items} for {sizes.n_workers} workers: some will have nothing to do at times"
        for items, count, enough in found
        if 1 < count < enough * sizes.n_workers
    ]
    worst = max(stages, key=lambda stage: stage.tasks_known)
    if worst.tasks_known > work.MAX_TASKS:
        many = f"{worst.tasks_known:,} tasks of one kind in stage {worst.name}"
        warnings.append(f"{many} will keep the scheduler busy: use larger partitions")
    return tuple(warnings)


def check_entries(plan: Plan, params: Params) -> None:
    """Refuse a run in core whose sparse matrices have more entries than an int32 numbers, by `BadInput`.

    SciPy would number them by int64: such a matrix takes half as much memory again, which is not planned for, and its
    products are not those of the compiled kernels.
    """
    if plan.choices.vectors == "chunked":
        return
    sizes = Sizes(plan.m, plan.f, params, plan.choices, plan.request)
    entries = {"the fused similarity": 0 if sizes.is_dense else 2 * sizes.n_fused + plan.m}
    remedy = "give vectors='chunked'"
    if params.tensor == "decomposable":
        remedy = "give fewer samples, or tensor='indecomposable' with vectors='chunked'"
    else:
        entries["the start's sample graph"] = (2 * sizes.k - 1) * plan.m
        entries["the tensor"] = 2 * sizes.entries if plan.choices.operator == "triplets" else 0
    matrix, count = max(entries.items(), key=lambda entry: entry[1])
    if count >= MAX_INDEX:
        found = f"in core with {count:,} entries of {matrix} at most"
        allowed, otherwise = (
            f"fewer than {MAX_INDEX:,} in one process",
            "their numbers, which are int32, would overflow",
        )
        raise BadInput("vectors", found, allowed, otherwise, remedy)


def keeps_limit(needed: int, limit: int | None, role: Role) -> bool:
    """Whether a process that needs so many bytes keeps its limit: a worker needs a share of it for itself, `USABLE`."""
    return limit is None or needed <= (usable(limit) if role == "worker" else limit)


def check_memory(
    plan: Plan,
    worker_limit: int | None,
    driver_limit: int | None,
    scheduler_limit: int | None = None,
    saving: Callable[[], str | None] = lambda: None,
) -> None:
    """Refuse a run whose workers, whose driver or whose scheduler could not keep their limit in bytes, by `Refused`.

    It names the stage and the term that are too large, and the smallest limit that would do. A plan counts on `USABLE`
    of a worker's. The driver's process has the scheduler in it, unless that is known to be one of its own. ``saving``
    says an option with which all limits would be kept, if there is one.
    """
    for role, limit in zip(ROLES, (worker_limit, driver_limit, scheduler_limit), strict=True):
        if limit is None or (role == "scheduler" and not plan.scheduler_bytes):
            continue
        stage, phase = plan.peak(role)
        if keeps_limit(phase.bytes, limit, role):
            continue
        (term, held), who = phase.largest, "a worker" if role == "worker" else f"the {role}"
        share, of_limit = (USABLE, f", {USABLE:g} of which a plan counts on") if role == "worker" else (1.0, "")
        needed = phase.bytes / share
        if role == "worker" and driver_limit == limit:  # one option sets both
            needed = max(needed, plan.client_bytes)
        enough = f"{math.ceil(needed / 2**28) / 4:g}GiB"
        # a scheduler's pod is as large as the driver's, whatever the command line says
        remedy = f"give memory_limit='{enough}', or {role}.memory: {enough} in a cluster's file"
        remedy = f"give driver.memory: {enough} in the cluster's file" if role == "scheduler" else remedy
        smaller = saving()
        if phase.name == EXACT:
            remedy += ", or leave tol out (--tol), as labels do not need the pairs' eigenvectors"
        elif smaller is not None:
            remedy += f", or run it with {smaller}"
        raise Refused(
            f"memory_limit: stage {stage.name} needs {phase.bytes / 2**30:.2f} GiB in {who} ({phase.name}; "
            f"{term}: {held / 2**30:.2f} GiB) and the limit is {limit / 2**30:.2f} GiB{of_limit}, so the process would "
            f"be killed. Remedy: {remedy}."
        )


def keeps_limits(plan: Plan, worker: int | None, driver: int | None, scheduler: int | None = None) -> bool:
    """Whether `check_memory` accepts a plan."""
    try:
        check_memory(plan, worker, driver, scheduler)
    except Refused:
        return False
    return True


def disk_warning(plan: Plan, folder: str | Path) -> str | None:
    """A warning if a run directory, or one made in a folder, would not fit on its disk; None where that is unknown."""
    place = Path(folder).absolute()
    there = next((one for one in (place, *place.parents) if one.exists()), place)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return None
    text = f"the run directory takes up to {size(plan.peak_disk_bytes)} while the run goes on"
    return f"{text}, and {there} has {size(free)} free" if plan.peak_disk_bytes > free else None

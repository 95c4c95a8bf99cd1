"""The plan of a run before it starts: its choices, and the projected tasks, memory, disk and time of each stage."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ips2_dask.params import Params
from ips2_dask.plan import work
from ips2_dask.plan.choices import Choices, choose, partition_bounds
from ips2_dask.plan.memory import ROLES, Footprint, Phase, Role, footprints
from ips2_dask.plan.sizes import Sizes

FORMAT = 2
"""Of `Plan.document`: raised whenever a key goes or changes its meaning; new keys leave it as it is."""


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Projections of one stage.

    Attributes
    ----------
    tasks : int
        Of all its passes over partitions, shards or chunks, and of all cycles of its solves, if the graph needs no
        refinement.
    tasks_known : int
        Most tasks that the scheduler knows at a time.
    footprint : Footprint
    """

    name: str
    what: str
    tasks: int
    tasks_known: int
    footprint: Footprint
    seconds: float = 0.0
    products: int = 0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What the peaks are made of."""
        return self.footprint.phases

    @property
    def worker_bytes(self) -> int:
        """Peak of a worker."""
        return self.footprint.bytes_of("worker")

    @property
    def client_bytes(self) -> int:
        """Peak of the driver."""
        return self.footprint.bytes_of("driver")

    @property
    def disk_bytes(self) -> int:
        """What the stage leaves in the run directory."""
        return self.footprint.disk_bytes

    def peak(self, role: Role) -> Phase | None:
        """The phase in which a process of a role needs the most memory; None where there is no such process."""
        return self.footprint.peak(role)

    def document(self) -> dict[str, Any]:
        """The stage as plain values, with each role's phases and their terms."""
        disk = {"kept": self.disk_bytes, "transient": self.footprint.transient_bytes}
        return {
            **{name: getattr(self, name) for name in ("name", "what", "tasks", "tasks_known", "products", "seconds")},
            "disk": {**disk, "scratch": self.footprint.scratch_bytes},
            "memory": {role: self._memory(role) for role in ROLES},
        }

    def _memory(self, role: Role) -> dict[str, Any] | None:
        """The peak of a role, and the phases that it is the largest of."""
        largest = self.peak(role)
        if largest is None:
            return None
        phases = {one.name: {"bytes": one.bytes, "terms": dict(one.terms)} for one in self.phases if one.role == role}
        return {"bytes": largest.bytes, "phase": largest.name, "phases": phases}


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The arguments of `make_plan` other than the shape of the data and the parameters."""

    rows: int | None = None
    resident: int = 0
    n_workers: int = 2
    vectors: str = "auto"
    worker_limit: int | None = None
    scheduler_apart: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that follows from the shape of the data and the parameters, decided before the first task.

    Attributes
    ----------
    exact_seconds : float
        About how much longer a run takes whose approximate graph needs an exact search, see `Choices.exact_after`; 0
        where none would follow.
    """

    m: int
    f: int
    bounds: tuple[int, ...]
    choices: Choices
    stages: tuple[StagePlan, ...]
    warnings: tuple[str, ...]
    request: PlanRequest = PlanRequest()
    exact_seconds: float = 0.0

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

    def _most(self, role: Role) -> int:
        return max(stage.footprint.bytes_of(role) for stage in self.stages)

    @property
    def worker_bytes(self) -> int:
        """Projected peak of a worker process."""
        return self._most("worker")

    @property
    def client_bytes(self) -> int:
        """Projected peak of the client process."""
        return self._most("driver")

    @property
    def scheduler_bytes(self) -> int:
        """Projected peak of a scheduler that is a process of its own; else 0."""
        return self._most("scheduler")

    @property
    def disk_bytes(self) -> int:
        """Projected size of the run directory."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def peak_disk_bytes(self) -> int:
        """Projected largest size of the run directory while the run goes on."""
        kept = itertools.accumulate(stage.disk_bytes for stage in self.stages)
        return max(size + stage.footprint.transient_bytes for size, stage in zip(kept, self.stages, strict=True))

    @property
    def scratch_bytes(self) -> int:
        """Projected bytes on a worker's local disk."""
        return max(stage.footprint.scratch_bytes for stage in self.stages)

    def peak(self, role: Role) -> tuple[StagePlan, Phase]:
        """The stage and phase in which a worker, or the driver, needs the most memory."""
        found = [(stage, phase) for stage in self.stages if (phase := stage.peak(role)) is not None]
        return max(found, key=lambda one: one[1].bytes)

    @property
    def blocks(self) -> str:
        """Where workers have blocks of vectors in chunks: ``"memory"`` or ``"disk"``; ``"driver"`` in core."""
        if self.choices.vectors != "chunked":
            return "driver"
        return "disk" if self.scratch_bytes else "memory"

    @property
    def seconds(self) -> float:
        """About how long the stages take, see `ips2_dask.plan.work`."""
        return sum(stage.seconds for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """The plan as plain values for JSON: what ``ips2 plan --json`` prints. docs/plan.md explains the keys.

        Returns
        -------
        dict
            Bytes and seconds as numbers; a role without a process of its own is null.
        """
        choices = self.choices
        return {
            "format": FORMAT,
            "samples": self.m,
            "features": self.f,
            "workers": self.request.n_workers,
            "partitions": len(self.bounds) - 1,
            "partition_rows": self.bounds[1],
            "choices": {
                "graph": choices.graph,
                "shards": choices.n_shards,
                "operator": choices.operator,
                "vectors": choices.vectors,
                "chunk_samples": choices.chunk_samples if choices.vectors == "chunked" else None,
                "blocks": self.blocks,
                "exact": choices.exact,
            },
            "memory": {
                "worker": self.worker_bytes,
                "driver": self.client_bytes,
                "scheduler": self.scheduler_bytes or None,
            },
            "disk": {"kept": self.disk_bytes, "peak": self.peak_disk_bytes, "scratch": self.scratch_bytes},
            "tasks": sum(stage.tasks for stage in self.stages),
            "seconds": self.seconds,
            "exact_seconds": self.exact_seconds,
            "stages": [stage.document() for stage in self.stages],
            "warnings": list(self.warnings),
        }


def make_plan(
    m: int,
    f: int,
    params: Params,
    *,
    rows: int | None = None,
    resident: int = 0,
    n_workers: int = 2,
    vectors: str = "auto",
    worker_limit: int | None = None,
    scheduler_apart: bool = False,
) -> Plan:
    """The plan for m samples of f features.

    Parameters
    ----------
    m, f : int
    params : Params
    rows : int, optional
        Samples in a partition, instead of what the shape decides.
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    n_workers : int
        Workers that share the stages' work and the blocks of vectors; their number changes projections and warnings,
        never a choice.
    vectors : {"auto", "in-core", "chunked"}
        Where block vectors shall live.
    worker_limit : int, optional
        Bytes that a worker may use. It decides whether results of tasks are expected on its disk, which changes no
        result.
    scheduler_apart : bool
        Whether the scheduler is a process of its own; else it shares the driver's.
    """
    bounds = partition_bounds(m, f, rows)
    sizes = Sizes(m, f, params, choose(m, f, params, vectors, rows), bounds, n_workers, worker_limit)
    request = PlanRequest(rows, resident, n_workers, vectors, worker_limit, scheduler_apart)
    tasks, seconds = work.stage_tasks(sizes), work.stage_seconds(sizes)
    known = {stage: some.known for stage, some in tasks.items()}
    found = footprints(sizes, resident, known, scheduler_apart=scheduler_apart)
    stages = tuple(
        StagePlan(
            name=name,
            what=what,
            tasks=tasks[name].total,
            tasks_known=known[name],
            footprint=found[name],
            seconds=seconds[name],
            products=work.n_products(sizes) if name == "eigen" else 0,
        )
        for name, what in _purposes(sizes).items()
    )
    return Plan(m, f, bounds, sizes.choices, stages, _warnings(sizes, known), request, work.exact_seconds(sizes))


def _purposes(sizes: Sizes) -> dict[str, str]:
    """The purpose of each stage, in the words of `ips2 plan`."""
    tol, clusters = sizes.params.tol, f"{sizes.params.n_clusters} clusters"
    if sizes.params.assign_labels == "leiden":
        clusters = f"{clusters} by Leiden" if sizes.params.max_clusters is None else "as many clusters as Leiden finds"
    solved = f"{sizes.n_solved} {'eigenpairs' if sizes.choices.exact else 'Ritz pairs'}"
    return {
        "ingest": "check, centre and scale X",
        "neighbors": f"{sizes.n_stored_neighbors} nearest of each sample",
        "tensor": f"{sizes.n_pairs:,} pairs at most, {2 * sizes.entries:,} entries at most",
        "assemble": "degrees and components",
        "eigen": solved if tol is None else f"{solved} to {tol:g}",
        "fuse": "S, V, U",
        "label": f"embedding, {clusters}",
    }


def _warnings(sizes: Sizes, known: dict[str, int]) -> tuple[str, ...]:
    """Warnings of workers without work, and of a scheduler with too much."""
    warnings = [
        f"{count} {items} for {sizes.n_workers} workers: some will have nothing to do at times"
        for items, count, enough in (("partitions", sizes.n_partitions, 2), ("chunks of vectors", sizes.n_chunks, 0.9))
        if 1 < count < enough * sizes.n_workers
    ]
    worst = max(known, key=known.__getitem__)
    if known[worst] > work.MAX_TASKS:
        warnings.append(
            f"{known[worst]:,} tasks of one kind in stage {worst} will keep the scheduler busy: use larger partitions"
        )
    return tuple(warnings)

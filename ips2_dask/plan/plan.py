"""The plan of a run before it starts: its choices, and the projected tasks, memory, disk and time of each stage."""

from __future__ import annotations

import dataclasses
import itertools

from ips2_dask.params import Params
from ips2_dask.plan import costs
from ips2_dask.plan.choices import Choices, choose, partition_bounds
from ips2_dask.plan.footprints import footprints
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.tasks import MAX_TASKS, n_products, stage_tasks
from ips2_dask.plan.terms import Footprint, Phase, Role, peak


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Projections of one stage.

    Attributes
    ----------
    tasks : int
        Of all its passes over partitions, shards or chunks, and of all cycles of its solves, if the graph needs no
        refinement.
    worker_bytes, client_bytes : int
        Peaks of a worker and of the driver.
    disk_bytes : int
        What the stage leaves in the run directory.
    scheduler_bytes : int
        Peak of the scheduler, where that is a process of its own; else 0, and the driver's peak contains it.
    transient_bytes : int
        What the stage has on disk besides, until it ends.
    scratch_bytes : int
        What a worker has on its local disk.
    tasks_known : int
        Most tasks that the scheduler knows at a time.
    phases : tuple of Phase
        What the peaks are made of.
    """

    name: str
    what: str
    tasks: int
    worker_bytes: int
    client_bytes: int
    disk_bytes: int
    seconds: float = 0.0
    products: int = 0
    scheduler_bytes: int = 0
    transient_bytes: int = 0
    scratch_bytes: int = 0
    tasks_known: int = 0
    phases: tuple[Phase, ...] = ()

    def peak(self, role: Role) -> Phase | None:
        """The phase in which a process of a role needs the most memory; None where there is no such process."""
        return peak(self.phases, role)


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
        # the ingest is done by then
        choices = dataclasses.replace(distinct.choices, rows_by_partition=self.choices.rows_by_partition)
        plan = dataclasses.replace(self, choices=choices, stages=stages)
        return plan.of_given_graph() if self.choices.graph == "given" else plan

    def of_given_graph(self) -> Plan:
        """This plan without a search for neighbours, whose candidates the caller gives."""
        choices = dataclasses.replace(self.choices, graph="given", n_shards=0, exact_after=False)
        return dataclasses.replace(self, choices=choices, exact_seconds=0.0)

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
        return max(stage.scheduler_bytes for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Projected size of the run directory."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def peak_disk_bytes(self) -> int:
        """Projected largest size of the run directory while the run goes on."""
        kept = itertools.accumulate(stage.disk_bytes for stage in self.stages)
        return max(bytes_ + stage.transient_bytes for bytes_, stage in zip(kept, self.stages, strict=True))

    @property
    def scratch_bytes(self) -> int:
        """Projected bytes on a worker's local disk."""
        return max(stage.scratch_bytes for stage in self.stages)

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
        """About how long the stages take, see `ips2_dask.plan.costs`."""
        return sum(stage.seconds for stage in self.stages)


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
    stages = _stages(sizes, request)
    return Plan(m, f, bounds, sizes.choices, stages, _warnings(sizes), request, costs.exact_seconds(sizes))


def _stages(sizes: Sizes, request: PlanRequest) -> tuple[StagePlan, ...]:
    """The projections of all stages, in their order."""
    tasks, seconds, purposes = stage_tasks(sizes), costs.stage_seconds(sizes), _purposes(sizes)
    found = footprints(sizes, request.resident, scheduler_apart=request.scheduler_apart)
    return tuple(
        StagePlan(
            name=name,
            what=what,
            tasks=tasks[name].total,
            worker_bytes=_peak_bytes(found[name], "worker"),
            client_bytes=_peak_bytes(found[name], "driver"),
            disk_bytes=found[name].disk_bytes,
            seconds=seconds[name],
            products=n_products(sizes) if name == "eigen" else 0,
            scheduler_bytes=_peak_bytes(found[name], "scheduler"),
            transient_bytes=found[name].transient_bytes,
            scratch_bytes=found[name].scratch_bytes,
            tasks_known=tasks[name].known,
            phases=found[name].phases,
        )
        for name, what in purposes.items()
    )


def _peak_bytes(footprint: Footprint, role: Role) -> int:
    """The bytes of the largest phase of a role, 0 where it has none."""
    phase = peak(footprint.phases, role)
    return 0 if phase is None else phase.bytes


def _purposes(sizes: Sizes) -> dict[str, str]:
    """The purpose of each stage, in the words of `ips2 plan`."""
    tol, clusters = sizes.params.tol, f"{sizes.params.n_clusters} clusters"
    if sizes.params.assign_labels == "leiden":
        clusters = f"{clusters} by Leiden" if sizes.params.max_clusters is None else "as many clusters as Leiden finds"
    return {
        "ingest": "check, centre and scale X",
        "neighbors": f"{sizes.n_stored_neighbors} nearest of each sample",
        "tensor": f"{sizes.n_pairs:,} pairs at most, {2 * sizes.entries:,} entries at most",
        "assemble": "degrees and components",
        "eigen": f"{sizes.n_solved} {'eigenpairs' if sizes.choices.exact else 'Ritz pairs'}"
        + ("" if tol is None else f" to {tol:g}"),
        "fuse": "S, V, U",
        "label": f"embedding, {clusters}",
    }


def _warnings(sizes: Sizes) -> tuple[str, ...]:
    """Warnings of workers without work, and of a scheduler with too much."""
    warnings = [
        f"{count} {items} for {sizes.n_workers} workers: some will have nothing to do at times"
        for items, count, enough in (("partitions", sizes.n_partitions, 2), ("chunks of vectors", sizes.n_chunks, 0.9))
        if 1 < count < enough * sizes.n_workers
    ]
    largest = {stage: tasks.known for stage, tasks in stage_tasks(sizes).items()}
    worst = max(largest, key=largest.__getitem__)
    if largest[worst] > MAX_TASKS:
        warnings.append(
            f"{largest[worst]:,} tasks of one kind in stage {worst} will keep the scheduler busy: use larger partitions"
        )
    return tuple(warnings)

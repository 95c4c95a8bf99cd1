"""The plan of a run before it starts: its choices, and the projected tasks, memory, disk and time of each stage."""

from __future__ import annotations

import dataclasses

from ips2_dask.params import Params
from ips2_dask.plan import costs, memory
from ips2_dask.plan.choices import Choices, choose, partition_bounds
from ips2_dask.plan.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Projections of one stage.

    Attributes
    ----------
    tasks : int
        Of all its passes over partitions, shards or chunks, if the graph needs no refinement; of a panel's product in
        eigen.
    """

    name: str
    what: str
    tasks: int
    worker_bytes: int
    client_bytes: int
    disk_bytes: int
    seconds: float = 0.0
    products: int = 0


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The arguments of `make_plan` other than the shape of the data and the parameters."""

    rows: int | None = None
    resident: int = 0
    n_workers: int = 2
    vectors: str = "auto"


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

    @property
    def worker_bytes(self) -> int:
        """Projected peak of a worker process."""
        return max(stage.worker_bytes for stage in self.stages)

    @property
    def client_bytes(self) -> int:
        """Projected peak of the client process."""
        return max(stage.client_bytes for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Projected size of the run directory."""
        return sum(stage.disk_bytes for stage in self.stages)

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
    """
    bounds = partition_bounds(m, f, rows)
    sizes = Sizes(m, f, params, choose(m, f, params, vectors, rows), bounds, n_workers)
    stages = _stages(sizes, resident)
    request = PlanRequest(rows, resident, n_workers, vectors)
    return Plan(m, f, bounds, sizes.choices, stages, _warnings(sizes, stages), request, costs.exact_seconds(sizes))


def _stages(sizes: Sizes, resident: int) -> tuple[StagePlan, ...]:
    """The projections of all stages, in their order."""
    tasks, seconds = costs.stage_tasks(sizes), costs.stage_seconds(sizes)
    footprints, purposes = memory.footprints(sizes, resident), _purposes(sizes)
    return tuple(
        StagePlan(
            name=name,
            what=what,
            tasks=tasks[name],
            **footprints[name]._asdict(),
            seconds=seconds[name],
            products=costs.n_products(sizes.params.tol) if name == "eigen" else 0,
        )
        for name, what in purposes.items()
    )


def _purposes(sizes: Sizes) -> dict[str, str]:
    """The purpose of each stage, in the words of `ips2 plan`."""
    tol = sizes.params.tol
    return {
        "ingest": "check, centre and scale X",
        "neighbors": f"{sizes.n_stored_neighbors} nearest of each sample",
        "tensor": f"{sizes.n_pairs:,} pairs at most, {2 * sizes.entries:,} entries at most",
        "assemble": "degrees and components",
        "eigen": f"{sizes.n_solved} eigenpairs" + ("" if tol is None else f" to {tol:g}"),
        "fuse": "S, V, U",
        "label": f"embedding, {sizes.params.n_clusters} clusters",
    }


def _warnings(sizes: Sizes, stages: tuple[StagePlan, ...]) -> tuple[str, ...]:
    """Warnings of workers without work, and of a scheduler with too much."""
    tasks = {stage.name: stage.tasks for stage in stages}
    warnings = [
        f"{count} {items} for {sizes.n_workers} workers: some will have nothing to do at times"
        for items, count in (("partitions", sizes.n_partitions), ("chunks of vectors", tasks["assemble"]))
        if 1 < count < 2 * sizes.n_workers
    ]
    worst = max(stages, key=lambda stage: stage.tasks)
    if worst.tasks > costs.MAX_TASKS:
        warnings.append(
            f"{worst.tasks:,} tasks in stage {worst.name} will keep the scheduler busy: use larger partitions"
        )
    return tuple(warnings)

"""Whether to start a cluster: only where the stages that a run has to compute take longer than starting it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

from ips2_dask.params import Resources
from ips2_dask.pipeline.manifest import unfinished_stages
from ips2_dask.pipeline.prepare import Prepared
from ips2_dask.plan.plan import make_plan
from ips2_dask.store.base import Store

START_SECONDS = 3.0
"""About how long a cluster of local processes takes to start and to end: less work than that is not worth one."""

IN_CORE_STAGES = ("assemble", "eigen")
"""Stages that this process computes by itself where it holds the block vectors: a cluster would not help them."""


def names_machines(resources: Resources) -> bool:
    """Whether resources say anything about who computes, and not only about how the work is cut."""
    cut = {name: getattr(resources, name) for name in ("partition_rows", "vectors")}
    return resources != dataclasses.replace(Resources(), **cut)


def is_worth_a_cluster(store: Store, runs: Iterable[Prepared]) -> bool:
    """Whether workers would have more to do than starting them takes.

    This decides about time alone: labels are the same bits without a cluster. A stage with a ``stage.json`` counts as
    done; if it is damaged after all, this process computes the damaged parts again.

    Parameters
    ----------
    store : Store
        Where stages of earlier runs may be.
    runs : iterable of Prepared
    """
    seconds = 0.0
    for run in runs:
        resumed = run.as_resumed(store)
        left = unfinished_stages(store, resumed.keys)
        own = IN_CORE_STAGES if resumed.plan.choices.vectors == "in-core" else ()
        seconds += sum(stage.seconds for stage in resumed.plan.stages if stage.name in left and stage.name not in own)
    return seconds > START_SECONDS


def needed_bytes(runs: Sequence[Prepared]) -> Callable[[int, int | None], int]:
    """The bytes that each worker needs where so many share these runs, by the number of workers and their limit.

    Blocks that do not fit into such a worker are on its scratch, as they will be in the run.
    """

    @functools.cache
    def needed(n_workers: int, limit: int | None) -> int:
        return max(_worker_bytes(run, n_workers, limit) for run in runs)

    return needed


def _worker_bytes(run: Prepared, n_workers: int, limit: int | None) -> int:
    """The projected peak of a worker if the run had so many with this limit."""
    limits = [one for one in (limit, run.plan.request.worker_limit) if one is not None]
    request = dataclasses.replace(run.plan.request, n_workers=n_workers, worker_limit=min(limits, default=None))
    return make_plan(run.plan.m, run.plan.f, run.params, **dataclasses.asdict(request)).worker_bytes

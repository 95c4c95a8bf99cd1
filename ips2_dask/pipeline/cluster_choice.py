"""Whether what is left to do of some runs is worth starting a cluster for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from ips2_dask.params import Resources
from ips2_dask.pipeline.keys import Key
from ips2_dask.plan.plan import Plan
from ips2_dask.store.base import Store
from ips2_dask.store.layout import STAGES

START_SECONDS = 3.0
"""What a cluster of local processes takes to start and to end, about: worth it for no less work than that."""

FOUNDATION = ("ingest", "neighbors", "tensor")
"""Stages that are always left to a cluster: they hold most of a run's work and the samples themselves."""

OF_THE_CLIENT = ("assemble", "eigen")
"""Stages that this process computes by itself where block vectors live in it."""


def asks_for_machines(resources: Resources) -> bool:
    """Whether a run's resources say anything of who shall compute, and not only of how the work is cut."""
    cut = {name: getattr(resources, name) for name in ("partition_rows", "vectors")}
    return resources != dataclasses.replace(Resources(), **cut)


def is_worth_a_cluster(store: Store, runs: Iterable[tuple[Plan, Mapping[str, Key]]]) -> bool:
    """Whether workers would have more to do than starting them takes.

    It decides about time alone: labels are the same bits without a cluster. A stage that is there counts as done; if it
    is damaged after all, this process mends it.

    Parameters
    ----------
    store : Store
    runs : iterable of (Plan, keys)
        What shall be there in the end.
    """
    seconds = 0.0
    for plan, keys in runs:
        left = [name for name in STAGES if store.get_document(f"{keys[name].folder}/stage.json") is None]
        if not set(FOUNDATION).isdisjoint(left):
            return True
        own = OF_THE_CLIENT if plan.choices.vectors == "in-core" else ()
        seconds += sum(stage.seconds for stage in plan.stages if stage.name in left and stage.name not in own)
    return seconds > START_SECONDS

"""A plan as plain values that JSON can hold: what ``ips2 plan --json`` prints. docs/plan.md explains every key."""

from __future__ import annotations

from typing import Any

from ips2_dask.plan.plan import Plan, StagePlan
from ips2_dask.plan.terms import ROLES, Role

FORMAT = 2
"""Raised whenever a key goes or changes its meaning; new keys leave it as it is."""


def document(plan: Plan) -> dict[str, Any]:
    """The plan with all terms of its memory model.

    Returns
    -------
    dict
        Bytes and seconds as numbers; a role without a process of its own is null.
    """
    choices = plan.choices
    return {
        "format": FORMAT,
        "samples": plan.m,
        "features": plan.f,
        "workers": plan.request.n_workers,
        "partitions": len(plan.bounds) - 1,
        "partition_rows": plan.bounds[1],
        "choices": {
            "graph": choices.graph,
            "shards": choices.n_shards,
            "operator": choices.operator,
            "vectors": choices.vectors,
            "chunk_samples": choices.chunk_samples if choices.vectors == "chunked" else None,
            "blocks": plan.blocks,
            "exact": choices.exact,
        },
        "memory": {"worker": plan.worker_bytes, "driver": plan.client_bytes, "scheduler": plan.scheduler_bytes or None},
        "disk": {"kept": plan.disk_bytes, "peak": plan.peak_disk_bytes, "scratch": plan.scratch_bytes},
        "tasks": sum(stage.tasks for stage in plan.stages),
        "seconds": plan.seconds,
        "exact_seconds": plan.exact_seconds,
        "stages": [_stage(stage) for stage in plan.stages],
        "warnings": list(plan.warnings),
    }


def _stage(stage: StagePlan) -> dict[str, Any]:
    """One stage, with each role's phases and their terms."""
    return {
        "name": stage.name,
        "what": stage.what,
        "tasks": stage.tasks,
        "tasks_known": stage.tasks_known,
        "products": stage.products,
        "seconds": stage.seconds,
        "disk": {"kept": stage.disk_bytes, "transient": stage.transient_bytes, "scratch": stage.scratch_bytes},
        "memory": {role: _memory(stage, role) for role in ROLES},
    }


def _memory(stage: StagePlan, role: Role) -> dict[str, Any] | None:
    """The peak of a role in a stage, and the phases that it is the largest of."""
    largest = stage.peak(role)
    if largest is None:
        return None
    phases = [phase for phase in stage.phases if phase.role == role]
    return {
        "bytes": largest.bytes,
        "phase": largest.name,
        "phases": {phase.name: {"bytes": phase.bytes, "terms": dict(phase.terms)} for phase in phases},
    }

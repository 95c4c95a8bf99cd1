"""Clusters: configs of machines, Dask clients of them, submitted jobs, certificates, and a check of a worker."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ips2_dask.clusters.connect import cluster, config_of, executor, shared_folder
    from ips2_dask.clusters.diagnostics import dashboard, performance_report
    from ips2_dask.clusters.limits import limit_for_blocks, limits_of, memory_limits
    from ips2_dask.clusters.loading import load, shipped
    from ips2_dask.clusters.waiting import wait_for_workers
    from ips2_dask.clusters.worker_count import expected_workers

__all__ = [
    "cluster",
    "config_of",
    "dashboard",
    "executor",
    "expected_workers",
    "limit_for_blocks",
    "limits_of",
    "load",
    "memory_limits",
    "performance_report",
    "shared_folder",
    "shipped",
    "wait_for_workers",
]

_MODULES = {
    "connect": ("cluster", "config_of", "executor", "shared_folder"),
    "worker_count": ("expected_workers",),
    "limits": ("limit_for_blocks", "limits_of", "memory_limits"),
    "waiting": ("wait_for_workers",),
    "loading": ("load", "shipped"),
    "diagnostics": ("dashboard", "performance_report"),
}
"""The names of each module, which is imported when one of them is first used: a serial run does not import Dask."""


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'ips2_dask.clusters' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ips2_dask.clusters.{module}"), name)
    globals()[name] = value
    return value

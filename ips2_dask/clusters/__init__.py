"""Clusters: configs of machines, Dask clients of them, submitted jobs, certificates, and a check of a worker."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ips2_dask.clusters.connect import cluster, dashboard, executor, performance_report, shared_folder
    from ips2_dask.clusters.loading import load, shipped
    from ips2_dask.clusters.resources import config_of, machines_of
    from ips2_dask.clusters.waiting import wait_for_workers

__all__ = [
    "cluster",
    "config_of",
    "dashboard",
    "executor",
    "load",
    "machines_of",
    "performance_report",
    "shared_folder",
    "shipped",
    "wait_for_workers",
]


def __getattr__(name: str) -> Any:
    """Modules are imported when one of their names is first used: a serial run does not import Dask."""
    if name not in __all__:
        raise AttributeError(f"module 'ips2_dask.clusters' has no attribute {name!r}")
    modules = {"load": "loading", "shipped": "loading", "config_of": "resources", "machines_of": "resources"}
    module = "waiting" if name == "wait_for_workers" else modules.get(name, "connect")
    return getattr(importlib.import_module(f"ips2_dask.clusters.{module}"), name)

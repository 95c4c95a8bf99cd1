"""Clusters: from a YAML file of machines to a Dask client, a submitted job, certificates and a check of all that."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ips2_dask.clusters.connect import cluster, config_of, executor, shared_folder
    from ips2_dask.clusters.expected import expected_workers
    from ips2_dask.clusters.loading import load, shipped
    from ips2_dask.clusters.observe import dashboard, performance_report

__all__ = [
    "cluster",
    "config_of",
    "dashboard",
    "executor",
    "expected_workers",
    "load",
    "performance_report",
    "shared_folder",
    "shipped",
]

_HOMES = {
    "connect": ("cluster", "config_of", "executor", "shared_folder"),
    "expected": ("expected_workers",),
    "loading": ("load", "shipped"),
    "observe": ("dashboard", "performance_report"),
}
"""Where each name is, imported when it is first asked for: a run without a cluster does not wait for Dask."""


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'ips2_dask.clusters' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ips2_dask.clusters.{home}"), name)
    globals()[name] = found
    return found

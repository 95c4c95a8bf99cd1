"""Clusters: configs of machines, Dask clients of them, submitted jobs, certificates, and a check of a worker."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from ips2_dask.clusters.connect import cluster, dashboard, executor, performance_report, shared_folder

__all__ = ["cluster", "dashboard", "executor", "need", "performance_report", "shared_folder"]


def __getattr__(name: str) -> Any:
    """What starts clusters is imported when it is first used: a serial run does not import Dask."""
    if name not in __all__:
        raise AttributeError(f"module 'ips2_dask.clusters' has no attribute {name!r}")
    return getattr(importlib.import_module("ips2_dask.clusters.connect"), name)


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import a module for ``what``; without it, name the extra of ips2-dask that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        found, otherwise = f"no package {package} that can be imported ({error})", f"{what} would not work"
        raise BadInput(what, found, "an installed one", otherwise, f"run: pip install 'ips2-dask[{extra}]'") from error

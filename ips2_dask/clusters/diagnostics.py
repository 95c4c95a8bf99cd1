"""Dask's diagnostics of a run: the address of the dashboard, and the performance report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import distributed
from distributed import Client

from ips2_dask.clusters.extras import need
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor
from ips2_dask.executors.dask import DaskExecutor


def dashboard(client: Client) -> str | None:
    """The address of a cluster's dashboard, or None if it has none."""
    try:
        return str(client.dashboard_link) or None
    except (AttributeError, KeyError, ValueError):
        return None


@contextlib.contextmanager
def performance_report(executor: Executor, path: str) -> Iterator[None]:
    """Have Dask write its performance report of the block, an HTML file.

    Raises
    ------
    BadInput
        If the run has no cluster, the folder or the package that draws the report is missing.
    """
    if not isinstance(executor, DaskExecutor):
        raise BadInput(
            "performance_report",
            "a serial run",
            "a run on a cluster",
            "there would be no tasks to report",
            "leave out --serial or the report",
        )
    need("bokeh", "dashboard", "Dask's report")
    if not Path(path).absolute().parent.is_dir():
        raise BadInput(
            "performance_report",
            f"{path!r}, whose folder is missing",
            "a file in a folder that is there",
            "the report would be lost",
            "make the folder, or give another file",
        )
    with executor.client.as_current(), distributed.performance_report(filename=path):
        yield

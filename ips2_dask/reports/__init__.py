"""The report of a run: one page that needs no other file, with the command that makes the run again."""

from __future__ import annotations

import os
from pathlib import Path

from ips2_dask.plots.style import check_matplotlib
from ips2_dask.reports.run_page import command, render
from ips2_dask.runs.run import Run, open_run
from ips2_dask.store.files import write_atomically

__all__ = ["command", "report"]


def report(run: Run | str | Path, path: str | Path) -> Path:
    """Write a run's report: one HTML page with pictures and tables that needs no other file, script or network.

    The same run gives the same bytes. Needs Matplotlib, the extra ``report``.

    Parameters
    ----------
    run : Run, or path or URL of a run directory
    path : path
        The page's file; an existing one is replaced when the new page is complete.

    Returns
    -------
    Path
        The page's file.

    Raises
    ------
    BadInput
        If there is no finished run, or Matplotlib is not installed.
    """
    check_matplotlib()
    page = render(run if isinstance(run, Run) else open_run(run))
    path = Path(os.path.expanduser(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path

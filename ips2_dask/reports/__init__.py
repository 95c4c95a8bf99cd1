"""The report of a run: one page that needs no other file."""

from __future__ import annotations

import os
from pathlib import Path

from ips2_dask.params import LEAST_RECALL
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.reports.data import UNSURE, ReportData, collect
from ips2_dask.runs.run import Run, open_run
from ips2_dask.store.files import write_atomically
from ips2_dask.wording import duration, size

__all__ = ["report"]


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
    page = render(collect(run if isinstance(run, Run) else open_run(run)))
    path = Path(os.path.expanduser(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path


def render(data: ReportData) -> str:
    """The page as HTML."""
    from ips2_dask.reports import sections  # noqa: PLC0415  `import ips2_dask` has no use for them
    from ips2_dask.reports.html import page  # noqa: PLC0415  the same

    facts, manifest = data.facts, data.run.manifest
    parts = [
        sections.clusters,
        *([sections.layers] if data.layers else []),
        sections.parameters,
        sections.stages,
        sections.eigenvalues,
        sections.similarities,
        *([sections.labels] if facts["roundings"] else []),
        sections.embedding,
        sections.uncertain_samples,
        *([sections.known_labels] if data.scores else []),
        sections.rerun,
    ]
    method, name = _run_name(data)
    distinct = (
        "" if facts["distinct"] == facts["m"] - facts["dropped"] else f" ({facts['distinct']:,} of them distinct)"
    )
    lead = (
        f"{facts['c']} clusters of {facts['m']:,} samples{distinct} × {facts['f']:,} features, "
        f"finished {manifest['finished']}"
    )
    return page(
        "run.html.j2",
        title=f"{method}: {name}",
        lead=lead,
        tiles=_tiles(data),
        warnings=data.warnings,
        sections=[part(data) for part in parts],
        footer=f"Made by ips2_dask {manifest['versions']['ips2_dask']} from the run's stored arrays.",
    )


def _run_name(data: ReportData) -> tuple[str, str]:
    """The method, and the last part of the input's name."""
    whole = str(data.run.manifest["input"]["name"])
    return data.run.params.method.upper(), whole.rstrip("/").rpartition("/")[2] or whole


def _tiles(data: ReportData) -> list[tuple[str, str, str]]:
    """The most important numbers: name, value, and a remark."""
    facts, run = data.facts, data.run
    seconds = sum(stage.seconds for stage in data.stages)
    planned = max(max(stage.worker_bytes, stage.client_bytes) for stage in data.stages)
    gap = "none given" if facts["gap"] is None else f"{facts['gap']:.3g}"
    exact = "as exact as labels need" if run.params.tol is None else f"tolerance {run.params.tol:g}"
    tiles = [
        ("clusters", f"{facts['c']}", f"{data.sizes.min():,} to {data.sizes.max():,} samples"),
        ("silhouette", f"{data.silhouettes.values.mean():.3f}", f"mean on the {data.coordinates.what}"),
        ("gap at c", gap, "after the last eigenvalue"),
        ("residual", f"{facts['residual_max']:.2g}", exact),
        ("graph recall", f"{facts['recall']:.4f}", f"{LEAST_RECALL} promised"),
        ("components", f"{facts['components']:,}", "of the tensor's pairs"),
        ("time", duration(seconds), "all stages"),
        ("memory", size(facts["peak_rss_bytes"]), f"largest process, {size(planned)} planned"),
    ]
    if data.totals.certainty is not None:
        text = f"mean; {data.totals.unsure:.1%} of samples below {UNSURE}"
        tiles.insert(1, ("certainty", f"{data.totals.certainty:.3f}", text))
    if data.scores:
        tiles.insert(1, ("NMI", f"{data.scores['nmi']:.3f}", f"ACC {data.scores['acc']:.3f}, known labels"))
    return tiles

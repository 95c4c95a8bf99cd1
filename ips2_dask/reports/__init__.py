"""The report of a run: one page that needs no other file."""

from __future__ import annotations

from pathlib import Path

from ips2_dask.params import LEAST_RECALL
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.reports.material import UNSURE, Material, gather
from ips2_dask.runs.run import Run, open_run
from ips2_dask.wording import duration, size

__all__ = ["report"]


def report(run: Run | str | Path, path: str | Path) -> Path:
    """Write a run's report: one HTML page with pictures and tables that needs no other file, script or network.

    The same run gives the same bytes. Needs Matplotlib, the extra ``report``.

    Parameters
    ----------
    run : Run, or path or URL of a run directory
    path : path
        Of the page; what is there is replaced when the new one is whole.

    Returns
    -------
    Path
        Of the page.

    Raises
    ------
    BadInput
        Where there is no finished run, or no Matplotlib.
    """
    check_matplotlib()
    page = render(gather(run if isinstance(run, Run) else open_run(run)))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(page, encoding="utf-8")
    aside.replace(path)
    return path


def render(material: Material) -> str:
    """The page of what was gathered."""
    from ips2_dask.reports import page, sections  # noqa: PLC0415  `import ips2_dask` has no use for them

    facts, manifest = material.facts, material.run.manifest
    parts = [
        sections.asked, sections.stages, sections.eigenvalues, sections.similarities,
        *([sections.labels] if facts["roundings"] else []), sections.embedding, sections.clusters, sections.doubtful,
        *([sections.known] if material.scores else []), sections.again,
    ]  # fmt: skip
    method, name = run_name(material)
    distinct = (
        "" if facts["distinct"] == facts["m"] - facts["dropped"] else f" ({facts['distinct']:,} of them distinct)"
    )
    lead = (
        f"{facts['c']} clusters of {facts['m']:,} samples{distinct} × {facts['f']:,} features, "
        f"finished {manifest['finished']}"
    )
    top = [page.tiles(_tiles(material)), page.warnings(material.warnings)]
    end = f"Made by ips2_dask {manifest['versions']['ips2_dask']} from the run's stored arrays."
    return page.page(f"{method}: {name}", lead, top, [part(material) for part in parts], end)


def run_name(material: Material) -> tuple[str, str]:
    """The method, and the last part of the input's name."""
    whole = str(material.run.manifest["input"]["name"])
    return material.run.params.method.upper(), whole.rstrip("/").rpartition("/")[2] or whole


def _tiles(material: Material) -> list[tuple[str, str, str]]:
    """The numbers to look at first."""
    facts, run = material.facts, material.run
    seconds = sum(stage.seconds for stage in material.stages)
    planned = max(max(stage.worker_bytes, stage.client_bytes) for stage in material.stages)
    gap = "none given" if facts["gap"] is None else f"{facts['gap']:.3g}"
    exact = "as exact as labels need" if run.params.tol is None else f"tolerance {run.params.tol:g}"
    out = [
        ("clusters", f"{facts['c']}", f"{material.sizes.min():,} to {material.sizes.max():,} samples"),
        ("silhouette", f"{material.silhouettes.values.mean():.3f}", f"mean on the {material.coordinates.what}"),
        ("gap at c", gap, "after the last eigenvalue"),
        ("residual", f"{facts['residual_max']:.2g}", exact),
        ("graph recall", f"{facts['recall']:.4f}", f"{LEAST_RECALL} promised"),
        ("components", f"{facts['components']:,}", "of the tensor's pairs"),
        ("time", duration(seconds), "all stages"),
        ("memory", size(facts["peak_rss_bytes"]), f"largest process, {size(planned)} planned"),
    ]
    if material.certainty is not None:
        low = float((material.certainty < UNSURE).mean())
        out.insert(1, ("certainty", f"{material.certainty.mean():.3f}", f"mean; {low:.1%} of samples below {UNSURE}"))
    if material.scores:
        out.insert(1, ("NMI", f"{material.scores['nmi']:.3f}", f"ACC {material.scores['acc']:.3f}, known labels"))
    return out

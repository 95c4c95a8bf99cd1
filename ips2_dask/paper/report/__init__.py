"""The report: figures as PNG and SVG, and one page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ips2_dask import __version__
from ips2_dask.paper.experiments.records import Record
from ips2_dask.paper.experiments.tasks import Family, Results, Scope
from ips2_dask.paper.report.sections import PARTS, ReportInputs
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.reports.html import Section, article, paragraph
from ips2_dask.store.files import write_atomically

TITLE = "Integrating tensor similarity to enhance clustering performance: the paper, reproduced"

__all__ = ["check_matplotlib", "write_report"]


def write_report(
    families: Mapping[str, Family], records: Sequence[Record], results: Results, scope: Scope, out: Path
) -> Path:
    """Write ``report.html`` and ``figures/`` below a directory.

    The same records give the same bytes; what shows measured times has the class ``time``.

    Parameters
    ----------
    families : dict of Family
        Which parts the report has.
    records : list of dict
    results : dict
        Results of tasks, for what is not in the records: matrices and grids.
    scope : Scope
    out : Path

    Returns
    -------
    Path
        Of the page.
    """
    folder = out / "figures"
    inputs = ReportInputs(folder, records, results, scope)
    sections = [
        Section(name, family.title, PARTS[name](inputs), short=family.title.partition(":")[0])
        for name, family in families.items()
    ]
    intro = [
        paragraph(
            "The experiments of Peng, Hu, Chen, Wang, Li, Cai (arXiv 1905.03920), made again with ips2_dask "
            f"{__version__}: {scope.runs} runs with the seeds {scope.seed} to {scope.seed + scope.runs - 1}, grids of "
            f"{scope.budget} settings for every method. All numbers are in results.json. The same command and seed "
            "make this page again, byte for byte, on the same machine, but for measured times."
        )
    ]
    path = out / "report.html"
    write_atomically(path, article(TITLE, intro, sections))
    return path

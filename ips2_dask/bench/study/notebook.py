"""`ips2 study`: the notebook of scaling studies executed with a study's parameters, without a browser."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from ips2_dask.bench.document import machine, versions
from ips2_dask.bench.origin import now, present
from ips2_dask.bench.study.config import Study
from ips2_dask.bench.study.fits import growth_table, memory_table, stage_table, strong_table, weak_table
from ips2_dask.bench.study.measure import kept, results_file
from ips2_dask.errors import BadInput, IPS2Error
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.store.files import write_atomically

NOTEBOOK = "scaling_study.ipynb"
"""The notebook as the package has it, a link to that of the folder of notebooks."""


class Studied(NamedTuple):
    """The files that a study has written."""

    notebook: Path
    page: Path | None  # None without nbconvert
    records: Path
    summary: Path


class StudyFailed(IPS2Error):
    """A cell of the notebook has failed; what was measured before is kept."""

    exit_status = 1


def study(asked: Study, out: str | Path, *, again: bool = False, progress: Callable[[str], None] = print) -> Studied:
    """Execute the notebook of scaling studies.

    Parameters
    ----------
    asked : Study
    out : path
        A directory: the executed notebook, a page of it (with nbconvert), records and a summary go there. What an
        earlier call has measured is not measured again.
    again : bool
        Measure everything again.
    progress : callable
        Is given lines.

    Raises
    ------
    BadInput
        Where packages are missing or the directory can't be used.
    StudyFailed
    """
    _check_packages()
    check_matplotlib()
    folder = Path(out).absolute()
    if folder.exists() and not folder.is_dir():
        raise BadInput("--out", f"the file {out}", "a directory", "it would be overwritten", "give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    executed = folder / f"{asked.name}.ipynb"
    _execute(executed, {**_parameters(asked), "results": str(folder), "again": again}, progress)
    records = kept(asked, folder)
    summary = {
        **present()._asdict(),
        "date": now(),
        "machine": machine(),
        "versions": versions(),
        "study": asked.as_dict(),
        "growth": growth_table(records),
        "strong": strong_table(records),
        "weak": weak_table(records),
        "memory": memory_table(records),
        "stages": stage_table(records),
    }
    write_atomically(folder / f"{asked.name}.json", json.dumps(summary, indent=1) + "\n")
    return Studied(executed, _page(executed), results_file(asked, folder), folder / f"{asked.name}.json")


def _parameters(settings: Study) -> dict[str, object]:
    """Parameters of the notebook; a cluster's file by its whole path, for the notebook runs elsewhere."""
    values = settings.as_dict()
    for name in ("cluster", "scratch"):
        if values[name] is not None and Path(values[name]).exists():
            values[name] = str(Path(values[name]).absolute())
    return values


def _check_packages() -> None:
    missing = [name for name in ("papermill", "ipykernel") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInput(
            " and ".join(missing),
            "no such package",
            "papermill and ipykernel",
            "no notebook could be executed",
            "pip install 'ips2-dask[notebooks]'",
        )


def _execute(executed: Path, parameters: dict[str, object], progress: Callable[[str], None]) -> None:
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the debugger that nobody asked for
    import papermill  # noqa: PLC0415  the extra [notebooks]

    source = files("ips2_dask.bench.study") / NOTEBOOK
    progress(f"executing {executed.name}; each run of the study is shown when the notebook is done")
    with as_file(source) as notebook:
        try:
            papermill.execute_notebook(
                str(notebook),
                str(executed),
                parameters,
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                cwd=str(executed.parent),
            )
        except papermill.PapermillExecutionError as error:
            raise StudyFailed(
                f"{executed}: cell {error.exec_count} failed with {error.ename}: {error.evalue}; what was measured "
                f"before is kept. Remedy: open the notebook to see where, and run the same command again."
            ) from None


def _page(executed: Path) -> Path | None:
    """The notebook as HTML, its figures inside, where nbconvert is installed."""
    if importlib.util.find_spec("nbconvert") is None:
        return None
    from nbconvert import HTMLExporter  # noqa: PLC0415  the extra [notebooks]

    page = executed.with_suffix(".html")
    text, _ = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True).from_filename(str(executed))
    write_atomically(page, text)
    return page

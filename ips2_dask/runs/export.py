"""A run's labels in a file of the user's: CSV or Parquet, or a copy of an .h5ad that has them among its own."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.runs.export_h5ad import beside_labels, write_h5ad
from ips2_dask.runs.run import Run


def write_labels(run: Run, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
    """Write the labels of a run beside the names of its samples, whole or not at all.

    ``.csv`` and ``.parquet`` get the columns ``sample`` (the name, or the number from 0 where there are no names),
    ``cluster``, ``certainty`` (of the cluster, 0 to 1) and, where labels come from a density, ``left_out`` (whether its
    tree left the sample out, so that the label comes from the fused similarity). Runs of earlier versions have neither
    of the last two.

    ``.h5ad`` gets a copy of the input, if that was an .h5ad, with ``obs["ips2"]``, ``obs["ips2_certainty"]`` and
    ``obs["ips2_left_out"]`` (the same columns), ``obsm["X_ips2"]`` (the spectral embedding, where there is one),
    ``obsp["ips2_connectivities"]`` (the fused similarity) and ``uns["ips2"]`` (the parameters); otherwise a new file
    with these alone.

    Parameters
    ----------
    run : Run
    path : path
        An existing file is replaced.
    input : path, optional
        The .h5ad to copy; None takes the run's own input.

    Returns
    -------
    Path

    Raises
    ------
    BadInput
        Where the ending is another one, the place can't be written, or the .h5ad is not of these samples.
    """
    target = Path(path)
    writers: dict[str, Callable[[Run, Path], None]] = {
        ".csv": _write_csv,
        ".parquet": _write_parquet,
        ".h5ad": lambda run, aside: write_h5ad(run, aside, input),
    }
    if target.suffix.lower() not in writers:
        raise BadInput(
            str(target), f"the ending {target.suffix or 'none'!r}", ", ".join(writers),
            "the format would be guessed at", "name the file with one of these endings",
        )  # fmt: skip
    if input is not None and target.suffix.lower() != ".h5ad":
        raise BadInput(
            "input", f"{input} for a {target.suffix} file", "an input for an .h5ad file", "it would be ignored",
            "leave it out",
        )  # fmt: skip
    if not target.absolute().parent.is_dir() or target.is_dir():
        raise BadInput(
            str(target), "no such folder, or a folder", "a file in a folder that exists",
            "there would be nowhere to write", "make the folder first, or name another file",
        )  # fmt: skip
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        writers[target.suffix.lower()](run, aside)
        os.replace(aside, target)
    except OSError as error:
        raise BadInput(
            str(target), f"a file that can't be written ({error.strerror or error})", "a place this user may write to",
            "the labels would be lost", "free some room, change the permissions, or name another file",
        ) from None  # fmt: skip
    finally:
        aside.unlink(missing_ok=True)
    return target


def _samples(run: Run) -> Any:
    names = run.sample_names
    return np.arange(len(run.labels)) if names is None else names


def _columns(run: Run) -> dict[str, Any]:
    """The columns of a table of labels."""
    return {"sample": _samples(run), "cluster": run.labels, **beside_labels(run)}


def _write_csv(run: Run, aside: Path) -> None:
    columns = _columns(run)
    if "certainty" in columns:
        columns["certainty"] = columns["certainty"].astype(str)  # the shortest text that float32 reads back from
    with aside.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def _write_parquet(run: Run, aside: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415  a second that other formats need not wait
    from pyarrow import parquet  # noqa: PLC0415

    columns = {**_columns(run), "sample": _samples(run).tolist()}
    parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), aside)

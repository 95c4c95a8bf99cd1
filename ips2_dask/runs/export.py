"""Files of a run's results: labels and certainty as a table, and predictions, block by block."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.runs.h5ad import write_h5ad
from ips2_dask.runs.label_results import Columns, sample_columns
from ips2_dask.store.files import partial_file
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from ips2_dask.runs.results import Results

Write = Callable[[Columns], None]

LABEL_ENDINGS = (".csv", ".parquet", ".h5ad")
PREDICTION_ENDINGS = (".csv", ".tsv", ".parquet", ".npy")


def write_labels(run: Results, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
    """Write the labels of a run beside the names of its samples, whole or not at all.

    ``.csv`` and ``.parquet`` get the columns ``sample`` (the name, or the number from 0 where there are no names),
    ``cluster``, ``certainty`` (of the cluster, 0 to 1) and, where labels come from a density, ``left_out`` (whether its
    tree left the sample out, so that the label comes from the fused similarity).

    ``.h5ad`` gets a copy of the input, if that was an .h5ad, with ``obs["ips2"]``, ``obs["ips2_certainty"]`` and
    ``obs["ips2_left_out"]`` (the same columns), ``obsm["X_ips2"]`` (the spectral embedding, where there is one),
    ``obsp["ips2_connectivities"]`` (the fused similarity), ``obsp["ips2_distances"]`` (to the nearest others) and
    ``uns["ips2"]`` (the parameters, and what scanpy looks up by ``neighbors_key="ips2"``); otherwise a new file with
    these alone. What an earlier call wrote there is replaced. Meanwhile the folder holds embedding, similarity and
    distances a second time, unpacked.

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
        Where the ending is another one, the place can't be written, or the .h5ad is not of these samples or has
        something of its own by these names.
    """
    target = _check_file(path, LABEL_ENDINGS)
    ending = target.suffix.lower()
    if input is not None and ending != ".h5ad":
        found = f"{input} for a {target.suffix} file"
        raise BadInput("input", found, "an input for an .h5ad file", "it would be ignored", "leave it out")
    try:
        with partial_file(target) as partial:
            if ending == ".h5ad":
                write_h5ad(run, partial, input)
            else:
                with _writer(partial, ending) as write:
                    for block in run.iter_labels():
                        rows = block.first, block.first + len(block.labels)
                        names = run.names_between(*rows)
                        samples = np.arange(*rows) if names is None else names
                        write({"sample": samples, "cluster": block.labels, **sample_columns(block)})
    except OSError as error:
        fault, allowed = f"a file that can't be written ({error.strerror or error})", "a place this user may write to"
        remedy = "free some room, change the permissions, or name another file"
        raise BadInput(str(target), fault, allowed, "the labels would be lost", remedy) from None
    return target


def _check_file(name: str | Path, endings: Sequence[str]) -> Path:
    """The path of a file that is to be written; refused where it has another ending, or can't be."""
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() not in endings:
        found, why = f"the ending {path.suffix or 'none'!r}", "its format would be unknown"
        raise BadInput(str(path), found, ", ".join(endings), why, "name the file with one of these endings")
    if not path.absolute().parent.is_dir() or path.is_dir():
        found, allowed = "no folder to put it in, or a folder of that name", "a file in a folder that exists"
        remedy = "make the folder first, or name another file"
        raise BadInput(str(path), found, allowed, "there would be nowhere to write", remedy)
    return path


def check_prediction_file(name: str, labels_only: bool) -> Path:
    """The path of a file for predictions; refused where it can't be one, or .npy shall hold more than labels."""
    path = _check_file(name, PREDICTION_ENDINGS)
    if path.suffix.lower() == ".npy" and not labels_only:
        found, wanted = "more than labels for .npy", "labels alone, or .csv, .tsv, .parquet"
        raise BadInput(name, found, wanted, "columns of different types would have no place", "give another ending")
    return path


@contextlib.contextmanager
def prediction_writer(path: Path, n_rows: int) -> Iterator[Write]:
    """A function that writes blocks of columns to a file, which is there as a whole once the block ends in order.

    The columns of all blocks have ``n_rows`` values together.
    """
    with partial_file(path) as partial, _writer(partial, path.suffix.lower(), n_rows) as write:
        yield write


# ---- formats


def _writer(path: Path, ending: str, n_rows: int = 0) -> contextlib.AbstractContextManager[Write]:
    """A function that writes some rows of columns."""
    if ending == ".npy":
        return _label_writer(path, n_rows)
    return _parquet_writer(path) if ending == ".parquet" else _text_writer(path, "\t" if ending == ".tsv" else ",")


@contextlib.contextmanager
def _text_writer(path: Path, mark: str) -> Iterator[Write]:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=mark, lineterminator="\n")

        def write(columns: Columns) -> None:
            if not stream.tell():
                writer.writerow(columns)
            writer.writerows(zip(*map(_words, columns.values()), strict=True))

        yield write


def _words(values: AnyArray) -> list[str]:
    """Values as text: float32 in the fewest digits that give it back, wider ones in nine."""
    if values.dtype.kind == "f" and values.dtype != np.float32:
        return [f"{value:.9g}" for value in values.tolist()]
    return values.astype(str).tolist()


@contextlib.contextmanager
def _parquet_writer(path: Path) -> Iterator[Write]:
    import pyarrow  # noqa: PLC0415  it takes a while, and other formats do without
    import pyarrow.parquet  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        writers: list[pyarrow.parquet.ParquetWriter] = []  # one, once the columns are known

        def write(columns: Columns) -> None:
            text = {name: values.tolist() for name, values in columns.items() if values.dtype.kind == "U"}
            table = pyarrow.table(columns | text)
            if not writers:
                writers.append(stack.enter_context(pyarrow.parquet.ParquetWriter(path, table.schema)))
            writers[0].write_table(table)

        yield write


@contextlib.contextmanager
def _label_writer(path: Path, n_rows: int) -> Iterator[Write]:
    header = {"descr": "<i4", "fortran_order": False, "shape": (n_rows,)}
    with open(path, "wb") as stream:  # no memory map: a full disk would end the process
        np.lib.format.write_array_header_1_0(stream, header)
        yield lambda columns: columns["label"].astype("<i4").tofile(stream)

"""Files of a run's results: labels and certainty as a table, and predictions, block by block."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.runs.h5ad import write_h5ad
from ips2_dask.runs.label_results import Columns, sample_columns
from ips2_dask.store.files import partial_file
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

    from ips2_dask.runs.results import Results

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
    target = Path(os.path.expanduser(path))
    ending = target.suffix.lower()
    if ending not in LABEL_ENDINGS:
        fault, why = f"the ending {target.suffix or 'none'!r}", "the format would be guessed at"
        raise BadInput(str(target), fault, ", ".join(LABEL_ENDINGS), why, "name the file with one of these endings")
    if input is not None and ending != ".h5ad":
        found = f"{input} for a {target.suffix} file"
        raise BadInput("input", found, "an input for an .h5ad file", "it would be ignored", "leave it out")
    if not target.absolute().parent.is_dir() or target.is_dir():
        fault, why = "no such folder, or a folder", "there would be nowhere to write"
        raise BadInput(
            str(target), fault, "a file in a folder that exists", why, "make the folder first, or name another file"
        )
    try:
        with partial_file(target) as partial:
            if ending == ".h5ad":
                write_h5ad(run, partial, input)
            else:
                _write_table(run, partial, ending)
    except OSError as error:
        fault = f"a file that can't be written ({error.strerror or error})"
        allowed = "a place this user may write to"
        why = "the labels would be lost"
        raise BadInput(
            str(target), fault, allowed, why, "free some room, change the permissions, or name another file"
        ) from None
    return target


def _write_table(run: Results, partial: Path, ending: str) -> None:
    """Write names, labels and what is known of them, by blocks of rows."""
    with contextlib.closing(_writer(partial, ending)) as writer:
        for block in run.iter_labels():
            rows = block.first, block.first + len(block.labels)
            names = run.names_between(*rows)
            samples = np.arange(*rows) if names is None else names
            writer.write({"sample": samples, "cluster": block.labels, **sample_columns(block)})


class Writer(Protocol):
    """Writes blocks of columns to a file."""

    def write(self, columns: Columns) -> None:
        """Write some rows."""

    def close(self) -> None:
        """End the file."""


class _TextWriter:
    def __init__(self, path: Path, mark: str) -> None:
        self._stream = path.open("w", newline="", encoding="utf-8")
        self._writer, self._begun = csv.writer(self._stream, delimiter=mark, lineterminator="\n"), False

    def write(self, columns: Columns) -> None:
        if not self._begun:
            self._writer.writerow(columns)
            self._begun = True
        self._writer.writerows(zip(*map(_words, columns.values()), strict=True))

    def close(self) -> None:
        self._stream.close()


def _words(values: AnyArray) -> list[str]:
    """Values as text: float32 in the fewest digits that give it back, wider ones in nine."""
    if values.dtype.kind == "f" and values.dtype != np.float32:
        return [f"{value:.9g}" for value in values.tolist()]
    return values.astype(str).tolist()


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: ParquetWriter | None = None

    def write(self, columns: Columns) -> None:
        import pyarrow  # noqa: PLC0415  it takes a while, and other formats do without
        import pyarrow.parquet  # noqa: PLC0415

        text = {name: values.tolist() for name, values in columns.items() if values.dtype.kind == "U"}
        table = pyarrow.table(columns | text)
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _LabelWriter:
    """Writes labels to a .npy file as they come; the number of them goes into its header at the end."""

    def __init__(self, path: Path) -> None:
        self._stream, self._n = path.open("wb"), 0
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<i4", "fortran_order": False, "shape": (self._n,)}
        np.lib.format.write_array_header_1_0(self._stream, header)  # equally long for every length of the array

    def write(self, columns: Columns) -> None:
        self._stream.write(np.ascontiguousarray(columns["label"], "<i4").tobytes())
        self._n += len(columns["label"])

    def close(self) -> None:
        self._stream.seek(0)
        self._write_header()
        self._stream.close()


def _writer(path: Path, ending: str) -> Writer:
    if ending == ".parquet":
        return _ParquetWriter(path)
    return _LabelWriter(path) if ending == ".npy" else _TextWriter(path, "\t" if ending == ".tsv" else ",")


def check_prediction_file(name: str, labels_only: bool) -> Path:
    """The path of a file for predictions; refused where it can't be one, or .npy shall hold more than labels."""
    path = Path(name)
    ending = path.suffix.lower()
    if ending not in PREDICTION_ENDINGS:
        allowed = ", ".join(PREDICTION_ENDINGS)
        raise BadInput(name, f"the ending {ending!r}", allowed, "its format would be unknown", "give one of these")
    if ending == ".npy" and not labels_only:
        found, wanted = "more than labels for .npy", "labels alone, or .csv, .tsv, .parquet"
        raise BadInput(name, found, wanted, "columns of different types would have no place", "give another ending")
    if not path.absolute().parent.is_dir() or path.is_dir():
        found, wanted = "no folder to put it in, or a folder of that name", "a file in a folder that exists"
        raise BadInput(name, found, wanted, "there would be nowhere to write", "make the folder first")
    return path


@contextlib.contextmanager
def prediction_writer(path: Path) -> Iterator[Writer]:
    """A writer of blocks of columns to a file, which appears as a whole when the block ends without an error."""
    with partial_file(path) as partial, contextlib.closing(_writer(partial, path.suffix.lower())) as writer:
        yield writer

"""Files of a run's results: labels and certainty as a table, and predictions, block by block."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.runs.h5ad import write_h5ad
from ips2_dask.runs.label_results import Columns, sample_columns
from ips2_dask.store.files import partial_file

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

    from ips2_dask.runs.run import Run

PREDICTION_ENDINGS = (".csv", ".tsv", ".parquet", ".npy")


def write_labels(run: Run, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
    """Write the labels of a run beside the names of its samples, whole or not at all.

    ``.csv`` and ``.parquet`` get the columns ``sample`` (the name, or the number from 0 where there are no names),
    ``cluster``, ``certainty`` (of the cluster, 0 to 1) and, where labels come from a density, ``left_out`` (whether its
    tree left the sample out, so that the label comes from the fused similarity). Runs of earlier versions have neither
    of the last two.

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
    writers: dict[str, Callable[[Run, Path], None]] = {
        ".csv": _write_csv,
        ".parquet": _write_parquet,
        ".h5ad": lambda run, partial: write_h5ad(run, partial, input),
    }
    if target.suffix.lower() not in writers:
        raise BadInput(
            str(target),
            f"the ending {target.suffix or 'none'!r}",
            ", ".join(writers),
            "the format would be guessed at",
            "name the file with one of these endings",
        )
    if input is not None and target.suffix.lower() != ".h5ad":
        raise BadInput(
            "input",
            f"{input} for a {target.suffix} file",
            "an input for an .h5ad file",
            "it would be ignored",
            "leave it out",
        )
    if not target.absolute().parent.is_dir() or target.is_dir():
        raise BadInput(
            str(target),
            "no such folder, or a folder",
            "a file in a folder that exists",
            "there would be nowhere to write",
            "make the folder first, or name another file",
        )
    try:
        with partial_file(target) as partial:
            writers[target.suffix.lower()](run, partial)
    except OSError as error:
        raise BadInput(
            str(target),
            f"a file that can't be written ({error.strerror or error})",
            "a place this user may write to",
            "the labels would be lost",
            "free some room, change the permissions, or name another file",
        ) from None
    return target


def _blocks(run: Run) -> Iterator[Columns]:
    """The columns of a table of labels, by blocks of rows."""
    for block in run.iter_labels():
        names = run.names_between(block.first, block.first + len(block.labels))
        samples = np.arange(block.first, block.first + len(block.labels)) if names is None else names
        yield {"sample": samples, "cluster": block.labels, **sample_columns(block)}


def _write_csv(run: Run, partial: Path) -> None:
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        for number, columns in enumerate(_blocks(run)):
            if "certainty" in columns:
                columns["certainty"] = columns["certainty"].astype(str)  # the shortest that float32 reads back from
            if number == 0:
                writer.writerow(columns)
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def _write_parquet(run: Run, partial: Path) -> None:
    with contextlib.closing(_ParquetWriter(partial)) as writer:
        for columns in _blocks(run):
            writer.write({**columns, "sample": columns["sample"].tolist()})


class _Writer(Protocol):
    def write(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


class _TextWriter:
    def __init__(self, path: Path, mark: str) -> None:
        self._stream, self._mark, self._begun = path.open("w", encoding="utf-8"), mark, False

    def write(self, columns: Columns) -> None:
        if not self._begun:
            self._stream.write(self._mark.join(columns) + "\n")
            self._begun = True
        words = [[self._word(value) for value in values.tolist()] for values in columns.values()]
        self._stream.writelines(self._mark.join(row) + "\n" for row in zip(*words, strict=True))

    def _word(self, value: object) -> str:
        if isinstance(value, float):
            return f"{value:.9g}"
        text = str(value)
        special = any(mark in text for mark in (self._mark, '"', "\n", "\r"))
        return '"' + text.replace('"', '""') + '"' if special else text

    def close(self) -> None:
        self._stream.close()


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: ParquetWriter | None = None

    def write(self, columns: Columns) -> None:
        import pyarrow  # noqa: PLC0415  it takes a while, and other formats do without
        import pyarrow.parquet  # noqa: PLC0415

        table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
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
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)),
            "fortran_order": False,
            "shape": (self._n,),
        }
        np.lib.format.write_array_header_1_0(self._stream, header)  # equally long for every length of the array

    def write(self, columns: Columns) -> None:
        self._stream.write(np.ascontiguousarray(columns["label"], "<i4").tobytes())
        self._n += len(columns["label"])

    def close(self) -> None:
        self._stream.seek(0)
        self._write_header()
        self._stream.close()


def check_prediction_file(name: str, labels_only: bool) -> Path:
    """The path of a file that can be written.

    Raises
    ------
    BadInput
        Where its ending says no known format, its folder is missing, or .npy shall hold more than labels.
    """
    path = Path(name)
    ending = path.suffix.lower()
    if ending not in PREDICTION_ENDINGS:
        allowed = ", ".join(PREDICTION_ENDINGS)
        raise BadInput(name, f"the ending {ending!r}", allowed, "its format would be unknown", "give one of these")
    if ending == ".npy" and not labels_only:
        raise BadInput(
            name,
            "more than labels for .npy",
            "labels alone, or .csv, .tsv, .parquet",
            "columns of different types would have no place",
            "give another ending",
        )
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise BadInput(
            name,
            "no folder to put it in, or a folder of that name",
            "a file in a folder that exists",
            "there would be nowhere to write",
            "make the folder first",
        )
    return path


@contextlib.contextmanager
def prediction_writer(path: Path) -> Iterator[_Writer]:
    """A writer of blocks of columns to a file, which appears as a whole when the block ends without an error."""
    ending = path.suffix.lower()
    writer: _Writer
    with partial_file(path) as partial:
        if ending == ".parquet":
            writer = _ParquetWriter(partial)
        elif ending == ".npy":
            writer = _LabelWriter(partial)
        else:
            writer = _TextWriter(partial, "\t" if ending == ".tsv" else ",")
        try:
            yield writer
        finally:
            writer.close()

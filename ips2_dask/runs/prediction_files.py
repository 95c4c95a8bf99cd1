"""Predictions as a file, block by block, written aside and renamed: CSV or TSV, Parquet, or labels alone as .npy."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ips2_dask.errors import BadInput

ENDINGS = (".csv", ".tsv", ".parquet", ".npy")

Columns = dict[str, Any]
"""Names, and as many values of each."""


class _Writer(Protocol):
    def write(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


class _Text:
    def __init__(self, path: Path, mark: str) -> None:
        self._stream, self._mark, self._begun = path.open("w", encoding="utf-8"), mark, False

    def write(self, columns: Columns) -> None:
        if not self._begun:
            self._stream.write(self._mark.join(columns) + "\n")
            self._begun = True
        words = [[self._word(value) for value in values.tolist()] for values in columns.values()]
        self._stream.writelines(self._mark.join(row) + "\n" for row in zip(*words, strict=True))

    def _word(self, value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.9g}"
        text = str(value)
        special = any(mark in text for mark in (self._mark, '"', "\n", "\r"))
        return '"' + text.replace('"', '""') + '"' if special else text

    def close(self) -> None:
        self._stream.close()


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, columns: Columns) -> None:
        import pyarrow  # noqa: PLC0415  it takes a while, and other formats do without
        import pyarrow.parquet  # noqa: PLC0415

        table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Labels:
    def __init__(self, path: Path) -> None:
        self._path, self._parts = path, [np.empty(0, np.int32)]

    def write(self, columns: Columns) -> None:
        self._parts.append(columns["label"])

    def close(self) -> None:
        with self._path.open("wb") as stream:
            np.save(stream, np.concatenate(self._parts))


def check_file(name: str, labels_only: bool) -> Path:
    """The path of a file that can be written.

    Raises
    ------
    BadInput
        Where its ending says no known format, its folder is missing, or .npy shall hold more than labels.
    """
    path = Path(name)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise BadInput(
            name, f"the ending {ending!r}", ", ".join(ENDINGS), "its format would be unknown", "give one of these"
        )
    if ending == ".npy" and not labels_only:
        raise BadInput(
            name, "more than labels for .npy", "labels alone, or .csv, .tsv, .parquet",
            "columns of different types would have no place", "give another ending",
        )  # fmt: skip
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise BadInput(
            name, "no folder to put it in, or a folder of that name", "a file in a folder that exists",
            "there would be nowhere to write", "make the folder first",
        )  # fmt: skip
    return path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[_Writer]:
    """A writer of columns; the file is there, whole, once the block ends without an error."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    ending = path.suffix.lower()
    writer: _Writer
    if ending == ".parquet":
        writer = _Parquet(aside)
    elif ending == ".npy":
        writer = _Labels(aside)
    else:
        writer = _Text(aside, "\t" if ending == ".tsv" else ",")
    try:
        try:
            yield writer
        finally:
            writer.close()
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)

"""The .npy format: rows straight from their place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, FileStamp, Request, Rows, Table, check_dtype, check_shape
from ips2_dask.readers.labels import take_label_column


@dataclass(frozen=True)
class NpyLayout:
    """Where the values of an array are in its file, and in which order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Length of the values."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def transposed(self) -> NpyLayout:
        """Return the layout of the same bytes seen as the transpose."""
        return NpyLayout(self.shape[::-1], self.dtype, not self.fortran, self.offset)


def read_layout(stream: IO[bytes], name: str) -> NpyLayout:
    """Read the header of an array; nothing in it is unpickled.

    Raises
    ------
    BadInput
        If it is no .npy header.
    """
    start = stream.tell()
    with faults.reading(name):
        magic = stream.read(6)
        if magic[:1] == b"\x80":
            raise faults.pickled(name, "a pickle")
        stream.seek(start)
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:  # 3.0 is for structured types with names outside of latin-1 only
            raise ValueError(f"version {version} of the format, which is not for plain numbers")
        return NpyLayout(tuple(int(size) for size in shape), dtype, bool(fortran), stream.tell())


@dataclass
class NpyRows(Rows):
    """The rows of an array in a file, in C or Fortran order."""

    stamp: FileStamp
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        self.stamp.check()
        with faults.reading(self.stamp.name), open(self.stamp.path, "rb", buffering=0) as stream:
            return (self._by_column if self.layout.fortran else self._by_row)(stream, start, stop)

    # Not mapped: a map's pages count as the process's memory, and a file that shrinks would kill it.
    def _by_row(self, stream: IO[bytes], start: int, stop: int) -> Block:
        width = self.layout.shape[1]
        values = np.empty((stop - start, width), self.layout.dtype)
        self._fill(stream, values, start * width)
        return values

    def _by_column(self, stream: IO[bytes], start: int, stop: int) -> Block:
        m, width = self.layout.shape
        columns = np.empty((width, stop - start), self.layout.dtype)
        for column in range(width):
            self._fill(stream, columns[column], column * m + start)
        return np.ascontiguousarray(columns.T)

    def _fill(self, stream: IO[bytes], values: Block, first: int) -> None:
        """Fill ``values`` with those from number ``first`` of the file on."""
        stream.seek(self.layout.offset + first * self.layout.dtype.itemsize)
        rest = values.view(np.uint8).data.cast("B")
        while rest:
            count = stream.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise EOFError(f"{len(rest)} bytes are missing")
            rest = rest[count:]


def npy_table(stamp: FileStamp, layout: NpyLayout) -> Table:
    """Return the table of an array whose values are in a file as they are in memory."""
    shape, dtype = check_shape(stamp.name, layout.shape), check_dtype(stamp.name, layout.dtype)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(stamp.name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    options = (layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    return Table(
        name=stamp.name,
        shape=shape,
        dtype=dtype,
        rows=NpyRows(stamp, layout),
        parallel=True,
        resident_bytes=0,
        fingerprint=stamp.digest("npy", *options),
    )


def open_file(request: Request) -> Table:
    """Return the table of a .npy file, of which one column may hold the labels."""
    stamp = FileStamp.of(request)
    with open(request.path, "rb") as stream:
        layout = read_layout(stream, request.name)
    table = npy_table(stamp, layout.transposed() if request.transpose else layout)
    return table if request.labels_column is None else take_label_column(table, request.labels_column)

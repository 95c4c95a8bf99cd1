"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.storage.readers.base import Block, FileStamp, Request, StreamedRows, Table, check_shape
from ips2_dask.storage.readers.labels import as_labels, take_label_column
from ips2_dask.storage.readers.resident import transposed
from ips2_dask.storage.readers.text_blocks import (
    check_numbers,
    head_of,
    is_packed,
    parse_numbers,
    parse_texts,
    text_blocks,
)
from ips2_dask.storage.readers.text_layout import Layout, find_layout


@dataclass(frozen=True)
class Places:
    """Where each block of lines starts: its first row, its offset in the unpacked text and its first line."""

    rows: list[int]
    offsets: list[int]
    lines: list[int]
    n_rows: int


@dataclass
class TextRows(StreamedRows):
    """The rows of a text table; read from the block that holds the first row asked for."""

    stamp: FileStamp
    layout: Layout
    places: Places

    def __post_init__(self) -> None:
        self.n_rows = self.places.n_rows

    def stream(self, start: int) -> Iterator[Block]:
        """Yield the rows from `start` on, a block of lines at a time."""
        self.stamp.check()
        places, name = self.places, self.stamp.name
        at = bisect_right(places.rows, start) - 1
        row = places.rows[at]
        for block in text_blocks(self.stamp.path, name, places.offsets[at], places.lines[at]):
            values = parse_numbers(block, self.layout, name, row)
            row += len(values)
            yield values[max(0, start - (row - len(values))) :]


def open_file(request: Request) -> Table:
    """Return the table of a text file, of which one column may hold the labels."""
    if request.transpose:
        table = transposed(open_file(replace(request, transpose=False, labels_column=None)))
        return table if request.labels_column is None else take_label_column(table, request.labels_column)
    stamp = FileStamp.of(request)
    layout = find_layout(head_of(request.path, request.name), request.name, request.labels_column)
    check_shape(request.name, (1, len(layout.features)))
    places = scan(stamp, layout)
    column_of = partial(read_texts, stamp, layout, places)
    return Table(
        name=request.name,
        shape=(places.n_rows, len(layout.features)),
        dtype=np.dtype(np.float64),
        rows=TextRows(stamp, layout, places),
        parallel=not is_packed(request.path),
        resident_bytes=0,
        fingerprint=stamp.digest("text", layout.label),
        feature_names=layout.feature_names(),
        read_sample_names=None if layout.index is None else partial(read_names, column_of, layout.index),
        read_labels=None if layout.label is None else partial(read_labels, column_of, layout.label, request.name),
    )


def scan(stamp: FileStamp, layout: Layout) -> Places:
    """Check every value of a text table and note where its blocks of lines start."""
    places = Places([], [], [], 0)
    row = 0
    for block in text_blocks(stamp.path, stamp.name, layout.offset, layout.first_line):
        values = parse_numbers(block, layout, stamp.name, row)
        check_numbers(values, block, layout, stamp.name, row)
        places.rows.append(row)
        places.offsets.append(block.offset)
        places.lines.append(block.first_line)
        row += len(values)
    return replace(places, n_rows=row)


def read_texts(stamp: FileStamp, layout: Layout, places: Places, column: int) -> NDArray[Any]:
    """Return one column of a text table as strings."""
    stamp.check()
    texts: list[str] = []
    for block in text_blocks(stamp.path, stamp.name, places.offsets[0], places.lines[0]):
        texts += parse_texts(block, layout, column, stamp.name)
    return np.array(texts, dtype=np.str_)


def read_labels(column_of: Any, column: int, name: str) -> NDArray[Any]:
    """Return a column as labels."""
    return as_labels(column_of(column), name)


def read_names(column_of: Any, column: int) -> NDArray[np.str_] | None:
    """Return the names of the samples, unless they only count the rows."""
    names = column_of(column)
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names

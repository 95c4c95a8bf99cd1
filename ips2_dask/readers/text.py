"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.readers.base import Block, FileStamp, Request, StreamedRows, Table, check_shape
from ips2_dask.readers.categories import Collected, are_text, codes
from ips2_dask.readers.columns import columns_of, select, select_again
from ips2_dask.readers.featured import featured
from ips2_dask.readers.features import Column, Features, FittedFeatures
from ips2_dask.readers.labels import as_labels, take_label_column
from ips2_dask.readers.resident import transposed
from ips2_dask.readers.text_blocks import (
    TextBlock,
    check_numbers,
    check_texts,
    head_of,
    is_packed,
    parse_columns,
    parse_numbers,
    parse_texts,
    text_blocks,
)
from ips2_dask.readers.text_layout import Layout, find_layout


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
    columns: tuple[Column, ...] = ()  # the features, where some of them hold categories
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        self.n_rows = self.places.n_rows

    def stream(self, start: int) -> Iterator[Block]:
        """Yield the rows from `start` on, a block of lines at a time."""
        self.stamp.check()
        places, name = self.places, self.stamp.name
        at = bisect_right(places.rows, start) - 1
        row = places.rows[at]
        for block in text_blocks(self.stamp.path, name, places.offsets[at], places.lines[at]):
            values = self._values(block, row)
            row += len(values)
            yield values[max(0, start - (row - len(values))) :]

    def _values(self, block: TextBlock, first_row: int) -> Block:
        """Return the features of a block of lines, text as the number of its category."""
        layout, name = self.layout, self.stamp.name
        if not layout.texts:
            return parse_numbers(block, layout, name, first_row)
        numbers, texts = parse_columns(block, layout, name, first_row)
        found = np.empty((len(numbers), len(layout.features)))
        of_texts = dict(zip(layout.texts, texts, strict=True))
        of_numbers = iter(numbers.T)
        for at, column in enumerate(layout.features):
            if column not in of_texts:
                found[:, at] = next(of_numbers)
                continue
            categories = self.columns[at].categories or ()
            where = layout.title(column)
            found[:, at] = codes(of_texts[column], categories, self.ignore_unknown, name, where, first_row)
        return found


def open_file(request: Request) -> Table:
    """Return the table of a text file, of which one column may hold the labels."""
    if request.transpose:
        table = transposed(open_file(replace(request, transpose=False, labels_column=None, features=None)))
        return table if request.labels_column is None else take_label_column(table, request.labels_column)
    stamp, features = FileStamp.of(request), request.features
    named: tuple[str | int | None, ...] = ()
    if isinstance(features, Features):
        named = features.mentioned
    elif features is not None:
        named = tuple(column.name for column in features.columns)
    layout = find_layout(head_of(request.path, request.name), request.name, request.labels_column, named)
    if features is not None:
        layout = _selected(layout, features, request.name)
    check_shape(request.name, (1, len(layout.features)))
    places, fitted = scan(stamp, layout, features)
    column_of = partial(read_texts, stamp, layout, places)
    rows = TextRows(stamp, layout, places)
    if fitted is not None:
        # columns whose categories are numbers are read as numbers
        texts = tuple(at for at, one in zip(layout.features, fitted.columns, strict=True) if are_text(one.categories))
        rows = TextRows(stamp, replace(layout, texts=texts), places, fitted.columns, fitted.handle_unknown == "ignore")
    table = Table(
        name=request.name,
        shape=(places.n_rows, len(layout.features)),
        dtype=np.dtype(np.float64),
        rows=rows,
        parallel=not is_packed(request.path),
        resident_bytes=0,
        fingerprint=stamp.digest("text", layout.label),
        feature_names=layout.feature_names(),
        read_sample_names=None if layout.index is None else partial(read_names, column_of, layout.index),
        read_labels=None if layout.label is None else partial(read_labels, column_of, layout.label, request.name),
        label=layout.label,
    )
    return table if fitted is None else featured(table, fitted)


def _selected(layout: Layout, features: Features | FittedFeatures, name: str) -> Layout:
    """Return the layout with the columns that become features, and those that are read as text, as they may hold it."""
    hidden = () if layout.index is None else (layout.index,)
    gaps = features.missing != "refuse"
    if isinstance(features, Features):
        kept, one_hot = select(name, features, layout.names, layout.n_fields, layout.label, hidden)
        return replace(layout, kept=kept, texts=tuple(sorted(one_hot)), gaps=gaps)
    again = select_again(name, features, layout.names, layout.n_fields, layout.label, hidden)
    texts = (place for place, column in zip(again, features.columns, strict=True) if are_text(column.categories))
    return replace(layout, kept=again, texts=tuple(texts), gaps=gaps)


def scan(
    stamp: FileStamp, layout: Layout, features: Features | FittedFeatures | None = None
) -> tuple[Places, FittedFeatures | None]:
    """Check every value of a text table, note where its blocks of lines start, and collect its categories."""
    places = Places([], [], [], 0)
    row = 0
    found: dict[int, Collected] = {}
    if isinstance(features, Features):
        found = {place: Collected(stamp.name, layout.title(place), features.missing) for place in layout.texts}
    for block in text_blocks(stamp.path, stamp.name, layout.offset, layout.first_line):
        values, texts = parse_columns(block, layout, stamp.name, row)
        check_numbers(values, block, layout, stamp.name, row)
        check_texts(texts, block, layout, stamp.name, row)
        for collected, column in zip(found.values(), texts, strict=False):
            collected.add(column.unique().to_pylist())
        places.rows.append(row)
        places.offsets.append(block.offset)
        places.lines.append(block.first_line)
        row += len(values)
    places = replace(places, n_rows=row)
    if not isinstance(features, Features):
        return places, features
    categories = {place: collected.categories() for place, collected in found.items()}
    return places, FittedFeatures(
        columns=columns_of(layout.features, layout.names, categories), n_columns=layout.n_fields, label=layout.label,
        missing=features.missing,
    )  # fmt: skip


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

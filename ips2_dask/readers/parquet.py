"""The Parquet format: a file, or the parts of a folder or a pattern as one table, read row group by row group."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.arrow import BATCH_ROWS, check_names, is_list, is_text, number_type, open_arrow
from ips2_dask.readers.base import FileStamp, Request, Table, digest
from ips2_dask.readers.labels import take_label_column
from ips2_dask.readers.matrices import transposed

ENDING = ".parquet"
# A row group has to be decoded from its start; with larger ones, reading ranges would cost far more than the rows.
LARGEST_GROUP = 256 << 20


def parts_of(path: str) -> list[str]:
    """Return the Parquet files of a folder, or of a pattern such as ``parts/*.parquet``, in natural order.

    Files that are hidden, or whose names begin with ``_`` as those of Dask and Spark that hold no rows, are left out,
    and so are those of such folders that a pattern with ``**`` finds.
    """
    pattern = os.path.join(glob.escape(path), "*") if os.path.isdir(path) else path
    named = {*pattern.split(os.sep)}
    parts = [name for name in glob.glob(pattern, recursive=True) if name.lower().endswith(ENDING)]
    shown = [name for name in parts if not any(step[:1] in "._" for step in {*name.split(os.sep)} - named - {""})]
    return sorted((name for name in shown if os.path.isfile(name)), key=_natural)


def has_deeper_parts(path: str) -> bool:
    """Return whether the folders of a folder hold Parquet files, as where a table is divided by a column's values."""
    return bool(parts_of(os.path.join(glob.escape(path), "*", "**", "*" + ENDING)))


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key by which part 2 comes before part 10."""
    pieces = re.split(r"([0-9]+)", path)
    return [(int(piece), "") if piece.isdecimal() and piece.isascii() else (-1, piece) for piece in pieces]


@dataclass
class ParquetBatches:
    """The record batches of Parquet files, one after the other."""

    name: str
    schema: pa.Schema
    stamps: list[FileStamp]
    places: list[tuple[int, int]]  # of each row group: its file, and its number there
    starts: list[int]

    def batches(self, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of some row groups."""
        for file, places in groupby((self.places[group] for group in groups), key=lambda place: place[0]):
            self.stamps[file].check()
            yield from batches(self.stamps[file], [number for _, number in places], list(columns))

    def digest(self, label: str | None) -> str:
        """Return the fingerprint of the files, with this column of labels."""
        if len(self.stamps) == 1:
            return self.stamps[0].digest("parquet", label)
        return digest("files", [(stamp.size, stamp.mtime_ns) for stamp in self.stamps], "parquet", label)


def batches(stamp: FileStamp, groups: list[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of some row groups and columns, with pyarrow's exceptions as ``BadInput``."""
    with faults.reading(stamp.name):
        file = pq.ParquetFile(stamp.path)
    with file:
        record_batches = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)
        while True:
            with faults.reading(stamp.name):
                batch = next(record_batches, None)
                if batch is not None:
                    batch.validate(full=True)
            if batch is None:
                return
            yield batch.select(columns)


def open_parquet(request: Request) -> Table:
    """Return the table of a Parquet file, or of several; one of its columns may hold the labels."""
    if request.transpose:
        table = transposed(open_parquet(replace(request, transpose=False, labels_column=None, features=None)))
        return take_label_column(table, request.labels_column)
    if os.path.isfile(request.path):
        stamps = [FileStamp.of(request)]
    else:
        stamps = [FileStamp.of(Request(part, part)) for part in parts_of(request.path)]
    schemas, places, rows, largest = [], [], [], 0
    for file, stamp in enumerate(stamps):
        with faults.reading(stamp.name), pq.ParquetFile(stamp.path) as opened:
            schemas.append(opened.schema_arrow)
            check_names(stamp.name, opened.schema_arrow.names)
            groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        places += [(file, number) for number in range(len(groups))]
        rows += [group.num_rows for group in groups]
        largest = max([largest, *(group.total_byte_size for group in groups)])
    filled = sorted({file for (file, _), count in zip(places, rows, strict=True) if count})
    schema = _common_schema(stamps, schemas, filled or [0])
    places, rows = _without_empty(places, rows)
    source = ParquetBatches(request.name, schema, stamps, places, [0, *np.cumsum(rows).tolist()])
    return open_arrow(source, request.labels_column, request.features, source.digest, largest <= LARGEST_GROUP)


def _without_empty(places: list[tuple[int, int]], rows: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the row groups that have rows: those of a part without rows may have columns of any type."""
    filled = [(place, count) for place, count in zip(places, rows, strict=True) if count]
    return [place for place, _ in filled], [count for _, count in filled]


def _common_schema(stamps: list[FileStamp], schemas: list[pa.Schema], files: list[int]) -> pa.Schema:
    """Return the columns of some files, in the order of the first one, each of a type that holds all files' values.

    Raises
    ------
    BadInput
        Where a file lacks a column, has a further one, or one of another kind; says which file and which column.
    """
    first, *others = files
    schema = schemas[first]
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for file in others:
        for title in sorted({*schema.names} ^ {*schemas[file].names}):
            there, other = (file, first) if title in schemas[file].names else (first, file)
            raise _differing(
                stamps[there].name, f"a column {title!r}, which {os.path.basename(stamps[other].name)} does not have"
            )
        for title, kind in zip(schemas[file].names, schemas[file].types, strict=True):
            common = _common_type(kinds[title], kind)
            if common is None:
                found = f"column {title!r} of type {kind}, which is {kinds[title]} in"
                raise _differing(stamps[file].name, f"{found} {os.path.basename(stamps[first].name)}")
            kinds[title] = common
    fields = [pa.field(title, kinds[title]) for title in schema.names] if others else schema
    return pa.schema(fields, metadata=schema.metadata)


def _differing(name: str, found: str) -> BadInput:
    return BadInput(
        name,
        found,
        "the same columns in every part",
        "values would be missing, or be compared with others",
        "write that part again with the columns of the others, or name one of the parts alone",
    )


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None where there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numbers = number_type(one), number_type(other)
    if numbers[0] is not None and numbers[1] is not None:
        return pa.from_numpy_dtype(np.result_type(*numbers))
    if is_text(one) and is_text(other):
        return pa.string()
    if is_list(one) and is_list(other):
        item = _common_type(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    return None

"""The Parquet format: columns of numbers, read row group by row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.storage.readers import faults
from ips2_dask.storage.readers.base import Block, FileStamp, Request, Rows, Table, check_dtype, check_shape, rebatch
from ips2_dask.storage.readers.labels import as_labels, find_column, take_label_column
from ips2_dask.storage.readers.resident import transposed

BATCH_ROWS = 4096


@dataclass
class ParquetRows(Rows):
    """The rows of a Parquet file, some of its columns."""

    stamp: FileStamp
    columns: list[str]
    dtype: np.dtype[Any]
    group_starts: list[int]  # the first row of each row group, and the number of rows

    def __post_init__(self) -> None:
        self.n_rows = self.group_starts[-1]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop from the row groups that hold them."""
        first = bisect_right(self.group_starts, start) - 1
        last = bisect_right(self.group_starts, stop - 1) - 1
        at = self.group_starts[first]
        found = np.empty((stop - start, len(self.columns)), self.dtype)
        for piece in self._pieces(list(range(first, last + 1)), at):
            low, high = max(start, at), min(stop, at + len(piece))
            if low < high:
                found[low - start : high - start] = piece[low - at : high - at]
            at += len(piece)
            if at >= stop:
                break
        return found

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows in one pass."""
        return rebatch(self._pieces(list(range(len(self.group_starts) - 1)), 0), rows)

    def _pieces(self, groups: list[int], row: int) -> Iterator[Block]:
        self.stamp.check()
        name = self.stamp.name
        for batch in batches(self.stamp, groups, self.columns):
            piece = np.empty((batch.num_rows, len(self.columns)), self.dtype)
            for column, values in enumerate(batch.columns):
                if values.null_count:
                    at = row + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                    where = f"row {at}, column {self.columns[column]!r}"
                    raise faults.missing_value(name, where, "a missing value (null)")
                piece[:, column] = values.to_numpy(zero_copy_only=False)
            yield piece
            row += len(piece)


def batches(stamp: FileStamp, groups: list[int], columns: list[str]) -> Iterator[Any]:
    """Yield the record batches of some row groups and columns, turning what pyarrow raises into ``BadInput``."""
    with faults.reading(stamp.name):
        file = pq.ParquetFile(stamp.path)
    with file:
        found = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)
        while True:
            with faults.reading(stamp.name):
                batch = next(found, None)
                if batch is not None:
                    batch.validate(full=True)
            if batch is None:
                return
            yield batch.select(columns)


def open_file(request: Request) -> Table:
    """Return the table of a Parquet file, of which one column may hold the labels."""
    if request.transpose:
        table = transposed(open_file(replace(request, transpose=False, labels_column=None)))
        return table if request.labels_column is None else take_label_column(table, request.labels_column)
    stamp = FileStamp.of(request)
    with faults.reading(request.name), pq.ParquetFile(request.path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        starts = [0, *np.cumsum([metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]).tolist()]
        index = _index_columns(schema)
        largest = max((metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups)), default=0)
    label = _label_column(request, [column for column in schema.names if column not in index])
    columns = [column for column in schema.names if column != label and column not in index]
    m, f = check_shape(request.name, (starts[-1], len(columns)))
    _check_names(request.name, schema.names)
    _check_types(stamp, schema, columns)
    dtype = np.result_type(*[_number_type(schema.field(column).type) for column in columns])
    return Table(
        name=request.name,
        shape=(m, f),
        dtype=check_dtype(request.name, dtype),
        rows=ParquetRows(stamp, columns, dtype, starts),
        parallel=largest <= LARGEST_GROUP,
        resident_bytes=0,
        fingerprint=stamp.digest("parquet", label),
        feature_names=columns,
        read_sample_names=partial(_read_names, stamp, index[0], starts) if len(index) == 1 else None,
        read_labels=None if label is None else partial(_read_labels, stamp, label, starts),
    )


# A row group has to be decoded from its start; with larger ones, reading ranges would cost far more than the rows.
LARGEST_GROUP = 256 << 20


def _label_column(request: Request, names: list[str]) -> str | None:
    if request.labels_column is None:
        return None
    return names[find_column(request.name, request.labels_column, names, len(names))]


def _index_columns(schema: Any) -> list[str]:
    """Return the columns that pandas wrote as the index of its frame."""
    described = schema.pandas_metadata or {}
    names = described.get("index_columns", [])
    return [name for name in names if isinstance(name, str) and name in schema.names]


def _number_type(kind: Any) -> np.dtype[Any] | None:
    """Return the NumPy type of a column's values, or None if they are not numbers."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    return None


def _check_names(name: str, columns: list[str]) -> None:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise BadInput(
            name,
            f"several columns named {twice[0]!r}",
            "a name of its own for each column",
            "one would be read in place of the other",
            "rename them",
        )


def _check_types(stamp: FileStamp, schema: Any, columns: list[str]) -> None:
    """Raise ``BadInput`` for columns that hold no numbers; says their types and the first one's first value."""
    other = [column for column in columns if _number_type(schema.field(column).type) is None]
    if not other:
        return
    with faults.reading(stamp.name):
        first = next(batches(stamp, [0], other[:1])).column(0)[0].as_py()
    titles = faults.listing([f"{column!r} ({schema.field(column).type})" for column in other])
    raise faults.textual(stamp.name, f"no numbers in the columns {titles}, the first is {str(first)[:40]!r} in row 0")


def _column(stamp: FileStamp, column: str, starts: list[int]) -> NDArray[Any]:
    stamp.check()
    values: list[Any] = []
    for batch in batches(stamp, list(range(len(starts) - 1)), [column]):
        values += batch.column(0).to_pylist()
    return np.array(values, dtype=object)


def _read_labels(stamp: FileStamp, column: str, starts: list[int]) -> NDArray[Any]:
    return as_labels(_column(stamp, column, starts), stamp.name)


def _read_names(stamp: FileStamp, column: str, starts: list[int]) -> NDArray[np.str_] | None:
    names = _column(stamp, column, starts).astype(np.str_)
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names

"""The Parquet format: columns of numbers, and of categories, read row group by row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import (
    Block,
    DType,
    FileStamp,
    Request,
    Rows,
    Table,
    check_dtype,
    check_shape,
    rebatch,
)
from ips2_dask.readers.columns import (
    CategorySet,
    are_text,
    category_codes,
    feature_table,
    make_columns,
    match_columns,
    select_columns,
)
from ips2_dask.readers.features import Category, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column, take_label_column
from ips2_dask.readers.matrices import transposed

BATCH_ROWS = 4096


@dataclass
class ParquetRows(Rows):
    """The rows of a Parquet file, some of its columns."""

    stamp: FileStamp
    columns: list[str]
    dtype: DType
    group_starts: list[int]  # the first row of each row group, and the number of rows
    categories: dict[str, tuple[Category, ...]] = field(
        default_factory=dict
    )  # of columns that hold text, or are compared as such
    gaps: bool = False  # whether values may be missing
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        self.n_rows = self.group_starts[-1]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop from the row groups that hold them."""
        first = bisect_right(self.group_starts, start) - 1
        last = bisect_right(self.group_starts, stop - 1) - 1
        row = self.group_starts[first]
        values = np.empty((stop - start, len(self.columns)), self.dtype)
        for piece in self._pieces(list(range(first, last + 1)), row):
            low, high = max(start, row), min(stop, row + len(piece))
            if low < high:
                values[low - start : high - start] = piece[low - row : high - row]
            row += len(piece)
            if row >= stop:
                break
        return values

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows in one pass."""
        return rebatch(self._pieces(list(range(len(self.group_starts) - 1)), 0), rows)

    def _pieces(self, groups: list[int], row: int) -> Iterator[Block]:
        self.stamp.check()
        name = self.stamp.name
        for batch in batches(self.stamp, groups, self.columns):
            piece = np.empty((batch.num_rows, len(self.columns)), self.dtype)
            for column, values in enumerate(batch.columns):
                title = self.columns[column]
                if values.null_count and not self.gaps:
                    null_row = row + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                    raise faults.missing_value(name, f"row {null_row}, column {title!r}", "a missing value (null)")
                if title in self.categories:
                    texts, where = _as_texts(values, name, title), f"column {title!r}"
                    piece[:, column] = category_codes(
                        texts, self.categories[title], self.ignore_unknown, name, where, row
                    )
                elif values.null_count:
                    piece[:, column] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
                else:
                    piece[:, column] = values.to_numpy(zero_copy_only=False)
            yield piece
            row += len(piece)


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
    """Return the table of a Parquet file, of which one column may hold the labels."""
    if request.transpose:
        table = transposed(open_parquet(replace(request, transpose=False, labels_column=None, features=None)))
        return take_label_column(table, request.labels_column)
    stamp = FileStamp.of(request)
    with faults.reading(request.name), pq.ParquetFile(request.path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        starts = [0, *np.cumsum([metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]).tolist()]
        index = _index_columns(schema)
        largest = max((metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups)), default=0)
    names = [column for column in schema.names if column not in index]
    label = _label_column(request, names)
    columns = [column for column in names if column != label]
    _check_names(request.name, schema.names)
    fitted = _fitted(request, stamp, schema, names, label, starts)
    categories: dict[str, tuple[Category, ...]] = {}
    if fitted is not None:
        columns = [str(column.name) for column in fitted.columns]
        categories = {
            str(one.name): one.categories or ()
            for one in fitted.one_hot
            if are_text(one.categories) or not _holds_numbers(schema.field(str(one.name)).type)
        }
    m, f = check_shape(request.name, (starts[-1], len(columns)))
    encoded = [] if fitted is None else [str(column.name) for column in fitted.one_hot]
    _check_types(stamp, schema, [column for column in columns if column not in categories])
    gaps = fitted is not None and fitted.missing != "refuse"
    kinds = [_number_type(schema.field(column).type) for column in columns if column not in encoded]
    # missing values become NaN, and categories are taken for numbers of them
    dtype = np.result_type(*[np.float64 if gaps and kind.kind != "f" else kind for kind in kinds if kind is not None],
                           *([np.float64] if encoded else []))  # fmt: skip
    rows = ParquetRows(stamp, columns, dtype, starts)
    if fitted is not None:
        rows = ParquetRows(stamp, columns, dtype, starts, categories, gaps, fitted.handle_unknown == "ignore")
    table = Table(
        name=request.name,
        shape=(m, f),
        dtype=check_dtype(request.name, dtype),
        rows=rows,
        parallel=largest <= LARGEST_GROUP,
        resident_bytes=0,
        fingerprint=stamp.digest("parquet", label),
        feature_names=columns,
        read_sample_names=partial(_read_names, stamp, index[0], starts) if len(index) == 1 else None,
        read_labels=None if label is None else LabelReader(stamp.name, partial(_column, stamp, label, starts)),
        label=None if label is None else names.index(label),
    )
    return table if fitted is None else feature_table(table, fitted)


def _fitted(
    request: Request, stamp: FileStamp, schema: pa.Schema, names: list[str], label: str | None, starts: list[int]
) -> FittedFeatures | None:
    """Return which columns become features; the categories of a table that is to be fitted are collected here."""
    features, place = request.features, None if label is None else names.index(label)
    if features is None:
        return None
    if isinstance(features, FittedFeatures):
        again = match_columns(request.name, features, names, len(names), place)
        columns = tuple(
            replace(one, name=names[position]) for one, position in zip(features.columns, again, strict=True)
        )
        return replace(features, columns=columns)
    selected, one_hot = select_columns(request.name, features, names, len(names), place)
    encoded = [names[position] for position in sorted(one_hot)]
    category_sets = {title: CategorySet(request.name, f"column {title!r}", features.missing) for title in encoded}
    row = 0
    for batch in batches(stamp, list(range(len(starts) - 1)), encoded) if encoded else ():
        for title, values in zip(encoded, batch.columns, strict=True):
            if values.null_count and features.missing == "refuse":
                null_row = row + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                raise faults.missing_value(request.name, f"row {null_row}, column {title!r}", "a missing value (null)")
            if not _holds_numbers(schema.field(title).type):
                category_sets[title].add(_as_texts(values, request.name, title).unique().to_pylist())
            else:
                category_sets[title].add(values.cast(pa.float64()).unique().to_numpy(zero_copy_only=False).tolist())
        row += batch.num_rows
    categories = {names.index(title): collected.categories() for title, collected in category_sets.items()}
    return FittedFeatures(
        columns=make_columns(selected, names, categories), n_columns=len(names), label=place, missing=features.missing
    )


def _holds_numbers(kind: pa.DataType) -> bool:
    """Return whether categories of this type are numbers; truth values are text, as in text files and data frames."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _as_texts(values: pa.Array, name: str, title: str) -> pa.StringArray:
    """Return a column as a pyarrow.StringArray, without blanks around its values."""
    if pa.types.is_boolean(values.type):
        return pc.if_else(values, "True", "False")
    try:
        return pc.utf8_trim_whitespace(values.cast(pa.string()))
    except pa.ArrowException:
        problem = f"values of type {values.type} in column {title!r}"
    raise faults.textual(name, problem)


# A row group has to be decoded from its start; with larger ones, reading ranges would cost far more than the rows.
LARGEST_GROUP = 256 << 20


def _label_column(request: Request, names: list[str]) -> str | None:
    if request.labels_column is None:
        return None
    return names[find_column(request.name, request.labels_column, names, len(names))]


def _index_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that pandas wrote as the index of its frame."""
    described = schema.pandas_metadata or {}
    names = described.get("index_columns", [])
    return [name for name in names if isinstance(name, str) and name in schema.names]


def _number_type(kind: pa.DataType) -> DType | None:
    """Return the NumPy type of a column's values, or None if they are not numbers."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: DType = np.dtype(kind.to_pandas_dtype())
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


def _check_types(stamp: FileStamp, schema: pa.Schema, columns: list[str]) -> None:
    """Raise ``BadInput`` for columns that hold no numbers; says their types and the first one's first value."""
    other = [column for column in columns if _number_type(schema.field(column).type) is None]
    if not other:
        return
    with faults.reading(stamp.name):
        first = next(batches(stamp, [0], other[:1])).column(0)[0].as_py()
    titles = faults.listing([f"{column!r} ({schema.field(column).type})" for column in other])
    raise faults.textual(stamp.name, f"no numbers in the columns {titles}, the first is {str(first)[:40]!r} in row 0")


def _column(stamp: FileStamp, column: str, starts: list[int]) -> Iterator[NDArray[np.object_]]:
    """Yield the values of a column as Python objects, batch by batch."""
    stamp.check()
    for batch in batches(stamp, list(range(len(starts) - 1)), [column]):
        yield np.array(batch.column(0).to_pylist(), dtype=object)


def _read_names(stamp: FileStamp, column: str, starts: list[int]) -> NDArray[np.str_] | None:
    names = np.concatenate(list(_column(stamp, column, starts))).astype(np.str_)
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names

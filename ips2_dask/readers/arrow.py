"""Arrow record batches as tables: those of Parquet files, and those that polars, pyarrow or DuckDB hold in memory.

A column of numbers is one column of the table. One of lists of equal length, as of embeddings, is as many columns as
the lists have values: ``name_0``, ``name_1``, ...
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, DType, Rows, Table, check_dtype, check_shape, digest, rebatch
from ips2_dask.readers.columns import (
    CategorySet,
    are_text,
    category_codes,
    feature_table,
    make_columns,
    match_columns,
    select_columns,
)
from ips2_dask.readers.features import Category, Features, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column, take_label_column
from ips2_dask.readers.matrices import MatrixRows, content_digest, transposed

BATCH_ROWS = 4096
NAME = "the table given"


class Batches(Protocol):
    """Record batches in groups of rows, such as the row groups of Parquet files; pickled with the table's rows."""

    @property
    def name(self) -> str:
        """The input as the user wrote it, for messages."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""

    @property
    def starts(self) -> list[int]:
        """The first row of each group, and the number of rows."""

    def batches(self, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some groups, with these columns in this order."""


class ArrowColumn(NamedTuple):
    """A column of the table: a column of the batches, or one place of its lists."""

    title: str
    name: str
    item: int | None = None
    width: int = 0  # of the lists


def arrays(
    source: Batches, groups: Sequence[int], columns: Sequence[ArrowColumn]
) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the first row of each batch of some groups, and its values by column.

    Raises
    ------
    BadInput
        Where a list is longer or shorter than the others.
    """
    row = source.starts[groups[0]] if groups else 0
    widths = {column.name: column.width for column in columns if column.item is not None}
    for batch in source.batches(groups, list(dict.fromkeys(column.name for column in columns))):
        held = {name: _plain(batch.column(name)) for name in batch.schema.names}
        for name, width in widths.items():
            uneven = pc.not_equal(pc.list_value_length(held[name]), width).fill_null(False)
            if pc.any(uneven).as_py():
                place = int(np.argmax(uneven.to_numpy(zero_copy_only=False)))
                raise BadInput(
                    source.name,
                    f"a list of {len(held[name][place])} values in row {row + place}, column {name!r}",
                    f"lists of {width} values, as in the first row that has one",
                    "it would be unclear which feature a value belongs to",
                    f"make the lists equally long, or drop their columns (drop_columns, --drop-columns {name}_0-"
                    f"{name}_{width - 1})",
                )
        yield (row, [held[c.name] if c.item is None else pc.list_element(held[c.name], c.item) for c in columns])
        row += batch.num_rows


def _plain(values: pa.Array) -> pa.Array:
    """Return values without an encoding that Arrow's functions don't take."""
    if pa.types.is_dictionary(values.type):
        words = values.dictionary
        if pa.types.is_string_view(words.type):
            words = words.cast(pa.large_string())
        return words.take(values.indices)
    if pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type):
        return values.cast(pa.large_list(values.type.value_type))
    return values


@dataclass
class ArrowRows(Rows):
    """The rows of record batches, some of their columns."""

    source: Batches
    columns: list[ArrowColumn]
    dtype: DType
    categories: dict[str, tuple[Category, ...]] = field(
        default_factory=dict
    )  # of columns that hold text, or are compared as such
    gaps: bool = False  # whether values may be missing
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        self.n_rows = self.source.starts[-1]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop from the groups that hold them."""
        starts = self.source.starts
        first, last = bisect_right(starts, start) - 1, bisect_right(starts, stop - 1) - 1
        values = np.empty((stop - start, len(self.columns)), self.dtype)
        for row, piece in self._pieces(range(first, last + 1)):
            low, high = max(start, row), min(stop, row + len(piece))
            if low < high:
                values[low - start : high - start] = piece[low - row : high - row]
            if row + len(piece) >= stop:
                break
        return values

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows in one pass."""
        return rebatch((piece for _, piece in self._pieces(range(len(self.source.starts) - 1))), rows)

    def _pieces(self, groups: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield the first row of each batch, and its values."""
        name = self.source.name
        for row, columns in arrays(self.source, groups, self.columns):
            piece = np.empty((len(columns[0]), len(self.columns)), self.dtype)
            for place, values in enumerate(columns):
                title = self.columns[place].title
                if values.null_count and not self.gaps:
                    raise _null(name, values, row, title)
                if title in self.categories:
                    texts, where = _as_texts(values, name, title), f"column {title!r}"
                    piece[:, place] = category_codes(
                        texts, self.categories[title], self.ignore_unknown, name, where, row
                    )
                else:
                    piece[:, place] = _as_numbers(values)
            yield row, piece


def _null(name: str, values: pa.Array, first_row: int, title: str) -> BadInput:
    row = first_row + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
    return faults.missing_value(name, f"row {row}, column {title!r}", "a missing value (null)")


def open_arrow(
    source: Batches,
    labels_column: str | int | None,
    features: Features | FittedFeatures | None,
    fingerprint: Callable[[str | None], str] | None = None,
    parallel: bool = True,
) -> Table:
    """Return the table of record batches, of which one column may hold the labels.

    Parameters
    ----------
    source : Batches
    labels_column, features
        As of `open_source`.
    fingerprint : callable, optional
        From the title of the column of labels to the table's fingerprint. Without it the batches are in memory: the
        values are copied into a matrix, and the digest of these is taken.
    parallel : bool
        Whether a range of rows is read at the cost of these rows.
    """
    name, schema, starts = source.name, source.schema, source.starts
    index = _index_columns(schema)
    check_names(name, schema.names)
    table_columns = _columns(source, [title for title in schema.names if title not in index])
    names = [column.title for column in table_columns]
    check_names(name, names)
    place = None if labels_column is None else find_column(name, labels_column, names, len(names))
    columns = [column for position, column in enumerate(table_columns) if position != place]
    fitted = _fitted(source, table_columns, features, place)
    categories: dict[str, tuple[Category, ...]] = {}
    if fitted is not None:
        columns = [table_columns[names.index(str(column.name))] for column in fitted.columns]
        categories = {
            str(one.name): one.categories or ()
            for one, column in zip(fitted.columns, columns, strict=True)
            if one.categories is not None and (are_text(one.categories) or not _holds_numbers(_type_of(schema, column)))
        }
    m, f = check_shape(name, (starts[-1], len(columns)))
    encoded = [] if fitted is None else [str(column.name) for column in fitted.one_hot]
    gaps = fitted is not None and fitted.missing != "refuse"
    _check_types(source, [column for column in columns if column.title not in categories], gaps)
    kinds = [number_type(_type_of(schema, column)) for column in columns if column.title not in encoded]
    # missing values become NaN, and categories are taken for numbers of them
    dtype = np.result_type(
        *[np.float64 if gaps and kind.kind != "f" else kind for kind in kinds if kind is not None],
        *([np.float64] if encoded else []),
    )
    rows: Rows = ArrowRows(source, columns, dtype)
    if fitted is not None:
        rows = ArrowRows(source, columns, dtype, categories, gaps, fitted.handle_unknown == "ignore")
    read_labels = None
    if place is not None:
        read_labels = LabelReader(name, partial(column_pieces, source, table_columns[place]))
    table = Table(
        name=name,
        shape=(m, f),
        dtype=check_dtype(name, dtype),
        rows=rows,
        parallel=parallel,
        resident_bytes=0,
        fingerprint="" if fingerprint is None else fingerprint(None if place is None else names[place]),
        feature_names=[column.title for column in columns],
        read_sample_names=partial(_read_names, source, ArrowColumn(index[0], index[0])) if len(index) == 1 else None,
        read_labels=read_labels,
        label=place,
    )
    if fingerprint is None:
        table = _held(table)
    return table if fitted is None else feature_table(table, fitted)


def open_arrow_object(
    spec: object, labels_column: str | int | None, transpose: bool, features: Features | FittedFeatures | None = None
) -> Table:
    """Return the table of an object with ``__arrow_c_stream__``: a frame of polars, a table of pyarrow, ...

    Raises
    ------
    BadInput
        If it is no table of numbers.
    """
    if transpose:
        return take_label_column(transposed(open_arrow_object(spec, None, False)), labels_column)
    try:
        table = pa.table(spec)
    except Exception as error:
        faults.throw(
            BadInput(
                f"the {type(spec).__name__} given",
                f"no table ({' '.join(str(error).split())[:200]})",
                "columns with names",
                "it would be unclear what a sample is",
                "give the frame that holds it, as in frame[['a', 'b']]",
            )
        )
    return open_arrow(TableBatches(table), labels_column, features)


@dataclass
class TableBatches:
    """The batches of a table in memory."""

    table: pa.Table
    name: str = NAME

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.table.schema

    @property
    def starts(self) -> list[int]:
        """All rows are one group."""
        return [0, self.table.num_rows]

    def batches(self, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        del groups
        batches: list[pa.RecordBatch] = self.table.select(columns).to_batches(BATCH_ROWS)
        return iter(batches)


def _held(table: Table) -> Table:
    """Return a table with its values, labels and names in memory."""
    matrix = np.concatenate(list(table.rows.blocks(BATCH_ROWS)))
    names = table.sample_names
    table = replace(
        table,
        rows=MatrixRows(matrix),
        parallel=False,
        resident_bytes=matrix.nbytes,
        fingerprint=content_digest(matrix),
        read_sample_names=None if names is None else partial(np.array, names),
    )
    if table.read_labels is None:
        return table
    labels = table.read_labels()
    fingerprint = digest(table.fingerprint, content_digest(labels))
    return replace(table, read_labels=partial(np.array, labels), fingerprint=fingerprint)


def _columns(source: Batches, names: Sequence[str]) -> list[ArrowColumn]:
    """Return the columns of the table: lists of numbers are one for each of their places."""
    columns = []
    for name in names:
        width = _list_width(source, name)
        columns += [ArrowColumn(f"{name}_{item}", name, item, width) for item in range(width)] or [
            ArrowColumn(name, name)
        ]
    return columns


def _list_width(source: Batches, name: str) -> int:
    """Return the number of values of a column's lists of numbers, 0 for any other column."""
    kind = source.schema.field(name).type
    if not is_list(kind) or number_type(kind.value_type) is None:
        return 0
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    found = _first_value(source, name)
    return 0 if found is None else len(found[1])


def _first_value(source: Batches, name: str) -> tuple[int, pa.Scalar] | None:
    """Return the first value of a column that is not null, and its row."""
    for group, first_row in enumerate(source.starts[:-1]):
        row = first_row
        for batch in source.batches([group], [name]):
            present = np.flatnonzero(batch.column(0).is_valid().to_numpy(zero_copy_only=False))
            if len(present):
                return row + int(present[0]), batch.column(0)[int(present[0])]
            row += batch.num_rows
    return None


def _fitted(
    source: Batches, columns: list[ArrowColumn], features: Features | FittedFeatures | None, place: int | None
) -> FittedFeatures | None:
    """Return which columns become features; the categories of a table that is to be fitted are collected here."""
    if features is None:
        return None
    names = [column.title for column in columns]
    if isinstance(features, FittedFeatures):
        again = match_columns(source.name, features, names, len(names), place)
        matched = tuple(
            replace(one, name=names[position]) for one, position in zip(features.columns, again, strict=True)
        )
        return replace(features, columns=matched)
    selected, one_hot = select_columns(source.name, features, names, len(names), place)
    encoded = [columns[position] for position in sorted(one_hot)]
    collected = [CategorySet(source.name, f"column {column.title!r}", features.missing) for column in encoded]
    for row, each in arrays(source, range(len(source.starts) - 1), encoded) if encoded else ():
        for column, values, category_set in zip(encoded, each, collected, strict=True):
            if values.null_count and features.missing == "refuse":
                raise _null(source.name, values, row, column.title)
            if _holds_numbers(values.type):
                category_set.add(np.unique(_as_numbers(values).astype(np.float64)).tolist())
            else:
                category_set.add(_as_texts(values, source.name, column.title).unique().to_pylist())
    categories = {names.index(column.title): each.categories() for column, each in zip(encoded, collected, strict=True)}
    return FittedFeatures(
        columns=make_columns(selected, names, categories), n_columns=len(names), label=place, missing=features.missing
    )


def _holds_numbers(kind: pa.DataType) -> bool:
    """Return whether categories of this type are numbers; truth values are text, as in text files and data frames."""
    if pa.types.is_dictionary(kind):
        return _holds_numbers(kind.value_type)
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _as_texts(values: pa.Array, name: str, title: str) -> pa.StringArray:
    """Return a column as a pyarrow.StringArray, without blanks around its values."""
    if pa.types.is_boolean(values.type):
        return pc.if_else(values, "True", "False")
    try:
        return pc.utf8_trim_whitespace(values.cast(pa.string()))
    except pa.ArrowException:
        problem = f"values of type {values.type} in column {title!r} as categories"
    raise _no_numbers(name, problem, False)


def _as_numbers(values: pa.Array) -> NDArray[np.generic]:
    """Return a column of numbers, NaN where one is missing."""
    if values.null_count or pa.types.is_decimal(values.type):
        values = values.cast(pa.float64(), safe=False)  # safe, it refuses whole numbers beyond 2^53
    numbers: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return numbers


def _index_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that pandas wrote as the index of its frame."""
    described = schema.pandas_metadata or {}
    names = described.get("index_columns", [])
    return [name for name in names if isinstance(name, str) and name in schema.names]


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds lists, of any of Arrow's kinds."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text, of any of Arrow's kinds."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def number_type(kind: pa.DataType) -> DType | None:
    """Return the NumPy type of a column's values, or None if they are not numbers; nulls alone are missing numbers."""
    if pa.types.is_dictionary(kind):
        return number_type(kind.value_type)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return np.dtype(np.float64)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: DType = np.dtype(kind.to_pandas_dtype())
        return dtype
    return None


def _type_of(schema: pa.Schema, column: ArrowColumn) -> pa.DataType:
    kind = schema.field(column.name).type
    return kind if column.item is None else kind.value_type


def check_names(name: str, columns: list[str]) -> None:
    """Raise ``BadInput`` if two columns have one name."""
    counts: dict[str, int] = {}
    for column in columns:
        counts[column] = counts.get(column, 0) + 1
    twice = sorted(column for column, count in counts.items() if count > 1)
    if twice:
        raise BadInput(
            name,
            f"several columns named {twice[0]!r}",
            "a name of its own for each column",
            "one would be read in place of the other",
            "rename them",
        )


def _check_types(source: Batches, columns: list[ArrowColumn], gaps: bool) -> None:
    """Raise ``BadInput`` for columns that hold no numbers; says their types and the first one's first value."""
    kinds = {column.title: _type_of(source.schema, column) for column in columns}
    bare = [title for title, kind in kinds.items() if pa.types.is_null(kind)]
    if bare and not gaps:
        raise BadInput(
            source.name,
            f"no value in the columns {faults.listing([repr(title) for title in bare])}",
            "a value in some rows of each column",
            "every distance would be undefined",
            "drop these columns (drop_columns, --drop-columns)",
        )
    other = [title for title, kind in kinds.items() if number_type(kind) is None]
    if not other:
        return
    name = next(column.name for column in columns if column.title == other[0])
    first = _first_value(source, name)
    titles = faults.listing([f"{title!r} ({kinds[title]})" for title in other])
    value = "" if first is None else f", the first is {str(first[1].as_py())[:40]!r} in row {first[0]}"
    found = f"no numbers in the columns {titles}{value}"
    raise _no_numbers(source.name, found, all(is_text(kinds[title]) for title in other))


def _no_numbers(name: str, found: str, text: bool) -> BadInput:
    """Return the fault of columns that hold no numbers: text, which can be encoded, or something else."""
    if text:
        return faults.textual(name, found)
    return BadInput(
        name,
        found,
        "numbers, or lists of numbers that are equally long, in every column but the label column",
        "distances between samples would be undefined",
        "drop these columns (drop_columns, --drop-columns), or store them as numbers, such as times in seconds",
    )


def column_pieces(source: Batches, column: ArrowColumn) -> Iterator[NDArray[np.object_]]:
    """Yield the values of a column as Python objects, batch by batch."""
    for _, (values,) in arrays(source, range(len(source.starts) - 1), [column]):
        yield np.array([*values.to_pylist(), None], dtype=object)[:-1]  # an array of one dimension, of lists too


def _read_names(source: Batches, column: ArrowColumn) -> NDArray[np.str_] | None:
    return names_of(np.concatenate(list(column_pieces(source, column))))


def names_of(values: NDArray[np.object_]) -> NDArray[np.str_] | None:
    """Return the values of a stored index as names; None where they count the rows, or the rows of each part."""
    if all(isinstance(value, int) for value in values) and len(set(values)) < len(values):
        return None
    names = values.astype(np.str_)
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names

"""Arrow record batches as tables: those of Parquet files, and those that polars, pyarrow or DuckDB hold in memory.

A column of numbers is one column of the table. One of lists of equal length, as of embeddings, is as many columns as
the lists have values: ``name_0``, ``name_1``, ...
"""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ips2_dask.errors import BadInput
from ips2_dask.readers import base, faults
from ips2_dask.readers.columns import (
    Chosen,
    are_text,
    category_codes,
    check_names,
    choose,
    feature_table,
    find_column,
    piece_names,
    take_label_column,
)
from ips2_dask.readers.features import Category, Features, FittedFeatures
from ips2_dask.typing import AnyArray

BATCH_ROWS = 4096
ENDING = ".parquet"
# A row group has to be decoded from its start; with larger ones, reading ranges would cost far more than the rows.
LARGEST_GROUP = 256 << 20


@dataclass
class Batches:
    """The record batches of a table in memory."""

    name: str
    schema: pa.Schema
    starts: list[int]  # the first row of each group of rows, such as a row group of a file, and the number of rows
    table: pa.Table = None

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some groups, with these columns in this order; all rows are one group."""
        return iter(self.table.select(columns).to_batches(BATCH_ROWS))

    def digest(self, label: str | None) -> str:
        """Return nothing: what is in memory has the digest of its values."""
        return ""


@dataclass(kw_only=True)
class _ParquetBatches(Batches):
    """The record batches of Parquet files, one after the other."""

    stamps: list[base.FileStamp]
    places: list[tuple[int, int]]  # of each row group: its file, and its number there

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of some row groups, with pyarrow's exceptions as ``BadInput``."""
        for file, places in groupby((self.places[group] for group in groups), key=lambda place: place[0]):
            stamp = self.stamps[file]
            stamp.check()
            with faults.reading(stamp.name):
                opened = pq.ParquetFile(stamp.path)
            with opened:
                numbers = [number for _, number in places]
                found = opened.iter_batches(BATCH_ROWS, row_groups=numbers, columns=columns, use_threads=False)
                while True:
                    with faults.reading(stamp.name):
                        batch = next(found, None)
                        if batch is not None:
                            batch.validate(full=True)
                    if batch is None:
                        break
                    yield batch.select(columns)

    def digest(self, label: str | None) -> str:
        return base.digest("files", [(stamp.size, stamp.mtime_ns) for stamp in self.stamps], "parquet", label)


class _ArrowColumn(NamedTuple):
    """A column of the table: a column of the batches, or one place of its lists."""

    title: str
    name: str
    item: int | None = None
    width: int = 0  # of the lists


def _arrays(
    source: Batches, groups: Sequence[int], columns: Sequence[_ArrowColumn]
) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the first row of each batch of some groups, and its values by column; raises for uneven lists."""
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
class ArrowRows(base.Rows):
    """The rows of record batches, some of their columns."""

    source: Batches
    columns: list[_ArrowColumn]
    dtype: base.DType
    categories: list[tuple[Category, ...] | None]  # of columns that hold text, or are compared as such
    gaps: bool  # whether values may be missing
    ignore_unknown: bool

    def __post_init__(self) -> None:
        self.n_rows = self.source.starts[-1]

    def read(self, start: int, stop: int) -> AnyArray:
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

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        return base.rebatch((piece for _, piece in self._pieces(range(len(self.source.starts) - 1))), rows)

    def _pieces(self, groups: Sequence[int]) -> Iterator[tuple[int, AnyArray]]:
        """Yield the first row of each batch, and its values."""
        name = self.source.name
        for row, columns in _arrays(self.source, groups, self.columns):
            piece = np.empty((len(columns[0]), len(self.columns)), self.dtype)
            for place, (column, values, categories) in enumerate(
                zip(self.columns, columns, self.categories, strict=True)
            ):
                if values.null_count and not self.gaps:
                    raise _null(name, values, row, column.title)
                if categories is None:
                    piece[:, place] = _as_numbers(values)
                    continue
                texts, where = _as_texts(values, name, column.title), f"column {column.title!r}"
                piece[:, place] = category_codes(texts, categories, self.ignore_unknown, name, where, row)
            yield row, piece


def _null(name: str, values: pa.Array, first_row: int, title: str) -> BadInput:
    row = first_row + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
    return faults.missing_value(name, f"row {row}, column {title!r}", "a missing value (null)")


def _open_batches(
    source: Batches, labels_column: str | int | None, features: Features | FittedFeatures | None, parallel: bool
) -> base.Table:
    """Return the table of record batches, of which one column may hold the labels."""
    name, schema = source.name, source.schema
    index = _index_columns(schema)
    check_names(name, schema.names)
    table_columns = _columns(source, [title for title in schema.names if title not in index])
    names = [column.title for column in table_columns]
    check_names(name, names)
    label = None if labels_column is None else find_column(name, labels_column, names, len(names))
    chosen = choose(name, features, names, len(names), label)
    columns = [table_columns[place] for place in chosen.kept]
    fitted = chosen.fitted(_categories(source, table_columns, chosen))
    shape = base.check_shape(name, (source.starts[-1], len(columns)))
    of_columns = [None] * len(columns) if fitted is None else [column.categories for column in fitted.columns]
    as_text = [
        None if one is None or not (are_text(one) or not _holds_numbers(_type_of(schema, column))) else one
        for one, column in zip(of_columns, columns, strict=True)
    ]
    gaps = chosen.missing != "refuse"
    _check_types(source, [column for column, one in zip(columns, as_text, strict=True) if one is None], gaps)
    plain = [column for column, one in zip(columns, of_columns, strict=True) if one is None]
    kinds = [_number_type(_type_of(schema, column)) for column in plain]
    # missing values become NaN, and categories are taken for numbers of them
    dtype = np.result_type(
        *[np.float64 if gaps and kind.kind != "f" else kind for kind in kinds if kind is not None],
        *([np.float64] if len(plain) < len(columns) else []),
    )
    table = base.Table(
        name=name,
        shape=shape,
        dtype=base.check_dtype(name, dtype),
        rows=ArrowRows(source, columns, dtype, as_text, gaps, fitted is not None and fitted.handle_unknown == "ignore"),
        parallel=parallel,
        fingerprint=source.digest(None if label is None else names[label]),
        feature_names=chosen.kept_names(),
        read_sample_names=partial(piece_names, partial(_column_pieces, source, _ArrowColumn(index[0], index[0])))
        if len(index) == 1
        else None,
        label_pieces=None if label is None else partial(_column_pieces, source, table_columns[label]),
        label=label,
    )
    return feature_table(table if isinstance(source, _ParquetBatches) else _held(table), fitted)


def open_arrow_object(
    spec: object, labels_column: str | int | None, transpose: bool, features: Features | FittedFeatures | None = None
) -> base.Table:
    """Return the table of an object with ``__arrow_c_stream__``: a frame of polars, a table of pyarrow, ..."""
    if transpose:
        return take_label_column(base.transposed(open_arrow_object(spec, None, False)), labels_column)
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
    source = Batches("the table given", table.schema, [0, table.num_rows], table)
    return _open_batches(source, labels_column, features, parallel=False)


def _held(table: base.Table) -> base.Table:
    """Return a table with its values, labels and names in memory."""
    labels, names = table.labels(), table.sample_names
    held = base.matrix_table(np.concatenate(list(table.rows.blocks(BATCH_ROWS))), table.name)
    key = (held.fingerprint,) if labels is None else (held.fingerprint, base.content_digest(labels))
    return replace(
        held,
        feature_names=table.feature_names,
        fingerprint=base.digest(*key),
        read_sample_names=None if names is None else partial(np.array, names),
        label_pieces=None if labels is None else partial(iter, [labels]),
        label=table.label,
    )


def _columns(source: Batches, names: Sequence[str]) -> list[_ArrowColumn]:
    """Return the columns of the table: lists of numbers are one for each of their places."""
    columns = []
    for name in names:
        width = _list_width(source, name)
        columns += [_ArrowColumn(f"{name}_{item}", name, item, width) for item in range(width)] or [
            _ArrowColumn(name, name)
        ]
    return columns


def _list_width(source: Batches, name: str) -> int:
    """Return the number of values of a column's lists of numbers, 0 for any other column."""
    kind = source.schema.field(name).type
    if not is_list(kind) or _number_type(kind.value_type) is None:
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


def _categories(source: Batches, columns: list[_ArrowColumn], chosen: Chosen) -> dict[int, tuple[Category, ...]]:
    """Return the categories of the columns of a table whose categories are to be collected."""
    category_sets = chosen.category_sets(source.name)
    encoded = [columns[place] for place in category_sets]
    for row, each in _arrays(source, range(len(source.starts) - 1), encoded) if encoded else ():
        for column, values, collected in zip(encoded, each, category_sets.values(), strict=True):
            if values.null_count and chosen.missing == "refuse":
                raise _null(source.name, values, row, column.title)
            if _holds_numbers(values.type):
                collected.add(np.unique(_as_numbers(values).astype(np.float64)).tolist())
            else:
                collected.add(_as_texts(values, source.name, column.title).unique().to_pylist())
    return {place: collected.categories() for place, collected in category_sets.items()}


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


def _as_numbers(values: pa.Array) -> AnyArray:
    """Return a column of numbers, NaN where one is missing."""
    if values.null_count or pa.types.is_decimal(values.type):
        values = values.cast(pa.float64(), safe=False)  # safe, it refuses whole numbers beyond 2^53
    numbers: AnyArray = values.to_numpy(zero_copy_only=False)
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


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text, of any of Arrow's kinds."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _number_type(kind: pa.DataType) -> base.DType | None:
    """Return the NumPy type of a column's values, or None if they are not numbers; nulls alone are missing numbers."""
    if pa.types.is_dictionary(kind):
        return _number_type(kind.value_type)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return np.dtype(np.float64)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return None


def _type_of(schema: pa.Schema, column: _ArrowColumn) -> pa.DataType:
    kind = schema.field(column.name).type
    return kind if column.item is None else kind.value_type


def _check_types(source: Batches, columns: list[_ArrowColumn], gaps: bool) -> None:
    """Raise ``BadInput`` for columns that hold no numbers; says their types and the first one's first value."""
    kinds = {column.title: _type_of(source.schema, column) for column in columns}
    bare = [title for title, kind in kinds.items() if pa.types.is_null(kind)]
    if bare and not gaps:
        seen = f"no value in the columns {faults.listing([repr(title) for title in bare])}"
        allowed, otherwise = "a value in some rows of each column", "every distance would be undefined"
        raise BadInput(source.name, seen, allowed, otherwise, "drop these columns (drop_columns, --drop-columns)")
    other = [title for title, kind in kinds.items() if _number_type(kind) is None]
    if not other:
        return
    name = next(column.name for column in columns if column.title == other[0])
    first = _first_value(source, name)
    titles = faults.listing([f"{title!r} ({kinds[title]})" for title in other])
    value = "" if first is None else f", the first is {str(first[1].as_py())[:40]!r} in row {first[0]}"
    found = f"no numbers in the columns {titles}{value}"
    raise _no_numbers(source.name, found, all(_is_text(kinds[title]) for title in other))


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


def _column_pieces(source: Batches, column: _ArrowColumn) -> Iterator[AnyArray]:
    """Yield the values of a column as Python objects, batch by batch."""
    for _, (values,) in _arrays(source, range(len(source.starts) - 1), [column]):
        yield np.array([*values.to_pylist(), None], dtype=object)[:-1]  # an array of one dimension, of lists too


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


def open_parquet(request: base.Request) -> base.Table:
    """Return the table of a Parquet file, or of several; one of its columns may hold the labels."""
    if request.transpose:
        table = base.transposed(open_parquet(replace(request, transpose=False, labels_column=None, features=None)))
        return take_label_column(table, request.labels_column)
    if os.path.isfile(request.path):
        stamps = [base.FileStamp.of(request)]
    else:
        stamps = [base.FileStamp.of(base.Request(part, part)) for part in parts_of(request.path)]
    schemas, places, rows, largest = [], [], [], 0
    for file, stamp in enumerate(stamps):
        with faults.reading(stamp.name), pq.ParquetFile(stamp.path) as opened:
            schemas.append(opened.schema_arrow)
            check_names(stamp.name, opened.schema_arrow.names)
            groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        places += [(file, number) for number in range(len(groups))]
        rows += [group.num_rows for group in groups]
        largest = max([largest, *(group.total_byte_size for group in groups)])
    # those of a part without rows may have columns of any type
    places = [place for place, count in zip(places, rows, strict=True) if count]
    schema = _common_schema(stamps, schemas, sorted({file for file, _ in places}) or [0])
    starts = [0, *np.cumsum([count for count in rows if count]).tolist()]
    source = _ParquetBatches(request.name, schema, starts, stamps=stamps, places=places)
    return _open_batches(source, request.labels_column, request.features, largest <= LARGEST_GROUP)


def _common_schema(stamps: list[base.FileStamp], schemas: list[pa.Schema], files: list[int]) -> pa.Schema:
    """Return the columns of some files, in the order of the first one, each of a type that holds all files' values."""
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
    numbers = _number_type(one), _number_type(other)
    if numbers[0] is not None and numbers[1] is not None:
        return pa.from_numpy_dtype(np.result_type(*numbers))
    if _is_text(one) and _is_text(other):
        return pa.string()
    if is_list(one) and is_list(other):
        item = _common_type(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    return None

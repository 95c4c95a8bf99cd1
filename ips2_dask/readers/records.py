"""Arrow record batches as tables: of Parquet files, of pandas' data frames, and what polars, pyarrow or DuckDB hold.

Text files become such batches in `text`; columns, labels, names, missing values and categories of all of them are
handled here. A column of numbers is one column of the table. One of lists of equal length, as of embeddings, is as many
columns as the lists have values: ``name_0``, ``name_1``, ...
"""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ips2_dask.errors import BadInput
from ips2_dask.readers import base, faults
from ips2_dask.readers import columns as cols
from ips2_dask.readers.features import Category, Column, category_text
from ips2_dask.readers.objects import FRAME_NAME, index_names, numbers_of
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 4096
ENDING = ".parquet"
# A row group has to be decoded from its start; with larger ones, reading ranges would cost far more than the rows.
LARGEST_GROUP = 256 << 20


class _ArrowColumn(NamedTuple):
    """A column of the table: a column of the batches, or one place of its lists."""

    title: str | None
    name: str
    item: int | None = None
    width: int = 0  # of the lists
    numbered: bool = False  # whether its name is its number, as several columns may have one title, or none any

    @property
    def shown(self) -> str:
        """What messages call it."""
        if not self.numbered:
            return repr(self.title)
        return self.name if self.title is None else f"{self.name} ({self.title!r})"


def numbered_columns(titles: Sequence[str] | None, n_columns: int) -> list[_ArrowColumn]:
    """Return columns whose batches call them by their numbers."""
    return [_ArrowColumn(titles[place] if titles else None, str(place), numbered=True) for place in range(n_columns)]


@dataclass(kw_only=True)
class Batches:
    """A table as Arrow record batches; those of `table` in memory, unless a subclass reads them from elsewhere."""

    name: str
    schema: pa.Schema = pa.schema([])  # noqa: RUF009  it does not change
    starts: list[int]  # the first row of each group of rows, such as a row group of a file, and the number of rows
    columns: list[_ArrowColumn] = field(default_factory=list)  # numbered as the user does it
    titles: Sequence[str] | None = None  # their names, if they have some
    named: bool = True  # whether these become names of features
    hidden: tuple[int, ...] = ()  # those of the columns that hold names of the rows
    index: _ArrowColumn | None = None  # what holds names of the rows
    table: pa.Table = None
    parallel: bool = False
    held: bool = True  # whether all of it is in memory anyway
    typed: bool = True  # whether a number in a column of text is text

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some groups, with these columns in this order; all rows are one group."""
        return iter(self.table.select(columns).to_batches(BATCH_ROWS))

    def digest(self, label: int | None) -> str:
        """Return the fingerprint; what is in memory has the digest of its values instead."""
        return ""

    def values(self, column: _ArrowColumn) -> Iterator[AnyArray]:
        """Yield the values of a column as Python objects, batch by batch."""
        for _, (values,) in arrays(self, [column]):
            yield np.array([*values.to_pylist(), None], dtype=object)[:-1]  # an array of one dimension, of lists too

    def row_names(self) -> AnyArray | None:
        """Return the names of the rows, or None where they only count them."""
        return None if self.index is None else cols.counted_names(np.concatenate([*self.values(self.index)]))

    def examined(self, chosen: cols.Chosen, category_sets: dict[int, cols.CategorySet]) -> Batches:
        """Return the table as it is to be read now that columns are chosen, after collecting its categories."""
        encoded = [self.columns[place] for place in category_sets]
        for row, columns in arrays(self, encoded) if encoded else ():
            for column, collected, values in zip(encoded, category_sets.values(), columns, strict=True):
                collected.add_block(*_words_of(values, self.name, column.shown), row)
        return self


@dataclass(kw_only=True)
class _ParquetBatches(Batches):
    stamps: list[base.FileStamp]
    places: list[tuple[int, int]]  # of each row group: its file, and its number there
    held: bool = False

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of some row groups, with pyarrow's exceptions as ``BadInput``."""
        for file, places in groupby((self.places[group] for group in groups), key=lambda place: place[0]):
            stamp = self.stamps[file]
            stamp.check()
            with faults.reading(stamp.name), pq.ParquetFile(stamp.path) as opened:
                numbers = [number for _, number in places]
                for batch in opened.iter_batches(BATCH_ROWS, row_groups=numbers, columns=columns, use_threads=False):
                    batch.validate(full=True)
                    yield batch.select(columns)

    def digest(self, label: int | None) -> str:
        title = None if label is None else self.columns[label].title
        return base.digest("files", [(stamp.size, stamp.version) for stamp in self.stamps], "parquet", title)


def arrays(
    source: Batches, columns: Sequence[_ArrowColumn], groups: Sequence[int] | None = None
) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the first row of each batch of some groups, or of all, and its values by column; lists must be even."""
    groups = range(len(source.starts) - 1) if groups is None else groups
    row = source.starts[groups[0]] if groups else 0
    widths = {column.name: column.width for column in columns if column.item is not None}
    for batch in source.batches(groups, list(dict.fromkeys(column.name for column in columns))):
        held = {name: _plain(batch.column(name)) for name in batch.schema.names}
        for name, width in widths.items():
            uneven = pc.not_equal(pc.list_value_length(held[name]), width).fill_null(False)
            if pc.any(uneven).as_py():
                place = int(np.argmax(uneven.to_numpy(zero_copy_only=False)))
                found = f"a list of {len(held[name][place])} values in row {row + place}, column {name!r}"
                allowed = f"lists of {width} values, as in the first row that has one"
                otherwise = "it would be unclear which feature a value belongs to"
                remedy = "make the lists equally long, or drop their columns (drop_columns, --drop-columns "
                raise BadInput(source.name, found, allowed, otherwise, remedy + f"{name}_0-{name}_{width - 1})")
        yield (row, [held[c.name] if c.item is None else pc.list_element(held[c.name], c.item) for c in columns])
        row += batch.num_rows


def _plain(values: pa.Array) -> pa.Array:
    """Return values without an encoding that Arrow's functions don't take."""
    if isinstance(values, pa.NumericArray):  # of wide tables, each check takes a while
        return values
    if pa.types.is_dictionary(values.type):
        words = values.dictionary
        if pa.types.is_string_view(words.type):
            words = words.cast(pa.large_string())
        return words.take(values.indices)
    if pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type):
        return values.cast(pa.large_list(values.type.value_type))
    return values


@dataclass
class _ArrowRows(base.Rows):
    """The rows of record batches, some of their columns; of categories their `category_codes`."""

    source: Batches
    columns: list[_ArrowColumn]
    dtype: base.DType
    gaps: bool  # whether values may be missing
    fitted: tuple[Column, ...] = ()  # what the columns become, if some of them hold categories
    ignore_unknown: bool = False

    def read(self, start: int, stop: int) -> AnyArray:
        starts = self.source.starts
        first, last = bisect_right(starts, start) - 1, bisect_right(starts, stop - 1) - 1
        pieces = takewhile(lambda piece: piece[0] < stop, self._pieces(range(first, last + 1)))
        return np.concatenate([piece[max(start - row, 0) : stop - row] for row, piece in pieces])

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        return base.rebatch((piece for _, piece in self._pieces()), rows)

    def _pieces(self, groups: Sequence[int] | None = None) -> Iterator[tuple[int, AnyArray]]:
        name = self.source.name
        for row, columns in arrays(self.source, self.columns, groups):
            piece = np.empty((len(columns[0]), len(self.columns)), self.dtype)
            for place, (column, values) in enumerate(zip(self.columns, columns, strict=True)):
                if values.null_count and not self.gaps:
                    where = f"row {row + int(np.argmax(values.is_null()))}, column {column.shown}"
                    raise faults.missing_value(name, where, "a missing value (null)")
                if self.fitted and self.fitted[place].categories is not None:
                    words, where = _words_of(values, name, column.shown), f"column {column.shown}"
                    codes = cols.category_codes(*words, self.fitted[place], self.ignore_unknown, name, where, row)
                    piece[:, place] = codes
                else:
                    piece[:, place] = _as_numbers(values)
            yield row, piece


def open_batches(source: Batches, request: base.Request) -> base.Table:
    """Return the table of record batches, of which one column may hold the labels."""
    name, n_columns = source.name, len(source.columns)
    chosen = cols.select_columns(name, request.features, source.titles, n_columns, request.labels_column, source.hidden)
    label, columns = chosen.label, [source.columns[place] for place in chosen.kept]
    base.check_shape(name, (1, len(columns)))
    category_sets = chosen.category_sets(name, typed=source.typed)
    source = source.examined(chosen, category_sets)
    fitted = chosen.fitted(category_sets)
    encoded = () if fitted is None or not fitted.one_hot else fitted.columns
    plain = [column for column, has in zip(columns, chosen.have_categories, strict=True) if not has]
    gaps = chosen.features.missing != "refuse"
    _check_types(source, plain, gaps)
    kinds = [_number_type(_type_of(source.schema, column)) for column in plain]
    # missing values become NaN
    kinds = [np.dtype(np.float64) if gaps and kind.kind != "f" else kind for kind in kinds if kind is not None]
    dtype = np.result_type(*kinds, *([np.float64] if encoded else []))
    # of a wide table they would take much room in tasks
    slim = replace(source, columns=[], titles=None, schema=pa.schema([]))
    rows = _ArrowRows(slim, columns, dtype, gaps, encoded, fitted is not None and fitted.handle_unknown == "ignore")
    before = sum(place < label for place in source.hidden) if label is not None else 0
    table = base.Table(
        name,
        (source.starts[-1], len(columns)),
        dtype,
        rows,
        source.digest(label),
        source.parallel,
        feature_names=chosen.kept_names() if source.named else None,
        row_names=slim.row_names,
        label_pieces=None if label is None else partial(slim.values, source.columns[label]),
        label=None if label is None else label - before,  # names are no column
    )
    table = _held(table) if source.held else table
    return cols.feature_table(table, fitted, coded=True)


def open_arrow_object(spec: object, request: base.Request) -> base.Table:
    """Return the table of an object with ``__arrow_c_stream__``: a frame of polars, a table of pyarrow, ..."""
    try:
        table = pa.table(spec)
    except Exception as error:
        found, allowed = f"no table ({' '.join(str(error).split())[:200]})", "columns with names"
        otherwise = "it would be unclear what a sample is"
        remedy = "give the frame that holds it, as in frame[['a', 'b']]"
        faults.throw(BadInput(f"the {type(spec).__name__} given", found, allowed, otherwise, remedy))
    source = Batches(name="the table given", schema=table.schema, starts=[0, table.num_rows], table=table)
    return open_typed(source, request)


def open_typed(source: Batches, request: base.Request) -> base.Table:
    """Return the table of batches whose schema names the columns and, if pandas wrote it, the index."""
    name, schema = source.name, source.schema
    described = (schema.pandas_metadata or {}).get("index_columns", [])
    index = [title for title in described if isinstance(title, str) and title in schema.names]
    cols.check_names(name, schema.names)
    columns = _columns(source, [title for title in schema.names if title not in index])
    titles = [str(column.title) for column in columns]
    cols.check_names(name, titles)
    named = _ArrowColumn(index[0], index[0]) if len(index) == 1 else None
    return open_batches(replace(source, columns=columns, titles=titles, index=named), request)


def _held(table: base.Table) -> base.Table:
    matrix, labels = table.read(0, table.shape[0]), table.labels()
    key, pieces = base.content_digest(matrix), None
    if labels is not None:
        key, pieces = base.digest(key, base.content_digest(labels)), partial(iter, [labels])
    held = {"rows": base.MatrixRows(matrix), "resident_bytes": matrix.nbytes, "row_names": table.sample_names}
    return replace(table, **held, fingerprint=key, label_pieces=pieces)  # type: ignore[arg-type]


def _columns(source: Batches, names: Sequence[str]) -> list[_ArrowColumn]:
    """Return the columns of the table: lists of numbers are one for each of their places."""
    columns = []
    for name in names:
        kind, width = source.schema.field(name).type, 0
        if hasattr(kind, "value_field") and _number_type(kind.value_type) is not None:
            first = None if pa.types.is_fixed_size_list(kind) else _first_value(source, name)
            width = len(first[1]) if first is not None else getattr(kind, "list_size", 0)
        columns += [_ArrowColumn(f"{name}_{item}", name, item, width) for item in range(width)]
        columns += [] if width else [_ArrowColumn(name, name)]
    return columns


def _first_value(source: Batches, name: str) -> tuple[int, pa.Scalar] | None:
    row = 0
    for batch in source.batches(range(len(source.starts) - 1), [name]):
        present = np.flatnonzero(batch.column(0).is_valid().to_numpy(zero_copy_only=False))
        if len(present):
            return row + int(present[0]), batch.column(0)[int(present[0])]
        row += batch.num_rows
    return None


def _words_of(values: pa.Array, name: str, shown: str) -> tuple[list[Category], AnyArray]:
    """Return the different values of a column, and the place of each row's among them, -1 where it is null."""
    if _holds_numbers(values.type):
        numbers, places = np.unique(_as_numbers(values).astype(np.float64), return_inverse=True)
        return numbers.tolist(), places
    if pa.types.is_boolean(values.type):
        texts = pc.if_else(values, "True", "False")
    else:
        try:
            texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
        except pa.ArrowException:
            faults.throw(_no_numbers(name, f"values of type {values.type} in column {shown} as categories", False))
    words = texts.dictionary_encode()
    return words.dictionary.to_pylist(), words.indices.fill_null(-1).to_numpy(zero_copy_only=False)


def _holds_numbers(kind: pa.DataType) -> bool:
    """Return whether categories of this type are numbers; truth values are text, as in text files and data frames."""
    kind = _decoded(kind)
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as_numbers(values: pa.Array) -> AnyArray:
    """Return a column of numbers, NaN where one is missing."""
    if values.null_count or pa.types.is_decimal(values.type):
        values = values.cast(pa.float64(), safe=False)  # safe, it refuses whole numbers beyond 2^53
    numbers: AnyArray = values.to_numpy(zero_copy_only=False)
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text, of any of Arrow's kinds."""
    kind = _decoded(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _number_type(kind: pa.DataType) -> base.DType | None:
    """Return the NumPy type of a column's values, or None if they are not numbers; nulls alone are missing numbers."""
    kind = _decoded(kind)
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
    name, kinds = source.name, {column.shown: _type_of(source.schema, column) for column in columns}
    bare = [shown for shown, kind in kinds.items() if pa.types.is_null(kind)]
    if bare and not gaps:
        seen = f"no value in the columns {faults.listing(bare)}"
        allowed, otherwise = "a value in some rows of each column", "every distance would be undefined"
        raise BadInput(name, seen, allowed, otherwise, "drop these columns (drop_columns, --drop-columns)")
    other = [column for column in columns if _number_type(kinds[column.shown]) is None]
    if not other:
        return
    titles = faults.listing([f"{column.shown} ({kinds[column.shown]})" for column in other])
    found, first = f"no numbers in the columns {titles}", _first_value(source, other[0].name)
    if first is not None:
        value = str(first[1].as_py())[:40]
        found += f", the first is {value!r} in row {first[0]} of column {other[0].shown}"
    raise _no_numbers(name, found, all(_is_text(kinds[column.shown]) for column in other))


def _no_numbers(name: str, found: str, text: bool) -> BadInput:
    """Return the fault of columns that hold no numbers: text, which can be encoded, or something else."""
    if text:
        return faults.textual(name, found)
    allowed = "numbers, or lists of numbers that are equally long, in every column but the label column"
    remedy = "drop these columns (drop_columns, --drop-columns), or store them as numbers, such as times in seconds"
    return BadInput(name, found, allowed, "distances between samples would be undefined", remedy)


def parts_of(path: str) -> list[str]:
    """Return the Parquet files of a folder, or of a pattern such as ``parts/*.parquet``, in natural order.

    Files that are hidden, or whose names begin with ``_`` as those of Dask and Spark that hold no rows, are left out,
    and so are those of such folders that a pattern with ``**`` finds.
    """
    pattern = os.path.join(glob.escape(path), "*") if os.path.isdir(path) else path
    named = {*pattern.split(os.sep), ""}
    parts = [name for name in glob.glob(pattern, recursive=True) if name.lower().endswith(ENDING)]
    parts = [name for name in parts if not any(step[:1] in "._" for step in {*name.split(os.sep)} - named)]
    # by numbers too, so that part 2 comes before part 10
    steps = {name: enumerate(re.split(r"([0-9]+)", name)) for name in parts if os.path.isfile(name)}
    keys = {name: [(int(step), "") if n % 2 else (-1, step) for n, step in pieces] for name, pieces in steps.items()}
    return sorted(keys, key=keys.__getitem__)


def open_parquet(request: base.Request) -> base.Table:
    """Return the table of a Parquet file, or of several; one of its columns may hold the labels."""
    if os.path.isfile(request.path):
        stamps = [base.FileStamp.of(request)]
    else:
        stamps = [base.FileStamp.of(base.Request(part, part)) for part in parts_of(request.path)]
    schemas, places, rows, largest = [], [], [], 0
    for file, stamp in enumerate(stamps):
        with faults.reading(stamp.name), pq.ParquetFile(stamp.path) as opened:
            schemas.append(opened.schema_arrow)
            cols.check_names(stamp.name, opened.schema_arrow.names)
            groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        places += [(file, number) for number in range(len(groups))]
        rows += [group.num_rows for group in groups]
        largest = max([largest, *(group.total_byte_size for group in groups)])
    # those of a part without rows may have columns of any type
    places = [place for place, count in zip(places, rows, strict=True) if count]
    schema = _common_schema(stamps, schemas, sorted({file for file, _ in places}) or [0])
    starts = [0, *np.cumsum([count for count in rows if count]).tolist()]
    source = _ParquetBatches(name=request.name, schema=schema, starts=starts, stamps=stamps, places=places)
    source.parallel = largest <= LARGEST_GROUP
    return open_typed(source, request)


def _common_schema(stamps: list[base.FileStamp], schemas: list[pa.Schema], files: list[int]) -> pa.Schema:
    """Return the columns of some files, in the order of the first one, each of a type that holds all files' values."""
    first, *others = files
    schema, called = schemas[first], [os.path.basename(stamp.name) for stamp in stamps]
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for file in others:
        own, name, found = dict(zip(schemas[file].names, schemas[file].types, strict=True)), stamps[file].name, ""
        for title in sorted({*kinds} ^ {*own})[:1]:
            there, other = (file, first) if title in own else (first, file)
            name, found = stamps[there].name, f"a column {title!r}, which {called[other]} does not have"
        for title in {} if found else kinds:
            pair = [_decoded(kind) for kind in (kinds[title], own[title])]
            parts = [pa.schema([("", pa.string() if _is_text(kind) else kind)]) for kind in pair]
            try:
                kinds[title] = pa.unify_schemas(parts, promote_options="permissive").field(0).type
            except pa.ArrowException:
                found = f"column {title!r} of type {own[title]}, which is {kinds[title]} in {called[first]}"
                break
        if found:
            allowed = "the same columns in every part"
            otherwise = "values would be missing, or be compared with others"
            remedy = "write that part again with the columns of the others, or name one of the parts alone"
            faults.throw(BadInput(name, found, allowed, otherwise, remedy))
    return pa.schema(list(kinds.items()) if others else schema, metadata=schema.metadata)


@dataclass(kw_only=True)
class FrameBatches(Batches):
    """The columns of a data frame, which become Arrow's once it is known which of them are read, and as what."""

    frame: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str = FRAME_NAME) -> FrameBatches:
        """Return a frame as batches whose columns are named by their numbers."""
        titles = [str(title) for title in frame.columns]
        return cls(
            name=name,
            starts=[0, len(frame)],
            columns=numbered_columns(titles, len(titles)),
            titles=titles,
            named=index_names(frame.columns) is not None,
            frame=frame,
        )

    def values(self, column: _ArrowColumn) -> Iterator[AnyArray]:
        yield np.asarray(self.frame.iloc[:, int(column.name)].to_numpy(dtype=object))

    def examined(self, chosen: cols.Chosen, category_sets: dict[int, cols.CategorySet]) -> Batches:
        kept = zip(chosen.kept, chosen.have_categories, strict=True)
        table = pa.table({str(place): self._arrow(place, has_categories) for place, has_categories in kept})
        return Batches.examined(replace(self, schema=table.schema, table=table), chosen, category_sets)

    def _arrow(self, place: int, has_categories: bool) -> pa.Array:
        """Return a column; numbers that are missing are NaN, categories that are missing null."""
        column, name = self.frame.iloc[:, place], f"{self.name}, {cols.column_title(place, self.titles)}"
        if not has_categories and isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufcmM":
            return pa.array(column.to_numpy().astype(base.check_dtype(name, column.dtype), copy=False))
        try:
            array = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # values of several types
            array = pa.array([[]])
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        kind = array.type
        if _is_text(kind) or (has_categories and (_holds_numbers(kind) or pa.types.is_boolean(kind))):
            return array
        if _number_type(kind) is not None and not has_categories:
            return pa.array(_as_numbers(array))
        values = column.to_numpy(dtype=object)
        if not has_categories:
            texts = [str(value) if isinstance(value, str | bytes) else None for value in values]
            is_number = all(text is None for text in texts)
            return pa.array(numbers_of(values, name)) if is_number else pa.array(texts, pa.string())
        kinds = int | float | np.integer | np.floating | Decimal
        numbers = [isinstance(value, kinds) and not isinstance(value, bool) for value in values]
        words = zip(values, numbers, np.asarray(column.isna(), np.bool_), strict=True)
        return pa.array([None if gone else category_text(float(v)) if n else str(v) for v, n, gone in words])


def open_frame(frame: pd.DataFrame, request: base.Request) -> base.Table:
    """Return the table of a data frame; one of its columns may hold the labels."""
    return replace(open_batches(FrameBatches.of(frame), request), row_names=index_names(frame.index))

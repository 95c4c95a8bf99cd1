"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

import csv
import gzip
import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import IO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import (
    PIECE_BYTES,
    Block,
    FileStamp,
    Request,
    StreamedRows,
    Table,
    check_block,
    check_shape,
)
from ips2_dask.readers.columns import (
    MISSING_WORDS,
    NAN_WORDS,
    CategorySet,
    are_text,
    category_codes,
    feature_table,
    is_number,
    make_columns,
    match_columns,
    select_columns,
)
from ips2_dask.readers.features import Column, Features, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column, take_label_column, whole_number
from ips2_dask.readers.matrices import transposed


@dataclass(frozen=True)
class BlockIndex:
    """The start of each block of lines: its first row, its byte offset in the unpacked text, and its first line."""

    rows: list[int]
    offsets: list[int]
    lines: list[int]
    n_rows: int


@dataclass
class TextRows(StreamedRows):
    """The rows of a text table; read from the block that holds the first row asked for."""

    stamp: FileStamp
    layout: Layout
    block_index: BlockIndex
    columns: tuple[Column, ...] = ()  # the features, where some of them hold categories
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        self.n_rows = self.block_index.n_rows

    def stream(self, start: int) -> Iterator[Block]:
        """Yield the rows from `start` on, a block of lines at a time."""
        self.stamp.check()
        block_index, name = self.block_index, self.stamp.name
        first_block = bisect_right(block_index.rows, start) - 1
        row = block_index.rows[first_block]
        for block in text_blocks(
            self.stamp.path, name, block_index.offsets[first_block], block_index.lines[first_block]
        ):
            values = self._values(block, row)
            row += len(values)
            yield values[max(0, start - (row - len(values))) :]

    def _values(self, block: TextBlock, first_row: int) -> Block:
        """Return the features of a block of lines, float64 (rows, f); a text becomes the number of its category."""
        layout, name = self.layout, self.stamp.name
        if not layout.texts:
            return parse_numbers(block, layout, name, first_row)
        numbers, texts = parse_columns(block, layout, name, first_row)
        features = np.empty((len(numbers), len(layout.features)))
        of_texts = dict(zip(layout.texts, texts, strict=True))
        of_numbers = iter(numbers.T)
        for position, column in enumerate(layout.features):
            if column not in of_texts:
                features[:, position] = next(of_numbers)
                continue
            categories = self.columns[position].categories or ()
            where = layout.title(column)
            features[:, position] = category_codes(
                of_texts[column], categories, self.ignore_unknown, name, where, first_row
            )
        return features


def open_text(request: Request) -> Table:
    """Return the table of a text file, of which one column may hold the labels."""
    if request.transpose:
        table = transposed(open_text(replace(request, transpose=False, labels_column=None, features=None)))
        return take_label_column(table, request.labels_column)
    stamp, features = FileStamp.of(request), request.features
    named: tuple[str | int | None, ...] = ()
    if isinstance(features, Features):
        named = features.mentioned
    elif features is not None:
        named = tuple(column.name for column in features.columns)
    layout = _find_layout(head_of(request.path, request.name), request.name, request.labels_column, named)
    if features is not None:
        layout = _selected(layout, features, request.name)
    check_shape(request.name, (1, len(layout.features)))
    block_index, fitted = scan(stamp, layout, features)
    texts_of = partial(_read_texts, stamp, layout, block_index)
    rows = TextRows(stamp, layout, block_index)
    if fitted is not None:
        # columns whose categories are numbers are read as numbers
        texts = tuple(
            place for place, one in zip(layout.features, fitted.columns, strict=True) if are_text(one.categories)
        )
        rows = TextRows(
            stamp, replace(layout, texts=texts), block_index, fitted.columns, fitted.handle_unknown == "ignore"
        )
    table = Table(
        name=request.name,
        shape=(block_index.n_rows, len(layout.features)),
        dtype=np.dtype(np.float64),
        rows=rows,
        parallel=not _is_gzipped(request.path),
        resident_bytes=0,
        fingerprint=stamp.digest("text", layout.label),
        feature_names=layout.feature_names(),
        read_sample_names=None if layout.index is None else partial(_read_row_names, texts_of, layout.index),
        read_labels=None if layout.label is None else LabelReader(request.name, partial(texts_of, layout.label)),
        label=layout.label,
    )
    return table if fitted is None else feature_table(table, fitted)


def _selected(layout: Layout, features: Features | FittedFeatures, name: str) -> Layout:
    """Return the layout with the columns that become features, and those of them that are read as text."""
    hidden = () if layout.index is None else (layout.index,)
    gaps = features.missing != "refuse"
    if isinstance(features, Features):
        columns, one_hot = select_columns(name, features, layout.names, layout.n_fields, layout.label, hidden)
        return replace(layout, selected=columns, texts=tuple(sorted(one_hot)), gaps=gaps)
    kept_columns = match_columns(name, features, layout.names, layout.n_fields, layout.label, hidden)
    texts = (place for place, column in zip(kept_columns, features.columns, strict=True) if are_text(column.categories))
    return replace(layout, selected=kept_columns, texts=tuple(texts), gaps=gaps)


def scan(
    stamp: FileStamp, layout: Layout, features: Features | FittedFeatures | None = None
) -> tuple[BlockIndex, FittedFeatures | None]:
    """Check every value of a text table, note where its blocks of lines start, and collect its categories."""
    block_index = BlockIndex([], [], [], 0)
    row = 0
    category_sets: dict[int, CategorySet] = {}
    if isinstance(features, Features):
        category_sets = {
            place: CategorySet(stamp.name, layout.title(place), features.missing) for place in layout.texts
        }
    for block in text_blocks(stamp.path, stamp.name, layout.offset, layout.first_line):
        values, texts = parse_columns(block, layout, stamp.name, row)
        _check_numbers(values, block, layout, stamp.name, row)
        _check_texts(texts, block, layout, stamp.name, row)
        for collected, column in zip(category_sets.values(), texts, strict=False):
            collected.add(column.unique().to_pylist())
        block_index.rows.append(row)
        block_index.offsets.append(block.offset)
        block_index.lines.append(block.first_line)
        row += len(values)
    block_index = replace(block_index, n_rows=row)
    if not isinstance(features, Features):
        return block_index, features
    categories = {place: collected.categories() for place, collected in category_sets.items()}
    return block_index, FittedFeatures(
        columns=make_columns(layout.features, layout.names, categories), n_columns=layout.n_fields, label=layout.label,
        missing=features.missing,
    )  # fmt: skip


def _read_texts(stamp: FileStamp, layout: Layout, block_index: BlockIndex, column: int) -> Iterator[NDArray[np.str_]]:
    """Yield one column of a text table as strings, a block of lines at a time."""
    stamp.check()
    for block in text_blocks(stamp.path, stamp.name, block_index.offsets[0], block_index.lines[0]):
        yield np.array(_parse_texts(block, layout, column, stamp.name), dtype=np.str_)


def _read_row_names(texts_of: Callable[[int], Iterator[NDArray[np.str_]]], column: int) -> NDArray[np.str_] | None:
    """Return the names of the samples, unless they only count the rows."""
    names = np.concatenate(list(texts_of(column)))
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names


LINES_PER_BLOCK = 64  # at least, as pyarrow takes some microseconds per column and block
LONGEST_BLOCK = 64 << 20


@dataclass(frozen=True)
class TextBlock:
    """Some whole lines of a file: their bytes, where they start, and the number of the first."""

    data: bytes
    offset: int
    first_line: int


def _is_gzipped(path: str) -> bool:
    """Return whether a file is gzipped, by its first bytes or its name."""
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b" or path.endswith(".gz")


def _open_stream(path: str) -> IO[bytes]:
    """Open a text file, unpacked if it is gzipped."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if _is_gzipped(path) else open(path, "rb")


def text_blocks(path: str, name: str, offset: int = 0, first_line: int = 1) -> Iterator[TextBlock]:
    """Yield a file's lines from ``offset`` on; the same blocks wherever one of them is started from."""
    with faults.reading(name):
        stream = _open_stream(path)
    with stream:
        with faults.reading(name):
            stream.seek(offset)
        while True:
            with faults.reading(name):
                data = _whole_lines(stream)
            if not data:
                return
            yield TextBlock(data, offset, first_line)
            offset += len(data)
            first_line += data.count(b"\n")


def _whole_lines(stream: IO[bytes]) -> bytes:
    first = stream.readline()
    size = max(PIECE_BYTES, min(LINES_PER_BLOCK * len(first), LONGEST_BLOCK))
    return first + stream.read(max(0, size - len(first))) + stream.readline()


def _lines_of(block: TextBlock, errors: str = "replace") -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not blank."""
    for number, line in enumerate(block.data.splitlines(), start=block.first_line):
        if line.strip():
            yield number, line.decode("utf-8", errors)


def parse_numbers(block: TextBlock, layout: Layout, name: str, first_row: int) -> NDArray[np.float64]:
    """Return the features of a block that are numbers, (rows, f), missing values as NaN.

    Raises
    ------
    BadInput
        For a ragged row, text, or bytes that are no text; says the line and the column.
    """
    return parse_columns(block, layout, name, first_row).numbers


class ParsedColumns(NamedTuple):
    """The features of a block."""

    numbers: NDArray[np.float64]  # (rows, columns of numbers), missing values as NaN
    texts: list[pa.StringArray]  # one for each column of text, without blanks around the fields


def parse_columns(block: TextBlock, layout: Layout, name: str, first_row: int) -> ParsedColumns:
    """Return the features of a block, columns of numbers and columns of text apart; raises as `parse_numbers`."""
    if not block.data.strip():
        return ParsedColumns(np.empty((0, len(layout.numbers))), [pa.array([], pa.string()) for _ in layout.texts])
    types = {str(column): pa.float64() for column in layout.numbers}
    types |= {str(column): pa.string() for column in layout.texts}
    try:
        table = _parse(block, layout, types)
    except pa.ArrowException:  # a damaged block, or a spelling of numbers that pyarrow does not know
        return _parse_slowly(block, layout, name, first_row)
    batch = table.combine_chunks().to_batches()[0]
    texts = [pc.utf8_trim_whitespace(batch.column(str(column))) for column in layout.texts]
    if not layout.numbers:
        return ParsedColumns(np.empty((batch.num_rows, 0)), texts)
    tensor = batch.select([str(column) for column in layout.numbers]).to_tensor(null_to_nan=True, row_major=True)
    return ParsedColumns(cast("NDArray[np.float64]", tensor.to_numpy()), texts)


def _parse_texts(block: TextBlock, layout: Layout, column: int, name: str) -> list[str]:
    """Return one column of a block as text."""
    if not block.data.strip():
        return []
    try:
        return cast("list[str]", _parse(block, layout, {str(column): pa.string()}).column(0).to_pylist())
    except pa.ArrowException:
        with faults.reading(name):
            return [layout.split(line)[column] for _, line in _lines_of(block, "strict")]


def _parse(block: TextBlock, layout: Layout, types: dict[str, pa.DataType]) -> pa.Table:
    data = _single_blanks(block.data) if layout.delimiter is None else block.data
    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(
            column_names=[str(column) for column in range(layout.n_fields)],
            block_size=max(len(data) + 1, 64),
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(delimiter=layout.delimiter or " "),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=list(MISSING_WORDS),
            strings_can_be_null=False,
        ),
    )


def _single_blanks(data: bytes) -> bytes:
    """Return lines whose fields are divided by exactly one blank."""
    data = data.replace(b"\t", b" ").replace(b"\r\n", b"\n")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")


def _parse_slowly(block: TextBlock, layout: Layout, name: str, first_row: int) -> ParsedColumns:
    """Return the features of a block as `parse_columns` does, field by field, and raise its first fault."""
    rows: list[list[float]] = []
    categories: list[list[str]] = [[] for _ in layout.texts]
    text: dict[int, str] = {}  # column: the first text in it, and where
    with faults.reading(name):
        lines = list(_lines_of(block, "strict" if layout.texts else "replace"))
    for number, line in lines:
        with faults.reading(name):
            fields = layout.split(line)
        if len(fields) != layout.n_fields:
            if text:
                break
            raise _ragged_line(name, number, len(fields), layout)
        values = []
        for column, texts in zip(layout.texts, categories, strict=True):
            texts.append(fields[column].strip())
        for column in layout.numbers:
            field = fields[column].strip()
            if not is_number(field):
                text.setdefault(column, f"{field[:40]!r} in row {first_row + len(rows)} (line {number})")
            else:
                values.append(np.nan if field in MISSING_WORDS else float(field))
        rows.append(values)
    if text:
        raise _text_columns(name, text, layout)
    numbers = np.array(rows, dtype=np.float64).reshape(len(rows), len(layout.numbers))
    return ParsedColumns(numbers, [pa.array(texts, pa.string()) for texts in categories])


def _check_numbers(values: NDArray[np.float64], block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a missing, infinite or too large value; says the line and quotes the field."""
    finite = ~np.isinf(values) if layout.gaps else np.isfinite(values)
    if finite.all():
        names = layout.names
        check_block(
            values, first_row, name, [names[column] for column in layout.numbers] if names else None, gaps=layout.gaps
        )
        return
    bad = np.argwhere(~finite)
    row, position = (int(index) for index in bad[0])
    number, line = list(_lines_of(block))[row]
    column = layout.numbers[position]
    field = layout.split(line)[column].strip()
    problem = f"a missing value ({field!r})" if field in MISSING_WORDS else f"the value {field!r}"
    more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
    raise faults.missing_value(name, f"row {first_row + row} (line {number}), {layout.title(column)}{more}", problem)


def _check_texts(texts: list[pa.StringArray], block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a missing value in a column of categories, unless values may be missing."""
    words = pa.array([*MISSING_WORDS, *NAN_WORDS])
    for column, values in zip(layout.texts, texts, strict=True):
        missing = np.asarray(pc.is_in(values, value_set=words).to_numpy(zero_copy_only=False), np.bool_)
        if missing.any() and not layout.gaps:
            row = int(np.argmax(missing))
            number, _ = list(_lines_of(block))[row]
            where = f"row {first_row + row} (line {number}), {layout.title(column)}"
            raise faults.missing_value(name, where, f"a missing value ({values[row].as_py()!r})")


def _ragged_line(name: str, number: int, count: int, layout: Layout) -> BadInput:
    delimiter = {None: "blanks", "\t": "tabs"}.get(layout.delimiter, repr(layout.delimiter))
    return BadInput(
        name,
        f"{count} fields (divided by {delimiter}) in line {number}",
        f"{layout.n_fields} fields in every line, as in the first",
        "values would end up under the wrong feature",
        f"correct or drop line {number}",
    )


def _text_columns(name: str, text: dict[int, str], layout: Layout) -> BadInput:
    columns = sorted(text)
    titles = faults.listing([layout.title(column) for column in columns])
    problem = f"text in {len(columns)} column{'s' * (len(columns) > 1)} ({titles}), the first is {text[columns[0]]}"
    if layout.delimiter == ";" and all("," in value for value in text.values()):
        problem += "; decimal commas have to be points"
    return faults.textual(name, problem)


def head_of(path: str, name: str) -> bytes:
    """Return the first block of a file."""
    block = next(text_blocks(path, name), None)
    return block.data if block else b""


DELIMITERS = ("\t", ";", ",", None)  # None: runs of blanks and tabs
SAMPLE_LINES = 32
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Layout:
    """The columns of a text table and where its first row is; columns and rows count from 0, lines from 1."""

    delimiter: str | None
    n_fields: int
    names: tuple[str, ...] | None
    label: int | None
    index: int | None  # a column without a name that holds row names, as pandas and R write it
    offset: int
    first_line: int
    selected: tuple[int, ...] | None = None  # the features; None: all columns but label and index
    texts: tuple[int, ...] = ()  # the features that are read as text, as they hold categories
    gaps: bool = False  # whether values may be missing

    @cached_property
    def features(self) -> list[int]:
        """The columns that hold features."""
        if self.selected is not None:
            return list(self.selected)
        return [column for column in range(self.n_fields) if column not in (self.label, self.index)]

    @cached_property
    def numbers(self) -> list[int]:
        """The columns of features that are read as numbers."""
        return [column for column in self.features if column not in self.texts]

    def feature_names(self) -> list[str] | None:
        """Return the names of the features, if the file has a header."""
        return [self.names[column] for column in self.features] if self.names else None

    def title(self, column: int) -> str:
        """Return the name of a column for messages."""
        return f"column {column}" + (f" ({self.names[column]!r})" if self.names else "")

    def split(self, line: str) -> list[str]:
        """Return the fields of one line."""
        return _split_line(line, self.delimiter)


def _split_line(line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one line."""
    return line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter), [])


def _find_layout(
    head: bytes, name: str, labels_column: str | int | None, named: Collection[str | int | None] = ()
) -> Layout:
    """Find the layout of a text table from its first block.

    Parameters
    ----------
    head : bytes
        Whole lines from the start of the file, the first data row among them.
    name : str
        The input as the user wrote it, for messages.
    labels_column : str or int, optional
        Name or number of the column that holds the labels.
    named : collection of str
        Names of further columns that the caller expects: a first row that holds one of them is a header.

    Raises
    ------
    BadInput
        If it is not text, or has no row of data, or no such column.
    """
    lines = _lines(head, name)
    if not lines:
        raise _no_rows(name)
    delimiter = _find_delimiter([text for _, _, text in lines[:SAMPLE_LINES]])
    with faults.reading(name):
        rows = [_split_line(text, delimiter) for _, _, text in lines[:2]]
    first = [field.strip() for field in rows[0]]
    titles = (title for title in (labels_column, *named) if isinstance(title, str))
    expected_names = {title for title in titles if whole_number(title) is None}
    header = not expected_names.isdisjoint(first) or _is_header(rows, _label_number(labels_column, len(first)))
    if header and len(lines) < 2:
        raise _no_rows(name)
    names = tuple(first) if header else None
    label = None if labels_column is None else find_column(name, labels_column, names, len(first))
    index = 0 if names and names[0] == "" and label != 0 and len(names) > 1 else None
    offset, line, _ = lines[1] if header else lines[0]
    return Layout(delimiter, len(first), names, label, index, offset, line)


def _find_delimiter(lines: list[str]) -> str | None:
    """Return the delimiter that divides most of the lines into equally many fields; None for runs of blanks."""

    def agreement(delimiter: str | None) -> int:
        try:
            counts = Counter(len(_split_line(line, delimiter)) for line in lines)
        except csv.Error:
            return 0
        return max((number for fields, number in counts.items() if fields > 1), default=0)

    best = max(DELIMITERS, key=agreement)  # the first of equals
    return best if agreement(best) else ","


def _lines(head: bytes, name: str) -> list[tuple[int, int, str]]:
    """Return offset, number and text of the first lines that are not blank."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4096]:
        raise BadInput(
            name,
            "bytes that are not text in UTF-8 (UTF-16, or a binary file)",
            "text in UTF-8",
            "its numbers can't be told from one another",
            "save it as UTF-8, or give the file the ending of its format",
        )
    lines = []
    stream = io.BytesIO(head)
    offset = stream.seek(len(BOM) if head.startswith(BOM) else 0)
    for number, line in enumerate(stream.read().splitlines(keepends=True), start=1):
        if line.strip():
            with faults.reading(name):
                lines.append((offset, number, line.decode("utf-8").rstrip("\r\n")))
        offset += len(line)
        if len(lines) > SAMPLE_LINES:
            break
    return lines


def _label_number(labels_column: str | int | None, n_fields: int) -> int | None:
    """Return the label column's number where it is given as one."""
    number = None if labels_column is None else whole_number(labels_column)
    return number % n_fields if number is not None and -n_fields <= number < n_fields else None


def _is_header(rows: list[list[str]], label: int | None) -> bool:
    """Return whether the first row names the columns."""
    text = [{column for column, field in enumerate(row) if column != label and not is_number(field)} for row in rows]
    first = [field.strip() for field in rows[0]]
    if not text[0]:  # all numbers; but pandas writes the columns of a bare array as an empty field, 0, 1, 2, ...
        return len(first) > 1 and first == ["", *map(str, range(len(first) - 1))]
    # The same columns hold text in the second row and others hold numbers: data with text columns, not a header.
    return not (len(rows) > 1 and text[0] == text[1] and len(text[0]) < len(first) - (label is not None))


def _no_rows(name: str) -> BadInput:
    return BadInput(
        name,
        "no row of data",
        "at least one row of numbers",
        "there would be nothing to cluster",
        "check that it is the right file and was written whole",
    )

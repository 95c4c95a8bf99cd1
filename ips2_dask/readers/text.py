"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

import csv
import gzip
import io
import re
import shlex
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import islice
from typing import IO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, Block, FileStamp, Request, StreamedRows, Table, check_block, check_shape
from ips2_dask.readers.columns import (
    MISSING_WORDS,
    NAN_WORDS,
    NUMBER,
    CategorySet,
    category_codes,
    category_number,
    feature_table,
    is_number,
    make_columns,
    match_columns,
    select_columns,
)
from ips2_dask.readers.features import Category, Column, Features, FittedFeatures, category_text
from ips2_dask.readers.labels import LabelReader, find_column, take_label_column, whole_number
from ips2_dask.readers.matrices import transposed
from ips2_dask.readers.text_format import USUAL, UTF_8, TextFormat
from ips2_dask.wording import count


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
        for block in self.layout.blocks(
            self.stamp.path, name, block_index.offsets[first_block], block_index.lines[first_block]
        ):
            values = self._values(block, row)
            row += len(values)
            yield values[max(0, start - (row - len(values))) :]

    def _values(self, block: TextBlock, first_row: int) -> Block:
        """Return the features of a block of lines, float64 (rows, f); text is as of `text_codes`."""
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
    layout = _find_layout(request, named)
    if features is not None:
        layout = _selected(layout, features, request.name)
    check_shape(request.name, (1, len(layout.features)))
    block_index, fitted = scan(stamp, layout, features)
    texts_of = partial(_read_texts, stamp, layout, block_index)
    rows = TextRows(stamp, layout, block_index)
    if fitted is not None:
        rows = TextRows(stamp, layout, block_index, fitted.columns, fitted.handle_unknown == "ignore")
    table = Table(
        name=request.name,
        shape=(block_index.n_rows, len(layout.features)),
        dtype=np.dtype(np.float64),
        rows=rows,
        parallel=layout.text.encoding == UTF_8 and not _is_gzipped(request.path),
        resident_bytes=0,
        fingerprint=stamp.digest("text", layout.label, *layout.reading),
        feature_names=layout.feature_names(),
        read_sample_names=None if layout.index is None else partial(_read_row_names, texts_of, layout.index),
        read_labels=None if layout.label is None else LabelReader(request.name, partial(texts_of, layout.label)),
        label=None if layout.label is None else layout.label - (layout.index is not None),  # names are no column
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
    texts = (place for place, column in zip(kept_columns, features.columns, strict=True) if column.categories)
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
            place: CategorySet(stamp.name, layout.title(place), features.missing, typed=False) for place in layout.texts
        }
    for block in layout.blocks(stamp.path, stamp.name, layout.offset, layout.first_line):
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
    for place, found in categories.items():
        _check_marks(found, layout, place, stamp.name)
    return block_index, FittedFeatures(
        columns=make_columns(layout.features, layout.names, categories),
        n_columns=layout.n_fields,
        label=layout.label,
        missing=features.missing,
    )


def _read_texts(stamp: FileStamp, layout: Layout, block_index: BlockIndex, column: int) -> Iterator[NDArray[np.str_]]:
    """Yield one column of a text table as strings, a block of lines at a time."""
    stamp.check()
    for block in layout.blocks(stamp.path, stamp.name, block_index.offsets[0], block_index.lines[0]):
        yield np.array(_parse_texts(block, layout, column, stamp.name), dtype=np.str_)


def _read_row_names(texts_of: Callable[[int], Iterator[NDArray[np.str_]]], column: int) -> NDArray[np.str_] | None:
    """Return the names of the samples, unless they only count the rows."""
    names = np.concatenate(list(texts_of(column)))
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names


LINES_PER_BLOCK = 64  # at least, as pyarrow takes some microseconds per column and block
LONGEST_BLOCK = 64 << 20
LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class TextBlock:
    """Some whole rows of a file, in UTF-8 and without comments; where they start, and the number of the first line."""

    data: bytes
    offset: int
    first_line: int


@dataclass(frozen=True)
class Dialect:
    """What ends a field and a row: quotes count where a field begins, as for `csv.reader`."""

    delimiter: str | None = None  # None: blanks and tabs
    comment: str | None = None
    encoding: str = UTF_8

    @property
    def separators(self) -> bytes:
        """The bytes that divide fields."""
        return b" \t" if self.delimiter is None else self.delimiter.encode()

    @property
    def row(self) -> re.Pattern[bytes]:
        """Matches a row and its line end: quotes that do not end are group 1 or 2, a comment is 3, the line end 4."""
        return _row_pattern(self.separators, b"" if self.comment is None else self.comment.encode())


@cache
def _row_pattern(separators: bytes, comment: bytes) -> re.Pattern[bytes]:
    plain = rb"[^\r\n" + re.escape(separators + comment) + rb"]*"
    field = rb'(?:"[^"]*(?:""[^"]*)*(?:"(?!")' + plain + rb"|(\Z))|" + plain + rb")"
    more = rb"(?:[" + re.escape(separators) + rb"]" + field + rb")*"
    remark = rb"(" + re.escape(comment) + rb"[^\r\n]*)?" if comment else rb"(\Z\A)?"
    return re.compile(field + more + remark + rb"(\r\n|\r|\n|\Z)")


def _is_gzipped(path: str) -> bool:
    """Return whether a file is gzipped, by its first bytes or its name."""
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b" or path.endswith(".gz")


class _Recoded(io.RawIOBase):
    """The text of a stream in UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._text.read(max(1, len(buffer) // 4)).encode()  # at most four bytes a character
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._text.close()
        super().close()


def _open_stream(path: str, encoding: str) -> IO[bytes]:
    """Open a text file, unpacked if it is gzipped, and in UTF-8."""
    opener = cast("Callable[[str, str], IO[bytes]]", gzip.open if _is_gzipped(path) else open)
    stream = opener(path, "rb")
    return stream if encoding == UTF_8 else io.BufferedReader(_Recoded(stream, encoding))


def _pass_over(stream: IO[bytes], offset: int) -> None:
    """Go to an offset of a stream that has just been opened."""
    if stream.seekable():
        stream.seek(offset)
        return
    while offset:
        offset -= len(stream.read(min(offset, PIECE_BYTES))) or offset


@contextmanager
def _decoding(name: str, encoding: str, first_line: int) -> Iterator[None]:
    """Raise what a library says of a file's bytes as a ``BadInput``, and say which of them are not in its encoding."""
    with faults.reading(name):
        try:
            yield
        except UnicodeDecodeError as error:
            line = first_line + _n_lines(error.object[: error.start]) * (encoding == UTF_8)
            where = f"line {line}" if encoding == UTF_8 else f"line {line} or below"
            faults.throw(_wrong_encoding(name, f"the byte 0x{error.object[error.start]:02x} in {where}", encoding))
        except UnicodeError as error:
            faults.throw(_wrong_encoding(name, f"bytes ({error})", encoding))


def _wrong_encoding(name: str, what: str, encoding: str) -> BadInput:
    others = "latin-1, cp1252 or utf-16" if encoding == UTF_8 else "utf-8, latin-1, utf-16-le or utf-16-be"
    return BadInput(
        name,
        f"{what}, no {encoding.upper()}",
        f"text in {encoding.upper()}",
        "names and categories would be misread",
        f"give the encoding that it was saved in (encoding, --encoding): {others}, for instance",
    )


def _n_lines(data: bytes) -> int:
    """Return the number of line ends, be they of Unix, Windows or old Macs."""
    returns = data.count(b"\r")
    return data.count(b"\n") + (returns - data.count(b"\r\n") if returns else 0)


def text_blocks(
    path: str, name: str, dialect: Dialect | None = None, offset: int = 0, first_line: int = 1
) -> Iterator[TextBlock]:
    """Yield a file's rows from ``offset`` on; the same blocks wherever one of them is started from.

    Without a dialect a row is a line, whatever it holds.
    """
    encoding = UTF_8 if dialect is None else dialect.encoding
    with faults.reading(name):
        stream = _open_stream(path, encoding)
    with stream:
        with _decoding(name, encoding, first_line):
            _pass_over(stream, offset)
        read, ended = b"", False
        while not ended:
            size, end = PIECE_BYTES, 0
            while not ended and end == 0:
                with _decoding(name, encoding, first_line):
                    read += stream.read(max(0, size - len(read)))
                data, ended = read[:size], len(read) < size
                first = LINE_END.search(data)
                wanted = 0 if first is None else min(LINES_PER_BLOCK * first.end(), LONGEST_BLOCK)
                end = _last_end(data, dialect) if size >= wanted else 0
                if end == 0 and size >= LONGEST_BLOCK:
                    _check_quotes(data, dialect, name, first_line)
                size = max(wanted, 2 * size)
            if ended:
                end = len(read)
                _check_quotes(read, dialect, name, first_line)
            if end:
                yield TextBlock(_without_comments(read[:end], dialect), offset, first_line)
            offset += end
            first_line += _n_lines(read[:end])
            read = read[end:]


def _last_end(data: bytes, dialect: Dialect | None) -> int:
    """Return the end of the last row in ``data`` that ends there, 0 if none does."""
    end = _last_line(data, len(data))
    if dialect is None or b'"' not in data:
        return end
    quotes = _paired_quotes(data, dialect)
    if quotes is None:
        ends = (row.end() for row in dialect.row.finditer(data) if row[4])
        return max((one for one in ends if one <= end), default=0)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:  # in quotes
        end = _last_line(data, int(quotes[before - 1]))
    return end


def _last_line(data: bytes, stop: int) -> int:
    """Return the end of the last line that ends up to ``stop``; a last carriage return may be half of a line end."""
    return max(data.rfind(b"\n", 0, stop), data.rfind(b"\r", 0, min(stop, len(data) - 1))) + 1


def _paired_quotes(data: bytes, dialect: Dialect) -> NDArray[np.int64] | None:
    """Return the positions of quotes that begin and end fields in turn, or None where it takes `Dialect.row` to tell.

    Every other quote has to be at the start of a field, or to be the second of two.
    """
    if dialect.comment is not None and dialect.comment.encode() in data:
        return None
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == ord('"'))
    opening = quotes[::2]
    before = octets[opening[opening > 0] - 1]
    return quotes if np.isin(before, np.frombuffer(dialect.separators + b'\r\n"', np.uint8)).all() else None


def _check_quotes(data: bytes, dialect: Dialect | None, name: str, first_line: int) -> None:
    """Raise ``BadInput`` where quotes do not end in ``data``, which has a row's start at its own."""
    if dialect is None or b'"' not in data:
        return
    quotes = _paired_quotes(data, dialect)
    if quotes is not None and len(quotes) % 2 == 0:
        return
    for row in dialect.row.finditer(data):
        if row.start(1) >= 0 or row.start(2) >= 0:
            line = first_line + _n_lines(data[: row.start()])
            raise BadInput(
                name,
                f"a quote that does not end, in the row that begins in line {line}",
                "quotes in pairs",
                "all rows below would be part of one field",
                "take that quote out, or end it",
            )


def _without_comments(data: bytes, dialect: Dialect | None) -> bytes:
    """Return rows without what follows a comment's mark; line ends stay, so that lines keep their numbers."""
    if dialect is None or dialect.comment is None or dialect.comment.encode() not in data:
        return data
    pieces, stop = [], 0
    for row in dialect.row.finditer(data):
        if row[3]:
            pieces.append(data[stop : row.start(3)])
            stop = row.end(3)
    return b"".join([*pieces, data[stop:]])


class Row(NamedTuple):
    """A row that is not blank: its offset, the line that it begins in, and its bytes without the line end."""

    offset: int
    line: int
    data: bytes


def _rows(data: bytes, dialect: Dialect, offset: int, line: int) -> Iterator[Row]:
    """Yield the rows that are not blank, from text that starts at an offset and a line."""
    for row in dialect.row.finditer(data):
        text = data[row.start() : row.start(3) if row[3] else row.start(4)]
        if text.strip():
            yield Row(offset + row.start(), line, text)
        line += _n_lines(row[0])


def _rows_of(block: TextBlock, layout: Layout, name: str, errors: str = "replace") -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of the rows that are not blank."""
    for row in _rows(block.data, layout.dialect, block.offset, block.first_line):
        with _decoding(name, UTF_8, row.line):
            fields = layout.split(row.data.decode("utf-8", errors))
        yield row.line, fields


def _line_of(line: int, fields: list[str], column: int) -> int:
    """Return the line that a field begins in; ``line`` is that of the row."""
    return line + sum(_n_lines(field.encode()) for field in fields[:column])


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
    if layout.texts and layout.n_fields == 1:  # pyarrow takes a line of blanks for a text
        return _parse_slowly(block, layout, name, first_row)
    if layout.delimiter is None and b'"' in block.data:
        return _parse_slowly(block, layout, name, first_row)
    types = {str(column): pa.float64() for column in layout.numbers}
    types |= {str(column): pa.string() for column in layout.texts}
    try:
        table = _parse(block, layout, types)
    except pa.ArrowException:  # a damaged block, or a spelling of numbers that pyarrow does not know
        return _parse_slowly(block, layout, name, first_row)
    batch = table.combine_chunks().to_batches()[0]
    texts = [layout.categories(pc.utf8_trim_whitespace(batch.column(str(column)))) for column in layout.texts]
    if not layout.numbers:
        return ParsedColumns(np.empty((batch.num_rows, 0)), texts)
    tensor = batch.select([str(column) for column in layout.numbers]).to_tensor(null_to_nan=True, row_major=True)
    return ParsedColumns(cast("NDArray[np.float64]", tensor.to_numpy()), texts)


def _parse_texts(block: TextBlock, layout: Layout, column: int, name: str) -> list[str]:
    """Return one column of a block as text."""
    if not block.data.strip():
        return []
    if layout.delimiter is not None or b'"' not in block.data:
        try:
            return cast("list[str]", _parse(block, layout, {str(column): pa.string()}).column(0).to_pylist())
        except pa.ArrowException:
            pass
    return [fields[column] for _, fields in _rows_of(block, layout, name, "strict")]


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
            decimal_point=layout.text.decimal,
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
    text: dict[int, tuple[str, str]] = {}  # column: the first text in it, and where
    spellings: dict[int, Counter[str | None]] = {}
    for line, fields in _rows_of(block, layout, name, "strict" if layout.texts else "replace"):
        if len(fields) != layout.n_fields:
            if text:
                break
            raise _ragged_row(name, line, fields, layout)
        values = []
        for column, texts in zip(layout.texts, categories, strict=True):
            texts.append(fields[column].strip())
        for column in layout.numbers:
            field = fields[column].strip()
            number = layout.number(field)
            if number is None:
                where = f"row {first_row + len(rows)} (line {_line_of(line, fields, column)})"
                text.setdefault(column, (field, where))
                spellings.setdefault(column, Counter())[_spelling(field)] += 1
            else:
                values.append(number)
        rows.append(values)
    if text:
        raise _text_columns(name, text, spellings, len(rows), layout)
    numbers = np.array(rows, dtype=np.float64).reshape(len(rows), len(layout.numbers))
    return ParsedColumns(numbers, [layout.categories(pa.array(texts, pa.string())) for texts in categories])


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
    column = layout.numbers[position]
    line, fields = next(islice(_rows_of(block, layout, name), row, None))
    line, field = _line_of(line, fields, column), fields[column].strip()
    problem = f"a missing value ({field!r})" if field in MISSING_WORDS else f"the value {field!r}"
    more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
    raise faults.missing_value(name, f"row {first_row + row} (line {line}), {layout.title(column)}{more}", problem)


def _check_texts(texts: list[pa.StringArray], block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a missing value in a column of categories, unless values may be missing."""
    words = pa.array([*MISSING_WORDS, *NAN_WORDS])
    for column, values in zip(layout.texts, texts, strict=True):
        missing = np.asarray(pc.is_in(values, value_set=words).to_numpy(zero_copy_only=False), np.bool_)
        if missing.any() and not layout.gaps:
            row = int(np.argmax(missing))
            line, fields = next(islice(_rows_of(block, layout, name), row, None))
            where = f"row {first_row + row} (line {_line_of(line, fields, column)}), {layout.title(column)}"
            raise faults.missing_value(name, where, f"a missing value ({values[row].as_py()!r})")


def _check_marks(categories: tuple[Category, ...], layout: Layout, column: int, name: str) -> None:
    """Refuse categories that are all numbers, some of them with marks between thousands."""
    words = [word for word in categories if isinstance(word, str) and category_number(word) is None]
    spellings = {_spelling(word) for word in words}
    settings = (
        "" if None in spellings or layout.text.given.keys() & {"thousands", "decimal"} else _number_format(spellings)
    )
    if "thousands" in settings:
        raise BadInput(
            name,
            f"numbers such as {words[0]!r} in {layout.title(column)}, a column of one_hot (--one-hot)",
            "categories, or numbers without marks between thousands",
            "each value would be a feature",
            f"{settings}, and leave the column out of one_hot (--one-hot)",
        )


def _ragged_row(name: str, line: int, fields: list[str], layout: Layout) -> BadInput:
    delimiter = {None: "blanks", "\t": "tabs"}.get(layout.delimiter, repr(layout.delimiter))
    last = _line_of(line, fields, len(fields))
    lines = f"line {line}" if last == line else f"lines {line} to {last}, which quotes hold together"
    return BadInput(
        name,
        f"{len(fields)} fields (divided by {delimiter}) in {lines}",
        f"{layout.n_fields} fields in every row, as in the first",
        "values would end up under the wrong feature",
        f"correct or drop {lines.partition(',')[0]}",
    )


def _text_columns(
    name: str, text: dict[int, tuple[str, str]], spellings: dict[int, Counter[str | None]], n_rows: int, layout: Layout
) -> BadInput:
    columns = sorted(text)
    titles = faults.listing([layout.title(column) for column in columns])
    field, where = text[columns[0]]
    problem = (
        f"text in {len(columns)} column{'s' * (len(columns) > 1)} ({titles}), the first is {field[:40]!r} in {where}"
    )
    found = [one for one in spellings.values() if None not in one and (TWO not in one or one[TWO] == n_rows)]
    remedy = _number_format({spelling for one in found for spelling in one})
    if layout.n_fields == 1 and (mark := re.search(r"[^\w\s.,;+-]", field)):
        remedy = f"for more columns give delimiter={mark[0]!r} (--delimiter {_quoted(mark[0])})"
    return faults.textual(name, problem, remedy)


DELIMITERS = ("\t", ";", ",", None)  # None: runs of blanks and tabs
SAMPLE_ROWS = 32
BOM = b"\xef\xbb\xbf"
SEPARATOR_LINE = re.compile(rb'"?sep=(.)"?(\r\n|\r|\n)', re.IGNORECASE)  # Excel's
MARKS = ",.'_ \xa0"
DECIMAL = "decimal"
TWO = "two"


@cache
def _grouped(mark: str) -> re.Pattern[str]:
    """Matches the start of a number with a mark between groups of three digits."""
    return re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{3}})+(?![0-9{re.escape(mark)}])")


def _number(field: str, text: TextFormat) -> float | None:
    """Return the number that a field without outer blanks is, NaN if it is missing, None if it is text."""
    if field in MISSING_WORDS:
        return np.nan
    if text.thousands is not None and (match := _grouped(text.thousands).match(field)):
        field = match[0].replace(text.thousands, "") + field[match.end() :]
    if text.decimal != ".":
        field = "" if "." in field else field.replace(text.decimal, ".")
    return float(field) if NUMBER.fullmatch(field) else None


def _spelling(field: str) -> str | None:
    """Return how a text would be a number: its mark between thousands, or `DECIMAL` for a comma, or both; else None.

    `TWO` are two numbers, as where decimal commas were taken for delimiters.
    """
    for mark in MARKS:
        if match := _grouped(mark).match(field):
            rest = field[match.end() :]
            if is_number(f"1{rest}"):
                return mark
            return mark + DECIMAL if mark != "," and is_number("1" + rest.replace(",", ".", 1)) else None
    if len(field.split()) > 1 and all(NUMBER.fullmatch(part) for part in field.split()):
        return TWO
    return DECIMAL if "." not in field and is_number(field.replace(",", ".", 1)) else None


def _quoted(mark: str) -> str:
    """Return a character as it is typed into a shell."""
    return mark if shlex.quote(mark) == mark else repr(mark)


def _number_format(spellings: set[str | None]) -> str:
    """Return the settings with which all these texts are numbers, from what `_spelling` says of them."""
    if not spellings or (TWO in spellings and len(spellings) > 1):
        return ""
    if TWO in spellings:
        spellings = {DECIMAL}
    marks = {str(one).removesuffix(DECIMAL) for one in spellings} - {""}
    decimal = any(str(one).endswith(DECIMAL) for one in spellings)
    if decimal:
        marks.discard(",")
    if len(marks) > 1:
        return ""
    options = ["decimal=',' (--decimal ,)"] if decimal else []
    options += [f"thousands={mark!r} (--thousands {_quoted(mark)})" for mark in marks]
    text = "for numbers give " + " and ".join(options)
    return text + ", or decimal=',' (--decimal ,) if these are decimal commas" if marks == {","} else text


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
    text: TextFormat = USUAL
    counted: bool = False  # whether the names are numbers

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

    @cached_property
    def dialect(self) -> Dialect:
        """What ends a field and a row."""
        return Dialect(self.delimiter, self.text.comment, self.text.encoding)

    @property
    def reading(self) -> tuple[object, ...]:
        """What the values depend on besides the bytes of a usual file."""
        return (*self.text.given.items(), *(("header",) if self.counted else ()))

    def blocks(self, path: str, name: str, offset: int, first_line: int) -> Iterator[TextBlock]:
        """Yield a file's rows from an offset on."""
        return text_blocks(path, name, self.dialect, offset, first_line)

    def split(self, line: str) -> list[str]:
        """Return the fields of one row."""
        return _split_line(line, self.delimiter)

    def number(self, field: str) -> float | None:
        """Return the number that a field without outer blanks is, NaN if it is missing, None if it is text."""
        return _number(field, self.text)

    def categories(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts, of which numbers have a decimal point and no mark between thousands."""
        marks = {self.text.thousands, self.text.decimal} - {None, "."}
        if not marks:
            return texts
        words = texts.dictionary_encode()
        plain = []
        for word in words.dictionary.to_pylist():
            number = self.number(word) if any(str(mark) in word for mark in marks) else None
            plain.append(word if number is None else category_text(number))
        return pa.DictionaryArray.from_arrays(words.indices, pa.array(plain, pa.string())).cast(pa.string())


def _split_line(line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one row."""
    if '"' not in line:
        return line.split(delimiter)
    longest = csv.field_size_limit()
    try:
        csv.field_size_limit(max(longest, len(line)))
        if delimiter is None:
            return next(csv.reader([line.strip().replace("\t", " ")], delimiter=" ", skipinitialspace=True), [])
        return next(csv.reader([line], delimiter=delimiter), [])
    finally:
        csv.field_size_limit(longest)


def _find_layout(request: Request, named: Collection[str | int | None] = ()) -> Layout:
    """Find the layout of a text table from its first rows.

    Parameters
    ----------
    request : Request
    named : collection of str
        Names of further columns that the caller expects: a first row that holds one of them is a header.

    Raises
    ------
    BadInput
        If it is not text, or has no row of data, or no such column.
    """
    name, labels_column, text = request.name, request.labels_column, request.text
    with faults.reading(name):
        stream = _open_stream(request.path, text.encoding)
    head, ended = b"", False
    with stream:
        while not ended:
            with _decoding(name, text.encoding, 1):
                size = len(head) + max(PIECE_BYTES, len(head))
                head += stream.read(size - len(head))
            ended = len(head) < size
            start = _first_table_line(head, text, name)
            delimiter, rows = _first_rows(head, start, text, ended, name)
            if len(rows) > 1:
                break
    if not rows:
        raise _no_rows(name)
    fields = [row.fields for row in rows]
    counts = Counter(map(len, fields[1:]))
    usual = max(counts, key=counts.__getitem__, default=len(fields[0]))
    # R writes no title over the names of rows; delimiters after the last field look like that, too
    fewer = len(fields[0]) == usual - 1 and len(counts) == 1
    filled = any(row[-1].strip() for row in fields[1:])
    if fewer and filled and (text.header == "yes" or (text.header == "auto" and _begins_as_of_r(fields, text))):
        fields[0] = ["", *fields[0]]
    elif len(fields[0]) != usual and counts[usual] > max(1, counts[len(fields[0])]) and (filled or not fewer):
        raise _title_lines(name, rows, usual)
    header, counted = _header(request, fields, named)
    if header and len(rows) < 2:
        raise _no_rows(name)
    first = fields[0]
    names = tuple(field.strip() for field in first) if header else None
    label = None if labels_column is None else find_column(name, labels_column, names, len(first))
    index = 0 if names and names[0] == "" and label != 0 and len(names) > 1 else None
    row = rows[1] if header else rows[0]
    return Layout(delimiter, len(first), names, label, index, row.offset, row.line, text=text, counted=counted)


def _begins_as_of_r(rows: list[list[str]], text: TextFormat) -> bool:
    """Return whether a first row with a field less than all below may be R's: names, and below it no other header."""
    if len(rows) < 3 or len(rows[0]) < 2 or all(_number(field.strip(), text) is not None for field in rows[0]):
        return False
    below = zip(rows[1][1:], rows[2][1:], strict=True)
    return all(_number(b.strip(), text) is None for a, b in below if _number(a.strip(), text) is None)


class _TableStart(NamedTuple):
    offset: int
    line: int
    delimiter: str | None  # what a line says that Excel takes notice of


def _first_table_line(head: bytes, text: TextFormat, name: str) -> _TableStart:
    """Return where the table begins, after a byte order mark, lines that are left out, and one such as ``sep=;``."""
    if text.encoding == UTF_8 and (head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4096]):
        raise BadInput(
            name,
            "bytes that are not text in UTF-8 (UTF-16, or a binary file)",
            "text in UTF-8, or in the encoding that is given",
            "its numbers can't be told from one another",
            "give encoding='utf-16' (--encoding utf-16), or the file the ending of its format",
        )
    offset = len(BOM) if head.startswith(BOM) else 0
    ends = [match.end() for match in islice(LINE_END.finditer(head, offset), text.skip_lines)]
    line = 1 + text.skip_lines
    if text.skip_lines:
        offset = ends[-1] if len(ends) == text.skip_lines else len(head)
    match = SEPARATOR_LINE.match(head, offset)
    if match is None:
        return _TableStart(offset, line, None)
    return _TableStart(match.end(), line + 1, match[1].decode("ascii", "replace"))


class _FirstRow(NamedTuple):
    offset: int
    line: int
    fields: list[str]


def _first_rows(
    head: bytes, start: _TableStart, text: TextFormat, ended: bool, name: str
) -> tuple[str | None, list[_FirstRow]]:
    """Return the delimiter, None for runs of blanks, and the first rows; whole ones, unless the file has ``ended``."""
    given = text.delimiter or start.delimiter
    candidates = (given,) if given else sorted(DELIMITERS, key=lambda mark: mark == text.decimal)
    best: tuple[int, str | None, list[_FirstRow]] = (-1, ",", [])
    for mark in candidates:
        delimiter = None if mark == " " else mark
        # the last one may be half a row
        found = list(
            islice(
                _rows(head[start.offset :], Dialect(delimiter, text.comment), start.offset, start.line), SAMPLE_ROWS + 1
            )
        )
        found = found[:SAMPLE_ROWS] if ended or len(found) > SAMPLE_ROWS else found[:-1]
        rows = []
        for row in found:
            with _decoding(name, UTF_8, row.line):
                rows.append(_FirstRow(row.offset, row.line, _split_line(row.data.decode("utf-8"), delimiter)))
        sizes = Counter(len(row.fields) for row in rows)
        agreement = max((number for fields, number in sizes.items() if fields > 1), default=0)
        if agreement > best[0]:  # the first of equals
            best = (agreement, delimiter, rows)
    if best[0] == 0 and given is None:  # one column
        return _first_rows(head, start, replace(text, delimiter="\t" if text.decimal == "," else ","), ended, name)
    return best[1], best[2]


def _title_lines(name: str, rows: list[_FirstRow], usual: int) -> BadInput:
    """Return the fault of a table that begins with lines of another number of fields."""
    first, table = rows[0], next(row for row in rows if len(row.fields) == usual)
    n = len(first.fields)
    mark = first.fields[0].lstrip()[:1]
    remedy = f"leave it out: skip_lines={table.line - 1} (--skip-lines {table.line - 1})"
    if mark and mark in "#%@!*/":
        remedy += f", or comment={mark!r} (--comment {_quoted(mark)})"
    return BadInput(
        name,
        f"{count(n, 'field')} in line {first.line}, {first.fields[0][:40]!r}; rows below have {usual}",
        f"{usual} fields in every row, a header's among them",
        "a title would be taken for the names of columns",
        remedy
        + ", or header='yes' (--header yes) if it names columns, and the first the rows" * (usual == n + 1)
        + "; other delimiters: delimiter (--delimiter)",
    )


def _header(request: Request, rows: list[list[str]], named: Collection[str | int | None]) -> tuple[bool, bool]:
    """Return whether the first row names the columns, and whether it does so by numbers; warns where it is unclear."""
    text, labels_column = request.text, request.labels_column
    first = [field.strip() for field in rows[0]]
    label = _label_number(labels_column, len(first))
    words = [
        {column for column, field in enumerate(row) if column != label and _number(field.strip(), text) is None}
        for row in rows[:2]
    ]
    numbers = [column for column, field in enumerate(first) if _number(field, text) is not None]
    if text.header != "auto":
        return text.header == "yes", text.header == "yes" and not words[0]
    titles = (title for title in (labels_column, *named) if isinstance(title, str))
    expected_names = {title for title in titles if whole_number(title) is None}
    if not expected_names.isdisjoint(first):
        return True, not words[0]
    # The same columns hold text in the second row and others hold numbers: data with text columns, not a header.
    alike = len(rows) > 1 and words[0] == words[1] and len(words[0]) < len(first) - (label is not None)
    if words[0] and not alike:
        return True, False
    fitted = request.features
    run_names = {column.name for column in fitted.columns} if isinstance(fitted, FittedFeatures) else set()
    if run_names and run_names <= set(first):
        return True, True
    if words[0] and len(numbers) < 2:
        return False, False
    verdict = _are_names(
        [first[column] for column in numbers],
        [[row[column].strip() for column in numbers] for row in rows[1:] if len(row) == len(first)],
        text,
    )
    if verdict.unclear:
        taken, other, word = ("names", "a sample", "no") if verdict.header else ("a sample", "names", "yes")
        warnings.warn(
            f"{request.name}: its first row ({faults.listing(first)}) could be names or a sample, and is taken for "
            f"{taken}; header={word!r} (--header {word}) makes it {other}",
            IPS2Warning,
            stacklevel=2,
        )
    return verdict.header, verdict.header


class _Verdict(NamedTuple):
    header: bool
    unclear: bool = False


MOST_RISING = 0.75
"""Share of rows that rise from column to column, above which a first row that does so is one of them."""

UNLIKELY = 0.01
"""Chance up to which a row of numbers is taken for names: that a sample is outside of all ranges of those below it."""


def _are_names(first: list[str], rows: list[list[str]], text: TextFormat) -> _Verdict:
    """Return whether a first row of numbers names the columns of the rows below it.

    0, 1, 2, ... and 1, 2, 3, ... do, unless all rows below count up, too, and have no names; of one or two columns only
    where one of them holds fractions. Other numbers do if they rise from column to column, as years and wavelengths do
    and rows below seldom do, and if each is outside of the range of its column, which has to be unlikely of a sample.
    """
    indexed = len(first) > 1 and first[0] == "" and all(row[0].strip() for row in rows)
    if indexed:
        first, rows = first[1:], [row[1:] for row in rows]
    n = len(first)
    values, below = (
        np.array([[_number(field, text) for field in row] for row in some], np.float64) for some in ([first], rows)
    )
    if not rows or not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
        return _Verdict(False)
    fractions = [all(set(row[column]) & set(".,eE") for row in rows) for column in range(n)]
    whole = all(field.isdecimal() for field in first)
    unlike = whole and any(fractions)
    if n > 1 and not indexed and (np.diff(below, axis=1) == 1).all():
        return _Verdict(False)
    if first in ([str(column + start) for column in range(n)] for start in (0, 1)) and (n > 2 or indexed or unlike):
        return _Verdict(True, not (unlike or (indexed and first[0] == "0")))
    rising = np.mean((np.diff(below, axis=1) > 0).all(axis=1))
    default = first == ["0", "1"][:n] and not np.isin(below, (0, 1)).all()  # pandas' names, or a sample
    if n == 1 or rising > MOST_RISING:
        return _Verdict(False, default)
    outside = bool(((values < np.fmin.reduce(below)) | (values > np.fmax.reduce(below))).all())
    chance = (2 / (len(rows) + 1)) ** n
    if outside and (indexed or (unlike and all(fractions)) or chance <= UNLIKELY):
        return _Verdict(True, True)
    return _Verdict(False, default or indexed or (n > 4 and len(rows) > 2))


def _label_number(labels_column: str | int | None, n_fields: int) -> int | None:
    """Return the label column's number where it is given as one."""
    number = None if labels_column is None else whole_number(labels_column)
    return number % n_fields if number is not None and -n_fields <= number < n_fields else None


def _no_rows(name: str) -> BadInput:
    return BadInput(
        name,
        "no row of data",
        "at least one row of numbers",
        "there would be nothing to cluster",
        "check that it is the right file and was written whole",
    )

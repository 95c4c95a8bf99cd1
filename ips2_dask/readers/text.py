"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

import csv
import gzip
import io
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from typing import IO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, FileStamp, Request, Table, check_block
from ips2_dask.readers.columns import (
    MISSING_WORDS,
    NAN_WORDS,
    NUMBER,
    CategorySet,
    Chosen,
    category_number,
    column_title,
    find_column,
    is_number,
    whole_number,
)
from ips2_dask.readers.features import UTF_8, Category, FittedFeatures, TextFormat, category_text
from ips2_dask.readers.records import Batches, numbered_columns, open_batches
from ips2_dask.typing import Float64, Int64
from ips2_dask.wording import count


@dataclass(kw_only=True)
class TextBatches(Batches):
    """The rows of a text table by blocks of lines, each of which is a group."""

    stamp: FileStamp
    layout: Layout
    blocks: list[tuple[int, int]] = field(default_factory=list)  # byte in the unpacked text and line that they begin at
    held: bool = False
    typed: bool = False

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        wanted = [int(column) for column in columns]
        self.stamp.check()
        blocks = _text_blocks(self.stamp, self.layout, *self.blocks[groups[0]])
        for block in islice(blocks, len(groups)):
            yield _parse_columns(block, self.layout, wanted, self.name)

    def digest(self, label: int | None) -> str:
        # what the values depend on besides the bytes of a usual file
        return self.stamp.digest("text", label, *self.layout.text.given.items(), self.layout.counted)

    def examined(self, chosen: Chosen, category_sets: dict[int, CategorySet]) -> Batches:
        """Check every value, note where the blocks of lines start, and collect the categories."""
        texts = tuple(place for place, one in zip(chosen.kept, chosen.have_categories, strict=True) if one)
        layout = replace(self.layout, features=chosen.kept, texts=texts, gaps=chosen.missing != "refuse")
        starts, blocks = [0], []
        for block in _text_blocks(self.stamp, layout, layout.offset, layout.first_line):
            batch = _parse_columns(block, layout, chosen.kept, self.name, starts[-1])
            _check_values(batch, block, layout, self.name, starts[-1])
            for place, collected in category_sets.items():
                collected.add(batch.column(str(place)).unique().to_pylist())
            blocks.append((block.offset, block.first_line))
            starts.append(starts[-1] + batch.num_rows)
        for place, collected in category_sets.items():
            _check_marks(collected.categories(), layout, place, self.name)
        schema = pa.schema([(str(place), pa.float64()) for place in layout.numbers])
        return replace(self, layout=layout, blocks=blocks, starts=starts, schema=schema)


def open_text(request: Request) -> Table:
    """Return the table of a text file, of which one column may hold the labels."""
    stamp, layout = FileStamp.of(request), _find_layout(request)
    columns = numbered_columns(layout.names, layout.n_fields)
    source = TextBatches(
        name=request.name,
        schema=pa.schema([]),
        starts=[0],
        columns=columns,
        titles=layout.names,
        hidden=() if layout.index is None else (layout.index,),
        index=None if layout.index is None else columns[layout.index],
        parallel=layout.text.encoding == UTF_8 and not _is_gzipped(request.path),
        stamp=stamp,
        layout=layout,
    )
    return open_batches(source, request)


LINES_PER_BLOCK = 64  # at least, as pyarrow takes some microseconds per column and block
LONGEST_BLOCK = 64 << 20
LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class TextBlock:
    """Some whole rows of a file, in UTF-8 and without comments; where they start, and the number of the first line."""

    data: bytes
    offset: int
    first_line: int


def _separators(delimiter: str | None) -> bytes:
    """Return the bytes that divide fields; those without a delimiter are blanks and tabs."""
    return b" \t" if delimiter is None else delimiter.encode()


@cache
def _row_pattern(delimiter: str | None, comment: str | None) -> re.Pattern[bytes]:
    """Matches a row and its line end: quotes that do not end are group 1 or 2, a comment is 3, the line end 4.

    Quotes count where a field begins, as for `csv.reader`.
    """
    separators, mark = _separators(delimiter), b"" if comment is None else comment.encode()
    plain = rb"[^\r\n" + re.escape(separators + mark) + rb"]*"
    field = rb'(?:"[^"]*(?:""[^"]*)*(?:"(?!")' + plain + rb"|(\Z))|" + plain + rb")"
    more = rb"(?:[" + re.escape(separators) + rb"]" + field + rb")*"
    remark = rb"(" + re.escape(mark) + rb"[^\r\n]*)?" if mark else rb"(\Z\A)?"
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
    stream = cast("IO[bytes]", gzip.open(path) if _is_gzipped(path) else open(path, "rb"))  # noqa: SIM115
    return stream if encoding == UTF_8 else io.BufferedReader(_Recoded(stream, encoding))


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


def _text_blocks(stamp: FileStamp, layout: Layout, offset: int, first_line: int) -> Iterator[TextBlock]:
    """Yield a file's rows from ``offset`` on; the same blocks wherever one of them is started from."""
    encoding, name = layout.text.encoding, stamp.name
    with faults.reading(name):
        stream = _open_stream(stamp.path, encoding)
    with stream:
        with _decoding(name, encoding, first_line):
            skipped = stream.seek(offset) if stream.seekable() else 0
            while skipped < offset and (passed := stream.read(min(offset - skipped, PIECE_BYTES))):
                skipped += len(passed)
        read, ended = b"", False
        while not ended:
            size, end = PIECE_BYTES, 0
            while not ended and end == 0:
                with _decoding(name, encoding, first_line):
                    read += stream.read(max(0, size - len(read)))
                data, ended = read[:size], len(read) < size
                first = LINE_END.search(data)
                wanted = 0 if first is None else min(LINES_PER_BLOCK * first.end(), LONGEST_BLOCK)
                end = _last_end(data, layout) if size >= wanted else 0
                if end == 0 and size >= LONGEST_BLOCK:
                    _check_quotes(data, layout, name, first_line)
                size = max(wanted, 2 * size)
            if ended:
                end = len(read)
                _check_quotes(read, layout, name, first_line)
            if end:
                yield TextBlock(_without_comments(read[:end], layout), offset, first_line)
            offset += end
            first_line += _n_lines(read[:end])
            read = read[end:]


def _last_end(data: bytes, layout: Layout) -> int:
    """Return the end of the last row in ``data`` that ends there, 0 if none does."""
    end = _last_line(data, len(data))
    if b'"' not in data:
        return end
    quotes = _paired_quotes(data, layout)
    if quotes is None:
        ends = (row.end() for row in layout.row.finditer(data) if row[4])
        return max((one for one in ends if one <= end), default=0)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:  # in quotes
        end = _last_line(data, int(quotes[before - 1]))
    return end


def _last_line(data: bytes, stop: int) -> int:
    """Return the end of the last line that ends up to ``stop``; a last carriage return may be half of a line end."""
    return max(data.rfind(b"\n", 0, stop), data.rfind(b"\r", 0, min(stop, len(data) - 1))) + 1


def _paired_quotes(data: bytes, layout: Layout) -> Int64 | None:
    """Return the positions of quotes that begin and end fields in turn, or None where it takes `_row_pattern` to tell.

    Every other quote has to be at the start of a field, or to be the second of two.
    """
    if layout.text.comment is not None and layout.text.comment.encode() in data:
        return None
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == ord('"'))
    opening = quotes[::2]
    before = octets[opening[opening > 0] - 1]
    return quotes if np.isin(before, np.frombuffer(_separators(layout.delimiter) + b'\r\n"', np.uint8)).all() else None


def _check_quotes(data: bytes, layout: Layout, name: str, first_line: int) -> None:
    """Raise ``BadInput`` where quotes do not end in ``data``, which has a row's start at its own."""
    if b'"' not in data:
        return
    quotes = _paired_quotes(data, layout)
    if quotes is not None and len(quotes) % 2 == 0:
        return
    for row in layout.row.finditer(data):
        if row.start(1) >= 0 or row.start(2) >= 0:
            line = first_line + _n_lines(data[: row.start()])
            found = f"a quote that does not end, in the row that begins in line {line}"
            otherwise = "all rows below would be part of one field"
            raise BadInput(name, found, "quotes in pairs", otherwise, "take that quote out, or end it")


def _without_comments(data: bytes, layout: Layout) -> bytes:
    """Return rows without what follows a comment's mark; line ends stay, so that lines keep their numbers."""
    if layout.text.comment is None or layout.text.comment.encode() not in data:
        return data
    pieces, stop = [], 0
    for row in layout.row.finditer(data):
        if row[3]:
            pieces.append(data[stop : row.start(3)])
            stop = row.end(3)
    return b"".join([*pieces, data[stop:]])


class _Row(NamedTuple):
    """A row that is not blank: its offset, the line that it begins in, its bytes without the line end, its fields."""

    offset: int
    line: int
    data: bytes
    fields: list[str] = []  # noqa: RUF012


def _rows(data: bytes, pattern: re.Pattern[bytes], offset: int, line: int) -> Iterator[_Row]:
    """Yield the rows that are not blank, from text that starts at an offset and a line."""
    for row in pattern.finditer(data):
        text = data[row.start() : row.start(3) if row[3] else row.start(4)]
        if text.strip():
            yield _Row(offset + row.start(), line, text)
        line += _n_lines(row[0])


def _rows_of(block: TextBlock, layout: Layout, name: str, errors: str = "replace") -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of the rows that are not blank."""
    for row in _rows(block.data, layout.row, block.offset, block.first_line):
        with _decoding(name, UTF_8, row.line):
            fields = _split_line(row.data.decode("utf-8", errors), layout.delimiter)
        yield row.line, fields


def _line_of(line: int, fields: list[str], column: int) -> int:
    """Return the line that a field begins in; ``line`` is that of the row."""
    return line + sum(_n_lines(field.encode()) for field in fields[:column])


def _parse_columns(
    block: TextBlock, layout: Layout, columns: Sequence[int], name: str, first_row: int = 0
) -> pa.RecordBatch:
    """Return some columns of a block, named by their numbers: numbers, missing ones as nulls, and texts.

    Raises ``BadInput`` for a ragged row, text among numbers, or bytes that are no text, with the line and the column.
    """
    types = {str(column): pa.float64() if column in layout.numeric else pa.string() for column in columns}
    if not block.data.strip():
        return pa.record_batch([pa.array([], kind) for kind in types.values()], names=[*types])
    batch = None
    # pyarrow takes a line of blanks for a text
    texts_alone = layout.n_fields == 1 and pa.string() in types.values()
    if not texts_alone and not (layout.delimiter is None and b'"' in block.data):
        with suppress(pa.ArrowException):  # a damaged block, or a spelling of numbers that pyarrow does not know
            batch = _parse(block, layout, types).combine_chunks().to_batches()[0]
    if batch is None:
        batch = _parse_slowly(block, layout, types, name, first_row)
    for column in layout.texts:
        if column in columns:
            texts = layout.categories(pc.utf8_trim_whitespace(batch.column(str(column))))
            batch = batch.set_column(columns.index(column), str(column), texts)
    return batch


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


def _parse_slowly(
    block: TextBlock, layout: Layout, types: dict[str, pa.DataType], name: str, first_row: int
) -> pa.RecordBatch:
    """Return columns of a block as `_parse_columns` does, field by field, and raise its first fault."""
    columns: dict[int, list[str | float]] = {int(column): [] for column in types}
    text: dict[int, tuple[str, str]] = {}  # column: the first text in it, and where
    spellings: dict[int, Counter[str | None]] = {}
    row = 0
    for line, fields in _rows_of(block, layout, name, "strict" if pa.string() in types.values() else "replace"):
        if len(fields) != layout.n_fields:
            if text:
                break
            raise _ragged_row(name, line, fields, layout)
        for column, values in columns.items():
            if column not in layout.numeric:
                values.append(fields[column])
            elif (number := _number(fields[column].strip(), layout.text)) is not None:
                values.append(number)
            else:
                field, where = fields[column].strip(), f"row {first_row + row} (line {_line_of(line, fields, column)})"
                text.setdefault(column, (field, where))
                spellings.setdefault(column, Counter())[_spelling(field)] += 1
        row += 1
    if text:
        raise _text_columns(name, text, spellings, row, layout)
    return pa.record_batch([pa.array(columns[int(one)], kind) for one, kind in types.items()], names=[*types])


def _check_values(batch: pa.RecordBatch, block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a value that is missing, infinite or too large; says the line and quotes the field."""

    def fault(row: int, column: int, more: str = "") -> BadInput:
        line, fields = next(islice(_rows_of(block, layout, name), row, None))
        line, field = _line_of(line, fields, column), fields[column].strip()
        missing = column in layout.texts or field in MISSING_WORDS
        problem = f"a missing value ({field!r})" if missing else f"the value {field!r}"
        where = f"row {first_row + row} (line {line}), {layout.title(column)}{more}"
        return faults.missing_value(name, where, problem)

    if layout.numbers:
        tensor = batch.select([*map(str, layout.numbers)]).to_tensor(null_to_nan=True, row_major=True)
        values = cast("Float64", tensor.to_numpy())
        finite = ~np.isinf(values) if layout.gaps else np.isfinite(values)
        if not finite.all():
            bad = np.argwhere(~finite)
            more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
            raise fault(int(bad[0, 0]), layout.numbers[bad[0, 1]], more)
        names = None if layout.names is None else [layout.names[column] for column in layout.numbers]
        check_block(values, first_row, name, names, gaps=layout.gaps)
    words = pa.array([*MISSING_WORDS, *NAN_WORDS])
    for column in () if layout.gaps else layout.texts:
        missing = pc.is_in(batch.column(str(column)), value_set=words).to_numpy(zero_copy_only=False)
        if missing.any():
            raise fault(int(np.argmax(missing)), column)


def _check_marks(categories: tuple[Category, ...], layout: Layout, column: int, name: str) -> None:
    """Refuse categories that are all numbers, some of them with marks between thousands."""
    words = [word for word in categories if isinstance(word, str) and category_number(word) is None]
    spellings = {_spelling(word) for word in words}
    settings = (
        "" if None in spellings or layout.text.given.keys() & {"thousands", "decimal"} else _number_format(spellings)
    )
    if "thousands" in settings:
        found = f"numbers such as {words[0]!r} in {layout.title(column)}, a column of one_hot (--one-hot)"
        allowed, otherwise = "categories, or numbers without marks between thousands", "each value would be a feature"
        raise BadInput(name, found, allowed, otherwise, f"{settings}, and leave the column out of one_hot (--one-hot)")


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
    text: TextFormat
    counted: bool  # whether the names are numbers
    features: tuple[int, ...] = ()  # the columns that become features
    texts: tuple[int, ...] = ()  # those of them that are read as text, as they hold categories
    gaps: bool = False  # whether values may be missing

    @cached_property
    def numbers(self) -> list[int]:
        """The columns of features that are read as numbers."""
        texts = set(self.texts)
        return [column for column in self.features if column not in texts]

    @cached_property
    def numeric(self) -> frozenset[int]:
        """The same as a set."""
        return frozenset(self.numbers)

    def title(self, column: int) -> str:
        """Return the name of a column for messages."""
        return column_title(column, self.names)

    @property
    def row(self) -> re.Pattern[bytes]:
        """What ends a row."""
        return _row_pattern(self.delimiter, self.text.comment)

    def categories(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts, of which numbers have a decimal point and no mark between thousands."""
        marks = {self.text.thousands, self.text.decimal} - {None, "."}
        if not marks:
            return texts
        words = texts.dictionary_encode()
        plain = []
        for word in words.dictionary.to_pylist():
            number = _number(word, self.text) if any(str(mark) in word for mark in marks) else None
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


def _find_layout(request: Request) -> Layout:
    """Find the layout of a text table from its first rows; one that holds a column that is asked for is a header."""
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
    header, counted = _header(request, fields)
    if header and len(rows) < 2:
        raise _no_rows(name)
    first = fields[0]
    names = tuple(field.strip() for field in first) if header else None
    label = None if labels_column is None else find_column(name, labels_column, names, len(first))
    index = 0 if names and names[0] == "" and label != 0 and len(names) > 1 else None
    row = rows[1] if header else rows[0]
    return Layout(delimiter, len(first), names, label, index, row.offset, row.line, text, counted)


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


def _first_rows(
    head: bytes, start: _TableStart, text: TextFormat, ended: bool, name: str
) -> tuple[str | None, list[_Row]]:
    """Return the delimiter, None for runs of blanks, and the first rows; whole ones, unless the file has ``ended``."""
    given = text.delimiter or start.delimiter
    candidates = (given,) if given else sorted(DELIMITERS, key=lambda mark: mark == text.decimal)
    best: tuple[int, str | None, list[_Row]] = (-1, ",", [])
    for mark in candidates:
        delimiter = None if mark == " " else mark
        # the last one may be half a row
        found = list(
            islice(
                _rows(head[start.offset :], _row_pattern(delimiter, text.comment), start.offset, start.line),
                SAMPLE_ROWS + 1,
            )
        )
        found = found[:SAMPLE_ROWS] if ended or len(found) > SAMPLE_ROWS else found[:-1]
        rows = []
        for row in found:
            with _decoding(name, UTF_8, row.line):
                rows.append(row._replace(fields=_split_line(row.data.decode("utf-8"), delimiter)))
        sizes = Counter(len(row.fields) for row in rows)
        agreement = max((number for fields, number in sizes.items() if fields > 1), default=0)
        if agreement > best[0]:  # the first of equals
            best = (agreement, delimiter, rows)
    if best[0] == 0 and given is None:  # one column
        return _first_rows(head, start, replace(text, delimiter="\t" if text.decimal == "," else ","), ended, name)
    return best[1], best[2]


def _title_lines(name: str, rows: list[_Row], usual: int) -> BadInput:
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


def _header(request: Request, rows: list[list[str]]) -> tuple[bool, bool]:
    """Return whether the first row names the columns, and whether it does so by numbers; warns where it is unclear."""
    text, labels_column = request.text, request.labels_column
    first = [field.strip() for field in rows[0]]
    number = None if labels_column is None else whole_number(labels_column)
    label = number % len(first) if number is not None and -len(first) <= number < len(first) else None
    words = [
        {column for column, field in enumerate(row) if column != label and _number(field.strip(), text) is None}
        for row in rows[:2]
    ]
    numbers = [column for column, field in enumerate(first) if _number(field, text) is not None]
    if text.header != "auto":
        return text.header == "yes", text.header == "yes" and not words[0]
    asked = () if request.features is None else request.features.mentioned
    titles = (title for title in (labels_column, *asked) if isinstance(title, str))
    expected_names = {title for title in titles if whole_number(title) is None}
    if not expected_names.isdisjoint(first):
        return True, not words[0]
    # The same columns hold text in the second row and others hold numbers: data with text columns, not a header.
    alike = len(rows) > 1 and words[0] == words[1] and len(words[0]) < len(first) - (label is not None)
    if words[0] and not alike:
        return True, False
    if isinstance(request.features, FittedFeatures) and set(asked) <= set(first):
        return True, True
    if words[0] and len(numbers) < 2:
        return False, False
    is_header, unclear = _are_names(
        [first[column] for column in numbers],
        [[row[column].strip() for column in numbers] for row in rows[1:] if len(row) == len(first)],
        text,
    )
    if unclear:
        taken, other, word = ("names", "a sample", "no") if is_header else ("a sample", "names", "yes")
        warnings.warn(
            f"{request.name}: its first row ({faults.listing(first)}) could be names or a sample, and is taken for "
            f"{taken}; header={word!r} (--header {word}) makes it {other}",
            IPS2Warning,
            stacklevel=2,
        )
    return is_header, is_header


MOST_RISING = 0.75
"""Share of rows that rise from column to column, above which a first row that does so is one of them."""

UNLIKELY = 0.01
"""Chance up to which a row of numbers is taken for names: that a sample is outside of all ranges of those below it."""


def _are_names(first: list[str], rows: list[list[str]], text: TextFormat) -> tuple[bool, bool]:
    """Return whether a first row of numbers names the columns of the rows below it, and whether that is unclear.

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
        return False, False
    fractions = [all(set(row[column]) & set(".,eE") for row in rows) for column in range(n)]
    whole = all(field.isdecimal() for field in first)
    unlike = whole and any(fractions)
    if n > 1 and not indexed and (np.diff(below, axis=1) == 1).all():
        return False, False
    if first in ([str(column + start) for column in range(n)] for start in (0, 1)) and (n > 2 or indexed or unlike):
        return True, not (unlike or (indexed and first[0] == "0"))
    rising = np.mean((np.diff(below, axis=1) > 0).all(axis=1))
    default = first == ["0", "1"][:n] and not np.isin(below, (0, 1)).all()  # pandas' names, or a sample
    if n == 1 or rising > MOST_RISING:
        return False, default
    outside = bool(((values < np.fmin.reduce(below)) | (values > np.fmax.reduce(below))).all())
    chance = (2 / (len(rows) + 1)) ** n
    if outside and (indexed or (unlike and all(fractions)) or chance <= UNLIKELY):
        return True, True
    return False, default or indexed or (n > 4 and len(rows) > 2)


def _no_rows(name: str) -> BadInput:
    return BadInput(
        name,
        "no row of data",
        "at least one row of numbers",
        "there would be nothing to cluster",
        "check that it is the right file and was written whole",
    )

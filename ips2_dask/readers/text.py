"""Text tables, plain or gzipped: one pass checks every value and counts the rows, later ones read blocks of lines."""

from __future__ import annotations

import csv
import gzip
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ips2_dask.errors import BadInput
from ips2_dask.readers import columns as cols
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, FileStamp, Request, Table, check_block
from ips2_dask.readers.features import USUAL, UTF_8, Category, FittedFeatures, TextFormat, category_text
from ips2_dask.readers.records import Batches, numbered_columns, open_batches
from ips2_dask.typing import Float64
from ips2_dask.wording import count

Types = dict[str, Any]  # of pyarrow, by the names of columns


@dataclass(kw_only=True)
class _TextBatches(Batches):
    """A text table by blocks of lines, each of which is a group of rows; lines count from 1, bytes and rows from 0."""

    stamp: FileStamp
    text: TextFormat
    delimiter: str | None  # None: runs of blanks and tabs
    n_fields: int
    blocks: list[tuple[int, int]]  # byte in the unpacked text, and line, that the first row of each begins at
    numbers: dict[int, None] = field(default_factory=dict)  # the columns of features that are read as numbers, in order
    texts: tuple[int, ...] = ()  # those that are read as text, as they hold categories
    gaps: bool = False  # whether values may be missing
    held: bool = False
    typed: bool = False

    def title(self, column: int) -> str:
        """Return the name of a column for messages."""
        return cols.column_title(column, self.titles)

    def rows_of(self, data: bytes) -> Iterator[re.Match[bytes]]:
        """Find the rows in some data by their delimiter and the mark of comments."""
        return _row_pattern(self.delimiter, self.text.comment).finditer(data)

    def batches(self, groups: Sequence[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        wanted = [int(column) for column in columns]
        self.stamp.check()
        for block in islice(_text_blocks(self, *self.blocks[groups[0]]), len(groups)):
            yield _parse_columns(block, self, wanted)

    def digest(self, label: int | None) -> str:
        # what the values depend on besides the bytes of a usual file
        return self.stamp.digest("text", label, *self.text.given.items(), self.blocks[0][0])

    def examined(self, chosen: cols.Chosen, category_sets: dict[int, cols.CategorySet]) -> Batches:
        """Check every value, note where the blocks of lines start, and collect the categories."""
        kept = list(zip(chosen.kept, chosen.have_categories, strict=True))
        texts, numbers = tuple(place for place, one in kept if one), {place: None for place, one in kept if not one}
        gaps, starts, blocks = chosen.features.missing != "refuse", [0], []
        source = replace(self, numbers=numbers, texts=texts, gaps=gaps)
        for block in _text_blocks(source, *self.blocks[0]):
            batch = _parse_columns(block, source, chosen.kept, starts[-1])
            _check_values(batch, block, source, starts[-1])
            for place, collected in category_sets.items():
                collected.add(batch.column(str(place)).unique().to_pylist())
            blocks.append((block.offset, block.first_line))
            starts.append(starts[-1] + batch.num_rows)
        for place, collected in category_sets.items():
            _check_marks(collected.categories(), source, place)
        schema = pa.schema([(str(place), pa.float64()) for place in source.numbers])
        return replace(source, blocks=blocks, starts=starts, schema=schema)

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


LINES_PER_BLOCK = 64  # at least, as pyarrow takes some microseconds per column and block
LONGEST_BLOCK = 64 << 20
LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class _TextBlock:
    """Some whole rows of a file, in UTF-8 and without comments; where they start, and the number of the first line."""

    data: bytes
    offset: int
    first_line: int


@cache
def _row_pattern(delimiter: str | None, comment: str | None) -> re.Pattern[bytes]:
    """Matches a row and its line end: quotes that do not end are group 1 or 2, a comment is 3, the line end 4.

    Quotes count where a field begins, as for `csv.reader`.
    """
    separators, mark = (delimiter or " \t").encode(), b"" if comment is None else comment.encode()
    plain = rb"[^\r\n" + re.escape(separators + mark) + rb"]*"
    field = rb'(?:"[^"]*(?:""[^"]*)*(?:"(?!")' + plain + rb"|(\Z))|" + plain + rb")"
    more = rb"(?:[" + re.escape(separators) + rb"]" + field + rb")*"
    remark = rb"(" + re.escape(mark) + rb"[^\r\n]*)?" if mark else rb"(\Z\A)?"
    return re.compile(field + more + remark + rb"(\r\n|\r|\n|\Z)")


def _is_gzipped(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b" or path.endswith(".gz")


def _open_stream(path: str, encoding: str) -> IO[bytes]:
    """Open a text file, unpacked if it is gzipped, and in UTF-8."""
    stream = cast("IO[bytes]", gzip.open(path) if _is_gzipped(path) else open(path, "rb"))  # noqa: SIM115
    return stream if encoding == UTF_8 else pa.transcoding_input_stream(pa.PythonFile(stream, "r"), encoding, UTF_8)


@contextmanager
def _decoding(name: str, encoding: str, first_line: int) -> Iterator[None]:
    """Raise what a library says of a file's bytes as a ``BadInput``, and say which of them are not in its encoding."""
    with faults.reading(name):
        try:
            yield
        except UnicodeError as error:
            what = f"bytes ({error})"
            if isinstance(error, UnicodeDecodeError):
                line = first_line + _n_lines(error.object[: error.start]) * (encoding == UTF_8)
                below = " or below" * (encoding != UTF_8)
                what = f"the byte 0x{error.object[error.start]:02x} in line {line}{below}"
            others = "latin-1, cp1252 or utf-16" if encoding == UTF_8 else "utf-8, latin-1, utf-16-le or utf-16-be"
            found, allowed = f"{what}, no {encoding.upper()}", f"text in {encoding.upper()}"
            remedy = f"give the encoding that it was saved in (encoding, --encoding): {others}, for instance"
            faults.throw(BadInput(name, found, allowed, "names and categories would be misread", remedy))


def _n_lines(data: bytes) -> int:
    returns = data.count(b"\r")
    return data.count(b"\n") + (returns - data.count(b"\r\n") if returns else 0)


def _text_blocks(source: _TextBatches, offset: int, first_line: int) -> Iterator[_TextBlock]:
    """Yield a file's rows from ``offset`` on; the same blocks wherever one of them is started from."""
    encoding, read, ended = source.text.encoding, b"", False
    with _decoding(source.name, encoding, first_line), _open_stream(source.stamp.path, encoding) as stream:
        skipped = stream.seek(offset) if stream.seekable() else 0
        while skipped < offset and (passed := stream.read(min(offset - skipped, PIECE_BYTES))):
            skipped += len(passed)
        while not ended:
            size, end = PIECE_BYTES, 0
            while not ended and end == 0:
                read += stream.read(max(0, size - len(read)))
                data, ended = read[:size], len(read) < size
                first = LINE_END.search(data)
                wanted = 0 if first is None else min(LINES_PER_BLOCK * first.end(), LONGEST_BLOCK)
                end = _last_end(data, source) if size >= wanted else 0
                if end == 0 and size >= LONGEST_BLOCK:
                    _check_quotes(data, source, first_line)
                size = max(wanted, 2 * size)
            if ended:
                end = len(read)
                _check_quotes(read, source, first_line)
            if end:
                yield _TextBlock(_without_comments(read[:end], source), offset, first_line)
            offset += end
            first_line += _n_lines(read[:end])
            read = read[end:]


def _last_end(data: bytes, source: _TextBatches) -> int:
    """Return the end of the last row in ``data`` that ends there, 0 if none does."""
    # a last carriage return may be half of a line end
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    if b'"' not in data:
        return end
    rows = source.rows_of(data)
    return max((row.end() for row in rows if row[4] and row.end() <= end), default=0)


def _check_quotes(data: bytes, source: _TextBatches, first_line: int) -> None:
    """Raise ``BadInput`` where quotes do not end in ``data``, which has a row's start at its own."""
    for row in source.rows_of(data) if b'"' in data else ():
        if row.start(1) >= 0 or row.start(2) >= 0:
            line = first_line + _n_lines(data[: row.start()])
            found = f"a quote that does not end, in the row that begins in line {line}"
            otherwise = "all rows below would be part of one field"
            raise BadInput(source.name, found, "quotes in pairs", otherwise, "take that quote out, or end it")


def _without_comments(data: bytes, source: _TextBatches) -> bytes:
    """Return rows without what follows a comment's mark; line ends stay, so that lines keep their numbers."""
    if source.text.comment is None or source.text.comment.encode() not in data:
        return data
    pieces, stop = [], 0
    for row in source.rows_of(data):
        if row[3]:
            pieces.append(data[stop : row.start(3)])
            stop = row.end(3)
    return b"".join([*pieces, data[stop:]])


class _Row(NamedTuple):
    """A row that is not blank: its offset, the line that it begins in, and its fields."""

    offset: int
    line: int
    fields: list[str]


def _rows(block: _TextBlock, row_format: tuple[str | None, str | None], name: str, errors: str) -> Iterator[_Row]:
    """Yield the rows that are not blank; their format is a delimiter and a comment's mark."""
    line = block.first_line
    for row in _row_pattern(*row_format).finditer(block.data):
        text = block.data[row.start() : row.start(3) if row[3] else row.start(4)]
        if text.strip():
            with _decoding(name, UTF_8, line):
                fields = _split_line(text.decode("utf-8", errors), row_format[0])
            yield _Row(block.offset + row.start(), line, fields)
        line += _n_lines(row[0])


def _line_of(line: int, fields: list[str], column: int) -> int:
    """Return the line that a field begins in; ``line`` is that of the row."""
    return line + sum(_n_lines(field.encode()) for field in fields[:column])


def _parse_columns(
    block: _TextBlock, source: _TextBatches, columns: Sequence[int], first_row: int = 0
) -> pa.RecordBatch:
    """Return some columns of a block, named by their numbers: numbers, missing ones as nulls, and texts."""
    types = {str(column): pa.float64() if column in source.numbers else pa.string() for column in columns}
    if not block.data.strip():
        return pa.record_batch([pa.array([], kind) for kind in types.values()], names=[*types])
    batch = None
    # pyarrow takes a line of blanks for a text
    texts_alone = source.n_fields == 1 and pa.string() in types.values()
    if not texts_alone and not (source.delimiter is None and b'"' in block.data):
        with suppress(pa.ArrowException):  # a damaged block, or a spelling of numbers that pyarrow does not know
            batch = _parse(block, source, types).combine_chunks().to_batches()[0]
    if batch is None:
        batch = _parse_slowly(block, source, types, first_row)
    for column in source.texts:
        if column in columns:
            texts = source.categories(pc.utf8_trim_whitespace(batch.column(str(column))))
            batch = batch.set_column(columns.index(column), str(column), texts)
    return batch


def _parse(block: _TextBlock, source: _TextBatches, types: Types) -> pa.Table:
    data = block.data
    if source.delimiter is None:
        data = data.replace(b"\t", b" ").replace(b"\r\n", b"\n")
        while b"  " in data:
            data = data.replace(b"  ", b" ")
        data = data.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
    titles = [str(column) for column in range(source.n_fields)]
    read = pacsv.ReadOptions(column_names=titles, block_size=max(len(data) + 1, 64), use_threads=False)
    missing, mark = [*cols.MISSING_WORDS], source.text.decimal
    convert = pacsv.ConvertOptions(
        column_types=types, include_columns=[*types], null_values=missing, decimal_point=mark
    )
    split = pacsv.ParseOptions(delimiter=source.delimiter or " ")
    return pacsv.read_csv(pa.BufferReader(data), read_options=read, parse_options=split, convert_options=convert)


def _parse_slowly(block: _TextBlock, source: _TextBatches, types: Types, first_row: int) -> pa.RecordBatch:
    """Return columns of a block as `_parse_columns` does, field by field, and raise its first fault."""
    columns: dict[int, list[str | float]] = {int(column): [] for column in types}
    text: dict[int, tuple[str, list[str]]] = {}  # column: where its first text is, and its texts
    row = 0
    errors = "strict" if pa.string() in types.values() else "replace"
    for _, line, fields in _rows(block, (source.delimiter, source.text.comment), source.name, errors):
        if len(fields) != source.n_fields:
            if text:
                break
            delimiter = {None: "blanks", "\t": "tabs"}.get(source.delimiter, repr(source.delimiter))
            last = _line_of(line, fields, len(fields))
            lines = f"line {line}" if last == line else f"lines {line} to {last}, which quotes hold together"
            found = f"{len(fields)} fields (divided by {delimiter}) in {lines}"
            allowed = f"{source.n_fields} fields in every row, as in the first"
            otherwise = "values would end up under the wrong feature"
            raise BadInput(source.name, found, allowed, otherwise, f"correct or drop {lines.partition(',')[0]}")
        for column, values in columns.items():
            if column not in source.numbers:
                values.append(fields[column])
            elif (number := _number(fields[column].strip(), source.text)) is not None:
                values.append(number)
            else:
                field, at = fields[column].strip(), _line_of(line, fields, column)
                where = f"{field[:40]!r} in row {first_row + row} (line {at})"
                text.setdefault(column, (where, []))[1].append(field)
        row += 1
    if text:
        first, titles = min(text), faults.listing([source.title(column) for column in sorted(text)])
        problem = f"text in {count(len(text), 'column')} ({titles}), the first is {text[first][0]}"
        settings = _number_format([words for _, words in text.values()], row)
        if source.n_fields == 1 and (mark := re.search(r"[^\w\s.,;+-]", text[first][1][0])):
            settings = f"for more columns give delimiter={mark[0]!r} (--delimiter {_quoted(mark[0])})"
        raise faults.textual(source.name, problem, settings)
    return pa.record_batch([pa.array(columns[int(one)], kind) for one, kind in types.items()], names=[*types])


def _check_values(batch: pa.RecordBatch, block: _TextBlock, source: _TextBatches, first_row: int) -> None:
    """Raise ``BadInput`` for a value that is missing, infinite or too large; says the line and quotes the field."""

    def fault(row: int, column: int, more: str = "") -> BadInput:
        _, line, fields = next(
            islice(_rows(block, (source.delimiter, source.text.comment), source.name, "replace"), row, None)
        )
        line, field = _line_of(line, fields, column), fields[column].strip()
        missing = column in source.texts or field in cols.MISSING_WORDS
        problem = f"a missing value ({field!r})" if missing else f"the value {field!r}"
        where = f"row {first_row + row} (line {line}), {source.title(column)}{more}"
        return faults.missing_value(source.name, where, problem)

    if source.numbers:
        tensor = batch.select([*map(str, source.numbers)]).to_tensor(null_to_nan=True, row_major=True)
        values = cast("Float64", tensor.to_numpy())
        finite = ~np.isinf(values) if source.gaps else np.isfinite(values)
        if not finite.all():
            bad = np.argwhere(~finite)
            more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
            raise fault(int(bad[0, 0]), [*source.numbers][bad[0, 1]], more)
        names = None if source.titles is None else [source.titles[column] for column in source.numbers]
        check_block(values, first_row, source.name, names, gaps=source.gaps)
    words = pa.array([*cols.MISSING_WORDS, *cols.NAN_WORDS])
    for column in () if source.gaps else source.texts:
        missing = pc.is_in(batch.column(str(column)), value_set=words).to_numpy(zero_copy_only=False)
        if missing.any():
            raise fault(int(np.argmax(missing)), column)


def _check_marks(categories: tuple[Category, ...], source: _TextBatches, column: int) -> None:
    """Refuse categories that are all numbers, some of them with marks between thousands."""
    words = [word for word in categories if isinstance(word, str) and cols.category_number(word) is None]
    settings = "" if source.text.given.keys() & {"thousands", "decimal"} else _number_format([words])
    if "thousands" in settings:
        found = f"numbers such as {words[0]!r} in {source.title(column)}, a column of one_hot (--one-hot)"
        allowed, otherwise = "categories, or numbers without marks between thousands", "each value would be a feature"
        raise BadInput(
            source.name, found, allowed, otherwise, f"{settings}, and leave the column out of one_hot (--one-hot)"
        )


DELIMITERS = ("\t", ";", ",", None)  # None: runs of blanks and tabs
SAMPLE_ROWS = 32
BOM = b"\xef\xbb\xbf"
SEPARATOR_LINE = re.compile(rb'"?sep=(.)"?(\r\n|\r|\n)', re.IGNORECASE)  # Excel's
NUMBER_FORMATS = (
    *(TextFormat(thousands=mark) for mark in ",'_ \xa0"),
    TextFormat(decimal=","),
    *(TextFormat(thousands=mark, decimal=",") for mark in ".'_ \xa0"),
)
"""Other spellings of numbers, the simple ones first."""


@cache
def _grouped(mark: str) -> re.Pattern[str]:
    """Matches the start of a number with a mark between groups of three digits."""
    return re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{3}})+(?![0-9{re.escape(mark)}])")


def _number(field: str, text: TextFormat) -> float | None:
    """Return the number that a field without outer blanks is, NaN if it is missing, None if it is text."""
    if field in cols.MISSING_WORDS:
        return np.nan
    if text.thousands is not None and (match := _grouped(text.thousands).match(field)):
        field = match[0].replace(text.thousands, "") + field[match.end() :]
    if text.decimal != ".":
        field = "" if "." in field else field.replace(text.decimal, ".")
    return float(field) if cols.NUMBER.fullmatch(field) else None


def _quoted(mark: str) -> str:
    return mark if shlex.quote(mark) == mark else repr(mark)


def _number_format(columns: list[list[str]], n_rows: int = 0) -> str:
    """Return the settings with which all texts of columns are numbers; of columns that could not be, none counts."""
    fitting = [{one for one in NUMBER_FORMATS if _fits(words, one, n_rows)} for words in columns]
    common = set(NUMBER_FORMATS).intersection(*filter(None, fitting)) if any(fitting) else set()
    found = [one.given for one in NUMBER_FORMATS if one in common]
    simple = [one for one in found if len(one) == 1] or found[:1]
    options = [
        " and ".join(f"{name}={mark!r} (--{name} {_quoted(str(mark))})" for name, mark in one.items()) for one in simple
    ]
    return "for numbers give " + " or ".join(options) if options else ""


def _fits(words: list[str], text: TextFormat, n_rows: int) -> bool:
    """Return whether texts are numbers of a format, or are two in every row, as decimal commas taken for delimiters."""
    if all(_number(word.strip(), USUAL) is None and _number(word, text) is not None for word in words):
        return bool(words)
    two = all(len(word.split()) > 1 and all(map(cols.NUMBER.fullmatch, word.split())) for word in words)
    return text.given == {"decimal": ","} and two and len(words) == n_rows


def _split_line(line: str, delimiter: str | None) -> list[str]:
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


def _head(request: Request) -> tuple[str | None, list[_Row]]:
    """Return the delimiter of a text file, None for runs of blanks, and its first rows."""
    head, encoding = b"", request.text.encoding
    with _decoding(request.name, encoding, 1), _open_stream(request.path, encoding) as stream:
        while True:
            size = len(head) + max(PIECE_BYTES, len(head))
            head += stream.read(size - len(head))
            ended = len(head) < size
            delimiter, rows = _first_rows(*_table_start(head, request, ended), request, ended)
            if ended or len(rows) > 1:
                return delimiter, rows


def open_text(request: Request) -> Table:
    """Return the table of a text file, of which one column may hold the labels."""
    stamp, (delimiter, rows) = FileStamp.of(request), _head(request)
    name, labels_column, text = request.name, request.labels_column, request.text
    fields = [row.fields for row in rows] or [[""]]
    counts = Counter(map(len, fields[1:]))
    usual = max(counts, key=counts.__getitem__, default=len(fields[0]))
    # R writes no title over the names of rows; delimiters after the last field look like that, too
    fewer = len(fields[0]) == usual - 1 and len(counts) == 1
    filled = any(row[-1].strip() for row in fields[1:])
    if fewer and filled and (text.header == "yes" or (text.header == "auto" and _begins_as_of_r(fields, text))):
        fields[0] = ["", *fields[0]]
    elif len(fields[0]) != usual and counts[usual] > max(1, counts[len(fields[0])]) and (filled or not fewer):
        n, skip = len(fields[0]), next(row.line for row in rows if len(row.fields) == usual) - 1
        mark = rows[0].fields[0].lstrip()[:1]
        more = f", or comment={mark!r} (--comment {_quoted(mark)})" if mark and mark in "#%@!*/" else ""
        more += ", or header='yes' (--header yes) if it names columns, and the first the rows" * (usual == n + 1)
        remedy = (
            f"leave it out: skip_lines={skip} (--skip-lines {skip}){more}; other delimiters: delimiter (--delimiter)"
        )
        found = f"{count(n, 'field')} in line {rows[0].line}, {rows[0].fields[0][:40]!r}; rows below have {usual}"
        allowed, otherwise = f"{usual} fields in every row", "a title would be taken for the names of columns"
        raise BadInput(name, found, allowed, otherwise, remedy)
    header = _header(request, fields)
    if len(rows) <= header:
        allowed, otherwise = "at least one row of numbers", "there would be nothing to cluster"
        remedy = "check that it is the right file and was written whole"
        raise BadInput(name, "no row of data", allowed, otherwise, remedy)
    first = fields[0]
    names = tuple(field.strip() for field in first) if header else None
    label = None if labels_column is None else cols.find_column(name, labels_column, names, len(first))
    index = 0 if names and names[0] == "" and label != 0 and len(names) > 1 else None
    row, columns = rows[1] if header else rows[0], numbered_columns(names, len(first))
    source = _TextBatches(
        name=name,
        starts=[0],
        columns=columns,
        titles=names,
        hidden=() if index is None else (index,),
        index=None if index is None else columns[index],
        parallel=text.encoding == UTF_8 and not _is_gzipped(request.path),
        stamp=stamp,
        text=text,
        delimiter=delimiter,
        n_fields=len(first),
        blocks=[(row.offset, row.line)],
    )
    return open_batches(source, request)


def _begins_as_of_r(rows: list[list[str]], text: TextFormat) -> bool:
    """Return whether a first row with a field less than all below may be R's: names, and below it no other header."""
    if len(rows) < 3 or len(rows[0]) < 2 or all(_number(field.strip(), text) is not None for field in rows[0]):
        return False
    below = zip(rows[1][1:], rows[2][1:], strict=True)
    return all(_number(b.strip(), text) is None for a, b in below if _number(a.strip(), text) is None)


def _table_start(head: bytes, request: Request, ended: bool) -> tuple[_TextBlock, str | None]:
    """Return a table's lines, after a byte order mark and what is left out, and its delimiter if a line says it."""
    text = request.text
    if text.encoding == UTF_8 and (head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4096]):
        found = "bytes that are not text in UTF-8 (UTF-16, or a binary file)"
        allowed = "text in UTF-8, or in the encoding that is given"
        remedy = "give encoding='utf-16' (--encoding utf-16), or the file the ending of its format"
        raise BadInput(request.name, found, allowed, "its numbers can't be told from one another", remedy)
    offset, line, delimiter = len(BOM) if head.startswith(BOM) else 0, 1 + text.skip_lines, text.delimiter
    ends = [match.end() for match in islice(LINE_END.finditer(head, offset), text.skip_lines)]
    if text.skip_lines:
        offset = ends[-1] if len(ends) == text.skip_lines else len(head)
    if match := SEPARATOR_LINE.match(head, offset):
        offset, line, delimiter = match.end(), line + 1, delimiter or match[1].decode("ascii", "replace")
    stop = len(head) if ended else max(head.rfind(b"\n"), head.rfind(b"\r")) + 1  # a character may be half there
    return _TextBlock(head[offset:stop], offset, line), delimiter


def _first_rows(block: _TextBlock, given: str | None, request: Request, ended: bool) -> tuple[str | None, list[_Row]]:
    """Return the delimiter, None for runs of blanks, and the first rows; whole ones, unless the file has ``ended``."""
    text, found = request.text, []
    for mark in (given,) if given else sorted(DELIMITERS, key=lambda mark: mark == text.decimal):
        delimiter = None if mark == " " else mark
        rows = list(islice(_rows(block, (delimiter, text.comment), request.name, "strict"), SAMPLE_ROWS + 1))
        rows = rows[:SAMPLE_ROWS] if ended or len(rows) > SAMPLE_ROWS else rows[:-1]  # the last one may be half a row
        sizes = Counter(len(row.fields) for row in rows)
        found.append((max((number for fields, number in sizes.items() if fields > 1), default=0), delimiter, rows))
    agreement, delimiter, rows = max(found, key=lambda one: one[0])  # the first of equals
    if agreement == 0 and given is None:  # one column
        return _first_rows(block, "\t" if text.decimal == "," else ",", request, ended)
    return delimiter, rows


def _header(request: Request, rows: list[list[str]]) -> bool:
    text, labels_column = request.text, request.labels_column
    if text.header != "auto":
        return text.header == "yes"
    first = [field.strip() for field in rows[0]]
    asked = request.features.mentioned
    titles = (title for title in (labels_column, *asked) if isinstance(title, str))
    if not {title for title in titles if cols.whole_number(title) is None}.isdisjoint(first):
        return True
    number = None if labels_column is None else cols.whole_number(labels_column)
    label = number % len(first) if number is not None and -len(first) <= number < len(first) else None
    words = [
        {column for column, field in enumerate(row) if column != label and _number(field.strip(), text) is None}
        for row in rows[:2]
    ]
    # The same columns hold text in the second row and others hold numbers: data with text columns, not a header.
    alike = len(rows) > 1 and words[0] == words[1] and len(words[0]) < len(first) - (label is not None)
    counted = ["", *map(str, range(len(first) - 1))]  # as pandas writes it over names of rows
    of_the_run = isinstance(request.features, FittedFeatures) and set(asked) <= set(first)
    return bool(words[0] and not alike) or (len(first) > 1 and first == counted) or of_the_run

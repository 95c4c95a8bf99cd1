"""Text tables in blocks of whole lines: reading them, and turning each into numbers or saying why it can't be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, check_block
from ips2_dask.readers.categories import MISSING_WORDS, NAN_WORDS, is_number
from ips2_dask.readers.text_layout import Layout

LINES_PER_BLOCK = 64  # at least, as pyarrow takes some microseconds per column and block
LONGEST_BLOCK = 64 << 20


@dataclass(frozen=True)
class TextBlock:
    """Some whole lines of a file: their bytes, where they start, and the number of the first."""

    data: bytes
    offset: int
    first_line: int


def is_packed(path: str) -> bool:
    """Return whether a file is gzipped, by its first bytes or its name."""
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b" or path.endswith(".gz")


def open_text(path: str) -> IO[bytes]:
    """Open a text file, unpacked if it is gzipped."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if is_packed(path) else open(path, "rb")


def text_blocks(path: str, name: str, offset: int = 0, first_line: int = 1) -> Iterator[TextBlock]:
    """Yield a file's lines from ``offset`` on; the same blocks wherever one of them is started from."""
    with faults.reading(name):
        stream = open_text(path)
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


def lines_of(block: TextBlock, errors: str = "replace") -> Iterator[tuple[int, str]]:
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


class Columns(NamedTuple):
    """The features of a block."""

    numbers: NDArray[np.float64]  # (rows, columns of numbers), missing values as NaN
    texts: list[Any]  # a pyarrow.StringArray for each column of text, without blanks around the fields


def parse_columns(block: TextBlock, layout: Layout, name: str, first_row: int) -> Columns:
    """Return the features of a block, columns of numbers and columns of text apart; raises as `parse_numbers`."""
    if not block.data.strip():
        return Columns(np.empty((0, len(layout.numbers))), [pa.array([], pa.string()) for _ in layout.texts])
    types = {str(column): pa.float64() for column in layout.numbers}
    types |= {str(column): pa.string() for column in layout.texts}
    try:
        table = _parse(block, layout, types)
    except pa.ArrowException:  # a damaged block, or a spelling of numbers that pyarrow does not know
        return parse_slowly(block, layout, name, first_row)
    batch = table.combine_chunks().to_batches()[0]
    texts = [pc.utf8_trim_whitespace(batch.column(str(column))) for column in layout.texts]
    if not layout.numbers:
        return Columns(np.empty((batch.num_rows, 0)), texts)
    tensor = batch.select([str(column) for column in layout.numbers]).to_tensor(null_to_nan=True, row_major=True)
    return Columns(cast("NDArray[np.float64]", tensor.to_numpy()), texts)


def parse_texts(block: TextBlock, layout: Layout, column: int, name: str) -> list[str]:
    """Return one column of a block as text."""
    if not block.data.strip():
        return []
    try:
        return cast("list[str]", _parse(block, layout, {str(column): pa.string()}).column(0).to_pylist())
    except pa.ArrowException:
        with faults.reading(name):
            return [layout.split(line)[column] for _, line in lines_of(block, "strict")]


def _parse(block: TextBlock, layout: Layout, types: dict[str, Any]) -> Any:
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


def parse_slowly(block: TextBlock, layout: Layout, name: str, first_row: int) -> Columns:
    """Return the features of a block as `parse_columns` does, field by field, and raise what is wrong with it."""
    rows: list[list[float]] = []
    categories: list[list[str]] = [[] for _ in layout.texts]
    text: dict[int, str] = {}  # column: the first text in it, and where
    with faults.reading(name):
        lines = list(lines_of(block, "strict" if layout.texts else "replace"))
    for number, line in lines:
        with faults.reading(name):
            fields = layout.split(line)
        if len(fields) != layout.n_fields:
            if text:
                break
            raise _ragged(name, number, len(fields), layout)
        values = []
        for column, found in zip(layout.texts, categories, strict=True):
            found.append(fields[column].strip())
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
    return Columns(numbers, [pa.array(found, pa.string()) for found in categories])


def check_numbers(values: NDArray[np.float64], block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a missing, infinite or too large value; says the line and what is written there."""
    finite = ~np.isinf(values) if layout.gaps else np.isfinite(values)
    if finite.all():
        names = layout.names
        check_block(
            values, first_row, name, [names[column] for column in layout.numbers] if names else None, gaps=layout.gaps
        )
        return
    bad = np.argwhere(~finite)
    row, position = (int(index) for index in bad[0])
    number, line = list(lines_of(block))[row]
    column = layout.numbers[position]
    field = layout.split(line)[column].strip()
    found = f"a missing value ({field!r})" if field in MISSING_WORDS else f"the value {field!r}"
    more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
    raise faults.missing_value(name, f"row {first_row + row} (line {number}), {layout.title(column)}{more}", found)


def check_texts(texts: list[Any], block: TextBlock, layout: Layout, name: str, first_row: int) -> None:
    """Raise ``BadInput`` for a missing value in a column of categories, unless values may be missing."""
    words = pa.array([*MISSING_WORDS, *NAN_WORDS])
    for column, found in zip(layout.texts, texts, strict=True):
        missing = np.asarray(pc.is_in(found, value_set=words).to_numpy(zero_copy_only=False), np.bool_)
        if missing.any() and not layout.gaps:
            row = int(np.argmax(missing))
            number, _ = list(lines_of(block))[row]
            where = f"row {first_row + row} (line {number}), {layout.title(column)}"
            raise faults.missing_value(name, where, f"a missing value ({found[row].as_py()!r})")


def _ragged(name: str, number: int, count: int, layout: Layout) -> BadInput:
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
    found = f"text in {len(columns)} column{'s' * (len(columns) > 1)} ({titles}), the first is {text[columns[0]]}"
    if layout.delimiter == ";" and all("," in value for value in text.values()):
        found += "; decimal commas have to be points"
    return faults.textual(name, found)


def head_of(path: str, name: str) -> bytes:
    """Return the first block of a file."""
    block = next(text_blocks(path, name), None)
    return block.data if block else b""

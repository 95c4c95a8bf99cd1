"""How a text table is laid out: its delimiter, whether it has a header, and which columns are features."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.categories import is_number
from ips2_dask.readers.labels import find_column, whole_number

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
    kept: tuple[int, ...] | None = None  # the columns that are features, where not all others are
    texts: tuple[int, ...] = ()  # those of them that are read as text, as they hold categories
    gaps: bool = False  # whether values may be missing

    @cached_property
    def features(self) -> list[int]:
        """The columns that hold features."""
        if self.kept is not None:
            return list(self.kept)
        return [column for column in range(self.n_fields) if column not in (self.label, self.index)]

    @cached_property
    def numbers(self) -> list[int]:
        """Those that are read as numbers."""
        return [column for column in self.features if column not in self.texts]

    def feature_names(self) -> list[str] | None:
        """Return the names of the features, if the file has a header."""
        return [self.names[column] for column in self.features] if self.names else None

    def title(self, column: int) -> str:
        """Return what a message calls a column."""
        return f"column {column}" + (f" ({self.names[column]!r})" if self.names else "")

    def split(self, line: str) -> list[str]:
        """Return the fields of one line."""
        return split_line(line, self.delimiter)


def split_line(line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one line."""
    return line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter), [])


def find_layout(
    head: bytes, name: str, labels_column: str | int | None, named: Collection[str | int | None] = ()
) -> Layout:
    """Find the layout of a text table from its first block.

    Parameters
    ----------
    head : bytes
        Whole lines from the start of the file, the first data row among them.
    name : str
        What the user wrote.
    labels_column : str or int, optional
        Name or number of the column that holds the labels.
    named : collection of str
        Names of other columns that must be there, if any are known: a first row that holds one of them is a header.

    Raises
    ------
    BadInput
        If it is not text, or has no row of data, or no such column.
    """
    lines = _lines(head, name)
    if not lines:
        raise _no_rows(name)
    delimiter = find_delimiter([text for _, _, text in lines[:SAMPLE_LINES]])
    with faults.reading(name):
        rows = [split_line(text, delimiter) for _, _, text in lines[:2]]
    first = [field.strip() for field in rows[0]]
    said = {title for title in (labels_column, *named) if isinstance(title, str) and whole_number(title) is None}
    header = not said.isdisjoint(first) or _is_header(rows, _label_number(labels_column, len(first)))
    if header and len(lines) < 2:
        raise _no_rows(name)
    names = tuple(first) if header else None
    label = None if labels_column is None else find_column(name, labels_column, names, len(first))
    index = 0 if names and names[0] == "" and label != 0 and len(names) > 1 else None
    offset, line, _ = lines[1] if header else lines[0]
    return Layout(delimiter, len(first), names, label, index, offset, line)


def find_delimiter(lines: list[str]) -> str | None:
    """Return the delimiter that divides most of the lines into equally many fields; None for runs of blanks."""

    def agreement(delimiter: str | None) -> int:
        try:
            counts = Counter(len(split_line(line, delimiter)) for line in lines)
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

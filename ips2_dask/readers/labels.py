"""Known labels: finding their column, taking it out of a table, and reading them whole or as codes piece by piece."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, Labels, Rows, Source, Table, check_shape, digest, rebatch

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PIECE_ROWS = 8192
"""Rows of a table that are in memory at a time while its column of labels is read."""

PIECE_LABELS = 1 << 18
"""Labels that are in memory at a time while a variable that holds nothing else is read."""

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
WHOLE_AS_FLOAT = re.compile(r"[+-]?[0-9]{1,15}\.0*")  # "6.0000": an integer that was printed as a float


def whole_number(wanted: str | int) -> int | None:
    """Return ``wanted`` as a column number if it is one, also when it comes as text from a command line."""
    if isinstance(wanted, str):
        return int(wanted) if WHOLE.fullmatch(wanted.strip()) else None
    return int(wanted)


def find_column(name: str, wanted: str | int, names: Sequence[str] | None, n_columns: int) -> int:
    """Return the position of a label column that is given by name or by number.

    A name is looked for first. Numbers count from 0, negative ones from the end.

    Raises
    ------
    BadInput
        If no column, or more than one, has that name.
    """
    matches = [position for position, title in enumerate(names or ()) if title == str(wanted)]
    if len(matches) == 1:
        return matches[0]
    number = whole_number(wanted)
    if not matches and number is not None and -n_columns <= number < n_columns:
        return number % n_columns
    numbers = f"a number from {-n_columns} to {n_columns - 1}"
    if matches:
        problem = f"{len(matches)} columns named {str(wanted)!r}"
    elif number is not None:
        problem = f"no column {number}, as there are {n_columns}"
    else:
        problem = f"no column {wanted!r} to take the labels from"
    raise BadInput(
        name,
        problem,
        f"{numbers}, or a name ({nearest_names(str(wanted), names)})",
        "the result would be scored against nothing",
        "correct labels_column (--labels-column), or leave it out",
    )


def nearest_names(wanted: str, names: Sequence[str] | None) -> str:
    """Return a clause for messages: the names most like ``wanted``, or that the columns have no names."""
    return faults.nearest(wanted, list(names)) if names else "but its columns have no names"


def take_label_column(table: Table, wanted: str | int | None) -> Table:
    """Return ``table`` without one of its columns, which becomes its labels, or as it is without one."""
    if wanted is None:
        return table
    position = find_column(table.name, wanted, table.feature_names, table.shape[1])
    shape = check_shape(table.name, (table.shape[0], table.shape[1] - 1))
    names = table.feature_names
    return replace(
        table,
        shape=shape,
        rows=WithoutColumn(table.rows, position),
        fingerprint=digest(table.fingerprint, "labels in column", position),
        feature_names=[*names[:position], *names[position + 1 :]] if names else None,
        read_labels=LabelReader(table.name, partial(_column_pieces, table.rows, position)),
        label=position,
    )


def take_label_variable(table: Table, variable: str, count: int, read_labels: Callable[[], Labels]) -> Table:
    """Return ``table`` with the labels that another variable of its file holds, after checking their number.

    ``read_labels`` is a `LabelReader` where the variable can be read in pieces.
    """
    m, f = table.shape
    if count != m:
        hint = ", or give transpose=True (--transpose)" if count == f else ""
        raise BadInput(
            table.name,
            f"{count} labels in {variable!r} for {m} samples",
            "one label for each sample",
            "labels and samples would not belong together",
            f"name the variable that belongs to these samples{hint}",
        )
    return replace(table, fingerprint=digest(table.fingerprint, "labels in", variable), read_labels=read_labels)


@dataclass
class WithoutColumn(Rows):
    """The rows of a table without one column."""

    inner: Rows
    position: int

    def __post_init__(self) -> None:
        self.n_rows, self.grain, self.sparse = self.inner.n_rows, self.inner.grain, self.inner.sparse

    def csr(self) -> csr_array | None:
        """As of `Rows`."""
        matrix = self.inner.csr()
        return None if matrix is None else matrix[:, np.delete(np.arange(matrix.shape[1]), self.position)]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop without the column."""
        return np.delete(self.inner.read(start, stop), self.position, axis=1)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows without the column."""
        return (np.delete(block, self.position, axis=1) for block in self.inner.blocks(rows))


def _column_pieces(rows: Rows, position: int) -> Iterator[NDArray[Any]]:
    """Yield one column of a table of numbers, a piece for each block of rows."""
    return (block[:, position].copy() for block in rows.blocks(PIECE_ROWS))


def vector_ranges(shape: tuple[int, ...], grain: int = 1) -> Iterator[tuple[slice, ...]]:
    """Yield selections that divide an array of labels into pieces of whole chunks, in the order of its values.

    An array of several rows and columns is one piece.

    Parameters
    ----------
    shape : tuple of int
    grain : int
        Labels of a chunk of the storage.
    """
    n = max(shape, default=1)
    if math.prod(shape) != n:
        yield tuple(slice(None) for _ in shape)
        return
    step = max(PIECE_LABELS // grain, 1) * grain
    for low in range(0, n, step):
        yield tuple(slice(low, low + step) if length == n else slice(None) for length in shape)


@dataclass(frozen=True)
class LabelReader:
    """Reads the known labels of a table: all of them when it is called, or the stored values piece by piece.

    Attributes
    ----------
    name : str
        The input as the user wrote it, for messages.
    read_pieces : callable
        Yields the stored values in the order of the samples, each piece of any length and as `as_labels` takes them.
    """

    name: str
    read_pieces: Callable[[], Iterator[NDArray[Any]]]

    def __call__(self) -> Labels:
        """Return the labels, (m,)."""
        return as_labels(np.concatenate([np.ravel(piece) for piece in self.read_pieces()]), self.name)


class Classes:
    """The classes among the known labels of a source, and the labels as codes of these, a piece of them at a time.

    Building it reads the labels once, and `codes` reads them once more; the classes stay in memory. Of a source that
    has its labels in memory, as a data frame has, all of them are read at once.

    Parameters
    ----------
    source : Source
        One that has labels.

    Attributes
    ----------
    names : array of int64 or strings, (classes,)
        The different labels in ascending order, as ``np.unique(source.labels())`` has them.

    Raises
    ------
    BadInput
        If a label is missing, or a number that is not whole.
    """

    def __init__(self, source: Source) -> None:
        reader = source.read_labels if isinstance(source, Table) else None
        self._source, self._reader = source, reader if isinstance(reader, LabelReader) else None
        self._texts: dict[str, int] = {}
        if self._reader is None:
            self.names: Labels = self._unique()[0]
            return
        numbers: NDArray[np.int64] = np.empty(0, np.int64)
        for found in self._pieces(self._reader):
            if isinstance(found, list):
                self._texts.update(dict.fromkeys(found, 0))
            else:
                numbers = np.union1d(numbers, found)
        self.names = numbers
        if self._texts:
            labels = _of_texts(list(self._texts))
            self.names = cast("Labels", np.unique(labels))
            self._texts = dict(zip(self._texts, np.searchsorted(self.names, labels).tolist(), strict=True))

    def codes(self, rows: int) -> Iterator[NDArray[np.int32]]:
        """Yield the places of the labels in `names`, `rows` labels at a time, the last block shorter: (rows,) int32."""
        return rebatch(self._codes(), rows)

    def _codes(self) -> Iterator[NDArray[np.int32]]:
        if self._reader is None:
            yield self._unique()[1]
            return
        for found in self._pieces(self._reader):
            if isinstance(found, list):
                yield np.fromiter((self._texts[text] for text in found), np.int32, len(found))
            else:
                yield np.searchsorted(self.names, found).astype(np.int32)

    def _pieces(self, reader: LabelReader) -> Iterator[NDArray[np.int64] | list[str]]:
        """Numbers, or texts, of each piece of the labels, after checking them."""
        first = 0
        for piece in reader.read_pieces():
            found = _checked(np.ravel(piece), self._source.name, first)
            first += len(found)
            yield found

    def _unique(self) -> tuple[Labels, NDArray[np.int32]]:
        """The classes and the codes of labels that are in memory."""
        labels = self._source.labels()
        if labels is None:
            raise ValueError(f"{self._source.name} has no labels")
        names, codes = np.unique(labels, return_inverse=True)
        return cast("Labels", names), codes.astype(np.int32).ravel()


class CodeReader:
    """Reads the codes of known labels from the first on, as many at a time as its caller asks for."""

    def __init__(self, classes: Classes) -> None:
        self._blocks, self._rest = classes.codes(PIECE_ROWS), np.empty(0, np.int32)

    def read(self, count: int) -> NDArray[np.int32]:
        """Return the next codes, (count,) int32, or those that are left."""
        found, missing = [self._rest[:count]], count - len(self._rest)
        self._rest = self._rest[count:]
        while missing > 0 and (block := next(self._blocks, None)) is not None:
            found.append(block[:missing])
            missing, self._rest = missing - len(block), block[missing:]
        return np.concatenate(found)


def classes_of(source: Source) -> Classes | None:
    """Return the classes of a source's known labels, or None if no label column was named."""
    if isinstance(source, Table):
        return None if source.read_labels is None else Classes(source)
    return None if source.labels() is None else Classes(source)


def as_labels(values: NDArray[Any], name: str) -> Labels:
    """Return labels, (m,), as int64 where all of them are whole numbers, else as strings.

    Parameters
    ----------
    values : array
        Numbers, strings, bytes or objects of these; flattened.
    name : str
        The input as the user wrote it, for messages.

    Raises
    ------
    BadInput
        If a label is missing, or a number that is not whole.
    """
    found = _checked(np.asarray(values).ravel(), name, 0)
    return _of_texts(found) if isinstance(found, list) else found


def _checked(flat: NDArray[Any], name: str, first: int) -> NDArray[np.int64] | list[str]:
    """Return stored labels as int64 if they are numbers, else as texts; their first is that of row ``first``."""
    if flat.dtype.kind in "biu":
        return flat.astype(np.int64)
    if flat.dtype.kind == "f":
        return _whole(flat, name, first)
    texts = [_text(value) for value in flat.tolist()]
    present = [text for text in texts if text]
    if len(present) < len(texts):
        raise _missing(name, first + next(row for row, text in enumerate(texts) if not text))
    return present


def _of_texts(texts: list[str]) -> Labels:
    """Return texts as labels: as whole numbers if each of them is one."""
    if all(WHOLE.fullmatch(text) or WHOLE_AS_FLOAT.fullmatch(text) for text in texts):
        return np.array([int(text.partition(".")[0]) for text in texts], dtype=np.int64)
    return np.array(texts, dtype=np.str_)


def _whole(values: NDArray[Any], name: str, first: int) -> NDArray[np.int64]:
    finite = np.isfinite(values)
    if not finite.all():
        raise _missing(name, first + int(np.argmin(finite)))
    fractional = (values != np.rint(values)) | (np.abs(values) > 2.0**53)
    if fractional.any():
        row = int(np.argmax(fractional))
        raise BadInput(
            name,
            f"the label {float(values[row])!r} in row {first + row}",
            "whole numbers or strings as labels",
            "each sample might be a class of its own",
            "name the column that holds the classes (labels_column, --labels-column)",
        )
    return values.astype(np.int64)


def _text(value: object) -> str | None:
    """Return a label as text, or None if it is missing."""
    # pandas' NA refuses to be compared, and NaN and NaT differ from themselves.
    if value is None or type(value).__name__ == "NAType" or value != value:
        return None
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()


def _missing(name: str, row: int) -> BadInput:
    return BadInput(
        name,
        f"no label in row {row}",
        "a label in every row",
        "the result could not be scored",
        "fill the label in, drop the row, or leave labels_column (--labels-column) out",
    )

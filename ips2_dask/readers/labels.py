"""Known labels: finding their column, taking it out of a table, and converting stored values to integers or strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, Labels, Rows, Table, check_shape, digest

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
        read_labels=partial(_column_labels, table.name, table.rows, position),
        label=position,
    )


def take_label_variable(table: Table, variable: str, count: int, read_labels: Callable[[], Labels]) -> Table:
    """Return ``table`` with the labels that another variable of its file holds, after checking their number."""
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

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop without the column."""
        return np.delete(self.inner.read(start, stop), self.position, axis=1)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows without the column."""
        return (np.delete(block, self.position, axis=1) for block in self.inner.blocks(rows))


def _column_labels(name: str, rows: Rows, position: int) -> Labels:
    """Return one column of a table of numbers as labels, (m,)."""
    column = np.concatenate([block[:, position].copy() for block in rows.blocks(8192)])
    return as_labels(column, name)


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
    flat = np.asarray(values).ravel()
    if flat.dtype.kind in "biu":
        return flat.astype(np.int64)
    if flat.dtype.kind == "f":
        return _whole(flat, name)
    texts = [_text(value) for value in flat.tolist()]
    if None in texts or "" in texts:
        row = next(row for row, text in enumerate(texts) if not text)
        raise _missing(name, row)
    present = [text for text in texts if text is not None]
    if all(WHOLE.fullmatch(text) or WHOLE_AS_FLOAT.fullmatch(text) for text in present):
        return np.array([int(text.partition(".")[0]) for text in present], dtype=np.int64)
    return np.array(present, dtype=np.str_)


def _whole(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    finite = np.isfinite(values)
    if not finite.all():
        raise _missing(name, int(np.argmin(finite)))
    fractional = (values != np.rint(values)) | (np.abs(values) > 2.0**53)
    if fractional.any():
        row = int(np.argmax(fractional))
        raise BadInput(
            name,
            f"the label {float(values[row])!r} in row {row}",
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

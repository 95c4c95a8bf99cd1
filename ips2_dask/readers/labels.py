"""Known labels: what counts as one, and the classes among those of a table, read as codes piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.typing import AnyArray, Int32, Int64

if TYPE_CHECKING:
    from ips2_dask.readers.base import Table

Labels = Int64 | AnyArray  # (m,) int64 or strings
PIECE_ROWS = 8192  # rows of a table that are in memory at a time while its column of labels is read
PIECE_LABELS = 1 << 18  # labels that are in memory at a time while a variable that holds nothing else is read
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
WHOLE_AS_FLOAT = re.compile(r"[+-]?[0-9]{1,15}\.0*")  # "6.0000": an integer that was printed as a float


class Classes:
    """The classes among the known labels of a table, and the labels as codes of these, a piece of them at a time.

    Building it reads the labels once, and `pieces` reads them once more; the classes stay in memory.
    """

    def __init__(self, source: Table) -> None:
        self._source = source
        texts: dict[str, None] = {}
        numbers: Int64 = np.empty(0, np.int64)
        for found in self._pieces():
            if isinstance(found, list):
                texts.update(dict.fromkeys(found))
            else:
                numbers = np.union1d(numbers, found)
        labels = _of_texts(list(texts)) if texts else numbers
        self.names: Labels = np.unique(labels)
        self._texts = dict(zip(texts, np.searchsorted(self.names, labels).tolist(), strict=False))

    def pieces(self) -> Iterator[Int32]:
        """Yield the places of the labels in `names`, as many at a time as are stored together."""
        for found in self._pieces():
            if isinstance(found, list):
                yield np.fromiter((self._texts[text] for text in found), np.int32, len(found))
            else:
                yield np.searchsorted(self.names, found).astype(np.int32)

    def _pieces(self) -> Iterator[Int64 | list[str]]:
        """Numbers, or texts, of each piece of the labels, after checking them."""
        if self._source.label_pieces is None:
            raise ValueError(f"{self._source.name} has no labels")
        first = 0
        for piece in map(np.ravel, self._source.label_pieces()):
            for low in range(0, len(piece), PIECE_LABELS):
                found = _checked(piece[low : low + PIECE_LABELS], self._source.name, first)
                first += len(found)
                yield found


def classes_of(source: Table) -> Classes | None:
    """Return the classes of a table's known labels, or None if no label column was named."""
    return None if source.label_pieces is None else Classes(source)


def as_labels(values: AnyArray, name: str) -> Labels:
    """Return labels, (m,), as int64 where all of them are whole numbers, else as strings."""
    found = _checked(np.asarray(values).ravel(), name, 0)
    return _of_texts(found) if isinstance(found, list) else found


def _checked(flat: AnyArray, name: str, first: int) -> Int64 | list[str]:
    """Return stored labels as int64 if they are numbers, else as texts; their first is that of row ``first``."""
    if flat.dtype.kind in "biu":
        return flat.astype(np.int64)
    if flat.dtype.kind == "f":
        return _whole(flat, name, first)
    texts = [_text(value) for value in flat.tolist()]
    if all(texts):
        return cast("list[str]", texts)
    raise _missing(name, first + next(row for row, text in enumerate(texts) if not text))


def _of_texts(texts: list[str]) -> Labels:
    """Return texts as labels: as whole numbers if each of them is one."""
    if all(WHOLE.fullmatch(text) or WHOLE_AS_FLOAT.fullmatch(text) for text in texts):
        return np.array([int(text.partition(".")[0]) for text in texts], dtype=np.int64)
    return np.array(texts, dtype=np.str_)


def _whole(values: AnyArray, name: str, first: int) -> Int64:
    finite = np.isfinite(values)
    if not finite.all():
        raise _missing(name, first + int(np.argmin(finite)))
    fractional = (values != np.rint(values)) | (np.abs(values) > 2.0**53)
    if fractional.any():
        row = int(np.argmax(fractional))
        found, allowed = f"the label {float(values[row])!r} in row {first + row}", "whole numbers or strings as labels"
        remedy = "name the column that holds the classes (labels_column, --labels-column)"
        raise BadInput(name, found, allowed, "each sample might be a class of its own", remedy)
    return values.astype(np.int64)


def _text(value: object) -> str | None:
    """Return a label as text, or None if it is missing."""
    # pandas' NA refuses to be compared, and NaN and NaT differ from themselves.
    if value is None or type(value).__name__ == "NAType" or value != value:
        return None
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()


def _missing(name: str, row: int) -> BadInput:
    remedy = "fill the label in, drop the row, or leave labels_column (--labels-column) out"
    return BadInput(name, f"no label in row {row}", "a label in every row", "the result could not be scored", remedy)

"""Categories of columns: collecting them block by block, and turning text into their numbers.

What is collected is a set, put in order at the end: neither blocks nor their order leave a trace.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.features import MOST_CATEGORIES, Category, category_text

# What pandas.read_csv takes for a missing value, and the question mark of older collections.
MISSING_WORDS = (
    "", "NA", "N/A", "?", "null", "NULL", "None", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND",
    "1.#QNAN", "-1.#QNAN",
)  # fmt: skip
NAN_WORDS = ("NaN", "-NaN", "nan", "-nan")  # the same, but numbers of a kind where a column holds numbers
NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE)

UNKNOWN = -1.0
"""Stands for a category that is none of the column's."""


def is_number(field: str) -> bool:
    """Return whether a field is a number or a missing one."""
    return field.strip() in MISSING_WORDS or NUMBER.fullmatch(field.strip()) is not None


def is_missing(text: str | None) -> bool:
    """Return whether a field of a column of text is a missing value."""
    return text is None or text in MISSING_WORDS or text in NAN_WORDS


class Collected:
    """The different values of a column as far as it has been read."""

    def __init__(self, name: str, title: str, missing: str) -> None:
        self._name, self._title, self._missing = name, title, missing
        self._found: set[str | float] = set()
        self._lacking = False

    def add(self, values: Iterable[str | float | None]) -> None:
        """Add the different values of a block, None or NaN where they are missing.

        Raises
        ------
        BadInput
            Where there are more than `MOST_CATEGORIES`.
        """
        for value in values:
            if isinstance(value, float):
                self._add_number(value)
            elif is_missing(value):
                self._lacking = True
            else:
                self._found.add(str(value))
        if len(self._found) > MOST_CATEGORIES:
            raise BadInput(
                self._name, f"more than {MOST_CATEGORIES:,} categories in {self._title}",
                f"at most {MOST_CATEGORIES:,} in a column of one_hot (--one-hot)",
                "names or numbers of the rows would become features, each of a single row",
                "drop the column (drop_columns, --drop-columns), or group its categories",
            )  # fmt: skip

    def _add_number(self, value: float) -> None:
        if math.isnan(value):
            self._lacking = True
        elif math.isinf(value):
            raise faults.missing_value(self._name, self._title, f"the value {value!r}")
        else:
            self._found.add(value + 0.0)  # -0 is 0

    def categories(self) -> tuple[Category, ...]:
        """Return all categories, ascending; numbers if all of them are; a missing value last, if it is one of them.

        Raises
        ------
        BadInput
            Where no value is there.
        """
        found = self._found
        if all(isinstance(value, float) or is_number(value) for value in found):
            numbers = {float(value) + 0.0 for value in found}
            if any(math.isinf(number) for number in numbers):
                raise faults.missing_value(self._name, self._title, "an infinite value")
            found = set(numbers)
        lacking = (None,) if self._lacking and self._missing == "median" else ()
        if not found and not lacking:
            raise BadInput(
                self._name, f"no value in {self._title}", "a value in some rows", "there would be no category",
                "drop the column (drop_columns, --drop-columns)",
            )  # fmt: skip
        return (*sorted(found), *lacking)


def are_text(categories: tuple[Category, ...] | None) -> bool:
    """Return whether a column's categories are text, so that a reader has to turn them into numbers."""
    return categories is not None and any(isinstance(category, str) for category in categories)


def codes(
    texts: Any, categories: tuple[Category, ...], ignore: bool, name: str, where: str, first_row: int
) -> NDArray[np.float64]:
    """Return the place of each text among the categories, NaN for a missing value, `UNKNOWN` for another text.

    Parameters
    ----------
    texts : pyarrow.Array of strings
    categories : tuple
    ignore : bool
        Whether texts that are no category are passed over.
    name, where : str
        What the user wrote of the table, and what the column is called.
    first_row : int

    Raises
    ------
    BadInput
        Where a text is no category; says its row.
    """
    import pyarrow as pa  # noqa: PLC0415  arrays in memory, which hold no text, need not wait for it
    import pyarrow.compute as pc  # noqa: PLC0415

    known = [category for category in categories if isinstance(category, str)]
    found = pc.index_in(texts, value_set=pa.array(known, pa.string()))
    out = np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.float64)
    for row in np.flatnonzero(out < 0).tolist() if (out < 0).any() else ():
        text = texts[row].as_py()
        if is_missing(text):
            out[row] = np.nan
        elif not ignore:
            raise unknown(name, text, where, first_row + row, categories)
    return out


def unknown(name: str, category: Category, where: str, row: int, categories: tuple[Category, ...]) -> BadInput:
    """Return the fault of a category that a run has not seen."""
    texts = [category_text(one) for one in categories]
    text = category_text(category)
    near = difflib.get_close_matches(text, texts, n=3, cutoff=0.5) or texts
    return BadInput(
        name, f"the category {text[:40]!r} in row {row}, {where}, which the run has not seen",
        f"its {len(texts)} categories ({faults.listing(near)})", "no feature would stand for it",
        "correct it, or give handle_unknown='ignore' (--handle-unknown ignore), which makes all of its features 0",
    )  # fmt: skip

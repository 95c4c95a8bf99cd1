"""Settings of how a table's columns become features: selection, one-hot encoding, treatment of missing values."""

from __future__ import annotations

import csv
import dataclasses
import io
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, SupportsIndex

from ips2_dask.errors import BadInput

MISSING = ("refuse", "median", "drop")
"""The ways to treat missing values."""

HANDLE_UNKNOWN = ("error", "ignore")
"""The ways to treat a category that a run has not seen."""

MOST_CATEGORIES = 1_000
"""Categories of one column, at most: more are names or numbers of the rows, put there by mistake."""

Category = str | float | None
"""Text, a number, or None for a missing value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """How the columns of a table become features.

    A column is named, or numbered from 0 as for ``labels_column``: the columns of the file, that of the labels among
    them, negative numbers from the end. A name is looked for first. Ranges have both ends included, of numbers
    (``"7-20"``) or of names (``"height-width"``: all columns from the one to the other). Features keep the order that
    their columns have in the table.

    Parameters
    ----------
    columns : list of str and int, or str, optional
        Columns that are features, by default all. A single string is a list as on the command line: ``"A,B,5,7-20"``,
        a name that holds a comma in double quotes.
    drop_columns : list of str and int, or str
        Columns that are no features.
    one_hot : list of str and int, or str
        Columns of text or of numbers that become one column of 0 and 1 for each category, as by scikit-learn's
        ``OneHotEncoder``: categories in ascending order, of text by code points. Text is text, so that ``"01"`` is not
        ``"1"``. In text files, which have no types, categories are numbers where each is the spelling of a number of
        its own and none begins with 0 as 01 does, or with a plus. At most 1,000 categories a column.
    missing : {"refuse", "median", "drop"}
        What is done where a value is missing: NaN, a null, or in text files an empty field, ``?``, or any other word
        that `pandas.read_csv` takes for one (``NA``, ``N/A``, ``NaN``, ``null``, ``None``, ...). ``refuse`` raises
        `BadInput`. ``median`` takes the median of the column's other values, exactly; in a column of ``one_hot`` a
        missing value is a category of its own. ``drop`` leaves the row out of the clustering: its label is -1, its
        certainty and its place in the embedding are NaN. Infinite values are always refused.

    Raises
    ------
    BadInput
        Where a value is none of these.

    Examples
    --------
    >>> from ips2_dask import Features
    >>> Features(columns="age,7-9", one_hot=["sex"]).columns
    ('age', '7-9')
    """

    columns: str | Sequence[str | int] | None = None
    drop_columns: str | Sequence[str | int] = ()
    one_hot: str | Sequence[str | int] = ()
    missing: str = "refuse"

    def __post_init__(self) -> None:
        for name in ("columns", "drop_columns", "one_hot"):
            value = getattr(self, name)
            if name != "columns" or value is not None:
                object.__setattr__(self, name, _items(name, value))
        check_word("missing", self.missing, MISSING)
        if self.columns == ():
            raise BadInput(
                "columns",
                "an empty list",
                "at least one column, or None for all",
                "there would be no feature",
                "name a column, or leave columns (--columns) out",
            )

    @property
    def is_default(self) -> bool:
        """Whether all settings are the defaults, with which a table is read as it is."""
        return self == Features()

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that are named or numbered, and ranges of them."""
        return (*(self.columns or ()), *self.drop_columns, *self.one_hot)

    def as_dict(self) -> dict[str, object]:
        """Return plain values that JSON can hold."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table that became one feature, or one for each of its categories."""

    number: int  # in the input, from 0
    name: str | None
    categories: tuple[Category, ...] | None = None  # ascending, a missing value last

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 if self.categories is None else len(self.categories)

    @property
    def title(self) -> str:
        """The name of the column; without one, the name that scikit-learn would give it."""
        return f"x{self.number}" if self.name is None else self.name

    @property
    def feature_names(self) -> list[str]:
        """The names of its features, as scikit-learn's ``get_feature_names_out`` gives them."""
        if self.categories is None:
            return [self.title]
        return [f"{self.title}_{category_text(category)}" for category in self.categories]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedFeatures:
    """`Features` fitted to a table: its columns and their categories, which new samples must have as well.

    Parameters
    ----------
    columns : tuple of Column
        In their order in the table.
    n_columns : int
        Columns of the input, that of the labels among them.
    label : int, optional
        Number of the column of labels.
    missing : {"refuse", "median", "drop"}
    handle_unknown : {"error", "ignore"}
        Whether a category that is none of the column's is refused, or is 0 in all of the column's features: as of
        scikit-learn's ``OneHotEncoder``.
    whole : bool
        Whether the user chose no columns, so that a warning tells of those that new samples have besides.
    """

    columns: tuple[Column, ...]
    n_columns: int
    label: int | None = None
    missing: str = "refuse"
    handle_unknown: str = "error"
    whole: bool = False

    def __post_init__(self) -> None:
        check_word("handle_unknown", self.handle_unknown, HANDLE_UNKNOWN)

    @property
    def feature_names(self) -> list[str]:
        """The names of all features."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def numeric(self) -> list[int]:
        """Positions of the features that are numbers, and not indicators of a category."""
        return [first for first, column in zip(self.firsts, self.columns, strict=True) if column.categories is None]

    @property
    def firsts(self) -> list[int]:
        """The position of each column's first feature; a row without the column's value lacks all of its features."""
        return [0, *accumulate(column.width for column in self.columns)][:-1]

    @property
    def one_hot(self) -> tuple[Column, ...]:
        """The columns that hold categories."""
        return tuple(column for column in self.columns if column.categories is not None)

    def as_dict(self) -> dict[str, object]:
        """Return plain values that JSON can hold, without what is no part of a run: ``handle_unknown``, ``whole``."""
        columns = [
            {"number": c.number, "name": c.name, "categories": None if c.categories is None else list(c.categories)}
            for c in self.columns
        ]
        return {"columns": columns, "n_columns": self.n_columns, "label": self.label, "missing": self.missing}

    @classmethod
    def of_dict(cls, stored: dict[str, Any]) -> FittedFeatures:
        """Return the object of which `as_dict` returned ``stored``."""
        columns = [
            Column(**{**column, "categories": None if column["categories"] is None else tuple(column["categories"])})
            for column in stored["columns"]
        ]
        return cls(**{**stored, "columns": tuple(columns)})


def category_text(category: Category) -> str:
    """Return a category as scikit-learn writes it, but whole numbers without a point."""
    if isinstance(category, float):
        return str(int(category)) if category.is_integer() else repr(category)
    return "nan" if category is None else category


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Split a list from the command line at its commas, except at those between double quotes.

    Raises
    ------
    BadInput
        Where an entry is empty, or a quote does not end.
    """
    try:
        entries = [entry.strip() for entry in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error:
        raise BadInput(
            name,
            f"a quote that does not end, or a text after it, in {text!r}",
            "quotes around whole names, as in '\"a, b\",c'",
            "it would be unclear where a name ends",
            "correct the quotes",
        ) from None
    if not entries or "" in entries:
        raise BadInput(
            name,
            f"an empty entry in {text!r}",
            "names, numbers and ranges divided by commas, such as A,B,5,7-20",
            "it would be unclear which column is meant",
            "take the superfluous comma out",
        )
    return tuple(entries)


def joined_list(entries: Iterable[str | int]) -> str:
    """Join entries to a list for the command line: the inverse of `split_list`."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(entries)
    return stream.getvalue()


def _items(name: str, value: object) -> tuple[str | int, ...]:
    if isinstance(value, str):
        return split_list(value, name)
    if not isinstance(value, Iterable):
        raise _no_column(name, value)
    return tuple(_item(name, item) for item in value)


def _item(name: str, item: str | SupportsIndex) -> str | int:
    if isinstance(item, str):
        return str(item)
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise _no_column(name, item)


def _no_column(name: str, value: object) -> BadInput:
    return BadInput(
        name,
        repr(value),
        "a list of names and whole numbers",
        "it would be unclear which column is meant",
        f"give {name}=['A', 5, '7-20'], for instance",
    )


def check_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ``BadInput`` if a value is none of the allowed words.

    Raises
    ------
    BadInput
    """
    if value not in allowed:
        raise BadInput(
            name, repr(value), f"one of {', '.join(allowed)}", "no rule would be known for it", "choose one of them"
        )

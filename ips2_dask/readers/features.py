"""Settings of the user: how columns become features, `Features`, and how a text file is read, `TextFormat`."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.fields import checked, made, number, one_of

HANDLE_UNKNOWN = ("error", "ignore")  # the ways to treat a category that a run has not seen
MOST_CATEGORIES = 1_000
"""Categories of one column, at most: more are names or numbers of the rows, put there by mistake."""

Category = str | float | None  # text, a number, or None for a missing value


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Split a list from the command line at its commas, but not between double quotes; raises ``BadInput``."""
    try:
        entries = [entry.strip() for entry in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error:
        found = f"a quote that does not end, or a text after it, in {text!r}"
        allowed = "quotes around whole names, as in '\"a, b\",c'"
        raise BadInput(name, found, allowed, "it would be unclear where a name ends", "correct the quotes") from None
    if not entries or "" in entries:
        allowed = "names, numbers and ranges divided by commas, such as A,B,5,7-20"
        otherwise = "it would be unclear which column is meant"
        raise BadInput(name, f"an empty entry in {text!r}", allowed, otherwise, "take the superfluous comma out")
    return tuple(entries)


def joined_list(entries: Iterable[str | int]) -> str:
    """Join entries to a list for the command line: the inverse of `split_list`."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(entries)
    return stream.getvalue()


def _items(name: str, value: Any) -> tuple[str | int, ...]:
    if isinstance(value, str):
        return split_list(value, name)
    item = value
    try:
        items: list[str | int] = []
        for item in value:
            if isinstance(item, bool):
                raise TypeError
            items.append(str(item) if isinstance(item, str) else operator.index(item))
        return tuple(items)
    except TypeError:
        allowed, otherwise = "a list of names and whole numbers", "it would be unclear which column is meant"
        remedy = f"give {name}=['A', 5, '7-20'], for instance"
        raise BadInput(name, repr(item), allowed, otherwise, remedy) from None


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
        Columns of text or of numbers that become one column of 0 and 1 for each category, of at most 1,000. As by
        scikit-learn's ``OneHotEncoder`` they are in ascending order, of text by code points. Text is text, so that
        ``"01"`` is not ``"1"``. In text files, which have no types, categories are numbers where each is the spelling
        of a number of its own and none begins with 0 as 01 does, or with a plus.
    missing : {"refuse", "median", "drop"}
        What is done about NaN, nulls and, in text files, empty fields, ``?``, ``NA`` and such: refuse them, take the
        column's median, or drop the row, whose label is then -1. Such are all words that `pandas.read_csv` takes for
        missing values (``N/A``, ``NaN``, ``null``, ``None``, ...). ``refuse`` raises `BadInput`. The median is that of
        the column's other values, exactly; in a column of ``one_hot`` a missing value is a category of its own.
        ``drop`` leaves the row out of the clustering: its certainty and its place in the embedding are NaN. Infinite
        values are always refused.

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

    columns: str | Sequence[str | int] | None = made(None, _items)
    drop_columns: str | Sequence[str | int] = made((), _items)
    one_hot: str | Sequence[str | int] = made((), _items)
    missing: str = one_of("refuse", "median", "drop")

    def __post_init__(self) -> None:
        vars(self).update(checked(self))
        if self.columns == ():
            found, allowed = "an empty list", "at least one column, or None for all"
            otherwise = "there would be no feature"
            raise BadInput("columns", found, allowed, otherwise, "name a column, or leave columns (--columns) out")

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
    """`Features` fitted to a table: its columns and their categories, which new samples must have as well."""

    columns: tuple[Column, ...]  # in their order in the table
    n_columns: int  # of the input, that of the labels among them
    label: int | None = None  # number of the column of labels
    missing: str = "refuse"
    handle_unknown: str = one_of(*HANDLE_UNKNOWN)  # ignored, as of scikit-learn's OneHotEncoder, it is 0 everywhere
    whole: bool = False  # whether the user chose no columns, so that a warning tells of those that new samples add

    def __post_init__(self) -> None:
        vars(self).update(checked(self))

    @property
    def feature_names(self) -> list[str]:
        """The names of all features."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def mentioned(self) -> tuple[str | None, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)

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
            dataclasses.asdict(column) | {"categories": column.categories and list(column.categories)}
            for column in self.columns
        ]
        return {"columns": columns, "n_columns": self.n_columns, "label": self.label, "missing": self.missing}

    @classmethod
    def of_dict(cls, stored: dict[str, Any]) -> FittedFeatures:
        """Return the object of which `as_dict` returned ``stored``."""
        columns = [
            Column(**{**column, "categories": column["categories"] and tuple(column["categories"])})
            for column in stored["columns"]
        ]
        return cls(**{**stored, "columns": tuple(columns)})


def category_text(category: Category) -> str:
    """Return a category as scikit-learn writes it, but whole numbers without a point."""
    if isinstance(category, float):
        return str(int(category)) if category.is_integer() else repr(category)
    return "nan" if category is None else category


UTF_8 = "utf-8"


NAMED = {r"\t": "\t", "tab": "\t", "\\s+": " "}  # other spellings of delimiters, which are easier to type into a shell


def _mark(name: str, mark: str) -> str:
    """One printable ASCII character that is no part of a number or a word."""
    mark = NAMED.get(mark, mark) if name == "delimiter" else mark
    blank = mark == " " or (name == "delimiter" and mark == "\t") or (name == "thousands" and mark == "\xa0")
    allowed = blank or (isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark.isprintable())
    if not allowed or mark.isalnum() or mark in '"+-' or (name == "comment" and mark == " "):
        asked = "a single ASCII character that is no letter, digit, quote, plus or minus"
        otherwise = "fields could not be told from one another"
        raise BadInput(name, repr(mark), asked, otherwise, "give another one, or leave it out")
    return mark


def _encoding(name: str, value: str) -> str:
    try:
        codec = codecs.lookup(value)
        " ".encode(value)  # those from bytes to bytes are none
    except (LookupError, TypeError, ValueError):
        allowed, remedy = "an encoding that Python knows", "give latin-1, cp1252, utf-8 or utf-16, for instance"
        raise BadInput(name, repr(value), allowed, "bytes could not be turned into text", remedy) from None
    return UTF_8 if codec.name in ("utf-8", "ascii", "utf-8-sig") else codec.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFormat:
    r"""How a text file is read. Gzipped files are text files, too.

    Parameters
    ----------
    header : {"auto", "yes", "no"}
        Whether the first line names the columns. ``auto`` takes it for names where it has text that the second line has
        not; a first line of numbers alone is a sample.
    delimiter : str, optional
        The character between fields, by default as found; ``\t`` is a tab, a blank stands for runs of blanks and tabs.
        Found is that of tab, semicolon, comma and blanks which divides most of the first lines into equally many
        fields, or what a first line such as ``sep=;`` says.
    encoding : str
        A name that Python knows, such as ``"latin-1"``, ``"cp1252"`` or ``"utf-16"``. A file that is not in UTF-8 is
        always read from its start, as a gzipped one is.
    decimal : str
        The decimal mark, ``"."`` or ``","``.
    thousands : str, optional
        A mark between groups of three digits, which numbers may have and need not have.
    comment : str, optional
        A character at which a line ends, unless it is in quotes. Lines that hold nothing else are no rows.
    skip_lines : int
        Lines before the table, such as titles.

    Raises
    ------
    BadInput
        Where a value is none of these, or one character would mean two things.

    Examples
    --------
    >>> from ips2_dask import TextFormat
    >>> TextFormat(delimiter=";", decimal=",", encoding="latin-1").delimiter
    ';'
    """

    header: str = one_of("auto", "yes", "no")
    delimiter: str | None = made(None, _mark, metavar="CHAR")
    encoding: str = made(UTF_8, _encoding, metavar="NAME")
    decimal: str = one_of(".", ",")
    thousands: str | None = made(None, _mark, metavar="CHAR")
    comment: str | None = made(None, _mark, metavar="CHAR")
    skip_lines: int = number(0, 0, None, "it would be unclear where the table begins")

    def __post_init__(self) -> None:
        vars(self).update(checked(self))
        for name, others in (("thousands", ("decimal",)), ("comment", ("delimiter", "decimal", "thousands"))):
            for other in others:
                if getattr(self, name) is not None and getattr(self, name) == getattr(self, other):
                    found = f"{getattr(self, name)!r}, which is {other}, too"
                    otherwise = "it would be unclear what it means"
                    raise BadInput(name, found, "a character of its own", otherwise, f"change {name} or {other}")

    @property
    def given(self) -> dict[str, object]:
        """The settings that are not the defaults, as JSON can hold them."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in vars(self).items() if value != usual[name]}


USUAL = TextFormat()  # the format of a file of which nothing is said
ALL = Features()  # every column as it is

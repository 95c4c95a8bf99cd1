"""Columns become features: functions that select them and collect categories, and the `Rows` of the features.

`Features`, the user's settings, and `FittedFeatures`, the settings fitted to a table, are in `features`.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, Block, Rows, Table, check_shape, digest
from ips2_dask.readers.features import MOST_CATEGORIES, Category, Column, Features, FittedFeatures, category_text
from ips2_dask.readers.labels import nearest_names, whole_number

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
REMEDY = {"columns": "--columns", "drop_columns": "--drop-columns", "one_hot": "--one-hot"}


class ColumnSelection(NamedTuple):
    """Positions, in a table, of the columns that become features."""

    columns: tuple[int, ...]  # all of them, ascending
    one_hot: frozenset[int]  # those of them that hold categories


def select_columns(
    name: str,
    features: Features,
    names: Sequence[str] | None,
    n_columns: int,
    label: int | None = None,
    hidden: Sequence[int] = (),
) -> ColumnSelection:
    """Return the columns of a table that become features.

    Parameters
    ----------
    name : str
        The table as the user wrote it, for messages.
    features : Features
    names : sequence of str, optional
        The columns' names.
    n_columns : int
    label : int, optional
        The column of labels.
    hidden : sequence of int
        Columns that hold the names of the rows.

    Raises
    ------
    BadInput
        If there is no such column, or the settings contradict one another.
    """
    positions_of: dict[str, list[int]] = {what: [] for what in REMEDY}
    for what, positions in positions_of.items():
        for item in getattr(features, what) or ():
            positions += _positions(name, item, names, n_columns, what)

    def title(position: int) -> str:
        return f"column {position}" + (f" ({names[position]!r})" if names else "")

    dropped, one_hot = set(positions_of["drop_columns"]), set(positions_of["one_hot"])
    for what in ("columns", "one_hot"):
        for position in positions_of[what]:
            if position == label:
                raise BadInput(
                    name,
                    f"{title(position)} in {what} and as the labels_column",
                    "labels that are no feature",
                    "the known labels would be clustered",
                    f"take it out of {what} ({REMEDY[what]})",
                )
            if position in hidden:
                raise BadInput(
                    name,
                    f"{title(position)}, the names of the rows, in {what}",
                    "columns of values",
                    "names would be compared as numbers",
                    f"take it out of {what} ({REMEDY[what]})",
                )
    both = sorted(dropped & set(positions_of["columns"]))
    if both:
        raise BadInput(
            name,
            f"{title(both[0])} both in columns and in drop_columns",
            "a column in one of them",
            "it would be unclear whether it is a feature",
            "take it out of columns (--columns) or drop_columns",
        )
    lost = sorted(one_hot & dropped)
    if lost:
        raise BadInput(
            name,
            f"{title(lost[0])} both in one_hot and in drop_columns",
            "categories of a column that is kept",
            "there would be nothing to encode",
            "take it out of one_hot (--one-hot) or drop_columns (--drop-columns)",
        )
    wanted = set(range(n_columns)) if features.columns is None else set(positions_of["columns"])
    absent = sorted(one_hot - wanted)
    if absent:
        raise BadInput(
            name,
            f"{title(absent[0])} in one_hot, which is not in columns",
            "categories of a column that is kept",
            "there would be nothing to encode",
            "add it to columns (--columns), or take it out of one_hot (--one-hot)",
        )
    selected = sorted(wanted - dropped - {label, *hidden})
    if not selected:
        raise BadInput(
            name,
            f"all {n_columns} columns dropped",
            "at least one column that is a feature",
            "there would be nothing to cluster",
            "drop fewer columns (drop_columns, --drop-columns)",
        )
    return ColumnSelection(tuple(selected), frozenset(one_hot))


def match_columns(
    name: str,
    fitted: FittedFeatures,
    names: Sequence[str] | None,
    n_columns: int,
    label: int | None = None,
    hidden: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return the positions, in a table of new samples, of the columns that a run was fitted with.

    Columns are matched by name, in any order; what else the table has is left out. If two of the run's columns have
    one name, the table must have the run's names in the run's order. Without names on either side, it must have the
    columns of the run's input, with or without that of the labels, or those alone that became features. Names that only
    count the columns (0, 1, 2, ...) are none; but a table that has the numbers of a run without names is matched by
    them.

    Raises
    ------
    BadInput
        If a column is missing, or it is unclear which one is meant.
    """
    places = [place for place in range(n_columns) if place != label and place not in hidden]
    titles = None if names is None else [names[place] for place in places]
    numbers = [column.number for column in fitted.columns]
    own = [str(column.number) if column.name is None else column.name for column in fitted.columns]
    if titles is None or titles == list(map(str, places)):
        return _match_numbers(name, fitted, places, label)
    wanted, there = Counter(own), Counter(titles)
    if own == list(map(str, numbers)) and not wanted.keys() <= there.keys():
        return _match_numbers(name, fitted, places, label)
    if titles == own:
        return tuple(places)
    missing = [title for title in own if title not in there]
    if missing:
        near = nearest_names(missing[0], [title for title in titles if title])
        if label is not None and names is not None and names[label] == missing[0]:
            near = "it is given as labels_column (--labels-column)"
        raise BadInput(
            name,
            f"no column {faults.listing([repr(title) for title in missing])} ({near})",
            "all columns that the run was made of",
            "samples would be compared in different spaces",
            "give the run's columns (Run.feature_names) under the names that they had",
        )
    twice = next((title for title in own if max(wanted[title], there[title]) > 1), None)
    at_numbers = len(titles) == fitted.n_columns and [titles[number] for number in numbers] == own
    if twice is not None and not at_numbers:
        raise BadInput(
            name,
            f"several columns named {twice!r}, and other columns than the run's, or another order",
            "each column once, or all names in the order of the run",
            "one would be read in place of the other",
            "rename the columns that are no features, or give the columns that the run was given in its order",
        )
    _tell_further(name, fitted, [repr(title) for title in titles if title not in wanted])
    if at_numbers:
        return tuple(places[number] for number in numbers)
    place_of = dict(zip(titles, places, strict=True))
    return tuple(place_of[title] for title in own)


def _match_numbers(name: str, fitted: FittedFeatures, places: list[int], label: int | None) -> tuple[int, ...]:
    """Return the positions of a run's columns among some of a table without names, by their number."""
    numbers = [column.number for column in fitted.columns]
    n_inputs = fitted.n_columns - (fitted.label is not None)
    if len(places) == n_inputs:
        after = fitted.n_columns if fitted.label is None else fitted.label  # columns from there on have moved by one
        return tuple(places[number - (number > after)] for number in numbers)
    if len(places) == fitted.n_columns and label is None:
        _tell_further(name, fitted, [f"{fitted.label}, where the run's input has the labels,"])
        return tuple(numbers)
    if len(places) == len(numbers):
        return tuple(places)
    several = f", the {n_inputs} columns that they were chosen from" if n_inputs != len(numbers) else ""
    with_labels = "" if fitted.label is None else ", or these and the column of labels"
    raise BadInput(
        name,
        f"{len(places)} features",
        f"the {len(numbers)} features of the run{several}{with_labels}",
        "samples would be compared in different spaces",
        "give the columns that the run was given, or names to both so that columns are matched by them",
    )


def _tell_further(name: str, fitted: FittedFeatures, titles: list[str]) -> None:
    """Warn of columns that are no features of a run, if the run left none out itself."""
    if titles and fitted.whole:
        what = f"the column {titles[0]} is no feature" if len(titles) == 1 else f"{len(titles)} columns are no features"
        rest = "" if len(titles) == 1 else f": {faults.listing(titles)}"
        warnings.warn(f"{name}: {what} of the run, and left out{rest}", IPS2Warning, stacklevel=2)


def make_columns(
    kept: Sequence[int], names: Sequence[str] | None, categories: dict[int, tuple[str | float | None, ...]]
) -> tuple[Column, ...]:
    """Return a `Column` for each of these positions, with its name and its categories if it has them."""
    return tuple(
        Column(number=place, name=names[place] if names else None, categories=categories.get(place)) for place in kept
    )


def _positions(name: str, item: str | int, names: Sequence[str] | None, n_columns: int, what: str) -> list[int]:
    """Return the positions that a name, a number or a range stands for."""
    matches = [place for place, title in enumerate(names or ()) if title == str(item)]
    if len(matches) > 1:
        raise _ambiguous_column(name, f"{len(matches)} columns named {str(item)!r}", "a number for such a column", what)
    if matches:
        return matches
    number = whole_number(item)
    if number is not None:
        if -n_columns <= number < n_columns:
            return [number % n_columns]
        raise _no_such_column(name, f"no column {number}, as there are {n_columns}", str(item), names, n_columns, what)
    text = str(item)
    ends = [(int(match[1]), int(match[2])) for match in [NUMBERS.fullmatch(text)] if match]
    if ends and ends[0][1] >= n_columns:
        raise _no_such_column(name, f"no column {ends[0][1]}, as there are {n_columns}", text, names, n_columns, what)
    titles = [] if ends else list(names or ())
    for position, mark in enumerate(text):
        first, last = text[:position].strip(), text[position + 1 :].strip()
        if mark == "-" and titles.count(first) == titles.count(last) == 1:
            ends.append((titles.index(first), titles.index(last)))
    if len(ends) > 1:
        raise _ambiguous_column(name, f"{text!r}, which is a range in {len(ends)} ways", "a range of numbers", what)
    if not ends:
        raise _no_such_column(name, f"no column {text!r}", text, names, n_columns, what)
    first_place, last_place = ends[0]
    if first_place > last_place:
        raise _ambiguous_column(
            name, f"the range {text!r}, which ends before it begins", "a range in the table's order", what
        )
    return list(range(first_place, last_place + 1))


def _no_such_column(
    name: str, found: str, item: str, names: Sequence[str] | None, n_columns: int, what: str
) -> BadInput:
    return BadInput(
        name,
        found,
        f"a number from {-n_columns} to {n_columns - 1}, a range such as 0-{n_columns - 1}, or a name "
        f"({nearest_names(item, [title for title in names if title] if names else None)})",
        "other columns than those meant would be clustered",
        f"correct {what} ({REMEDY[what]})",
    )


def _ambiguous_column(name: str, found: str, allowed: str, what: str) -> BadInput:
    return BadInput(
        name, found, allowed, "other columns than those meant would be clustered", f"correct {what} ({REMEDY[what]})"
    )


# The words that pandas.read_csv takes for a missing value, and the question mark of older collections.
MISSING_WORDS = (
    "",
    "NA",
    "N/A",
    "?",
    "null",
    "NULL",
    "None",
    "n/a",
    "<NA>",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "1.#IND",
    "-1.#IND",
    "1.#QNAN",
    "-1.#QNAN",
)
NAN_WORDS = ("NaN", "-NaN", "nan", "-nan")  # also missing values, but in a column of numbers they parse as numbers
NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE)
CODE = re.compile(r"\+|-?0[0-9]")  # as a category 01234 is not 1234

UNKNOWN_CODE = -1.0
"""The code of a text that is none of the column's categories."""


def is_number(field: str) -> bool:
    """Return whether a field is a number or a missing value."""
    return field.strip() in MISSING_WORDS or NUMBER.fullmatch(field.strip()) is not None


def is_missing(text: str | None) -> bool:
    """Return whether a field of a column of text is a missing value."""
    return text is None or text in MISSING_WORDS or text in NAN_WORDS


class CategorySet:
    """The distinct values of a column, collected block by block; the order of the blocks does not matter.

    Parameters
    ----------
    name, title : str
        Of the table and of the column, for messages.
    missing : str
        As of `Features`.
    typed : bool
        Whether numbers come as float, so that text is text. In a text file, where they come as text, all categories
        are numbers if each is the spelling of a number of its own, and not one such as 01234.
    """

    def __init__(self, name: str, title: str, missing: str, *, typed: bool = True) -> None:
        self._name, self._title, self._missing, self._typed = name, title, missing, typed
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
                self._name,
                f"more than {MOST_CATEGORIES:,} categories in {self._title}",
                f"at most {MOST_CATEGORIES:,} in a column of one_hot (--one-hot)",
                "names or numbers of the rows would become features, each of a single row",
                "drop the column (drop_columns, --drop-columns), or group its categories",
            )

    def _add_number(self, value: float) -> None:
        if math.isnan(value):
            self._lacking = True
        elif math.isinf(value):
            raise faults.missing_value(self._name, self._title, f"the value {value!r}")
        else:
            self._found.add(value + 0.0)  # -0 is 0

    def categories(self) -> tuple[Category, ...]:
        """Return all categories, ascending, numbers or texts; a missing value last, if it is one of them.

        Raises
        ------
        BadInput
            If the column has no value.
        """
        values = self._found
        if any(isinstance(value, str) for value in values):
            values = {category_text(value) for value in values}
        if not self._typed:
            numbers = [category_number(str(value)) for value in values]
            spellings = {re.sub("^-(?=[0.]*(e|$))", "", str(value).lower()) for value in values}  # -0.0 is 0.0
            if None not in numbers and len(set(numbers)) == len(spellings):
                if any(math.isinf(number or 0.0) for number in numbers):
                    raise faults.missing_value(self._name, self._title, "an infinite value")
                values = {number for number in numbers if number is not None}
        lacking = (None,) if self._lacking and self._missing == "median" else ()
        if not values and not lacking:
            raise BadInput(
                self._name,
                f"no value in {self._title}",
                "a value in some rows",
                "there would be no category",
                "drop the column (drop_columns, --drop-columns)",
            )
        return (*sorted(values), *lacking)


def are_text(categories: tuple[Category, ...] | None) -> bool:
    """Return whether a column's categories are text, so that a reader has to turn them into numbers."""
    return categories is not None and any(isinstance(category, str) for category in categories)


def category_number(text: str) -> float | None:
    """Return the number that a text spells, None if it is none, or a code such as 01234."""
    return float(text) + 0.0 if NUMBER.fullmatch(text) and not CODE.match(text) else None


def text_codes(texts: Iterable[str | None], categories: tuple[Category, ...]) -> list[float]:
    """Return the codes of texts for `FeatureRows`: the position among categories that are text, or else the number.

    NaN stands for a missing value, `UNKNOWN_CODE` or infinity for a text that is no category.
    """
    codes: dict[Category, float] = {category: float(code) for code, category in enumerate(categories)}
    if are_text(categories):
        return [math.nan if is_missing(text) else codes.get(text, UNKNOWN_CODE) for text in texts]
    numbers = [(text, category_number(str(text))) for text in texts]
    return [
        math.nan if is_missing(text) else number if number is not None and number in codes else math.inf
        for text, number in numbers
    ]


def category_codes(
    texts: pa.StringArray, categories: tuple[Category, ...], ignore: bool, name: str, where: str, first_row: int
) -> NDArray[np.float64]:
    """Return the code of each text, as `text_codes` does, float64 (rows,).

    Parameters
    ----------
    texts : pyarrow.StringArray
    categories : tuple
    ignore : bool
        Whether a text that is no category is allowed.
    name, where : str
        The table as the user wrote it, and the title of the column, for messages.
    first_row : int
        Row of the table that the first text is from.

    Raises
    ------
    BadInput
        Where a text is no category; says its row.
    """
    words = texts.dictionary_encode()
    codes = np.array([*text_codes(words.dictionary.to_pylist(), categories), math.nan])
    numbers = codes[np.asarray(words.indices.fill_null(-1).to_numpy(zero_copy_only=False))]
    unknown = (numbers == UNKNOWN_CODE) if are_text(categories) else np.isinf(numbers)
    if unknown.any() and not ignore:
        row = int(np.argmax(unknown))
        raise unknown_category(name, texts[row].as_py(), where, first_row + row, categories)
    return numbers


def unknown_category(name: str, category: Category, where: str, row: int, categories: tuple[Category, ...]) -> BadInput:
    """Return the fault of a category that a run has not seen."""
    texts = [category_text(one) for one in categories]
    text = category_text(category)
    near = difflib.get_close_matches(text, texts, n=3, cutoff=0.5) or texts
    return BadInput(
        name,
        f"the category {text[:40]!r} in row {row}, {where}, which the run has not seen",
        f"its {len(texts)} categories ({faults.listing(near)})",
        "no feature would stand for it",
        "correct it, or give handle_unknown='ignore' (--handle-unknown ignore), which makes all of its features 0",
    )


@dataclass
class FeatureRows(Rows):
    """Features of the rows of a table, in which columns of text are numbers of their categories already."""

    inner: Rows
    places: NDArray[np.intp]  # of the columns in the inner rows
    columns: tuple[Column, ...]  # none where nothing is encoded: of a wide table they would take much room in tasks
    name: str
    ignore_unknown: bool
    width: int  # of the inner rows, in bytes

    def __post_init__(self) -> None:
        self.n_rows, self.grain, self.sparse = self.inner.n_rows, self.inner.grain, self.inner.sparse

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop; reads few rows at a time if most columns are left out."""
        step = max(1, 8 * PIECE_BYTES // self.width)
        pieces = [self._features(self.inner.read(row, min(row + step, stop)), row) for row in range(start, stop, step)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows, `rows` at a time."""
        row = 0
        for block in self.inner.blocks(rows):
            yield self._features(block, row)
            row += len(block)

    def _features(self, block: Block, first_row: int) -> Block:
        if not self.columns:
            return block[:, self.places]
        ends = [0, *accumulate(column.width for column in self.columns)]
        features = np.zeros((len(block), ends[-1]), block.dtype)
        for place, column, low, high in zip(self.places, self.columns, ends, ends[1:], strict=False):
            if column.categories is None:
                features[:, low] = block[:, place]
            else:
                features[:, low:high] = self._indicators(block[:, place], column, first_row)
        return features

    def _indicators(self, values: Block, column: Column, first_row: int) -> Block:
        """Return float64 (rows, categories): 1 for the row's category, NaN in the whole row if the value is missing."""
        assert column.categories is not None
        known_categories = [category for category in column.categories if category is not None]
        if are_text(column.categories):
            codes = values.astype(np.float64)
        else:
            numbers = np.array(known_categories, np.float64)
            positions = np.searchsorted(numbers, values).clip(0, max(len(numbers) - 1, 0))
            matching = numbers[positions] == values if len(numbers) else np.zeros(len(values), np.bool_)
            codes = np.where(matching, positions, np.where(np.isnan(values), np.nan, -1.0))
            if not self.ignore_unknown and (codes < 0).any():
                row = int(np.argmax(codes < 0))
                where = f"column {column.title!r}"
                raise unknown_category(self.name, float(values[row]), where, first_row + row, column.categories)
        missing = np.isnan(codes)
        if None in column.categories:
            codes = np.where(missing, len(known_categories), codes)
        indicators = (codes[:, None] == np.arange(len(column.categories))).astype(np.float64)
        if None not in column.categories:
            indicators[missing] = np.nan
        return indicators


def feature_table(
    table: Table, fitted: FittedFeatures, places: Sequence[int] | None = None, key: object = None
) -> Table:
    """Return a table of features.

    Parameters
    ----------
    table : Table
        Numbers, or numbers of categories.
    fitted : FittedFeatures
    places : sequence of int, optional
        Position, in the table, of each column of ``fitted``; by default 0, 1, 2, ...
    key : object
        Anything else that the values depend on; part of the fingerprint.
    """
    own = tuple(range(table.shape[1])) if places is None else tuple(places)
    plain = own == tuple(range(table.shape[1])) and not fitted.one_hot
    rows = table.rows
    if not plain:
        rows = FeatureRows(
            table.rows,
            np.array(own, np.intp),
            fitted.columns if fitted.one_hot else (),
            table.name,
            fitted.handle_unknown == "ignore",
            table.shape[1] * table.dtype.itemsize,
        )
    names = fitted.feature_names if table.feature_names is not None or not plain else None
    if plain and all(column.name is None for column in fitted.columns):
        names = table.feature_names  # of new samples, which a run without names takes by position
    return replace(
        table,
        shape=check_shape(table.name, (table.shape[0], sum(column.width for column in fitted.columns))),
        dtype=np.dtype(np.float64) if fitted.one_hot else table.dtype,
        rows=rows,
        feature_names=names,
        fingerprint=digest(table.fingerprint, "features", fitted.as_dict(), own, key),
        fitted=fitted,
    )


def features_of_numbers(table: Table, features: Features | FittedFeatures) -> Table:
    """Return the features of a table that holds nothing but numbers.

    Raises
    ------
    BadInput
        If there is no such column, or the settings contradict one another.
    """
    label, own = table.label, [*range(table.shape[1])]
    if label is not None:  # columns are numbered with that of the labels, which is no column of the table any more
        own = [place + (place >= label) for place in own]
    n_columns = table.shape[1] + (label is not None)
    names = None
    if table.feature_names is not None:
        names = [""] * n_columns
        for place, title in zip(own, table.feature_names, strict=True):
            names[place] = title
    if isinstance(features, FittedFeatures):
        _refuse_sparse(table, bool(features.one_hot))
        if any(are_text(column.categories) for column in features.columns):
            raise BadInput(
                table.name,
                "a table without text",
                "one with the text columns that the run encoded (one_hot)",
                "their categories would be unknown",
                "give a table of text, a Parquet file or a data frame",
            )
        selected = match_columns(table.name, features, names, n_columns, label)
        return feature_table(table, features, [place - (label is not None and place > label) for place in selected])
    selected, one_hot = select_columns(table.name, features, names, n_columns, label)
    _refuse_sparse(table, bool(one_hot))
    places = {place: own.index(place) for place in selected}
    category_sets = {
        place: CategorySet(table.name, _column_title(place, names), features.missing) for place in sorted(one_hot)
    }
    if category_sets:
        step = max(1, 8 * PIECE_BYTES // max(1, table.shape[1] * table.dtype.itemsize))
        for block in table.rows.blocks(step):
            for place, collected in category_sets.items():
                collected.add(np.unique(block[:, places[place]].astype(np.float64)).tolist())
    categories = {place: collected.categories() for place, collected in category_sets.items()}
    fitted = FittedFeatures(
        columns=make_columns(selected, names, categories), n_columns=n_columns, label=label, missing=features.missing
    )
    return feature_table(table, fitted, list(places.values()))


def _column_title(place: int, names: Sequence[str] | None) -> str:
    return f"column {place}" + (f" ({names[place]!r})" if names else "")


def _refuse_sparse(table: Table, encodes: bool) -> None:
    if encodes and table.rows.sparse:
        raise BadInput(
            table.name,
            "a sparse matrix with one_hot (--one-hot)",
            "a dense table of numbers or text",
            "nearly all of its values would be one category",
            "leave one_hot out, or give the categories beside others",
        )

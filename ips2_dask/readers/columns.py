"""Columns of a table: which of them hold the labels and which become features, categories, and the `Rows` of features.

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
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.readers import faults, labels
from ips2_dask.readers.base import PIECE_BYTES, Pieces, Rows, Table, digest
from ips2_dask.readers.features import MOST_CATEGORIES, Category, Column, Features, FittedFeatures, category_text
from ips2_dask.typing import AnyArray, Float64

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Names: TypeAlias = "Sequence[str] | None"
Places = Sequence[int]
Settings: TypeAlias = "Features | FittedFeatures"
RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
REMEDY = {"columns": "--columns", "drop_columns": "--drop-columns", "one_hot": "--one-hot"}


def whole_number(wanted: str | int) -> int | None:
    """Return ``wanted`` as a column number if it is one, also when it comes as text from a command line."""
    if isinstance(wanted, str):
        return int(wanted) if labels.WHOLE.fullmatch(wanted.strip()) else None
    return int(wanted)


def find_column(name: str, wanted: str | int, names: Names, n_columns: int) -> int:
    """Return the position of a label column, given by name (looked for first) or number; raises ``BadInput``."""
    return _positions(name, wanted, names, n_columns, "labels_column")[0]


def _nearest_names(wanted: str, names: Names) -> str:
    """Return a clause for messages: the names most like ``wanted``, or that the columns have no names."""
    return faults.nearest(wanted, list(names)) if names else "but its columns have no names"


def column_title(position: int, names: Names) -> str:
    """Return what messages call a column."""
    return f"column {position}" + (f" ({names[position]!r})" if names else "")


def check_names(name: str, columns: list[str]) -> None:
    """Raise ``BadInput`` if two columns have one name."""
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        found, allowed = f"several columns named {twice[0]!r}", "a name of its own for each column"
        raise BadInput(name, found, allowed, "one would be read in place of the other", "rename them")


def counted_names(values: AnyArray) -> AnyArray | None:
    """Return names as strings; None where they count the rows, or the rows of each part."""
    if all(isinstance(value, int) for value in values) and len(set(values)) < len(values):
        return None
    names = values.astype(np.str_)
    return None if np.array_equal(names, np.arange(len(names)).astype(np.str_)) else names


def take_label_variable(table: Table, variable: str, count: int, label_pieces: Pieces) -> Table:
    """Return ``table`` with the labels that another variable of its file holds, after checking their number."""
    m, f = table.shape
    if count != m:
        hint = ", or give transpose=True (--transpose)" if count == f else ""
        found, allowed = f"{count} labels in {variable!r} for {m} samples", "one label for each sample"
        otherwise = "labels and samples would not belong together"
        raise BadInput(table.name, found, allowed, otherwise, f"name the variable that belongs to these samples{hint}")
    return replace(table, fingerprint=digest(table.fingerprint, "labels in", variable), label_pieces=label_pieces)


@dataclass(frozen=True)
class Chosen:
    """The columns of a table that become features."""

    names: Names
    n_columns: int
    label: int | None
    kept: tuple[int, ...]
    encoded: tuple[int, ...]
    features: Settings

    @property
    def have_categories(self) -> list[bool]:
        """Whether each of the ``kept`` columns is read as categories."""
        if isinstance(self.features, FittedFeatures):
            return [column.categories is not None for column in self.features.columns]
        return [place in self.encoded for place in self.kept]

    def fitted(self, category_sets: dict[int, CategorySet]) -> FittedFeatures | None:
        """Return the settings fitted to the table, of whose ``encoded`` columns these are the categories."""
        if isinstance(self.features, FittedFeatures) or self.features.is_default:
            return None if isinstance(self.features, Features) else self.features
        titles: Sequence[str | None] = self.kept_names() or [None] * len(self.kept)
        found = [category_sets[place].categories() if place in category_sets else None for place in self.kept]
        columns = tuple(
            Column(number=place, name=title, categories=categories)
            for place, title, categories in zip(self.kept, titles, found, strict=True)
        )
        missing = self.features.missing
        return FittedFeatures(columns=columns, n_columns=self.n_columns, label=self.label, missing=missing)

    def kept_names(self) -> list[str] | None:
        """Return the names of the columns that become features."""
        return None if self.names is None else [self.names[place] for place in self.kept]

    def category_sets(self, name: str, *, typed: bool = True) -> dict[int, CategorySet]:
        """Return a set for the categories of each of the ``encoded`` columns."""
        titles = {place: column_title(place, self.names) for place in self.encoded}
        return {place: CategorySet(name, title, self.features.missing, typed=typed) for place, title in titles.items()}


def select_columns(
    name: str,
    features: Settings,
    names: Names,
    n_columns: int,
    labels_column: str | int | None = None,
    hidden: Places = (),
) -> Chosen:
    """Return the columns of a table that become features: not that of labels, nor ``hidden`` ones, of names of rows."""
    label = None if labels_column is None else find_column(name, labels_column, names, n_columns)
    if isinstance(features, FittedFeatures):
        matched = match_columns(name, features, names, n_columns, label, hidden)
        return Chosen(names, n_columns, label, matched, (), features)
    title, positions_of = partial(column_title, names=names), dict[str, list[int]]()
    for what in REMEDY:
        places = [_positions(name, item, names, n_columns, what) for item in getattr(features, what) or ()]
        positions_of[what] = list(chain.from_iterable(places))
    dropped, one_hot = {*positions_of["drop_columns"]}, {*positions_of["one_hot"]}
    for what in ("columns", "one_hot"):
        for position in positions_of[what]:
            if position == label or position in hidden:
                role = " and as the labels_column" if position == label else ", though it has the names of the rows"
                found, allowed = f"{title(position)} in {what}{role}", "columns that are features"
                otherwise = "known labels or names would be clustered"
                raise BadInput(name, found, allowed, otherwise, f"take it out of {what} ({REMEDY[what]})")
            if position in dropped:
                found, allowed = f"{title(position)} both in {what} and in drop_columns", "a column in one of them"
                remedy = f"take it out of {what} ({REMEDY[what]}) or drop_columns (--drop-columns)"
                raise BadInput(name, found, allowed, "it would be unclear whether it is a feature", remedy)
    wanted = set(range(n_columns)) if features.columns is None else set(positions_of["columns"])
    absent = sorted(one_hot - wanted)
    if absent:
        found, allowed = f"{title(absent[0])} in one_hot, which is not in columns", "categories of a kept column"
        remedy = "add it to columns (--columns), or take it out of one_hot (--one-hot)"
        raise BadInput(name, found, allowed, "there would be nothing to encode", remedy)
    selected = sorted(wanted - dropped - {label, *hidden})
    if not selected and not features.is_default:
        found, allowed = f"all {n_columns} columns dropped", "at least one column that is a feature"
        otherwise = "there would be nothing to cluster"
        raise BadInput(name, found, allowed, otherwise, "drop fewer columns (drop_columns, --drop-columns)")
    return Chosen(names, n_columns, label, tuple(selected), tuple(sorted(one_hot)), features)


def match_columns(
    name: str, fitted: FittedFeatures, names: Names, n_columns: int, label: int | None = None, hidden: Places = ()
) -> tuple[int, ...]:
    """Return the positions, in a table of new samples, of the columns that a run was fitted with.

    Columns are matched by name, in any order; what else the table has is left out. If two of the run's columns have
    one name, the table must have the run's names in the run's order. Without names on either side, it must have the
    columns of the run's input, with or without that of the labels, or those alone that became features. Names that only
    count the columns (0, 1, 2, ...) are none; but a table that has the numbers of a run without names is matched by
    them.
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
        near = _nearest_names(missing[0], [title for title in titles if title])
        if label is not None and names is not None and names[label] == missing[0]:
            near = "it is given as labels_column (--labels-column)"
        found = f"no column {faults.listing([repr(title) for title in missing])} ({near})"
        allowed = "all columns that the run was made of"
        remedy = "give the run's columns (Run.feature_names) under the names that they had"
        raise BadInput(name, found, allowed, "samples would be compared in different spaces", remedy)
    twice = next((title for title in own if max(wanted[title], there[title]) > 1), None)
    at_numbers = len(titles) == fitted.n_columns and [titles[number] for number in numbers] == own
    if twice is not None and not at_numbers:
        found = f"several columns named {twice!r}, and other columns than the run's, or another order"
        allowed = "each column once, or all names in the order of the run"
        remedy = "rename the columns that are no features, or give the columns that the run was given in its order"
        raise BadInput(name, found, allowed, "one would be read in place of the other", remedy)
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
    allowed = f"the {len(numbers)} features of the run{several}{with_labels}"
    remedy = "give the columns that the run was given, or names to both so that columns are matched by them"
    raise BadInput(name, f"{len(places)} features", allowed, "samples would be compared in different spaces", remedy)


def _tell_further(name: str, fitted: FittedFeatures, titles: list[str]) -> None:
    """Warn of columns that are no features of a run, if the run left none out itself."""
    if titles and fitted.whole:
        what = f"the column {titles[0]} is no feature" if len(titles) == 1 else f"{len(titles)} columns are no features"
        rest = "" if len(titles) == 1 else f": {faults.listing(titles)}"
        warnings.warn(f"{name}: {what} of the run, and left out{rest}", IPS2Warning, stacklevel=2)


def _positions(name: str, item: str | int, names: Names, n_columns: int, what: str) -> list[int]:
    """Return the positions that a name, a number or a range stands for; a column of labels is no range."""
    text, number, titles, is_label = str(item), whole_number(item), list(names or ()), what == "labels_column"

    def wrong(found: str, allowed: str | None = None) -> BadInput:
        near = _nearest_names(text, [title for title in titles if title] if titles else None)
        ranges = "" if is_label else f" a range such as 0-{n_columns - 1},"
        known = f"a number from {-n_columns} to {n_columns - 1},{ranges} or a name ({near})"
        otherwise, remedy = "other columns than those meant would be clustered", f"correct {what} ({REMEDY.get(what)})"
        if is_label:
            otherwise = "the result would be scored against nothing"
            remedy = "correct labels_column (--labels-column), or leave it out"
        return BadInput(name, found, allowed or known, otherwise, remedy)

    matches = [place for place, title in enumerate(titles) if title == text]
    if len(matches) > 1:
        raise wrong(f"{len(matches)} columns named {text!r}", "a number for such a column")
    if matches:
        return matches
    if number is not None and -n_columns <= number < n_columns:
        return [number % n_columns]
    match = None if number is not None or is_label else RANGE.fullmatch(text)
    if number is not None or (match and int(match[2]) >= n_columns):
        raise wrong(f"no column {match[2] if match else number}, as there are {n_columns}")
    ends = [(int(match[1]), int(match[2]))] if match else []
    for position, mark in enumerate("" if match or is_label else text):
        first, last = text[:position].strip(), text[position + 1 :].strip()
        if mark == "-" and titles.count(first) == titles.count(last) == 1:
            ends.append((titles.index(first), titles.index(last)))
    if not ends:
        raise wrong(f"no column {text!r}" + " to take the labels from" * is_label)
    if len(ends) > 1:
        raise wrong(f"{text!r}, which is a range in {len(ends)} ways", "a range of numbers")
    if ends[0][0] > ends[0][1]:
        raise wrong(f"the range {text!r}, which ends before it begins", "a range in the table's order")
    return list(range(ends[0][0], ends[0][1] + 1))


# The words that pandas.read_csv takes for a missing value, and the question mark of older collections.
MISSING_WORDS = (
    *("", "NA", "N/A", "?", "null", "NULL", "None", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
NAN_WORDS = ("NaN", "-NaN", "nan", "-nan")  # also missing values, but in a column of numbers they parse as numbers
NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE)
CODE = re.compile(r"\+|-?0[0-9]")  # as a category 01234 is not 1234


def _is_missing(value: Category) -> bool:
    """Return whether a value of a column of categories is missing: none, NaN, or a word for it."""
    return value is None or value != value or value in MISSING_WORDS or value in NAN_WORDS


class CategorySet:
    """The distinct values of a column, collected block by block; the order of the blocks does not matter."""

    def __init__(self, name: str, title: str, missing: str, *, typed: bool = True) -> None:
        self._name, self._title, self._missing, self._typed = name, title, missing, typed
        self.found: set[Category] = set()

    def add_block(self, words: list[Category], places: AnyArray, first_row: int) -> None:
        """Add the words of a block, of which each row has the one at its place; -1 is a missing value."""
        gone = np.array([_is_missing(word) for word in (*words, None)])[places]
        if self._missing == "refuse" and gone.any():
            row = first_row + int(np.argmax(gone))
            raise faults.missing_value(self._name, f"row {row}, {self._title}", "a missing value")
        self.add([*words, *([None] if gone.any() else [])])

    def add(self, values: Iterable[Category]) -> None:
        """Add different values."""
        for value in values:
            if isinstance(value, float) and math.isinf(value):
                raise faults.missing_value(self._name, self._title, f"the value {value!r}")
            self.found.add(
                None if _is_missing(value) else value + 0.0 if isinstance(value, float) else value
            )  # -0 is 0
        if len(self.found - {None}) > MOST_CATEGORIES:
            found = f"more than {MOST_CATEGORIES:,} categories in {self._title}"
            allowed = f"at most {MOST_CATEGORIES:,} in a column of one_hot (--one-hot)"
            otherwise = "names or numbers of the rows would become features, each of a single row"
            remedy = "drop the column (drop_columns, --drop-columns), or group its categories"
            raise BadInput(self._name, found, allowed, otherwise, remedy)

    def categories(self) -> tuple[Category, ...]:
        """Return all categories, ascending, numbers or texts; a missing value last, if it is one of them."""
        values = {value for value in self.found if value is not None}
        if any(isinstance(value, str) for value in values):
            values = {category_text(value) for value in values}
        if not self._typed:
            numbers = [category_number(str(value)) for value in values]
            spellings = {re.sub("^-(?=[0.]*(e|$))", "", str(value).lower()) for value in values}  # -0.0 is 0.0
            if None not in numbers and len(set(numbers)) == len(spellings):
                if any(math.isinf(number or 0.0) for number in numbers):
                    raise faults.missing_value(self._name, self._title, "an infinite value")
                values = {number for number in numbers if number is not None}
        lacking = (None,) if None in self.found and self._missing == "median" else ()
        if not values and not lacking:
            found, allowed = f"no value in {self._title}", "a value in some rows"
            otherwise = "there would be no category"
            raise BadInput(self._name, found, allowed, otherwise, "drop the column (drop_columns, --drop-columns)")
        return (*sorted(values), *lacking)


def _are_text(categories: tuple[Category, ...] | None) -> bool:
    """Return whether a column's categories are text, so that a reader has to turn them into numbers."""
    return categories is not None and any(isinstance(category, str) for category in categories)


def category_number(text: str) -> float | None:
    """Return the number that a text spells, None if it is none, or a code such as 01234."""
    return float(text) + 0.0 if NUMBER.fullmatch(text) and not CODE.match(text) else None


def category_codes(
    words: list[Category], places: AnyArray, column: Column, ignore: bool, name: str, where: str, first_row: int
) -> Float64:
    """Return the place of each row's category among those of the column, float64 (rows,); NaN where it is missing.

    ``words`` are the different values, ``places`` those of the rows among them, -1 where there is none. ``where`` is
    what messages call the column, and ``first_row`` the row that the first place is of. A category that is none of the
    column's raises ``BadInput``, or is -1.
    """
    categories, text = column.categories or (), _are_text(column.categories)
    positions = {category: position for position, category in enumerate(categories)}

    def code(word: Category) -> float:
        if _is_missing(word):
            return positions.get(None, math.nan)
        value = category_text(word) if text else category_number(word) if isinstance(word, str) else word
        return -1 if value is None else positions.get(value, -1)

    found = np.array([code(word) for word in (*words, None)], np.float64)[places]
    if not ignore and (found == -1).any():
        row = int(np.argmax(found == -1))
        texts, unknown = [category_text(one) for one in categories], category_text(words[places[row]])
        near = difflib.get_close_matches(unknown, texts, n=3, cutoff=0.5) or texts
        seen = f"the category {unknown[:40]!r} in row {first_row + row}, {where}, which the run has not seen"
        allowed = f"its {len(texts)} categories ({faults.listing(near)})"
        remedy = (
            "correct it, or give handle_unknown='ignore' (--handle-unknown ignore), which makes all of its features 0"
        )
        raise BadInput(name, seen, allowed, "no feature would stand for it", remedy)
    return found


class _FeatureRows(Rows):
    """Features of the rows of a table, whose columns of categories may be ``coded``: see `category_codes`."""

    def __init__(
        self, table: Table, places: AnyArray, fitted: FittedFeatures | None = None, coded: bool = False
    ) -> None:
        self._inner, self._places, self._name = table.rows, places, table.name
        # none where nothing is encoded: of a wide table they would take much room in tasks
        self._columns = fitted.columns if fitted is not None and fitted.one_hot else ()
        self._coded, self._ignore_unknown = coded, fitted is not None and fitted.handle_unknown == "ignore"
        self._step = max(1, 8 * PIECE_BYTES // max(1, table.shape[1] * table.dtype.itemsize))
        self.grain, self.sparse = table.rows.grain, table.rows.sparse

    def csr(self) -> csr_array | None:
        matrix = None if self._columns else self._inner.csr()
        return None if matrix is None else matrix[:, self._places]

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop; reads few rows at a time if most columns are left out."""
        lows = range(start, stop, self._step)
        pieces = [self._features(self._inner.read(low, min(low + self._step, stop)), low) for low in lows]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        row = 0
        for block in self._inner.blocks(rows):
            yield self._features(block, row)
            row += len(block)

    def _features(self, block: AnyArray, first_row: int) -> AnyArray:
        if not self._columns:
            return block[:, self._places]
        ends = [0, *accumulate(column.width for column in self._columns)]
        features = np.zeros((len(block), ends[-1]), block.dtype)
        for place, column, low, high in zip(self._places, self._columns, ends, ends[1:], strict=False):
            if column.categories is None:
                features[:, low] = block[:, place]
                continue
            codes = block[:, place]
            if not self._coded:
                numbers, places = np.unique(codes.astype(np.float64), return_inverse=True)
                where, ignore = f"column {column.title!r}", self._ignore_unknown
                codes = category_codes(numbers.tolist(), places, column, ignore, self._name, where, first_row)
            features[:, low:high] = codes[:, None] == np.arange(high - low)
            features[np.isnan(codes), low:high] = np.nan
        return features


def feature_table(
    table: Table, fitted: FittedFeatures | None, places: Places | None = None, coded: bool = False
) -> Table:
    """Return a table of the columns at some places of the table, as features if they are fitted; see `_FeatureRows`."""
    all_of_it, names = tuple(range(table.shape[1])), table.feature_names
    own = all_of_it if places is None else tuple(places)
    encoded = fitted is not None and bool(fitted.one_hot)
    plain = own == all_of_it and not encoded
    if plain and fitted is None:
        return table
    if fitted is None:
        names = names and [names[place] for place in own]
    elif not plain or (names is not None and any(column.name is not None for column in fitted.columns)):
        names = fitted.feature_names  # else new samples, which a run without names takes by position
    width = len(own) if fitted is None else sum(column.width for column in fitted.columns)
    taken = table.rows if plain else None if encoded else table.rows.take(own)
    return replace(
        table,
        shape=(table.shape[0], width),
        dtype=np.dtype(np.float64) if encoded else table.dtype,
        rows=_FeatureRows(table, np.array(own, np.intp), fitted, coded) if taken is None else taken,
        feature_names=names,
        fingerprint=digest(table.fingerprint, "columns", own, None if fitted is None else fitted.as_dict()),
        fitted=fitted,
    )


def columns_of_numbers(table: Table, features: Settings, labels_column: str | int | None = None) -> Table:
    """Return the features of a table that holds nothing but numbers, one column of which may hold the labels."""
    if isinstance(features, Features) and features.is_default and labels_column is None:
        return table
    if isinstance(features, FittedFeatures) and any(_are_text(column.categories) for column in features.columns):
        found, allowed = "a table without text", "one with the text columns that the run encoded (one_hot)"
        otherwise = "their categories would be unknown"
        raise BadInput(table.name, found, allowed, otherwise, "give a table of text, a Parquet file or a data frame")
    chosen = select_columns(table.name, features, table.feature_names, table.shape[1], labels_column)
    if features.one_hot and table.rows.sparse:
        found, allowed = "a sparse matrix with one_hot (--one-hot)", "a dense table of numbers or text"
        otherwise = "nearly all of its values would be one category"
        raise BadInput(table.name, found, allowed, otherwise, "leave one_hot out, or give the categories beside others")
    category_sets, label = chosen.category_sets(table.name), chosen.label
    if category_sets:
        step = max(1, 8 * PIECE_BYTES // max(1, table.shape[1] * table.dtype.itemsize))
        for block in table.rows.blocks(step):
            for place, collected in category_sets.items():
                collected.add(np.unique(block[:, place].astype(np.float64)).tolist())
    if label is not None:
        key = digest(table.fingerprint, "labels in column", label)
        table = replace(table, fingerprint=key, label_pieces=partial(table.rows.column, label), label=label)
    return feature_table(table, chosen.fitted(category_sets), chosen.kept)

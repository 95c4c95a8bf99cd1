"""Which columns of a table are features: names, numbers and ranges become positions; contradictions are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.features import Column, Features, FittedFeatures
from ips2_dask.readers.labels import nearest_names, whole_number

NUMBERS = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
REMEDY = {"columns": "--columns", "drop_columns": "--drop-columns", "one_hot": "--one-hot"}


class Selection(NamedTuple):
    """Positions of columns in a table, ascending."""

    kept: tuple[int, ...]
    one_hot: frozenset[int]


def select(
    name: str,
    features: Features,
    names: Sequence[str] | None,
    n_columns: int,
    label: int | None = None,
    hidden: Sequence[int] = (),
) -> Selection:
    """Return the columns of a table that become features.

    Parameters
    ----------
    name : str
        What the user wrote of the table.
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
        Where a column is not there, or what is said of the columns contradicts itself.
    """
    asked: dict[str, list[int]] = {what: [] for what in REMEDY}
    for what, positions in asked.items():
        for item in getattr(features, what) or ():
            positions += _positions(name, item, names, n_columns, what)

    def title(position: int) -> str:
        return f"column {position}" + (f" ({names[position]!r})" if names else "")

    dropped, one_hot = set(asked["drop_columns"]), set(asked["one_hot"])
    for what in ("columns", "one_hot"):
        for position in asked[what]:
            if position == label:
                raise _contradiction(
                    name, f"{title(position)} in {what} and as the labels_column", "labels that are no feature",
                    "the known labels would be clustered", f"take it out of {what} ({REMEDY[what]})",
                )  # fmt: skip
            if position in hidden:
                raise _contradiction(
                    name, f"{title(position)}, the names of the rows, in {what}", "columns of values",
                    "names would be compared as numbers", f"take it out of {what} ({REMEDY[what]})",
                )  # fmt: skip
    both = sorted(dropped & set(asked["columns"]))
    if both:
        raise _contradiction(
            name, f"{title(both[0])} both in columns and in drop_columns", "a column in one of them",
            "it would be unclear whether it is a feature", "take it out of columns (--columns) or drop_columns",
        )  # fmt: skip
    lost = sorted(one_hot & dropped)
    if lost:
        raise _contradiction(
            name, f"{title(lost[0])} both in one_hot and in drop_columns", "categories of a column that is kept",
            "there would be nothing to encode", "take it out of one_hot (--one-hot) or drop_columns (--drop-columns)",
        )  # fmt: skip
    wanted = set(range(n_columns)) if features.columns is None else set(asked["columns"])
    absent = sorted(one_hot - wanted)
    if absent:
        raise _contradiction(
            name, f"{title(absent[0])} in one_hot, which is not in columns", "categories of a column that is kept",
            "there would be nothing to encode", "add it to columns (--columns), or take it out of one_hot (--one-hot)",
        )  # fmt: skip
    kept = sorted(wanted - dropped - {label, *hidden})
    if not kept:
        raise _contradiction(
            name, f"all {n_columns} columns dropped", "at least one column that is a feature",
            "there would be nothing to cluster", "drop fewer columns (drop_columns, --drop-columns)",
        )  # fmt: skip
    return Selection(tuple(kept), frozenset(one_hot))


def select_again(
    name: str, fitted: FittedFeatures, names: Sequence[str] | None, n_columns: int, label: int | None = None,
    hidden: Sequence[int] = (),
) -> tuple[int, ...]:  # fmt: skip
    """Return the places, in a table of new samples, of the columns that a run was made of.

    They are found by name. Without names on either side the table must have the columns of the run's input, with or
    without that of the labels, or those alone that became features.

    Raises
    ------
    BadInput
        Where one is lacking.
    """
    known = [column.name for column in fitted.columns]
    if names is not None and None not in known:
        places = {}
        for place, title in enumerate(names):
            if title in known and place != label and place not in hidden:
                if title in places:
                    raise _new(name, f"several columns named {title!r}", "one would be read in place of the other")
                places[title] = place
        lacking = [str(column) for column in known if column not in places]
        if lacking:
            near = nearest_names(lacking[0], [title for title in names if title])
            found = f"no column {faults.listing([repr(title) for title in lacking])} ({near})"
            raise _new(name, found, "samples would be compared in different spaces")
        return tuple(places[str(column)] for column in known)
    there = [place for place in range(n_columns) if place != label and place not in hidden]
    before = [place for place in range(fitted.n_columns) if place != fitted.label]
    numbers = [column.number for column in fitted.columns]
    if len(there) == len(before):
        return tuple(there[before.index(number)] for number in numbers)
    if len(there) == fitted.n_columns and label is None:
        return tuple(numbers)
    if len(there) == len(numbers):
        return tuple(there)
    found = f"{len(there)} columns without names that could be matched"
    raise BadInput(
        name, found, f"the {fitted.n_columns} columns of the run's input, or the {len(numbers)} that it clustered",
        "samples would be compared in different spaces", "give the columns that the run was given",
    )  # fmt: skip


def columns_of(
    kept: Sequence[int], names: Sequence[str] | None, categories: dict[int, tuple[str | float | None, ...]]
) -> tuple[Column, ...]:
    """Return what is known of columns at these positions."""
    return tuple(
        Column(number=place, name=names[place] if names else None, categories=categories.get(place)) for place in kept
    )


def _positions(name: str, item: str | int, names: Sequence[str] | None, n_columns: int, what: str) -> list[int]:
    """Return the positions that a name, a number or a range stands for."""
    matches = [place for place, title in enumerate(names or ()) if title == str(item)]
    if len(matches) > 1:
        raise _unclear(name, f"{len(matches)} columns named {str(item)!r}", "a number for such a column", what)
    if matches:
        return matches
    number = whole_number(item)
    if number is not None:
        if -n_columns <= number < n_columns:
            return [number % n_columns]
        raise _absent(name, f"no column {number}, as there are {n_columns}", str(item), names, n_columns, what)
    text = str(item)
    ends = [(int(match[1]), int(match[2])) for match in [NUMBERS.fullmatch(text)] if match]
    if ends and ends[0][1] >= n_columns:
        raise _absent(name, f"no column {ends[0][1]}, as there are {n_columns}", text, names, n_columns, what)
    titles = [] if ends else list(names or ())
    for at, mark in enumerate(text):
        first, last = text[:at].strip(), text[at + 1 :].strip()
        if mark == "-" and titles.count(first) == titles.count(last) == 1:
            ends.append((titles.index(first), titles.index(last)))
    if len(ends) > 1:
        raise _unclear(name, f"{text!r}, which is a range in {len(ends)} ways", "a range of numbers", what)
    if not ends:
        raise _absent(name, f"no column {text!r}", text, names, n_columns, what)
    first_place, last_place = ends[0]
    if first_place > last_place:
        raise _unclear(name, f"the range {text!r}, which ends before it begins", "a range in the table's order", what)
    return list(range(first_place, last_place + 1))


def _absent(name: str, found: str, item: str, names: Sequence[str] | None, n_columns: int, what: str) -> BadInput:
    return BadInput(
        name, found,
        f"a number from {-n_columns} to {n_columns - 1}, a range such as 0-{n_columns - 1}, or a name "
        f"({nearest_names(item, [title for title in names if title] if names else None)})",
        "other columns than those meant would be clustered", f"correct {what} ({REMEDY[what]})",
    )  # fmt: skip


def _unclear(name: str, found: str, allowed: str, what: str) -> BadInput:
    return BadInput(
        name, found, allowed, "other columns than those meant would be clustered", f"correct {what} ({REMEDY[what]})"
    )


def _contradiction(name: str, found: str, allowed: str, otherwise: str, remedy: str) -> BadInput:
    return BadInput(name, found, allowed, otherwise, remedy)


def _new(name: str, found: str, otherwise: str) -> BadInput:
    return BadInput(name, found, "the columns that the run was made of", otherwise, "give them the names they had")

"""Data frames the caller has in memory: pandas, or anything that has its ``iloc``, ``columns`` and ``index``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.readers import faults
from ips2_dask.readers.base import Table, check_dtype, check_shape, digest
from ips2_dask.readers.categories import UNKNOWN, Collected, are_text, is_missing, is_number, unknown
from ips2_dask.readers.columns import columns_of, select, select_again
from ips2_dask.readers.featured import featured
from ips2_dask.readers.features import Column, Features, FittedFeatures
from ips2_dask.readers.labels import as_labels, find_column, take_label_column
from ips2_dask.readers.resident import content_digest, held_table, transposed

NAME = "the data frame given"


def is_frame(spec: Any) -> bool:
    """Return whether something is a data frame, without importing pandas."""
    return all(hasattr(spec, part) for part in ("iloc", "columns", "index", "dtypes"))


def open_frame(
    frame: Any,
    labels_column: str | int | None,
    transpose: bool,
    features: Features | FittedFeatures | None = None,
) -> Table:
    """Return the table of a data frame; one of its columns may hold the labels."""
    if transpose:
        table = transposed(open_frame(frame, None, False))
        return table if labels_column is None else take_label_column(table, labels_column)
    titles = [str(title) for title in frame.columns]
    label = None if labels_column is None else find_column(NAME, labels_column, titles, len(titles))
    kept = [position for position in range(len(titles)) if position != label]
    fitted = _fitted(frame, titles, label, features)
    if isinstance(features, FittedFeatures):
        kept = list(select_again(NAME, features, titles, len(titles), label))
    elif fitted is not None:
        kept = [column.number for column in fitted.columns]
    check_shape(NAME, (len(frame), len(kept)))
    columns = [_values(frame.iloc[:, position]) for position in kept]
    for at, column in enumerate(() if fitted is None else fitted.columns):
        if column.categories is not None:
            columns[at] = _codes(frame.iloc[:, kept[at]], column, fitted, titles[kept[at]])
    _check_columns(columns, [titles[position] for position in kept])
    matrix = np.empty((len(frame), len(kept)), np.result_type(*columns))
    for position, values in enumerate(columns):
        matrix[:, position] = values
    labels = None if label is None else as_labels(np.asarray(frame.iloc[:, label].to_numpy(dtype=object)), NAME)
    names = index_names(frame.index)
    table = held_table(
        matrix,
        NAME,
        feature_names=[titles[position] for position in kept] if index_names(frame.columns) is not None else None,
        read_sample_names=None if names is None else partial(np.array, names),
        read_labels=None if labels is None else partial(np.array, labels),
    )
    if labels is not None:
        table = replace(table, fingerprint=digest(table.fingerprint, content_digest(labels)), label=label)
    return table if fitted is None else featured(table, fitted)


def _fitted(
    frame: Any, titles: list[str], label: int | None, features: Features | FittedFeatures | None
) -> FittedFeatures | None:
    """Return which columns become features, with their categories."""
    if not isinstance(features, Features):
        return features
    kept, one_hot = select(NAME, features, titles, len(titles), label)
    categories = {}
    for position in sorted(one_hot):
        collected = Collected(NAME, f"column {position} ({titles[position]!r})", features.missing)
        values = _words(frame.iloc[:, position])
        if features.missing == "refuse" and any(is_missing(value) for value in values):
            row = next(row for row, value in enumerate(values) if is_missing(value))
            raise faults.missing_value(NAME, f"row {row}, column {position} ({titles[position]!r})", "a missing value")
        collected.add(set(values))
        categories[position] = collected.categories()
    return FittedFeatures(
        columns=columns_of(kept, titles, categories), n_columns=len(titles), label=label, missing=features.missing
    )


def _words(column: Any) -> list[str | None]:
    """Return a column of categories as text, None where a value is missing; numbers as Python writes them."""
    missing = np.asarray(column.isna(), np.bool_).tolist()
    words = (str(value).strip() for value in column.to_numpy(dtype=object).tolist())
    return [None if gone else word for gone, word in zip(missing, words, strict=True)]


def _codes(column: Any, fitted_column: Column, fitted: FittedFeatures | None, title: str) -> NDArray[Any]:
    """Return the number of each value's category, or the value itself where categories are numbers; NaN if missing."""
    categories, words = fitted_column.categories or (), _words(column)
    known: dict[Any, float] = {category: float(at) for at, category in enumerate(categories) if category is not None}
    ignore = fitted is not None and fitted.handle_unknown == "ignore"
    text = are_text(categories)
    out = np.empty(len(words))
    for row, word in enumerate(words):
        if is_missing(word):
            out[row] = np.nan
        elif not text and is_number(str(word)):
            out[row] = float(str(word))
        elif text and word in known:
            out[row] = known[word]
        elif ignore:
            out[row] = UNKNOWN if text else np.inf
        else:
            raise unknown(NAME, word, f"column {title!r}", row, categories)
    return out


def _values(column: Any) -> NDArray[Any]:
    """Return a column's values; missing ones of a nullable column of numbers become NaN."""
    dtype = column.dtype
    if not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "O") in "biuf":
        if column.isna().any():
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(column.to_numpy(dtype=getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", None))))
    return np.asarray(column.to_numpy())


def _check_columns(columns: list[NDArray[Any]], titles: list[str]) -> None:
    """Raise ``BadInput`` that names the columns that hold no numbers, and the first text in them."""
    text = [position for position, values in enumerate(columns) if values.dtype.kind in "OUST"]
    for position in text:
        for row, value in enumerate(columns[position].tolist()):
            if isinstance(value, str | bytes):
                listed = faults.listing([f"{position} ({titles[position]!r})" for position in text])
                where = f"in row {row} of column {position} ({titles[position]!r})"
                raise faults.textual(NAME, f"no numbers in the columns {listed}, the first text is {value!r} {where}")
    for position, values in enumerate(columns):
        check_dtype(f"{NAME}, column {position} ({titles[position]!r})", values.dtype)


def index_names(index: Any) -> NDArray[np.str_] | None:
    """Return the names of rows or columns, or None where they only count them."""
    names = np.asarray(index)
    if names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names))):
        return None
    return np.array([str(name) for name in index], dtype=np.str_)

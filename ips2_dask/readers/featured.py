"""A table whose columns have become features: some of them taken, some turned into a 0 or 1 for each category."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers.base import PIECE_BYTES, Block, Rows, Table, check_shape, digest
from ips2_dask.readers.categories import Collected, are_text, unknown
from ips2_dask.readers.columns import columns_of, select, select_again
from ips2_dask.readers.features import Column, Features, FittedFeatures


@dataclass
class FeatureRows(Rows):
    """Features of the rows of a table, in which columns of text are numbers of their categories already."""

    inner: Rows
    places: tuple[int, ...]  # of the columns in the inner rows
    columns: tuple[Column, ...]
    name: str
    ignore_unknown: bool
    width: int  # of the inner rows, in bytes

    def __post_init__(self) -> None:
        self.n_rows, self.grain, self.sparse = self.inner.n_rows, self.inner.grain, self.inner.sparse

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop, of which few are read at a time where most columns are left out."""
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
        if all(column.categories is None for column in self.columns):
            return block if self.places == tuple(range(block.shape[1])) else block[:, list(self.places)]
        ends = [0, *accumulate(column.width for column in self.columns)]
        out = np.zeros((len(block), ends[-1]), block.dtype)
        for place, column, low, high in zip(self.places, self.columns, ends, ends[1:], strict=False):
            if column.categories is None:
                out[:, low] = block[:, place]
            else:
                out[:, low:high] = self._indicators(block[:, place], column, first_row)
        return out

    def _indicators(self, values: Block, column: Column, first_row: int) -> Block:
        """Return one column a category, 1 where it is the row's; NaN in all of them where a value is missing."""
        assert column.categories is not None
        known = [category for category in column.categories if category is not None]
        if are_text(column.categories):
            codes = values.astype(np.float64)
        else:
            numbers = np.array(known, np.float64)
            at = np.searchsorted(numbers, values).clip(0, max(len(numbers) - 1, 0))
            matching = numbers[at] == values if len(numbers) else np.zeros(len(values), np.bool_)
            codes = np.where(matching, at, np.where(np.isnan(values), np.nan, -1.0))
            if not self.ignore_unknown and (codes < 0).any():
                row = int(np.argmax(codes < 0))
                where = f"column {column.title!r}"
                raise unknown(self.name, float(values[row]), where, first_row + row, column.categories)
        missing = np.isnan(codes)
        if None in column.categories:
            codes = np.where(missing, len(known), codes)
        out = (codes[:, None] == np.arange(len(column.categories))).astype(np.float64)
        if None not in column.categories:
            out[missing] = np.nan
        return out


def featured(table: Table, fitted: FittedFeatures, places: Sequence[int] | None = None, key: object = None) -> Table:
    """Return a table of features.

    Parameters
    ----------
    table : Table
        Numbers, or numbers of categories.
    fitted : FittedFeatures
    places : sequence of int, optional
        Where the table's own columns have those of ``fitted``; by default in their order.
    key : object
        Anything more that decides about the values.
    """
    own = tuple(range(table.shape[1])) if places is None else tuple(places)
    plain = own == tuple(range(table.shape[1])) and not fitted.one_hot
    rows = table.rows
    if not plain:
        rows = FeatureRows(
            table.rows, own, fitted.columns, table.name, fitted.handle_unknown == "ignore",
            table.shape[1] * table.dtype.itemsize,
        )  # fmt: skip
    names = fitted.feature_names if table.feature_names is not None or not plain else None
    return replace(
        table,
        shape=check_shape(table.name, (table.shape[0], sum(column.width for column in fitted.columns))),
        dtype=np.dtype(np.float64) if fitted.one_hot else table.dtype,
        rows=rows,
        feature_names=names,
        fingerprint=digest(table.fingerprint, "features", fitted.as_dict(), own, key),
        fitted=fitted,
    )


def of_numbers(table: Table, features: Features | FittedFeatures) -> Table:
    """Return the features of a table that holds nothing but numbers.

    Raises
    ------
    BadInput
        Where columns are not there, or contradict one another.
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
                table.name, "a table without text", "one with the text columns that the run encoded (one_hot)",
                "their categories would be unknown", "give a table of text, a Parquet file or a data frame",
            )  # fmt: skip
        kept = select_again(table.name, features, names, n_columns, label)
        return featured(table, features, [own.index(place) for place in kept])
    kept, one_hot = select(table.name, features, names, n_columns, label)
    _refuse_sparse(table, bool(one_hot))
    places = {place: own.index(place) for place in kept}
    found = {place: Collected(table.name, _title(place, names), features.missing) for place in sorted(one_hot)}
    if found:
        step = max(1, 8 * PIECE_BYTES // max(1, table.shape[1] * table.dtype.itemsize))
        for block in table.rows.blocks(step):
            for place, collected in found.items():
                collected.add(np.unique(block[:, places[place]].astype(np.float64)).tolist())
    categories = {place: collected.categories() for place, collected in found.items()}
    fitted = FittedFeatures(
        columns=columns_of(kept, names, categories), n_columns=n_columns, label=label, missing=features.missing
    )
    return featured(table, fitted, list(places.values()))


def _title(place: int, names: Sequence[str] | None) -> str:
    return f"column {place}" + (f" ({names[place]!r})" if names else "")


def _refuse_sparse(table: Table, encodes: bool) -> None:
    if encodes and table.rows.sparse:
        raise BadInput(
            table.name, "a sparse matrix with one_hot (--one-hot)", "a dense table of numbers or text",
            "nearly all of its values would be one category", "leave one_hot out, or give the categories beside others",
        )  # fmt: skip

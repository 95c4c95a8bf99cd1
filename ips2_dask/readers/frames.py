"""Data frames of pandas, whose columns become Arrow's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ips2_dask.readers import base, records
from ips2_dask.readers.columns import CategorySet, Chosen, column_title
from ips2_dask.readers.features import category_text
from ips2_dask.readers.objects import FRAME_NAME, index_names, numbers_of
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True)
class FrameBatches(records.Batches):
    """The columns of a data frame, which become Arrow's once it is known which of them are read, and as what."""

    frame: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str = FRAME_NAME) -> FrameBatches:
        """Return a frame as batches whose columns are named by their numbers."""
        titles = [str(title) for title in frame.columns]
        return cls(
            name=name,
            starts=[0, len(frame)],
            columns=records.numbered_columns(titles, len(titles)),
            titles=titles,
            named=index_names(frame.columns) is not None,
            frame=frame,
        )

    def values(self, column: records.ArrowColumn) -> Iterator[AnyArray]:
        yield np.asarray(self.frame.iloc[:, int(column.name)].to_numpy(dtype=object))

    def examined(self, chosen: Chosen, category_sets: dict[int, CategorySet]) -> records.Batches:
        kept = zip(chosen.kept, chosen.have_categories, strict=True)
        table = pa.table({str(place): self._arrow(place, has_categories) for place, has_categories in kept})
        return records.Batches.examined(replace(self, schema=table.schema, table=table), chosen, category_sets)

    def _arrow(self, place: int, has_categories: bool) -> pa.Array:
        """Return a column; numbers that are missing are NaN, categories that are missing null."""
        column, name = self.frame.iloc[:, place], f"{self.name}, {column_title(place, self.titles)}"
        if not has_categories and isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufcmM":
            return pa.array(column.to_numpy().astype(base.check_dtype(name, column.dtype), copy=False))
        try:
            array = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # values of several types
            array = pa.array([[]])
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        kind = array.type
        if records.is_text(kind) or (has_categories and (records.holds_numbers(kind) or pa.types.is_boolean(kind))):
            return array
        if records.number_type(kind) is not None and not has_categories:
            return pa.array(records.as_numbers(array))
        values = column.to_numpy(dtype=object)
        if not has_categories:
            texts = [str(value) if isinstance(value, str | bytes) else None for value in values]
            is_number = all(text is None for text in texts)
            return pa.array(numbers_of(values, name)) if is_number else pa.array(texts, pa.string())
        missing = np.asarray(column.isna(), np.bool_)
        return pa.array([None if gone else _category(value) for value, gone in zip(values, missing, strict=True)])


def open_frame(frame: pd.DataFrame, request: base.Request) -> base.Table:
    """Return the table of a data frame; one of its columns may hold the labels."""
    table, names = records.open_batches(FrameBatches.of(frame), request), index_names(frame.index)
    return replace(table, read_sample_names=None if names is None else partial(np.array, names))


def _category(value: object) -> str:
    number = isinstance(value, int | float | np.integer | np.floating | Decimal) and not isinstance(value, bool)
    return category_text(float(value)) if number else str(value)  # type: ignore[arg-type]

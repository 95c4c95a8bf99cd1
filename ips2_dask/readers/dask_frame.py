"""Dask DataFrames: a Dask array of the numbers of their partitions, so that no more than a partition is in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers.arrow import check_names, names_of
from ips2_dask.readers.base import Block, DType, check_shape, digest
from ips2_dask.readers.columns import CategorySet, make_columns, match_columns, select_columns
from ips2_dask.readers.dask_array import DaskRows, DaskTable, checked_block, computed_here, open_dask_array
from ips2_dask.readers.features import Column, Features, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column
from ips2_dask.readers.objects import category_values, open_frame

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd
    from distributed import Client

NAME = "the Dask DataFrame given"


class Summary(NamedTuple):
    """What one pass over a partition finds."""

    rows: int
    names: NDArray[np.object_] | None  # None where they count
    categories: list[set[str | float | None]]  # the values of each column that is to be encoded


def open_dask_frame(
    frame: dd.DataFrame,
    labels_column: str | int | None,
    transpose: bool,
    features: Features | FittedFeatures | None = None,
    client: Client | None = None,
) -> DaskTable:
    """Return the table of a Dask DataFrame, of which one column may hold the labels.

    One pass over the partitions counts their rows and collects the categories of ``one_hot``; the workers of
    ``client`` make it, or else this process, a partition at a time. Its fingerprint is that of Dask's own name of the
    frame, as for arrays.

    Raises
    ------
    BadInput
        If a column is missing; text or an odd value in a partition is found when that is read.
    """
    titles = [str(title) for title in frame.columns]
    check_names(NAME, titles)
    label = None if labels_column is None or transpose else find_column(NAME, labels_column, titles, len(titles))
    encoded: list[int] = []
    selected = [place for place in range(len(titles)) if place != label]
    if isinstance(features, FittedFeatures):
        selected = list(match_columns(NAME, features, titles, len(titles), label))
    elif features is not None:
        columns, one_hot = select_columns(NAME, features, titles, len(titles), label)
        selected, encoded = list(columns), sorted(one_hot)
    lengths, index, fitted = _pass(frame, titles, selected, encoded, features, label, client)
    kept = [frame.columns[place] for place in selected]
    types = [] if fitted is None else [column.categories for column in fitted.columns]
    kinds = [
        np.dtype(np.float64) if place < len(types) and types[place] is not None else _number_type(frame.dtypes[title])
        for place, title in enumerate(kept)
    ]
    width = len(kept) if fitted is None else sum(column.width for column in fitted.columns)
    m, f = check_shape(NAME, (sum(lengths), width))
    dtype: DType = np.result_type(*kinds)
    # blocks are data frames until `_as_block` has made arrays of them
    array = frame[kept].map_partitions(_same, meta=np.empty((0, f), dtype), enforce_metadata=False)
    array._chunks = (tuple(lengths), (f,))
    local = None if fitted is None else _of_partition(fitted, selected, titles)
    array = array.map_blocks(_as_block, local, dtype=dtype, meta=np.empty((0, 0), dtype))
    key = frame._name, [str(kind) for kind in frame.dtypes], titles, selected, label
    fingerprint = digest("dask frame", key, lengths, dtype.str, None if fitted is None else fitted.as_dict())
    if transpose:
        table = open_dask_array(array, labels_column, True)
        return dataclasses.replace(table, name=NAME, read_sample_names=partial(np.array, titles, dtype=np.str_))
    return DaskTable(
        name=NAME,
        shape=(m, f),
        dtype=dtype,
        rows=DaskRows(array),
        parallel=False,
        resident_bytes=0,
        fingerprint=fingerprint,
        feature_names=[titles[place] for place in selected] if fitted is None else fitted.feature_names,
        read_sample_names=None if index is None else partial(np.array, index),
        read_labels=None if label is None else LabelReader(NAME, partial(_labels, frame, frame.columns[label])),
        label=label,
        fitted=fitted,
    )


def _pass(
    frame: dd.DataFrame,
    titles: list[str],
    selected: list[int],
    encoded: list[int],
    features: Features | FittedFeatures | None,
    label: int | None,
    client: Client | None,
) -> tuple[list[int], NDArray[np.str_] | None, FittedFeatures | None]:
    """Return the rows of each partition, the names of all rows, and which columns become features."""
    import dask  # noqa: PLC0415  that a frame is there means that Dask is loaded

    missing = "refuse" if features is None else features.missing
    read = [frame.columns[place] for place in encoded or selected[:1]]
    words = [f"column {place} ({titles[place]!r})" for place in encoded]
    parts = [dask.delayed(_summary)(part, words, missing) for part in frame[read].to_delayed()]
    if client is not None:
        summaries: list[Summary] = client.gather(client.compute(parts))
    else:
        summaries = [computed_here(part) for part in parts]
    indices = [summary.names for summary in summaries if summary.names is not None]
    index = names_of(np.concatenate(indices)) if len(indices) == len(summaries) else None
    lengths = [summary.rows for summary in summaries]
    if features is None or isinstance(features, FittedFeatures):
        return lengths, index, features
    categories = {}
    for number, place in enumerate(encoded):
        collected = CategorySet(NAME, f"column {place} ({titles[place]!r})", missing)
        for summary in summaries:
            collected.add(summary.categories[number])
        categories[place] = collected.categories()
    fitted = FittedFeatures(
        columns=make_columns(selected, titles, categories), n_columns=len(titles), label=label, missing=missing
    )
    return lengths, index, fitted


def _summary(part: pd.DataFrame, encoded: list[str], missing: str) -> Summary:
    """Return what is to be known of a partition before the run."""
    index = None if type(part.index).__name__ == "RangeIndex" else np.asarray(part.index, dtype=object)
    categories = []
    for place, title in enumerate(encoded):
        values = category_values(part.iloc[:, place], title, missing)
        CategorySet(NAME, title, missing).add(values)  # not more of them than there may be
        categories.append(values)
    return Summary(len(part), index, categories)


def _same(part: pd.DataFrame) -> pd.DataFrame:
    return part


def _of_partition(fitted: FittedFeatures, selected: list[int], titles: list[str]) -> FittedFeatures:
    """Return the features as those of a frame that has nothing but their columns."""
    columns = tuple(
        Column(number=place, name=titles[there], categories=column.categories)
        for place, (there, column) in enumerate(zip(selected, fitted.columns, strict=True))
    )
    return dataclasses.replace(fitted, columns=columns, n_columns=len(columns), label=None)


def _as_block(part: pd.DataFrame, fitted: FittedFeatures | None, block_info: Any) -> Block:
    """Return the numbers of a partition.

    Raises
    ------
    BadInput
        Says which partition.
    """
    name = f"partition {block_info[0]['chunk-location'][0]} of {NAME}"
    try:
        shape = (0, block_info[None]["chunk-shape"][1])
        block = open_frame(part, None, False, fitted).read(0, len(part)) if len(part) else np.empty(shape)
    except BadInput as fault:
        raise BadInput(name, fault.found, fault.allowed, fault.otherwise, fault.remedy) from None
    return checked_block(block, block_info, name, "give frame.persist(), so that its partitions stay as they are")


def _number_type(kind: Any) -> DType:
    """Return the type of a column's numbers; float64 where they may lack a value, or are objects."""
    return kind if isinstance(kind, np.dtype) and kind.kind in "biuf" else np.dtype(np.float64)


def _labels(frame: dd.DataFrame, title: str) -> Iterator[NDArray[Any]]:
    """Yield the column of labels, partition by partition."""
    for part in frame[[title]].to_delayed():
        yield np.asarray(computed_here(part).iloc[:, 0].to_numpy(dtype=object))

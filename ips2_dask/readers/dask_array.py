"""Dask arrays: rows that are computed a chunk at a time, in this process or on a cluster's workers, never all at once.

Not readable at any place by any process (`parallel` is false): a task that computed its own rows would need the whole
graph in each worker, would compute a chunk once per partition it touches, and could not see blocks that are persisted
on the cluster. So each partition's rows are one output of a single graph: with a client the workers compute and store
them (`DaskTable.delayed_blocks`), without one this process goes through the chunks in order (`DaskRows.blocks`).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers.base import Block, DType, Rows, Table, check_dtype, check_shape, digest, rebatch
from ips2_dask.readers.columns import make_columns, match_columns, select_columns
from ips2_dask.readers.features import Features, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column
from ips2_dask.readers.matrices import is_sparse

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

NAME = "the Dask array given"


def is_dask(value: object) -> bool:
    """Return whether something is a Dask array, data frame, bag or delayed value."""
    if "dask" not in sys.modules:  # then nobody has made one; it takes a second to import
        return False
    from dask.base import is_dask_collection  # noqa: PLC0415

    return bool(is_dask_collection(value))


def open_dask_array(
    array: da.Array,
    labels_column: str | int | None,
    transpose: bool,
    features: Features | FittedFeatures | None = None,
) -> DaskTable:
    """Return the table of a Dask array, of which one column may hold the labels.

    Its fingerprint is that of the array's name, dtype and chunks: by Dask's own rule arrays of one name hold the same
    values. So an array over files that change under the same name has to be given another name, or another store.

    Raises
    ------
    BadInput
        If it is no matrix of real numbers, or its chunks have no known length.
    """
    if not _is_array(array):
        raise BadInput(
            NAME,
            f"a Dask {type(array).__name__}",
            "a Dask array, samples by features",
            "its rows could not be shared out",
            "make an array of it, as with frame.to_dask_array(lengths=True)",
        )
    array = array.T if transpose else array
    dtype = check_dtype(NAME, np.dtype(array.dtype))
    if any(math.isnan(n) for n in array.shape):
        raise BadInput(
            NAME,
            f"chunks of unknown length (shape {array.shape})",
            "chunks whose lengths are known",
            "its rows could not be shared out",
            "call array.compute_chunk_sizes() first",
        )
    check_shape(NAME, array.shape)
    read_labels, position = None, None
    n_columns = int(array.shape[1])
    if labels_column is not None:
        position = find_column(NAME, labels_column, None, n_columns)
        read_labels = LabelReader(NAME, partial(_column_pieces, array, position))
    fitted = _fitted(features, n_columns, position)
    if isinstance(features, FittedFeatures):
        places = match_columns(NAME, features, None, n_columns, position)
        array = array if places == tuple(range(n_columns)) else array[:, list(places)]
    elif fitted is not None:
        array = array[:, [column.number for column in fitted.columns]]
    elif position is not None:
        array = array[:, np.delete(np.arange(n_columns), position)]
    return DaskTable(
        name=NAME,
        shape=check_shape(NAME, array.shape),
        dtype=dtype,
        rows=DaskRows(array),
        parallel=False,
        resident_bytes=0,
        fingerprint=digest("dask", array.name, dtype.str, array.chunks, *(() if fitted is None else (fitted.missing,))),
        feature_names=None if fitted is None else fitted.feature_names,
        read_labels=read_labels,
        label=position,
        fitted=fitted,
    )


def _fitted(features: Features | FittedFeatures | None, n_columns: int, label: int | None) -> FittedFeatures | None:
    """Return which columns become features; None if the user chose none.

    Raises
    ------
    BadInput
        Also for categories: to collect them the whole graph would be computed before the run, and again in it.
    """
    if features is not None and features.one_hot:
        raise BadInput(
            NAME, "one_hot with a Dask array", "an array whose categories are encoded already",
            "its whole graph would be computed once more, to find them", "encode it first, or store it as .zarr",
        )  # fmt: skip
    if not isinstance(features, Features):
        return features
    columns, _ = select_columns(NAME, features, None, n_columns, label)
    return FittedFeatures(
        columns=make_columns(columns, None, {}), n_columns=n_columns, label=label, missing=features.missing
    )


def _is_array(value: object) -> bool:
    module = sys.modules.get("dask.array")  # nobody holds a Dask array before that is imported
    return module is not None and isinstance(value, module.Array)


class DaskRows(Rows):
    """The rows of a Dask array. No dataclass: `dask.delayed` would find the array in its fields and compute it."""

    def __init__(self, array: da.Array) -> None:
        self.array, self.n_rows = array, int(array.shape[0])

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop, computed in this process."""
        return _compute(self.array[start:stop])

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows, `rows` at a time; each chunk is computed once, in this process."""
        return rebatch((_compute(self.array.blocks[i]) for i in range(self.array.numblocks[0])), rows)


@dataclass(frozen=True, kw_only=True)
class DaskTable(Table):
    """The table of a Dask array, a `LazySource`."""

    rows: DaskRows

    def delayed_blocks(self, bounds: Sequence[int]) -> list[Delayed]:
        """Return one `Delayed` per partition: its rows bounds[b] to bounds[b + 1] as `read` would give them."""
        lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds))
        array = self.rows.array.map_blocks(_as_block, self.dtype, meta=np.empty((0, 0), self.dtype))
        parts: list[Delayed] = array.rechunk((lengths, self.shape[1])).to_delayed().ravel().tolist()
        return parts


def _as_block(values: object, dtype: DType) -> Block:
    """Return a computed chunk as a plain array of ``dtype``; masked values become NaN.

    Raises
    ------
    BadInput
        If it is not of the numbers that the array's dtype promised.
    """
    if is_sparse(values):
        values = values.toarray()
    if isinstance(values, np.ma.MaskedArray):
        dtype = np.result_type(values.dtype, dtype, np.float32)
        values = np.ma.filled(values.astype(dtype), np.nan)
    block = np.asarray(values)
    check_dtype(NAME, block.dtype)
    return np.ascontiguousarray(block, dtype=dtype)


def _compute(array: da.Array) -> Block:
    """Return an array computed by this process alone, whatever cluster is the default.

    Raises
    ------
    BadInput
        If some of its blocks are on a cluster.
    """
    from distributed.client import futures_of  # noqa: PLC0415  as above

    if futures_of(array):
        raise BadInput(
            NAME,
            "blocks that are persisted on a cluster",
            "blocks that this process can compute, or the client of that cluster",
            "they would have to be pulled into this process",
            "give client=, as in IPS2(client=client)",
        )
    return _as_block(array.compute(scheduler="synchronous"), array.dtype)


def _column_pieces(array: da.Array, position: int) -> Iterator[NDArray[Any]]:
    """Yield one column of an array, chunk by chunk."""
    column = array[:, position]
    return (_compute(column.blocks[chunk]) for chunk in range(column.numblocks[0]))

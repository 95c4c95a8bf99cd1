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
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, Rows, Table, check_dtype, check_shape, digest, rebatch
from ips2_dask.readers.columns import make_columns, match_columns, select_columns
from ips2_dask.readers.features import Features, FittedFeatures
from ips2_dask.readers.labels import LabelReader, find_column
from ips2_dask.readers.matrices import is_sparse
from ips2_dask.readers.objects import as_numbers

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
    names: Sequence[str] | None = None,
) -> DaskTable:
    """Return the table of a Dask array, of which one column may hold the labels; ``names`` are those of its columns.

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
            "a Dask array or DataFrame, samples by features",
            "its rows could not be shared out",
            _remedy(array),
        )
    dtype = np.dtype(np.float64) if array.dtype == object else check_dtype(NAME, np.dtype(array.dtype))
    if any(math.isnan(n) for n in array.shape):
        raise BadInput(
            NAME,
            f"chunks of unknown length (shape {array.shape})",
            "chunks whose lengths are known",
            "its rows could not be shared out",
            "call array.compute_chunk_sizes() first",
        )
    check_shape(NAME, array.shape)
    checked = array.map_blocks(_as_block, dtype=dtype, meta=np.empty((0, 0), dtype))
    array, checked = (array.T, checked.T) if transpose else (array, checked)
    read_labels, position = None, None
    n_columns = int(array.shape[1])
    if labels_column is not None:
        position = find_column(NAME, labels_column, names, n_columns)
        read_labels = LabelReader(NAME, partial(_column_pieces, checked, position))
    fitted = _fitted(features, names, n_columns, position)
    kept: Any = None
    if isinstance(features, FittedFeatures):
        places = match_columns(NAME, features, names, n_columns, position)
        kept = None if places == tuple(range(n_columns)) else list(places)
    elif fitted is not None:
        kept = [column.number for column in fitted.columns]
    elif position is not None:
        kept = np.delete(np.arange(n_columns), position)
    titles = names
    if kept is not None:  # the array as it was given has the name that its values are known by
        array, checked = array[:, kept], checked[:, kept]
        titles = None if names is None else [names[place] for place in kept]
    return DaskTable(
        name=NAME,
        shape=check_shape(NAME, array.shape),
        dtype=dtype,
        rows=DaskRows(checked, is_sparse(getattr(array, "_meta", None))),
        parallel=False,
        resident_bytes=0,
        fingerprint=digest("dask", array.name, dtype.str, array.chunks, *(() if fitted is None else (fitted.missing,))),
        feature_names=(None if titles is None else list(titles)) if fitted is None else fitted.feature_names,
        read_labels=read_labels,
        label=position,
        fitted=fitted,
    )


def _fitted(
    features: Features | FittedFeatures | None, names: Sequence[str] | None, n_columns: int, label: int | None
) -> FittedFeatures | None:
    """Return which columns become features; None if the user chose none.

    Raises
    ------
    BadInput
        Also for categories: to collect them the whole graph would be computed before the run, and again in it.
    """
    if features is not None and features.one_hot:
        raise BadInput(
            NAME,
            "one_hot with a Dask array",
            "an array whose categories are encoded already",
            "its whole graph would be computed once more, to find them",
            "encode it first, or store it as .zarr",
        )
    if not isinstance(features, Features):
        return features
    columns, _ = select_columns(NAME, features, names, n_columns, label)
    return FittedFeatures(
        columns=make_columns(columns, names, {}), n_columns=n_columns, label=label, missing=features.missing
    )


def _remedy(value: object) -> str:
    """Return what makes a Dask array or DataFrame of another collection."""
    kind = type(value).__name__
    if kind == "Series":
        return "give series.to_frame()"
    if kind == "Bag":
        return "give bag.to_dataframe()"
    return "make an array of it, as with dask.array.from_delayed(value, shape, dtype)"


def _is_array(value: object) -> bool:
    module = sys.modules.get("dask.array")  # nobody holds a Dask array before that is imported
    return module is not None and isinstance(value, module.Array)


class DaskRows(Rows):
    """The rows of a Dask array. No dataclass: `dask.delayed` would find the array in its fields and compute it."""

    def __init__(self, array: da.Array, sparse: bool = False) -> None:
        self.array, self.n_rows, self.sparse = array, int(array.shape[0]), sparse

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
        parts: list[Delayed] = self.rows.array.rechunk((lengths, self.shape[1])).to_delayed().ravel().tolist()
        return parts


def _as_block(values: Any, block_info: Any) -> Block:
    """Return a computed chunk as a plain array of the type and shape that the array's metadata say; NaN where masked.

    Raises
    ------
    BadInput
        If it is something else; says which chunk.
    """
    place, promised = block_info[0]["chunk-location"], block_info[None]["dtype"]
    name = f"block {place} of {NAME}"
    if is_sparse(values):
        values = values.toarray()
    elif hasattr(values, "todense"):
        values = values.todense()
    if hasattr(values, "__cuda_array_interface__"):
        values = values.get()
    if np.ma.is_masked(values):
        if promised.kind != "f":
            raise BadInput(
                name,
                f"masked values in an array of type {promised}",
                "floats, among which a masked one is NaN",
                "what is under the mask would be clustered as if it were data",
                "give array.astype(float), and say what is done about gaps (missing)",
            )
        values = np.ma.filled(values.astype(np.result_type(values.dtype, promised)), np.nan)
    try:
        block = np.asarray(values)
    except Exception:
        faults.throw(
            BadInput(
                name,
                f"something of type {type(values).__name__}",
                "an array of numbers",
                "there would be nothing to cluster",
                "make NumPy arrays of the blocks by array.map_blocks, as with lambda block: block.get()",
            )
        )
    return checked_block(
        block,
        block_info,
        name,
        "call array.compute_chunk_sizes() first, best after array = array.persist()"
        if block.ndim == 2
        else "have the function that makes the blocks return two dimensions",
    )


def checked_block(block: Block, block_info: Any, name: str, remedy: str) -> Block:
    """Return a computed chunk, as an array of the type that the metadata say.

    Raises
    ------
    BadInput
        If it has another shape than the metadata say, for which ``remedy`` helps, or values that their type can't hold.
    """
    shape = tuple(stop - start for start, stop in block_info[None]["array-location"])
    dtype = block_info[None]["dtype"]
    if block.shape != shape:
        raise BadInput(
            name,
            f"the shape {block.shape}",
            f"{shape}, as the metadata say",
            "rows or columns would be lost or be taken for others",
            remedy,
        )
    block = as_numbers(block, name) if block.dtype == object else block
    check_dtype(name, block.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.ascontiguousarray(block, dtype=dtype)
    if not np.can_cast(block.dtype, dtype) and not np.array_equal(values, block, equal_nan=True):
        raise BadInput(
            name,
            f"values of type {block.dtype}",
            f"{dtype}, as the metadata say",
            "they would be rounded",
            f"declare their type, as in array.map_blocks(numpy.asarray, dtype='{block.dtype}')",
        )
    return values


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
    block: Block = array.compute(scheduler="synchronous")
    return block


def computed_here(collection: Any) -> Any:
    """Return what a collection that is small holds, computed where its parts are: in this process, or on a cluster."""
    from distributed.client import futures_of  # noqa: PLC0415  as above

    futures = futures_of(collection)
    if futures:
        return futures[0].client.compute(collection).result()
    return collection.compute(scheduler="synchronous")


def _column_pieces(array: da.Array, position: int) -> Iterator[NDArray[Any]]:
    """Yield one column of an array, chunk by chunk."""
    column = array[:, position]
    return (computed_here(column.blocks[chunk]) for chunk in range(column.numblocks[0]))

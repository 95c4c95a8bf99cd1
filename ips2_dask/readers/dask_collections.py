"""Dask arrays and DataFrames: rows that are computed a chunk at a time, here or on a cluster, never all at once.

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
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers import columns as cols
from ips2_dask.readers import faults
from ips2_dask.readers.base import DType, Request, Rows, Table, check_dtype, check_shape, digest, is_sparse, rebatch
from ips2_dask.readers.features import ALL, Features, FittedFeatures
from ips2_dask.readers.objects import numbers_of
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client

NAME = "the Dask array given"
FRAME_NAME = "the Dask DataFrame given"


def is_dask(value: object) -> bool:
    """Return whether something is a Dask array, data frame, bag or delayed value."""
    dask = sys.modules.get("dask.base")  # without it nobody has made one; it takes a second to import
    return dask is not None and bool(dask.is_dask_collection(value))


def open_dask_array(array: da.Array, request: Request) -> DaskTable:
    """Return the table of a Dask array.

    Its fingerprint is that of the array's name, dtype and chunks: by Dask's own rule arrays of one name hold the same
    values. So an array over files that change under the same name has to be given another name, or another store.
    """
    module = sys.modules.get("dask.array")  # nobody holds a Dask array before that is imported
    if module is None or not isinstance(array, module.Array):
        kind = type(array).__name__
        remedy = "make an array of it, as with dask.array.from_delayed(value, shape, dtype)"
        if kind in ("Series", "Bag"):
            remedy = "give series.to_frame()" if kind == "Series" else "give bag.to_dataframe()"
        allowed, otherwise = "a Dask array or DataFrame, samples by features", "its rows could not be shared out"
        raise BadInput(NAME, f"a Dask {kind}", allowed, otherwise, remedy)
    dtype = np.dtype(np.float64) if array.dtype == object else check_dtype(NAME, np.dtype(array.dtype))
    if any(math.isnan(n) for n in array.shape):
        found, allowed = f"chunks of unknown length (shape {array.shape})", "chunks whose lengths are known"
        otherwise = "its rows could not be shared out"
        raise BadInput(NAME, found, allowed, otherwise, "call array.compute_chunk_sizes() first")
    check_shape(NAME, array.shape)
    if request.features.one_hot:
        allowed = "an array whose categories are encoded already"
        otherwise = "its whole graph would be computed once more, to find them"
        raise BadInput(NAME, "one_hot with a Dask array", allowed, otherwise, "encode it first, or store it as .zarr")
    # the array as it was given has the name that its values are known by
    fingerprint = digest("dask", array.name, dtype.str, array.chunks, request.transpose)
    checked = array.map_blocks(_as_block, dtype=dtype, meta=np.empty((0, 0), dtype))
    checked = checked.T if request.transpose else checked
    rows = DaskRows(checked, is_sparse(getattr(array, "_meta", None)))
    return DaskTable(NAME, checked.shape, dtype, rows, fingerprint)


class DaskRows(Rows):
    """The rows of a Dask array. No dataclass: `dask.delayed` would find the array in its fields and compute it."""

    def __init__(self, array: da.Array, sparse: bool = False) -> None:
        self.array, self.sparse = array, sparse

    def read(self, start: int, stop: int) -> AnyArray:
        return _computed(self.array[start:stop])

    def take(self, places: Sequence[int]) -> DaskRows:
        return DaskRows(self.array[:, list(places)], self.sparse)

    def column(self, place: int) -> Iterator[AnyArray]:
        column = self.array[:, place]
        return (_computed(column.blocks[chunk], is_small=True) for chunk in range(column.numblocks[0]))

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        """Yield all rows, `rows` at a time; each chunk is computed once, in this process."""
        return rebatch((_computed(self.array.blocks[i]) for i in range(self.array.numblocks[0])), rows)


@dataclass(frozen=True)
class DaskTable(Table):
    """A table whose rows the workers of a cluster compute themselves."""

    rows: DaskRows
    parallel: bool = False

    def delayed_blocks(self, bounds: Sequence[int]) -> list[Delayed]:
        """Return one `Delayed` per partition: its rows bounds[b] to bounds[b + 1] as `read` would give them."""
        lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds))
        parts: list[Delayed] = self.rows.array.rechunk((lengths, self.shape[1])).to_delayed().ravel().tolist()
        return parts


def _as_block(values: Any, block_info: Any) -> AnyArray:
    """Return a computed chunk as a plain array of the type and shape that its metadata say; NaN where masked."""
    place, promised = block_info[0]["chunk-location"], block_info[None]["dtype"]
    name = f"block {place} of {NAME}"
    values = values.todense() if hasattr(values, "todense") else values
    if hasattr(values, "__cuda_array_interface__"):
        values = values.get()
    if np.ma.is_masked(values):
        if promised.kind != "f":
            found, allowed = f"masked values in an array of type {promised}", "floats, among which a masked one is NaN"
            remedy = "give array.astype(float), and say what is done about gaps (missing)"
            raise BadInput(name, found, allowed, "what is under the mask would be clustered as if it were data", remedy)
        values = np.ma.filled(values.astype(np.result_type(values.dtype, promised)), np.nan)
    try:
        block = np.asarray(values)
    except Exception:
        found = f"something of type {type(values).__name__}"
        remedy = "make NumPy arrays of the blocks by array.map_blocks, as with lambda block: block.get()"
        faults.throw(BadInput(name, found, "an array of numbers", "there would be nothing to cluster", remedy))
    sized = "call array.compute_chunk_sizes() first, best after array = array.persist()"
    flat = "have the function that makes the blocks return two dimensions"
    return _checked_block(block, block_info, name, sized if block.ndim == 2 else flat)


def _checked_block(block: AnyArray, block_info: Any, name: str, remedy: str) -> AnyArray:
    """Return a computed chunk of the type that the metadata say; raises for another shape, which ``remedy`` is for."""
    shape = tuple(stop - start for start, stop in block_info[None]["array-location"])
    dtype = block_info[None]["dtype"]
    if block.shape != shape:
        otherwise = "rows or columns would be lost or be taken for others"
        raise BadInput(name, f"the shape {block.shape}", f"{shape}, as the metadata say", otherwise, remedy)
    block = numbers_of(block, name) if block.dtype == object else block
    check_dtype(name, block.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.ascontiguousarray(block, dtype=dtype)
    if not np.can_cast(block.dtype, dtype) and not np.array_equal(values, block, equal_nan=True):
        found = f"values of type {block.dtype}"
        advice = f"declare their type, as in array.map_blocks(numpy.asarray, dtype='{block.dtype}')"
        raise BadInput(name, found, f"{dtype}, as the metadata say", "they would be rounded", advice)
    return values


def _computed(collection: Any, *, is_small: bool = False) -> Any:
    """Return what a collection holds, computed by this process alone; a small one that is on a cluster, by that."""
    from distributed.client import futures_of  # noqa: PLC0415  as above

    futures = futures_of(collection)
    if not futures:
        return collection.compute(scheduler="synchronous")  # whatever cluster is the default
    if is_small:
        return futures[0].client.compute(collection).result()
    found = "blocks that are persisted on a cluster"
    allowed = "blocks that this process can compute, or the client of that cluster"
    otherwise = "they would have to be pulled into this process"
    raise BadInput(NAME, found, allowed, otherwise, "give client=, as in IPS2(client=client)")


# What one pass over a partition finds: rows, their names (None where they count), and the categories by column.
_Summary = tuple[int, "AnyArray | None", list[cols.CategorySet]]


def open_dask_frame(frame: dd.DataFrame, request: Request, client: Client | None = None) -> Table:
    """Return the table of a Dask DataFrame, of which one column may hold the labels.

    One pass over the partitions counts their rows and collects the categories of ``one_hot``; the workers of
    ``client`` make it, or else this process, a partition at a time. Its fingerprint is that of Dask's own name of the
    frame, as for arrays. Text or an odd value in a partition is found when that is read.
    """
    if request.transpose:
        rows: Any = open_dask_frame(frame, Request(""), client).rows
        table = open_dask_array(rows.array, request)
        table = replace(table, name=FRAME_NAME, row_names=np.array([*map(str, frame.columns)]))
        return cols.columns_of_numbers(table, request.features, request.labels_column)
    titles = [str(title) for title in frame.columns]
    cols.check_names(FRAME_NAME, titles)
    chosen = cols.select_columns(FRAME_NAME, request.features, titles, len(titles), request.labels_column)
    label = chosen.label
    lengths, index, fitted = _pass(frame, chosen, client)
    kept = [frame.columns[place] for place in chosen.kept]
    encoded = [frame.columns[place] for place, one in zip(chosen.kept, chosen.have_categories, strict=True) if one]
    # float64 where values may be missing, or are objects
    kinds = [frame.dtypes[title] for title in kept if title not in encoded]
    kinds = [kind if isinstance(kind, np.dtype) and kind.kind in "biuf" else np.float64 for kind in kinds]
    width = len(kept) if fitted is None else len(fitted.feature_names)
    m, f = check_shape(FRAME_NAME, (sum(lengths), width))
    dtype: DType = np.result_type(*kinds, *([np.float64] if encoded else []))
    # blocks are data frames until `_frame_block` has made arrays of them
    array = frame[kept].map_partitions(copy, meta=np.empty((0, f), dtype), enforce_metadata=False)
    array._chunks = (tuple(lengths), (f,))
    local = None
    if fitted is not None:  # the features as those of a frame that has nothing but their columns
        named = zip(chosen.kept, fitted.columns, strict=True)
        own = tuple(replace(one, number=n, name=titles[place]) for n, (place, one) in enumerate(named))
        local = replace(fitted, columns=own, n_columns=len(own), label=None)
    array = array.map_blocks(_frame_block, local, dtype=dtype, meta=np.empty((0, 0), dtype))
    key = frame._name, [str(kind) for kind in frame.dtypes], titles, chosen.kept, label, lengths, dtype.str
    return DaskTable(
        FRAME_NAME,
        (m, f),
        dtype,
        DaskRows(array),
        digest("dask frame", key, None if fitted is None else fitted.as_dict()),
        feature_names=chosen.kept_names() if fitted is None else fitted.feature_names,
        row_names=index,
        label_pieces=None if label is None else partial(_frame_labels, frame, frame.columns[label]),
        label=label,
        fitted=fitted,
    )


def _pass(
    frame: dd.DataFrame, chosen: cols.Chosen, client: Client | None
) -> tuple[list[int], AnyArray | None, FittedFeatures | None]:
    """Return the rows of each partition, the names of all rows, and which columns become features."""
    import dask  # noqa: PLC0415  that a frame is there means that Dask is loaded

    read = [frame.columns[place] for place in chosen.encoded or chosen.kept[:1]]
    words = [cols.column_title(place, chosen.names) for place in chosen.encoded]
    parts = [dask.delayed(_summary)(part, words, chosen.features.missing) for part in frame[read].to_delayed()]
    if client is not None:
        summaries: list[_Summary] = client.gather(client.compute(parts))
    else:
        summaries = [_computed(part, is_small=True) for part in parts]
    indices = [names for _, names, _ in summaries if names is not None]
    index = cols.counted_names(np.concatenate(indices)) if len(indices) == len(summaries) else None
    category_sets = chosen.category_sets(FRAME_NAME)
    for number, collected in enumerate(category_sets.values()):
        for _, _, found in summaries:
            collected.add(found[number].found)
    return [rows for rows, _, _ in summaries], index, chosen.fitted(category_sets)


def _summary(part: pd.DataFrame, encoded: list[str], missing: str) -> _Summary:
    from ips2_dask.readers import records  # noqa: PLC0415  it takes pyarrow

    index = None if type(part.index).__name__ == "RangeIndex" else np.asarray(part.index, dtype=object)
    source = records.FrameBatches.of(part, FRAME_NAME)
    category_sets = {place: cols.CategorySet(FRAME_NAME, title, missing) for place, title in enumerate(encoded)}
    places = tuple(category_sets)
    chosen = cols.Chosen(source.titles, len(places), None, places, places, Features(missing=missing))
    source.examined(chosen, category_sets)
    return len(part), index, list(category_sets.values())


def _frame_block(part: pd.DataFrame, fitted: FittedFeatures | None, block_info: Any) -> AnyArray:
    """Return the numbers of a partition; raises ``BadInput`` that says which it is."""
    from ips2_dask.readers.records import open_frame  # noqa: PLC0415  it takes pyarrow

    name = f"partition {block_info[0]['chunk-location'][0]} of {FRAME_NAME}"
    request = Request(name, features=fitted or ALL)
    try:
        shape = (0, block_info[None]["chunk-shape"][1])
        block = open_frame(part, request).read(0, len(part)) if len(part) else np.empty(shape)
    except BadInput as fault:
        raise BadInput(name, fault.found, fault.allowed, fault.otherwise, fault.remedy) from None
    return _checked_block(block, block_info, name, "give frame.persist(), so that its partitions stay as they are")


def _frame_labels(frame: dd.DataFrame, title: str) -> Iterator[AnyArray]:
    for part in frame[[title]].to_delayed():
        yield np.asarray(_computed(part, is_small=True).iloc[:, 0].to_numpy(dtype=object))

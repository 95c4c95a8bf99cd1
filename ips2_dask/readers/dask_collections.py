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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers import columns as cols
from ips2_dask.readers import faults
from ips2_dask.readers.base import DType, Request, Rows, Table, check_dtype, check_shape, digest, is_sparse, rebatch
from ips2_dask.readers.features import Features, FittedFeatures
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


def open_dask_array(array: da.Array, request: Request, names: Sequence[str] | None = None) -> DaskTable:
    """Return the table of a Dask array, of which one column may hold the labels; ``names`` are those of its columns.

    Its fingerprint is that of the array's name, dtype and chunks: by Dask's own rule arrays of one name hold the same
    values. So an array over files that change under the same name has to be given another name, or another store.
    """
    labels_column, transpose, features = request.labels_column, request.transpose, request.features
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
    if features is not None and features.one_hot:  # to collect categories the graph would be computed once more
        allowed = "an array whose categories are encoded already"
        otherwise = "its whole graph would be computed once more, to find them"
        raise BadInput(NAME, "one_hot with a Dask array", allowed, otherwise, "encode it first, or store it as .zarr")
    checked = array.map_blocks(_as_block, dtype=dtype, meta=np.empty((0, 0), dtype))
    array, checked = (array.T, checked.T) if transpose else (array, checked)
    n_columns = int(array.shape[1])
    label = None if labels_column is None else cols.find_column(NAME, labels_column, names, n_columns)
    chosen = cols.select_columns(NAME, features, names, n_columns, label)
    fitted = chosen.fitted({})
    label_pieces = None if label is None else partial(_column_pieces, checked, label)
    if chosen.kept != tuple(range(n_columns)):  # the array as it was given has the name that its values are known by
        kept: Any = list(chosen.kept)
        array, checked = array[:, kept], checked[:, kept]
    return DaskTable(
        name=NAME,
        shape=check_shape(NAME, array.shape),
        dtype=dtype,
        rows=DaskRows(checked, is_sparse(getattr(array, "_meta", None))),
        fingerprint=digest("dask", array.name, dtype.str, array.chunks, chosen.missing),
        feature_names=chosen.kept_names() if fitted is None else fitted.feature_names,
        label_pieces=label_pieces,
        label=label,
        fitted=fitted,
    )


class DaskRows(Rows):
    """The rows of a Dask array. No dataclass: `dask.delayed` would find the array in its fields and compute it."""

    def __init__(self, array: da.Array, sparse: bool = False) -> None:
        self.array, self.n_rows, self.sparse = array, int(array.shape[0]), sparse

    def read(self, start: int, stop: int) -> AnyArray:
        return _compute(self.array[start:stop])

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        """Yield all rows, `rows` at a time; each chunk is computed once, in this process."""
        return rebatch((_compute(self.array.blocks[i]) for i in range(self.array.numblocks[0])), rows)


@dataclass(frozen=True, kw_only=True)
class DaskTable(Table):
    """The table of a Dask array, a `LazySource`."""

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


def _compute(array: da.Array) -> AnyArray:
    """Return an array computed by this process alone, whatever cluster is the default; raises for blocks on one."""
    from distributed.client import futures_of  # noqa: PLC0415  as above

    if futures_of(array):
        found = "blocks that are persisted on a cluster"
        allowed = "blocks that this process can compute, or the client of that cluster"
        otherwise = "they would have to be pulled into this process"
        raise BadInput(NAME, found, allowed, otherwise, "give client=, as in IPS2(client=client)")
    block: AnyArray = array.compute(scheduler="synchronous")
    return block


def _computed_here(collection: Any) -> Any:
    """Return what a collection that is small holds, computed where its parts are: in this process, or on a cluster."""
    from distributed.client import futures_of  # noqa: PLC0415  as above

    futures = futures_of(collection)
    if futures:
        return futures[0].client.compute(collection).result()
    return collection.compute(scheduler="synchronous")


def _column_pieces(array: da.Array, position: int) -> Iterator[AnyArray]:
    column = array[:, position]
    return (_computed_here(column.blocks[chunk]) for chunk in range(column.numblocks[0]))


class _Summary(NamedTuple):
    """What one pass over a partition finds."""

    rows: int
    names: AnyArray | None  # None where they count
    categories: list[cols.CategorySet]  # of each column that is to be encoded


def open_dask_frame(frame: dd.DataFrame, request: Request, client: Client | None = None) -> DaskTable:
    """Return the table of a Dask DataFrame, of which one column may hold the labels.

    One pass over the partitions counts their rows and collects the categories of ``one_hot``; the workers of
    ``client`` make it, or else this process, a partition at a time. Its fingerprint is that of Dask's own name of the
    frame, as for arrays. Text or an odd value in a partition is found when that is read.
    """
    labels_column, transpose, features = request.labels_column, request.transpose, request.features
    titles = [str(title) for title in frame.columns]
    cols.check_names(FRAME_NAME, titles)
    wanted = None if transpose else labels_column
    label = None if wanted is None else cols.find_column(FRAME_NAME, wanted, titles, len(titles))
    chosen = cols.select_columns(FRAME_NAME, features, titles, len(titles), label)
    lengths, index, fitted = _pass(frame, chosen, client)
    kept = [frame.columns[place] for place in chosen.kept]
    encoded = [frame.columns[place] for place, one in zip(chosen.kept, chosen.have_categories, strict=True) if one]
    kinds = [_number_type(None if title in encoded else frame.dtypes[title]) for title in kept]
    width = len(kept) if fitted is None else len(fitted.feature_names)
    m, f = check_shape(FRAME_NAME, (sum(lengths), width))
    dtype: DType = np.result_type(*kinds)
    # blocks are data frames until `_frame_block` has made arrays of them
    array = frame[kept].map_partitions(_same, meta=np.empty((0, f), dtype), enforce_metadata=False)
    array._chunks = (tuple(lengths), (f,))
    local = None
    if fitted is not None:  # the features as those of a frame that has nothing but their columns
        named = zip(chosen.kept, fitted.columns, strict=True)
        own = tuple(replace(one, number=n, name=titles[place]) for n, (place, one) in enumerate(named))
        local = replace(fitted, columns=own, n_columns=len(own), label=None)
    array = array.map_blocks(_frame_block, local, dtype=dtype, meta=np.empty((0, 0), dtype))
    if transpose:
        table = open_dask_array(array, replace(request, features=None))
        return replace(table, name=FRAME_NAME, read_sample_names=partial(np.array, titles, dtype=np.str_))
    key = frame._name, [str(kind) for kind in frame.dtypes], titles, chosen.kept, label, lengths, dtype.str
    return DaskTable(
        name=FRAME_NAME,
        shape=(m, f),
        dtype=dtype,
        rows=DaskRows(array),
        fingerprint=digest("dask frame", key, None if fitted is None else fitted.as_dict()),
        feature_names=chosen.kept_names() if fitted is None else fitted.feature_names,
        read_sample_names=None if index is None else partial(np.array, index),
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
    parts = [dask.delayed(_summary)(part, words, chosen.missing) for part in frame[read].to_delayed()]
    if client is not None:
        summaries: list[_Summary] = client.gather(client.compute(parts))
    else:
        summaries = [_computed_here(part) for part in parts]
    indices = [summary.names for summary in summaries if summary.names is not None]
    index = cols.counted_names(np.concatenate(indices)) if len(indices) == len(summaries) else None
    category_sets = chosen.category_sets(FRAME_NAME)
    for number, collected in enumerate(category_sets.values()):
        for summary in summaries:
            collected.add(summary.categories[number].found)
    fitted = chosen.fitted({place: collected.categories() for place, collected in category_sets.items()})
    return [summary.rows for summary in summaries], index, fitted


def _summary(part: pd.DataFrame, encoded: list[str], missing: str) -> _Summary:
    from ips2_dask.readers import frames  # noqa: PLC0415  it takes pyarrow

    index = None if type(part.index).__name__ == "RangeIndex" else np.asarray(part.index, dtype=object)
    source = frames.FrameBatches.of(part, FRAME_NAME)
    category_sets = {place: cols.CategorySet(FRAME_NAME, title, missing) for place, title in enumerate(encoded)}
    places = tuple(category_sets)
    chosen = cols.Chosen(source.titles, len(places), None, places, places, Features(missing=missing))
    source.examined(chosen, category_sets)
    return _Summary(len(part), index, list(category_sets.values()))


def _same(part: pd.DataFrame) -> pd.DataFrame:
    return part


def _frame_block(part: pd.DataFrame, fitted: FittedFeatures | None, block_info: Any) -> AnyArray:
    """Return the numbers of a partition; raises ``BadInput`` that says which it is."""
    from ips2_dask.readers.frames import open_frame  # noqa: PLC0415  it takes pyarrow

    name = f"partition {block_info[0]['chunk-location'][0]} of {FRAME_NAME}"
    request = Request(name, features=fitted)
    try:
        shape = (0, block_info[None]["chunk-shape"][1])
        block = open_frame(part, request).read(0, len(part)) if len(part) else np.empty(shape)
    except BadInput as fault:
        raise BadInput(name, fault.found, fault.allowed, fault.otherwise, fault.remedy) from None
    return _checked_block(block, block_info, name, "give frame.persist(), so that its partitions stay as they are")


def _number_type(kind: Any) -> DType:
    """Return the type of a column's numbers; float64 where they may lack a value, or are objects."""
    return kind if isinstance(kind, np.dtype) and kind.kind in "biuf" else np.dtype(np.float64)


def _frame_labels(frame: dd.DataFrame, title: str) -> Iterator[AnyArray]:
    for part in frame[[title]].to_delayed():
        yield np.asarray(_computed_here(part).iloc[:, 0].to_numpy(dtype=object))

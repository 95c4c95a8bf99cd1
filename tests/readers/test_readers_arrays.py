"""Arrays, sparse matrices, data frames and Zarr arrays that the caller has in memory."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from test_readers import F, M, table
from zarr.storage import MemoryStore, ZipStore

from ips2_dask.errors import BadInput
from ips2_dask.readers import Source, open_source
from ips2_dask.readers.base import rebatch


def refused(spec: Any, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        open_source(spec, **options)
    return caught.value


def same(source: Source, X: Any) -> bool:
    """Return whether a source and its pickled copy hold X, read at once, in parts and in blocks."""
    copy = pickle.loads(pickle.dumps(source))
    return all(
        (
            source.shape == X.shape,
            np.array_equal(source.read(0, len(X)), X),
            np.array_equal(copy.read(1, 3), X[1:3]),
            np.array_equal(np.concatenate(list(copy.blocks(7))), X),
            source.read(1, 3).flags.c_contiguous,
        )
    )


def test_arrays_of_any_kind_and_order_are_taken() -> None:
    X, _ = table()
    wide = np.zeros((M, 2 * F))
    wide[:, ::2] = X
    for spec in (X, np.asfortranarray(X), wide[:, ::2], X.astype(">f8"), np.ma.masked_array(X), X.tolist(), tuple(X)):
        assert same(open_source(spec), X)
    assert same(open_source(X, transpose=True), X.T)


def test_a_source_does_not_change_the_caller_s_array() -> None:
    X = np.ones((3, 3))
    open_source(X).read(0, 2)[:] = 7
    assert (X == 1).all()


def test_sparse_matrices_of_every_format_are_taken() -> None:
    X, _ = table()
    for make in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array, sparse.lil_array, sparse.dok_array):
        source = open_source(make(X))
        assert same(source, X)
        assert source.resident_bytes < X.nbytes * 2
    assert same(open_source(sparse.bsr_array(X)), X)
    assert same(open_source(sparse.dia_array(X)), X)
    assert same(open_source(sparse.csr_array(X), transpose=True), X.T)
    assert open_source(sparse.csr_array(X > 0)).dtype == np.bool_


def test_a_column_of_an_array_may_hold_the_labels() -> None:
    X, y = table()
    both = np.column_stack([X[:, :2], y, X[:, 2:]])
    for spec in (both, both.tolist(), sparse.csr_array(both)):
        source = open_source(spec, labels_column=2)
        assert same(source, X)
        assert np.array_equal(source.labels(), y)  # type: ignore[arg-type]


def test_fingerprints_follow_values_shape_type_and_order_of_arrays() -> None:
    X, _ = table()
    first = open_source(X).fingerprint
    assert open_source(X.copy()).fingerprint == first
    assert open_source(np.asfortranarray(X)).fingerprint == first
    other = X.copy()
    other[-1, -1] += 1
    for spec in (other, X.reshape(F, M), X.astype(np.float32), X[::-1]):
        assert open_source(spec).fingerprint != first
    assert open_source(sparse.csr_array(X)).fingerprint != open_source(sparse.csr_array(other)).fingerprint


def test_masked_values_are_refused() -> None:
    masked = np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)
    assert refused(masked).found == "3 masked values, the first at (0, 0)"


def test_lists_that_are_no_table_of_numbers_are_refused() -> None:
    assert "2 values in row 1" in refused([[1, 2, 3], [4, 5]]).found
    assert "a single value in row 1" in refused([[1, 2], 3]).found
    assert "'x' in row 1, column 0" in refused([[1, 2], ["x", 3]]).found
    assert "{} (dict) in row 1, column 0" in refused([[1, 2], [{}, 3]]).found
    assert "1 dimension" in refused([1, 2]).found
    assert "1 dimension" in refused([]).found
    assert "0 columns" in refused([[], []]).found
    assert refused(5).found == "something of type int"
    assert "0 dimensions" in refused(np.array(5)).found


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_read_only_memory_map_is_read_from_its_file_by_each_process(tmp_path: Path, order: Any) -> None:
    X, y = table()
    np.save(tmp_path / "x.npy", np.asarray(np.column_stack([X, y]), order=order))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = open_source(mapped)
    assert source.parallel
    assert source.resident_bytes == 0
    assert len(pickle.dumps(source)) < 2000
    assert same(source, np.column_stack([X, y]))
    assert same(open_source(mapped, transpose=True), np.column_stack([X, y]).T)
    assert same(open_source(mapped, labels_column=-1), X)
    inner = mapped[4:20] if order == "C" else mapped[:, 1:3]
    assert open_source(inner).parallel
    assert same(open_source(inner), np.array(inner))
    assert same(open_source(mapped[4:20:2]), np.array(mapped[4:20:2]))  # not one stretch of the file: held


def test_a_memory_map_that_may_be_written_is_told_by_its_values(tmp_path: Path) -> None:
    X, _ = table()
    np.save(tmp_path / "x.npy", X)
    for mode in ("r+", "c"):
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        before = open_source(mapped).fingerprint
        mapped[0, 0] += 1
        source = open_source(mapped)
        assert source.fingerprint != before
        assert source.read(0, 1)[0, 0] == mapped[0, 0]


def test_frames_keep_their_names_and_give_labels_by_name() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, 1, 2], "kind": ["x", "y", "x"], "c": [True, False, True]})
    source = open_source(frame, labels_column="kind")
    assert source.feature_names == ["a", "b", "c"]
    assert source.dtype == np.float64
    assert source.read(0, 3).tolist() == [[1, 0.5, 1], [2, 1, 0], [3, 2, 1]]
    assert source.labels().tolist() == ["x", "y", "x"]  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(source)).labels().tolist() == ["x", "y", "x"]
    frame["kind"] = frame["kind"].astype("category")
    assert open_source(frame, labels_column=2).labels().tolist() == ["x", "y", "x"]  # type: ignore[union-attr]
    assert open_source(frame[["a", "c"]]).dtype == np.int64


def test_nullable_and_sparse_columns_of_a_frame_are_taken() -> None:
    nullable = pd.DataFrame({"a": pd.array([1, 2], dtype="Int32"), "b": pd.array([0.5, 1], dtype="Float32")})
    assert open_source(nullable).read(0, 2).tolist() == [[1, 0.5], [2, 1]]
    nullable.loc[1, "a"] = pd.NA
    assert np.isnan(open_source(nullable).read(0, 2)[1, 0])
    thin = pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 2]), "b": [1, 2, 3]})
    assert open_source(thin).read(0, 3).tolist() == [[0, 1], [0, 2], [2, 3]]


def test_columns_of_a_frame_that_hold_no_numbers_are_named() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["1", "u"], "c": ["v", "w"]})
    found = refused(frame).found
    assert re.search(r"the columns 1 \('b'\) \(\w+\), 2 \('c'\) \(\w+\)", found)
    assert "'1' in row 0 of column 1 ('b')" in found
    dates = pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])})
    assert "column 0 ('a')" in refused(dates).thing
    seconds = (dates["a"] - dates["a"].min()) / np.timedelta64(1, "s")  # the remedy
    assert open_source(seconds.to_frame()).read(0, 1).tolist() == [[0]]
    assert "0 rows" in refused(pd.DataFrame({"a": []})).found


def test_zarr_arrays_are_taken_from_any_store(tmp_path: Path) -> None:
    X, y = table()
    both = np.column_stack([X, y])
    with ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=both, chunks=(8, 2))
    arrays: list[Any] = [zarr.create_array(store, data=both) for store in (tmp_path / "x.zarr", MemoryStore())]
    for array in [*arrays, zarr.open_array(ZipStore(tmp_path / "x.zip", mode="r"), mode="r")]:
        assert same(open_source(array), both)
        assert same(open_source(array, transpose=True), both.T)
        assert same(open_source(array, labels_column=-1), X)
    array = zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("deep/X", data=X)
    source = open_source(array)
    assert source.parallel
    assert same(source, X)
    before = source.fingerprint
    array[0, 0] = 77
    assert open_source(array).fingerprint != before


def test_a_remote_zarr_array_is_told_by_its_objects() -> None:
    url = "memory://readers/x.zarr"
    array = zarr.create_array(url, data=np.eye(4), overwrite=True)
    assert same(open_source(url), np.eye(4))
    assert same(open_source(array), np.eye(4))
    before = open_source(url).fingerprint
    assert open_source(url).fingerprint == before
    array[0, 0] = 2
    assert open_source(url).fingerprint != before


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 9), max_size=8), rows=st.integers(1, 12))
def test_rebatching_keeps_rows_and_order(lengths: list[int], rows: int) -> None:
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    pieces = np.split(whole, np.cumsum(lengths)[:-1]) if lengths else []
    blocks = list(rebatch(pieces, rows))
    assert [len(block) for block in blocks[:-1]] == [rows] * max(0, len(blocks) - 1)
    assert all(0 < len(block) <= rows for block in blocks)
    assert np.array_equal(np.concatenate([*blocks, whole[:0]]), whole)

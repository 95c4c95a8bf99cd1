"""Parquet: row groups, types, missing values and columns that hold no numbers; and the versions of .npy headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults, open_source, parquet


def write(folder: Path, columns: dict[str, Any] | Any, **options: Any) -> Path:
    written = pa.table(columns) if isinstance(columns, dict) else columns
    pq.write_table(written, folder / "x.parquet", **options)
    return folder / "x.parquet"


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        open_source(path, **options)
    return caught.value.found


def test_columns_of_several_types_are_read_as_their_common_type(tmp_path: Path) -> None:
    columns = {"a": pa.array([1, 2], pa.int8()), "b": pa.array([0.5, 1], pa.float32()), "c": [True, False]}
    source = open_source(write(tmp_path, columns))
    assert source.dtype == np.float32
    assert source.read(0, 2).tolist() == [[1, 0.5, 1], [2, 1, 0]]
    assert open_source(write(tmp_path, {"a": [True], "b": [False]})).dtype == np.bool_
    assert (
        open_source(write(tmp_path, {"a": pa.array([1], pa.uint8()), "b": pa.array([2], pa.int64())})).dtype == np.int64
    )


def test_columns_that_hold_no_numbers_are_named_with_the_first_value(tmp_path: Path) -> None:
    columns = {"a": [1, 2], "kind": ["x", "y"], "when": pd.to_datetime(["2020-01-01"] * 2), "list": [[1], [2]]}
    found = refused(write(tmp_path, columns))
    assert "'kind' (string), 'when' (timestamp" in found
    assert "'list' (list<" in found
    assert "'x' in row 0" in found


def test_labels_of_any_kind_are_found_by_name_or_number(tmp_path: Path) -> None:
    kinds = pa.array(["x", "y", "x"]).dictionary_encode()
    path = write(tmp_path, {"a": [1, 2, 3], "kind": kinds, "code": [5.0, 6.0, 5.0]})
    source = open_source(write(tmp_path, {"a": [1, 2, 3], "kind": kinds}), labels_column="kind")
    assert source.labels().tolist() == ["x", "y", "x"]  # type: ignore[union-attr]
    path = write(tmp_path, {"a": [1, 2, 3], "code": [5.0, 6.0, 5.0]})
    assert open_source(path, labels_column=-1).labels().tolist() == [5, 6, 5]  # type: ignore[union-attr]
    assert "no column 'cod'" in refused(path, labels_column="cod")
    with pytest.raises(BadInput, match="no label in row 1"):
        open_source(write(tmp_path, {"a": [1, 2], "kind": ["x", None]}), labels_column="kind").labels()


def test_missing_values_are_named_by_row_and_column(tmp_path: Path) -> None:
    values = [1, 2, 3, 4, 5, 6, None, 8]
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        column = pa.array([None if value is None else kind == pa.bool_() or value for value in values], kind)
        source = open_source(write(tmp_path, {"a": [1] * 8, "b": column}, row_group_size=3))
        assert len(source.read(0, 4)) == 4
        for read in (lambda: source.read(5, 8), lambda: list(source.blocks(2))):  # noqa: B023 - called at once
            with pytest.raises(BadInput, match=r"null.* at row 6, column 'b'"):
                read()


def test_a_table_without_rows_or_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    assert "0 rows" in refused(write(tmp_path, {"a": pa.array([], pa.float64())}))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert "several columns named 'a'" in refused(write(tmp_path, twice))


def test_columns_whose_name_is_the_start_of_another_s_are_kept_apart(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, {"a.b": [1, 2], "a": [3, 4], "b": [5, 6]}), labels_column="b")
    assert source.feature_names == ["a.b", "a"]
    assert source.read(0, 2).tolist() == [[1, 3], [2, 4]]


def test_only_the_row_groups_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(write(tmp_path, {"a": np.arange(100.0)}, row_group_size=10))
    asked: list[list[int]] = []
    batches = parquet.batches
    monkeypatch.setattr(parquet, "batches", lambda s, groups, c: asked.append(groups) or batches(s, groups, c))  # type: ignore[func-returns-value]
    assert source.read(35, 52).ravel().tolist() == list(range(35, 52))
    assert asked == [[3, 4, 5]]


def test_row_groups_that_are_very_large_are_not_read_in_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"a": np.arange(1000.0)})
    assert open_source(path).parallel
    monkeypatch.setattr(parquet, "LARGEST_GROUP", 1000)
    assert not open_source(path).parallel


def test_headers_of_the_second_version_of_npy_are_read(tmp_path: Path) -> None:
    X = np.arange(6.0).reshape(2, 3)
    for version in ((1, 0), (2, 0)):
        with open(tmp_path / "x.npy", "wb") as stream:
            np.lib.format.write_array(stream, X, version=version)
        assert np.array_equal(open_source(tmp_path / "x.npy").read(0, 2), X)
    with open(tmp_path / "x.npy", "wb") as stream:
        np.lib.format.write_array(stream, X, version=(3, 0))
    assert "version (3, 0)" in refused(tmp_path / "x.npy")


def test_what_does_not_fit_in_memory_is_said_so() -> None:
    with pytest.raises(BadInput, match="raise the memory limit"), faults.reading("x.mtx"):
        raise MemoryError("Unable to allocate 8 TiB")

"""Parquet: row groups, types, missing values and columns that hold no numbers; and the versions of .npy headers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ips2_dask import BadInput, Features, Params, run
from ips2_dask.readers import faults, open_source, records


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
    columns = {"a": [1, 2], "kind": ["x", "y"], "when": pd.to_datetime(["2020-01-01"] * 2), "list": [["u"], ["v"]]}
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
    batches = pq.ParquetFile.iter_batches

    def counted(file: Any, rows: int, row_groups: list[int], **options: Any) -> Any:
        asked.append(row_groups)
        return batches(file, rows, row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    assert source.read(35, 52).ravel().tolist() == list(range(35, 52))
    assert asked == [[3, 4, 5]]


def test_row_groups_that_are_very_large_are_not_read_in_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"a": np.arange(1000.0)})
    assert open_source(path).parallel
    monkeypatch.setattr(records, "LARGEST_GROUP", 1000)
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


def whole(path: Path, **options: Any) -> list[list[float]]:
    source = open_source(path, **options)
    rows: list[list[float]] = source.read(0, source.shape[0]).tolist()
    return rows


LISTS = [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int16(), 3), pa.list_(pa.decimal128(22, 2))]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_a_column_of_lists_of_equal_length_is_a_matrix(kind: Any, tmp_path: Path) -> None:
    values = np.arange(36).reshape(12, 3)
    columns = {"id": np.arange(12), "e": pa.array(values.tolist(), pa.list_(pa.int64())).cast(kind)}
    path = write(tmp_path, columns, row_group_size=5)
    source = open_source(path, labels_column="id")
    assert source.feature_names == ["e_0", "e_1", "e_2"]
    np.testing.assert_array_equal(source.read(0, 12), values)
    np.testing.assert_array_equal(source.read(4, 7), values[4:7])
    assert whole(path, features=Features(columns="e_1-e_2")) == values[:, 1:].tolist()
    assert whole(path, features=Features(columns="e_2", one_hot="e_2"))[1][:3] == [0, 1, 0]


def test_lists_that_are_uneven_or_missing_are_named_by_row(tmp_path: Path) -> None:
    values = [None, [1.0, 2], [3, None], [4, 5]]
    path = write(tmp_path, {"a": [1.0] * 4, "e": values}, row_group_size=2)
    with pytest.raises(BadInput, match=r"null\) at row 0, column 'e_0'"):
        whole(path)
    gaps = [[1, np.nan, np.nan], [1, 1, 2], [1, 3, np.nan], [1, 4, 5]]
    np.testing.assert_array_equal(whole(path, features=Features(missing="drop")), gaps)
    path = write(tmp_path, {"a": [1.0] * 4, "e": [[1, 2], [3, 4], [5, 6], [7]]}, row_group_size=2)
    with pytest.raises(BadInput, match=r"a list of 1 values in row 3, column 'e', allowed is lists of 2.*e_0-e_1\)"):
        whole(path)
    assert whole(path, features=Features(drop_columns="e_0-e_1")) == [[1]] * 4
    nothing = write(tmp_path, {"a": [1.0, 2], "e": pa.array([None, None], pa.list_(pa.float64()))})
    assert "'e' (list" in refused(nothing)
    assert whole(nothing, features=Features(drop_columns="e")) == [[1], [2]]
    assert "several columns named 'e_0'" in refused(write(tmp_path, {"e_0": [1], "e": [[1, 2]]}))


@pytest.mark.parametrize("kind", [pa.decimal128(20, 2), pa.decimal256(50, 2), pa.decimal32(5, 2), pa.decimal64(9, 2)])
def test_decimals_are_numbers(kind: Any, tmp_path: Path) -> None:
    column = pa.array([Decimal("1.25"), None, Decimal("-3.50")], kind)
    path = write(tmp_path, {"a": column, "b": [1, 2, 3]})
    with pytest.raises(BadInput, match=r"null\) at row 1, column 'a'"):
        whole(path)
    np.testing.assert_array_equal(whole(path, features=Features(missing="median")), [[1.25, 1], [np.nan, 2], [-3.5, 3]])
    assert whole(path, features=Features(missing="drop", one_hot="a"))[0] == [0, 1, 1]


def test_a_column_without_a_value_is_dropped_as_its_message_says(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": np.arange(9.0), "b": np.arange(9.0) ** 2, "none": pa.array([None] * 9, pa.null())})
    for missing in ("refuse", "median", "drop"):
        with pytest.raises(BadInput, match=r"(no value in|every row).*drop.*\(.*--drop-columns"):
            run(path, Params(n_clusters=2, n_neighbors=3), features=Features(missing=missing))
        dropped = Features(missing=missing, drop_columns="none")
        assert len(run(path, Params(n_clusters=2, n_neighbors=3), features=dropped).labels) == 9


def test_a_column_without_a_value_in_new_samples_has_the_run_s_median(tmp_path: Path) -> None:
    X = np.arange(30.0).reshape(10, 3)
    path = write(tmp_path, dict(zip("abc", X.T, strict=True)))
    found = run(path, Params(n_clusters=2, n_neighbors=3), features=Features(missing="median"))
    new = pa.table({"a": X[:, 0], "b": X[:, 1], "c": pa.array([None] * 10, pa.null())})
    expected = X.copy()
    expected[:, 2] = np.median(X[:, 2])
    assert np.array_equal(found.predict(write(tmp_path, new)), found.predict(expected))


def test_an_empty_first_row_group_is_read_over(tmp_path: Path) -> None:
    schema = pa.schema({"a": pa.int64(), "k": pa.string(), "e": pa.list_(pa.int64())})
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for rows in ([], [1, 2], [], [3]):
            columns = {"a": pa.array(rows, pa.int64()), "k": [f"k{row}" for row in rows], "e": [[row] for row in rows]}
            writer.write_table(pa.table(columns, schema=schema))
    path = tmp_path / "x.parquet"
    assert pq.ParquetFile(path).metadata.num_row_groups == 4
    assert whole(path, features=Features(one_hot="k")) == [[1, 1, 0, 0, 1], [2, 0, 1, 0, 2], [3, 0, 0, 1, 3]]
    assert open_source(path, labels_column="k").read(2, 3).tolist() == [[3, 3]]
    assert "'k1' in row 0" in refused(path)


def test_numbers_of_every_type_are_read_and_whole_ones_beyond_floats_too(tmp_path: Path) -> None:
    large = pa.array([2**63 + 2**20, None, 5], pa.uint64())
    path = write(tmp_path, {"large": large, "half": pa.array(np.array([0.5, 1, 2], np.float16))})
    rows = whole(path, features=Features(missing="median"))
    assert [row[0] for row in rows][::2] == [2.0**63 + 2**20, 5]
    half = write(tmp_path, {"half": pa.array(np.array([0.5, 1, 2], np.float16))})
    assert open_source(half).dtype == np.float16
    coded = write(tmp_path, {"a": pa.array([1.5, 2.5, 1.5]).dictionary_encode(), "b": [True, False, None]})
    np.testing.assert_array_equal(whole(coded, features=Features(missing="drop")), [[1.5, 1], [2.5, 0], [1.5, np.nan]])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_of_every_kind_is_encoded_or_dropped(kind: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [1.0, 2, 3], "k": pa.array(["u", "v ", "u"], kind)})
    assert "'k' (" in refused(path)
    assert whole(path, features=Features(one_hot="k")) == [[1, 1, 0], [2, 0, 1], [3, 1, 0]]
    assert whole(path, features=Features(drop_columns="k")) == [[1], [2], [3]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 1], pa.date32()),
        pa.array([0, 1], pa.timestamp("ms")),
        pa.array([0, 1], pa.time64("us")),
        pa.array([0, 1], pa.duration("s")),
        pa.array([{"x": 1}, {"x": 2}]),
        pa.array([b"u", b"v"]),
        pa.array([[[1]], [[2]]]),
        pa.array([["u"], ["v"]]),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_that_are_neither_numbers_nor_text_can_be_dropped(values: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [1.0, 2], "when": values})
    with pytest.raises(BadInput, match=r"'when' \(.* in row 0.*Remedy: drop these columns \(drop_columns"):
        whole(path)
    assert whole(path, features=Features(drop_columns="when")) == [[1], [2]]
    if pa.types.is_temporal(values.type):
        numbers = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
        assert whole(write(tmp_path, {"a": [1.0, 2], "when": numbers})) == [[1, 0], [2, 1]]
    if pa.types.is_nested(values.type):
        with pytest.raises(BadInput, match=r"as categories.*drop these columns"):
            whole(path, features=Features(one_hot="when"))

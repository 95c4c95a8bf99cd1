"""Parquet files as parts of one table: a folder, a pattern, their order and their columns."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import make_blobs
from test_bad_input import refused as refused_command

from ips2_dask import BadInput, Features, Params, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.readers import open_source


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def whole(spec: Any, **options: Any) -> list[list[float]]:
    source = open_source(spec, **options)
    rows: list[list[float]] = source.read(0, source.shape[0]).tolist()
    assert np.array_equal(np.concatenate(list(source.blocks(2))), rows, equal_nan=True)
    return rows


def refused(spec: Any, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        list(open_source(spec, **options).blocks(10))
    return caught.value


def test_parts_are_one_table_in_natural_order_and_what_is_no_part_is_left_out(tmp_path: Path) -> None:
    for part in (10, 2, 1):
        write(tmp_path / f"part-{part}.parquet", {"a": [part], "b": [part / 2]})
    for name in ("_metadata", "_SUCCESS", ".part-1.parquet.crc", "notes.txt"):
        (tmp_path / name).write_bytes(b"no table")
    write(tmp_path / "_temporary" / "part-0.parquet", {"a": [0], "b": [0.0]})
    write(tmp_path / ".hidden.parquet", {"a": [0], "b": [0.0]})
    expected = [[1, 0.5], [2, 1], [10, 5]]
    for spec in (tmp_path, f"{tmp_path}/", f"{tmp_path}/*.parquet", f"{tmp_path}/part-*", f"{tmp_path}/**/*.parquet"):
        assert whole(spec) == expected
        assert open_source(spec).parallel
    assert whole(f"{tmp_path}/part-[0-9].parquet") == expected[:2]
    named = tmp_path.parent / "x.parquet"
    tmp_path.rename(named)
    assert whole(named) == expected
    named.rename(tmp_path)


def test_columns_are_taken_by_name_and_numbers_of_several_types_are_one(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", {"a": pa.array([1], pa.int32()), "b": [0.5], "k": ["x"]})
    write(tmp_path / "2.parquet", {"k": pa.array(["y"]).dictionary_encode(), "b": [2], "a": [3.5]})
    write(tmp_path / "3.parquet", {"b": pa.array([], pa.string())})  # without rows: of any columns
    write(tmp_path / "4.parquet", {"a": pa.array([None], pa.null()), "b": [7], "k": pa.array(["x"], pa.large_string())})
    features = Features(one_hot="k", missing="median")
    np.testing.assert_array_equal(
        whole(tmp_path, features=features), [[1, 0.5, 1, 0], [3.5, 2, 0, 1], [np.nan, 7, 1, 0]]
    )
    assert whole(tmp_path, labels_column="k", features=Features(columns="b")) == [[0.5], [2], [7]]
    labels = open_source(tmp_path, labels_column="k", features=Features(columns="b")).labels()
    assert labels is not None
    assert labels.tolist() == ["x", "y", "x"]
    assert "null" in refused(tmp_path, labels_column="k").found
    assert "row 2, column 'a'" in refused(tmp_path, labels_column="k").found


def test_parts_of_differing_columns_are_refused_with_part_and_column(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", {"a": [1], "b": [2]})
    other = tmp_path / "2.parquet"
    for columns, part, said in (
        ({"a": [1]}, "1.parquet", "a column 'b', which 2.parquet does not have"),
        ({"a": [1], "b": [2], "c": [3]}, "2.parquet", "a column 'c', which 1.parquet does not have"),
        ({"a": [1], "b": ["x"]}, "2.parquet", "column 'b' of type string, which is int64 in 1.parquet"),
        ({"a": [1], "b": [[2]]}, "2.parquet", "column 'b' of type list"),
        ({"a": ["x"], "b": ["y"]}, "2.parquet", "column 'a' of type string"),
    ):
        write(other, columns)
        fault = refused(tmp_path)
        assert fault.thing == str(tmp_path / part)
        assert said in fault.found
        assert whole(tmp_path / "1.parquet") == [[1, 2]]  # the remedy
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), other)
    assert "several columns named 'a'" in refused(tmp_path).found


def test_a_fingerprint_is_of_all_parts_and_a_part_that_changes_or_vanishes_is_noticed(tmp_path: Path) -> None:
    for part in range(3):
        write(tmp_path / f"{part}.parquet", {"a": [part, part], "b": [1, 2]})
    first = open_source(tmp_path).fingerprint
    assert open_source(f"{tmp_path}/*.parquet").fingerprint == first
    write(tmp_path / "2.parquet", {"a": [5, 5], "b": [1, 3]})
    source = pickle.loads(pickle.dumps(open_source(tmp_path)))
    assert source.fingerprint != first
    write(tmp_path / "1.parquet", {"a": [5, 5, 5], "b": [1, 2, 3]})
    assert source.read(0, 2).tolist() == [[0, 1], [0, 2]]
    with pytest.raises(BadInput, match=r"1\.parquet: found another size or modification time"):
        source.read(1, 3)
    (tmp_path / "2.parquet").unlink()
    with pytest.raises(BadInput, match=r"2\.parquet.*No such file"):
        source.read(4, 6)
    assert open_source(tmp_path).fingerprint not in (first, source.fingerprint)


def test_what_is_no_folder_of_parts_is_refused_with_what_helps(tmp_path: Path) -> None:
    assert "a directory" in refused(tmp_path).found
    assert "no such file" in refused(f"{tmp_path}/*.parquet").found
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert "not Parquet" in refused(f"{tmp_path}/*.csv").found
    write(tmp_path / "k=1" / "0.parquet", {"a": [1, 2], "b": [3, 4]})
    write(tmp_path / "k=2" / "0.parquet", {"a": [5, 6], "b": [7, 8]})
    fault = refused(tmp_path)
    assert "folders of Parquet files" in fault.found
    pattern = fault.remedy.split()[3].strip(",")
    assert whole(pattern) == [[1, 3], [2, 4], [5, 7], [6, 8]]
    write(tmp_path / "empty" / "0.parquet", {"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})
    assert "0 rows" in refused(tmp_path / "empty").found
    odd = tmp_path / "a[1]*"
    write(odd / "0.parquet", {"a": [1, 2], "b": [3, 4]})
    assert whole(odd) == [[1, 3], [2, 4]]  # a folder's name is no pattern


def test_the_index_of_each_part_counts_or_names_the_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]})
    for part in range(2):
        frame.to_parquet(tmp_path / f"{part}.parquet", index=True)
    assert open_source(tmp_path).sample_names is None
    for part in range(2):
        frame.set_index(pd.Index([2 * part, 2 * part + 1]).to_series().values).to_parquet(tmp_path / f"{part}.parquet")
    assert open_source(tmp_path).sample_names is None
    for part in range(2):
        frame.set_index(pd.Index([f"s{part}", f"t{part}"])).to_parquet(tmp_path / f"{part}.parquet")
    names = open_source(tmp_path).sample_names
    assert names is not None
    assert names.tolist() == ["s0", "t0", "s1", "t1"]


def test_the_command_line_runs_and_predicts_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = make_blobs(90, 3, centers=3, random_state=0)
    columns = {**dict(zip("abc", X.T, strict=True)), "known": y}
    for part in range(3):
        rows = slice(30 * part, 30 * part + 30)
        write(tmp_path / "parts" / f"{part}.parquet", {k: v[rows] for k, v in columns.items()}, row_group_size=8)
    expected = run(X, Params(n_clusters=3))
    options = ["--clusters", "3", "--labels-column", "known", "--serial", "--quiet"]
    for spec in (tmp_path / "parts", f"{tmp_path}/parts/*.parquet"):
        assert main(["run", str(spec), "--out", str(tmp_path / "run"), *options]) == 0
        assert np.array_equal(open_run(tmp_path / "run").labels, expected.labels)
    out = tmp_path / "labels.csv"
    words = ["predict", str(tmp_path / "run"), str(tmp_path / "parts"), "--out", str(out), "--quiet"]
    assert main([*words, "--labels-column", "known"]) == 0
    assert pd.read_csv(out)["label"].tolist() == expected.labels.tolist()
    write(tmp_path / "parts" / "3.parquet", {"a": [1.0]})
    line = refused_command(["run", str(tmp_path / "parts"), "--out", str(tmp_path / "other"), *options], capsys)
    assert "a column 'b', which 3.parquet does not have" in line
    assert not (tmp_path / "other").exists()

"""Known labels are read a piece at a time where a format gives rows by ranges, and have the same codes as whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from test_readers import FORMATS, M, write_frame, written

from ips2_dask.errors import BadInput
from ips2_dask.readers import Source, open_source, records, text
from ips2_dask.readers.base import rebatch
from ips2_dask.readers.labels import Classes, classes_of

PIECE = 8
"""Labels of a piece, at most, in these tests."""

WHOLE = {"mat", "mat-plain", "mat-sparse", "mtx", "mtx.gz", "npz", "npz-packed", "npz-fortran"}
"""Formats whose files, or labels in them, are read whole."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("labels.PIECE_ROWS", "labels.PIECE_LABELS"):
        monkeypatch.setattr(f"ips2_dask.readers.{name}", PIECE)
    monkeypatch.setattr(records, "BATCH_ROWS", PIECE)
    monkeypatch.setattr(text, "PIECE_BYTES", 1)
    monkeypatch.setattr(text, "LINES_PER_BLOCK", 1)


def check(source: Source) -> None:
    """Assert that codes and names from pieces are those of all labels at once."""
    labels, classes = source.labels(), classes_of(source)
    assert labels is not None
    assert classes is not None
    names, codes = np.unique(labels, return_inverse=True)
    assert classes.names.dtype.kind == names.dtype.kind
    np.testing.assert_array_equal(classes.names, names)
    for rows in (1, 7, M, 1000):
        blocks = list(rebatch(classes.pieces(), rows))
        assert {len(block) for block in blocks[:-1]} <= {rows}
        assert all(block.dtype == np.int32 for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), codes.ravel())


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in WHOLE])
def test_every_format_gives_its_labels_in_pieces(name: str, tmp_path: Path) -> None:
    spec, column, _, y = written(name, tmp_path)
    source = open_source(spec, labels_column=column)
    check(source)
    assert source.label_pieces is not None
    lengths = [np.size(piece) for piece in source.label_pieces()]
    assert sum(lengths) == len(y)
    assert max(lengths) <= PIECE


def write_csv(folder: Path, labels: list[str]) -> Source:
    pd.DataFrame({"a": np.arange(M), "b": 1.5, "y": labels}).to_csv(folder / "x.csv", index=False)
    return open_source(folder / "x.csv", labels_column="y")


def write_parquet(folder: Path, labels: list[str]) -> Source:
    pd.DataFrame({"a": np.arange(M), "b": 1.5, "y": labels}).to_parquet(folder / "x.parquet", row_group_size=10)
    return open_source(folder / "x.parquet", labels_column="y")


def write_hdf5(folder: Path, labels: list[str]) -> Source:
    with h5py.File(folder / "x.h5", "w") as file:
        file["X"] = np.arange(2.0 * M).reshape(M, 2)
        file.create_dataset("y", data=np.array(labels, object)[None], dtype=h5py.string_dtype(), chunks=(1, 5))
    return open_source(folder / "x.h5", labels_column="y")


def write_h5ad(folder: Path, labels: list[str]) -> Source:
    names, codes = np.unique(labels, return_inverse=True)
    with h5py.File(folder / "x.h5ad", "w") as file:
        file["X"] = np.arange(2.0 * M).reshape(M, 2)
        file["X"].attrs["encoding-type"] = "array"
        obs = write_frame(file, "obs", [f"cell{i}" for i in range(M)])
        obs["y/codes"], obs["y/categories"] = codes.astype(np.int8), names.astype(object)
        write_frame(file, "var", ["a", "b"])
    return open_source(folder / "x.h5ad", labels_column="y")


def write_npz(folder: Path, labels: list[str]) -> Source:
    np.savez_compressed(folder / "x.npz", X=np.arange(2.0 * M).reshape(M, 2), y=np.array(labels)[:, None])
    return open_source(f"{folder / 'x.npz'}::X", labels_column="y")


def write_zarr(folder: Path, labels: list[str]) -> Source:
    group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=2)
    group.create_array("X", data=np.arange(2.0 * M).reshape(M, 2))
    group.create_array("y", data=np.array(labels), chunks=(3,))
    return open_source(f"{folder / 'x.zarr'}::X", labels_column="y")


TEXTS: dict[str, Callable[[Path, list[str]], Source]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "h5": write_hdf5,
    "h5ad": write_h5ad,
    "npz": write_npz,
    "zarr": write_zarr,
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_whole_numbers_only_if_those_of_all_pieces_are(name: str, tmp_path: Path) -> None:
    whole = (["7", "10", "7.0", "-3"] * M)[:M]
    classes = classes_of(TEXTS[name](tmp_path, whole))
    assert classes is not None
    assert classes.names.tolist() == [-3, 7, 10]
    mixed = [*whole[:-1], "wren"]
    source = TEXTS[name](tmp_path, mixed)
    check(source)
    assert Classes(source).names.tolist() == ["-3", "10", "7", "7.0", "wren"]


@pytest.mark.parametrize("name", ["csv", "parquet", "npz"])
def test_a_missing_label_of_a_later_piece_is_named_by_its_row(name: str, tmp_path: Path) -> None:
    source = TEXTS[name](tmp_path, [*["auk"] * 30, " ", *["owl"] * (M - 31)])
    with pytest.raises(BadInput, match="no label in row 30"):
        Classes(source)


def test_a_fractional_label_of_a_later_piece_is_named_by_its_row(tmp_path: Path) -> None:
    X = np.zeros((M, 3))
    X[30, 2] = 0.5
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(BadInput, match=r"the label 0\.5 in row 30"):
        Classes(open_source(tmp_path / "x.npy", labels_column=-1))


def test_an_array_of_several_rows_and_columns_is_read_in_its_own_order(tmp_path: Path) -> None:
    y = np.arange(36) % 5
    for order in ("C", "F"):
        np.savez(tmp_path / "x.npz", X=np.arange(72.0).reshape(36, 2), y=y.reshape(4, 9, order="C").copy(order))  # type: ignore[call-overload]
        source = open_source(f"{tmp_path / 'x.npz'}::X", labels_column="y")
        np.testing.assert_array_equal(source.labels(), y)  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.concatenate(list(Classes(source).pieces())), y)


def test_a_dask_array_gives_its_labels_by_chunks() -> None:
    X = np.column_stack([np.arange(M), np.ones(M), np.arange(M) % 4])
    source = open_source(da.from_array(X, chunks=(PIECE, 2)), labels_column=-1)
    check(source)
    assert [len(piece) for piece in source.label_pieces()] == [8, 8, 8, 8, 5]  # type: ignore[misc]


def test_labels_in_memory_have_codes_too() -> None:
    check(open_source(pd.DataFrame({"a": np.arange(M), "y": ["auk", "owl"] * 18 + ["wren"]}), labels_column="y"))
    assert classes_of(open_source(np.ones((3, 2)))) is None

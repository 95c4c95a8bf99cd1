"""Every input format gives the rows, labels and promises of a source, whatever it is written as."""

from __future__ import annotations

import gzip
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import zarr
from harness import slowly
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import Source, open_source

M, F = 37, 5
Array = NDArray[Any]
Writer = Callable[[Path, Array, Array], str]


def table() -> tuple[Array, Array]:
    """Return 37 x 5 numbers, a third of them zero, and integer labels."""
    rng = np.random.default_rng(5)
    X = np.round(rng.normal(size=(M, F)), 3) * (rng.random((M, F)) > 0.3)
    X[0] = [1.5, -2, 0, 3e-7, 4e12]
    return X, np.arange(M) % 3


def write_npy(folder: Path, X: Array, y: Array) -> str:
    np.save(folder / "x.npy", X)
    return str(folder / "x.npy")


def write_npy_fortran(folder: Path, X: Array, y: Array) -> str:
    np.save(folder / "x.npy", np.asfortranarray(X))
    return str(folder / "x.npy")


def write_npz(folder: Path, X: Array, y: Array) -> str:
    np.savez(folder / "x.npz", X=X, y=y)
    return str(folder / "x.npz")


def write_npz_packed(folder: Path, X: Array, y: Array) -> str:
    np.savez_compressed(folder / "x.npz", X=X, y=y)
    return f"{folder / 'x.npz'}::X"


def write_npz_fortran(folder: Path, X: Array, y: Array) -> str:
    np.savez_compressed(folder / "x.npz", X=np.asfortranarray(X), y=y)
    return f"{folder / 'x.npz'}::X.npy"


def write_npz_sparse(folder: Path, X: Array, y: Array) -> str:
    sparse.save_npz(folder / "x.npz", sparse.csc_array(X))
    return str(folder / "x.npz")


def text_of(X: Array, y: Array, delimiter: str, header: bool) -> bytes:
    lines = [delimiter.join([f"f{j}" for j in range(X.shape[1])] + ["y"])] if header else []
    lines += [delimiter.join([*(repr(float(v)) for v in row), str(label)]) for row, label in zip(X, y, strict=True)]
    return ("\n".join(lines) + "\n").encode()


def write_csv(folder: Path, X: Array, y: Array) -> str:
    (folder / "x.csv").write_bytes(text_of(X, y, ",", header=True))
    return str(folder / "x.csv")


def write_csv_gz(folder: Path, X: Array, y: Array) -> str:
    (folder / "x.csv.gz").write_bytes(gzip.compress(text_of(X, y, ";", header=True)))
    return str(folder / "x.csv.gz")


def write_tsv(folder: Path, X: Array, y: Array) -> str:
    (folder / "x.tsv").write_bytes(text_of(X, y, "\t", header=True).replace(b"\n", b"\r\n"))
    return str(folder / "x.tsv")


def write_blanks(folder: Path, X: Array, y: Array) -> str:
    (folder / "x.txt").write_bytes(b"  " + text_of(X, y, " \t ", header=True).replace(b"\n", b" \n "))
    return str(folder / "x.txt")


def write_parquet(folder: Path, X: Array, y: Array) -> str:
    frame = pa.table({**{f"f{j}": X[:, j] for j in range(X.shape[1])}, "y": y})
    pq.write_table(frame, folder / "x.parquet", row_group_size=10)
    return str(folder / "x.parquet")


def write_parquet_parts(folder: Path, X: Array, y: Array) -> str:
    (folder / "parts").mkdir(exist_ok=True)
    for part, low in enumerate(range(0, len(X), 3)):
        write_parquet(folder, X[low : low + 3], y[low : low + 3])
        (folder / "x.parquet").rename(folder / "parts" / f"part.{part}.parquet")
    return str(folder / "parts")


def write_h5(folder: Path, X: Array, y: Array) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file["deep/X"], file["y"] = X, y
    return f"{folder / 'x.h5'}::deep/X"


def write_h5_chunks(folder: Path, X: Array, y: Array) -> str:
    with h5py.File(folder / "x.hdf5", "w") as file:
        file.create_dataset("X", data=X, chunks=(min(8, len(X)), 2), compression="gzip", shuffle=True, fletcher32=True)
        file["y"] = y
    return str(folder / "x.hdf5")


def write_mat(folder: Path, X: Array, y: Array) -> str:
    scipy.io.savemat(folder / "x.mat", {"X": X, "y": y[:, None]}, do_compression=True)
    return str(folder / "x.mat")


def write_mat_plain(folder: Path, X: Array, y: Array) -> str:
    scipy.io.savemat(folder / "x.mat", {"y": y[:, None], "other": {"a": 1}, "X": X})
    return str(folder / "x.mat")


def write_mat_sparse(folder: Path, X: Array, y: Array) -> str:
    scipy.io.savemat(folder / "x.mat", {"X": sparse.csc_array(X), "y": y[:, None]})
    return f"{folder / 'x.mat'}::X"


def matlab(file: Any, path: str, value: Array, kind: str) -> Any:
    """Write a variable as MATLAB 7.3 does: by column, with its class beside it."""
    file[path] = value.T
    file[path].attrs["MATLAB_class"] = np.bytes_(kind)
    return file[path]


def write_mat73(folder: Path, X: Array, y: Array) -> str:
    with h5py.File(folder / "x.mat", "w", userblock_size=512) as file:
        matlab(file, "X", X, "double")
        matlab(file, "y", y[:, None].astype(float), "double")
    return str(folder / "x.mat")


def write_mat73_sparse(folder: Path, X: Array, y: Array) -> str:
    columns = sparse.csc_array(X)
    with h5py.File(folder / "x.mat", "w", userblock_size=512) as file:
        file["X/data"], file["X/ir"], file["X/jc"] = columns.data, columns.indices, columns.indptr
        file["X"].attrs.update({"MATLAB_sparse": np.uint64(len(X)), "MATLAB_class": np.bytes_("double")})
        matlab(file, "y", y[:, None].astype(float), "double")
    return str(folder / "x.mat")


def write_mtx(folder: Path, X: Array, y: Array) -> str:
    scipy.io.mmwrite(folder / "x.mtx", sparse.coo_array(np.column_stack([X, y])), precision=17)
    return str(folder / "x.mtx")


def write_mtx_gz(folder: Path, X: Array, y: Array) -> str:
    scipy.io.mmwrite(folder / "x.mtx", np.column_stack([X, y]), precision=17)
    (folder / "x.mtx.gz").write_bytes(gzip.compress((folder / "x.mtx").read_bytes()))
    return str(folder / "x.mtx.gz")


def write_frame(file: Any, frame: str, names: list[str]) -> Any:
    """Write a data frame's group as anndata does, with its index alone."""
    group = file.create_group(frame)
    group.attrs.update({"encoding-type": "dataframe", "_index": "_index"})
    group["_index"] = names
    return group


def write_h5ad(folder: Path, X: Array, y: Array, encoding: str = "array") -> str:
    with h5py.File(folder / "x.h5ad", "w") as file:
        if encoding == "array":
            file["X"] = X
        else:
            kinds: dict[str, Any] = {"csr_matrix": sparse.csr_array, "csc_matrix": sparse.csc_array}
            matrix = kinds[encoding](X)
            file["X/data"], file["X/indices"], file["X/indptr"] = matrix.data, matrix.indices, matrix.indptr
            file["X"].attrs["shape"] = X.shape
        file["X"].attrs["encoding-type"] = encoding
        obs = write_frame(file, "obs", [f"cell{i}" for i in range(len(X))])
        obs["y"] = y
        write_frame(file, "var", [f"f{j}" for j in range(X.shape[1])])
    return str(folder / "x.h5ad")


def write_h5ad_csr(folder: Path, X: Array, y: Array) -> str:
    return write_h5ad(folder, X, y, "csr_matrix")


def write_h5ad_csc(folder: Path, X: Array, y: Array) -> str:
    return write_h5ad(folder, X, y, "csc_matrix")


def write_zarr(folder: Path, X: Array, y: Array) -> str:
    group = zarr.open_group(folder / "x.zarr", mode="w")
    group.create_array("X", data=X, chunks=(8, 2))
    group.create_array("y", data=y, chunks=(8,))
    return str(folder / "x.zarr")


def write_zarr_2(folder: Path, X: Array, y: Array) -> str:
    group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=2)
    group.create_array("deep/X", data=X, chunks=(8, 5))
    group.create_array("y", data=y, chunks=(8,))
    return f"{folder / 'x.zarr'}::deep/X"


def write_zarr_shards(folder: Path, X: Array, y: Array) -> str:
    group = zarr.open_group(folder / "x.zarr", mode="w")
    group.create_array("X", data=X, chunks=(4, 5), shards=(16, 5))
    group.create_array("y", data=y, chunks=(8,))
    return f"{folder / 'x.zarr'}::X"


def write_zarr_url(folder: Path, X: Array, y: Array) -> str:
    return f"file://{write_zarr(folder, X, y)}::X"


# name: writer, the label column's name, whether any rows can be read at the cost of these rows
FORMATS: dict[str, tuple[Writer, str | int, bool]] = {
    "npy": (write_npy, -1, True),
    "npy-fortran": (write_npy_fortran, -1, True),
    "npz": (write_npz, "y", True),
    "npz-packed": (write_npz_packed, "y", False),
    "npz-fortran": (write_npz_fortran, "y", False),
    "npz-sparse": (write_npz_sparse, -1, False),
    "csv": (write_csv, "y", True),
    "csv.gz": (write_csv_gz, "y", False),
    "tsv": (write_tsv, "y", True),
    "blanks": (write_blanks, "y", True),
    "parquet": (write_parquet, "y", True),
    "parquet-parts": (write_parquet_parts, "y", True),
    "h5": (write_h5, "y", True),
    "h5-chunks": (write_h5_chunks, "y", True),
    "mat": (write_mat, "y", False),
    "mat-plain": (write_mat_plain, "y", False),
    "mat-sparse": (write_mat_sparse, "y", False),
    "mat73": (write_mat73, "y", True),
    "mat73-sparse": (write_mat73_sparse, "y", False),
    "mtx": (write_mtx, -1, False),
    "mtx.gz": (write_mtx_gz, -1, False),
    "h5ad": (write_h5ad, "y", True),
    "h5ad-csr": (write_h5ad_csr, "y", True),
    "h5ad-csc": (write_h5ad_csc, "y", False),
    "zarr": (write_zarr, "y", True),
    "zarr-2": (write_zarr_2, "y", True),
    "zarr-shards": (write_zarr_shards, "y", True),
    "zarr-url": (write_zarr_url, "y", True),
}
LABELS_APART = {"npy", "npy-fortran", "npz-sparse"}  # whose writers do not write the labels


def written(name: str, folder: Path) -> tuple[str, str | int, Array, Array]:
    """Write the table in one format; return spec, label column, X and labels."""
    X, y = table()
    writer, column, _ = FORMATS[name]
    return writer(folder, np.column_stack([X, y]) if name in LABELS_APART else X, y), column, X, y


@pytest.fixture(params=list(FORMATS), scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Array, Array, str]:
    spec, column, X, y = written(request.param, tmp_path_factory.mktemp("case"))
    return open_source(spec, labels_column=column), X, y, request.param


def test_every_format_gives_the_same_rows_and_labels(case: tuple[Source, Array, Array, str]) -> None:
    source, X, y, name = case
    assert isinstance(source, Source)
    assert source.shape == (M, F)
    assert source.dtype == np.float64
    assert source.parallel is FORMATS[name][2]
    for start, stop in ((0, M), (0, 1), (M - 1, M), (9, 11), (5, 30), (4, 4), (M, M)):
        block = source.read(start, stop)
        assert np.array_equal(block, X[start:stop])
        assert block.flags.c_contiguous
        assert block.dtype == source.dtype
    labels = source.labels()
    assert labels is not None
    assert labels.dtype == np.int64
    assert np.array_equal(labels, y)


def test_blocks_of_any_size_are_all_rows_in_order(case: tuple[Source, Array, Array, str]) -> None:
    source, X, _, _ = case
    for rows in (1, 2, 7, 10, M - 1, M, M + 1, 1000):
        blocks = list(source.blocks(rows))
        assert [len(block) for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
        assert np.array_equal(np.concatenate(blocks), X)
        assert all(block.flags.c_contiguous and block.dtype == source.dtype for block in blocks)


def test_a_source_survives_pickling(case: tuple[Source, Array, Array, str]) -> None:
    source, X, y, _ = case
    source.read(0, 2)  # what it holds open or loaded must stay behind
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.read(3, 20), X[3:20])
    assert np.array_equal(copy.labels(), y)
    assert copy.fingerprint == source.fingerprint


def test_rows_outside_of_the_table_are_a_fault_of_the_caller(case: tuple[Source, Array, Array, str]) -> None:
    source = case[0]
    for start, stop in ((-1, 3), (0, M + 1), (5, 4)):
        with pytest.raises(IndexError):
            source.read(start, stop)
    with pytest.raises(ValueError, match="blocks of 0 rows"):
        next(source.blocks(0))


def test_without_a_label_column_there_are_no_labels(case: tuple[Source, Array, Array, str]) -> None:
    source, X, y, name = case
    plain = open_source(source.name)
    assert plain.labels() is None
    inside = name in LABELS_APART or plain.shape[1] == F + 1  # the labels stay a column, or are another variable
    assert np.array_equal(plain.read(0, M), np.column_stack([X, y]) if inside else X)
    assert plain.fingerprint != source.fingerprint


@pytest.mark.parametrize("name", slowly(FORMATS, *list(FORMATS)[::3]))
def test_the_transpose_has_the_columns_as_samples(name: str, tmp_path: Path) -> None:
    X, y = table()
    spec = FORMATS[name][0](tmp_path, X, y)
    plain, source = open_source(spec), open_source(spec, transpose=True)
    whole = plain.read(0, M)
    assert source.shape == plain.shape[::-1]
    assert np.array_equal(source.read(0, len(whole.T)), whole.T)
    assert np.array_equal(source.read(2, 4), whole.T[2:4])
    assert np.array_equal(np.concatenate(list(source.blocks(2))), whole.T)
    assert np.array_equal(pickle.loads(pickle.dumps(source)).read(1, 3), whole.T[1:3])
    assert source.fingerprint != plain.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_fingerprint_follows_content_and_not_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    spec, column, X, y = written(name, tmp_path / "a")
    first = open_source(spec, labels_column=column).fingerprint
    assert open_source(spec, labels_column=column).fingerprint == first
    (tmp_path / "a").rename(tmp_path / "b")
    moved = spec.replace(str(tmp_path / "a"), str(tmp_path / "b"))
    if name != "zarr-url":  # an object's time of creation changes with its place
        assert open_source(moved, labels_column=column).fingerprint == first
    (tmp_path / "a").mkdir()
    X = X.copy()
    X[3, 3] += 1
    FORMATS[name][0](tmp_path / "a", np.column_stack([X, y]) if name in LABELS_APART else X, y)
    assert open_source(spec, labels_column=column).fingerprint != first


@pytest.mark.parametrize("name", ["npy", "npz-packed", "csv", "csv.gz", "parquet", "h5", "h5ad-csr", "mat", "mat73"])
def test_a_file_that_changes_during_a_run_is_noticed(name: str, tmp_path: Path) -> None:
    spec, column, _, _ = written(name, tmp_path)
    source = pickle.loads(pickle.dumps(open_source(spec, labels_column=column)))
    path = Path(spec.partition("::")[0])
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(BadInput, match="another size or modification time"):
        source.read(0, 1)


def test_readers_hold_what_can_not_be_read_in_parts_and_say_how_much(tmp_path: Path) -> None:
    X, _ = table()
    entries = np.count_nonzero(X)
    for name in ("npz-packed", "npz-fortran", "mat", "npz-sparse", "mtx", "h5ad-csc"):
        (tmp_path / name).mkdir()
        source = open_source(written(name, tmp_path / name)[0])
        assert not source.parallel
        assert source.resident_bytes >= 8 * entries
    for name in ("npy", "npz", "csv", "csv.gz", "parquet", "h5", "zarr"):
        (tmp_path / name).mkdir()
        assert open_source(written(name, tmp_path / name)[0]).resident_bytes == 0


@pytest.mark.parametrize("fortran", [False, True])
def test_one_row_of_a_file_of_two_gigabytes_takes_little_memory(tmp_path: Path, fortran: bool) -> None:
    m, f = 1_000_000, 256
    with open(tmp_path / "large.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": fortran, "shape": (m, f)})
        stream.truncate(stream.tell() + m * f * 8)  # a hole: it takes no disk
    tracemalloc.start()
    try:
        source = open_source(tmp_path / "large.npy")
        assert np.array_equal(source.read(m - 1, m), np.zeros((1, f)))
        assert tracemalloc.get_traced_memory()[1] < 2**24  # other threads of this process take some meanwhile
    finally:
        tracemalloc.stop()


def test_integers_booleans_and_small_floats_keep_their_type(tmp_path: Path) -> None:
    X = np.arange(12).reshape(4, 3) % 2
    for kind in ("bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", ">f4", ">i2"):
        np.save(tmp_path / "x.npy", X.astype(kind))
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["X"] = X.astype(kind)
        native = np.dtype(kind).newbyteorder("=")
        for path in (tmp_path / "x.npy", tmp_path / "x.h5"):
            source = open_source(path)
            assert source.dtype == native
            assert source.dtype.isnative
            assert source.read(1, 3).dtype == native
            assert np.array_equal(source.read(1, 3), X[1:3].astype(native))


def test_a_header_and_a_frame_give_names_to_features_and_samples(tmp_path: Path) -> None:
    X, _ = table()
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(F)], index=[f"s{i}" for i in range(M)])
    frame.to_csv(tmp_path / "x.csv")
    frame.to_parquet(tmp_path / "x.parquet")
    for spec in (tmp_path / "x.csv", tmp_path / "x.parquet", frame):
        source = open_source(spec)
        assert source.feature_names == [f"f{j}" for j in range(F)]
        assert source.sample_names is not None
        assert source.sample_names.tolist() == [f"s{i}" for i in range(M)]
        assert np.array_equal(source.read(0, M), X)
        turned = open_source(spec, transpose=True)
        assert turned.feature_names == [f"s{i}" for i in range(M)]
        assert turned.sample_names is not None
        assert turned.sample_names.tolist() == [f"f{j}" for j in range(F)]


def test_an_index_that_only_counts_gives_no_names(tmp_path: Path) -> None:
    frame = pd.DataFrame(table()[0])
    frame.to_csv(tmp_path / "x.csv")
    frame.rename(columns=str).to_parquet(tmp_path / "x.parquet", index=True)
    for spec in (tmp_path / "x.csv", tmp_path / "x.parquet", frame):
        source = open_source(spec)
        assert source.shape == (M, F)
        assert source.sample_names is None
    assert open_source(frame).feature_names is None


def test_names_inside_of_a_file_are_found_with_or_without_double_colons(tmp_path: Path) -> None:
    X, y = table()
    odd = tmp_path / "a::b.npy"
    np.save(odd, X)
    assert np.array_equal(open_source(odd).read(0, M), X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"], file["Z"], file["y"] = X, X + 1, y
        file["soft"] = h5py.SoftLink("/Z")
    assert np.array_equal(open_source(f"{tmp_path}/x.h5::Z").read(0, M), X + 1)
    assert np.array_equal(open_source(f"{tmp_path}/x.h5::/soft").read(0, M), X + 1)
    with pytest.raises(BadInput, match=r"2 of them \(X, Z\)"):
        open_source(tmp_path / "x.h5")
    with pytest.raises(BadInput, match="no dataset 'W'"):
        open_source(f"{tmp_path}/x.h5::W")

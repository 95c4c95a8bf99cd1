"""What is no table of real numbers is refused when it is opened, with a line of five parts."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import zarr
from scipy import sparse
from test_readers import FORMATS, matlab, table, written

from ips2_dask import readers
from ips2_dask.errors import BadInput
from ips2_dask.readers import check_block, open_source, scipy_child


def refused(spec: Any, **options: Any) -> BadInput:
    """Open a source that has to be refused, and check that its message has five parts and one line."""
    with pytest.raises(BadInput) as caught:
        open_source(spec, **options)
    fault = caught.value
    assert all((fault.thing, fault.found, fault.allowed, fault.otherwise, fault.remedy))
    assert "\n" not in str(fault)
    assert "Traceback" not in str(fault)
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)
    return fault


ENDINGS = [*(ending[1:] for ending in readers.FORMATS if ending != ".zarr"), "csv.gz", "mtx.gz"]


@pytest.mark.parametrize("ending", [*ENDINGS, "zarr"])
def test_a_missing_file_is_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    assert refused(path).found == "no such file"
    assert "does not exist either" in refused(tmp_path / "folder" / f"x.{ending}").remedy
    assert refused(f"{path}::X").thing == f"{path}::X"


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_empty_file_is_refused(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"x.{ending}").touch()
    assert refused(tmp_path / f"x.{ending}").found == "an empty file"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_where_a_file_is_meant_is_refused(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"x.{ending}").mkdir()
    assert refused(tmp_path / f"x.{ending}").found == "a directory"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_nonsense_is_refused(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"x.{ending}").write_bytes(b"\0\1\2nonsense\xff" * 100)
    own = ("csv", "tsv", "txt", "data")  # which no library reads
    assert ("can't be read" in refused(tmp_path / f"x.{ending}").found) is (ending not in own)
    (tmp_path / f"x.{ending}").write_bytes(gzip.compress(b"\0\1\2nonsense\xff" * 100))
    refused(tmp_path / f"x.{ending}")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    assert refused(tmp_path / "x.csv").found == "neither a file nor a directory"


def test_a_dangling_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").symlink_to(tmp_path / "nowhere")
    assert refused(tmp_path / "x.csv").found == "neither a file nor a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n")
    (tmp_path / "x.csv").chmod(0)
    assert "can't be opened" in refused(tmp_path / "x.csv").found


@pytest.mark.parametrize("name", ["x.docx", "x", "x.parquet.gz", "x.npy.gz"])
def test_an_unknown_format_is_refused_with_a_list_of_the_known(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("1,2\n3,4\n")
    fault = refused(tmp_path / name)
    assert "unknown format" in fault.found
    for ending in (".npy", ".npz", ".csv", ".parquet", ".h5", ".mat", ".mtx", ".h5ad", ".zarr"):
        assert ending in fault.allowed


def test_a_name_after_the_colons_of_a_single_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    assert "'X'" in refused(f"{tmp_path}/x.csv::X").found


class Bomb:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_pickles_and_object_arrays_are_refused_and_never_loaded(tmp_path: Path) -> None:
    bombs = np.array([[Bomb(tmp_path / "exploded")] * 2] * 2, dtype=object)
    np.save(tmp_path / "array.npy", bombs, allow_pickle=True)
    (tmp_path / "bare.npy").write_bytes(pickle.dumps(bombs))
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(bombs))
    np.savez(tmp_path / "x.npz", allow_pickle=True, X=bombs, Z=np.eye(3), y=bombs[0])
    for spec in ("array.npy", "bare.npy", "x.pkl", "x.npz::X"):
        assert "never loaded" in refused(f"{tmp_path}/{spec}").otherwise
    assert "never loaded" in refused(f"{tmp_path}/x.npz::Z", labels_column="y").otherwise
    assert "(Bomb) in row 0, column 0" in refused(bombs).found
    assert open_source(tmp_path / "x.npz").shape == (3, 3)  # the object arrays are passed over
    assert not (tmp_path / "exploded").exists()


def test_zarr_chunks_that_would_be_unpickled_are_refused(tmp_path: Path) -> None:
    from numcodecs import Pickle  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with zarr

    array = zarr.create_array(tmp_path / "x.zarr", shape=(2, 2), chunks=(2, 2), dtype="f8", zarr_format=2)
    array[:] = 1
    described = (tmp_path / "x.zarr" / ".zarray").read_text()
    bomb = Pickle().encode(np.array([[Bomb(tmp_path / "exploded")]], dtype=object))
    for key in ("filters", "compressor"):
        codec = '[{"id": "pickle", "protocol": 5}]' if key == "filters" else '{"id": "pickle", "protocol": 5}'
        start = described.index(f'"{key}": ') + len(key) + 4
        end = described.index("}", start) + 1 if described[start] == "{" else described.index("null", start) + 4
        (tmp_path / "x.zarr" / ".zarray").write_text(described[:start] + codec + described[end:])
        (tmp_path / "x.zarr" / "0.0").write_bytes(bomb)
        assert "'pickle'" in refused(tmp_path / "x.zarr").found
    assert not (tmp_path / "exploded").exists()


def save(folder: Path, array: Any) -> list[Any]:
    """Write an array in every format that can hold it, and return the specs and the array itself."""
    np.save(folder / "x.npy", array)
    np.savez(folder / "x.npz", X=array)
    np.savez_compressed(folder / "packed.npz", X=array)
    with h5py.File(folder / "x.h5", "w") as file:
        file["X"] = array
    with h5py.File(folder / "x.h5ad", "w") as file:
        file["X"] = array
    zarr.create_array(folder / "x.zarr", data=np.asarray(array), overwrite=True)
    names = ("x.npy", "x.npz::X", "packed.npz::X", "x.h5::X", "x.h5ad", "x.zarr")
    return [f"{folder}/{name}" for name in names] + [array]


def test_arrays_of_one_or_three_dimensions_are_refused(tmp_path: Path) -> None:
    for shape in ((6,), (2, 3, 4)):
        for spec in save(tmp_path, np.ones(shape)):
            fault = refused(spec)
            assert f"of {len(shape)} dimension" in fault.found
            assert str(shape) in fault.found


def test_arrays_without_rows_or_columns_are_refused(tmp_path: Path) -> None:
    for shape in ((0, 3), (3, 0)):
        for spec in save(tmp_path, np.ones(shape)):
            assert refused(spec).found == f"{shape[0]} rows and {shape[1]} columns"


def test_complex_numbers_are_refused_in_every_format(tmp_path: Path) -> None:
    X = np.eye(3) * 1j
    scipy.io.mmwrite(tmp_path / "x.mtx", X)
    scipy.io.savemat(tmp_path / "x.mat", {"X": X})
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_array(X))
    others = [f"{tmp_path}/x.mtx", f"{tmp_path}/x.mat::X", f"{tmp_path}/s.npz", sparse.csr_array(X)]
    for spec in [*save(tmp_path, X), *others]:
        assert "complex" in refused(spec).found
    assert "complex" in refused(pd.DataFrame(X)).found


def test_text_structures_and_dates_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    assert "text" in refused(tmp_path / "text.npy").found
    np.save(tmp_path / "record.npy", np.zeros((2, 2), dtype=[("a", "f8"), ("b", "i4")]))
    assert "values of type" in refused(tmp_path / "record.npy").found
    np.save(tmp_path / "date.npy", np.zeros((2, 2), dtype="M8[s]"))
    assert "datetime64" in refused(tmp_path / "date.npy").found
    if np.dtype(np.longdouble).itemsize > 8:  # it is float64 on some machines
        assert "values of type float" in refused(np.zeros((2, 2), np.longdouble)).found


ALIKE = ("mat-plain", "mat-sparse", "mtx.gz")
"""Formats that SciPy reads as others, in a process a file."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in FORMATS if not name.startswith("zarr")],
)
def test_a_file_that_was_cut_off_is_refused_when_it_is_opened_or_read(name: str, tmp_path: Path) -> None:
    spec, column, X, _ = written(name, tmp_path)
    path = Path(spec.partition("::")[0])
    path = path / "part.7.parquet" if path.is_dir() else path
    whole = path.read_bytes()
    for share in (0.02, 0.3, 0.7, 0.95):
        path.write_bytes(whole[: max(1, int(len(whole) * share))])
        try:
            source = open_source(spec, labels_column=column)
            blocks = np.concatenate(list(source.blocks(10)))
            source.labels()
        except BadInput:
            continue
        # Text that ends after a whole line is a shorter table; nothing else may pass.
        assert name in ("csv", "tsv", "blanks")
        assert len(blocks) < len(X)


def test_what_a_library_says_of_a_damaged_file_is_passed_on(tmp_path: Path) -> None:
    spec, _, _, _ = written("csv.gz", tmp_path)
    path = Path(spec)
    path.write_bytes(path.read_bytes()[:-20])
    assert "EOFError" in refused(spec).found
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    assert "Arrow" in refused(tmp_path / "x.parquet").found or "Parquet" in refused(tmp_path / "x.parquet").found


def test_a_flipped_bit_in_a_compressed_member_is_noticed(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", X=np.arange(8000.0).reshape(1000, 8))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[len(data) // 2] ^= 16
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(BadInput, match="can't be read"):
        list(open_source(tmp_path / "x.npz").blocks(100))


def test_a_damaged_zarr_chunk_is_refused_when_it_is_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=table()[0], chunks=(8, 5))
    (tmp_path / "x.zarr" / "c" / "1" / "0").write_bytes(b"damaged")
    source = open_source(tmp_path / "x.zarr")
    assert len(source.read(0, 8)) == 8
    with pytest.raises(BadInput, match="can't be read"):
        source.read(8, 9)


@pytest.mark.parametrize("name", ["npz-packed", "h5", "mat", "mat73", "zarr", "zarr-2"])
def test_a_variable_that_is_not_there_is_named_with_those_that_are(name: str, tmp_path: Path) -> None:
    spec = written(name, tmp_path)[0].partition("::")[0]
    fault = refused(f"{spec}::Xx")
    assert "'Xx'" in fault.found
    assert "X" in fault.allowed


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in FORMATS])
def test_a_label_column_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    spec = written(name, tmp_path)[0]
    assert "'klass'" in refused(spec, labels_column="klass").found
    if not name.startswith("h5ad"):  # whose labels are never among the columns of X
        assert "no column 99" in refused(spec, labels_column="99").found
        assert "no column -99" in refused(spec, labels_column=-99).found


def test_the_nearest_names_of_a_label_column_are_offered(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,Species\n1,2,x\n3,4,y\n")
    assert "Species" in refused(tmp_path / "x.csv", labels_column="species").allowed
    assert "columns have no names" in refused(np.eye(3), labels_column="species").allowed
    (tmp_path / "x.csv").write_text("a,a,b\n1,2,3\n")
    assert "2 columns named 'a'" in refused(tmp_path / "x.csv", labels_column="a").found


@pytest.mark.parametrize("name", ["npz", "h5", "mat", "mat73", "zarr"])
def test_labels_of_another_number_than_the_samples_are_refused(name: str, tmp_path: Path) -> None:
    X, y = table()
    spec = FORMATS[name][0](tmp_path, X, y[:-1])
    assert "36 labels in 'y' for 37 samples" in refused(spec, labels_column="y").found
    spec = FORMATS[name][0](tmp_path, X, y[:5])
    assert "--transpose" in refused(spec, labels_column="y").remedy


def test_labels_that_are_missing_or_fractional_are_refused() -> None:
    for value, said in ((np.nan, "no label in row 1"), (0.5, "the label 0.5 in row 1")):
        source = open_source(np.array([[1.0, 0.0], [2.0, value]]), labels_column=1)
        with pytest.raises(BadInput, match=said):
            source.labels()
    for missing in (None, np.nan, "", pd.NA):
        frame = pd.DataFrame({"a": [1, 2], "y": pd.Series(["x", missing], dtype=object)})
        assert refused(frame, labels_column="y").found == "no label in row 1"


def test_a_table_of_labels_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("y\n1\n2\n")
    for spec in (np.ones((3, 1)), tmp_path / "x.csv", pd.DataFrame({"y": [1, 2]})):
        assert "0 columns" in refused(spec, labels_column=0).found


def test_a_file_with_no_matrix_or_several_lists_what_is_there(tmp_path: Path) -> None:
    X, y = table()
    np.savez(tmp_path / "x.npz", A=X, B=X, y=y)
    scipy.io.savemat(tmp_path / "x.mat", {"A": X, "B": X, "y": y})
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["A"], file["B"], file["y"] = X, X, y
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name in ("A", "B"):
        group.create_array(name, data=X)
    for ending in ("npz", "mat", "h5", "zarr"):
        assert "2 of them (A, B)" in refused(tmp_path / f"x.{ending}").found
    np.savez(tmp_path / "x.npz", y=y)
    assert "y (37,)" in refused(tmp_path / "x.npz").found


def test_members_and_links_that_point_outside_of_their_file_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    for member in ("../x.npy", "/x.npy", "a/../../x.npy", "..\\x.npy"):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr(zipfile.ZipInfo(member), (tmp_path / "x.npy").read_bytes())
        assert "outside" in refused(tmp_path / "x.npz").found
    X = np.eye(3)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["X"] = X
    X.tofile(tmp_path / "raw.bin")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/X")
        file["soft"] = h5py.SoftLink("/link")
        file["loop"] = h5py.SoftLink("/loop")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file.create_dataset("raw", shape=(3, 3), dtype="f8", external=[(str(tmp_path / "raw.bin"), 0, 72)])
        layout = h5py.VirtualLayout((3, 3), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "X", (3, 3))
        file.create_virtual_dataset("virtual", layout)
    for path in ("link", "soft", "raw", "virtual"):
        assert "inside the file" in refused(f"{tmp_path}/x.h5::{path}").allowed
    for path in ("loop", "dangling", "raw/deeper"):
        assert "no dataset" in refused(f"{tmp_path}/x.h5::{path}").found
    for target in ("X", "obs"):
        with h5py.File(tmp_path / "x.h5ad", "w") as file:
            file["X" if target == "obs" else "Z"] = X
            file[target] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/X")
        assert "external link" in refused(tmp_path / "x.h5ad", labels_column="y").found


def test_a_filter_that_is_no_part_of_hdf5_is_refused(tmp_path: Path) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((3, 3))
    properties.set_filter(305, h5py.h5z.FLAG_OPTIONAL)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple((3, 3))
        h5py.h5d.create(file.id, b"X", h5py.h5t.NATIVE_DOUBLE, space, dcpl=properties)
    assert "filter 305" in refused(tmp_path / "x.h5").found


@pytest.mark.slow
def test_a_cell_has_to_be_told_from_a_matrix(tmp_path: Path) -> None:
    cell = np.empty((1, 2), dtype=object)
    cell[0, 0], cell[0, 1] = np.eye(3), np.eye(4)
    scipy.io.savemat(tmp_path / "five.mat", {"X": cell, "Z": np.eye(3)})
    with h5py.File(tmp_path / "seven.mat", "w", userblock_size=512) as file:
        matlab(file, "#refs#/a", np.eye(3), "double")
        matlab(file, "#refs#/b", np.eye(4), "double")
        references = np.array([[file["#refs#/a"].ref, file["#refs#/b"].ref]], dtype=h5py.ref_dtype)
        matlab(file, "X", references, "cell")
        matlab(file, "Z", np.eye(3), "double")
    for name in ("five.mat", "seven.mat"):
        assert "a cell" in refused(f"{tmp_path}/{name}::X").found
        assert "a cell of 2" in refused(f"{tmp_path}/{name}::X[2]").found
        assert "no cell" in refused(f"{tmp_path}/{name}::Z[0]").found
        assert (
            open_source(f"{tmp_path}/{name}::X[1]").shape == open_source(f"{tmp_path}/{name}::X{{2}}").shape == (4, 4)
        )
        assert open_source(f"{tmp_path}/{name}").shape == (3, 3)


MARKET = "%%MatrixMarket matrix "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("coordinate real general\n2 2 1\n3 1 1.0\n", "Line 3: Row index out of bounds"),
        ("coordinate real general\n2 2 1\n1.5 1 1.0\n", "Line 3: Invalid integer"),
        ("coordinate real general\n2 2 2\n1 1 1.0\n", "Truncated file"),
        ("coordinate real general\n2 2 1\n1 1 1.0\n2 2 1.0\n", "Too many lines"),
        ("coordinate real general\n2 2 1\n1 1 x\n", "Line 3: Invalid floating-point"),
        ("coordinate real general\n% 5 5\n\n2 2 1\n1 1\n", "can't be read"),
        ("coordinate real general\n2 2\n", "can't be read"),
        ("coordinate real general\n% nothing\n", "can't be read"),
        ("coordinate real general\n0 2 0\n", "0 rows and 2 columns"),
        ("coordinate real symmetric\n2 3 0\n", "a symmetric matrix of shape (2, 3)"),
        ("coordinate complex general\n1 1 0\n", "complex"),
        ("coordinate quaternion general\n1 1 0\n", "quaternion"),
        ("array real general\n2 2\n1\n2\n3\n", "Truncated file"),
    ],
)
def test_a_matrix_market_file_that_breaks_its_promise_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text(MARKET + text)
    assert said in refused(tmp_path / "x.mtx").found


@pytest.mark.parametrize(("name", "said"), [("SIGSEGV", "ended by signal 11"), ("SIGKILL", "ran out of memory")])
def test_a_file_that_ends_its_reader_is_refused_in_one_line(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\n")
    monkeypatch.setattr(scipy_child, "__file__", str(tmp_path / "child.py"))
    scipy.io.savemat(tmp_path / "x.mat", {"X": np.eye(3)})
    (tmp_path / "x.mtx").write_text(MARKET + "array real general\n1 1\n1\n")
    for file in ("x.mat", "x.mtx"):
        assert said in refused(tmp_path / file).found


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array])
def test_pointers_that_fall_by_more_than_32_bits_hold_are_refused(kind: Any) -> None:
    broken = kind(np.ones((5, 5)))
    broken.indptr[2:4] = 1_610_612_808, -1_503_229_908  # their difference, in 32 bits, is above 0
    assert "can't be read" in refused(broken).found


def test_sparse_indices_outside_of_the_matrix_are_refused(tmp_path: Path) -> None:
    broken = sparse.csr_array(np.eye(3))
    broken.indices[1] = 70_000_000
    assert "can't be read" in refused(broken).found
    sparse.save_npz(tmp_path / "x.npz", broken)
    assert "can't be read" in refused(tmp_path / "x.npz").found
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file["X/data"], file["X/indices"], file["X/indptr"] = broken.data, broken.indices, broken.indptr
        file["X"].attrs.update({"encoding-type": "csr_matrix", "shape": (3, 3)})
    with pytest.raises(BadInput, match="can't be read"):
        open_source(tmp_path / "x.h5ad").read(0, 3)
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        file["X"].attrs["shape"] = (5, 3)
    assert "6 pointers" in refused(tmp_path / "x.h5ad").allowed


def test_a_sparse_matrix_of_nothing_but_empty_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text(MARKET + "coordinate real general\n900000000 2 1\n1 1 1\n")
    assert "900000000 rows with 1 entries" in refused(tmp_path / "x.mtx").found


def test_a_url_that_needs_a_package_says_which(tmp_path: Path) -> None:
    assert "no Zarr array" in refused("memory://nothing/x.zarr").found
    assert "Protocol not known" in refused("nonsense://x.zarr").found
    assert "no such file" in refused(f"file://{tmp_path}/x.zarr").found


def test_values_that_are_not_finite_are_named_by_row_and_column() -> None:
    X = np.zeros((4, 3))
    check_block(X, 0, "x.npy", None)
    check_block(np.full((2, 2), 2**64 - 1, dtype=np.uint64), 0, "x.npy", None)
    check_block(np.empty((0, 3)), 0, "x.npy", None)
    for value in (np.nan, np.inf, -np.inf):
        for kind in (np.float16, np.float32, np.float64):
            Y = X.astype(kind)
            Y[2, 1] = Y[3, 0] = value
            with pytest.raises(BadInput) as caught:
                check_block(Y, 100, "x.npy", ["a", "b", "c"])
            assert f"{value} (and 1 more such values up to row 103) at row 102, column 1 ('b')" in caught.value.found


def test_values_whose_sums_overflow_float64_are_named_by_row_and_column() -> None:
    X = np.zeros((4, 3))
    for value in (1e308, -1.1e301):
        X[2, 1] = value
        with pytest.raises(BadInput) as caught:
            check_block(X, 0, "x.npy", None)
        assert f"{value!r} at row 2, column 1" in caught.value.found
        assert "divide" in caught.value.remedy
    X[2, 1] = 1e301
    check_block(X, 0, "x.npy", None)

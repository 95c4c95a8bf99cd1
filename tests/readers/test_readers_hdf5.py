"""HDF5 in its dialects: labels and names of AnnData, MATLAB's cells and strings, transposes of sparse matrices."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
from scipy import sparse
from test_readers import F, M, matlab, table, write_h5ad, write_h5ad_csc, write_h5ad_csr, write_mat73_sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import open_source

NAMES = ["b", "a", "c"]


def labels_of(spec: Any, column: str, **options: Any) -> list[Any]:
    source = pickle.loads(pickle.dumps(open_source(spec, labels_column=column, **options)))
    labels: list[Any] = source.labels().tolist()
    return labels


def categorical(obs: Any, name: str, codes: Any, categories: list[str]) -> None:
    obs[f"{name}/codes"], obs[f"{name}/categories"] = np.asarray(codes, np.int8), categories
    obs[name].attrs["encoding-type"] = "categorical"


@pytest.mark.parametrize("write", [write_h5ad, write_h5ad_csr, write_h5ad_csc])
def test_anndata_gives_names_and_every_kind_of_label(write: Any, tmp_path: Path) -> None:
    X, y = table()
    spec = write(tmp_path, X, y)
    with h5py.File(spec, "r+") as file:
        obs = file["obs"]
        categorical(obs, "cell type", y, NAMES)
        categorical(obs, "broken", np.where(y == 1, -1, y), NAMES)
        obs["text"] = [NAMES[label] for label in y]
        obs["whole/values"], obs["whole/mask"] = y, np.zeros(M, bool)
        obs["gaps/values"], obs["gaps/mask"] = y, y == 1
        obs["odd/something"] = y
        obs["old"] = y.astype(np.int8)
        obs["__categories/old"] = NAMES
        obs["old"].attrs["categories"] = obs["__categories/old"].ref
    text = [NAMES[label] for label in y]
    assert labels_of(spec, "cell type") == labels_of(spec, "text") == labels_of(spec, "old") == text
    assert labels_of(spec, "whole") == y.tolist()
    for column in ("broken", "gaps"):
        with pytest.raises(BadInput, match="no label in row 1"):
            labels_of(spec, column)
    with pytest.raises(BadInput, match="encoding"):
        labels_of(spec, "odd")
    with pytest.raises(BadInput, match="nearest names are cell type"):
        labels_of(spec, "cell_type")
    source = open_source(spec)
    assert source.feature_names == [f"f{j}" for j in range(F)]
    assert source.sample_names.tolist() == [f"cell{i}" for i in range(M)]  # type: ignore[union-attr]


def test_the_transpose_of_anndata_has_the_variables_as_samples(tmp_path: Path) -> None:
    X, y = table()
    spec = write_h5ad_csc(tmp_path, X, y)
    with h5py.File(spec, "r+") as file:
        categorical(file["var"], "kind", [0, 1, 2, 0, 1], NAMES)
    source = open_source(spec, labels_column="kind", transpose=True)
    assert source.parallel  # compressed by column is compressed by row of the transpose
    assert source.resident_bytes == 0
    assert source.labels().tolist() == ["b", "a", "c", "b", "a"]  # type: ignore[union-attr]
    assert source.sample_names.tolist() == [f"f{j}" for j in range(F)]  # type: ignore[union-attr]
    assert np.array_equal(source.read(1, 4), X.T[1:4])


def test_other_matrices_of_anndata_are_found_by_name(tmp_path: Path) -> None:
    X, y = table()
    spec = write_h5ad(tmp_path, X, y)
    with h5py.File(spec, "r+") as file:
        file["layers/counts"], file["obsm/X_pca"] = X + 1, X[:, :2]
    counts = open_source(f"{spec}::layers/counts", labels_column="y")
    assert np.array_equal(counts.read(0, M), X + 1)
    assert counts.feature_names == [f"f{j}" for j in range(F)]
    pca = open_source(f"{spec}::obsm/X_pca")
    assert pca.shape == (M, 2)
    assert pca.feature_names is None
    with pytest.raises(BadInput, match=r"the nearest names are layers/counts"):
        open_source(f"{spec}::layers/raw")


def test_rows_of_a_compressed_matrix_are_read_without_the_rest(tmp_path: Path) -> None:
    X, y = table()
    spec = write_h5ad_csr(tmp_path, X, y)
    with h5py.File(spec, "r+") as file:
        first = int(file["X/indptr"][20])
        file["X/indices"][first:] = 99  # damages the rows from 20 on, and only these
    source = open_source(spec)
    assert np.array_equal(source.read(3, 20), X[3:20])
    with pytest.raises(BadInput, match="can't be read"):
        source.read(3, 21)


def test_labels_in_hdf5_may_be_strings_of_any_kind(tmp_path: Path) -> None:
    X, y = table()
    text = [NAMES[label] for label in y]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"], file["meta/open"], file["fixed"] = X, text, np.array(text, "S3")
        file["flag"], file["column"] = y == 0, y[:, None]
    spec = f"{tmp_path}/x.h5::X"
    assert labels_of(spec, "meta/open") == labels_of(spec, "fixed") == text
    assert labels_of(spec, "flag") == (y == 0).astype(int).tolist()
    assert labels_of(spec, "column") == y.tolist()


@pytest.mark.slow
def test_matlab_s_strings_are_labels_in_both_versions(tmp_path: Path) -> None:
    X, y = table()
    text = [["cat", "dog", "owl"][label] for label in y]
    cell = np.empty((M, 1), dtype=object)
    cell[:, 0] = text
    scipy.io.savemat(tmp_path / "five.mat", {"X": X, "cell": cell, "char": np.array(text)})
    with h5py.File(tmp_path / "seven.mat", "w", userblock_size=512) as file:
        matlab(file, "X", X, "double")
        codes = np.array([[ord(letter) for letter in word] for word in text], np.uint16)
        matlab(file, "char", codes, "char")
        for i in range(M):
            matlab(file, f"#refs#/{i}", codes[i : i + 1], "char")
        matlab(file, "cell", np.array([[file[f"#refs#/{i}"].ref] for i in range(M)], dtype=h5py.ref_dtype), "cell")
    for name in ("five.mat", "seven.mat"):
        assert labels_of(tmp_path / name, "cell") == text
        assert labels_of(tmp_path / name, "char") == text
        with pytest.raises(BadInput):
            open_source(f"{tmp_path}/{name}::char")


def test_elements_of_cells_are_counted_as_matlab_counts_them(tmp_path: Path) -> None:
    cell = np.empty((2, 2), dtype=object)
    for at, (i, j) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):  # by column
        cell[i, j] = np.full((2, 3), at)
    scipy.io.savemat(tmp_path / "five.mat", {"X": cell})
    with h5py.File(tmp_path / "seven.mat", "w", userblock_size=512) as file:
        references = np.empty((2, 2), dtype=h5py.ref_dtype)
        for i in range(2):
            for j in range(2):
                references[i, j] = matlab(file, f"#refs#/{i}{j}", cell[i, j], "double").ref
        matlab(file, "X", references, "cell")
    for name in ("five.mat", "seven.mat"):
        assert open_source(f"{tmp_path}/{name}::X[1]").read(0, 1)[0, 0] == 1
        assert open_source(f"{tmp_path}/{name}::X{{3}}").read(0, 1)[0, 0] == 2


def test_the_transpose_of_a_sparse_variable_is_read_in_parts(tmp_path: Path) -> None:
    X, y = table()
    source = open_source(write_mat73_sparse(tmp_path, X, y), transpose=True)
    assert source.parallel
    assert np.array_equal(source.read(2, 5), X.T[2:5])


def test_a_sparse_variable_without_entries_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.mat", "w", userblock_size=512) as file:
        file["X/jc"] = np.zeros(4, np.uint64)
        file["X"].attrs["MATLAB_sparse"] = np.uint64(3)
    with pytest.raises(BadInput, match="no entries"):
        open_source(tmp_path / "x.mat")


@pytest.mark.slow
def test_sparse_variables_and_dense_ones_agree(tmp_path: Path) -> None:
    X, _ = table()
    scipy.io.savemat(tmp_path / "x.mat", {"S": sparse.csc_array(X), "D": X})
    for transpose in (False, True):
        S, D = (open_source(f"{tmp_path}/x.mat::{name}", transpose=transpose) for name in "SD")
        assert np.array_equal(S.read(1, 4), D.read(1, 4))


def test_a_chunk_that_is_shorter_than_its_checksum_is_refused_and_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("X", data=table()[0], chunks=(8, F), compression="gzip", fletcher32=True)
        sizes = [data.id.get_chunk_info(n).size for n in range(data.id.get_num_chunks())]
    stored = path.read_bytes()
    index = stored.index(b"TREE", stored.index(b"TREE") + 1) if stored.count(b"TREE") > 1 else stored.index(b"TREE")
    at = stored.index(sizes[0].to_bytes(4, "little"), index)
    path.write_bytes(stored[:at] + (3).to_bytes(4, "little") + stored[at + 4 :])
    with pytest.raises(BadInput, match="a chunk of '/X' has 3 bytes"):
        open_source(str(path))

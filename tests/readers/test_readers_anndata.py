"""An AnnData gives the same rows, names and labels from every container that it may lie in, and in memory."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from harness import slowly
from scipy import sparse

from ips2_dask import Params, run
from ips2_dask.errors import BadInput
from ips2_dask.readers import open_anndata_source, open_source

anndata = pytest.importorskip("anndata")

M, F = 23, 6


def cells(form: Callable[[Any], Any] = sparse.csr_matrix) -> Any:
    """An AnnData with every kind of matrix and of column, and one dense matrix of two columns."""
    rng = np.random.default_rng(2)
    X = np.round(rng.normal(size=(M, F)), 2) * (rng.random((M, F)) > 0.5)
    y = np.arange(M) % 3
    gaps = pd.array(y, dtype="Int64")
    gaps[4] = pd.NA
    obs = pd.DataFrame(
        {
            "text": [f"t{label}" for label in y],
            "number": y.astype(float),
            "kind": pd.Categorical.from_codes(y, list("bac")),
            "nullable": pd.array(y, dtype="Int64"),
            "flag": pd.array(y == 1, dtype="boolean"),
            "gaps": gaps,
        },
        index=[f"cell{i}" for i in range(M)],
    )
    adata = anndata.AnnData(form(X.astype(np.float32)), obs, pd.DataFrame(index=[f"gene{j}" for j in range(F)]))
    wide = anndata.AnnData(
        sparse.csr_matrix(np.hstack([X, X]).astype(np.float32)),
        obs,
        pd.DataFrame(index=[f"raw{j}" for j in range(2 * F)]),
    )
    adata.raw = wide
    adata.layers["rows"], adata.layers["columns"] = sparse.csr_matrix(X + 1), sparse.csc_matrix(X + 2)
    adata.layers["dense"] = X + 3
    adata.obsm["spatial"] = rng.normal(size=(M, 2))
    adata.obsm["frame"] = pd.DataFrame({"u": np.arange(M), "v": pd.array(y, dtype="Int64")}, index=obs.index)
    adata.obsp["near"] = sparse.csr_matrix(sum(np.eye(M, k=k) for k in range(-8, 9)))
    adata.varm["loadings"] = rng.normal(size=(F, 3))
    return adata


def write_zarr(adata: Any, path: Path, version: int, *, consolidated: bool = True, **options: Any) -> str:
    """Write an AnnData as a Zarr group by anndata's own writer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions, and of consolidated metadata, which format 3 does not specify
        group = zarr.open_group(path, mode="w", zarr_format=version)
        anndata.io.write_elem(group, "/", adata, dataset_kwargs=options)
        if consolidated:
            zarr.consolidate_metadata(group.store)
    return str(path)


def write_hdf5(adata: Any, path: Path) -> str:
    adata.write_h5ad(path)
    return str(path)


CONTAINERS: dict[str, Callable[[Any, Path], str]] = {
    "h5ad": lambda adata, folder: write_hdf5(adata, folder / "x.h5ad"),
    "h5": lambda adata, folder: write_hdf5(adata, folder / "x.h5"),
    "zarr-2": lambda adata, folder: write_zarr(adata, folder / "x.zarr", 2),
    "zarr-3": lambda adata, folder: write_zarr(adata, folder / "x.zarr", 3),
    "zarr-plain": lambda adata, folder: write_zarr(adata, folder / "x.zarr", 3, consolidated=False),
    "zarr-url": lambda adata, folder: "file://" + write_zarr(adata, folder / "x.zarr", 3),
    "zarr-shards": lambda adata, folder: shards(write_zarr(adata, folder / "x.zarr", 3, consolidated=False)),
}


def shards(path: str) -> str:
    """Write arrays of X again in chunks that lie in shards."""
    group = zarr.open_group(path, mode="r+")
    for name in ("X/data", "X/indices", "layers/dense", "obs/number"):
        values, attributes = group[name][...], dict(group[name].attrs)
        chunks = (4, *values.shape[1:])
        group.create_array(
            name, data=values, chunks=chunks, shards=(8, *values.shape[1:]), attributes=attributes, overwrite=True
        )
    assert group["X/data"].shards == (8,)
    return path


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same AnnData in every container."""
    adata = cells()
    return {name: write(adata, tmp_path_factory.mktemp(name)) for name, write in CONTAINERS.items()}


containers = pytest.mark.parametrize("name", CONTAINERS)


def matrices(adata: Any) -> dict[str, tuple[Any, list[str] | None, bool]]:
    """By what follows ``::``: the values, names of features, and whether rows are read in parts."""
    genes = adata.var_names.tolist()
    return {
        "": (adata.X.toarray(), genes, True),
        "::X": (adata.X.toarray(), genes, True),
        "::layers/rows": (adata.layers["rows"].toarray(), genes, True),
        "::layers/columns": (adata.layers["columns"].toarray(), genes, False),
        "::layers/dense": (adata.layers["dense"], genes, True),
        "::raw/X": (adata.raw.X.toarray(), adata.raw.var_names.tolist(), True),
        "::obsm/spatial": (adata.obsm["spatial"], None, True),
        "::obsm/frame": (adata.obsm["frame"].to_numpy(float), ["u", "v"], True),
        "::obsp/near": (adata.obsp["near"].toarray(), None, True),
    }


@containers
def test_every_matrix_has_its_values_and_names(name: str, specs: dict[str, str]) -> None:
    adata = cells()
    for member, (values, features, parallel) in matrices(adata).items():
        source = pickle.loads(pickle.dumps(open_source(specs[name] + member, labels_column="kind")))
        assert source.shape == values.shape, member
        np.testing.assert_array_equal(source.read(0, M), values, err_msg=member)
        np.testing.assert_array_equal(source.read(5, 11), values[5:11])
        np.testing.assert_array_equal(np.concatenate(list(source.blocks(4))), values)
        assert source.feature_names == features, member
        assert source.sample_names.tolist() == adata.obs_names.tolist()
        assert source.parallel is parallel, member
        assert source.labels().tolist() == adata.obs["kind"].tolist()
    other = open_source(specs[name] + "::varm/loadings")
    np.testing.assert_array_equal(other.read(0, F), adata.varm["loadings"])
    assert (other.feature_names, other.sample_names.tolist()) == (None, adata.var_names.tolist())  # type: ignore[union-attr]


@containers
def test_every_kind_of_column_gives_labels_by_name_and_by_number(name: str, specs: dict[str, str]) -> None:
    adata = cells()
    for number, column in enumerate(["text", "number", "kind", "nullable", "flag"]):
        want = open_source(adata, labels_column=column).labels()
        for wanted in (column, number, number - 6, str(number)):
            labels = open_source(specs[name], labels_column=wanted).labels()
            np.testing.assert_array_equal(labels, want, strict=True)
    with pytest.raises(BadInput, match="no label in row 4"):
        open_source(specs[name], labels_column="gaps").labels()


@containers
def test_the_transpose_has_the_genes_as_samples(name: str, specs: dict[str, str]) -> None:
    adata = cells()
    for member in ("::X", "::layers/columns", "::layers/dense"):
        values, features, _ = matrices(adata)[member]
        source = open_source(specs[name] + member, transpose=True)
        np.testing.assert_array_equal(source.read(1, 4), values.T[1:4])
        assert source.sample_names.tolist() == features  # type: ignore[union-attr]
        assert source.feature_names == adata.obs_names.tolist()


@containers
def test_what_is_refused_is_refused_alike_and_the_remedies_work(name: str, specs: dict[str, str]) -> None:
    for member, found in (("layers/row", "no matrix 'layers/row'"), ("uns", "'uns' with the encoding")):
        with pytest.raises(BadInput, match=found) as caught:
            open_source(f"{specs[name]}::{member}")
        assert "X" in caught.value.remedy
        assert open_source(f"{specs[name]}::X").shape == (M, F)
    with pytest.raises(BadInput, match="nearest names are kind") as caught:
        open_source(specs[name], labels_column="kinds")
    assert "obs" in caught.value.thing
    with pytest.raises(BadInput, match="no column 9"):
        open_source(specs[name], labels_column=9)


@containers
def test_labels_and_clusters_of_a_run_are_those_in_memory(name: str, specs: dict[str, str]) -> None:
    adata = cells()
    want = run(open_anndata_source(adata, "X"), Params(n_clusters=2, n_neighbors=4))
    found = run(specs[name], Params(n_clusters=2, n_neighbors=4), labels_column="kind")
    np.testing.assert_array_equal(found.labels, want.labels)
    assert found.sample_names is not None
    assert found.sample_names.tolist() == adata.obs_names.tolist()
    assert found.known_labels is not None
    np.testing.assert_array_equal(found.known_labels, np.unique(adata.obs["kind"], return_inverse=True)[1])


@containers
def test_a_graph_of_obsp_is_taken_beside_the_samples(name: str, specs: dict[str, str]) -> None:
    params = Params(n_clusters=2, n_neighbors=2)
    want = run(specs["h5ad"], params, knn_graph=cells().obsp["near"])
    np.testing.assert_array_equal(run(specs[name], params, knn_graph=f"{specs[name]}::obsp/near").labels, want.labels)


@pytest.mark.parametrize("form", slowly([np.asarray, sparse.csr_matrix, sparse.csc_matrix], sparse.csr_matrix))
def test_every_form_of_x_is_the_same_in_every_container(form: Any, tmp_path: Path) -> None:
    adata = cells(form)
    values = cells(np.asarray).X
    digests = set()
    for name in ("h5ad", "h5", "zarr-2", "zarr-3"):
        (tmp_path / name).mkdir()
        source = open_source(CONTAINERS[name](adata, tmp_path / name))
        np.testing.assert_array_equal(source.read(0, M), values, strict=True)
        assert source.parallel is (form is not sparse.csc_matrix)
        digests.add(source.fingerprint)
    assert len(digests) == 4
    np.testing.assert_array_equal(open_anndata_source(adata, "X").read(0, M), values, strict=True)


@pytest.mark.parametrize("name", ["h5ad", "h5", "zarr-2", "zarr-3"])
def test_names_that_only_count_are_none_in_files_and_in_memory(name: str, tmp_path: Path) -> None:
    adata = anndata.AnnData(np.arange(12, dtype=np.float32).reshape(4, 3))
    for source in (open_source(CONTAINERS[name](adata, tmp_path)), open_source(adata)):
        assert (source.feature_names, source.sample_names) == (None, None)


def test_a_fingerprint_follows_the_entries_of_a_sparse_matrix(tmp_path: Path) -> None:
    adata, path = cells(), tmp_path / "x.zarr"
    before = open_source(write_zarr(adata, path, 3)).fingerprint
    assert open_source(str(path)).fingerprint == before
    shutil.rmtree(path)
    adata.X.data[0] += 1
    assert open_source(write_zarr(adata, path, 3)).fingerprint != before


# ---- AnnData inside of others


def inside(path: Path, places: list[str]) -> str:
    """A container with an AnnData at each of some places, beside a matrix of numbers."""
    group: Any = h5py.File(path, "w") if path.suffix.startswith(".h5") else zarr.open_group(path, mode="w")
    group["images"] = np.ones((4, 4))
    for place in places:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of format 3 that has no specification of text
            anndata.io.write_elem(group, place, cells())
    if isinstance(group, h5py.File):
        group.close()
    return str(path)


@pytest.mark.parametrize("file", ["x.h5mu", "x.h5", "x.zarr"])
@pytest.mark.parametrize("places", [["mod/rna", "mod/atac"], ["tables/table"]])
def test_anndatas_inside_a_container_are_named(file: str, places: list[str], tmp_path: Path) -> None:
    spec = inside(tmp_path / file, places)
    with pytest.raises(BadInput, match="no matrix of its own, but an AnnData in") as caught:
        open_source(spec)
    named = caught.value.remedy.rpartition("::")[2]
    assert named in places
    for member in (named, f"{named}/X"):
        source = open_source(f"{spec}::{member}", labels_column="kind")
        np.testing.assert_array_equal(source.read(0, M), cells().X.toarray())
        assert source.sample_names.tolist() == cells().obs_names.tolist()  # type: ignore[union-attr]
        assert source.labels().tolist() == cells().obs["kind"].tolist()  # type: ignore[union-attr]
    assert open_source(f"{spec}::{named}/obsm/spatial").shape == (M, 2)
    assert open_source(f"{spec}::images").shape == (4, 4)
    with pytest.raises(BadInput, match=f"no matrix '{named}/layers/x'") as caught:
        open_source(f"{spec}::{named}/layers/x")
    assert open_source(f"{spec}::{caught.value.remedy.rpartition('::')[2]}").shape == (M, F)


@pytest.mark.parametrize("file", ["x.h5", "x.zarr"])
def test_other_containers_of_arrays_are_read_as_before(file: str, tmp_path: Path) -> None:
    spec = inside(tmp_path / file, [])
    assert open_source(spec).shape == (4, 4)
    with pytest.raises(BadInput, match=r"no (array|dataset) 'X'"):
        open_source(f"{spec}::X")


# ---- older files, and odd ones


@pytest.mark.parametrize("file", ["x.h5ad", "x.h5", "x.zarr"])
def test_an_anndata_before_0_8_is_known_by_its_layout(file: str, tmp_path: Path) -> None:
    y = np.arange(M) % 3
    group: Any = (
        h5py.File(tmp_path / file, "w")
        if file != "x.zarr"
        else zarr.open_group(tmp_path / file, mode="w", zarr_format=2)
    )
    X = cells().X
    for name, values in (("data", X.data), ("indices", X.indices), ("indptr", X.indptr)):
        group[f"X/{name}"] = values
    group["X"].attrs["encoding-type"], group["X"].attrs["shape"] = "csr_matrix", list(X.shape)
    for frame, names in (("obs", cells().obs_names), ("var", cells().var_names)):
        group[f"{frame}/index"] = np.array(names, "S")
        group[frame].attrs["_index"] = "index"
    group["obs/kind"], group["obs/__categories/kind"] = y.astype(np.int8), np.array(["b", "a", "c"], "S")
    group["obs/kind"].attrs["categories"] = (
        "__categories/kind" if file == "x.zarr" else group["obs/__categories/kind"].ref
    )
    group["obsm/spatial"] = np.ones((M, 2))
    if file != "x.zarr":
        group.close()
    source = open_source(tmp_path / file, labels_column="kind")
    np.testing.assert_array_equal(source.read(0, M), X.toarray())
    assert source.labels().tolist() == cells().obs["kind"].tolist()  # type: ignore[union-attr]
    assert source.sample_names.tolist() == cells().obs_names.tolist()  # type: ignore[union-attr]
    assert source.feature_names == cells().var_names.tolist()


@pytest.mark.parametrize("file", ["x.h5ad", "x.h5"])
def test_an_anndata_before_0_7_gives_its_matrix_and_its_labels_once_written_again(file: str, tmp_path: Path) -> None:
    y, X = np.arange(M) % 3, cells().X
    with h5py.File(tmp_path / file, "w") as group:
        for name, values in (("data", X.data), ("indices", X.indices), ("indptr", X.indptr)):
            group[f"X/{name}"] = values
        group["X"].attrs["h5sparse_format"], group["X"].attrs["h5sparse_shape"] = "csr", X.shape
        text = h5py.string_dtype()
        group["obs"] = np.array(list(zip(cells().obs_names, y, strict=True)), [("index", text), ("kind", "i8")])
        group["var"] = np.array([(name,) for name in cells().var_names], [("index", text)])
    np.testing.assert_array_equal(open_source(tmp_path / file).read(0, M), X.toarray())
    with pytest.raises(BadInput, match="no columns to look for 'kind' in") as caught:
        open_source(tmp_path / file, labels_column="kind")
    assert "recent anndata" in caught.value.remedy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.read_h5ad(tmp_path / file).write_h5ad(tmp_path / "again.h5ad")
    source = open_source(tmp_path / "again.h5ad", labels_column="kind")
    np.testing.assert_array_equal(source.labels(), y)
    assert source.sample_names.tolist() == cells().obs_names.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["h5ad", "h5", "zarr-2", "zarr-3"])
def test_nullable_text_is_a_label(name: str, tmp_path: Path) -> None:
    adata = cells()
    adata.obs["words"] = pd.array([f"w{i % 2}" for i in range(M)], dtype="string")
    with anndata.settings.override(allow_write_nullable_strings=True):
        spec = CONTAINERS[name](adata, tmp_path)
    assert open_source(spec, labels_column="words").labels().tolist() == adata.obs["words"].tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["h5ad", "h5"])
def test_a_backed_file_is_read_whatever_its_ending(ending: str, tmp_path: Path) -> None:
    adata = cells()
    adata.write_h5ad(tmp_path / f"x.{ending}")
    back = anndata.read_h5ad(tmp_path / f"x.{ending}", backed="r")
    source = open_source(back, labels_column="kind")
    np.testing.assert_array_equal(source.read(0, M), adata.X.toarray())
    assert source.feature_names == adata.var_names.tolist()
    back.file.close()


def test_an_anndata_that_was_opened_lazily_is_read_as_any_other(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    adata = cells()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is experimental
        lazy = anndata.experimental.read_lazy(write_zarr(adata, tmp_path / "x.zarr", 3))
        source = open_source(lazy, labels_column="kind")
        np.testing.assert_array_equal(source.read(0, M), adata.X.toarray())
        assert source.feature_names == adata.var_names.tolist()
        assert source.sample_names.tolist() == adata.obs_names.tolist()  # type: ignore[union-attr]
        assert source.labels().tolist() == adata.obs["kind"].tolist()  # type: ignore[union-attr]


@containers
def test_a_frame_with_text_is_refused_and_taken_without_it(name: str, tmp_path: Path) -> None:
    adata = cells()
    adata.obsm["frame"]["w"] = pd.Categorical(["x"] * M)
    adata.obsm["frame"]["z"] = [f"z{i}" for i in range(M)]
    spec = CONTAINERS[name](adata, tmp_path)
    with pytest.raises(BadInput, match=r"no numbers in the columns w, z of 'obsm/frame'") as caught:
        open_source(f"{spec}::obsm/frame")
    assert "without these columns" in caught.value.remedy
    assert open_source(adata.obsm["frame"][["u", "v"]]).shape == (M, 2)


def test_names_of_a_frame_of_obsm_are_its_columns_in_memory_too() -> None:
    assert open_anndata_source(cells(), "frame").feature_names == ["u", "v"]


@pytest.mark.parametrize("name", ["h5ad", "h5", "zarr-2", "zarr-3"])
def test_an_anndata_without_x_names_what_it_has(name: str, tmp_path: Path) -> None:
    adata = cells()
    adata = anndata.AnnData(obs=adata.obs, var=adata.var, obsm={"spatial": adata.obsm["spatial"]})
    spec = CONTAINERS[name](adata, tmp_path)
    with pytest.raises(BadInput, match="no matrix 'X'") as caught:
        open_source(spec)
    assert open_source(f"{spec}::{caught.value.remedy.rpartition('::')[2]}").shape == (M, 2)


def test_links_out_of_an_h5_file_are_refused_as_of_an_h5ad(tmp_path: Path) -> None:
    write_hdf5(cells(), tmp_path / "other.h5")
    for target in ("X", "obs", "var"):
        path = Path(write_hdf5(cells(), tmp_path / "x.h5"))
        with h5py.File(path, "r+") as file:
            del file[target]
            file[target] = h5py.ExternalLink(str(tmp_path / "other.h5"), f"/{target}")
        with pytest.raises(BadInput, match="external link"):
            open_source(path, labels_column="kind")


def test_a_codec_that_unpickles_is_refused_in_an_anndata_too(tmp_path: Path) -> None:
    spec = write_zarr(cells(), tmp_path / "x.zarr", 2, consolidated=False)
    described = (
        (tmp_path / "x.zarr/X/data/.zarray").read_text().replace('"filters": null', '"filters": [{"id": "pickle"}]')
    )
    (tmp_path / "x.zarr/X/data/.zarray").write_text(described)
    with pytest.raises(BadInput, match="pickle"):
        open_source(spec)

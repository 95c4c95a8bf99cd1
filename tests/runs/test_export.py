"""Names go with the samples from the input to the file that is written; an .h5ad comes back with the results in it."""

from __future__ import annotations

import csv
import subprocess
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from pyarrow import parquet
from scipy import sparse

from ips2_dask import IPS2, BadInput, Params, Resources, Run, open_run, run
from ips2_dask.cli.main import main, whole_parser

Array = npt.NDArray[Any]
NAMES = [f"cell {i}, ä" for i in range(40)]


def samples() -> Array:
    rng = np.random.default_rng(1)
    return rng.normal(size=(40, 4)) + 6 * np.repeat(np.eye(2, 4), 20, axis=0)


def frame(names: list[str] | None = None) -> pd.DataFrame:
    return pd.DataFrame(samples(), index=NAMES if names is None else names, columns=list("abcd"))


def overlapping() -> pd.DataFrame:
    """Three groups that overlap: a density leaves some of the samples out."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(rng.normal(size=(40, 4)) + 2 * rng.integers(0, 3, size=(40, 1)), index=NAMES)


def cut_run(source: Any, **more: Any) -> Run:
    return run(source, Params(n_clusters=2), Resources(partition_rows=15), **more)


def write_input(path: Path, names: list[str] | None = None) -> Path:
    """An .h5ad as anndata writes it, with a column in obs and a layer."""
    text = h5py.string_dtype("utf-8")
    names = NAMES if names is None else names
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"], file.attrs["encoding-version"] = "anndata", "0.1.0"
        for key, index in (("obs", names), ("var", list("abcd"))):
            group = file.create_group(key)
            group.attrs["encoding-type"], group.attrs["encoding-version"] = "dataframe", "0.2.0"
            group.attrs["_index"] = "_index"
            group.attrs["column-order"] = np.array(["depth"] if key == "obs" else [], text)
            group["_index"] = np.array(index, object)
            group["_index"].attrs["encoding-type"] = "string-array"
            group["_index"].attrs["encoding-version"] = "0.2.0"
        file["obs/depth"] = np.arange(len(names))
        file["X"] = samples()[: len(names)]
        for key in ("X", "obs/depth"):
            file[key].attrs["encoding-type"], file[key].attrs["encoding-version"] = "array", "0.2.0"
    return path


class NamedMatrix(NamedTuple):
    """What `run` looks at of an AnnData."""

    X: Any
    obs_names: Any
    var_names: Any
    obs: Any = None
    var: Any = None
    obsm: Any = None


def test_names_of_a_data_frame_are_in_the_run_and_in_its_directory(tmp_path: Path) -> None:
    found = cut_run(frame(), store=tmp_path / "run")
    assert found.sample_names is not None
    assert found.sample_names.tolist() == NAMES
    again = open_run(tmp_path / "run").sample_names
    assert again is not None
    assert again.tolist() == NAMES


def test_other_names_of_the_same_samples_compute_nothing_anew_and_are_kept(tmp_path: Path) -> None:
    cut_run(frame(), store=tmp_path / "run")
    found = cut_run(frame(NAMES[::-1]), store=tmp_path / "run")
    assert all(stage["skipped"] for stage in found.manifest["stages"])
    assert found.sample_names is not None
    assert found.sample_names.tolist() == NAMES[::-1]


def test_an_array_has_no_names(tmp_path: Path) -> None:
    assert cut_run(samples()).sample_names is None
    cut_run(frame(), store=tmp_path / "run")
    assert cut_run(samples(), store=tmp_path / "run").sample_names is None


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_names_and_labels_of_an_anndata_object(form: Any) -> None:
    obs = pd.DataFrame({"type": ["x", "y"] * 20}, index=NAMES)
    adata = NamedMatrix(form(samples()), obs.index, pd.Index(list("abcd")), obs, pd.DataFrame(index=list("abcd")), {})
    found = cut_run(adata, labels_column="type")
    assert found.sample_names is not None
    assert found.sample_names.tolist() == NAMES
    assert found.known_labels is not None
    assert found.known_labels.tolist() == [0, 1] * 20
    np.testing.assert_array_equal(found.labels, cut_run(samples()).labels)


def test_the_estimator_keeps_the_index_and_the_columns() -> None:
    fitted = IPS2(n_clusters=2).fit(frame())
    assert fitted.run_.sample_names.tolist() == NAMES
    assert fitted.feature_names_in_.tolist() == list("abcd")


def test_a_refused_input_leaves_no_names_behind(tmp_path: Path) -> None:
    spoiled = frame()
    spoiled.iloc[3, 1] = np.inf
    with pytest.raises(BadInput):
        cut_run(spoiled, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_csv_and_parquet_hold_names_clusters_certainty_and_what_was_left_out(tmp_path: Path) -> None:
    found = run(overlapping(), Params(n_clusters=3, assign_labels="density"))
    assert found.left_out is not None
    assert 0 < found.left_out.sum() < 40  # else a column of another array might pass
    assert found.write_labels(tmp_path / "labels.csv") == tmp_path / "labels.csv"
    with (tmp_path / "labels.csv").open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    assert head == ["sample", "cluster", "certainty", "left_out"]
    names, clusters, certainty, left_out = zip(*rows, strict=True)
    assert list(names) == NAMES
    assert list(map(int, clusters)) == found.labels.tolist()
    assert np.array(certainty, np.float32).tobytes() == found.certainty.tobytes()
    assert list(left_out) == [str(out) for out in found.left_out.tolist()]
    found.write_labels(tmp_path / "labels.parquet")
    table = parquet.read_table(tmp_path / "labels.parquet")
    assert table.to_pydict() == {
        "sample": NAMES,
        "cluster": found.labels.tolist(),
        "certainty": found.certainty.tolist(),
        "left_out": found.left_out.tolist(),
    }
    assert [str(field.type) for field in table.schema][1:] == ["int32", "float", "bool"]


def test_where_k_means_labels_nothing_is_said_to_be_left_out(tmp_path: Path) -> None:
    found = run(frame(), Params(n_clusters=2, assign_labels="kmeans"))
    for ending, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        table = read(found.write_labels(tmp_path / f"labels.{ending}"))
        assert list(table.columns) == ["sample", "cluster", "certainty"]
        np.testing.assert_array_equal(table["certainty"].astype(np.float32), found.certainty)


def test_samples_without_names_are_numbered(tmp_path: Path) -> None:
    cut_run(samples()).write_labels(tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text().splitlines()[1].startswith("0,")


def test_an_h5ad_comes_back_as_a_copy_with_the_results(tmp_path: Path) -> None:
    path = write_input(tmp_path / "cells.h5ad")
    before = path.read_bytes()
    found = run(str(path), Params(n_clusters=2, assign_labels="density"))
    assert found.left_out is not None
    found.write_labels(tmp_path / "out.h5ad")
    assert path.read_bytes() == before
    with h5py.File(tmp_path / "out.h5ad") as file:
        assert list(file["obs"].attrs["column-order"]) == ["depth", "ips2", "ips2_certainty", "ips2_left_out"]
        assert file["obs/ips2_certainty"].dtype == np.float32
        np.testing.assert_array_equal(file["obs/ips2_certainty"][...], found.certainty)
        np.testing.assert_array_equal(file["obs/ips2_left_out"][...], found.left_out)
        assert file["obs/depth"][...].tolist() == list(range(40))
        np.testing.assert_array_equal(file["obs/ips2/codes"][...], found.labels)
        assert file["obs/ips2/categories"].asstr()[...].tolist() == ["0", "1"]
        np.testing.assert_array_equal(file["obsm/X_ips2"][...], found.embedding)
        U = file["obsp/ips2_connectivities"]
        stored = sparse.csr_array((U["data"][...], U["indices"][...], U["indptr"][...]), shape=U.attrs["shape"])
        assert abs(stored - found.similarity()).max() == 0
        assert {name: value[()] for name, value in file["uns/ips2/params"].items()}.items() >= {
            "use_rep": b"X",
            "method": b"ips2",
            "n_clusters": 2,
            "n_neighbors": 5,
            "metric": b"euclidean",
        }.items()
        np.testing.assert_array_equal(file["X"][...], samples())


def test_results_written_twice_are_those_of_the_second_time_also_into_the_input_itself(tmp_path: Path) -> None:
    path = write_input(tmp_path / "cells.h5ad")
    run(str(path), Params(n_clusters=2, assign_labels="density")).write_labels(path)
    with h5py.File(path) as file:
        assert "ips2_left_out" in file["obs"]
        assert "X_ips2" in file["obsm"]
    found = run(str(path), Params(n_clusters=3, embedding="none"))
    found.write_labels(path)
    with h5py.File(path) as file:
        assert list(file["obs"].attrs["column-order"]) == ["depth", "ips2", "ips2_certainty"]
        np.testing.assert_array_equal(file["obs/ips2/codes"][...], found.labels)
        np.testing.assert_array_equal(file["obs/ips2_certainty"][...], found.certainty)
        assert "ips2_left_out" not in file["obs"]  # k-means leaves none out
        assert "X_ips2" not in file["obsm"]  # k-means on the rows of U has no embedding
    assert [p.name for p in tmp_path.iterdir()] == ["cells.h5ad"]


def test_an_h5ad_without_an_h5ad_input_holds_the_results_alone(tmp_path: Path) -> None:
    found = cut_run(frame())
    found.write_labels(tmp_path / "out.h5ad")
    again = run(str(tmp_path / "out.h5ad") + "::obsm/X_ips2", Params(n_clusters=2), labels_column="ips2")
    assert again.sample_names is not None
    assert again.sample_names.tolist() == NAMES
    np.testing.assert_array_equal(again.known_labels, found.labels)


def test_what_is_exported_reads_back_with_anndata(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    path = write_input(tmp_path / "cells.h5ad")
    copied = run(str(path), Params(n_clusters=2, assign_labels="density"))
    made = run(overlapping(), Params(n_clusters=3, assign_labels="density"))
    for origin, name in ((copied, "copy.h5ad"), (made, "new.h5ad")):
        origin.write_labels(tmp_path / name)
        adata = anndata.read_h5ad(tmp_path / name)
        assert adata.obs_names.tolist() == NAMES
        assert adata.obs["ips2"].astype(int).tolist() == origin.labels.tolist()
        assert (adata.obs["ips2_certainty"].dtype, adata.obs["ips2_left_out"].dtype) == (np.float32, np.bool_)
        np.testing.assert_array_equal(adata.obs["ips2_certainty"], origin.certainty)
        np.testing.assert_array_equal(adata.obs["ips2_left_out"], origin.left_out)
        np.testing.assert_array_equal(adata.obsm["X_ips2"], origin.embedding)
        assert adata.obsp["ips2_connectivities"].shape == (40, 40)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("labels.xlsx", "the ending '.xlsx'"),
        ("labels", "the ending 'none'"),
        ("none/labels.csv", "no folder to put it in"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        cut_run(frame()).write_labels(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_h5ad_of_other_samples_is_refused(tmp_path: Path) -> None:
    found = cut_run(frame())
    for names, said in ((NAMES[:30], "30 samples"), (NAMES[::-1], "samples of other names")):
        other = write_input(tmp_path / "other.h5ad", names)
        with pytest.raises(BadInput, match=said):
            found.write_labels(tmp_path / "out.h5ad", other)
    with pytest.raises(BadInput, match="no such file"):
        found.write_labels(tmp_path / "out.h5ad", tmp_path / "missing.h5ad")
    with pytest.raises(BadInput, match=r"for a \.csv file"):
        found.write_labels(tmp_path / "out.csv", tmp_path / "other.h5ad")
    assert [p.name for p in tmp_path.iterdir()] == ["other.h5ad"]


@pytest.mark.parametrize("name", ["obs/ips2", "obs/ips2_certainty", "obsm/X_ips2", "obsp/ips2_distances", "uns/ips2"])
@pytest.mark.parametrize("itself", [False, True])
def test_nothing_of_the_users_in_an_h5ad_is_overwritten(name: str, itself: bool, tmp_path: Path) -> None:
    path = write_input(tmp_path / "cells.h5ad")
    with h5py.File(path, "r+") as file:
        file[name] = np.arange(40)
    before, target = path.read_bytes(), path if itself else tmp_path / "out.h5ad"
    found = run(str(path), Params(n_clusters=2))
    part, _, key = name.partition("/")
    with pytest.raises(BadInput, match=rf"{part}\['{key}'\] already there") as caught:
        found.write_labels(target)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cells.h5ad"]
    assert ".csv" in caught.value.remedy
    found.write_labels(tmp_path / "labels.csv")
    with h5py.File(path, "r+") as file:
        file.move(name, f"{name}_of_mine")
    found.write_labels(target)
    with h5py.File(target) as file:
        assert file[f"{name}_of_mine"][...].tolist() == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("member", ["", "::obsm/X_pca"])
def test_scanpys_tools_take_an_exported_graph(member: str, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("igraph")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy = pytest.importorskip("scanpy")
    path = write_input(tmp_path / "cells.h5ad")
    adata = anndata.read_h5ad(path)
    adata.X, adata.obsm["X_pca"] = overlapping().to_numpy(), overlapping().to_numpy()[:, :3]
    adata.write_h5ad(path)
    found = run(f"{path}{member}", Params(n_clusters=3))
    found.write_labels(tmp_path / "out.h5ad")
    adata = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert adata.uns["ips2"]["params"]["use_rep"] == (member.removeprefix("::obsm/") or "X")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.tl.paga(adata, groups="ips2", neighbors_key="ips2")
        scanpy.tl.leiden(adata, neighbors_key="ips2", flavor="igraph", directed=False)
        scanpy.tl.umap(adata, neighbors_key="ips2", maxiter=2)
    assert adata.uns["paga"]["connectivities"].shape == (3, 3)
    assert np.isfinite(adata.obsm["X_umap"]).all()


@pytest.mark.slow
def test_results_of_the_call_from_python_are_replaced_by_those_of_an_export_and_the_other_way(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    from ips2_dask.scanpy import ips2  # noqa: PLC0415  needs anndata

    path = write_input(tmp_path / "cells.h5ad")
    adata = anndata.read_h5ad(path)
    ips2(adata, 2, assign_labels="density", layout=True)
    adata.write_h5ad(path)
    found = run(str(path), Params(n_clusters=3, assign_labels="kmeans"))
    found.write_labels(path)
    adata = anndata.read_h5ad(path)
    assert list(adata.obs) == ["depth", "ips2", "ips2_certainty"]
    assert list(adata.obsm) == ["X_ips2"]
    assert adata.obs["ips2"].nunique() == 3
    ips2(adata, 2)
    assert adata.obs["ips2"].nunique() == 2


def test_the_command_writes_the_file_and_prints_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_run(frame(), store=tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "labels.csv")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "labels.csv")
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "labels.doc")]) == 2
    assert "--to" not in capsys.readouterr().out


def test_bash_completes_an_option_with_the_script_that_shtab_makes_of_the_parser(tmp_path: Path) -> None:
    shtab = pytest.importorskip("shtab")
    (tmp_path / "ips2.bash").write_text(shtab.complete(whole_parser(), "bash"))
    asked = (
        'source ips2.bash; COMP_WORDS=(ips2 run --metr); COMP_CWORD=2; "$(complete -p ips2 | sed "s/.*-F //; s/ .*//")"'
    )
    asked += '; printf "%s\\n" "${COMPREPLY[@]}"'
    shown = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["--metric"]

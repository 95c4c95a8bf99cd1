"""Clusters of an AnnData: which matrix is read, what is written where, and files that stay as they are otherwise."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from planted import blobs_of_blobs
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ips2_dask import IPS2, BadInput, Params, run
from ips2_dask.kernels import layout
from ips2_dask.readers import trees
from ips2_dask.scanpy import ips2

anndata = pytest.importorskip("anndata")

pytestmark = pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")  # islands, of blobs that lie apart


def cells(n: int = 120, centers: int = 3, f: int = 6, *, pca: bool = True) -> Any:
    """An AnnData with two matrices of which only X_pca shows the clusters, and other things beside."""
    points, y = make_blobs(n, f, centers=centers, random_state=4)
    X = np.random.default_rng(0).normal(size=(n, 9)).astype(np.float32)
    obs = pd.DataFrame({"type": pd.Categorical([f"t{label}" for label in y])}, index=[f"cell{i}" for i in range(n)])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(9)])
    adata = anndata.AnnData(X, obs=obs, var=var, uns={"note": "as it was"})
    adata.layers["points"] = sparse.csr_matrix(np.hstack([points, np.zeros((n, 9 - f))]).astype(np.float32))
    if pca:
        adata.obsm["X_pca"] = points.astype(np.float32)
    return adata


def contents(path: Path) -> dict[str, str]:
    """Digests of all values and attributes of an HDF5 file, and of where the bytes of its datasets are."""
    found = {}

    def visit(name: str, node: h5py.Group | h5py.Dataset) -> None:
        text = repr(sorted((key, repr(value)) for key, value in node.attrs.items()))
        if isinstance(node, h5py.Dataset):
            text += f"{node.dtype} {node.shape} {node.id.get_offset()} {node[()]!r}"
            text += hashlib.sha256(np.asarray(node[()]).tobytes()).hexdigest() if node.dtype.kind != "O" else ""
        found[name] = text

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("in_file", [False, True])
def test_layers_are_columns_with_their_stabilities(in_file: bool, tmp_path: Path) -> None:
    X, _, _ = blobs_of_blobs(600, 8, 0)
    adata = anndata.AnnData(X)
    adata.obs_names = [f"cell{i}" for i in range(600)]
    found = run(X, Params(n_clusters=4)).layers
    if in_file:
        adata.write_h5ad(tmp_path / "x.h5ad")
        adata = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r+")
    ips2(adata, 4, all_layers=True)
    if in_file:
        adata.file.close()
        adata = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert [layer.n_clusters for layer in found] == [4, 12]
    for layer in found:
        column = adata.obs[f"ips2_layer_{layer.n_clusters}"]
        assert column.cat.categories.tolist() == [str(k) for k in range(layer.n_clusters)]
        np.testing.assert_array_equal(column.cat.codes, layer.labels)
        np.testing.assert_allclose(adata.uns["ips2"]["layers"][f"each_{layer.n_clusters}"], layer.each)
    about = adata.uns["ips2"]["layers"]
    assert about["n_clusters"].tolist() == [4, 12]
    np.testing.assert_allclose(about["stability"], [layer.stability for layer in found])
    np.testing.assert_allclose(about["persistence"], [layer.persistence for layer in found])


def test_layers_without_a_tree_are_refused() -> None:
    with pytest.raises(BadInput, match="layers: found a run without a tree of density"):
        ips2(cells(), 3, all_layers=True, assign_labels="kmeans")


def test_results_are_where_scanpy_would_look_for_them() -> None:
    adata = cells()
    assert ips2(adata, n_clusters=3) is None
    want = run(adata.obsm["X_pca"], Params(n_clusters=3))
    assert adata.obs["ips2"].cat.categories.tolist() == ["0", "1", "2"]
    np.testing.assert_array_equal(adata.obs["ips2"].cat.codes, want.labels)
    np.testing.assert_array_equal(adata.obs["ips2_certainty"], want.certainty)
    np.testing.assert_array_equal(adata.obsm["X_ips2"], want.embedding)
    U = adata.obsp["ips2_connectivities"]
    assert sparse.issparse(U)
    np.testing.assert_array_equal(U.toarray(), want.similarity("fused").toarray())
    about = adata.uns["ips2"]
    assert (about["params"]["n_clusters"], about["params"]["random_state"]) == (3, 0)
    assert about["versions"] == want.manifest["versions"]
    assert about["facts"]["recall"] == 1.0
    assert about["connectivities_key"] == "ips2_connectivities"
    assert adjusted_rand_score(adata.obs["type"], adata.obs["ips2"]) == 1.0


def test_categories_are_in_natural_order_and_the_key_names_everything() -> None:
    adata = cells(360, 12)
    ips2(adata, 12, key_added="mine", assign_labels="kmeans")
    assert adata.obs["mine"].cat.categories.tolist() == [str(c) for c in range(12)]
    assert list(adata.obs) == ["type", "mine", "mine_certainty"]
    assert (list(adata.obsm), list(adata.obsp), list(adata.uns)) == (
        ["X_pca", "X_mine"],
        ["mine_connectivities", "mine_distances"],
        ["note", "mine"],
    )


def test_a_copy_leaves_the_original_and_a_result_is_written_and_read(tmp_path: Path) -> None:
    adata = cells()
    copied = ips2(adata, 3, copy=True)
    assert list(adata.obs) == ["type"]
    copied.write_h5ad(tmp_path / "x.h5ad")
    back = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert back.obs["ips2"].tolist() == copied.obs["ips2"].tolist()
    assert back.uns["ips2"]["params"]["tensor"] == "indecomposable"


def test_a_view_becomes_an_anndata_of_its_own_with_the_results() -> None:
    adata = cells()
    some = adata[adata.obs["type"] != "t0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ips2(some, 2)
    assert not some.is_view
    assert some.obs["ips2"].cat.categories.tolist() == ["0", "1"]
    assert list(adata.obs) == ["type"]


@pytest.mark.parametrize("pca", [True, False])
def test_run_and_fit_take_the_matrix_that_scanpy_would_take(pca: bool) -> None:
    adata = cells(pca=pca)
    X = adata.obsm["X_pca"] if pca else adata.X
    want = run(X, Params(n_clusters=3))
    found, fitted = run(adata, Params(n_clusters=3)), IPS2(3).fit(adata)
    ips2(adata, 3)
    for labels in (found.labels, fitted.labels_, adata.obs["ips2"].cat.codes):
        np.testing.assert_array_equal(labels, want.labels)
    assert found.sample_names is not None
    assert found.sample_names[:2].tolist() == ["cell0", "cell1"]
    assert fitted.n_features_in_ == X.shape[1]
    np.testing.assert_array_equal(fitted.predict(adata), want.labels)
    np.testing.assert_array_equal(found.predict(adata), want.labels)


def test_other_matrices_are_named() -> None:
    adata = cells()
    for named, X in (({"use_rep": "X"}, adata.X), ({"layer": "points"}, adata.layers["points"])):
        copied = ips2(adata, 3, copy=True, **named)
        np.testing.assert_array_equal(copied.obs["ips2"].cat.codes, run(X, Params(n_clusters=3)).labels)
        assert copied.uns["ips2"]["params"].items() >= named.items()
    adata.obsm["frame"] = pd.DataFrame(adata.obsm["X_pca"], index=adata.obs_names).add_prefix("p")
    ips2(adata, 3, use_rep="frame")
    np.testing.assert_array_equal(adata.obs["ips2"].cat.codes, run(adata.obsm["X_pca"], Params(n_clusters=3)).labels)


def test_graph_and_similarity_come_from_obsp() -> None:
    adata = cells()
    X = adata.obsm["X_pca"]
    near = np.argsort(np.linalg.norm(X[:, None] - X, axis=2), axis=1)[:, 1:9]
    i, j = np.repeat(np.arange(len(X)), 8), near.ravel()
    adata.obsp["distances"] = sparse.csr_matrix((np.ones(len(i)), (i, j)), shape=(len(X), len(X)))
    S = adata.obsp["distances"]
    adata.obsp["connectivities"] = sparse.csr_matrix(S.maximum(S.T))
    ips2(adata, 3, knn_graph="distances", key_added="a")
    want = run(X, Params(n_clusters=3), knn_graph=adata.obsp["distances"])
    np.testing.assert_array_equal(adata.obs["a"].cat.codes, want.labels)
    ips2(adata, 3, similarity="connectivities", key_added="b")
    want = run(X, Params(n_clusters=3, affinity="precomputed"), similarity=adata.obsp["connectivities"])
    np.testing.assert_array_equal(adata.obs["b"].cat.codes, want.labels)


def test_leiden_finds_the_number() -> None:
    pytest.importorskip("igraph")
    adata = cells()
    ips2(adata, assign_labels="leiden", resolution=0.1)
    assert adjusted_rand_score(adata.obs["type"], adata.obs["ips2"]) == 1.0
    assert adata.uns["ips2"]["params"]["resolution"] == 0.1


def test_equal_cells_have_one_label() -> None:
    adata = cells()
    adata.obsm["X_pca"][100:] = adata.obsm["X_pca"][:20]
    ips2(adata, 3)
    assert adata.obs["ips2"].iloc[100:].tolist() == adata.obs["ips2"].iloc[:20].tolist()
    U = adata.obsp["ips2_connectivities"].toarray()
    want = run(adata.obsm["X_pca"], Params(n_clusters=3))
    first = np.flatnonzero(np.arange(120) < 100)
    np.testing.assert_array_equal(U[:100, :100], want.similarity("fused").toarray()[:100, :100])
    np.testing.assert_array_equal(U[100:, :100], U[:20, first])
    np.testing.assert_array_equal(U, U.T)
    assert not U[100:, 100:].any()


@pytest.mark.parametrize(("umap", "key"), [pytest.param(True, "ips2", marks=pytest.mark.slow), (False, "mine")])
def test_a_layout_is_written_if_it_is_asked_for(
    umap: bool, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if umap and not layout.available():
        pytest.skip("needs umap-learn")
    monkeypatch.setattr(layout, "available", lambda: umap)
    adata = cells()
    adata.obsm["X_pca"][100:] = adata.obsm["X_pca"][:20]
    ips2(adata, 3, key_added=key, layout=True)
    places = adata.obsm[f"X_{key}_layout"]
    assert (places.shape, places.dtype) == ((120, 2), np.float32)
    want = run(adata.obsm["X_pca"], Params(n_clusters=3)).layout
    np.testing.assert_array_equal(places[want.samples], want.points)
    np.testing.assert_array_equal(places[100:], places[:20])
    assert adata.uns[key]["facts"]["layout_method"] == ("umap" if umap else "t-sne")
    adata.write_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(anndata.read_h5ad(tmp_path / "x.h5ad").obsm[f"X_{key}_layout"], places)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"use_rep": "X_umap"}, "use_rep: found 'X_umap', allowed is 'X', 'X_pca'"),
        ({"layer": "counts"}, "layer: found 'counts', allowed is 'points'"),
        ({"layer": "points", "use_rep": "X"}, "layer: found 'points' with use_rep='X'"),
        ({"knn_graph": "distances"}, "knn_graph: found 'distances'.*scanpy.pp.neighbors"),
        ({"similarity": "connectivities"}, "similarity: found 'connectivities'"),
        ({"n_clusters": "many"}, "n_clusters"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(arguments: dict[str, Any], text: str) -> None:
    adata = cells()
    with pytest.raises(BadInput, match=text):
        ips2(adata, **arguments)
    assert list(adata.obs) == ["type"]


def test_other_data_are_refused() -> None:
    with pytest.raises(BadInput, match="adata: found something of type ndarray"):
        ips2(np.eye(3))


# ---- what the user had


def state(adata: Any) -> dict[str, Any]:
    """Everything of an AnnData but X, by its name."""
    values = {f"obs/{name}": adata.obs[name].tolist() for name in adata.obs}
    for part in ("obsm", "obsp", "layers"):
        for name, value in getattr(adata, part).items():
            values[f"{part}/{name}"] = np.asarray(value.todense() if sparse.issparse(value) else value).tolist()
    return values | {"uns": sorted(adata.uns), "names": adata.obs_names.tolist()}


TAKEN = {
    "obs": lambda adata: adata.obs.__setitem__("mine", np.arange(adata.n_obs)),
    "certainty": lambda adata: adata.obs.__setitem__("mine_certainty", 1.0),
    "left_out": lambda adata: adata.obs.__setitem__("mine_left_out", True),
    "layer": lambda adata: adata.obs.__setitem__("mine_layer_3", "a"),
    "obsm": lambda adata: adata.obsm.__setitem__("X_mine", np.ones((adata.n_obs, 2))),
    "layout": lambda adata: adata.obsm.__setitem__("X_mine_layout", np.ones((adata.n_obs, 2))),
    "connectivities": lambda adata: adata.obsp.__setitem__(
        "mine_connectivities", sparse.eye(adata.n_obs, format="csr")
    ),
    "distances": lambda adata: adata.obsp.__setitem__("mine_distances", sparse.eye(adata.n_obs, format="csr")),
    "uns": lambda adata: adata.uns.__setitem__("mine", {"params": 1}),
    "index": lambda adata: setattr(adata.obs.index, "name", "mine"),
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("in_file", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_of_the_users_is_overwritten(taken: str, in_file: bool, tmp_path: Path) -> None:
    adata = cells()
    TAKEN[taken](adata)
    path = tmp_path / "x.h5ad"
    if in_file:
        adata.write_h5ad(path)
        adata = anndata.read_h5ad(path, backed="r+")
    before, bytes_before = state(adata), path.read_bytes() if in_file else b""
    with pytest.raises(BadInput, match=r"key_added: found .*mine.* already there") as caught:
        ips2(adata, 3, key_added="mine", store=tmp_path / "run")
    assert state(adata) == before
    assert not (tmp_path / "run").exists()
    if in_file:
        assert path.read_bytes() == bytes_before
    ips2(adata, 3, key_added=caught.value.remedy.split("'")[1])
    assert before.items() <= {**state(adata), "uns": before["uns"]}.items()
    if in_file:
        adata.file.close()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"use_rep": "X_scVI", "key_added": "scVI"}, r"obsm\['X_scVI'\]"),
        ({"key_added": "pca"}, r"obsm\['X_pca'\]"),
        ({"use_rep": "X", "key_added": "pca"}, r"obsm\['X_pca'\]"),
        ({"knn_graph": "near_distances", "key_added": "near"}, r"obsp\['near_distances'\]"),
        ({"similarity": "near_connectivities", "key_added": "near"}, r"obsp\['near_connectivities'\]"),
    ],
)
def test_what_is_read_is_never_written(arguments: dict[str, Any], name: str) -> None:
    adata = cells()
    adata.obsm["X_scVI"] = adata.obsm["X_pca"] + 1
    adata.obsp["near_distances"] = adata.obsp["near_connectivities"] = sparse.eye(120, format="csr")
    before = state(adata)
    with pytest.raises(BadInput, match=rf"key_added: found .*{name} would be written") as caught:
        ips2(adata, 3, **arguments)
    assert state(adata) == before
    if "use_rep" in arguments:
        ips2(adata, 3, **arguments | {"key_added": caught.value.remedy.split("'")[1]})
        assert before.items() <= {**state(adata), "uns": before["uns"]}.items()


def test_a_second_call_never_clusters_what_the_first_has_written() -> None:
    adata = cells(pca=False)
    with pytest.raises(BadInput, match="X_pca"):  # which the next call would take
        ips2(adata, 3, key_added="pca")
    ips2(adata, 3)
    first = state(adata)
    for arguments in ({"use_rep": "X_ips2"}, {"knn_graph": "ips2_distances"}, {"similarity": "ips2_connectivities"}):
        with pytest.raises(BadInput, match="would be written"):
            ips2(adata, 3, **arguments)
    ips2(adata, 3)
    assert state(adata) == first
    ips2(adata, 3, use_rep="X_ips2", key_added="again")  # asked for, and under another name
    assert adata.uns["again"]["params"]["use_rep"] == "X_ips2"


@pytest.mark.parametrize("in_file", [False, True])
def test_the_same_key_again_replaces_all_that_it_has_written(in_file: bool, tmp_path: Path) -> None:
    X, _, _ = blobs_of_blobs(600, 8, 0)
    adata = anndata.AnnData(X)
    if in_file:
        adata.write_h5ad(tmp_path / "x.h5ad")
        adata = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r+")
    ips2(adata, 4, all_layers=True)
    adata.obs["own"] = 1
    assert {"ips2_layer_4", "ips2_layer_12", "ips2_left_out"} <= set(adata.obs)
    for _ in range(2):
        ips2(adata, 3, assign_labels="kmeans")
        assert [name for name in adata.obs if name != "own"] == ["ips2", "ips2_certainty"]
        assert adata.obs["ips2"].nunique() == 3
        if in_file:
            adata.file.close()
            adata = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r+")
    names = [f"{part}/{name}" for part in ("obs", "obsm", "obsp", "uns") for name in getattr(adata, part)]
    assert adata.uns["ips2"]["written"].tolist() == [name for name in names if name != "obs/own"]
    if in_file:
        adata.file.close()


def test_a_list_of_results_in_a_file_of_others_frees_no_other_names() -> None:
    adata = cells()
    ips2(adata, 3)
    adata.uns["ips2"]["written"] = np.array([*adata.uns["ips2"]["written"], "obs/type", "obsm/X_pca", "uns/note"])
    before = state(adata)
    ips2(adata, 3)
    assert state(adata) == before


@pytest.mark.parametrize("key", ["", "a/b", "/", ".", "..", "_index", "__categories", "a\0b", "a\n", 3, None, b"a"])
def test_keys_that_a_file_could_not_keep_are_refused_before_the_run(key: Any, tmp_path: Path) -> None:
    adata = cells()
    with pytest.raises(BadInput, match=r"key_added: found .* printable name without a slash") as caught:
        ips2(adata, 3, key_added=key, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    ips2(adata, 3, key_added=caught.value.remedy.split("'")[1])


@pytest.mark.parametrize("key", ["my clusters", "ä.b", "_x", "a.", "-1", "X_pca"])
def test_other_keys_come_back_from_a_file(key: str, tmp_path: Path) -> None:
    adata = cells(60)
    ips2(adata, 3, key_added=key)
    adata.write_h5ad(tmp_path / "x.h5ad")
    back = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert back.obs[key].tolist() == adata.obs[key].tolist()
    assert back.uns[key]["written"].tolist() == adata.uns[key]["written"].tolist()
    ips2(back, 2, key_added=key)
    assert back.obs[key].nunique() == 2


def test_a_copy_is_refused_where_its_original_would_be() -> None:
    adata = cells()
    adata.obs["ips2"] = "mine"
    with pytest.raises(BadInput, match=r"obs\['ips2'\]"):
        ips2(adata, 3, copy=True)
    del adata.obs["ips2"]
    ips2(adata, 3)
    assert ips2(adata, 2, copy=True).obs["ips2"].nunique() == 2
    assert adata.obs["ips2"].nunique() == 3


# ---- backed files


def backed(folder: Path, n: int, form: Any = np.asarray) -> Path:
    """An .h5ad whose X has the clusters, without X_pca."""
    adata = cells(n, pca=False)
    points = make_blobs(n, 9, centers=5, random_state=6)[0].astype(np.float32)
    adata.X = form(np.maximum(points, 0))
    adata.write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad"


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_backed_file_is_read_by_rows_and_keeps_all_that_it_has(
    form: Any, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = backed(tmp_path, 3000, form)
    before, bytes_before = contents(path), path.read_bytes()
    whole = anndata.read_h5ad(path)
    adata = anndata.read_h5ad(path, backed=mode)
    rows: list[int] = []
    for kind in (trees.ArrayRows, trees.CompressedRows):
        read = kind.read

        def counted(self: Any, start: int, stop: int, read: Any = read) -> Any:
            rows.append(stop - start)
            return read(self, start, stop)

        monkeypatch.setattr(kind, "read", counted)
    with monkeypatch.context() as patch:
        patch.setattr(anndata.AnnData, "to_memory", lambda self: pytest.fail("X was loaded"))
        ips2(adata, 5, n_neighbors=4)
    assert rows
    assert max(rows) <= 3000
    assert adata.isbacked
    want = run(whole, Params(n_clusters=5, n_neighbors=4))
    np.testing.assert_array_equal(adata.obs["ips2"].cat.codes, want.labels)
    assert adata.X[0].shape[-1] == 9
    adata.file.close()
    if mode == "r":
        assert path.read_bytes() == bytes_before
        return
    after = contents(path)
    new = {name for name in after if "ips2" in name}
    others = {name: text for name, text in after.items() if name not in new and name != "obs"}
    assert others == {name: text for name, text in before.items() if name not in ("obs",)} | {
        name: after[name] for name in ("obsm", "obsp", "uns") if name not in before
    }
    back = anndata.read_h5ad(path)
    assert list(back.obs) == [
        *whole.obs,
        "ips2",
        "ips2_certainty",
        *(["ips2_left_out"] if want.left_out is not None else []),
    ]
    np.testing.assert_array_equal(back.obs["ips2"].cat.codes, want.labels)
    np.testing.assert_array_equal(back.obsm["X_ips2"], want.embedding)
    np.testing.assert_array_equal(back.obsp["ips2_connectivities"].toarray(), want.similarity("fused").toarray())
    assert back.uns["ips2"]["params"]["n_neighbors"] == 4
    assert back.uns["note"] == "as it was"


def test_results_in_a_file_are_replaced(tmp_path: Path) -> None:
    path = backed(tmp_path, 300)
    for c in (5, 3):
        adata = anndata.read_h5ad(path, backed="r+")
        ips2(adata, c, assign_labels="kmeans")
        adata.file.close()
    back = anndata.read_h5ad(path)
    assert back.obs["ips2"].cat.categories.tolist() == ["0", "1", "2"]
    assert list(back.obs) == ["type", "ips2", "ips2_certainty"]


@pytest.mark.parametrize("fault", ["value", "disk"])
def test_a_file_is_as_it_was_where_writing_fails_half_way(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = backed(tmp_path, 100)
    bytes_before = path.read_bytes()
    adata = anndata.read_h5ad(path, backed="r+")
    before, write = state(adata), anndata.io.write_elem

    def failing(group: Any, key: str, value: Any) -> None:
        if key == "ips2_distances":
            raise OSError(28, "No space left on device") if fault == "disk" else TypeError("no such value")
        write(group, key, value)

    monkeypatch.setattr("anndata.io.write_elem", failing)
    with pytest.raises(BadInput if fault == "disk" else TypeError):
        ips2(adata, 5)
    assert path.read_bytes() == bytes_before
    assert list(tmp_path.iterdir()) == [path]
    assert state(adata) == before
    assert adata.X.shape == (100, 9)
    monkeypatch.undo()
    ips2(adata, 5)
    adata.file.close()
    assert "ips2" in anndata.read_h5ad(path).obs


def test_what_the_file_has_and_the_anndata_has_no_more_is_kept_too(tmp_path: Path) -> None:
    path = backed(tmp_path, 100)
    adata = anndata.read_h5ad(path)
    adata.obs["ips2"] = "mine"
    adata.write_h5ad(path)
    adata = anndata.read_h5ad(path, backed="r+")
    del adata.obs["ips2"]
    with pytest.raises(BadInput, match=r"obs\['ips2'\] already there"):
        ips2(adata, 5)
    ips2(adata, 5, key_added="ips2_ips2")
    adata.file.close()
    assert set(anndata.read_h5ad(path).obs["ips2"]) == {"mine"}


def test_results_that_were_removed_in_memory_alone_are_replaced_in_the_file(tmp_path: Path) -> None:
    path = backed(tmp_path, 100)
    adata = anndata.read_h5ad(path, backed="r+")
    ips2(adata, 5)
    del adata.obs["ips2"], adata.uns["ips2"]
    adata.obs = adata.obs[["type"]]
    adata.obsm.clear()
    adata.obsp.clear()
    ips2(adata, 3)
    adata.file.close()
    assert anndata.read_h5ad(path).obs["ips2"].nunique() == 3


def test_a_disk_without_room_for_a_copy_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = backed(tmp_path, 100)
    adata = anndata.read_h5ad(path, backed="r+")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10})())
        with pytest.raises(BadInput, match=r"0 MiB free beside it.*backed='r'"):
            ips2(adata, 5, store=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        adata.file.close()
        adata = anndata.read_h5ad(path, backed="r")  # the remedy
        ips2(adata, 5)
    assert adata.obs["ips2"].nunique() == 5
    adata.file.close()


def test_a_file_behind_a_link_is_written_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path = backed(tmp_path / "there", 100)
    path.chmod(0o640)
    (tmp_path / "link.h5ad").symlink_to(path)
    adata = anndata.read_h5ad(tmp_path / "link.h5ad", backed="r+")
    ips2(adata, 5)
    adata.file.close()
    assert (tmp_path / "link.h5ad").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert "ips2" in anndata.read_h5ad(path).obs


@pytest.mark.slow
def test_workers_read_a_file_that_was_open_for_writing(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster  # noqa: PLC0415  it takes a while

    path = backed(tmp_path, 400)
    want = run(anndata.read_h5ad(path), Params(n_clusters=5))
    adata = anndata.read_h5ad(path, backed="r+")
    with (
        LocalCluster(1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        ips2(adata, 5, client=client)
    np.testing.assert_array_equal(adata.obs["ips2"].cat.codes, want.labels)
    adata.file.close()


def test_what_a_backed_file_can_not_do_is_refused(tmp_path: Path) -> None:
    adata = anndata.read_h5ad(backed(tmp_path, 60), backed="r")
    with pytest.raises(BadInput, match="copy: found True with a backed AnnData"):
        ips2(adata, 3, copy=True)
    with pytest.raises(BadInput, match="a part of a backed AnnData"):
        ips2(adata[:30], 3)
    adata.file.close()


def test_the_estimator_reads_a_backed_file(tmp_path: Path) -> None:
    path = backed(tmp_path, 300)
    adata = anndata.read_h5ad(path, backed="r")
    fitted = IPS2(5).fit(adata)
    np.testing.assert_array_equal(fitted.labels_, run(str(path), Params(n_clusters=5)).labels)
    np.testing.assert_array_equal(fitted.predict(adata), fitted.labels_)
    adata.file.close()


# ---- the cells that scanpy ships


@pytest.fixture(scope="module")
def scanpy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("scanpy")


def real_cells(scanpy: Any) -> Any:
    """700 cells of ten known types, with their principal components."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scanpy.datasets.pbmc68k_reduced()


@pytest.mark.slow
def test_real_cells_are_clustered_as_well_as_by_scanpys_leiden_without_a_number(scanpy: Any) -> None:
    adata = real_cells(scanpy)
    known = adata.obs["bulk_labels"]
    ips2(adata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.pp.neighbors(adata, use_rep="X_pca")
        scanpy.tl.leiden(adata, key_added="theirs", flavor="igraph", directed=False, n_iterations=2)
    for score in (adjusted_rand_score, normalized_mutual_info_score):
        assert score(known, adata.obs["ips2"]) >= score(known, adata.obs["theirs"])


@pytest.mark.slow
def test_scanpys_functions_take_the_results_on_real_cells(scanpy: Any) -> None:
    adata = real_cells(scanpy)
    ips2(adata, key_added="communities", assign_labels="leiden")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.tl.leiden(adata, neighbors_key="communities", key_added="theirs", flavor="igraph", directed=False)
    assert adjusted_rand_score(adata.obs["theirs"], adata.obs["communities"]) > 0.5


@pytest.mark.slow
def test_the_graph_is_where_scanpys_neighbours_would_be(scanpy: Any) -> None:
    adata = real_cells(scanpy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.pp.neighbors(adata, n_neighbors=5, use_rep="X_pca", key_added="theirs")
    ips2(adata, 5, key_added="ours")
    ours, theirs = adata.uns["ours"], adata.uns["theirs"]
    assert set(theirs) <= set(ours)
    assert set(theirs["params"]) <= set(ours["params"])
    for name in ("n_neighbors", "metric", "random_state", "use_rep"):
        assert ours["params"][name] == theirs["params"][name]
    assert ours["distances_key"] == "ours_distances"
    near, want = adata.obsp["ours_distances"], adata.obsp["theirs_distances"]
    assert type(near) is type(want)
    assert (np.diff(near.indptr) == 4).all()  # as theirs, whose number of neighbours counts the cell itself too
    np.testing.assert_allclose(np.sort(near.toarray()), np.sort(want.toarray()), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("equal", [False, True])
def test_scanpys_tools_and_pictures_take_our_key(scanpy: Any, equal: bool) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("igraph")
    matplotlib.use("agg")
    adata = real_cells(scanpy)
    if equal:
        adata.obsm["X_pca"][600:] = adata.obsm["X_pca"][:100]
    ips2(adata, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.tl.paga(adata, groups="ips2", neighbors_key="ips2")
        scanpy.pl.paga(adata, show=False)
        scanpy.tl.umap(adata, neighbors_key="ips2", maxiter=5)
        scanpy.tl.leiden(adata, neighbors_key="ips2", flavor="igraph", directed=False, key_added="leiden")
        scanpy.tl.diffmap(adata, neighbors_key="ips2")
        adata.uns["iroot"] = 0
        scanpy.tl.dpt(adata, neighbors_key="ips2")
        scanpy.pl.umap(adata, color="ips2", edges=True, neighbors_key="ips2", show=False)
        scanpy.pl.embedding(adata, "X_ips2", color=["ips2", "ips2_certainty"], show=False)
        scanpy.tl.rank_genes_groups(adata, "ips2")
        matplotlib.pyplot.close("all")
    edges = adata.uns["paga"]["connectivities"].toarray()
    D, y = adata.obsp["ips2_distances"].tocoo(), adata.obs["ips2"].cat.codes.to_numpy()
    linked = np.zeros((5, 5), bool)
    linked[y[D.row], y[D.col]] = True
    np.testing.assert_array_equal(edges > 0, (linked | linked.T) & ~np.eye(5, dtype=bool))
    assert np.isfinite(adata.obsm["X_umap"]).all()
    assert adata.obs["leiden"].nunique() < 40
    assert adata.obsm["X_diffmap"].shape == (700, 15)
    if equal:
        assert adata.obs["leiden"].iloc[600:].tolist() == adata.obs["leiden"].iloc[:100].tolist()
    ips2(adata, 3)  # again, over what scanpy has left
    assert adata.obs["ips2"].nunique() == 3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_300000_cells_in_a_file_out_of_core(scanpy: Any, tmp_path: Path) -> None:
    """Real cells drawn again and again, with noise of a tenth of their spread, have the clusters of those drawn."""
    few = real_cells(scanpy)
    ips2(few)
    rng = np.random.default_rng(1)
    drawn, points = rng.integers(0, few.n_obs, 300_000), np.asarray(few.obsm["X_pca"], np.float32)
    noise = rng.normal(size=(len(drawn), points.shape[1])) * (0.1 * points.std(axis=0))
    names = pd.Index(np.arange(len(drawn)).astype(str))
    obs = pd.DataFrame({"known": few.obs["bulk_labels"].to_numpy()[drawn]}, index=names)
    anndata.AnnData((points[drawn] + noise).astype(np.float32), obs=obs).write_h5ad(tmp_path / "x.h5ad")
    adata = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r+")
    ips2(adata, few.obs["ips2"].nunique(), store=tmp_path / "run")
    assert adata.isbacked
    own = adjusted_rand_score(adata.obs["known"], adata.obs["ips2"])
    assert own > adjusted_rand_score(few.obs["bulk_labels"], few.obs["ips2"]) - 0.1
    adata.file.close()

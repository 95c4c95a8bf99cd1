"""A run that is opened again: each attribute against a plain computation, and what its directory holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
import zarr
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from ips2_dask import BadInput, Params, Resources, Run, open_run, run
from ips2_dask.kernels.rounding import WALK, cut_of
from ips2_dask.metrics import contingency
from ips2_dask.readers.base import matrix_table
from ips2_dask.store.layout import ARRAYS, STAGES

Array = npt.NDArray[Any]

M, C, K = 300, 4, 5
REPORTED = {
    "m",
    "f",
    "k",
    "c",
    "P",
    "nnz",
    "partitions",
    "stages",
    "peak_rss_bytes",
    "eigenvalues",
    "residual_max",
    "gap",
    "products",
    "verdict",
    "components",
    "fused_components",
    "islands",
    "builder",
    "recall",
    "run_dir",
    "warnings",
}


def groups() -> Array:
    """Four groups that touch, in mixed order: (M, 3), exact in float32, and no two distances of a sample the same."""
    rng = np.random.default_rng(21)
    X = rng.normal(size=(M, 3)) + 3.0 * rng.integers(0, C, size=(M, 1))
    return X.astype(np.float32).astype(np.float64)


@pytest.fixture(scope="module", name="X")
def samples() -> Array:
    return groups()


@pytest.fixture(scope="module", params=["exact", "shards"])
def finished(request: pytest.FixtureRequest, X: Array, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in a directory; the one with shards has renumbered its samples."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    source = matrix_table(X, "four groups", label_pieces=lambda: iter([_names()]))
    params = Params(
        n_clusters=C,
        n_neighbors=K,
        graph=request.param,
        tol=1e-3,
        shards=3 if request.param == "shards" else None,
        fusion="average",
    )
    resources = Resources(partition_rows=70)
    return run(source, params, resources, store=folder)


def _names() -> Array:
    return np.array(["north", "east", "south", "west"])[np.arange(M) % 4]


@pytest.fixture
def opened(finished: Run) -> Run:
    """The same, opened from its directory alone."""
    return open_run(str(finished.path))


def unit_of(pairs: Array) -> Array:
    """sqrt(2) for i < j, 1 for i = j: docs/method.md, The restricted basis."""
    return np.where(pairs[:, 0] < pairs[:, 1], np.sqrt(2.0), 1.0)


@pytest.mark.slow
def test_what_is_opened_is_what_the_run_returned(finished: Run, opened: Run) -> None:
    assert opened.path == finished.path
    assert opened.params == finished.params
    assert opened.manifest == finished.manifest
    for name in ("labels", "pairs", "degrees", "eigenvalues", "eigenvectors", "embedding", "known_labels"):
        assert np.array_equal(getattr(opened, name), getattr(finished, name)), name
    assert abs(opened.tensor() - finished.tensor()).max() == 0
    assert opened.report() == finished.report()


def test_the_table_of_known_classes_is_that_of_the_labels(opened: Run) -> None:
    table = opened.known_table()
    assert table is not None
    np.testing.assert_array_equal(table.toarray(), contingency(opened.known_labels, opened.labels).toarray())


def test_labels_are_numbered_by_their_first_sample(opened: Run) -> None:
    labels = opened.labels
    assert labels.shape == (M,)
    assert labels.dtype == np.int32
    first = [int(np.argmax(labels == c)) for c in range(C)]
    assert first == sorted(first)
    assert set(labels.tolist()) == set(range(C))


def test_neighbors_are_the_nearest_samples_the_sample_itself_first(X: Array, opened: Run) -> None:
    indices, distances = opened.neighbors
    assert indices.shape == distances.shape == (M, K)
    d = cdist(X, X)
    assert np.array_equal(indices[:, 0], np.arange(M))
    assert np.array_equal(indices, np.argsort(d, axis=1, kind="stable")[:, :K])
    np.testing.assert_allclose(distances, np.sort(d, axis=1)[:, :K], rtol=1e-5, atol=1e-6)


def test_pairs_are_those_that_share_a_neighbourhood_sorted(opened: Run) -> None:
    wanted = {(min(i, j), max(i, j)) for row in opened.neighbors.indices.tolist() for i in row for j in row}
    assert opened.pairs.tolist() == [list(pair) for pair in sorted(wanted)]
    assert opened.pairs.dtype == np.int32


def test_the_tensor_is_symmetric_and_its_entries_are_those_of_equation_7(X: Array, opened: Run) -> None:
    R, pairs = opened.tensor(), opened.pairs
    assert isinstance(R, sp.csr_array)
    assert R.shape == (len(pairs), len(pairs))
    assert R.dtype == np.float32
    assert abs(R - R.T).max() == 0
    assert R.has_canonical_format
    d = cdist(X, X)
    neighborhoods = [set(row) for row in opened.neighbors.indices.tolist()]
    rng = np.random.default_rng(22)
    coo = R.tocoo()
    for at in rng.choice(R.nnz, 200, replace=False):
        (i, j), (p, q) = pairs[coo.row[at]].tolist(), pairs[coo.col[at]].tolist()
        assert any({i, j, p, q} <= N for N in neighborhoods)
        both = [np.exp(-(d[i, j] + d[a, b]) / (d[i, a] + d[j, b] + 1e-4 * opened.unit)) for a, b in ((p, q), (q, p))]
        wanted = sum(both) if i < j and p < q else both[0] * (np.sqrt(2.0) if (i < j) != (p < q) else 1.0)
        assert coo.data[at] == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_degrees_are_row_sums_of_the_full_unfolded_tensor(opened: Run) -> None:
    unit = unit_of(opened.pairs)
    np.testing.assert_allclose(opened.degrees, (opened.tensor() @ unit) / unit, rtol=1e-5)
    assert opened.degrees.dtype == np.float64


def test_eigenpairs_are_those_of_the_laplacian(opened: Run) -> None:
    Y, values = opened.eigenvectors.astype(np.float64), opened.eigenvalues
    assert Y.shape == (len(opened.pairs), C)
    scale = 1 / np.sqrt(opened.degrees)
    L = opened.tensor().astype(np.float64) * scale[:, None] * scale
    assert np.abs(Y.T @ Y - np.eye(C)).max() < 1e-5
    residuals = np.linalg.norm(L @ Y - Y * values, axis=0)
    assert residuals.max() < opened.params.tol
    assert (np.diff(values) <= 0).all()
    count, label = connected_components(opened.tensor(), directed=False)
    assert count == opened.report()["components"] == np.count_nonzero(values == 1.0)
    for r in range(count):  # sqrt(degree) unit on each component is spanned by the vectors of eigenvalue 1
        vector = np.where(label == r, np.sqrt(opened.degrees) * unit_of(opened.pairs), 0.0)
        assert np.linalg.norm(Y[:, :count].T @ vector) == pytest.approx(np.linalg.norm(vector), rel=1e-6)


def test_similarities_are_symmetric_and_u_is_the_mean_of_s_and_v(X: Array, opened: Run) -> None:
    S, V, U = (opened.similarity(kind) for kind in ("pairwise", "high_order", "fused"))
    for A in (S, V, U):
        assert isinstance(A, sp.csr_array)
        assert A.shape == (M, M)
        assert abs(A - A.T).max() == 0
        assert A.data.min() > 0
    assert V.max() == 1.0
    assert abs(U - (S + V) / 2).max() < 1e-12
    assert abs(opened.similarity() - U).max() == 0
    d = cdist(X, X)
    t = d[np.triu_indices(M, 1)].mean()
    nearest = np.argsort(d, axis=1, kind="stable")[:, 1:6]
    wanted = np.zeros((M, M))
    np.put_along_axis(wanted, nearest, np.exp(-(np.take_along_axis(d, nearest, axis=1) ** 2) / (2 * t * t)), axis=1)
    np.testing.assert_allclose(sp.csr_array(S).toarray(), np.maximum(wanted, wanted.T), rtol=1e-4, atol=1e-7)


def test_the_high_order_similarity_is_the_root_mean_square_of_the_eigenvectors(opened: Run) -> None:
    i, j = opened.pairs.T
    rms = np.sqrt(np.square(opened.eigenvectors.astype(np.float64) / unit_of(opened.pairs)[:, None]).mean(axis=1))
    V = sp.csr_array(opened.similarity("high_order")).toarray()
    np.testing.assert_allclose(V[i, j], rms / rms.max(), rtol=1e-4, atol=1e-6)


def test_an_unknown_similarity_is_refused(opened: Run) -> None:
    with pytest.raises(BadInput, match=r"kind: found 'cosine'.*pairwise, high_order or fused"):
        opened.similarity("cosine")


def test_the_embedding_has_rows_of_length_one_in_the_users_order(opened: Run) -> None:
    embedding = opened.embedding
    assert embedding is not None
    assert embedding.shape == (M, C + 8)
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1.0, rtol=1e-6)


def test_k_means_has_come_to_rest_in_the_embedding(X: Array) -> None:
    found = run(X, Params(n_clusters=C, n_neighbors=K, assign_labels="kmeans", n_components=C))
    assert found.embedding is not None
    means = np.stack([found.embedding[found.labels == c].mean(axis=0) for c in range(C)])
    assert np.array_equal(cdist(found.embedding, means).argmin(axis=1), found.labels)


def test_the_ways_to_round_are_reported_and_one_of_them_is_chosen(opened: Run) -> None:
    ways = opened.report()["roundings"]
    assert [(one["rounding"], one["columns"]) for one in ways] == [
        ("density", C + 8),
        ("density", C),
        ("kmeans", C + 8),
        ("kmeans", C),
    ]
    (chosen,) = [one for one in ways if one["chosen"]]
    assert chosen["clusters"] == C
    assert chosen["cut"] == pytest.approx(cut_of(opened.similarity("fused"), opened.labels, C), rel=1e-6)
    assert all(one["left_out"] == 0 for one in ways if one["rounding"] == "kmeans")


def test_certainty_is_the_share_of_the_own_cluster_by_the_naive_walk(opened: Run) -> None:
    U = opened.similarity("fused").toarray()
    shares = np.eye(C)[opened.labels]
    for _ in range(WALK):
        shares = U / U.sum(axis=1, keepdims=True) @ shares
    np.testing.assert_allclose(opened.shares(), shares, atol=1e-5)
    np.testing.assert_allclose(opened.certainty, shares[np.arange(M), opened.labels], atol=1e-5)
    assert opened.certainty.dtype == np.float32


def test_a_number_of_clusters_that_no_cut_has_is_refused(opened: Run) -> None:
    with pytest.raises(BadInput, match="n_clusters: found 200"):
        opened.cut(200)


def test_a_run_without_a_tree_has_nothing_to_cut(X: Array) -> None:
    with pytest.raises(BadInput, match="without a tree of density"):
        run(X, Params(n_clusters=C, assign_labels="kmeans")).cut(3)


def test_known_labels_are_codes_of_the_sorted_names(opened: Run) -> None:
    assert opened.known_labels is not None
    assert np.array_equal(np.unique(_names())[opened.known_labels], _names())


def test_the_report_is_plain_and_complete(opened: Run) -> None:
    report = opened.report()
    assert set(report) >= REPORTED
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert [stage["name"] for stage in report["stages"]] == list(STAGES)
    assert (report["m"], report["f"], report["k"], report["c"]) == (M, 3, K, C)
    assert (report["P"], report["nnz"]) == (len(opened.pairs), opened.tensor().nnz)
    assert report["eigenvalues"] == opened.eigenvalues.tolist()
    assert report["residual_max"] <= opened.params.tol
    assert report["recall"] == 1.0
    assert report["run_dir"] == opened.path
    assert report["peak_rss_bytes"] > 1 << 20
    assert all(stage["seconds"] > 0 for stage in report["stages"])


def test_the_manifest_says_what_ran_with_which_versions(opened: Run) -> None:
    manifest = opened.manifest
    assert manifest["params"] == opened.params.as_dict()
    assert manifest["input"]["name"] == "four groups"
    assert manifest["input"]["shape"] == [M, 3]
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["created"] <= manifest["started"] <= manifest["finished"]
    assert [stage["folder"].split("-")[0] for stage in manifest["stages"]] == list(STAGES)


def test_its_name_says_what_it_is_of_how_far_it_is_and_where(opened: Run) -> None:
    assert repr(opened) == f"<Run of four groups: {M} x 3, 7 of 7 stages, {opened.path}>"


def test_what_a_user_writes_into_an_array_stays_with_that_user(finished: Run, opened: Run) -> None:
    before = opened.labels.copy()
    for array in (opened.labels, opened.eigenvalues, *opened.neighbors):
        array[:] = -7
    opened.tensor().data[:] = -7
    again = open_run(str(finished.path))
    assert np.array_equal(again.labels, before)
    assert again.eigenvalues.min() > 0
    assert again.neighbors.indices.min() == 0
    assert again.tensor().data.min() > 0


def test_the_directory_is_a_zarr_group_of_checked_arrays_without_pickles(finished: Run) -> None:
    root = zarr.open_group(str(finished.path), mode="r")
    assert root.metadata.zarr_format == 3
    known = {stage: set(arrays) for stage, arrays in ARRAYS.items()}
    seen = set()
    for path in sorted(Path(str(finished.path)).rglob("zarr.json")):
        described = json.loads(path.read_text())
        if described["node_type"] != "array":
            continue
        array = zarr.open_array(path.parent, mode="r")
        stage = path.relative_to(str(finished.path)).parts[0].split("-")[0]
        assert path.parent.name in known[stage]
        assert array.dtype.kind in "iuf"
        assert described["codecs"][-1]["name"] == "crc32c"
        assert array.attrs["meaning"] == ARRAYS[stage][path.parent.name].meaning
        seen.add(stage)
    assert seen == set(STAGES)
    assert [path for path in Path(str(finished.path)).rglob("*") if path.name.endswith((".partial", ".pkl"))] == []


def test_a_run_in_memory_has_the_same_attributes_and_no_path(X: Array, opened: Run) -> None:
    resources = Resources(partition_rows=70)
    kept = run(X, opened.params, resources)
    assert kept.path is None
    assert kept.report()["run_dir"] is None
    assert kept.known_labels is None
    assert np.array_equal(kept.labels, opened.labels)
    assert np.array_equal(kept.eigenvectors, opened.eigenvectors)
    assert abs(kept.similarity() - opened.similarity()).max() == 0


def test_a_gaussian_affinity_keeps_all_pairs_as_dense_matrices(X: Array) -> None:
    kept = run(X, Params(n_clusters=C, affinity="gaussian", fusion="average"))
    S, V, U = (kept.similarity(kind) for kind in ("pairwise", "high_order", "fused"))
    assert all(isinstance(A, np.ndarray) and A.shape == (M, M) for A in (S, V, U))
    d = cdist(X, X)
    t = d[np.triu_indices(M, 1)].mean()
    np.testing.assert_allclose(S, np.exp(-(d**2) / (2 * t * t)), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(U, (S + V) / 2, rtol=1e-5, atol=1e-7)
    i, j = kept.pairs.T
    active = np.zeros((M, M), bool)
    active[i, j] = active[j, i] = True
    assert (V[~active] == 0).all()


def test_k_means_on_the_rows_of_u_has_no_embedding(X: Array) -> None:
    assert run(X, Params(n_clusters=C, embedding="none")).embedding is None


@pytest.mark.parametrize("what", ["tensor", "degrees", "eigenvectors"])
def test_a_decomposable_run_has_no_tensor_and_says_where_one_is(X: Array, what: str) -> None:
    kept = run(X[:60], Params(n_clusters=C, tensor="decomposable"))
    with pytest.raises(BadInput, match=r"explicit\.tensor_similarity"):
        _ = kept.tensor() if what == "tensor" else getattr(kept, what)
    assert kept.report()["nnz"] is None
    assert kept.eigenvalues.shape == (C,)
    assert kept.similarity("high_order").shape == (60, 60)


def test_an_unfinished_run_is_refused_with_the_stages_that_are_done(X: Array, tmp_path: Path) -> None:
    class Stop:
        """Progress that stops at a stage."""

        def begin(self, stage: str) -> None:
            if stage == "tensor":
                raise KeyboardInterrupt

        def advance(self, stage: str, done: int, total: int) -> None: ...
        def end(self, stage: str, seconds: float, skipped: bool) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run(X, Params(n_clusters=C), store=tmp_path / "run", progress=Stop())
    with pytest.raises(BadInput, match=r"unfinished run \(stages done: ingest, neighbors\).*repeat the `ips2 run`"):
        open_run(tmp_path / "run")
    assert run(X, Params(n_clusters=C), store=tmp_path / "run").manifest["finished"]
    assert open_run(tmp_path / "run").labels.shape == (M,)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no manifest\.json"):
        open_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{ half a docu")
    with pytest.raises(BadInput, match=r"manifest\.json that can be read"):
        open_run(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 0, "created": "long ago"}))
    with pytest.raises(BadInput, match="format 0"):
        open_run(tmp_path)

"""S and a graph of neighbours given beside the samples: used as they are, checked, and part of the stages' keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from scipy import sparse
from sklearn.neighbors import kneighbors_graph

from ips2_dask import IPS2, BadInput, Params, Resources, Run, open_run, run

Array = npt.NDArray[Any]


def samples(m: int = 47) -> Array:
    rng = np.random.default_rng(1)
    return rng.normal(size=(m, 4)) + 3 * np.eye(3, 4)[rng.integers(0, 3, m)]


def cut_run(X: Array, params: Params, **given: Any) -> Run:
    return run(X, params, Resources(partition_rows=13), **given)


def given(kind: str) -> Any:
    S = reference.pairwise_similarity(reference.distances(samples()), "heat-knn", 1.5)
    return sparse.csr_array(S) if kind == "sparse" else S


def dense(S: Any) -> Array:
    return np.asarray(S.toarray() if sparse.issparse(S) else S)


@pytest.mark.parametrize("tensor", ["indecomposable", "decomposable"])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_the_given_s_is_the_pairwise_similarity_and_labels_are_those_of_the_built_one(kind: str, tensor: str) -> None:
    params = Params(n_clusters=3, affinity="precomputed", tensor=tensor)
    found = cut_run(samples(), params, similarity=given(kind))
    built = cut_run(samples(), Params(n_clusters=3, bandwidth=1.5, tensor=tensor))
    np.testing.assert_allclose(dense(found.similarity("pairwise")), dense(given(kind)), rtol=1e-6)
    U, expected = (dense(one.similarity("fused")) for one in (found, built))
    if kind == "dense" and tensor == "decomposable":  # V has a value for every pair, and a dense U keeps them all
        U = np.where(expected != 0, U, 0)
    np.testing.assert_allclose(U, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(found.labels, built.labels)


def test_a_diagonal_of_s_is_kept() -> None:
    S = given("sparse") + sparse.diags_array(np.arange(1.0, 48.0))
    found = cut_run(samples(), Params(n_clusters=3, affinity="precomputed"), similarity=S).similarity("pairwise")
    np.testing.assert_allclose(dense(found), S.toarray())


def test_s_is_in_the_users_numbering_also_where_shards_renumber() -> None:
    params = Params(n_clusters=3, affinity="precomputed", graph="shards", shards=3)
    X = samples(300)
    S = sparse.csr_array(reference.pairwise_similarity(reference.distances(X)))
    found = run(X, params, Resources(partition_rows=60), similarity=S)
    np.testing.assert_allclose(dense(found.similarity("pairwise")), S.toarray())


def test_another_s_changes_the_fusion_and_reuses_the_rest(tmp_path: Path) -> None:
    params = Params(n_clusters=3, affinity="precomputed")
    cut = Resources(partition_rows=13)
    run(samples(), params, cut, store=tmp_path / "run", similarity=given("sparse"))
    again = run(samples(), params, cut, store=tmp_path / "run", similarity=given("sparse") * 2)
    skipped = {stage["name"]: stage["skipped"] for stage in again.manifest["stages"]}
    assert skipped == {
        "ingest": True,
        "neighbors": True,
        "tensor": True,
        "assemble": True,
        "eigen": True,
        "fuse": False,
        "label": False,
    }
    opened = open_run(tmp_path / "run")
    np.testing.assert_allclose(dense(opened.similarity("pairwise")), 2 * given("dense"), rtol=1e-6)


def test_s_comes_from_a_file_as_well(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_matrix(given("sparse")))
    np.save(tmp_path / "s.npy", given("dense"))
    params = Params(n_clusters=3, affinity="precomputed")
    wanted = cut_run(samples(), params, similarity=given("sparse")).labels
    for name in ("s.npz", "s.npy"):
        found = cut_run(samples(), params, similarity=str(tmp_path / name)).labels
        np.testing.assert_array_equal(found, wanted)


def test_a_given_graph_gives_what_the_search_gives() -> None:
    X = samples()
    graph = kneighbors_graph(X, 8, mode="distance")
    wanted, found = cut_run(X, Params(n_clusters=3)), cut_run(X, Params(n_clusters=3), knn_graph=graph)
    np.testing.assert_array_equal(found.neighbors.indices, wanted.neighbors.indices)
    assert found.neighbors.distances.tobytes() == wanted.neighbors.distances.tobytes()
    np.testing.assert_array_equal(found.labels, wanted.labels)
    assert found.report()["builder"] == "given"
    assert found.report()["recall"] == 1.0


def test_a_graphs_values_and_loops_do_not_count_and_distances_are_those_of_the_metric() -> None:
    X = samples()
    graph = (kneighbors_graph(X, 8, metric="manhattan", include_self=False) * 7.0).tolil()
    graph.setdiag(3.0)
    params = Params(n_clusters=3, metric="manhattan")
    found, wanted = cut_run(X, params, knn_graph=graph.tocsr()), cut_run(X, params)
    np.testing.assert_array_equal(found.neighbors.indices, wanted.neighbors.indices)
    np.testing.assert_array_equal(found.neighbors.distances, wanted.neighbors.distances)


def test_a_graph_of_others_is_kept_and_its_recall_said() -> None:
    X = samples(60)
    ring = sum(sparse.eye_array(60, k=s) + sparse.eye_array(60, k=s - 60) for s in range(1, 6)).tocsr()
    found = cut_run(X, Params(n_clusters=3), knn_graph=ring)
    near = (found.neighbors.indices[:, 1:] - np.arange(60)[:, None]) % 60
    assert near.min() >= 1
    assert near.max() <= 5
    assert found.report()["recall"] < 0.5
    assert any("the graph that was given lists" in text for text in found.report()["warnings"])


def test_hubs_are_taken_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from ips2_dask.stages import neighbors  # noqa: PLC0415  what is patched

    X = samples()
    graph = kneighbors_graph(X, 8).tolil()
    graph[5] = 1
    wanted = cut_run(X, Params(n_clusters=3), knn_graph=graph.tocsr()).neighbors
    monkeypatch.setattr(neighbors, "GIVEN_AT_ONCE", 50)
    found = cut_run(X, Params(n_clusters=3), knn_graph=graph.tocsr()).neighbors
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.distances, wanted.distances)


@pytest.mark.parametrize(
    ("params", "beside", "said"),
    [
        ({"affinity": "precomputed"}, {}, "similarity: found none with affinity='precomputed'"),
        ({}, {"similarity": "S"}, "with affinity='heat-knn'"),
        ({"affinity": "precomputed"}, {"similarity": lambda S: S[:40, :40]}, "40 x 40, allowed is one of 47 x 47"),
        ({"affinity": "precomputed"}, {"similarity": lambda S: -S}, "an entry that is negative"),
        ({"affinity": "precomputed"}, {"similarity": lambda S: S * 0}, "no entry above 0"),
        ({"affinity": "precomputed"}, {"similarity": lambda S: sparse.triu(S).tocsr()}, "two directions that differ"),
        ({"metric": "precomputed"}, {"knn_graph": lambda S: S}, "a graph with metric='precomputed'"),
        ({"graph": "shards"}, {"knn_graph": lambda S: S}, "a graph with graph='shards'"),
        ({}, {"knn_graph": lambda S: sparse.eye_array(47).tocsr()}, "0 neighbours of sample 0"),
    ],
)
def test_what_is_not_defined_is_refused(params: dict[str, Any], beside: dict[str, Any], said: str) -> None:
    S = given("sparse")
    matrices = {name: make(S) if callable(make) else S for name, make in beside.items()}
    X = reference.distances(samples()) if params.get("metric") == "precomputed" else samples()
    with pytest.raises(BadInput, match=said):
        cut_run(X, Params(n_clusters=3, **params), **matrices)


def test_the_estimator_hands_both_on() -> None:
    X, S = samples(), given("sparse")
    found = IPS2(n_clusters=3, affinity="precomputed").fit(X, similarity=S, knn_graph=kneighbors_graph(X, 8))
    assert found.run_.report()["builder"] == "given"
    np.testing.assert_allclose(dense(found.pairwise_similarity_), dense(S))

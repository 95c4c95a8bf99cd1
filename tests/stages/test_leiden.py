"""Labels by Leiden: oracle, the same bits however a run is cut, equal rows, islands, numbers of clusters, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from ips2_dask import IPS2, BadInput, Params, Resources, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.errors import Refused
from ips2_dask.kernels import leiden as kernel
from ips2_dask.params import EMBEDDED_BEYOND
from ips2_dask.pipeline.prepare import Inputs, Prepared, plan_run
from ips2_dask.plan.plan import check_memory
from ips2_dask.plan.work import LEIDEN

igraph = pytest.importorskip("igraph")

AUTO = Params(max_clusters=12, assign_labels="leiden", n_neighbors=5)


def blobs(m: int = 300, centers: int = 4) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_blobs(m, 5, centers=centers, cluster_std=1.0, random_state=3)
    return X, y


def test_as_many_clusters_as_leiden_finds_on_u_itself() -> None:
    X, y = blobs()
    found = run(X, AUTO)
    U = found.similarity("fused").toarray()
    np.fill_diagonal(U, 0.0)
    A = igraph.Graph.Weighted_Adjacency(U, mode="undirected", attr="weight", loops=False)
    facts = found.manifest["stages"][-1]["facts"]["leiden"]
    own = A.modularity(found.labels.tolist(), weights="weight")
    assert facts["modularity"] == pytest.approx(own)
    assert own >= A.modularity(y.tolist(), weights="weight") - 1e-9
    assert found.params.n_clusters == facts["communities"] == len(np.unique(found.labels))
    assert facts["igraph"] == igraph.__version__
    assert found.choice is not None
    assert found.choice["communities"] == facts["communities"]
    _, first = np.unique(found.labels, return_index=True)
    assert np.all(np.diff(first) > 0)


def test_certainty_shares_embedding_and_predictions_are_those_of_the_labels() -> None:
    X, y = blobs()
    fitted = IPS2("auto", assign_labels="leiden", resolution=0.1).fit(X)
    found, c = fitted.run_, fitted.run_.params.n_clusters
    shares = found.shares()
    assert adjusted_rand_score(y, fitted.labels_) == 1.0
    assert shares.shape == (300, c)
    np.testing.assert_array_equal(found.certainty, shares[np.arange(300), found.labels])
    assert fitted.embedding_ is not None
    assert fitted.embedding_.shape == (300, 300 // 5 + EMBEDDED_BEYOND)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    assert (fitted.predict(X + 1e-3) == fitted.labels_).mean() > 0.99
    assert fitted.predict_proba(X[:2]).shape == (2, c)
    assert [one["rounding"] for one in found.report()["roundings"]] == ["leiden"]


@pytest.mark.parametrize("resources", [Resources(partition_rows=37), Resources(partition_rows=150)], ids=["37", "150"])
def test_partitions_do_not_matter(resources: Resources) -> None:
    X, _ = blobs()
    whole = run(X, AUTO)
    cut = run(X, AUTO, resources)
    np.testing.assert_array_equal(cut.labels, whole.labels)
    np.testing.assert_array_equal(cut.certainty, whole.certainty)


def test_shards_and_chunks_find_the_same_communities() -> None:
    X, _ = blobs(400)
    params = dataclasses.replace(AUTO, graph="shards", shards=3)
    whole = run(X, params, Resources(partition_rows=100))
    chunked = run(X, params, Resources(partition_rows=100, vectors="chunked"))
    again = run(X, params, Resources(partition_rows=50, vectors="chunked"))
    np.testing.assert_array_equal(chunked.labels, whole.labels)
    np.testing.assert_array_equal(again.labels, chunked.labels)
    np.testing.assert_allclose(chunked.certainty, whole.certainty, atol=0.01)
    np.testing.assert_array_equal(chunked.predict(X), chunked.labels)


@pytest.mark.slow
def test_one_worker_and_two_give_the_same_bits(tmp_path: Path) -> None:
    X, _ = blobs()
    want = run(X, AUTO, Resources(partition_rows=80))
    for n in (1, 2):
        with (
            LocalCluster(n, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as client,
        ):
            found = run(X, AUTO, Resources(partition_rows=80), client=client, store=tmp_path / str(n))
            np.testing.assert_array_equal(found.labels, want.labels)
            np.testing.assert_array_equal(found.certainty, want.certainty)
    opened = open_run(tmp_path / "2")
    assert opened.params == want.params
    reused = run(X, AUTO, Resources(partition_rows=80), store=tmp_path / "2")
    assert {stage["state"] for stage in reused.report()["stages"]} == {"reused"}


def test_rows_that_all_occur_twice_change_no_label() -> None:
    X, _ = blobs()
    once = run(X, AUTO)
    twice = run(np.concatenate([X, X]), AUTO)
    np.testing.assert_array_equal(twice.labels, np.tile(once.labels, 2))


def test_a_row_that_occurs_often_counts_as_its_affinity_does() -> None:
    X, _ = blobs(120, 3)
    rows = np.concatenate([X, np.repeat(X[:5], 3, axis=0)])
    found = run(rows, AUTO)
    weights = np.sqrt(np.r_[np.full(5, 4.0), np.ones(115)])
    U = found.similarity("fused", distinct=True).toarray() * weights * weights[:, None]
    np.fill_diagonal(U, 0.0)
    i, j = np.nonzero(np.triu(U))
    want = kernel.Graph(120, i, j, U[i, j]).communities(1.0, 0)
    np.testing.assert_array_equal(found.labels[:120], want.labels)


def test_a_given_number_of_clusters_is_met_or_said_not_to_be() -> None:
    X, _ = blobs()
    for c in (3, 4, 7):
        found = run(X, Params(n_clusters=c, assign_labels="leiden"))
        assert (len(np.unique(found.labels)), found.params.n_clusters) == (c, c)
        assert not any("no resolution" in text for text in found.report()["warnings"])


def test_islands_follow_others() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (200, 3)), rng.normal(40, 1, (200, 3)), rng.normal(80, 0.01, (7, 3))])
    params = Params(max_clusters=3, assign_labels="leiden", resolution=0.01)
    for vectors in ("in-core", "chunked"):
        found = run(X, params, Resources(partition_rows=100, vectors=vectors))
        assert found.labels[400:].tolist() == [found.labels[300]] * 7
        assert found.report()["islands"]["rows"] == 7


def test_all_pairs_of_a_dense_similarity() -> None:
    X, y = blobs(90, 3)
    found = run(X, Params(n_clusters=3, affinity="gaussian", bandwidth=1.0, assign_labels="leiden"))
    assert adjusted_rand_score(y, found.labels) > 0.9


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"assign_labels": "leiden", "n_clusters": 4, "resolution": 2.0}, "resolution: found 2.0 with n_clusters=4"),
        ({"resolution": 2.0}, "resolution: found 2.0 with assign_labels='auto'"),
    ],
)
def test_what_would_count_for_nothing_is_refused(params: dict[str, object], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        run(blobs()[0], Params(**params))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), "much", True])
def test_a_resolution_is_a_number_above_0(value: object) -> None:
    with pytest.raises(BadInput, match="resolution"):
        Params(assign_labels="leiden", max_clusters=5, resolution=value)  # type: ignore[arg-type]


def test_leiden_is_on_u_itself() -> None:
    with pytest.raises(BadInput, match="assign_labels: found 'leiden' with embedding"):
        Params(assign_labels="leiden", embedding="none")


def test_without_igraph_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel, "available", lambda: False)
    np.save(tmp_path / "x.npy", blobs()[0])
    words = ["run", str(tmp_path / "x.npy"), "--labels", "leiden", "--out", str(tmp_path / "run"), "--serial"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "pip install 'ips2-dask[graph]'" in error
    assert error.strip().count("\n") == 0


def test_the_command_line_takes_as_many_clusters_as_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", blobs()[0])
    words = ["run", str(tmp_path / "x.npy"), "--labels", "leiden", "--resolution", "0.1", "--serial"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert "4 communities found by Leiden at resolution 0.1" in capsys.readouterr().out
    found = open_run(tmp_path / "run")
    assert found.params.n_clusters == 4
    assert found.params.resolution == 0.1


@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_a_graph_that_does_not_fit_is_refused_before_anything_starts(vectors: str) -> None:
    class Table:
        name, shape, resident_bytes = "table", (3_000_000, 20), 0

    params = Params(max_clusters=12, assign_labels="leiden", graph="shards", shards=100)
    plan = plan_run(Table(), params, Resources(vectors=vectors))
    plain = plan_run(Table(), dataclasses.replace(params, assign_labels="auto"), Resources(vectors=vectors))
    label = plan.stages[-1]
    assert label.seconds > plain.stages[-1].seconds
    peak = next(phase for phase in label.phases if phase.name == LEIDEN)
    assert peak.bytes <= label.client_bytes
    if vectors == "chunked":  # in core other phases and stages may need more
        assert peak.bytes == label.client_bytes > plain.stages[-1].client_bytes
        with pytest.raises(Refused, match=r"stage label .*\(communities; graph of all samples"):
            check_memory(plan, None, peak.bytes - 1)
        small = Resources(vectors=vectors, memory_limit=peak.bytes // 2)
        source: Any = Table()
        with pytest.raises(Refused, match="or run it with assign_labels='auto'"):
            Prepared(Inputs(source), params, small, params, plan).check()
        check_memory(plan, None, plan.peak("driver")[1].bytes)

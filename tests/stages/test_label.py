"""Stage label: against a naive one on the whole of U, and stopped in the middle."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from harness import run_on
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import normalized_mutual_info_score

from ips2_dask import Features, Params, Resources, Run, run
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import normalize_rows
from ips2_dask.stages import islands, kmeans, label
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.typing import AnyArray

Array = npt.NDArray[Any]

PARAMS = Params(n_clusters=10)
CHUNKED = Resources(partition_rows=60, vectors="chunked")
BASES = ("embedding", "pairwise_basis", "high_order_basis")


@pytest.fixture(scope="module", name="X")
def samples() -> Array:
    return load_digits().data[:600]


def far_groups(*sizes: int) -> Array:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(len(truth), 3)) + 100 * np.array([[g % 4, g // 4, 0] for g in truth])
    return X[np.random.default_rng(3).permutation(len(X))]


def pieces() -> Array:
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(size=(40, 2)) * 8, rng.normal(size=(40, 2)) * 8 + 300])
    return np.repeat(places, 12, axis=0) + rng.normal(size=(960, 2)) * 1e-3


def by_partition(context: Context, prefix: str, name: str) -> Array:
    folder = context.folders["label"]
    parts = [context.store.read(folder, prefix + part_name(b), name) for b in range(context.n_partitions)]
    return np.concatenate(parts)


def results(found: Run) -> tuple[bytes, ...]:
    left_out = found.left_out
    arrays = (found.labels, found.certainty, found.shares(), np.zeros(0) if left_out is None else left_out)
    return tuple(array.tobytes() for array in arrays)


CASES = {
    "density": PARAMS,
    "k-means": dataclasses.replace(PARAMS, assign_labels="kmeans"),
    "shards": dataclasses.replace(PARAMS, shards=4),
    "normalised": dataclasses.replace(PARAMS, fusion="normalized"),
    "V alone": dataclasses.replace(PARAMS, method="ppc"),
    "signed": dataclasses.replace(PARAMS, high_order="signed"),
}


class Dense(NamedTuple):
    """The stage on the whole of U, naively, in the user's numbering."""

    embedding: Array  # (m, c), rows of length 1
    shares: Array  # (m, c)
    cut: float
    follows_from_bases: Array  # (m, c), rows of length 1: the embedding of each sample as if it were a new one


def dense(found: Run, columns: int) -> Dense:
    U, S = (abs(found.similarity(name).toarray()) for name in ("fused", "pairwise"))
    degrees = U.sum(axis=1)
    root = np.sqrt(degrees)
    values, vectors = np.linalg.eigh(U / root[:, None] / root)
    values, vectors = values[::-1][:columns], vectors[:, ::-1][:, :columns]
    points = vectors * rounding.commute_weights(values, 1, found.params.n_clusters)
    one_hot = np.eye(found.params.n_clusters)[found.labels]
    shares = np.linalg.matrix_power(U / degrees[:, None], rounding.WALK) @ one_hot
    inner = np.einsum("ic,ij,jc->c", one_hot, U, one_hot)
    bases = [np.concatenate([by_partition(found._context, "embedding-", name)]) for name in BASES[1:]]
    order = found._context.order()
    if order is not None:
        bases = [part[np.argsort(order)] for part in bases]
    factor = np.ones(len(U))
    if found.params.fusion == "normalized":
        factor = 1 / np.sqrt(S.sum(axis=1))
    rows = bases[1] + factor[:, None] * (S @ bases[0]) * (found.params.method != "ppc")
    return Dense(normalize_rows(points), shares, float((1 - inner / (degrees @ one_hot)).sum()), normalize_rows(rows))


def close(one: Array, other: Array, columns: int, atol: float) -> None:
    """Whether rows have the same scalar products, whatever the signs of columns are."""
    one, other = (normalize_rows(points[:, :columns]) for points in (one, other))
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_embedding_shares_cut_and_bases_are_those_of_the_whole_u(case: str, X: Array) -> None:
    found = run(X, CASES[case], CHUNKED)
    assert found._context.facts["label"]["u_components"] == 1
    expected, c = dense(found, found.embedding.shape[1]), found.params.n_clusters
    close(found.embedding, expected.embedding, c, 2e-3)
    close(found.embedding, expected.follows_from_bases, c, 2e-3)
    np.testing.assert_allclose(found.shares(), expected.shares, atol=1e-5)
    np.testing.assert_array_equal(found.certainty, found.shares()[np.arange(len(X)), found.labels])
    (winner,) = (one for one in found.report()["roundings"] if one["chosen"])
    assert winner["cut"] == pytest.approx(expected.cut, rel=1e-6)


def test_equal_rows_have_one_label_and_count_with_their_number(X: Array) -> None:
    """As if they were samples of their own, but for the neighbours that they don't take one another's places of."""
    rows = np.concatenate([X, X[::2], X[:50], X[:50]])
    found = run(rows, PARAMS, CHUNKED)
    np.testing.assert_array_equal(found.labels[600:900], found.labels[:600:2])
    copies = np.sqrt(np.bincount(np.r_[np.arange(600), np.arange(0, 600, 2), np.arange(50), np.arange(50)]))
    U = abs(found.similarity("fused").toarray())[:600, :600] * copies[:, None] * copies
    F = np.linalg.matrix_power(U / U.sum(axis=1)[:, None], rounding.WALK) @ np.eye(10)[found.labels[:600]]
    np.testing.assert_allclose(found.shares()[:600], F, atol=1e-5)


def test_more_components_than_clusters_are_joined_for_the_solve_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    medians, weigh = list[float](), islands._median_weight
    monkeypatch.setattr(islands, "_median_weight", lambda *given: medians.append(weigh(*given)) or medians[-1])
    found = run(pieces(), Params(n_clusters=2), CHUNKED)
    assert found._context.facts["label"]["u_components"] > 2
    assert "islands" not in found._context.facts["label"]
    assert len(set(found.labels[:480])) == len(set(found.labels[480:])) == 1
    assert medians == [np.median(abs(found.similarity("fused").data))]


def test_the_median_of_drawn_edges_is_near_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(islands, "MEDIAN_SAMPLES", 400)
    found = run(pieces(), Params(n_clusters=2), CHUNKED)
    assert (found.labels[:480] == found.labels[0]).all()
    assert (found.labels[480:] != found.labels[0]).all()


def test_a_component_without_a_leaf_takes_the_label_of_its_nearest_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_blobs([100, 100, 12], 2, centers=[[0, 0], [40, 0], [40, 30]], random_state=2)
    plain = kmeans._gathered

    def without_the_third(context: Context, columns: int) -> tuple[Array, Array, Array]:
        points, members, users = plain(context, columns)
        return points[y[users] < 2], members[y[users] < 2], users[y[users] < 2]

    monkeypatch.setattr(kmeans, "_gathered", without_the_third)
    found = run(X, Params(n_clusters=2, assign_labels="density"), Resources(partition_rows=25, vectors="chunked"))
    assert [one["rounding"] for one in found.report()["roundings"] if one["chosen"]] == ["density"]
    assert len(set(found.labels[y == 1])) == 1
    assert set(found.labels[y == 2]) == set(found.labels[y == 1])


@pytest.mark.slow
def test_islands_and_equal_rows_have_the_same_bits_on_workers(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    rows = np.concatenate([far_groups(200, 200, 7, 8), far_groups(200, 200, 7, 8)[:30]])
    here = run(rows, Params(n_clusters=2), Resources(partition_rows=110, vectors="chunked"))
    there = run_on(dask_executor, rows, Params(n_clusters=2), 110, tmp_path / "there", vectors="chunked")
    assert results(there) == results(here)


def test_trees_and_starts_on_a_draw_cut_as_those_on_all(X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "TREE_SAMPLES", (400, 400))
    monkeypatch.setattr(kmeans, "START_ROWS", 450)
    params = dataclasses.replace(PARAMS, assign_labels="density", n_components=10)
    found = run(X, params, CHUNKED)
    drawn = np.asarray(found._context.read("label", "rounding-density-0010-00", "drawn"))
    assert 350 < len(drawn) < 450
    assert (np.diff(drawn) > 0).all()  # in the user's order, which is that of this run
    assert found.left_out is not None
    assert found.left_out.sum() == found.left_out[drawn].sum()
    assert normalized_mutual_info_score(found.labels, run(X, params).labels) > 0.9
    np.testing.assert_array_equal(found.cut(10), found.labels)


@pytest.mark.parametrize("kind", ["plain", "shards", "equal rows", "gaps"])
def test_buckets_have_the_labels_of_partitions_in_the_order_of_the_input(
    kind: str, X: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label, "BUCKET_ROWS", 97)
    params, rows = PARAMS, X
    if kind == "shards":
        params = dataclasses.replace(params, shards=4)
    elif kind == "equal rows":
        rows = np.concatenate([X, X[::3]])
    elif kind == "gaps":
        rows = X.copy()
        rows[::50, 3] = np.nan
    found = run(rows, params, CHUNKED, features=Features(missing="drop") if kind == "gaps" else None)
    context = found._context
    buckets = context.facts["label"]["buckets"]
    assert buckets == -(-len(rows) // 97)
    for name in ("labels", "certainty", "left_out"):
        parts = [context.store.read(context.folders["label"], f"rows-{number:06d}", name) for number in range(buckets)]
        expected = context.by_row(by_partition(context, "labels-", name))
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    labels = found.labels
    _, first = np.unique(labels[labels >= 0], return_index=True)
    assert (np.diff(first) > 0).all()  # clusters are numbered by their first row
    if kind == "gaps":
        assert (labels[::50] == -1).all()


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("data", ["islands", pytest.param("digits", marks=pytest.mark.slow)])
def test_a_stage_that_is_stopped_again_and_again_ends_with_the_same_bits(
    data: str, X: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, params = (X, PARAMS) if data == "digits" else (far_groups(200, 200, 7, 8), Params(n_clusters=2))
    resources = dataclasses.replace(CHUNKED, partition_rows=100)
    undisturbed = run(rows, params, resources, store=tmp_path / "undisturbed")
    left: list[int] = []
    plain = ZarrStore.write

    def write(self: ZarrStore, folder: str, part: str, *arguments: Any) -> Any:
        if folder.startswith("label"):
            left.append(1)
            if len(left) > budget:
                raise Killed
        return plain(self, folder, part, *arguments)

    monkeypatch.setattr(ZarrStore, "write", write)
    stops = 0
    while True:
        budget, left = 4 + 12 * stops, []
        try:
            found = run(rows, params, resources, store=tmp_path / "run")
            break
        except Killed:
            stops += 1
    assert stops > 2
    assert results(found) == results(undisturbed)
    names = [sorted(path.name for path in (tmp_path / one).glob("label-*/*.json")) for one in ("run", "undisturbed")]
    assert names[0] == names[1]  # nothing is left over
    assert not [
        name for name in names[0] if name.startswith(("vectors", "degrees", "drawn", "walk", "spread", "reach"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [["embedding-p000003"], ["labels-p000002", "rows-000000"]])
def test_a_lost_part_is_computed_again_with_the_same_bits(lost: list[str], X: Array, tmp_path: Path) -> None:
    resources = dataclasses.replace(CHUNKED, partition_rows=150)
    first = run(X, PARAMS, resources, store=tmp_path / "run")
    before, bases = results(first), by_partition(first._context, "embedding-", "high_order_basis")
    for part in lost:
        (receipt,) = (tmp_path / "run").glob(f"label-*/{part}.json")
        receipt.unlink()
    again = run(X, PARAMS, resources, store=tmp_path / "run")
    assert [stage["state"] for stage in again.manifest["stages"]] == ["reused"] * 6 + ["computed again"]
    assert results(again) == before
    np.testing.assert_array_equal(by_partition(again._context, "embedding-", "high_order_basis"), bases)


@pytest.mark.slow
def test_no_array_of_the_stage_grows_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of the solve, which its own tests look at. Partitions, draws and buckets have as many rows."""
    monkeypatch.setattr(label, "BUCKET_ROWS", 90)
    monkeypatch.setattr(density, "TREE_SAMPLES", (100, 100))
    monkeypatch.setattr(density, "DIFFUSE_SAMPLES", 50)
    monkeypatch.setattr(kmeans, "START_ROWS", 100)
    lengths: dict[int, dict[str, int]] = {}
    read, write = MemoryStore.read, MemoryStore.write

    def note(m: int, name: str, array: AnyArray) -> None:
        lengths[m][name] = max(lengths[m].get(name, 0), len(array))

    for m in (600, 1800):
        lengths[m] = {}

        def reading(self: MemoryStore, folder: str, part: str, name: str, *rows: Any, m: int = m) -> Any:
            array = read(self, folder, part, name, *rows)
            if folder.startswith("label"):
                note(m, name, array)
            return array

        def writing(self: MemoryStore, folder: str, part: str, arrays: Any, facts: Any, m: int = m) -> Any:
            for name, array in arrays.items() if folder.startswith("label") else ():
                note(m, name, array)
            return write(self, folder, part, arrays, facts)

        monkeypatch.setattr(MemoryStore, "read", reading)
        monkeypatch.setattr(MemoryStore, "write", writing)
        X, _ = make_blobs([m // 3] * 3 + [9], 4, centers=np.eye(4) * 20, random_state=0)
        assert run(X, Params(n_clusters=3), CHUNKED).report()["islands"]["fused"] == 1
    few, many = lengths[600], lengths[1800]
    assert set(few) == set(many) >= {"embedding", "labels", "shares", "drawn", "centroids", "followed", "vectors"}
    assert many["crossings"] < 60 * 30  # edges that leave a partition, which has so many rows
    assert many["joins"] < 16 * 60 * 30  # the same of a group of partitions
    by_number_of_partitions = {
        "crossings",
        "source_offsets",
        "sources",
        "pieces",
        "piece_rows",
        "piece_component",
        "joins",
    }
    of_chunks = {"indptr", "indices", "data", "touched"}  # of so few samples a chunk touches nearly all others
    assert {name for name in many if many[name] > max(few[name], 140)} <= by_number_of_partitions | of_chunks


@pytest.mark.slow
def test_the_number_of_clusters_is_chosen_from_the_same_eigenvalues(tmp_path: Path) -> None:
    X, _ = make_blobs([90] * 6 + [7], 6, centers=np.eye(7, 6) * 30, random_state=1)
    whole = run(X, Params(max_clusters=12))
    found = run(X, Params(max_clusters=12), Resources(partition_rows=70, vectors="chunked"), store=tmp_path / "run")
    assert found.choice is not None
    assert whole.choice is not None
    n = found.choice["n_clusters"]  # those beyond are not solved for as exactly
    np.testing.assert_allclose(found.choice["eigenvalues"][:n], whole.choice["eigenvalues"][:n], atol=1e-3)
    for name in ("n_clusters", "components", "small_components", "considered", "warnings"):
        assert found.choice[name] == whole.choice[name]
    assert len(list((tmp_path / "run").glob("label-*"))) == 1  # the choice leaves nothing behind

"""Stage label of a chunked run, by partition: against the stage in core on the same U, and stopped in the middle."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import ShuffledExecutor, run_on
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import normalized_mutual_info_score

from ips2_dask import Features, Params, Resources, Run, run
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import density, rounding
from ips2_dask.progress import Progress, Reporter
from ips2_dask.stages import chunked_label, islands, kmeans, label
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


@dataclasses.dataclass
class InCore:
    """The stage in core on the U of a chunked run."""

    facts: dict[str, Any]
    labels: Array
    certainty: Array
    shares: Array
    arrays: dict[str, Array]


def in_core(found: Run) -> InCore:
    context = copy.copy(found._context)
    context.folders = {**context.folders, "label": "label-in-core"}
    context.facts = {name: facts for name, facts in context.facts.items() if name != "label"}
    facts = label._run_in_core(context, SerialExecutor(), Reporter(Progress(), "label"))

    def read(part: str, name: str) -> AnyArray:
        return np.asarray(context.store.read("label-in-core", part, name))

    receipt = context.store.receipt("label-in-core", "embedding")
    assert receipt is not None
    return InCore(
        facts,
        read("whole", "labels"),
        read("whole", "certainty"),
        context.by_row(by_partition(context, "shares-", "shares")),
        {name: read("embedding", name) for name in receipt["arrays"]},
    )


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


@pytest.mark.parametrize("case", CASES)
def test_labels_and_bases_are_those_in_core_from_the_same_u(case: str, X: Array) -> None:
    compare(run(X, CASES[case], CHUNKED))


def compare(found: Run) -> None:
    core, context = in_core(found), found._context
    facts = context.facts["label"]
    assert (core.labels != found.labels).sum() <= len(core.labels) // 200
    assert normalized_mutual_info_score(core.labels, found.labels) > 0.99
    same = core.labels == found.labels
    assert np.abs(core.shares - found.shares())[same].mean() < 1e-3
    np.testing.assert_array_equal(found.certainty, found.shares()[np.arange(len(same)), found.labels])
    for name in ("u_components", "large", "islands", "clusters", "warnings"):
        assert facts.get(name) == core.facts.get(name)
    for name in BASES:
        ours, theirs = by_partition(context, "embedding-", name), core.arrays[name]
        signs = np.where((ours * theirs).sum(axis=0) < 0, -1, 1)  # an eigenvector may point either way
        exact = slice(found.params.n_clusters)  # the others have the residuals of guard columns
        largest = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose((ours * signs)[:, exact], theirs[:, exact], atol=1e-3 * largest)
        np.testing.assert_allclose(ours * signs, theirs, atol=2e-2 * largest)
    for name in ("component", "follows"):
        assert ("follows" in core.arrays) == ("islands" in facts)
        if name in core.arrays:
            np.testing.assert_array_equal(by_partition(context, "embedding-", name), core.arrays[name])


@pytest.mark.parametrize("assign", ["auto", "kmeans", "density"])
def test_islands_follow_the_samples_that_they_follow_in_core(assign: str) -> None:
    X = far_groups(200, 200, 7, 8, 9, 7)
    found = run(X, Params(n_clusters=2, assign_labels=assign), Resources(partition_rows=17, vectors="chunked"))
    assert found.report()["islands"]["fused"] == 4
    compare(found)
    np.testing.assert_array_equal(found.labels, run(X, Params(n_clusters=2, assign_labels=assign)).labels)


def test_equal_rows_have_one_label_and_count_with_their_number(X: Array) -> None:
    rows = np.concatenate([X, X[::2], X[:50], X[:50]])
    found = run(rows, PARAMS, CHUNKED)
    compare(found)
    np.testing.assert_array_equal(found.labels[600:900], found.labels[:600:2])


def test_more_components_than_clusters_are_joined_for_the_solve_alone() -> None:
    """By the edges that join them in core: bases of new samples are then the same too."""
    found = run(pieces(), Params(n_clusters=2), CHUNKED)
    assert found._context.facts["label"]["u_components"] > 2
    assert "islands" not in found._context.facts["label"]
    compare(found)


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
@pytest.mark.parametrize("shards", [None, 5])
def test_labels_do_not_depend_on_partitions_or_on_the_order_of_tasks(shards: int | None) -> None:
    X, _ = make_blobs(700, 5, centers=6, cluster_std=2.0, random_state=4)
    params = Params(n_clusters=6, shards=shards)
    whole = run(X, params, Resources(partition_rows=100, vectors="chunked"))
    for rows in (45, 240):
        other = run(X, params, Resources(partition_rows=rows, vectors="chunked"))
        np.testing.assert_array_equal(other.labels, whole.labels)
    assert results(run_on(ShuffledExecutor(1), X, params, 100, vectors="chunked")) == results(whole)


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
    monkeypatch.setattr(chunked_label, "BUCKET_ROWS", 97)
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
@pytest.mark.parametrize("lost", [["embedding-p000003"], ["labels-p000002", "shares-p000001", "rows-000000"]])
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
    monkeypatch.setattr(chunked_label, "BUCKET_ROWS", 90)
    monkeypatch.setattr(density, "TREE_SAMPLES", (100, 100))
    monkeypatch.setattr(density, "DIFFUSE_SAMPLES", 50)
    monkeypatch.setattr(kmeans, "START_ROWS", 100)
    lengths: dict[int, dict[str, int]] = {}
    read, write = MemoryStore.read, MemoryStore.write

    def note(m: int, name: str, array: AnyArray) -> None:
        lengths[m][name] = max(lengths[m].get(name, 0), len(array))

    for m in (600, 1800):
        lengths[m] = {}

        def reading(self: MemoryStore, folder: str, part: str, name: str, m: int = m) -> Any:
            array = read(self, folder, part, name)
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
        "reached_start",
        "reached_by",
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


def test_chosen_cuts_are_those_of_the_whole_u(X: Array) -> None:
    found = run(X, PARAMS, CHUNKED)
    U = found.similarity("fused")
    (winner,) = (one for one in found.report()["roundings"] if one["chosen"])
    assert winner["cut"] == rounding.cut_of(U, found.labels, 10)

"""Equal rows as one sample: one label for all of them, that of the distinct rows, in any order and any partitions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from harness import ShuffledExecutor, slowly
from sklearn.datasets import make_blobs

from ips2_dask import Params, Resources, run
from ips2_dask.kernels import duplicates, shards
from ips2_dask.plan.choices import Choices
from ips2_dask.progress import Progress, Reporter
from ips2_dask.stages import ingest_duplicates
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context, part_name

MERGED = Params(n_clusters=3, duplicates="merge")


def _repeated(seed: int, m: int = 120) -> tuple[Any, Any]:
    """Rows repeated any number of times in any order, and which of the distinct rows each is."""
    rng = np.random.default_rng(seed)
    X = make_blobs(m, 4, centers=3, random_state=seed)[0]
    own = rng.permutation(np.concatenate([np.arange(m), rng.choice(m, 2 * m, p=rng.dirichlet(np.full(m, 0.3)))]))
    return X[own], own


@pytest.mark.parametrize("seed", slowly(range(4), 0))
@pytest.mark.parametrize("rows", [None, 31])
def test_equal_rows_have_the_label_of_the_distinct_row(seed: int, rows: int | None) -> None:
    X, own = _repeated(seed)
    found = run(X, MERGED, Resources(partition_rows=rows))
    firsts = np.sort(np.unique(own, return_index=True)[1])
    alone = run(X[firsts], MERGED)
    np.testing.assert_array_equal(found.distinct, firsts)
    np.testing.assert_array_equal(found.labels[firsts], alone.labels)
    np.testing.assert_array_equal(found.labels, found.labels[found.first_rows])
    np.testing.assert_array_equal(X[found.first_rows], X)
    for values in (found.certainty, found.embedding):
        assert values is not None
        np.testing.assert_array_equal(values, values[found.first_rows])
    assert found.report()["distinct"] == len(firsts)
    np.testing.assert_array_equal(found.predict(X), found.labels)


@pytest.mark.parametrize("times", [2, 4])
def test_rows_that_are_all_repeated_as_often_change_nothing(times: int) -> None:
    X = make_blobs(150, 4, centers=3, random_state=0)[0]
    found, alone = run(np.repeat(X, times, axis=0), MERGED), run(X, MERGED)
    np.testing.assert_array_equal(found.labels[::times], alone.labels)
    np.testing.assert_allclose(found.certainty[::times], alone.certainty, atol=1e-4)
    np.testing.assert_allclose(found.eigenvalues, alone.eigenvalues, atol=1e-5)


def test_an_edge_counts_by_the_root_of_the_rows_of_both_samples() -> None:
    X, _ = _repeated(5)
    found = run(X, MERGED)
    copies_of = np.bincount(np.searchsorted(found.distinct, found.first_rows))
    U = found.similarity("fused", distinct=True).toarray()
    expected = U * np.sqrt(copies_of)[:, None] * np.sqrt(copies_of)
    order = np.argsort(found._context.order())
    np.testing.assert_allclose(read_affinity(found._context).toarray()[order][:, order], expected, rtol=1e-6)
    values = np.sort(np.linalg.eigvalsh(expected / np.sqrt(np.outer(expected.sum(0), expected.sum(0)))))[::-1]
    stored = np.asarray(found._context.read("label", "embedding", "u_values"))
    np.testing.assert_allclose(stored, values[: len(stored)], atol=1e-4)


def test_a_similarity_is_of_all_rows_or_of_distinct_ones() -> None:
    X, own = _repeated(7)
    found = run(X, MERGED)
    whole, part = found.similarity("fused"), found.similarity("fused", distinct=True)
    assert whole.shape == (len(X), len(X))
    assert part.shape == (120, 120)
    at = np.searchsorted(found.distinct, found.first_rows)
    np.testing.assert_array_equal(whole.toarray(), part.toarray()[at][:, at])
    np.testing.assert_array_equal(found.neighbors.indices[:, 0], np.arange(len(X)))
    assert set(found.neighbors.indices[:, 1:].ravel().tolist()) <= set(found.distinct.tolist())
    np.testing.assert_array_equal(own[found.first_rows], own)


@pytest.mark.slow
def test_a_run_that_is_kept_is_gone_on_with(tmp_path: Path) -> None:
    X, _ = _repeated(3)
    resources = Resources(partition_rows=50)
    first = run(X, MERGED, resources, store=tmp_path / "run")
    again = run(X, MERGED, resources, store=tmp_path / "run")
    assert {stage["state"] for stage in again.manifest["stages"]} == {"reused"}
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.labels, run(X, MERGED).labels)


@pytest.mark.parametrize(("m", "c"), [(1, 2), (2, 2), (2, 3), (3, 2), (4, 3)])
def test_few_distinct_rows_are_clusters_of_their_own(m: int, c: int) -> None:
    X = np.repeat(make_blobs(40, 3, random_state=0)[0][:m], 6, axis=0)
    found = run(X, Params(n_clusters=c, duplicates="merge"))
    assert len(set(found.labels.tolist())) == min(m, c)
    np.testing.assert_array_equal(found.labels, found.labels[found.first_rows])


def test_given_distances_and_a_given_graph_are_those_of_distinct_rows() -> None:
    X, own = _repeated(2, 60)
    D = np.sqrt(np.square(X[:, None] - X[None]).sum(axis=2))
    by_distances = run(D, Params(n_clusters=3, metric="precomputed", duplicates="merge"))
    np.testing.assert_array_equal(by_distances.labels, by_distances.labels[by_distances.first_rows])
    assert len(by_distances.distinct) == 60
    order = np.argsort(D, axis=1, kind="stable")[:, :9]
    graph = sp.csr_array((np.ones(order.size), (np.repeat(np.arange(len(X)), 9), order.ravel())), shape=D.shape)
    by_graph = run(X, MERGED, knn_graph=graph)
    assert len(by_graph.distinct) == 60
    np.testing.assert_array_equal(by_graph.labels, by_graph.labels[by_graph.first_rows])
    np.testing.assert_array_equal(own[by_graph.first_rows], own)


def _merged(X: Any, left_out: Any, merges: bool) -> Context:
    """The context of a run in memory after equal rows of X were merged and some left out, 70 in a partition."""
    store, bounds = MemoryStore(), (*range(0, len(X), 70), len(X))
    choices = Choices("shards", 1, "matrix-free", "chunked")
    params, facts = Params(n_clusters=3, duplicates="merge" if merges else "keep"), {"ingest": {"missing": "drop"}}
    context = Context(store, params, bounds, X.shape[1], choices, {"ingest": "ingest", "tensor": "tensor"}, facts)
    for b in range(context.n_partitions):
        low, high = context.span(b)
        inside = left_out[(left_out >= low) & (left_out < high)]
        store.write("ingest", part_name(b), {"samples": X[low:high]}, {})
        store.write("ingest", f"gaps-{part_name(b)}", {"incomplete": inside}, {})
    report = Reporter(Progress(), "ingest")
    for _ in range(2):  # the second time all is there
        found = ingest_duplicates.merge(context, ShuffledExecutor(3), report, len(left_out))
    assert {part.partition("-p")[0] for part in store.parts("ingest")} <= {"distinct", "place", "gaps"}
    return dataclasses.replace(context, bounds=tuple(found["bounds"]), facts={"ingest": found})


@pytest.mark.parametrize("values", [2, 4, 9])
@pytest.mark.parametrize("merges", [False, True])
def test_samples_are_numbered_by_their_first_rows(values: int, merges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "RANGE_ROWS", 50)
    rng = np.random.default_rng(values)
    X = rng.integers(0, values, (300, 3)).astype(np.float32)
    left_out = np.sort(rng.choice(300, 40, replace=False))
    staying = np.setdiff1d(np.arange(300), left_out)
    firsts, sample = staying, np.arange(len(staying))
    if merges:
        _, first, inverse = np.unique(X[staying], axis=0, return_index=True, return_inverse=True)
        firsts, sample = np.unique(staying[first[inverse.ravel()]], return_inverse=True)
    place = np.full(300, -1)
    place[staying] = sample
    found = _merged(X, left_out, merges)
    parts = range(found.n_partitions)
    assert found.n_rows == 300
    np.testing.assert_array_equal(found.order(), firsts)
    np.testing.assert_array_equal(found.place(), place)
    np.testing.assert_array_equal(found.copies(), np.bincount(sample))
    np.testing.assert_array_equal(np.concatenate([found.samples_of(b) for b in parts]), X[firsts])
    np.testing.assert_array_equal(np.concatenate([found.user_numbers(b) for b in parts]), firsts)
    for low, high in ((0, 300), (65, 75), (140, 141), (0, 70), (290, 300)):
        np.testing.assert_array_equal(found.distinct_places(low, high), place[low:high])
    some = np.arange(0, found.m, 2)
    np.testing.assert_array_equal(found.copies_at(some), np.bincount(sample)[some])


def test_zero_equals_negative_zero_and_digests_follow_rows() -> None:
    X = np.random.default_rng(0).integers(0, 3, (500, 4)).astype(np.float32)
    found = duplicates.repeats(duplicates.digests(np.where(X == 0, -X, X)), np.arange(500))
    _, first, inverse = np.unique(X, axis=0, return_index=True, return_inverse=True)
    expected = np.flatnonzero(first[inverse.ravel()] != np.arange(500))
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.firsts, first[inverse.ravel()][expected])
    np.testing.assert_array_equal(duplicates.digests(X), duplicates.digests(np.where(X == 0, -X, X)))


def test_the_draw_for_the_cells_does_not_depend_on_partitions() -> None:
    whole = shards.is_drawn(0, 10_000, 0.2, 5)
    np.testing.assert_array_equal(
        np.concatenate([shards.is_drawn(a, a + 500, 0.2, 5) for a in range(0, 10_000, 500)]), whole
    )
    assert 0.18 < whole.mean() < 0.22
    assert (whole != shards.is_drawn(0, 10_000, 0.2, 6)).any()
    assert shards.is_drawn(3, 9, 1.0, 0).all()


def test_the_two_nearest_cells_do_not_depend_on_who_is_asked_beside() -> None:
    rng = np.random.default_rng(1)
    found = rng.normal(size=(40, 16)).astype(np.float32)
    X = np.concatenate([rng.normal(size=(300, 16)), (found[:20] + found[20:]) / 2]).astype(np.float32)
    whole = shards.two_nearest(X, found)
    np.testing.assert_array_equal(
        np.concatenate([shards.two_nearest(X[r : r + 1], found) for r in range(len(X))]), whole
    )

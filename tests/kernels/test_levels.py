"""Levels: aggregates are what they say, whatever the numbering, and Ritz values of few products are near the exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from scipy.spatial import cKDTree

from ips2_dask.kernels import levels

Array = npt.NDArray[Any]


def neighbor_graph(m: int = 600, groups: int = 1, k: int = 6, *, weighted: bool = False, seed: int = 0) -> sp.csr_array:
    """Who is among whose nearest: symmetric, with a diagonal; groups far apart are so many components."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, 2)) + 100 * (np.arange(m) % groups)[:, None]
    distance, N = cKDTree(X).query(X, k)
    values = np.exp(-(distance**2)) if weighted else np.ones_like(distance)
    A = sp.coo_array((values.ravel().astype(np.float32), (np.repeat(np.arange(m), k), N.ravel())), shape=(m, m)).tocsr()
    A = sp.csr_array(A.maximum(A.T))
    A.sort_indices()
    return A


def components(A: sp.csr_array) -> tuple[Array, int]:
    count, label = sp.csgraph.connected_components(A, directed=False)
    return label.astype(np.int32), int(count)


def level(A: sp.csr_array, seed: int = 0, samples: Array | None = None, without: Array | None = None) -> levels.Graph:
    """The finest level; nodes ``without`` take no part and are in no component."""
    degrees = np.asarray(A.sum(axis=1), np.float64).ravel()
    label, count = components(A)
    if without is not None:
        degrees[without] = 0
        kept, of_kept = np.unique(np.delete(label, without), return_inverse=True)
        count, label = len(kept), np.zeros_like(label)
        label[np.delete(np.arange(len(degrees)), without)] = of_kept
    return levels.Graph(A, degrees, label, count, seed, np.arange(len(degrees)) if samples is None else samples)


def states(A: sp.csr_array, rounds: int, seed: int = 0) -> Array:
    priority, state = levels.priorities(np.arange(A.shape[0]), seed, 0), np.zeros(A.shape[0], np.int8)
    for _ in range(rounds):
        state = levels.cover(A, levels.choose_seeds(A, priority, state, 0), 0)
    return state


@pytest.fixture(autouse=True)
def _small_graphs_have_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "COARSEST", 60)


def beside(A: sp.csr_array, chosen: Array) -> Array:
    """How many of the chosen nodes each node has beside it, itself not among them."""
    others = A.astype(bool).astype(int).tolil()
    others.setdiag(0)
    return np.asarray(others.tocsr() @ chosen.astype(int))


@pytest.mark.parametrize("weighted", [False, True])
def test_every_node_has_a_seed_beside_it_or_is_one_and_joins_the_strongest(weighted: bool) -> None:
    A = neighbor_graph(weighted=weighted)
    fine = level(A)
    coarse = fine.coarser()
    assert coarse is not None
    aggregate, seeds = fine._aggregate, coarse._samples
    assert len(seeds) < 0.4 * A.shape[0]
    np.testing.assert_array_equal(aggregate[seeds], np.arange(len(seeds)))
    degrees, is_seed = np.asarray(A.sum(axis=1)).ravel(), np.isin(np.arange(A.shape[0]), seeds)
    strength = A.toarray() / np.sqrt(degrees)
    strength[:, ~is_seed] = -1
    others = np.flatnonzero(~is_seed)
    joined = seeds[aggregate[others]]
    assert (A.toarray()[others, joined] > 0).all()
    np.testing.assert_allclose(strength[others, joined], strength[others].max(axis=1), rtol=1e-12)


def test_seeds_are_independent_and_what_is_left_has_none_beside_it() -> None:
    A = neighbor_graph(3000, k=12)
    after = states(A, levels.ROUNDS)
    assert not beside(A, after == levels.SEED)[after == levels.SEED].any()
    assert beside(A, after == levels.SEED)[after == levels.COVERED].all()
    assert not beside(A, after == levels.SEED)[after == levels.UNDECIDED].any()
    assert 0 < (after == levels.UNDECIDED).mean() < 0.1
    assert not (states(A, 20) == levels.UNDECIDED).any()
    fine = level(A)
    coarse = fine.coarser()
    assert coarse is not None
    np.testing.assert_array_equal(coarse._samples, np.flatnonzero(after != levels.COVERED))


@pytest.mark.parametrize("weighted", [False, True])
def test_aggregates_follow_the_samples_and_not_their_numbers(weighted: bool) -> None:
    """Equal similarities are common where all are 1."""
    A = neighbor_graph(4000, k=12, weighted=weighted)
    order = np.random.default_rng(1).permutation(4000)
    other = sp.csr_array(A[order][:, order])
    other.sort_indices()
    first, second = level(A), level(other, samples=order)
    one, two = first.coarser(), second.coarser()
    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(np.sort(two._samples), one._samples)
    np.testing.assert_array_equal(two._samples[second._aggregate], one._samples[first._aggregate][order])


def test_another_seed_or_level_has_other_priorities() -> None:
    nodes = np.arange(1000)
    several = [levels.priorities(nodes, seed, depth) for seed, depth in ((0, 0), (0, 1), (1, 0))]
    assert len(np.unique(several)) == 3000


@pytest.mark.parametrize("weighted", [False, True])
def test_the_coarse_graph_is_the_projection_on_aggregates(weighted: bool) -> None:
    A = neighbor_graph(weighted=weighted)
    fine = level(A)
    coarse = fine.coarser()
    assert coarse is not None
    P = np.zeros((A.shape[0], len(coarse._degrees)))
    P[np.arange(len(P)), fine._aggregate] = 1
    np.testing.assert_allclose(coarse._matrix.toarray(), P.T @ A.toarray().astype(np.float64) @ P, rtol=1e-5)
    np.testing.assert_allclose(coarse._degrees, P.T @ fine._degrees, rtol=1e-12)
    assert coarse._matrix.has_sorted_indices
    np.testing.assert_array_equal(coarse._label, fine._label[coarse._samples])
    root, y = np.sqrt(fine._degrees), np.random.default_rng(0).normal(size=(len(coarse._degrees), 3)).astype(np.float32)
    expected = root[:, None] * (P @ (y / np.sqrt(coarse._degrees)[:, None]))
    np.testing.assert_allclose(fine.prolong(coarse, y), expected, rtol=1e-5)


def test_rows_of_aggregates_are_summed() -> None:
    A = neighbor_graph(weighted=True)
    rng = np.random.default_rng(2)
    aggregate, column = np.sort(rng.integers(0, 50, 600)), rng.integers(0, 70, 600)
    merged = levels.merged_rows(A, aggregate, column, (50, 70))
    P, Q = np.eye(50)[aggregate], np.eye(70)[column]
    np.testing.assert_allclose(merged.toarray(), P.T @ A.toarray() @ Q, rtol=1e-5)
    assert merged.has_canonical_format


def test_aggregates_are_the_same_for_any_rows_at_a_time_and_of_rows_without_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = neighbor_graph(weighted=True).tolil()
    A[[0, 5, 6, 599]] = 0
    A[:, [0, 5, 6, 599]] = 0
    A = sp.csr_array(A)
    state, scale = states(A, levels.ROUNDS), np.ones(600)
    priority = levels.priorities(np.arange(600), 0, 0)
    joined = levels.strongest_seeds(A, scale, priority, state, 0)
    assert (state[[0, 5, 6, 599]] == levels.SEED).all()
    np.testing.assert_array_equal(joined[[0, 5, 6, 599]], [0, 5, 6, 599])
    monkeypatch.setattr(levels, "ROWS", 7)
    np.testing.assert_array_equal(states(A, levels.ROUNDS), state)
    np.testing.assert_array_equal(levels.strongest_seeds(A, scale, priority, state, 0), joined)


def exact(A: sp.csr_array, count: int, without: Array | None = None) -> Array:
    """Eigenvalues outside those of the components, descending."""
    dense = A.toarray().astype(np.float64)
    root = np.sqrt(dense.sum(axis=1))
    dense /= root[:, None] * root
    if without is not None:
        dense = np.delete(np.delete(dense, without, axis=0), without, axis=1)
    values: Array = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(values[:count], 1)
    return values[count:]


@pytest.mark.parametrize("groups", [1, 3])
def test_ritz_values_of_the_start_are_near_the_eigenvalues(groups: int) -> None:
    A = neighbor_graph(1200, groups)
    _, count = components(A)
    assert count == groups
    graph = level(A)
    found = levels.start(graph, 16, 10, 0)
    assert found is not None
    values = exact(A, groups)
    assert (found.values <= values[:16] + 1e-6).all()
    gaps = 1 - values[:10]
    assert (1 - found.values[:10]).sum() < 1.05 * gaps.sum()
    np.testing.assert_allclose(found.values[:4], values[:4], atol=2e-3)
    np.testing.assert_allclose(found.y.T @ found.y, np.eye(16), atol=1e-4)
    known = graph.space.known
    assert known is not None
    for h in range(groups):
        assert np.abs((known.vector * (known.label == h)) @ found.y).max() < 1e-5
    assert found.products == levels.PRODUCTS + 1
    L = graph.space.operator.matrix
    residuals = np.linalg.norm(L @ found.y - found.y * found.values, axis=0)
    np.testing.assert_allclose(found.residuals, residuals, atol=1e-5)


def test_a_solve_goes_on_from_the_start_to_the_eigenvalues() -> None:
    A = neighbor_graph(1200)
    graph = level(A)
    found = levels.leading(graph.space, levels.start(graph, 16, 8, 0), 8, tol=1e-5, settled=1e-4, seed=0)
    np.testing.assert_allclose(found.values[:8], exact(A, 1)[:8], atol=1e-4)


def test_rows_that_take_no_part_stay_zero_and_change_nothing_else() -> None:
    """An island, and samples that nothing is near."""
    A = sp.csr_array(sp.block_diag([neighbor_graph(900), neighbor_graph(20), sp.eye_array(5, dtype=np.float32)], "csr"))
    without = np.arange(900, 925)
    graph = level(A, without=without)
    found = levels.start(graph, 8, 4, 0)
    assert found is not None
    assert np.isfinite(found.y).all()
    assert not found.y[without].any()
    alone = levels.start(level(sp.csr_array(A[:900][:, :900])), 8, 4, 0)
    assert alone is not None
    np.testing.assert_allclose(found.values[:4], alone.values[:4], atol=2e-3)
    np.testing.assert_allclose(found.values[:4], exact(sp.csr_array(A[:900][:, :900]), 1)[:4], atol=2e-3)


def test_a_graph_that_does_not_get_smaller_has_no_levels() -> None:
    edges = sp.eye_array(200, dtype=np.float32).tocsr()
    assert level(sp.csr_array(edges)).coarser() is None
    assert levels.start(level(sp.csr_array(edges)), 8, 4, 0) is None
    assert level(neighbor_graph(50)).coarser() is None


def test_a_level_smaller_than_the_block_has_as_many_columns() -> None:
    """A hub beside every node: one aggregate a component, and no eigenvector of the coarse graph outside these."""
    m = 200
    A = sp.lil_array((m, m), dtype=np.float32)
    A[0, :], A[:, 0] = 1, 1
    A.setdiag(1)
    graph = level(
        sp.csr_array(A.tocsr()), seed=next(s for s in range(999) if states(sp.csr_array(A.tocsr()), 1, s)[0] == 1)
    )
    coarse = graph.coarser()
    assert coarse is not None
    assert len(coarse._degrees) == 1
    found = levels.start(graph, 8, 4, 0)
    assert found is not None
    assert found.y.shape == (m, 8)
    assert np.isfinite(found.y).all()
    assert np.isfinite(found.values).all()


def test_columns_beyond_the_eigenvectors_of_a_graph_stay_zero() -> None:
    """The coarse graph is solved densely: nodes that take no part have eigenvectors of their own, which are dropped."""
    A = sp.csr_array(sp.block_diag([neighbor_graph(80), sp.eye_array(30, dtype=np.float32)], "csr"))
    graph = level(A, without=np.arange(80, 110))
    found = levels.start(graph, 40, 4, 0)
    assert found is not None
    assert np.isfinite(found.y).all()
    norms = np.linalg.norm(found.y, axis=0)
    assert ((abs(norms - 1) < 1e-4) | (norms == 0)).all()
    np.testing.assert_allclose(found.values[:4], exact(neighbor_graph(80), 1)[:4], atol=1e-2)

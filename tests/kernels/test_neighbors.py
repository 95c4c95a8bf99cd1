"""Neighbours meet the oracle with every tie decided by (distance, id), whatever BLAS rounds; so does the graph S."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ips2_dask.kernels import neighbors, similarity
from ips2_dask.kernels.parallel import map_chunks, threads
from ips2_dask.kernels.sparse import reverse_lists
from ips2_dask.kernels.tensor import block_distances

Array = npt.NDArray[Any]


def as_float32(X: Array) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(X, np.float32)


def expected(X: Array, n: int) -> tuple[Array, Array]:
    d = reference.distances(as_float32(X))
    N = reference.neighborhoods(d, n)
    return N, np.take_along_axis(d, N, axis=1)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 12])
def test_exact_neighbours_are_the_oracles_with_ties_by_id(any_data: Array, n: int) -> None:
    X = as_float32(any_data)
    N, d = neighbors.exact_neighbors(X, 0, X, n)
    wanted, lengths = expected(X, n)
    np.testing.assert_array_equal(N, wanted)
    np.testing.assert_allclose(d, lengths, rtol=1e-6)
    assert N.dtype == np.int32
    assert d.dtype == np.float32


def test_all_samples_may_be_neighbours() -> None:
    X = as_float32(np.random.default_rng(0).integers(0, 3, size=(9, 2)))
    np.testing.assert_array_equal(neighbors.exact_neighbors(X, 0, X, 9)[0], expected(X, 9)[0])


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 40),
    f=st.integers(1, 5),
    levels=st.integers(1, 4),
    cut=st.floats(0, 1),
    data=st.data(),
)
@settings(deadline=None)
def test_neighbours_of_any_rows_of_a_grid_are_the_oracles(
    seed: int, m: int, f: int, levels: int, cut: float, data: st.DataObject
) -> None:
    X = as_float32(np.random.default_rng(seed).integers(0, levels, size=(m, f)))
    n = data.draw(st.integers(1, m))
    low = int(cut * (m - 1))
    N, _ = neighbors.exact_neighbors(X[low:], low, X, n)
    np.testing.assert_array_equal(N, expected(X, n)[0][low:])


def test_more_near_ties_than_a_row_has_room_for_are_scanned() -> None:
    rng = np.random.default_rng(1)
    X = as_float32(np.concatenate([np.eye(90), -np.eye(90), rng.normal(size=(20, 90))]))  # 178 at distance sqrt(2)
    X = X[rng.permutation(len(X))]
    np.testing.assert_array_equal(neighbors.exact_neighbors(X, 0, X, 5)[0], expected(X, 5)[0])


def test_neighbours_do_not_change_with_blocks_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    X = as_float32(np.random.default_rng(2).integers(0, 6, size=(300, 3)))
    N, d = neighbors.exact_neighbors(X, 0, X, 7)
    monkeypatch.setattr(neighbors, "EXACT_ROWS", 17)
    monkeypatch.setattr(neighbors, "EXACT_COLUMNS", 41)
    with threads(3):
        again, lengths = neighbors.exact_neighbors(X, 0, X, 7)
    np.testing.assert_array_equal(again, N)
    assert lengths.tobytes() == d.tobytes()
    np.testing.assert_array_equal(N, expected(X, 7)[0])


def test_far_from_the_origin_the_nearest_are_still_found() -> None:
    rng = np.random.default_rng(3)
    X = as_float32(rng.integers(0, 5, size=(60, 3)) + 2.0**20)  # norms of 1e12 against squared distances of 1
    np.testing.assert_array_equal(neighbors.exact_neighbors(X, 0, X, 5)[0], expected(X, 5)[0])


@pytest.mark.parametrize("f", [1, 7, 512, 513, 1400])
def test_squared_distance_is_symmetric_and_right_for_any_number_of_features(f: int) -> None:
    x, y = as_float32(np.random.default_rng(f).normal(size=(2, f)))
    found = neighbors.squared_distance(x, y)
    assert found == neighbors.squared_distance(y, x)
    assert found == pytest.approx(np.square(x.astype(np.float64) - y).sum(), rel=1e-5)
    assert neighbors.squared_distance(x, x) == 0


@pytest.mark.parametrize("f", [1, 30, 800])
def test_the_slack_covers_what_blas_rounds(f: int) -> None:
    X = as_float32(np.random.default_rng(f).normal(size=(200, f)) + 1.0)
    norms = np.einsum("ij,ij->i", X, X)
    scale = norms[:, None] + norms
    squared = np.square(reference.distances(X))
    assert (np.abs(scale - 2 * (X @ X.T) - squared) <= neighbors.rounding_slack(f) * scale).all()


def spoiled(N: Array) -> Array:
    """Candidates as an approximate builder may give them: itself anywhere, repeated ids, -1, in any order."""
    rng = np.random.default_rng(0)
    wide = np.concatenate([N[:, ::-1], N[:, :3], np.full((len(N), 2), -1)], axis=1)
    return np.ascontiguousarray(rng.permuted(wide, axis=1), np.int32)


def test_candidates_that_hold_the_nearest_give_the_oracles_graph(any_data: Array) -> None:
    X = as_float32(any_data)
    N, d = expected(X, 6)
    found, lengths, repaired = neighbors.refine_candidates(X, spoiled(N), 6)
    np.testing.assert_array_equal(found, N)
    np.testing.assert_allclose(lengths, d, rtol=1e-6)
    assert repaired == 0


def test_rows_with_too_few_candidates_are_computed_exactly_and_counted() -> None:
    X = as_float32(np.random.default_rng(4).normal(size=(30, 3)))
    N, d = expected(X, 5)
    candidates = spoiled(N)
    candidates[[3, 17]] = -1
    candidates[8] = 8
    candidates[21, :] = N[21, 1]
    found, lengths, repaired = neighbors.refine_candidates(X, candidates, 5)
    assert repaired == 4
    np.testing.assert_array_equal(found, N)
    np.testing.assert_allclose(lengths, d, rtol=1e-6)


def test_whatever_the_candidates_each_row_ends_with_different_samples_itself_first() -> None:
    rng = np.random.default_rng(5)
    X = as_float32(rng.integers(0, 3, size=(40, 2)))
    N, d, _ = neighbors.refine_candidates(X, rng.integers(-1, 40, size=(40, 9)).astype(np.int32), 6)
    assert (N[:, 0] == np.arange(40)).all()
    assert all(len(set(row)) == 6 for row in N.tolist())
    order = [list(zip(row[1:], ids[1:], strict=True)) for row, ids in zip(d.tolist(), N.tolist(), strict=True)]
    assert all(row == sorted(row) for row in order)
    np.testing.assert_allclose(d, np.take_along_axis(reference.distances(X), N.astype(np.int64), axis=1), rtol=1e-6)


@pytest.mark.slow
def test_pynndescents_candidates_settle_to_a_graph_of_high_recall_the_same_each_time() -> None:
    rng = np.random.default_rng(6)
    X = as_float32(rng.normal(size=(3000, 8)) + 4 * rng.integers(0, 4, size=(3000, 1)))
    first, second = (neighbors.descent_candidates(X, 6, 0) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    N, d, _ = neighbors.refine_candidates(X, first, 6)
    _, reach = neighbors.exact_neighbors(X, 0, X, 6)
    assert neighbors.recall(d, reach[:, -1]) >= 0.95
    assert (N[:, 0] == np.arange(len(X))).all()


def test_recall_is_the_share_of_listed_others_no_farther_than_the_true_last_one() -> None:
    distances = np.array([[0, 1, 2, 2], [0, 1, 3, 4]], np.float32)
    assert neighbors.recall(distances, np.array([2, 4], np.float32)) == 1.0
    assert neighbors.recall(distances, np.array([2, 2], np.float32)) == pytest.approx(4 / 6)


def test_the_bandwidth_comes_from_all_samples_or_a_seeded_choice_of_them() -> None:
    np.testing.assert_array_equal(neighbors.bandwidth_rows(50, 50, 0), np.arange(50))
    chosen = neighbors.bandwidth_rows(9000, 5000, 3)
    assert len(set(chosen.tolist())) == neighbors.BANDWIDTH_SAMPLE
    assert (np.diff(chosen) > 0).all()
    assert chosen[-1] < 9000
    np.testing.assert_array_equal(chosen, neighbors.bandwidth_rows(9000, 5000, 3))
    assert (chosen != neighbors.bandwidth_rows(9000, 5000, 4)).any()


def test_bandwidths_are_the_oracles(any_data: Array) -> None:
    d = reference.distances(any_data)
    mean, median = similarity.bandwidths(similarity.all_lengths(as_float32(any_data)))
    assert mean == pytest.approx(reference.bandwidth_of(d, "mean"), rel=1e-6)
    assert median == pytest.approx(reference.bandwidth_of(d, "median"), rel=1e-6)
    assert similarity.bandwidths(np.zeros((1, 1))) == (0.0, 0.0)


def test_the_heat_kernel_is_the_oracles_and_one_where_all_samples_are_equal(any_data: Array) -> None:
    d = reference.distances(any_data)
    np.testing.assert_allclose(similarity.heat(d, 0.7), reference.heat(d, 0.7))
    assert (similarity.heat(np.zeros(4), 0.0) == 1).all()


@pytest.mark.parametrize(("cuts", "at_once"), [((), 1 << 16), ((7,), 1 << 16), ((1, 2, 3, 20), 1 << 16), ((7,), 20)])
def test_edges_of_the_graph_are_the_oracles_each_once_for_any_cuts(
    any_data: Array, cuts: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "AT_ONCE", at_once)  # entries above which samples are halved
    X = as_float32(any_data)
    d = reference.distances(X)
    N, lengths = neighbors.exact_neighbors(X, 0, X, 6)
    bounds = [0, *cuts, len(X)]
    parts = [similarity.graph_edges(N, lengths, reverse_lists(N), a, b) for a, b in itertools.pairwise(bounds)]
    edges, length = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    joined = reference.pairwise_similarity(d, "heat-knn", 1e6) > 0
    np.testing.assert_array_equal(edges, np.argwhere(np.triu(joined)))
    np.testing.assert_allclose(length, d[edges[:, 0], edges[:, 1]], rtol=1e-6)


def test_lengths_of_pairs_of_blocks_and_of_all_samples_are_the_oracles(any_data: Array) -> None:
    X = as_float32(any_data)
    d = reference.distances(X)
    pairs = np.argwhere(np.ones_like(d))
    np.testing.assert_allclose(similarity.pair_lengths(X, pairs), d.ravel(), rtol=1e-6)
    np.testing.assert_allclose(similarity.all_lengths(X), d, rtol=1e-6, atol=1e-6)
    N = reference.neighborhoods(d, 5)
    upper = np.triu_indices(5, 1)
    blocks = block_distances(X, N.astype(np.int32))
    np.testing.assert_allclose(blocks, [d[np.ix_(row, row)][upper] for row in N], rtol=1e-6)


def test_reverse_lists_name_the_neighbourhoods_of_a_sample_in_order(any_data: Array) -> None:
    N = reference.neighborhoods(reference.distances(any_data), 4)
    start, centers = reverse_lists(N.astype(np.int32))
    for i in range(len(N)):
        assert centers[start[i] : start[i + 1]].tolist() == [p for p, row in enumerate(N.tolist()) if i in row]


@given(n=st.integers(0, 100), size=st.integers(1, 30), count=st.integers(1, 5))
@settings(deadline=None)
def test_chunks_cover_the_range_in_order_for_any_number_of_threads(n: int, size: int, count: int) -> None:
    with threads(count):
        found = map_chunks(lambda a, b: list(range(a, b)), n, size)
    assert [number for part in found for number in part] == list(range(n))
    assert all(len(part) == size for part in found[:-1])

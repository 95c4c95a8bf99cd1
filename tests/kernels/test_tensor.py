"""Pairs, owners and entries of the indecomposable tensor meet the oracle; each entry has one owner, hubs or not."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ips2_dask.kernels import tensor
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import threads
from ips2_dask.kernels.sparse import assemble, inverse_root, normalized, reverse_lists

Array = npt.NDArray[Any]


def neighborhoods(X: Array, k: int) -> npt.NDArray[np.int32]:
    return reference.neighborhoods(reference.distances(X), k).astype(np.int32)


def random_neighborhoods(seed: int, m: int, k: int) -> npt.NDArray[np.int32]:
    """Any k different samples, the sample itself first: what no geometry would give is allowed too."""
    rng = np.random.default_rng(seed)
    weight = rng.random(m) ** 4 + 1e-3  # a few samples are in most of them
    rows = []
    for p in range(m):
        chance = np.where(np.arange(m) == p, 0, weight)
        rows.append([p, *rng.choice(m, k - 1, replace=False, p=chance / chance.sum())])
    return np.array(rows, np.int32)


def owners(N: Array) -> npt.NDArray[np.bool_]:
    """The definition: p owns a subset of N(p) if no smaller centre's neighbourhood holds it."""
    members = [set(row) for row in N.tolist()]
    k = N.shape[1]
    subsets = [c for size in range(1, min(k, 4) + 1) for c in itertools.combinations(range(k), size)]
    return np.array(
        [
            [not any({int(row[a]) for a in subset} <= earlier for earlier in members[:p]) for subset in subsets]
            for p, row in enumerate(N)
        ]
    )


def restricted_by_partitions(
    X: Array, N: npt.NDArray[np.int32], bounds: list[int], sigma: float = 1.0, epsilon: float = 1e-4
) -> tuple[Array, Array, Array, Array]:
    """Pairs and triplets as the stages make them, partition by partition."""
    reverse = reverse_lists(N)
    spans = list(itertools.pairwise(bounds))
    pairs = np.concatenate([tensor.owned_pairs(N, reverse, a, b) for a, b in spans])
    distances = tensor.block_distances(np.ascontiguousarray(X, np.float32), N)
    parts = []
    for a, b in spans:
        owned = tensor.owned_subsets(N, reverse, a, b)
        ids = tensor.pair_ids(N[a:b], pairs, np.arange(len(pairs)))
        parts.append(tensor.triplets(distances[a:b], ids, owned, N.shape[1], sigma, epsilon))
    rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return pairs, rows, columns, values


@pytest.mark.parametrize("k", range(1, 8))
def test_local_pairs_and_subsets_are_numbered_consistently(k: int) -> None:
    tables = tensor.local_pairs(k)
    pairs = list(itertools.combinations_with_replacement(range(k), 2))
    assert list(zip(tables.first.tolist(), tables.second.tolist(), strict=True)) == pairs
    assert len(tables.members) == sum(math.comb(k, size) for size in range(1, 5))
    for r, first in enumerate(pairs):
        for s, second in enumerate(pairs):
            members = tables.members[tables.subset[r, s]]
            assert set(members[members >= 0].tolist()) == set(first) | set(second)
    for members, mask in zip(tables.members, tables.masks.tolist(), strict=True):
        assert {a for a in range(k) if mask >> a & 1} == set(members[members >= 0].tolist())


@pytest.mark.parametrize("k", [2, 3, 5, 9, 12])
def test_active_pairs_are_the_oracles_whatever_the_cuts(any_data: Array, k: int) -> None:
    N = neighborhoods(any_data, k)
    m = len(N)
    for cuts in ([0, m], list(range(m + 1)), [0, 1, m // 2, m // 2, m]):
        parts = [tensor.owned_pairs(N, reverse_lists(N), a, b) for a, b in itertools.pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), reference.active_pairs(N))


def test_a_sample_with_more_mates_than_the_first_buffer_holds_keeps_all_pairs() -> None:
    m = 150
    N = np.column_stack([np.arange(m), np.zeros(m, int), np.roll(np.arange(m), 1)]).astype(np.int32)
    N[0], N[1] = [0, 1, 2], [1, 0, 2]  # sample 0 is in every neighbourhood, with 149 others
    np.testing.assert_array_equal(tensor.owned_pairs(N, reverse_lists(N), 0, m), reference.active_pairs(N))


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("hub", [1, 2, 3, 5, 256])
def test_a_subset_is_owned_by_the_smallest_centre_that_holds_it_hub_or_not(
    any_data: Array, k: int, hub: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    N = neighborhoods(any_data, k)
    monkeypatch.setattr(tensor, "HUB", hub)
    np.testing.assert_array_equal(tensor.owned_subsets(N, reverse_lists(N), 0, len(N)), owners(N))


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 25),
    k=st.integers(2, 7),
    hub=st.integers(1, 30),
    cut=st.floats(0, 1),
)
@settings(deadline=None, max_examples=60)
def test_owners_of_any_neighbourhoods_do_not_depend_on_cuts_or_on_what_counts_as_a_hub(
    seed: int, m: int, k: int, hub: int, cut: float
) -> None:
    N = random_neighborhoods(seed, m, min(k, m))
    low = int(cut * m)
    reverse = reverse_lists(N)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor, "HUB", hub)
        parts = [tensor.owned_subsets(N, reverse, 0, low), tensor.owned_subsets(N, reverse, low, m)]
    np.testing.assert_array_equal(np.concatenate(parts), owners(N))


def test_a_real_hub_above_the_limit_is_settled_like_any_other_sample() -> None:
    m = tensor.HUB + 40
    rng = np.random.default_rng(0)
    other = (np.arange(m) + 1 + rng.integers(0, 9, m)) % m
    N = np.column_stack([np.arange(m), np.where(np.arange(m) == 7, 8, 7), np.where(other == 7, 12, other)])
    N = np.array([row if len(set(row)) == 3 else [row[0], row[1], (row[0] + 30) % m] for row in N.tolist()], np.int32)
    assert np.diff(reverse_lists(N).start).max() > tensor.HUB
    np.testing.assert_array_equal(tensor.owned_subsets(N, reverse_lists(N), 0, m), owners(N))


@pytest.mark.parametrize("k", [2, 5, 8])
def test_every_subset_of_a_neighbourhood_has_exactly_one_owner(any_data: Array, k: int) -> None:
    N = neighborhoods(any_data, k)
    tables = tensor.local_pairs(k)
    owned = tensor.owned_subsets(N, reverse_lists(N), 0, len(N))
    held: dict[frozenset[int], int] = {}
    for row, mine in zip(N.tolist(), owned, strict=True):
        for members, is_owner in zip(tables.members.tolist(), mine.tolist(), strict=True):
            subset = frozenset(row[a] for a in members if a >= 0)
            held[subset] = held.get(subset, 0) + is_owner
    assert set(held.values()) == {1}


@pytest.mark.parametrize("k", [2, 4, 7])
@pytest.mark.parametrize("numbered", [True, False])
def test_pair_ids_are_positions_in_the_sorted_list_of_active_pairs(any_data: Array, k: int, numbered: bool) -> None:
    N = neighborhoods(any_data, k)
    pairs = reference.active_pairs(N).astype(np.int32)
    tables = tensor.local_pairs(k)
    ids = tensor.pair_ids(N[3:], pairs, np.arange(len(pairs)) if numbered else None)
    first, second = N[3:][:, tables.first], N[3:][:, tables.second]
    np.testing.assert_array_equal(pairs[ids, 0], np.minimum(first, second))
    np.testing.assert_array_equal(pairs[ids, 1], np.maximum(first, second))


def test_pair_ids_follow_the_numbers_of_the_lists_they_are_given() -> None:
    N = neighborhoods(np.random.default_rng(0).normal(size=(20, 3)), 4)
    pairs = reference.active_pairs(N).astype(np.int32)
    kept = (pairs[:, 0] % 5 > 0) & (pairs[:, 0] > 3)  # as if some partitions were not needed
    numbers = np.flatnonzero(kept)
    centers = [p for p in range(20) if (N[p] % 5 > 0).all() and N[p].min() > 3]
    assert centers
    whole = tensor.pair_ids(N[centers], pairs, np.arange(len(pairs)))
    np.testing.assert_array_equal(tensor.pair_ids(N[centers], pairs[kept], numbers), whole)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 1e-4), (0.05, 9e-4), (2.0, 1e-6), (6.0, 1e-4)])
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_triplets_are_the_upper_triangle_of_the_oracles_restricted_tensor(
    any_data: Array, k: int, sigma: float, epsilon: float
) -> None:
    d = reference.distances(any_data)
    N = reference.neighborhoods(d, k)
    m = len(N)
    pairs, rows, columns, values = restricted_by_partitions(
        any_data, N.astype(np.int32), [0, 4, 5, m - 3, m], sigma, epsilon
    )
    np.testing.assert_array_equal(pairs, reference.active_pairs(N))
    R = reference.restricted(reference.tensor(d, N, sigma, epsilon), pairs)
    assert (rows <= columns).all()
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(rows)
    found = np.zeros_like(R)
    found[rows, columns] = values
    difference = np.abs(found - np.triu(R))
    assert (difference <= 1e-5 * np.abs(R) + 1e-7).all()
    assert values.dtype == np.float32


@pytest.mark.parametrize("k", [2, 5])
def test_there_is_a_triplet_for_every_entry_of_the_tensor_and_for_no_other(any_data: Array, k: int) -> None:
    d = reference.distances(any_data)
    N = reference.neighborhoods(d, k)
    pairs, rows, columns, _ = restricted_by_partitions(any_data, N.astype(np.int32), [0, len(N)])
    members = [set(row) for row in N.tolist()]
    together = [
        (r, s)
        for r, s in itertools.combinations_with_replacement(range(len(pairs)), 2)
        if any({*pairs[r].tolist(), *pairs[s].tolist()} <= row for row in members)
    ]
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == together


def test_block_distances_do_not_change_with_threads() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 6)).astype(np.float32)
    N = rng.integers(0, 5000, size=(5000, 4)).astype(np.int32)
    alone = tensor.block_distances(X, N)
    with threads(3):
        assert tensor.block_distances(X, N).tobytes() == alone.tobytes()


def test_assembled_triplets_are_symmetric_with_sorted_rows_in_whatever_order_they_came() -> None:
    rng = np.random.default_rng(1)
    M = np.triu(rng.normal(size=(30, 30)) * (rng.random((30, 30)) < 0.3)).astype(np.float32)
    rows, columns = np.nonzero(M)
    values = M[rows, columns]
    whole = M + np.triu(M, 1).T
    first = assemble(rows, columns, values, 30)
    order = rng.permutation(len(rows))
    second = assemble(rows[order], columns[order], values[order], 30)
    assert first.has_sorted_indices
    for name in ("data", "indices", "indptr"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    np.testing.assert_array_equal(first.toarray(), whole)


def test_the_normalised_matrix_is_the_oracles_laplacian_and_rows_of_degree_zero_stay_zero() -> None:
    rng = np.random.default_rng(2)
    M = rng.random((20, 20)) * (rng.random((20, 20)) < 0.4)
    M = M + M.T
    M[7] = M[:, 7] = 0
    degrees = M.sum(axis=1)
    found = normalized(sp.csr_array(M), degrees, np.float64).toarray()
    np.testing.assert_allclose(found, reference.laplacian(M), atol=1e-14)
    assert inverse_root(degrees)[7] == 0


@pytest.mark.parametrize("dense", [True, False])
def test_products_by_chunks_are_the_whole_product_for_any_threads(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ips2_dask.kernels.operator.ROWS", 13)
    matrix = sp.random_array((100, 100), density=0.1, rng=np.random.default_rng(3), dtype=np.float32).tocsr()
    x = np.random.default_rng(4).normal(size=(100, 7)).astype(np.float32)
    operator = MatrixOperator(matrix.toarray() if dense else matrix)
    alone = operator.matmat(x)
    np.testing.assert_allclose(alone, matrix.toarray() @ x, atol=1e-5)
    with threads(4):
        assert operator.matmat(x).tobytes() == alone.tobytes()
    assert operator.shape == (100, 100)
    assert alone.dtype == np.float32

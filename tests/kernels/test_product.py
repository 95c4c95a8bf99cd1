"""The matrix-free product in vectors of 16 neighbourhoods equals the sum over neighbourhoods as it is written down."""

import itertools
import weakref

import numpy as np
import pytest

from ips2_dask.kernels import operator as module
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.parallel import threads
from ips2_dask.kernels.product import element_blocks, product_tables
from ips2_dask.kernels.tensor import local_pairs, triplets


def problem(k, m, P, seed=0):
    """Random distances, owner bits and pairs of m neighbourhoods: the kernel does not ask where they come from."""
    rng = np.random.default_rng(seed)
    q = k * (k + 1) // 2
    blocks = rng.random((m, k * (k - 1) // 2), np.float32)
    owned = rng.integers(0, 256, (m, -(-len(local_pairs(k).members) // 8)), np.uint8)
    ids = np.stack([rng.choice(P, q, replace=False) for _ in range(m)]).astype(np.int32)
    return blocks, owned, ids


def written_down(blocks, owned, ids, k, P, sigma, epsilon):
    """sum_p G_p' (W_p o B_p) G_p, entry by entry."""
    local = local_pairs(k)
    out = np.zeros((P, P))
    pairs = list(zip(local.first.tolist(), local.second.tolist(), strict=True))
    for p in range(len(blocks)):
        d = np.zeros((k, k))
        d[np.triu_indices(k, 1)] = blocks[p]
        d += d.T
        bits = np.unpackbits(owned[p])
        for (r, (i, j)), (s, (u, v)) in itertools.product(enumerate(pairs), repeat=2):
            above = -sigma * (d[i, j] + d[u, v])
            value = np.exp(above / (d[i, u] + d[j, v] + epsilon)) + np.exp(above / (d[j, u] + d[i, v] + epsilon))
            weight = (np.sqrt(0.5) if i == j else 1) * (np.sqrt(0.5) if u == v else 1)
            out[ids[p, r], ids[p, s]] += value * weight * bits[local.subset[r, s]]
    return out


@pytest.mark.parametrize("columns", [1, 7, 8, 10, 24, 32, 56])
def test_any_number_of_columns_gives_the_sum(columns):
    blocks, owned, ids = problem(4, 37, 90)
    x = np.random.default_rng(1).standard_normal((90, columns)).astype(np.float32)
    operator = NeighborhoodOperator(blocks, owned, ids, 90, 4, 1.3, 1e-4)
    expected = written_down(blocks, owned, ids, 4, 90, 1.3, 1e-4) @ x
    np.testing.assert_allclose(operator.matmat(x), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 8, 11])
def test_any_size_of_neighbourhood_gives_the_sum(k):
    P = k * (k + 1)
    blocks, owned, ids = problem(k, 17, P)
    x = np.random.default_rng(1).standard_normal((P, 9)).astype(np.float32)
    expected = written_down(blocks, owned, ids, k, P, 1.0, 1e-4) @ x
    got = NeighborhoodOperator(blocks, owned, ids, P, k, 1.0, 1e-4).matmat(x)
    np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5)


def test_a_block_of_float64_is_summed_in_float64():
    blocks, owned, ids = problem(5, 50, 120)
    x = np.random.default_rng(1).standard_normal((120, 12))
    operator = NeighborhoodOperator(blocks, owned, ids, 120, 5, 1.0, 1e-4, dtype=np.float64)
    y = operator.matmat(x)
    assert y.dtype == np.float64
    # the operator is linear to the last digits of float64, though its values are float32
    np.testing.assert_allclose(operator.matmat(3 * x), 3 * y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("columns", [10, 24])
def test_pieces_in_waves_give_the_same_bits_on_any_number_of_threads(columns, monkeypatch):
    blocks, owned, ids = problem(4, 300, 90)
    x = np.random.default_rng(1).standard_normal((90, columns)).astype(np.float32)
    monkeypatch.setattr(module, "PIECE", 5)  # 60 pieces, which share nearly every pair
    operator = NeighborhoodOperator(blocks, owned, ids, 90, 4, 1.3, 1e-4)
    products = []
    for n, most in ((1, 1), (2, 1), (2, 1 << 22), (4, 500), (16, 1)):
        monkeypatch.setattr(module, "WAVE_SLOTS", most)
        with threads(n):
            products.append(operator.matmat(x))
    for product in products:
        np.testing.assert_array_equal(product, products[0])
    expected = written_down(blocks, owned, ids, 4, 90, 1.3, 1e-4) @ x
    np.testing.assert_allclose(products[0], expected, rtol=1e-4, atol=1e-4)


def test_a_wave_has_the_pieces_that_fit_into_memory_and_some_for_each_thread(monkeypatch):
    blocks, owned, ids = problem(4, 300, 90)
    monkeypatch.setattr(module, "PIECE", 5)
    operator = NeighborhoodOperator(blocks, owned, ids, 90, 4, 1.3, 1e-4)
    assert [(piece.start, piece.stop) for piece in operator.pieces] == [(a, a + 5) for a in range(0, 300, 5)]
    slots = sum(len(piece.owner) for piece in operator.pieces)

    def sizes(n_threads, most):
        monkeypatch.setattr(module, "WAVE_SLOTS", most)
        return [len(wave) for wave in operator.waves(n_threads)]

    assert sizes(1, slots) == [1] * 60
    assert sizes(2, slots) == [60]
    assert sizes(2, -(-slots // 3)) == [21, 21, 18]
    assert sizes(2, 1) == [4] * 15
    assert sizes(20, 1) == [16, 16, 16, 12]


def test_a_column_does_not_depend_on_the_columns_beside_it():
    blocks, owned, ids = problem(6, 40, 100)
    x = np.random.default_rng(1).standard_normal((100, 40)).astype(np.float32)
    operator = NeighborhoodOperator(blocks, owned, ids, 100, 6, 1.0, 1e-4)
    whole = operator.matmat(x)
    for a, b in ((0, 8), (8, 24), (24, 40), (3, 4)):
        np.testing.assert_array_equal(operator.matmat(np.ascontiguousarray(x[:, a:b])), whole[:, a:b])


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_entries_made_side_by_side_are_those_of_the_triplets_to_the_last_bits(k):
    rng = np.random.default_rng(k)
    X = rng.normal(size=(40, k, 6)) * rng.choice([0.01, 1, 30], (40, 1, 1))
    first, second = np.triu_indices(k, 1)
    blocks = np.linalg.norm(X[:, first] - X[:, second], axis=-1).astype(np.float32)
    owned = rng.random((40, len(local_pairs(k).members))) < 0.8
    q = k * (k + 1) // 2
    values = np.empty((40, q * (q + 1) // 2), np.float32)
    element_blocks(blocks, np.packbits(owned, axis=1), product_tables(k, 1.3, 1e-4), values)
    expected = triplets(blocks, np.zeros((40, q), np.int64), owned, k, 1.3, 1e-4)[2]
    # libm's exponential and a polynomial on vectors differ by up to five units in the last place
    is_owned = owned[:, local_pairs(k).subset[np.triu_indices(q)]]
    np.testing.assert_array_max_ulp(values[is_owned], expected, 8)
    assert not values[~is_owned].any()


def test_a_block_that_was_given_up_is_used_once_for_one_of_its_shape_and_kind() -> None:
    spare, block = module._SpareBlock(), np.ones((1024, 512), np.float32)
    spare.keep(block)
    assert spare.array((1024, 512), np.float32) is block
    assert spare.array((1024, 512), np.float32) is not block
    spare.keep(block)
    assert spare.array((1024, 512), np.float64).dtype == np.float64
    spare.keep(np.ones((1024, 512), np.float32).T)
    assert spare.array((512, 1024), np.float32).flags.c_contiguous


def test_an_operator_lets_go_of_a_block_that_it_was_given():
    operator, block = MatrixOperator(np.eye(100, dtype=np.float32)), np.ones((100, 4), np.float32)
    operator.recur(block, block.copy(), 1.0, 0.0, 1.0)
    kept = weakref.ref(operator._spare._block)
    operator.release()
    assert kept() is None

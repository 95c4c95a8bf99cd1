"""The order in which near samples stand near each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels import projection
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run


@given(st.integers(0, 60), st.integers(1, 5), st.integers(0, 99))
def test_every_row_has_one_place(m: int, f: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(70, f)).astype(np.float32)  # many are equal
    rows = rng.choice(70, m, replace=False)
    assert sorted(projection.spatial_order(X, rows)) == sorted(rows)


def test_equal_rows_keep_their_order() -> None:
    rows = np.random.default_rng(0).permutation(100)
    np.testing.assert_array_equal(projection.spatial_order(np.ones((100, 3), np.float32), rows), rows)


def test_samples_on_a_line_are_put_in_its_order() -> None:
    rng = np.random.default_rng(1)
    at = rng.permutation(4096).astype(np.float32)
    order = projection.spatial_order(at[:, None] * np.float32([3.0, 4.0]), np.arange(4096))
    places = at[order].reshape(-1, projection.LEAF)
    assert (places.max(axis=1) - places.min(axis=1)).max() == projection.LEAF - 1  # each leaf is a piece of the line
    steps = np.abs(np.diff(places.mean(axis=1)))
    assert np.median(steps) == projection.LEAF  # and nearly each one's neighbour follows


@pytest.mark.parametrize("f", [8, 300], ids=["all-features", "narrowed-down"])
def test_neighbours_stand_near_each_other_in_a_sharded_run(f: int) -> None:
    X = np.random.default_rng(2).permutation(curved_gaussians(3000, f, 4, 3)[0])
    found = run(X, Params(n_clusters=4, shards=4), resources=Resources(partition_rows=1000))
    order = found._context.order()
    assert order is not None
    N, _ = found.neighbors
    rank = np.argsort(order)
    apart = np.median(np.abs(rank[N[:, 1:]] - rank[:, None]))
    starts = np.asarray(found._context.facts["neighbors"]["starts"])
    cell = np.searchsorted(starts, rank, side="right") - 1
    by_user = np.lexsort((np.arange(3000), cell))
    unordered = np.argsort(by_user)
    assert apart < np.median(np.abs(unordered[N[:, 1:]] - unordered[:, None])) / 4
    parts = range(found._context.n_partitions)
    Y = np.concatenate([found._context.read("neighbors", f"samples-p{b:06d}", "samples") for b in parts])
    np.testing.assert_allclose((Y - Y[0]) * found.unit, X[order] - X[order[0]], atol=1e-4)

"""Degenerate geometry, in any type, layout and partitions: graph, tensor and similarities meet the oracle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
from harness import few_examples, grid
from hypothesis import given
from hypothesis import strategies as st

from ips2_dask import Params, Resources, Run, run
from ips2_dask.kernels.sparse import reverse_lists

Array = npt.NDArray[Any]


def _duplicates(rng: np.random.Generator, m: int) -> Array:
    """Few distinct rows, each several times."""
    return rng.integers(-3, 4, size=(max(2, m // 4), 3))[rng.integers(0, max(2, m // 4), m)].astype(float)


def _collinear(rng: np.random.Generator, m: int) -> Array:
    """Points of a line, evenly apart: every distance is shared by many pairs."""
    return rng.permutation(m)[:, None] * np.array([[1.0, 2.0, -2.0]])


def _far_one(rng: np.random.Generator, m: int) -> Array:
    """A cloud, and one point that is very far from it."""
    X = rng.normal(size=(m, 3))
    X[rng.integers(m)] += 10.0 ** rng.integers(3, 17)
    return X


def _denormal(rng: np.random.Generator, m: int) -> Array:
    """Values below the smallest normal float32."""
    return rng.integers(-50, 50, size=(m, 3)) * 2.0**-145


def _equal(rng: np.random.Generator, m: int) -> Array:
    """The same row throughout: every distance is zero."""
    return np.tile(rng.normal(size=(1, 3)), (m, 1))


def _twins(rng: np.random.Generator, m: int) -> Array:
    """The same cluster again and again, far apart: neighbourhoods are equal, and so are eigenvalues."""
    cluster = rng.integers(-8, 8, size=(-(-m // 3), 3)) / 8.0
    return np.concatenate([cluster, cluster + 64, cluster - 128])[:m]


def _plane(rng: np.random.Generator, m: int) -> Array:
    """A grid of whole numbers with a constant column."""
    return np.column_stack([rng.integers(0, 4, size=(m, 2)), np.full(m, 7)]).astype(float)


GEOMETRIES = {f.__name__[1:]: f for f in (_duplicates, _collinear, _far_one, _denormal, _equal, _twins, _plane)}
TYPES = {
    "duplicates": ("f8", "f4", "i1", "i8", "f2"),
    "collinear": ("f8", "f4", "i2", "i4", ">f8"),
    "plane": ("f8", "f4", "u1", "u4", "i8", ">i4"),
}
"""Types that hold a geometry's values as they are; float64 holds all of them."""


def dense(matrix: Any) -> Array:
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


VANISHES = 2e-19
"""Distances below this, in the unit of the run, may come out as zero: float32 does not hold their squares."""


def assert_meets_the_oracle(found: Run, X: Array, sigma: float) -> None:
    """Compare with what the oracle makes of the samples as float32 holds them, among which ties are ties."""
    stored = np.asarray(found._context.all_samples(), np.float64) * found.unit
    span = np.abs(X - X[:1]).max()
    np.testing.assert_allclose(stored - stored[:1], X - X[:1], atol=4e-7 * span + 2.0**-149)
    d = reference.distances(stored)
    k = found.params.n_neighbors
    N, lengths = found.neighbors
    np.testing.assert_array_equal(N[:, 0], np.arange(len(X)))
    assert all(len(set(row)) == k for row in N.tolist())
    scale = 1e-6 * d.max() + VANISHES * found.unit
    np.testing.assert_allclose(np.sort(lengths[:, 1:], axis=1), np.sort(d, axis=1)[:, 1:k], rtol=1e-5, atol=scale)
    np.testing.assert_array_equal(found.pairs, reference.active_pairs(N))
    expected = reference.restricted(reference.tensor(d, N, sigma, found.params.epsilon * found.unit), found.pairs)
    np.testing.assert_allclose(found.tensor().toarray(), expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(found.degrees, reference.degrees(expected, found.pairs), rtol=2e-5, atol=1e-5)
    assert len(reverse_lists(N).centers) == N.size


def assert_is_a_clustering(found: Run, m: int, c: int) -> None:
    assert found.labels.shape == (m,)
    assert set(found.labels.tolist()) <= set(range(c))
    U = dense(found.similarity())
    assert np.isfinite(U).all()
    np.testing.assert_allclose(U, U.T, atol=1e-6)
    assert -1e-6 <= U.min() <= U.max() <= 1 + 1e-6
    assert (np.diff(found.eigenvalues) <= 1e-9).all()
    assert np.abs(found.eigenvalues).max() <= 1 + 1e-6


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn's k-means says it of equal rows
@pytest.mark.parametrize("name", GEOMETRIES)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(4, 22),
    k=st.integers(2, 8),
    c=st.integers(2, 4),
    rows=st.integers(1, 22),
    sigma=st.sampled_from([0.1, 1.0, 3.0]),
    data=st.data(),
)
@few_examples()
def test_degenerate_geometry_meets_the_oracle(
    name: str, seed: int, m: int, k: int, c: int, rows: int, sigma: float, data: st.DataObject
) -> None:
    X = GEOMETRIES[name](np.random.default_rng(seed), m)
    kind = data.draw(st.sampled_from(TYPES.get(name, ("f8",))))
    order = data.draw(st.sampled_from(["C", "F"]))
    given_ = np.array(X + 3 if kind in ("u1", "u4") else X, dtype=kind, order=order)  # type: ignore[call-overload]
    params = Params(n_clusters=c, n_neighbors=min(k, m), sigma=sigma, duplicates="keep")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        found = run(given_, params, Resources(partition_rows=rows))
    assert_meets_the_oracle(found, given_.astype(np.float64), sigma)
    assert_is_a_clustering(found, m, c)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        *(("duplicates", "chunked"), ("equal", "chunked"), ("twins", "chunked"), ("far_one", "in-core")),
        *grid(*((name, "in-core") for name in GEOMETRIES if name != "far_one")),
        *grid(*((name, "chunked") for name in ("collinear", "far_one", "denormal", "plane"))),
    ],
)
def test_degenerate_geometry_gives_the_same_labels_in_any_partitions(name: str, vectors: str) -> None:
    X = GEOMETRIES[name](np.random.default_rng(1), 40)
    params = Params(n_clusters=3, operator="matrix-free", tol=1e-6, duplicates="keep")
    found = [run(X, params, Resources(partition_rows=rows, vectors=vectors)) for rows in (40, 9)]
    np.testing.assert_array_equal(found[0].labels, found[1].labels)

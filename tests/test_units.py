"""The unit of the input decides nothing: what is a power of two times another input gives its results bit for bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from harness import grid, run_on
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_iris

from ips2_dask import IPS2, BadInput, Params, Resources, Run, run, sweep
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import ingest
from ips2_dask.kernels.metrics import METRICS

Array = npt.NDArray[Any]
POWERS = [-900, *grid(-150, -30, -1, 1, 30, 100)]
NAMES, SCALES = ("euclidean", "manhattan", "cosine", "correlation"), ("none", "zscore", "minmax", "l2")


@functools.cache
def table() -> Array:
    """Half of iris beside columns of other sizes, among which no row lacks a direction."""
    X = load_iris().data[::2]
    return np.column_stack([X, 1e3 * X[:, 1], 1e-4 * X[:, 2]])


def results(found: Run) -> dict[str, bytes]:
    """Everything that has no unit, as bytes."""
    context = found._context
    arrays = {
        "labels": found.labels,
        "certainty": found.certainty,
        "indices": found.neighbors.indices,
        "eigenvalues": found.eigenvalues,
        "samples": context.all_samples(),
        "bandwidths": np.asarray(context.read("neighbors", "whole", "bandwidths")),
    }
    if found.embedding is not None:
        arrays["embedding"] = found.embedding
    return {name: np.ascontiguousarray(a).tobytes() for name, a in arrays.items()}


@functools.cache
def fitted(power: int, **asked: Any) -> Run:
    """A run on the table times a power of two, for which a bandwidth that is a number is multiplied as well."""
    if not isinstance(asked.get("bandwidth", ""), str):
        asked["bandwidth"] *= 2.0**power
    return run(table() * 2.0**power, Params(n_clusters=3, **asked))


@given(
    power=st.integers(-900, 100),
    seed=st.integers(0, 2**16),
    metric=st.sampled_from(NAMES),
    scale=st.sampled_from(SCALES),
    rows=st.integers(1, 30),
)
def test_a_power_of_two_changes_no_bit_of_what_is_stored_of_a_sample(
    power: int, seed: int, metric: str, scale: str, rows: int
) -> None:
    """All that follows sees these samples alone, so that three runs suffice below."""
    X = np.random.default_rng(seed).normal(size=(30, 3)) * [1, 1e3, 1e-4] + 1
    assert stored(X * 2.0**power, metric, scale, rows).tobytes() == stored(X, metric, scale, 30).tobytes()


def stored(X: Array, metric: str, scale: str, rows: int) -> Array:
    """The samples that ingest stores, from statistics of so many rows at a time."""

    def sums(Y: Array) -> ingest.Statistics:
        return ingest.merge([ingest.column_statistics(Y[a : a + rows], Y[0]) for a in range(0, len(Y), rows)])

    first = METRICS[metric].needs_direction and scale in ("zscore", "minmax")
    columns = ingest.scaled_columns(sums(X), X[0], len(X), scale) if first else None
    Y = ingest.turned_rows(X, scale, metric, columns)
    center, spread = ingest.centering(sums(Y), Y[0], len(Y), "none" if METRICS[metric].needs_direction else scale)
    exponent = ingest.unit_exponent(sums(Y), spread, len(Y))
    return ingest.standardize(X, center, spread, scale, metric, columns, exponent)[0]


@pytest.mark.parametrize(
    ("power", "metric", "scale"),
    [
        *((-900, "euclidean", "none"), (100, "manhattan", "zscore"), (-900, "cosine", "minmax")),
        *grid(*((power, metric, scale) for power in (-150, -30, 1, 30) for metric in NAMES for scale in SCALES)),
    ],
)
def test_a_power_of_two_changes_no_bit(power: int, metric: str, scale: str) -> None:
    assert results(fitted(power, metric=metric, scale=scale)) == results(fitted(0, metric=metric, scale=scale))


KINDS: list[dict[str, Any]] = [
    {"affinity": "gaussian"},
    {"affinity": "gaussian", "bandwidth": "median"},
    {"bandwidth": 2.5},
    {"affinity": "gaussian", "bandwidth": 700.0},
    {"affinity": "gaussian", "tensor": "decomposable"},
    {"tensor": "decomposable"},
    {"operator": "matrix-free", "epsilon": 9e-4},
    {"embedding": "none"},
    {"duplicates": "merge"},
]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_nor_does_it_with_other_parameters(power: int, kind: dict[str, Any]) -> None:
    assert results(fitted(power, **kind)) == results(fitted(0, **kind))


@pytest.mark.slow
def test_pynndescent_follows() -> None:
    assert results(fitted(-900, graph="pynndescent")) == results(fitted(0, graph="pynndescent"))


@pytest.mark.parametrize("power", POWERS)
def test_distances_that_are_given_have_any_unit_too(power: int) -> None:
    D = reference.distances(table())
    params = Params(n_clusters=3, metric="precomputed")
    found = run(D * 2.0**power, params, Resources(partition_rows=17))
    assert results(found) == results(run(D, params))
    assert found.unit == 2.0**power * reference.unit_of(D) == fitted(power).unit


@pytest.mark.parametrize("power", [-100, 100])
def test_float32_inside_its_range_sparse_input_and_a_given_similarity_follow(power: int) -> None:
    X = table().astype(np.float32)
    S = np.exp(-np.square(reference.distances(X)) / 1e6)
    params, beside = Params(n_clusters=3), Params(n_clusters=3, affinity="precomputed")
    scaled = np.ldexp(X, power)
    assert scaled.dtype == np.float32
    assert results(run(scaled, params)) == results(run(X, params))
    assert results(run(sparse.csr_array(scaled), params)) == results(run(X, params))
    assert results(run(scaled, beside, similarity=S)) == results(run(X, beside, similarity=S))


def test_shards_and_chunks_follow() -> None:
    X = np.random.default_rng(3).normal(size=(120, 3)) + np.repeat(4 * np.eye(3), 40, axis=0)
    params = Params(n_clusters=3, graph="shards")
    runs = [run_on(SerialExecutor(), X * 2.0**j, params, rows=40, vectors="chunked") for j in (0, -900)]
    assert results(runs[0]) == results(runs[1])


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("asked", [{}, {"affinity": "gaussian", "bandwidth": 700.0}, {"metric": "cosine"}])
def test_new_samples_in_the_same_unit_get_the_same_predictions(power: int, asked: dict[str, Any]) -> None:
    new = 1.01 * table()[:20]
    (labels, shares, points), expected = (
        (found.predict(new * 2.0**j), found.predict_proba(new * 2.0**j), found.transform(new * 2.0**j))
        for j, found in ((power, fitted(power, **asked)), (0, fitted(0, **asked)))
    )
    for one, other in zip((labels, shares, points), expected, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("power", POWERS)
def test_what_is_shown_is_in_the_users_unit(power: int) -> None:
    found = fitted(power)
    d = reference.distances(table())
    assert found.unit == 2.0**power * reference.unit_of(d)
    expected = np.take_along_axis(d, found.neighbors.indices.astype(np.int64), axis=1)
    np.testing.assert_allclose(found.neighbors.distances.astype(np.float64) * 2.0**-power, expected, rtol=1e-5)
    assert found.neighbors.distances.dtype == (np.float32 if power > -100 else np.float64)
    center = np.asarray(found._context.read("ingest", "whole", "center")) * 2.0**-power
    assert (np.abs(center - table().mean(axis=0)) <= table().std(axis=0)).all()
    assert found.report()["unit"] == found.unit


@pytest.mark.slow
def test_the_estimator_and_a_sweep_take_any_unit(tmp_path: Path) -> None:
    X = table()
    assert (IPS2(3).fit(X * 2.0**-900).labels_ == IPS2(3).fit(X).labels_).all()
    found = [
        sweep(X * 2.0**j, {"n_clusters": (2, 3)}, store=tmp_path / str(j), files=False).best.params.n_clusters
        for j in (0, -900)
    ]
    assert found[0] == found[1]


@given(power=st.integers(-900, 100), seed=st.integers(0, 2**16), spread=st.integers(-60, 60), rows=st.integers(1, 30))
def test_the_unit_follows_the_input_and_no_cut(power: int, seed: int, spread: int, rows: int) -> None:
    X = np.random.default_rng(seed).normal(size=(30, 3)) * 2.0 ** np.array([0, spread, 1])
    exponents = []
    for Y in (X, X * 2.0**power):
        parts = [ingest.column_statistics(Y[a : a + rows], Y[0]) for a in range(0, 30, rows)]
        merged = ingest.merge(parts), ingest.column_statistics(Y, Y[0])
        exponents += [ingest.unit_exponent(found, np.ones(3), 30) for found in merged]
    assert exponents[0] == exponents[1] == exponents[2] - power == exponents[3] - power
    assert 2.0 ** exponents[0] == reference.unit_of(reference.distances(X))


@pytest.mark.parametrize("f", [4, *grid(1, 16, 64)])
def test_the_unit_of_standardised_columns_is_the_same_for_any_partitions(f: int) -> None:
    X = np.random.default_rng(f).normal(size=(60, f)) * 3 + 7
    for made in (X, (X - X.mean(axis=0)) / X.std(axis=0)):
        units = {run_on(SerialExecutor(), made, Params(scale="zscore"), rows=rows).unit for rows in (None, 1, 7, 20)}
        assert len(units) == 1


def test_columns_that_no_distance_shows_are_counted() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    found = run(X * [1e30, 1e-30, 1e30], Params(n_clusters=2))
    assert [text for text in found.report()["warnings"] if text.startswith("1 of 3 columns vary so little")]
    for asked in ({"scale": "zscore"}, {"scale": "minmax"}):
        found = run(X * [1e30, 1e-30, 1e30], Params(n_clusters=2, **asked))
        assert not [text for text in found.report()["warnings"] if "vary so little" in text]


def test_a_bandwidth_beyond_all_distances_is_that_of_a_graph_without_lengths() -> None:
    X = table() * 2.0**-900
    S = run(X, Params(n_clusters=3, bandwidth=1e300)).similarity("pairwise")
    assert set(S.data.tolist()) == {1.0}
    assert run(X * 2.0**900, Params(n_clusters=3, bandwidth=1e-300)).similarity("pairwise").max() <= 1.0


def test_a_matrix_of_distances_that_is_not_symmetric_is_refused_in_its_own_unit() -> None:
    D = reference.distances(table())
    D[4, 9] *= 2
    with pytest.raises(BadInput, match=f"{D[9, 4] * 2.0**-900:g} back|found {D[9, 4] * 2.0**-900:g} from"):
        run(D * 2.0**-900, Params(n_clusters=3, metric="precomputed"))

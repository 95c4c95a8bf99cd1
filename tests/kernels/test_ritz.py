"""Ritz pairs from sums over pairs are those of the explicit span, whatever parts the sums are made of."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
from harness import run_on

from ips2_dask import Params
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import ritz
from ips2_dask.kernels.operator import ChunkMatrix
from ips2_dask.plan import choices
from ips2_dask.stages import eigen
from ips2_dask.store.context import part_name

Array = npt.NDArray[Any]


class Problem(NamedTuple):
    """The pairs of some groups of samples in dense float64, and a span from rows w of the samples."""

    R: Array
    pairs: Array
    unit: Array
    degrees: Array  # 0 of pairs that take no part
    label: Array
    count: int
    w: Array

    def laplacian(self) -> Array:
        return reference.laplacian(self.R, self.degrees)

    def component_vectors(self) -> Array:
        """The component vectors, (P, count)."""
        V = np.zeros((len(self.pairs), self.count))
        V[np.arange(len(V)), self.label] = np.sqrt(self.degrees) * self.unit
        return V / np.linalg.norm(V, axis=0)

    def span(self) -> Array:
        """The span, freed of the component vectors: (P, columns)."""
        root = np.sqrt(self.degrees) * self.unit
        X = (self.w[self.pairs[:, 0]] + self.w[self.pairs[:, 1]]).astype(np.float64) * root[:, None]
        V = self.component_vectors()
        return X - V @ (V.T @ X)


def problem(groups: int = 1, island: int = 0, columns: int = 6, m: int = 30, seed: int = 0) -> Problem:
    """Groups that nothing joins; the last samples are an island that takes no part where there is one."""
    rng = np.random.default_rng(seed)
    group = np.sort(np.arange(m) % groups)
    group[m - island :] = groups
    X = rng.normal(size=(m, 2)) + 50 * group[:, None]
    d = reference.distances(X)
    N = reference.neighborhoods(d, 5)
    pairs = reference.active_pairs(N)
    R = reference.restricted(reference.tensor(d, N), pairs)
    inside = group[pairs[:, 0]] < groups
    degrees = np.where(inside, reference.degrees(R, pairs), 0)
    assert reference.components(R).max() + 1 == groups + (island > 0)
    label = np.where(inside, group[pairs[:, 0]], 0)
    w = rng.normal(size=(m, columns)).astype(np.float32)
    w[group == groups] = 0
    return Problem(R, pairs, reference.unit(pairs), degrees, label.astype(np.int32), groups, w)


def parts(one: Problem, cuts: list[int]) -> list[ritz.Sums]:
    """The sums of runs of pairs, each from what its rows touch."""
    found = []
    for low, high in itertools.pairwise(cuts):
        touched = np.union1d(np.flatnonzero(one.R[low:high].any(axis=0)), np.arange(low, high))
        first, last = np.searchsorted(touched, (low, high)).tolist()
        rows = sp.csr_array(one.R[low:high][:, touched].astype(np.float32))
        samples, places = np.unique(one.pairs[touched], return_inverse=True)
        found.append(
            ritz.sums(
                ChunkMatrix(rows, slice(first, last)),
                one.w[samples],
                places.reshape(-1, 2).astype(np.int32),
                one.unit[touched],
                one.degrees[touched],
                one.label[low:high],
                one.count,
            )
        )
    return found


def total(one: Problem, cuts: list[int]) -> ritz.Sums:
    whole = ritz.Total(one.w.shape[1], one.count)
    for part in parts(one, cuts):
        whole.add(part)
    return whole.sums()


def vectors(one: Problem, found: ritz.Ritz) -> Array:
    """The Ritz vectors on the pairs, as whoever fuses makes them of the samples' rows."""
    z = np.zeros((len(one.w), found.rotation.shape[1]))
    for h in range(one.count):  # samples of an island get those of component 0, and their pairs have degree 0
        own = np.unique(one.pairs[one.label == h]) if h else np.arange(len(one.w))
        z[own] = ritz.rotated(one.w[own], found.rotation, np.tile(found.shift[h], (len(own), 1)))
    root = np.sqrt(one.degrees) * one.unit
    return (z[one.pairs[:, 0]] + z[one.pairs[:, 1]]) * root[:, None]


def explicit(one: Problem) -> tuple[Array, Array]:
    """Ritz values and vectors of the span, by an orthonormal basis of it."""
    basis, size, _ = np.linalg.svd(one.span(), full_matrices=False)
    basis = basis[:, size > 1e-5 * size[0]]
    values, C = np.linalg.eigh(basis.T @ one.laplacian() @ basis)
    return values[::-1], basis @ C[:, ::-1]


CASES = {
    "one component": problem(),
    "components": problem(groups=3, m=36),
    "an island": problem(groups=2, island=7, m=37),
    "one column": problem(columns=1),
    "more columns than are made at a time": problem(columns=40, m=40),
}


@pytest.mark.parametrize("name", CASES)
def test_ritz_pairs_are_those_of_the_explicit_span(name: str) -> None:
    one = CASES[name]
    P = len(one.pairs)
    found = ritz.ritz(total(one, [0, P // 5, P // 2, P]))
    values, Y = explicit(one)
    np.testing.assert_allclose(found.values, values, atol=2e-5)
    made = vectors(one, found)
    np.testing.assert_allclose(made.T @ made, np.eye(len(values)), atol=1e-4)
    np.testing.assert_allclose(one.component_vectors().T @ made, 0, atol=1e-5)
    signs = np.sign((made * Y).sum(axis=0))
    np.testing.assert_allclose(made, Y * signs, atol=2e-3)
    residuals = np.linalg.norm(one.laplacian() @ made - made * found.values, axis=0)
    np.testing.assert_allclose(found.residuals, residuals, atol=1e-4)
    np.testing.assert_allclose(found.sums, one.unit @ made, atol=1e-4 * np.sqrt(P))


def test_pairs_that_take_no_part_are_zero() -> None:
    one = CASES["an island"]
    apart = one.degrees == 0
    assert 0 < apart.sum() < len(apart)
    assert not vectors(one, ritz.ritz(total(one, [0, len(apart)])))[apart].any()


def test_a_range_without_a_pair_that_takes_part_adds_nothing() -> None:
    one = CASES["an island"]
    apart = np.flatnonzero(one.degrees == 0)
    assert (np.diff(apart) == 1).all()
    island, empty = parts(one, [int(apart[0]), int(apart[-1]) + 1, int(apart[-1]) + 1])
    for part in (island, empty):
        for name in ("grams", "linear", "volumes", "units", "weighted"):
            assert not getattr(part, name).any(), name
    assert not len(empty.components)


def test_columns_that_depend_on_others_are_left_out() -> None:
    one = problem(groups=2, m=32)
    nearly = one.w[:, :1] + 1e-4 * np.random.default_rng(5).normal(size=(32, 1))
    w = np.concatenate([one.w, one.w[:, 1:2] - 3 * one.w[:, 2:3], nearly, np.zeros((32, 1))], axis=1)
    more = one._replace(w=w.astype(np.float32))
    P = len(one.pairs)
    found, fewer = (ritz.ritz(total(each, [0, P])) for each in (more, one))
    assert found.rotation.shape == (9, 6)
    np.testing.assert_allclose(found.values, fewer.values, atol=1e-5)
    made = vectors(more, found)
    np.testing.assert_allclose(made.T @ made, np.eye(6), atol=1e-3)


def test_component_vectors_in_the_span_are_left_out() -> None:
    """A constant column is the component vector itself; what is left of it is rounding, which has no direction."""
    one = problem()
    values = explicit(one)[0]
    for alike in (np.ones((30, 1)), 1 + 1e-4 * np.random.default_rng(5).normal(size=(30, 1))):
        w = np.concatenate([one.w, alike.astype(np.float32)], axis=1)
        found = ritz.ritz(total(one._replace(w=w), [0, len(one.pairs)]))
        np.testing.assert_allclose(found.values, values, atol=2e-5)


def test_residuals_bound_the_distance_to_eigenvalues() -> None:
    one = CASES["one component"]
    values = np.sort(np.linalg.eigvalsh(one.laplacian()))[::-1]
    found = ritz.ritz(total(one, [0, len(one.pairs)]))
    assert (found.values <= values[1 : len(found.values) + 1] + 1e-5).all()
    assert (np.abs(found.values[:, None] - values).min(axis=1) <= found.residuals + 1e-5).all()


def test_a_row_has_the_same_bits_beside_any_others() -> None:
    rng = np.random.default_rng(0)
    w, rotation = rng.normal(size=(300, 24)).astype(np.float32), rng.normal(size=(24, 5))
    shift = rng.normal(size=(300, 5))
    whole = ritz.rotated(w, rotation, shift)
    np.testing.assert_allclose(whole, w @ rotation - shift / 2, rtol=1e-12, atol=1e-12)
    for low, high in ((0, 1), (7, 260), (299, 300)):
        assert ritz.rotated(w[low:high], rotation, shift[low:high]).tobytes() == whole[low:high].tobytes()


@pytest.mark.parametrize("operator", ["triplets", "matrix-free"])
def test_sums_have_the_same_bits_for_any_partitions(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges follow the number of samples alone."""
    monkeypatch.setattr(choices, "EXACT_PAIRS", 0)
    monkeypatch.setattr(eigen, "RANGE", 50)
    X = np.random.default_rng(3).normal(size=(180, 3)) + 6 * (np.arange(180) % 3)[:, None]
    found = []
    for rows in (180, 70, 31):
        context = run_on(SerialExecutor(), X, Params(n_clusters=3, operator=operator), rows)._context
        assert context.n_partitions == -(-180 // rows)
        whole = {name: context.read("eigen", "whole", name) for name in ("values", "residuals", "rotation", "shift")}
        starts = [context.read("eigen", "start-" + part_name(b), "start") for b in range(context.n_partitions)]
        found.append([array.tobytes() for array in (*whole.values(), np.concatenate(starts))])
    assert found[0] == found[1] == found[2]

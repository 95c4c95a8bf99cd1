"""The solver finds what LAPACK and ARPACK find, as often as it is there, and stops and goes on to the same bits."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh

from ips2_dask.kernels import fusion, ritz
from ips2_dask.kernels.eigen import (
    GAIN,
    MAX_DEGREE,
    MAX_GAIN,
    ArraySpace,
    Known,
    Solution,
    State,
    Verdict,
    _filter_degree,
    _lowest_estimate,
    _panel_bounds,
    block_width,
    blocks_held,
    chebyshev_filter,
    chebyshev_steps,
    dense_eigenpairs,
    leading_eigenpairs,
    orthonormalize,
    panels_of,
    rayleigh_ritz,
)
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import threads
from ips2_dask.kernels.sparse import normalized

Array = npt.NDArray[Any]


class Problem:
    """A normalised random graph of blocks that are not joined, with what the solver is told of it."""

    def __init__(self, sizes: tuple[int, ...] = (500,), seed: int = 0, dtype: type = np.float64) -> None:
        rng = np.random.default_rng(seed)
        blocks = []
        for size in sizes:
            M = sp.random_array((size, size), density=min(1.0, 8 / size), rng=rng) + sp.diags_array(np.full(size, 0.3))
            ring = sp.diags_array([np.full(size - 1, 0.2)], offsets=[1], shape=(size, size))
            blocks.append(M + M.T + ring + ring.T)
        A = sp.csr_array(sp.block_diag(blocks))
        A.sort_indices()
        degrees = np.asarray(A.sum(axis=1)).ravel()
        self.L = normalized(A, degrees, dtype)
        self.known = Known(np.sqrt(degrees), np.repeat(np.arange(len(sizes)), sizes).astype(np.int32), len(sizes))
        self.space = ArraySpace(MatrixOperator(self.L), self.known, dtype)
        spectrum = np.linalg.eigh(self.L.toarray().astype(np.float64))[0][::-1]
        assert (spectrum[: len(sizes)] > 1 - 1e-6).all()
        self.expected = spectrum[len(sizes) :]  # what is left after eigenvalue 1

    def solve(self, wanted: int, tol: float, **options: Any) -> Solution:
        start = self.space.random(block_width(wanted), 0)
        return leading_eigenpairs(self.space, wanted, start, tol=tol, **options)


def assert_eigenpairs(L: Any, solution: Solution, wanted: int, tol: float) -> None:
    y = np.asarray(solution.vectors, np.float64)[:, :wanted]
    np.testing.assert_allclose(y.T @ y, np.eye(wanted), atol=1e-5)
    residuals = np.linalg.norm(L @ y - y * solution.values[:wanted], axis=0)
    assert (residuals <= tol + 1e-6).all()
    np.testing.assert_allclose(residuals, solution.residuals[:wanted], atol=2e-6)
    assert (np.diff(solution.values) <= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wanted", [1, 5, 12])
def test_eigenpairs_meet_the_tolerance_and_are_those_of_lapack(dtype: type, wanted: int) -> None:
    problem = Problem(dtype=dtype)
    solution = problem.solve(wanted, 1e-3)
    assert solution.verdict is Verdict.CONVERGED
    assert_eigenpairs(problem.L, solution, wanted, 1e-3)
    np.testing.assert_allclose(solution.values[:wanted], problem.expected[:wanted], atol=1e-3)


@pytest.mark.parametrize("panels", [2, 3])
@pytest.mark.parametrize("wanted", [1, 5, 12])
def test_a_block_filtered_in_panels_converges_to_the_same_pairs(panels: int, wanted: int) -> None:
    problem = Problem()
    problem.space = ArraySpace(MatrixOperator(problem.L), problem.known, np.float64, panels)
    solution = problem.solve(wanted, 1e-6)
    assert solution.verdict is Verdict.CONVERGED
    assert_eigenpairs(problem.L, solution, wanted, 1e-6)
    np.testing.assert_allclose(solution.values[:wanted], problem.expected[:wanted], atol=1e-8)


@given(columns=st.integers(1, 70), panels=st.integers(1, 4))
def test_panels_hold_every_column_once_in_order(columns: int, panels: int) -> None:
    bounds = _panel_bounds(columns, panels)
    assert [t for a, b in bounds for t in range(a, b)] == list(range(columns))
    assert len(bounds) <= panels
    assert all(a % 8 == 0 for a, _ in bounds)


@pytest.mark.parametrize("sizes", [(300,), (200, 150), (60, 70, 80, 90)])
def test_eigenvalues_are_arpacks_to_ten_digits_at_a_small_tolerance(sizes: tuple[int, ...]) -> None:
    problem = Problem(sizes)
    count, wanted = len(sizes), 6
    solution = problem.solve(wanted, 1e-8)
    v0 = np.random.default_rng(0).normal(size=sum(sizes))
    arpack = np.sort(eigsh(problem.L, k=wanted + count, which="LA", v0=v0, tol=1e-12)[0])[::-1]
    np.testing.assert_allclose(arpack[:count], 1.0, atol=1e-10)
    np.testing.assert_allclose(solution.values[:wanted], arpack[count:], atol=1e-10)
    assert_eigenpairs(problem.L, solution, wanted, 1e-8)


def test_no_vector_of_eigenvalue_one_is_found_again() -> None:
    problem = Problem((100, 120, 140, 40))
    solution = problem.solve(8, 1e-6)
    assert solution.values[0] < 1 - 1e-4
    K = problem.known.leading(4)
    np.testing.assert_allclose(K.T @ solution.vectors[:, :8], 0, atol=1e-6)


@pytest.mark.parametrize("copies", [2, 3, 5])
def test_repeated_eigenvalues_are_found_as_often_as_they_are_repeated(copies: int) -> None:
    one = Problem((90,))
    L = sp.csr_array(sp.block_diag([one.L] * copies))
    root = np.tile(one.known.vector, copies)
    known = Known(root, np.repeat(np.arange(copies), 90).astype(np.int32), copies)
    space = ArraySpace(MatrixOperator(L), known, np.float64)
    wanted = 3 * copies
    solution = leading_eigenpairs(space, wanted, space.random(block_width(wanted), 0), tol=1e-7)
    np.testing.assert_allclose(solution.values[:wanted], np.repeat(one.expected[:3], copies), atol=1e-9)
    assert_eigenpairs(L, solution, wanted, 1e-7)


def test_without_known_vectors_the_repeated_one_is_found_too() -> None:
    problem = Problem((150, 150, 150))
    space = ArraySpace(MatrixOperator(problem.L), None, np.float64)
    solution = leading_eigenpairs(space, 4, space.random(block_width(4), 0), tol=1e-7)
    np.testing.assert_allclose(solution.values[:4], [1, 1, 1, problem.expected[0]], atol=1e-9)


@pytest.mark.parametrize("sizes", [(300,), (30, 40, 50), (20,) * 12])
def test_the_dense_path_and_the_iterative_one_agree(sizes: tuple[int, ...]) -> None:
    problem = Problem(sizes)
    dense = dense_eigenpairs(problem.space.operator, problem.known, 7)
    np.testing.assert_allclose(dense.values, problem.expected[:7], atol=1e-10)
    assert_eigenpairs(problem.L, dense, 7, 1e-10)
    iterative = problem.solve(7, 1e-9)
    np.testing.assert_allclose(iterative.values[:7], dense.values, atol=1e-10)
    gap = problem.expected[6] - problem.expected[7]
    overlap = scipy.linalg.svdvals(dense.vectors.T @ iterative.vectors[:, :7])
    np.testing.assert_allclose(overlap, 1.0, atol=1e-9 / gap)


def test_the_dense_path_gives_what_is_left_where_more_is_asked_for() -> None:
    problem = Problem((8, 9))
    assert len(dense_eigenpairs(problem.space.operator, problem.known, 100).values) == 15
    nothing = dense_eigenpairs(problem.space.operator, problem.known, 0)
    assert nothing.vectors.shape == (17, 0)
    assert nothing.verdict is Verdict.CONVERGED


def test_a_solve_goes_on_from_any_checkpoint_to_the_same_bits() -> None:
    problem = Problem(dtype=np.float32)
    states: list[State] = []

    def keep(state: State) -> None:
        states.append(dataclasses.replace(state, y=state.y.copy(), history=list(state.history)))

    whole = problem.solve(10, 1e-5, degree=4, checkpoint=keep)
    assert len(states) >= 3
    for state in (states[0], states[len(states) // 2], states[-1]):
        again = problem.solve(10, 1e-5, degree=4, state=dataclasses.replace(state, y=state.y.copy()))
        assert again.vectors.tobytes() == whole.vectors.tobytes()
        assert again.values.tobytes() == whole.values.tobytes()
        assert again.products == whole.products
        assert again.history == whole.history


def test_a_finished_state_is_not_worked_on_again() -> None:
    problem = Problem()
    states: list[State] = []
    problem.solve(5, 1e-6, degree=4, checkpoint=lambda state: states.append(dataclasses.replace(state)))
    again = problem.solve(5, 1.0, state=states[-1])
    assert again.verdict is Verdict.CONVERGED
    assert again.products == states[-1].products


def test_the_same_seed_gives_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ips2_dask.kernels.eigen.CHUNK", 64)
    monkeypatch.setattr("ips2_dask.kernels.operator.ROWS", 64)
    solutions = []
    for count in (1, 3):
        with threads(count):
            solutions.append(Problem(dtype=np.float32).solve(6, 1e-4))
    assert solutions[0].vectors.tobytes() == solutions[1].vectors.tobytes()
    assert solutions[0].values.tobytes() == solutions[1].values.tobytes()


def test_out_of_products_is_said_and_the_best_so_far_is_given() -> None:
    problem = Problem()
    solution = problem.solve(6, 1e-12, most_products=20)
    assert solution.verdict is Verdict.OUT_OF_PRODUCTS
    assert 20 <= solution.products < 20 + 13
    assert (np.abs(solution.values[:6] - problem.expected[:6]) <= solution.residuals[:6].max()).all()


def test_a_tolerance_below_the_arithmetic_ends_as_stagnated() -> None:
    solution = Problem(dtype=np.float32).solve(4, 1e-12)
    assert solution.verdict is Verdict.STAGNATED
    assert solution.residuals[:4].max() < 1e-5


def test_each_verdict_says_what_happened() -> None:
    assert all(len(verdict.value) > 20 for verdict in Verdict)
    assert all("loosen tol" in verdict.value for verdict in (Verdict.STAGNATED, Verdict.OUT_OF_PRODUCTS))


def test_the_history_counts_products_and_its_residual_falls() -> None:
    solution = Problem().solve(6, 1e-8)
    products = [entry["products"] for entry in solution.history]
    residuals = [entry["residual"] for entry in solution.history]
    assert products[0] == 1
    assert all(3 <= step <= 13 for step in np.diff(products))  # a filter and a product for the Ritz values
    assert solution.products == products[-1]
    assert residuals[-1] <= 1e-8 < residuals[-2]
    assert residuals[-1] == solution.residuals[:6].max()


def test_a_watcher_is_told_every_entry_of_the_history_in_order() -> None:
    told: list[dict[str, float]] = []
    solution = Problem().solve(6, 1e-8, watch=told.append)
    assert told == solution.history


def gaussian_affinity(m: int) -> Array:
    """A wide Gaussian on three groups; its Laplacian's eigenvalues are 1, .95, .86, .26, .18, ..., the 40th < 1e-3."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(m, 2)) + 4 * rng.integers(0, 3, (m, 1))
    return np.exp(-np.square(X[:, None] - X).sum(axis=2) / 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wanted", [2, 10, 20])
def test_a_spectrum_that_falls_fast_is_solved_like_any_other(dtype: type, wanted: int) -> None:
    U = gaussian_affinity(400)
    degrees = U.sum(axis=1)
    L = reference.laplacian(U)
    known = Known(np.sqrt(degrees), np.zeros(400, np.int32), 1)
    space = ArraySpace(MatrixOperator(L.astype(dtype)), known, dtype)
    solution = leading_eigenpairs(space, wanted, space.random(block_width(wanted), 0), tol=1e-3)
    assert solution.verdict is Verdict.CONVERGED
    assert solution.products < 40
    assert_eigenpairs(L, solution, wanted, 1e-3)
    np.testing.assert_allclose(solution.values[:wanted], np.linalg.eigvalsh(L)[-2 : -2 - wanted : -1], atol=1e-3)


@given(last=st.floats(-0.9, 1), below=st.floats(1e-4, 1), width=st.floats(1e-3, 1), least=st.integers(2, 16))
def test_the_degree_gains_enough_and_no_more_than_rounding_allows(
    last: float, below: float, width: float, least: int
) -> None:
    high = max(last - below, -1.0)
    low = high - width

    def raised(value: float, degree: int) -> float:
        p = np.polynomial.chebyshev.Chebyshev.basis(degree)
        return float(p(max(1.0, (value - (high + low) / 2) / (width / 2))))

    degree = _filter_degree(last, low, high, least)
    assert 1 <= degree <= MAX_DEGREE
    assert degree == 1 or raised(1.0, degree) <= MAX_GAIN * raised(last, degree) * (1 + 1e-6)
    allowed = raised(1.0, degree + 1) <= MAX_GAIN * raised(last, degree + 1) * (1 - 1e-6)
    if allowed and degree < MAX_DEGREE:  # then it stops since it is enough
        assert degree >= least
        assert raised(last, degree) >= GAIN * (1 - 1e-6)
    if degree > least:
        assert raised(last, degree - 1) <= GAIN * (1 + 1e-6)


@pytest.mark.parametrize("degree", [1, 2, 5, 12])
def test_the_filter_is_the_chebyshev_polynomial_of_the_matrix(degree: int) -> None:
    problem = Problem((120,))
    low, high, top = -0.6, 0.4, 0.9
    values, vectors = np.linalg.eigh(problem.L.toarray())
    y = np.random.default_rng(1).normal(size=(120, 3))
    found = chebyshev_filter(problem.space, y.copy(), low, high, top, degree)
    chebyshev = np.polynomial.chebyshev.Chebyshev.basis(degree)
    half, middle = (high - low) / 2, (high + low) / 2
    p = chebyshev((values - middle) / half) / chebyshev((top - middle) / half)
    np.testing.assert_allclose(found, vectors @ (p[:, None] * (vectors.T @ y)), atol=1e-10)


@given(low=st.floats(-1, 0.5), width=st.floats(0.05, 1), above=st.floats(0.01, 0.5), degree=st.integers(1, 16))
@settings(deadline=None)
def test_the_filter_is_one_at_the_top_and_below_one_inside(low: float, width: float, above: float, degree: int) -> None:
    high, top = low + width, low + width + above
    eigenvalues = np.concatenate([np.linspace(low, high, 40), [top]])
    space = ArraySpace(MatrixOperator(np.diag(eigenvalues)), None, np.float64)
    p = chebyshev_filter(space, np.ones((41, 1)), low, high, top, degree).ravel()
    assert p[-1] == pytest.approx(1)
    assert (np.abs(p[:-1]) < 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_estimate_is_below_the_spectrum(seed: int) -> None:
    problem = Problem((200,), seed)
    estimate = _lowest_estimate(problem.space, seed)
    assert -1 <= estimate <= problem.expected[-1] + 1e-6


def test_the_lowest_estimate_of_a_matrix_of_one_eigenvalue_is_that() -> None:
    space = ArraySpace(MatrixOperator(0.25 * np.eye(50)), None, np.float64)
    assert _lowest_estimate(space, 0) == pytest.approx(0.25, abs=1e-6)


def test_a_nearly_rank_deficient_block_becomes_orthonormal_with_the_same_span() -> None:
    rng = np.random.default_rng(2)
    space = ArraySpace(MatrixOperator(np.eye(400)), None, np.float64)
    y = rng.normal(size=(400, 5))
    y = y[:, [0, 0, 1, 2, 3, 4]] + 1e-5 * rng.normal(size=(400, 6)) * np.array([0, 1, 0, 0, 0, 0])
    y *= np.array([1e6, 1, 1e-6, 1, 1, 1])
    Q = orthonormalize(space, y.copy())
    np.testing.assert_allclose(Q.T @ Q, np.eye(6), atol=1e-10)
    scaled = y / np.linalg.norm(y, axis=0)
    np.testing.assert_allclose(Q @ (Q.T @ scaled), scaled, atol=1e-8)


def test_ritz_pairs_of_an_invariant_span_are_eigenpairs() -> None:
    problem = Problem((100,))
    values, vectors = np.linalg.eigh(problem.L.toarray())
    mixed = vectors[:, -6:] @ scipy.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0]
    _, found, residuals, _ = rayleigh_ritz(problem.space, mixed)
    np.testing.assert_allclose(found, values[:-7:-1], atol=1e-12)
    assert (residuals < 1e-12).all()


class Counted:
    """A matrix that counts its products' columns."""

    def __init__(self, matrix: Any) -> None:
        self._operator, self.shape, self.columns = MatrixOperator(matrix), matrix.shape, list[int]()

    def matmat(self, x: Any) -> Any:
        self.columns.append(x.shape[1])
        return self._operator.matmat(x)

    def release(self) -> None:
        self._operator.release()


@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_ritz_pairs_of_panels_are_those_of_the_whole_block(panels: int) -> None:
    problem = Problem()
    counted = Counted(problem.L)
    space = ArraySpace(counted, problem.known, np.float64, panels)
    y = orthonormalize(space, space.deflate(space.random(32, 3)))
    before, expected, wanted, one = rayleigh_ritz(problem.space, y.copy())
    found, values, residuals, products = rayleigh_ritz(space, y)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(residuals, wanted, atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(found * before, axis=0)), 1, atol=1e-12)
    assert one == 1
    assert sum(counted.columns) == 32 * products


class Watched(ArraySpace):
    """A space that notes what is done with panels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.done: list[Any] = []

    def recur(self, y: Any, previous: Any, a: float, b: float, c: float) -> Any:
        self.done.append(y.shape[1])
        return super().recur(y, previous, a, b, c)

    def join(self, parts: Any) -> Any:
        self.done.append("joined")
        return super().join(parts)


def test_a_panel_is_there_before_the_next_is_begun() -> None:
    problem = Problem()
    space = Watched(MatrixOperator(problem.L), problem.known, np.float64, 3)
    y = space.random(24, 0)
    space.done.clear()
    steps = chebyshev_steps(-1.0, 0.5, 1.0, 7)
    space.filter(y, steps)
    assert space.done == [8] * 21 + ["joined"]


def test_large_blocks_are_filtered_in_two_panels() -> None:
    assert [panels_of(n, 24) for n in (10**7, 8 * 10**7)] == [1, 2]


def test_gram_matrices_are_summed_in_float64() -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=(40_000, 3)).astype(np.float32) + 100 for _ in range(2))
    space = ArraySpace(MatrixOperator(sp.eye_array(40_000, format="csr", dtype=np.float32)))
    np.testing.assert_allclose(space.gram(x, y), x.astype(np.float64).T @ y.astype(np.float64), rtol=1e-13)


def known_of(label: Array, seed: int = 0) -> Known:
    root = np.random.default_rng(seed).uniform(0.5, 2, len(label))
    return Known(root, label.astype(np.int32), int(label.max()) + 1)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 200), count=st.integers(1, 60), chunk=st.integers(1, 80))
@settings(deadline=None)
def test_projecting_out_leaves_nothing_of_the_known_vectors(seed: int, n: int, count: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    label = np.concatenate([np.arange(min(count, n)), rng.integers(0, min(count, n), n - min(count, n))])
    known = known_of(rng.permutation(label), seed)
    K = known.leading(known.count)
    assert K.shape == (n, known.count)
    np.testing.assert_allclose(K.T @ K, np.eye(known.count), atol=1e-12)
    y = rng.normal(size=(n, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ips2_dask.kernels.eigen.CHUNK", chunk)
        found = known.project_out(y.copy())
    np.testing.assert_allclose(found, y - K @ (K.T @ y), atol=1e-12)
    np.testing.assert_allclose(known.project_out(found.copy()), found, atol=1e-12)


def test_thousands_of_components_are_projected_out() -> None:
    label = np.random.default_rng(5).permutation(np.repeat(np.arange(4000), 9))
    known = known_of(label)
    y = np.random.default_rng(6).normal(size=(36_000, 4))
    found = known.project_out(y.copy())
    for column in range(4):
        np.testing.assert_allclose(np.bincount(label, known.vector * found[:, column]), 0, atol=1e-12)


def test_the_leading_components_are_the_largest_by_volume_ties_by_label() -> None:
    label = np.array([0, 0, 1, 1, 1, 2, 2, 3])
    known = Known(np.ones(8), label.astype(np.int32), 4)
    assert known.volume.tolist() == [2, 3, 2, 1]
    found = [int(label[np.flatnonzero(column)[0]]) for column in known.leading(3).T]
    assert found == [1, 0, 2]
    assert known.leading(9).shape == (8, 4)


def test_a_component_without_volume_has_a_zero_vector() -> None:
    known = Known(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1], np.int32), 2)
    assert np.isfinite(known.vector).all()
    assert known.vector[2] == 0
    y = np.arange(3.0)[:, None]
    np.testing.assert_allclose(known.project_out(y), [[-0.5], [0.5], [2.0]])


@pytest.mark.parametrize("wanted", [0, 1, 10, 30])
def test_a_block_is_wider_than_what_is_wanted(wanted: int) -> None:
    assert block_width(wanted) >= wanted + 7


def sample_graph(m: int = 400) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(m, 3)) + 3 * rng.integers(0, 3, size=(m, 1))
    d = np.linalg.norm(X[:, None] - X, axis=2)
    N = np.argsort(d, axis=1, kind="stable")[:, :6]
    return N.astype(np.int32), d


def test_the_start_on_pairs_is_the_sum_of_both_samples_times_the_pairs_root() -> None:
    w = np.array([[1.0, -2], [3, 4], [5, 6]])
    found = np.empty((3, 2), np.float32)
    ritz.start_rows(w, np.array([[0, 0], [0, 2], [1, 2]], np.int32), np.array([1.0, 2.0, 0.5]), found)
    np.testing.assert_allclose(found, [[2, -4], [12, 8], [4, 5]])


def symmetric_products(values: Array) -> Array:
    """Eigenvalues of the swap-symmetric half of L kron L, descending, by forming it."""
    n = len(values)
    rows, columns = np.triu_indices(n)
    basis = np.zeros((n * n, len(rows)))
    for t, (i, j) in enumerate(zip(rows, columns, strict=True)):
        basis[n * i + j, t] = basis[n * j + i, t] = 1 if i == j else np.sqrt(0.5)
    Q = scipy.linalg.qr(np.random.default_rng(8).normal(size=(n, n)))[0]
    L = Q * values @ Q.T
    return np.linalg.eigvalsh(basis.T @ np.kron(L, L) @ basis)[::-1]


@pytest.mark.parametrize("values", [[1, 0.9, 0.5, -0.2], [1, 0.8, -0.95, -0.99], [1.0], [1, 1, 1, 0.3]])
def test_products_are_the_leading_eigenvalues_of_the_symmetric_half_of_l_kron_l(values: list[float]) -> None:
    expected = symmetric_products(np.array(values))
    for wanted in range(1, len(expected) + 2):
        products, chosen = fusion.leading_products(np.array(values), wanted)
        np.testing.assert_allclose(products, expected[: len(products)], atol=1e-12)
        assert len(products) >= min(wanted, len(expected))
        assert len(products) == len(expected) or products[-1] - expected[len(products)] > 1e-10  # ties are taken whole
        np.testing.assert_allclose(np.array(values)[chosen].prod(axis=1), products)
        assert (chosen[:, 0] <= chosen[:, 1]).all()


@given(fewer=st.integers(1, 10**8), more=st.integers(1, 10**8), columns=st.integers(8, 64))
def test_a_bound_of_pairs_bounds_the_blocks_of_fewer(fewer: int, more: int, columns: int) -> None:
    fewer, more = sorted((fewer, more))
    held = 3.5 if panels_of(fewer, columns) == 1 else 2.5
    assert int(held * 4 * fewer * columns) <= blocks_held(fewer, columns) <= blocks_held(more, columns)


@pytest.mark.slow
@pytest.mark.parametrize("panels", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_solve_holds_no_more_blocks_than_are_planned(panels: int) -> None:
    """Panels that have been joined would be one more."""
    n, columns = 1_000_000, 16
    values = np.linspace(-0.5, 0.9, n, dtype=np.float32)
    values[:8] += 0.05 * np.arange(1, 9, dtype=np.float32)
    space = ArraySpace(MatrixOperator(sp.csr_array(sp.diags_array(values))), None, np.float32, panels)
    block = 4 * n * columns
    tracemalloc.start()
    try:
        solution = leading_eigenpairs(space, 4, lambda: space.random(columns, 0), tol=1e-3)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(solution.history) > 1  # it came to a filter, and to Ritz pairs after it
    assert 2 <= most / block <= (3.5 if panels == 1 else 2.5)

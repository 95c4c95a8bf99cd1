"""SSC: unions of subspaces are recovered, its program is solved to the optimum, its pursuit is scikit-learn's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import Lasso, orthogonal_mp
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines import SSC, ssc

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def expected_failures(estimator: SSC) -> dict[str, str]:
    if estimator.solver == "omp":
        return {"check_clustering": "its three blobs in the plane are no three subspaces: two samples span the plane"}
    return {}


@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [SSC(), SSC(**ssc.MOTION), SSC(**ssc.FACES), SSC(solver="omp")], expected_failed_checks=expected_failures
)
def test_ssc_is_a_scikit_learn_estimator(estimator: SSC, check: Any) -> None:
    check(estimator)


def linear_subspaces(seed: int = 0, n: int = 20, dimension: int = 3, ambient: int = 30) -> tuple[Array, Labels]:
    """Three random subspaces, which are independent: their dimensions add up; n samples each."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((n, dimension)) @ rng.standard_normal((dimension, ambient)) for _ in range(3)]
    return np.vstack(parts), np.repeat([0, 1, 2], n)


def share_across(W: Any, y: Labels) -> float:
    """Share of an affinity's weight that joins samples of different classes."""
    W = W if isinstance(W, np.ndarray) else W.toarray()
    return float(W[y[:, None] != y].sum() / W.sum())


@pytest.mark.parametrize("seed", range(5))
def test_independent_subspaces_are_recovered_exactly_by_both_solvers(seed: int) -> None:
    X, y = linear_subspaces(seed)
    by_admm, by_omp = SSC(3).fit(X), SSC(3, solver="omp").fit(X)
    assert adjusted_rand_score(y, by_admm.labels_) == adjusted_rand_score(y, by_omp.labels_) == 1
    assert share_across(by_admm.affinity_matrix_, y) < 2e-3
    assert share_across(by_omp.affinity_matrix_, y) < 1e-10  # expressed exactly, so by the own subspace alone
    assert by_omp.converged_


def parallel_lines() -> tuple[Array, Labels]:
    """Three parallel lines of three-space; two of them span the same plane, so as linear subspaces they are one."""
    along, feet = np.outer(np.linspace(0, 3, 12), [1, 0, 0]), np.array([[0, 1, 0], [0, -1, 0], [0, 0, 1]])
    return np.vstack([foot + along for foot in feet]), np.repeat([0, 1, 2], 12)


def test_affine_subspaces_need_the_affine_constraint() -> None:
    X, y = parallel_lines()
    affine, linear = SSC(3, affine=True).fit(X), SSC(3).fit(X)
    assert adjusted_rand_score(y, affine.labels_) == 1
    assert share_across(affine.affinity_matrix_, y) < 0.02 < 0.2 < share_across(linear.affinity_matrix_, y)
    np.testing.assert_allclose(affine.coefficients_.sum(axis=0), 1, atol=0.01)


def test_the_authors_settings_for_motion_recover_affine_subspaces() -> None:
    X, y = parallel_lines()
    assert adjusted_rand_score(y, SSC(3, **ssc.MOTION).fit_predict(X)) == 1


def test_the_authors_settings_for_faces_see_through_outlying_entries() -> None:
    X, y = linear_subspaces(ambient=60)
    rng = np.random.default_rng(1)
    outlying = rng.random(X.shape) < 0.03
    X[outlying] += rng.choice([-8.0, 8.0], outlying.sum())
    assert adjusted_rand_score(y, SSC(3, **ssc.FACES).fit_predict(X)) > 0.95
    assert adjusted_rand_score(y, SSC(3).fit_predict(X)) < 0.5


def test_without_constraint_and_outliers_the_columns_solve_the_lasso() -> None:
    X = np.random.default_rng(0).standard_normal((12, 6))
    lambda_z = 5.0
    C = ssc.express_by_admm(X, lambda_z, None, 5.0, False, 1e-10, 20_000).C
    for i in range(12):
        others = np.delete(np.arange(12), i)
        lasso = Lasso(1 / (lambda_z * 6), fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X[others].T, X[i])
        np.testing.assert_allclose(C[others, i], lasso.coef_, atol=1e-6)
        assert C[i, i] == 0


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("lambda_e", [None, 0.4])
def test_the_optimality_conditions_hold(affine: bool, lambda_e: float | None) -> None:
    """Program (13) is convex; optimal is X lambda_z (R - E) = sign(c) + nu on the support and within 1 of nu off it."""
    lambda_z = 3.0
    X = np.random.default_rng(0).standard_normal((10, 5))
    C, _, converged = ssc.express_by_admm(X, lambda_z, lambda_e, 3.0, affine, 1e-10, 50_000)
    assert converged
    R = X.T - X.T @ C
    E = np.zeros_like(R) if lambda_e is None else ssc.shrink(R, lambda_e / lambda_z)
    assert (lambda_e is not None) == bool(E.any())
    gradient = X @ (lambda_z * (R - E))
    for i in range(10):
        others = np.delete(np.arange(10), i)
        c, g = C[others, i], gradient[others, i]
        nu = np.mean((g - np.sign(c))[c != 0]) if affine else 0.0
        np.testing.assert_allclose(g[c != 0] - nu, np.sign(c[c != 0]), atol=1e-6)
        assert np.abs(g - nu).max() <= 1 + 1e-6
        assert not affine or c.sum() == pytest.approx(1, abs=1e-8)
        assert C[i, i] == 0


@pytest.mark.parametrize("q", [3, 30])
def test_the_ridge_system_is_solved_in_factors_and_as_a_whole(q: int) -> None:
    rng = np.random.default_rng(0)
    Z, R = rng.standard_normal((20, q)), rng.standard_normal((20, 4))
    np.testing.assert_allclose(ssc._ridge_solver(Z, 0.7)(R), np.linalg.solve(Z @ Z.T + 0.7 * np.eye(20), R), atol=1e-10)


def test_the_pursuit_is_that_of_scikit_learn() -> None:
    X = np.random.default_rng(0).standard_normal((40, 12))
    C = ssc.express_by_omp(X, 5, 1e-6).C.toarray()
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    for i in range(40):
        others = np.delete(np.arange(40), i)
        np.testing.assert_allclose(C[others, i], orthogonal_mp(unit[others].T, unit[i], n_nonzero_coefs=5), atol=1e-12)
        assert C[i, i] == 0


def test_the_pursuit_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((30, 8))
    whole = ssc.express_by_omp(X, 4, 1e-6).C.toarray()
    monkeypatch.setattr(ssc, "BLOCK", 300)
    np.testing.assert_allclose(ssc.express_by_omp(X, 4, 1e-6).C.toarray(), whole, atol=1e-14)


def test_copies_express_each_other_and_a_zero_sample_nothing() -> None:
    X = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 1.0, 0], [0, 3.0, 0], [0, 0, 0]])
    C = ssc.express_by_omp(X, 3, 1e-6).C.toarray()
    expected = np.zeros((5, 5))
    expected[[0, 1, 2, 3], [1, 0, 3, 2]] = 1
    np.testing.assert_allclose(C, expected, atol=1e-12)


@pytest.mark.parametrize("solver", ["admm", "omp"])
def test_orthogonal_samples_are_left_alone(solver: str) -> None:
    fitted = SSC(5, solver=solver).fit(np.eye(5))
    np.testing.assert_array_equal(np.sort(fitted.labels_), np.arange(5))


def test_mu_is_the_smallest_of_the_largest_products() -> None:
    X = np.array([[1.0, 0, 0], [2.0, 1.0, 0], [0, 5.0, 0], [0, 0, 7.0]])
    assert ssc.coherence(X) == 2  # 2 for the first, 5 for the next two; the last is orthogonal to all


COEFFICIENTS = np.array([[0, 2.0, 0.5], [-6.0, 0, 0], [4.0, -1.0, 0]])


@pytest.mark.parametrize(
    ("keep", "scaled"),
    [
        (1.0, [[0, 1, 1], [1, 0, 0], [4 / 6, 0.5, 0]]),
        (0.6, [[0, 1, 1], [1, 0, 0], [0, 0, 0]]),  # 6 of 10 are enough of the first column, 2 of 3 of the second
        (0.61, [[0, 1, 1], [1, 0, 0], [4 / 6, 0, 0]]),
    ],
)
def test_the_affinity_keeps_the_largest_coefficients_of_each_column(keep: float, scaled: Any) -> None:
    W = ssc.affinity_of(COEFFICIENTS, keep)
    np.testing.assert_allclose(W, np.array(scaled) + np.array(scaled).T, rtol=1e-14)


def test_the_iteration_stops_by_its_rule_or_at_its_limit() -> None:
    X, _ = linear_subspaces()
    stopped, limited = SSC(3, tol=0.05).fit(X), SSC(3, max_iter=7).fit(X)
    assert stopped.converged_
    assert stopped.n_iter_ < 200
    assert (limited.n_iter_, limited.converged_) == (7, False)


@pytest.mark.parametrize("solver", ["admm", "omp"])
def test_a_seed_decides_the_labels(solver: str) -> None:
    X = np.random.default_rng(3).standard_normal((60, 10))
    first, again = (SSC(4, solver=solver, random_state=7).fit_predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "lars"}, "solver: found 'lars'"),
        ({"solver": "omp", "affine": True}, "solver='omp': found affine=True, outliers=False, allowed is neither"),
        ({"solver": "omp", "n_nonzero": 0}, "n_nonzero: found 0"),
        ({"solver": "omp", "omp_tol": -1.0}, "omp_tol: found -1.0"),
        ({"alpha": 0}, "alpha: found 0, allowed is a positive number"),
        ({"alpha_e": np.inf, "outliers": True}, "alpha_e: found inf"),
        ({"keep": 1.5}, "keep: found 1.5, allowed is a number above 0 and up to 1"),
        ({"tol": 0.0}, "tol: found 0.0"),
        ({"max_iter": 0}, "max_iter: found 0"),
        ({"n_clusters": 61}, "n_clusters: found 61, allowed is an integer from 1 to 60"),
    ],
)
def test_bad_input_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        SSC(**{"n_clusters": 2, **parameters}).fit(linear_subspaces()[0])

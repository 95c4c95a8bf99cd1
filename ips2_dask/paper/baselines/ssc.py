"""SSC: sparse subspace clustering (Elhamifar, Vidal 2013), also by matching pursuit (You, Robinson, Vidal 2016)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import svd

from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines.spectral import BLOCK, Affinity, Baseline, check_count, check_option, check_positive
from ips2_dask.typing import Float64, Integer

MOTION: dict[str, float | bool] = {"alpha": 800.0, "affine": True, "outliers": False, "keep": 0.7}
"""The authors' settings for Hopkins 155."""

FACES: dict[str, float | bool] = {"alpha": 20.0, "affine": False, "outliers": True, "keep": 1.0}
"""The authors' settings for Extended Yale B."""

ROUNDING = 1e-8  # products of unit vectors below this are taken for 0


@dataclass(eq=False, repr=False)
class SSC(Baseline):
    """Sparse subspace clustering: each sample as a sparse combination of the others, then spectral clustering.

    With samples as columns, Y = X', program (13) of the paper:

        min |C|_1 + lambda_e |E|_1 + lambda_z / 2 |Y - YC - E|_F^2,  diag(C) = 0  (and 1'C = 1' where ``affine``),

    lambda_z = alpha / mu_z, lambda_e = alpha_e / mu_e, mu_z = min_i max_{j != i} |y_i' y_j|, mu_e = min_i max_{j != i}
    |y_j|_1 (14). Columns of C are divided by their largest |c|, W = |C| + |C|', and W is clustered (Algorithm 1). The
    defaults are those of the authors' program; ``MOTION`` and ``FACES`` are what they used for their two experiments.

    Departures: (1) the authors' program for outliers makes Y = YC + E exact; this is (13), with the noise term. (2) A
    sample that is orthogonal to all others would make mu_z 0; it is left out of that minimum.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) array, CSR where ``omp``
    coefficients_ : (m, m) array, CSR where ``omp``: C, its column i expresses sample i
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    """

    n_clusters: int = 8  # at most the number of samples
    _: KW_ONLY
    # admm: the program above, dense (m, m). omp: orthogonal matching pursuit on samples of length 1, sparse, for larger
    # m; it has neither the affine constraint nor outliers
    solver: str = "admm"
    alpha: float = 20.0  # weight of the noise term, above 1; also ADMM's penalty (the authors' choice)
    affine: bool = False  # whether the coefficients of a sample sum to 1: affine subspaces instead of linear ones
    outliers: bool = False  # whether E is there; without it E = 0
    alpha_e: float = 20.0  # weight of E, above 1
    keep: float = 1.0  # share in (0, 1] of a column's |c|_1 kept in W, its largest coefficients (the authors' rho)
    tol: float = 2e-4  # ADMM stops when no entry of C, E or the constraints moves or fails by more
    max_iter: int = 200  # ADMM's limit; as published it is reached without a word, see converged_
    n_nonzero: int = 10  # coefficients that omp gives a sample at most: the dimension expected of a subspace
    omp_tol: float = 1e-6  # length of the residual, of 1, at which omp stops earlier
    random_state: int | np.random.RandomState | None = 0  # of k-means and of Lanczos

    def _affinity(self, X: Float64, rng: np.random.RandomState) -> Affinity:
        keep = check_positive("keep", self.keep, 1.0)
        self.coefficients_, self.n_iter_, self.converged_ = self._express(X)
        return affinity_of(self.coefficients_, keep)

    def _express(self, X: Float64) -> Expression:
        check_option("solver", self.solver, ("admm", "omp"))
        if self.solver == "admm":
            return self._express_by_admm(X)
        if self.affine or self.outliers:
            options = f"affine={self.affine}, outliers={self.outliers}"
            raise BadInput("solver='omp'", options, "neither", "they would be ignored", "take solver='admm'")
        n_nonzero = check_count("n_nonzero", self.n_nonzero, 1)
        return express_by_omp(X, n_nonzero, check_positive("omp_tol", self.omp_tol, 1.0))

    def _express_by_admm(self, X: Float64) -> Expression:
        alpha = check_positive("alpha", self.alpha)
        tol = check_positive("tol", self.tol)
        max_iter = check_count("max_iter", self.max_iter, 1)
        sizes = np.sort(np.abs(X).sum(axis=1))  # |y_j|_1; the minimum over i of the maximum over j != i is the second
        lambda_e = check_positive("alpha_e", self.alpha_e) / _or_one(sizes[-2]) if self.outliers else None
        return express_by_admm(X, alpha / coherence(X), lambda_e, alpha, bool(self.affine), tol, max_iter)


class Expression(NamedTuple):
    """C (m, m), the iterations it took, and whether the stopping rule was met."""

    C: Affinity
    n_iter: int
    converged: bool


def _or_one(x: np.floating) -> float:
    """A scale of the data, or 1 where all of it is 0 and no scale matters."""
    return float(x) if x > 0 else 1.0


def coherence(X: Float64) -> float:
    """mu_z = min_i max_{j != i} |x_i . x_j|, over the samples that are not orthogonal to all others (14)."""
    G = np.abs(X @ X.T)
    np.fill_diagonal(G, 0)
    largest = G.max(axis=1)
    return _or_one(largest[largest > ROUNDING * largest.max()].min(initial=largest.max()))


def shrink(A: Float64, threshold: float) -> Float64:
    """Soft thresholding T: sign(a) max(|a| - threshold, 0)."""
    return A - np.clip(A, -threshold, threshold)


def express_by_admm(
    X: Float64, lambda_z: float, lambda_e: float | None, rho: float, affine: bool, tol: float, max_iter: int
) -> Expression:
    """C (m, m), zero diagonal, of program (13) by the alternating direction method of multipliers (Algorithm 2).

    Letters are the paper's: A the copy of C in the quadratic term, Delta and delta the multipliers of A = C - diag(C)
    and 1'A = 1', rho the penalty of the splitting. With ``lambda_e`` None there is no E.
    """
    m = len(X)
    Y = X.T  # (f, m)
    solve = _ridge_solver(np.hstack([np.sqrt(lambda_z) * X, np.full((m, int(affine)), np.sqrt(rho))]), rho)
    target = lambda_z * (X @ Y) + (rho if affine else 0)  # the part of the right side that does not move, (m, m)
    C, A, Delta, delta, E = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)), np.zeros(m), np.zeros(Y.shape)
    change_E = 0.0
    for n_iter in range(1, max_iter + 1):
        right = target + rho * C - Delta
        if lambda_e is not None:
            right -= lambda_z * (X @ E)
        if affine:
            right -= delta  # 1 delta': every row loses delta'
        before, A = A, solve(right)
        C = shrink(A + Delta / rho, 1 / rho)
        np.fill_diagonal(C, 0)
        if lambda_e is not None:
            E_before, E = E, shrink(Y - Y @ A, lambda_e / lambda_z)
            change_E = _largest(E - E_before)
        gap, excess = A - C, A.sum(axis=0) - 1 if affine else np.zeros(m)
        Delta += rho * gap
        delta += rho * excess
        if max(_largest(gap), _largest(excess), _largest(A - before), change_E) <= tol:
            return Expression(C, n_iter, True)
    return Expression(C, max_iter, False)


def _largest(A: Float64) -> float:
    return float(np.abs(A).max())


def _ridge_solver(Z: Float64, rho: float) -> Callable[[Float64], Float64]:
    """R -> (Z Z' + rho I)^-1 R for Z (m, q), by one singular value decomposition; in factors where that is cheaper."""
    U, s, _ = svd(Z, full_matrices=False, check_finite=False)
    shares = s**2 / (s**2 + rho)
    if 2 * len(s) < len(Z):
        return lambda R: (R - U @ (shares[:, None] * (U.T @ R))) / rho
    inverse = (np.eye(len(Z)) - (U * shares) @ U.T) / rho
    return lambda R: inverse @ R


def express_by_omp(X: Float64, n_nonzero: int, tol: float) -> Expression:
    """C by orthogonal matching pursuit (You, Robinson, Vidal 2016, Algorithm 1): greedy, all samples a step at a time.

    Each step adds to a sample's support the other sample that is most correlated with its residual, and fits anew: at
    most ``n_nonzero``, m - 1 and f of them (the paper's k_max), until the residual has the length ``tol`` (its
    epsilon). Samples are scaled to length 1; a zero sample expresses nothing. C is CSR.
    """
    length = np.linalg.norm(X, axis=1, keepdims=True)
    X = X / np.where(length > 0, length, 1)
    m, f = X.shape
    steps = min(n_nonzero, m - 1, f)
    size = max(1, BLOCK // max(m, steps * f))
    blocks = [_pursue(X, np.arange(p, min(p + size, m)), steps, tol) for p in range(0, m, size)]
    support, coefficient, left = (np.concatenate(part) for part in zip(*blocks, strict=True))
    used = coefficient != 0
    C = sp.csr_array((coefficient[used], (support[used], np.nonzero(used)[0])), shape=(m, m))
    return Expression(C, max(1, int(used.sum(axis=1).max())), bool((left <= tol).all()))


def _pursue(X: Float64, block: Integer, steps: int, tol: float) -> tuple[Integer, Float64, Float64]:
    """Supports and coefficients (b, steps) of a block of samples, and the lengths of their residuals (b,)."""
    b, residual = np.arange(len(block)), X[block]  # (b, f)
    support = np.full((len(b), steps), block[:, None])  # a sample itself stands for "none": it is never taken
    Q = np.zeros((len(b), steps, X.shape[1]))  # orthonormal rows that span the support, by Gram and Schmidt
    for t in range(steps):
        fit = np.abs(residual @ X.T)  # (b, m)
        fit[b, block] = -1
        np.put_along_axis(fit, support, -1, axis=1)
        best = fit.argmax(axis=1)
        # An atom without any correlation lies in the span already, or across the residual: it could not help.
        live = (np.linalg.norm(residual, axis=1) > tol) & (fit[b, best] > ROUNDING)
        if not live.any():
            break
        support[live, t] = best[live]
        q = X[best] * live[:, None]
        for _ in range(2):  # twice is enough for orthogonality to rounding
            q -= np.einsum("btf,bt->bf", Q, np.einsum("btf,bf->bt", Q, q))
        Q[:, t] = q / np.where(live, np.linalg.norm(q, axis=1), 1)[:, None]
        residual -= Q[:, t] * np.einsum("bf,bf->b", Q[:, t], residual)[:, None]
    R = np.einsum("btf,bsf->bts", Q, X[support])  # (b, t, t) upper triangular
    R[:, np.arange(steps), np.arange(steps)] += support == block[:, None]  # steps not taken: coefficient 0
    coefficient = np.linalg.solve(R, np.einsum("btf,bf->bt", Q, X[block])[..., None])[..., 0]
    return support, coefficient, np.linalg.norm(residual, axis=1)


def affinity_of(C: Affinity, keep: float = 1.0) -> Affinity:
    """W = |C| + |C|' after each column of C was cut to its largest entries and divided by the largest (Algorithm 1).

    Of each column the fewest largest |c| that hold the share ``keep`` of its sum stay; 1 keeps all. W is CSR where C
    is sparse.
    """
    A = sp.csc_array(abs(C))
    A.eliminate_zeros()
    column = np.repeat(np.arange(A.shape[1]), np.diff(A.indptr))
    order = np.lexsort((-A.data, column))
    value, row = A.data[order], A.indices[order]
    total = np.bincount(column, value, A.shape[1])
    larger = np.cumsum(value) - value - (np.cumsum(total) - total)[column]  # what larger ones of the column hold
    mask = larger < keep * total[column] if keep < 1 else np.ones(len(value), dtype=bool)
    value /= value[A.indptr[column]]  # its column's largest stands first
    cut = sp.csr_array((value[mask], (row[mask], column[mask])), shape=A.shape)
    W = sp.csr_array(cut + cut.T)
    return W.toarray() if isinstance(C, np.ndarray) else W

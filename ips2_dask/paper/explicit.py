"""The paper letter by letter: dense tensors, unfoldings and Laplacians of small data, with the paper's own indices.

For inspection and proofs, up to ``MOST_SAMPLES`` samples. `ips2_dask.IPS2` and `ips2_dask.run` compute the same from
the active pairs alone, for any number of samples; docs/method.md has the mathematics.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import pdist, squareform

from ips2_dask.errors import BadInput
from ips2_dask.fields import mean_or_number, real, whole, word
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Float64, Int64

MOST_SAMPLES = 100  # a tensor takes m^4 * 8 bytes, then 0.8 GB, and a call holds up to four of them
HEAT_NEIGHBORS = 5
TIE = 1e-9  # eigenvalues closer than this count as one, whose vectors are only defined together
DENSE_PAIRS = 400  # pairs of a component up to which LAPACK solves for few vectors; above it Lanczos costs less


def pairwise_similarity(
    X: npt.ArrayLike,
    affinity: Literal["heat-knn", "gaussian"] = "heat-knn",
    bandwidth: Literal["mean", "median"] | float = "mean",
) -> Float64:
    """The pairwise similarity S.

    Parameters
    ----------
    X : array (m, f)
        Samples, finite.
    affinity : {"heat-knn", "gaussian"}
        ``gaussian``: ``exp(-d_ij^2 / 2 t^2)`` of all pairs, diagonal 1. ``heat-knn``: the same kernel where i or j is
        among the five nearest others of the other, zero elsewhere and on the diagonal.
    bandwidth : {"mean", "median"} or float
        The distance t, in the unit of X: a number, or the mean or median distance over all i < j.

    Returns
    -------
    S : float64 array (m, m)
        Symmetric, in [0, 1].
    """
    word("affinity", affinity, "heat-knn", "gaussian")
    d, rule = _distances(X), mean_or_number("bandwidth", bandwidth)
    S = kernel(d, bandwidth_of(d, rule))
    return S if affinity == "gaussian" else on_neighbors(S, d)


def tensor_similarity(
    data: npt.ArrayLike,
    kind: Literal["indecomposable", "decomposable"] = "indecomposable",
    n_neighbors: int | None = None,
    sigma: float = 1.0,
    epsilon: float = 1e-4,
) -> Float64:
    """The similarity of pairs of samples.

    ``indecomposable``: ``T_ijkl = exp(-sigma (d_ij + d_kl) / (d_ik + d_jl + epsilon))``, of all quadruples or, as in
    the paper's numerical scheme, of those where one neighbourhood holds i, j, k and l; zero elsewhere. An entry that
    several neighbourhoods hold counts once. ``decomposable``: ``T_ijkl = S_ik S_jl``.

    Parameters
    ----------
    data : array (m, f) or (m, m)
        The samples X for the indecomposable tensor, the pairwise similarity S for the decomposable one.
    kind : {"indecomposable", "decomposable"}
        One of the paper's two tensors.
    n_neighbors : int, optional
        k, the number of samples in a neighbourhood, the sample itself among them; ties are decided by (distance, id).
        None keeps all quadruples. The decomposable tensor has no neighbourhoods.
    sigma : float
        Positive. It has no unit, since it multiplies a ratio of distances.
    epsilon : float
        Positive and less than .001, in the unit of X (a run's parameter is in the unit `Run.unit`).

    Returns
    -------
    T : float64 array (m, m, m, m)
        ``T_ijkl = T_klij = T_jilk``; the indecomposable tensor lies in [0, 1].

    Raises
    ------
    BadInput
        If there are more than ``MOST_SAMPLES`` samples, or an argument is not one of the above.
    """
    if word("kind", kind, "indecomposable", "decomposable") == "decomposable":
        if n_neighbors is not None:
            allowed, otherwise = "None for a decomposable tensor", "the unfolding would not be S kron S"
            raise BadInput("n_neighbors", str(n_neighbors), allowed, otherwise, "leave it out")
        S = _square(data, "S")
        _check_size(len(S))
        return np.asarray(np.einsum("ik,jl->ijkl", S, S))
    real("sigma", sigma, 0, math.inf, "far pairs would be the similar ones", False)
    real("epsilon", epsilon, 0, 1e-3, "a denominator could be zero, or the result depend on it", False)
    _check_size(len(np.asarray(data)))
    d = _distances(data)
    why = "a neighbourhood would hold no pair, or samples that do not exist"
    k = len(d) if n_neighbors is None else whole("n_neighbors", n_neighbors, 2, len(d), why)
    return quadruples(d, None if k == len(d) else nearest(d, k), sigma, epsilon)


# Definition 3.1 counts the pair (i, j) as r = m (j - 1) + i: the first index runs fastest, which is NumPy's order "F".
# `unfold` and `fold` both use it, so fold(unfold(T)) is T. T_ijkl = S_ik S_jl unfolds to S kron S in either order, so
# Theorem 3.1 does not tell them apart. Definition 3.3 as printed, j = l - m (i - 1), counts with the second index
# fastest, so it folds to the transpose of what Definition 3.1 unfolds. The paper's V is symmetric, so both agree there.


def unfold(T: npt.ArrayLike) -> Float64:
    """The unfolding T-hat (Definition 3.1), ``T_hat[m j + i, m l + k] = T[i, j, k, l]`` counted from 0.

    Parameters
    ----------
    T : array (m, m, m, m) or (m, m)
        A tensor similarity, or a similarity matrix to be written as a vector in the same order; else it is refused.

    Returns
    -------
    T_hat : float64 array (m^2, m^2) or (m^2,)
    """
    refuse_masked(T, "T")
    T = np.asarray(T, dtype=np.float64)
    if T.ndim not in (2, 4) or len(set(T.shape)) != 1:
        raise BadInput("T", f"shape {T.shape}", "(m, m, m, m) or (m, m)", "there would be no pairs to count", "pass T")
    return T.reshape((len(T) ** 2,) * (T.ndim // 2), order="F")


def fold(v: npt.ArrayLike) -> Float64:
    """The inverse of `unfold`: an eigenvector as a matrix (Definition 3.3), an unfolding as a tensor.

    Parameters
    ----------
    v : array (m^2,) or (m^2, m^2)
        A vector or a matrix over ordered pairs, in the order of `unfold`; else it is refused.

    Returns
    -------
    V : float64 array (m, m) or (m, m, m, m)
        ``V[i, j] = v[m j + i]`` counted from 0.
    """
    refuse_masked(v, "v")
    v = np.asarray(v, dtype=np.float64)
    m = math.isqrt(v.shape[0]) if v.ndim else 0
    if v.ndim not in (1, 2) or v.shape != (m * m,) * v.ndim:
        raise BadInput("v", f"shape {v.shape}", "(m^2,) or (m^2, m^2)", "there would be no pairs to fold to", "pass v")
    return v.reshape((m, m) * v.ndim, order="F")


def laplacian(M: npt.ArrayLike) -> Float64:
    """The paper's Laplacian ``D^-1/2 M D^-1/2``, D the row sums: L of S, and L-hat of T-hat.

    Parameters
    ----------
    M : array (n, n)
        Symmetric, without negative entries; else it is refused.

    Returns
    -------
    L : float64 array (n, n)
        Its eigenvalues lie in [-1, 1]; zero rows stay zero.
    """
    M = _square(M, "M")
    degree = M.sum(axis=1)
    if (degree < 0).any():
        row_sum = f"the sum {degree.min():.3g} of row {int(degree.argmin())}"
        raise BadInput("M", row_sum, "no negative row sum", "its root would be complex", "pass a similarity")
    inverse = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    return np.asarray(M * inverse[:, None] * inverse[None, :])


def high_order_similarity(T: npt.ArrayLike, n_clusters: int, rule: Literal["rms", "abs", "signed"] = "rms") -> Float64:
    """The high-order similarity V of the top c eigenvectors of L-hat (Definition 3.3 and step 4 of Algorithm 1).

    V is a similarity and therefore symmetric: eigenvectors that change sign under (i, j) -> (j, i) are left out. Those
    of eigenvalues equal to the c-th are taken in. If the pair graph has r < c connected components, the vectors are the
    r of eigenvalue 1 and the next c - r. If r >= c, they are the r, each weighted by the root of its component's share
    of the volume, and the next c.

    Parameters
    ----------
    T : array (m, m, m, m) or (m^2, m^2)
        A tensor similarity, or its Laplacian L-hat. L-hat has lost the volumes, so it needs r < c.
    n_clusters : int
        c.
    rule : {"rms", "abs", "signed"}
        How the eigenvectors become one matrix: the root of the mean square, which depends neither on signs nor on the
        basis of a repeated eigenvalue; the mean of absolute values; or the mean as printed, each sign chosen so that
        the sum is positive.

    Returns
    -------
    V : float64 array (m, m)
        Symmetric, maximum 1.

    Raises
    ------
    BadInput
        If the shape is wrong, c < 1, the rule unknown, there are more than ``MOST_SAMPLES`` samples, or L-hat has
        r >= c.
    """
    refuse_masked(T, "T")
    T = np.asarray(T)
    whole("n_clusters", n_clusters, 1, None, "V would be made of no vector")
    word("rule", rule, "rms", "abs", "signed")
    is_tensor = T.ndim == 4
    m = len(T) if is_tensor else math.isqrt(T.shape[0] if T.ndim else 0)
    _check_size(m)
    M = unfold(T) if is_tensor else _square(T, "T")
    if m * m != len(M):
        raise BadInput("T", f"shape {T.shape}", "(m, m, m, m) or (m^2, m^2)", "there would be no pairs", "pass T")
    found = spectrum(M, normalized=not is_tensor)
    r = len(found.shares)
    if r == 0:
        raise BadInput("T", "zeros alone", "a similarity of some pair", "V would be zero", "pass another tensor")
    if r >= n_clusters and not is_tensor:
        counts = f"L-hat with {r} components for {n_clusters} clusters"
        otherwise = "the components' shares of the volume, which L-hat has lost, would be guessed"
        raise BadInput("T", counts, "fewer components than clusters", otherwise, "pass the tensor")
    V = combined(found, n_clusters, rule)
    return np.asarray(V / V.max())


# What baselines, and readings of the text (notebooks/research), share with it: on distances that are checked.


def bandwidth_of(d: Float64, rule: str | float) -> float:
    """t of distances (m, m): their mean or median over i < j, or the number given."""
    if not isinstance(rule, str):
        return float(rule)
    above = squareform(d, checks=False)
    return float(above.mean() if rule == "mean" else np.median(above))


def kernel(d: Float64, t: float) -> Float64:
    """exp(-d^2 / 2 t^2); for t = 0 its limit, 1 where d = 0 and 0 elsewhere."""
    return np.exp(-0.5 * (d / t) ** 2) if t > 0 else np.asarray(d == 0, dtype=np.float64)


def nearest(d: Float64, k: int) -> Int64:
    """N(p): the sample itself and its k - 1 nearest others by (distance, id), (m, k)."""
    return np.argsort(d - np.eye(len(d)), axis=1, kind="stable")[:, :k]  # itself before its duplicates


def on_neighbors(S: Float64, d: Float64, k: int = HEAT_NEIGHBORS) -> Float64:
    """S where one of two samples is among the k nearest others of the other, zero elsewhere."""
    near = np.zeros(d.shape, dtype=np.bool_)
    np.put_along_axis(near, nearest(d, k + 1)[:, 1:], True, axis=1)
    return np.where(near | near.T, S, 0.0)


def quadruples(e: Float64, near: Int64 | None, sigma: float | Float64, epsilon: float) -> Float64:
    """The indecomposable tensor of distances e (m, m), (m, m, m, m), zero outside of neighbourhoods (m, k), if given.

    An entry of several neighbourhoods counts once. ``sigma`` may be one of each neighbourhood, (m,); a quadruple of
    several has that of the first.
    """
    if near is None:
        return _quotients(e, float(sigma), epsilon)
    m = len(e)
    sigmas, T = np.broadcast_to(sigma, m), np.zeros((m, m, m, m))
    for p in reversed(range(m)):  # so that the first neighbourhood is the last to write
        N = near[p]
        T[np.ix_(N, N, N, N)] = _quotients(e[np.ix_(N, N)], float(sigmas[p]), epsilon)
    return T


def _quotients(e: Float64, sigma: float, epsilon: float) -> Float64:
    T: Float64 = e[:, None, :, None] + e[None, :, None, :]  # d_ik + d_jl
    T += epsilon
    np.divide(e[:, :, None, None] + e[None, None, :, :], T, out=T)  # (d_ij + d_kl) over it
    return np.exp(np.multiply(T, -sigma, out=T), out=T)


class Spectrum(NamedTuple):
    """Swap-symmetric eigenvectors as matrices: one of each component first, then the rest, values descending."""

    values: Float64  # (n,)
    matrices: Float64  # (n, m, m)
    shares: Float64  # (r,) each component's share of the volume


def spectrum(T_hat: Float64, n: int | None = None, normalized: bool = False) -> Spectrum:
    """The leading swap-symmetric eigenvectors of an unfolded tensor, at least the n after those of the components.

    T-hat has the symmetry (i, j), (k, l) -> (j, i), (l, k), so it does not mix the vectors that keep their sign under
    the swap with those that change it, and each component can be solved alone: its eigenvalue 1 is then simple. They
    are those of D^-1/2 T D^-1/2, which T-hat may be already (``normalized``); without ``n`` all of them.
    """
    m = math.isqrt(len(T_hat))
    i, j = np.triu_indices(m)
    one, other, unit = m * i + j, m * j + i, np.where(i == j, math.sqrt(0.5), 1.0)
    degree = T_hat.sum(axis=1)[one]
    inverse = np.divide(1.0, np.sqrt(degree), out=np.zeros(len(i)), where=degree > 0)
    scale = unit if normalized else unit * inverse
    # between the vectors (e_ij + e_ji) / sqrt(2) for i < j and e_ii
    L = sp.csr_array((T_hat[np.ix_(one, one)] + T_hat[np.ix_(one, other)]) * scale[:, None] * scale)
    active = np.flatnonzero(abs(L).sum(axis=1) > 0)
    label = connected_components(L[active][:, active], directed=False)[1]
    firsts: list[tuple[float, Float64]] = []
    others: list[tuple[float, Float64]] = []
    shares = []
    for component in range(int(label.max(initial=-1)) + 1):
        rows = active[label == component]
        values, vectors = _leading(L[rows][:, rows], n)
        matrices = np.zeros((len(values), m, m))
        entries = vectors.T * math.sqrt(0.5) / unit[rows]
        matrices[:, i[rows], j[rows]] = matrices[:, j[rows], i[rows]] = entries
        found = list(zip(values.tolist(), matrices, strict=True))
        firsts, others = firsts + found[:1], others + found[1:]
        shares.append((degree * unit**2)[rows].sum() / (degree * unit**2).sum())
    every = firsts + sorted(others, key=lambda one: -one[0])
    stack = np.array([M for _, M in every]).reshape(-1, m, m)
    return Spectrum(np.array([value for value, _ in every]), stack, np.array(shares))


def _leading(L: sp.csr_array, n: int | None) -> tuple[Float64, Float64]:
    """A few more than n leading eigenpairs of a component, or all: values descending, vectors as columns."""
    size = L.shape[0]
    n = size if n is None else n + 4
    if size <= max(DENSE_PAIRS, 3 * n):
        values, vectors = eigh(L.toarray(), subset_by_index=[max(0, size - n), size - 1])
    else:
        start = np.random.default_rng(0).uniform(0.5, 1, size)
        values, vectors = eigsh(L, n, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]


def combined(found: Spectrum, n: int, rule: str) -> Float64:
    """V before it is scaled, (m, m): by the rule of `high_order_similarity` for components and ties."""
    r, weights = len(found.shares), np.ones(len(found.values))
    if r >= n:
        weights[:r] = np.sqrt(found.shares)
    last = r + _through_ties(found.values[r:], n - r if r < n else n)
    stack = found.matrices[:last] * weights[:last, None, None]
    if rule == "rms":
        return np.asarray(np.sqrt(np.mean(stack**2, axis=0)))
    if rule == "abs":
        return np.asarray(np.mean(np.abs(stack), axis=0))
    return np.asarray(np.where(stack.sum(axis=(1, 2), keepdims=True) < 0, -stack, stack).mean(axis=0))


def _through_ties(values: Float64, n: int) -> int:
    while 0 < n < len(values) and values[n - 1] - values[n] < TIE:
        n += 1
    return min(n, len(values))


# checks


def _distances(X: npt.ArrayLike) -> Float64:
    refuse_masked(X, "X")
    X = np.asarray(X)
    if X.ndim != 2 or len(X) < 2 or X.dtype.kind not in "fiub":
        fault = f"shape {X.shape} of {X.dtype}"
        raise BadInput("X", fault, "(m, f) real numbers, m >= 2", "there would be no pair", "pass a matrix of numbers")
    X = X.astype(np.float64)
    if not np.isfinite(X).all():
        row, column = np.argwhere(~np.isfinite(X))[0]
        fault, otherwise = f"{X[row, column]} in row {row}, column {column}", "every distance to it would be undefined"
        raise BadInput("X", fault, "finite numbers", otherwise, "fill it or drop the row")
    return np.asarray(squareform(pdist(X)))


def _check_size(m: int) -> None:
    if m > MOST_SAMPLES:
        allowed = f"at most {MOST_SAMPLES} ({8 * MOST_SAMPLES**4 / 1e9:.1f} GB for one tensor)"
        otherwise = f"one dense tensor would take {8 * m**4 / 1e9:,.1f} GB, and this needs up to four"
        remedy = "use ips2_dask.IPS2 or ips2_dask.run, whose sparse tensor keeps active pairs alone"
        raise BadInput("samples", f"m = {m}", allowed, otherwise, remedy)


def _square(M: npt.ArrayLike, name: str) -> Float64:
    refuse_masked(M, name)
    M = np.asarray(M, dtype=np.float64)
    if M.ndim != 2 or M.shape[0] != M.shape[1]:
        raise BadInput(name, f"shape {M.shape}", "a square matrix", "rows and columns would not match", "pass a square")
    return M

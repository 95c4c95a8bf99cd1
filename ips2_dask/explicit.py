"""The paper letter by letter: dense tensors, unfoldings and Laplacians of small data, with the paper's own indices.

For inspection and proofs, up to ``MOST_SAMPLES`` samples. `ips2_dask.IPS2` and `ips2_dask.run` compute the same from
the active pairs alone, for any number of samples; docs/method.md has the mathematics.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from ips2_dask.errors import BadInput
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Float64, Int64

MOST_SAMPLES = 100  # a tensor takes m^4 * 8 bytes, then 0.8 GB, and a call holds up to four of them
HEAT_NEIGHBORS = 5
TIE = 1e-9  # eigenvalues closer than this count as one, whose vectors are only defined together


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

    Raises
    ------
    BadInput
        If X is not a finite matrix of at least two rows, or an option is unknown.
    """
    d = _distances(X)
    kernel = _kernel(d, _bandwidth(d, bandwidth))
    if affinity == "gaussian":
        return kernel
    if affinity != "heat-knn":
        raise _unknown("affinity", affinity, "'heat-knn' or 'gaussian'", "there would be no rule for S")
    near = _membership(d, min(HEAT_NEIGHBORS + 1, len(d)))
    np.fill_diagonal(near, False)
    return np.where(near | near.T, kernel, 0.0)


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
    if kind == "decomposable":
        return _decomposable(data, n_neighbors)
    if kind != "indecomposable":
        raise _unknown("kind", kind, "'indecomposable' or 'decomposable'", "there would be no rule for T")
    _check_numbers(sigma, epsilon)
    _check_size(len(np.asarray(data)))
    d = _distances(data)
    T: Float64 = d[:, None, :, None] + d[None, :, None, :]  # d_ik + d_jl
    T += epsilon
    np.divide(d[:, :, None, None] + d[None, None, :, :], T, out=T)  # (d_ij + d_kl) over it
    np.exp(np.multiply(T, -sigma, out=T), out=T)
    if n_neighbors is not None:
        T *= _together(_membership(d, _checked_neighbors(n_neighbors, len(d))))
    return T


# Definition 3.1 counts the pair (i, j) as r = m (j - 1) + i: the first index runs fastest, which is NumPy's order "F".
# `unfold` and `fold` both use it, so fold(unfold(T)) is T. T_ijkl = S_ik S_jl unfolds to S kron S in either order, so
# Theorem 3.1 does not tell them apart. Definition 3.3 as printed, j = l - m (i - 1), counts with the second index
# fastest, so it folds to the transpose of what Definition 3.1 unfolds. The paper's V is symmetric, so both agree there.


def unfold(T: npt.ArrayLike) -> Float64:
    """The unfolding T-hat (Definition 3.1), ``T_hat[m j + i, m l + k] = T[i, j, k, l]`` counted from 0.

    Parameters
    ----------
    T : array (m, m, m, m) or (m, m)
        A tensor similarity, or a similarity matrix to be written as a vector in the same order.

    Returns
    -------
    T_hat : float64 array (m^2, m^2) or (m^2,)

    Raises
    ------
    BadInput
        If T has another number of axes, or axes of different lengths.
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
        A vector or a matrix over ordered pairs, in the order of `unfold`.

    Returns
    -------
    V : float64 array (m, m) or (m, m, m, m)
        ``V[i, j] = v[m j + i]`` counted from 0.

    Raises
    ------
    BadInput
        If the length is no square, or the matrix is not square.
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
        Symmetric, without negative entries.

    Returns
    -------
    L : float64 array (n, n)
        Its eigenvalues lie in [-1, 1]; zero rows stay zero.

    Raises
    ------
    BadInput
        If M is not square, or has a negative row sum.
    """
    M = _square(M, "M")
    degree = M.sum(axis=1)
    if (degree < 0).any():
        row_sum = f"the sum {degree.min():.3g} of row {int(degree.argmin())}"
        raise BadInput("M", row_sum, "no negative row sum", "its root would be complex", "pass a similarity")
    root = np.sqrt(degree)
    inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
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
    if n_clusters < 1:
        raise BadInput("n_clusters", str(n_clusters), "1 or more", "V would be made of no vector", "raise n_clusters")
    is_tensor = T.ndim == 4
    m = len(T) if is_tensor else math.isqrt(T.shape[0] if T.ndim else 0)
    _check_size(m)
    M = unfold(T) if is_tensor else _square(T, "T")
    if m * m != len(M):
        raise BadInput("T", f"shape {T.shape}", "(m, m, m, m) or (m^2, m^2)", "there would be no pairs", "pass T")
    values, vectors, components = _symmetric_spectrum(laplacian(M) if is_tensor else M, m)
    r = len(components)
    if r == 0:
        raise BadInput("T", "zeros alone", "a similarity of some pair", "V would be zero", "pass another tensor")
    if r >= n_clusters and not is_tensor:
        counts = f"L-hat with {r} components for {n_clusters} clusters"
        otherwise = "the components' shares of the volume, which L-hat has lost, would be guessed"
        raise BadInput("T", counts, "fewer components than clusters", otherwise, "pass the tensor")
    weights = np.ones(len(values))
    if r >= n_clusters:
        weights[:r] = np.sqrt([M[rows].sum() / M.sum() for rows in components])
    n = r + _through_ties(values[r:], n_clusters - r if r < n_clusters else n_clusters)
    stack = np.stack([weight * fold(v) for weight, v in zip(weights[:n], vectors[:n], strict=True)])  # (n, m, m)
    V = _one_matrix(stack, rule)
    return np.asarray(V / V.max())


def _one_matrix(stack: Float64, rule: str) -> Float64:
    if rule == "rms":
        return np.asarray(np.sqrt(np.mean(stack**2, axis=0)))
    if rule == "abs":
        return np.asarray(np.mean(np.abs(stack), axis=0))
    if rule == "signed":
        return np.asarray(np.mean(np.where(stack.sum(axis=(1, 2), keepdims=True) < 0, -stack, stack), axis=0))
    raise _unknown("rule", rule, "'rms', 'abs' or 'signed'", "there would be no rule for V")


def _symmetric_spectrum(L_hat: Float64, m: int) -> tuple[Float64, Float64, list[Int64]]:
    """Swap-symmetric eigenpairs of L-hat: one of eigenvalue 1 for each component, then the rest, descending.

    Also the rows of each component.

    L-hat has the symmetry (i, j), (k, l) -> (j, i), (l, k), so it does not mix the vectors that keep their sign under
    the swap with those that change it, and each component can be solved alone: its eigenvalue 1 is then simple.
    """
    swap = np.arange(m * m).reshape(m, m).T.ravel()
    components = _components(L_hat, swap)
    first: list[Float64] = []
    rest: list[tuple[float, Float64]] = []
    for rows in components:
        B = _symmetric_basis(rows, swap)
        values, vectors = eigh(B.T @ (B.T @ L_hat).T)
        whole = (B @ vectors).T[::-1]
        first.append(whole[0])
        rest.extend(zip(values[-2::-1].tolist(), whole[1:], strict=True))
    rest.sort(key=lambda pair: -pair[0])
    values = np.array([1.0] * len(first) + [value for value, _ in rest])
    return values, np.array(first + [v for _, v in rest]), components


def _components(M: Float64, swap: Int64) -> list[Int64]:
    """Rows of each component of the pairs that M joins; (i, j) and (j, i) count as one, zero rows belong to none."""
    active = np.flatnonzero(M.any(axis=1))
    graph = csr_array(M != 0) + csr_array((np.ones(len(swap), dtype=bool), (np.arange(len(swap)), swap)))
    label = connected_components(graph[active][:, active], directed=False)[1]
    return [active[label == r] for r in range(int(label.max(initial=-1)) + 1)]


def _symmetric_basis(rows: Int64, swap: Int64) -> csr_array:
    """Columns (e_ij + e_ji) / sqrt(2) for i < j and e_ii, of the ordered pairs in ``rows``, (m^2, columns)."""
    one, other = rows[rows <= swap[rows]], swap[rows[rows <= swap[rows]]]
    half = np.where(one == other, 0.5, math.sqrt(0.5))  # e_ii is written twice and summed
    column = np.arange(len(one))
    entries = (np.concatenate([half, half]), (np.concatenate([one, other]), np.concatenate([column, column])))
    return csr_array(entries, shape=(len(swap), len(one)))


def _through_ties(values: Float64, n: int) -> int:
    while 0 < n < len(values) and values[n - 1] - values[n] < TIE:
        n += 1
    return min(n, len(values))


def _together(member: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether some neighbourhood holds all four samples, (m, m, m, m), of ``member[p, i]``: is i in N(p)."""
    m = len(member)
    pair = (member[:, :, None] & member[:, None, :]).reshape(m, m * m).astype(np.float32)
    return np.asarray(pair.T @ pair > 0).reshape(m, m, m, m)


def _membership(d: Float64, k: int) -> npt.NDArray[np.bool_]:
    """``member[p, i]``: i is in N(p), the sample itself and its k - 1 nearest others, ties broken by id."""
    m = len(d)
    others = d + np.diag(np.full(m, -1.0))  # the sample itself before its duplicates
    member = np.zeros((m, m), dtype=np.bool_)
    np.put_along_axis(member, np.argsort(others, axis=1, kind="stable")[:, :k], True, axis=1)
    return member


def _decomposable(S: npt.ArrayLike, n_neighbors: int | None) -> Float64:
    if n_neighbors is not None:
        otherwise = "the unfolding would not be S kron S"
        raise BadInput("n_neighbors", str(n_neighbors), "None for a decomposable tensor", otherwise, "leave it out")
    S = _square(S, "S")
    _check_size(len(S))
    return np.asarray(np.einsum("ik,jl->ijkl", S, S))


def _distances(X: npt.ArrayLike) -> Float64:
    refuse_masked(X, "X")
    X = np.asarray(X)
    if X.ndim != 2 or len(X) < 2 or X.dtype.kind not in "fiub":
        fault = f"shape {X.shape} of {X.dtype}"
        raise BadInput("X", fault, "(m, f) real numbers, m >= 2", "there would be no pair", "pass a matrix of numbers")
    X = X.astype(np.float64)
    if not np.isfinite(X).all():
        row, column = np.argwhere(~np.isfinite(X))[0]
        fault = f"{X[row, column]} in row {row}, column {column}"
        raise BadInput(
            "X", fault, "finite numbers", "every distance to it would be undefined", "fill it or drop the row"
        )
    return np.asarray(squareform(pdist(X)))


def _kernel(d: Float64, t: float) -> Float64:
    """exp(-d^2 / 2 t^2); for t = 0 its limit, 1 where d = 0 and 0 elsewhere."""
    return np.exp(-0.5 * (d / t) ** 2) if t > 0 else np.asarray(d == 0, dtype=np.float64)


def _bandwidth(d: Float64, bandwidth: str | float) -> float:
    above = squareform(d, checks=False)
    if bandwidth == "mean":
        return float(above.mean())
    if bandwidth == "median":
        return float(np.median(above))
    if isinstance(bandwidth, str) or not (math.isfinite(bandwidth) and bandwidth > 0):
        raise _unknown("bandwidth", bandwidth, "'mean', 'median' or a positive number", "the kernel would be undefined")
    return float(bandwidth)


def _check_numbers(sigma: float, epsilon: float) -> None:
    if not (math.isfinite(sigma) and sigma > 0):
        raise BadInput("sigma", str(sigma), "a positive number", "far pairs would be the similar ones", "give sigma=1")
    if not 0 < epsilon < 0.001:
        otherwise = "a denominator could be zero, or the result depend on it"
        raise BadInput("epsilon", str(epsilon), "between 0 and .001, both excluded", otherwise, "give epsilon=1e-4")


def _checked_neighbors(n_neighbors: int, m: int) -> int:
    if isinstance(n_neighbors, bool) or int(n_neighbors) != n_neighbors or not 2 <= n_neighbors <= m:
        otherwise = "a neighbourhood would hold no pair, or samples that do not exist"
        raise BadInput(
            "n_neighbors", str(n_neighbors), f"2 to m = {m}, or None", otherwise, f"give n_neighbors={min(5, m)}"
        )
    return int(n_neighbors)


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


def _unknown(name: str, found: object, allowed: str, otherwise: str) -> BadInput:
    return BadInput(name, repr(found), allowed, otherwise, f"give {name} as one of these")

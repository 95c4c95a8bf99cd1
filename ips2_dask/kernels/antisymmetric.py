"""The swap-antisymmetric part of the pair Laplacian, which the solver leaves out: its largest eigenvalue, estimated.

T-hat is unchanged by (ij, kl) -> (ji, lk), so it splits into a symmetric part, which V is made of, and this one with
the entries T_ijkl - T_ijlk for i < j, k < l (docs/method.md, Unfolding and active pairs).

Letters: d_ij distance of samples i and j, T_ijkl and T-hat the tensor and its unfolding, V high-order similarity.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.kernels.tensor import fill_distances, local_pairs, pair_similarities

Float = NDArray[np.floating]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Integer = NDArray[np.integer]
UInt8 = NDArray[np.uint8]

STEPS = 12
"""Lanczos steps: the largest Ritz value is then a few percent from the eigenvalue, and never above it."""

ROWS = 1 << 13

MAX_BYTES = 512 << 20
"""Elements up to which the part is looked at: 2.4 million samples at k = 5, 130,000 at k = 10."""


def element_bytes(m: int, k: int) -> int:
    """Bytes of the elements of all neighbourhoods, which are kept while the steps are taken; 0 where that is too much.

    Then the part is not looked at.
    """
    n = k * (k - 1) // 2
    size = 4 * m * (n * (n + 1) // 2)
    return size if size <= MAX_BYTES else 0


@njit(nogil=True, cache=True)
def _elements(blocks, owned, N, first, second, subset, sigma, epsilon, out):  # type: ignore[no-untyped-def]
    """sign_r sign_s (T_ijkl - T_ijlk) of the pairs i < j, upper triangle by rows; 0 where another one owns it."""
    k = N.shape[1]
    D = np.zeros((k, k), np.float32)
    for p in range(len(N)):
        fill_distances(blocks[p], D)
        t = 0
        for r in range(len(first)):
            i, j = first[r], second[r]
            if N[p, i] > N[p, j]:
                i, j = j, i
            for s in range(r, len(first)):
                g, h = first[s], second[s]
                if N[p, g] > N[p, h]:
                    g, h = h, g
                bit = subset[r, s]
                out[p, t] = 0
                if owned[p, bit >> 3] >> (7 - (bit & 7)) & 1:
                    straight, crossed = pair_similarities(D, i, j, g, h, sigma, epsilon)
                    out[p, t] = straight - crossed
                t += 1


@njit(nogil=True, cache=True)
def _multiply(elements, ids, x, y):  # type: ignore[no-untyped-def]
    """Add the neighbourhoods' products with x to y, in their order."""
    n = ids.shape[1]
    for p in range(len(ids)):
        t = 0
        for r in range(n):
            pair = ids[p, r]
            y[pair] += elements[p, t] * x[pair]
            t += 1
            for s in range(r + 1, n):
                other = ids[p, s]
                y[pair] += elements[p, t] * x[other]
                y[other] += elements[p, t] * x[pair]
                t += 1


def largest_eigenvalue(
    blocks: Float, owned: UInt8, N: Int32, ids: Integer, degrees: Float64, sigma: float, epsilon: float,
    *, steps: int = STEPS, seed: int = 0,
) -> float:  # fmt: skip
    """The largest Ritz value of the antisymmetric part of D^-1/2 T-hat D^-1/2: a lower limit of its largest eigenvalue.

    Parameters
    ----------
    blocks : (m, k (k - 1) / 2) float32
        From `kernels.tensor.block_distances`.
    owned : (m, bytes) uint8
        Packed bits of `kernels.tensor.owned_subsets`.
    N : (m, k) int32
    ids : (m, q) int32 or int64
        Numbers of each neighbourhood's pairs, those of i = j among them.
    degrees : (P,) float64
    sigma, epsilon : float
    steps : int
        Lanczos steps.
    seed : int
        Of the first vector.
    """
    tables = local_pairs(N.shape[1])
    off_diagonal = np.flatnonzero(tables.first != tables.second)
    subset = np.ascontiguousarray(tables.subset[np.ix_(off_diagonal, off_diagonal)])
    first, second = tables.first[off_diagonal], tables.second[off_diagonal]
    n = len(off_diagonal)
    elements: Float = np.empty((len(N), n * (n + 1) // 2), np.float32)
    map_chunks(
        lambda a, b: _elements(
            blocks[a:b], owned[a:b], N[a:b], first, second, subset,
            np.float32(sigma), np.float32(epsilon), elements[a:b],
        ),
        len(N),
        ROWS,
    )  # fmt: skip
    used = np.ascontiguousarray(ids[:, off_diagonal])
    scale = inverse_root(degrees)
    v = np.zeros(len(degrees))
    v[used.ravel()] = 1.0  # a pair of a sample with itself has no antisymmetric part
    v *= np.random.default_rng(seed).standard_normal(len(v))
    before = np.zeros(len(v))
    alphas: list[float] = []
    betas: list[float] = []
    for step in range(steps):
        length = float(np.linalg.norm(v))
        if length < 1e-10:
            break
        betas += [length] if step else []
        v /= length
        w = np.zeros(len(v))
        _multiply(elements, used, scale * v, w)
        w *= scale
        alphas.append(float(v @ w))
        w -= alphas[-1] * v + (betas[-1] if step else 0.0) * before
        before, v = v, w
    if not alphas:
        return 0.0
    return float(scipy.linalg.eigh_tridiagonal(np.array(alphas), np.array(betas))[0][-1])

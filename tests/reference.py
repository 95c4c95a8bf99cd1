"""The oracle: the paper and its conventions in naive, dense float64, for small m; it imports nothing of the package.

Letters: X (m, f) samples, d (m, m) distances, N (m, k) neighbourhoods, T (m, m, m, m) tensor, T_hat (m^2, m^2) its
unfolding, pairs (P, 2) the active unordered pairs i <= j sorted by (i, j), R (P, P) the tensor on them in the
orthonormal basis (e_ij + e_ji) / sqrt(2), e_ii.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]
Ints = npt.NDArray[Any]

TIE = 1e-9  # eigenvalues that are closer than this are one eigenvalue


def distances(X: npt.ArrayLike, metric: str = "euclidean") -> Floats:
    """Distances d_ij of all samples, (m, m), feature by feature; of an angle the chord, sqrt(2 (1 - cos))."""
    X = np.asarray(X, dtype=np.float64)
    if metric == "correlation":
        X = X - X.mean(axis=1, keepdims=True)
    m = len(X)
    d = np.zeros((m, m))
    for i in range(m):
        for j in range(i):
            if metric == "euclidean":
                length = math.sqrt(float(((X[i] - X[j]) ** 2).sum()))
            elif metric == "manhattan":
                length = float(np.abs(X[i] - X[j]).sum())
            elif metric == "chebyshev":
                length = float(np.abs(X[i] - X[j]).max())
            elif metric == "canberra":
                length = sum(abs(a - b) / (abs(a) + abs(b)) for a, b in zip(X[i], X[j], strict=True) if a or b)
            elif metric == "braycurtis":
                size = float(np.abs(X[i] + X[j]).sum())
                length = float(np.abs(X[i] - X[j]).sum()) / size if size else 0.0
            elif metric == "hamming":
                length = float((X[i] != X[j]).mean())
            elif metric == "jaccard":
                either = float(((X[i] != 0) | (X[j] != 0)).sum())
                length = float(((X[i] != 0) ^ (X[j] != 0)).sum()) / either if either else 0.0
            elif metric == "hellinger":
                alike = float(np.sqrt(X[i] / X[i].sum() * (X[j] / X[j].sum())).sum())
                length = math.sqrt(max(0.0, 1 - alike))
            else:
                assert metric in ("cosine", "correlation")
                cosine = float(X[i] @ X[j]) / math.sqrt(float(X[i] @ X[i]) * float(X[j] @ X[j]))
                length = math.sqrt(max(0.0, 2 * (1 - cosine)))
            d[i, j] = d[j, i] = length
    return d


def neighborhoods(d: Floats, k: int) -> Ints:
    """N(p) for each p, (m, k): p itself, then its k - 1 nearest others by (distance, id)."""
    m = len(d)
    rows = []
    for p in range(m):
        others = [q for q in range(m) if q != p]
        others.sort(key=lambda q: (d[p, q], q))
        rows.append([p, *others[: k - 1]])
    return np.array(rows, dtype=np.int64)


def bandwidth_of(d: Floats, bandwidth: str | float) -> float:
    """The kernel's t: the mean or the median of d_ij over i < j, or the number given."""
    if not isinstance(bandwidth, str):
        return float(bandwidth)
    above = d[np.triu_indices(len(d), 1)]
    assert bandwidth in ("mean", "median")
    return float(np.mean(above)) if bandwidth == "mean" else float(np.median(above))


def heat(d: Floats, t: float) -> Floats:
    """exp(-d^2 / 2 t^2); its limit, 1 where d is 0, when t is 0."""
    return np.exp(-(d**2) / (2 * t * t)) if t > 0 else (d == 0).astype(np.float64)


def pairwise_similarity(d: Floats, affinity: str = "heat-knn", bandwidth: str | float = "mean") -> Floats:
    """S, (m, m): `gaussian` on all pairs, diagonal 1; or `heat-knn`, five nearest others, maximum, zero diagonal."""
    kernel = heat(d, bandwidth_of(d, bandwidth))
    if affinity == "gaussian":
        return kernel
    assert affinity == "heat-knn"
    S = np.zeros_like(d)
    for i, row in enumerate(neighborhoods(d, min(6, len(d)))):
        for j in row[1:]:
            S[i, j] = S[j, i] = kernel[i, j]  # the kernel is symmetric, so this is the maximum of both directions
    return S


def unit_of(d: Floats) -> float:
    """The power of two in which samples lie 32 to 64 (root mean square) from their mean; 1 where all are equal.

    ``d`` are their Euclidean distances; the mean of d^2 is twice that from the mean of the samples.
    """
    largest = float(d.max())
    root = largest * math.sqrt(float(((d / largest) ** 2).mean()) / 2) if largest > 0 else 32.0
    return 2.0 ** (math.floor(math.log2(root)) - 5)


def tensor(d: Floats, N: Ints, sigma: float = 1.0, epsilon: float = 1e-4) -> Floats:
    """Indecomposable T, (m, m, m, m): the paper's similarity of pairs wherever some N(p) holds i, j, k and l."""
    m = len(d)
    T = np.zeros((m, m, m, m))
    for members in N:
        local = d[np.ix_(members, members)]
        d_ij, d_kl = local[:, :, None, None], local[None, None, :, :]
        d_ik, d_jl = local[:, None, :, None], local[None, :, None, :]
        # assigned, not added: an entry that several neighbourhoods give counts once
        T[np.ix_(members, members, members, members)] = np.exp(-sigma * (d_ij + d_kl) / (d_ik + d_jl + epsilon))
    return T


def decomposable(S: Floats) -> Floats:
    """T_ijkl = S_ik S_jl, (m, m, m, m)."""
    T: Floats = S[:, None, :, None] * S[None, :, None, :]
    return T


def unfold(T: Floats) -> Floats:
    """T_hat_rs = T_ijkl with r = m (j - 1) + i and s = m (l - 1) + k (Definition 3.1, counted from 1), (m^2, m^2)."""
    m = len(T)
    T_hat = np.zeros((m * m, m * m))
    for j in range(m):
        for l in range(m):  # noqa: E741 - the paper's letter
            T_hat[m * j : m * j + m, m * l : m * l + m] = T[:, j, :, l]
    return T_hat


def fold(v: Floats) -> Floats:
    """V_ij = v_r with the r of `unfold`, (m, m)."""
    m = math.isqrt(len(v))
    V = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            V[i, j] = v[m * j + i]
    return V


def laplacian(M: Floats, degree: Floats | None = None) -> Floats:
    """D^-1/2 M D^-1/2 with the row sums of M, or the degrees given; rows of degree 0 stay 0."""
    degree = M.sum(axis=1) if degree is None else degree
    scale = np.array([1 / math.sqrt(value) if value > 0 else 0.0 for value in degree])
    L: Floats = scale[:, None] * M * scale[None, :]
    return L


def active_pairs(N: Ints) -> Ints:
    """Pairs i <= j that share a neighbourhood, (P, 2), sorted by (i, j)."""
    found = {(int(min(i, j)), int(max(i, j))) for members in N for i in members for j in members}
    return np.array(sorted(found), dtype=np.int64)


def unit(pairs: Ints) -> Floats:
    """sqrt(2) for i < j and 1 for i = j: what the vector of ones is in the orthonormal basis, (P,)."""
    return np.array([1.0 if i == j else math.sqrt(2) for i, j in pairs])


def restricted(T: Floats, pairs: Ints) -> Floats:
    """R, (P, P): T_ijkl + T_ijlk for i<j, k<l; sqrt(2) T_iikl and sqrt(2) T_ijkk; T_iikk."""
    weight = unit(pairs)
    K, L = pairs[:, 0], pairs[:, 1]
    R = np.zeros((len(pairs), len(pairs)))
    for row, (i, j) in enumerate(pairs):
        R[row] = weight[row] * weight * (T[i, j, K, L] + T[i, j, L, K]) / 2
    return R


def degrees(R: Floats, pairs: Ints) -> Floats:
    """The degree that each pair has in the full T_hat, (P,)."""
    total: Floats = R @ unit(pairs) / unit(pairs)
    return total


def components(M: Floats) -> Ints:
    """Connected component of each row of a symmetric matrix, numbered by first row, by graph search."""
    label = np.full(len(M), -1)
    for start in range(len(M)):
        if label[start] >= 0:
            continue
        label[start], waiting = label.max() + 1, [start]
        while waiting:
            row = waiting.pop()
            fresh = np.flatnonzero((M[row] != 0) & (label < 0))
            label[fresh] = label[start]
            waiting.extend(fresh.tolist())
    return label


def component_vectors(degree: Floats, pairs: Ints, label: Ints) -> Floats:
    """Eigenvectors of eigenvalue 1, (P, r): sqrt(degree) unit on one component each, of length 1."""
    Z = np.zeros((len(pairs), int(label.max()) + 1))
    Z[np.arange(len(pairs)), label] = np.sqrt(degree) * unit(pairs)
    Z /= np.linalg.norm(Z, axis=0)
    return Z


def volumes(degree: Floats, pairs: Ints, label: Ints) -> Floats:
    """Each component's share of the volume, (r,): the sum of its degrees in the full T_hat, over all of them."""
    volume = np.array([(degree * unit(pairs) ** 2)[label == r].sum() for r in range(int(label.max()) + 1)])
    share: Floats = volume / volume.sum()
    return share


def eigenpairs(L: Floats) -> tuple[Floats, Floats]:
    """All eigenvalues, descending, and their orthonormal vectors as columns."""
    values, vectors = np.linalg.eigh(L)
    return values[::-1], vectors[:, ::-1]


def with_ties(values: Floats, n: int) -> int:
    """How many leading values to take so that no value is taken without its equals."""
    if n <= 0:
        return 0
    while n < len(values) and values[n - 1] - values[n] < TIE:
        n += 1
    return min(n, len(values))


class Leading(NamedTuple):
    """What V is made of; component vectors come first."""

    values: Floats
    vectors: Floats
    weights: Floats


def is_island(label: Ints, pairs: Ints, c: int) -> Ints:
    """Which components have fewer than m / (10 c) samples, (r,); none where they would hold more than m / 2."""
    samples = np.array(
        [
            sum(1 for (i, j), own in zip(pairs, label, strict=True) if i == j and own == r)
            for r in range(int(label.max()) + 1)
        ]
    )
    small = samples < samples.sum() / (10 * c)
    return small & (samples[small].sum() <= samples.sum() / 2)


def leading(R: Floats, pairs: Ints, c: int, solved: int | None = None) -> Leading:
    """The vectors for V with their weights, r components, those that are islands for ``solved`` clusters left out.

    r < c: the component vectors and the next c - r of the deflated problem, all with weight 1.
    r >= c: the component vectors, weighted by the root of their share of the volume, and c of the deflated problem.
    """
    degree = degrees(R, pairs)
    L_hat = laplacian(R, degree)
    label = components(R)
    Z = component_vectors(degree, pairs, label)
    apart = is_island(label, pairs, c if solved is None else solved)
    L_hat[apart[label]] = 0
    weight, Z = volumes(degree, pairs, label)[~apart], Z[:, ~apart]
    r = Z.shape[1]
    values, vectors = eigenpairs(L_hat - 3 * Z @ Z.T)  # eigenvalue 1 goes to -2, below all others
    values, vectors = values[: len(values) - r], vectors[:, : len(pairs) - r]
    n = with_ties(values, c - r if r < c else c)
    weights = np.ones(r) if r < c else np.sqrt(weight / weight.sum())
    return Leading(
        np.concatenate([np.ones(r), values[:n]]), np.hstack([Z, vectors[:, :n]]), np.concatenate([weights, np.ones(n)])
    )


def unrestricted(y: Floats, pairs: Ints) -> Floats:
    """The symmetric matrix of a vector on the pairs: y_ij / sqrt(2) for i < j, y_ii on the diagonal, (m, m)."""
    m = int(pairs.max()) + 1
    V = np.zeros((m, m))
    for value, (i, j) in zip(y, pairs, strict=True):
        V[i, j] = V[j, i] = value if i == j else value / math.sqrt(2)
    return V


def high_order_similarity(vectors: Floats, weights: Floats, pairs: Ints, rule: str = "rms") -> Floats:
    """V, (m, m), maximum 1: root mean square, mean of absolutes, or mean with each sum made positive."""
    stack = np.array([w * unrestricted(y, pairs) for w, y in zip(weights, vectors.T, strict=True)])
    if rule == "rms":
        V = np.sqrt((stack**2).mean(axis=0))
    elif rule == "abs":
        V = np.abs(stack).mean(axis=0)
    else:
        assert rule == "signed"
        V = np.array([V_a if V_a.sum() > 0 else -V_a for V_a in stack]).mean(axis=0)
    scaled: Floats = V / V.max()
    return scaled


def on_pairs_of(S: Floats, V: Floats) -> Floats:
    """V, (m, m), on the pairs of S and the diagonal, 0 elsewhere."""
    return np.where((S > 0) | np.eye(len(S), dtype=bool), V, 0.0)


def fuse(S: Floats, V: Floats, fusion: str = "average", weight: float = 0.5) -> Floats:
    """U = (1 - w) S + w V, (m, m), of the two as they are or of the two normalised by their degrees."""
    if fusion == "normalized":
        S, V = laplacian(S), laplacian(V)
    return (1 - weight) * S + weight * V


def embedding(U: Floats, c: int, columns: int) -> Floats:
    """Rows of leading eigenvectors of D^-1/2 U D^-1/2, times sqrt(g_2 / g_j), g = 1 - lambda, and then of length 1.

    g_2 is the first gap that is not of a component, and at least a hundredth of the c-th.
    """
    values, vectors = np.linalg.eigh(laplacian(U))
    gaps, vectors = 1 - values[::-1][:columns], vectors[:, ::-1][:, :columns].copy()
    first = int((gaps < 1e-9).sum())
    for j in range(first, columns):
        vectors[:, j] *= min(1.0, max(gaps[first], gaps[min(c, columns) - 1] / 100) / gaps[j]) ** 0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

"""The pairwise similarity S: a heat kernel on the five nearest others, or a Gaussian of all pairs or of given ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import euclidean_distances

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.distances import length as _length
from ips2_dask.kernels.metrics import EUCLIDEAN, METRICS
from ips2_dask.kernels.neighbors import COMPARED_ROWS
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.sparse import AT_ONCE, Reverse, pairs_of
from ips2_dask.typing import Float32, Float64, Int32


def heat(distances: NDArray[np.floating], t: float) -> Float64:
    """exp(-d^2 / 2 t^2); t = 0, where all samples are equal, counts as 1."""
    with np.errstate(over="ignore"):  # a bandwidth that is far too small leaves nothing but zeros
        return np.exp(-np.square(np.asarray(distances, np.float64) / (t if t > 0 else 1.0)) / 2.0)


def graph_edges(N: Int32, distances: Float32, reverse: Reverse, low: int, high: int) -> tuple[Int32, Float32]:
    """Edges {i, j}, i < j, low <= i < high, where one is among the other's neighbours: (n, 2) sorted, and lengths (n,).

    ``N`` (m, n) has the sample itself in column 0; ``reverse`` are its reverse lists.
    """

    def edges(a: int, b: int) -> tuple[Int32, Float32]:
        own, start = np.arange(low + a, low + b), reverse.start[low + a : low + b + 1]
        if start[-1] - start[0] > AT_ONCE and b - a > 1:  # hubs: samples in very many neighbourhoods
            halves = edges(a, (a + b) // 2), edges((a + b) // 2, b)
            return np.concatenate([one[0] for one in halves]), np.concatenate([one[1] for one in halves])
        centers, members = reverse.centers[start[0] : start[-1]], np.repeat(own, np.diff(start))
        named = distances[centers, (N[centers] == members[:, None]).argmax(axis=1)]
        i, j = np.concatenate([np.repeat(own, N.shape[1]), members]), np.concatenate([N[own].ravel(), centers])
        later = j > i
        keys, once = np.unique((i << 32 | j)[later], return_index=True)  # of an edge named twice the first length
        return pairs_of(keys), np.concatenate([distances[own].ravel(), named])[later][once]

    nothing = np.empty((0, 2), np.int32), np.empty(0, np.float32)
    pairs, lengths = zip(nothing, *map_chunks(edges, high - low, 1 << 12), strict=True)
    return np.concatenate(pairs), np.concatenate(lengths)


@njit(nogil=True, cache=True)
def _pair_lengths(X, left, right, out, metric):  # type: ignore[no-untyped-def]
    for t in range(len(left)):
        out[t] = _length(X[left[t]], X[right[t]], metric)


def pair_lengths(X: Float32, pairs: NDArray[np.integer], metric: int | None = EUCLIDEAN) -> Float64:
    """Distances, by the metric of a code of `metrics.METRICS`, of given pairs (n, 2) of rows of X: (n,) float64."""
    lengths = np.empty(len(pairs))
    left, right = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    map_chunks(lambda a, b: _pair_lengths(X, left[a:b], right[a:b], lengths[a:b], metric), len(pairs), 1 << 18)
    return lengths


def all_lengths(X: Float32) -> Float32:
    """All distances among the rows of X: (m, m) float32, zero diagonal; products in float64 by scikit-learn."""
    return np.asarray(euclidean_distances(X), np.float32)


def cross_lengths(X: Float32, Y: Float32, metric: str) -> NDArray[np.float32]:
    """All distances of rows of X to rows of Y: (rows, rows) float32, summed in float64 by SciPy."""
    lengths = np.empty((len(X), len(Y)), np.float32)
    known = METRICS[metric]
    if known.rows == "presence":  # SciPy's are of sets alone
        X, Y = X != 0, Y != 0

    def block(a: int, b: int) -> None:  # SciPy's Bray-Curtis distance of two rows of zeros is 0 / 0
        lengths[a:b] = np.nan_to_num(cdist(X[a:b], Y, known.scipy, **dict(known.arguments)))

    map_chunks(block, len(X), COMPARED_ROWS)
    return lengths


def bandwidths(lengths: NDArray[np.floating]) -> tuple[float, float]:
    """Mean and median of the distances of the pairs i < j, from all distances (n, n); infinite ones do not count."""
    upper = np.concatenate([row[i + 1 :] for i, row in enumerate(lengths)])
    upper = upper[np.isfinite(upper)]
    if not len(upper):
        return 0.0, 0.0
    middle = len(upper) // 2
    parted = np.partition(upper, middle)  # `np.median` asks for two places, which takes ten times as long
    median = parted[middle] if len(upper) % 2 else np.mean([parted[:middle].max(), parted[middle]], dtype=upper.dtype)
    return float(upper.mean(dtype=np.float64)), float(median)

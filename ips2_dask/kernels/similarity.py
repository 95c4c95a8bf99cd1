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
from ips2_dask.kernels.sparse import Reverse, sort_together
from ips2_dask.typing import Float32, Float64, Int32


def heat(distances: NDArray[np.floating], t: float) -> Float64:
    """exp(-d^2 / 2 t^2); t = 0, where all samples are equal, counts as 1."""
    with np.errstate(over="ignore"):  # a bandwidth that is far too small leaves nothing but zeros
        return np.exp(-np.square(np.asarray(distances, np.float64) / (t if t > 0 else 1.0)) / 2.0)


@njit(nogil=True, cache=True)
def _edges(N, d, start, centers, low, high, out, length, write):  # type: ignore[no-untyped-def]
    n = N.shape[1]
    total = 0
    for i in range(low, high):
        begin = total
        for a in range(1, n):
            if N[i, a] > i:
                if write:
                    out[total, 0], out[total, 1], length[total] = i, N[i, a], d[i, a]
                total += 1
        for t in range(start[i], start[i + 1]):
            p = centers[t]
            if p <= i:
                continue
            mutual = False
            for a in range(1, n):
                if N[i, a] == p:
                    mutual = True
                    break
            if mutual:
                continue
            if write:
                for a in range(1, n):
                    if N[p, a] == i:
                        out[total, 0], out[total, 1], length[total] = i, p, d[p, a]
            total += 1
        if write:
            sort_together(out[:, 1], length, begin, total)
    return total


def graph_edges(N: Int32, distances: Float32, reverse: Reverse, low: int, high: int) -> tuple[Int32, Float32]:
    """Edges {i, j}, i < j, low <= i < high, where one is among the other's neighbours: (n, 2) sorted, and lengths (n,).

    ``N`` (m, n) has the sample itself in column 0; ``reverse`` are its reverse lists.
    """
    empty = np.empty((0, 2), np.int32), np.empty(0, np.float32)
    n = _edges(N, distances, reverse.start, reverse.centers, low, high, *empty, False)
    edges, length = np.empty((n, 2), np.int32), np.empty(n, np.float32)
    _edges(N, distances, reverse.start, reverse.centers, low, high, edges, length, True)
    return edges, length


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
    if METRICS[metric].rows == "presence":  # SciPy's are of sets alone
        X, Y = X != 0, Y != 0
    name = METRICS[metric].scipy

    def block(a: int, b: int) -> None:
        lengths[a:b] = np.nan_to_num(
            cdist(X[a:b], Y, name)
        )  # SciPy's Bray-Curtis distance of two rows of zeros is 0 / 0

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

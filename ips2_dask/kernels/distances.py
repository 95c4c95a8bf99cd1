"""Distances of two samples by each metric, or read from a matrix of distances: one definition for all stages.

They are pynndescent's, which are SciPy's where SciPy has them. The other metrics of a run need none of their own: the
angular ones and Hellinger's are Euclidean distances of rows that ingest has turned. Sums are in float32 over runs of
512 features, which the compiler makes vector instructions of, and in float64 across such runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.metrics import BRAYCURTIS, CANBERRA, CHEBYSHEV, HAMMING, MANHATTAN
from ips2_dask.kernels.parallel import map_chunks

_LEAST = np.finfo(np.float32).tiny
"""In place of a denominator of 0, whose numerator is 0 as well; its inverse, which may be multiplied by, is finite."""

WAYS = 1 << 18
"""Ways between pairs of samples that are in memory at a time on each thread."""

VERSION = 2
"""Changes with the last bits of a distance by any metric but the Euclidean one."""


@njit(nogil=True, cache=True, fastmath=True)
def _squared_run(x, y):  # type: ignore[no-untyped-def]
    part = np.float32(0.0)
    for t in range(x.shape[0]):
        z = x[t] - y[t]
        part += z * z
    return part


@njit(nogil=True, cache=True)
def squared_distance(x, y):  # type: ignore[no-untyped-def]
    """||x - y||^2 from the differences."""
    total = 0.0
    for start in range(0, x.shape[0], 512):
        total += _squared_run(x[start : start + 512], y[start : start + 512])
    return total


@njit(nogil=True, cache=True, fastmath=True)
def _absolute_run(x, y):  # type: ignore[no-untyped-def]
    part = np.float32(0.0)
    for t in range(x.shape[0]):
        part += np.abs(x[t] - y[t])
    return part


@njit(nogil=True, cache=True)
def _manhattan(x, y):  # type: ignore[no-untyped-def]
    """|x_t - y_t| summed over the features."""
    total = 0.0
    for start in range(0, x.shape[0], 512):
        total += _absolute_run(x[start : start + 512], y[start : start + 512])
    return total


@njit(nogil=True, cache=True, fastmath=True)
def _chebyshev(x, y):  # type: ignore[no-untyped-def]
    """The largest |x_t - y_t|."""
    most = np.float32(0.0)
    for t in range(x.shape[0]):
        most = max(most, np.abs(x[t] - y[t]))
    return np.float64(most)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _canberra_run(x, y):  # type: ignore[no-untyped-def]
    part = np.float32(0.0)
    for t in range(x.shape[0]):
        part += np.abs(x[t] - y[t]) / max(np.abs(x[t]) + np.abs(y[t]), _LEAST)
    return part


@njit(nogil=True, cache=True)
def _canberra(x, y):  # type: ignore[no-untyped-def]
    """|x_t - y_t| / (|x_t| + |y_t|) summed over the features, where both are 0 nothing."""
    total = 0.0
    for start in range(0, x.shape[0], 512):
        total += _canberra_run(x[start : start + 512], y[start : start + 512])
    return total


@njit(nogil=True, cache=True, fastmath=True)
def _braycurtis_run(x, y):  # type: ignore[no-untyped-def]
    gap, size = np.float32(0.0), np.float32(0.0)
    for t in range(x.shape[0]):
        gap += np.abs(x[t] - y[t])
        size += np.abs(x[t] + y[t])
    return gap, size


@njit(nogil=True, cache=True)
def _braycurtis(x, y):  # type: ignore[no-untyped-def]
    """The sum of |x_t - y_t| over that of |x_t + y_t|; 0 where both are 0."""
    above, below = 0.0, 0.0
    for start in range(0, x.shape[0], 512):
        gap, size = _braycurtis_run(x[start : start + 512], y[start : start + 512])
        above += gap
        below += size
    return above / below if below > 0 else 0.0


@njit(nogil=True, cache=True)
def _hamming(x, y):  # type: ignore[no-untyped-def]
    """The share of the features in which x and y differ."""
    count = 0
    for t in range(x.shape[0]):
        count += x[t] != y[t]
    return count / x.shape[0]


@njit(nogil=True, cache=True)
def _jaccard(x, y):  # type: ignore[no-untyped-def]
    """Of the features that are not 0 in x or y, the share that is 0 in the other; 0 where there is none."""
    either, both = 0, 0
    for t in range(x.shape[0]):
        one, other = x[t] != 0, y[t] != 0
        either += one | other
        both += one & other
    return (either - both) / either if either > 0 else 0.0


@njit(nogil=True, cache=True)
def length(x, y, metric):  # type: ignore[no-untyped-def]
    """Distance of two samples by the metric of that code, see `metrics.METRICS`."""
    if metric is None:
        return np.sqrt(squared_distance(x, y))
    if metric == MANHATTAN:
        return _manhattan(x, y)
    if metric == CHEBYSHEV:
        return _chebyshev(x, y)
    if metric == CANBERRA:
        return _canberra(x, y)
    if metric == BRAYCURTIS:
        return _braycurtis(x, y)
    return _hamming(x, y) if metric == HAMMING else _jaccard(x, y)


def by_way_of_others(D: NDArray[np.float32], i: NDArray[np.integer], j: NDArray[np.integer]) -> NDArray[np.float32]:
    """The shortest way from sample i to j by one other, (n,), where ``D`` (rows, m) has the distances of both."""
    step = max(1, WAYS // D.shape[1])
    ways = map_chunks(lambda a, b: (D[i[a:b]] + D[j[a:b]]).min(axis=1), len(i), step)
    return np.concatenate([np.empty(0, np.float32), *ways])

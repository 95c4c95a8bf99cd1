"""Distances among stored samples by the metric of the run: measured, or read where a matrix of them was given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels import manhattan, neighbors, precomputed, similarity, tensor
from ips2_dask.storage.context import Context

Float32 = NDArray[np.float32]
Integers = NDArray[np.integer]


def is_manhattan(context: Context) -> bool:
    """Whether distances are sums of absolute differences; the angular metrics are Euclidean once ingest is done."""
    return context.params.metric == "manhattan"


def search(context: Context) -> neighbors.Nearest:
    """The exact search of the metric."""
    return manhattan.nearest_in if is_manhattan(context) else neighbors.nearest_in


def _used(context: Context, samples: Integers) -> tuple[Any, NDArray[np.int32]]:
    """Rows of the samples that are named, and where each of them is; of given distances, their columns as well."""
    used, local = np.unique(samples, return_inverse=True)
    X = np.asarray(context.samples(used))
    if context.params.metric == "precomputed":
        X = X[:, used]
    return X, local.reshape(samples.shape).astype(np.int32)


def block_distances(context: Context, N: Integers) -> Float32:
    """Distances inside each neighbourhood of N (rows, k): (rows, k (k - 1) / 2)."""
    X, local = _used(context, N)
    if context.params.metric == "precomputed":
        return precomputed.block_distances(X, local)
    return tensor.block_distances(X, local, is_manhattan(context))


def pair_lengths(context: Context, pairs: Integers) -> NDArray[np.float64]:
    """Distances of pairs (n, 2) of samples: (n,) float64."""
    X, local = _used(context, pairs)
    if context.params.metric == "precomputed":
        return precomputed.pair_lengths(X, local[:, 0], local[:, 1]).astype(np.float64)
    return similarity.pair_lengths(X, local, is_manhattan(context))


def all_lengths(context: Context, rows: Integers) -> Float32:
    """All distances among some samples, sorted: (n, n) float32."""
    X = np.asarray(context.samples(rows))
    if context.params.metric == "precomputed":
        return np.asarray(X[:, rows])
    return manhattan.all_lengths(X) if is_manhattan(context) else similarity.all_lengths(X)

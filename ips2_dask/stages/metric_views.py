"""Distances among stored samples by the run's metric: from products, pair by pair, or read where they are the input."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra
from sklearn.metrics.pairwise import euclidean_distances

from ips2_dask.kernels import distances, neighbors, similarity, tensor
from ips2_dask.plan.choices import DESCENT_MEMBERS
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import Float32, Integer

WAYS_FROM = 1_000
"""Samples at most whose shortest ways to each other give the bandwidths: some ms each."""


def search(context: Context) -> neighbors.Nearest:
    """The exact search of the metric."""
    if context.metric.is_euclidean:
        return neighbors.nearest_in
    return functools.partial(neighbors.nearest_by_metric, metric=context.metric.name)


def shard_search(context: Context, members: int) -> neighbors.Nearest:
    """The search among the samples of a shard: by pynndescent for many samples that no product narrows down."""
    if context.metric.is_euclidean or members <= DESCENT_MEMBERS[0]:
        return search(context)
    return functools.partial(neighbors.nearest_by_descent, metric=context.metric.name, seed=context.params.random_state)


def _used(context: Context, samples: Integer) -> tuple[Float32, NDArray[np.int32]]:
    """Rows of the named samples, and each one's place among them."""
    used, local = np.unique(samples, return_inverse=True)
    X = np.asarray(context.samples(used))
    return X, local.reshape(samples.shape).astype(np.int32)


def block_distances(context: Context, N: Integer) -> Float32:
    """Distances inside each neighbourhood of N (rows, k): (rows, k (k - 1) / 2)."""
    if context.metric.precomputed:
        first, second = np.triu_indices(N.shape[1], 1)
        return _given_lengths(context, N[:, first], N[:, second])
    X, local = _used(context, N)
    return tensor.block_distances(X, local, context.metric.code)


def _given_lengths(context: Context, i: Integer, j: Integer) -> Float32:
    """Distances of samples i and j, of any shape, from a matrix that was given.

    Where a sparse one has none, it is the shortest way by one other sample: neighbours of one sample have that.
    """
    D, (first, second) = _used(context, np.stack([np.minimum(i, j), np.maximum(i, j)]))
    lengths = np.ascontiguousarray(D[first, np.maximum(i, j)])
    missing = np.isinf(lengths)
    if missing.any():
        lengths[missing] = distances.by_way_of_others(D, first[missing], second[missing])
    return lengths


def pair_lengths(context: Context, pairs: Integer) -> NDArray[np.float64]:
    """Distances of pairs (n, 2) of samples: (n,) float64."""
    if context.metric.precomputed:
        return _given_lengths(context, pairs[:, 0], pairs[:, 1]).astype(np.float64)
    X, local = _used(context, pairs)
    return similarity.pair_lengths(X, local, context.metric.code)


def all_lengths(context: Context, rows: Integer) -> Float32:
    """All distances among some samples, sorted: (n, n) float32."""
    X = np.asarray(context.samples(rows))
    if context.metric.precomputed:
        return np.asarray(X[:, rows])
    return lengths_among(context, X)


def ways(context: Context, samples: Integer) -> Float32:
    """Shortest ways along sparse distances from some samples to all: (n, m) float32, infinite where there is none."""
    parts = []
    for b in range(context.n_partitions):
        D = np.asarray(context.samples_of(b))
        i, j = np.nonzero(np.isfinite(D))
        parts.append(sp.csr_array((D[i, j], (i, j)), shape=D.shape))
    return np.asarray(dijkstra(sp.vstack(parts, format="csr"), indices=samples), np.float32)


def bandwidth_lengths(context: Context, rows: Integer) -> Float32:
    """Distances among some samples that the bandwidths are of, (n, n); of sparse ones the shortest ways among fewer.

    Those to neighbours alone are so much shorter that S would be another one than that of all distances.
    """
    lengths = all_lengths(context, rows)
    if not np.isinf(lengths).any():
        return lengths
    some = rows[:: -(-len(rows) // WAYS_FROM)]
    return ways(context, some)[:, some]


def lengths_among(context: Context, X: Float32) -> Float32:
    """All distances among rows of X, features and not distances: (n, n) float32."""
    if context.metric.is_euclidean:
        return similarity.all_lengths(X)
    return similarity.cross_lengths(X, X, context.metric.name)


def copies_listed(context: Context, distances: Float32) -> dict[str, int]:
    """Counts of samples at distance 0 of others, from their lists (rows, n).

    ``repeated`` ones have one such neighbour at least, ``crowded`` ones no other neighbours.
    """
    if distances.shape[1] < 2:
        return {"repeated": 0, "crowded": 0}
    last = min(context.params.n_neighbors, distances.shape[1]) - 1
    counted = {"repeated": distances[:, 1] == 0, "crowded": distances[:, last] == 0}
    return {name: int(np.count_nonzero(which)) for name, which in counted.items()}


def copies_warnings(context: Context, receipts: Sequence[Receipt]) -> list[str]:
    """Warnings of samples at distance 0 of each other, from what the tasks that listed neighbours have counted."""
    repeated, crowded = (sum(receipt["facts"][name] for receipt in receipts) for name in ("repeated", "crowded"))
    k, merged, warnings = context.params.n_neighbors, context.params.merges_rows, []
    if repeated and merged:
        warnings.append(f"{repeated} of {context.m} distinct samples are nearer to another one than float32 can tell")
    elif repeated:
        warnings.append(f"{repeated} of {context.m} samples have an exact duplicate")
    if crowded and not merged:
        warnings.append(f"{crowded} samples see only copies of themselves among their {k} nearest: they form islands")
    return warnings


def lengths_to_all(context: Context, X: Float32) -> NDArray[np.floating]:
    """Distances of new rows X to all samples: (rows, m)."""
    samples = context.all_samples()
    if context.metric.is_euclidean:
        return np.asarray(euclidean_distances(X, samples))
    return similarity.cross_lengths(X, samples, context.metric.name)

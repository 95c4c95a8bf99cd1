"""Distances among stored samples by the metric of the run: measured, or read where a matrix of them was given."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics.pairwise import euclidean_distances

from ips2_dask.kernels import approximate, candidates, distances, neighbors, precomputed, similarity, tensor
from ips2_dask.plan.choices import DESCENT_MEMBERS
from ips2_dask.store.context import Context

Float32 = NDArray[np.float32]
Integers = NDArray[np.integer]


def code(context: Context) -> int:
    """The metric of the samples that ingest has made, as compiled code calls it, see `distances.CODES`."""
    return distances.code_of(context.params.metric)


def is_euclidean(context: Context) -> bool:
    """Whether distances are Euclidean once ingest is done, as those of the angular metrics and Hellinger's are."""
    return code(context) == distances.EUCLIDEAN


def search(context: Context) -> neighbors.Nearest:
    """The exact search of the metric."""
    if is_euclidean(context):
        return neighbors.nearest_in
    return functools.partial(candidates.nearest_in, metric=context.params.metric)


def shard_search(context: Context, members: int) -> neighbors.Nearest:
    """The search of a shard's samples among each other: pynndescent's where they are many and no product helps."""
    if is_euclidean(context) or members <= DESCENT_MEMBERS[0]:
        return search(context)
    params = context.params
    return functools.partial(approximate.nearest_in, metric=params.metric, seed=params.random_state)


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
    return tensor.block_distances(X, local, code(context))


def pair_lengths(context: Context, pairs: Integers) -> NDArray[np.float64]:
    """Distances of pairs (n, 2) of samples: (n,) float64."""
    X, local = _used(context, pairs)
    if context.params.metric == "precomputed":
        return precomputed.pair_lengths(X, local[:, 0], local[:, 1]).astype(np.float64)
    return similarity.pair_lengths(X, local, code(context))


def all_lengths(context: Context, rows: Integers) -> Float32:
    """All distances among some samples, sorted: (n, n) float32."""
    X = np.asarray(context.samples(rows))
    if context.params.metric == "precomputed":
        return np.asarray(X[:, rows])
    return similarity.all_lengths(X) if is_euclidean(context) else candidates.all_lengths(X, X, context.params.metric)


def lengths_to_all(context: Context, X: Float32) -> NDArray[np.floating]:
    """Distances of new rows X to all samples: (rows, m)."""
    samples = context.all_samples()
    if is_euclidean(context):
        return np.asarray(euclidean_distances(X, samples))
    return candidates.all_lengths(X, samples, context.params.metric)

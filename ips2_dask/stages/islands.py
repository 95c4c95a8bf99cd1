"""Samples that stand for components: each one's central sample, and the nearest samples of others.

Both are the same whatever the partitions are: rows are summed in the order of the user's numbers, and ties are decided
by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.kernels import components as kernel
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.stages import metric_views
from ips2_dask.store.context import Context
from ips2_dask.typing import Int64

MOST_MEMBERS = 1 << 12
"""About as many samples of a component are compared to find its central one."""

BLOCK_VALUES = 1 << 24
"""Values of X that are read together."""

JOINED_TO = 5
"""Nearest others that each component's central sample is joined with, where a graph is in pieces."""


def connected(context: Context, U: sp.csr_array) -> tuple[sp.csr_array, kernel.Components]:
    """U, and its components divided into at most c large ones and islands.

    Where islands would hold more rows than they may, each component's central sample is first joined with those of the
    nearest components, until they don't.
    """
    c, copies = context.params.n_sought, context.copies()
    while True:
        components = kernel.divide(connected_components(U, directed=False)[1], c, copies, c)
        if components.large <= c:
            return U, components
        centers = central_samples(context, components.label, np.arange(components.total))
        near = near_each_other(context, centers)
        U = kernel.joined(U, np.repeat(centers, near.shape[1]), centers[near.ravel()])


def near_each_other(context: Context, samples: Int64) -> NDArray[np.integer]:
    """Of each of some samples the nearest others of them, as places among them: (n, <= JOINED_TO)."""
    n = min(JOINED_TO + 1, len(samples))
    rows = rows_at(context, samples)
    if context.metric.precomputed:
        rows = metric_views.ways(context, samples) if np.isinf(rows).any() else rows
        D = rows[:, samples] + np.diag(np.full(len(samples), np.inf))
        near = np.argsort(D, axis=1, kind="stable")[:, : n - 1]
        _check_reached(np.take_along_axis(D, near, axis=1).max(axis=1), samples)
        return near
    return exact_neighbors(rows, 0, rows, n, metric_views.search(context))[0][:, 1:]


def rows_at(context: Context, samples: Int64) -> NDArray[np.float32]:
    """X at samples in any order."""
    ascending, place = np.unique(samples, return_inverse=True)
    return np.ascontiguousarray(context.samples(ascending)[place])


def central_samples(context: Context, label: NDArray[np.integer], which: NDArray[np.integer]) -> Int64:
    """The sample nearest to its component's mean, for each of some components: (n,).

    Of given distances the one with the smallest sum of distances to the others of its component. Of a component with
    very many samples every n-th one is looked at.
    """
    order = context.order()
    rank = np.full(label.max() + 1, -1)
    rank[which] = np.arange(len(which))
    members = np.flatnonzero(rank[label] >= 0)
    user = members if order is None else order[members]
    members = members[np.lexsort((user, rank[label[members]]))]
    starts = np.searchsorted(rank[label[members]], np.arange(len(which)))
    counts = np.diff(starts, append=len(members))
    place = np.arange(len(members)) - np.repeat(starts, counts)
    members = members[place % np.repeat(1 + counts // MOST_MEMBERS, counts) == 0]
    starts = np.searchsorted(rank[label[members]], np.arange(len(which)))
    centers = np.empty(len(which), np.int64)
    batch = starts // max(1, BLOCK_VALUES // max(context.n_features, 1))  # that each one's members begin in
    for number in np.unique(batch):
        chosen = np.flatnonzero(batch == number)
        first, last = starts[chosen[0]], np.append(starts, len(members))[chosen[-1] + 1]
        some, run_starts = members[first:last], starts[chosen] - first
        rows = rows_at(context, some)
        if context.metric.precomputed:  # sparse ones: the central sample has the most neighbours, and near ones
            D = rows[:, some]
            D[np.isinf(D)] = 2 * D[np.isfinite(D)].max(initial=0.0)
            centers[chosen] = some[kernel.central_of_distances(D, run_starts)]
        else:
            centers[chosen] = some[kernel.central_rows(rows, run_starts)]
    return centers


def nearest_samples(context: Context, samples: Int64, allowed: NDArray[np.bool_]) -> Int64:
    """The nearest allowed sample to each of some samples, ties by the user's number: (n,).

    One pass over X, partition after partition.
    """
    order, rows = context.order(), rows_at(context, samples)
    nearest = None if context.metric.precomputed else metric_views.search(context)
    if nearest is None and np.isinf(rows).any():
        rows = metric_views.ways(context, samples)
    best, user = np.full(len(samples), np.inf), np.full(len(samples), np.iinfo(np.int64).max)
    ids = np.full(len(samples), -1, np.int64)
    for b in range(context.n_partitions):
        low, high = context.span(b)
        candidates = low + np.flatnonzero(allowed[low:high])
        if not len(candidates):
            continue
        names = candidates if order is None else order[candidates]
        ascending = np.argsort(names)
        candidates, names = candidates[ascending], names[ascending]
        if nearest is None:
            place = np.argmin(rows[:, candidates], axis=1)
            lengths = rows[np.arange(len(rows)), candidates[place]]
        else:
            X = np.ascontiguousarray(np.asarray(context.samples_of(b))[candidates - low])
            places, distances = nearest(rows, np.full(len(rows), -1), X, 1)
            place, lengths = places[:, 0], distances[:, 0]
        closer = (lengths < best) | ((lengths == best) & (names[place] < user))
        best[closer], user[closer], ids[closer] = lengths[closer], names[place][closer], candidates[place][closer]
    _check_reached(best, samples)
    return ids


def _check_reached(lengths: NDArray[np.floating], samples: Int64) -> None:
    """Refuse sparse distances by which a component that has to be joined to others has no way to one."""
    if np.isinf(lengths).any():
        raise BadInput(
            "metric='precomputed'",
            f"no stored way from sample {samples[int(np.argmax(lengths))]} to other components",
            "sparse distances whose components are no more than the clusters, and none of them too small for one",
            "its component would have any label",
            "give the distances of more neighbours, or ask for more clusters",
        )


def followed(context: Context, label: NDArray[np.integer], inside: NDArray[np.bool_]) -> Int64:
    """The sample whose label each sample takes: itself if it is ``inside``, else one sample for all of its component.

    That is the sample inside that is nearest to the component's central one: (m,).
    """
    followed_sample = np.arange(len(label))
    which, place = np.unique(label[~inside], return_inverse=True)
    if len(which):
        centers = central_samples(context, np.where(inside, label.max() + 1, label), which)
        followed_sample[~inside] = nearest_samples(context, centers, inside)[place]
    return followed_sample


def warning_of(facts: Mapping[str, Any]) -> str:
    """The warning about islands of U: how many there are, and whose labels their rows get."""
    small = facts["islands"]
    return (
        f"the fused similarity falls into {facts['u_components']} components, {small['fused']} of them too small for a "
        f"cluster: their {small['rows']} rows, at most {small['largest']} in one, have the label of the nearest sample "
        "of the others"
    )

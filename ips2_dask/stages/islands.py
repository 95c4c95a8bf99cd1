"""Components of U: which take part, which edges join them, and whom islands follow.

A component's central sample stands for it, and an island follows the nearest sample of the others. Both are the same
whatever the partitions are: rows are summed in the order of the user's numbers, and ties are decided by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import components as kernel
from ips2_dask.kernels import draws
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.stages import label_parts, metric_views
from ips2_dask.stages.component_labels import COMPONENTS, bound
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float64, Int32, Int64

MOST_MEMBERS = 1 << 12
"""About as many samples of a component are compared to find its central one."""

BLOCK_VALUES = 1 << 24
"""Values of X that are read together."""

JOINED_TO = 5
"""Nearest others that each component's central sample is joined with, where a graph is in pieces."""

CENTRAL, MEDIAN = 21, 22
"""Purposes of `kernels.draws`: members that are compared for a component's centre, and edges for the median."""

MEDIAN_SAMPLES = 1 << 17
"""About as many samples' edges decide the median weight: of fewer samples, those of all."""

Joined = tuple[kernel.Division, Int32, Float64]
"""The division, and the edges (i, j), i < j, that were added to the solve, with their weights."""


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
        centers = _central_samples(context, components.label, np.arange(components.total))
        near = _near_each_other(context, centers)
        U = kernel.joined(U, np.repeat(centers, near.shape[1]), centers[near.ravel()])


def _near_each_other(context: Context, samples: Int64) -> NDArray[np.integer]:
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


def _central_samples(context: Context, label: NDArray[np.integer], which: NDArray[np.integer]) -> Int64:
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


def _nearest_samples(context: Context, samples: Int64, allowed: NDArray[np.bool_]) -> Int64:
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
        centers = _central_samples(context, np.where(inside, label.max() + 1, label), which)
        followed_sample[~inside] = _nearest_samples(context, centers, inside)[place]
    return followed_sample


def warning_of(facts: Mapping[str, Any]) -> str:
    """The warning about islands of U: how many there are, and whose labels their rows get."""
    small = facts["islands"]
    return (
        f"the fused similarity falls into {facts['u_components']} components, {small['fused']} of them too small for a "
        f"cluster: their {small['rows']} rows, at most {small['largest']} in one, have the label of the nearest sample "
        "of the others"
    )


# ---- the same by partition, where no process holds an array of all samples
#
# Means of components are sums over partitions, and the sample nearest to a mean, or nearest to another sample, is the
# best of what each partition offers. Given distances have a row of all samples for each sample: such a run is small,
# and goes the way above.


def connected_by_partition(
    context: Context, executor: Executor, report: Report, sizes: Int64, share: float, most: int
) -> Joined:
    """Components divided into at most ``most`` large ones and islands; see `connected`.

    ``sizes`` (components,) int64: rows of the input in each component of U; ``share``: as of
    `kernels.components.divide_sizes`.
    """
    c = context.params.n_sought
    extra, label, weight = np.empty((0, 2), np.int64), np.arange(len(sizes)), 0.0
    while True:
        joined_sizes = np.bincount(label, sizes).astype(np.int64)
        division = kernel.divide_sizes(joined_sizes, c, most, share)
        if division.large <= most:
            rank = division.rank[label].astype(np.int32)
            edges = np.unique(np.sort(extra, axis=1), axis=0).astype(np.int32).reshape(-1, 2)
            return kernel.Division(rank, division.large, division.total), edges, np.full(len(edges), weight)
        if not len(extra):
            weight = _median_weight(context, executor, report)
        tag = f"join{len(extra)}"
        centers = _central_by_partition(context, executor, report, tag, label)
        near = _near_each_other(context, centers)
        places = np.stack([np.repeat(np.arange(len(centers)), near.shape[1]), near.ravel()], axis=1)
        extra = np.concatenate([extra, centers[places]])
        graph = sp.coo_array((np.ones(len(places)), places.T), shape=(len(centers), len(centers)))
        label = connected_components(graph, directed=False)[1][label]


def _median_weight(context: Context, executor: Executor, report: Report) -> float:
    """The median of the weighed U's values, of drawn samples where there are many; 1 where there is none."""
    receipts = executor.map(Job("label", _drawn_weights, "weights-"), context, range(context.n_partitions), report)
    values = [part[0] for part in label_parts.read_parts(context, receipts, "weights-", "weights")]
    label_parts.drop_by_partition(context, "weights-")
    return float(np.median(np.concatenate(values))) if values else 1.0


def _drawn_weights(context: Context, b: int) -> TaskResult:
    """The weighed U at the entries of drawn samples, each that is not on the diagonal twice."""
    entries, values = label_parts.weighed_entries(context, b)
    hashed = draws.hashes(context.user_numbers(b), context.params.random_state, MEDIAN)
    drawn = draws.among(hashed, MEDIAN_SAMPLES, context.m)[entries[:, 0] - context.span(b)[0]]
    twice = 1 + (entries[drawn, 0] != entries[drawn, 1])
    weights = np.repeat(values[drawn], twice)
    return {"weights": weights}, {"n": len(weights)}


# ---- central samples, and the nearest samples of others


def _members(context: Context, tag: str, b: int) -> tuple[Int64, Int64, Int64]:
    """Members of partition b that are compared for their component's centre: samples, their places, user's numbers."""
    components = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    place, low = np.asarray(context.read("label", f"{tag}-wanted", "place"))[components], context.span(b)[0]
    rows = np.asarray(context.read("label", f"{tag}-wanted", "rows"))
    members = np.flatnonzero(place >= 0)
    user = np.asarray(context.user_numbers(b))[members].astype(np.int64)
    wanted = 1.0 / (1 + rows[place[members]] // MOST_MEMBERS)
    hashed = draws.hashes(user, context.params.random_state, CENTRAL).astype(np.float64) / 2.0**64
    drawn = (wanted == 1.0) | (hashed < wanted)
    return low + members[drawn], place[members[drawn]], user[drawn]


def _component_sums(tag: str, context: Context, b: int) -> TaskResult:
    """Sums of the members of each component that partition b has members of, in the order of the user's numbers."""
    members, place, user = _members(context, tag, b)
    order = np.lexsort((user, place))
    members, place = members[order], place[order]
    which, starts = np.unique(place, return_index=True)
    if not len(which):
        return {}, {"n": 0}
    X = np.asarray(context.samples_of(b))[members - context.span(b)[0]].astype(np.float64)
    arrays = {"which": which, "sums": np.add.reduceat(X, starts, axis=0), "counts": np.diff(starts, append=len(place))}
    return arrays, {"n": len(which)}


def _nearest_to_means(tag: str, context: Context, b: int) -> TaskResult:
    """The member of partition b that is nearest to each component's mean (ties: the user's smallest number)."""
    members, place, user = _members(context, tag, b)
    if not len(members):
        return {}, {"n": 0}
    X = np.asarray(context.samples_of(b))[members - context.span(b)[0]]
    means = np.asarray(context.read("label", f"{tag}-means", "means"))
    gaps = np.square(X - means[place]).sum(axis=1)
    order = np.lexsort((user, gaps, place))
    which, first = np.unique(place[order], return_index=True)
    best = order[first]
    arrays = {"which": which, "gaps": gaps[best], "users": user[best], "found": members[best]}
    return arrays, {"n": len(which)}


def _best(n: int, parts: Sequence[Sequence[NDArray[np.generic]]]) -> Int64:
    """The sample of the smallest (gap, user's number) for each of n places, from (which, gaps, users, found)."""
    which, gaps, users, found = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((users, gaps, which))
    _, first = np.unique(which[order], return_index=True)
    assert len(first) == n
    return np.asarray(found[order][first], np.int64)


def _central_by_partition(context: Context, executor: Executor, report: Report, tag: str, place: Int64) -> Int64:
    """The sample nearest to the mean of each of some groups of components: (groups,); see `_central_samples`.

    Of a group with very many samples a draw is looked at.

    ``tag``: beginning of the names of the parts, which are dropped afterwards; ``place`` (components,): the group
    of each component of U, -1 for those that are not looked at.
    """
    n = int(place.max()) + 1
    if context.metric.precomputed:
        label = _whole_components(context)
        return _central_samples(context, np.where(place >= 0, place, n)[label], np.arange(n))
    store, folder, parts = context.store, context.folders["label"], range(context.n_partitions)
    sizes = np.asarray(context.read("label", "contraction", "sizes"))
    rows = np.bincount(place[place >= 0], sizes[place >= 0], n)
    store.write(folder, f"{tag}-wanted", {"place": place.astype(np.int64), "rows": rows}, {})
    receipts = executor.map(Job("label", bound(_component_sums, tag), f"{tag}-sums-"), context, parts, report)
    sums, counts = np.zeros((n, context.n_features)), np.zeros(n)
    for which, some, count in label_parts.read_parts(context, receipts, f"{tag}-sums-", "which", "sums", "counts"):
        sums[which] += some
        counts[which] += count
    store.write(folder, f"{tag}-means", {"means": sums / counts[:, None]}, {})
    job = Job("label", bound(_nearest_to_means, tag), f"{tag}-central-")
    receipts = executor.map(job, context, parts, report)
    names = ("which", "gaps", "users", "found")
    centers = _best(n, list(label_parts.read_parts(context, receipts, f"{tag}-central-", *names)))
    label_parts.drop(context, [f"{tag}-wanted", f"{tag}-means"])
    label_parts.drop_by_partition(context, f"{tag}-sums-", f"{tag}-central-")
    return centers


def _nearest_inside(tag: str, context: Context, b: int) -> TaskResult:
    """The nearest of partition b's samples of allowed components to each central sample (ties: the user's number)."""
    allowed = np.asarray(context.read("label", f"{tag}-allowed", "allowed"))
    components = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    candidates = np.flatnonzero(allowed[components])
    if not len(candidates):
        return {}, {"n": 0}
    user = np.asarray(context.user_numbers(b))[candidates].astype(np.int64)
    order = np.argsort(user)  # the first of equally near rows is that of the user's smallest number
    candidates, user = candidates[order], user[order]
    X = np.ascontiguousarray(np.asarray(context.samples_of(b))[candidates])
    queries = np.asarray(context.read("label", f"{tag}-allowed", "centers"))
    places, lengths = metric_views.search(context)(queries, np.full(len(queries), -1), X, 1)
    found = places[:, 0]
    arrays = {
        "which": np.arange(len(queries)),
        "gaps": lengths[:, 0].astype(np.float64),
        "users": user[found],
        "found": context.span(b)[0] + candidates[found],
    }
    return arrays, {"n": len(queries)}


def _nearest_by_partition(
    context: Context, executor: Executor, report: Report, tag: str, samples: Int64, allowed: NDArray[np.bool_]
) -> Int64:
    """The nearest sample of allowed components to each of some samples: (n,); see `_nearest_samples`.

    ``tag``: beginning of the names of the parts, which are dropped afterwards; ``samples`` (n,); ``allowed``
    (components,) bool: by component of U.
    """
    if context.metric.precomputed:
        return _nearest_samples(context, samples, allowed[_whole_components(context)])
    arrays: dict[str, AnyArray] = {"allowed": allowed.astype(np.uint8), "centers": rows_at(context, samples)}
    context.store.write(context.folders["label"], f"{tag}-allowed", arrays, {})
    job = Job("label", bound(_nearest_inside, tag), f"{tag}-nearest-")
    receipts = executor.map(job, context, range(context.n_partitions), report)
    names = ("which", "gaps", "users", "found")
    # n rows a partition that has candidates: merged as they come
    best: list[NDArray[np.generic]] | None = None
    for part in label_parts.read_parts(context, receipts, f"{tag}-nearest-", *names):
        if best is None:
            best = list(part)
            continue
        closer = (part[1] < best[1]) | ((part[1] == best[1]) & (part[2] < best[2]))
        best = [np.where(closer, new, old) for new, old in zip(part, best, strict=True)]
    assert best is not None
    label_parts.drop(context, [f"{tag}-allowed"])
    label_parts.drop_by_partition(context, f"{tag}-nearest-")
    return np.asarray(best[3], np.int64)


def followed_by_partition(
    context: Context, executor: Executor, report: Report, tag: str, place: Int64, allowed: NDArray[np.bool_]
) -> Int64:
    """For each group of components the sample of allowed ones that is nearest to its central sample: (groups,).

    ``place`` (components,): as of `_central_samples`; ``allowed`` (components,) bool.
    """
    centers = _central_by_partition(context, executor, report, f"{tag}c", place)
    return _nearest_by_partition(context, executor, report, f"{tag}n", centers, allowed)


def _whole_components(context: Context) -> Int32:
    """The component of U of each sample, (m,): of a run on given distances alone."""
    parts = [context.read("label", COMPONENTS + part_name(b), "components") for b in range(context.n_partitions)]
    return np.concatenate(parts)

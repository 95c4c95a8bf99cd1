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

JOINED_TO = 5
"""Nearest others that each component's central sample is joined with, where a graph is in pieces."""

MEAN_UNIT = 2.0**30
"""Means of components are made from whole multiples of its inverse."""

CENTRAL, MEDIAN = 21, 22
"""Purposes of `kernels.draws`: members that are compared for a component's centre, and edges for the median."""

MEDIAN_SAMPLES = 1 << 17
"""About as many samples' edges decide the median weight: of fewer samples, those of all."""

Joined = tuple[kernel.Division, Int32, Float64]
"""The division, and the edges (i, j), i < j, that were added to the solve, with their weights."""


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


def _central_of_distances(context: Context, label: NDArray[np.integer], n: int) -> Int64:
    """By given distances the central sample of each component 0 .. n - 1: of the smallest sum to others of its own.

    Of a component with very many samples every n-th one is looked at.
    """
    members = np.flatnonzero(label < n)
    users = _users(context)[members]
    members = members[np.lexsort((users, label[members]))]
    starts = np.searchsorted(label[members], np.arange(n))
    counts = np.diff(starts, append=len(members))
    place = np.arange(len(members)) - np.repeat(starts, counts)
    members = members[place % np.repeat(1 + counts // MOST_MEMBERS, counts) == 0]
    centers = np.empty(n, np.int64)
    for component, some in enumerate(np.split(members, np.searchsorted(label[members], np.arange(1, n)))):
        D = rows_at(context, some)[:, some]  # sparse ones: the central sample has the most neighbours, and near ones
        D[np.isinf(D)] = 2 * D[np.isfinite(D)].max(initial=0.0)
        centers[component] = some[D.sum(axis=1, dtype=np.float64).argmin()]
    return centers


def _nearest_by_distances(context: Context, samples: Int64, allowed: NDArray[np.bool_]) -> Int64:
    """The nearest allowed sample to each of some samples by given distances, ties by the user's number: (n,)."""
    rows = rows_at(context, samples)
    if np.isinf(rows).any():
        rows = metric_views.ways(context, samples)
    candidates = np.flatnonzero(allowed)
    candidates = candidates[np.argsort(_users(context)[candidates])]
    best = np.argmin(rows[:, candidates], axis=1)
    _check_reached(rows[np.arange(len(rows)), candidates[best]], samples)
    return candidates[best]


def _users(context: Context) -> Int64:
    """The user's number of each sample of a run on given distances."""
    return np.concatenate([np.asarray(context.user_numbers(b)) for b in range(context.n_partitions)]).astype(np.int64)


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


def warning_of(facts: Mapping[str, Any]) -> str:
    """The warning about islands of U: how many there are, and whose labels their rows get."""
    small = facts["islands"]
    return (
        f"the fused similarity falls into {facts['u_components']} components, {small['fused']} of them too small for a "
        f"cluster: their {small['rows']} rows, at most {small['largest']} in one, have the label of the nearest sample "
        "of the others"
    )


# Means of components are sums over partitions, and the sample nearest to a mean, or nearest to another sample, is the
# best of what each partition offers. Given distances have a row of all samples for each sample: such a run is small,
# and one process looks at them.


def connected(context: Context, executor: Executor, report: Report, sizes: Int64, share: float, most: int) -> Joined:
    """Components divided into at most ``most`` large ones and islands.

    Where islands would hold more rows than they may, each component's central sample is first joined with those of the
    nearest components, until they don't. ``sizes`` (components,) int64: rows of the input in each component of U;
    ``share``: as of `kernels.components.divide_sizes`.
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
        centers = _central(context, executor, report, tag, label)
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
    X = np.asarray(context.samples_of(b))[members - context.span(b)[0]]
    whole = np.rint(X * MEAN_UNIT).astype(np.int64)  # whole numbers, whose sums are the same for any partitions
    arrays = {"which": which, "sums": np.add.reduceat(whole, starts), "counts": np.diff(starts, append=len(place))}
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


def _central(context: Context, executor: Executor, report: Report, tag: str, place: Int64) -> Int64:
    """The sample nearest to the mean of each of some groups of components: (groups,).

    Of a group with very many samples a draw is looked at.

    ``tag``: beginning of the names of the parts, which are dropped afterwards; ``place`` (components,): the group
    of each component of U, -1 for those that are not looked at.
    """
    n = int(place.max()) + 1
    if context.metric.precomputed:
        label = _whole_components(context)
        return _central_of_distances(context, np.where(place >= 0, place, n)[label], n)
    store, folder, parts = context.store, context.folders["label"], range(context.n_partitions)
    sizes = np.asarray(context.read("label", "contraction", "sizes"))
    rows = np.bincount(place[place >= 0], sizes[place >= 0], n)
    store.write(folder, f"{tag}-wanted", {"place": place.astype(np.int64), "rows": rows}, {})
    receipts = executor.map(Job("label", bound(_component_sums, tag), f"{tag}-sums-"), context, parts, report)
    sums, counts = np.zeros((n, context.n_features), np.int64), np.zeros(n)
    for which, some, count in label_parts.read_parts(context, receipts, f"{tag}-sums-", "which", "sums", "counts"):
        sums[which] += some
        counts[which] += count
    store.write(folder, f"{tag}-means", {"means": sums / MEAN_UNIT / counts[:, None]}, {})
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


def _nearest(
    context: Context, executor: Executor, report: Report, tag: str, samples: Int64, allowed: NDArray[np.bool_]
) -> Int64:
    """The nearest sample of allowed components to each of some samples: (n,).

    ``tag``: beginning of the names of the parts, which are dropped afterwards; ``samples`` (n,); ``allowed``
    (components,) bool: by component of U.
    """
    if context.metric.precomputed:
        return _nearest_by_distances(context, samples, allowed[_whole_components(context)])
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


def followed(
    context: Context, executor: Executor, report: Report, tag: str, place: Int64, allowed: NDArray[np.bool_]
) -> Int64:
    """For each group of components the sample of allowed ones that is nearest to its central sample: (groups,).

    ``place`` (components,): as of `_central`; ``allowed`` (components,) bool.
    """
    centers = _central(context, executor, report, f"{tag}c", place)
    return _nearest(context, executor, report, f"{tag}n", centers, allowed)


def _whole_components(context: Context) -> Int32:
    """The component of U of each sample, (m,): of a run on given distances alone."""
    parts = [context.read("label", COMPONENTS + part_name(b), "components") for b in range(context.n_partitions)]
    return np.concatenate(parts)

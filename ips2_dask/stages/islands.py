"""Components of U: which take part, which edges join them, and whom islands follow.

Where there are more large components than clusters, the shortest edges between them join some. An island follows the
sample at the other end of its shortest edge to the others. Lengths are those among drawn samples of each component,
which are all of them in small runs. The draw, and so the edges, are the same whatever the partitions are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import components as kernel
from ips2_dask.kernels import draws
from ips2_dask.plan.choices import comparison_times
from ips2_dask.stages import label_parts, metric_views
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float32, Float64, Int64

SEARCH_WORK = 2e11
"""Pairs of drawn samples times (features + 64) at most: some seconds on one core."""

DRAWN, MEDIAN = 21, 22
"""Purposes of `kernels.draws`: samples of components between which edges are sought, and edges for the median."""

MEDIAN_SAMPLES = 1 << 17
"""About as many samples' edges decide the median weight: of fewer samples, those of all."""

Joined = tuple[kernel.Division, NDArray[np.int32], Float64]
"""The division, and the edges (i, j), i < j, that were added to the solve, with their weights."""


def rows_at(context: Context, samples: Int64) -> NDArray[np.float32]:
    """X at samples in any order."""
    ascending, place = np.unique(samples, return_inverse=True)
    return np.ascontiguousarray(context.samples(ascending)[place])


def connected(context: Context, executor: Executor, report: Report, sizes: Int64, share: float, most: int) -> Joined:
    """Components divided into at most ``most`` large ones and islands.

    Where more are large, the shortest edges join all components, small ones too, but for the longest of these edges
    that part enough rows (`kernels.components.cut_tree`). What no edge of finite length joins stays apart. An edge
    weighs as much as the median entry of U times its `kernels.components.shortness`.

    ``sizes`` (components,) int64: rows of the input in each component of U; ``share``: as of
    `kernels.components.divide_sizes`.
    """
    least = share * sizes.sum() / context.params.n_sought
    division = kernel.divide_sizes(sizes, context.params.n_sought, share)
    if division.large <= most:
        return division, np.empty((0, 2), np.int32), np.empty(0)
    drawn = _draw(context, executor, report, sizes, np.ones(len(sizes), np.bool_))
    tree = kernel.spanning_tree(drawn.component, drawn.nearest)
    _check_reached(len(sizes) - len(tree.edges) <= context.params.n_sought)
    between = drawn.component[tree.edges]
    kept = kernel.cut_tree(between, sizes.astype(np.float64), least, most)
    graph = sp.coo_array((np.ones(kept.sum()), between[kept].T), shape=(len(sizes),) * 2)
    parts, rank = connected_components(graph, directed=False)
    edges = np.sort(drawn.samples[tree.edges[kept]], axis=1).astype(np.int32)
    order = np.lexsort(edges.T[::-1])
    weights = _median_weight(context, executor, report) * kernel.shortness(tree.lengths[kept][order])
    return kernel.Division(rank.astype(np.int32), parts, parts), edges[order], weights


def _median_weight(context: Context, executor: Executor, report: Report) -> float:
    """The median of the weighed U's values, of drawn samples where there are many; 1 where there is none."""
    job = Job("label", _drawn_weights, "weights-")
    values = [part[0] for part in label_parts.collected(context, executor, report, job, "weights")]
    return float(np.median(np.concatenate(values))) if values else 1.0


def _drawn_weights(context: Context, b: int) -> TaskResult:
    """The weighed U at the entries of drawn samples, each that is not on the diagonal twice."""
    entries, values = label_parts.weighed_entries(context, b)
    hashed = draws.hashes(context.user_numbers(b), context.params.random_state, MEDIAN)
    drawn = draws.among(hashed, MEDIAN_SAMPLES, context.m)[entries[:, 0] - context.span(b)[0]]
    twice = 1 + (entries[drawn, 0] != entries[drawn, 1])
    weights = np.repeat(values[drawn], twice)
    return {"weights": weights}, {"n": len(weights)}


# ---- edges between components


class _Drawn(NamedTuple):
    """Some samples of components, by the user's number, and the search among them."""

    samples: Int64  # (n,)
    component: Int64  # (n,)
    complete: bool  # whether they are all samples of their components
    nearest: kernel.Nearest


def _members(context: Context, b: int) -> TaskResult:
    """The samples of partition b that are drawn, and of each component the one of the smallest hash."""
    component = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    share = np.asarray(context.read("label", "edges-wanted", "share"))[component]
    user = np.asarray(context.user_numbers(b)).astype(np.int64)
    hashed = draws.hashes(user, context.params.random_state, DRAWN).astype(np.float64) / 2.0**64
    order = np.lexsort((user, hashed, component))
    stands = np.zeros(len(component), np.bool_)
    stands[order[np.unique(component[order], return_index=True)[1]]] = True
    some = np.flatnonzero(((hashed < share) | stands) & (share > 0))
    arrays = {"user": user[some], "samples": context.span(b)[0] + some, "component": component[some]}
    return {**arrays, "hashed": hashed[some]}, {"n": len(some)}


def _draw(context: Context, executor: Executor, report: Report, sizes: Int64, wanted: NDArray[np.bool_]) -> _Drawn:
    """Samples of the ``wanted`` components: of each one, of the larger ones as many as `SEARCH_WORK` allows."""
    of_each = _most_of_each(context, sizes[wanted])
    share = np.where(wanted, np.minimum(1.0, of_each / np.maximum(sizes, 1)), 0.0)
    context.store.write(context.folders["label"], "edges-wanted", {"share": share}, {})
    job, names = Job("label", _members, "edges-drawn-"), ("user", "samples", "component", "hashed")
    parts = label_parts.collected(context, executor, report, job, *names)
    user, samples, component, hashed = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    label_parts.drop(context, ["edges-wanted"])
    order = np.lexsort((user, hashed, component))
    kept = hashed[order] < share[component[order]]
    kept[np.unique(component[order], return_index=True)[1]] = True
    some = order[kept]
    some = some[np.argsort(user[some])]
    complete = bool((share[wanted] == 1.0).all())
    return _Drawn(samples[some], component[some].astype(np.int64), complete, _search(context, samples[some]))


def _most_of_each(context: Context, sizes: Int64) -> float:
    """How many samples are drawn of each component at most: of given distances, which are few, all."""
    if context.metric.precomputed:
        return float(context.n_rows)
    most = np.sqrt(SEARCH_WORK / (context.n_features + 64) / comparison_times(context.metric.name))
    ascending = np.sort(sizes).astype(np.float64)
    left = most - np.concatenate([[0.0], np.cumsum(ascending)[:-1]])
    levels = left / np.arange(len(sizes), 0, -1)  # if all smaller components are drawn as a whole
    fits = np.flatnonzero(levels < ascending)
    return max(1.0, float(levels[fits[0]])) if len(fits) else float(ascending[-1])


def _search(context: Context, samples: Int64) -> kernel.Nearest:
    """The exact search among some samples, which are named by their places."""
    rows = rows_at(context, samples)
    if context.metric.precomputed:
        rows = (metric_views.ways(context, samples) if np.isinf(rows).any() else rows)[:, samples]

    def nearest(queries: Int64, targets: Int64, n: int) -> tuple[Int64, Float32]:
        own = np.searchsorted(targets, queries)
        own = np.where(targets[np.minimum(own, len(targets) - 1)] == queries, own, -1)
        if context.metric.precomputed:
            lengths = rows[np.ix_(queries, targets)]
            lengths[np.flatnonzero(own >= 0), own[own >= 0]] = np.inf
            places = np.argsort(lengths, axis=1, kind="stable")[:, :n]
            lengths = np.take_along_axis(lengths, places, axis=1)
        else:
            indices, lengths = metric_views.search(context)(rows[queries], own, rows[targets], n)
            places = indices.astype(np.int64)
        return np.where(np.isfinite(lengths), targets[places], -1), lengths

    return nearest


def _check_reached(reached: bool) -> None:
    """Refuse sparse distances by which a component that has to be joined to others has no way to one."""
    if not reached:
        raise BadInput(
            "metric='precomputed'",
            "no stored way from some components of the samples to the others",
            "sparse distances whose components are no more than the clusters, and none of them too small for one",
            "their samples would have any label",
            "give the distances of more neighbours, or ask for more clusters",
        )


def followed(context: Context, executor: Executor, report: Report, place: Int64, allowed: NDArray[np.bool_]) -> Int64:
    """For each group of components the sample of allowed ones at the other end of their shortest edge: (groups,).

    Where not all samples are drawn, it is the allowed sample that is nearest to the group's end of the shortest edge
    between drawn ones. ``place`` (components,): the group of each component of U, -1 for none; ``allowed``
    (components,) bool.
    """
    sizes = np.asarray(context.read("label", "contraction", "sizes"))
    drawn = _draw(context, executor, report, sizes, (place >= 0) | allowed)
    group = place[drawn.component]
    asked = np.flatnonzero(group >= 0)
    found, lengths = drawn.nearest(asked, np.flatnonzero(allowed[drawn.component]), 1)
    found, lengths = found[:, 0], lengths[:, 0]
    order = np.lexsort((found, asked, lengths, group[asked]))
    best = order[np.unique(group[asked[order]], return_index=True)[1]]
    _check_reached(bool((found[best] >= 0).all()))
    if drawn.complete:
        return drawn.samples[found[best]]
    return _nearest(context, executor, report, drawn.samples[asked[best]], allowed)


def _nearest_inside(context: Context, b: int) -> TaskResult:
    """The nearest of partition b's samples of allowed components to each of some samples (ties: the user's number)."""
    allowed = np.asarray(context.read("label", "edges-allowed", "allowed"))
    components = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    candidates = np.flatnonzero(allowed[components])
    if not len(candidates):
        return {}, {"n": 0}
    user = np.asarray(context.user_numbers(b))[candidates].astype(np.int64)
    order = np.argsort(user)  # the first of equally near rows is that of the user's smallest number
    candidates, user = candidates[order], user[order]
    X = np.ascontiguousarray(np.asarray(context.samples_of(b))[candidates])
    queries = np.asarray(context.read("label", "edges-allowed", "asked"))
    places, lengths = metric_views.search(context)(queries, np.full(len(queries), -1), X, 1)
    found = places[:, 0]
    arrays = {
        "which": np.arange(len(queries)),
        "gaps": lengths[:, 0].astype(np.float64),
        "users": user[found],
        "found": context.span(b)[0] + candidates[found],
    }
    return arrays, {"n": len(queries)}


def _nearest(context: Context, executor: Executor, report: Report, samples: Int64, allowed: NDArray[np.bool_]) -> Int64:
    """The nearest sample of allowed components to each of some samples: (n,).

    ``samples`` (n,); ``allowed`` (components,) bool: by component of U.
    """
    arrays: dict[str, AnyArray] = {"allowed": allowed.astype(np.uint8), "asked": rows_at(context, samples)}
    context.store.write(context.folders["label"], "edges-allowed", arrays, {})
    job, names = Job("label", _nearest_inside, "edges-nearest-"), ("which", "gaps", "users", "found")
    # n rows a partition that has candidates: merged as they come
    best: list[NDArray[np.generic]] | None = None
    for part in label_parts.collected(context, executor, report, job, *names):
        if best is None:
            best = list(part)
            continue
        closer = (part[1] < best[1]) | ((part[1] == best[1]) & (part[2] < best[2]))
        best = [np.where(closer, new, old) for new, old in zip(part, best, strict=True)]
    assert best is not None
    label_parts.drop(context, ["edges-allowed"])
    return np.asarray(best[3], np.int64)

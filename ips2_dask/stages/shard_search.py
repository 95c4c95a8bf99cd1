"""Tasks of a sharded graph: a shard's search and the run's numbers of its members; samples and lists by partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels import duplicates, projection, shards
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.params import DENSE_MAX_SAMPLES
from ips2_dask.plan.choices import SHARD_FEATURES, SHARD_MEMBERS, SHARD_WORK
from ips2_dask.stages import metric_views
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import ORDER, Context, part_name
from ips2_dask.store.integrity import Facts
from ips2_dask.typing import AnyArray, Float32, Int32, Int64

SHARD, RANKS, SAMPLES = "shard-", "ranks-", "samples-"
"""Prefixes of the parts: a shard's search, with X of those whose nearest cell it is; its members' numbers; X of a
partition."""


def n_listed(context: Context) -> int:
    """Entries of a sample's list, the sample itself among them."""
    return min(context.params.n_stored_neighbors, context.m)


def narrows(context: Context) -> bool:
    """Whether searches of shards are narrowed by principal directions, which preserve Euclidean distances alone."""
    return context.n_features > projection.WORTHWHILE and context.metric.is_euclidean


def is_divided(context: Context, members: int) -> bool:
    """Whether a shard of so many members is searched in sub-cells.

    By a metric that compares pairs pynndescent searches it, whose time grows little faster than the members.
    """
    return context.metric.is_euclidean and members > shards.LARGE * SHARD_MEMBERS[1]


def cell_at(context: Context, samples: NDArray[np.integer]) -> Int64:
    """The nearest cell of samples, by the run's numbers."""
    return np.searchsorted(context.facts["neighbors"]["starts"], samples, side="right") - 1


def _cells_of(context: Context, b: int) -> Iterator[tuple[int, int, int]]:
    """The cells that partition b has samples of, and which of each: (cell, first, one past the last) of its own."""
    low, high = context.span(b)
    starts = context.facts["neighbors"]["starts"]
    for s in np.unique(cell_at(context, np.arange(low, high))).tolist():
        yield s, max(low - starts[s], 0), min(high, starts[s + 1]) - starts[s]


def second_cells(context: Context, samples: NDArray[np.integer]) -> Int32:
    """The second nearest cell of ascending samples, by the run's numbers: (n,)."""
    starts, cells = np.asarray(context.facts["neighbors"]["starts"]), cell_at(context, samples)
    second = np.empty(len(samples), np.int32)
    for s in np.unique(cells):
        here = cells == s
        second[here] = context.read("neighbors", SHARD + part_name(s), "second")[samples[here] - starts[s]]
    return second


def user_numbers(context: Context, samples: NDArray[np.integer]) -> Int32:
    """The numbers of ascending samples among the user's, or among the distinct rows of these: (n,)."""
    return np.asarray(context.rows_of("neighbors", "order", samples, ORDER))


def _members(context: Context, s: int) -> tuple[Float32, Int32, Int64 | None]:
    """X of shard s's members, the user's number and the two cells of each, and its ``firsts`` and ``copies``.

    The user's numbers ascend. The last is None where the rows of the input are the samples.
    """
    folder, empty = context.folders["neighbors"], np.empty((0, context.n_features), np.float32)
    names = ("rows", "entries", "row_entries") if context.merged else ("rows", "entries")
    found: list[list[AnyArray]] = [[empty], [np.empty((0, 3), np.int32)], [np.empty((0, 2), np.int64)]]
    for name, first in _runs_of(context.facts["neighbors"], s):
        offsets = np.asarray(context.read("neighbors", name, "offsets"))
        low, high = (int(at) for at in offsets[s - first : s - first + 2])
        if low < high:
            for column, array in zip(found, names, strict=False):
                column.append(context.store.read_rows(folder, name, array, low, high))
    X, entries, of_rows = (np.concatenate(column) for column in found)
    return X, entries, of_rows if context.merged else None


def _runs_of(facts: Facts, s: int) -> list[tuple[str, int]]:
    """The parts that hold members of shard s, by the user's numbers, and the first shard of each part."""
    if not facts["ranges"]:
        return [("batch-" + part_name(batch), 0) for batch in range(len(facts["batches"]))]
    found, number = [], 0
    for limits in facts["ranges"]:
        at = int(np.searchsorted(limits, s, side="right")) - 1
        found.append(("run-" + part_name(number + at), limits[at]))
        number += len(limits) - 1
    return found


def _search_at_once(context: Context, X: Float32) -> tuple[Int32, Float32, Float32 | None]:
    """Places and distances of each row's nearest among all rows, itself first; X in the directions that narrowed."""
    narrow = projection.project(X, context.params.random_state) if narrows(context) else None
    groups = None if context.params.merges_rows else duplicates.group_rows(X)
    nearest = metric_views.shard_search(context, len(X))
    n = min(n_listed(context), len(X))
    places, distances = duplicates.nearest_rows(np.arange(len(X)), X, groups, n, narrow, nearest)
    return places, distances, None if narrow is None else narrow.Z


def _search(context: Context, X: Float32) -> tuple[Int32, Float32, Float32 | None]:
    """As of `_search_at_once`, of a large shard in sub-cells."""
    if not is_divided(context, len(X)):
        return _search_at_once(context, X)
    seed = context.params.random_state
    members = int(SHARD_WORK / (min(context.n_features, SHARD_FEATURES) + 64))  # as the plan gives a shard, if it may
    members = min(max(members, SHARD_MEMBERS[0]), SHARD_MEMBERS[1])
    places, distances = shards.nearest_in_sub_cells(
        X, n_listed(context), lambda rows: _search_at_once(context, rows)[:2], members, seed
    )
    narrow = projection.project(X, seed) if narrows(context) else None
    return places, distances, None if narrow is None else narrow.Z


def search(context: Context, s: int) -> TaskResult:
    """Neighbours inside shard s; numbers and X of the samples whose nearest cell it is, in the order of their numbers.

    Neighbours are named by their places among the members. ``ranks`` has the run's number of those members that get
    theirs here; ``leaving`` tells the shards that are the second ones of these.
    """
    facts, n = context.facts["neighbors"], n_listed(context)
    X, entries, of_rows = _members(context, s)
    members = np.ascontiguousarray(entries[:, 0])
    places = np.full((len(members), n), -1, np.int32)
    distances = np.full((len(members), n), np.inf, np.float32)
    Z = None
    if len(members):  # they ascend: so ties are decided by the user's numbers
        near, lengths, Z = _search(context, X)
        places[:, : near.shape[1]], distances[:, : near.shape[1]] = near, lengths
    start, stop = facts["starts"][s : s + 2]
    own = projection.spatial_order(X if Z is None else Z, np.flatnonzero(entries[:, 1] == s))
    ranks = np.full(len(members), -1, np.int32)
    ranks[own] = np.arange(start, stop, dtype=np.int32)
    second = np.ascontiguousarray(entries[own, 2])
    order = members[own]
    leaving = np.stack([second, order, ranks[own]], axis=1)[second != s]
    arrays: dict[str, AnyArray] = {
        "members": members,
        "places": places,
        "distances": distances,
        "ranks": ranks,
        "second": second,
        "leaving": leaving[np.lexsort((leaving[:, 1], leaving[:, 0]))],
        "samples": X[own],
    }
    if of_rows is not None:
        firsts, copies = of_rows[own].T
        arrays |= {"firsts": np.ascontiguousarray(firsts), "copies": copies.astype(np.int32)}
    m, seed = facts["bounds"][-1], context.params.random_state
    for name, rows in (
        ("queries", kernel.recall_rows(m, seed)),
        ("drawn", kernel.bandwidth_rows(m, DENSE_MAX_SAMPLES, seed)),
    ):
        arrays[name] = X[own[rows[slice(*np.searchsorted(rows, [start, stop]))] - start]]
    return arrays, {}


def samples(context: Context, b: int) -> TaskResult:
    """X of partition b, from the shards that it is of: (rows, f) float32."""
    return {"samples": _joined(context, b, "samples")}, {}


def numbers(context: Context, b: int) -> TaskResult:
    """The user's number of each sample of partition b; the first row and the copies of each, where rows are merged."""
    orders = []
    for s, first, last in _cells_of(context, b):
        members, ranks = (np.asarray(context.read("neighbors", SHARD + part_name(s), a)) for a in ("members", "ranks"))
        own = np.flatnonzero(ranks >= 0)
        orders.append(members[own[np.argsort(ranks[own])]][first:last])
    arrays: dict[str, AnyArray] = {"order": np.concatenate(orders)}
    if context.merged:
        arrays |= {name: _joined(context, b, name) for name in ("firsts", "copies")}
    return arrays, {}


def _joined(context: Context, b: int, name: str) -> AnyArray:
    """What the searches of shards have stored of partition b's samples."""
    store, folder = context.store, context.folders["neighbors"]
    return np.concatenate(
        [store.read_rows(folder, SHARD + part_name(s), name, *rows) for s, *rows in _cells_of(context, b)]
    )


def rank(context: Context, s: int) -> TaskResult:
    """The run's number of each member of shard s, from the shards that their nearest cells are: (members,)."""
    name = SHARD + part_name(s)
    members = np.asarray(context.read("neighbors", name, "members"))
    ranks = np.array(context.read("neighbors", name, "ranks"))
    low, high = np.asarray(context.read("neighbors", "shards", "source_offsets"))[s : s + 2]
    for t in np.asarray(context.read("neighbors", "shards", "sources"))[low:high]:
        leaving = np.asarray(context.read("neighbors", SHARD + part_name(t), "leaving"))
        here = leaving[slice(*np.searchsorted(leaving[:, 0], [s, s + 1]))]
        ranks[np.searchsorted(members, here[:, 1])] = here[:, 2]
    return {"ranks": ranks}, {}


def _lists_in(context: Context, s: int, users: Int32) -> shards.Lists:
    """What the search of shard s has listed for some of its members."""
    name = SHARD + part_name(s)
    members = np.asarray(context.read("neighbors", name, "members"))
    ranks = np.asarray(context.read("neighbors", RANKS + part_name(s), "ranks"))
    rows = np.searchsorted(members, users)
    places = np.asarray(context.read("neighbors", name, "places"))[rows]
    nobody = places < 0
    return shards.Lists(
        np.where(nobody, -1, ranks[places]).astype(np.int32),
        np.where(nobody, -1, members[places]).astype(np.int32),
        np.asarray(context.read("neighbors", name, "distances"))[rows],
    )


def _lists_of(context: Context, cells: NDArray[np.integer], users: Int32) -> shards.Lists:
    """What the searches of these shards, one for each sample or -1, have listed for it."""
    lists = shards.no_lists(len(users), n_listed(context))
    for s in np.unique(cells[cells >= 0]).tolist():
        here = cells == s
        for column, found in zip(lists, _lists_in(context, s, users[here]), strict=True):
            column[here] = found
    return lists


def merge(context: Context, b: int) -> TaskResult:
    """Neighbours of partition b's samples from both of their shards."""
    own = np.arange(*context.span(b))
    order = np.asarray(context.read("neighbors", ORDER + part_name(b), "order"))
    cells, second = cell_at(context, own), second_cells(context, own)
    lists = _lists_of(context, cells, order)
    others = _lists_of(context, np.where(second == cells, -1, second), order)
    shards.merge_numbered(lists, others, own, order)
    return {"indices": lists.indices, "distances": lists.distances}, list_facts(context, b, lists.distances)


def list_facts(context: Context, b: int, distances: Float32) -> dict[str, Any]:
    """Counts of partition b's lists, of which the recall and warnings are made.

    ``listed`` and ``near``: entries of the lists that the recall is measured on, and those that are no farther than
    the true n-th neighbour. ``repeated`` and ``crowded``: as of `metric_views.copies_listed`.
    """
    rows = kernel.recall_rows(context.m, context.params.random_state)
    first, last = np.searchsorted(rows, context.span(b))
    reach = np.asarray(context.read("neighbors", "reach", "reach"))[first:last]
    near = kernel.is_near(distances[rows[first:last] - context.bounds[b]], reach)
    facts = {"listed": int(near.size), "near": int(np.count_nonzero(near))}
    return facts | metric_views.copies_listed(context, distances)

"""The recall of a graph by partition: measured on some samples, and raised by neighbours of neighbours or all pairs.

A task holds its own partition's lists, those of the samples that these and the reverse lists name, and what the latter
list in turn: no array over all samples.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report, cuts, exchange, received
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.kernels import shards
from ips2_dask.params import LEAST_RECALL
from ips2_dask.stages import metric_views, shard_search
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

MOST_ROUNDS = 5

REACH_TASKS = 256
"""Tasks that compare the recall's rows with all samples, at most: so many lists the driver puts together."""


def lists_prefix(rounds: int) -> str:
    """Prefix of the lists after so many rounds of refinement."""
    return f"lists{rounds}-"


def edges_prefix(rounds: int) -> str:
    """Prefix of the edges of the lists after so many rounds."""
    return f"edges{rounds}-"


def _reach_groups(context: Context) -> list[tuple[int, int]]:
    """Ranges of partitions, one a task, that the recall's rows are compared with."""
    count = min(REACH_TASKS, context.n_partitions)
    limits = [context.n_partitions * t // count for t in range(count + 1)]
    return list(itertools.pairwise(limits))


def reached(context: Context, group: int) -> TaskResult:
    """Distances of the sample rows of the recall to their nearest samples in some partitions."""
    rows = kernel.recall_rows(context.m, context.params.random_state)
    queries = np.asarray(context.read("neighbors", "queries", "rows"))
    n, search = shard_search.n_listed(context), metric_views.search(context)
    nearest = np.full((len(rows), n - 1), np.inf, np.float32)
    for b in range(*_reach_groups(context)[group]):
        X = np.asarray(context.samples_of(b))
        both = np.concatenate([nearest, search(queries, rows, X, n - 1, context.bounds[b])[1]], axis=1)
        nearest = np.sort(both, axis=1)[:, : n - 1]
    return {"distances": nearest}, {}


def true_reach(context: Context, executor: Executor, report: Report) -> NDArray[np.float32]:
    """Store and return the distance of the true n-th nearest of each of the recall's rows, part `queries`: (rows,)."""
    store, folder = context.store, context.folders["neighbors"]
    groups = range(len(_reach_groups(context)))
    parts = ["reached-" + part_name(group) for group in groups]
    if store.receipt(folder, "reach") is None:
        executor.map(Job("neighbors", reached, "reached-", "reaches"), context, groups, report)
        lengths = np.concatenate(list(store.read_many(folder, parts, "distances")), axis=1)
        n = shard_search.n_listed(context)
        store.write(folder, "reach", {"reach": np.partition(lengths, n - 2, axis=1)[:, n - 2]}, {})
    store.drop_many(folder, parts)
    return np.asarray(store.read(folder, "reach", "reach"))


def _edges(context: Context, b: int) -> TaskResult:
    """Whom partition b's samples list: (neighbour, sample), ascending, at most n samples of each neighbour.

    Refinement looks at no more of those that list a sample, so that one that all others list is no exception.
    """
    low, high = context.span(b)
    name = lists_prefix(context.facts["neighbors"]["rounds"]) + part_name(b)
    N = np.asarray(context.read("neighbors", name, "indices"))
    neighbors, samples = N.ravel(), np.repeat(np.arange(low, high, dtype=np.int32), N.shape[1])
    order = np.argsort(neighbors, kind="stable")
    neighbors, samples = neighbors[order], samples[order]
    first = np.searchsorted(neighbors, neighbors)
    kept = np.arange(len(neighbors)) - first < N.shape[1]
    found = np.stack([neighbors[kept], samples[kept]], axis=1)
    return {"edges": found}, cuts(context, found[:, 0])


def _naming(context: Context, b: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Samples that list each of partition b's, ascending, at most n of each partition: starts and samples."""
    low, high = context.span(b)
    sent = received(context, "neighbors", edges_prefix(context.facts["neighbors"]["rounds"]), b, "edges")
    both = np.concatenate([np.empty((0, 2), np.int32), *(found for (found,) in sent)])
    both = both[np.argsort(both[:, 0], kind="stable")]
    return np.searchsorted(both[:, 0], np.arange(low, high + 1)), np.ascontiguousarray(both[:, 1])


def refine(context: Context, b: int) -> TaskResult:
    """Partition b's lists after a round of refinement: neighbours of (reverse) neighbours are tried as neighbours."""
    low, high = context.span(b)
    before = lists_prefix(context.facts["neighbors"]["rounds"])
    part, rows, n = before + part_name(b), np.arange(low, high), shard_search.n_listed(context)
    indices, distances = (np.array(context.read("neighbors", part, name)) for name in ("indices", "distances"))
    starts, naming = _naming(context, b)
    near = np.unique(np.concatenate([rows, indices.ravel(), naming]))
    N = np.asarray(context.rows_of("neighbors", "indices", near, before))
    ids = np.unique(N)  # a sample is in its own list
    lists = np.full((len(ids), n), -1, np.int32)
    lists[np.searchsorted(ids, near)] = np.searchsorted(ids, N)
    own = np.searchsorted(ids, low) + np.arange(high - low)
    start = np.zeros(len(ids) + 1, np.int64)
    start[own[0] : own[-1] + 2] = starts
    both = np.repeat(np.arange(len(ids), dtype=np.int32)[:, None], 2, axis=1)
    metric, divided = context.metric, context.facts["neighbors"]["divided"]
    if not (divided or shard_search.narrows(context) or metric.compares_pairs):  # else a search was narrowed down
        both[:, 0], both[:, 1] = shard_search.cell_at(context, ids), shard_search.second_cells(context, ids)
    candidates = shards.second_neighbors(lists, start, np.searchsorted(ids, naming).astype(np.int32), both, own)
    used = np.unique(np.concatenate([candidates[candidates >= 0], own]))
    place = np.zeros(len(ids), np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    X = np.asarray(context.samples(ids[used]))
    lengths = shards.candidate_lengths(X, place[own].astype(np.int64), candidates, place, context.metric.code)
    users = shard_search.user_numbers(context, ids)
    mine = shards.Lists(indices, users[np.searchsorted(ids, indices)], distances)
    nobody = candidates < 0
    others = shards.Lists(
        np.where(nobody, -1, ids[candidates]).astype(np.int32), np.where(nobody, -1, users[candidates]), lengths
    )
    changed = shards.merge_numbered(mine, others, rows, users[own])
    facts = {"changed": changed} | shard_search.list_facts(context, b, distances)
    return {"indices": indices, "distances": distances}, facts


def exactly(context: Context, b: int) -> TaskResult:
    """Partition b's lists by comparing its samples with those of every cell, one cell in memory at a time.

    Cells don't follow the partitions, so that these change nothing.
    """
    low, high = context.span(b)
    rows, X = np.arange(low, high), np.asarray(context.samples_of(b))
    n, search = shard_search.n_listed(context), metric_views.search(context)
    users = shard_search.user_numbers(context, rows)
    lists = shards.no_lists(high - low, n)
    lists.indices[:, 0], lists.users[:, 0], lists.distances[:, 0] = rows, users, 0.0
    for start, stop in itertools.pairwise(context.facts["neighbors"]["starts"]):
        if start == stop:
            continue
        order = shard_search.user_numbers(context, np.arange(start, stop))
        ascending = np.argsort(order)  # ties: the user's smallest number
        own, here = np.full(high - low, -1), (rows >= start) & (rows < stop)
        own[here] = np.argsort(ascending)[rows[here] - start]
        inside = np.asarray(context.samples(np.arange(start, stop)))[ascending]
        places, lengths = search(X, own, inside, n - 1)
        nobody = places < 0
        others = shards.Lists(
            np.where(nobody, -1, start + ascending[places]).astype(np.int32),
            np.where(nobody, -1, order[ascending[places]]).astype(np.int32),
            lengths,
        )
        shards.merge_numbered(lists, others, rows, users)
    facts = shard_search.list_facts(context, b, lists.distances)
    return {"indices": lists.indices, "distances": lists.distances}, facts


def refined(context: Context, executor: Executor, report: Report) -> Receipt:
    """Merge the lists of the shards, measure the recall and refine until it is high enough; returns the receipt.

    In the end every pair is compared, where the plan affords that.
    """
    store, folder, parts = context.store, context.folders["neighbors"], range(context.n_partitions)
    n = shard_search.n_listed(context)
    facts: dict[str, Any] = {"rounds": 0, "recall_history": [], "searched_exactly": False, "warnings": []}
    merging = Job("neighbors", shard_search.merge, lists_prefix(0))
    receipts = executor.map(merging, context, parts, report)
    while True:
        facts["recall_history"].append(_recall(receipts))
        if facts["recall_history"][-1] >= LEAST_RECALL or facts["rounds"] == MOST_ROUNDS:
            break
        told = {**context.facts["neighbors"], "rounds": facts["rounds"]}  # tasks read the lists after so many
        inner = dataclasses.replace(context, facts={**context.facts, "neighbors": told})
        naming = Job("neighbors", _edges, edges_prefix(facts["rounds"]))
        facts["rounds"] += 1
        refining = Job("neighbors", refine, lists_prefix(facts["rounds"]))
        exchange(inner, executor, report, naming, refining)
        found = context.receipts("neighbors", [refining.prefix + part_name(b) for b in parts])
        receipts = [found[refining.prefix + part_name(b)] for b in parts]
        if not any(receipt["facts"]["changed"] for receipt in receipts):
            break  # nor would another round find anything
    if facts["recall_history"][-1] < LEAST_RECALL and context.choices.exact_after:
        facts["rounds"] += 1
        facts["searched_exactly"] = True
        receipts = executor.map(Job("neighbors", exactly, lists_prefix(facts["rounds"])), context, parts, report)
        facts["recall_history"].append(_recall(receipts))
    facts["recall"] = facts["recall_history"][-1]
    if facts["recall"] < LEAST_RECALL:
        facts["warnings"].append(
            f"recall@{n - 1} of the sample graph is {facts['recall']:.3f} and {LEAST_RECALL} was promised: "
            f"{facts['rounds']} rounds of refinement were not enough, and {context.m:,} samples are too many to "
            "compare every pair unasked; graph='exact' (--graph exact) does it, and fewer shards may do"
        )
    facts["warnings"] += metric_views.copies_warnings(context, receipts)
    return store.write(folder, "refined", {}, facts)


def _recall(receipts: Sequence[Receipt]) -> float:
    """Share of the listed entries that are near enough, of all partitions."""
    near, listed = (sum(receipt["facts"][name] for receipt in receipts) for name in ("near", "listed"))
    return near / listed if listed else 1.0

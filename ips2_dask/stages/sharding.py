"""The sample graph by overlapping shards: split, search each shard, merge, measure the recall, refine; renumbered.

Where the recall stays below `LEAST_RECALL` after refinement, every pair is compared, if the plan affords that.

Samples are renumbered by shard, so that neighbours mostly share a partition, and within a shard so that close samples
have close numbers. ``order`` of the stage's ``whole`` part holds the user's number of each sample, which decides ties.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.executors.placement import Item
from ips2_dask.kernels import duplicates, projection, shards
from ips2_dask.kernels import neighbors as kernel
from ips2_dask.params import LEAST_RECALL
from ips2_dask.plan.memory import SAMPLE_PER_SHARD, SPLIT_BYTES
from ips2_dask.stages import metric_views
from ips2_dask.stages.views import neighborhoods
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

MOST_ROUNDS = 5


def adopted(context: Context, facts: dict[str, Any]) -> Context:
    """The context with the partitions that sharding made."""
    inner = dataclasses.replace(context, facts={**context.facts, "neighbors": facts})
    inner.adopt(facts)
    return inner


def sample(context: Context, b: int) -> TaskResult:
    """Partition b's rows that are drawn for the cells: by their numbers, so that partitions don't matter."""
    wanted = SAMPLE_PER_SHARD * context.choices.n_shards
    drawn = shards.is_drawn(*context.span(b), wanted / context.m, context.params.random_state)
    return {"sample": context.ingested(b)[drawn]}, {}


def assign(context: Context, b: int) -> TaskResult:
    """Store the two nearest cells of each of partition b's samples."""
    centers = np.asarray(context.read("neighbors", "cells", "centers"))
    return {"nearest": shards.two_nearest(context.ingested(b), centers)}, {}


def split(context: Context, batch: int) -> TaskResult:
    """Rows of some of the user's partitions, sorted by shard, each row once for either of its two shards."""
    first, last = context.facts["neighbors"]["batches"][batch]
    X = np.concatenate([context.ingested(b) for b in range(first, last)])
    cell = np.asarray(context.read("neighbors", "membership", "cell"))
    nearest = cell[_nearest_cells(context, range(first, last))]
    user = np.arange(context.bounds[first], context.bounds[last])
    twice = nearest[:, 0] != nearest[:, 1]
    rows, shard = np.concatenate([user, user[twice]]), np.concatenate([nearest[:, 0], nearest[twice, 1]])
    order = np.lexsort((rows, shard))
    offsets = np.searchsorted(shard[order], np.arange(context.choices.n_shards + 1))
    members = rows[order]
    return {"rows": X[members - user[0]], "members": members.astype(np.int32), "offsets": offsets}, {}


def search(context: Context, s: int) -> TaskResult:
    """Neighbours inside shard s, in the user's numbering; order and X of the samples whose nearest cell it is."""
    facts, folder = context.facts["neighbors"], context.folders["neighbors"]
    pieces, numbers = [], []
    for batch in range(len(facts["batches"])):
        name = "split-" + part_name(batch)
        low, high = np.asarray(context.read("neighbors", name, "offsets"))[s : s + 2]
        pieces.append(context.store.read_rows(folder, name, "rows", int(low), int(high)))
        numbers.append(context.store.read_rows(folder, name, "members", int(low), int(high)))
    X, members = np.concatenate(pieces), np.concatenate(numbers)
    pieces.clear()
    n = min(context.params.n_stored_neighbors, context.m)
    inside = min(n, len(members))
    indices = np.full((len(members), n), -1, np.int32)
    distances = np.full((len(members), n), np.inf, np.float32)
    narrow = None
    if len(members):  # they ascend: so ties are decided by the user's numbers
        narrow = projection.project(X, context.params.random_state) if _narrows(context) else None
        nearest = metric_views.shard_search(context, len(members))
        groups = None if context.params.merges_rows else duplicates.group_rows(X)
        local, lengths = duplicates.nearest_rows(np.arange(len(members)), X, groups, inside, narrow, nearest)
        indices[:, :inside], distances[:, :inside] = members[local], lengths
    start, stop = facts["starts"][s : s + 2]
    own = np.searchsorted(members, context.store.read_rows(folder, "membership", "by_cell", start, stop))
    own = projection.spatial_order(X if narrow is None else narrow.Z, own)
    for b in range(*np.searchsorted(facts["bounds"], [start, stop])):
        low, high = (bound - start for bound in facts["bounds"][b : b + 2])
        context.store.write(folder, "samples-" + part_name(b), {"samples": X[own[low:high]]}, {})
    arrays = {"members": members, "indices": indices, "distances": distances, "order": members[own]}
    return arrays, {}


def _narrows(context: Context) -> bool:
    """Whether searches of shards are narrowed by principal directions, which preserve Euclidean distances alone."""
    return context.n_features > projection.WORTHWHILE and context.metric.is_euclidean


def merge(context: Context, b: int) -> TaskResult:
    """Neighbours of partition b's samples from both of their shards."""
    low, high = context.span(b)
    order, rank = (np.asarray(context.read("neighbors", "numbering", name)) for name in ("order", "rank"))
    both = context.store.read_rows(context.folders["neighbors"], "numbering", "shards", low, high)
    lists = []
    for column in (0, 1):
        indices = np.full((high - low, min(context.params.n_stored_neighbors, context.m)), -1, np.int32)
        distances = np.full(indices.shape, np.inf, np.float32)
        for s in np.unique(both[:, column]):
            rows = np.flatnonzero(both[:, column] == s)
            places = np.searchsorted(context.read("neighbors", "search-" + part_name(s), "members"), order[low + rows])
            local = context.read("neighbors", "search-" + part_name(s), "indices")[places]
            indices[rows] = np.where(local < 0, -1, rank[local])
            distances[rows] = context.read("neighbors", "search-" + part_name(s), "distances")[places]
        lists.append((indices, distances))
    (indices, distances), others = lists
    shards.merge_lists(indices, distances, *others, np.arange(low, high), order, rank)
    return {"indices": indices, "distances": distances}, {}


def _shard_of(context: Context, b: int) -> Item:
    """The shard whose search has written X of partition b."""
    starts = context.facts["neighbors"]["starts"]
    return "shards", int(np.searchsorted(starts, context.bounds[b], side="right")) - 1


def truth(context: Context, b: int) -> TaskResult:
    """Distances of the sample rows of the recall to their nearest samples in partition b."""
    rows = kernel.recall_rows(context.m, context.params.random_state)
    queries = np.asarray(context.read("neighbors", "queries", "rows"))
    low, high = context.span(b)
    n = min(context.params.n_stored_neighbors, context.m)
    X = np.asarray(context.samples(np.arange(low, high)))
    return {"distances": metric_views.search(context)(queries, rows, X, n - 1, low)[1]}, {}


def refine(context: Context, b: int) -> TaskResult:
    """Partition b's lists after a round of refinement: neighbours of (reverse) neighbours are tried as neighbours."""
    low, high = context.span(b)
    numbering = (np.asarray(context.read("neighbors", "numbering", name)) for name in ("order", "rank", "shards"))
    order, rank, both = numbering
    if _narrows(context) or context.metric.compares_pairs:  # their search may have missed samples that share a cell
        both = np.repeat(np.arange(context.m, dtype=np.int32)[:, None], 2, axis=1)
    n = min(context.params.n_stored_neighbors, context.m)
    before = f"round{context.facts['neighbors']['rounds']}-"
    N, reverse = neighborhoods(context, n, before)
    part = f"{before}{part_name(b)}"
    indices, distances = (np.array(context.read("neighbors", part, name)) for name in ("indices", "distances"))
    rows = np.arange(low, high)
    candidates = shards.second_neighbors(N, reverse.start, reverse.centers, both, rows)
    used = np.unique(np.concatenate([candidates[candidates >= 0], rows]))
    place = np.zeros(context.m, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    X = np.asarray(context.samples(used))
    lengths = shards.candidate_lengths(X, place[rows].astype(np.int64), candidates, place, context.metric.code)
    changed = shards.merge_lists(indices, distances, candidates, lengths, rows, order, rank)
    return {"indices": indices, "distances": distances}, {"changed": changed}


def exactly(context: Context, b: int) -> TaskResult:
    """Partition b's lists by comparing its samples with those of every cell, one cell in memory at a time.

    Cells don't follow the partitions, so that these change nothing.
    """
    low, high = context.span(b)
    order, rank = (np.asarray(context.read("neighbors", "numbering", name)) for name in ("order", "rank"))
    X, rows = np.asarray(context.samples(np.arange(low, high))), np.arange(low, high)
    n = min(context.params.n_stored_neighbors, context.m)
    indices = np.full((high - low, n), -1, np.int32)
    distances = np.full((high - low, n), np.inf, np.float32)
    indices[:, 0], distances[:, 0] = rows, 0.0
    for start, stop in itertools.pairwise(context.facts["neighbors"]["starts"]):
        if start == stop:
            continue
        ascending = start + np.argsort(order[start:stop])  # ties: the user's smallest number
        own = np.full(high - low, -1)
        if start <= low < stop:
            own = np.argsort(ascending)[rows - start]
        others = np.asarray(context.samples(np.arange(start, stop)))[ascending - start]
        places, lengths = metric_views.search(context)(X, own, others, n - 1)
        candidates = np.where(places < 0, -1, ascending[places]).astype(np.int32)
        shards.merge_lists(indices, distances, candidates, lengths, rows, order, rank)
    return {"indices": indices, "distances": distances}, {}


def run(context: Context, executor: Executor, report: Report) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Store the graph and X by the new partitions; returns facts, and the arrays of the stage's ``whole`` part."""
    store, folder = context.store, context.folders["neighbors"]
    membership = store.receipt(folder, "membership")
    facts = _split_into_cells(context, executor, report) if membership is None else dict(membership["facts"])
    inner = dataclasses.replace(context, facts={**context.facts, "neighbors": facts})
    cells = range(len(facts["starts"]) - 1)
    refined = store.receipt(folder, "refined")
    numbered = store.receipt(folder, "numbering") is not None
    if refined is None or not numbered or not _all_finished(adopted(context, facts), refined["facts"]["rounds"]):
        if any(store.receipt(folder, "search-" + part_name(s)) is None for s in cells):  # else the splits may be gone
            executor.map(Job("neighbors", split, "split-", "batches"), inner, range(len(facts["batches"])), report)
            executor.map(Job("neighbors", search, "search-", "shards"), inner, cells, report)
        for batch in range(len(facts["batches"])):
            store.drop(folder, "split-" + part_name(batch))
        if not numbered:
            _number(inner)
        inner = adopted(context, facts)
        executor.map(
            Job("neighbors", merge, "round0-", placed_with=_shard_of), inner, range(inner.n_partitions), report
        )
        refined = _refine(inner, executor, report)
    facts |= refined["facts"]
    _finalise(adopted(context, facts), facts["rounds"], len(cells))
    return facts, {"order": store.read(folder, "numbering", "order")}


def _split_into_cells(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the cells' centres and each sample's two nearest cells; returns the facts of the stored membership."""
    store, folder, parts = context.store, context.folders["neighbors"], range(context.n_partitions)
    receipts = executor.map(Job("neighbors", sample, "sample-"), context, parts, report)
    if store.receipt(folder, "cells") is None:
        counts, seed = [receipt["arrays"]["sample"]["shape"][0] for receipt in receipts], context.params.random_state
        drawn = _drawn(context, counts)
        centers = shards.centers(drawn, min(context.choices.n_shards, len(drawn)), seed)
        store.write(folder, "cells", {"centers": centers}, {})
    executor.map(Job("neighbors", assign, "assign-"), context, parts, report)
    facts, membership = _membership(context)
    store.write(folder, "membership", membership, facts)
    return facts


def _drawn(context: Context, counts: Sequence[int]) -> NDArray[np.float32]:
    """The samples of all partitions, read one by one into one array."""
    rows = np.empty((sum(counts), context.n_features), np.float32)
    for b, (low, high) in enumerate(itertools.pairwise([0, *itertools.accumulate(counts)])):
        rows[low:high] = context.store.read(context.folders["neighbors"], "sample-" + part_name(b), "sample")
    return rows


def _all_finished(context: Context, rounds: int) -> bool:
    """Whether each partition has its samples and its last lists, by the final name or by that of their round."""

    def is_finished(b: int) -> bool:
        lists = context.receipt("neighbors", b) or context.receipt("neighbors", f"round{rounds}-{part_name(b)}")
        return lists is not None and context.receipt("neighbors", "samples-" + part_name(b)) is not None

    return all(is_finished(b) for b in range(context.n_partitions))


def _finalise(context: Context, rounds: int, n_cells: int) -> None:
    """Rename the lists of the last round to the final names, and remove all intermediate parts."""
    store, folder = context.store, context.folders["neighbors"]
    for b in range(context.n_partitions):
        store.rename(folder, f"round{rounds}-{part_name(b)}", part_name(b))
        store.drop(folder, "truth-" + part_name(b))
        for earlier in range(rounds):
            store.drop(folder, f"round{earlier}-{part_name(b)}")
    for s in range(n_cells):
        store.drop(folder, "search-" + part_name(s))


def _nearest_cells(context: Context, parts: range) -> NDArray[np.int32]:
    """The two nearest cells of each sample of some of the input's partitions, as they were assigned: (rows, 2)."""
    return np.concatenate([context.read("neighbors", "assign-" + part_name(b), "nearest") for b in parts])


def _number(context: Context) -> None:
    """Store the run's numbering: by nearest cell, and within a cell in the order that its search has stored."""
    store, folder = context.store, context.folders["neighbors"]
    cells = range(len(context.facts["neighbors"]["starts"]) - 1)
    order = np.concatenate([store.read(folder, "search-" + part_name(s), "order") for s in cells])
    rank = np.empty(context.m, np.int32)
    rank[order] = np.arange(context.m, dtype=np.int32)
    cell = store.read(folder, "membership", "cell")
    store.write(
        folder,
        "numbering",
        {"order": order, "rank": rank, "shards": cell[_nearest_cells(context, range(context.n_partitions))][order]},
        {},
    )


def _membership(context: Context) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """The samples by nearest cell, the new partitions, and batches of the user's partitions."""
    nearest = _nearest_cells(context, range(context.n_partitions))
    n_shards = context.choices.n_shards
    least = min(context.params.n_stored_neighbors, context.m)
    cell = shards.join_small(nearest, np.asarray(context.read("neighbors", "cells", "centers")), least)
    first = cell[nearest[:, 0]]
    by_cell = np.argsort(first, kind="stable").astype(np.int32)
    starts = np.searchsorted(first[by_cell], np.arange(n_shards + 1)).tolist()
    rows = max(context.bounds[1] - context.bounds[0], 1)
    bounds = [0]
    for low, high in itertools.pairwise(starts):
        count = -(-(high - low) // rows)
        bounds += [low + (high - low) * (t + 1) // count for t in range(count)]
    each = max(1, SPLIT_BYTES // max(1, 4 * rows * context.n_features))
    n = context.n_partitions
    each = min(each, max(1, n // 4))
    batches = [[first, min(first + each, n)] for first in range(0, n, each)]
    facts = {"bounds": bounds, "starts": starts, "batches": batches}
    return facts, {"by_cell": by_cell, "cell": cell}


def true_reach(context: Context, executor: Executor, report: Report, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The distance of the true n-th nearest of each of the recall's rows: (rows,)."""
    parts, folder = range(context.n_partitions), context.folders["neighbors"]
    executor.map(Job("neighbors", truth, "truth-"), context, parts, report)
    lengths = np.concatenate([context.store.read(folder, "truth-" + part_name(b), "distances") for b in parts], axis=1)
    n = min(context.params.n_stored_neighbors, context.m)
    return np.partition(lengths, n - 2, axis=1)[:, n - 2]


def _refine(context: Context, executor: Executor, report: Report) -> Receipt:
    """Measure the recall and refine until it is high enough, in the end by an exact search; returns the receipt."""
    store, folder, parts = context.store, context.folders["neighbors"], range(context.n_partitions)
    rows = kernel.recall_rows(context.m, context.params.random_state)
    store.write(folder, "queries", {"rows": np.asarray(context.samples(rows))}, {})
    n = min(context.params.n_stored_neighbors, context.m)
    reach = true_reach(context, executor, report, rows)
    facts: dict[str, Any] = {"rounds": 0, "recall_history": [], "searched_exactly": False, "warnings": []}

    def measure() -> None:
        listed = np.asarray(context.rows_of("neighbors", "distances", rows, f"round{facts['rounds']}-"))
        facts["recall_history"].append(kernel.recall(listed, reach))

    while True:
        measure()
        if facts["recall_history"][-1] >= LEAST_RECALL or facts["rounds"] == MOST_ROUNDS:
            break
        facts_so_far = {**context.facts["neighbors"], "rounds": facts["rounds"]}
        inner = dataclasses.replace(context, facts={**context.facts, "neighbors": facts_so_far})
        facts["rounds"] += 1
        receipts = executor.map(Job("neighbors", refine, f"round{facts['rounds']}-"), inner, parts, report)
        if not any(receipt["facts"]["changed"] for receipt in receipts):
            break  # nor would another round find anything
    if facts["recall_history"][-1] < LEAST_RECALL and context.choices.exact_after:
        facts["rounds"] += 1
        facts["searched_exactly"] = True
        executor.map(Job("neighbors", exactly, f"round{facts['rounds']}-"), context, parts, report)
        measure()
    facts["recall"] = facts["recall_history"][-1]
    if facts["recall"] < LEAST_RECALL:
        facts["warnings"].append(
            f"recall@{n - 1} of the sample graph is {facts['recall']:.3f} and {LEAST_RECALL} was promised: "
            f"{facts['rounds']} rounds of refinement were not enough, and {context.m:,} samples are too many to "
            "compare every pair unasked; graph='exact' (--graph exact) does it, and fewer shards may do"
        )
    return store.write(folder, "refined", {}, facts)

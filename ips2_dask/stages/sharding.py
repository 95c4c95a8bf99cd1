"""The sample graph by overlapping shards: split, search each shard, merge, measure the recall, refine; renumbered.

Samples are renumbered by shard, so that neighbours mostly share a partition, and within a shard so that close samples
have close numbers. A partition is a part of a large shard, or some small ones. Parts ``order-`` hold the user's number
of each sample of a partition, which decides ties.

No process makes an array over all samples. The driver counts pairs of cells, from which limits of shards and partitions
follow; rows reach their shards through files that are sorted by shard, in two passes where there are many.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import shards, similarity
from ips2_dask.plan.choices import joined_rows
from ips2_dask.stages import graph_refinement, metric_views
from ips2_dask.stages.graph_refinement import edges_prefix, lists_prefix
from ips2_dask.stages.shard_search import RANKS, SAMPLES, SHARD, is_divided, n_listed, numbers, rank, samples, search
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import DISTINCT, ORDER, Context, part_name
from ips2_dask.typing import AnyArray

SAMPLE_PER_SHARD = 200
"""Samples, per shard, that are drawn to place the cells."""

SPLIT_BYTES = 256 << 20
"""Bytes of a batch of rows that a task sorts by shard, at most."""

MOST_BATCHES = 16
"""Batches of rows that a shard's search reads slices of, at most. Of more batches that a whole stage has, groups of
about the root of their number are sorted once more, so that a shard reads as many slices as there are groups: of 954
batches, a billion samples of 64 features, 31, while one in each batch would be a few hundred rows of a 1 MiB chunk."""


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


def cells(context: Context, part: str) -> TaskResult:
    """The centres of the cells, from the rows that all partitions have drawn: a task, as they grow with the shards."""
    del part  # there is one
    parts = ["sample-" + part_name(b) for b in range(context.n_partitions)]
    drawn = np.concatenate(list(context.store.read_many(context.folders["neighbors"], parts, "sample")))
    n_cells = min(context.choices.n_shards, len(drawn))
    return {"centers": shards.centers(drawn, n_cells, context.params.random_state)}, {}


def assign(context: Context, b: int) -> TaskResult:
    """Store the two nearest cells of each of partition b's samples, and how often each pair of cells occurs."""
    centers = np.asarray(context.read("neighbors", "cells", "centers"))
    nearest = shards.two_nearest(context.ingested(b), centers)
    return {"nearest": nearest, **_stored(shards.count_pairs(nearest))}, {}


def tally(context: Context, group: int) -> TaskResult:
    """How often each pair of cells occurs in a group of batches."""
    first, last = _parts_of_groups(context, context.facts["neighbors"]["batches"])[group]
    table = shards.PairCounts(np.empty((0, 2), np.int32), np.empty(0, np.int64))
    names = ["assigned-" + part_name(b) for b in range(first, last)]
    for some in range(0, len(names), 64):  # so many tables in memory at once
        table = shards.add_counts([table, *_tables(context, names[some : some + 64])])
    return _stored(table), {}


def _stored(table: shards.PairCounts) -> dict[str, AnyArray]:
    return {"cell_pairs": table.cells, "counts": table.counts}


def _tables(context: Context, parts: list[str]) -> list[shards.PairCounts]:
    """The stored counts of some parts."""
    store, folder = context.store, context.folders["neighbors"]
    arrays = (list(store.read_many(folder, parts, name)) for name in ("cell_pairs", "counts"))
    return [shards.PairCounts(cells, counts) for cells, counts in zip(*arrays, strict=True)]


def split(context: Context, batch: int) -> TaskResult:
    """Rows of some of the user's partitions, sorted by shard, each row once for either of its two shards."""
    first, last = context.facts["neighbors"]["batches"][batch]
    blocks = [context.ingested(b) for b in range(first, last)]
    X = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    nearest = np.concatenate(
        [context.fetch("neighbors", "assigned-" + part_name(b), "nearest") for b in range(first, last)]
    )
    cells = np.asarray(context.read("neighbors", "shards", "cell"))[nearest]
    rows, twice = np.arange(len(X)), np.flatnonzero(cells[:, 0] != cells[:, 1])
    rows, shard = np.concatenate([rows, twice]), np.concatenate([cells[:, 0], cells[twice, 1]])
    order = np.lexsort((rows, shard))
    rows = rows[order]
    offsets = np.searchsorted(shard[order], np.arange(context.choices.n_shards + 1))
    users = (context.bounds[first] + rows).astype(np.int32)
    arrays = {"rows": X[rows], "entries": np.column_stack([users, cells[rows]]), "offsets": offsets}
    if context.merged:
        parts = [DISTINCT + part_name(b) for b in range(first, last)]
        columns = [[context.fetch("ingest", part, name) for part in parts] for name in ("firsts", "copies")]
        arrays["row_entries"] = np.column_stack([np.concatenate(column)[rows] for column in columns])
    return arrays, {}


def _regroup(context: Context, number: int) -> TaskResult:
    """Rows of a range of shards from a group of batches, sorted by shard: the second pass of sorting."""
    facts, folder = context.facts["neighbors"], context.folders["neighbors"]
    group = 0
    while number >= len(facts["ranges"][group]) - 1:
        number -= len(facts["ranges"][group]) - 1
        group += 1
    low, high = facts["ranges"][group][number : number + 2]
    names = ("rows", "entries", "row_entries") if context.merged else ("rows", "entries")
    found, shard = [], []
    for batch in range(*_groups(len(facts["batches"]))[group]):
        name = "batch-" + part_name(batch)
        offsets = np.asarray(context.read("neighbors", name, "offsets"))[low : high + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        found.append([context.store.read_rows(folder, name, array, first, last) for array in names])
        shard.append(np.repeat(np.arange(low, high), np.diff(offsets)))
    shards_of = np.concatenate(shard)
    order = np.argsort(shards_of, kind="stable")  # batches ascend, and so do the user's numbers within a shard
    offsets = np.searchsorted(shards_of[order], np.arange(low, high + 1))
    columns = zip(names, zip(*found, strict=True), strict=True)
    return {name: np.concatenate(column)[order] for name, column in columns} | {"offsets": offsets}, {}


def run(context: Context, executor: Executor, report: Report) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Store the graph and X by the new partitions; returns facts, and arrays of the stage's ``whole`` part.

    Every step may find its parts stored already. What a step makes is dropped once nothing that is left reads it.
    """
    store, folder = context.store, context.folders["neighbors"]
    receipt = store.receipt(folder, "shards")
    placed = _place_shards(context, executor, report) if receipt is None else dict(receipt["facts"])
    inner = dataclasses.replace(context, facts={**context.facts, "neighbors": placed})
    receipt = store.receipt(folder, "refined")
    sharded = adopted(context, placed)
    if receipt is None or not _all_finished(sharded, receipt["facts"]["rounds"]):
        _search_shards(inner, executor, report)
        parts = range(sharded.n_partitions)
        executor.map(Job("neighbors", samples, SAMPLES), sharded, parts, report)
        executor.map(Job("neighbors", numbers, ORDER), sharded, parts, report)
        _store_queries(sharded)
        graph_refinement.true_reach(sharded, executor, report)
        receipt = graph_refinement.refined(sharded, executor, report)
    facts = {name: placed[name] for name in ("bounds", "starts")} | {"order_by_partition": True} | receipt["facts"]
    _finalise(adopted(context, facts), context.n_partitions, len(_groups(len(placed["batches"]))))
    return facts, {"bandwidths": store.read(folder, "queries", "bandwidths")}


def _place_shards(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the cells' centres, each sample's two nearest cells, and the limits of shards; returns the latter."""
    store, folder, parts = context.store, context.folders["neighbors"], range(context.n_partitions)
    if store.receipt(folder, "cells") is None:
        executor.map(Job("neighbors", sample, "sample-"), context, parts, report)
        executor.map(Job("neighbors", cells, over="cells"), context, ["cells"], report)
    executor.map(Job("neighbors", assign, "assigned-"), context, parts, report)
    batches = batches_of(context.bounds, context.n_features)
    inner = dataclasses.replace(context, facts={**context.facts, "neighbors": {"batches": batches}})
    groups = range(len(_groups(len(batches))))
    executor.map(Job("neighbors", tally, "tally-", "groups"), inner, groups, report)
    facts, arrays = _limits(context, batches, _tables(context, ["tally-" + part_name(group) for group in groups]))
    store.write(folder, "shards", arrays, facts)
    return facts


def batches_of(bounds: Sequence[int], n_features: int) -> list[list[int]]:
    """Ranges of the user's partitions, which have these limits, whose rows one task sorts by shard."""
    rows, n = max(bounds[1] - bounds[0], 1), len(bounds) - 1
    each = max(1, min(SPLIT_BYTES // max(1, 4 * rows * n_features), n // 8))
    return [[first, min(first + each, n)] for first in range(0, n, each)]


def _groups(n_batches: int) -> list[tuple[int, int]]:
    """Ranges of batches that are counted together, and sorted together where there are more than a few batches."""
    each = 1 if n_batches <= MOST_BATCHES else math.ceil(math.sqrt(n_batches))
    return [(first, min(first + each, n_batches)) for first in range(0, n_batches, each)]


def _parts_of_groups(context: Context, batches: list[list[int]]) -> list[tuple[int, int]]:
    """The user's partitions of each group of batches."""
    return [(batches[first][0], batches[last - 1][1]) for first, last in _groups(len(batches))]


def _limits(
    context: Context, batches: list[list[int]], tables: list[shards.PairCounts]
) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Limits of shards, partitions and ranges of shards, and which shards have members whose nearest cell another is.

    ``tables`` count the pairs of nearest cells of each group of batches.
    """
    n_shards, centers = context.choices.n_shards, np.asarray(context.read("neighbors", "cells", "centers"))
    cell = shards.join_small(shards.add_counts(tables), centers, n_listed(context))
    tables = [shards.add_counts([shards.PairCounts(cell[table.cells], table.counts)]) for table in tables]
    whole = shards.add_counts(tables)
    sizes = np.bincount(whole.cells[:, 0], whole.counts, n_shards).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    cross = whole.cells[whole.cells[:, 0] != whole.cells[:, 1]]
    cross = cross[np.lexsort((cross[:, 0], cross[:, 1]))]
    facts = {
        "bounds": partition_bounds(starts, max(context.bounds[1] - context.bounds[0], 1)),
        "starts": starts,
        "batches": batches,
        "ranges": [] if len(batches) <= MOST_BATCHES else [_ranges(table, n_shards, batches) for table in tables],
        "divided": is_divided(context, int(shards.members_of(whole, n_shards).max())),
    }
    return facts, {
        "cell": cell,
        "sources": np.ascontiguousarray(cross[:, 0]),
        "source_offsets": np.searchsorted(cross[:, 1], np.arange(n_shards + 1)),
    }


def partition_bounds(starts: Sequence[int], rows: int) -> list[int]:
    """Limits of partitions of at most ``rows`` samples: equal parts of a shard, or as many whole ones as fit.

    ``starts``: first sample of each shard, and the number of samples.
    """
    joined = joined_rows(starts[-1], rows)
    bounds = [0]
    for low, high in itertools.pairwise(starts):
        if bounds[-1] < low and high - bounds[-1] > joined:
            bounds.append(low)
        if high - low > rows:
            count = -(-(high - low) // rows)
            bounds += [low + (high - low) * (t + 1) // count for t in range(count)]
    return [*bounds, starts[-1]] if bounds[-1] < starts[-1] else bounds


def _ranges(table: shards.PairCounts, n_shards: int, batches: list[list[int]]) -> list[int]:
    """Limits of ranges of shards with about equal numbers of a group's rows, as many as a group has batches."""
    ends = np.cumsum(shards.members_of(table, n_shards))
    count = len(range(*_groups(len(batches))[0]))
    inner = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
    return [0, *np.unique(inner[(inner > 0) & (inner < n_shards)]).tolist(), n_shards]


def _search_shards(context: Context, executor: Executor, report: Report) -> None:
    """Sort rows by shard, search each shard, and give its members their numbers."""
    store, folder, facts = context.store, context.folders["neighbors"], context.facts["neighbors"]
    cells, batches = range(len(facts["starts"]) - 1), range(len(facts["batches"]))
    runs = range(sum(len(limits) - 1 for limits in facts["ranges"]))
    sorted_parts = ["batch-" + part_name(batch) for batch in batches]
    run_parts = ["run-" + part_name(number) for number in runs]
    if not _stored_all(context, [SHARD + part_name(s) for s in cells]):  # else what they read may be gone
        if not runs or not _stored_all(context, run_parts):
            executor.map(Job("neighbors", assign, "assigned-"), context, range(context.n_partitions), report)
            executor.map(Job("neighbors", split, "batch-", "batches"), context, batches, report)
            executor.map(Job("neighbors", _regroup, "run-", "runs"), context, runs, report)
        if runs:
            store.drop_many(folder, sorted_parts)
        executor.map(Job("neighbors", search, SHARD, "shards"), context, cells, report)
    store.drop_many(folder, [*sorted_parts, *run_parts])
    executor.map(Job("neighbors", rank, RANKS, "shards"), context, cells, report)


def _stored_all(context: Context, names: list[str]) -> bool:
    return len(present(context.store, context.folders["neighbors"], names)) == len(names)


def _store_queries(context: Context) -> None:
    """Store X of the recall's rows and the bandwidths, from the rows that the searches of shards have put aside."""
    store, folder = context.store, context.folders["neighbors"]
    if store.receipt(folder, "queries") is not None:
        return
    names = [SHARD + part_name(s) for s in range(len(context.facts["neighbors"]["starts"]) - 1)]
    queries, drawn = (np.concatenate(list(store.read_many(folder, names, name))) for name in ("queries", "drawn"))
    bandwidths = similarity.bandwidths(metric_views.lengths_among(context, drawn))
    store.write(folder, "queries", {"rows": queries, "bandwidths": np.array(bandwidths)}, {})


def _all_finished(context: Context, rounds: int) -> bool:
    """Whether each partition has its samples and its last lists, by the final name or by that of their round."""
    parts = [part_name(b) for b in range(context.n_partitions)]
    names = [prefix + part for part in parts for prefix in ("", lists_prefix(rounds), SAMPLES, ORDER)]
    there = set(present(context.store, context.folders["neighbors"], [*names, "queries"]))
    return "queries" in there and all(
        {SAMPLES + part, ORDER + part} <= there and not there.isdisjoint((part, lists_prefix(rounds) + part))
        for part in parts
    )


def _finalise(context: Context, n_ingested: int, n_groups: int) -> None:
    """Rename the lists of the last round to the final names, and remove all intermediate parts."""
    facts, store, folder = context.facts["neighbors"], context.store, context.folders["neighbors"]
    rounds, parts = facts["rounds"], [part_name(b) for b in range(context.n_partitions)]
    store.rename_many(folder, {lists_prefix(rounds) + part: part for part in parts})
    earlier = [lists_prefix(before) + part for before in range(rounds) for part in parts]
    edges = [edges_prefix(before) + part for before in range(rounds) for part in parts]
    cells = [prefix + part_name(s) for s in range(len(facts["starts"]) - 1) for prefix in (SHARD, RANKS)]
    counted = [prefix + part_name(b) for b in range(n_ingested) for prefix in ("sample-", "assigned-")]
    tallies = ["tally-" + part_name(group) for group in range(n_groups)]
    named = [f"named{before}" for before in range(rounds)]
    store.drop_many(folder, [*earlier, *edges, *named, *cells, *counted, *tallies])

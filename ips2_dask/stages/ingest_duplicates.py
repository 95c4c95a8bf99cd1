"""Merging of equal rows, the end of the ingest: digests of rows are compared by ranges, and the first row stays.

Where no two rows are equal, and none is left out for a missing value, the parts stay as they are. Otherwise the
samples are the rows that no earlier one equals, in their order, cut into partitions of the size of the input's.

Each partition finds the rows that are equal within it; of those that stay, its heads, a range of digests finds the ones
that an earlier partition has too. Each partition then knows which of its rows are samples, so that their counts give
every sample its number, and ranges tell it the numbers of the others. No process sees more than a partition or a range.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import duplicates
from ips2_dask.stages import ingest_missing
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import DISTINCT, PLACE, Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray

HEADS, EQUAL, OWN, NUMBERS = "heads-", "equal-", "own-", "numbers-"
"""Prefixes of the parts that are dropped: the heads of each partition, and those of each range that an earlier
partition has too; the samples of each partition, and the numbers of what is equal to such in each range."""


def _heads(context: Context, b: int) -> TaskResult:
    """Partition b's different rows that stay, by their digests, and the first row that equals each within it."""
    keys = duplicates.digests(np.asarray(context.ingested(b)))
    staying = np.delete(np.arange(len(keys)), _left_out(context, b))
    found = duplicates.heads(keys[staying])
    head = np.full(len(keys), -1, np.int32)
    head[staying] = staying[found.head]
    n = duplicates.n_ranges(context.m)
    limits = np.array([(r << 64) // n for r in range(n)], np.uint64)
    offsets = np.append(np.searchsorted(found.keys[:, 0], limits), len(found.keys))
    arrays: dict[str, AnyArray] = {
        "digests": found.keys,
        "rows": context.bounds[b] + staying[found.places],
        "rows_of_heads": found.counts,
        "offsets": offsets.astype(np.int64),
        "head": head,
    }
    return arrays, {"equal": len(staying) - len(found.keys)}


def _left_out(context: Context, b: int) -> AnyArray:
    """Places of partition b's rows that are left out for a missing value, ascending: (n,)."""
    if context.facts["ingest"]["missing"] != "drop":
        return np.empty(0, np.int64)
    rows = np.asarray(context.read("ingest", ingest_missing.PREFIX + part_name(b), "incomplete"))
    return rows - context.bounds[b]


def compare(context: Context, r: int) -> TaskResult:
    """Heads of a range of digests that equal an earlier one, and how many rows they add to each of these."""
    found = [_read_range(context, HEADS, b, r, "digests", "rows", "rows_of_heads") for b in range(context.n_partitions)]
    keys, rows, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    found.clear()
    equal = duplicates.repeats(keys, rows)
    order = np.argsort(rows)
    counts = counts[order[np.searchsorted(rows, equal.rows, sorter=order)]]
    repeated, place = np.unique(equal.firsts, return_inverse=True)
    arrays: dict[str, AnyArray] = {
        "repeats": equal.rows,
        "firsts": equal.firsts,
        "repeat_cuts": np.searchsorted(equal.rows, context.bounds),
        "repeated": repeated,
        "repeated_cuts": np.searchsorted(repeated, context.bounds),
        "added": np.bincount(place, counts, len(repeated)).astype(np.int32),
    }
    return arrays, {"equal": len(equal.rows)}


def _read_range(context: Context, prefix: str, b: int, r: int, *names: str) -> list[AnyArray]:
    """Rows of range r of arrays of partition b that are in the order of its heads."""
    low, high = (int(n) for n in np.asarray(context.read("ingest", HEADS + part_name(b), "offsets"))[r : r + 2])
    folder, part = context.folders["ingest"], prefix + part_name(b)
    return [context.store.read_rows(folder, part, name, low, high) for name in names]


def _of_ranges(context: Context, b: int, cuts: str, *arrays: tuple[str, str]) -> list[AnyArray]:
    """What all ranges have found about rows of partition b: arrays (prefix, name), which ``cuts`` cuts by partition."""
    store, folder = context.store, context.folders["ingest"]
    found: list[list[AnyArray]] = [[np.empty(0, np.int64)] for _ in arrays]
    for r in _ranges(context):
        low, high = (int(n) for n in np.asarray(context.read("ingest", EQUAL + part_name(r), cuts))[b : b + 2])
        if low < high:
            for column, (prefix, name) in zip(found, arrays, strict=True):
                column.append(store.read_rows(folder, prefix + part_name(r), name, low, high))
    return [np.concatenate(column) for column in found]


def _head(context: Context, b: int) -> AnyArray:
    """The first row within partition b that equals each of its rows, -1 for one that is left out: (rows,) int32."""
    if context.params.merges_rows:
        return np.asarray(context.read("ingest", HEADS + part_name(b), "head"))
    low, high = context.span(b)
    head = np.arange(high - low, dtype=np.int32)
    head[_left_out(context, b)] = -1
    return head


def _ranges(context: Context) -> range:
    return range(duplicates.n_ranges(context.m) if context.params.merges_rows else 0)


def own(context: Context, b: int) -> TaskResult:
    """The rows of partition b that are samples, how many rows each stands for, and their places among these samples."""
    low, high = context.span(b)
    head = _head(context, b)
    (repeats,) = _of_ranges(context, b, "repeat_cuts", (EQUAL, "repeats"))
    repeated, added = _of_ranges(context, b, "repeated_cuts", (EQUAL, "repeated"), (EQUAL, "added"))
    counts = np.bincount(head[head >= 0], minlength=high - low)
    counts[repeated - low] += added
    is_sample = head == np.arange(high - low)
    is_sample[repeats - low] = False
    firsts = np.flatnonzero(is_sample)
    arrays: dict[str, AnyArray] = {"firsts": low + firsts, "copies": counts[firsts].astype(np.int32)}
    if context.params.merges_rows:
        rows = np.asarray(context.read("ingest", HEADS + part_name(b), "rows")) - low
        arrays["places"] = np.where(is_sample, np.cumsum(is_sample) - 1, -1)[rows].astype(np.int32)
    return arrays, {"distinct": len(firsts)}


def numbers(context: Context, r: int) -> TaskResult:
    """The sample that each of the repeats of a range is."""
    repeated, firsts, cuts = (
        np.asarray(context.read("ingest", EQUAL + part_name(r), name))
        for name in ("repeated", "firsts", "repeated_cuts")
    )
    number = np.empty(len(repeated), np.int32)
    for b in np.flatnonzero(np.diff(cuts)).tolist():
        (rows,), (places,) = _read_range(context, HEADS, b, r, "rows"), _read_range(context, OWN, b, r, "places")
        order, wanted = np.argsort(rows), repeated[cuts[b] : cuts[b + 1]]
        at = order[np.searchsorted(rows, wanted, sorter=order)]
        number[cuts[b] : cuts[b + 1]] = context.facts["ingest"]["starts"][b] + places[at]
    return {"numbers": number[np.searchsorted(repeated, firsts)]}, {}


def places(context: Context, b: int) -> TaskResult:
    """The sample that each row of partition b is, and of its own samples the rows and how many rows each stands for."""
    firsts, copies = (np.asarray(context.read("ingest", OWN + part_name(b), name)) for name in ("firsts", "copies"))
    low, head = context.bounds[b], _head(context, b)
    number = np.full(len(head), -1, np.int32)
    number[firsts - low] = context.facts["ingest"]["starts"][b] + np.arange(len(firsts))
    repeats, numbered = _of_ranges(context, b, "repeat_cuts", (EQUAL, "repeats"), (NUMBERS, "numbers"))
    number[repeats - low] = numbered
    return {"place": np.where(head < 0, -1, number[head]).astype(np.int32), "firsts": firsts, "copies": copies}, {}


def distinct(context: Context, t: int) -> TaskResult:
    """X of partition t of the distinct samples, their rows, and how many rows each stands for.

    Of given distances it has the columns of those samples.
    """
    low, high = context.facts["ingest"]["distinct_bounds"][t : t + 2]
    arrays = {name: _of_samples(context, name, low, high) for name in ("firsts", "copies")}
    X = np.asarray(context.rows_of("ingest", "samples", arrays["firsts"]))
    if context.metric.precomputed:
        X = X[:, _of_samples(context, "firsts", 0, context.facts["ingest"]["distinct_bounds"][-1])]
    return {"samples": np.ascontiguousarray(X), **arrays}, {}


def _of_samples(context: Context, name: str, low: int, high: int) -> AnyArray:
    """``firsts`` or ``copies`` of the distinct samples low .. high - 1, from the partitions of their rows."""
    starts = np.asarray(context.read("ingest", "distinct", "starts"))
    return context.rows_of("ingest", name, np.arange(low, high), PLACE, bounds=starts.tolist())


def merge(context: Context, executor: Executor, report: Report, n_dropped: int) -> dict[str, Any]:
    """Make one sample of equal rows if that is asked for, and none of the ``n_dropped`` rows that are left out.

    Returns the bounds of the new partitions, or nothing where every row is a sample of its own.
    """
    store, folder, parts = context.store, context.folders["ingest"], [part_name(b) for b in range(context.n_partitions)]
    receipt = store.receipt(folder, "distinct")
    if receipt is None or not _is_complete(context, receipt):
        store.drop(folder, "distinct")  # of which a partition was lost
        receipt = _numbered(context, executor, report, n_dropped)
    names = [prefix + part for prefix in (HEADS, OWN) for part in parts]
    names += [prefix + part_name(r) for prefix in (EQUAL, NUMBERS) for r in _ranges(context)]
    store.drop_many(folder, names)
    m = int(receipt["facts"]["distinct"])
    if m == context.m:
        return {}
    bounds = [*range(0, m, context.bounds[1]), m]
    inner = _told(context, distinct_bounds=bounds)
    executor.map(Job("ingest", distinct, DISTINCT, "distinct"), inner, range(len(bounds) - 1), report)
    store.drop_many(folder, parts)
    return {"bounds": bounds, "row_bounds": list(context.bounds)}


def _told(context: Context, **facts: object) -> Context:
    """The context of tasks that are told more facts of this stage."""
    return dataclasses.replace(context, facts={**context.facts, "ingest": {**context.facts["ingest"], **facts}})


def _is_complete(context: Context, receipt: Receipt) -> bool:
    """Whether all is stored that is to stay with the part ``distinct``."""
    if int(receipt["facts"]["distinct"]) == context.m:
        return True
    names = [PLACE + part_name(b) for b in range(context.n_partitions)]
    return len(present(context.store, context.folders["ingest"], names)) == len(names)


def _numbered(context: Context, executor: Executor, report: Report, n_dropped: int) -> Receipt:
    """Give each sample its number; returns the receipt of the part ``distinct``, which says how many there are."""
    store, folder, parts, n_equal = context.store, context.folders["ingest"], range(context.n_partitions), 0
    if context.params.merges_rows:
        for job, items in (
            (Job("ingest", _heads, HEADS), parts),
            (Job("ingest", compare, EQUAL, "ranges"), _ranges(context)),
        ):
            n_equal += sum(int(receipt["facts"]["equal"]) for receipt in executor.map(job, context, items, report))
    m = context.m - n_equal - n_dropped
    if m == context.m:
        return store.write(folder, "distinct", {}, {"distinct": m})
    receipts = executor.map(Job("ingest", own, OWN), context, parts, report)
    starts = np.concatenate([[0], np.cumsum([int(receipt["facts"]["distinct"]) for receipt in receipts])])
    inner = _told(context, starts=starts.tolist())
    executor.map(Job("ingest", numbers, NUMBERS, "ranges"), inner, _ranges(context), report)
    executor.map(Job("ingest", places, PLACE), inner, parts, report)
    return store.write(folder, "distinct", {"starts": starts.astype(np.int64)}, {"distinct": m})

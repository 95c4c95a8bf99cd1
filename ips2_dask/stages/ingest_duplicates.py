"""Merging of equal rows, the end of the ingest: digests of rows are compared by ranges, and the first row stays.

Where no two rows are equal, and none is left out for a missing value, the parts stay as they are. Otherwise the
samples are the rows that no earlier one equals, in their order, cut into partitions of the size of the input's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import duplicates
from ips2_dask.stages import ingest_missing
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context, part_name


def digests(context: Context, b: int) -> TaskResult:
    """Digests of partition b's rows, sorted, and where each range of them begins."""
    keys = duplicates.digests(np.asarray(context.ingested(b)))
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    if context.facts["ingest"]["missing"] == "drop":
        left_out = (
            np.asarray(context.read("ingest", ingest_missing.PREFIX + part_name(b), "incomplete")) - context.bounds[b]
        )
        order = order[~np.isin(order, left_out)]
    keys = keys[order]
    n = duplicates.n_ranges(context.m)
    limits = np.array([(r << 64) // n for r in range(n)], np.uint64)
    offsets = np.append(np.searchsorted(keys[:, 0], limits), len(keys))
    return {"digests": keys, "rows": context.bounds[b] + order, "offsets": offsets.astype(np.int64)}, {}


def compare(context: Context, r: int) -> TaskResult:
    """Rows of a range of digests that equal an earlier row."""
    store, folder = context.store, context.folders["ingest"]
    keys, rows = [], []
    for b in range(context.n_partitions):
        part = "digests-" + part_name(b)
        low, high = (int(n) for n in np.asarray(context.read("ingest", part, "offsets"))[r : r + 2])
        keys.append(store.read_rows(folder, part, "digests", low, high))
        rows.append(store.read_rows(folder, part, "rows", low, high))
    arrays = np.concatenate(keys), np.concatenate(rows)
    keys.clear()
    rows.clear()
    equal = duplicates.repeats(*arrays)
    return {"repeats": equal.rows, "firsts": equal.firsts}, {}


def distinct(context: Context, t: int) -> TaskResult:
    """X of partition t of the distinct samples; of given distances, the columns of those samples."""
    low, high = context.facts["ingest"]["distinct_bounds"][t : t + 2]
    firsts = np.asarray(context.read("ingest", "distinct", "firsts"))
    X = np.asarray(context.rows_of("ingest", "samples", firsts[low:high]))
    if context.metric.precomputed:
        X = X[:, firsts]
    return {"samples": np.ascontiguousarray(X)}, {}


def merge(context: Context, executor: Executor, report: Report, dropped: AnyArray) -> dict[str, Any]:
    """Make one sample of equal rows if that is asked for, and none of the rows that are left out, ``dropped``.

    Returns the bounds of the new partitions, or nothing where every row is a sample of its own.
    """
    store, folder, parts = context.store, context.folders["ingest"], range(context.n_partitions)
    ranges = range(duplicates.n_ranges(context.m) if context.params.merges_rows else 0)
    receipt = store.receipt(folder, "distinct")
    if receipt is None:
        repeats, firsts = np.empty(0, np.int64), np.empty(0, np.int64)
        if context.params.merges_rows:
            executor.map(Job("ingest", digests, "digests-"), context, parts, report)
            executor.map(Job("ingest", compare, "ranges-", "ranges"), context, ranges, report)
            repeats, firsts = (
                np.concatenate([store.read(folder, "ranges-" + part_name(r), name) for r in ranges])
                for name in ("repeats", "firsts")
            )
        m = context.m - len(repeats) - len(dropped)
        arrays = _numbered(context.m, repeats, firsts, dropped) if m < context.m else {}
        receipt = store.write(folder, "distinct", arrays, {"distinct": m})
    names = [*(f"digests-{part_name(b)}" for b in parts), *(f"ranges-{part_name(r)}" for r in ranges)]
    store.drop_many(folder, names)
    m = int(receipt["facts"]["distinct"])
    if m == context.m:
        return {}
    bounds = [*range(0, m, context.bounds[1]), m]
    facts = {**context.facts["ingest"], "distinct_bounds": bounds}
    inner = dataclasses.replace(context, facts={**context.facts, "ingest": facts})
    executor.map(Job("ingest", distinct, "distinct-", "distinct"), inner, range(len(bounds) - 1), report)
    store.drop_many(folder, [part_name(b) for b in parts])
    return {"bounds": bounds}


def _numbered(m: int, repeats: AnyArray, firsts: AnyArray, dropped: AnyArray) -> dict[str, AnyArray]:
    """The first row of each sample, and the sample of each row, -1 for those that are left out."""
    own = np.arange(m)
    own[repeats] = firsts
    staying = np.ones(m, np.bool_)
    staying[dropped] = False
    first_rows, sample = np.unique(own[staying], return_inverse=True)
    place = np.full(m, -1, np.int32)
    place[staying] = sample
    return {"firsts": first_rows, "place": place}

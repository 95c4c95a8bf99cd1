"""Missing values: where they are, the medians that take their place, and which rows are left out for them.

It is the start of the ingest, on the rows as they were staged: a pass that finds the gaps, then, for medians, one round
of counts after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import ingest
from ips2_dask.readers import check_block
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray

PREFIX = "gaps-"


def staged(context: Context, b: int) -> TaskResult:
    """Rows of partition b of a source that any process can read, kept as binary for the passes over them."""
    return {"raw": np.ascontiguousarray(context.source.read(*context.span(b)))}, {}


def raw_block(context: Context, b: int) -> AnyArray:
    """Rows of partition b as they were staged."""
    return context.store.read(context.folders["ingest"], "raw-" + part_name(b), "raw")


def gaps(context: Context, b: int) -> TaskResult:
    """Which rows of partition b lack a value, and how many of each column do; infinite values are refused."""
    block, source = raw_block(context, b), context.facts["ingest"]["source"]
    check_block(block, context.bounds[b], source["name"], source["feature_names"], gaps=True)
    missing = np.isnan(block)
    rows = context.bounds[b] + np.flatnonzero(missing.any(axis=1))
    return {"incomplete": rows.astype(np.int64), "missing": missing.sum(axis=0, dtype=np.int64)}, {}


def counts(context: Context, b: int) -> TaskResult:
    """How often the next digits occur in the columns of partition b."""
    facts = context.facts["ingest"]
    X = raw_block(context, b)[:, facts["numeric"]].astype(np.float64)
    return {"counts": ingest.digit_counts(X, np.array(facts["prefixes"], np.uint64), facts["step"])}, {}


def n_incomplete(context: Context) -> int:
    """How many rows of the input lack a value."""
    return sum(len(rows) for rows in _of_partitions(context, PREFIX, "incomplete"))


def first_complete(context: Context) -> int:
    """The first row of the input that lacks nothing; there is one."""
    for b, rows in enumerate(_of_partitions(context, PREFIX, "incomplete")):
        low, high = context.span(b)
        if len(rows) < high - low:
            return int(np.setdiff1d(np.arange(low, high), rows)[0])
    raise AssertionError


def missing_by_column(context: Context) -> AnyArray:
    """How many values each column lacks: (f,) int64."""
    total = np.zeros(context.n_features, np.int64)
    for missing in _of_partitions(context, PREFIX, "missing"):
        total += missing
    return total


def _of_partitions(context: Context, prefix: str, name: str) -> Iterator[AnyArray]:
    """An array of the part of each partition, in their order."""
    names = [prefix + part_name(b) for b in range(context.n_partitions)]
    return context.store.read_many(context.folders["ingest"], names, name)


def find(context: Context, executor: Executor, report: Report) -> None:
    """Find the gaps of all rows."""
    executor.map(Job("ingest", gaps, PREFIX), context, range(context.n_partitions), report)


def keep_medians(context: Context, numeric: list[int], executor: Executor, report: Report) -> None:
    """Store the median of each column that holds numbers, 0 for those of categories, unless they are stored already.

    Raises `BadInput` where a column has no value at all.
    """
    store, folder, parts = context.store, context.folders["ingest"], range(context.n_partitions)
    if store.receipt(folder, "medians") is not None:
        return
    present = context.m - missing_by_column(context)[numeric]
    if (present == 0).any():
        column = numeric[int(np.argmin(present))]
        source = context.facts["ingest"]["source"]
        named = f" ({source['feature_names'][column]!r})" if source["feature_names"] else ""
        found, allowed = f"no value in column {column}{named}", "a value in some rows of each column"
        otherwise = "there would be no median to take"
        raise BadInput(source["name"], found, allowed, otherwise, "drop the column (drop_columns, --drop-columns)")
    search = ingest.Medians(present)
    for step in range(len(ingest.MEDIAN_SHIFTS) if numeric else 0):
        prefix = f"counts{step}-"
        round_facts = {"numeric": numeric, "step": step, "prefixes": search.prefixes.tolist()}
        inner = dataclasses.replace(context, facts={"ingest": {**context.facts["ingest"], **round_facts}})
        executor.map(Job("ingest", counts, prefix), inner, parts, report)
        total = np.zeros((2, len(numeric), 1 << ingest.MEDIAN_BITS), np.int64)
        for counted in _of_partitions(context, prefix, "counts"):
            total += counted
        search.narrow(total, step)
    values = np.zeros(context.n_features)
    values[numeric] = search.values() if numeric else ()
    store.write(folder, "medians", {"medians": values}, {})
    names = [f"counts{step}-{part_name(b)}" for step in range(len(ingest.MEDIAN_SHIFTS)) for b in parts]
    store.drop_many(folder, names)


def filled(block: AnyArray, medians: AnyArray) -> AnyArray:
    """Rows with the medians where a value is missing."""
    missing = np.isnan(block)
    return np.where(missing, medians, block) if missing.any() else block

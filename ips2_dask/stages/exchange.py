"""What partitions send one another: parts sorted by sample, cut by the partition of each sample, read by its owner.

Every partition has something about samples of others, such as the edges that lead to them. One job stores it, sorted
by sample; another reads, for each partition, the slices that are about its own samples. So no process sees more than
what a partition sends or receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.store.base import present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Facts
from ips2_dask.typing import AnyArray

SOURCES = "sources"
"""Name, after the prefix of the parts that are sent, of the part that says who sends to whom."""


def cuts(context: Context, samples: NDArray[np.integer]) -> Facts:
    """The facts of a part that is sent: where each partition's samples are among ascending ``samples``.

    Returns dict: ``cuts``: first row, and one past the last, by the partition's number as text; partitions without
    rows are left out.
    """
    ends = np.searchsorted(samples, context.bounds)
    return {"cuts": {str(b): ends[b : b + 2].tolist() for b in np.flatnonzero(np.diff(ends)).tolist()}}


def exchange(context: Context, executor: Executor, report: Report, send: Job, receive: Job) -> None:
    """Run a job whose parts are sent, then the one that receives them; drop what was sent.

    ``send``: each part's rows are sorted by sample, and its facts are those of `cuts`; ``receive``: reads with
    `received`.
    """
    parts = range(context.n_partitions)
    missing = without_part(context, receive)
    if missing:
        run_sending(context, executor, report, send)
        executor.map(receive, context, missing, report)
    drop_parts(context, send.stage, (f"{send.prefix}{name}" for name in (*map(part_name, parts), SOURCES)))


def without_part(context: Context, job: Job) -> list[int]:
    """The partitions whose part of a job is not stored yet."""
    names = {job.prefix + part_name(b): b for b in range(context.n_partitions)}
    for name in present(context.store, context.folders[job.stage], names):
        del names[name]
    return list(names.values())


def drop_parts(context: Context, stage: str, names: Iterable[str]) -> None:
    """Drop those of some parts that are there."""
    context.store.drop_many(context.folders[stage], list(names))


def run_sending(context: Context, executor: Executor, report: Report, send: Job) -> None:
    """Run a job whose parts are sent, and store who sends to each partition.

    Where its rows begin (partitions + 1,), and rows (source, low, high), ascending.
    """
    receipts = executor.map(send, context, range(context.n_partitions), report)
    rows = [
        (int(target), source, low, high)
        for source, receipt in enumerate(receipts)
        for target, (low, high) in receipt["facts"]["cuts"].items()
    ]
    table = np.array(sorted(rows), np.int32).reshape(-1, 4)
    start = np.searchsorted(table[:, 0], np.arange(len(receipts) + 1))
    arrays: dict[str, AnyArray] = {"source_start": start, "sources": table[:, 1:]}
    if context.receipt(send.stage, send.prefix + SOURCES) is None:
        context.store.write(context.folders[send.stage], send.prefix + SOURCES, arrays, {})


def senders(context: Context, stage: str, prefix: str, b: int) -> list[list[int]]:
    """Who sends to partition b, ascending, and which rows: first, and one past the last."""
    start, sources = (np.asarray(context.read(stage, prefix + SOURCES, name)) for name in ("source_start", "sources"))
    found: list[list[int]] = sources[start[b] : start[b + 1]].tolist()
    return found


def received(context: Context, stage: str, prefix: str, b: int, *names: str) -> Iterator[list[AnyArray]]:
    """What was sent to partition b, one sender after another: rows of each of the named arrays.

    ``stage``, ``prefix``: of the parts that were sent; ``*names``: arrays of these parts, which are read by rows.
    """
    folder = context.folders[stage]
    for source, low, high in senders(context, stage, prefix, b):
        yield [context.store.read_rows(folder, prefix + part_name(source), name, low, high) for name in names]

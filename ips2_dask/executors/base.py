"""Executors: what runs the tasks of a stage. The interface, and the executor that is this process.

An executor runs tasks in two ways. `Executor.map` runs a job, one stage's work on its partitions or other items, whose
results are stored and whose receipts come back. `Executor.submit` starts single tasks on values and on handles of other
tasks' results, which stay with the workers: the solver's products on chunks of block vectors.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.process_memory import peak_rss
from ips2_dask.kernels.parallel import hold_openmp, threads
from ips2_dask.readers import Source
from ips2_dask.readers.dask_collections import DaskTable
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Facts, Receipt
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from dask.delayed import Delayed

ItemKey = int | str
"""The number or the name of an item of a job."""

PartFunction = Callable[..., TaskResult]
"""A task of a job: from a context, an item and, while a source is staged, its rows, to a part's arrays and facts."""

Handle = Any
"""The result of a submitted task: a future of Dask, or the value itself where the executor is this process."""


class Report(Protocol):
    """Receives the progress of a stage while it runs."""

    def __call__(self, done: int, total: int) -> None:
        """Receive that ``done`` of ``total`` tasks are done."""
        ...

    def note(self, facts: Mapping[str, object]) -> None:
        """Receive intermediate numbers of the stage, such as the solver's residual."""
        ...


MOST_AT_ONCE = 4
"""Tasks that one process works on at a time without a cluster; the plan counts the memory of as many partitions."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One stage's work on its partitions, or on items of another kind."""

    stage: str  # whose folder gets the parts
    function: PartFunction  # computes the part of one item
    prefix: str = ""  # the beginning of the parts' names
    over: str = "partitions"  # the kind of the items


def compute_part(item: ItemKey, job: Job, context: Context, *rows: AnyArray) -> Receipt:
    """Run one task and store its result, unless its part is stored already; returns the part's receipt."""
    name = job.prefix + part_name(item)
    folder = context.folders[job.stage]
    receipt = context.store.receipt(folder, name) if context.there is None or name in context.there else None
    if receipt is not None:
        return receipt
    with threads(context.threads):
        arrays, facts = job.function(context, item, *rows)
        if context.store.location is not None:  # in memory there is one process, and who started it looks
            facts = {**facts, "peak_rss_bytes": peak_rss()}
        return context.store.write(folder, name, arrays, facts)


class Executor(abc.ABC):
    """Runs jobs over items, and single tasks whose results stay where they are made.

    A subclass for one process has to implement `map` alone: the other methods are those of an executor that runs a
    submitted task at once, in this process.
    """

    @property
    def n_workers(self) -> int:
        """Processes that share the work."""
        return 1

    @abc.abstractmethod
    def map(self, job: Job, context: Context, items: Sequence[ItemKey], report: Report) -> list[Receipt]:
        """Run a job; returns the receipts of its parts in the order of ``items``.

        ``report(done, total)`` is called as the parts are finished.
        """

    def share(self, value: object) -> Handle:
        """A handle of a value that many submitted tasks take as an argument, such as the context."""
        return value

    def submit(self, name: str, function: Callable[..., object], *arguments: object) -> Handle:
        """Start one task; returns the handle of its result, which is kept for the tasks that take it.

        ``name``: the kind of the task, a hyphen and a number; ``function``: it does not change its arguments;
        ``*arguments``: values and handles, also in lists.
        """
        del name
        return function(*arguments)

    def each(
        self, name: str, function: Callable[..., object], *lists: Sequence[object], also: Sequence[object] = ()
    ) -> list[Handle]:
        """Start one task for each item of some lists of one length, which gets ``also`` after its items."""
        with self.batch():
            return [
                self.submit(f"{name}-{number}", function, *items, *also)
                for number, items in enumerate(zip(*lists, strict=True))
            ]

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Send the tasks submitted in the ``with`` block together at its end, which costs less for short tasks."""
        return contextlib.nullcontext()

    def results(self, handles: Sequence[Handle]) -> list[Any]:
        """Wait for tasks; returns their results in this process."""
        return list(handles)

    def free_memory(self) -> None:
        """Have every process drop its cache of arrays, and return the memory it reserved for more of them."""
        clear_cache()


class BlockExecutor(Executor):
    """An executor whose workers can compute the rows of a lazy source themselves."""

    @abc.abstractmethod
    def map_blocks(
        self, job: Job, context: Context, blocks: Sequence[Delayed], report: Report, wanted: Sequence[int]
    ) -> None:
        """Run a job on the rows of the ``wanted`` partitions; ``blocks[b]`` is a delayed value of partition b's."""


class SerialExecutor(Executor):
    """Runs tasks in this process: those of a job side by side on a few threads, each with its share of the cores."""

    def map(self, job: Job, context: Context, items: Sequence[ItemKey], report: Report) -> list[Receipt]:
        """As of `Executor`."""
        context = dataclasses.replace(context, there=context.store.listed(context.folders[job.stage]))
        report(0, len(items))
        side_by_side = min(context.threads, MOST_AT_ONCE, len(items))
        if side_by_side <= 1:
            receipts = []
            for done, item in enumerate(items):
                receipts.append(compute_part(item, job, context))
                report(done + 1, len(items))
            return receipts
        inner = dataclasses.replace(context, threads=context.threads // side_by_side)
        with threads(context.threads), ThreadPoolExecutor(side_by_side, initializer=hold_openmp) as pool:
            futures = [pool.submit(contextvars.copy_context().run, compute_part, item, job, inner) for item in items]
            try:
                for done, future in enumerate(concurrent.futures.as_completed(futures)):
                    future.result()
                    report(done + 1, len(items))
            except BaseException as error:  # an interrupt as well: tasks that have begun end, and no other one begins
                pool.shutdown(cancel_futures=True)
                for future in futures if isinstance(error, Exception) else ():
                    if not future.cancelled():
                        future.result()  # raises the error of the first item that has one, whichever was faster
                raise
            return [future.result() for future in futures]


def stage_source(
    executor: Executor, job: Job, context: Context, source: Source, report: Report, wanted: Sequence[int]
) -> None:
    """Run a job on the rows of the ``wanted`` partitions of a source that workers cannot read from any row on.

    The workers compute the rows of a lazy source; this process reads any other source in one pass.
    """
    if isinstance(executor, BlockExecutor) and isinstance(source, DaskTable):
        executor.map_blocks(job, context, source.delayed_blocks(context.bounds), report, wanted)
        return
    skipped = set(range(context.n_partitions)) - set(wanted)
    for b, block in enumerate(source.blocks(context.bounds[1])):
        if b not in skipped:
            compute_part(b, job, context, block)
        report(b + 1, context.n_partitions)


# ---- what partitions send one another
#
# Every partition has something about samples of others, such as the edges that lead to them. One job stores it, sorted
# by sample and cut by the partition of each sample; another reads, for each partition, the slices about its own
# samples. So no process sees more than what a partition sends or receives.

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
    names = [send.prefix + name for name in (*map(part_name, parts), SOURCES)]
    context.store.drop_many(context.folders[send.stage], names)


def without_part(context: Context, job: Job) -> list[int]:
    """The partitions whose part of a job is not stored yet."""
    names = {job.prefix + part_name(b): b for b in range(context.n_partitions)}
    for name in present(context.store, context.folders[job.stage], names):
        del names[name]
    return list(names.values())


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
    arrays: dict[str, AnyArray] = {"source_offsets": start, "sources": table[:, 1:]}
    if context.receipt(send.stage, send.prefix + SOURCES) is None:
        context.store.write(context.folders[send.stage], send.prefix + SOURCES, arrays, {})


def senders(context: Context, stage: str, prefix: str, b: int) -> list[list[int]]:
    """Who sends to partition b, ascending, and which rows: first, and one past the last."""
    start, sources = (np.asarray(context.read(stage, prefix + SOURCES, name)) for name in ("source_offsets", "sources"))
    found: list[list[int]] = sources[start[b] : start[b + 1]].tolist()
    return found


def received(context: Context, stage: str, prefix: str, b: int, *names: str) -> Iterator[list[AnyArray]]:
    """What was sent to partition b, one sender after another: rows of each of the named arrays.

    ``stage``, ``prefix``: of the parts that were sent; ``*names``: arrays of these parts, which are read by rows.
    """
    folder = context.folders[stage]
    for source, low, high in senders(context, stage, prefix, b):
        yield [context.store.read_rows(folder, prefix + part_name(source), name, low, high) for name in names]

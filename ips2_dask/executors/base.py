"""Who runs the tasks of a stage: what that is to a stage, and this process as the one who does it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from ips2_dask.executors.placement import Thing
from ips2_dask.executors.process_memory import peak_rss
from ips2_dask.kernels import buffers
from ips2_dask.kernels.parallel import hold_openmp, threads
from ips2_dask.readers import Source
from ips2_dask.readers.base import LazySource
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

PartFunction = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
"""From a context, an item and, while a source is staged, its rows, to a part's arrays and what is to be said of them.
"""


class Report(Protocol):
    """What a stage tells while it runs."""

    def __call__(self, done: int, total: int) -> None:
        """So many of its tasks are done."""
        ...

    def note(self, facts: Mapping[str, Any]) -> None:
        """Numbers it has come to, such as the solver's residual."""
        ...


MOST_AT_ONCE = 4
"""Tasks that one process works on at a time without a cluster: the plan's memory counts so many partitions."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One stage's work on its partitions.

    Attributes
    ----------
    stage : str
        Where its parts go.
    function : callable
    prefix : str
        What the parts' names begin with.
    over : str
        What its items are.
    near : callable, optional
        From the context and an item to the thing whose owner is the best worker for it; without it, the item itself.
    """

    stage: str
    function: PartFunction
    prefix: str = ""
    over: str = "partitions"
    near: Callable[[Context, Any], Thing] | None = None

    def things(self, context: Context, items: Sequence[Any]) -> list[Thing]:
        """What the tasks are about."""
        kind = _partitions(context) if self.over == "partitions" else self.over
        return [(kind, item) for item in items]


def partition(context: Context, b: int) -> Thing:
    """Partition b as something that a worker may own."""
    return _partitions(context), b


def _partitions(context: Context) -> str:
    """What partitions are called: others when the samples are renumbered."""
    return f"partitions-{hash(context.bounds)}"


def compute_part(item: Any, job: Job, context: Context, *rows: Any) -> Receipt:
    """Run one task unless its part is there already, and store what it gives."""
    name = job.prefix + part_name(item)
    folder = context.folders[job.stage]
    receipt = context.store.receipt(folder, name) if context.there is None or name in context.there else None
    if receipt is not None:
        return receipt
    buffers.release()  # of the blocks of vectors of an earlier stage
    with threads(context.threads):
        arrays, facts = job.function(context, item, *rows)
        if context.store.location is not None:  # in memory there is one process, and who started it looks
            facts = {**facts, "peak_rss_bytes": peak_rss()}
        return context.store.write(folder, name, arrays, facts)


class Executor(Protocol):
    """Runs a job over items; receipts come back in the order of the items."""

    @property
    def n_workers(self) -> int:
        """Processes that share the work."""
        ...

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        ...

    def share(self, value: Any) -> Any:
        """A handle for `submit` of something that many tasks look at, a context say."""
        ...

    def submit(
        self, name: str, function: Callable[..., Any], *arguments: Any, near: Any = None, first: bool = False
    ) -> Any:
        """Start one task on values and handles; returns a handle of its result, which stays where it is made.

        It is made where the result of ``near`` is, or by the owner of that thing, unless that process is gone. With
        ``first`` it goes before all others that could be begun there: somebody elsewhere waits for it.
        """
        ...

    def together(self) -> contextlib.AbstractContextManager[None]:
        """What is submitted while this lasts is begun when it ends: many tasks of some milliseconds cost less so."""
        ...

    def settle(self, things: Sequence[Thing], weights: Sequence[float]) -> list[int]:
        """Give the things to the processes there are, ranges of about even weight; a number for each process's."""
        ...

    def hold(self, names: Sequence[str]) -> None:
        """Leave submitted tasks of these names to the owners of what they are near, however little others have to do.

        Names come without the number after them. What one process remembers, another would have to remember too.
        """
        ...

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks return."""
        ...

    def tidy(self) -> None:
        """Have every process let go of what a stage read and made, and of memory kept for more of it."""
        ...


@runtime_checkable
class BlockExecutor(Executor, Protocol):
    """One whose processes compute rows that no process holds yet."""

    def map_blocks(
        self, job: Job, context: Context, blocks: Sequence[Any], report: Report, wanted: Sequence[int]
    ) -> None:
        """Run a job on partitions' rows, given as delayed values."""
        ...


class SerialExecutor:
    """Tasks in this process: side by side on a few of its threads, each with its share of the cores."""

    n_workers = 1

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
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
            except BaseException as error:  # an interrupt as well: what has begun ends, what has not is not begun
                pool.shutdown(cancel_futures=True)
                for future in futures if isinstance(error, Exception) else ():
                    if not future.cancelled():
                        future.result()  # raises the error of the first item that has one, whichever was faster
                raise
            return [future.result() for future in futures]

    def share(self, value: Any) -> Any:
        """A handle for `submit`: the value itself."""
        return value

    def submit(
        self, name: str, function: Callable[..., Any], *arguments: Any, near: Any = None, first: bool = False
    ) -> Any:
        """Run one task now; its handle is its result."""
        del name, near, first
        return function(*arguments)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """They are done one by one."""
        return contextlib.nullcontext()

    def settle(self, things: Sequence[Thing], weights: Sequence[float]) -> list[int]:
        """All of them belong to this process."""
        return [0] * len(things)

    def hold(self, names: Sequence[str]) -> None:
        """There is no other."""

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks returned."""
        return list(handles)

    def tidy(self) -> None:
        """Give it back."""
        clear_cache()


def stage_source(
    executor: Executor, job: Job, context: Context, source: Source, report: Report, wanted: Sequence[int]
) -> None:
    """Run a job on wanted partitions' rows of a source that not every process can read from any row on.

    The workers compute the rows of a lazy source; any other one goes through this process in one pass.
    """
    if isinstance(executor, BlockExecutor) and isinstance(source, LazySource):
        executor.map_blocks(job, context, source.delayed_blocks(context.bounds), report, wanted)
        return
    skipped = set(range(context.n_partitions)) - set(wanted)
    for b, block in enumerate(source.blocks(context.bounds[1])):
        if b not in skipped:
            compute_part(b, job, context, block)
        report(b + 1, context.n_partitions)

"""The executor that runs a stage's tasks on a Dask cluster's workers: jobs as Dask bags, single tasks as graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import dask
import dask.bag
import numpy as np
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Future, as_completed, wait
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import BlockExecutor, Handle, ItemKey, Job, Report, compute_part
from ips2_dask.executors.failures import GONE, RETRIES, Watch, known_workers, losses, patience_of
from ips2_dask.kernels.parallel import threads
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt

Value = TypeVar("Value")

FREE_MEMORY_SECONDS = 5.0
"""How long `DaskExecutor.free_memory` waits for a worker that does not answer."""

FIFO_TIMEOUT = "100ms"
"""Tasks sent within this time of one another have equal priority, as with `Client.submit`; else older ones go first."""

BATCH_BYTES = 1 << 20
"""Bytes of arrays in the tasks of one message; the rest follows in another message."""


class DaskExecutor(BlockExecutor):
    """Runs tasks on the workers of a client's cluster; of a job only receipts come back.

    A task may use ``threads_per_task`` threads, and is given up once it has waited ``patience`` seconds for a worker;
    see `ips2_dask.executors.failures.patience_of`.
    """

    def __init__(self, client: Client, threads_per_task: int = 1, patience: float | None = None) -> None:
        self.client, self._threads, self._patience = client, threads_per_task, patience_of(patience)
        self._unsent: dict[str, tuple[object, ...]] = {}
        self._unsent_bytes = 0
        self._batching = False
        with losses(client):  # one that is gone is told now
            pass

    @property
    def n_workers(self) -> int:
        """Workers that the scheduler knows now."""
        return int(self.client.scheduler_info(n_workers=0)["n_workers"])

    def map(self, job: Job, context: Context, items: Sequence[ItemKey], report: Report) -> list[Receipt]:
        """As of `Executor`."""
        if not items:
            return []
        folder = context.folders[job.stage]
        shared = self._shared(job, dataclasses.replace(context, there=context.store.listed(folder)))
        receipts = [
            one for part in self._gather(job, items, _bag(job, items, shared).to_delayed(), report) for one in part
        ]
        for item, receipt in zip(items, receipts, strict=True):
            context.store.cache_receipt(folder, job.prefix + part_name(item), receipt)
        return receipts

    def map_blocks(
        self, job: Job, context: Context, blocks: Sequence[Delayed], report: Report, wanted: Sequence[int]
    ) -> None:
        """As of `BlockExecutor`; rows stay on the worker that computes them."""
        shared = self._shared(job, context)
        names = {b: job.prefix + part_name(b) for b in wanted}
        stored = context.store.receipts(context.folders[job.stage], names.values())
        missing = [b for b, name in names.items() if name not in stored]

        tasks = [delayed(compute_part)(b, job, shared, blocks[b]) for b in missing]
        self._gather(job, missing, tasks, report)

    def share(self, value: object) -> Handle:
        """As of `Executor`: the result of a task, so that it is made again when the worker that holds it is lost."""
        if isinstance(value, Context):
            value = dataclasses.replace(value, threads=self._threads)
        return self.submit(f"share-{type(value).__name__.lower()}", _identity, value)

    def submit(self, name: str, function: Callable[..., object], *arguments: object) -> Handle:
        """As of `Executor`; the handle is a future."""
        with losses(self.client):
            key = f"{name}-{uuid.uuid4().hex}"
            future = Future(key, self.client)
        self._unsent[key] = (_with_threads, self._threads, function, *arguments)
        self._unsent_bytes += sum(argument.nbytes for argument in arguments if isinstance(argument, np.ndarray))
        if not self._batching or self._unsent_bytes > BATCH_BYTES:
            self._send()
        return future

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """As of `Executor`: one message for all; one for each task takes up to twice as long (measured)."""
        if self._batching:  # a part of another batch
            yield
            return
        self._batching = True
        try:
            yield
            self._send()
        finally:
            self._batching = False
            self._unsent, self._unsent_bytes = {}, 0

    def _send(self) -> None:
        """Send the unsent tasks as one graph, a single task too.

        The scheduler takes the tasks of `Client.submit` in sooner than graphs that were sent before them, and then does
        not know the tasks of these graphs that they depend on.
        """
        if not self._unsent:
            return
        graph = HighLevelGraph.from_collections(uuid.uuid4().hex, self._unsent)
        self._unsent, self._unsent_bytes = {}, 0
        with losses(self.client), dask.annotate(retries=RETRIES):
            self.client.get(graph, list(graph), sync=False, fifo_timeout=FIFO_TIMEOUT)

    def results(self, handles: Sequence[Handle]) -> list[Any]:
        """As of `Executor`; raises `Lost` if workers or the scheduler are gone and don't come back in time."""
        with losses(self.client, self._patience, handles):
            return list(self.client.gather(list(handles)))

    def free_memory(self) -> None:
        """As of `Executor`; a worker that does not answer is waited for a moment and no longer."""
        clear_cache()
        with losses(self.client), self.client.as_current(), contextlib.suppress(TimeoutError):
            futures = [
                self.client.submit(
                    clear_cache, key=f"free-memory-{uuid.uuid4().hex}", workers=address, allow_other_workers=True
                )
                for address in known_workers(self.client)
            ]
            wait(futures, timeout=FREE_MEMORY_SECONDS)

    def _shared(self, job: Job, context: Context) -> Delayed:
        """The context as one task, on which all tasks of the job depend.

        Its key is never used again: a scheduler that serves several runs at once takes equal keys for equal tasks.
        """
        name = f"{job.stage}-context-{uuid.uuid4().hex}"
        return delayed(dataclasses.replace(context, threads=self._threads), name=name)

    def _gather(self, job: Job, items: Sequence[ItemKey], tasks: Sequence[Delayed], report: Report) -> list[Any]:
        """Compute a job's tasks; returns their results in order, or raises the first error."""
        try:
            return _Gather(self.client, self._patience, tasks).results(report)
        except FatalTask as error:
            if not isinstance(error.task, int):
                raise
            name = part_name(items[error.task])
            which = f"partition {name}" if job.over == "partitions" else f"part {job.prefix}{name}"
            raise FatalTask(which, error.workers) from error


def _bag(job: Job, items: Sequence[ItemKey], context: Delayed) -> dask.bag.Bag:
    """A bag whose partition i is a list of one: the receipt of item i's part.

    A bag of the items that is mapped would have a second task for each item, its data. The dashboard shows tasks by
    what is before the hexadecimal digits of their bag's name: the stage.
    """
    name = f"{job.stage}-{uuid.uuid4().hex}"
    tasks = {(name, i): (_compute, item, job, context.key) for i, item in enumerate(items)}
    return dask.bag.Bag(HighLevelGraph.from_collections(name, tasks, dependencies=[context]), name, len(items))


def _compute(item: ItemKey, job: Job, context: Context) -> list[Receipt]:
    return [compute_part(item, job, context)]


def _identity(value: Value) -> Value:
    return value


def _with_threads(count: int, function: Callable[..., Value], *arguments: object) -> Value:
    """Call a function with so many threads, and BLAS held to one."""
    with threads(count):
        return function(*arguments)


# ---- results of a job

FAILED = ("error", "cancelled")
"""States of a future that has ended without a result."""


class _Gather:
    """Computes a job's tasks: each result is fetched and released as it comes, and the first error is raised."""

    def __init__(self, client: Client, patience: float, tasks: Sequence[Delayed]) -> None:
        self._client, self._patience, self._tasks = client, patience, tasks
        self._unfinished: dict[Future, int] = {}
        self._failed: dict[int, Future] = {}
        self._results: dict[int, Any] = {}

    def results(self, report: Report) -> list[Any]:
        """Compute the tasks; returns their results in order.

        Once a task has failed, those after it are cancelled, and those before it end: the error of the first is raised,
        as the task raised it, or `Lost`, or `FatalTask`, whose ``task`` is the task's position.
        """
        total = len(self._tasks)
        try:
            with losses(self._client, self._patience, self._waited_for) as watch, _lost_results_are_no_errors():
                report(0, total)
                self._unfinished.update(zip(self._compute(range(total)), range(total), strict=True))
                self._fetch(watch, lambda: report(len(self._results), total))
                if self._failed:
                    self._retry_alone(watch)
                    report(len(self._results), total)
                return [self._results[i] for i in range(total)]
        finally:
            left = self._waited_for()
            if left and self._client.status == "running":  # a scheduler that is gone has nothing to cancel
                with contextlib.suppress(OSError, *GONE):
                    self._client.cancel(left)

    def _waited_for(self) -> list[Future]:
        return [*self._unfinished.copy(), *self._failed.copy().values()]

    def _compute(self, numbers: Iterable[int]) -> list[Future]:
        return list(self._client.compute([self._tasks[i] for i in numbers], retries=RETRIES))

    def _fetch(self, watch: Watch, report: Callable[[], None]) -> None:
        """Fetch and release results until all tasks have ended; after a failure until those before it have."""
        unfinished = self._unfinished
        for ended in as_completed(list(unfinished), loop=self._client.loop, raise_errors=False).batches():
            ended = [future for future in ended if future in unfinished]
            fetched = self._results_of([future for future in ended if future.status not in FAILED], watch)
            for future in ended:
                if future not in unfinished:  # cancelled since
                    continue
                if future.status == "cancelled":
                    future.result()  # raises: the wait for workers was in vain
                i = unfinished.pop(future)
                if future in fetched:
                    self._results[i] = fetched[future]
                    report()
                else:
                    self._failed[i] = future
                    if not isinstance(future.exception(), KilledWorker):  # that may be another task's fault
                        later = [other for other, position in unfinished.items() if position > i]
                        self._client.cancel(later)
                        for other in later:
                            del unfinished[other]
            if not unfinished:
                return

    def _results_of(self, futures: list[Future], watch: Watch) -> dict[Future, Any]:
        """Results by future, without those whose result was lost with its worker and whose task failed then."""
        try:
            found = watch.result(self._client.gather(dict(enumerate(futures)), errors="skip", asynchronous=True))
        except OSError as error:  # tasks' own errors are skipped: this one is of the connection
            raise CommClosedError(str(error)) from error
        return {future: found[i] for i, future in enumerate(futures) if future.status not in FAILED}

    def _retry_alone(self, watch: Watch) -> None:
        """Try tasks again, one by one, that failed because the workers that ran them died; raise the first error.

        All tasks of such a worker fail, though one alone may have ended it. The others succeed now, and the one fails
        with an error of its own; the first such error is enough to end the run.
        """
        killed = [i for i, future in sorted(self._failed.items()) if isinstance(future.exception(), KilledWorker)]
        if len(killed) > 1:
            self._client.cancel([self._failed[i] for i in killed])
            for i in killed:
                [self._failed[i]] = self._compute([i])
                self._failed[i].exception()  # waits, for success too
                fetched = self._results_of([self._failed[i]], watch)
                if self._failed[i] not in fetched:
                    break
                self._results[i] = fetched[self._failed.pop(i)]
        for i, future in sorted(self._failed.items()):
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise FatalTask(i, error.allowed_failures + 1) from error
            future.result()


@contextlib.contextmanager
def _lost_results_are_no_errors() -> Iterator[None]:
    """A scheduler in this process says that it could not fetch a result whose worker has died; it is computed again."""
    logger = logging.getLogger("distributed.scheduler")
    logger.addFilter(_other_than_lost_result)
    try:
        yield
    finally:
        logger.removeFilter(_other_than_lost_result)


def _other_than_lost_result(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Couldn't gather keys")

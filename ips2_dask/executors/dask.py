"""The executor that runs a stage's tasks on a Dask cluster's workers: jobs as Dask bags, single tasks as graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import dask
import dask.bag
import numpy as np
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Future, get_worker, wait

from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import BlockExecutor, Handle, Job, Report, compute_part
from ips2_dask.executors.exchange import LossWatch, close_mailboxes
from ips2_dask.executors.failures import RETRIES, losses, patience_of
from ips2_dask.executors.placement import Item, ItemKey, Placement
from ips2_dask.executors.preferences import release_preferences
from ips2_dask.executors.windows import Window, WindowedGather
from ips2_dask.executors.workers import known_workers
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.remote import is_remote

Value = TypeVar("Value")

FREE_MEMORY_SECONDS = 5.0
"""How long `DaskExecutor.free_memory` waits for a worker that does not answer."""

CALM, MOST_UNREST = 2.0, 60.0
"""Seconds without a worker that joins or leaves after which a cluster is calm, and those that are waited for that."""

LEAVING = ("closing_gracefully", "closing", "closed", "stopping")
"""States of workers that are about to leave: those whose lifetime is over hand over their results first."""

FIFO_TIMEOUT = "100ms"
"""Tasks sent within this time of one another have equal priority, as with `Client.submit`; else older ones go first."""

BATCH_BYTES = 1 << 20
"""Bytes of arrays in the tasks of one message; the rest follows in another message."""


class _UnsentTask(NamedTuple):
    """A submitted task that has not been sent to the scheduler yet."""

    key: str
    task: tuple[object, ...]
    placed_with: Future | str | None  # the holder of a result, or an address
    urgent: bool


class DaskExecutor(BlockExecutor):
    """Runs tasks on the workers of a client's cluster; of a job only receipts come back.

    Parameters
    ----------
    client : distributed.Client
    threads_per_task : int
        Threads that a task may use.
    patience : float, optional
        Seconds that tasks wait for a worker before they are given up; see `ips2_dask.executors.failures.patience_of`.
    memory_for_blocks : int, optional
        Bytes of a worker above which it keeps blocks of vectors in files, where its own limit is not smaller.

    Attributes
    ----------
    placement : Placement
        Which worker owns which item.
    """

    def __init__(
        self,
        client: Client,
        threads_per_task: int = 1,
        patience: float | None = None,
        *,
        memory_for_blocks: int | None = None,
    ) -> None:
        self.client, self._threads, self._patience = client, threads_per_task, patience_of(patience)
        self._memory_for_blocks = memory_for_blocks
        self.placement = Placement()
        self._unsent: list[_UnsentTask] = []
        self._unsent_bytes = 0
        self._batching = False
        with losses(client):
            release_preferences(client)

    @property
    def threads_per_task(self) -> int:
        """Threads that a task may use."""
        return self._threads

    @property
    def n_workers(self) -> int:
        """Workers that the scheduler knows now."""
        return int(self.client.scheduler_info(n_workers=0)["n_workers"])

    def _workers(self) -> dict[str, Any]:
        """The scheduler's record of each worker, by the worker's address."""
        return known_workers(self.client)

    def map(self, job: Job, context: Context, items: Sequence[ItemKey], report: Report) -> list[Receipt]:
        """As of `Executor`."""
        if not items:
            return []
        folder, local = context.folders[job.stage], not is_remote(context.store.location or "")
        shared = self._shared(job, dataclasses.replace(context, there=context.store.listed(folder)))
        self.placement.use_store(context.store.location)
        placed = job.placement_items(context, items)
        fallbacks = [None if job.placed_with is None else job.placed_with(context, item) for item in items]

        def window(begin: int, end: int) -> Window:
            workers = self.placement.preferred_workers(placed[begin:end], fallbacks[begin:end])
            return Window(_bag(job, items[begin:end], shared).to_delayed(), workers)

        with losses(self.client):
            held = self.client.compute(shared)  # or each window would send it to the workers again
        results = [result for part in self._gather(job, items, window, report) for result in part]
        held.release()
        if local:
            self.placement.assign(placed, [address for _, address in results])
        for item, (receipt, _) in zip(items, results, strict=True):
            context.store.cache_receipt(folder, job.prefix + part_name(item), receipt)
        return [receipt for receipt, _ in results]

    def map_blocks(
        self, job: Job, context: Context, blocks: Sequence[Delayed], report: Report, wanted: Sequence[int]
    ) -> None:
        """As of `BlockExecutor`; rows stay on the worker that computes them."""
        shared = self._shared(job, context)
        names = {b: job.prefix + part_name(b) for b in wanted}
        stored = context.store.receipts(context.folders[job.stage], names.values())
        missing = [b for b, name in names.items() if name not in stored]

        def window(begin: int, end: int) -> Window:
            return Window([delayed(compute_part)(b, job, shared, blocks[b]) for b in missing[begin:end]], None)

        # one window, as blocks may be made of one another, and what one has released would be computed again
        self._gather(job, missing, window, report, max(len(missing), 1))

    def share(self, value: object) -> Handle:
        """As of `Executor`: the result of a task, so that it is made again when the worker that holds it is lost."""
        if isinstance(value, Context):
            value = dataclasses.replace(value, threads=self._threads)
        return self.submit(f"share-{type(value).__name__.lower()}", _identity, value)

    def submit(
        self,
        name: str,
        function: Callable[..., object],
        *arguments: object,
        placed_with: Item | Handle | None = None,
        urgent: bool = False,
    ) -> Handle:
        """As of `Executor`; the handle is a future."""
        with losses(self.client):
            place = placed_with if isinstance(placed_with, Future) else self.placement.owner(placed_with)
            key = f"{name}-{uuid.uuid4().hex}"
            future = Future(key, self.client)
        self._unsent.append(_UnsentTask(key, (function, *arguments), place, urgent))
        self._unsent_bytes += sum(argument.nbytes for argument in arguments if isinstance(argument, np.ndarray))
        if not self._batching or self._unsent_bytes > BATCH_BYTES:
            self._send()
        return future

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """As of `Executor`: one message for all; one for each task takes up to twice as long (measured)."""
        self._batching = True
        try:
            yield
            self._send()
        finally:
            self._batching = False
            self._clear()

    def _clear(self) -> None:
        self._unsent, self._unsent_bytes = [], 0

    def _send(self) -> None:
        """Send the unsent tasks as one graph, a single task too.

        The scheduler takes the tasks of `Client.submit` in sooner than graphs that were sent before them, and then does
        not know the tasks of these graphs that they depend on.
        """
        if not self._unsent:
            return
        graph = HighLevelGraph.from_collections(uuid.uuid4().hex, {task.key: task.task for task in self._unsent})
        workers = self._addresses_of_unsent()
        priorities = {task.key: int(task.urgent) for task in self._unsent}
        self._clear()
        annotations = dask.annotate(
            workers=workers.get, allow_other_workers=True, priority=priorities.get, retries=RETRIES
        )
        with losses(self.client), annotations:
            self.client.get(graph, list(graph), sync=False, fifo_timeout=FIFO_TIMEOUT)

    def _addresses_of_unsent(self) -> dict[str, list[str]]:
        """The preferred workers of each unsent task, by its key; one request finds the holders of all results."""
        places = {task.key: task.placed_with for task in self._unsent}
        futures = {place.key: place for place in places.values() if isinstance(place, Future)}
        with losses(self.client):
            holders = self.client.who_has(list(futures.values())) if futures else {}
        addresses: dict[str, list[str]] = {}
        for key, place in places.items():
            if isinstance(place, Future):
                addresses[key] = list(holders.get(place.key, ()))
            else:
                addresses[key] = [] if place is None else [place]
        return addresses

    def assign_owners(self, items: Sequence[Item], weights: Sequence[float]) -> list[int]:
        """As of `Executor`: a worker's weight is in proportion to its threads."""
        with losses(self.client):
            workers = self._staying()
        number = {address: position for position, address in enumerate(sorted(workers))}
        address_of_thread = [address for address in number for _ in range(workers[address]["nthreads"])]
        if not address_of_thread:
            return list(range(len(items)))
        ends = np.cumsum(weights)
        middles = (ends - np.asarray(weights) / 2) / ends[-1]
        owners = [address_of_thread[int(position)] for position in middles * len(address_of_thread)]
        self.placement.assign(items, owners)
        return [number[address] for address in owners]

    def address_of(self, item: Item) -> str:
        """As of `Executor`."""
        return self.placement.owner(item) or ""

    def addresses(self) -> list[str]:
        """As of `Executor`."""
        with losses(self.client):
            return sorted(self._staying())

    def _staying(self) -> dict[str, Any]:
        """The scheduler's record of each worker that is not about to leave."""
        workers = self._workers()
        staying = {address: worker for address, worker in workers.items() if worker["status"] not in LEAVING}
        return staying or workers

    def wait_until_calm(self) -> None:
        """As of `Executor`; `MOST_UNREST` seconds at most."""
        end, since, before = time.monotonic() + MOST_UNREST, time.monotonic(), self.addresses()
        while time.monotonic() < min(end, since + CALM):
            time.sleep(CALM / 10)
            now = self.addresses()
            if now != before:
                since, before = time.monotonic(), now

    def worker_memory(self) -> int | None:
        """As of `Executor`."""
        with losses(self.client):
            limits = [int(worker["memory_limit"] or 0) for worker in self._workers().values()]
        limits.append(self._memory_for_blocks or 0)
        return min((limit for limit in limits if limit), default=None)

    def wait(self, handles: Sequence[Handle]) -> None:
        """As of `Executor`; raises as `results` does."""
        with losses(self.client, self._patience, handles), self.client.as_current():
            wait(list(handles))
            for handle in handles:
                if handle.status == "error":
                    handle.result()  # raises the task's error

    def watch(self, addresses: Sequence[str], on_loss: Callable[[str], None]) -> LossWatch:
        """As of `Executor`."""
        return LossWatch(self.client, addresses, on_loss)

    def end_waiting(self, space: str, n_owners: int, reason: str) -> None:
        """As of `Executor`."""
        close_mailboxes(self.client, space, n_owners, reason)

    def pin_to_owner(self, names: Sequence[str]) -> None:
        """As of `Executor`: the scheduler leaves tasks of these names out of work stealing.

        Without this about a fifth of a solve's products ran on the other of two workers (40 of 207 tasks at 50,000 x
        16 in chunks, on a busy machine). The set of names is private to Dask, but the documented way does not serve: a
        task restricted to its owner by ``allow_other_workers=False`` waits for ever once the owner is lost, as the
        worker that replaces it has another address.

        A scheduler without that set steals these tasks as it steals others: the results are the same.
        """

        def leave_out(names: Sequence[str]) -> None:  # a function of its own: the scheduler need not have this package
            from distributed import stealing  # noqa: PLC0415

            stealing.fast_tasks.update(names)

        with losses(self.client), contextlib.suppress(AttributeError, ImportError, TypeError, ValueError):
            self.client.run_on_scheduler(leave_out, names)

    def results(self, handles: Sequence[Handle]) -> list[Any]:
        """As of `Executor`.

        Raises
        ------
        Lost
            If workers or the scheduler are gone and don't come back in time.
        """
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
                for address in self._workers()
            ]
            wait(futures, timeout=FREE_MEMORY_SECONDS)

    def _shared(self, job: Job, context: Context) -> Delayed:
        """The context as one task, on which all tasks of the job depend.

        Its key is never used again: a scheduler that serves several runs at once takes equal keys for equal tasks.
        """
        name = f"{job.stage}-context-{uuid.uuid4().hex}"
        return delayed(dataclasses.replace(context, threads=self._threads), name=name)

    def _gather(
        self,
        job: Job,
        items: Sequence[ItemKey],
        window: Callable[[int, int], Window],
        report: Report,
        size: int | None = None,
    ) -> list[Any]:
        """Compute a job's tasks; returns their results in order, or raises the first error.

        ``size`` is that of a window, by default as many tasks as suit the cluster.
        """
        try:
            return WindowedGather(self.client, self._patience, window, size).gather(len(items), report)
        except FatalTask as error:
            if not isinstance(error.task, int):
                raise
            name = part_name(items[error.task])
            which = f"partition {name}" if job.over == "partitions" else f"part {job.prefix}{name}"
            raise FatalTask(which, error.workers) from error


def _bag(job: Job, items: Sequence[ItemKey], context: Delayed) -> dask.bag.Bag:
    """A bag whose partition i is a list of one: the receipt of item i's part, and the address of its worker.

    A bag of the items that is mapped would have a second task for each item, its data. The dashboard shows tasks by
    what is before the hexadecimal digits of their bag's name: the stage.
    """
    name = f"{job.stage}-{uuid.uuid4().hex}"
    tasks = {(name, i): (_compute, item, job, context.key) for i, item in enumerate(items)}
    return dask.bag.Bag(HighLevelGraph.from_collections(name, tasks, dependencies=[context]), name, len(items))


def _compute(item: ItemKey, job: Job, context: Context) -> list[tuple[Receipt, str]]:
    return [(compute_part(item, job, context), get_worker().address)]


def _identity(value: Value) -> Value:
    return value

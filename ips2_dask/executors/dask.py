"""The workers of a Dask cluster as those who run a stage's tasks, through Dask bags."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import dask
import dask.bag
import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Future, as_completed, get_worker, wait
from distributed.scheduler import KilledWorker

from ips2_dask.executors.base import Job, Report, compute_part
from ips2_dask.executors.failures import GONE, RETRIES, losses, patience_of
from ips2_dask.executors.placement import Owners, Places, Thing
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.remote import is_remote

TIDY_SECONDS = 5.0

ONE_AGE = "100ms"
"""Tasks that are sent within this time are of one age, as Dask has it for single ones; older ones are begun first."""

TOGETHER_BYTES = 1 << 20
"""Arrays sent with the tasks of one message; the rest follows in another."""


class _Waiting(NamedTuple):
    """A task that has not been sent yet."""

    key: str
    task: tuple[Any, ...]
    places: list[str]
    first: bool


class DaskExecutor:
    """Partitions in a Dask bag on the workers of a client's cluster; only receipts come back.

    Tasks wait for a worker for ``patience`` seconds.
    """

    def __init__(self, client: Client, threads_per_task: int = 1, patience: float | None = None) -> None:
        self.client, self._threads, self._patience = client, threads_per_task, patience_of(patience)
        self.owners = Owners()
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._together = False

    @property
    def threads_per_task(self) -> int:
        """Threads that a task may use."""
        return self._threads

    @property
    def n_workers(self) -> int:
        """Workers the scheduler knows now."""
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        if not items:
            return []
        folder, local = context.folders[job.stage], not is_remote(context.store.location or "")
        shared = self._shared(job, dataclasses.replace(context, there=context.store.listed(folder)))
        named = _Named(job.stage)  # a task's name is the stage, then the partition
        bag = dask.bag.from_sequence(items, npartitions=len(items)).map(named, job=job, context=shared)
        self.owners.turn_to(context.store.location)
        things = job.things(context, items)
        others = [None if job.near is None else job.near(context, item) for item in items]
        places = self.owners.places(things, others)
        found = [one for part in self._gather(bag.to_delayed(), report, places) for one in part]
        if local:
            self.owners.wrote(things, [address for _, address in found])
        for item, (receipt, _) in zip(items, found, strict=True):
            context.store.cache_receipt(folder, job.prefix + part_name(item), receipt)
        return [receipt for receipt, _ in found]

    def map_blocks(
        self, job: Job, context: Context, blocks: Sequence[Any], report: Report, wanted: Sequence[int]
    ) -> None:
        """Run a job on partitions' rows, given as delayed values, which stay on the worker that computes them."""
        shared = self._shared(job, context)
        missing = [b for b in wanted if context.receipt(job.stage, job.prefix + part_name(b)) is None]
        self._gather([delayed(compute_part)(b, job, shared, blocks[b]) for b in missing], report)

    def share(self, value: Any) -> Any:
        """A handle for `submit`: a task, so that a lost one is made again."""
        if isinstance(value, Context):
            value = dataclasses.replace(value, threads=self._threads)
        return self.submit(f"share-{type(value).__name__.lower()}", _same, value)

    def submit(
        self, name: str, function: Callable[..., Any], *arguments: Any, near: Any = None, first: bool = False
    ) -> Any:
        """Start one task on a worker; its handle is a future."""
        with losses(self.client):
            if isinstance(near, Future):
                there = list(next(iter(self.client.who_has([near]).values()), ()))
            else:
                owner = self.owners.of(near)
                there = [] if owner is None else [owner]
            key = f"{name}-{uuid.uuid4().hex}"
            future = Future(key, self.client)
        self._waiting.append(_Waiting(key, (function, *arguments), there, first))
        self._waiting_bytes += sum(argument.nbytes for argument in arguments if isinstance(argument, np.ndarray))
        if not self._together or self._waiting_bytes > TOGETHER_BYTES:
            self._send()
        return future

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Send what is submitted while this lasts in one message: one for each takes up to twice as long (measured)."""
        self._together = True
        try:
            yield
            self._send()
        finally:
            self._together = False
            self._clear()

    def _clear(self) -> None:
        self._waiting, self._waiting_bytes = [], 0

    def _send(self) -> None:
        """Send what waits, a single task too: the scheduler takes those of `Client.submit` in sooner than graphs that
        came before them, and does not know what they depend on."""
        if not self._waiting:
            return
        graph = HighLevelGraph.from_collections(uuid.uuid4().hex, {one.key: one.task for one in self._waiting})
        places = {one.key: one.places for one in self._waiting}
        priorities = {one.key: int(one.first) for one in self._waiting}
        self._clear()
        told = dask.annotate(workers=places.get, allow_other_workers=True, priority=priorities.get, retries=RETRIES)
        with losses(self.client), told:
            self.client.get(graph, list(graph), sync=False, fifo_timeout=ONE_AGE)

    def settle(self, things: Sequence[Thing], weights: Sequence[float]) -> list[int]:
        """Give the things to the workers there are, ranges of about even weight; a number for each worker's."""
        with losses(self.client):
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        number = {address: at for at, address in enumerate(sorted(workers))}
        seats = [address for address in number for _ in range(workers[address]["nthreads"])]
        if not seats:
            return list(range(len(things)))
        ends = np.cumsum(weights)
        middles = (ends - np.asarray(weights) / 2) / ends[-1]
        given = [seats[int(at)] for at in middles * len(seats)]
        self.owners.wrote(things, given)
        return [number[address] for address in given]

    def hold(self, names: Sequence[str]) -> None:
        """Have the scheduler pass over tasks of these names when workers with nothing to do steal from others.

        One that can't be told so does as it always does: the results are the same.
        """

        def pass_over(names: Sequence[str]) -> None:  # a function of its own: the scheduler need not have this package
            from distributed import stealing  # noqa: PLC0415

            stealing.fast_tasks.update(names)

        with losses(self.client), contextlib.suppress(AttributeError, ImportError, TypeError, ValueError):
            self.client.run_on_scheduler(pass_over, names)

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks return, sent here."""
        with losses(self.client, self._patience, handles):
            return list(self.client.gather(list(handles)))

    def tidy(self) -> None:
        """This process and every worker give it back; one that does not answer is waited for a moment and no longer."""
        clear_cache()
        with losses(self.client), self.client.as_current(), contextlib.suppress(TimeoutError):
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
            asked = [
                self.client.submit(
                    clear_cache, key=f"tidy-{uuid.uuid4().hex}", workers=address, allow_other_workers=True
                )
                for address in workers
            ]
            wait(asked, timeout=TIDY_SECONDS)

    def _shared(self, job: Job, context: Context) -> Any:
        """The context as one task that all others share.

        Its key is never used again: a scheduler that serves several runs at once takes equal keys for equal tasks.
        """
        name = f"{job.stage}-context-{uuid.uuid4().hex}"
        return delayed(dataclasses.replace(context, threads=self._threads), name=name)

    def _alone(self, tasks: Sequence[Any], futures: list[Any]) -> None:
        """Try again, one by one, what workers that died had in hand: it all failed, and one task may have ended them.

        Its neighbours get through then, and its own error stays: the first one's, which is enough to end the run.
        """
        ended = [at for at, future in enumerate(futures) if future.status == "error" and _killed(future)]
        if len(ended) > 1:
            self.client.cancel([futures[at] for at in ended])
            for at in ended:
                futures[at] = self.client.compute(tasks[at], retries=RETRIES)
                if futures[at].exception() is not None:  # waits, for success too
                    return

    def _gather(self, tasks: Sequence[Any], report: Report, places: Places | None = None) -> list[Any]:
        """What the tasks return, in their order; an error is raised when all of them have ended."""
        near = contextlib.nullcontext() if places is None else dask.annotate(workers=places, allow_other_workers=True)
        with losses(self.client), near:
            report(0, len(tasks))
            futures = list(self.client.compute(list(tasks), retries=RETRIES))
        with losses(self.client, self._patience, futures):
            try:
                for done, _ in enumerate(as_completed(futures, loop=self.client.loop, raise_errors=False)):
                    report(done + 1, len(futures))
                self._alone(tasks, futures)
                for future in futures:
                    if future.status == "error":
                        future.result()  # raises the error of the first task that has one; gather takes any
                return list(self.client.gather(futures))
            finally:
                if self.client.status == "running":  # a scheduler that is gone has nothing to cancel
                    with contextlib.suppress(OSError, *GONE):
                        self.client.cancel(futures)


def _killed(future: Any) -> bool:
    return isinstance(future.exception(), KilledWorker)


class _Named:
    """`compute_part` under the name of a stage, which Dask shows beside the number of the partition; and who ran it."""

    def __init__(self, stage: str) -> None:
        self.__name__ = stage

    def __call__(self, item: Any, job: Job, context: Context) -> tuple[Receipt, str]:
        return compute_part(item, job, context), get_worker().address


def _same(value: Any) -> Any:
    return value

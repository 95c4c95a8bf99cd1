"""A job's tasks in windows: the scheduler knows a bounded number of them at one time, however many there are.

A task that they know takes about 18 KB of a scheduler and its client, and a job may have one for each few thousand
samples. So tasks are sent in windows, the next when few of those before are left, and each result is fetched and
released as soon as it is there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import dask
from dask.delayed import Delayed
from distributed import Client, Future, as_completed
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import Report
from ips2_dask.executors.failures import GONE, RETRIES, Watch, losses
from ips2_dask.executors.placement import PreferredWorkers
from ips2_dask.plan.tasks import tasks_in_window

FAILED = ("error", "cancelled")
"""States of a future that has ended without a result."""


class Window(NamedTuple):
    """Consecutive tasks of a job, to be sent together.

    Attributes
    ----------
    tasks : sequence of Delayed
    workers : PreferredWorkers or None
        The preferred worker of each.
    """

    tasks: Sequence[Delayed]
    workers: PreferredWorkers | None


class WindowedGather:
    """Computes a job's tasks in windows, two at a time.

    Parameters
    ----------
    client : Client
    patience : float
        Seconds that tasks wait for a worker; see `ips2_dask.executors.failures.losses`.
    window : callable
        From two positions to the tasks from the first up to the second; called again for tasks that are tried again.
    size : int, optional
        Tasks of a window; by default what suits the cluster, which is asked each time, as it may grow.
    """

    def __init__(
        self, client: Client, patience: float, window: Callable[[int, int], Window], size: int | None = None
    ) -> None:
        self._client, self._patience, self._window, self._size = client, patience, window, size
        self._unfinished: dict[int, Future] = {}
        self._failed: dict[int, Future] = {}
        self._results: dict[int, Any] = {}

    def gather(self, total: int, report: Report) -> list[Any]:
        """Compute so many tasks; returns their results in order.

        Once a task has failed no others are sent, and when those that were sent have ended the error of the first of
        them is raised. Which of them failed first in time makes no difference, as tasks are sent in order.

        Raises
        ------
        Lost
            If workers or the scheduler are gone and don't come back in time.
        FatalTask
            If a task ended all workers that tried it; its ``task`` is the task's position.
        Exception
            As the task raised it.
        """
        try:
            with losses(self._client, self._patience, self._waited_for) as watch, _lost_results_are_no_errors():
                return self._gather(total, report, watch)
        finally:
            left = self._waited_for()
            if left and self._client.status == "running":  # a scheduler that is gone has nothing to cancel
                with contextlib.suppress(OSError, *GONE):
                    self._client.cancel(left)

    def _waited_for(self) -> list[Future]:
        return [*self._unfinished.copy().values(), *self._failed.copy().values()]

    def _gather(self, total: int, report: Report, watch: Watch) -> list[Any]:
        sent = 0
        report(0, total)
        while len(self._results) < total:
            size = self._size or _size_for(self._client, watch)
            while sent < total and len(self._unfinished) <= size:
                end = min(sent + size, total)
                self._unfinished.update(enumerate(self._compute(sent, end), sent))
                sent = end
            self._fetch(size if sent < total else 0, watch, lambda: report(len(self._results), total))
            if self._failed:
                self._retry_alone(watch)
                report(len(self._results), total)
        return [self._results[i] for i in range(total)]

    def _compute(self, begin: int, end: int) -> list[Future]:
        tasks, workers = self._window(begin, end)
        annotations = (
            contextlib.nullcontext() if workers is None else dask.annotate(workers=workers, allow_other_workers=True)
        )
        with annotations:
            return list(self._client.compute(list(tasks), retries=RETRIES))

    def _fetch(self, left: int, watch: Watch, report: Callable[[], None]) -> None:
        """Fetch and release results until so few tasks are left, or until all have ended where one has failed."""
        positions = {future: i for i, future in self._unfinished.items()}
        for ended in as_completed(list(positions), loop=self._client.loop, raise_errors=False).batches():
            fetched = self._results_of([future for future in ended if future.status not in FAILED], watch)
            for future in ended:
                if future.status == "cancelled":
                    future.result()  # raises: the wait for workers was in vain
                i = positions[future]
                del self._unfinished[i]
                if future in fetched:
                    self._results[i] = fetched[future]
                    report()
                else:
                    self._failed[i] = future
            if len(self._unfinished) <= left and not self._failed:
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
                [self._failed[i]] = self._compute(i, i + 1)
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


def _size_for(client: Client, watch: Watch) -> int:
    """Tasks of the next window for the cluster as it is now."""
    return tasks_in_window(int(watch.result(client.scheduler.identity(n_workers=0))["total_threads"]))


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

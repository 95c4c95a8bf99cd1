"""A job's tasks in windows: the scheduler knows a bounded number of them at one time, however many there are.

A task that they know takes about 18 KB of a scheduler and its client, and a job may have one for each few thousand
samples. So tasks are sent in windows, the next when few of those before are left, and each result is fetched and
released as soon as it is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask
from dask.delayed import Delayed
from distributed import Client, Future, as_completed
from distributed.scheduler import KilledWorker

from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import Report
from ips2_dask.executors.failures import GONE, RETRIES, losses
from ips2_dask.executors.placement import PreferredWorkers


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
    size : callable
        Tasks of the next window, at most; asked each time, as a cluster may grow.
    """

    def __init__(
        self, client: Client, patience: float, window: Callable[[int, int], Window], size: Callable[[], int]
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
        sent = 0
        report(0, total)
        try:
            while len(self._results) < total:
                with losses(self._client):
                    size = self._size()
                while sent < total and len(self._unfinished) <= size:
                    self._send(sent, min(sent + size, total))
                    sent = min(sent + size, total)
                self._fetch(size if sent < total else 0, lambda: report(len(self._results), total))
                if self._failed:
                    self._retry_alone()
                    report(len(self._results), total)
            return [self._results[i] for i in range(total)]
        finally:
            left = [*self._unfinished.values(), *self._failed.values()]
            if left and self._client.status == "running":  # a scheduler that is gone has nothing to cancel
                with contextlib.suppress(OSError, *GONE):
                    self._client.cancel(left)

    def _send(self, begin: int, end: int) -> None:
        tasks, workers = self._window(begin, end)
        annotations = (
            contextlib.nullcontext() if workers is None else dask.annotate(workers=workers, allow_other_workers=True)
        )
        with losses(self._client), annotations:
            futures = self._client.compute(list(tasks), retries=RETRIES)
        self._unfinished.update(enumerate(futures, begin))

    def _fetch(self, left: int, report: Callable[[], None]) -> None:
        """Fetch and release results until so few tasks are left, or until all have ended where one has failed."""
        positions = {future: i for i, future in self._unfinished.items()}
        with losses(self._client, self._patience, list(positions)):
            for ended in as_completed(list(positions), loop=self._client.loop, raise_errors=False).batches():
                failed = [future for future in ended if future.status in ("error", "cancelled")]
                good = [future for future in ended if future not in failed]
                for future, result in zip(good, self._client.gather(good), strict=True):
                    self._results[positions[future]] = result
                    del self._unfinished[positions[future]]
                    report()
                for future in failed:
                    if future.status == "cancelled":
                        future.result()  # raises: the wait for workers was in vain
                    self._failed[positions[future]] = self._unfinished.pop(positions[future])
                if len(self._unfinished) <= left and not self._failed:
                    return

    def _retry_alone(self) -> None:
        """Try tasks again, one by one, that failed because the workers that ran them died; raise the first error.

        All tasks of such a worker fail, though one alone may have ended it. The others succeed now, and the one fails
        with an error of its own; the first such error is enough to end the run.
        """
        killed = [i for i, future in sorted(self._failed.items()) if isinstance(future.exception(), KilledWorker)]
        if len(killed) > 1:
            with losses(self._client):
                self._client.cancel([self._failed[i] for i in killed])
            for i in killed:
                with losses(self._client):
                    future = self._client.compute(self._window(i, i + 1).tasks[0], retries=RETRIES)
                self._failed[i] = future
                with losses(self._client, self._patience, [future]):
                    if future.exception() is not None:  # waits, for success too
                        break
                    self._results[i] = future.result()
                del self._failed[i]
        for i, future in sorted(self._failed.items()):
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise FatalTask(i, error.allowed_failures + 1) from error
            with losses(self._client):
                future.result()

"""A job's results as they come: each is fetched and released as soon as it is there, and the first error is raised."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dask.delayed import Delayed
from distributed import Client, Future, as_completed
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from ips2_dask.errors import FatalTask
from ips2_dask.executors.base import Report
from ips2_dask.executors.failures import GONE, RETRIES, Watch, losses

FAILED = ("error", "cancelled")
"""States of a future that has ended without a result."""


class Gather:
    """Computes a job's tasks.

    Parameters
    ----------
    client : Client
    patience : float
        Seconds that tasks wait for a worker; see `ips2_dask.executors.failures.losses`.
    tasks : sequence of Delayed
    """

    def __init__(self, client: Client, patience: float, tasks: Sequence[Delayed]) -> None:
        self._client, self._patience, self._tasks = client, patience, tasks
        self._unfinished: dict[int, Future] = {}
        self._failed: dict[int, Future] = {}
        self._results: dict[int, Any] = {}

    def results(self, report: Report) -> list[Any]:
        """Compute the tasks; returns their results in order.

        Once a task has failed, those after it are cancelled, and those before it end: the error of the first is raised.

        Raises
        ------
        Lost
            If workers or the scheduler are gone and don't come back in time.
        FatalTask
            If a task ended all workers that tried it; its ``task`` is the task's position.
        Exception
            As the task raised it.
        """
        total = len(self._tasks)
        try:
            with losses(self._client, self._patience, self._waited_for) as watch, _lost_results_are_no_errors():
                report(0, total)
                self._unfinished.update(enumerate(self._compute(range(total))))
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
        return [*self._unfinished.copy().values(), *self._failed.copy().values()]

    def _compute(self, numbers: Iterable[int]) -> list[Future]:
        return list(self._client.compute([self._tasks[i] for i in numbers], retries=RETRIES))

    def _fetch(self, watch: Watch, report: Callable[[], None]) -> None:
        """Fetch and release results until all tasks have ended; after a failure until those before it have."""
        positions = {future: i for i, future in self._unfinished.items()}
        for ended in as_completed(list(positions), loop=self._client.loop, raise_errors=False).batches():
            ended = [future for future in ended if future in positions]
            fetched = self._results_of([future for future in ended if future.status not in FAILED], watch)
            for future in ended:
                if future not in positions:  # cancelled since
                    continue
                if future.status == "cancelled":
                    future.result()  # raises: the wait for workers was in vain
                i = positions.pop(future)
                del self._unfinished[i]
                if future in fetched:
                    self._results[i] = fetched[future]
                    report()
                else:
                    self._failed[i] = future
                    if not isinstance(future.exception(), KilledWorker):  # that may be another task's fault
                        later = [other for other, position in positions.items() if position > i]
                        self._client.cancel(later)
                        for other in later:
                            del self._unfinished[positions.pop(other)]
            if not positions:
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

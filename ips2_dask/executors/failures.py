"""Failures of a cluster that end a run, as one-line errors: no scheduler, workers that stay away, lack of memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker, NoWorkerError

from ips2_dask.errors import FatalTask, Lost

RETRIES = 2
"""How often a task that raised is tried again: memory may be short, or a remote store out of reach, for a moment only.

An error that stays, such as a bad value in the input, reaches the user after so many more tries.
"""

GONE = (CommClosedError, ClosedClientError, concurrent.futures.CancelledError, asyncio.CancelledError)
"""Exceptions that Dask raises for futures and calls whose scheduler is gone."""

PATIENCE = 300.0
"""Seconds that tasks wait for a worker, or for a scheduler that does not answer, where no config has another number.

Dask itself waits for ever, unless its ``distributed.scheduler.no-workers-timeout`` is set: that goes first.
"""

PERIOD = 5.0
"""Seconds between two requests for the state of the workers."""


def patience_of(configured: float | None = None) -> float:
    """Seconds to wait for workers: Dask's own timeout if it is set, else ``configured``, else `PATIENCE`."""
    timeout = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(timeout)) if timeout is not None else configured or PATIENCE


@contextlib.contextmanager
def losses(client: Client, patience: float = PATIENCE, futures: Sequence[Future] = ()) -> Iterator[None]:
    """Turn failures of the cluster in the ``with`` block into errors of one line, and end waiting that is in vain.

    Parameters
    ----------
    client : Client
    patience : float
        Seconds without a worker after which the futures are given up.
    futures : sequence of Future
        Those that the block waits for: they are cancelled when no worker has been running for ``patience`` seconds.

    Raises
    ------
    Lost
        If the scheduler or all workers are gone, or a task got no memory in all of its tries.
    FatalTask
        If a task ended all workers that tried it.
    """
    watch = _Watch(client, patience, futures)
    try:
        if client.status != "running":  # a task sent now would wait for a scheduler that may never come back
            raise CommClosedError(client.status)
        with watch:
            yield
    except MemoryError as error:
        raise Lost(
            f"workers: a task got no memory in each of {RETRIES + 1} tries ({error})",
            "give each worker more memory, by a larger memory_limit or fewer workers",
        ) from None
    except KilledWorker as error:
        raise FatalTask(f"task {error.task}", error.allowed_failures + 1) from error
    except NoWorkerError as error:
        raise Lost(f"scheduler {_address(client)}: {error}", "start workers") from None
    except GONE:
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it would tell each attempt to reconnect
        if watch.error is not None:
            raise watch.error from None
        raise Lost(f"scheduler {_address(client)}: the connection is lost", "start a scheduler and workers") from None


class _Watch:
    """A thread that cancels futures when no worker has been running, or the scheduler has not answered, for a while.

    Attributes
    ----------
    error : Lost, optional
        Why the futures were cancelled.
    """

    def __init__(self, client: Client, patience: float, futures: Sequence[Future]) -> None:
        self.error: Lost | None = None
        self._client, self._patience, self._futures = client, patience, futures
        self._ended = threading.Event()

    def __enter__(self) -> None:
        if self._futures:
            threading.Thread(target=self._watch, name="ips2-watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        period = min(PERIOD, self._patience / 4)
        since = time.monotonic()
        while not self._ended.wait(period) and self._client.status == "running":
            missing = self._missing(period)
            if missing is None:
                since = time.monotonic()
            elif time.monotonic() - since > self._patience and not self._ended.is_set():
                thing, remedy = missing
                self.error = Lost(f"{thing} for {self._patience:g} s", remedy)
                with contextlib.suppress(Exception, *GONE):
                    self._client.cancel(self._futures, reason="no worker")
                return

    def _missing(self, period: float) -> tuple[str, str] | None:
        """The reason why no task runs, and the remedy; None if a worker is running."""
        try:
            states = self._states(1, period)  # of a thousand workers the states of all would be a megabyte each time
            if states and "running" not in states:
                states = self._states(-1, period)
        except (Exception, *GONE):  # no answer in time, or any error of a client that is being closed
            return f"scheduler {_address(self._client)}: it has not answered", "end it, start a scheduler and workers"
        if not states:
            return f"scheduler {_address(self._client)}: it has had no worker", "start workers"
        if "running" not in states:
            remedy = "give each worker more memory, by a larger memory_limit or a smaller partition_rows"
            return f"workers: all {len(states)} have been {' or '.join(sorted(set(states)))}, not running,", remedy
        return None

    def _states(self, n_workers: int, timeout: float) -> list[str]:
        """The states of so many workers, of all for -1."""
        identity = self._client.sync(self._client.scheduler.identity, n_workers=n_workers, callback_timeout=timeout)
        return [worker["status"] for worker in identity["workers"].values()]


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "of the client, which was closed"

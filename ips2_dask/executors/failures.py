"""Failures of a cluster that end a run, as one-line errors: no scheduler, workers that stay away, lack of memory.

And what is known of a caller's client before: whether it can be waited for, and its workers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker, NoWorkerError

from ips2_dask.errors import BadInput, FatalTask, Lost

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

ANSWER_PERIOD = 0.5
"""Seconds between two looks at whether the wait for an answer is in vain."""


def patience_of(configured: float | None = None) -> float:
    """Seconds to wait for workers: Dask's own timeout if it is set, else ``configured``, else `PATIENCE`."""
    timeout = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(timeout)) if timeout is not None else configured or PATIENCE


@contextlib.contextmanager
def losses(
    client: Client, patience: float = PATIENCE, futures: Sequence[Future] | Callable[[], Sequence[Future]] = ()
) -> Iterator[Watch]:
    """Turn failures of the cluster in the ``with`` block into errors of one line, and end waiting that is in vain.

    ``futures``, or what they return: those that the block waits for. They are cancelled when no worker has been running
    for ``patience`` seconds. What is yielded waits for what else the block asks of the cluster. Raises `Lost` if the
    scheduler or all workers are gone, or a task got no memory in all of its tries; `FatalTask` if a task ended all
    workers that tried it.
    """
    watched = futures if callable(futures) else (lambda: futures) if futures else None
    watch = Watch(client, patience, watched)
    try:
        if client.status != "running":  # a task sent now would wait for a scheduler that may never come back
            raise CommClosedError(client.status)
        with watch:
            yield watch
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


class Watch:
    """A thread that cancels futures when no worker has been running, or the scheduler has not answered, for a while.

    ``error``: why they were cancelled.
    """

    def __init__(self, client: Client, patience: float, futures: Callable[[], Sequence[Future]] | None) -> None:
        self.error: Lost | None = None
        self._client, self._patience, self._futures = client, patience, futures
        self._ended = threading.Event()

    def __enter__(self) -> None:
        if self._futures is not None:
            threading.Thread(target=self._watch, args=(self._futures,), name="ips2-watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def result(self, request: Coroutine[Any, Any, Any]) -> Any:
        """The answer to a request, unless the wait for it is in vain.

        A request to a scheduler that has stopped waits for ever, and one to a scheduler that is gone for half a minute
        while its connection is tried again: the client itself knows at once. Raises `CommClosedError` if it is gone, or
        the thread has given up.
        """
        waiting = asyncio.run_coroutine_threadsafe(request, self._client.loop.asyncio_loop)
        while not waiting.done():
            concurrent.futures.wait([waiting], timeout=ANSWER_PERIOD)
            if not waiting.done() and (self.error is not None or self._client.status != "running"):
                waiting.cancel()
                raise CommClosedError(self._client.status)
        return waiting.result()

    def _watch(self, futures: Callable[[], Sequence[Future]]) -> None:
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
                    self._client.cancel(list(futures()), reason="no worker")
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


# ---- a caller's client


def check_client(client: object) -> None:
    """Refuse what is no client, or one that this thread could only wait for in vain, by `BadInput`; None passes."""
    if client is None:
        return
    if not isinstance(client, Client):
        found = repr(client) if isinstance(client, str) else f"an object of {type(client).__name__}"
        allowed, otherwise = "a distributed.Client", "nobody could be given tasks"
        raise BadInput("client", found, allowed, otherwise, "give client=Client(that address or cluster)")
    if client.status in ("closing", "closed"):
        raise BadInput(
            "client",
            "a client that was closed, or has lost its scheduler",
            "one that is connected",
            "nobody could be given tasks",
            "give client=Client(address), of a new scheduler if the old one is gone",
        )
    if client.asynchronous or not client.loop.asyncio_loop.is_running():
        raise BadInput(
            "client",
            "a client whose event loop would wait for this call, or has ended",
            "one with a loop of its own",
            "the call would wait for ever",
            "give client=Client(address), or await asyncio.to_thread(function, ...) while the loop runs",
        )


def known_workers(client: Client) -> dict[str, Any]:
    """The scheduler's record of each worker, by the worker's address: `Client.scheduler_info`, but asked for anew.

    That reads what the client's last question brought, and the client asks by itself every two seconds for everything
    but the workers. Raises `CommClosedError` if the scheduler does not answer.
    """
    try:
        found: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    except OSError as error:  # such as no connection in time
        raise CommClosedError(str(error)) from error
    return found

"""What a cluster can't make good, in one line: a scheduler that is gone, workers that don't come back, no memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker, NoWorkerError

from ips2_dask.errors import FatalTask, Lost

RETRIES = 2
"""How often a task that raised is tried again: memory may be short only while others run, a remote store only now.

An error that stays, such as a bad value in the input, comes to the user after so many tries.
"""

GONE = (CommClosedError, ClosedClientError, concurrent.futures.CancelledError, asyncio.CancelledError)
"""What Dask raises of futures and calls whose scheduler is gone."""

PATIENCE = 300.0
"""Seconds that tasks wait for a worker, or for a scheduler that says nothing, unless the cluster's config says others.

Dask itself waits for ever. Its ``distributed.scheduler.no-workers-timeout`` is obeyed where it is set.
"""

PERIOD = 5.0
"""Seconds between two looks at the workers."""


def patience_of(configured: float | None = None) -> float:
    """How long to wait for workers, in seconds."""
    given = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(given)) if given is not None else configured or PATIENCE


@contextlib.contextmanager
def losses(client: Client, patience: float = PATIENCE, futures: Sequence[Any] = ()) -> Iterator[None]:
    """Say in one line what a cluster could not make good, instead of waiting for it.

    Parameters
    ----------
    client : Client
    patience : float
        Seconds without a worker after which the futures are given up.
    futures : sequence of Future
        What is waited for while this lasts.

    Raises
    ------
    Lost
    """
    watch = _Watch(client, patience, futures)
    try:
        if client.status != "running":  # what is sent now would wait for a scheduler that may never come back
            raise CommClosedError(client.status)
        with watch:
            yield
    except MemoryError as error:
        raise Lost(
            f"workers: a task got no memory in each of {RETRIES + 1} tries ({error})",
            "give each worker more memory, by a larger memory_limit or fewer workers",
        ) from None
    except KilledWorker as error:
        raise FatalTask(error.task, error.allowed_failures + 1) from error
    except NoWorkerError as error:
        raise Lost(f"scheduler {_address(client)}: {error}", "start workers") from None
    except GONE:
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it would tell each attempt to reconnect
        if watch.found is not None:
            raise watch.found from None
        raise Lost(f"scheduler {_address(client)}: the connection is lost", "start a scheduler and workers") from None


class _Watch:
    """A thread that gives futures up when no worker has been at work for a while, or the scheduler says nothing."""

    def __init__(self, client: Client, patience: float, futures: Sequence[Any]) -> None:
        self.found: Lost | None = None
        self._client, self._patience, self._futures = client, patience, futures
        self._ended = threading.Event()

    def __enter__(self) -> None:
        if self._futures:
            threading.Thread(target=self._look, name="ips2-watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _look(self) -> None:
        period = min(PERIOD, self._patience / 4)
        since = time.monotonic()
        while not self._ended.wait(period) and self._client.status == "running":
            said = self._what_is_missing(period)
            if said is None:
                since = time.monotonic()
            elif time.monotonic() - since > self._patience and not self._ended.is_set():
                thing, remedy = said
                self.found = Lost(f"{thing} for {self._patience:g} s", remedy)
                with contextlib.suppress(Exception, *GONE):
                    self._client.cancel(self._futures, reason="no worker")
                return

    def _what_is_missing(self, period: float) -> tuple[str, str] | None:
        """What the tasks wait for, and what to do about it; None where a worker is at work."""
        try:
            known = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=period)
        except (Exception, *GONE):  # no answer in time, or whatever a client that is being closed raises
            return f"scheduler {_address(self._client)}: it has not answered", "end it, start a scheduler and workers"
        states = [worker["status"] for worker in known["workers"].values()]
        if not states:
            return f"scheduler {_address(self._client)}: it has had no worker", "start workers"
        if "running" not in states:
            remedy = "give each worker more memory, by a larger memory_limit or a smaller partition_rows"
            return f"workers: all {len(states)} have been {' or '.join(sorted(set(states)))}, not running,", remedy
        return None


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "of the client, which was closed"

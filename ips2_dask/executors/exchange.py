"""Rows of blocks that workers send one another, over the connections that Dask keeps between its workers.

Every worker of a solve has a mailbox. Another worker's rows arrive there by a handler of Dask's worker server, so that
address, encryption and limits are those of the cluster; the task that needs them waits for them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from distributed import Client, get_worker
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from numpy.typing import NDArray

Rows = NDArray[Any]
Label = tuple[int, int]
"""Number of a round, and of the operation in it."""

HANDLER = "ips2_receive_rows"
"""The operation of Dask's worker server that puts rows into a mailbox."""


class BlocksLost(Exception):
    """Blocks that a solve needs are gone with their worker: the solve goes on from its last checkpoint."""


class Mailbox:
    """Rows that have arrived for one worker of a solve.

    Parameters
    ----------
    key : str
        Name that is the solve's and the worker's own.
    """

    def __init__(self, key: str) -> None:
        self._rows: dict[tuple[Label, int], Rows] = {}
        self._changed = threading.Condition()
        self._closed: str | None = None
        _mailboxes[key] = self

    def put(self, label: Label, sender: int, rows: Rows) -> None:
        """Keep rows of a sender until they are taken."""
        with self._changed:
            self._rows[label, sender] = rows
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = reason
            self._changed.notify_all()

    def take(self, label: Label, sender: int, patience: float) -> Rows:
        """The rows of a sender, once they are there; in memory they may begin at any byte.

        Raises
        ------
        BlocksLost
            If they don't come in time, or the mailbox has been closed.
        """
        end = time.monotonic() + patience
        with self._changed:
            while (label, sender) not in self._rows:
                left = end - time.monotonic()
                if self._closed is not None or left <= 0:
                    raise BlocksLost(self._closed or f"worker {sender} has sent nothing for {patience:g} s")
                self._changed.wait(left)
            return self._rows.pop((label, sender))


_mailboxes: weakref.WeakValueDictionary[str, Mailbox] = weakref.WeakValueDictionary()


def mailbox_of(space: str, owner: int) -> str:
    """The key of the mailbox of one worker of a solve."""
    return f"{space}-{owner}"


async def _receive(mailbox: str, label: Sequence[int], sender: int, rows: Rows) -> str:
    """Put rows into a mailbox of this process, as a handler of Dask's worker server."""
    box = _mailboxes.get(mailbox)
    if box is None:
        return "no mailbox"
    first, second = label
    box.put((first, second), sender, np.asarray(rows))
    return "taken"


def open_handler() -> None:
    """Let this task's worker receive rows."""
    with contextlib.suppress(ValueError):  # no worker of Dask's: everything is in this process
        get_worker().handlers.setdefault(HANDLER, _receive)


class Sending:
    """Rows on their way to other workers.

    Parameters
    ----------
    space : str
    label : tuple of int
    sender : int
    rows : mapping
        By the number of the worker that gets them.
    addresses : sequence of str
        Of the workers, by their numbers.
    """

    def __init__(
        self, space: str, label: Label, sender: int, rows: Mapping[int, Rows], addresses: Sequence[str]
    ) -> None:
        self._future: concurrent.futures.Future[None] | None = None
        if not rows:
            return
        worker = get_worker()

        async def send(owner: int, some: Rows) -> None:
            answer = await getattr(worker.rpc(addresses[owner]), HANDLER)(
                mailbox=mailbox_of(space, owner), label=label, sender=sender, rows=to_serialize(some)
            )
            if answer != "taken":
                raise BlocksLost(f"worker {owner} at {addresses[owner]} has {answer}")

        async def send_all() -> None:
            await asyncio.gather(*(send(owner, some) for owner, some in rows.items()))

        self._future = asyncio.run_coroutine_threadsafe(send_all(), worker.loop.asyncio_loop)

    def wait(self, patience: float) -> None:
        """Wait until all of them have arrived.

        Raises
        ------
        BlocksLost
            If a worker can't be reached, or not in time.
        """
        if self._future is None:
            return
        try:
            self._future.result(patience)
        except (OSError, CommClosedError, TimeoutError, concurrent.futures.TimeoutError) as error:
            self._future.cancel()
            raise BlocksLost(f"rows could not be sent: {error!r}") from error


# ---- the end of waiting


def _close_here(keys: Sequence[str], reason: str) -> None:
    for key in keys:
        if (box := _mailboxes.get(key)) is not None:
            box.close(reason)


def close_mailboxes(client: Client, space: str, n_owners: int, reason: str) -> None:
    """Let no worker wait any longer for rows of a solve that has failed elsewhere."""
    keys = [mailbox_of(space, owner) for owner in range(n_owners)]
    with contextlib.suppress(Exception):  # a worker that is gone has nobody who waits
        client.run(_close_here, keys, reason, on_error="ignore")


class LossWatch:
    """Calls a function when one of some workers leaves the cluster.

    The scheduler tells it: nobody else would learn of it, since the other workers wait for that one's rows, and its own
    task is queued behind theirs.

    Parameters
    ----------
    client : distributed.Client
    addresses : sequence of str
        Of the workers.
    on_loss : callable
        Gets the address, in a thread of its own, once.
    """

    def __init__(self, client: Client, addresses: Sequence[str], on_loss: Callable[[str], None]) -> None:
        self._client, self._addresses, self._on_loss = client, tuple(addresses), on_loss
        self._lock, self._active = threading.Lock(), True
        for address in self._addresses:
            with _watches_lock:
                watches = _watches.setdefault((client.id, address), weakref.WeakSet())
                watches.add(self)
            client.subscribe_topic(address, _Events(client.id, address))

    def tell(self, address: str) -> None:
        """Call the function, unless that was done before."""
        with self._lock:
            active, self._active = self._active, False
        if active:
            threading.Thread(target=self._on_loss, args=(address,), name="ips2-loss", daemon=True).start()

    def close(self) -> None:
        """Call the function no longer."""
        with self._lock:
            self._active = False
        for address in self._addresses:
            with _watches_lock:
                watches = _watches.get((self._client.id, address))
                if watches is None:
                    continue
                watches.discard(self)
                if watches:
                    continue
                del _watches[self._client.id, address]
            if self._client.status == "running":
                with contextlib.suppress(ValueError):
                    self._client.unsubscribe_topic(address)


class _Events:
    """Receives what the scheduler tells of one worker."""

    def __init__(self, client: str, address: str) -> None:
        self._client, self._address = client, address

    def __call__(self, event: tuple[float, Mapping[str, object]]) -> None:
        if event[1].get("action") == "remove-worker":
            with _watches_lock:
                watches = list(_watches.get((self._client, self._address), ()))
            for watch in watches:
                watch.tell(self._address)


_watches: dict[tuple[str, str], weakref.WeakSet[LossWatch]] = {}
_watches_lock = threading.Lock()


# ---- what a task may ask of its worker


def scratch_folder() -> str | None:
    """The folder for files of this task's worker; None for the system's, where no worker of Dask's runs it."""
    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


def worker_threads() -> int:
    """Threads of this task's worker, 1 where no worker of Dask's runs it."""
    try:
        return int(get_worker().state.nthreads)
    except ValueError:
        return 1


def is_short_of_memory() -> bool:
    """Whether this process's worker may be writing results to disk for lack of memory."""
    try:
        manager = get_worker().memory_manager
    except ValueError:
        return False
    fraction = manager.memory_spill_fraction
    used = psutil.Process().memory_info().rss
    return bool(manager.memory_limit and fraction and used > fraction * manager.memory_limit)

"""A run waits for workers whose memory suffices for its plan: the jobs of a batch system start one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from distributed import Client

from ips2_dask.errors import BadInput

PERIOD = 0.2
"""Seconds between two looks at the number of workers, each a message of some hundred bytes."""


class Present(NamedTuple):
    """The workers that a scheduler knows."""

    workers: int
    memory: int  # bytes of all together; 0 where they have no limit

    @property
    def each(self) -> int:
        """Bytes of one worker: those of a cluster are alike."""
        return self.memory // max(self.workers, 1)


def present(client: Client) -> Present:
    """The number of workers and their memory, without the state of each."""
    identity = client.scheduler_info(n_workers=0)
    return Present(identity["n_workers"], int(identity["total_memory"]))


def wait_for_workers(client: Client, needed_bytes: Callable[[int], int], n_workers: int, patience: float) -> Present:
    """Wait until the workers that are there could do the whole run, or all that were asked for are there.

    Parameters
    ----------
    client : Client
    needed_bytes : callable
        The bytes that each worker needs where so many share the run: `Plan.worker_bytes` of a plan for that number.
        Where block vectors are in chunks it falls with the number, so that the memory of all together must suffice.
    n_workers : int
        Workers that were asked for: there will not be more.
    patience : float
        Seconds until they must be enough.

    Returns
    -------
    Present
        The workers that are there.

    Raises
    ------
    BadInput
        If they are still too few for the run after ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while True:
        there = present(client)
        if there.workers >= max(1, n_workers):
            return there
        if there.workers and (not there.memory or needed_bytes(there.workers) <= there.each):
            return there
        if time.monotonic() > end:
            raise _too_few(there, needed_bytes, n_workers, patience)
        time.sleep(PERIOD)


def _too_few(there: Present, needed_bytes: Callable[[int], int], n_workers: int, patience: float) -> BadInput:
    found = f"{there.workers} of {n_workers} workers after {patience:g} s"
    if there.workers:
        found += f", which have {there.each / 2**30:.2f} GiB each where so few need {_gib(needed_bytes, there.workers)}"
    return BadInput(
        "timeout", found, f"workers whose memory suffices; all together need {_gib(needed_bytes, n_workers)} each",
        "they would be killed in mid-run", "look at the jobs' logs and the queue, raise timeout or worker.memory, and "
        "run the same command again",
    )  # fmt: skip


def _gib(needed_bytes: Callable[[int], int], workers: int) -> str:
    return f"{needed_bytes(workers) / 2**30:.2f} GiB"

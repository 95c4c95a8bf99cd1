"""A run waits for workers whose memory suffices for its plan: the jobs of a batch system start one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from distributed import Client

from ips2_dask.errors import BadInput, Refused
from ips2_dask.plan.checks import keeps_limit
from ips2_dask.plan.memory import USABLE

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


Needed = Callable[[int, int | None], int]
"""The bytes that each of so many workers needs which may use so many bytes each, None without a limit."""


def wait_for_workers(client: Client, needed_bytes: Needed, n_workers: int | None, patience: float) -> Present:
    """Wait until the workers that are there could do the whole run, or all that were asked for are there.

    Parameters
    ----------
    client : Client
    needed_bytes : callable
        The bytes that each worker needs where so many of a limit share the run: `Plan.worker_bytes` of a plan for them.
        Where block vectors are in chunks it falls with the number, so that the memory of all together must suffice.
    n_workers : int, optional
        Workers that were asked for: there will not be more. None where others start them, nobody knows how many.
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
    Refused
        If all that were asked for are there, and may use less memory than their plan needs.
    """
    end = time.monotonic() + patience
    while True:
        there = present(client)
        limit = there.each or None
        if there.workers and keeps_limit(needed_bytes(there.workers, limit), limit, "worker"):
            return there
        if n_workers is not None and there.workers >= max(1, n_workers):
            raise _too_small(there, needed_bytes)
        if time.monotonic() > end:
            raise _too_few(there, needed_bytes, n_workers, patience)
        time.sleep(PERIOD)


def _too_small(there: Present, needed_bytes: Needed) -> Refused:
    return Refused(
        f"workers: each of the {there.workers} may use {there.each / 2**30:.2f} GiB, {USABLE:g} of which a plan counts "
        f"on, and needs {_gib(needed_bytes, there.workers, there.each)}, so it would be killed. Remedy: give them more "
        "memory, or start more of them."
    )


def _too_few(there: Present, needed_bytes: Needed, n_workers: int | None, patience: float) -> BadInput:
    of_all = "" if n_workers is None else f" of {n_workers}"
    found, limit = f"{there.workers}{of_all} workers after {patience:g} s", there.each or None
    if there.workers:
        needed = _gib(needed_bytes, there.workers, limit)
        found += f", which have {there.each / 2**30:.2f} GiB each where so few need {needed}"
    all_need = "" if n_workers is None else f"; all together need {_gib(needed_bytes, n_workers, limit)} each"
    return BadInput(
        "timeout",
        found,
        f"workers whose memory suffices{all_need}",
        "they would be killed in mid-run",
        "look at the jobs' logs and the queue, raise timeout or worker.memory, and run the same command again",
    )


def _gib(needed_bytes: Needed, workers: int, limit: int | None) -> str:
    return f"{needed_bytes(workers, limit) / 2**30:.2f} GiB"

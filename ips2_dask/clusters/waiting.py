"""A run waits for workers whose memory suffices for its plan: the jobs of a batch system start one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from distributed import Client

from ips2_dask.errors import BadInput, Refused
from ips2_dask.plan.checks import keeps_limit
from ips2_dask.plan.memory import USABLE


class Present(NamedTuple):
    """The workers that a scheduler knows, and the bytes of all together, 0 where they have no limit."""

    workers: int
    memory: int

    @property
    def each(self) -> int:
        """Bytes of one worker: those of a cluster are alike."""
        return self.memory // max(self.workers, 1)


Needed = Callable[[int, int | None], int]
"""The bytes that each of so many workers needs which may use so many bytes each, None without a limit."""


def wait_for_workers(client: Client, needed_bytes: Needed, n_workers: int | None, patience: float) -> Present:
    """Wait until the workers that are there, which it returns, could do the whole run; or all that will come are there.

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

    Raises
    ------
    BadInput
        If they are still too few for the run after ``patience`` seconds.
    Refused
        If all that were asked for are there, and may use less memory than their plan needs.
    """
    end = time.monotonic() + patience
    while True:
        identity = client.scheduler_info(n_workers=0)  # without the state of each worker
        there = Present(identity["n_workers"], int(identity["total_memory"]))
        limit = there.each or None
        if there.workers and keeps_limit(needed_bytes(there.workers, limit), limit, "worker"):
            return there
        if n_workers is not None and there.workers >= max(1, n_workers):
            needed = _gib(needed_bytes(there.workers, there.each))
            raise Refused(
                f"workers: each of the {there.workers} may use {_gib(there.each)}, {USABLE:g} of which a plan counts "
                f"on, and needs {needed}, so it would be killed. Remedy: give them more memory, or start more of them."
            )
        if time.monotonic() > end:
            raise _too_few(there, needed_bytes, n_workers, patience)
        time.sleep(0.2)  # each look is a message of some hundred bytes


def _too_few(there: Present, needed_bytes: Needed, n_workers: int | None, patience: float) -> BadInput:
    of_all = "" if n_workers is None else f" of {n_workers}"
    found, limit = f"{there.workers}{of_all} workers after {patience:g} s", there.each or None
    if there.workers:
        found += f", which have {_gib(there.each)} each where so few need {_gib(needed_bytes(there.workers, limit))}"
    all_need = "" if n_workers is None else f"; all together need {_gib(needed_bytes(n_workers, limit))} each"
    remedy = "look at the jobs' logs and the queue, raise timeout or worker.memory, and run the same command again"
    allowed = f"workers whose memory suffices{all_need}"
    return BadInput("timeout", found, allowed, "they would be killed in mid-run", remedy)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

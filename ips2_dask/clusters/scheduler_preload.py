"""A preload for schedulers on other hosts: it closes a scheduler, and so its workers, when no client is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dask
from dask.utils import parse_timedelta
from tornado.ioloop import PeriodicCallback

if TYPE_CHECKING:
    from distributed import Scheduler

TIMEOUT_KEY = "ips2.alone"
"""In Dask's configuration (``DASK_IPS2__ALONE``): how long a scheduler waits for a client before it ends."""

DEFAULT_TIMEOUT = "5 minutes"
SCHEDULER_CLIENT = "fire-and-forget"
"""The name under which a scheduler lists itself among its clients."""


def dask_setup(scheduler: Scheduler) -> None:
    """Start a periodic check for clients; Dask calls this in the scheduler's process."""
    timeout = float(parse_timedelta(dask.config.get(TIMEOUT_KEY, DEFAULT_TIMEOUT)))
    last_client = time.monotonic()

    def check() -> None:
        nonlocal last_client
        now = time.monotonic()
        if set(scheduler.clients) - {SCHEDULER_CLIENT}:
            last_client = now
        elif now - last_client > timeout:
            scheduler.loop.add_callback(scheduler.close, reason="no client came back")

    # every tenth of the timeout, in milliseconds
    scheduler.periodic_callbacks["ips2-alone"] = PeriodicCallback(check, 100 * timeout)

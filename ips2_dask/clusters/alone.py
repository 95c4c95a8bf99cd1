"""A preload for schedulers on other hosts: one whose driver died ends, and its workers with it, so that none stay."""

from __future__ import annotations

import time
from typing import Any

import dask
from dask.utils import parse_timedelta
from tornado.ioloop import PeriodicCallback

PATIENCE = "ips2.alone"
"""In Dask's configuration (``DASK_IPS2__ALONE``): how long a scheduler waits for a client before it ends."""

DEFAULT = "5 minutes"
OWN = "fire-and-forget"
"""What the scheduler itself is called among its clients."""


def dask_setup(scheduler: Any) -> None:
    """Look now and then whether there is a client; Dask calls this in the scheduler's process."""
    patience = float(parse_timedelta(dask.config.get(PATIENCE, DEFAULT)))
    since = time.monotonic()

    def look() -> None:
        nonlocal since
        now = time.monotonic()
        if set(scheduler.clients) - {OWN}:
            since = now
        elif now - since > patience:
            scheduler.loop.add_callback(scheduler.close, reason="no client came back")

    scheduler.periodic_callbacks["ips2-alone"] = PeriodicCallback(look, 100 * patience)

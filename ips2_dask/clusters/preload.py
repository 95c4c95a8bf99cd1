"""A preload of processes that runs start: workers of this machine are prepared, schedulers end without a client."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import sys
import time

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler, Worker
from tornado.ioloop import PeriodicCallback

from ips2_dask.executors.process_memory import limit_memory

TIMEOUT_KEY, DEFAULT_TIMEOUT = "ips2.alone", "5 minutes"
"""In Dask's configuration (``DASK_IPS2__ALONE``): how long a scheduler waits for a client before it ends."""

SCHEDULER_CLIENT = "fire-and-forget"
"""The name under which a scheduler lists itself among its clients."""


def dask_setup(server: Scheduler | Worker) -> None:
    """Prepare a scheduler or a worker; Dask calls this in its process.

    Dask's configuration names this preload for as long as a local cluster lasts, so that a cluster of threads which the
    user starts meanwhile has it too. A worker without a nanny is one of those: its process is the user's.
    """
    if isinstance(server, Scheduler):
        _end_alone(server)
    elif server.nanny is not None:
        _prepare(server)


def _end_alone(scheduler: Scheduler) -> None:
    """Close a scheduler, and so its workers, some time after its last client has gone."""
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


def _prepare(worker: Worker) -> None:
    """Import what tasks need, limit the memory, log nothing, and exit quickly; before the worker registers.

    The operating system limits the memory: Dask only checks a few times a second, so a worker that allocates more than
    its limit at once would be killed between two checks; now it gets a MemoryError. Errors of tasks are raised in the
    client, and others are of connections that a stopped run has closed. The finalization of an interpreter takes most
    of a second; forked processes do without it, too.
    """
    import ips2_dask.executors.base  # noqa: F401, PLC0415 - so that no stage's time includes imports

    if worker.memory_manager.memory_limit:
        limit_memory(int(worker.memory_manager.memory_limit))
    for name in ("distributed.worker", "distributed.core", "distributed.comm", "distributed.protocol"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # a message too large for the memory is critical
    multiprocessing.util.Finalize(None, _leave, exitpriority=-1000)  # runs last


def _leave() -> None:
    if sys.exc_info()[0] is None:  # an error should still be shown
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

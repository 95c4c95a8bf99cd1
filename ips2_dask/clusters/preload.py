"""Prepares a worker of a local cluster before it registers, so that no stage's time holds imports."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import sys
from typing import Any

from ips2_dask.executors import base
from ips2_dask.executors.process_memory import limit_memory

__all__ = ["base", "dask_setup"]  # importing base imports what tasks need


def dask_setup(worker: Any) -> None:
    """Prepare a worker; Dask calls this.

    It logs no errors: those of a task come back to the client, and the others are of connections that a run which
    stops has closed. And the process ends without taking the interpreter apart, which takes most of a second; that is
    how forked processes end, too. Dask looks at a worker's memory a few times a second, so one that asks for more at
    once than its limit, or the machine, has would be killed before it looks: it is told so instead.
    """
    if worker.memory_manager.memory_limit:
        limit_memory(int(worker.memory_manager.memory_limit))
    for name in ("distributed.worker", "distributed.core", "distributed.comm", "distributed.protocol"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # a message that gets no memory is logged as critical
    multiprocessing.util.Finalize(None, _leave, exitpriority=-1000)  # the last of all


def _leave() -> None:
    if sys.exc_info()[0] is None:  # an error should still be shown
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

"""A preload for workers of a local cluster: imports, memory limit, logging and a quick exit."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import sys
from typing import TYPE_CHECKING

from ips2_dask.executors import base
from ips2_dask.executors.process_memory import limit_memory

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["base", "dask_setup"]  # importing base imports what tasks need


def dask_setup(worker: Worker) -> None:
    """Prepare a worker; Dask calls this before the worker registers, so that no stage's time includes imports.

    - The operating system limits the worker's memory. Dask only checks a few times a second, so a worker that allocates
      more than its limit at once would be killed between two checks; now it gets a MemoryError.
    - The worker logs no errors: those of tasks are raised in the client, and the others are of connections that a
      stopped run has closed.
    - The process exits without the finalization of the interpreter, which takes most of a second, as forked processes
      do.

    All this is of a process that is a worker and nothing else. Dask's configuration has the preload for as long as the
    cluster lasts, so that a cluster of threads which the user starts meanwhile gets it too; its process is the user's.
    """
    if worker.nanny is None:
        return
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

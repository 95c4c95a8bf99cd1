"""Processes that runs start: what all managers set for workers, and the preload by which they get ready.

As a preload it prepares workers of this machine, and ends schedulers that have no client.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import sys
import time
from collections.abc import Mapping

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler, Worker
from tornado.ioloop import PeriodicCallback

from ips2_dask.clusters.config import Config, Queue
from ips2_dask.errors import BadInput
from ips2_dask.executors.process_memory import limit_memory

WARM = "ips2_dask.pipeline.compile_kernels"
"""The preload that compiles the kernels, once on each node."""

PRELOAD = "ips2_dask.clusters.workers"
"""The preload of workers on this machine, and of schedulers on others."""

PATIENCE = 300
"""Seconds that a worker may take to start, which includes compiling the kernels, and to find its scheduler."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

MALLOC = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(256 << 20))
"""glibc's thresholds, in bytes: free memory that is returned to the system, and arrays with a mapping of their own.

They are more than a chunk's block in most runs, so that a product reuses the memory of the one before. Dask returns
freed memory at once, which suits tasks on tables of small objects. The tasks of a run allocate and free arrays of
megabytes all the time, and new pages took a quarter of a solve's time (200,000 x 64, two workers).
"""


def environment(config: Config) -> dict[str, str]:
    """Environment of a worker process: BLAS, OpenMP and Numba use one thread, and freed memory stays in the process."""
    return {**dict.fromkeys(THREADS, "1"), **MALLOC, **config.worker.environment}


MEMORY = {
    "distributed.worker.memory.target": (0.60, 0.60),
    "distributed.worker.memory.spill": (0.70, 0.70),
    "distributed.worker.memory.pause": (0.80, False),
    "distributed.worker.memory.terminate": (0.95, 0.95),
}
"""Dask's defaults, and the values for workers that are started here, which replace them unless the user has set others.

target, spill: the shares of its limit at which a worker writes results to disk, by their own sizes and by the memory of
the process. They are here so that workers on other machines get what the user has set.
pause: a worker that began no task above this share could stay so for ever, since caches are freed by tasks alone.
terminate: the share at which the nanny ends the worker and starts another.
"""


LOGS = {"distributed.admin.low-level-log-length": (1000, 100)}
"""As `MEMORY`: how many of the messages to each worker a scheduler keeps for Dask's developers, with the tasks in them.

With a thousand of them its memory grows with the tasks until a thousand messages are sent to each worker.
"""


def settings(table: Mapping[str, tuple[object, object]]) -> dict[str, object]:
    """Dask's configuration by a table such as `MEMORY`, for processes that inherit it."""
    found = {key: dask.config.get(key) for key in table}
    return {key: own if found[key] == default else found[key] for key, (default, own) in table.items()}


def as_environment(table: Mapping[str, tuple[object, object]]) -> dict[str, str]:
    """The same as environment variables, for ``dask`` commands on machines that inherit nothing."""
    names = {key: f"DASK_{key.replace('.', '__').replace('-', '_').upper()}" for key in table}
    return {names[key]: str(value) for key, value in settings(table).items()}


def preloads(config: Config) -> list[str]:
    """Modules that a worker imports before it registers."""
    return [*([WARM] if config.worker.warm else []), *config.worker.preload]


INSTANTS = 4
"""Instants of a longest life at which workers leave, two of them for each worker: it lives half as long at least."""

LIFETIME = "ips2_lifetime"
"""The shell variable of a job's script with the seconds for which its workers live."""


def lifetime_lines(machine: Queue) -> list[str]:
    """The lines of a job's script that set `LIFETIME`, after which a worker hands over its results and closes.

    A solve in chunks goes back to its last checkpoint whenever workers leave, so they leave together: at instants of
    the clock that all jobs share, `INSTANTS` of them in a longest life, whenever a job has started. Lives that ended
    one by one would interrupt 200 workers every few seconds. Each job takes one of the last two instants of its life by
    lot, so that others stay while new jobs take the place of those that leave. The last worker has closed a margin
    before its job is killed. No task may take longer than half of that life, or it could begin again for ever.
    """
    longest = machine.walltime - machine.margin
    step = longest // INSTANTS
    return [
        "ips2_now=$(date +%s)",
        f"{LIFETIME}=$(( (ips2_now + {longest}) / {step} * {step} - RANDOM % 2 * {step} - ips2_now ))",
    ]


def arguments(config: Config) -> list[str]:
    """Arguments of ``dask worker``: no dashboard, and the preloads."""
    return ["--no-dashboard", *(word for module in preloads(config) for word in ("--preload", module))]


def local_scratch(scratch: str | None) -> str | None:
    """The scratch folder on this machine, made if it is missing."""
    if scratch is None:
        return None
    folder = os.path.expanduser(os.path.expandvars(scratch))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        found = f"{folder!r}, which can't be made ({error.strerror})"
        otherwise, remedy = "workers could not spill", "give another one, or leave it out"
        raise BadInput("scratch", found, "a folder that this user may write to", otherwise, remedy) from error
    return folder


# ---- the preload

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

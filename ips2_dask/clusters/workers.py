"""Settings of worker processes that all managers share: environment, preloads, arguments, lifetime and scratch."""

from __future__ import annotations

import os

from ips2_dask.clusters.config import Config, Queue
from ips2_dask.errors import BadInput

WARM = "ips2_dask.pipeline.compile_kernels"
"""The preload that compiles the kernels, once on each node."""

PATIENCE = 300
"""Seconds that a worker may take to start, which includes compiling the kernels, and to find its scheduler."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
"""glibc's thresholds, in bytes: free memory that is returned to the system, and arrays with a mapping of their own."""

FREE_BYTES = 256 << 20
"""More than a chunk's block in most runs, so that a product reuses the memory of the one before."""


def environment(config: Config) -> dict[str, str]:
    """Environment of a worker process: BLAS, OpenMP and Numba use one thread, and freed memory stays in the process.

    Dask returns freed memory at once, which suits tasks on tables of small objects. The tasks of a run allocate and
    free arrays of megabytes all the time, and new pages took a quarter of a solve's time (200,000 x 64, two workers).
    """
    return {**dict.fromkeys(THREADS, "1"), **dict.fromkeys(MALLOC, str(FREE_BYTES)), **config.worker.environment}


def preloads(config: Config) -> list[str]:
    """Modules that a worker imports before it registers."""
    return [*([WARM] if config.worker.warm else []), *config.worker.preload]


def lifetime(machine: Queue) -> tuple[int, int]:
    """Seconds after which a worker hands over its results and closes, and the stagger of that time.

    Dask adds a random time between minus and plus the stagger, so that workers which started together don't close
    together; the latest closes half a margin before the job is killed.
    """
    stagger = machine.margin // 2
    return machine.walltime - machine.margin, stagger


def arguments(config: Config) -> list[str]:
    """Arguments of ``dask worker``: no dashboard, and the preloads."""
    words = ["--no-dashboard"]
    for module in preloads(config):
        words += ["--preload", module]
    return words


def local_scratch(scratch: str | None) -> str | None:
    """The scratch folder on this machine, made if it is missing.

    Raises
    ------
    BadInput
        If it can't be made.
    """
    if scratch is None:
        return None
    folder = os.path.expanduser(os.path.expandvars(scratch))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise BadInput(
            "scratch", f"{folder!r}, which can't be made ({error.strerror})", "a folder that this user may write to",
            "workers would have no place for what memory does not hold", "give another one, or leave it out",
        ) from error  # fmt: skip
    return folder

"""What every worker process is given, whoever starts it: environment, preloads, memory, scratch, lifetime."""

from __future__ import annotations

import os

from ips2_dask.clusters.config import Config, Queue
from ips2_dask.errors import BadInput

WARM = "ips2_dask.pipeline.compile_kernels"
"""The preload that compiles the kernels once a node."""

PATIENCE = 300
"""Seconds that a worker may take to start, which is when it compiles the kernels, or look for its scheduler."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
"""Of glibc: free bytes from which memory is given back, and bytes of an array that gets a mapping of its own."""

KEPT_BYTES = 256 << 20
"""More than a chunk's block in most runs, so that the memory of one product serves the next."""


def environment(config: Config) -> dict[str, str]:
    """Environment of a worker process: BLAS, OpenMP and Numba start no threads of their own, and freed memory is kept.

    Dask has it given back at once, for tasks whose results are tables of small objects; ours make and free arrays of
    megabytes all the time, and to be given fresh pages took a quarter of a solve's time (200,000 x 64, two workers).
    """
    return {**dict.fromkeys(THREADS, "1"), **dict.fromkeys(MALLOC, str(KEPT_BYTES)), **config.worker.environment}


def preloads(config: Config) -> list[str]:
    """Modules that a worker imports before it registers."""
    return [*([WARM] if config.worker.warm else []), *config.worker.preload]


def lifetime(machine: Queue) -> tuple[int, int]:
    """Seconds after which a worker hands over its results and leaves, and the stagger around them.

    The stagger is drawn from minus to plus its value, so that workers which started together don't leave together;
    the latest leaves half a margin before the job is killed.
    """
    stagger = machine.margin // 2
    return machine.walltime - machine.margin, stagger


def arguments(config: Config) -> list[str]:
    """Of ``dask worker``: one task at a time, its dashboard on no port of others."""
    out = ["--no-dashboard"]
    for module in preloads(config):
        out += ["--preload", module]
    return out


def local_scratch(scratch: str | None) -> str | None:
    """The scratch folder on this machine, made if it is missing.

    Raises
    ------
    BadInput
        Where it can't be made.
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

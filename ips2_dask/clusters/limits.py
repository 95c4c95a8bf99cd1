"""The memory that a run's worker and driver processes may use, as far as the config of its cluster says."""

from __future__ import annotations

import os

import psutil

from ips2_dask.clusters.config import Config, Queue
from ips2_dask.clusters.worker_count import expected_workers
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources, parse_bytes
from ips2_dask.plan.memory import USABLE

DRIVER_MEMORY = "IPS2_DRIVER_MEMORY"
"""The environment variable in which a job of `ips2 submit` tells its driver the bytes that the driver may use."""

SHARE_FOR_BLOCKS = 0.5
"""Share of this machine's memory that its workers may have together before they keep blocks of vectors in files. The
other half is the driver's, other programs', and the system's, whose cache holds what the workers read and write."""


def submitted_driver_memory(config: Config) -> int | None:
    """Bytes that the driver of a job of `ips2 submit` may use; None where the config does not limit it.

    On a batch system the scheduler is in the driver's process, and in the plan's peak of the driver. On Kubernetes it
    has a pod of its own, as large as the driver's. Elsewhere the driver's machine sets the limit.
    """
    limited = isinstance(config.machine, Queue) or config.manager == "kubernetes"
    return config.driver.memory if limited else None


def memory_limits(config: Config) -> tuple[int | None, int | None, int | None]:
    """The bytes of a worker, of the driver, and of a scheduler that is a process of its own.

    Parameters
    ----------
    config : Config

    Returns
    -------
    worker : int or None
        ``worker.memory``; None where the config leaves it to a share of the machine, or to who started the workers.
    driver : int or None
        That of the job in which this process is the driver; None for a command that was not submitted, which may use
        what its machine has.
    scheduler : int or None
        That of its pod on Kubernetes, which is as large as a driver's. Elsewhere its machine sets the limit.
    """
    own = os.environ.get(DRIVER_MEMORY)
    scheduler = config.driver.memory if config.manager == "kubernetes" else None
    return config.worker.memory, None if own is None else parse_bytes(own, DRIVER_MEMORY), scheduler


def limits_of(resources: Resources) -> tuple[int | None, int | None, int | None]:
    """The bytes of a worker, of the driver and of a scheduler of its own; as of `memory_limits`.

    ``resources.memory_limit`` is a limit of each worker and of the driver.
    """
    limit = parse_bytes(resources.memory_limit)
    if resources.cluster is None and resources.scheduler is None:
        own = os.environ.get(DRIVER_MEMORY)
        worker, driver, scheduler = limit, None if own is None else parse_bytes(own, DRIVER_MEMORY), None
    else:
        from ips2_dask.clusters.connect import config_of  # noqa: PLC0415  it loads Dask, and most runs name no cluster

        worker, driver, scheduler = memory_limits(config_of(resources))
    return worker, min((one for one in (limit, driver) if one is not None), default=None), scheduler


def limit_for_blocks(resources: Resources) -> int | None:
    """The bytes of a worker above which it keeps blocks of vectors in files; None where nothing says.

    It is the limit that was given. Without one, local workers, no more of them than cores, share `SHARE_FOR_BLOCKS` of
    the machine's memory: they may exceed it by what can't be in files. A plan counts on all of that, since Dask writes
    nothing to disk where it knows no limit. More workers are those of a plan for machines that are not there.
    """
    given, *_ = limits_of(resources)
    if given is not None or resources.cluster is not None or resources.scheduler is not None:
        return given
    n_workers = expected_workers(resources)
    if n_workers > usable_cores():
        return None
    return int(SHARE_FOR_BLOCKS * psutil.virtual_memory().total / n_workers / USABLE)

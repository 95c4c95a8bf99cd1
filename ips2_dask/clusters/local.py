"""A cluster of processes on this machine, which ends with the block that uses it."""

from __future__ import annotations

import contextlib
import multiprocessing.resource_tracker
import signal
from collections.abc import Iterator
from typing import Any

import dask
from distributed import Client, LocalCluster

from ips2_dask.clusters import tls, workers
from ips2_dask.clusters.config import MOST_WORKERS, Config
from ips2_dask.kernels.parallel import usable_cores

PRELOAD = "ips2_dask.clusters.worker_preload"


def options(config: Config) -> dict[str, Any]:
    """What `LocalCluster` is given: on 127.0.0.1 unless the config says another host."""
    return {
        "n_workers": config.workers or (config.adaptive or _Few).minimum or min(MOST_WORKERS, usable_cores()),
        "threads_per_worker": 1,
        "processes": True,
        "host": config.bind.host or (None if config.bind.interface else "127.0.0.1"),
        "interface": config.bind.interface,
        "scheduler_port": config.bind.port,
        "dashboard_address": config.bind.dashboard,
        "memory_limit": config.worker.memory or "auto",
        "protocol": "tls://" if config.tls else None,
        "silence_logs": 40,
    }


class _Few:
    minimum = 0


def settings(config: Config) -> dict[str, Any]:
    """Dask's configuration while the cluster lasts."""
    return {
        "distributed.nanny.pre-spawn-environ": workers.environment(config),
        "distributed.worker.daemon": False,
        "distributed.worker.preload": [PRELOAD, *workers.preloads(config)],
        "distributed.comm.timeouts.connect": "30s",
        **tolerant(),
    }


TOLERANT = {
    "distributed.scheduler.worker-ttl": ("5 minutes", "60s"),
    "distributed.deploy.lost-worker-timeout": ("15s", "1000 days"),
}
"""Dask's own values, and those of a local cluster.

How long a worker may be silent before it is replaced: Dask's five minutes are for networks. And how long after a death
a cluster waits for its replacement before it gives up the nanny that starts it: on a busy machine, or when the next one
dies as well, fifteen seconds are soon over, and the cluster would go on with one worker less, or with none.

Whoever sets them to anything else is obeyed.
"""


def tolerant() -> dict[str, Any]:
    """Settings with which a local cluster replaces every worker that dies, and silent ones soon."""
    return {
        key: ours if dask.config.get(key) == dasks else dask.config.get(key) for key, (dasks, ours) in TOLERANT.items()
    }


def preview(config: Config) -> str:
    """What would be started, in words."""
    chosen = options(config)
    where = chosen["host"] or chosen["interface"]
    return f"{chosen['n_workers']} worker processes of this machine, scheduler on {where}, one task each at a time"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start the cluster and a client of it; both end with the stack."""
    stack.enter_context(dask.config.set(settings(config)))
    secured = tls.security(config.tls)
    with _deaf_children():
        cluster = LocalCluster(
            **options(config), security=secured, local_directory=workers.local_scratch(config.worker.scratch)
        )
        stack.enter_context(cluster)
        if config.adaptive is not None:
            cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
    return stack.enter_context(Client(cluster, security=secured, set_as_default=False))


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """While this lasts, threads that start, and the processes that these start, don't hear Ctrl-C.

    A terminal sends it to all processes at once. The client hears it (once the workers are there), and ends them.
    """
    multiprocessing.resource_tracker.ensure_running()  # which else would undo the mask when the first process starts
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if heard is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)

"""A cluster of processes on this machine, through Dask's LocalCluster."""

from __future__ import annotations

import ast
import contextlib
import inspect
import multiprocessing.resource_tracker
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import dask
from distributed import Client, LocalCluster

from ips2_dask.clusters import tls, workers
from ips2_dask.clusters.config import Config
from ips2_dask.clusters.resources import MOST_WORKERS
from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores

LATE = ("NUMBA_NUM_THREADS",)
"""Variables that workers get once they have started."""


def options(config: Config) -> dict[str, object]:
    """The arguments of `LocalCluster`, which listens on 127.0.0.1 unless the config names another host."""
    least = config.adaptive.minimum if config.adaptive is not None else 0
    return {
        "n_workers": config.workers or least or min(MOST_WORKERS, usable_cores()),
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


def settings(config: Config) -> dict[str, object]:
    """Dask's configuration while the cluster lasts.

    Before a nanny starts a worker it sets ``pre-spawn-environ`` in its own process, which here is the user's. Numba
    looks at its variable whenever it compiles, and fails in a process whose threads have started, as UMAP starts them:
    workers get that one after they have started, which is early enough for Numba.
    """
    environment = workers.environment(config)
    late = {name: environment.pop(name) for name in LATE}
    return {
        "distributed.nanny.pre-spawn-environ": environment,
        "distributed.nanny.environ": {**dask.config.get("distributed.nanny.environ", {}), **late},
        "distributed.worker.daemon": False,
        "distributed.worker.preload": [workers.PRELOAD, *workers.preloads(config)],
        "distributed.comm.timeouts.connect": "30s",
        **workers.settings({**workers.MEMORY, **workers.LOGS, **TIMEOUTS}),
    }


TIMEOUTS = {
    "distributed.scheduler.worker-ttl": ("5 minutes", "60s"),
    "distributed.deploy.lost-worker-timeout": ("15s", "1000 days"),
}
"""As `workers.MEMORY`, for a local cluster.

worker-ttl: how long a worker may be silent before it is replaced; Dask's five minutes are for networks.
lost-worker-timeout: how long a cluster waits for the nanny of a dead worker to replace it. On a busy machine, or if the
replacement dies too, Dask's fifteen seconds pass, and the cluster would go on with one worker less, or with none.
"""


def preview(config: Config) -> str:
    """The cluster that would be started, in words."""
    arguments = options(config)
    where = arguments["host"] or arguments["interface"]
    return f"{arguments['n_workers']} worker processes of this machine, scheduler on {where}, one task each at a time"


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Start the cluster and a client of it; both end with the stack."""
    _check_main()
    before = {name: os.environ.get(name) for name in workers.environment(config)}
    stack.callback(_restore_environment, before)  # nannies have changed it again if they have replaced workers
    stack.enter_context(dask.config.set(settings(config)))
    security = tls.security(config.tls)
    with _ignoring_interrupts():
        cluster = LocalCluster(
            **options(config), security=security, local_directory=workers.local_scratch(config.worker.scratch)
        )
        stack.enter_context(cluster)
    _restore_environment(before)  # all workers have started
    return stack.enter_context(Client(cluster, security=security, set_as_default=False))


def _check_main() -> None:
    """Refuse to be called by the statements of a script that no guard keeps from running in workers too.

    A worker imports the main module, as every process does that is not forked. Dask tells this in 500 lines.
    """
    main = sys.modules["__main__"]
    script, name = getattr(main, "__file__", None), getattr(getattr(main, "__spec__", None), "name", None)
    method = dask.config.get("distributed.worker.multiprocessing-method")
    if method == "fork" or script is None or (name or "").endswith("__main__"):  # which no worker imports
        return
    if not Path(script).is_file():
        allowed, remedy = "a script, a module or a session", "write it into a file, with a main guard"
        raise BadInput(script, "a program that is in no file", allowed, "no worker could import it", remedy)
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("<module>", script):
        frame = frame.f_back
    if frame is None:
        return
    reached = [part for part in ast.parse(Path(script).read_bytes()).body if part.lineno <= frame.f_lineno]
    words = {getattr(node, "id", getattr(node, "attr", "")) for part in reached for node in ast.walk(part)}
    if words.isdisjoint({"__name__", "parent_process", "current_process"}):
        found = f"line {frame.f_lineno}, which starts worker processes, outside of a main guard"
        otherwise = "each worker would run this script, as it imports it"
        way_out = "put if __name__ == '__main__': before that line and indent what follows"
        raise BadInput(script, found, "a call in a function, or below the guard", otherwise, way_out)


def _restore_environment(before: Mapping[str, str | None]) -> None:
    """Give this process its variables back, so that others which it starts may take more than one thread."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Block SIGINT in the threads and processes that start within the block.

    A terminal sends Ctrl-C to all processes at once. The client alone handles it, and closes the workers.
    """
    multiprocessing.resource_tracker.ensure_running()  # otherwise it starts with the first process and resets the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

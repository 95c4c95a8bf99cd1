"""Dask clients of clusters: start the cluster of a config, wait for workers that suffice, and look at one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import distributed
from distributed import Client, get_worker

from ips2_dask.clusters import need
from ips2_dask.clusters.config import MANAGERS, Config
from ips2_dask.clusters.resources import config_of, expected_workers, settled
from ips2_dask.errors import BadInput, Refused
from ips2_dask.executors.base import Executor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources
from ips2_dask.plan.plan import keeps_limit
from ips2_dask.plan.work import USABLE
from ips2_dask.runs.maintenance import versions
from ips2_dask.store.files import open_files

MIN_PATIENCE = 60
"""Least seconds that an executor waits for lost workers to be replaced."""

SHARED = "ips2.shared"
"""The key in Dask's configuration of a folder that this process and all workers reach, for runs without a store."""


Needed = Callable[[int, int | None], int]
"""The bytes that each of so many workers needs which may use so many bytes each, None without a limit."""


def module_of(config: Config) -> ModuleType:
    """The module that starts a config's cluster, imported now: a manager's packages may be missing."""
    return importlib.import_module(f"ips2_dask.clusters.{MANAGERS[config.manager].starts}")


@contextlib.contextmanager
def cluster(
    config: str | Path | Mapping[str, object] | Config = "local",
    *,
    workers: int | None = None,
    tls: str | None = None,
    insecure: bool = False,
) -> Iterator[Client]:
    """Start the cluster of a config, and yield a client; the cluster closes with the block.

    Parameters
    ----------
    config : path, name or mapping
        A YAML file, the name of a shipped one such as ``"slurm"``, or its content.
    workers : int, optional
        Worker processes, instead of what the config says.
    tls : path, optional
        Folder of certificates that `ips2 cluster certs` made, instead of what the config says.
    insecure : bool
        Let the scheduler listen beyond 127.0.0.1 without certificates.

    Yields
    ------
    distributed.Client

    Raises
    ------
    BadInput
        If the config can't be used, a package is missing, or no worker starts in time.

    Examples
    --------
    >>> with ips2_dask.cluster("slurm.yaml") as client:  # doctest: +SKIP
    ...     labels = IPS2(n_clusters=10, client=client).fit_predict(X)
    """
    config = settled(config, workers=workers, tls=tls, insecure=insecure)
    with contextlib.ExitStack() as stack:
        if config.shared is not None:
            stack.enter_context(dask.config.set({SHARED: os.path.expanduser(config.shared)}))
        client = module_of(config).start(config, stack)
        if config.adaptive is not None:
            client.cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
        if config.adaptive is None or config.adaptive.minimum:  # else workers start with the first tasks
            try:
                client.wait_for_workers(1, timeout=config.timeout)
            except TimeoutError as error:
                found, otherwise = f"no worker after {config.timeout} s", "the run would wait for ever"
                remedy = "look at the jobs' logs and the queue, or raise timeout in the config"
                raise BadInput("timeout", found, "at least one", otherwise, remedy) from error
        yield client


def with_least_workers(config: Config, needed_bytes: Needed) -> Config:
    """A config whose cluster, where it follows the work, keeps the workers whose memory together suffices for a run.

    Of a few busy ones the scheduler would not know that they are too few, and idle ones that go take block vectors with
    them. A config whose largest number is too small, or that does not say the memory of a worker, stays as it is.
    """
    adaptive, limit = config.adaptive, config.worker.memory
    if adaptive is None or limit is None:
        return config
    numbers = range(max(1, adaptive.minimum), adaptive.maximum + 1)
    least = next((n for n in numbers if keeps_limit(needed_bytes(n, limit), limit, "worker")), None)
    if least is None or least == max(1, adaptive.minimum):
        return config
    return dataclasses.replace(config, adaptive=dataclasses.replace(adaptive, minimum=least))


def wait_for_workers(client: Client, needed_bytes: Needed, n_workers: int | None, patience: float) -> int:
    """Wait until the workers that are there could do the whole run, and return their number.

    Parameters
    ----------
    client : Client
    needed_bytes : callable
        The bytes that each worker needs where so many of a limit share the run: `Plan.worker_bytes` of a plan for them.
        Where block vectors are in chunks it falls with the number, so that the memory of all together must suffice.
    n_workers : int, optional
        Workers that were asked for: there will not be more. None where others start them, nobody knows how many.
    patience : float
        Seconds until they must be enough.

    Raises
    ------
    BadInput
        If they are still too few for the run after ``patience`` seconds.
    Refused
        If all that were asked for are there, and may use less memory than their plan needs.
    """
    end = time.monotonic() + patience
    while True:
        identity = client.scheduler_info(n_workers=0)  # without the state of each worker
        n = int(identity["n_workers"])
        limit = int(identity["total_memory"]) // max(n, 1) or None  # of each: those of a cluster are alike
        needed = needed_bytes(n, limit) if n else 0
        if n and keeps_limit(needed, limit, "worker"):
            return n
        if n_workers is not None and n >= max(1, n_workers):
            raise Refused(
                f"workers: each of the {n} may use {_gib(limit)}, {USABLE:g} of which a plan counts on, and needs "
                f"{_gib(needed)}, so it would be killed. Remedy: give them more memory, or start more of them."
            )
        if time.monotonic() > end:
            found = f"{n}{'' if n_workers is None else f' of {n_workers}'} workers after {patience:g} s"
            found += f", which have {_gib(limit)} each where so few need {_gib(needed)}" if n else ""
            allowed = "workers whose memory suffices"
            allowed += f"; all together need {_gib(needed_bytes(n_workers, limit))} each" if n_workers else ""
            remedy = (
                "look at the jobs' logs and the queue, raise timeout or worker.memory, and run the same command again"
            )
            raise BadInput("timeout", found, allowed, "they would be killed in mid-run", remedy)
        time.sleep(0.2)  # each look is a message of some hundred bytes


def _gib(size: int | None) -> str:
    return f"{(size or 0) / 2**30:.2f} GiB"


@contextlib.contextmanager
def executor(resources: Resources, needed_bytes: Needed | None = None) -> Iterator[DaskExecutor]:
    """Yield an executor on the cluster of a run's resources; a cluster that it starts closes with the block.

    Parameters
    ----------
    resources : Resources
    needed_bytes : callable, optional
        As of `wait_for_workers`: the cluster has workers enough for that when the block begins, and one at least
        without it. A cluster that follows the work keeps so many all the time; where one would be enough and its config
        says so, workers come with the first tasks.

    Raises
    ------
    BadInput, Refused
        As of `cluster` and `wait_for_workers`.
    """
    config = config_of(resources)
    if needed_bytes is not None:
        config = with_least_workers(config, needed_bytes)
    with cluster(config) as client:
        if needed_bytes is not None and (config.adaptive is None or config.adaptive.minimum):
            unknown = resources.scheduler is not None or config.adaptive is not None
            n_workers = None if unknown else expected_workers(resources, config)
            wait_for_workers(client, needed_bytes, n_workers, config.timeout)
        threads = resources.threads_per_worker if resources.threads_per_worker > 1 else config.worker.threads
        yield DaskExecutor(client, threads, max(config.timeout, MIN_PATIENCE))


def shared_folder() -> str | None:
    """The folder for runs without a store that all workers of the current cluster reach; None for a local one."""
    folder = dask.config.get(SHARED, None)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folder


def dashboard(client: Client) -> str | None:
    """The address of a cluster's dashboard, or None if it has none."""
    try:
        return str(client.dashboard_link) or None
    except (AttributeError, KeyError, ValueError):
        return None


@contextlib.contextmanager
def performance_report(executor: Executor, path: str) -> Iterator[None]:
    """Have Dask write its performance report of the block, an HTML file."""
    if not isinstance(executor, DaskExecutor):
        allowed, remedy = "a run on a cluster", "leave out --serial or the report"
        raise BadInput("performance_report", "a serial run", allowed, "there would be no tasks to report", remedy)
    need("bokeh", "dashboard", "Dask's report")
    if not Path(path).absolute().parent.is_dir():
        found, remedy = f"{path!r}, whose folder is missing", "make the folder, or give another file"
        allowed = "a file in a folder that is there"
        raise BadInput("performance_report", found, allowed, "the report would be lost", remedy)
    with executor.client.as_current(), distributed.performance_report(filename=path):
        yield


# ---- a check of one worker from inside: versions that must match, memory, cores, scratch, and access to a store


def _describe_worker(store: str | None, name: str) -> dict[str, Any]:
    """The worker that runs this task, as it sees itself; ``store`` and ``scratch_error`` say why it can't use them."""
    worker = get_worker()
    free, fault = None, None
    try:
        with tempfile.TemporaryFile(dir=worker.local_directory) as file:
            file.write(b"0" * 4096)
        free = shutil.disk_usage(worker.local_directory).free
    except OSError as error:
        fault = str(error)
    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "cores": usable_cores(),
        "threads": worker.state.nthreads,
        "memory": worker.memory_manager.memory_limit,  # bytes, as scratch_free; None where nobody knows
        "scratch": worker.local_directory,
        "scratch_free": free,
        "scratch_error": fault,
        "store": _store_fault(store, name) if store else None,
    }


def _store_fault(store: str, name: str) -> str | None:
    """The reason why this process can't read the client's file in a store or write into it; None if it can do both."""
    try:
        files = open_files(store)
        if files.read(name) != "asked":
            return "it does not see what the client wrote there"
        files.write(name, "answered")
    except Exception as error:  # a store may be any of fsspec's
        return f"{type(error).__name__}: {error}"
    return None


def check_worker(client: Client, store: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Check one worker of a cluster.

    Parameters
    ----------
    client : Client
    store : path or URL, optional
        The place of a run's directory; a small file is written there and removed again.

    Returns
    -------
    worker : dict
        The description by `_describe_worker`.
    faults : list of str
        A line for each fault that would make a run fail, or give other labels than on this machine.
    """
    name = f".ips2-probe-{uuid.uuid4().hex[:8]}"
    if store is None:
        worker = client.submit(_describe_worker, None, name, pure=False).result()
    else:
        store = store if "://" in store else os.path.abspath(store)
        files = open_files(store)
        created = files.make_root()
        files.write(name, "asked")
        try:
            worker = client.submit(_describe_worker, store, name, pure=False).result()
            if worker["store"] is None and files.read(name) != "answered":
                worker["store"] = "what it writes there is not seen here"
        finally:
            files.remove(name)
            if created and not files.names(""):
                files.remove("")
    faults = [
        f"{package}: {worker['versions'].get(package)} on the worker, {here} here; install the same version"
        for package, here in versions().items()
        if worker["versions"].get(package) != here
    ]
    if worker["scratch_free"] is None:
        faults.append(f"scratch: the worker can't write to {worker['scratch']} ({worker['scratch_error']})")
    if worker["store"]:
        faults.append(f"store: the worker can't use {store}: {worker['store']}")
    return worker, faults

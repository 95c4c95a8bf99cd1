"""From a config to a Dask client: start what it describes, wait for the first worker, end it with the block."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
from distributed import Client

from ips2_dask.clusters import tls as certificates
from ips2_dask.clusters.config import MOST_WORKERS, TAKES, Config, Running, Ssh, Worker, taken_by
from ips2_dask.clusters.loading import load
from ips2_dask.errors import BadInput
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources

MODULES = {
    "local": "local", "scheduler": "running", "ssh": "ssh", "slurm": "jobqueue", "pbs": "jobqueue", "lsf": "jobqueue",
    "sge": "jobqueue", "kubernetes": "kubernetes", "gateway": "gateway",
}  # fmt: skip
"""Which file of this package starts a manager's clusters."""

BINDS = ("local", "ssh", "slurm", "pbs", "lsf", "sge", "kubernetes")
"""Managers whose scheduler listens where the config says."""

LEAST_PATIENCE = 60
"""Seconds that a worker which died may take to be replaced, however soon the first one had to be there."""

SHARED = "ips2.shared"
"""In Dask's configuration: a folder that this process and all workers reach, for runs without a store."""


def module_of(config: Config) -> Any:
    """The module that starts a config's cluster: its manager's packages are imported when they are needed."""
    return importlib.import_module(f"ips2_dask.clusters.{MODULES[config.manager]}")


def settled(
    source: str | Path | Mapping[str, Any] | Config,
    *,
    workers: int | None = None,
    tls: str | None = None,
    insecure: bool = False,
) -> Config:
    """A config with what a caller asks for besides; where it would listen is checked.

    Raises
    ------
    BadInput
    """
    config = source if isinstance(source, Config) else load(source)
    for name, value in (("workers", workers), ("tls", tls), ("insecure", insecure or None)):
        if value is not None:
            check_taken(config, name, value)
    asked: dict[str, Any] = {"insecure": config.insecure or insecure}
    if workers is not None:
        asked |= {"workers": workers, "adaptive": None}
    if tls is not None:
        asked["tls"] = tls
    config = dataclasses.replace(config, **asked)
    if config.manager == "local" and not (config.bind.host or config.bind.interface):
        config = dataclasses.replace(config, bind=dataclasses.replace(config.bind, host="127.0.0.1"))
    if config.manager == "kubernetes" and config.tls is not None:
        raise BadInput(
            "tls", f"{config.tls} with pods of the operator", "insecure: true, and a network policy around the pods",
            "the operator's own probes of the scheduler would fail", "leave tls out",
        )  # fmt: skip
    if config.manager in BINDS:
        certificates.check_bind(config)
    return config


def check_taken(config: Config, name: str, value: object, key: str | None = None, section: str | None = None) -> None:
    """Refuse what a caller asks for besides a config whose manager does nothing with it.

    Parameters
    ----------
    config : Config
    name : str
        What the caller calls it.
    value : object
        What was asked for.
    key, section : str, optional
        Its key in a config, where that has another name, and the section that holds it.
    """
    takes, key = TAKES[config.manager], key or name
    if key not in (takes if section is None else takes.get(section, ())):
        raise BadInput(
            name, f"{value} with manager {config.manager}",
            f"what that manager does something with: {taken_by(config.manager)}", "it would count for nothing",
            "leave it out",
        )  # fmt: skip


@contextlib.contextmanager
def cluster(
    config: str | Path | Mapping[str, Any] | Config = "local",
    *,
    workers: int | None = None,
    tls: str | None = None,
    insecure: bool = False,
) -> Iterator[Client]:
    """A client of the cluster that a config describes; what was started for it ends with the block.

    Parameters
    ----------
    config : path, name or mapping
        A YAML file, the name of a shipped one such as ``"slurm"``, or its content.
    workers : int, optional
        Worker processes, instead of what the config says.
    tls : path, optional
        Folder of certificates that `ips2 certs` made, instead of what the config says.
    insecure : bool
        Let the scheduler listen beyond 127.0.0.1 without certificates.

    Yields
    ------
    distributed.Client

    Raises
    ------
    BadInput
        Where the config can't be used, a package is missing, or no worker comes in time.

    Examples
    --------
    >>> with ips2_dask.cluster("slurm.yaml") as client:  # doctest: +SKIP
    ...     labels = IPS2(n_clusters=10, client=client).fit_predict(X)
    """
    chosen = settled(config, workers=workers, tls=tls, insecure=insecure)
    with contextlib.ExitStack() as stack:
        if chosen.shared is not None:
            stack.enter_context(dask.config.set({SHARED: os.path.expanduser(chosen.shared)}))
        client = module_of(chosen).start(chosen, stack)
        _wait(client, chosen)
        yield client


def _wait(client: Client, config: Config) -> None:
    if config.adaptive is not None and config.adaptive.minimum == 0:
        return  # workers come with the first tasks
    try:
        client.wait_for_workers(1, timeout=config.timeout)
    except TimeoutError as error:
        raise BadInput(
            "timeout", f"no worker after {config.timeout} s", "at least one", "the run would wait for ever",
            "look at the jobs' logs and the queue, or raise timeout in the config",
        ) from error  # fmt: skip


def config_of(resources: Resources) -> Config:
    """The config that a run's resources ask for: a running scheduler, a file, or processes of this machine."""
    if resources.scheduler is not None:
        address = resources.scheduler
        config = Config(manager="scheduler", machine=Running(address), worker=_worker(resources))
        if resources.scratch is not None:
            check_taken(config, "scratch", resources.scratch, section="worker")
    elif resources.cluster is not None:
        config = load(resources.cluster)
        if resources.scratch is not None:
            check_taken(config, "scratch", resources.scratch, section="worker")
        given: dict[str, Any] = {"scratch": resources.scratch, "memory": resources.memory_limit}
        worker = dataclasses.replace(config.worker, **{k: v for k, v in given.items() if v is not None})
        config = dataclasses.replace(config, worker=worker)
    else:
        config = load({"manager": "local"})
        config = dataclasses.replace(config, worker=_worker(resources))
    return settled(config, workers=resources.n_workers, tls=resources.tls, insecure=resources.insecure)


def _worker(resources: Resources) -> Worker:
    return Worker(threads=resources.threads_per_worker, memory=resources.memory_limit, scratch=resources.scratch)


def workers_of(config: Config) -> int:
    """How many workers a config's cluster will have; nothing is started to find out."""
    if config.adaptive is not None:
        return config.adaptive.maximum
    if isinstance(config.machine, Ssh):
        return max(len(config.machine.hosts) - 1, 1) * config.machine.processes
    return config.workers or (min(MOST_WORKERS, usable_cores()) if config.manager == "local" else 1)


@contextlib.contextmanager
def executor(resources: Resources) -> Iterator[DaskExecutor]:
    """An executor on the cluster that a run's resources ask for, which ends with the block unless it ran before."""
    config = config_of(resources)
    with cluster(config) as client:
        threads = resources.threads_per_worker if resources.threads_per_worker > 1 else config.worker.threads
        yield DaskExecutor(client, threads, max(config.timeout, LEAST_PATIENCE))


def shared_folder() -> str | None:
    """Where runs without a store keep what the workers of the current cluster must reach; None: this machine's."""
    folder = dask.config.get(SHARED, None)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folder

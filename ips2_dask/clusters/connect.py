"""Dask clients of clusters: start the cluster of a config, wait for its first worker, and close it with the block."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
from distributed import Client

from ips2_dask.clusters import tls as certificates
from ips2_dask.clusters.config import TAKES, Config, Scheduler, Worker, taken_by
from ips2_dask.clusters.loading import load
from ips2_dask.clusters.waiting import Needed, wait_for_workers
from ips2_dask.clusters.worker_count import expected_workers
from ips2_dask.errors import BadInput
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.params import Resources, parse_bytes
from ips2_dask.plan.checks import keeps_limit

MODULES = {
    "local": "local",
    "scheduler": "scheduler",
    "ssh": "ssh",
    "slurm": "jobqueue",
    "pbs": "jobqueue",
    "lsf": "jobqueue",
    "sge": "jobqueue",
    "kubernetes": "kubernetes",
    "gateway": "gateway",
}
"""The module of this package that starts the clusters of each manager."""

BINDS = ("local", "ssh", "slurm", "pbs", "lsf", "sge", "kubernetes")
"""Managers whose scheduler listens at the address of the config's ``bind`` section."""

MIN_PATIENCE = 60
"""Least seconds that an executor waits for lost workers to be replaced, however short the config's ``timeout`` is."""

SHARED = "ips2.shared"
"""The key in Dask's configuration of a folder that this process and all workers reach, for runs without a store."""


def module_of(config: Config) -> ModuleType:
    """The module that starts a config's cluster, imported now: a manager's packages may be missing."""
    return importlib.import_module(f"ips2_dask.clusters.{MODULES[config.manager]}")


def settled(
    source: str | Path | Mapping[str, object] | Config,
    *,
    workers: int | None = None,
    tls: str | None = None,
    insecure: bool = False,
) -> Config:
    """A config with the arguments of a caller in place of its own keys.

    Parameters
    ----------
    source : path, name, mapping or Config
    workers : int, optional
        Worker processes.
    tls : path, optional
        Folder of certificates.
    insecure : bool
        Let the scheduler listen beyond 127.0.0.1 without certificates.

    Raises
    ------
    BadInput
        If the manager does not use an argument, or others could reach the scheduler without a certificate.
    """
    config = source if isinstance(source, Config) else load(source)
    for name, value in (("workers", workers), ("tls", tls), ("insecure", insecure or None)):
        if value is not None:
            _check_taken(config, name, value)
    changes: dict[str, Any] = {"insecure": config.insecure or insecure}
    if workers is not None:
        changes |= {"workers": workers, "adaptive": None}
    if tls is not None:
        changes["tls"] = tls
    config = dataclasses.replace(config, **changes)
    if config.manager == "local" and not (config.bind.host or config.bind.interface):
        config = dataclasses.replace(config, bind=dataclasses.replace(config.bind, host="127.0.0.1"))
    if config.manager == "kubernetes" and config.tls is not None:
        raise BadInput(
            "tls",
            f"{config.tls} with pods of the operator",
            "insecure: true, and a network policy around the pods",
            "the operator's own probes of the scheduler would fail",
            "leave tls out, and write insecure: true",
        )
    if config.manager in BINDS:
        certificates.check_bind(config)
    return config


def _check_taken(config: Config, name: str, value: object, key: str | None = None, section: str | None = None) -> None:
    """Refuse an argument of a caller that the manager of a config does not use.

    Parameters
    ----------
    config : Config
    name : str
        The argument's name, for the error.
    value : object
        The argument's value, for the error.
    key, section : str, optional
        The key of a config that it stands for, ``name`` by default, and the section of that key.
    """
    takes, key = TAKES[config.manager], key or name
    if key not in (takes if section is None else takes.get(section, ())):
        raise BadInput(
            name,
            f"{value} with manager {config.manager}",
            f"what that manager does something with: {taken_by(config.manager)}",
            "it would count for nothing",
            "leave it out",
        )


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
        Folder of certificates that `ips2 certs` made, instead of what the config says.
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
    settled_config = settled(config, workers=workers, tls=tls, insecure=insecure)
    with contextlib.ExitStack() as stack:
        if settled_config.shared is not None:
            stack.enter_context(dask.config.set({SHARED: os.path.expanduser(settled_config.shared)}))
        client = module_of(settled_config).start(settled_config, stack)
        _wait(client, settled_config)
        yield client


def _wait(client: Client, config: Config) -> None:
    """Wait for the first worker."""
    if config.adaptive is not None and config.adaptive.minimum == 0:
        return  # workers start with the first tasks
    try:
        client.wait_for_workers(1, timeout=config.timeout)
    except TimeoutError as error:
        raise BadInput(
            "timeout",
            f"no worker after {config.timeout} s",
            "at least one",
            "the run would wait for ever",
            "look at the jobs' logs and the queue, or raise timeout in the config",
        ) from error


def config_of(resources: Resources) -> Config:
    """The config of a run's resources: of a running scheduler, of a file, or of processes of this machine."""
    if resources.scheduler is not None:
        address = resources.scheduler
        config = Config(manager="scheduler", machine=Scheduler(address), worker=_worker(resources))
        if resources.scratch is not None:
            _check_taken(config, "scratch", resources.scratch, section="worker")
    elif resources.cluster is not None:
        config = load(resources.cluster)
        if resources.scratch is not None:
            _check_taken(config, "scratch", resources.scratch, section="worker")
        changes: dict[str, Any] = {"scratch": resources.scratch, "memory": resources.memory_limit}
        worker = dataclasses.replace(config.worker, **{k: v for k, v in changes.items() if v is not None})
        config = dataclasses.replace(config, worker=worker)
    else:
        config = load({"manager": "local"})
        config = dataclasses.replace(config, worker=_worker(resources))
    return settled(config, workers=resources.n_workers, tls=resources.tls, insecure=resources.insecure)


def _worker(resources: Resources) -> Worker:
    return Worker(
        threads=resources.threads_per_worker, memory=parse_bytes(resources.memory_limit), scratch=resources.scratch
    )


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


@contextlib.contextmanager
def executor(resources: Resources, needed_bytes: Needed | None = None) -> Iterator[DaskExecutor]:
    """Yield an executor on the cluster of a run's resources; a cluster that it starts closes with the block.

    Parameters
    ----------
    resources : Resources
    needed_bytes : callable, optional
        As of `ips2_dask.clusters.waiting.wait_for_workers`: the cluster has workers enough for that when the block
        begins, and one at least without it. A cluster that follows the work keeps so many all the time; where one would
        be enough and its config says so, workers come with the first tasks.

    Raises
    ------
    BadInput
        As of `cluster`; or if its workers do not suffice after the ``timeout`` of the config.
    Refused
        As of `wait_for_workers`.
    """
    config = config_of(resources)
    if needed_bytes is not None:
        config = with_least_workers(config, needed_bytes)
    with cluster(config) as client:
        if needed_bytes is not None and (config.adaptive is None or config.adaptive.minimum):
            unknown = resources.scheduler is not None or config.adaptive is not None
            wait_for_workers(client, needed_bytes, None if unknown else expected_workers(resources), config.timeout)
        threads = resources.threads_per_worker if resources.threads_per_worker > 1 else config.worker.threads
        yield DaskExecutor(client, threads, max(config.timeout, MIN_PATIENCE))


def shared_folder() -> str | None:
    """The folder for runs without a store that all workers of the current cluster reach; None for a local one."""
    folder = dask.config.get(SHARED, None)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folder

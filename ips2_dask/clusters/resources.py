"""What a run's resources say about its machines before any is started: the config of a cluster, numbers and limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ips2_dask.clusters.config import DRIVER_MEMORY, MANAGERS, Config, Local, Scheduler, Ssh, Worker, load, taken_by
from ips2_dask.errors import BadInput
from ips2_dask.fields import parse_bytes
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources
from ips2_dask.plan.work import USABLE

MOST_WORKERS = 4
"""Processes of a local cluster, unless more are asked for."""

SHARE_FOR_BLOCKS = 0.5
"""Share of this machine's memory that its workers may have together before they keep blocks of vectors in files; the
rest is the driver's, and the system's cache of what workers read and write."""


class Machines(NamedTuple):
    """The machines of a run, as far as they are known before it starts.

    Attributes
    ----------
    n_workers : int
        Workers, each of which does one task at a time; the most of them if they follow the work.
    limits : tuple of (int or None)
        Bytes that a worker, the driver, and a scheduler of its own may use; None where nothing limits them.
    blocks_limit : int or None
        Bytes of a worker above which it keeps blocks of vectors in files; None where nothing says.
    scheduler_apart : bool
        Whether the scheduler is a process of its own.
    """

    n_workers: int
    limits: tuple[int | None, int | None, int | None]
    blocks_limit: int | None
    scheduler_apart: bool


def machines_of(resources: Resources) -> Machines:
    """The machines of a run with these resources."""
    config, here = config_of(resources), resources.cluster is None and resources.scheduler is None
    n_workers, blocks_limit = expected_workers(resources, config), config.worker.memory
    if here and blocks_limit is None and n_workers <= usable_cores():  # more are planned for another machine
        blocks_limit = int(SHARE_FOR_BLOCKS * psutil.virtual_memory().total / n_workers / USABLE)
    own = os.environ.get(DRIVER_MEMORY)  # of the job in which this process is the driver
    given = parse_bytes(resources.memory_limit), None if own is None else parse_bytes(own, DRIVER_MEMORY)
    driver = min((limit for limit in given if limit is not None), default=None)
    scheduler = config.driver.memory if config.manager == "kubernetes" else None  # its pod is as large as a driver's
    apart = MANAGERS[config.manager].starts not in ("local", "jobqueue")  # whose scheduler the driver has
    return Machines(n_workers, (config.worker.memory, driver, scheduler), blocks_limit, apart)


def expected_workers(resources: Resources, config: Config) -> int:
    """The number of workers of a cluster, which a plan needs; for a running scheduler's a guess."""
    if config.adaptive is not None:
        return config.adaptive.maximum
    if isinstance(config.machine, Ssh):
        return max(len(config.machine.hosts) - 1, 1) * config.machine.processes
    some = min(MOST_WORKERS, usable_cores()) if resources.cluster is None or config.manager == "local" else 1
    return config.workers or some


def config_of(resources: Resources) -> Config:
    """The config of a run's resources: of a running scheduler, of a file, or of processes of this machine."""
    memory = parse_bytes(resources.memory_limit)
    if resources.cluster is not None and resources.scheduler is None:
        config = load(resources.cluster)
        own: dict[str, Any] = {"scratch": resources.scratch, "memory": memory}
        worker = dataclasses.replace(config.worker, **{k: v for k, v in own.items() if v is not None})
        config = dataclasses.replace(config, worker=worker)
    else:
        worker = Worker(threads=resources.threads_per_worker, memory=memory, scratch=resources.scratch)
        config = Config("local", Local(), worker=worker)
        if resources.scheduler is not None:
            config = Config("scheduler", Scheduler(resources.scheduler), worker=worker)
    if resources.scratch is not None:
        _check_taken(config, "scratch", resources.scratch, "worker.scratch")
    return settled(config, workers=resources.n_workers, tls=resources.tls, insecure=resources.insecure)


def settled(
    source: str | Path | Mapping[str, object] | Config,
    *,
    workers: int | None = None,
    tls: str | None = None,
    insecure: bool = False,
) -> Config:
    """A config with the arguments of a caller, as of `clusters.cluster`, in place of its own keys.

    Raises
    ------
    BadInput
        If the manager does not use an argument, or others could reach the scheduler without a certificate.
    """
    config = source if isinstance(source, Config) else load(source)
    given = {"workers": workers, "tls": tls, "insecure": insecure or None}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        _check_taken(config, name, value, name)
    if workers is not None:
        changes["adaptive"] = None
    if config.manager == "local" and not (config.bind.host or config.bind.interface):
        changes["bind"] = dataclasses.replace(config.bind, host="127.0.0.1")
    config = dataclasses.replace(config, **changes)
    if config.manager == "kubernetes" and config.tls is not None:
        found = f"{config.tls} with pods of the operator"
        allowed = "insecure: true, and a network policy around the pods"
        otherwise = "the operator's own probes of the scheduler would fail"
        raise BadInput("tls", found, allowed, otherwise, "leave tls out, and write insecure: true")
    if "insecure" in MANAGERS[config.manager].takes and not config.insecure:
        _check_bind(config)
    return config


def _check_taken(config: Config, name: str, value: object, key: str) -> None:
    """Refuse an argument of a caller, for a key of a config, that the config's manager does not use."""
    if key not in MANAGERS[config.manager].takes:
        allowed = f"what that manager does something with: {taken_by(config.manager)}"
        found = f"{value} with manager {config.manager}"
        raise BadInput(name, found, allowed, "it would count for nothing", "leave it out")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the ports of a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_bind(config: Config) -> None:
    """Refuse a scheduler that others could reach without a certificate, and a dashboard that others could reach."""
    host = config.bind.host or ("localhost" if config.bind.interface in ("lo", "lo0") else "")
    remedy = "run `ips2 cluster certs DIR` and write tls: DIR, or allow it with --insecure (insecure: true)"
    if config.manager == "kubernetes":  # whose operator does without certificates
        remedy = "write insecure: true"
    if config.tls is None and not is_loopback(host):
        found = f"{config.bind.host or config.bind.interface or 'all interfaces'} without tls"
        otherwise = "whoever reaches the port could run code as this user"
        raise BadInput("bind", found, "127.0.0.1, or any interface with tls", otherwise, remedy)
    found, allowed = config.bind.dashboard, "127.0.0.1 and a port"
    if not is_loopback(found.rpartition(":")[0]):
        way_out = "write 127.0.0.1:8787 and use an SSH tunnel, or add --insecure"
        raise BadInput("bind.dashboard", found, allowed, "the dashboard asks for no password", way_out)

"""A cluster's config as dataclasses, one for each section of its YAML file; none is a parameter of the method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ips2_dask.clusters import checks
from ips2_dask.clusters.checks import Check, refuse
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")

_NONE: dict[str, str] = {}


def _key(default: Value, check: Check) -> Value:
    """A field of a section, whose value ``check`` is to read; null stands for a default of None."""
    return dataclasses.field(default_factory=lambda: default, metadata={"check": check, "null": default is None})


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Least and largest number of workers of a cluster that scales with the work."""

    minimum: int = _key(1, checks.whole(0))
    maximum: int = _key(10, checks.whole(1))

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise refuse("adaptive.minimum", self.minimum, "at most adaptive.maximum", "swap the two")


@dataclasses.dataclass(frozen=True)
class Worker:
    """Resources and preloads of each worker process."""

    threads: int = _key(1, checks.whole(1, 1024))
    memory: int | None = _key(None, checks.size)
    scratch: str | None = _key(None, checks.text)
    environment: Mapping[str, str] = _key(_NONE, checks.variables)
    preload: tuple[str, ...] = _key((), checks.texts)
    warm: bool = _key(False, checks.flag)


@dataclasses.dataclass(frozen=True)
class Bind:
    """Where the scheduler that is started listens."""

    host: str | None = _key(None, checks.text)
    interface: str | None = _key(None, checks.text)
    port: int = _key(0, checks.whole(0, 65535))
    dashboard: str = _key("127.0.0.1:0", checks.dashboard)

    def __post_init__(self) -> None:
        if self.host is not None and self.interface is not None:
            raise refuse("bind.host", self.host, "host or interface, not both", "leave one of them out")


DRIVER_MEMORY = "IPS2_DRIVER_MEMORY"
"""The environment variable in which a job of `ips2 jobs submit` tells its driver the bytes that the driver may use."""


@dataclasses.dataclass(frozen=True)
class Driver:
    """Resources of the process that drives a run of `ips2 jobs submit`."""

    threads: int = _key(1, checks.whole(1, 1024))
    memory: int = _key(4 << 30, checks.size)
    walltime: int | None = _key(None, checks.clock)


@dataclasses.dataclass(frozen=True)
class Local:
    """Processes of this machine, which need no further keys."""


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A scheduler that runs already."""

    address: str = _key("tls://127.0.0.1:8786", checks.address)


@dataclasses.dataclass(frozen=True)
class Ssh:
    """Hosts that are reached by SSH, the first of which runs the scheduler."""

    hosts: tuple[str, ...] = _key(("127.0.0.1", "127.0.0.1"), checks.some_texts)
    processes: int = _key(1, checks.whole(1, 1024))
    username: str | None = _key(None, checks.text)
    port: int = _key(22, checks.whole(1, 65535))
    keys: tuple[str, ...] = _key((), checks.texts)
    known_hosts: str | None = _key(None, checks.text)
    python: str | None = _key(None, checks.text)


@dataclasses.dataclass(frozen=True)
class Queue:
    """Jobs of a batch system, each with one worker process or more."""

    queue: str | None = _key(None, checks.text)
    account: str | None = _key(None, checks.text)
    walltime: int = _key(3600, checks.clock)
    margin: int = _key(300, checks.whole(10))
    processes: int = _key(1, checks.whole(1, 1024))
    name: str = _key("ips2-worker", checks.matching(r"[\w.-]{1,15}", "up to 15 letters, digits, - and .", "shorten it"))
    python: str | None = _key(None, checks.text)
    logs: str | None = _key(None, checks.text)
    directives: tuple[str, ...] = _key((), checks.texts)
    prologue: tuple[str, ...] = _key((), checks.texts)

    def __post_init__(self) -> None:
        if 2 * self.margin > self.walltime:
            allowed = f"at most half of walltime ({self.walltime} s)"
            raise refuse("margin", self.margin, allowed, "lower margin or raise walltime")


@dataclasses.dataclass(frozen=True)
class Sge(Queue):
    """Jobs of Grid Engine, which has no standard way to ask for cores and memory."""

    parallel_environment: str | None = _key(None, checks.text)
    memory_resource: str = _key("h_vmem", checks.text)


@dataclasses.dataclass(frozen=True)
class Lsf(Queue):
    """Jobs of LSF, whose unit of memory a site may choose."""

    units: str = _key("mb", checks.one_of("kb", "mb", "gb", "tb"))


@dataclasses.dataclass(frozen=True)
class Kubernetes:
    """Pods that Dask's Kubernetes operator makes."""

    namespace: str | None = _key(None, checks.dns_label)
    name: str = _key("ips2", checks.dns_label)
    image: str = _key("ips2-dask:latest", checks.text)
    pull_policy: str = _key("IfNotPresent", checks.one_of("Always", "IfNotPresent", "Never"))
    service_account: str | None = _key(None, checks.text)
    idle_timeout: int = _key(0, checks.whole(300, or_zero=True))
    env_from: tuple[str, ...] = _key((), checks.texts)
    node_selector: Mapping[str, object] = _key(_NONE, checks.plain)


@dataclasses.dataclass(frozen=True)
class Gateway:
    """A Dask Gateway server, which starts clusters for its users."""

    address: str = _key("http://127.0.0.1:8000", checks.url)
    proxy_address: str | None = _key(None, checks.text)
    auth: str | None = _key(None, checks.one_of("kerberos", "jupyterhub", "basic"))
    options: Mapping[str, object] = _key(_NONE, checks.plain)


Machine = Local | Scheduler | Ssh | Queue | Kubernetes | Gateway
"""The section of one manager."""

Kind = TypeVar("Kind", bound=Machine)


class Manager(NamedTuple):
    """A manager's own section, the module that starts its clusters, and the other keys that it uses."""

    section: type[Machine]
    starts: str
    takes: tuple[str, ...]


SECTIONS: dict[str, type[DataclassInstance]] = {"adaptive": Adaptive, "worker": Worker, "bind": Bind, "driver": Driver}
"""The sections that several managers share."""


def field_names(section: type[DataclassInstance]) -> list[str]:
    """The keys that a section of a config may have."""
    return [field.name for field in dataclasses.fields(section) if field.metadata]


def _all(*sections: str) -> tuple[str, ...]:
    """All keys of some sections."""
    return tuple(f"{name}.{key}" for name in sections for key in field_names(SECTIONS[name]))


_ANY = ("timeout", "shared")
_SCALED = ("workers", *_all("adaptive"))
_SAFE = ("tls", "insecure")
_BATCH = (*_SCALED, *_all("worker", "bind", "driver"), *_SAFE, *_ANY)
_POD = (*_SCALED, *_all("worker"), "driver.threads", "driver.memory", *_SAFE, *_ANY)  # tls has a refusal of its own

MANAGERS: dict[str, Manager] = {
    "local": Manager(Local, "local", (*_SCALED, *_all("worker", "bind"), *_SAFE, *_ANY)),
    "scheduler": Manager(Scheduler, "scheduler", ("worker.threads", "tls", *_ANY)),
    "ssh": Manager(Ssh, "ssh", (*_all("worker", "bind"), *_SAFE, *_ANY)),
    "slurm": Manager(Queue, "jobqueue", _BATCH),
    "pbs": Manager(Queue, "jobqueue", _BATCH),
    "lsf": Manager(Lsf, "jobqueue", _BATCH),
    "sge": Manager(Sge, "jobqueue", _BATCH),
    "kubernetes": Manager(Kubernetes, "kubernetes", _POD),
    "gateway": Manager(Gateway, "gateway", (*_SCALED, "worker.threads", *_ANY)),
}


def taken_by(manager: str) -> str:
    """The keys that a manager uses, in words."""
    return ", ".join(["manager", f"{manager}.*", *MANAGERS[manager].takes])


@dataclasses.dataclass(frozen=True)
class Config:
    """A cluster: which manager starts it, and with what; the YAML files of cluster_configs comment each key."""

    manager: str
    machine: Machine
    workers: int | None = _key(None, checks.whole(1))
    tls: str | None = _key(None, checks.text)
    insecure: bool = _key(False, checks.flag)
    timeout: int = _key(300, checks.whole(1))
    shared: str | None = _key(None, checks.text)
    adaptive: Adaptive | None = None
    worker: Worker = dataclasses.field(default_factory=Worker)
    bind: Bind = dataclasses.field(default_factory=Bind)
    driver: Driver = dataclasses.field(default_factory=Driver)

    def __post_init__(self) -> None:
        if self.workers is not None and self.adaptive is not None:
            allowed = "workers or adaptive, not both"
            raise refuse("workers", self.workers, allowed, "leave one of them out, or write null")
        if "driver.memory" in MANAGERS[self.manager].takes and self.worker.memory is None:
            otherwise, remedy = "the batch system would give a job what it likes", "write worker: {memory: 4GiB}"
            raise BadInput("worker.memory", "nothing", "a size such as 4GiB", otherwise, remedy)

    def kind(self, expected: type[Kind]) -> Kind:
        """The manager's own section, which must be of a kind."""
        assert isinstance(self.machine, expected)
        return self.machine

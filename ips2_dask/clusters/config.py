"""A cluster's config as dataclasses, one for each section of its YAML file; none is a parameter of the method."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from ips2_dask.clusters import checks
from ips2_dask.clusters.checks import Check, optional
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")


def _key(default: Value, check: Check) -> Value:
    """A field of a section, whose value ``check`` is to return or refuse."""
    return dataclasses.field(default=default, metadata={"check": check})


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Least and largest number of workers of a cluster that scales with the work."""

    minimum: int = _key(1, checks.whole(0))
    maximum: int = _key(10, checks.whole(1))

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise checks.refuse("adaptive.minimum", self.minimum, "at most adaptive.maximum", "swap the two")


@dataclasses.dataclass(frozen=True)
class Worker:
    """Resources and preloads of each worker process."""

    threads: int = _key(1, checks.whole(1, 1024))
    memory: int | None = _key(None, optional(checks.size))
    scratch: str | None = _key(None, optional(checks.text))
    environment: dict[str, str] = dataclasses.field(default_factory=dict, metadata={"check": checks.variables})
    preload: tuple[str, ...] = _key((), checks.texts)
    warm: bool = _key(False, checks.flag)


@dataclasses.dataclass(frozen=True)
class Bind:
    """Where the scheduler that is started listens."""

    host: str | None = _key(None, optional(checks.text))
    interface: str | None = _key(None, optional(checks.text))
    port: int = _key(0, checks.whole(0, 65535))
    dashboard: str = _key("127.0.0.1:0", checks.dashboard)

    def __post_init__(self) -> None:
        if self.host is not None and self.interface is not None:
            raise checks.refuse("bind.host", self.host, "host or interface, not both", "leave one of them out")


@dataclasses.dataclass(frozen=True)
class Driver:
    """Resources of the process that drives a run of `ips2 submit`."""

    threads: int = _key(1, checks.whole(1, 1024))
    memory: int = _key(4 << 30, checks.size)
    walltime: int | None = _key(None, optional(checks.clock))


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
    username: str | None = _key(None, optional(checks.text))
    port: int = _key(22, checks.whole(1, 65535))
    keys: tuple[str, ...] = _key((), checks.texts)
    known_hosts: str | None = _key(None, optional(checks.text))
    python: str | None = _key(None, optional(checks.text))


@dataclasses.dataclass(frozen=True)
class Queue:
    """Jobs of a batch system, each with one worker process or more."""

    queue: str | None = _key(None, optional(checks.text))
    account: str | None = _key(None, optional(checks.text))
    walltime: int = _key(3600, checks.clock)
    margin: int = _key(300, checks.whole(10))
    processes: int = _key(1, checks.whole(1, 1024))
    name: str = _key("ips2-worker", checks.matching(r"[\w.-]{1,15}", "up to 15 letters, digits, - and .", "shorten it"))
    python: str | None = _key(None, optional(checks.text))
    logs: str | None = _key(None, optional(checks.text))
    directives: tuple[str, ...] = _key((), checks.texts)
    prologue: tuple[str, ...] = _key((), checks.texts)

    def __post_init__(self) -> None:
        if 2 * self.margin > self.walltime:
            raise checks.refuse(
                "margin", self.margin, f"at most half of walltime ({self.walltime} s)", "lower margin or raise walltime"
            )


@dataclasses.dataclass(frozen=True)
class Sge(Queue):
    """Jobs of Grid Engine, which has no standard way to ask for cores and memory."""

    parallel_environment: str | None = _key(None, optional(checks.text))
    memory_resource: str = _key("h_vmem", checks.text)


@dataclasses.dataclass(frozen=True)
class Lsf(Queue):
    """Jobs of LSF, whose unit of memory a site may choose."""

    units: str = _key("mb", checks.one_of("kb", "mb", "gb", "tb"))


MIN_IDLE_TIMEOUT = 300
"""Least seconds without a task after which an operator may delete a cluster: the driver sends one in time."""


@dataclasses.dataclass(frozen=True)
class Kubernetes:
    """Pods that Dask's Kubernetes operator makes."""

    namespace: str | None = _key(None, optional(checks.dns_label))
    name: str = _key("ips2", checks.dns_label)
    image: str = _key("ips2-dask:latest", checks.text)
    pull_policy: str = _key("IfNotPresent", checks.one_of("Always", "IfNotPresent", "Never"))
    service_account: str | None = _key(None, optional(checks.text))
    idle_timeout: int = _key(0, checks.zero_or_whole(MIN_IDLE_TIMEOUT))
    env_from: tuple[str, ...] = _key((), checks.texts)
    node_selector: dict[str, str] = dataclasses.field(default_factory=dict, metadata={"check": checks.plain})


@dataclasses.dataclass(frozen=True)
class Gateway:
    """A Dask Gateway server, which starts clusters for its users."""

    address: str = _key("http://127.0.0.1:8000", checks.url)
    proxy_address: str | None = _key(None, optional(checks.text))
    auth: str | None = _key(None, optional(checks.one_of("kerberos", "jupyterhub", "basic")))
    options: dict[str, object] = dataclasses.field(default_factory=dict, metadata={"check": checks.plain})


MOST_WORKERS = 4
"""Processes of a local cluster, unless more are asked for."""

Machine = Local | Scheduler | Ssh | Queue | Kubernetes | Gateway
"""The section of one manager."""

Kind = TypeVar("Kind", bound=Machine)

Section = Adaptive | Worker | Bind | Driver
"""A section that all managers share."""

MANAGERS: dict[str, type[Machine]] = {
    "local": Local,
    "scheduler": Scheduler,
    "ssh": Ssh,
    "slurm": Queue,
    "pbs": Queue,
    "lsf": Lsf,
    "sge": Sge,
    "kubernetes": Kubernetes,
    "gateway": Gateway,
}
"""The section that each manager has of its own."""

SECTIONS: dict[str, type[Section]] = {"adaptive": Adaptive, "worker": Worker, "bind": Bind, "driver": Driver}


_WORKER = ("threads", "memory", "scratch", "environment", "preload", "warm")
_BIND = ("host", "interface", "port", "dashboard")
_BATCH: dict[str, tuple[str, ...]] = {
    "workers": (),
    "adaptive": ("minimum", "maximum"),
    "worker": _WORKER,
    "bind": _BIND,
    "driver": ("threads", "memory", "walltime"),
    "tls": (),
    "insecure": (),
    "timeout": (),
    "shared": (),
}

TAKES: dict[str, dict[str, tuple[str, ...]]] = {
    "local": {key: _BATCH[key] for key in _BATCH if key != "driver"},
    "scheduler": {"worker": ("threads",), "tls": (), "timeout": (), "shared": ()},
    "ssh": {key: _BATCH[key] for key in _BATCH if key not in ("workers", "adaptive", "driver")},
    **dict.fromkeys(("slurm", "pbs", "lsf", "sge"), _BATCH),
    # tls with pods is refused with its own reason, see `clusters.connect.settled`
    "kubernetes": {key: _BATCH[key] for key in _BATCH if key != "bind"} | {"driver": ("threads", "memory")},
    "gateway": {"workers": (), "adaptive": ("minimum", "maximum"), "worker": ("threads",), "timeout": (), "shared": ()},
}
"""The keys that each manager uses, of those that all configs may have, and of the keys in their sections."""


def taken_by(manager: str) -> str:
    """The keys that a manager uses, in words."""
    words = []
    for key, nested in TAKES[manager].items():
        words += [f"{key}.{name}" for name in nested] or [key]
    return ", ".join(["manager", f"{manager}.*", *words])


@dataclasses.dataclass(frozen=True)
class Config:
    """A cluster: which manager starts it, and with what; the YAML files of cluster_configs comment each key."""

    manager: str
    machine: Machine
    workers: int | None = _key(None, optional(checks.whole(1)))
    tls: str | None = _key(None, optional(checks.text))
    insecure: bool = _key(False, checks.flag)
    timeout: int = _key(300, checks.whole(1))
    shared: str | None = _key(None, optional(checks.text))
    adaptive: Adaptive | None = None
    worker: Worker = dataclasses.field(default_factory=Worker)
    bind: Bind = dataclasses.field(default_factory=Bind)
    driver: Driver = dataclasses.field(default_factory=Driver)

    def __post_init__(self) -> None:
        if self.workers is not None and self.adaptive is not None:
            raise checks.refuse(
                "workers", self.workers, "workers or adaptive, not both", "leave one of them out, or write null"
            )
        if self.manager in ("slurm", "pbs", "lsf", "sge", "kubernetes") and self.worker.memory is None:
            raise BadInput(
                "worker.memory",
                "nothing",
                "a size such as 4GiB",
                "the batch system would give a job what it likes",
                "write worker: {memory: 4GiB}",
            )

    def kind(self, expected: type[Kind]) -> Kind:
        """The manager's own section, which must be of a kind."""
        assert isinstance(self.machine, expected)
        return self.machine


def field_names(section: type[DataclassInstance]) -> list[str]:
    """The keys that a section of a config may have."""
    return [field.name for field in dataclasses.fields(section) if field.metadata]

"""A cluster's config: dataclasses of its sections, what each key may say, and how a YAML file or a mapping is read."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Hashable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from ips2_dask.errors import BadInput
from ips2_dask.fields import parse_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")

_SECRET_NAME = re.compile(
    r"(pass(word|wd|phrase)|secret|token|credential|access_?key|api_?key|private_?key)s?", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@|-----BEGIN |\bAKIA[0-9A-Z]{16}\b")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\u2028\u2029\ud800-\udfff]")
"""Characters that no line of text may hold: control characters, line breaks and surrogates."""

_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")


def refuse_secrets(where: str, name: str, value: object) -> None:
    """Refuse a key or a value that looks like a credential: configs and records of jobs are read by others."""
    if _SECRET_NAME.search(name) or (isinstance(value, str) and _SECRET_VALUE.search(value)):
        raise BadInput(
            where,
            "what looks like a credential",
            "nothing secret in a config",
            "it would be shared with the file",
            "give it where the store or the manager looks for it: ~/.aws, an instance's role, SSH's agent, "
            "Kubernetes' secrets; or the environment of the command",
        )


def _refuse(where: str, value: object, allowed: str, remedy: str) -> BadInput:
    """The error of a value that is not allowed."""
    return BadInput(where, repr(value), allowed, "the cluster would not start as it was meant to", remedy)


# ---- what a key may say


class _Check(NamedTuple):
    """What a key may say: ``read`` raises TypeError or ValueError for another value; KEY in ``remedy`` is the key."""

    read: Callable[[Any], Any]
    allowed: str
    remedy: str

    def value(self, where: str, found: object) -> Any:
        """The value of the key ``where`` as the config has it, or an error."""
        try:
            return self.read(found)
        except (TypeError, ValueError):
            raise _refuse(where, found, self.allowed, self.remedy.replace("KEY", where.rpartition(".")[2])) from None


def _only(value: Value, *kinds: type, fits: bool = True) -> Value:
    """The value, if it is of one of these types itself (a bool is no int), and fits."""
    if type(value) not in kinds or not fits:
        raise ValueError
    return value


def _whole(low: int, high: int | None = None, or_zero: bool = False) -> _Check:
    """A whole number from ``low``, up to ``high`` if that is given; or 0, which switches something off."""
    between = f"of at least {low}" if high is None else f"from {low} to {high}"

    def read(value: Any) -> int:
        number: int = _only(value, int)
        return _only(number, int, fits=low <= number <= (number if high is None else high) or (or_zero and number == 0))

    return _Check(read, f"{'0, or ' * or_zero}a whole number {between}", f"write KEY: {0 if or_zero else max(low, 1)}")


def _one_of(*names: str) -> _Check:
    """One of these words."""
    return _Check(
        lambda value: _only(value, str, fits=value in names), f"one of {', '.join(names)}", "choose one of them"
    )


def _matching(pattern: str, allowed: str, remedy: str) -> _Check:
    """A line of text that matches a pattern, and not blanks alone."""

    def read(value: Any) -> str:
        line: str = _only(value, str)
        fits = line.strip() != "" and not _FORBIDDEN.search(line) and re.fullmatch(pattern, line) is not None
        return _only(line, str, fits=fits)

    return _Check(read, allowed, remedy)


def _lines(value: Any) -> tuple[str, ...]:
    return tuple(_TEXT.read(line) for line in _only(value, list, tuple))


def _names(value: Any) -> dict[str, Any]:
    return _only(value, dict, fits=isinstance(value, dict) and all(isinstance(name, str) for name in value))


def _variables(value: Any) -> dict[str, str]:
    """Environment variables, numbers among them as text."""
    for name, content in _names(value).items():
        text = str(_only(content, str, int, float))
        _only(text, str, fits=not _FORBIDDEN.search(text) and re.fullmatch(r"[A-Za-z_]\w*", name) is not None)
    return {name: str(content) for name, content in value.items()}


def _seconds(value: Any) -> int:
    """Seconds of 01:30:00 or 2-00:00:00 (days); YAML reads 1:30:00 without quotes as a number in base 60."""
    match = _CLOCK.fullmatch(value)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return _only(total, int, fits=total >= 60)


_FLAG = _Check(lambda value: _only(value, bool), "true or false", "write one of them, without quotes")
_TEXT = _matching(r".*", "a line of text", "put the value in quotes")
_TEXTS = _Check(_lines, "a list of lines of text", 'write it as ["...", "..."]')
_SOME_TEXTS = _Check(lambda value: _lines(value or None), "a list of at least one", 'write it as ["node1", "node2"]')
_VARIABLES = _Check(
    _variables, "names of environment variables with a line of text or a number", 'write it as {NAME: "value"}'
)
_PLAIN = _Check(lambda value: dict(_names(value)), "names and values", "write it as {name: value}")
_SIZE = _Check(
    lambda value: parse_bytes(_only(value, str, int)), "a size such as 4GiB or 512MB", "give a number with a unit"
)
_TIME = _Check(_seconds, 'a time of at least a minute as "HH:MM:SS", in quotes', 'write "01:00:00" for an hour')
_ADDRESS = _matching(
    r"(tcp|tls|ws|wss|ucx)://(\[[0-9a-fA-F:]+\]|[^\s:/\[\]@]+):\d{1,5}",
    "the address of a scheduler",
    "write it as tls://HOST:8786",
)
_DASHBOARD = _matching(r"([^\s:/]*|\[[0-9a-fA-F:]+\]):\d{1,5}", "HOST:PORT", "write 127.0.0.1:0 for any free port")
_URL = _matching(r"https?://[^\s@]+", "an address of http or https", "write it as https://gateway.example.org")
_LABEL = _matching(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", "a name of small letters, digits and -", "shorten or respell it")


# ---- the sections


def _key(default: Value, check: _Check) -> Value:
    """A field of a section, whose value ``check`` is to read; null stands for a default of None."""
    return dataclasses.field(default_factory=lambda: default, metadata={"check": check, "null": default is None})


_NONE: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class _Adaptive:
    """Least and largest number of workers of a cluster that scales with the work."""

    minimum: int = _key(1, _whole(0))
    maximum: int = _key(10, _whole(1))

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise _refuse("adaptive.minimum", self.minimum, "at most adaptive.maximum", "swap the two")


@dataclasses.dataclass(frozen=True)
class Worker:
    """Resources and preloads of each worker process."""

    threads: int = _key(1, _whole(1, 1024))
    memory: int | None = _key(None, _SIZE)
    scratch: str | None = _key(None, _TEXT)
    environment: Mapping[str, str] = _key(_NONE, _VARIABLES)
    preload: tuple[str, ...] = _key((), _TEXTS)
    warm: bool = _key(False, _FLAG)


@dataclasses.dataclass(frozen=True)
class _Bind:
    """Where the scheduler that is started listens."""

    host: str | None = _key(None, _TEXT)
    interface: str | None = _key(None, _TEXT)
    port: int = _key(0, _whole(0, 65535))
    dashboard: str = _key("127.0.0.1:0", _DASHBOARD)

    def __post_init__(self) -> None:
        if self.host is not None and self.interface is not None:
            raise _refuse("bind.host", self.host, "host or interface, not both", "leave one of them out")


DRIVER_MEMORY = "IPS2_DRIVER_MEMORY"
"""The environment variable in which a job of `ips2 jobs submit` tells its driver the bytes that the driver may use."""


@dataclasses.dataclass(frozen=True)
class _Driver:
    """Resources of the process that drives a run of `ips2 jobs submit`."""

    threads: int = _key(1, _whole(1, 1024))
    memory: int = _key(4 << 30, _SIZE)
    walltime: int | None = _key(None, _TIME)


@dataclasses.dataclass(frozen=True)
class Local:
    """Processes of this machine, which need no further keys."""


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A scheduler that runs already."""

    address: str = _key("tls://127.0.0.1:8786", _ADDRESS)


@dataclasses.dataclass(frozen=True)
class Ssh:
    """Hosts that are reached by SSH, the first of which runs the scheduler."""

    hosts: tuple[str, ...] = _key(("127.0.0.1", "127.0.0.1"), _SOME_TEXTS)
    processes: int = _key(1, _whole(1, 1024))
    username: str | None = _key(None, _TEXT)
    port: int = _key(22, _whole(1, 65535))
    keys: tuple[str, ...] = _key((), _TEXTS)
    known_hosts: str | None = _key(None, _TEXT)
    python: str | None = _key(None, _TEXT)


@dataclasses.dataclass(frozen=True)
class Queue:
    """Jobs of a batch system, each with one worker process or more."""

    queue: str | None = _key(None, _TEXT)
    account: str | None = _key(None, _TEXT)
    walltime: int = _key(3600, _TIME)
    margin: int = _key(300, _whole(10))
    processes: int = _key(1, _whole(1, 1024))
    name: str = _key("ips2-worker", _matching(r"[\w.-]{1,15}", "up to 15 letters, digits, - and .", "shorten it"))
    python: str | None = _key(None, _TEXT)
    logs: str | None = _key(None, _TEXT)
    directives: tuple[str, ...] = _key((), _TEXTS)
    prologue: tuple[str, ...] = _key((), _TEXTS)

    def __post_init__(self) -> None:
        if 2 * self.margin > self.walltime:
            allowed = f"at most half of walltime ({self.walltime} s)"
            raise _refuse("margin", self.margin, allowed, "lower margin or raise walltime")


@dataclasses.dataclass(frozen=True)
class Sge(Queue):
    """Jobs of Grid Engine, which has no standard way to ask for cores and memory."""

    parallel_environment: str | None = _key(None, _TEXT)
    memory_resource: str = _key("h_vmem", _TEXT)


@dataclasses.dataclass(frozen=True)
class Lsf(Queue):
    """Jobs of LSF, whose unit of memory a site may choose."""

    units: str = _key("mb", _one_of("kb", "mb", "gb", "tb"))


@dataclasses.dataclass(frozen=True)
class Kubernetes:
    """Pods that Dask's Kubernetes operator makes."""

    namespace: str | None = _key(None, _LABEL)
    name: str = _key("ips2", _LABEL)
    image: str = _key("ips2-dask:latest", _TEXT)
    pull_policy: str = _key("IfNotPresent", _one_of("Always", "IfNotPresent", "Never"))
    service_account: str | None = _key(None, _TEXT)
    idle_timeout: int = _key(0, _whole(300, or_zero=True))
    env_from: tuple[str, ...] = _key((), _TEXTS)
    node_selector: Mapping[str, object] = _key(_NONE, _PLAIN)


@dataclasses.dataclass(frozen=True)
class Gateway:
    """A Dask Gateway server, which starts clusters for its users."""

    address: str = _key("http://127.0.0.1:8000", _URL)
    proxy_address: str | None = _key(None, _TEXT)
    auth: str | None = _key(None, _one_of("kerberos", "jupyterhub", "basic"))
    options: Mapping[str, object] = _key(_NONE, _PLAIN)


Machine = Local | Scheduler | Ssh | Queue | Kubernetes | Gateway
"""The section of one manager."""

Kind = TypeVar("Kind", bound=Machine)


class _Manager(NamedTuple):
    """A manager's own section, the module that starts its clusters, and the other keys that it uses."""

    section: type[Machine]
    starts: str
    takes: tuple[str, ...]


SECTIONS: dict[str, type[DataclassInstance]] = {
    "adaptive": _Adaptive,
    "worker": Worker,
    "bind": _Bind,
    "driver": _Driver,
}
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

MANAGERS: dict[str, _Manager] = {
    "local": _Manager(Local, "local", (*_SCALED, *_all("worker", "bind"), *_SAFE, *_ANY)),
    "scheduler": _Manager(Scheduler, "remote", ("worker.threads", "tls", *_ANY)),
    "ssh": _Manager(Ssh, "remote", (*_all("worker", "bind"), *_SAFE, *_ANY)),
    "slurm": _Manager(Queue, "jobqueue", _BATCH),
    "pbs": _Manager(Queue, "jobqueue", _BATCH),
    "lsf": _Manager(Lsf, "jobqueue", _BATCH),
    "sge": _Manager(Sge, "jobqueue", _BATCH),
    "kubernetes": _Manager(Kubernetes, "kubernetes", _POD),
    "gateway": _Manager(Gateway, "remote", (*_SCALED, "worker.threads", *_ANY)),
}


def taken_by(manager: str) -> str:
    """The keys that a manager uses, in words."""
    return ", ".join(["manager", f"{manager}.*", *MANAGERS[manager].takes])


@dataclasses.dataclass(frozen=True)
class Config:
    """A cluster: which manager starts it, and with what; the YAML files of cluster_configs comment each key."""

    manager: str
    machine: Machine
    workers: int | None = _key(None, _whole(1))
    tls: str | None = _key(None, _TEXT)
    insecure: bool = _key(False, _FLAG)
    timeout: int = _key(300, _whole(1))
    shared: str | None = _key(None, _TEXT)
    adaptive: _Adaptive | None = None
    worker: Worker = dataclasses.field(default_factory=Worker)
    bind: _Bind = dataclasses.field(default_factory=_Bind)
    driver: _Driver = dataclasses.field(default_factory=_Driver)

    def __post_init__(self) -> None:
        if self.workers is not None and self.adaptive is not None:
            allowed = "workers or adaptive, not both"
            raise _refuse("workers", self.workers, allowed, "leave one of them out, or write null")
        if "driver.memory" in MANAGERS[self.manager].takes and self.worker.memory is None:
            otherwise, remedy = "the batch system would give a job what it likes", "write worker: {memory: 4GiB}"
            raise BadInput("worker.memory", "nothing", "a size such as 4GiB", otherwise, remedy)

    def kind(self, expected: type[Kind]) -> Kind:
        """The manager's own section, which must be of a kind."""
        assert isinstance(self.machine, expected)
        return self.machine


# ---- files of configs


NOT_CLUSTERS = ("daskjob",)
"""Shipped YAML files that are not configs of a cluster."""


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that refuses a repeated key, whose first value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """Construct a mapping, in which each key stands once."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else None)
        return super().construct_mapping(node, deep)


def shipped() -> dict[str, Path]:
    """The YAML files that come with the package, by name."""
    folder = Path(str(resources.files("ips2_dask"))) / "cluster_configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of a config: a path, or the name of a shipped one."""
    path = Path(os.path.expanduser(name))
    if path.is_file():
        return path
    configs = {stem: file for stem, file in shipped().items() if stem not in NOT_CLUSTERS}
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem in configs:
        return configs[stem]
    near = difflib.get_close_matches(stem, configs, 1)
    remedy = f"give {near[0]}" if near else "copy one from cluster_configs and give its path"
    found, allowed = f"{name!r}, which is no file and no name", f"a YAML file, or one of {', '.join(configs)}"
    raise BadInput("cluster", found, allowed, "there would be no machines", remedy)


def load(source: str | Path | Mapping[str, object]) -> Config:
    """Read a config, and check every key and value.

    Parameters
    ----------
    source : path, name or mapping
    """
    if isinstance(source, Mapping):
        return _parse(source, "config")
    path = find(str(source))
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except Exception as error:  # PyYAML lets through whatever dates, numbers and depths make its parts raise
        found = f"what can't be read as YAML ({_problem(error)})"
        remedy = "mend that line, or start from a file of cluster_configs"
        raise BadInput(str(path), found, "a YAML file", "there would be no machines", remedy) from error
    if not isinstance(content, Mapping):
        allowed, remedy = "keys and values, the first of which is manager", "start from a file of cluster_configs"
        raise BadInput(str(path), type(content).__name__, allowed, "there would be no machines", remedy)
    return _parse(content, str(path))


def _problem(error: Exception) -> str:
    """The problem and its position, without the file's text, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    position = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or getattr(error, 'strerror', None) or type(error).__name__}{position}"


def _parse(content: Mapping[str, object], name: str) -> Config:
    """The config of the keys and values of a file, whose errors begin with ``name``."""
    manager = content.get("manager")
    if not isinstance(manager, str) or manager not in MANAGERS:
        allowed = f"one of {', '.join(MANAGERS)}"
        near = [*difflib.get_close_matches(str(manager), MANAGERS, 1), "local"][0]
        raise BadInput(f"{name}: manager", repr(manager), allowed, "nothing would be started", f"write manager: {near}")
    sections = {**SECTIONS, manager: MANAGERS[manager].section}
    top = {key: value for key, value in content.items() if key != "manager" and key not in sections}
    try:
        values = _values(Config, top, manager, "")
        made: dict[str, Any] = {
            section: kind(**_values(kind, content[section], manager, f"{section}."))
            for section, kind in sections.items()
            if content.get(section) is not None
        }
        return Config(manager, made.pop(manager, None) or MANAGERS[manager].section(), **values, **made)
    except BadInput as error:
        raise BadInput(f"{name}: {error.thing}", error.found, error.allowed, error.otherwise, error.remedy) from None


def _values(kind: type[DataclassInstance], content: object, manager: str, prefix: str) -> dict[str, Any]:
    """The checked values of a section, whose dotted keys begin with ``prefix``."""
    if not isinstance(content, Mapping):
        name, allowed = prefix.rstrip("."), f"the keys {', '.join(field_names(kind)) or 'of nothing'}"
        remedy = f"write them below {name}: with two spaces before each"
        raise BadInput(name, repr(content), allowed, "its values would be lost", remedy)
    fields = {field.name: field.metadata for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in content.items():
        where = f"{prefix}{key}"
        if not fields.get(key):
            raise _unknown(prefix, str(key), manager)
        taken = prefix == f"{manager}." or where in MANAGERS[manager].takes
        if value is None and (not taken or fields[key]["null"]):
            continue
        if not taken:
            found, allowed = f"a key that manager {manager} does nothing with", f"one of {taken_by(manager)}"
            raise BadInput(where, found, allowed, "it would be lost without a word", "leave it out")
        refuse_secrets(where, "", value)
        for inner, inner_value in value.items() if isinstance(value, dict) else ():
            refuse_secrets(f"{where}.{inner}", str(inner), inner_value)
        values[key] = fields[key]["check"].value(where, value)
    return values


def _unknown(prefix: str, key: str, manager: str) -> BadInput:
    """The error of an unknown key, which names the nearest of its section, or else of all."""
    refuse_secrets(prefix + key, key, None)
    sections = {"": Config, **SECTIONS, manager: MANAGERS[manager].section}
    own = field_names(sections[prefix.rstrip(".")]) + (list(sections)[1:] if not prefix else [])
    dotted = {name: prefix + name for name in own}
    for section, kind in sections.items():
        dotted |= {name: f"{section}.{name}".lstrip(".") for name in field_names(kind) if name not in dotted}
    near = [name for name in (key,) if name in dotted] or difflib.get_close_matches(key, own, 1, 0.5)
    hint = f"write {dotted[near[0]]}" if near else "leave it out"
    return BadInput(prefix + key, "an unknown key", f"one of {', '.join(own)}", "it would be lost without a word", hint)

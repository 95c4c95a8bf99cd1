"""Cluster configs read from a YAML file, a shipped one by its name, or a mapping; errors name the key at fault."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import yaml

from ips2_dask.clusters import checks
from ips2_dask.clusters.config import MANAGERS, SECTIONS, TAKES, Config, Machine, Section, field_names, taken_by
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound=Section | Machine)
Value = TypeVar("Value")

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
    """The file of a config: a path, or the name of a shipped one.

    Raises
    ------
    BadInput
        If there is neither.
    """
    path = Path(os.path.expanduser(name))
    if path.is_file():
        return path
    configs = {stem: file for stem, file in shipped().items() if stem not in NOT_CLUSTERS}
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem in configs:
        return configs[stem]
    near = difflib.get_close_matches(stem, configs, 1)
    raise BadInput(
        "cluster",
        f"{name!r}, which is no file and no name",
        f"a YAML file, or one of {', '.join(configs)}",
        "there would be no machines",
        f"give {near[0]}" if near else "copy one from cluster_configs and give its path",
    )


def load(source: str | Path | Mapping[str, object]) -> Config:
    """Read a config, and check every key and value.

    Parameters
    ----------
    source : path, name or mapping

    Raises
    ------
    BadInput
        If it can't be read, or a key or a value is not allowed.
    """
    if isinstance(source, Mapping):
        return parse(source, "config")
    path = find(str(source))
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except Exception as error:  # PyYAML lets through whatever dates, numbers and depths make its parts raise
        raise BadInput(
            str(path),
            f"what can't be read as YAML ({_problem(error)})",
            "a YAML file",
            "there would be no machines",
            "mend that line, or start from a file of cluster_configs",
        ) from error
    if not isinstance(content, Mapping):
        raise BadInput(
            str(path),
            f"{type(content).__name__}",
            "keys and values, the first of which is manager",
            "there would be no machines",
            "start from a file of cluster_configs",
        )
    return parse(content, str(path))


def _problem(error: Exception) -> str:
    """The problem and its position, without the file's text, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    position = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or getattr(error, 'strerror', None) or type(error).__name__}{position}"


def parse(content: Mapping[str, object], name: str) -> Config:
    """The config of the keys and values of a file, whose errors begin with ``name``."""
    manager = content.get("manager")
    if not isinstance(manager, str) or manager not in MANAGERS:
        near = difflib.get_close_matches(str(manager), MANAGERS, 1)
        raise BadInput(
            f"{name}: manager",
            repr(manager),
            f"one of {', '.join(MANAGERS)}",
            "nothing could be started",
            f"write manager: {near[0] if near else 'local'}",
        )
    common = ["manager", *field_names(Config), *SECTIONS, str(manager)]
    _check_names(content, common, "", name, str(manager))
    _check_taken(content, name, str(manager))
    values = {key: _checked(Config, key, content[key], key, name) for key in field_names(Config) if key in content}
    for key, section in SECTIONS.items():
        if content.get(key) is not None:
            values[key] = _section(section, content[key], key, name, str(manager))
    machine = _section(MANAGERS[str(manager)], content.get(str(manager)) or {}, str(manager), name, str(manager))
    return _named(name, Config, {"manager": str(manager), "machine": machine, **values})


def _check_taken(content: Mapping[str, object], name: str, manager: str) -> None:
    """Refuse a key that this manager does not use, unless its value is null."""
    takes = TAKES[manager]
    for key, value in content.items():
        if key in ("manager", manager) or value is None:
            continue
        nested = value if key in SECTIONS and isinstance(value, Mapping) else {}
        if key not in takes and not nested:
            raise _not_taken(f"{name}: {key}", manager)
        for inner, inner_value in nested.items():
            if inner_value is not None and inner in field_names(SECTIONS[key]) and inner not in takes.get(key, ()):
                raise _not_taken(f"{name}: {key}.{inner}", manager)


def _not_taken(key: str, manager: str) -> BadInput:
    return BadInput(
        key,
        f"a key that manager {manager} does nothing with",
        f"one of {taken_by(manager)}",
        "it would be lost without a word",
        "leave it out",
    )


def _section(kind: type[Kind], content: object, key: str, name: str, manager: str) -> Kind:
    """A section of a config, every key and value checked."""
    if not isinstance(content, Mapping):
        raise BadInput(
            f"{name}: {key}",
            repr(content),
            f"the keys {', '.join(field_names(kind)) or 'of nothing'}",
            "its values would be lost",
            f"write them below {key}: with two spaces before each",
        )
    _check_names(content, field_names(kind), f"{key}.", name, manager)
    return _named(name, kind, {k: _checked(kind, k, value, f"{key}.{k}", name) for k, value in content.items()})


def _named(name: str, kind: Callable[..., Value], values: Mapping[str, object]) -> Value:
    """A section or a config, whose own checks give errors that begin with the file's name."""
    try:
        return kind(**values)
    except BadInput as error:
        raise _of_file(error, name) from None


def _checked(kind: type[DataclassInstance], key: str, value: object, where: str, name: str) -> object:
    """The value of a key, as the check of its field returns it."""
    field = {field.name: field for field in dataclasses.fields(kind)}[key]
    try:
        checks.refuse_secrets(where, "", value)
        return field.metadata["check"](where, value)
    except BadInput as error:
        raise _of_file(error, name) from None


def _of_file(error: BadInput, name: str) -> BadInput:
    """The same error, which begins with the file's name."""
    return BadInput(f"{name}: {error.thing}", error.found, error.allowed, error.otherwise, error.remedy)


def _check_names(keys: Iterable[object], allowed: list[str], prefix: str, name: str, manager: str) -> None:
    """Refuse an unknown key, naming the nearest one: of the same section first, then of any other."""
    for key in keys:
        if key in allowed:
            continue
        checks.refuse_secrets(f"{name}: {prefix}{key}", str(key), None)
        elsewhere = [
            f"{section}.{k}"
            for section, kind in {**SECTIONS, manager: MANAGERS[manager]}.items()
            for k in field_names(kind)
        ]
        same = [dotted for dotted in [*elsewhere, *field_names(Config)] if dotted.rpartition(".")[2] == str(key)]
        near = difflib.get_close_matches(str(key), allowed, 1, 0.5)
        hint = f"write {prefix}{near[0]}" if near and not same else f"write {same[0]}" if same else "leave it out"
        raise BadInput(
            f"{name}: {prefix}{key}",
            "an unknown key",
            f"one of {', '.join(allowed) or 'no key'}",
            "it would be lost without a word",
            f"{hint} (nested keys stand below their section)" if same else hint,
        )

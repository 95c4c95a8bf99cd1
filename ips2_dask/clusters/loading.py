"""Cluster configs read from a YAML file, a shipped one by its name, or a mapping; errors name the key at fault."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Hashable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ips2_dask.clusters.checks import refuse_secrets
from ips2_dask.clusters.config import MANAGERS, SECTIONS, Config, field_names, taken_by
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    try:
        rest = {key: value for key, value in content.items() if key != "manager"}
        own = MANAGERS[manager].section
        values = _values(Config, rest, manager, "", {**SECTIONS, manager: own})
        return Config(manager, values.pop(manager, None) or own(), **values)
    except BadInput as error:
        raise BadInput(f"{name}: {error.thing}", error.found, error.allowed, error.otherwise, error.remedy) from None


def _values(
    kind: type[DataclassInstance],
    content: object,
    manager: str,
    prefix: str = "",
    sections: Mapping[str, type[DataclassInstance]] | None = None,
) -> dict[str, Any]:
    """The checked values of a section whose dotted keys begin with ``prefix``; a whole config has ``sections``."""
    if not isinstance(content, Mapping):
        name, allowed = prefix.rstrip("."), f"the keys {', '.join(field_names(kind)) or 'of nothing'}"
        remedy = f"write them below {name}: with two spaces before each"
        raise BadInput(name, repr(content), allowed, "its values would be lost", remedy)
    fields, sections = {field.name: field.metadata for field in dataclasses.fields(kind)}, sections or {}
    values: dict[str, Any] = {}
    for key, value in content.items():
        where = f"{prefix}{key}"
        if key in sections:
            if value is not None:
                values[key] = sections[key](**_values(sections[key], value, manager, f"{key}."))
            continue
        if not fields.get(key):
            raise _unknown(where, str(key), [*field_names(kind), *sections], manager)
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


def _unknown(where: str, key: str, allowed: list[str], manager: str) -> BadInput:
    """The error of an unknown key, which names the same key of another section, or else the nearest of this one."""
    refuse_secrets(where, key, None)
    sections = {**SECTIONS, manager: MANAGERS[manager].section}
    elsewhere = [f"{name}.{inner}" for name, kind in sections.items() for inner in field_names(kind)]
    same = [dotted for dotted in [*elsewhere, *field_names(Config)] if dotted.rpartition(".")[2] == key]
    near = difflib.get_close_matches(key, allowed, 1, 0.5)
    hint = f"write {where.removesuffix(key)}{near[0]}" if near else "leave it out"
    if same:
        hint = f"write {same[0]} (nested keys stand below their section)"
    some = f"one of {', '.join(allowed) or 'no key'}"
    return BadInput(where, "an unknown key", some, "it would be lost without a word", hint)

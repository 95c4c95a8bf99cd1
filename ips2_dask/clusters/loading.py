"""Reading a cluster's config: a shipped one by name, or a YAML file; what is wrong in it is named with its remedy."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ips2_dask.clusters import checks
from ips2_dask.clusters.config import MANAGERS, SECTIONS, TAKES, Config, keys_of, taken_by
from ips2_dask.errors import BadInput

NOT_CLUSTERS = ("daskjob",)
"""Shipped files that are no configs of a cluster."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key that stands twice, of which the first would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, each key once."""
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
    """The configs that come with the package, by name."""
    folder = Path(str(resources.files("ips2_dask"))) / "cluster_configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of a config: a path, or the name of a shipped one.

    Raises
    ------
    BadInput
        Where there is neither.
    """
    path = Path(os.path.expanduser(name))
    if path.is_file():
        return path
    known = {stem: place for stem, place in shipped().items() if stem not in NOT_CLUSTERS}
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem in known:
        return known[stem]
    near = difflib.get_close_matches(stem, known, 1)
    raise BadInput(
        "cluster", f"{name!r}, which is no file and no name", f"a YAML file, or one of {', '.join(known)}",
        "there would be no machines", f"give {near[0]}" if near else "copy one from cluster_configs and give its path",
    )  # fmt: skip


def load(source: str | Path | Mapping[str, Any]) -> Config:
    """The config that a file, a shipped name or a mapping gives, every value checked.

    Parameters
    ----------
    source : path, name or mapping

    Raises
    ------
    BadInput
        Where it can't be read, a key is unknown, or a value is not what it may be.
    """
    if isinstance(source, Mapping):
        return parse(source, "config")
    path = find(str(source))
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except Exception as error:  # PyYAML lets through whatever dates, numbers and depths make its parts raise
        raise BadInput(
            str(path), f"what can't be read as YAML ({_problem(error)})", "a YAML file",
            "there would be no machines", "mend that line, or start from a file of cluster_configs",
        ) from error  # fmt: skip
    if not isinstance(content, Mapping):
        raise BadInput(
            str(path), f"{type(content).__name__}", "keys and values, the first of which is manager",
            "there would be no machines", "start from a file of cluster_configs",
        )  # fmt: skip
    return parse(content, str(path))


def _problem(error: Exception) -> str:
    """What is wrong and where, without the lines themselves, which may hold anything."""
    mark = getattr(error, "problem_mark", None)
    at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or getattr(error, 'strerror', None) or type(error).__name__}{at}"


def parse(content: Mapping[str, Any], name: str) -> Config:
    """A config from the keys and values of a file; ``name`` is what errors call it."""
    manager = content.get("manager")
    if not isinstance(manager, str) or manager not in MANAGERS:
        near = difflib.get_close_matches(str(manager), MANAGERS, 1)
        raise BadInput(
            f"{name}: manager", repr(manager), f"one of {', '.join(MANAGERS)}", "nothing could be started",
            f"write manager: {near[0] if near else 'local'}",
        )  # fmt: skip
    common = ["manager", *keys_of(Config), *SECTIONS, str(manager)]
    _check_names(content, common, "", name, str(manager))
    _check_taken(content, name, str(manager))
    given = {key: _checked(Config, key, content[key], key, name) for key in keys_of(Config) if key in content}
    for key, section in SECTIONS.items():
        if content.get(key) is not None:
            given[key] = _section(section, content[key], key, name, str(manager))
    machine = _section(MANAGERS[str(manager)], content.get(str(manager)) or {}, str(manager), name, str(manager))
    return _named(name, Config, {"manager": str(manager), "machine": machine, **given})


def _check_taken(content: Mapping[str, Any], name: str, manager: str) -> None:
    """Refuse a key that this manager does nothing with; without a value (null) it says nothing."""
    takes = TAKES[manager]
    for key, value in content.items():
        if key in ("manager", manager) or value is None:
            continue
        nested = list(value) if key in SECTIONS and isinstance(value, Mapping) else []
        if key not in takes and not nested:
            raise _not_taken(f"{name}: {key}", manager)
        for inner in nested:
            if value[inner] is not None and inner in keys_of(SECTIONS[key]) and inner not in takes.get(key, ()):
                raise _not_taken(f"{name}: {key}.{inner}", manager)


def _not_taken(thing: str, manager: str) -> BadInput:
    return BadInput(
        thing, f"a key that manager {manager} does nothing with", f"one of {taken_by(manager)}",
        "it would be lost without a word", "leave it out",
    )  # fmt: skip


def _section(kind: type[Any], content: Any, key: str, name: str, manager: str) -> Any:
    if not isinstance(content, Mapping):
        raise BadInput(
            f"{name}: {key}", repr(content), f"the keys {', '.join(keys_of(kind)) or 'of nothing'}",
            "its values would be lost", f"write them below {key}: with two spaces before each",
        )  # fmt: skip
    _check_names(content, keys_of(kind), f"{key}.", name, manager)
    return _named(name, kind, {k: _checked(kind, k, value, f"{key}.{k}", name) for k, value in content.items()})


def _named(name: str, kind: type[Any], given: dict[str, Any]) -> Any:
    try:
        return kind(**given)
    except BadInput as error:
        raise _of_file(error, name) from None


def _checked(kind: type[Any], key: str, value: Any, where: str, name: str) -> Any:
    field = {field.name: field for field in dataclasses.fields(kind)}[key]
    try:
        checks.refuse_secrets(where, "", value)
        return field.metadata["check"](where, value)
    except BadInput as error:
        raise _of_file(error, name) from None


def _of_file(error: BadInput, name: str) -> BadInput:
    return BadInput(f"{name}: {error.thing}", error.found, error.allowed, error.otherwise, error.remedy)


def _check_names(content: Mapping[Any, Any], allowed: list[str], prefix: str, name: str, manager: str) -> None:
    """Refuse an unknown key, naming the nearest one: of the same section first, then of any other."""
    for key in content:
        if key in allowed:
            continue
        checks.refuse_secrets(f"{name}: {prefix}{key}", str(key), None)
        elsewhere = [
            f"{section}.{k}"
            for section, kind in {**SECTIONS, manager: MANAGERS[manager]}.items()
            for k in keys_of(kind)
        ]
        same = [dotted for dotted in [*elsewhere, *keys_of(Config)] if dotted.rpartition(".")[2] == str(key)]
        near = difflib.get_close_matches(str(key), allowed, 1, 0.5)
        hint = f"write {prefix}{near[0]}" if near and not same else f"write {same[0]}" if same else "leave it out"
        raise BadInput(
            f"{name}: {prefix}{key}", "an unknown key", f"one of {', '.join(allowed) or 'no key'}",
            "it would be lost without a word", f"{hint} (nested keys stand below their section)" if same else hint,
        )  # fmt: skip

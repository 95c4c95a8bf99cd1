"""The key of a stage, which is all that its results depend on, and how it differs from an earlier run's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

from ips2_dask.params import Params
from ips2_dask.plan.plan import Plan
from ips2_dask.store.layout import FORMAT, READS, STAGES, folder_of, key_digest

MODULES: dict[str, ModuleType] = {
    name: import_module(f"ips2_dask.stages.{'degrees' if name == 'assemble' else name}") for name in STAGES
}
"""The module of each stage: ``VERSION``, ``depends_on(params, choices)`` and ``run(context, executor, report)``."""

WORDS = {
    "seed": "random_state",
    "n_stored": "stored neighbours",
    "chunk": "samples of a chunk of vectors",
    "graph": "graph builder",
    "n_shards": "shards",
    "exact_after": "an exact search where recall is low",
    "input": "the input",
    "bounds": "the partitions",
}
"""Names for people, of keys' entries that have others."""


class Content(TypedDict):
    """All that a stage's results depend on; the key's digest is taken of it, so it is stored as it is."""

    inputs: dict[str, str]  # digests of the inputs, and of the keys of the stages that it reads
    params: dict[str, Any]
    version: int  # of the stage's code
    format: int


class Key(NamedTuple):
    """All that a stage's results depend on, and the folder that its digest names."""

    content: Content
    folder: str


def stage_keys(params: Params, plan: Plan, digests: Mapping[str, str]) -> dict[str, Key]:
    """The key of every stage, from the keys of the stages that it reads, its own parameters and its version.

    ``digests`` are of what the caller gave: ``input``, and ``similarity`` and ``knn_graph`` where there are such.
    """
    above = {**digests, "bounds": hashlib.sha256(repr(plan.bounds).encode()).hexdigest()}
    keys = {}
    for name, module in MODULES.items():
        feeds = READS[name] + (("similarity",) if name == "eigen" and params.tensor == "decomposable" else ())
        content: Content = {
            "inputs": {feed: above[feed] for feed in feeds if feed in above},
            "params": module.depends_on(params, plan.choices),
            "version": module.VERSION,
            "format": FORMAT,
        }
        above[name] = key_digest(content)
        keys[name] = Key(content, folder_of(name, content))
    return keys


def changes(keys: Mapping[str, Key], earlier: Mapping[str, Content]) -> dict[str, list[str]]:
    """How the key of each stage differs from the one that it was last finished under, in words.

    The list of a stage is empty where nothing differs, or where it was never finished.
    """
    found: dict[str, list[str]] = {}
    for name in STAGES:
        found[name] = _changes(earlier[name], keys[name].content, found) if name in earlier else []
    return found


def _changes(old: Content, new: Content, above: Mapping[str, list[str]]) -> list[str]:
    """How two keys of a stage differ; ``above`` says the same of the stages before it."""
    texts = []
    if old["version"] != new["version"]:
        texts.append(f"its code changed from version {old['version']} to {new['version']}")
    for name in sorted({*old["params"], *new["params"]}):
        values = (content["params"].get(name, "nothing") for content in (old, new))
        first, second = (value if isinstance(value, str) else repr(value) for value in values)
        if first != second:
            texts.append(f"{WORDS.get(name, name)} changed from {first} to {second}")
    for name in sorted({*old["inputs"], *new["inputs"]}):
        if old["inputs"].get(name) != new["inputs"].get(name):
            causes = f" ({'; '.join(above[name])})" if above.get(name) else ""
            texts.append(f"{WORDS.get(name, name)} changed{causes}")
    return texts

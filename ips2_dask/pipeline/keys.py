"""What a stage's results depend on, its digest, and what has changed since another run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ips2_dask.params import Params
from ips2_dask.plan.plan import Choices
from ips2_dask.stages import degrees, eigen, fuse, ingest, label, neighbors, tensor
from ips2_dask.store.layout import FORMAT, STAGES, folder_of, key_digest

MODULES: dict[str, Any] = {
    "ingest": ingest,
    "neighbors": neighbors,
    "tensor": tensor,
    "assemble": degrees,
    "eigen": eigen,
    "fuse": fuse,
    "label": label,
}

FEEDS = {
    "ingest": ("input", "bounds"),
    "neighbors": ("ingest", "knn_graph"),
    "tensor": ("ingest", "neighbors"),
    "assemble": ("tensor",),
    "eigen": ("assemble",),
    "fuse": ("eigen", "similarity"),
    "label": ("fuse",),
}
"""What a stage reads, where it is there; a change anywhere else leaves it alone."""

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
"""Names for people, where those in a key are others."""

Content = dict[str, Any]
"""What a key is the digest of: ``inputs``, ``params``, ``version`` and ``format``."""


class Key(NamedTuple):
    """What a stage's results depend on, and the folder that is named by its digest."""

    content: Content
    folder: str


def keys_of(
    params: Params, choices: Choices, bounds: tuple[int, ...], fingerprint: str, given: Mapping[str, str] | None = None
) -> dict[str, Key]:
    """The key of every stage, from its inputs' keys, its own parameters and its version.

    ``given`` are the digests of what was given beside the samples: a similarity, a graph.
    """
    above = {**(given or {}), "input": fingerprint, "bounds": hashlib.sha256(repr(bounds).encode()).hexdigest()}
    keys = {}
    for name in STAGES:
        module = MODULES[name]
        feeds = FEEDS[name] + (("similarity",) if name == "eigen" and params.tensor == "decomposable" else ())
        content = {
            "inputs": {feed: above[feed] for feed in feeds if feed in above},
            "params": module.depends_on(params, choices),
            "version": module.VERSION,
            "format": FORMAT,
        }
        above[name] = key_digest(content)
        keys[name] = Key(content, folder_of(name, content))
    return keys


def changes(keys: dict[str, Key], before: dict[str, Content]) -> dict[str, list[str]]:
    """Of each stage, what is not as it was in its last finished key; nothing where there was none, or no change."""
    out: dict[str, list[str]] = {}
    for name in STAGES:
        was, now = before.get(name), keys[name].content
        out[name] = [] if was is None else _changes(was, now, out)
    return out


def _changes(was: Content, now: Content, above: dict[str, list[str]]) -> list[str]:
    said = []
    if was["format"] != now["format"]:
        said.append(f"the format of run directories changed from {was['format']} to {now['format']}")
    if was["version"] != now["version"]:
        said.append(f"its code changed from version {was['version']} to {now['version']}")
    for name in sorted({*was["params"], *now["params"]}):
        one, other = (_value(content["params"], name) for content in (was, now))
        if one != other:
            said.append(f"{WORDS.get(name, name)} changed from {one} to {other}")
    for name in sorted({*was["inputs"], *now["inputs"]}):
        one, other = was["inputs"].get(name), now["inputs"].get(name)
        if one != other:
            causes = f" ({'; '.join(above[name])})" if above.get(name) else ""
            said.append(f"{WORDS.get(name, name)} changed{causes}")
    return said


def _value(params: dict[str, Any], name: str) -> str:
    value = params.get(name, "nothing")
    return value if isinstance(value, str) else repr(value)

"""The documents that a run stores about itself: ``manifest.json``, and the ``stage.json`` of each finished stage."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import TypedDict, cast

from ips2_dask import __version__
from ips2_dask.pipeline.keys import Content, Key
from ips2_dask.pipeline.prepare import Prepared
from ips2_dask.plan.plan import Plan
from ips2_dask.readers import features_of
from ips2_dask.readers.base import Table
from ips2_dask.store.base import Parts, Store
from ips2_dask.store.integrity import Document, Facts
from ips2_dask.store.layout import FORMAT, STAGES

MANIFEST = "manifest.json"


class StageDocument(TypedDict):
    """The content of a ``stage.json``: what a finished stage was computed from, and what it consists of."""

    key: Content
    facts: Facts
    seconds: float
    peak_rss_bytes: int
    parts: Parts
    made_from: dict[str, str]  # digest of each earlier stage that it was computed from
    finished: str


class StageEntry(TypedDict):
    """A stage in the manifest of the run that computed or reused it."""

    name: str
    folder: str
    seconds: float
    skipped: bool
    state: str  # "computed", "computed again" or "reused"
    why: list[str]
    peak_rss_bytes: int
    facts: Facts


class _StoredKey(Content):
    """The key of a stage in the manifest, with the folder that it names."""

    folder: str


class ChoiceDocument(TypedDict):
    """The number of clusters that was chosen; the evidence of `stages.choose` stands beside these keys."""

    n_clusters: int
    key: str
    generation: int


@dataclasses.dataclass
class Manifest:
    """The content of a ``manifest.json``, field by field as it is stored."""

    created: str
    params: Document
    input: Document
    bounds: list[int]
    choices: Document
    plan: list[Document]
    generation: int  # raised whenever a stage has given other bytes than before, which outdates what is made from it
    versions: dict[str, str]
    started: str
    keys: dict[str, _StoredKey]  # of every stage, also of those that are not reached yet
    done: dict[str, Content]  # of each stage, the key that it was last finished under, by this or an earlier run
    beside: dict[str, str] = dataclasses.field(default_factory=dict)
    stages: list[StageEntry] = dataclasses.field(default_factory=list)  # those finished so far, in their order
    choice: ChoiceDocument | None = None
    finished: str | None = None
    format: int = FORMAT

    @classmethod
    def begin(cls, prepared: Prepared, earlier: Document | None) -> Manifest:
        """The manifest of a run that begins, in a store that may hold the manifest of an earlier run."""
        source, plan, features = prepared.source, prepared.plan, features_of(prepared.source)
        read: Document = {"name": source.name, "shape": [plan.m, plan.f], "fingerprint": source.fingerprint}
        read |= prepared.inputs.reading
        if isinstance(source, Table) and source.label is not None:
            read["label"] = source.label
        if features is not None:
            read["fitted_features"] = features.as_dict()
        previous = earlier or {"created": now(), "generation": 0, "done": {}}
        return cls(
            created=previous["created"],
            params=prepared.params.as_dict(),
            input=read,
            bounds=list(plan.bounds),
            choices=dataclasses.asdict(plan.choices),
            plan=_plan_of(plan),
            generation=previous["generation"],
            versions=dict(versions()),
            started=now(),
            keys=_described(prepared.keys),
            done=dict(previous["done"]),
        )

    def as_dict(self) -> Document:
        """The document that is stored."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def write(self, store: Store) -> None:
        """Store the manifest in place of the one before."""
        store.put_document(MANIFEST, self.as_dict())

    def enter(self, entry: StageEntry, content: Content) -> None:
        """Record a finished stage and its key; an earlier entry of the stage is replaced."""
        self.stages[:] = [*(stage for stage in self.stages if stage["name"] != entry["name"]), entry]
        self.stages.sort(key=lambda stage: STAGES.index(stage["name"]))
        self.done[entry["name"]] = content

    def take_plan(self, prepared: Prepared) -> None:
        """Record the plan that was made anew for the distinct samples."""
        self.params, self.choices = prepared.params.as_dict(), dataclasses.asdict(prepared.plan.choices)
        self.plan = _plan_of(prepared.plan)
        self.keys = _described(prepared.keys)

    def take_choice(self, prepared: Prepared, choice: ChoiceDocument, earlier: Document | None) -> None:
        """Record the number of clusters that was chosen; stages that served the choice alone are left out."""
        self.stages = [stage for stage in self.stages if stage["folder"] == prepared.keys[stage["name"]].folder]
        names = {stage["name"] for stage in self.stages}
        done = {name: content for name, content in self.done.items() if name in names}
        self.params, self.choice, self.keys = prepared.params.as_dict(), choice, _described(prepared.keys)
        self.done = {**(earlier or {}).get("done", {}), **done}


def read_manifest(store: Store) -> Document | None:
    """The manifest of an earlier run as it is stored; None where there is none, or one of another format."""
    content = store.get_document(MANIFEST)
    return content if content is not None and content.get("format") == FORMAT else None


def read_stage(store: Store, folder: str) -> StageDocument | None:
    """The ``stage.json`` of a folder; None where the stage is not finished."""
    return cast("StageDocument | None", store.get_document(f"{folder}/stage.json"))


def _described(keys: Mapping[str, Key]) -> dict[str, _StoredKey]:
    """The keys as the manifest stores them."""
    return {name: {**key.content, "folder": key.folder} for name, key in keys.items()}


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that results depend on; cached, since the look-up outlasts a stage of a small fit."""
    names = ("dask", "distributed", "numba", "numpy", "pynndescent", "scikit-learn", "scipy", "zarr")
    own = {"ips2_dask": __version__, "python": platform.python_version()}
    return own | {name: importlib.metadata.version(name) for name in names}


def _plan_of(plan: Plan) -> list[Document]:
    """The projections of all stages, without the terms that they are sums of."""
    names = ("name", "what", "tasks", "seconds", "products", "worker_bytes", "client_bytes", "disk_bytes")
    return [{name: getattr(stage, name) for name in names} for stage in plan.stages]

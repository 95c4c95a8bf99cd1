"""The documents that a run stores about itself: ``manifest.json``, and the ``stage.json`` of each finished stage."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TypedDict, cast

from ips2_dask.pipeline.keys import Content
from ips2_dask.pipeline.prepare import Prepared
from ips2_dask.readers.base import Table
from ips2_dask.runs.maintenance import versions as versions
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
    keys: dict[str, Document]  # and the folder of every stage, also of those that are not reached yet
    done: dict[str, Content]  # of each stage, the key that it was last finished under, by this or an earlier run
    beside: dict[str, str] = dataclasses.field(default_factory=dict)
    # those finished so far, in their order: name, folder, seconds, skipped, state, why, peak_rss_bytes, facts
    stages: list[Document] = dataclasses.field(default_factory=list)
    choice: Document | None = None  # n_clusters, key and generation, and the evidence of `stages.choose`
    finished: str | None = None
    format: int = FORMAT

    @classmethod
    def begin(cls, prepared: Prepared, earlier: Document | None) -> Manifest:
        """The manifest of a run that begins, in a store that may hold the manifest of an earlier run."""
        source, plan, features = prepared.source, prepared.plan, prepared.source.fitted
        read: Document = {"name": source.name, "shape": [plan.m, plan.f], "fingerprint": source.fingerprint}
        read |= prepared.inputs.reading
        if isinstance(source, Table) and source.label is not None:
            read["label"] = source.label
        if features is not None:
            read["fitted_features"] = features.as_dict()
        previous = earlier or {"created": now(), "generation": 0, "done": {}}
        return cls(
            created=previous["created"],
            input=read,
            bounds=list(plan.bounds),
            generation=previous["generation"],
            versions=dict(versions()),
            started=now(),
            done=dict(previous["done"]),
            **_planned(prepared),
        )

    def as_dict(self) -> Document:
        """The document that is stored."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def write(self, store: Store) -> None:
        """Store the manifest in place of the one before."""
        store.put_document(MANIFEST, self.as_dict())

    def enter(self, entry: Document, content: Content) -> None:
        """Record a finished stage and its key; an earlier entry of the stage is replaced."""
        self.stages[:] = [*(stage for stage in self.stages if stage["name"] != entry["name"]), entry]
        self.stages.sort(key=lambda stage: STAGES.index(stage["name"]))
        self.done[entry["name"]] = content

    def take(self, prepared: Prepared, choice: Document | None, earlier: Document | None) -> None:
        """Record the plan that was made anew, and the number of clusters if it was chosen.

        Stages that served the choice alone are left out then.
        """
        vars(self).update(_planned(prepared))
        if choice is not None:
            self.choice = choice
            self.stages = [stage for stage in self.stages if stage["folder"] == self.keys[stage["name"]]["folder"]]
            done = {stage["name"]: self.done[stage["name"]] for stage in self.stages}
            self.done = {**(earlier or {}).get("done", {}), **done}


def read_manifest(store: Store) -> Document | None:
    """The manifest of an earlier run as it is stored; None where there is none, or one of another format."""
    content = store.get_document(MANIFEST)
    return content if content is not None and content.get("format") == FORMAT else None


def read_stage(store: Store, folder: str) -> StageDocument | None:
    """The ``stage.json`` of a folder; None where the stage is not finished."""
    return cast("StageDocument | None", store.get_document(f"{folder}/stage.json"))


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _planned(prepared: Prepared) -> Document:
    """What the manifest says of a plan; of the projections of stages without the terms that they are sums of."""
    names = ("name", "what", "tasks", "seconds", "products", "worker_bytes", "client_bytes", "disk_bytes")
    return {
        "params": prepared.params.as_dict(),
        "choices": dataclasses.asdict(prepared.plan.choices),
        "plan": [{name: getattr(stage, name) for name in names} for stage in prepared.plan.stages],
        "keys": {name: {**key.content, "folder": key.folder} for name, key in prepared.keys.items()},
    }

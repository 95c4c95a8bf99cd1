"""A whole run against its digests: manifest, keys, receipts, every array, every chunk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ips2_dask.errors import BadInput, Damaged
from ips2_dask.runs.run import read_manifest
from ips2_dask.store import lock
from ips2_dask.store.integrity import Fault, Receipt
from ips2_dask.store.layout import ARRAYS, STAGES, folder_of, key_digest
from ips2_dask.store.zarr_store import ROOT, ZarrStore


@dataclasses.dataclass
class Verification:
    """What `verify` has found.

    Attributes
    ----------
    directory : str
    faults : list of Fault
        Everything that is not what was written; empty for a sound run.
    stages, parts, arrays, chunks, bytes : int
        How much was looked at.
    running : str, optional
        Which run is at work in the directory now: what it has not finished is not looked at.
    """

    directory: str
    faults: list[Fault] = dataclasses.field(default_factory=list)
    stages: int = 0
    parts: int = 0
    arrays: int = 0
    chunks: int = 0
    bytes: int = 0
    running: str | None = None

    @property
    def sound(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = dataclasses.asdict(self)
        return {**found, "faults": [fault.as_dict() for fault in self.faults], "sound": self.sound}


def verify(path: str | Path) -> Verification:
    """Check every stage that the manifest names: keys, receipts, and every byte of every array.

    Folders of earlier parameters are not looked at; they are when a run uses them again (``ips2 run --verify``).

    Parameters
    ----------
    path : path or URL
        A run directory, of an unfinished run too.

    Raises
    ------
    BadInput
        Where there is no run, or one of another format.
    """
    store = ZarrStore(str(path))
    out = Verification(str(path))
    owner = lock.owner_of(store.files)
    if owner is not None and lock.is_alive(owner):
        out.running = lock.describe(owner)
    if store.document("zarr.json")[0] != ROOT:
        out.faults.append(Fault("", "", "zarr.json", "the group of the run is not what was written"))
    try:
        manifest = read_manifest(store)
    except (Damaged, BadInput):
        if not store.stage_folders():  # no run has ever been here
            raise
        out.faults.append(Fault("", "", "manifest.json", "the manifest is not what was written"))
        for folder in store.stage_folders():
            _stage(store, folder, None, out)
        return out
    entries = {entry["name"]: entry for entry in manifest["stages"]}
    for name in STAGES:
        key = manifest["keys"][name]
        out.faults += _key_faults(name, manifest)
        if name in entries or out.running is None:
            _stage(store, key["folder"], entries.get(name), out)
    return out


def _key_faults(name: str, manifest: dict[str, Any]) -> list[Fault]:
    """Whether a stage's folder is named by its key, and its key made of the keys that it reads."""
    keys = manifest["keys"]
    content = {what: keys[name][what] for what in ("inputs", "params", "version", "format")}
    found = []
    if folder_of(name, content) != keys[name]["folder"]:
        found.append("its folder is not named by its key")
    for feed, digest in content["inputs"].items():
        if feed in keys:
            above = {what: keys[feed][what] for what in ("inputs", "params", "version", "format")}
            if key_digest(above) != digest:
                found.append(f"its key is made of another {feed}")
    return [Fault("", "", f"manifest.json, stage {name}", text) for text in found]


def _stage(store: ZarrStore, folder: str, entry: dict[str, Any] | None, out: Verification) -> None:
    """One stage: its document against the manifest, its receipts against the layout, its parts."""
    known, whole = store.document(f"{folder}/stage.json")
    name = folder.rpartition("-")[0]
    where = f"{folder}/stage.json"
    if known is not None and not whole:
        out.faults.append(Fault(folder, "", where, "it is not what was written"))
        known = None
    elif known is None and (entry is not None or store.files.read(where) is not None):
        out.faults.append(Fault(folder, "", where, "it is missing or can't be read"))
    if known is not None:
        if folder_of(name, known["key"]) != folder:
            out.faults.append(Fault(folder, "", where, "its key is not that of its folder"))
        if entry is not None and entry["facts"] != known["facts"]:
            out.faults.append(Fault(folder, "", where, "its facts are not those of the manifest"))
    survey = store.survey(folder, known["parts"] if known else None, True)
    out.faults += survey.faults
    for part, receipt in sorted(survey.receipts.items()):
        out.faults += _layout_faults(name, folder, part, receipt)
    out.stages += known is not None
    out.parts += len(survey.receipts)
    out.arrays += survey.arrays
    out.chunks += survey.chunks
    out.bytes += survey.octets


def _layout_faults(name: str, folder: str, part: str, receipt: Receipt) -> list[Fault]:
    """Arrays that the layout does not know."""
    unknown = sorted(set(receipt["arrays"]) - set(ARRAYS[name]))
    return [
        Fault(folder, part, f"{folder}/{part}.json", f"array {array} is not in the layout", array) for array in unknown
    ]

"""Maintenance of a run directory: its status, its verification against all digests, and the removal of garbage."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ips2_dask.errors import BadInput, Damaged
from ips2_dask.runs.directory import read_manifest
from ips2_dask.store import lock
from ips2_dask.store.integrity import Document, Fault, Receipt
from ips2_dask.store.layout import ARRAYS, STAGES, folder_of, key_digest
from ips2_dask.store.zarr_store import FOLDER, ROOT, ZarrStore, is_receipt

REMOVED_AT_ONCE = 16
"""Files and folders that `gc` removes at the same time."""


def status(path: str | Path) -> dict[str, Any]:
    """Input, parameters and stages of a run directory, as plain values; also while a run is at work in it.

    Returns
    -------
    dict
        ``input``, ``params``, ``started``, ``finished``, ``running`` (who is at work now, or None), and ``stages``: of
        each its ``state`` (``computed``, ``computed again``, ``reused`` or ``to do``), ``why``, ``seconds`` and
        ``peak_rss_bytes``.

    Raises
    ------
    BadInput
        Where there is no run, or one of another format.
    Damaged
        Where the manifest is not what was written.
    """
    store = ZarrStore(path)
    manifest = read_manifest(store)
    owner = lock.owner_of(store.files)
    running = lock.describe(owner) if owner is not None and lock.is_alive(owner) else None
    done = {stage["name"]: stage for stage in manifest["stages"]}
    fields = ("name", "state", "why", "seconds", "peak_rss_bytes")
    undone: dict[str, object] = {"state": "to do", "why": [], "seconds": None, "peak_rss_bytes": None}
    return {
        "directory": str(path),
        "input": manifest["input"],
        "params": manifest["params"],
        "versions": manifest["versions"],
        "created": manifest["created"],
        "started": manifest["started"],
        "finished": manifest["finished"],
        "running": running,
        "stages": [
            {field: done[name][field] for field in fields} if name in done else {"name": name, **undone}
            for name in STAGES
        ],
    }


@dataclasses.dataclass
class Verification:
    """Result of `verify`.

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
        fields = dataclasses.asdict(self)
        return {**fields, "faults": [fault.as_dict() for fault in self.faults], "sound": self.sound}


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
    store = ZarrStore(path)
    result = Verification(str(path))
    owner = lock.owner_of(store.files)
    if owner is not None and lock.is_alive(owner):
        result.running = lock.describe(owner)
    if store.document("zarr.json")[0] != ROOT:
        result.faults.append(Fault("", "", "zarr.json", "the group of the run is not what was written"))
    try:
        manifest = read_manifest(store)
    except (Damaged, BadInput):
        if not store.stage_folders():  # no run has ever been here
            raise
        result.faults.append(Fault("", "", "manifest.json", "the manifest is not what was written"))
        for folder in store.stage_folders():
            _verify_stage(store, folder, None, result)
        return result
    entries = {entry["name"]: entry for entry in manifest["stages"]}
    for name in STAGES:
        key = manifest["keys"][name]
        result.faults += _key_faults(name, manifest)
        if name in entries or result.running is None:
            _verify_stage(store, key["folder"], entries.get(name), result)
    return result


def _key_faults(name: str, manifest: Document) -> list[Fault]:
    """Whether a stage's folder is named by its key, and its key made of the keys that it reads."""
    keys = manifest["keys"]
    content = {what: keys[name][what] for what in ("inputs", "params", "version", "format")}
    faults = []
    if folder_of(name, content) != keys[name]["folder"]:
        faults.append("its folder is not named by its key")
    for feed, digest in content["inputs"].items():
        if feed in keys:
            above = {what: keys[feed][what] for what in ("inputs", "params", "version", "format")}
            if key_digest(above) != digest:
                faults.append(f"its key is made of another {feed}")
    return [Fault("", "", f"manifest.json, stage {name}", text) for text in faults]


def _verify_stage(store: ZarrStore, folder: str, entry: Document | None, verification: Verification) -> None:
    """One stage: its document against the manifest, its receipts against the layout, its parts."""
    document, whole = store.document(f"{folder}/stage.json")
    name = folder.rpartition("-")[0]
    where = f"{folder}/stage.json"
    if document is not None and not whole:
        verification.faults.append(Fault(folder, "", where, "it is not what was written"))
        document = None
    elif document is None and (entry is not None or store.files.read(where) is not None):
        verification.faults.append(Fault(folder, "", where, "it is missing or can't be read"))
    if document is not None:
        if folder_of(name, document["key"]) != folder:
            verification.faults.append(Fault(folder, "", where, "its key is not that of its folder"))
        if entry is not None and entry["facts"] != document["facts"]:
            verification.faults.append(Fault(folder, "", where, "its facts are not those of the manifest"))
    scan = store.scan(folder, document["parts"] if document else None, True)
    verification.faults += scan.faults
    for part, receipt in sorted(scan.receipts.items()):
        verification.faults += _layout_faults(name, folder, part, receipt)
    verification.stages += document is not None
    verification.parts += len(scan.receipts)
    verification.arrays += scan.arrays
    verification.chunks += scan.chunks
    verification.bytes += scan.octets


def _layout_faults(name: str, folder: str, part: str, receipt: Receipt) -> list[Fault]:
    """Arrays that the layout does not know."""
    unknown = sorted(set(receipt["arrays"]) - set(ARRAYS[name]))
    return [
        Fault(folder, part, f"{folder}/{part}.json", f"array {array} is not in the layout", array) for array in unknown
    ]


@dataclasses.dataclass(frozen=True)
class Garbage:
    """A file or folder that nothing needs.

    Attributes
    ----------
    path : str
        Below the run directory.
    why : str
    bytes : int
    """

    path: str
    why: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Collected:
    """Result of `gc`: the files and folders that it has removed, or would remove."""

    directory: str
    dry_run: bool
    garbage: tuple[Garbage, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return sum(one.bytes for one in self.garbage)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "bytes": self.bytes}


def gc(path: str | Path, dry_run: bool = False) -> Collected:
    """Remove what no key points to: stages of other parameters, attempts without a receipt, unfinished files.

    What the manifest's parameters need stays, finished or not; and so does what no run has written.

    Parameters
    ----------
    path : path or URL
        A run directory.
    dry_run : bool
        Only look.

    Raises
    ------
    BadInput
        Where there is no run, or a run is at work in the directory.
    Damaged
        Where the manifest can't be trusted: without it nothing says what is needed.
    """
    store = ZarrStore(path)
    read_manifest(store)  # a directory that is no run is refused before a lock is put there
    with store.lock():
        manifest = read_manifest(store)
        folders = {manifest["keys"][name]["folder"] for name in STAGES} | set(manifest.get("beside", {}).values())
        garbage = _garbage(store, folders)
        if not dry_run:
            with ThreadPoolExecutor(REMOVED_AT_ONCE) as pool:  # behind a URL each removal waits for a server
                list(pool.map(store.remove, [one.path for one in garbage]))
    return Collected(str(path), dry_run, tuple(garbage))


def _garbage(store: ZarrStore, folders: set[str]) -> list[Garbage]:
    garbage = []
    for name in store.files.names(""):
        if FOLDER.fullmatch(name):
            sizes = store.files.sizes(name)
            if name not in folders:
                garbage.append(Garbage(name, "a stage of other parameters, input or code", sum(sizes.values())))
            else:
                garbage += _in_folder(store, name, sizes)
        elif name.endswith(".partial"):
            garbage.append(Garbage(name, "a file that was not written to its end", _size(store, name)))
    return garbage


def _size(store: ZarrStore, name: str) -> int:
    text = store.files.read(name)
    return len((text or "").encode())


def _in_folder(store: ZarrStore, folder: str, sizes: dict[str, int]) -> list[Garbage]:
    """Garbage in a folder that is needed itself."""
    document = store.get_document(f"{folder}/stage.json")
    receipts = store.parts(folder)
    needed = {part: r for part, r in receipts.items() if document is None or part in document["parts"]}
    attempts = {receipt["attempt"] for receipt in needed.values()}
    garbage: list[Garbage] = []
    orphans: dict[str, int] = {}
    for path, size in sizes.items():
        top, below, _ = path.partition("/")
        part = top.removesuffix(".json")
        if below and top not in attempts:
            orphans[top] = orphans.get(top, 0) + size
        elif path.endswith(".partial"):
            garbage.append(Garbage(f"{folder}/{path}", "a file that was not written to its end", size))
        elif not below and is_receipt(top) and part not in needed:
            why = "a part that was needed on the way" if part in receipts else "a receipt that can't be read"
            garbage.append(Garbage(f"{folder}/{top}", why, size))
    garbage += [Garbage(f"{folder}/{top}", "an attempt that no receipt names", size) for top, size in orphans.items()]
    return sorted(garbage, key=lambda one: one.path)

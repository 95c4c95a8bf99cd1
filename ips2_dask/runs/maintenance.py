"""The directory of a run: which path may be one, its manifest, its status, its verification, and its garbage."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ips2_dask import __version__
from ips2_dask.errors import BadInput, Damaged
from ips2_dask.store import lock
from ips2_dask.store.base import Store
from ips2_dask.store.integrity import Document, Fault
from ips2_dask.store.layout import ARRAYS, FORMAT, STAGES, folder_of, key_digest
from ips2_dask.store.remote import is_remote
from ips2_dask.store.zarr_store import FOLDER, ROOT, ZarrStore, is_receipt

REMOVED_AT_ONCE = 16
"""Files and folders that `gc` removes at the same time."""

PLACE, NOWHERE = "a place for a directory", "there would be nowhere to put the run"
"""What is allowed where a directory can't be made, and why."""


def check_directory(store: ZarrStore, fresh: bool = False) -> None:
    """Refuse an output directory that holds something else; one of another format too, unless it starts over."""
    path = str(store.location)
    if not is_remote(path):
        _check_place(Path(path))
    names = [name for name in store.files.names("") if not name.endswith(".partial") and name != lock.NAME]
    if names and not store.is_run():
        found = f"a directory that holds something else ({', '.join(names[:3])})"
        allowed = "an empty directory or a run's"
        raise BadInput(path, found, allowed, "the run's files would mix with others", "give another --out")
    manifest = store.document("manifest.json")[0]
    if manifest is not None and not fresh:
        _check_format(store, manifest)


def _check_place(path: Path) -> None:
    """Refuse a path where no directory can be made."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long a name, say
        raise BadInput(str(path), f"a path that can't be ({error})", PLACE, NOWHERE, "give another --out") from None
    places = (path, *path.parents)
    nearest = next(place for place in places if place.exists())
    for place in places[: places.index(nearest)]:
        if place.is_symlink():
            found = f"a symbolic link that leads nowhere ({os.readlink(place)})"
            raise BadInput(
                str(place), found, PLACE, NOWHERE, "make the directory that it leads to, or give another --out"
            )
    if nearest == path and not path.is_dir():
        allowed = "a directory, new or of an earlier run"
        raise BadInput(str(path), "a file", allowed, "it would be overwritten", "give another --out")
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "where this user may not write" if nearest.is_dir() else "which is a file, in its path"
        raise BadInput(str(path), f"{nearest}, {why}", PLACE, NOWHERE, "give another --out")


def read_manifest(store: ZarrStore) -> Document:
    """The manifest of a run directory, refused where there is none, or one of another format or with strange folders.

    ``Damaged`` where it is not what was written.
    """
    manifest, whole = store.document("manifest.json")
    if manifest is None:
        found, why = "no manifest.json that can be read", "there would be nothing to show"
        raise BadInput(
            f"{store.location}", found, "the directory of a run", why, "give the directory that was --out of `ips2 run`"
        )
    _check_format(store, manifest)
    if not whole:
        raise Fault("", "", "manifest.json", "the manifest is not what was written").error(str(store.location))
    folders = [entry["folder"] for entry in (*manifest["keys"].values(), *manifest["stages"])]
    for folder in (*folders, *manifest["beside"].values()):
        if not FOLDER.fullmatch(str(folder)):  # a stranger's may lead out of the directory
            found, allowed = f"a manifest with the folder {folder!r}", "names of stages' folders"
            why = "files that are no part of a run could be read or removed"
            remedy = "do not use this directory: no run has written it so"
            raise BadInput(f"{store.location}", found, allowed, why, remedy)
    return manifest


def check_there(store: Store) -> None:
    """Refuse to go on with a finished run whose directory was moved or removed since it was opened."""
    if store.get_document("manifest.json") is None:
        allowed = "the directory of the run, which was there when it was opened"
        remedy = "open it where it is now, with ips2_dask.open_run, or run it again"
        raise BadInput(f"{store.location}", "no run any more", allowed, "there would be nothing to read", remedy)


def _check_format(store: ZarrStore, manifest: Document) -> None:
    """Refuse a run directory of another version."""
    if manifest.get("format") != FORMAT:
        found = f"a run directory of format {manifest.get('format')!r}"
        remedy = "open it with the version of ips2_dask that wrote it, or start over with `ips2 run --fresh`"
        raise BadInput(f"{store.location}", found, f"format {FORMAT}", "its arrays would be misread", remedy)


def status(path: str | Path) -> dict[str, Any]:
    """Input, parameters and stages of a run directory, as plain values; also while a run is at work in it.

    Returns
    -------
    dict
        ``input``, ``params``, ``started``, ``finished``, ``running`` (who is at work now, or None), and ``stages``: of
        each its ``state`` (``computed``, ``computed again``, ``reused`` or ``to do``), ``why``, ``seconds`` and
        ``peak_rss_bytes``.
    """
    store = ZarrStore(path)
    manifest = read_manifest(store)
    running = lock.running(store.files)
    done = {stage["name"]: stage for stage in manifest["stages"]}
    fields = ("name", "state", "why", "seconds", "peak_rss_bytes")
    undone: dict[str, object] = {"state": "to do", "why": [], "seconds": None, "peak_rss_bytes": None}
    stages = [{f: done[name][f] for f in fields} if name in done else {"name": name, **undone} for name in STAGES]
    entries = ("input", "params", "versions", "created", "started", "finished")
    return {"directory": str(path), **{e: manifest[e] for e in entries}, "running": running, "stages": stages}


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that results, or what processes say to each other, depend on; looking takes a while."""
    names = ("dask", "distributed", "numba", "numpy", "pynndescent", "scikit-learn", "scipy", "zarr")
    own = {"ips2_dask": __version__, "python": platform.python_version()}
    return own | {name: importlib.metadata.version(name) for name in names}


@dataclasses.dataclass
class Verification:
    """Result of `verify`: everything that is not what was written, and how much was looked at."""

    directory: str
    faults: list[Fault] = dataclasses.field(default_factory=list)  #: empty for a sound run
    stages: int = 0
    parts: int = 0
    arrays: int = 0
    chunks: int = 0
    bytes: int = 0
    running: str | None = None  #: the run at work in the directory now: what it has not finished is not looked at

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
    """
    store = ZarrStore(path)
    result = Verification(str(path), running=lock.running(store.files))
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
        for array in sorted(set(receipt["arrays"]) - set(ARRAYS[name])):
            fault = f"array {array} is not in the layout"
            verification.faults.append(Fault(folder, part, f"{folder}/{part}.json", fault, array))
    verification.stages += document is not None
    verification.parts += len(scan.receipts)
    for receipt in scan.receipts.values():
        sizes = [described["bytes"] for described in receipt["arrays"].values()]
        verification.arrays += len(sizes)
        verification.chunks += sum(map(len, sizes))
        verification.bytes += sum(map(sum, sizes))


@dataclasses.dataclass(frozen=True)
class Garbage:
    """A file or folder that nothing needs."""

    path: str  #: below the run directory
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
    """
    store = ZarrStore(path)
    read_manifest(store)  # a directory that is no run is refused before a lock is put there
    with store.lock():
        manifest = read_manifest(store)
        folders = {manifest["keys"][name]["folder"] for name in STAGES} | set(manifest["beside"].values())
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
            garbage.append(
                Garbage(name, "a file that was not written to its end", len((store.files.read(name) or "").encode()))
            )
    return garbage


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

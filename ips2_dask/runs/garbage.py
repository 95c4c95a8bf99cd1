"""What no key points to any more, in a run directory: found, counted, and taken away."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ips2_dask.runs.run import read_manifest
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import FOLDER, ZarrStore, is_receipt


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
    """What `gc` has taken away, or would."""

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
    """Take away what no key points to: stages of other parameters, attempts without a receipt, files half-written.

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
    store = ZarrStore(str(path))
    read_manifest(store)  # a directory that is no run is refused before a lock is put there
    with store.lock():
        manifest = read_manifest(store)
        folders = {manifest["keys"][name]["folder"] for name in STAGES} | set(manifest.get("beside", {}).values())
        found = _garbage(store, folders)
        if not dry_run:
            for one in found:
                store.remove(one.path)
    return Collected(str(path), dry_run, tuple(found))


def _garbage(store: ZarrStore, folders: set[str]) -> list[Garbage]:
    out = []
    for name in store.files.names(""):
        if FOLDER.fullmatch(name):
            sizes = store.files.sizes(name)
            if name not in folders:
                out.append(Garbage(name, "a stage of other parameters, input or code", sum(sizes.values())))
            else:
                out += _in_folder(store, name, sizes)
        elif name.endswith(".partial"):
            out.append(Garbage(name, "a file that was not written to its end", _size(store, name)))
    return out


def _size(store: ZarrStore, name: str) -> int:
    text = store.files.read(name)
    return len((text or "").encode())


def _in_folder(store: ZarrStore, folder: str, sizes: dict[str, int]) -> list[Garbage]:
    """What is left over in a folder that is needed."""
    known = store.get_document(f"{folder}/stage.json")
    receipts = store.parts(folder)
    kept = {part: r for part, r in receipts.items() if known is None or part in known["parts"]}
    attempts = {receipt["attempt"] for receipt in kept.values()}
    out: list[Garbage] = []
    orphans: dict[str, int] = {}
    for path, size in sizes.items():
        top, below, _ = path.partition("/")
        part = top.removesuffix(".json")
        if below and top not in attempts:
            orphans[top] = orphans.get(top, 0) + size
        elif path.endswith(".partial"):
            out.append(Garbage(f"{folder}/{path}", "a file that was not written to its end", size))
        elif not below and is_receipt(top) and part not in kept:
            why = "a part that was needed on the way" if part in receipts else "a receipt that can't be read"
            out.append(Garbage(f"{folder}/{top}", why, size))
    out += [Garbage(f"{folder}/{top}", "an attempt that no receipt names", size) for top, size in orphans.items()]
    return sorted(out, key=lambda one: one.path)

"""The directory of a run: which path may be one, its manifest and its format."""

from __future__ import annotations

import os
from pathlib import Path

from ips2_dask.errors import BadInput
from ips2_dask.store import lock
from ips2_dask.store.base import Store
from ips2_dask.store.integrity import Document, Fault
from ips2_dask.store.layout import FORMAT
from ips2_dask.store.remote import is_remote
from ips2_dask.store.zarr_store import FOLDER, ZarrStore


def check_directory(store: ZarrStore, fresh: bool = False) -> None:
    """Refuse an output directory that holds something else; one of another format too, unless it starts over.

    Raises
    ------
    BadInput
    """
    path = str(store.location)
    if not is_remote(path):
        _check_place(Path(path))
    names = [name for name in store.files.names("") if not name.endswith(".partial") and name != lock.NAME]
    if names and not store.is_run():
        raise BadInput(
            path,
            f"a directory that holds something else ({', '.join(names[:3])})",
            "an empty directory or a run's",
            "the run's files would mix with others",
            "give another --out",
        )
    manifest = store.document("manifest.json")[0]
    if manifest is not None and not fresh:
        check_format(store, manifest)


def _check_place(path: Path) -> None:
    """Refuse a path where no directory can be made."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long a name, say
        raise BadInput(
            str(path),
            f"a path that can't be ({error})",
            "a place for a directory",
            "there would be nowhere to put the run",
            "give another --out",
        ) from None
    places = (path, *path.parents)
    nearest = next(place for place in places if place.exists())
    for place in places[: places.index(nearest)]:
        if place.is_symlink():
            raise BadInput(
                str(place),
                f"a symbolic link that leads nowhere ({os.readlink(place)})",
                "a place for a directory",
                "there would be nowhere to put the run",
                "make the directory that it leads to, or give another --out",
            )
    if nearest == path and not path.is_dir():
        raise BadInput(
            str(path),
            "a file",
            "a directory, new or of an earlier run",
            "it would be overwritten",
            "give another --out",
        )
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        obstacle = (
            f"{nearest}, where this user may not write"
            if nearest.is_dir()
            else f"{nearest}, which is a file, in its path"
        )
        raise BadInput(
            str(path),
            obstacle,
            "a place for a directory",
            "there would be nowhere to put the run",
            "give another --out",
        )


def withdraw(store: Store, folder: str, before: Document | None) -> None:
    """Take back a stage that refused its input: its folder goes, and the manifest is again what it was before.

    Where there was no manifest, nothing of the run stays, nor its directory if the run made it.
    """
    store.remove(folder)
    if before is not None:
        store.put_document("manifest.json", before)
    else:
        store.remove("manifest.json")
        store.remove("zarr.json")


def read_manifest(store: ZarrStore) -> Document:
    """The manifest of a run directory, checked.

    Raises
    ------
    BadInput
        Where there is none, one of another format, or one that names other folders than stages'.
    Damaged
        Where it is not what was written.
    """
    manifest, whole = store.document("manifest.json")
    if manifest is None:
        raise BadInput(
            f"{store.location}",
            "no manifest.json that can be read",
            "the directory of a run",
            "there would be nothing to show",
            "give the directory that was --out of `ips2 run`",
        )
    check_format(store, manifest)
    if not whole:
        raise Fault("", "", "manifest.json", "the manifest is not what was written").error(str(store.location))
    _check_folders(store, manifest)
    return manifest


def check_there(store: Store) -> None:
    """Refuse to go on with a finished run whose directory was moved or removed since it was opened."""
    if store.get_document("manifest.json") is None:
        raise BadInput(
            f"{store.location}",
            "no run any more",
            "the directory of the run, which was there when it was opened",
            "there would be nothing to read",
            "open it where it is now, with ips2_dask.open_run, or run it again",
        )


def lacks(store: Store, part: str) -> BadInput:
    """The error of a finished run that lacks a part, which came with a later version; raises if there is no run."""
    check_there(store)
    return BadInput(
        f"{store.location}",
        "a run of an earlier version",
        f"one that keeps {part}",
        "there would be nothing to read",
        "repeat the `ips2 run` or the call that made it, which computes the last stage anew",
    )


def _check_folders(store: ZarrStore, manifest: Document) -> None:
    """Refuse a manifest whose folders have names that no run gives; a stranger's may lead out of the directory."""
    folders = [entry["folder"] for entry in (*manifest["keys"].values(), *manifest["stages"])]
    for folder in (*folders, *manifest.get("beside", {}).values()):
        if not FOLDER.fullmatch(str(folder)):
            raise BadInput(
                f"{store.location}",
                f"a manifest with the folder {folder!r}",
                "names of stages' folders",
                "files that are no part of a run could be read or removed",
                "do not use this directory: no run has written it so",
            )


def check_format(store: ZarrStore, manifest: Document) -> None:
    """Refuse a run directory of another version.

    Raises
    ------
    BadInput
    """
    if manifest.get("format") != FORMAT:
        raise BadInput(
            f"{store.location}",
            f"a run directory of format {manifest.get('format')!r}",
            f"format {FORMAT}",
            "its arrays would be misread",
            "open it with the version of ips2_dask that wrote it, or start over with `ips2 run --fresh`",
        )

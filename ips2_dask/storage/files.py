"""Small text files of a run, on a local folder or any URL that fsspec knows, each written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Protocol

import fsspec


class Files(Protocol):
    """Text files by relative name under one root."""

    root: str

    def make_root(self) -> bool:
        """Make the root folder, where there are folders; returns whether it was missing."""
        ...

    def read(self, name: str) -> str | None:
        """The text, or None where there is no such file."""
        ...

    def write(self, name: str, text: str) -> None:
        """Put the whole text there at once."""
        ...

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; nothing where it is missing."""
        ...

    def remove(self, name: str) -> None:
        """Take away a file or a whole folder; nothing where it is missing."""
        ...


class LocalFiles:
    """Files of a local folder: written aside, synced, renamed."""

    def __init__(self, root: str) -> None:
        self.root = root

    def make_root(self) -> bool:
        """Make the root folder; returns whether it was missing."""
        missing = not Path(self.root).exists()
        Path(self.root).mkdir(parents=True, exist_ok=True)
        return missing

    def read(self, name: str) -> str | None:
        """The text, or None where there is no such file."""
        try:
            return Path(self.root, name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, text: str) -> None:
        """Write aside, sync, rename: a reader sees the old text or the new one."""
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        try:
            with aside.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; nothing where it is missing."""
        path = Path(self.root, folder)
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def remove(self, name: str) -> None:
        """Take away a file or a whole folder; nothing where it is missing."""
        path = Path(self.root, name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class RemoteFiles:
    """Files behind a URL: one put each, which object stores make whole."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._system, self._path = fsspec.url_to_fs(self.root)

    def make_root(self) -> bool:
        """Nothing to make: a key's folders are part of its name."""
        return False

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}".rstrip("/")

    def read(self, name: str) -> str | None:
        """The text, or None where there is no such file."""
        try:
            return bytes(self._system.cat_file(self._at(name))).decode()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Put the whole text there at once."""
        self._system.pipe_file(self._at(name), text.encode())

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; nothing where it is missing."""
        try:
            found = self._system.ls(self._at(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def remove(self, name: str) -> None:
        """Take away a file or a whole folder; nothing where it is missing."""
        try:
            self._system.rm(self._at(name), recursive=True)
        except FileNotFoundError:
            return


def open_files(root: str) -> Files:
    """Files of a local folder, or of a URL."""
    return RemoteFiles(root) if "://" in root else LocalFiles(root)

"""Files: a run's small text files, on a local folder or a URL, each written whole or not at all; and scratch files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from ips2_dask.errors import BadInput, StoreFailure
from ips2_dask.store.remote import WIDTH, delete_objects, deletes_many, is_remote, open_system, reaching, side_by_side
from ips2_dask.typing import AnyArray

Item = TypeVar("Item")

REFUSALS = {
    errno.ENOSPC: ("no space left", "free some space"),
    errno.EDQUOT: ("no quota left", "free some space, or have the quota raised"),
    errno.EROFS: ("a read-only file system", "make it writable"),
    errno.EACCES: ("no permission to write", "make it writable for this user"),
    errno.EPERM: ("no permission to write", "make it writable for this user"),
    errno.EIO: ("a device that fails", "mend the device, or copy the directory to another one"),
    errno.ESTALE: ("a file system that is gone", "mount it again"),
}
"""By the number of an error with which a file system refuses a write: the fault, and the remedy."""


@contextlib.contextmanager
def writing(where: str) -> Iterator[None]:
    """Raise ``StoreFailure``, in one line, for errors of a full or read-only store within a block."""
    try:
        yield
    except OSError as error:
        code = error.errno if error.errno in REFUSALS else None
        if code is None and isinstance(error, PermissionError):  # object stores give no number
            code = errno.EACCES
        if code is None:
            raise
        fault, remedy = REFUSALS[code]
        raise StoreFailure(
            f"{where}: found {fault} ({' '.join(str(error.strerror or error).split())}), allowed is a place that can "
            f"be written; otherwise results would be lost. What was finished is kept, and nothing half-written counts. "
            f"Remedy: {remedy}, and run the same command again, which continues."
        ) from error


def below(root: str, name: str) -> str:
    """The name of a file below a root, as it is; one that leads out of it, of a stranger's document, is refused."""
    if ".." in name.split("/") or name.startswith("/"):
        raise _leads_out(root, name)
    return name


def _leads_out(root: str, name: str) -> BadInput:
    found = "a name or link that leads out of the run directory"
    allowed = "what is inside of it"
    why = "files that are no part of a run could be read or removed"
    return BadInput(f"{root}/{name}", found, allowed, why, "do not use this directory: no run has written it so")


class Files(Protocol):
    """Text files by relative name under one root."""

    root: str
    width: int = WIDTH  # requests at a time

    def __init__(self, root: str) -> None:
        self.root = root

    def make_root(self) -> bool:
        """Make the root folder, where there are folders; returns whether it was missing."""
        return False

    def read(self, name: str) -> str | None:
        """The text, or None where there is no such file; bytes that are no text become question marks."""

    def read_many(self, names: Sequence[str]) -> dict[str, str]:
        """The texts of the files that exist."""
        texts = zip(names, side_by_side(self.read, names), strict=True)
        return {name: text for name, text in texts if text is not None}

    def write(self, name: str, text: str) -> None:
        """Write a whole file at once: a reader sees the old text or the new one."""

    def write_many(self, texts: Mapping[str, str]) -> None:
        """Write several whole files, by name."""
        self._each(lambda item: self.write(*item), list(texts.items()))

    def create(self, name: str, text: str) -> bool:
        """Write a whole file unless it exists, and return whether it was written: only one of several succeeds."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none where it is missing."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file below a folder, by its path below that folder."""

    def remove(self, name: str, first: Sequence[str] = ()) -> None:
        """Remove a file or folder, if it exists; its files ``first`` go before others, the first of them alone."""

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove several files, those that exist."""
        self._each(self.remove, names)

    def remove_folders(self, contents: Mapping[str, Sequence[str]]) -> None:
        """Remove several folders, those that exist, each given with the paths of all files below it."""
        self._each(self.remove, list(contents))

    def _each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call a function with each item, several at a time."""
        for _ in side_by_side(function, items, self.width):
            pass


class LocalFiles(Files):
    """Files of a local folder: written aside, synced, renamed."""

    def _at(self, name: str) -> Path:
        return Path(self.root, below(self.root, name))

    def make_root(self) -> bool:
        missing = not Path(self.root).exists()
        with writing(self.root):
            Path(self.root).mkdir(parents=True, exist_ok=True)
        return missing

    def read(self, name: str) -> str | None:
        try:
            return self._at(name).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    @contextlib.contextmanager
    def _aside(self, path: Path, text: str) -> Iterator[Path]:
        """A synced file beside a path, which is removed at the end."""
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        with writing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with aside.open("w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                yield aside
            finally:
                with contextlib.suppress(OSError):
                    aside.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        path = self._at(name)
        with self._aside(path, text) as aside:
            aside.replace(path)

    def create(self, name: str, text: str) -> bool:
        path = self._at(name)
        with self._aside(path, text) as aside:
            try:
                os.link(aside, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):  # no hard links here
                    raise
                return self._create_plainly(path, text)
        return True

    @staticmethod
    def _create_plainly(path: Path, text: str) -> bool:
        try:
            with path.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._at(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        folders = [(str(self._at(folder)), "")]
        while folders:
            path, prefix = folders.pop()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, f"{prefix}{entry.name}/"))
                    else:
                        sizes[prefix + entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def remove(self, name: str, first: Sequence[str] = ()) -> None:
        path = self._at(name)
        if not path.parent.resolve().is_relative_to(Path(self.root).resolve()) and name:
            raise _leads_out(self.root, name)
        with writing(str(path)):
            if path.is_dir() and not path.is_symlink():  # a link goes itself, and nothing goes by way of one
                for file in first:
                    (path / file).unlink(missing_ok=True)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


class RemoteFiles(Files):
    """Files behind a URL: one put each, which object stores make whole."""

    def __init__(self, root: str) -> None:
        super().__init__(root.rstrip("/"))
        self._system, self._path = open_system(self.root)
        if "memory" in self._system.protocol:  # it goes through its dictionary of files while other threads change it
            self.width = 1

    def _at(self, name: str) -> str:
        return f"{self._path}/{below(self.root, name)}".rstrip("/")

    def read(self, name: str) -> str | None:
        try:
            with reaching(self.root):
                return bytes(self._system.cat_file(self._at(name))).decode(errors="replace")
        except FileNotFoundError:
            return None

    def read_many(self, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        names_by_path = {self._at(name).strip("/"): name for name in names}
        texts = {}
        with reaching(self.root):
            for path, content in self._system.cat(list(names_by_path), on_error="return").items():
                if isinstance(content, bytes | bytearray | memoryview):
                    texts[names_by_path[path.strip("/")]] = bytes(content).decode(errors="replace")
                elif not isinstance(content, FileNotFoundError):  # a store out of reach is no store without the file
                    raise content
        return texts

    def write(self, name: str, text: str) -> None:
        with reaching(self.root), writing(f"{self.root}/{name}"):
            try:
                self._system.pipe_file(self._at(name), text.encode())
            except FileNotFoundError as error:  # not a missing object, which could be put: the bucket
                raise OSError(str(error)) from None

    def create(self, name: str, text: str) -> bool:
        """A conditional put where the store offers one; else a look, a put, and another look.

        S3, Google Cloud Storage and Azure offer it. Elsewhere two that create the same file at the same instant may
        both succeed; the one whose text was replaced finds that out when it looks again.
        """
        with reaching(self.root), writing(f"{self.root}/{name}"):
            try:
                self._system.pipe_file(self._at(name), text.encode(), mode="create")
                return True
            except FileExistsError:
                return False
            except FileNotFoundError as error:
                raise OSError(str(error)) from None
            except (TypeError, ValueError, NotImplementedError):
                if self.read(name) is not None:
                    return False
                self.write(name, text)
                return self.read(name) == text

    def names(self, folder: str) -> list[str]:
        try:
            with reaching(self.root):
                paths = self._system.ls(self._at(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def sizes(self, folder: str) -> dict[str, int]:
        path = self._at(folder)
        self._system.invalidate_cache(path)
        try:
            with reaching(self.root):
                infos = self._system.find(path, detail=True)  # a request lists a thousand files
        except FileNotFoundError:
            return {}
        cut = len(path.strip("/")) + 1
        return {name.strip("/")[cut:]: int(info["size"]) for name, info in infos.items()}

    def remove(self, name: str, first: Sequence[str] = ()) -> None:
        for file in first[:1]:
            self.remove(f"{name}/{file}")
        self.remove_many([f"{name}/{file}" for file in first[1:]])  # the others' order a store does not promise
        try:
            with reaching(self.root), writing(f"{self.root}/{name}"):
                if name.endswith(".json"):  # a file for certain, of which nobody need ask what is below it
                    self._system.rm_file(self._at(name))
                else:
                    self._system.rm(self._at(name), recursive=True)
        except FileNotFoundError:
            return

    def remove_many(self, names: Sequence[str]) -> None:
        if not deletes_many(self._system):
            super().remove_many(names)
        elif names:
            with reaching(self.root), writing(self.root):
                delete_objects(self._system, [self._at(name) for name in names])

    def remove_folders(self, contents: Mapping[str, Sequence[str]]) -> None:
        if deletes_many(self._system):  # it has no folders, but objects, and need not be asked which
            self.remove_many([f"{folder}/{name}" for folder, names in contents.items() for name in names])
        else:
            super().remove_folders(contents)


def open_files(root: str) -> Files:
    """Files of a local folder, or of a URL."""
    return RemoteFiles(root) if is_remote(root) else LocalFiles(root)


@contextlib.contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A path in the same folder to write to; it is renamed to ``path`` at the end, and removed after an error."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file, or none: a reader sees the old content or the new one. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


class RowFiles:
    """Records of rows that come in any order, in a new folder's files by ranges of ``rows`` rows, taken range by range.

    ``kind`` is the dtype of a record, with a field ``row``; ``count`` the number of those that were added.
    """

    def __init__(self, folder: Path, kind: np.dtype[np.void], rows: int) -> None:
        folder.mkdir()
        self._folder, self._kind, self._rows, self.count = folder, kind, rows, 0

    def add(self, records: AnyArray) -> None:
        """Append records (n,) to the files of their ranges."""
        ranges = records["row"] // self._rows
        order = np.argsort(ranges, kind="stable")
        numbers, starts = np.unique(ranges[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            with (self._folder / str(number)).open("ab") as stream:
                records[some].tofile(stream)
        self.count += len(records)

    def take(self, low: int) -> AnyArray:
        """The records of the range that row ``low`` begins, in the order in which they came; their file is removed."""
        path = self._folder / str(low // self._rows)
        if not path.exists():
            return np.empty(0, self._kind)
        records = np.fromfile(path, self._kind)
        path.unlink()
        return records

"""Stores: parts of stages, each a set of arrays with a receipt, and documents; and those in a process' memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ips2_dask.store.cache import Cache
from ips2_dask.store.integrity import Document, Facts, Receipt, Scan, StoredArray
from ips2_dask.store.remote import side_by_side
from ips2_dask.typing import AnyArray

Parts = dict[str, dict[str, str]]
"""Parts of a finished stage: the ``attempt`` that wrote each, and ``content``, the digest of its arrays."""

TaskResult = tuple[dict[str, AnyArray], Facts]
"""Result of a task: the arrays to store as a part, by name, and the facts for its receipt."""


class Store(Protocol):
    """Parts of stages, by (folder, part)."""

    location: str | None

    def create(self) -> None:
        """Make the place for parts, if it does not exist."""

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        """The receipts of those of the parts that are finished, by name, many requests at a time.

        ``cached`` ones are taken as they are: of parts that this process has seen, and not dropped since.
        """

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        return self.receipts(folder, [part]).get(part)

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, object]) -> Receipt:
        """Store a part's arrays, then its receipt."""

    def read(self, folder: str, part: str, name: str, low: int = 0, high: int | None = None) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part, by default all of it."""

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        return self.read(folder, part, name, low, high)

    def read_many(self, folder: str, parts: Sequence[str], name: str) -> Iterator[AnyArray]:
        """One array of each of several finished parts, in their order, a few of them read ahead."""
        return side_by_side(lambda part: self.read(folder, part, name), parts)

    def rename_many(self, folder: str, names: Mapping[str, str]) -> None:
        """Give finished parts other names, by their old ones; those that are not there are passed over."""

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        """Remove parts, those that are there: many requests at a time, the receipt of each part first."""

    def drop(self, folder: str, part: str) -> None:
        """Remove a part, receipt first."""
        self.drop_many(folder, [part])

    def cache_receipt(self, folder: str, part: str, receipt: Receipt | None) -> None:
        """Cache the receipt of a part, or that there is none, if reading it takes a request over a network."""

    def listed(self, folder: str) -> frozenset[str] | None:
        """Names of the parts that may be finished, from one request; None for a store where a look costs no request."""
        return None

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        """The receipts of all finished parts of a folder, by name; ``cached`` ones are taken as they are."""

    def scan(self, folder: str, parts: Parts | None, deep: bool) -> Scan:
        """Check the parts of a finished stage, or all with a receipt, for faults; memory loses no part.

        Receipts, files and their sizes are checked, from one listing of the folder; ``deep`` reads every byte.
        """
        return Scan()

    def stage_folders(self) -> list[str]:
        """Names of the folders of all stages, of earlier runs too."""

    def clear(self) -> None:
        """Remove everything that runs have written."""

    def lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Lock out other runs for a block; gives a function that raises where another run has taken the lock.

        No other run can write into the memory of a process.
        """
        return contextlib.nullcontext(lambda: None)

    def get_document(self, name: str) -> Document | None:
        """A JSON document of the run, or None where it is missing or damaged."""

    def put_document(self, name: str, content: Mapping[str, object]) -> None:
        """Write a JSON document of the run, whole."""

    def remove(self, name: str) -> None:
        """Remove a document or a folder."""


def present(store: Store, folder: str, names: Iterable[str]) -> list[str]:
    """The parts among ``names`` that may be finished: from one listing where each receipt would take a request."""
    listed, wanted = store.listed(folder), list(names)
    there = store.receipts(folder, wanted) if listed is None else listed
    return [name for name in wanted if name in there]


class MemoryStore(Store):
    """Parts as NumPy arrays of this process: a small fit leaves no files behind."""

    def __init__(self) -> None:
        self.location: str | None = None
        self._parts: dict[tuple[str, str], dict[str, AnyArray]] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._documents: dict[str, Document] = {}
        self.made = Cache(sys.maxsize)  # values made from arrays, which go when the store goes

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "made"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, made=Cache(sys.maxsize))

    def create(self) -> None:
        pass

    def holds(self, folder: str, part: str) -> bool:
        """Whether a part, if it is anywhere, is in this process."""
        del folder, part
        return True

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        return {part: self._receipts[folder, part] for part in parts if (folder, part) in self._receipts}

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, object]) -> Receipt:
        described = {name: StoredArray(shape=list(a.shape), dtype=a.dtype.str) for name, a in arrays.items()}
        receipt: Receipt = {"arrays": described, "facts": dict(facts)}
        self._parts[folder, part], self._receipts[folder, part] = dict(arrays), receipt
        return receipt

    def read(self, folder: str, part: str, name: str, low: int = 0, high: int | None = None) -> AnyArray:
        array = self._parts[folder, part][name]
        return array if (low, high) == (0, None) else array[low:high]

    def rename_many(self, folder: str, names: Mapping[str, str]) -> None:
        for part, name in names.items():
            if (folder, part) in self._receipts:
                self._parts[folder, name] = self._parts.pop((folder, part))
                self._receipts[folder, name] = self._receipts.pop((folder, part))

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        for part in parts:
            self._parts.pop((folder, part), None)
            self._receipts.pop((folder, part), None)

    def cache_receipt(self, folder: str, part: str, receipt: Receipt | None) -> None:
        pass

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        return {part: receipt for (part_folder, part), receipt in self._receipts.items() if part_folder == folder}

    def stage_folders(self) -> list[str]:
        return sorted({folder for folder, _ in self._receipts})

    def clear(self) -> None:
        for mapping in (self._parts, self._receipts, self._documents):
            mapping.clear()
        self.made.clear()

    def get_document(self, name: str) -> Document | None:
        return self._documents.get(name)

    def put_document(self, name: str, content: Mapping[str, object]) -> None:
        self._documents[name] = dict(content)

    def remove(self, name: str) -> None:
        self._documents.pop(name, None)
        self.drop_many(name, self.parts(name))


class StagedStore(MemoryStore):
    """Keeps a stage's parts in front of the store that they go to in the end; what is not here is read from there.

    Most parts of such a stage are dropped before it ends: writing them would take several times as long as making them.
    """

    def __init__(self, behind: Store) -> None:
        super().__init__()
        self._behind, self.location = behind, behind.location

    def holds(self, folder: str, part: str) -> bool:
        return (folder, part) in self._receipts

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        parts = list(parts)
        own = super().receipts(folder, parts)
        found = own | self._behind.receipts(folder, [part for part in parts if part not in own], cached)
        return {part: found[part] for part in parts if part in found}

    def read(self, folder: str, part: str, name: str, low: int = 0, high: int | None = None) -> AnyArray:
        read = super().read if self.holds(folder, part) else self._behind.read
        return read(folder, part, name, low, high)

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        parts = list(parts)
        self._behind.drop_many(folder, [part for part in parts if not self.holds(folder, part)])
        super().drop_many(folder, parts)

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        return self._behind.parts(folder, cached) | super().parts(folder)

    def listed(self, folder: str) -> frozenset[str] | None:
        listed = self._behind.listed(folder)
        return None if listed is None else listed | frozenset(super().parts(folder))

    def remove(self, name: str) -> None:
        super().drop_many(name, list(super().parts(name)))
        self._behind.remove(name)

    def flush(self) -> None:
        """Write what has stayed to the store behind, in the order in which it was written here."""
        for (folder, part), arrays in list(self._parts.items()):
            self._behind.write(folder, part, arrays, self._receipts[folder, part]["facts"])
            super().drop_many(folder, [part])

"""A store in the memory of this process: a small fit leaves no files behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any

from ips2_dask.store.base import Parts
from ips2_dask.store.integrity import Document, Receipt, Scan
from ips2_dask.typing import AnyArray


class MemoryStore:
    """Parts as NumPy arrays of this process."""

    def __init__(self) -> None:
        self.location: str | None = None
        self._parts: dict[tuple[str, str], dict[str, AnyArray]] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._documents: dict[str, Document] = {}
        self.made: dict[str, Any] = {}
        self.making = RLock()

    def __getstate__(self) -> dict[str, object]:
        """All attributes but the lock, and the values that can be made again."""
        return {name: value for name, value in vars(self).items() if name not in ("made", "making")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, made={}, making=RLock())

    def create(self) -> None:
        """Do nothing: parts are in this process."""

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        return self._receipts.get((folder, part))

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        """The receipts of those of the parts that are finished, by name."""
        del cached
        return {part: self._receipts[folder, part] for part in parts if (folder, part) in self._receipts}

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, object]) -> Receipt:
        """Keep a part's arrays as they are."""
        receipt: Receipt = {
            "arrays": {name: {"shape": list(a.shape), "dtype": a.dtype.str} for name, a in arrays.items()},
            "facts": dict(facts),
        }
        self._parts[folder, part] = dict(arrays)
        self._receipts[folder, part] = receipt
        return receipt

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part."""
        return self._parts[folder, part][name]

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        return self._parts[folder, part][name][low:high]

    def read_many(self, folder: str, parts: Sequence[str], name: str) -> Iterator[AnyArray]:
        """One array of each of several finished parts, in their order."""
        return (self.read(folder, part, name) for part in parts)

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        self._parts[folder, name] = self._parts.pop((folder, part))
        self._receipts[folder, name] = self._receipts.pop((folder, part))

    def rename_many(self, folder: str, names: Mapping[str, str]) -> None:
        """Give finished parts other names, by their old ones; those that are not there are passed over."""
        for part, name in names.items():
            if (folder, part) in self._receipts:
                self.rename(folder, part, name)

    def drop(self, folder: str, part: str) -> None:
        """Forget a part."""
        self._parts.pop((folder, part), None)
        self._receipts.pop((folder, part), None)

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        """Forget parts."""
        for part in parts:
            self.drop(folder, part)

    def cache_receipt(self, folder: str, part: str, receipt: Receipt | None) -> None:
        """Do nothing: all receipts are in this process."""

    def listed(self, folder: str) -> frozenset[str] | None:
        """Return None: a look for a part costs no request."""
        return None

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        """The receipts of all finished parts of a folder, by name."""
        del cached
        return {part: receipt for (part_folder, part), receipt in self._receipts.items() if part_folder == folder}

    def scan(self, folder: str, parts: Parts | None, deep: bool) -> Scan:
        """Return a scan without faults: memory loses no part."""
        return Scan()

    def stage_folders(self) -> list[str]:
        """Names of the folders of all stages."""
        return sorted({folder for folder, _ in self._receipts})

    def clear(self) -> None:
        """Forget everything."""
        for mapping in (self._parts, self._receipts, self._documents, self.made):
            mapping.clear()

    def lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Lock nothing: no other run can write into this process."""
        return contextlib.nullcontext(_nothing)

    def get_document(self, name: str) -> Document | None:
        """A document of the run, or None."""
        return self._documents.get(name)

    def put_document(self, name: str, content: Mapping[str, object]) -> None:
        """Keep a document of the run."""
        self._documents[name] = dict(content)

    def remove(self, name: str) -> None:
        """Forget a document or a folder's parts."""
        self._documents.pop(name, None)
        for folder, part in [key for key in self._receipts if key[0] == name]:
            self.drop(folder, part)


def _nothing() -> None:
    """The check of a run's lock, which never raises."""

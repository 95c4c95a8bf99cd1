"""What a store of parts can do, and the store that keeps them in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from threading import RLock
from typing import Any, Protocol

from numpy.typing import NDArray

from ips2_dask.store.integrity import Survey
from ips2_dask.store.receipts import Receipt

AnyArray = NDArray[Any]
Parts = dict[str, dict[str, str]]
"""Of each part of a finished stage: ``attempt``, and ``content``, the digest of what its arrays hold."""


class Store(Protocol):
    """Parts of stages, by (folder, part)."""

    location: str | None

    def create(self) -> None:
        """Make the place where parts will be, if it is not there."""
        ...

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        ...

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Receipt:
        """Store a part's arrays, then its receipt."""
        ...

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part."""
        ...

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        ...

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        ...

    def drop(self, folder: str, part: str) -> None:
        """Forget a part, receipt first."""
        ...

    def learn(self, folder: str, part: str, receipt: Receipt | None) -> None:
        """Keep what a part's receipt is, where to ask for it again would be a request over a network."""
        ...

    def listed(self, folder: str) -> frozenset[str] | None:
        """Names of the parts that may be finished, by one request for them all; None where looking costs none."""
        ...

    def parts(self, folder: str, learned: bool = False) -> dict[str, Receipt]:
        """The receipts of all finished parts of a folder, by name; ``learned`` takes those that are known already."""
        ...

    def survey(self, folder: str, parts: Parts | None, deep: bool) -> Survey:
        """What is there of the parts that a finished stage had, or of those with a receipt; ``deep`` reads it all."""
        ...

    def stage_folders(self) -> list[str]:
        """Names of the folders of all stages, of earlier runs too."""
        ...

    def clear(self) -> None:
        """Take away everything that runs have put here."""
        ...

    def lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Keep other runs out while this lasts; gives a function that raises where another run took over."""
        ...

    def get_document(self, name: str) -> dict[str, Any] | None:
        """A JSON document of the run, or None."""
        ...

    def put_document(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON document of the run, whole."""
        ...

    def remove(self, name: str) -> None:
        """Take away a document or a folder."""
        ...


def present(store: Store, folder: str, names: Iterable[str]) -> list[str]:
    """Those of some parts that may be finished: by one listing where a receipt would be a request over a network."""
    listed = store.listed(folder)
    return [n for n in names if (store.receipt(folder, n) is not None if listed is None else n in listed)]


class MemoryStore:
    """Parts as NumPy arrays of this process: a small fit leaves nothing behind."""

    def __init__(self) -> None:
        self.location: str | None = None
        self._parts: dict[tuple[str, str], dict[str, AnyArray]] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self.made: dict[str, Any] = {}
        self.making = RLock()

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, and what can be made again."""
        return {name: value for name, value in vars(self).items() if name not in ("made", "making")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, made={}, making=RLock())

    def create(self) -> None:
        """Nothing to make: parts are in this process."""

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        return self._receipts.get((folder, part))

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Receipt:
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

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        self._parts[folder, name] = self._parts.pop((folder, part))
        self._receipts[folder, name] = self._receipts.pop((folder, part))

    def drop(self, folder: str, part: str) -> None:
        """Forget a part."""
        self._parts.pop((folder, part), None)
        self._receipts.pop((folder, part), None)

    def learn(self, folder: str, part: str, receipt: Receipt | None) -> None:
        """Nothing to keep: no receipt is far."""

    def listed(self, folder: str) -> frozenset[str] | None:
        """None: looking for a part costs nothing."""
        return None

    def parts(self, folder: str, learned: bool = False) -> dict[str, Receipt]:
        """The receipts of all finished parts of a folder, by name."""
        del learned
        return {part: receipt for (held, part), receipt in self._receipts.items() if held == folder}

    def survey(self, folder: str, parts: Parts | None, deep: bool) -> Survey:
        """Nothing gets lost here."""
        return Survey()

    def stage_folders(self) -> list[str]:
        """Names of the folders of all stages."""
        return sorted({folder for folder, _ in self._receipts})

    def clear(self) -> None:
        """Forget everything."""
        for held in (self._parts, self._receipts, self._documents, self.made):
            held.clear()

    def lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Nobody else can write here."""
        return contextlib.nullcontext(_nothing)

    def get_document(self, name: str) -> dict[str, Any] | None:
        """A document of the run, or None."""
        return self._documents.get(name)

    def put_document(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a document of the run."""
        self._documents[name] = dict(content)

    def remove(self, name: str) -> None:
        """Forget a document or a folder's parts."""
        self._documents.pop(name, None)
        for folder, part in [key for key in self._receipts if key[0] == name]:
            self.drop(folder, part)


def _nothing() -> None:
    """The check of a lock that nobody needs."""

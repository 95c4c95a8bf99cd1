"""The interface of stores: parts of stages, each a set of arrays with a receipt, and the documents of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from ips2_dask.store.integrity import Receipt, Survey

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

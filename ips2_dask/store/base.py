"""The interface of stores: parts of stages, each a set of arrays with a receipt, and the documents of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ips2_dask.store.integrity import Document, Facts, Receipt, Scan
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
        ...

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        ...

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        """The receipts of those of the parts that are finished, by name, many requests at a time.

        ``cached`` ones are taken as they are: of parts that this process has seen, and not dropped since.
        """
        ...

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, object]) -> Receipt:
        """Store a part's arrays, then its receipt."""
        ...

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part."""
        ...

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        ...

    def read_many(self, folder: str, parts: Sequence[str], name: str) -> Iterator[AnyArray]:
        """One array of each of several finished parts, in their order, a few of them read ahead."""
        ...

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        ...

    def rename_many(self, folder: str, names: Mapping[str, str]) -> None:
        """Give finished parts other names, by their old ones; those that are not there are passed over."""
        ...

    def drop(self, folder: str, part: str) -> None:
        """Remove a part, receipt first."""
        ...

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        """Remove parts, those that are there: many requests at a time, the receipt of each part first."""
        ...

    def cache_receipt(self, folder: str, part: str, receipt: Receipt | None) -> None:
        """Cache the receipt of a part, or that there is none, if reading it takes a request over a network."""
        ...

    def listed(self, folder: str) -> frozenset[str] | None:
        """Names of the parts that may be finished, from one request; None for a store where a look costs no request."""
        ...

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        """The receipts of all finished parts of a folder, by name; ``cached`` ones are taken as they are."""
        ...

    def scan(self, folder: str, parts: Parts | None, deep: bool) -> Scan:
        """Check the parts of a finished stage, or all with a receipt, for faults; ``deep`` reads every byte."""
        ...

    def stage_folders(self) -> list[str]:
        """Names of the folders of all stages, of earlier runs too."""
        ...

    def clear(self) -> None:
        """Remove everything that runs have written."""
        ...

    def lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Lock out other runs for a block; gives a function that raises where another run has taken the lock."""
        ...

    def get_document(self, name: str) -> Document | None:
        """A JSON document of the run, or None."""
        ...

    def put_document(self, name: str, content: Mapping[str, object]) -> None:
        """Write a JSON document of the run, whole."""
        ...

    def remove(self, name: str) -> None:
        """Remove a document or a folder."""
        ...


def present(store: Store, folder: str, names: Iterable[str]) -> list[str]:
    """The parts among ``names`` that may be finished: from one listing where each receipt would take a request."""
    listed, wanted = store.listed(folder), list(names)
    there = store.receipts(folder, wanted) if listed is None else listed
    return [name for name in wanted if name in there]

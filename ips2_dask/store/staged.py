"""A stage's parts in the memory of the one process that computes them, until the stage has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ips2_dask.store.base import MemoryStore, Store
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray


class StagedStore(MemoryStore):
    """Keeps what is written, in front of the store that it goes to in the end.

    Most parts of such a stage are dropped before it ends: writing them would take several times as long as making them.

    Parameters
    ----------
    behind : Store
        Of the run; what is not here is read from there.
    """

    def __init__(self, behind: Store) -> None:
        super().__init__()
        self._behind, self.location = behind, behind.location

    def holds(self, folder: str, part: str) -> bool:
        return (folder, part) in self._receipts

    def receipt(self, folder: str, part: str) -> Receipt | None:
        return super().receipt(folder, part) or self._behind.receipt(folder, part)

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        parts = list(parts)
        own = super().receipts(folder, parts)
        found = own | self._behind.receipts(folder, [part for part in parts if part not in own], cached)
        return {part: found[part] for part in parts if part in found}

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        own = self.holds(folder, part)
        return super().read(folder, part, name) if own else self._behind.read(folder, part, name)

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        if self.holds(folder, part):
            return super().read_rows(folder, part, name, low, high)
        return self._behind.read_rows(folder, part, name, low, high)

    def read_many(self, folder: str, parts: Sequence[str], name: str) -> Iterator[AnyArray]:
        own = any(self.holds(folder, part) for part in parts)
        return super().read_many(folder, parts, name) if own else self._behind.read_many(folder, parts, name)

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
            facts: Mapping[str, object] = self._receipts[folder, part]["facts"]
            self._behind.write(folder, part, arrays, facts)
            super().drop_many(folder, [part])

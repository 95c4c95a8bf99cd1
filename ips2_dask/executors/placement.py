"""Which worker wrote what: it reads it again, where the store is a local folder, unless others have nothing to do.

What a process wrote lately is in its own cache and in its host's memory. A store behind a URL is as far from one worker
as from any other, so there any worker may.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

Thing = tuple[str, Any]
"""What a task is about: the kind of its item, such as ``chunks``, and the item."""


class Places:
    """Workers' addresses by the items of some tasks; Dask's scheduler asks for those of each key."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self._addresses = dict(addresses)

    def __call__(self, key: Any) -> list[str]:
        """Where a task is best done; anywhere, if that is not known."""
        address = self._addresses.get(key[-1]) if isinstance(key, tuple) else None
        return [] if address is None else [address]


class Owners:
    """The worker that last wrote about each thing, of one store and one numbering of the samples."""

    def __init__(self) -> None:
        self._of: Hashable = None
        self._addresses: dict[Thing, str] = {}

    def turn_to(self, of: Hashable) -> None:
        """Begin anew, if this is another store."""
        if of != self._of:
            self._of, self._addresses = of, {}

    def wrote(self, things: Sequence[Thing], addresses: Sequence[str]) -> None:
        """Keep who did what; equal addresses are kept once, so that they are sent once."""
        same = {address: address for address in addresses}
        self._addresses.update(zip(things, (same[address] for address in addresses), strict=True))

    def of(self, thing: Thing | None) -> str | None:
        """The owner of a thing, if it has one."""
        return None if thing is None else self._addresses.get(thing)

    def places(self, things: Sequence[Thing], others: Sequence[Thing | None]) -> Places | None:
        """Where tasks about things, else about others, are best done, by their position; None where nobody knows."""
        owners = (self.of(thing) or self.of(other) for thing, other in zip(things, others, strict=True))
        found = {at: owner for at, owner in enumerate(owners) if owner is not None}
        return Places(found) if found else None

"""Placement of items on workers: which worker owns each item, and so which worker tasks about the item prefer.

The owner of an item is the worker that wrote its parts last, or the one that was assigned to it. What a process wrote
lately is in its own cache and in its host's memory, so the owner reads it soonest where the store is a local folder. A
store behind a URL is equally far from all workers, so parts written there give their items no owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ItemKey = int | str
"""The number or the name of an item, among those of its kind."""

Item = tuple[str, ItemKey]
"""The subject of a task: its kind, such as ``chunks``, and its number or name."""


class PreferredWorkers:
    """The preferred worker of each task of a Dask bag, as the callable that the annotation ``workers`` takes.

    Parameters
    ----------
    addresses : mapping of int to str
        Address of the worker by the task's position in the bag; a task without one may run anywhere.
    """

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self._addresses = dict(addresses)

    def __call__(self, key: object) -> list[str]:
        """Addresses for the task of this Dask key: one, or none where any worker will do."""
        address = self._addresses.get(key[-1]) if isinstance(key, tuple) else None
        return [] if address is None else [address]


class Placement:
    """The owners of items: addresses of workers, for one store at a time."""

    def __init__(self) -> None:
        self._store: str | None = None
        self._addresses: dict[Item, str] = {}

    def use_store(self, location: str | None) -> None:
        """Forget all owners if the store at ``location`` is another one than before."""
        if location != self._store:
            self._store, self._addresses = location, {}

    def assign(self, items: Sequence[Item], addresses: Sequence[str]) -> None:
        """Make the worker at ``addresses[i]`` the owner of ``items[i]``."""
        same = {address: address for address in addresses}  # one object for equal addresses: pickle sends it once
        self._addresses.update(zip(items, (same[address] for address in addresses), strict=True))

    def owner(self, item: Item | None) -> str | None:
        """The address of an item's owner; None for an item without one, and for no item."""
        return None if item is None else self._addresses.get(item)

    def preferred_workers(self, items: Sequence[Item], fallbacks: Sequence[Item | None]) -> PreferredWorkers | None:
        """The owner of each item, else that of its fallback, by position; None if no item has either."""
        owners = (self.owner(item) or self.owner(other) for item, other in zip(items, fallbacks, strict=True))
        addresses = {position: owner for position, owner in enumerate(owners) if owner is not None}
        return PreferredWorkers(addresses) if addresses else None

"""The cache of a process: arrays that its tasks read or made lately, bounded in bytes."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

CACHE_BYTES = 256 << 20
"""Most bytes of what is cached and not pinned."""

Key = tuple[str | int | None, ...]
Value = TypeVar("Value")


class Cache:
    """A cache of arrays, least recently used first out, bounded in bytes.

    What every task of a stage looks at is pinned under a name, whatever its size: it stays, and does not count towards
    the bound, until another array is pinned under that name. Else each task would read all of a large graph again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._making: dict[Key, Lock] = {}
        self._pins: dict[str, Key] = {}
        self._unpinned = 0  # bytes of the values that are not pinned
        self.limit = CACHE_BYTES

    def get(
        self, key: Key, make: Callable[[], Value], size: Callable[[Value], int], more: int = 0, pin: str = ""
    ) -> Value:
        """The value of a key; where there is none, one of the threads that ask makes it while the others wait.

        ``size`` gives the bytes of a value, of which ``more`` than `limit` may be kept. ``pin`` is the name to pin it
        under, empty for a value that is not pinned.
        """
        with self._lock:
            if key in self._entries:
                return self._used(key, pin, more)
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if key in self._entries:
                    return self._used(key, pin, more)
            value = make()
            with self._lock:
                self._entries[key] = value, size(value)
                self._unpinned += self._entries[key][1]
                self._used(key, pin, more)
                self._shrink(key, more)
                self._making.pop(key, None)
        return value

    def _used(self, key: Key, pin: str, more: int) -> Any:
        """The value of a key that is in the cache, now the one used last; pinned under ``pin``, if that is a name."""
        self._entries.move_to_end(key)
        before = self._pins.get(pin)
        if pin and before != key:
            if key not in self._pins.values():
                self._unpinned -= self._entries[key][1]
            self._pins[pin] = key
            if before is not None and before in self._entries and before not in self._pins.values():
                self._unpinned += self._entries[before][1]
            self._shrink(key, more)
        return self._entries[key][0]

    def _shrink(self, latest: Key | None, more: int) -> None:
        """Drop the values used least recently that are not pinned; ``latest`` stays, whatever its size."""
        staying, going = {latest, *self._pins.values()}, []
        for key, (_, size) in self._entries.items():  # thousands: only the first few are looked at
            if self._unpinned <= self.limit + more:
                break
            if key not in staying:
                self._unpinned -= size
                going.append(key)
        for key in going:
            del self._entries[key]

    def unpin_all(self) -> None:
        """Treat the pinned values like all others from now on."""
        with self._lock:
            self._pins.clear()
            self._unpinned = sum(size for _, size in self._entries.values())
            self._shrink(None, 0)

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self._pins.clear()
            self._unpinned = 0


cache = Cache()
"""The cache of this process."""


_when_given_back: Callable[[], object] | None = None


def tidy() -> None:
    """Let glibc's allocator return freed memory to the system; other allocators are left alone.

    What comes next is measured without it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    if _when_given_back is not None:
        _when_given_back()


def when_given_back(function: Callable[[], object] | None) -> Callable[[], object] | None:
    """Call a function from now on whenever memory was given back, in place of the one that is returned."""
    global _when_given_back
    before, _when_given_back = _when_given_back, function
    return before


def free_pinned() -> None:
    """Unpin what all tasks of a stage looked at, and give freed memory back: the stage needs neither."""
    cache.unpin_all()
    tidy()


def clear_cache() -> None:
    """Drop all cached arrays and give freed memory back: the plan counts each stage without what earlier ones left."""
    cache.clear()
    tidy()

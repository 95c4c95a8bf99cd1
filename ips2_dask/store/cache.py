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

    What every task of a stage looks at is pinned under a name, whatever its size: it stays, beside the bound, until
    another value is pinned under that name. Else each task would read all of a large graph again.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._lock = Lock()
        self._entries: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._pins: dict[str, tuple[Key, Any]] = {}
        self._making: dict[Key, Lock] = {}
        self._bytes = 0  # of the values that are not pinned
        self.limit = limit

    def get(self, key: Key, make: Callable[[], Value], size: Callable[[Value], int], pin: str = "") -> Value:
        """The value of a key; where there is none, one of the threads that ask makes it while the others wait.

        ``size`` gives the bytes of a value. ``pin`` is the name to pin it under, empty for a value that is not pinned.
        """
        with self._lock:
            making = self._making.setdefault(key, Lock())
        with making:
            found = self._found(key, pin)
            if found is None:
                found = make()
                with self._lock:
                    self._keep(key, found, size(found), pin)
        with self._lock:
            self._making.pop(key, None)
        return found

    def _found(self, key: Key, pin: str) -> Any:
        """The value of a key, now the one used last; None where there is none."""
        with self._lock:
            if pin:
                before, value = self._pins.get(pin, (None, None))
                return value if before == key else None
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def _keep(self, key: Key, value: Any, size: int, pin: str) -> None:
        """Pin a value; or add it, and drop those used least recently, but never itself."""
        if pin:
            self._pins[pin] = key, value
            return
        self._entries[key] = value, size
        self._bytes += size
        while self._bytes > self.limit and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1][1]

    def unpin_all(self) -> None:
        """Drop the pinned values."""
        with self._lock:
            self._pins.clear()

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._entries.clear()
            self._pins.clear()
            self._bytes = 0


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

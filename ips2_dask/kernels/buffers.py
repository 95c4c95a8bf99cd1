"""Memory of large arrays that nobody refers to any more, kept for the next ones.

The system clears every page before a process sees it for the first time; for blocks of vectors, which come and go in
every product, that takes as long as the product itself.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 2
"""Free pieces that a process keeps: the oldest goes when another comes."""

LEAST_BYTES = 1 << 20
"""Smaller arrays are left to the allocator, which keeps their memory itself."""

NOTHING = np.empty(0, np.uint8)

_free: deque[NDArray[np.uint8]] = deque(maxlen=MOST)
_keeps = threading.Event()


class _Loan:
    """What an array's memory belongs to: it comes back when the array and all its views are gone."""

    def __init__(self, memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "shape": shape, "typestr": dtype.str, "data": (memory.ctypes.data, False), "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if _keeps.is_set():
            _free.append(self._memory)
        else:  # a straggler of a stage that is over
            self._memory = NOTHING
            give_back()


def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array of any content, in memory that an earlier one gave up where that is large enough and not too large."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    if size < LEAST_BYTES:
        return np.empty(shape, dtype)
    _keeps.set()
    memory = None
    for _ in range(len(_free)):
        try:
            found = _free.popleft()
        except IndexError:  # another thread took it
            break
        if size <= len(found) <= 2 * size:
            memory = found
            break
        _free.append(found)
    return np.asarray(_Loan(np.empty(size, np.uint8) if memory is None else memory, shape, dtype))


def release() -> None:
    """Keep none of it, nor what is given up until the next is asked for: who comes next has no blocks of this size, and
    its memory is counted without them."""
    if _keeps.is_set():
        tidy()


def tidy() -> None:
    """Keep none of it, and give back what the allocator keeps: what comes next is counted without either."""
    _keeps.clear()
    _free.clear()
    give_back()


def give_back() -> None:
    """Let the allocator give the system what it keeps of freed memory; nothing where it is not glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array of zeros."""
    out = empty(shape, dtype)
    out.fill(0)
    return out

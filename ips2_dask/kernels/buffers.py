"""Memory of large arrays that nobody refers to any more, kept for the next ones.

The system clears every page before a process sees it for the first time; for blocks of vectors, which come and go in
every product, that takes as long as the product itself in chunks, and a fifth of it in core. Two lifetimes need two
forms: `empty` lends a process's few free pieces to tasks that follow one another and know nothing of each other; a
`SpareBlock` belongs to one operator and goes with it, so that nothing of a solve in core outlasts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float

MAX_FREE = 2
"""Free pieces that a process keeps: the oldest goes when another comes."""

MIN_BYTES = 1 << 20
"""Smaller arrays are left to the allocator, which keeps their memory itself."""

MAPPED_BYTES = 1 << 25
"""Larger arrays have pages of their own, which the system gets back with them. In the allocator's heap blocks of chunks
of unequal size leave holes that no other block fits into: a fifth of a worker's memory at 10,000,000 samples
(measured)."""

ROWS = 1 << 14
"""Rows of a spare block that a thread clears at a time."""

NOTHING = np.empty(0, np.uint8)

_free: deque[NDArray[np.uint8]] = deque(maxlen=MAX_FREE)
_when_given_back: Callable[[], object] | None = None
_keeps = threading.Event()


class _Loan:
    """Owner of an array's memory, which returns to the pool when the array and all its views are gone."""

    def __init__(self, memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if _keeps.is_set():
            _free.append(self._memory)
        else:  # a straggler of a stage that is over
            self._memory = NOTHING
            _give_back()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Float:
    """An array of any content, in memory that an earlier one gave up where that is large enough and not too large."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    if size < MIN_BYTES:
        return np.empty(shape, dtype)
    _keeps.set()
    memory = None
    for _ in range(len(_free)):
        try:
            piece = _free.popleft()
        except IndexError:  # another thread took it
            break
        if size <= len(piece) <= 2 * size:
            memory = piece
            break
        _free.append(piece)
    return np.asarray(_Loan(_new(size) if memory is None else memory, shape, dtype))


def fresh(shape: tuple[int, ...], dtype: DTypeLike) -> Float:
    """An array of any content whose memory is not kept for other arrays when nobody refers to it any more."""
    dtype = np.dtype(dtype)
    return _new(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


def take_rows(rows: NDArray[Any], index: NDArray[np.integer], out: NDArray[Any]) -> None:
    """Rows of an array (n, columns) at ``index`` (k,) into ``out`` (k, columns), contiguous and of the same dtype.

    ``rows`` may begin at any byte, as they do in a message. Of such an array of numbers NumPy copies the whole to take
    a few rows; here a row is one item of bytes, which may lie anywhere.
    """
    if rows.flags.aligned:
        np.take(rows, index, axis=0, out=out, mode="clip")
        return
    item = np.dtype((np.void, rows.itemsize * rows.shape[1]))
    np.take(rows.view(item)[:, 0], index, out=out.view(item)[:, 0], mode="clip")


def _new(size: int) -> NDArray[np.uint8]:
    """Memory of so many bytes; raises MemoryError as NumPy does, also where the system calls it another error."""
    if size < MAPPED_BYTES:
        return np.empty(size, np.uint8)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        pages = mmap.mmap(-1, size, **private)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        _free.clear()
        _give_back()
        try:
            pages = mmap.mmap(-1, size, **private)
        except OSError:
            raise MemoryError(f"no {size:,} bytes for a block: {error.strerror}") from error
    with contextlib.suppress(AttributeError, OSError):  # as NumPy asks for them: not every system has larger pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def release() -> None:
    """Free all pieces, and keep no others before the next array is made.

    The next stage has no blocks of this size, and its memory is counted without them.
    """
    if _keeps.is_set():
        tidy()


def tidy() -> None:
    """Free all pieces, and let the allocator give back what it keeps: the next measurement counts neither."""
    _keeps.clear()
    _free.clear()
    _give_back()


def when_given_back(function: Callable[[], object] | None) -> Callable[[], object] | None:
    """Call a function from now on whenever memory was given back, in place of the one that is returned."""
    global _when_given_back
    before, _when_given_back = _when_given_back, function
    return before


def _give_back() -> None:
    """Let glibc's allocator return freed memory to the system; other allocators are left alone."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    if _when_given_back is not None:
        _when_given_back()


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Float:
    """An array of zeros."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


class SpareBlock:
    """Memory of one block that its operator's caller gave up, for the operator's next product."""

    def __init__(self) -> None:
        self._block: Float | None = None

    def keep(self, block: Float | None) -> None:
        """Keep the memory of a block that is not used any more; None frees it."""
        self._block = block

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Float:
        """An array of any content; memory of another shape or dtype is freed before."""
        block, self._block = self._block, None
        if block is None or block.shape != shape or block.dtype != dtype or not block.flags.c_contiguous:
            del block
            return np.empty(shape, dtype)
        return block

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Float:
        """An array of zeros."""
        block = self.array(shape, dtype)
        map_chunks(lambda a, b: block[a:b].fill(0), len(block), ROWS)
        return block

"""Memory of large arrays that nobody refers to any more: kept for an operator's next product, or given back."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.typing import Float

ROWS = 1 << 14
"""Rows of a spare block that a thread clears at a time."""

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


class SpareBlock:
    """Memory of one block that its operator's caller gave up, for the operator's next product.

    The system clears every page before a process sees it for the first time: for blocks of vectors, which come and go
    in every product, that takes a fifth of the product's time.
    """

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

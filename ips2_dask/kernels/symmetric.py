"""A symmetric matrix as CSR from the parts of its sorted upper triangle, with no more memory than the result takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

Part = tuple[NDArray[np.int32], NDArray[np.floating]]
"""Entries (n, 2), i <= j, sorted by (i, j), and their values (n,)."""


@njit(nogil=True, cache=True)
def _count(entries, values, counts):  # type: ignore[no-untyped-def]
    for t in range(len(entries)):
        if values[t] != 0:
            counts[entries[t, 0]] += 1
            if entries[t, 0] != entries[t, 1]:
                counts[entries[t, 1]] += 1


@njit(nogil=True, cache=True)
def _fill(entries, values, ends, indices, data):  # type: ignore[no-untyped-def]
    for t in range(len(entries)):
        value = values[t]
        if value == 0:
            continue
        i, j = entries[t, 0], entries[t, 1]
        indices[ends[i]], data[ends[i]] = j, value
        ends[i] += 1
        if i != j:
            indices[ends[j]], data[ends[j]] = i, value
            ends[j] += 1


def symmetric_csr(parts: Callable[[], Iterable[Part]], n: int, dtype: Any = np.float64) -> sp.csr_array:
    """The symmetric CSR matrix (n, n) of an upper triangle in sorted parts, rows sorted; zeros are left out.

    A row gets what stands left of its diagonal while earlier rows are read, and the rest when its own turn comes: so
    nothing has to be sorted.

    Parameters
    ----------
    parts : callable
        Returns the parts in their order; it is called twice.
    n : int
    dtype : numpy type
        Of the values.
    """
    indptr = np.zeros(n + 1, np.int64)
    for entries, values in parts():
        _count(entries, values, indptr[1:])
    np.cumsum(indptr, out=indptr)
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], dtype)
    ends = indptr[:-1].copy()
    for entries, values in parts():
        _fill(entries, values, ends, indices, data)
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    return sp.csr_array((data, indices, indptr), shape=(n, n))

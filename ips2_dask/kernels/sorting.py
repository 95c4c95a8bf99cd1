"""Short lists sorted in place inside kernels: NumPy's own sorts take Numba a third of all compilation (measured)."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def sort_keys(keys, a, b):  # type: ignore[no-untyped-def]
    """Sort keys[a:b] ascending, by Shell's method."""
    gap = b - a
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for t in range(a + gap, b):
            key = keys[t]
            s = t
            while s >= a + gap and keys[s - gap] > key:
                keys[s] = keys[s - gap]
                s -= gap
            keys[s] = key


@njit(nogil=True, cache=True)
def sort_together(keys, values, a, b):  # type: ignore[no-untyped-def]
    """Sort keys[a:b], no two of them equal, ascending, and bring values[a:b] into the same order."""
    gap = b - a
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for t in range(a + gap, b):
            key, value = keys[t], values[t]
            s = t
            while s >= a + gap and keys[s - gap] > key:
                keys[s], values[s] = keys[s - gap], values[s - gap]
                s -= gap
            keys[s], values[s] = key, value

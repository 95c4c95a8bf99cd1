"""Medians of columns by counting: exact, from counts that add up over parts, so that no cut of the rows shows."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

BITS = 11
"""Binary digits that a round decides: 2,048 counts a column are few, and six rounds decide all 64."""

SHIFTS = (53, 42, 31, 20, 9, 0)
"""Digits to the right of those that each round decides; the last one decides nine."""

SIGN = np.uint64(1 << 63)


def ordered(X: Float64) -> UInt64:
    """Whole numbers in the order of the numbers X (rows, f); -0 as 0, and NaN after all others."""
    plain = np.where(np.isnan(X), np.nan, X + 0.0)  # a NaN may have a sign, which would put it before all others
    bits = np.ascontiguousarray(plain).view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def numbers(keys: UInt64) -> Float64:
    """The numbers that `ordered` made ``keys`` of."""
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)


@njit(nogil=True, cache=True)
def _count(keys, prefixes, shift, bits, counts):  # type: ignore[no-untyped-def]
    mask = np.uint64((1 << bits) - 1)
    for p in range(keys.shape[0]):
        for t in range(keys.shape[1]):
            digits = keys[p, t] >> np.uint64(shift)
            before = digits >> np.uint64(bits)
            if before == prefixes[0, t]:
                counts[0, t, digits & mask] += 1
            elif before == prefixes[1, t]:
                counts[1, t, digits & mask] += 1


def bits_of(step: int) -> int:
    """Binary digits that a round decides."""
    return (64 if step == 0 else SHIFTS[step - 1]) - SHIFTS[step]


def count(X: Float64, prefixes: UInt64, step: int) -> NDArray[np.int32]:
    """How many rows of X have each value of the next digits, among those that begin as ``prefixes``: (2, f, 2^BITS).

    Parameters
    ----------
    X : (rows, f) float64
        NaN where a value is missing.
    prefixes : (2, f) uint64
        The digits found so far of each column's two middle values.
    step : int
        The round, 0 to 5.
    """
    counts = np.zeros((2, X.shape[1], 1 << BITS), np.int32)
    _count(ordered(X), prefixes, SHIFTS[step], bits_of(step), counts)
    same = prefixes[0] == prefixes[1]  # both are counted at once
    counts[1, same] = counts[0, same]
    return counts


class Medians:
    """The search for the two middle values of each column, a round at a time.

    Parameters
    ----------
    present : (f,) int
        How many values each column has, at least one.
    """

    def __init__(self, present: Int64) -> None:
        self._ranks = np.stack([(present - 1) // 2, present // 2])
        self.prefixes = np.zeros((2, len(present)), np.uint64)

    def narrow(self, counts: Int64, step: int) -> None:
        """Take in the counts of a round over all rows: (2, f, 2^BITS)."""
        ends = np.cumsum(counts, axis=2)
        digit = (ends <= self._ranks[:, :, None]).sum(axis=2)
        before = np.take_along_axis(ends - counts, digit[:, :, None], axis=2)[:, :, 0]
        self._ranks = self._ranks - before
        self.prefixes = (self.prefixes << np.uint64(bits_of(step))) | digit.astype(np.uint64)

    def values(self) -> Float64:
        """The medians (f,), after the last round: the mean of the two middle values, as `numpy.median` has it."""
        low, high = numbers(self.prefixes)
        return np.where(low == high, low, (low + high) / 2)

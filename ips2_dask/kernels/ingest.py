"""Column statistics and medians that do not depend on how rows are cut, and the scaling and unit that they decide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.typing import AnyArray, Float32, Float64, Int64, UInt64

LARGEST = 1.3e19
"""Square root of half the largest float32: the squared norms of two samples, farther apart, would not add up."""

EXPONENTS = (-1000, 1000)
"""Limits of the power of two that values are divided by: both it and its inverse are normal numbers."""

UNIT_EXPONENT = 6
"""In the unit of a run samples lie 32 to 64, as the root of the mean square, from their centre.

That leaves float32 room on both sides: squared distances of 2^60 samples fit in, and differences 2^-70 times as large
still count. Epsilon, which only guards a division, is then some 2e-6 of that distance. Labels hardly depend on it: with
powers from 0 to 20 no more than 10 of some thousand differed.
"""

SIGNIFICANT = 12
"""Bits of that distance that decide: the last ones depend on how rows are cut, and of standardised columns it often is
a power of two but for them."""

VANISHED = 2.0**-75
"""Below it the square of a difference is zero in float32."""

AT_ONCE = 64
"""Rows that are float64 at one time: those of 784 features stay in a core's cache, which takes a third of the time."""


class Statistics(NamedTuple):
    """Sums over rows as unevaluated pairs high + low, so that rounding leaves no trace of the cuts; and the range.

    They are those of (x - shift) / 2^exponent, whose squares neither overflow nor underflow whatever the unit of x.
    """

    exponent: Int64  # (f,)
    total: Float64  # (2, f) sum of (x - shift) / 2^exponent
    square: Float64  # (2, f) sum of their squares
    low: Float64  # (f,) of x
    high: Float64  # (f,) of x


@njit(nogil=True, cache=True)
def _add(pair, t, value):  # type: ignore[no-untyped-def]
    high = pair[0, t] + value
    part = high - pair[0, t]
    pair[1, t] += (pair[0, t] - (high - part)) + (value - part)
    pair[0, t] = high


@njit(nogil=True, cache=True)
def _accumulate(X, shift, factor, total, square):  # type: ignore[no-untyped-def]
    for p in range(X.shape[0]):
        for t in range(X.shape[1]):
            z = (X[p, t] - shift[t]) * factor[t]
            _add(total, t, z)
            _add(square, t, z * z)


def column_statistics(X: AnyArray, shift: Float64) -> Statistics:
    """Statistics of the columns of X (n, f) about ``shift`` (f,)."""
    f = X.shape[1]
    ends = (X.min(axis=0), X.max(axis=0)) if len(X) else (np.full(f, np.inf), np.full(f, -np.inf))
    low, high = (end.astype(np.float64) for end in ends)
    exponent = _exponents(np.maximum(high - shift, shift - low))
    statistics = Statistics(exponent, np.zeros((2, f)), np.zeros((2, f)), low, high)
    for a in range(0, len(X), AT_ONCE):
        some = X[a : a + AT_ONCE].astype(np.float64)
        _accumulate(some, shift, np.ldexp(1.0, -exponent), statistics.total, statistics.square)
    return statistics


def _exponents(sizes: Float64) -> Int64:
    """The least powers of two above some sizes, inside `EXPONENTS`; the lower limit where a size is not above zero."""
    powers = np.frexp(np.where(sizes > 0, sizes, 0.0))[1]
    return np.where(sizes > 0, np.clip(powers, *EXPONENTS), EXPONENTS[0]).astype(np.int64)


def merge(parts: list[Statistics]) -> Statistics:
    """Statistics of all rows from those of their parts."""
    f = len(parts[0].low)
    exponent = np.max([part.exponent for part in parts], axis=0)
    merged = Statistics(exponent, np.zeros((2, f)), np.zeros((2, f)), np.array(parts[0].low), np.array(parts[0].high))
    for part in parts:
        less = part.exponent - exponent
        for mine, other, times in ((merged.total, part.total, 1), (merged.square, part.square, 2)):
            for row in np.ldexp(other, times * less):
                for t in range(f):
                    _add(mine, t, row[t])
        np.minimum(merged.low, part.low, out=merged.low)
        np.maximum(merged.high, part.high, out=merged.high)
    return merged


def _moments(statistics: Statistics, m: int) -> tuple[Float64, Float64]:
    """Mean less the shift, and standard deviation, of each column of m rows, in units of its 2^exponent."""
    mean = (statistics.total[0] + statistics.total[1]) / m
    variance = (statistics.square[0] + statistics.square[1]) / m - mean**2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    deviation[statistics.low == statistics.high] = 0.0
    return mean, deviation


def centering(statistics: Statistics, shift: Float64, m: int, scale: str) -> tuple[Float64, Float64]:
    """The centre that is subtracted from each column, and the spread that it is divided by: (f,), (f,).

    The centre is the mean, rounded to a multiple of a power of two near the column's spread: that costs no digit of a
    distance, and the differences of whole numbers stay exact, so that equal distances stay equal and ties are decided
    by id.
    """
    mean, deviation = (np.ldexp(a, statistics.exponent) for a in _moments(statistics, m))
    constant = statistics.low == statistics.high
    center = shift + mean
    quantum = np.where(deviation > 0, np.ldexp(1.0, np.frexp(deviation)[1] - 1), 1.0)
    center = np.where(constant, statistics.low, np.rint(center / quantum) * quantum)
    spread = np.ones(len(center))
    if scale == "zscore":
        # 26 bits decide the divisor, so that the last bits of a sum over rows do not
        spread = np.where(deviation > 0, _rounded(deviation, 26), 1.0)
    elif scale == "minmax":
        spread = np.where(constant, 1.0, statistics.high - statistics.low)
    return center, spread


def unit_exponent(statistics: Statistics, spread: Float64, m: int) -> int:
    """The e of the power of two that m samples are divided by, once they are centred and scaled.

    It makes the root of their mean squared distance from the centre at least 2^(UNIT_EXPONENT - 1) and less than
    2^UNIT_EXPONENT, so that no result depends on the unit of the input as long as one is a power of two times another.
    0 where all samples are equal.

    ``statistics``: of all rows; ``spread`` (f,): divisors of their columns.
    """
    return root_exponent(np.ldexp(_moments(statistics, m)[1], statistics.exponent) / spread)


def root_exponent(sizes: Float64) -> int:
    """The e by which the root of the sum of squares of sizes / 2^e lies where `unit_exponent` says."""
    largest = sizes.max(initial=0.0)
    if not largest > 0:
        return 0
    first = int(np.frexp(largest)[1])
    root = float(np.sqrt(np.square(np.ldexp(sizes, -first)).sum()))
    exponent = first + int(np.frexp(_rounded(np.array(root), SIGNIFICANT))[1]) - UNIT_EXPONENT
    return min(max(exponent, EXPONENTS[0]), EXPONENTS[1])


def vanishing(statistics: Statistics, spread: Float64, exponent: int) -> int:
    """How many columns that are not constant vary so little, once scaled, that no distance in float32 shows it."""
    reach = (statistics.high - statistics.low) / spread
    return int(np.count_nonzero((reach > 0) & (np.ldexp(reach, -exponent) < VANISHED)))


def _rounded(x: Float64, bits: int) -> Float64:
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(mantissa * 2**bits) / 2**bits, exponent))


def unit_rows(X: Float64) -> Float64:
    """Rows divided by their length; rows of zeros stay."""
    largest = np.abs(X).max(axis=1, keepdims=True)
    X = np.divide(X, largest, out=np.zeros_like(X), where=largest > 0)
    length = np.sqrt(np.square(X).sum(axis=1, keepdims=True))
    return np.divide(X, length, out=np.zeros_like(X), where=length > 0)


class Columns(NamedTuple):
    """Exact centre and spread of columns, for metrics that depend on where 0 is."""

    center: Float64  # (f,) mean or least value, to the last digit that the cuts leave alone
    spread: Float64  # (f,)

    def of(self, X: Float64) -> Float64:
        """X (rows, f) with its columns scaled."""
        return (X - self.center) / self.spread


def scaled_columns(statistics: Statistics, shift: Float64, m: int, scale: str) -> Columns:
    """Exact ``zscore`` or ``minmax`` scaling: a direction depends on where the origin is, a distance does not."""
    spread = centering(statistics, shift, m, scale)[1]
    if scale == "minmax":
        return Columns(statistics.low, spread)
    mean = shift + np.ldexp(_moments(statistics, m)[0], statistics.exponent)
    quantum = np.ldexp(1.0, np.frexp(spread)[1] - 36)  # so that the last bits of a sum over rows decide nothing
    constant = statistics.low == statistics.high
    return Columns(np.where(constant, statistics.low, np.rint(mean / quantum) * quantum), spread)


def directionless(X: Float64, metric: str) -> NDArray[np.bool_]:
    """Rows (rows,) that a metric gives no direction: all zero, or for ``correlation`` all the same value."""
    if METRICS[metric].rows != "centred unit":
        return np.asarray(~X.any(axis=1))
    spread, largest = X.max(axis=1) - X.min(axis=1), np.abs(X).max(axis=1)
    return np.asarray(spread <= 4 * np.finfo(np.float64).eps * largest)


def turned_rows(X: AnyArray, scale: str, metric: str, columns: Columns | None = None) -> AnyArray:
    """Rows (rows, f) as they are before their columns are centred: for some scales and metrics of length 1.

    Of rows of length 1 the Euclidean distance is sqrt(2 (1 - cos)); less their means first, sqrt(2 (1 - r)). That of
    the square roots of shares of the row's sum, divided by sqrt(2), is Hellinger's. For the Jaccard distance of sets
    each value that is not 0 counts as 1.
    """
    if columns is not None:
        X = columns.of(X)
    rows = METRICS[metric].rows
    if rows == "centred unit":
        X = X - X.mean(axis=1, keepdims=True)
    if rows == "presence":  # rows of the same set are equal rows, as others at distance 0 are
        return (X != 0).astype(np.float64)
    if rows == "root shares":
        return unit_rows(np.sqrt(X)) / np.sqrt(2.0)
    return unit_rows(X) if scale == "l2" or rows in ("unit", "centred unit") else X


def standardize(
    X: AnyArray,
    center: Float64,
    spread: Float64,
    scale: str,
    metric: str = "euclidean",
    columns: Columns | None = None,
    exponent: int = 0,
) -> tuple[Float32, int]:
    """(X - center) / spread / 2^exponent as float32, from float64 arithmetic, and how many whole numbers were rounded.

    ``l2`` and the angular metrics divide each row by its length first, see `turned_rows`. A sample too far off for
    float32 is infinite.
    """
    samples, rounded = np.empty(X.shape, np.float32), 0
    whole = np.issubdtype(X.dtype, np.integer) and scale == "none" and not METRICS[metric].needs_direction
    for a in range(0, len(X), AT_ONCE):
        some = turned_rows(X[a : a + AT_ONCE].astype(np.float64), scale, metric, columns)
        some = (some - center) / spread * np.ldexp(1.0, -exponent)
        with np.errstate(over="ignore"):
            samples[a : a + AT_ONCE] = some
        rounded += int(np.count_nonzero(samples[a : a + AT_ONCE] != some)) if whole else 0
    return samples, rounded


SYMMETRIC_TO = 1e-5
"""How far d_ij and d_ji may differ, as a share of the larger: the rounding of their computation."""

ROUNDED_TO = 1e-6
"""How far they, and d_ii from 0, may differ in any case, as a share of the largest distance: what float32 leaves of
differences such as 1 - cos."""


def row_squares(D: Float64) -> tuple[int, Float64]:
    """An exponent e, and the sums of squares (rows,) of the rows of D / 2^e, which neither overflow nor underflow."""
    exponent = int(np.clip(np.frexp(D.max(initial=0.0))[1], -1000, 1000))
    return exponent, np.square(D * np.ldexp(1.0, -exponent)).sum(axis=1)


def first_uneven(block: Float32, across: Float32, slack: float) -> tuple[int, int] | None:
    """Row and column where d_ij of ``block`` and d_ji of ``across`` (its mirror) differ by more than rounding.

    ``slack`` is by how much they may differ in any case.
    """
    mirror = across.T
    uneven = np.abs(block - mirror) > np.maximum(SYMMETRIC_TO * np.maximum(block, mirror), slack)
    if not uneven.any():
        return None
    row, column = np.argwhere(uneven)[0]
    return int(row), int(column)


MEDIAN_BITS = 11
"""Binary digits that a round decides: 2,048 counts a column are few, and six rounds decide all 64."""

MEDIAN_SHIFTS = (53, 42, 31, 20, 9, 0)
"""Digits to the right of those that each round decides; the last one decides nine."""

SIGN_BIT = np.uint64(1 << 63)


def _sortable_keys(X: Float64) -> UInt64:
    """Whole numbers in the order of the numbers X (rows, f); -0 as 0, and NaN after all others."""
    plain = np.where(np.isnan(X), np.nan, X + 0.0)  # a NaN may have a sign, which would put it before all others
    bits = np.ascontiguousarray(plain).view(np.uint64)
    return np.where(bits & SIGN_BIT, ~bits, bits | SIGN_BIT)


def _from_sortable_keys(keys: UInt64) -> Float64:
    """The numbers that `_sortable_keys` made ``keys`` of."""
    return np.where(keys & SIGN_BIT, keys ^ SIGN_BIT, ~keys).view(np.float64)


@njit(nogil=True, cache=True)
def _count_digits(keys, prefixes, shift, bits, counts):  # type: ignore[no-untyped-def]
    mask = np.uint64((1 << bits) - 1)
    for p in range(keys.shape[0]):
        for t in range(keys.shape[1]):
            digits = keys[p, t] >> np.uint64(shift)
            before = digits >> np.uint64(bits)
            if before == prefixes[0, t]:
                counts[0, t, digits & mask] += 1
            elif before == prefixes[1, t]:
                counts[1, t, digits & mask] += 1


def _digit_bits(step: int) -> int:
    """Binary digits that a round decides."""
    return (64 if step == 0 else MEDIAN_SHIFTS[step - 1]) - MEDIAN_SHIFTS[step]


def digit_counts(X: Float64, prefixes: UInt64, step: int) -> NDArray[np.int32]:
    """How many rows of X have each value of the next binary digits, among those that begin as ``prefixes``.

    ``X`` (rows, f) float64: NaN where a value is missing; ``prefixes`` (2, f) uint64: the digits found so far of
    each column's two middle values; ``step``: the round, 0 to 5. Returns (2, f, 2^MEDIAN_BITS) int32.
    """
    counts = np.zeros((2, X.shape[1], 1 << MEDIAN_BITS), np.int32)
    _count_digits(_sortable_keys(X), prefixes, MEDIAN_SHIFTS[step], _digit_bits(step), counts)
    same = prefixes[0] == prefixes[1]  # both are counted at once
    counts[1, same] = counts[0, same]
    return counts


class Medians:
    """The search for the two middle values of each column, a round at a time.

    ``present`` (f,) int: how many values each column has, at least one.
    """

    def __init__(self, present: Int64) -> None:
        self._ranks = np.stack([(present - 1) // 2, present // 2])
        self.prefixes = np.zeros((2, len(present)), np.uint64)

    def narrow(self, counts: Int64, step: int) -> None:
        """Take in the counts of a round over all rows: (2, f, 2^MEDIAN_BITS)."""
        ends = np.cumsum(counts, axis=2)
        digit = (ends <= self._ranks[:, :, None]).sum(axis=2)
        before = np.take_along_axis(ends - counts, digit[:, :, None], axis=2)[:, :, 0]
        self._ranks = self._ranks - before
        self.prefixes = (self.prefixes << np.uint64(_digit_bits(step))) | digit.astype(np.uint64)

    def values(self) -> Float64:
        """The medians (f,), after the last round: the mean of the two middle values, as `numpy.median` has it."""
        low, high = _from_sortable_keys(self.prefixes)
        return np.where(low == high, low, (low + high) / 2)

"""Column statistics that do not depend on how rows are cut, and the centring and scaling they decide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ips2_dask.kernels.distances import CODES

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
AnyReal = NDArray[np.generic]

LARGEST = 1.3e19
"""Square root of half the largest float32: the squared norms of two samples, farther apart, would not add up."""


class Statistics(NamedTuple):
    """Sums over rows as unevaluated pairs high + low, so that rounding leaves no trace of the cuts; and the range."""

    total: Float64  # (2, f) sum of x - shift
    square: Float64  # (2, f) sum of (x - shift)^2
    low: Float64  # (f,)
    high: Float64  # (f,)


@njit(nogil=True, cache=True)
def _add(pair, t, value):  # type: ignore[no-untyped-def]
    high = pair[0, t] + value
    part = high - pair[0, t]
    pair[1, t] += (pair[0, t] - (high - part)) + (value - part)
    pair[0, t] = high


@njit(nogil=True, cache=True)
def _accumulate(X, shift, total, square, low, high):  # type: ignore[no-untyped-def]
    for p in range(X.shape[0]):
        for t in range(X.shape[1]):
            x = X[p, t]
            low[t] = min(low[t], x)
            high[t] = max(high[t], x)
            z = x - shift[t]
            _add(total, t, z)
            _add(square, t, z * z)


def column_statistics(X: Float64, shift: Float64) -> Statistics:
    """Statistics of the columns of X (n, f) float64 about ``shift`` (f,)."""
    f = X.shape[1]
    out = Statistics(np.zeros((2, f)), np.zeros((2, f)), np.full(f, np.inf), np.full(f, -np.inf))
    _accumulate(X, shift, *out)
    return out


def merge(parts: list[Statistics]) -> Statistics:
    """Statistics of all rows from those of their parts."""
    out = Statistics(*(np.array(a) for a in parts[0]))
    for part in parts[1:]:
        for mine, other in ((out.total, part.total), (out.square, part.square)):
            for row in (0, 1):
                for t in range(mine.shape[1]):
                    _add(mine, t, other[row, t])
        np.minimum(out.low, part.low, out=out.low)
        np.maximum(out.high, part.high, out=out.high)
    return out


def centering(statistics: Statistics, shift: Float64, m: int, scale: str) -> tuple[Float64, Float64]:
    """What to take from each column and what to divide it by: (f,), (f,).

    The centre is the mean, rounded to a multiple of a power of two near the column's spread: that costs no digit of a
    distance, and the differences of whole numbers stay exact, so that equal distances stay equal and ties are decided
    by id.
    """
    mean = (statistics.total[0] + statistics.total[1]) / m
    variance = (statistics.square[0] + statistics.square[1]) / m - mean**2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    constant = statistics.low == statistics.high
    deviation[constant] = 0.0
    center = shift + mean
    quantum = np.exp2(np.floor(np.log2(np.where(deviation > 0, deviation, 1.0))))
    center = np.where(constant, statistics.low, np.rint(center / quantum) * quantum)
    spread = np.ones(len(center))
    if scale == "zscore":
        # 26 bits decide the divisor, so that the last bits of a sum over rows do not
        spread = np.where(deviation > 0, _rounded(deviation), 1.0)
    elif scale == "minmax":
        spread = np.where(constant, 1.0, statistics.high - statistics.low)
    return center, spread


def _rounded(x: Float64) -> Float64:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**26) / 2**26, exponent)


def unit_rows(X: Float64) -> Float64:
    """Rows divided by their length; rows of zeros stay."""
    largest = np.abs(X).max(axis=1, keepdims=True)
    X = np.divide(X, largest, out=np.zeros_like(X), where=largest > 0)
    length = np.sqrt(np.square(X).sum(axis=1, keepdims=True))
    return np.divide(X, length, out=np.zeros_like(X), where=length > 0)


class Columns(NamedTuple):
    """What columns are scaled by to the letter, for metrics that depend on where 0 is."""

    center: Float64  # (f,) mean or least value, to the last digit that the cuts leave alone
    spread: Float64  # (f,)

    def of(self, X: Float64) -> Float64:
        """X (rows, f) with its columns scaled."""
        return (X - self.center) / self.spread


def scaled_columns(statistics: Statistics, shift: Float64, m: int, scale: str) -> Columns:
    """``zscore`` or ``minmax`` by the letter: a direction depends on where the origin is, a distance does not."""
    spread = centering(statistics, shift, m, scale)[1]
    if scale == "minmax":
        return Columns(statistics.low, spread)
    mean = shift + (statistics.total[0] + statistics.total[1]) / m
    quantum = np.ldexp(1.0, np.frexp(spread)[1] - 36)  # so that the last bits of a sum over rows decide nothing
    constant = statistics.low == statistics.high
    return Columns(np.where(constant, statistics.low, np.rint(mean / quantum) * quantum), spread)


def directionless(X: Float64, metric: str) -> NDArray[np.bool_]:
    """Rows (rows,) that a metric gives no direction: all zero, or for ``correlation`` all the same value."""
    if metric != "correlation":
        return np.asarray(~X.any(axis=1))
    spread, largest = X.max(axis=1) - X.min(axis=1), np.abs(X).max(axis=1)
    return np.asarray(spread <= 4 * np.finfo(np.float64).eps * largest)


def turned_rows(X: Float64, scale: str, metric: str, columns: Columns | None = None) -> Float64:
    """Rows (rows, f) as they are before their columns are centred: for some scales and metrics of length 1.

    Of rows of length 1 the Euclidean distance is sqrt(2 (1 - cos)); less their means first, sqrt(2 (1 - r)). That of
    the square roots of shares of the row's sum, divided by sqrt(2), is Hellinger's. For the Jaccard distance of sets
    each value that is not 0 counts as 1.
    """
    if columns is not None:
        X = columns.of(X)
    if metric == "correlation":
        X = X - X.mean(axis=1, keepdims=True)
    if metric == "jaccard":  # rows of the same set are equal rows, as others at distance 0 are
        return (X != 0).astype(np.float64)
    if metric == "hellinger":
        return unit_rows(np.sqrt(X)) / np.sqrt(2.0)
    return unit_rows(X) if scale == "l2" or metric in ("cosine", "correlation") else X


def standardize(
    X: AnyReal,
    center: Float64,
    spread: Float64,
    scale: str,
    metric: str = "euclidean",
    columns: Columns | None = None,
) -> tuple[Float32, int]:
    """(X - center) / spread as float32, from float64 arithmetic, and how many whole numbers that had to round.

    ``l2`` and the angular metrics divide each row by its length first, see `turned_rows`.
    """
    out64 = (turned_rows(X.astype(np.float64), scale, metric, columns) - center) / spread
    out = out64.astype(np.float32)
    whole = np.issubdtype(X.dtype, np.integer) and scale == "none" and metric in CODES
    return out, int(np.count_nonzero(out != out64)) if whole else 0

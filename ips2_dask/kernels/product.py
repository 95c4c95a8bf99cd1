"""The matrix-free product: sum over neighbourhoods of G_p' (W_p o B_p) G_p x, each block made once for all columns.

Letters: p a neighbourhood, q its local pairs, B_p (q, q) their entries of R, W_p (q, q) 1 where p owns the entry and 0
elsewhere, G_p (q, P) picks its pairs among all P. See docs/method.md, A sum of small blocks.

Sixteen neighbourhoods are worked on together, see `llvm`: their entries are computed side by side, turned into strips
of eight rows one neighbourhood after the other, and multiplied by the rows of x that the neighbourhood reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.llvm import (
    LANES,
    ROWS,
    add_row,
    cut_strip,
    evaluate,
    multiply_tile,
    prefetch,
    scale_row,
    spread_bits,
)
from ips2_dask.kernels.tensor import local_pairs

LINE = 64
"""Bytes of a cache line; where lines are longer, some are asked for twice."""
AHEAD = 16
"""Slots after this one whose row is asked for."""


class _Tables(NamedTuple):
    """Places and weights of the entries of a neighbourhood of k samples, and the two parameters of eq. (7)."""

    places: NDArray[np.int32]
    """(q (q + 1) / 2, 7): the rows of each entry's six distances and of its subset's bit, see `llvm.evaluate`."""
    weights: NDArray[np.float32]  # (q (q + 1) / 2,): products of the basis vectors' entries
    strips: NDArray[np.int32]
    """(tiles, columns / 2, 16): numbers of the entries that a tile's rows hold, see `llvm.cut_strip`."""
    sigma: np.float32
    epsilon: np.float32


@lru_cache(maxsize=8)
def product_tables(k: int, sigma: float, epsilon: float) -> _Tables:
    """The tables for neighbourhoods of k samples."""
    local = local_pairs(k)
    q = len(local.first)
    r, s = np.triu_indices(q)
    length = np.full((k, k), k * (k - 1) // 2)  # the last row of the distances: of a sample to itself
    above = np.triu_indices(k, 1)
    length[above] = length[above[::-1]] = np.arange(len(above[0]))
    (i, j), (u, v) = (local.first[r], local.second[r]), (local.first[s], local.second[s])
    places = [length[i, j], length[u, v], length[i, u], length[j, v], length[j, u], length[i, v], local.subset[r, s]]
    basis = np.where(local.first == local.second, np.sqrt(0.5), 1.0)
    tiles, halves = -(-q // ROWS), -(-q // 2)
    # a tile is filled up with the row of zeros that follows the entries
    entry = np.full((ROWS * tiles, 2 * halves), len(r))
    entry[r, s] = entry[s, r] = np.arange(len(r))
    strips = entry.reshape(tiles, ROWS, halves, 2).transpose(0, 2, 3, 1).reshape(tiles, halves, LANES)
    return _Tables(
        np.stack(places, axis=1).astype(np.int32),
        (basis[r] * basis[s]).astype(np.float32),
        np.ascontiguousarray(strips, np.int32),
        np.float32(sigma),
        np.float32(epsilon),
    )


@njit(nogil=True, cache=True)
def _lanes(blocks, owned, tables):  # type: ignore[no-untyped-def]
    """Memory for sixteen neighbourhoods: distances, owner bits packed and not, and entries with a row of zeros."""
    lengths = np.zeros((blocks.shape[1] + 1, LANES), np.float32)
    packed = np.zeros((owned.shape[1], LANES), np.uint8)
    own = np.empty((8 * owned.shape[1], LANES), np.float32)
    return lengths, packed, own, np.zeros((len(tables.places) + 1, LANES), np.float32)


@njit(nogil=True, cache=True)
def _evaluate(blocks, owned, p, count, tables, lengths, packed, own, entries):  # type: ignore[no-untyped-def]
    """The entries of neighbourhoods p .. p + count - 1, each in a lane."""
    for lane in range(count):
        d, bits = blocks[p + lane], owned[p + lane]
        for t in range(len(d)):
            lengths[t, lane] = d[t]
        for byte in range(len(bits)):
            packed[byte, lane] = bits[byte]
    spread_bits(types.uintp(packed.ctypes.data), types.uintp(len(packed)), types.uintp(own.ctypes.data))
    evaluate(
        types.uintp(lengths.ctypes.data),
        types.uintp(own.ctypes.data),
        types.uintp(tables.places.ctypes.data),
        types.uintp(tables.weights.ctypes.data),
        types.uintp(len(tables.places)),
        tables.sigma,
        tables.epsilon,
        types.uintp(entries.ctypes.data),
    )


@njit(nogil=True, cache=True)
def element_blocks(blocks, owned, tables, out):  # type: ignore[no-untyped-def]
    """W_p o B_p of each neighbourhood, upper triangle by rows.

    ``blocks`` (rows, k (k - 1) / 2) float32: distances inside each neighbourhood; ``owned`` (rows, bytes) uint8:
    packed bits of `tensor.owned_subsets`; ``out`` (rows, q (q + 1) / 2) float32.
    """
    lengths, packed, own, entries = _lanes(blocks, owned, tables)
    for p in range(0, len(blocks), LANES):
        count = min(LANES, len(blocks) - p)
        _evaluate(blocks, owned, p, count, tables, lengths, packed, own, entries)
        for lane in range(count):
            for t in range(len(tables.places)):
                out[p + lane, t] = entries[t, lane]


@njit(nogil=True, cache=True)
def _gather(x, scale, ids, out):  # type: ignore[no-untyped-def]
    """Rows ``ids`` of scale x."""
    columns = x.shape[1]
    stride, step = types.uintp(x.itemsize * columns), types.uintp(x.itemsize * out.shape[1])
    at_x, target = types.uintp(x.ctypes.data), types.uintp(out.ctypes.data)
    for r in range(len(ids)):
        scale_row(at_x + types.uintp(ids[r]) * stride, target, columns, x.dtype.type(scale[ids[r]]))
        target += step


@njit(nogil=True, cache=True)
def _fetch_row(row, stride):  # type: ignore[no-untyped-def]
    """Ask for the ``stride`` bytes at an address."""
    for offset in range(0, stride - types.uintp(1), LINE):
        prefetch(row + types.uintp(offset))
    prefetch(row + stride - types.uintp(1))


@njit(nogil=True, cache=True)
def _fetch(x, scale, ids):  # type: ignore[no-untyped-def]
    """Ask for what `_gather` will read."""
    stride = types.uintp(x.itemsize * x.shape[1])
    at_x, at_scale, width = types.uintp(x.ctypes.data), types.uintp(scale.ctypes.data), types.uintp(scale.itemsize)
    for r in range(len(ids)):
        prefetch(at_scale + types.uintp(ids[r]) * width)
        _fetch_row(at_x + types.uintp(ids[r]) * stride, stride)


@njit(nogil=True, cache=True)
def _find_targets(out_of, first, y, slots, targets):  # type: ignore[no-untyped-def]
    """Addresses of rows ``out_of`` - ``first`` of y with ``slots`` after it, 0 outside of both; ask for them."""
    stride = types.uintp(y.itemsize * y.shape[1])
    at_y, at_slots = types.uintp(y.ctypes.data), types.uintp(slots.ctypes.data)
    at_slots -= types.uintp(len(y)) * stride
    for r in range(len(out_of)):
        row = out_of[r] - first
        # chosen without branches, which no processor would foresee
        address = (at_y if row < len(y) else at_slots) + types.uintp(row) * stride
        targets[r] = address if 0 <= row < len(y) + len(slots) else types.uintp(0)
        if targets[r] != 0:
            _fetch_row(address, stride)


@njit(nogil=True, cache=True)
def _scatter(sums, targets, columns):  # type: ignore[no-untyped-def]
    """Add rows of ``sums`` to those at the addresses ``targets``; none where it is 0."""
    source, step, one = types.uintp(sums.ctypes.data), types.uintp(sums.itemsize * sums.shape[1]), sums.dtype.type(1)
    for r in range(len(targets)):
        if targets[r] != 0:
            add_row(source, targets[r], columns, one)
        source += step


@njit(nogil=True, cache=True)
def multiply(blocks, owned, into, out_of, first, tables, scale, x, y, slots):  # type: ignore[no-untyped-def]
    """Add these neighbourhoods' share of R (scale x) to rows of y, or of ``slots``, the rows after those of y.

    ``blocks``, ``owned``: as of `element_blocks`; ``into`` (rows, q) int32: rows of x that a neighbourhood's pairs
    read; ``out_of`` (rows, q) int32: rows that they add to, counted from ``first``: what lies before y, or after
    ``slots``, is left out; ``x`` (n, columns), float32 or float64 as y and ``slots`` are.
    """
    strips, q, zero = tables.strips, into.shape[1], x.dtype.type(0)
    wide = (x.shape[1] + 7) // 8 * 8
    stride = types.uintp(x.itemsize * wide)
    lengths, packed, own, entries = _lanes(blocks, owned, tables)
    strip = np.empty((LANES, strips.shape[1], LANES), np.float32)
    x_local = np.zeros((LANES, q, wide), x.dtype)
    y_local = np.empty((LANES, ROWS * len(strips), wide), x.dtype)
    targets = np.empty((LANES, q), np.uintp)
    for p in range(0, len(into), LANES):
        count = min(LANES, len(into) - p)
        for lane in range(count):
            _find_targets(out_of[p + lane], first, y, slots, targets[lane])
        for following in range(p + LANES, min(p + 2 * LANES, len(into))):
            _fetch(x, scale, into[following])
        _evaluate(blocks, owned, p, count, tables, lengths, packed, own, entries)
        for lane in range(count):
            _gather(x, scale, into[p + lane], x_local[lane])
        for tile in range(len(strips)):
            cut_strip(
                types.uintp(entries.ctypes.data),
                types.uintp(strips[tile].ctypes.data),
                types.uintp(strips.shape[1]),
                types.uintp(strip.ctypes.data),
            )
            for lane in range(count):
                at_strip, at_x = types.uintp(strip[lane].ctypes.data), types.uintp(x_local[lane].ctypes.data)
                at_y = types.uintp(y_local[lane, ROWS * tile :].ctypes.data)
                multiply_tile(at_strip, types.uintp(q), at_x, stride, types.uintp(wide), at_y, zero)
        for lane in range(count):
            _scatter(y_local[lane], targets[lane], x.shape[1])


@njit(nogil=True, cache=True)
def add_slots(owner, low, high, slots, y):  # type: ignore[no-untyped-def]
    """Add ``slots`` low .. high - 1 to the rows ``owner`` of y."""
    columns, one = y.shape[1], y.dtype.type(1)
    stride = types.uintp(y.itemsize * columns)
    at_y, source = types.uintp(y.ctypes.data), types.uintp(slots.ctypes.data) + types.uintp(low) * stride
    for t in range(low, high):
        if t + AHEAD < high:
            _fetch_row(at_y + types.uintp(owner[t + AHEAD]) * stride, stride)
        add_row(source, at_y + types.uintp(owner[t]) * stride, columns, one)
        source += stride


@njit(nogil=True, cache=True, fastmath=True)
def combine(out, scale, y, previous, a, b, c):  # type: ignore[no-untyped-def]
    """out = a scale out + b y + c previous, row by row; an empty ``previous`` is left out."""
    for r in range(len(out)):
        root = a * scale[r]
        target, source = out[r], y[r]
        for t in range(len(target)):
            target[t] = root * target[t] + b * source[t]
        if len(previous):
            before = previous[r]
            for t in range(len(target)):
                target[t] += c * before[t]

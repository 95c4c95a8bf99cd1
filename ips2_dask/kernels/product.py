"""The matrix-free product: sum over neighbourhoods of G_p' (W_p o B_p) G_p x, each block made once for all columns.

Rows of a block are padded to whole vectors of 16 and cut at multiples of 16, so that every loop is vector code without
a remainder; what is computed below the diagonal is right too, since a block is symmetric.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LANES = 16


@intrinsic
def _as_float(typing_context, bits):  # type: ignore[no-untyped-def]
    """The float32 of the same 32 bits as an int32."""
    del typing_context

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        del context, signature
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy", inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x) for float32 x <= 0 as 2^n 2^f, |f| <= 1/2; relative error 2e-7, 0 below 2^-126."""
    y = x * np.float32(1.4426950408889634)
    whole = np.floor(max(y, np.float32(-127.0)) + np.float32(0.5))
    f = max(y, np.float32(-127.0)) - whole
    # the polynomial of degree 5 with the smallest largest relative error of 2^f there (7.5e-8)
    p = np.float32(1.327647129073739e-3)
    p = p * f + np.float32(9.675540961325169e-3)
    p = p * f + np.float32(5.550713092088699e-2)
    p = p * f + np.float32(2.4022120237350464e-1)
    p = p * f + np.float32(6.931469440460205e-1)
    p = p * f + np.float32(1.0000001192092896)
    return p * _as_float((np.int32(whole) + np.int32(127)) << np.int32(23))


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _prepare(d, owned, k, first, second, epsilon, D, within, straight, crossed, own):  # type: ignore[no-untyped-def]
    """Distances of one neighbourhood laid out by local pairs, and its owner bits as numbers."""
    t = 0
    for a in range(k):
        for b in range(a + 1, k):
            D[a, b] = D[b, a] = d[t]
            t += 1
    for byte in range(len(owned)):
        bits, eight = owned[byte], own[8 * byte : 8 * byte + 8]
        for t in range(8):
            eight[t] = np.float32((bits >> (7 - t)) & 1)
    for r in range(len(first)):
        within[r] = D[first[r], second[r]]
    for a in range(k):
        lengths, left, right = D[a], straight[a], crossed[a]
        for s in range(len(first)):
            left[s] = lengths[first[s]] + epsilon
            right[s] = lengths[second[s]]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _evaluate(first, second, within, straight, crossed, basis, sigma, B):  # type: ignore[no-untyped-def]
    """B_p above the diagonal and a little below it."""
    for r in range(len(first)):
        i, j = first[r], second[r]
        begin = r // LANES * LANES
        top, weight = within[r], basis[r]
        # views from ``begin`` on, so that indices start at 0: a range that might be negative is not vectorised
        ik, jl, jk, il = straight[i, begin:], crossed[j, begin:], straight[j, begin:], crossed[i, begin:]
        kl, unit, out = within[begin:], basis[begin:], B[r, begin:]
        for s in range(len(out)):
            above = -sigma * (top + kl[s])
            out[s] = (_exp(above / (ik[s] + jl[s])) + _exp(above / (jk[s] + il[s]))) * weight * unit[s]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _mask(subset, own, B):  # type: ignore[no-untyped-def]
    """W_p o B_p, in place."""
    for r in range(len(B)):
        begin = r // LANES * LANES
        kept, out = subset[r, begin:], B[r, begin:]
        for s in range(len(out)):
            out[s] *= own[kept[s]]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _mirror(B):  # type: ignore[no-untyped-def]
    """What lies below the diagonal, in place."""
    for r in range(len(B)):
        for s in range(r // LANES * LANES):
            B[r, s] = B[s, r]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _fill_block(d, owned, k, first, second, subset, basis, sigma, epsilon, D, within, straight, crossed, own, B):  # type: ignore[no-untyped-def]
    """W_p o B_p of one neighbourhood: (q, q) of ``B``, whose rows are padded.

    In four functions, since the loops of one are not vectorised: 2.7 instead of 7 microseconds at k = 10 (measured).
    """
    _prepare(d, owned, k, first, second, epsilon, D, within, straight, crossed, own)
    _evaluate(first, second, within, straight, crossed, basis, sigma, B)
    _mask(subset, own, B)
    _mirror(B)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def element_blocks(blocks, owned, k, first, second, subset, basis, sigma, epsilon, out):  # type: ignore[no-untyped-def]
    """W_p o B_p of each neighbourhood, upper triangle by rows: (rows, q (q + 1) / 2) of ``out``."""
    q, width = len(first), subset.shape[1]
    D = np.zeros((k, k), np.float32)
    within, own = np.zeros(width, np.float32), np.zeros(8 * owned.shape[1], np.float32)
    straight, crossed = np.ones((k, width), np.float32), np.ones((k, width), np.float32)
    B = np.zeros((q, width), np.float32)
    for p in range(len(blocks)):
        _fill_block(
            blocks[p], owned[p], k, first, second, subset, basis, sigma, epsilon, D, within, straight, crossed, own, B
        )
        t = 0
        for r in range(q):
            for s in range(r, q):
                out[p, t] = B[r, s]
                t += 1


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def multiply(  # type: ignore[no-untyped-def]
    blocks, owned, elements, into, out_of, k, first, second, subset, basis, sigma, epsilon, scale, x, y, slots
):
    """Add these neighbourhoods' share of R (scale x) to y, or to ``slots`` where ``out_of`` points past y.

    The blocks come from ``elements`` where that has rows, and are made from the distances where it has none.
    """
    q, columns, P = len(first), x.shape[1], len(y)
    width = subset.shape[1]
    D = np.zeros((k, k), np.float32)
    within, own = np.zeros(width, np.float32), np.zeros(8 * owned.shape[1], np.float32)
    straight, crossed = np.ones((k, width), np.float32), np.ones((k, width), np.float32)
    B = np.zeros((q, width), np.float32)
    square = np.zeros((q, q), x.dtype)
    x_local, y_local = np.empty((q, columns), x.dtype), np.empty((q, columns), x.dtype)
    for p in range(len(into)):
        if len(elements):
            t = 0
            for r in range(q):
                for s in range(r, q):
                    square[r, s] = square[s, r] = elements[p, t]
                    t += 1
        else:
            _fill_block(
                blocks[p], owned[p], k, first, second, subset, basis, sigma, epsilon,
                D, within, straight, crossed, own, B,
            )  # fmt: skip
            for r in range(q):
                wide, narrow = B[r], square[r]
                for s in range(len(narrow)):
                    narrow[s] = wide[s]
        for r in range(q):
            root, source, target = scale[into[p, r]], x[into[p, r]], x_local[r]
            for t in range(len(target)):
                target[t] = source[t] * root
        np.dot(square, x_local, y_local)
        for r in range(q):
            at = out_of[p, r]
            sums, share = y[at] if at < P else slots[at - P], y_local[r]
            for t in range(len(share)):
                sums[t] += share[t]


@njit(nogil=True, cache=True)
def find_shared(ids, piece, shared, pieces):  # type: ignore[no-untyped-def]
    """Mark the pairs that neighbourhoods of more than one piece use; ``pieces`` (P,) starts as -1."""
    for p in range(len(ids)):
        b = p // piece
        for r in range(ids.shape[1]):
            at = ids[p, r]
            if pieces[at] == -1:
                pieces[at] = b
            elif pieces[at] != b:
                shared[at] = True


@njit(nogil=True, cache=True)
def assign_slots(ids, piece, shared, pieces, slot, out_of, owner):  # type: ignore[no-untyped-def]
    """Give each (piece, shared pair) a slot past y, in piece order; their number. ``owner`` may be empty to count."""
    P = len(shared)
    pieces[:] = -1
    count = 0
    for p in range(len(ids)):
        b = p // piece
        for r in range(ids.shape[1]):
            at = ids[p, r]
            if not shared[at]:
                out_of[p, r] = at
                continue
            if pieces[at] != b:
                pieces[at] = b
                slot[at] = count
                if len(owner):
                    owner[count] = at
                count += 1
            out_of[p, r] = P + slot[at]
    return count


@njit(nogil=True, cache=True)
def add_slots(order, owner, low, high, slots, y):  # type: ignore[no-untyped-def]
    """Add the slots order[low:high] to the rows of y that own them, in that order."""
    for t in range(low, high):
        sums, share = y[owner[order[t]]], slots[order[t]]
        for s in range(len(share)):
            sums[s] += share[s]


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


def padded(table: Any, fill: int | float) -> Any:
    """The last axis filled up to a multiple of 16."""
    wide = -(-table.shape[-1] // LANES) * LANES
    out = np.full((*table.shape[:-1], wide), fill, table.dtype)
    out[..., : table.shape[-1]] = table
    return out

"""Vector code of products, written as LLVM's instructions: Python's loops are not vectorised, or behind slow checks.

Two products are here. The matrix-free one works on 16 neighbourhoods side by side, one in each lane of a vector. That
of a CSR matrix keeps the sums of a row in vector registers, 32, 16 or 8 columns at a time, until the row is done
(SciPy adds each entry's multiple of a row to memory), and takes the recurrence of the eigensolver's filter while the
row is at hand. A processor with narrower vectors gets the same code in several registers. Arguments are addresses;
every sum has one order, whatever the width of a vector.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ips2_dask.kernels.compiled import njit

LANES = 16
ROWS = 8
"""Rows of a tile: so many rows of a block are multiplied at a time, their sums held in registers."""

SINGLE, WORD, INT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(SINGLE, LANES)
FUSED = ("contract",)

WIDTHS = (32, 16, 8) if llvmlite.binding.get_host_cpu_features().get("avx512f") else (8,)
"""Columns of a tile: its sums fill half of the registers."""


def _emitted(code: Callable[..., None]) -> Callable[..., None]:
    """A function without a result for compiled code, whose instructions ``code(builder, *arguments)`` emits."""

    def emitted(typing_context, *arguments):  # type: ignore[no-untyped-def]
        del typing_context

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            del context, signature
            code(builder, *values)

        return types.void(*arguments), generate

    emitted.__name__ = code.__name__
    emitted.__signature__ = inspect.signature(code)  # type: ignore[attr-defined]  # Numba asks how many arguments
    return intrinsic(emitted)


def _splat(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _spread(builder: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    """A vector of one value."""
    kind = ir.VectorType(value.type, width)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT, 0))
    mask = ir.Constant(ir.VectorType(INT, width), [0] * width)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)


def _address(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, size: int, kind: ir.Type) -> ir.Value:
    """Pointer to element ``index`` of an array whose elements have ``size`` bytes."""
    offset = builder.mul(index, ir.Constant(WORD, size))
    return builder.inttoptr(builder.add(base, offset), kind.as_pointer())


def _row(builder: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    """Row ``index`` (an int32) of a table of vectors."""
    return builder.load(_address(builder, base, builder.zext(index, WORD), 4 * LANES, VECTOR), align=4)


def _loop(
    builder: ir.IRBuilder,
    count: ir.Value,
    carried: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Emit ``carried = body(t, carried)`` for t = 0 .. count - 1, count >= 1, and return the last ``carried``."""
    before, loop = builder.block, builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    t = builder.phi(WORD)
    t.add_incoming(ir.Constant(WORD, 0), before)
    phis = [builder.phi(value.type) for value in carried]
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value, before)
    following = body(t, phis)
    later = builder.add(t, ir.Constant(WORD, 1))
    end, done = builder.block, builder.append_basic_block()
    t.add_incoming(later, end)
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, end)
    builder.cbranch(builder.icmp_unsigned("<", later, count), loop, done)
    builder.position_at_end(done)
    return following


def _by_widths(
    builder: ir.IRBuilder, columns: ir.Value, widths: tuple[int, ...], part: Callable[[ir.Value, int], None]
) -> None:
    """Emit ``part(start, width)`` over columns: of the first width as often as it fits, of others once at most.

    They are powers of two, each half of the one before.
    """

    def widest(t: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        part(builder.mul(t, ir.Constant(WORD, widths[0])), widths[0])
        return carried

    whole = builder.udiv(columns, ir.Constant(WORD, widths[0]))
    with builder.if_then(builder.icmp_unsigned("!=", whole, ir.Constant(WORD, 0))):
        _loop(builder, whole, [], widest)
    for width in widths[1:]:
        left = builder.and_(columns, ir.Constant(WORD, width))
        with builder.if_then(builder.icmp_unsigned("!=", left, ir.Constant(WORD, 0))):
            part(builder.and_(columns, ir.Constant(WORD, -2 * width)), width)


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp(x) for x <= 0 as 2^n 2^f, |f| <= 1/2; relative error 2e-7, 0 below 2^-126."""
    y = builder.fmul(x, _splat(1.4426950408889634))
    y = builder.select(builder.fcmp_ordered(">", y, _splat(-127.0)), y, _splat(-127.0))
    floor = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.floor.v{LANES}f32")
    whole = builder.call(floor, [builder.fadd(y, _splat(0.5))])
    f = builder.fsub(y, whole)
    # the polynomial of degree 5 whose largest relative error to 2^f on |f| <= 1/2 is smallest (7.5e-8)
    p = _splat(1.327647129073739e-3)
    for factor in (
        9.675540961325169e-3,
        5.550713092088699e-2,
        2.4022120237350464e-1,
        6.931469440460205e-1,
        1.0000001192092896,
    ):
        p = builder.fadd(builder.fmul(p, f, flags=FUSED), _splat(factor), flags=FUSED)
    integers = ir.VectorType(INT, LANES)
    power = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * LANES))
    power = builder.shl(power, ir.Constant(integers, [23] * LANES))
    return builder.fmul(p, builder.bitcast(power, VECTOR))


@_emitted
def evaluate(builder, lengths, owned, table, weights, n, sigma, epsilon, out):  # type: ignore[no-untyped-def]
    """W_p o B_p of 16 neighbourhoods: row u of ``out`` (n, 16) holds their entry u.

    ``lengths`` and ``owned`` are (rows, 16) float32; ``table`` (n, 7) int32 has the rows of d_ij, d_kl, d_ik, d_jl,
    d_jk, d_il in ``lengths`` and of the entry's subset in ``owned``; ``weights`` (n,) float32.
    """
    sigma = _spread(builder, builder.fneg(sigma), LANES)
    epsilon = _spread(builder, epsilon, LANES)

    def entry(u: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        first = builder.mul(u, ir.Constant(WORD, 7))
        rows = [
            builder.load(_address(builder, table, builder.add(first, ir.Constant(WORD, i)), 4, INT)) for i in range(7)
        ]
        ij, kl, ik, jl, jk, il = (_row(builder, lengths, index) for index in rows[:6])
        above = builder.fmul(sigma, builder.fadd(ij, kl))
        straight = builder.fdiv(above, builder.fadd(builder.fadd(ik, epsilon), jl))
        crossed = builder.fdiv(above, builder.fadd(builder.fadd(jk, epsilon), il))
        value = builder.fadd(_exp(builder, straight), _exp(builder, crossed))
        weight = _spread(builder, builder.load(_address(builder, weights, u, 4, SINGLE)), LANES)
        value = builder.fmul(builder.fmul(value, weight), _row(builder, owned, rows[6]))
        builder.store(value, _address(builder, out, u, 4 * LANES, VECTOR), align=4)
        return carried

    _loop(builder, n, [], entry)


@_emitted
def spread_bits(builder, packed, n, out):  # type: ignore[no-untyped-def]
    """Bits of ``packed`` (n, 16) uint8 as rows of ``out`` (8 n, 16) float32, 0 or 1; of a byte the highest is first."""
    integers, small = ir.VectorType(INT, LANES), ir.VectorType(ir.IntType(8), LANES)

    def byte(t: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        values = builder.zext(builder.load(_address(builder, packed, t, LANES, small), align=1), integers)
        target = builder.add(out, builder.mul(t, ir.Constant(WORD, 8 * 4 * LANES)))
        for bit in range(7, -1, -1):
            moved = builder.lshr(values, ir.Constant(integers, [bit] * LANES))
            row = builder.uitofp(builder.and_(moved, ir.Constant(integers, [1] * LANES)), VECTOR)
            builder.store(row, builder.inttoptr(target, VECTOR.as_pointer()), align=4)
            target = builder.add(target, ir.Constant(WORD, 4 * LANES))
        return carried

    _loop(builder, n, [], byte)


@_emitted
def cut_strip(builder, entries, places, n, strip):  # type: ignore[no-untyped-def]
    """Rows of 16 blocks, from entries side by side to blocks one after the other.

    Item t of ``places`` (n, 16) int32 has the rows of ``entries`` (_, 16) that hold rows 0 .. 7 of a tile in columns
    2 t and 2 t + 1; ``strip`` (16, n, 2, 8) gets them with the lane first.
    """
    apart = builder.mul(n, ir.Constant(WORD, 4 * LANES))

    def item(t: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        first = builder.mul(t, ir.Constant(WORD, LANES))
        v = []
        for i in range(LANES):
            place = _address(builder, places, builder.add(first, ir.Constant(WORD, i)), 4, INT)
            v.append(_row(builder, entries, builder.load(place)))
        for d in (8, 4, 2, 1):  # a transposition by halves, quarters, ...
            for i in (i for i in range(LANES) if not i & d):
                a, b = v[i], v[i + d]
                low = [j if not j & d else LANES + j - d for j in range(LANES)]
                high = [j + d if not j & d else LANES + j for j in range(LANES)]
                kind = ir.VectorType(INT, LANES)
                v[i] = builder.shuffle_vector(a, b, ir.Constant(kind, low))
                v[i + d] = builder.shuffle_vector(a, b, ir.Constant(kind, high))
        target = builder.add(strip, builder.mul(t, ir.Constant(WORD, 4 * LANES)))
        for lane in range(LANES):
            builder.store(v[lane], builder.inttoptr(target, VECTOR.as_pointer()), align=4)
            target = builder.add(target, apart)
        return carried

    _loop(builder, n, [], item)


@_emitted
def multiply_tile(builder, strip, q, x, stride, columns, out, zero):  # type: ignore[no-untyped-def]
    """out[i] = sum_s strip[s, i] x[s] for i < 8: rows of a block times a multiple of 8 columns.

    Rows of x and out, numbers of the type of ``zero``, are ``stride`` bytes apart.
    """
    kind, single = zero.type, zero.type == SINGLE

    def part(start: ir.Value, width: int) -> None:
        vector, offset = ir.VectorType(kind, width), builder.mul(start, ir.Constant(WORD, 4 if single else 8))
        at_x, target = builder.add(x, offset), builder.add(out, offset)

        def column(s: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            address = builder.inttoptr(builder.add(at_x, builder.mul(s, stride)), vector.as_pointer())
            row = builder.load(address, align=4)
            first = builder.mul(s, ir.Constant(WORD, ROWS))
            new = []
            for i, total in enumerate(sums):
                address = _address(builder, strip, builder.add(first, ir.Constant(WORD, i)), 4, SINGLE)
                value = builder.load(address)
                value = value if single else builder.fpext(value, kind)
                term = builder.fmul(_spread(builder, value, width), row, flags=FUSED)
                new.append(builder.fadd(term, total, flags=FUSED))
            return new

        for total in _loop(builder, q, [ir.Constant(vector, [0.0] * width)] * ROWS, column):
            builder.store(total, builder.inttoptr(target, vector.as_pointer()), align=4)
            target = builder.add(target, stride)

    _by_widths(builder, columns, WIDTHS if single else (8,), part)


@_emitted
def _row_sums(builder, x, stride, indices, data, n, columns, out):  # type: ignore[no-untyped-def]
    """sum_t data[t] x[indices[t]] of n entries, n >= 1, and a multiple of 8 columns, in vectors of single precision."""

    def part(start: ir.Value, width: int) -> None:
        vector = ir.VectorType(SINGLE, width)
        at_x = builder.add(x, builder.mul(start, ir.Constant(WORD, 4)))

        def entry(t: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            row = builder.zext(builder.load(_address(builder, indices, t, 4, INT)), WORD)
            value = _spread(builder, builder.load(_address(builder, data, t, 4, SINGLE)), width)
            address = builder.inttoptr(builder.add(at_x, builder.mul(row, stride)), vector.as_pointer())
            term = builder.fmul(value, builder.load(address, align=4), flags=FUSED)
            return [builder.fadd(term, sums[0], flags=FUSED)]

        (total,) = _loop(builder, n, [ir.Constant(vector, [0.0] * width)], entry)
        builder.store(total, _address(builder, out, start, 4, vector), align=4)

    _by_widths(builder, columns, (32, 16, 8), part)


@njit(nogil=True, cache=True, fastmath=True)
def recur_rows(indptr, indices, data, x, own, previous, a, b, c, out, low, high):  # type: ignore[no-untyped-def]
    """out = a M x + b own + c previous on rows low .. high - 1; an empty ``previous`` is left out, and may be ``out``.

    ``own`` are the rows of x that stand for the rows of M: x itself where M is square.

    All are C-contiguous float32 with a multiple of 8 columns; ``indices`` is int32.
    """
    columns, stride, width = x.shape[1], types.uintp(4 * x.shape[1]), types.uintp(x.shape[1])
    sums = np.empty(columns, np.float32)
    at_x, at_sums = types.uintp(x.ctypes.data), types.uintp(sums.ctypes.data)
    at_indices, at_data = types.uintp(indices.ctypes.data), types.uintp(data.ctypes.data)
    for r in range(low, high):
        begin, n = types.uintp(4 * indptr[r]), indptr[r + 1] - indptr[r]
        if n > 0:
            _row_sums(at_x, stride, at_indices + begin, at_data + begin, types.uintp(n), width, at_sums)
        else:
            for t in range(columns):
                sums[t] = 0
        source, result = own[r], out[r]
        for t in range(columns):
            sums[t] = a * sums[t] + b * source[t]
        if len(previous):
            before = previous[r]
            for t in range(columns):
                result[t] = sums[t] + c * before[t]
        else:
            for t in range(columns):
                result[t] = sums[t]


@_emitted
def prefetch(builder, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an address, into the second-level cache."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
    function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
    read, second_level, data = (ir.Constant(INT, value) for value in (0, 2, 1))
    builder.call(function, [builder.inttoptr(address, pointer), read, second_level, data])


def _on_row(
    builder: ir.IRBuilder, source: ir.Value, target: ir.Value, columns: ir.Value, factor: ir.Value, *, adds: bool
) -> None:
    """target = factor source, or target += source: rows of numbers, of the type of ``factor``, at two addresses."""
    size = 4 if factor.type == SINGLE else 8

    def part(start: ir.Value, width: int) -> None:
        vector = ir.VectorType(factor.type, width)
        at_source, at_target = (_address(builder, row, start, size, vector) for row in (source, target))
        values = builder.load(at_source, align=size)
        if adds:
            values = builder.fadd(builder.load(at_target, align=size), values)
        else:
            values = builder.fmul(values, _spread(builder, factor, width))
        builder.store(values, at_target, align=size)

    _by_widths(builder, columns, (16, 8, 4, 2, 1), part)


@_emitted
def scale_row(builder, source, target, columns, factor):  # type: ignore[no-untyped-def]
    """target = factor source, see `_on_row`."""
    _on_row(builder, source, target, columns, factor, adds=False)


@_emitted
def add_row(builder, source, target, columns, one):  # type: ignore[no-untyped-def]
    """target += source, see `_on_row`."""
    _on_row(builder, source, target, columns, one, adds=True)

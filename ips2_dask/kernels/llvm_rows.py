"""Rows of a CSR matrix times a block of columns, the sums of a row held in vector registers.

SciPy adds each entry's multiple of a row to memory; here 32, 16 or 8 columns at a time stay in registers until the row
is done, and the recurrence of the eigensolver's filter is taken while the row is at hand.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


def _row_sums(width: int) -> Any:
    """An intrinsic that puts sum_t data[t] x[indices[t], :width] at an address, in one vector of ``width`` floats."""

    @intrinsic
    def sums(typing_context, x, stride, indices, data, n, out):  # type: ignore[no-untyped-def]
        del typing_context
        wide = types.uintp
        signature = types.void(wide, wide, wide, wide, wide, wide)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            del context, signature
            x, stride, indices, data, n, out = arguments
            word, single = ir.IntType(64), ir.FloatType()
            vector = ir.VectorType(single, width)
            zero = ir.Constant(vector, [0.0] * width)
            before = builder.block
            loop, done = builder.append_basic_block("row"), builder.append_basic_block("row.done")
            builder.cbranch(builder.icmp_unsigned("==", n, ir.Constant(word, 0)), done, loop)
            with builder.goto_block(loop):
                t, total = builder.phi(word), builder.phi(vector)
                t.add_incoming(ir.Constant(word, 0), before)
                total.add_incoming(zero, before)
                four = ir.Constant(word, 4)
                at = builder.inttoptr(builder.add(indices, builder.mul(t, four)), ir.IntType(32).as_pointer())
                column = builder.zext(builder.load(at), word)
                at = builder.inttoptr(builder.add(data, builder.mul(t, four)), single.as_pointer())
                value = builder.insert_element(
                    ir.Constant(vector, ir.Undefined), builder.load(at), ir.Constant(ir.IntType(32), 0)
                )
                mask = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
                value = builder.shuffle_vector(value, ir.Constant(vector, ir.Undefined), mask)
                at = builder.inttoptr(builder.add(x, builder.mul(column, stride)), vector.as_pointer())
                row = builder.load(at, align=4)
                following = builder.fadd(builder.fmul(value, row, flags=("contract",)), total, flags=("contract",))
                later = builder.add(t, ir.Constant(word, 1))
                t.add_incoming(later, loop)
                total.add_incoming(following, loop)
                builder.cbranch(builder.icmp_unsigned("<", later, n), loop, done)
            builder.position_at_end(done)
            found = builder.phi(vector)
            found.add_incoming(zero, before)
            found.add_incoming(following, loop)
            builder.store(found, builder.inttoptr(out, vector.as_pointer()), align=4)

        return signature, generate

    return sums


_sums_32, _sums_16, _sums_8 = (_row_sums(width) for width in (32, 16, 8))


@njit(nogil=True, cache=True, fastmath=True)
def recur_rows(indptr, indices, data, x, previous, a, b, c, out, low, high):  # type: ignore[no-untyped-def]
    """out = a M x + b x + c previous on rows low .. high - 1; an empty ``previous`` is left out.

    All are C-contiguous float32 with a multiple of 8 columns; ``indices`` is int32.
    """
    columns = x.shape[1]
    stride = types.uintp(4 * columns)
    at_x, at_out = types.uintp(x.ctypes.data), types.uintp(out.ctypes.data)
    at_indices, at_data = types.uintp(indices.ctypes.data), types.uintp(data.ctypes.data)
    for r in range(low, high):
        begin = types.uintp(4 * indptr[r])
        n = types.uintp(indptr[r + 1] - indptr[r])
        column = 0
        while column < columns:
            offset = types.uintp(4 * column)
            target = at_out + types.uintp(r) * stride + offset
            if columns - column >= 32:
                _sums_32(at_x + offset, stride, at_indices + begin, at_data + begin, n, target)
                column += 32
            elif columns - column >= 16:
                _sums_16(at_x + offset, stride, at_indices + begin, at_data + begin, n, target)
                column += 16
            else:
                _sums_8(at_x + offset, stride, at_indices + begin, at_data + begin, n, target)
                column += 8
        source, sums = x[r], out[r]
        for t in range(columns):
            sums[t] = a * sums[t] + b * source[t]
        if len(previous):
            before = previous[r]
            for t in range(columns):
                sums[t] += c * before[t]

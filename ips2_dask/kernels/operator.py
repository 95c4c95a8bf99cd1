"""Symmetric operators, which the eigensolver knows by their products, and the assembly of one as a CSR matrix."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from ips2_dask.kernels.llvm import recur_rows
from ips2_dask.kernels.parallel import chunk_bounds, map_chunks, thread_count
from ips2_dask.kernels.product import add_slots, combine, element_blocks, multiply, product_tables
from ips2_dask.kernels.sparse import Matrix, distinct, enter, inverse_root, product, row_view
from ips2_dask.typing import Float, Float64, Integer, UInt8

ROWS = 1 << 14
"""Rows of one chunk of a product; the chunks are cut by the shape alone."""

PIECE = 1024
MAX_PIECES = 64
"""Neighbourhoods of one piece of a matrix-free product: at least 1,024, and never more than 64 pieces."""

SAMPLED = 64
"""Of so many slots one is looked at, to cut the rows of y into parts to which about as many slots are added."""

ASSEMBLED_AT_ONCE = 1 << 13
"""Neighbourhoods whose block values a piece has in memory at a time."""
ASSEMBLED_PIECES = 4
"""Parts of all neighbourhoods that are entered side by side, each into its own places of every row."""

WAVE_SLOTS = 1 << 22
AT_ONCE = 16
"""Slots of a wave, half a GiB of 32 columns; but it has at least two pieces for each thread, up to so many."""


class _SpareBlock:
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


def _is_vectorized(matrix: Matrix, x: Float) -> bool:
    """Whether `llvm.recur_rows` takes the matrix and a block of columns."""
    single = sp.issparse(matrix) and matrix.dtype == x.dtype == np.float32
    csr: Any = matrix  # looked into only where it is one
    return bool(single and csr.indices.dtype == np.int32 and x.shape[1] % 8 == 0)


def recur(
    matrix: Matrix, x: Float, own: Float, previous: Float | None, a: float, b: float, c: float, out: Float
) -> Float:
    """``out`` = a M x + b own + c previous, of the dtype of x; each row is summed by ascending columns.

    ``own``: the rows of x that stand for the rows of M, x itself where M is square.
    """
    abc = [out.dtype.type(factor) for factor in (a, b, c)]
    before, ones = out[:0] if previous is None else previous, np.ones(ROWS, out.dtype)
    csr: Any = matrix
    fast = _is_vectorized(matrix, x)
    if not fast:
        product(matrix, x, out)

    def chunk(low: int, high: int) -> None:
        if fast:
            recur_rows(csr.indptr, csr.indices, csr.data, x, own, before, *abc, out, low, high)
        else:
            combine(out[low:high], ones, own[low:high], before[low:high], *abc)

    map_chunks(chunk, len(out), ROWS)
    return out


class MatrixOperator:
    """A stored symmetric matrix, SciPy CSR or dense NumPy, multiplied by fixed chunks of rows."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix: Any = matrix  # its attributes are those of a CSR matrix where it is one
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = matrix.dtype
        self._spare = _SpareBlock()

    def release(self) -> None:
        """Let go of memory kept for the next product: that will have other columns."""
        self._spare.keep(None)

    def matmat(self, x: Float) -> Float:
        """The product with a block of columns (n, columns)."""
        if _is_vectorized(self.matrix, x):
            return self.recur(x, None, 1.0, 0.0, 0.0)
        return product(self.matrix, x)

    def recur(self, y: Float, previous: Float | None, a: float, b: float, c: float) -> Float:
        """a L y + b y + c previous; ``previous`` is given up and will be overwritten."""
        y = np.ascontiguousarray(y, np.result_type(self.dtype, y.dtype))
        result = recur(self.matrix, y, y, previous, a, b, c, self._spare.array(y.shape, y.dtype))
        self._spare.keep(previous)
        return result


class _Piece(NamedTuple):
    """Consecutive neighbourhoods that one thread works on, and the pairs that they share with other pieces."""

    start: int
    stop: int
    owner: NDArray[np.integer]  # the pair of each slot, ascending


class NeighborhoodOperator:
    """D^-1/2 R D^-1/2 from block distances and owner bits, without R.

    See docs/method.md, A sum of small blocks.

    Neighbourhoods are worked on in fixed pieces. A pair that one piece alone uses is summed in place; each piece sums
    a pair that it shares into a slot of its own, and the slots are added in piece order. So the sums have one order
    for any number of threads. Pieces go in waves, one after the other in the same slots, so that these take less memory
    than the blocks: one piece at a time on one thread. A thread waits at the end of a wave, so on more they are large.

    ``blocks`` (m, k (k - 1) / 2) float32: distances inside each neighbourhood; ``owned`` (m, bytes) uint8: packed
    bits of `kernels.tensor.owned_subsets`; ``ids`` (m, q) int32: numbers of each neighbourhood's pairs; ``dtype``:
    of the block vectors.
    """

    def __init__(
        self,
        blocks: Float,
        owned: UInt8,
        ids: Integer,
        n_pairs: int,
        k: int,
        sigma: float,
        epsilon: float,
        *,
        dtype: type = np.float32,
    ) -> None:
        self.shape = (n_pairs, n_pairs)
        self.dtype: np.dtype[np.floating] = np.dtype(dtype)
        self.scale: Float = np.ones(n_pairs, dtype)
        self._blocks, self._owned, self._ids = blocks, owned, ids
        self._tables = product_tables(k, sigma, epsilon)
        self._spare, self._slots = _SpareBlock(), _SpareBlock()
        self._piece = max(PIECE, -(-len(ids) // MAX_PIECES))
        self.pieces: list[_Piece] = []
        self._split()

    def _split(self) -> None:
        """Decide which pairs are shared between pieces, and where each piece sums them."""
        P = self.shape[0]
        pieces_of = np.zeros(P, np.int8)  # at most `MAX_PIECES`
        for start, stop in chunk_bounds(len(self._ids), self._piece):
            pieces_of[distinct(self._ids[start:stop])] += 1
        self._out_of = np.empty_like(self._ids)
        place = np.arange(P, dtype=self._ids.dtype)
        for start, stop in chunk_bounds(len(self._ids), self._piece):
            used = self._ids[start:stop]
            owner = distinct(used[pieces_of[used] > 1])
            place[owner] = np.arange(P, P + len(owner))  # slots come after the rows of y
            np.take(place, used, out=self._out_of[start:stop])
            self.pieces.append(_Piece(start, stop, owner))

    def waves(self, n_threads: int) -> list[list[_Piece]]:
        """The pieces that go at a time: one on one thread, and on more as many as fit into `WAVE_SLOTS` slots."""
        slots = sum(len(piece.owner) for piece in self.pieces)
        fitting = MAX_PIECES // max(1, -(-slots // WAVE_SLOTS))
        size = max(fitting, min(2 * n_threads, AT_ONCE)) if n_threads > 1 else 1
        return [self.pieces[a:b] for a, b in chunk_bounds(len(self.pieces), size)]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that are kept between products."""
        arrays = self.scale, self._blocks, self._owned, self._ids, self._out_of
        return sum(array.nbytes for array in arrays) + sum(piece.owner.nbytes for piece in self.pieces)

    def normalize(self, degrees: Float64) -> None:
        """Scale by D^-1/2 of these degrees in all later products."""
        self.scale = inverse_root(degrees).astype(self.dtype)

    def _sums(self, x: Float) -> Float:
        """R (scale x)."""
        y = self._spare.array(x.shape, x.dtype)
        map_chunks(lambda a, b: y[a:b].fill(0), len(y), ROWS)
        waves = self.waves(thread_count())
        most = max((sum(len(piece.owner) for piece in wave) for wave in waves), default=0)
        slots = self._slots.array((most, x.shape[1]), x.dtype)
        for wave in waves:
            self._add_wave(wave, x, y, slots)
        self._slots.keep(slots)
        return y

    def release(self) -> None:
        """Let go of memory kept for the next product: that will have other columns."""
        self._spare.keep(None)
        self._slots.keep(None)

    def _add_wave(self, wave: list[_Piece], x: Float, y: Float, slots: Float) -> None:
        """Add a wave's share of R (scale x) to y; ``slots`` may hold anything."""
        ends = np.cumsum([len(piece.owner) for piece in wave]).tolist()
        parts = [slots[end - len(piece.owner) : end] for end, piece in zip(ends, wave, strict=True)]

        def sums(number: int, _: int) -> None:
            a, b, part = wave[number].start, wave[number].stop, parts[number]
            part.fill(0)
            some = self._blocks[a:b], self._owned[a:b], self._ids[a:b], self._out_of[a:b]
            multiply(*some, 0, self._tables, self.scale, x, y, part)

        map_chunks(sums, len(wave), 1)

        def add(a: int, b: int) -> None:
            """Add to rows of y from pair cuts[a] to before pair cuts[b], which no other call adds to."""
            for piece, part in zip(wave, parts, strict=True):
                low, high = np.searchsorted(piece.owner, (cuts[a], cuts[b]))
                if low < high:
                    add_slots(piece.owner, low, high, part, y)

        cuts = [0, self.shape[0]]
        if len(wave) > 1:
            sample = np.sort(np.concatenate([piece.owner[::SAMPLED] for piece in wave]))
            parts_of_y = 2 * thread_count() if len(sample) else 1
            cuts[1:1] = sample[len(sample) * np.arange(1, parts_of_y) // parts_of_y].tolist()
        map_chunks(add, len(cuts) - 1, 1)

    def matmat(self, x: Float) -> Float:
        """The product with a block of columns (n, columns)."""
        return self.recur(x, None, 1.0, 0.0, 0.0)

    def recur(self, y: Float, previous: Float | None, a: float, b: float, c: float) -> Float:
        """a L y + b y + c previous, in one pass over the product; ``previous`` is given up and will be overwritten."""
        y = np.ascontiguousarray(y, self.dtype)
        result = self._sums(y)
        before = result[:0] if previous is None else previous
        kind, scale = self.dtype.type, self.scale

        def chunk(low: int, high: int) -> None:
            combine(result[low:high], scale[low:high], y[low:high], before[low:high], kind(a), kind(b), kind(c))

        map_chunks(chunk, len(result), ROWS)
        self._spare.keep(previous)
        return result


Operator: TypeAlias = MatrixOperator | NeighborhoodOperator
"""A symmetric matrix known by its products: ``matmat``, and ``recur`` for a step of a filter."""


class ChunkMatrix:
    """The rows as CSR (own rows, touched) float32: each row is summed by ascending columns."""

    def __init__(self, matrix: sp.csr_array, own: slice) -> None:
        self._matrix, self.own = matrix, own

    def product(self, x: Float, scale: Float) -> Float:
        """R (scale x) on the range's own rows, from x (n, columns) on all that are touched."""
        kind = np.float64 if x.dtype == np.float64 else np.float32
        return np.asarray(self._matrix @ (x * scale[:, None].astype(kind, copy=False)), kind)


class ChunkOperator:
    """The rows by all neighbourhoods that hold one of the range's samples, in centre order.

    ``blocks``, ``owned`` (centres, ...): as in `NeighborhoodOperator`, of all centres whose neighbourhood holds a
    sample of the range; ``ids`` (centres, q) int32: numbers of their pairs among those that any of them holds,
    ascending; ``own``: those of them that the range owns.
    """

    def __init__(
        self, blocks: Float, owned: UInt8, ids: Integer, own: slice, k: int, sigma: float, epsilon: float
    ) -> None:
        self._blocks, self._owned, self._ids, self.own = blocks, owned, ids, own
        self._tables = product_tables(k, sigma, epsilon)

    def product(self, x: Float, scale: Float) -> Float:
        """R (scale x) on the range's own rows, from x (n, columns) on all that are touched."""
        kind = np.float64 if x.dtype == np.float64 else np.float32
        y: Float = np.zeros((self.own.stop - self.own.start, x.shape[1]), kind)
        x, scale = np.ascontiguousarray(x, kind), scale.astype(kind, copy=False)
        some = self._blocks, self._owned, self._ids, self._ids
        multiply(*some, self.own.start, self._tables, scale, x, y, np.empty((0, x.shape[1]), kind))
        return y


def assemble_normalized(
    blocks: Float, owned: UInt8, ids: Integer, degrees: Float64, k: int, sigma: float, epsilon: float
) -> sp.csr_array:
    """The normalised operator of `NeighborhoodOperator` as a matrix: CSR (P, P) float32, rows sorted.

    It is made straight from block distances and owner bits, without triplets and without a sort of all entries. For
    small k a product with the stored matrix is faster than one that makes its blocks again; it needs 8 bytes an entry.
    ``degrees`` (P,) float64; other parameters as of `NeighborhoodOperator`.
    """
    n, q = len(degrees), ids.shape[1]
    tables, (r, s) = product_tables(k, sigma, epsilon), np.triu_indices(q)
    cuts = [len(ids) * t // ASSEMBLED_PIECES for t in range(ASSEMBLED_PIECES + 1)]
    ends = np.zeros((ASSEMBLED_PIECES, n), np.int64)
    indices, data = np.empty(0, np.int32), np.empty(0, np.float32)

    def enter_piece(t: int, _: int) -> None:
        for a, b in chunk_bounds(cuts[t + 1] - cuts[t], ASSEMBLED_AT_ONCE):
            some = slice(cuts[t] + a, cuts[t] + b)
            values: Float = np.empty((b - a, len(r)), np.float32)
            element_blocks(blocks[some], owned[some], tables, values)
            enter(ids[some], r, s, values, ends[t], indices, data)

    map_chunks(enter_piece, ASSEMBLED_PIECES, 1)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(ends.sum(axis=0), out=indptr[1:])
    ends = indptr[:-1] + np.cumsum(ends, axis=0) - ends  # where each piece's part of a row begins
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    map_chunks(enter_piece, ASSEMBLED_PIECES, 1)
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    root = inverse_root(degrees).astype(np.float32)
    matrix = sp.csr_array((data, indices, indptr), shape=(n, n))

    def sort_and_scale(low: int, high: int) -> None:
        rows = row_view(matrix, low, high)
        rows.sort_indices()
        np.multiply(rows.data, np.repeat(root[low:high], np.diff(rows.indptr)) * root[rows.indices], out=rows.data)

    map_chunks(sort_and_scale, n, ROWS)
    return matrix

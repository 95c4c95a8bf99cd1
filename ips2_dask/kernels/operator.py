"""Symmetric operators, which the eigensolver knows by their products, and the assembly of one as a CSR matrix."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from ips2_dask.kernels.compiled import njit
from ips2_dask.kernels.llvm import recur_rows
from ips2_dask.kernels.parallel import chunk_bounds, map_chunks, thread_count
from ips2_dask.kernels.product import add_slots, combine, element_blocks, find_shared, multiply, product_tables
from ips2_dask.kernels.sparse import Matrix, inverse_root, sort_together
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

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Float:
        """An array of zeros."""
        block = self.array(shape, dtype)
        map_chunks(lambda a, b: block[a:b].fill(0), len(block), ROWS)
        return block


class MatrixOperator:
    """A stored symmetric matrix, SciPy CSR or dense NumPy, multiplied by fixed chunks of rows."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix: Any = matrix  # its attributes are those of a CSR matrix where it is one
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = matrix.dtype
        self._chunks: dict[int, sp.csr_array] = {}
        self._spare = _SpareBlock()
        single = sp.issparse(matrix) and matrix.dtype == np.float32
        csr: sp.csr_array = matrix  # looked into only where it is one
        self._vector_rows = single and csr.indices.dtype == np.int32

    def _rows(self, a: int, b: int) -> Matrix:
        if (a, b) == (0, self.shape[0]):
            return self.matrix
        if not sp.issparse(self.matrix):
            return self.matrix[a:b]
        if a not in self._chunks:
            csr = self.matrix
            low, high = csr.indptr[a], csr.indptr[b]
            # the data are views: slicing would copy the whole matrix once over
            self._chunks[a] = sp.csr_array(
                (csr.data[low:high], csr.indices[low:high], csr.indptr[a : b + 1] - low), shape=(b - a, csr.shape[1])
            )
        return self._chunks[a]

    def release(self) -> None:
        """Let go of memory kept for the next product: that will have other columns."""
        self._spare.keep(None)

    def matmat(self, x: Float) -> Float:
        """The product with a block of columns (n, columns)."""
        if self._vector_rows and x.dtype == np.float32 and x.shape[1] % 8 == 0:
            return self.recur(x, None, 1.0, 0.0, 0.0)
        product = np.empty(x.shape, np.result_type(self.dtype, x.dtype))

        def chunk(a: int, b: int) -> None:
            product[a:b] = self._rows(a, b) @ x

        map_chunks(chunk, self.shape[0], ROWS)
        return product

    def recur(self, y: Float, previous: Float | None, a: float, b: float, c: float) -> Float:
        """a L y + b y + c previous; ``previous`` is given up and will be overwritten."""
        kind = np.result_type(self.dtype, y.dtype).type
        fast = self._vector_rows and kind is np.float32 and y.shape[1] % 8 == 0
        y = np.ascontiguousarray(y, kind)
        result = self._spare.array(y.shape, y.dtype) if fast else self.matmat(y)
        before = result[:0] if previous is None else previous
        ones = np.ones(ROWS, kind)

        def chunk(low: int, high: int) -> None:
            if fast:
                m = self.matrix
                recur_rows(m.indptr, m.indices, m.data, y, y, before, kind(a), kind(b), kind(c), result, low, high)
            else:
                combine(result[low:high], ones, y[low:high], before[low:high], kind(a), kind(b), kind(c))

        map_chunks(chunk, len(result), ROWS)
        self._spare.keep(previous)
        return result


class Piece(NamedTuple):
    """Consecutive neighbourhoods that one thread works on, and the pairs that they share with other pieces."""

    start: int
    stop: int
    owner: NDArray[np.integer]  # the pair of each slot, ascending


class Counts(NamedTuple):
    """Work of one product of a `NeighborhoodOperator`."""

    stored: int  # bytes of distances and owner bits
    rows: int  # that neighbourhoods read, and as many that they add to
    slots: int
    made: int  # entries computed
    products: int  # of an entry and a row of x


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
        self.pieces: list[Piece] = []
        self._split()

    def _split(self) -> None:
        """Decide which pairs are shared between pieces, and where each piece sums them."""
        P = self.shape[0]
        shared = np.zeros(P, np.bool_)
        find_shared(self._ids, self._piece, shared, np.full(P, -1, np.int32))
        self._out_of = np.empty_like(self._ids)
        place = np.arange(P, dtype=self._ids.dtype)
        for start, stop in chunk_bounds(len(self._ids), self._piece):
            used = self._ids[start:stop]
            owner = np.unique(used[shared[used]])
            place[owner] = np.arange(P, P + len(owner))  # slots come after the rows of y
            np.take(place, used, out=self._out_of[start:stop])
            self.pieces.append(Piece(start, stop, owner))

    def waves(self, n_threads: int) -> list[list[Piece]]:
        """The pieces that go at a time: one on one thread, and on more as many as fit into `WAVE_SLOTS` slots."""
        slots = sum(len(piece.owner) for piece in self.pieces)
        fitting = MAX_PIECES // max(1, -(-slots // WAVE_SLOTS))
        size = max(fitting, min(2 * n_threads, AT_ONCE)) if n_threads > 1 else 1
        return [self.pieces[a:b] for a, b in chunk_bounds(len(self.pieces), size)]

    def counts(self) -> Counts:
        """What one product has to read and to compute, for a benchmark's comparison with what the machine can do."""
        stored, made = self._blocks.nbytes + self._owned.nbytes, len(self._ids) * len(self._tables.places)
        slots = sum(len(piece.owner) for piece in self.pieces)
        return Counts(stored, self._ids.size, slots, made, self._ids.size * self._ids.shape[1])

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
        y = self._spare.zeros(x.shape, x.dtype)
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

    def _add_wave(self, wave: list[Piece], x: Float, y: Float, slots: Float) -> None:
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


class _Rows:
    """The rows of R that one range of samples owns, over the pairs that these touch."""

    own: slice

    def product(self, x: Float, scale: Float) -> Float:
        """R (scale x) on the range's own rows, from x (n, columns) on all that are touched."""
        raise NotImplementedError

    def normalized(self, x: Float, scale: Float) -> Float:
        """D^-1/2 R D^-1/2 x on the range's own rows, from x and ``scale`` = D^-1/2 on all that are touched."""
        sums = self.product(x, scale)
        one, zero = sums.dtype.type(1), sums.dtype.type(0)
        combine(sums, scale[self.own].astype(sums.dtype, copy=False), x[self.own], sums[:0], one, zero, zero)
        return sums


class ChunkMatrix(_Rows):
    """The rows as CSR (own rows, touched) float32: each row is summed by ascending columns."""

    def __init__(self, matrix: sp.csr_array, own: slice) -> None:
        self._matrix, self.own = matrix, own

    def product(self, x: Float, scale: Float) -> Float:
        """R (scale x) on the range's own rows, from x (n, columns) on all that are touched."""
        kind = np.float64 if x.dtype == np.float64 else np.float32
        return np.asarray(self._matrix @ (x * scale[:, None].astype(kind, copy=False)), kind)


class ChunkOperator(_Rows):
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


@njit(nogil=True, cache=True)
def _count_rows(values, ids, ends):  # type: ignore[no-untyped-def]
    """Add the number of each row's entries to ``ends[row]``.

    Zeros are not counted: another neighbourhood owns the entry, or its value underflowed.
    """
    q = ids.shape[1]
    for p in range(len(ids)):
        t = 0
        for r in range(q):
            for s in range(r, q):
                if values[p, t] != 0:
                    ends[ids[p, r]] += 1
                    if s > r:
                        ends[ids[p, s]] += 1
                t += 1


@njit(nogil=True, cache=True)
def _fill_rows(values, ids, ends, indices, data):  # type: ignore[no-untyped-def]
    """Put the entries into their rows, moving each row's end on."""
    q = ids.shape[1]
    for p in range(len(ids)):
        t = 0
        for r in range(q):
            for s in range(r, q):
                value = values[p, t]
                t += 1
                if value == 0:
                    continue
                i, j = ids[p, r], ids[p, s]
                indices[ends[i]], data[ends[i]] = j, value
                ends[i] += 1
                if s > r:
                    indices[ends[j]], data[ends[j]] = i, value
                    ends[j] += 1


@njit(nogil=True, cache=True)
def _sort_and_scale(indptr, indices, data, root, low, high):  # type: ignore[no-untyped-def]
    """Sort rows low .. high - 1 by column, and scale them from both sides."""
    for r in range(low, high):
        a, b = indptr[r], indptr[r + 1]
        sort_together(indices, data, a, b)
        for t in range(a, b):
            data[t] *= root[r] * root[indices[t]]


def assemble_normalized(
    blocks: Float, owned: UInt8, ids: Integer, degrees: Float64, k: int, sigma: float, epsilon: float
) -> sp.csr_array:
    """The normalised operator of `NeighborhoodOperator` as a matrix: CSR (P, P) float32, rows sorted.

    It is made straight from block distances and owner bits, without triplets and without a sort of all entries. For
    small k a product with the stored matrix is faster than one that makes its blocks again; it needs 8 bytes an entry.

    ``blocks`` (m, k (k - 1) / 2) float32; ``owned`` (m, bytes) uint8: packed bits of
    `kernels.tensor.owned_subsets`; ``ids`` (m, q) int32; ``degrees`` (P,) float64.
    """
    n, q = len(degrees), ids.shape[1]
    tables = product_tables(k, sigma, epsilon)

    def values(a: int, b: int) -> Float:
        elements: Float = np.empty((b - a, q * (q + 1) // 2), np.float32)
        element_blocks(blocks[a:b], owned[a:b], tables, elements)
        return elements

    cuts = [len(ids) * t // ASSEMBLED_PIECES for t in range(ASSEMBLED_PIECES + 1)]
    ends = np.zeros((ASSEMBLED_PIECES, n), np.int32)

    def count(t: int, _: int) -> None:
        for a, b in chunk_bounds(cuts[t + 1] - cuts[t], ASSEMBLED_AT_ONCE):
            _count_rows(values(cuts[t] + a, cuts[t] + b), ids[cuts[t] + a : cuts[t] + b], ends[t])

    map_chunks(count, ASSEMBLED_PIECES, 1)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(ends.sum(axis=0, dtype=np.int64), out=indptr[1:])
    places = indptr[:-1] + np.cumsum(ends, axis=0, dtype=np.int64) - ends  # where each piece's part of a row begins
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)

    def fill(t: int, _: int) -> None:
        for a, b in chunk_bounds(cuts[t + 1] - cuts[t], ASSEMBLED_AT_ONCE):
            _fill_rows(values(cuts[t] + a, cuts[t] + b), ids[cuts[t] + a : cuts[t] + b], places[t], indices, data)

    map_chunks(fill, ASSEMBLED_PIECES, 1)
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    root = inverse_root(degrees).astype(np.float32)
    map_chunks(lambda low, high: _sort_and_scale(indptr, indices, data, root, low, high), n, ROWS)
    return sp.csr_array((data, indices, indptr), shape=(n, n))

"""The rows of block vectors in chunks, by kind: pairs of the tensor, samples of the graph, samples of the similarity U.

Samples of U are of two kinds, for its eigenvectors and for walks. A kind says how many rows each chunk has, which rows
of other chunks its products touch, what they are made with, and which eigenvectors are known. Chunk g is made of the
same partitions whatever the kind.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.eigen import Float64, Known
from ips2_dask.kernels.operator import ChunkRowsMatrix
from ips2_dask.kernels.rounding import walk_matrix
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages import block_operator, sample_operator
from ips2_dask.stages.views import component_division, known_vectors
from ips2_dask.store.context import Context

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


class ChunkRowsOperator(Protocol):
    """The rows of an operator that one chunk owns; a symmetric one is not normalised.

    Attributes
    ----------
    touched : int
        Rows that its products touch, its own among them.
    own : slice
        The chunk's own rows among these.
    """

    touched: int
    own: slice

    def recur(
        self, x: Float32, scale: Float32, y: Float32, previous: Float32 | None, a: float, b: float, c: float
    ) -> Float32:
        """a D^-1/2 R D^-1/2 x + b y + c previous on the chunk's own rows, where R is symmetric.

        From x (touched, columns), whose own rows are y, and the ``scale`` D^-1/2 (touched,). ``previous`` may be
        overwritten.
        """
        ...

    def product(self, x: Float32, scale: Float32) -> Float32:
        """R (scale x) on the chunk's own rows, from x (touched, columns) and the ``scale`` (touched,)."""
        ...


class ChunkRows(Protocol):
    """One kind of rows."""

    def bounds(self, context: Context) -> list[int]:
        """First row of each chunk, and the number of rows."""
        ...

    def n_components(self, context: Context) -> int:
        """How many eigenvectors are known, one of each large component."""
        ...

    def cuts(self, context: Context, g: int) -> list[int]:
        """Where each chunk's rows begin among those that chunk g touches, and how many it touches."""
        ...

    def all_cuts(self, context: Context) -> list[list[int]]:
        """The cuts of all chunks."""
        ...

    def needed(self, context: Context, g: int) -> dict[int, Int32]:
        """The rows of each other chunk that chunk g touches, ascending, counted from that chunk's first."""
        ...

    def operator(self, context: Context, g: int) -> ChunkRowsOperator:
        """Chunk g's operator, read from the store."""
        ...

    def operator_bytes(self, context: Context) -> list[int]:
        """Bytes of each chunk's operator in memory."""
        ...

    def scale(self, context: Context, g: int) -> Float32:
        """1 / sqrt(degree) of the rows that chunk g touches, 0 where a row takes no part: (touched,) float32."""
        ...

    def known(self, context: Context, g: int, volumes: Float64 | None) -> Known:
        """The known eigenvectors on chunk g's rows; without ``volumes`` scaled by those of its share of them."""
        ...


def needed_rows(touched: NDArray[np.integer], cuts: list[int], bounds: list[int], g: int) -> dict[int, Int32]:
    """The rows of each other chunk among the ``touched`` ones, counted from that chunk's first."""
    return {
        h: (touched[cuts[h] : cuts[h + 1]] - bounds[h]).astype(np.int32)
        for h in range(len(bounds) - 1)
        if h != g and cuts[h] < cuts[h + 1]
    }


class PairRows:
    """Rows are active pairs, the operator is the unfolded tensor on them."""

    def bounds(self, context: Context) -> list[int]:
        """As of `ChunkRows`."""
        return block_operator.chunk_bounds(context)

    def n_components(self, context: Context) -> int:
        """As of `ChunkRows`."""
        return component_division(context).large

    def cuts(self, context: Context, g: int) -> list[int]:
        """As of `ChunkRows`."""
        return block_operator.cuts_of(context, [g])[0]

    def all_cuts(self, context: Context) -> list[list[int]]:
        """As of `ChunkRows`."""
        return block_operator.cuts_of(context, range(len(self.bounds(context)) - 1))

    def needed(self, context: Context, g: int) -> dict[int, Int32]:
        """As of `ChunkRows`."""
        touched = block_operator.touched_pairs(context, g)
        return needed_rows(touched, self.cuts(context, g), self.bounds(context), g)

    def operator(self, context: Context, g: int) -> ChunkRowsOperator:
        """As of `ChunkRows`."""
        return block_operator.operator(context, g)

    def operator_bytes(self, context: Context) -> list[int]:
        """As of `ChunkRows`."""
        return block_operator.operator_bytes(context)

    def scale(self, context: Context, g: int) -> Float32:
        """As of `ChunkRows`."""
        degrees = block_operator.degrees_at(context, block_operator.touched_pairs(context, g))
        return inverse_root(degrees).astype(np.float32)

    def known(self, context: Context, g: int, volumes: Float64 | None) -> Known:
        """As of `ChunkRows`."""
        low, high = self.bounds(context)[g : g + 2]
        rows = np.arange(low, high)
        pairs = block_operator.pairs_at(context, rows)
        return known_vectors(context, pairs, block_operator.degrees_at(context, rows), volumes)


class SampleRows:
    """Rows are samples, the operator a symmetric matrix of them whose rows are stored by chunk.

    Parameters
    ----------
    matrix : SampleMatrix
        Which matrix that is.
    """

    def __init__(self, matrix: sample_operator.SampleMatrix) -> None:
        self._matrix = matrix

    def bounds(self, context: Context) -> list[int]:
        """As of `ChunkRows`."""
        return sample_operator.sample_bounds(context)

    def n_components(self, context: Context) -> int:
        """As of `ChunkRows`."""
        return self._matrix.components(context, np.empty(0, np.int64)).large

    def cuts(self, context: Context, g: int) -> list[int]:
        """As of `ChunkRows`."""
        return self._matrix.cuts(context, [g])[0]

    def all_cuts(self, context: Context) -> list[list[int]]:
        """As of `ChunkRows`."""
        return self._matrix.cuts(context, range(len(self.bounds(context)) - 1))

    def needed(self, context: Context, g: int) -> dict[int, Int32]:
        """As of `ChunkRows`."""
        return needed_rows(self._matrix.touched(context, g), self.cuts(context, g), self.bounds(context), g)

    def operator(self, context: Context, g: int) -> ChunkRowsOperator:
        """As of `ChunkRows`."""
        cuts = self.cuts(context, g)
        return self._matrix.operator(context, g, slice(cuts[g], cuts[g + 1]))

    def operator_bytes(self, context: Context) -> list[int]:
        """As of `ChunkRows`."""
        return self._matrix.operator_bytes(context)

    def scale(self, context: Context, g: int) -> Float32:
        """As of `ChunkRows`."""
        return inverse_root(self._matrix.degrees(context, self._matrix.touched(context, g))).astype(np.float32)

    def known(self, context: Context, g: int, volumes: Float64 | None) -> Known:
        """As of `ChunkRows`."""
        low, high = self.bounds(context)[g : g + 2]
        rows = np.arange(low, high)
        components = self._matrix.components(context, rows)
        label = components.of_vectors
        if len(label) and (label == label[0]).all():
            label = np.broadcast_to(label[0], label.shape)  # one number, not one a row
        return Known(np.sqrt(self._matrix.degrees(context, rows)), label, components.large, volumes)


class WalkRows(SampleRows):
    """Rows are samples, the operator is P = D^-1 U of a random walk on U, without edges that the solve alone has."""

    def __init__(self) -> None:
        super().__init__(sample_operator.FUSED)

    def operator(self, context: Context, g: int) -> ChunkRowsOperator:
        """As of `ChunkRows`."""
        cuts = self.cuts(context, g)
        return ChunkRowsMatrix(walk_matrix(sample_operator.affinity_rows(context, g)), slice(cuts[g], cuts[g + 1]))

    def scale(self, context: Context, g: int) -> Float32:
        """Ones, since P is scaled: as of `ChunkRows`."""
        return np.broadcast_to(np.float32(1.0), self.cuts(context, g)[-1])


ROWS: dict[str, ChunkRows] = {
    "pairs": PairRows(),
    "graph": SampleRows(sample_operator.GRAPH),
    "fused": SampleRows(sample_operator.FUSED),
    "walk": WalkRows(),
}
"""The kinds of rows by name, since a task gets the name."""

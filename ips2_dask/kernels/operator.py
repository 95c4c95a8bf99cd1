"""Symmetric operators with ``shape`` and ``matmat``: what the eigensolver needs of a Laplacian, however it is kept."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.parallel import map_chunks

Float = NDArray[np.floating]
Float64 = NDArray[np.float64]

ROWS = 1 << 14
"""Rows of one chunk of a product; the chunks are cut by the shape alone."""


class Operator(Protocol):
    """A symmetric matrix known by its products."""

    shape: tuple[int, int]
    dtype: np.dtype[np.floating]

    def matmat(self, x: Float) -> Float:
        """The product with a block of columns (n, columns)."""
        ...


class MatrixOperator:
    """A stored symmetric matrix, SciPy CSR or dense NumPy, multiplied by fixed chunks of rows."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = matrix.dtype
        self._chunks: dict[int, sp.csr_array] = {}

    def _rows(self, a: int, b: int) -> Any:
        if not sp.issparse(self.matrix) or (a, b) == (0, self.shape[0]):
            return self.matrix[a:b]
        if a not in self._chunks:
            csr = self.matrix
            low, high = csr.indptr[a], csr.indptr[b]
            # the data are views: slicing would copy the whole matrix once over
            self._chunks[a] = sp.csr_array(
                (csr.data[low:high], csr.indices[low:high], csr.indptr[a : b + 1] - low), shape=(b - a, csr.shape[1])
            )
        return self._chunks[a]

    def matmat(self, x: Float) -> Float:
        """The product with a block of columns (n, columns)."""
        out = np.empty(x.shape, np.result_type(self.dtype, x.dtype))

        def chunk(a: int, b: int) -> None:
            out[a:b] = self._rows(a, b) @ x

        map_chunks(chunk, self.shape[0], ROWS)
        return out


def inverse_root(degrees: Float64) -> Float64:
    """degrees^-1/2, and 0 where a degree is 0 (a row whose entries all underflowed)."""
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros(len(degrees)), where=degrees > 0)


def assemble(rows: NDArray[np.int64], columns: NDArray[np.int64], values: Float, n: int) -> sp.csr_array:
    """The symmetric CSR matrix (n, n) of an upper triangle's triplets, each entry given once, rows sorted.

    Sorted rows make the sums of a product independent of the order in which the triplets came.
    """
    kind = np.int32 if max(n, 2 * len(values)) < 2**31 else np.int64
    off = rows != columns
    i = np.concatenate([rows.astype(kind), columns[off].astype(kind)])
    j = np.concatenate([columns.astype(kind), rows[off].astype(kind)])
    csr = sp.coo_array((np.concatenate([values, values[off]]), (i, j)), shape=(n, n)).tocsr()
    csr.sort_indices()
    return csr


def normalized(matrix: sp.csr_array, degrees: Float64, dtype: type = np.float32) -> sp.csr_array:
    """D^-1/2 M D^-1/2 of a symmetric CSR matrix."""
    root = inverse_root(degrees)
    data = matrix.data * np.repeat(root, np.diff(matrix.indptr)) * root[matrix.indices]
    return sp.csr_array((data.astype(dtype), matrix.indices, matrix.indptr), shape=matrix.shape)

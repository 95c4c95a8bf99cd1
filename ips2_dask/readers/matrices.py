"""Matrices that are in memory whole: the caller's, or from files that can't be read in parts, once in each process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, Rows, Table, check_dtype, check_shape, digest

Matrix: TypeAlias = "NDArray[np.generic] | sparse.csr_array"  # two dimensions, real numbers
HOLLOW_ROWS = 10_000_000
LOAD_LOCK = threading.Lock()  # threads of one worker load a file once, not once each


class Stamp(Protocol):
    """A file that has to stay as it is, such as a `FileStamp`."""

    @property
    def name(self) -> str:
        """The input as the user wrote it, for messages."""

    def check(self) -> None:
        """Raise ``BadInput`` if it changed."""


def is_sparse(value: object) -> TypeGuard[sparse.sparray]:
    """Return whether something is a SciPy sparse matrix or array."""
    return bool(sparse.issparse(value))


def as_csr(matrix: sparse.sparray, name: str) -> sparse.csr_array:
    """Return a SciPy sparse matrix as CSR, after checking that its indices are within its shape.

    SciPy does not check them where it reads a file, and turning such a matrix into a dense one writes outside of it.
    """
    rows, columns = check_shape(name, matrix.shape)
    dtype = check_dtype(name, matrix.dtype)
    if rows > HOLLOW_ROWS and rows > 1000 * matrix.nnz:
        raise _too_sparse(name, rows, int(matrix.nnz))
    with faults.reading(name):
        if matrix.format in ("csr", "csc", "bsr"):
            # Where the last pointer is 0, SciPy takes the matrix for empty and looks at none of the others. It looks at
            # differences, which in 32 bits may be above 0 where pointers fall.
            if (matrix.indptr[1:] < matrix.indptr[:-1]).any():
                raise ValueError("pointers that do not ascend")
            matrix.check_format(full_check=True)
        csr = sparse.csr_array(matrix)
        csr = csr if csr.dtype == dtype else csr.astype(dtype)
    return csr.reshape((rows, columns))


def _too_sparse(name: str, rows: int, entries: int) -> BadInput:
    return BadInput(
        name,
        f"a sparse matrix of {rows} rows with {entries} entries",
        "at least one entry in a thousand rows, where there are so many",
        "nearly all samples would be equal, and gigabytes of pointers to nothing be held",
        "check that the file is undamaged and need not be transposed, or drop the empty rows",
    )


def _matrix_bytes(matrix: Matrix) -> int:
    """Return the bytes that a dense or CSR matrix takes in memory."""
    if is_sparse(matrix):
        return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
    return int(matrix.nbytes)


def _dense_rows(matrix: Matrix, start: int, stop: int) -> Block:
    """Return a range of rows as an array of its own."""
    part = matrix[start:stop]
    values: Block = part.toarray() if is_sparse(part) else part
    return np.array(values, order="C")


@dataclass
class MatrixRows(Rows):
    """The rows of a matrix the caller has in memory; pickled with it."""

    matrix: Matrix

    def __post_init__(self) -> None:
        self.n_rows, self.sparse = int(self.matrix.shape[0]), is_sparse(self.matrix)

    def csr(self) -> sparse.csr_array | None:
        """As of `Rows`."""
        return self.matrix if is_sparse(self.matrix) else None

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        return _dense_rows(self.matrix, start, stop)


@dataclass
class LoadedRows(Rows):
    """The rows of a matrix that `load` reads whole, at the first use in each process; pickled without it."""

    load: Callable[[], Matrix]
    stamp: Stamp | None = None
    n_rows: int = 0

    def __post_init__(self) -> None:
        self._matrix: Matrix | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_matrix": None}

    def matrix(self) -> Matrix:
        """Return the whole matrix."""
        with LOAD_LOCK:
            if self._matrix is None:
                if self.stamp:
                    self.stamp.check()
                self._matrix = self.load()
                self.n_rows, self.sparse = int(self._matrix.shape[0]), is_sparse(self._matrix)
            return self._matrix

    def csr(self) -> sparse.csr_array | None:
        """As of `Rows`."""
        matrix = self.matrix()
        return matrix if is_sparse(matrix) else None

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        return _dense_rows(self.matrix(), start, stop)


def matrix_table(matrix: Matrix, name: str, **optional: Any) -> Table:
    """Return the table of a dense or CSR matrix in memory; ``optional`` are further attributes of `Table`."""
    return Table(
        name=name,
        shape=check_shape(name, matrix.shape),
        dtype=check_dtype(name, matrix.dtype),
        rows=MatrixRows(matrix),
        parallel=False,
        resident_bytes=_matrix_bytes(matrix),
        fingerprint=content_digest(matrix),
        **optional,
    )


def content_digest(matrix: Matrix) -> str:
    """Return a digest of a matrix's values, shape and type."""
    state = hashlib.blake2b(repr((matrix.shape, matrix.dtype.str)).encode(), digest_size=16)
    parts = (matrix.data, matrix.indices, matrix.indptr) if is_sparse(matrix) else (matrix,)
    for part in parts:
        step = max(1, (4 << 20) // max(1, part[:1].nbytes))
        for start in range(0, len(part), step):  # by pieces, as a strided array has to be copied to be hashed
            state.update(np.ascontiguousarray(part[start : start + step]).data.cast("B"))
    return state.hexdigest()


def loaded_table(load: Callable[[], Matrix], stamp: Stamp, fingerprint: str) -> Table:
    """Return the table of a file that is read whole; reads it at once, so that damage shows before the run."""
    rows = LoadedRows(load, stamp)
    matrix = rows.matrix()
    return Table(
        name=stamp.name,
        shape=check_shape(stamp.name, matrix.shape),
        dtype=check_dtype(stamp.name, matrix.dtype),
        rows=rows,
        parallel=False,
        resident_bytes=_matrix_bytes(matrix),
        fingerprint=fingerprint,
    )


def transposed(table: Table) -> Table:
    """Return ``table`` with its columns as samples, loaded whole, for formats whose columns can't be read in parts."""
    m, f = table.shape
    size = m * f * table.dtype.itemsize
    names = table.feature_names
    return replace(
        table,
        shape=(f, m),
        rows=LoadedRows(partial(_load_transposed, table), n_rows=f),
        parallel=False,
        resident_bytes=size,
        fingerprint=digest(table.fingerprint, "transposed"),
        feature_names=None if table.sample_names is None else table.sample_names.tolist(),
        read_sample_names=partial(np.array, names, dtype=np.str_) if names else None,
        read_labels=None,
    )


def _load_transposed(table: Table) -> Matrix:
    """Return all values of a table of shape (m, f) as a matrix (f, m), sparse where the table is."""
    if (matrix := table.rows.csr()) is not None:
        return sparse.csr_array(matrix.T)
    with faults.reading(table.name):
        whole = np.empty((table.shape[1], table.shape[0]), table.dtype)
    start = 0
    for block in table.blocks(1024):
        whole[:, start : start + len(block)] = block.T
        start += len(block)
    return whole

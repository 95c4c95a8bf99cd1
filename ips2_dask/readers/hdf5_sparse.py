"""Compressed sparse matrices in HDF5 groups, as AnnData and MATLAB 7.3 store them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers.base import Block, FileStamp, Rows, Table, check_dtype, check_shape
from ips2_dask.readers.hdf5 import find_dataset, opened
from ips2_dask.readers.resident import Matrix, as_csr, loaded_table


@dataclass(frozen=True)
class Compressed:
    """Where a compressed matrix's values, indices and pointers are, its shape, and which axis is compressed."""

    parts: tuple[str, str, str]
    shape: tuple[int, int]
    by_row: bool

    def transposed(self) -> Compressed:
        """Return the same arrays seen as the transpose."""
        return Compressed(self.parts, self.shape[::-1], not self.by_row)


@dataclass
class CompressedRows(Rows):
    """The rows of a matrix compressed by row, made dense; reads the stretch of entries that belongs to them."""

    stamp: FileStamp
    matrix: Compressed

    def __post_init__(self) -> None:
        self.n_rows = self.matrix.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        self.stamp.check()
        name, matrix = self.stamp.name, self.matrix
        with opened(self.stamp.path, name) as file:
            values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
            bounds = indptr[start : stop + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            parts = (values[first:last], indices[first:last], bounds - first)
            rows = sparse.csr_array(parts, shape=(stop - start, matrix.shape[1]))
        return np.asarray(as_csr(rows, name).toarray())


def compressed_table(stamp: FileStamp, file: Any, matrix: Compressed, **known: Any) -> Table:
    """Return the table of a compressed matrix: in parts if it is compressed by row, else whole."""
    name = stamp.name
    m, f = check_shape(name, matrix.shape)
    values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
    dtype = check_dtype(name, values.dtype)
    _check_lengths(name, matrix, values, indices, indptr)
    fingerprint = stamp.digest("compressed", matrix)
    if not matrix.by_row:
        return loaded_table(partial(_load, stamp, matrix), stamp, fingerprint, **known)
    return Table(
        name=name,
        shape=(m, f),
        dtype=dtype,
        rows=CompressedRows(stamp, matrix),
        parallel=True,
        resident_bytes=0,
        fingerprint=fingerprint,
        **known,
    )


def _check_lengths(name: str, matrix: Compressed, values: Any, indices: Any, indptr: Any) -> None:
    major = matrix.shape[0 if matrix.by_row else 1]
    one_dimensional = all(part.shape is not None and len(part.shape) == 1 for part in (values, indices, indptr))
    integers = indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"
    fits = one_dimensional and integers and len(indptr) == major + 1 and len(values) == len(indices)
    last = int(indptr[-1]) if fits else 0
    if not fits or last > len(values):
        raise BadInput(
            name,
            f"a sparse matrix whose arrays have the shapes {values.shape}, {indices.shape} and {indptr.shape}",
            f"{major + 1} pointers, and as many indices as values",
            "its entries could not be placed",
            "write the matrix again",
        )


def _load(stamp: FileStamp, matrix: Compressed) -> Matrix:
    """Return a matrix that is compressed by column as CSR."""
    name = stamp.name
    with opened(stamp.path, name) as file:
        values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
        parts = (values[...], indices[...].astype(np.int64), indptr[...].astype(np.int64))
        columns = sparse.csc_array(parts, shape=matrix.shape)
    return as_csr(columns, name)


def is_dataset(group: Any, part: str) -> bool:
    """Return whether a group holds a dataset of that name."""
    return isinstance(group.get(part, getlink=True), h5py.HardLink) and isinstance(group[part], h5py.Dataset)

"""Files and folders that hold trees of arrays, HDF5's and Zarr's, seen alike; and sparse matrices in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers.base import Block, Rows, Table, check_dtype, check_shape
from ips2_dask.readers.matrices import Matrix, as_csr, loaded_table

Node = Any  # a group or an array of h5py or Zarr, which offer the same attributes
Selection = slice | tuple[slice, ...] | EllipsisType


class Container(Protocol):
    """A tree of groups and arrays; it is pickled by its path and opened in each process."""

    @property
    def name(self) -> str:
        """The input as the user wrote it, for messages."""

    def check(self) -> None:
        """Raise ``BadInput`` if the file is no longer the one that was opened, where that can be seen."""

    def open(self) -> AbstractContextManager[Node]:
        """Open the root, read only; any exception of the library in the body becomes a ``BadInput``."""

    def find(self, root: Node, path: str) -> tuple[Node, str] | None:
        """Return the group or array at ``path`` and its path with links resolved, or None if there is none."""

    def array(self, root: Node, path: str) -> Node:
        """Return the array at ``path``, after checking that reading it runs no code and stays inside the container."""

    def values(self, root: Node, path: str, selection: Selection = ...) -> NDArray[Any]:
        """Return values of the array at ``path``, text as str; all of them if none are selected."""

    def groups(self, root: Node) -> list[str]:
        """Return the path of each group below the root."""

    def digest(self, root: Node, paths: Sequence[str], *options: object) -> str:
        """Return the fingerprint of some arrays as read with these options."""

    def dense(self, root: Node, path: str, transpose: bool) -> Table:
        """Return the table of the array at ``path``."""


def is_array(node: Node) -> bool:
    """Return whether a node is an array."""
    return hasattr(node, "dtype")


@dataclass(frozen=True)
class Compressed:
    """The paths of a compressed matrix's values, indices and pointers, its shape, and which axis is compressed.

    Fingerprints hold its repr: with another name, or other fields, finished runs would not be found again.
    """

    parts: tuple[str, str, str]
    shape: tuple[int, int]
    by_row: bool

    def transposed(self) -> Compressed:
        """Return the same arrays seen as the transpose."""
        return Compressed(self.parts, self.shape[::-1], not self.by_row)


@dataclass
class CompressedRows(Rows):
    """The rows of a matrix compressed by row, made dense; reads the stretch of entries that belongs to them."""

    container: Container
    matrix: Compressed

    def __post_init__(self) -> None:
        self.n_rows = self.matrix.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        return np.asarray(self._between(start, stop).toarray())

    def csr(self) -> sparse.csr_array:
        """As of `Rows`."""
        return self._between(0, self.n_rows)

    def _between(self, start: int, stop: int) -> sparse.csr_array:
        """Return rows start to stop as they are stored."""
        matrix = self.matrix
        with self.container.open() as root:
            values, indices, indptr = (self.container.array(root, path) for path in matrix.parts)
            bounds = indptr[start : stop + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            parts = (values[first:last], indices[first:last], bounds - first)
            rows = sparse.csr_array(parts, shape=(stop - start, matrix.shape[1]))
        return as_csr(rows, self.container.name)


def compressed_table(container: Container, root: Node, matrix: Compressed) -> Table:
    """Return the table of a compressed matrix: in parts if it is compressed by row, else whole."""
    name = container.name
    m, f = check_shape(name, matrix.shape)
    values, indices, indptr = (container.array(root, path) for path in matrix.parts)
    dtype = check_dtype(name, np.dtype(values.dtype))
    _check_compressed(name, matrix, values, indices, indptr)
    fingerprint = container.digest(root, matrix.parts, "compressed", matrix)
    if not matrix.by_row:
        return loaded_table(partial(_load_compressed, container, matrix), container, fingerprint)
    return Table(
        name=name,
        shape=(m, f),
        dtype=dtype,
        rows=CompressedRows(container, matrix),
        parallel=True,
        resident_bytes=0,
        fingerprint=fingerprint,
    )


def _check_compressed(name: str, matrix: Compressed, values: Node, indices: Node, indptr: Node) -> None:
    major = matrix.shape[0 if matrix.by_row else 1]
    one_dimensional = all(part.shape is not None and len(part.shape) == 1 for part in (values, indices, indptr))
    integers = np.dtype(indices.dtype).kind in "iu" and np.dtype(indptr.dtype).kind in "iu"
    fits = one_dimensional and integers and indptr.shape[0] == major + 1 and values.shape == indices.shape
    last = int(indptr[-1]) if fits else 0
    if not fits or last > values.shape[0]:
        raise BadInput(
            name,
            f"a sparse matrix whose arrays have the shapes {values.shape}, {indices.shape} and {indptr.shape}",
            f"{major + 1} pointers, and as many indices as values",
            "its entries could not be placed",
            "write the matrix again",
        )


def _load_compressed(container: Container, matrix: Compressed) -> Matrix:
    """Return a matrix that is compressed by column as CSR."""
    with container.open() as root:
        values, indices, indptr = (container.array(root, path) for path in matrix.parts)
        parts = (values[...], indices[...].astype(np.int64), indptr[...].astype(np.int64))
        columns = sparse.csc_array(parts, shape=matrix.shape)
    return as_csr(columns, container.name)

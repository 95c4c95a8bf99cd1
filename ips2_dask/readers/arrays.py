"""Arrays the caller has in memory: NumPy, memory-mapped, lists of lists and SciPy sparse."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Request, Table, check_dtype, check_shape
from ips2_dask.readers.labels import take_label_column
from ips2_dask.readers.masks import refuse_masked
from ips2_dask.readers.npy import NpyLayout, npy_table
from ips2_dask.readers.resident import HeldRows, as_csr, is_sparse, matrix_bytes, rectangle


def open_array(spec: Any, labels_column: str | int | None, transpose: bool) -> Table:
    """Return the table of an array in memory, of which one column may hold the labels.

    A read-only ``numpy.memmap`` is read from its file by each process; everything else is pickled with the table.
    """
    name = "the sparse matrix given" if is_sparse(spec) else "the array given"
    if isinstance(spec, np.memmap) and spec.mode == "r" and spec.filename is not None:
        mapped = _mapped_table(spec.T if transpose else spec, name)
        if mapped is not None:
            return mapped if labels_column is None else take_label_column(mapped, labels_column)
    matrix = as_csr(spec.T if transpose else spec, name) if is_sparse(spec) else _dense(spec, name, transpose)
    table = held_table(matrix, name)
    return table if labels_column is None else take_label_column(table, labels_column)


def held_table(matrix: Any, name: str, **known: Any) -> Table:
    """Return the table of a dense or CSR matrix in memory."""
    return Table(
        name=name,
        shape=check_shape(name, matrix.shape),
        dtype=check_dtype(name, matrix.dtype),
        rows=HeldRows(matrix),
        parallel=False,
        resident_bytes=matrix_bytes(matrix),
        fingerprint=content_digest(matrix),
        **known,
    )


def content_digest(matrix: Any) -> str:
    """Return a digest of a matrix's values, shape and type."""
    state = hashlib.blake2b(repr((matrix.shape, matrix.dtype.str)).encode(), digest_size=16)
    parts = (matrix.data, matrix.indices, matrix.indptr) if is_sparse(matrix) else (matrix,)
    for part in parts:
        step = max(1, (4 << 20) // max(1, part[:1].nbytes))
        for start in range(0, len(part), step):  # by pieces, as a strided array has to be copied to be hashed
            state.update(np.ascontiguousarray(part[start : start + step]).data.cast("B"))
    return state.hexdigest()


def _dense(spec: Any, name: str, transpose: bool) -> NDArray[Any]:
    refuse_masked(spec, name)
    spec = spec.data if isinstance(spec, np.ma.MaskedArray) else spec
    array = rectangle(spec, name) if isinstance(spec, list | tuple) else _as_array(spec, name)
    check_shape(name, array.shape)
    array = array.astype(check_dtype(name, array.dtype), copy=False)
    return array.T if transpose else array


def _as_array(spec: Any, name: str) -> NDArray[Any]:
    """Return an array, or what other libraries give as one, as a plain array."""
    if not hasattr(spec, "__array__"):
        raise BadInput(
            name,
            f"something of type {type(spec).__name__}",
            "a path, an array, a list of rows, a SciPy sparse matrix, a pandas DataFrame or a zarr.Array",
            "there would be nothing to cluster",
            "convert it to a NumPy array",
        )
    with faults.reading(name):
        return np.asarray(spec)


def _mapped_table(array: np.memmap[Any, Any], name: str) -> Table | None:
    """Return the table of a memory map's file, or None where the map is not a whole block of it in order."""
    if array.ndim != 2 or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root.base, mmap.mmap) or not isinstance(root, np.memmap):
        return None
    # `memmap.offset` is not updated where a map is sliced, so the place in the file follows from the addresses.
    offset = int(root.offset) + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    fortran = not array.flags.c_contiguous
    layout = NpyLayout(tuple(array.shape), array.dtype, fortran, offset)
    path = os.fspath(array.filename or "")
    if not os.path.isfile(path):
        return None
    return npy_table(FileStamp.of(Request(name, str(path))), layout)

"""Arrays the caller has in memory: NumPy, memory-mapped, lists of lists and SciPy sparse."""

from __future__ import annotations

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
from ips2_dask.readers.resident import as_csr, held_table, is_sparse


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


def rectangle(rows: Any, name: str) -> NDArray[Any]:
    """Return a list of rows as an array, or raise ``BadInput`` that names the first ragged row or text value."""
    lengths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in rows]
    uneven = [row for row, length in enumerate(lengths) if length != lengths[0]]
    if uneven:
        row = uneven[0]
        count = "a single value" if lengths[row] is None else f"{lengths[row]} values"
        raise BadInput(
            name,
            f"{count} in row {row}",
            f"as many in every row as in the first ({lengths[0]})",
            "it would be unclear which feature a value belongs to",
            "fill or drop that row",
        )
    for row, values in enumerate(rows):
        for column, value in enumerate(values if lengths[row] is not None else ()):
            if isinstance(value, str | bytes):
                raise faults.textual(name, f"the text {value!r} in row {row}, column {column}")
    with faults.reading(name):
        return np.asarray(rows)

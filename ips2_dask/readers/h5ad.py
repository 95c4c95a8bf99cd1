"""The .h5ad format of AnnData: X or another matrix, dense or compressed, with labels and names from obs and var."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Request, Table
from ips2_dask.readers.hdf5 import dataset_table, find, find_dataset, opened, read_values
from ips2_dask.readers.hdf5_sparse import Compressed, compressed_table
from ips2_dask.readers.labels import as_labels, find_column, take_label_variable


def open_file(request: Request) -> Table:
    """Return the table of ``X``, or of another matrix that is named (``file.h5ad::layers/counts``, ``obsm/X_pca``).

    Labels are a column of ``obs``; names of samples and features are the indices of ``obs`` and ``var``, which change
    places where the matrix is transposed.
    """
    stamp, name = FileStamp.of(request), request.name
    path = (request.member or "X").strip("/")
    samples, features = ("var", "obs") if request.transpose else ("obs", "var")
    with opened(request.path, name) as file:
        table = _matrix_table(stamp, file, path, request.transpose)
        names = _index(file, features, name) if path == "X" or path.startswith("layers/") else None
        if names is not None and len(names) == table.shape[1]:
            table = replace(table, feature_names=names.tolist())
        table = replace(table, read_sample_names=partial(_read_names, stamp, samples))
        if request.labels_column is None:
            return table
        column = _label_column(file, samples, request)
        values = _column_values(file, f"{samples}/{column}", name)
    return take_label_variable(table, column, len(values), partial(_read_labels, stamp, f"{samples}/{column}"))


def _encoding(thing: Any) -> str:
    stored = thing.attrs.get("encoding-type", thing.attrs.get("h5sparse_format", ""))  # the latter before 0.7
    stored = stored.decode() if isinstance(stored, bytes) else str(stored)
    return {"csr": "csr_matrix", "csc": "csc_matrix"}.get(stored, stored)


def _matrix_table(stamp: FileStamp, file: Any, path: str, transpose: bool) -> Table:
    name = stamp.name
    found = find(file, path, name)
    if found is None:
        raise faults.absent(name, "matrix", path, _matrices(file))
    thing = found[0]
    encoding = _encoding(thing)
    if isinstance(thing, h5py.Dataset):
        return dataset_table(stamp, find_dataset(file, path, name), transpose)
    if encoding not in ("csr_matrix", "csc_matrix"):
        raise BadInput(
            name,
            f"{path!r} with the encoding {encoding or 'none'!r}",
            "an array, csr_matrix or csc_matrix",
            "its values could not be placed",
            "write the file again with a recent anndata",
        )
    stored = thing.attrs["shape"] if "shape" in thing.attrs else thing.attrs["h5sparse_shape"]
    rows, columns = (int(size) for size in stored)
    parts = (f"{found[1]}/data", f"{found[1]}/indices", f"{found[1]}/indptr")
    matrix = Compressed(parts, shape=(rows, columns), by_row=encoding == "csr_matrix")
    return compressed_table(stamp, file, matrix.transposed() if transpose else matrix)


def _matrices(file: Any) -> list[str]:
    """Return the names of the matrices that may be in a file."""
    inside = [f"{group}/{key}" for group in ("layers", "obsm") if group in file for key in file[group]]
    return [key for key in ("X",) if key in file] + inside


def _index_path(file: Any, frame: str, name: str) -> str | None:
    """Return where the index of a data frame is."""
    found = find(file, frame, name)
    if found is None or not isinstance(found[0], h5py.Group):
        return None
    stored = found[0].attrs.get("_index", "_index")
    return f"{frame}/{stored.decode() if isinstance(stored, bytes) else stored}"


def _index(file: Any, frame: str, name: str) -> NDArray[np.str_] | None:
    path = _index_path(file, frame, name)
    found = find(file, path, name) if path else None
    if path is None or found is None:
        return None
    values = _column_values(file, path, name)
    return np.array([value.decode() if isinstance(value, bytes) else str(value) for value in values], np.str_)


def _read_names(stamp: FileStamp, frame: str) -> NDArray[np.str_] | None:
    stamp.check()
    with opened(stamp.path, stamp.name) as file:
        names = _index(file, frame, stamp.name)
    if names is None or np.array_equal(names, np.arange(len(names)).astype(np.str_)):
        return None
    return names


def _label_column(file: Any, frame: str, request: Request) -> str:
    found = find(file, frame, request.name)
    group = found[0] if found else None
    index = _index_path(file, frame, request.name)
    known = list(group) if isinstance(group, h5py.Group) else []
    columns = [key for key in known if f"{frame}/{key}" != index and key != "__categories"]
    column: str = columns[find_column(f"{request.name}, {frame}", str(request.labels_column), columns, len(columns))]
    return column


def _column_values(file: Any, path: str, name: str) -> NDArray[Any]:
    """Return a column of a data frame: plain, categorical (codes into categories) or nullable (values and mask)."""
    found = find(file, path, name)
    if found is None or isinstance(found[0], h5py.Dataset):
        dataset = find_dataset(file, path, name)
        values = read_values(dataset, name)
        categories = dataset.attrs.get("categories")  # before 0.7, a reference to obs/__categories/...
        return _decode(values, read_values(file[categories], name)) if categories is not None else values
    parts = set(found[0])
    if {"codes", "categories"} <= parts:
        codes = read_values(find_dataset(file, f"{path}/codes", name), name)
        return _decode(codes, read_values(find_dataset(file, f"{path}/categories", name), name))
    if {"values", "mask"} <= parts:
        values = read_values(find_dataset(file, f"{path}/values", name), name).astype(object)
        values[read_values(find_dataset(file, f"{path}/mask", name), name).astype(bool)] = None
        return values
    raise BadInput(
        name,
        f"{path!r} with the encoding {_encoding(found[0])!r}",
        "a plain, categorical or nullable column",
        "its values could not be read",
        "write the file again with a recent anndata",
    )


def _decode(codes: NDArray[Any], categories: NDArray[Any]) -> NDArray[Any]:
    """Return the category of each code, None where it is -1."""
    values = np.full(len(codes), None, dtype=object)
    known = codes >= 0
    values[known] = categories[codes[known]]
    return values


def _read_labels(stamp: FileStamp, path: str) -> NDArray[Any]:
    stamp.check()
    with opened(stamp.path, stamp.name) as file:
        values = _column_values(file, path, stamp.name)
    return as_labels(values, stamp.name)

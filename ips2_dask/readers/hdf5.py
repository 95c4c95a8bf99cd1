"""The HDF5 format read by ranges of rows, safely: datasets, compressed sparse matrices, and AnnData's .h5ad."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import (
    GRAIN_BYTES,
    Block,
    FileStamp,
    Request,
    Rows,
    Table,
    check_dtype,
    check_shape,
    is_matrix,
)
from ips2_dask.readers.labels import LabelReader, find_column, take_label_column, take_label_variable, vector_ranges
from ips2_dask.readers.matrices import Matrix, as_csr, loaded_table

# Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, n-bit, scale-offset and lzf. Any other
# would make the library load a plug-in from wherever the environment says.
FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
FLETCHER32, FLETCHER32_BYTES = 3, 4
MOST_LINKS = 16

Selection = slice | tuple[slice, ...] | EllipsisType

HEAP = b"GCOL"
HEAPS_BYTES = 1 << 28
"""Files up to this size are searched for broken heaps, which takes up to a tenth of a second."""


@contextmanager
def open_hdf5_file(path: str, name: str) -> Iterator[h5py.File]:
    """Open an HDF5 file read only; any exception of h5py in the body becomes a ``BadInput``.

    The whole body is covered, because in a damaged file reading any shape, type or attribute may fail. Files that this
    one links to are not opened: `find` alone follows links.
    """
    _check_heaps(path, name)
    with faults.reading(name), h5py.File(path, "r", locking="best-effort") as file:
        yield file


def _check_heaps(path: str, name: str) -> None:
    """Raise ``BadInput`` where a heap of strings has an object of no size, over which libhdf5 would loop for ever.

    It holds the interpreter's lock meanwhile, so that neither Ctrl-C nor a time limit in this process would end it.
    Files above `HEAPS_BYTES` are not looked through.
    """
    if not 0 < os.path.getsize(path) <= HEAPS_BYTES:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = data.find(HEAP)
        while position >= 0:
            if _heap_loops(data, position):
                raise faults.unreadable(name, ValueError(f"the heap at byte {position} has an object of no size"))
            position = data.find(HEAP, position + 1)


def _heap_loops(data: mmap.mmap, start: int) -> bool:
    """Return whether libhdf5, reading the heap at a byte, would stay for ever at an object of no size."""
    end = start + int.from_bytes(data[start + 8 : start + 16], "little")
    position = start + 16
    while position + 16 <= min(end, len(data)):
        number, size = (int.from_bytes(data[position + a : position + b], "little") for a, b in ((0, 2), (8, 16)))
        step = 16 + (size + 7) // 8 * 8 if number else size
        if step % (1 << 64) == 0:
            return True
        position += step
    return False


def find(file: h5py.File, path: str, name: str) -> tuple[h5py.Group | h5py.Dataset, str] | None:
    """Return the object at ``path`` and its path with links resolved, or None if there is none.

    Raises
    ------
    BadInput
        If a link on the way points to another file.
    """
    parts, real_path = [part for part in path.split("/") if part], [""]
    group, n_links = file, 0
    while parts:
        part = parts.pop(0)
        if not isinstance(group, h5py.Group):
            return None
        link = group.get(part, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise faults.outside(name, f"an external link, {path!r}, to {link.filename!r}")
        if isinstance(link, h5py.SoftLink):
            n_links += 1
            if n_links > MOST_LINKS:
                return None
            parts = [piece for piece in link.path.split("/") if piece and piece != "."] + parts
            if link.path.startswith("/"):
                group, real_path = file, [""]
            continue
        group = group[part]
        real_path.append(part)
    return group, "/".join(real_path) or "/"


def find_dataset(file: h5py.File, path: str, name: str) -> h5py.Dataset:
    """Return the dataset at ``path`` after checking that reading it stays inside the file.

    Raises
    ------
    BadInput
        If there is none, or its values are in other files, or need a filter from outside.
    """
    located = find(file, path, name)
    if located is None or not isinstance(located[0], h5py.Dataset):
        raise faults.absent(name, "dataset", path, [description.split()[0] for description in describe(file)])
    check_inside(located[0], name)
    return located[0]


def check_inside(dataset: h5py.Dataset, name: str) -> None:
    """Raise ``BadInput`` unless a dataset's values are in the file and readable without plug-ins."""
    if dataset.external:
        raise faults.outside(name, f"values of {dataset.name!r} that are stored in {dataset.external[0][0]!r}")
    if dataset.is_virtual:
        raise faults.outside(name, f"a virtual dataset, {dataset.name!r}, made of other files")
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    unknown = [code for code, *_ in filters if code not in FILTERS]
    if unknown:
        raise BadInput(
            name,
            f"the HDF5 filter {unknown[0]} on {dataset.name!r}",
            "the filters that come with HDF5 (gzip, shuffle, szip) and lzf",
            "a plug-in from outside of this package would have to be loaded",
            "write the dataset again with gzip, for instance with h5repack -f GZIP=4",
        )
    if FLETCHER32 in {code for code, *_ in filters}:
        _check_checksums(dataset, name)


def _check_checksums(dataset: h5py.Dataset, name: str) -> None:
    """Raise ``BadInput`` where a chunk is shorter than its checksum: libhdf5 reads on beyond it, and ends the process.

    The position of the filter does not matter: what is compressed afterwards is no shorter than that either.
    """
    short: list[int] = []

    def look(chunk: h5py.h5d.StoreInfo) -> None:
        if chunk.size < FLETCHER32_BYTES:
            short.append(chunk.size)

    dataset.id.chunk_iter(look)
    if short:
        raise faults.unreadable(name, ValueError(f"a chunk of {dataset.name!r} has {short[0]} bytes, its checksum 4"))


def datasets(file: h5py.File) -> list[h5py.Dataset]:
    """Return the datasets of a file, but not those behind soft or external links, nor MATLAB's hidden ones."""
    collected: list[h5py.Dataset] = []

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset) and not path.startswith("#"):
            collected.append(node)

    file.visititems(visit)
    return collected


def describe(file: h5py.File) -> list[str]:
    """Return path, shape and type of each dataset."""
    return [f"{node.name.strip('/')} {node.shape} {node.dtype}" for node in datasets(file)]


def _choose_dataset(file: h5py.File, request: Request) -> str:
    """Return the path of the dataset to read: the one named, or the only matrix of numbers."""
    if request.member is not None:
        return request.member
    suitable: list[str] = [node.name.strip("/") for node in datasets(file) if is_matrix(node.shape, node.dtype)]
    suitable = [path for path in suitable if path != str(request.labels_column).strip("/")]
    if len(suitable) != 1:
        raise faults.undecided(request.name, "dataset", suitable, describe(file))
    return suitable[0]


@dataclass
class DatasetRows(Rows):
    """The rows of a dataset, or its columns where it is seen as its transpose; opens the file for each range."""

    stamp: FileStamp
    path: str
    transpose: bool
    n_rows: int
    grain: int

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        self.stamp.check()
        with open_hdf5_file(self.stamp.path, self.stamp.name) as file:
            dataset = find_dataset(file, self.path, self.stamp.name)
            values: Block = dataset[:, start:stop].T if self.transpose else dataset[start:stop]
            return np.ascontiguousarray(values)


def dataset_table(stamp: FileStamp, dataset: h5py.Dataset, transpose: bool) -> Table:
    """Return the table of a dataset of an open file."""
    if dataset.shape is None:
        raise BadInput(
            stamp.name,
            f"an empty dataset, {dataset.name!r}",
            "a matrix of numbers",
            "there would be nothing to cluster",
            "name another dataset",
        )
    shape = check_shape(stamp.name, dataset.shape)
    dtype = check_dtype(stamp.name, dataset.dtype)
    m, f = shape[::-1] if transpose else shape
    chunk_rows = dataset.chunks[1 if transpose else 0] if dataset.chunks else 1
    grain = int(chunk_rows) if chunk_rows * f * dtype.itemsize <= GRAIN_BYTES else 1
    return Table(
        name=stamp.name,
        shape=(m, f),
        dtype=dtype,
        rows=DatasetRows(stamp, dataset.name, transpose, m, grain),
        parallel=True,
        resident_bytes=0,
        fingerprint=stamp.digest("hdf5", dataset.name, transpose),
    )


def open_hdf5(request: Request) -> Table:
    """Return the table of a dataset; its labels may be another dataset or one of its columns."""
    stamp = FileStamp.of(request)
    with open_hdf5_file(request.path, request.name) as file:
        dataset = find_dataset(file, _choose_dataset(file, request), request.name)
        table = dataset_table(stamp, dataset, request.transpose)
        labels_column = request.labels_column
        labels_node = find(file, labels_column, request.name) if isinstance(labels_column, str) else None
        if labels_node is None or not isinstance(labels_node[0], h5py.Dataset):
            return take_label_column(table, labels_column)
        labels = find_dataset(file, str(labels_column), request.name)
        return take_label_variable(
            table,
            str(labels_column),
            int(labels.size or 0),
            LabelReader(stamp.name, partial(label_pieces, stamp, labels.name)),
        )


def _read_values(dataset: h5py.Dataset, name: str, selection: Selection = ...) -> NDArray[Any]:
    """Return values of a dataset, strings as str, after `check_inside`; all of them if none are selected."""
    check_inside(dataset, name)
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.asarray(dataset.asstr()[selection])
    return np.asarray(dataset[selection])


def label_pieces(stamp: FileStamp, path: str) -> Iterator[NDArray[Any]]:
    """Yield the values of a dataset piece by piece; the file is opened for each."""
    stamp.check()
    with open_hdf5_file(stamp.path, stamp.name) as file:
        dataset = find_dataset(file, path, stamp.name)
        ranges = vector_ranges(dataset.shape, max(dataset.chunks or (1,)))
    for selection in ranges:
        with open_hdf5_file(stamp.path, stamp.name) as file:
            values = _read_values(find_dataset(file, path, stamp.name), stamp.name, selection)
        yield values


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

    stamp: FileStamp
    matrix: Compressed

    def __post_init__(self) -> None:
        self.n_rows = self.matrix.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        self.stamp.check()
        name, matrix = self.stamp.name, self.matrix
        with open_hdf5_file(self.stamp.path, name) as file:
            values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
            bounds = indptr[start : stop + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            parts = (values[first:last], indices[first:last], bounds - first)
            rows = sparse.csr_array(parts, shape=(stop - start, matrix.shape[1]))
        return np.asarray(as_csr(rows, name).toarray())


def compressed_table(stamp: FileStamp, file: h5py.File, matrix: Compressed) -> Table:
    """Return the table of a compressed matrix: in parts if it is compressed by row, else whole."""
    name = stamp.name
    m, f = check_shape(name, matrix.shape)
    values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
    dtype = check_dtype(name, values.dtype)
    _check_compressed(name, matrix, values, indices, indptr)
    fingerprint = stamp.digest("compressed", matrix)
    if not matrix.by_row:
        return loaded_table(partial(_load_compressed, stamp, matrix), stamp, fingerprint)
    return Table(
        name=name,
        shape=(m, f),
        dtype=dtype,
        rows=CompressedRows(stamp, matrix),
        parallel=True,
        resident_bytes=0,
        fingerprint=fingerprint,
    )


def _check_compressed(
    name: str, matrix: Compressed, values: h5py.Dataset, indices: h5py.Dataset, indptr: h5py.Dataset
) -> None:
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


def _load_compressed(stamp: FileStamp, matrix: Compressed) -> Matrix:
    """Return a matrix that is compressed by column as CSR."""
    name = stamp.name
    with open_hdf5_file(stamp.path, name) as file:
        values, indices, indptr = (find_dataset(file, path, name) for path in matrix.parts)
        parts = (values[...], indices[...].astype(np.int64), indptr[...].astype(np.int64))
        columns = sparse.csc_array(parts, shape=matrix.shape)
    return as_csr(columns, name)


def is_dataset(group: h5py.Group, part: str) -> bool:
    """Return whether a group holds a dataset of that name."""
    return isinstance(group.get(part, getlink=True), h5py.HardLink) and isinstance(group[part], h5py.Dataset)


def open_h5ad(request: Request) -> Table:
    """Return the table of ``X``, or of another matrix that is named (``file.h5ad::layers/counts``, ``obsm/X_pca``).

    Labels are a column of ``obs``; names of samples and features are the indices of ``obs`` and ``var``, which change
    places where the matrix is transposed.
    """
    stamp, name = FileStamp.of(request), request.name
    path = (request.member or "X").strip("/")
    samples, features = ("var", "obs") if request.transpose else ("obs", "var")
    with open_hdf5_file(request.path, name) as file:
        table = _matrix_table(stamp, file, path, request.transpose)
        names = _index_names(file, features, name) if path == "X" or path.startswith("layers/") else None
        if names is not None and len(names) == table.shape[1]:
            table = replace(table, feature_names=names.tolist())
        table = replace(table, read_sample_names=partial(_read_names, stamp, samples))
        if request.labels_column is None:
            return table
        column = _obs_label_column(file, samples, request)
        path = f"{samples}/{column}"
        count = len(_rows_of_column(file, path, name)[0])
    return take_label_variable(table, column, count, LabelReader(name, partial(_obs_pieces, stamp, path, count)))


def _encoding(node: h5py.Group | h5py.Dataset) -> str:
    stored = node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", ""))  # the latter before 0.7
    stored = stored.decode() if isinstance(stored, bytes) else str(stored)
    return {"csr": "csr_matrix", "csc": "csc_matrix"}.get(stored, stored)


def _matrix_table(stamp: FileStamp, file: h5py.File, path: str, transpose: bool) -> Table:
    name = stamp.name
    located = find(file, path, name)
    if located is None:
        raise faults.absent(name, "matrix", path, _matrices(file))
    node = located[0]
    encoding = _encoding(node)
    if isinstance(node, h5py.Dataset):
        return dataset_table(stamp, find_dataset(file, path, name), transpose)
    if encoding not in ("csr_matrix", "csc_matrix"):
        raise BadInput(
            name,
            f"{path!r} with the encoding {encoding or 'none'!r}",
            "an array, csr_matrix or csc_matrix",
            "its values could not be placed",
            "write the file again with a recent anndata",
        )
    stored = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    rows, columns = (int(size) for size in stored)
    parts = (f"{located[1]}/data", f"{located[1]}/indices", f"{located[1]}/indptr")
    matrix = Compressed(parts, shape=(rows, columns), by_row=encoding == "csr_matrix")
    return compressed_table(stamp, file, matrix.transposed() if transpose else matrix)


def _matrices(file: h5py.File) -> list[str]:
    """Return the names of the matrices that may be in a file."""
    inside = [f"{group}/{key}" for group in ("layers", "obsm") if group in file for key in file[group]]
    return [key for key in ("X",) if key in file] + inside


def _index_path(file: h5py.File, frame: str, name: str) -> str | None:
    """Return the path of the index of a data frame."""
    located = find(file, frame, name)
    if located is None or not isinstance(located[0], h5py.Group):
        return None
    stored = located[0].attrs.get("_index", "_index")
    return f"{frame}/{stored.decode() if isinstance(stored, bytes) else stored}"


def _index_names(file: h5py.File, frame: str, name: str) -> NDArray[np.str_] | None:
    path = _index_path(file, frame, name)
    located = find(file, path, name) if path else None
    if path is None or located is None:
        return None
    values = _column_values(file, path, name)
    return np.array([value.decode() if isinstance(value, bytes) else str(value) for value in values], np.str_)


def _read_names(stamp: FileStamp, frame: str) -> NDArray[np.str_] | None:
    stamp.check()
    with open_hdf5_file(stamp.path, stamp.name) as file:
        names = _index_names(file, frame, stamp.name)
    if names is None or np.array_equal(names, np.arange(len(names)).astype(np.str_)):
        return None
    return names


def _obs_label_column(file: h5py.File, frame: str, request: Request) -> str:
    located = find(file, frame, request.name)
    group = located[0] if located else None
    index = _index_path(file, frame, request.name)
    keys = list(group) if isinstance(group, h5py.Group) else []
    columns = [key for key in keys if f"{frame}/{key}" != index and key != "__categories"]
    column: str = columns[find_column(f"{request.name}, {frame}", str(request.labels_column), columns, len(columns))]
    return column


def _column_values(file: h5py.File, path: str, name: str, rows: Selection = ...) -> NDArray[np.generic]:
    """Return rows of a column of a data frame, all of them if none are selected."""
    dataset, kind = _rows_of_column(file, path, name)
    values = _read_values(dataset, name, rows)
    if kind == "plain":
        categories = dataset.attrs.get("categories")  # before 0.7, a reference to obs/__categories/...
        return _decode(values, _read_values(file[categories], name)) if categories is not None else values
    if kind == "categorical":
        return _decode(values, _read_values(find_dataset(file, f"{path}/categories", name), name))
    values = values.astype(object)
    values[_read_values(find_dataset(file, f"{path}/mask", name), name, rows).astype(bool)] = None
    return values


def _rows_of_column(file: h5py.File, path: str, name: str) -> tuple[h5py.Dataset, str]:
    """Return the dataset with a value for each row of a column of a data frame, and what kind of column that is.

    It may be plain, categorical (codes into categories) or nullable (values and mask).
    """
    located = find(file, path, name)
    if located is None or isinstance(located[0], h5py.Dataset):
        return find_dataset(file, path, name), "plain"
    parts = set(located[0])
    if {"codes", "categories"} <= parts:
        return find_dataset(file, f"{path}/codes", name), "categorical"
    if {"values", "mask"} <= parts:
        return find_dataset(file, f"{path}/values", name), "nullable"
    raise BadInput(
        name,
        f"{path!r} with the encoding {_encoding(located[0])!r}",
        "a plain, categorical or nullable column",
        "its values could not be read",
        "write the file again with a recent anndata",
    )


def _decode(codes: NDArray[np.integer], categories: NDArray[np.generic]) -> NDArray[np.object_]:
    """Return the category of each code, object (m,), None where the code is -1."""
    values = np.full(len(codes), None, dtype=object)
    has_category = codes >= 0
    values[has_category] = categories[codes[has_category]]
    return values


def _obs_pieces(stamp: FileStamp, path: str, count: int) -> Iterator[NDArray[np.generic]]:
    """Yield a column of a data frame piece by piece; the file is opened for each."""
    stamp.check()
    for (rows,) in vector_ranges((count,)):
        with open_hdf5_file(stamp.path, stamp.name) as file:
            values = _column_values(file, path, stamp.name, rows)
        yield values

"""The HDF5 format read by ranges of rows, safely: datasets, and the AnnData of .h5ad and other files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import anndata_files, faults
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
from ips2_dask.readers.containers import Selection
from ips2_dask.readers.labels import LabelReader, take_label_column, take_label_variable, vector_ranges

# Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, n-bit, scale-offset and lzf. Any other
# would make the library load a plug-in from wherever the environment says.
FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
FLETCHER32, FLETCHER32_BYTES = 3, 4
MOST_LINKS = 16

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


@dataclass(frozen=True)
class Hdf5Container:
    """A `containers.Container`: an HDF5 file that has to stay as it was when it was opened first."""

    stamp: FileStamp

    @property
    def name(self) -> str:
        """The input as the user wrote it."""
        return self.stamp.name

    def check(self) -> None:
        """Raise ``BadInput`` if the file changed."""
        self.stamp.check()

    @contextmanager
    def open(self) -> Iterator[h5py.File]:
        """Open the file, as `open_hdf5_file` does."""
        self.check()
        with open_hdf5_file(self.stamp.path, self.name) as file:
            yield file

    def find(self, root: h5py.File, path: str) -> tuple[h5py.Group | h5py.Dataset, str] | None:
        """Return an object and its path with links resolved, as `find` does."""
        return find(root, path, self.name)

    def array(self, root: h5py.File, path: str) -> h5py.Dataset:
        """Return a dataset, as `find_dataset` does."""
        return find_dataset(root, path, self.name)

    def values(self, root: h5py.File, path: str, selection: Selection = ...) -> NDArray[Any]:
        """Return values of a dataset, strings as str."""
        return _read_values(self.array(root, path), selection)

    def groups(self, root: h5py.File) -> list[str]:
        """Return the path of each group that no soft or external link leads to."""
        found: list[str] = []
        root.visititems(lambda path, node: found.append(path) if isinstance(node, h5py.Group) else None)
        return found

    def digest(self, root: h5py.File, paths: Sequence[str], *options: object) -> str:
        """Return the fingerprint of the file as read with these options."""
        return self.stamp.digest(*options)

    def dense(self, root: h5py.File, path: str, transpose: bool) -> Table:
        """Return the table of a dataset."""
        return dataset_table(self.stamp, self.array(root, path), transpose)


def open_hdf5(request: Request) -> Table:
    """Return the table of a dataset, or of a matrix of an AnnData in the file; see `anndata_files.open_part`.

    The labels of a dataset may be another dataset or one of its columns.
    """
    container, name = Hdf5Container(FileStamp.of(request)), request.name
    with container.open() as file:
        located = anndata_files.locate(container, file, request.member)
        if located is not None:
            return anndata_files.open_part(container, file, *located, request)
        if request.member is None:
            anndata_files.refuse_inner(container, file)
        table = container.dense(file, _choose_dataset(file, request), request.transpose)
        labels_column = request.labels_column
        labels_node = find(file, labels_column, name) if isinstance(labels_column, str) else None
        if labels_node is None or not isinstance(labels_node[0], h5py.Dataset):
            return take_label_column(table, labels_column)
        labels = find_dataset(file, str(labels_column), name)
        return take_label_variable(
            table,
            str(labels_column),
            int(labels.size or 0),
            LabelReader(name, partial(label_pieces, container.stamp, labels.name)),
        )


def open_h5ad(request: Request) -> Table:
    """Return the table of a matrix of an AnnData, which the file holds by its name."""
    container = Hdf5Container(FileStamp.of(request))
    with container.open() as file:
        located = anndata_files.locate(container, file, request.member) or ("", request.member or "")
        return anndata_files.open_part(container, file, *located, request)


def _read_values(dataset: h5py.Dataset, selection: Selection) -> NDArray[Any]:
    """Return values of a dataset, strings as str."""
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
            values = _read_values(find_dataset(file, path, stamp.name), selection)
        yield values


def is_dataset(group: h5py.Group, part: str) -> bool:
    """Return whether a group holds a dataset of that name."""
    return isinstance(group.get(part, getlink=True), h5py.HardLink) and isinstance(group[part], h5py.Dataset)

"""The Zarr format, version 2 or 3: arrays on disk, behind a URL or open already, read by ranges of chunks."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore

from ips2_dask.errors import BadInput
from ips2_dask.readers import anndata_files, faults
from ips2_dask.readers.base import (
    GRAIN_BYTES,
    Block,
    DType,
    Request,
    Rows,
    Table,
    check_dtype,
    check_shape,
    digest,
    is_matrix,
)
from ips2_dask.readers.containers import Selection, is_array
from ips2_dask.readers.labels import LabelReader, take_label_column, take_label_variable, vector_ranges
from ips2_dask.readers.matrices import content_digest, matrix_table
from ips2_dask.store.remote import is_remote, open_zarr, reaching

# Codecs that only pack, shuffle or scale numbers, or hold text. Others exist that unpickle what a chunk holds.
STRUCTURE = ("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "crc32", "adler32", "fletcher32")
PACKERS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4")
SCALERS = ("shuffle", "delta", "fixedscaleoffset", "bitround", "packbits", "astype")
TEXTS = ("vlen-utf8", "vlen-bytes")
CODECS = frozenset((*STRUCTURE, *PACKERS, *SCALERS, *TEXTS))
ZarrArray = zarr.Array[Any]  # of format 2 or 3, whose metadata differ
Node = Any  # a ZarrArray or a zarr.Group: what is stored decides


@dataclass
class ZarrRows(Rows):
    """The rows of an array, or its columns where it is seen as its transpose; opened once in each process."""

    name: str
    open_array: Callable[[], ZarrArray]
    transpose: bool
    n_rows: int
    grain: int

    def __post_init__(self) -> None:
        self._array: Any = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_array": None}

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        with faults.reading(self.name):
            if self._array is None:
                self._array = self.open_array()
            values = np.asarray(self._array[:, start:stop].T if self.transpose else self._array[start:stop])
            return np.ascontiguousarray(values)


def is_zarr(path: str) -> bool:
    """Return whether a folder is a Zarr array or group."""
    return any(os.path.isfile(os.path.join(path, file)) for file in ("zarr.json", ".zarray", ".zgroup"))


class ZarrContainer:
    """A `containers.Container`: a Zarr group on disk or behind a URL, opened once in each process.

    Attributes
    ----------
    name : str
        The input as the user wrote it.
    path : str
        Folder or URL of the root.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self._root: Node = None
        self._arrays: dict[str, ZarrArray] = {}

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return ZarrContainer, (self.name, self.path)

    def check(self) -> None:
        """Do nothing: what changes in a folder is not looked for while it is read."""

    @contextmanager
    def open(self) -> Iterator[Node]:
        """Open the root, read only."""
        if self._root is None:
            self._root = _open_node(self.path, "", self.name)
        with faults.reading(self.name):
            yield self._root

    def find(self, root: Node, path: str) -> tuple[Node, str] | None:
        """Return the group or array at a path, and the path."""
        path = path.strip("/")
        node = (root.get(path) if isinstance(root, zarr.Group) else None) if path else root
        return None if node is None else (node, path)

    def array(self, root: Node, path: str) -> ZarrArray:
        """Return an array that only numbers and text are unpacked for."""
        array = self._arrays.get(path)
        if array is None:
            located = self.find(root, path)
            if located is None or not isinstance(located[0], zarr.Array):
                raise faults.absent(self.name, "array", path, [] if is_array(root) else _paths(root))
            array = located[0]
            _check_codecs(array, self.name)
            self._arrays[path] = array
        return array

    def values(self, root: Node, path: str, selection: Selection = ...) -> NDArray[Any]:
        """Return values of an array."""
        return np.asarray(self.array(root, path)[selection])

    def groups(self, root: Node) -> list[str]:
        """Return the path of each group."""
        return [path for path, node in _members(root) if isinstance(node, zarr.Group)]

    def digest(self, root: Node, paths: Sequence[str], *options: object) -> str:
        """Return a digest of the stored objects of some arrays, and of how they are read."""
        return digest(*(_stored(self.name, self.array(root, path)) for path in paths), *options)

    def dense(self, root: Node, path: str, transpose: bool) -> Table:
        """Return the table of an array."""
        return _table(self.name, self.array(root, path), partial(_open_node, self.path, path, self.name), transpose)


def open_zarr_path(request: Request) -> Table:
    """Return the table of an array on disk or behind a URL, or of a matrix of an AnnData.

    The labels of an array may be another array or one of its columns; see `anndata_files.open_part` for an AnnData.
    """
    name, labels_column = request.name, request.labels_column
    container = ZarrContainer(name, request.path if "://" in request.path else os.path.abspath(request.path))
    with container.open() as root:
        located = anndata_files.locate(container, root, request.member)
        if located is not None:
            return anndata_files.open_part(container, root, *located, request)
        if request.member is None and not is_array(root):
            anndata_files.refuse_inner(container, root)
        table = container.dense(
            root, _choose(root, request) if request.member is None else request.member, request.transpose
        )
        found = container.find(root, labels_column) if isinstance(labels_column, str) else None
        if found is None or is_array(root) or not is_array(found[0]):
            return take_label_column(table, labels_column)
        labels = container.array(root, str(labels_column))
        pieces = partial(_label_pieces, container.path, str(labels_column), name)
        return take_label_variable(table, str(labels_column), math.prod(labels.shape), LabelReader(name, pieces))


def open_zarr_array(array: ZarrArray, labels_column: str | int | None, transpose: bool) -> Table:
    """Return the table of an array the caller has opened, of which one column may hold the labels."""
    name = "the Zarr array given"
    store = array.store_path.store
    if isinstance(store, MemoryStore):  # which pickles as an empty one, and then gives fill values
        _check(name, array)
        with faults.reading(name):
            values = np.asarray(array[...])
        table = matrix_table(values.T if transpose else values, name)
    elif isinstance(store, LocalStore):
        path = os.path.join(os.path.abspath(store.root), array.store_path.path)
        table = _table(name, array, partial(_open_node, path, "", name), transpose)
    else:
        table = _table(name, array, partial(_itself, array), transpose)
    return take_label_column(table, labels_column)


def _itself(array: ZarrArray) -> ZarrArray:
    return array


def _open_node(path: str, member: str, name: str) -> Node:
    """Open an array or group, read only."""
    try:
        store = open_zarr(path, read_only=True) if is_remote(path) else LocalStore(path, read_only=True)
        with reaching(path):
            return zarr.open(store=store, path=member or None, mode="r")
    except BadInput:
        raise
    except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
        faults.throw(_no_node(name, error))
    except Exception as error:
        faults.throw(faults.unreadable(name, error))


def _no_node(name: str, error: Exception) -> BadInput:
    return BadInput(
        name,
        f"no Zarr array or group ({' '.join(str(error).split())[:200]})",
        "a folder or URL with a zarr.json, .zarray or .zgroup",
        "there would be nothing to read",
        "check the path",
    )


def _members(group: zarr.Group) -> list[tuple[str, Node]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of files in the folder that are not its own
        return sorted(group.members(max_depth=None), key=lambda member: str(member[0]))


def _arrays(group: zarr.Group) -> Iterator[tuple[str, ZarrArray]]:
    yield from ((path, node) for path, node in _members(group) if isinstance(node, zarr.Array))


def _paths(group: zarr.Group) -> list[str]:
    return [path for path, _ in _arrays(group)]


def _describe(group: zarr.Group) -> list[str]:
    return [f"{path} {array.shape} {array.dtype}" for path, array in _arrays(group)]


def _choose(root: Node, request: Request) -> str:
    """Return the path of the only matrix of numbers of a group; that of an array is empty."""
    if not isinstance(root, zarr.Group):
        return ""
    with faults.reading(request.name):
        suitable = [
            path
            for path, array in _arrays(root)
            if is_matrix(array.shape, np.dtype(array.dtype)) and path != request.labels_column
        ]
        if len(suitable) != 1:
            raise faults.undecided(request.name, "array", suitable, _describe(root))
    return suitable[0]


def _check(name: str, array: ZarrArray) -> tuple[tuple[int, int], DType]:
    checked = check_shape(name, array.shape), check_dtype(name, np.dtype(array.dtype))
    _check_codecs(array, name)
    return checked


def _table(name: str, array: ZarrArray, open_array: Callable[[], ZarrArray], transpose: bool) -> Table:
    shape, dtype = _check(name, array)
    m, f = shape[::-1] if transpose else shape
    chunks = array.shards or array.chunks  # a shard is one object of the store
    grain = int(chunks[1 if transpose else 0])
    store = array.store_path.store
    return Table(
        name=name,
        shape=(m, f),
        dtype=dtype,
        rows=ZarrRows(name, open_array, transpose, m, grain if grain * f * dtype.itemsize <= GRAIN_BYTES else 1),
        parallel=isinstance(store, LocalStore | FsspecStore),
        resident_bytes=0,
        fingerprint=digest(_stored(name, array), transpose),
    )


def _check_codecs(array: ZarrArray, name: str) -> None:
    """Raise ``BadInput`` if decoding an array's chunks takes anything but unpacking numbers."""
    described: dict[str, Any] = dict(array.metadata.to_dict())
    packers = described.get("codecs") or [described.get("compressor"), *(described.get("filters") or ())]
    unknown = [codec for codec in _codec_names(packers) if codec not in CODECS]
    if unknown:
        raise faults.pickled(name, f"chunks written with the codec {unknown[0]!r}")


def _codec_names(codecs: Any) -> Iterator[str]:
    for codec in codecs:
        if codec is None:
            continue
        described = codec if isinstance(codec, dict) else codec.to_dict()
        yield str(described.get("name", described.get("id"))).removeprefix("numcodecs.")
        inner = described.get("configuration") or {}
        yield from _codec_names([*inner.get("codecs", ()), *inner.get("index_codecs", ())])


def _stored(name: str, array: ZarrArray) -> str:
    """Return a digest of the stored objects' names, sizes and times, or of the values where the store has none."""
    place = array.store_path
    with faults.reading(name):
        if isinstance(place.store, LocalStore):
            return digest("zarr", *_files(os.path.join(place.store.root, place.path)))
        if isinstance(place.store, FsspecStore):
            return digest("zarr", repr(array.metadata.to_dict()), *_objects(place))
        step = max(1, array.chunks[0])
        return digest("zarr", *(content_digest(array[row : row + step]) for row in range(0, array.shape[0], step)))


def _files(root: str) -> list[tuple[str, int, int]]:
    entries = []
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.join(folder, file)
            status = os.stat(path)
            entries.append((os.path.relpath(path, root), status.st_size, status.st_mtime_ns))
    return sorted(entries)


def _objects(place: Any) -> list[tuple[str, ...]]:
    """Return name, size, and the tag or time of each object of a remote array, as far as its protocol lists them."""
    root = "/".join(part for part in (place.store.path, place.path) if part)
    try:
        objects = sync(place.store.fs._find(root, detail=True))
    except Exception:  # plain HTTP has no listing: then the array's metadata and URL have to do
        return [(root,)]
    keys = ("size", "ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created")
    return sorted(
        (path.removeprefix(root), *(str(details.get(key)) for key in keys)) for path, details in objects.items()
    )


def _label_pieces(path: str, member: str, name: str) -> Iterator[NDArray[Any]]:
    """Yield the values of an array piece by piece, each of whole chunks."""
    array = _open_node(path, member, name)
    for selection in vector_ranges(array.shape, max(array.chunks, default=1)):
        with faults.reading(name):
            values = np.asarray(array[selection])
        yield values

"""Trees of arrays, HDF5 files and Zarr groups, seen alike: tables of dense and sparse matrices in them, by rows."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any

import h5py
import numpy as np
import zarr
from scipy import sparse
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore

from ips2_dask.errors import BadInput
from ips2_dask.readers import base, faults, labels
from ips2_dask.store.remote import is_remote, open_zarr, reaching
from ips2_dask.typing import AnyArray

Node = Any  # a group or an array of h5py or Zarr, which offer the same attributes
ZarrArray = zarr.Array[Any]  # of format 2 or 3, whose metadata differ
Selection = slice | tuple[slice, ...] | EllipsisType

# Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, n-bit, scale-offset and lzf. Any other
# would make the library load a plug-in from wherever the environment says.
FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
FLETCHER32, FLETCHER32_BYTES = 3, 4
MOST_LINKS = 16

HEAP = b"GCOL"
HEAPS_BYTES = 1 << 28
"""Files up to this size are searched for broken heaps, which takes up to a tenth of a second."""

# Codecs that only pack, shuffle or scale numbers, or hold text. Others exist that unpickle what a chunk holds.
STRUCTURE = ("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "crc32", "adler32", "fletcher32")
PACKERS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4")
SCALERS = ("shuffle", "delta", "fixedscaleoffset", "bitround", "packbits", "astype")
CODECS = frozenset((*STRUCTURE, *PACKERS, *SCALERS, "vlen-utf8", "vlen-bytes"))


def is_array(node: Node) -> bool:
    """Return whether a node is an array."""
    return hasattr(node, "dtype")


class Tree:
    """A tree of groups and arrays; it is pickled by its path and opened in each process.

    Attributes
    ----------
    name : str
        The input as the user wrote it, for messages.
    kind : str
        What messages call an array.
    parallel : bool
        Whether any process can read its arrays by ranges.
    """

    name: str
    kind: str
    parallel: bool = True

    def open(self) -> AbstractContextManager[Node]:
        """Open the root, read only; any exception of the library in the body becomes a ``BadInput``."""
        raise NotImplementedError

    def find(self, root: Node, path: str) -> tuple[Node, str] | None:
        """Return the group or array at ``path`` and its path with links resolved, or None if there is none."""
        raise NotImplementedError

    def members(self, root: Node) -> list[tuple[str, Node]]:
        """Return path and node of each group and array below the root, but not of those behind links."""
        raise NotImplementedError

    def digest(self, root: Node, paths: Sequence[str], *options: object) -> str:
        """Return the fingerprint of some arrays as read with these options."""
        raise NotImplementedError

    def _check_array(self, array: Node) -> None:
        """Raise ``BadInput`` unless reading an array runs no code and stays inside the tree."""
        raise NotImplementedError

    def get(self, root: Node, path: str) -> Node | None:
        """Return the group or array at a path, or None if there is none."""
        located = self.find(root, path)
        return None if located is None else located[0]

    def array(self, root: Node, path: str) -> Node:
        """Return the array at ``path``, after checking that reading it runs no code and stays inside the tree."""
        node = self.get(root, path)
        if node is None or not is_array(node):
            raise faults.absent(self.name, self.kind, path, [place for place, _ in self._arrays(root)])
        self._check_array(node)
        return node

    def values(self, root: Node, path: str, selection: Selection = ...) -> AnyArray:
        """Return values of the array at ``path``, text as str; all of them if none are selected."""
        array = self.array(root, path)
        text = isinstance(array, h5py.Dataset) and h5py.check_string_dtype(array.dtype) is not None
        return np.asarray((array.asstr() if text else array)[selection])

    def _arrays(self, root: Node) -> list[tuple[str, Node]]:
        members = [] if is_array(root) else self.members(root)
        return [(path, node) for path, node in members if is_array(node)]

    def choose(self, root: Node, request: base.Request) -> str:
        """Return the path of the array to read: the one named, or the only matrix of numbers."""
        if request.member is not None or is_array(root):
            return request.member or ""
        found = [
            (path, f"{node.shape} {node.dtype}", base.is_matrix(node.shape, np.dtype(node.dtype)))
            for path, node in self._arrays(root)
        ]
        return faults.only_matrix(self.name, self.kind, found, request.labels_column)

    def dense(self, root: Node, path: str, transpose: bool) -> base.Table:
        """Return the table of the array at ``path``."""
        array = self.array(root, path)
        if array.shape is None:
            found, allowed = f"an empty dataset, {path!r}", "a matrix of numbers"
            raise BadInput(self.name, found, allowed, "there would be nothing to cluster", "name another dataset")
        shape, dtype = base.check_shape(self.name, array.shape), base.check_dtype(self.name, np.dtype(array.dtype))
        m, f = shape[::-1] if transpose else shape
        chunks = getattr(array, "shards", None) or array.chunks or (1, 1)  # a shard is one object of the store
        grain = int(chunks[1 if transpose else 0])
        grain = grain if grain * f * dtype.itemsize <= base.GRAIN_BYTES else 1
        return base.Table(
            name=self.name,
            shape=(m, f),
            dtype=dtype,
            rows=ArrayRows(self, path, transpose, m, grain),
            parallel=self.parallel,
            fingerprint=self.digest(root, [path], transpose),
        )


@dataclass
class ArrayRows(base.Rows):
    """The rows of an array, or its columns where it is seen as its transpose."""

    tree: Tree
    path: str
    transpose: bool
    n_rows: int
    grain: int

    def read(self, start: int, stop: int) -> AnyArray:
        with self.tree.open() as root:
            array = self.tree.array(root, self.path)
            values = np.asarray(array[:, start:stop].T if self.transpose else array[start:stop])
            return np.ascontiguousarray(values)


def open_zarr_array(array: ZarrArray, request: base.Request) -> base.Table:
    """Return the table of an array the caller has opened."""
    name, store = "the Zarr array given", array.store_path.store
    tree = ZarrTree(name, array)
    if isinstance(store, LocalStore):
        tree = ZarrTree(name, os.path.join(os.path.abspath(store.root), array.store_path.path))
    with tree.open() as root:
        table = tree.dense(root, "", request.transpose)
        if isinstance(store, MemoryStore):  # which pickles as an empty one, and then gives fill values
            table = base.matrix_table(table.read(0, table.shape[0]), name)
    return table


def vector_ranges(shape: tuple[int, ...], grain: int = 1) -> Iterator[tuple[slice, ...]]:
    """Yield selections that divide an array of labels into pieces, in the order of its values.

    Each is of whole chunks, which have ``grain`` labels. An array of several rows and columns is one piece.
    """
    n = max(shape, default=1)
    if math.prod(shape) != n:
        yield tuple(slice(None) for _ in shape)
        return
    step = max(labels.PIECE_LABELS // grain, 1) * grain
    for low in range(0, n, step):
        yield tuple(slice(low, low + step) if length == n else slice(None) for length in shape)


def label_pieces(tree: Tree, path: str) -> Iterator[AnyArray]:
    """Yield the values of an array piece by piece; the tree is opened for each."""
    with tree.open() as root:
        array = tree.array(root, path)
        ranges = vector_ranges(array.shape, max(array.chunks or (1,), default=1))
    for selection in ranges:
        with tree.open() as root:
            values = tree.values(root, path, selection)
        yield values


@dataclass(frozen=True)
class Compressed:
    """The paths of a compressed matrix's values, indices and pointers, its shape, and which axis is compressed."""

    parts: tuple[str, str, str]
    shape: tuple[int, int]
    by_row: bool

    def transposed(self) -> Compressed:
        """Return the same arrays seen as the transpose."""
        return Compressed(self.parts, self.shape[::-1], not self.by_row)


@dataclass
class CompressedRows(base.Rows):
    """The rows of a matrix compressed by row, made dense; reads the stretch of entries that belongs to them."""

    tree: Tree
    matrix: Compressed

    def __post_init__(self) -> None:
        self.n_rows = self.matrix.shape[0]

    def read(self, start: int, stop: int) -> AnyArray:
        return np.asarray(self._between(start, stop).toarray())

    def csr(self) -> sparse.csr_array:
        return self._between(0, self.n_rows)

    def _between(self, start: int, stop: int) -> sparse.csr_array:
        """Return rows start to stop as they are stored."""
        matrix = self.matrix
        with self.tree.open() as root:
            values, indices, indptr = (self.tree.array(root, path) for path in matrix.parts)
            bounds = indptr[start : stop + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            parts = (values[first:last], indices[first:last], bounds - first)
            rows = sparse.csr_array(parts, shape=(stop - start, matrix.shape[1]))
        return base.as_csr(rows, self.tree.name)


def compressed_table(tree: Tree, root: Node, matrix: Compressed) -> base.Table:
    """Return the table of a compressed matrix: in parts if it is compressed by row, else whole."""
    name = tree.name
    m, f = base.check_shape(name, matrix.shape)
    values, indices, indptr = (tree.array(root, path) for path in matrix.parts)
    dtype = base.check_dtype(name, np.dtype(values.dtype))
    _check_compressed(name, matrix, values, indices, indptr)
    fingerprint = tree.digest(root, matrix.parts, "compressed", matrix)
    if not matrix.by_row:
        return base.loaded_table(partial(_load_compressed, tree, matrix), name, fingerprint)
    return base.Table(name=name, shape=(m, f), dtype=dtype, rows=CompressedRows(tree, matrix), fingerprint=fingerprint)


def _check_compressed(name: str, matrix: Compressed, values: Node, indices: Node, indptr: Node) -> None:
    major = matrix.shape[0 if matrix.by_row else 1]
    one_dimensional = all(part.shape is not None and len(part.shape) == 1 for part in (values, indices, indptr))
    integers = np.dtype(indices.dtype).kind in "iu" and np.dtype(indptr.dtype).kind in "iu"
    fits = one_dimensional and integers and indptr.shape[0] == major + 1 and values.shape == indices.shape
    last = int(indptr[-1]) if fits else 0
    if not fits or last > values.shape[0]:
        found = f"a sparse matrix whose arrays have the shapes {values.shape}, {indices.shape} and {indptr.shape}"
        allowed = f"{major + 1} pointers, and as many indices as values"
        raise BadInput(name, found, allowed, "its entries could not be placed", "write the matrix again")


def _load_compressed(tree: Tree, matrix: Compressed) -> base.Matrix:
    """Return a matrix that is compressed by column as CSR."""
    with tree.open() as root:
        values, indices, indptr = (tree.array(root, path) for path in matrix.parts)
        parts = (values[...], indices[...].astype(np.int64), indptr[...].astype(np.int64))
        columns = sparse.csc_array(parts, shape=matrix.shape)
    return base.as_csr(columns, tree.name)


@dataclass(frozen=True)
class Hdf5Tree(Tree):
    """An HDF5 file that has to stay as it was when it was opened first."""

    stamp: base.FileStamp
    kind = "dataset"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The input as the user wrote it."""
        return self.stamp.name

    @contextmanager
    def open(self) -> Iterator[h5py.File]:
        """Open the file; the whole body is covered, as reading any shape, type or attribute of a damaged one may fail.

        Files that this one links to are not opened: `find` alone follows links.
        """
        self.stamp.check()
        _check_heaps(self.stamp.path, self.name)
        with faults.reading(self.name), h5py.File(self.stamp.path, "r", locking="best-effort") as file:
            yield file

    def find(self, root: h5py.File, path: str) -> tuple[Node, str] | None:
        """As of `Tree`; raises ``BadInput`` if a link on the way points to another file."""
        parts, real_path = [part for part in path.split("/") if part], [""]
        group, n_links = root, 0
        while parts:
            part = parts.pop(0)
            if not isinstance(group, h5py.Group):
                return None
            link = group.get(part, getlink=True)
            if link is None:
                return None
            if isinstance(link, h5py.ExternalLink):
                raise faults.outside(self.name, f"an external link, {path!r}, to {link.filename!r}")
            if isinstance(link, h5py.SoftLink):
                n_links += 1
                if n_links > MOST_LINKS:
                    return None
                parts = [piece for piece in link.path.split("/") if piece and piece != "."] + parts
                if link.path.startswith("/"):
                    group, real_path = root, [""]
                continue
            group = group[part]
            real_path.append(part)
        return group, "/".join(real_path) or "/"

    def members(self, root: h5py.File) -> list[tuple[str, Node]]:
        found: list[tuple[str, Node]] = []

        def visit(path: str, node: Node) -> None:
            if not path.startswith("#"):
                found.append((path, node))

        root.visititems(visit)
        return found

    def digest(self, root: h5py.File, paths: Sequence[str], *options: object) -> str:
        return self.stamp.digest("hdf5", paths, *options)

    def _check_array(self, array: h5py.Dataset) -> None:
        """Raise ``BadInput`` unless a dataset's values are in the file and readable without plug-ins."""
        if array.external:
            raise faults.outside(self.name, f"values of {array.name!r} that are stored in {array.external[0][0]!r}")
        if array.is_virtual:
            raise faults.outside(self.name, f"a virtual dataset, {array.name!r}, made of other files")
        properties = array.id.get_create_plist()
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        unknown = [code for code in filters if code not in FILTERS]
        if unknown:
            raise BadInput(
                self.name,
                f"the HDF5 filter {unknown[0]} on {array.name!r}",
                "the filters that come with HDF5 (gzip, shuffle, szip) and lzf",
                "a plug-in from outside of this package would have to be loaded",
                "write the dataset again with gzip, for instance with h5repack -f GZIP=4",
            )
        if FLETCHER32 in filters:
            _check_checksums(array, self.name)


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


def _check_checksums(dataset: h5py.Dataset, name: str) -> None:
    """Raise ``BadInput`` where a chunk is shorter than its checksum: libhdf5 reads on, and ends the process."""
    short: list[int] = []

    def look(chunk: h5py.h5d.StoreInfo) -> None:
        if chunk.size < FLETCHER32_BYTES:
            short.append(chunk.size)

    dataset.id.chunk_iter(look)
    if short:
        raise faults.unreadable(name, ValueError(f"a chunk of {dataset.name!r} has {short[0]} bytes, its checksum 4"))


def is_zarr(path: str) -> bool:
    """Return whether a folder is a Zarr array or group."""
    return any(os.path.isfile(os.path.join(path, file)) for file in ("zarr.json", ".zarray", ".zgroup"))


class ZarrTree(Tree):
    """A Zarr group or array on disk or behind a URL, opened once in each process, or an array that is open already."""

    kind = "array"

    def __init__(self, name: str, place: str | ZarrArray) -> None:
        self.name, self._place = name, place
        self._root: Node = None if isinstance(place, str) else place
        self._nodes: dict[str, Node] = {}
        self.parallel = isinstance(place, str) or isinstance(place.store_path.store, LocalStore | FsspecStore)

    def __reduce__(self) -> tuple[type, tuple[str, str | ZarrArray]]:
        return ZarrTree, (self.name, self._place)

    @contextmanager
    def open(self) -> Iterator[Node]:
        if self._root is None:
            self._root = _open_node(str(self._place), self.name)
        with faults.reading(self.name):
            yield self._root

    def find(self, root: Node, path: str) -> tuple[Node, str] | None:
        path = path.strip("/")
        node = self._nodes.get(path)
        if node is None:
            node = (root.get(path) if isinstance(root, zarr.Group) else None) if path else root
        if node is None:
            return None
        self._nodes[path] = node
        return node, path

    def members(self, root: Node) -> list[tuple[str, Node]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns of files in the folder that are not its own
            return sorted(root.members(max_depth=None), key=lambda member: str(member[0]))

    def digest(self, root: Node, paths: Sequence[str], *options: object) -> str:
        return base.digest(*(_stored(self.array(root, path)) for path in paths), *options)

    def _check_array(self, array: ZarrArray) -> None:
        """Raise ``BadInput`` if decoding an array's chunks takes anything but unpacking numbers."""
        described: dict[str, Any] = dict(array.metadata.to_dict())
        packers = described.get("codecs") or [described.get("compressor"), *(described.get("filters") or ())]
        unknown = [codec for codec in _codec_names(packers) if codec not in CODECS]
        if unknown:
            raise faults.pickled(self.name, f"chunks written with the codec {unknown[0]!r}")


def _open_node(path: str, name: str) -> Node:
    """Open an array or group, read only."""
    try:
        store = open_zarr(path, read_only=True) if is_remote(path) else LocalStore(path, read_only=True)
        with reaching(path):
            return zarr.open(store=store, mode="r")
    except BadInput:
        raise
    except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
        faults.throw(
            BadInput(
                name,
                f"no Zarr array or group ({' '.join(str(error).split())[:200]})",
                "a folder or URL with a zarr.json, .zarray or .zgroup",
                "there would be nothing to read",
                "check the path",
            )
        )
    except Exception as error:
        faults.throw(faults.unreadable(name, error))


def _codec_names(codecs: Any) -> Iterator[str]:
    for codec in codecs:
        if codec is None:
            continue
        described = codec if isinstance(codec, dict) else codec.to_dict()
        yield str(described.get("name", described.get("id"))).removeprefix("numcodecs.")
        inner = described.get("configuration") or {}
        yield from _codec_names([*inner.get("codecs", ()), *inner.get("index_codecs", ())])


def _stored(array: ZarrArray) -> str:
    """Return a digest of the stored objects' names, sizes and times, or of the values where the store has none."""
    place = array.store_path
    if isinstance(place.store, LocalStore):
        return base.digest("zarr", *_files(os.path.join(place.store.root, place.path)))
    if isinstance(place.store, FsspecStore):
        return base.digest("zarr", repr(array.metadata.to_dict()), *_objects(place))
    step = max(1, array.chunks[0])
    return base.digest(
        "zarr", *(base.content_digest(array[row : row + step]) for row in range(0, array.shape[0], step))
    )


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

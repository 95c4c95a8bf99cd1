"""Trees of arrays, HDF5 files and Zarr groups, seen alike: matrices in them, and AnnDatas' names and labels."""

from __future__ import annotations

import math
import mmap
import os
import posixpath
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
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
from ips2_dask.readers.columns import counted_names, find_column, take_label_variable
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
HEAP, HEAP_OBJECT = b"GCOL", struct.Struct("<H6xQ")
HEAPS_BYTES = 1 << 28  # files up to this size are searched for broken heaps, which takes up to a tenth of a second

# Codecs that only pack, shuffle or scale numbers, or hold text. Others exist that unpickle what a chunk holds.
STRUCTURE = ("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "crc32", "adler32", "fletcher32")
PACKERS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4")
SCALERS = ("shuffle", "delta", "fixedscaleoffset", "bitround", "packbits", "astype")
CODECS = frozenset((*STRUCTURE, *PACKERS, *SCALERS, "vlen-utf8", "vlen-bytes"))


def is_array(node: Node) -> bool:
    """Return whether a node is an array."""
    return hasattr(node, "dtype")


class Tree:
    """A tree of groups and arrays; it is pickled by its path and opened in each process."""

    name: str  # the input as the user wrote it, for messages
    kind: str  # what messages call an array
    parallel: bool = True  # whether any process can read its arrays by ranges
    # opens the root, read only; any exception of the library in the body becomes a ``BadInput``
    open: Callable[[], AbstractContextManager[Node]]
    get: Callable[[Node, str], Node | None]  # the group or array at a path below the root, None if there is none
    members: Callable[[Node], list[tuple[str, Node]]]  # path and node of all below the root, not of those behind links
    digest: Callable[..., str]  # the fingerprint of the arrays at some paths below the root, as read with some options
    check_array: Callable[[Node], None]  # refuses an array unless reading it runs no code and stays inside the tree

    def array(self, root: Node, path: str) -> Node:
        """Return the array at ``path``, after checking that reading it runs no code and stays inside the tree."""
        node = self.get(root, path)
        if node is None or not is_array(node):
            raise faults.absent(self.name, self.kind, path, [place for place, _ in self._arrays(root)])
        self.check_array(node)
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
        m, f = base.check_shape(self.name, array.shape)[:: -1 if transpose else 1]
        chunks = getattr(array, "shards", None) or array.chunks or (1, 1)  # a shard is one object of the store
        grain = int(chunks[1 if transpose else 0])
        rows = ArrayRows(self, path, transpose, grain if grain * f * array.dtype.itemsize <= base.GRAIN_BYTES else 1)
        fingerprint = self.digest(root, [path], transpose)
        return base.Table(self.name, (m, f), np.dtype(array.dtype), rows, fingerprint, self.parallel)


@dataclass
class ArrayRows(base.Rows):
    """The rows of an array, or its columns where it is seen as its transpose."""

    tree: Tree
    path: str
    transpose: bool
    grain: int

    def read(self, start: int, stop: int) -> AnyArray:
        with self.tree.open() as root:
            array = self.tree.array(root, self.path)
            values = np.asarray(array[:, start:stop].T if self.transpose else array[start:stop])
            return np.ascontiguousarray(values)


def open_zarr_array(array: ZarrArray, request: base.Request) -> base.Table:
    """Return the table of an array the caller has opened."""
    name, store = "the Zarr array given", array.store_path.store
    tree = _ZarrTree(name, array)
    if isinstance(store, LocalStore):
        tree = _ZarrTree(name, os.path.join(os.path.abspath(store.root), array.store_path.path))
    with tree.open() as root:
        table = tree.dense(root, "", request.transpose)
        if isinstance(store, MemoryStore):  # which pickles as an empty one, and then gives fill values
            table = base.matrix_table(table.read(0, table.shape[0]), name)
    return table


def label_pieces(tree: Tree, path: str) -> Iterator[AnyArray]:
    """Yield the values of an array, or of a column of a data frame, by whole chunks; those of a matrix at once."""
    with tree.open() as root:
        array = _column(tree, root, path)[1]
        shape, grain = array.shape, max(array.chunks or (1,), default=1)
        n = max(shape, default=1)
        step = n if math.prod(shape) != n else max(labels.PIECE_LABELS // grain, 1) * grain
        for low in range(0, n, step):
            selection = tuple(slice(low, low + step) if length == n else slice(None) for length in shape)
            yield _column_values(tree, root, path, selection)


@dataclass
class CompressedRows(base.Rows):
    """The rows of a matrix compressed by row, made dense; reads the stretch of entries that belongs to them.

    ``parts`` are the paths of its values, indices and pointers.
    """

    tree: Tree
    parts: Sequence[str]
    n_rows: int
    n_columns: int

    def read(self, start: int, stop: int) -> AnyArray:
        return np.asarray(base.as_csr(self.stored(start, stop), self.tree.name).toarray())

    def csr(self) -> sparse.csr_array:
        return base.as_csr(self.stored(0, self.n_rows), self.tree.name)

    def stored(self, start: int, stop: int) -> sparse.csr_array:
        """Return rows start to stop as they are stored, unchecked."""
        with self.tree.open() as root:
            values, indices, indptr = (self.tree.array(root, path) for path in self.parts)
            bounds = indptr[start : stop + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            entries = (values[first:last], indices[first:last], bounds - first)
            return sparse.csr_array(entries, shape=(stop - start, self.n_columns))


def compressed_table(tree: Tree, root: Node, parts: Sequence[str], shape: tuple[int, ...], by_row: bool) -> base.Table:
    """Return the table of a compressed matrix as `CompressedRows`, or whole if it is compressed by column."""
    name, (m, f) = tree.name, base.check_shape(tree.name, shape)
    rows = CompressedRows(tree, parts, *((m, f) if by_row else (f, m)))
    arrays = values, indices, indptr = [tree.array(root, path) for path in parts]
    fits = all(part.shape is not None and len(part.shape) == 1 for part in arrays)
    fits = fits and all(np.dtype(part.dtype).kind in "iu" for part in (indices, indptr))
    fits = fits and indptr.shape[0] == rows.n_rows + 1 and values.shape == indices.shape
    if not fits or int(indptr[-1]) > values.shape[0]:
        found = f"a sparse matrix whose arrays have the shapes {', '.join(str(part.shape) for part in arrays)}"
        allowed = f"{rows.n_rows + 1} pointers, and as many indices as values"
        raise BadInput(name, found, allowed, "its entries could not be placed", "write the matrix again")
    fingerprint = tree.digest(root, parts, "compressed", shape, by_row)
    if not by_row:
        return base.loaded_table(partial(rows.stored, 0, rows.n_rows), name, fingerprint, True)
    return base.Table(name, (m, f), np.dtype(values.dtype), rows, fingerprint)


class Hdf5Tree(Tree):
    """An HDF5 file that has to stay as it was when it was opened first."""

    kind = "dataset"

    def __init__(self, stamp: base.FileStamp) -> None:
        self.stamp, self.name = stamp, stamp.name

    @contextmanager
    def open(self) -> Iterator[h5py.File]:
        """Open the file; the whole body is covered, as reading a shape, type or attribute of a damaged one may fail."""
        self.stamp.check()
        _check_heaps(self.stamp.path, self.name)
        with faults.reading(self.name), h5py.File(self.stamp.path, "r", locking="best-effort") as file:
            yield file

    def get(self, root: h5py.File, path: str, n_links: int = 0) -> Node | None:
        """As of `Tree`; raises ``BadInput`` if a link on the way points to another file."""
        node, parts = root, [part for part in path.split("/") if part not in ("", ".")]
        for place, part in enumerate(parts, 1):
            link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
            if isinstance(link, h5py.ExternalLink):
                raise faults.outside(self.name, f"an external link, {path!r}, to {link.filename!r}")
            if isinstance(link, h5py.SoftLink):
                target = posixpath.join(*parts[: place - 1], link.path, *parts[place:])
                return self.get(root, target, n_links + 1) if n_links < MOST_LINKS else None
            if link is None:
                return None
            node = node[part]
        return node

    def members(self, root: h5py.File) -> list[tuple[str, Node]]:
        found: list[tuple[str, Node]] = []
        root.visititems(lambda path, node: found.append((path, node)))
        return [(path, node) for path, node in found if not path.startswith("#")]

    def digest(self, root: h5py.File, paths: Sequence[str], *options: object) -> str:
        return self.stamp.digest("hdf5", paths, *options)

    def check_array(self, array: h5py.Dataset) -> None:
        """Raise ``BadInput`` unless a dataset's values are in the file and readable without plug-ins."""
        if array.external:
            raise faults.outside(self.name, f"values of {array.name!r} that are stored in {array.external[0][0]!r}")
        if array.is_virtual:
            raise faults.outside(self.name, f"a virtual dataset, {array.name!r}, made of other files")
        properties = array.id.get_create_plist()
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        unknown = [code for code in filters if code not in FILTERS]
        if unknown:
            allowed = "the filters that come with HDF5 (gzip, shuffle, szip) and lzf"
            otherwise = "a plug-in from outside of this package would have to be loaded"
            remedy = "write the dataset again with gzip, for instance with h5repack -f GZIP=4"
            raise BadInput(self.name, f"the HDF5 filter {unknown[0]} on {array.name!r}", allowed, otherwise, remedy)
        sizes = [FLETCHER32_BYTES]  # a chunk may be shorter than its checksum: libhdf5 reads on, and ends the process
        if FLETCHER32 in filters:
            array.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
        if min(sizes) < FLETCHER32_BYTES:
            found = f"a chunk of {array.name!r} has {min(sizes)} bytes, its checksum {FLETCHER32_BYTES}"
            raise faults.unreadable(self.name, ValueError(found))


def _check_heaps(path: str, name: str) -> None:
    """Raise ``BadInput`` where a heap of strings has an object of no size, over which libhdf5 would loop for ever.

    It holds the interpreter's lock meanwhile, so that neither Ctrl-C nor a time limit in this process would end it.
    Files above `HEAPS_BYTES` are not looked through.
    """
    if not 0 < os.path.getsize(path) <= HEAPS_BYTES:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(HEAP)
        while start >= 0:
            end = min(start + int.from_bytes(data[start + 8 : start + 16], "little"), len(data))
            position = start + 16
            while position + 16 <= end:
                number, size = HEAP_OBJECT.unpack_from(data, position)
                step = 16 + (size + 7) // 8 * 8 if number else size
                if step % (1 << 64) == 0:
                    raise faults.unreadable(name, ValueError(f"the heap at byte {start} has an object of no size"))
                position += step
            start = data.find(HEAP, start + 1)


class _ZarrTree(Tree):
    """A Zarr group or array on disk or behind a URL, opened once in each process, or an array that is open already."""

    kind = "array"

    def __init__(self, name: str, place: str | ZarrArray) -> None:
        self.name, self._place = name, place
        self._root: Node = None if isinstance(place, str) else place
        self._nodes: dict[str, Node] = {}
        self.parallel = isinstance(place, str) or isinstance(place.store_path.store, LocalStore | FsspecStore)

    def __reduce__(self) -> tuple[type, tuple[str, str | ZarrArray]]:
        return _ZarrTree, (self.name, self._place)

    @contextmanager
    def open(self) -> Iterator[Node]:
        with faults.reading(self.name):
            if self._root is None:
                self._root = self._opened(str(self._place))
            yield self._root

    def _opened(self, path: str) -> Node:
        try:
            store = open_zarr(path, read_only=True) if is_remote(path) else LocalStore(path, read_only=True)
            with reaching(path):
                return zarr.open(store=store, mode="r")
        except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
            found = f"no Zarr array or group ({' '.join(str(error).split())[:200]})"
            allowed = "a folder or URL with a zarr.json, .zarray or .zgroup"
            faults.throw(BadInput(self.name, found, allowed, "there would be nothing to read", "check the path"))

    def get(self, root: Node, path: str) -> Node | None:
        path = path.strip("/")
        if path not in self._nodes:
            there = root.get(path) if path and isinstance(root, zarr.Group) else None
            self._nodes[path] = there if path else root
        return self._nodes[path]

    def members(self, root: Node) -> list[tuple[str, Node]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns of files in the folder that are not its own
            return sorted(root.members(max_depth=None), key=lambda member: str(member[0]))

    def digest(self, root: Node, paths: Sequence[str], *options: object) -> str:
        return base.digest(*(_stored(self.array(root, path)) for path in paths), *options)

    def check_array(self, array: ZarrArray) -> None:
        """Raise ``BadInput`` if decoding an array's chunks takes anything but unpacking numbers."""
        described: dict[str, Any] = dict(array.metadata.to_dict())
        packers = described.get("codecs") or [described.get("compressor"), *(described.get("filters") or ())]
        unknown = [codec for codec in _codec_names(packers) if codec not in CODECS]
        if unknown:
            raise faults.pickled(self.name, f"chunks written with the codec {unknown[0]!r}")


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
        root = Path(place.store.root, place.path)
        files = [(str(path.relative_to(root)), path.stat()) for path in root.rglob("*") if path.is_file()]
        return base.digest("zarr", *sorted((name, status.st_size, status.st_mtime_ns) for name, status in files))
    if isinstance(place.store, FsspecStore):
        return base.digest("zarr", repr(array.metadata.to_dict()), *_objects(place))
    step = max(1, array.chunks[0])
    pieces = (base.content_digest(array[row : row + step]) for row in range(0, array.shape[0], step))
    return base.digest("zarr", *pieces)


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


AXES = {"raw": ("obs", "raw/var"), "obsm": ("obs", None), "obsp": ("obs", None)}
AXES |= {"X": ("obs", "var"), "layers": ("obs", "var"), "varm": ("var", None), "varp": ("var", None)}
"""By the part of an AnnData that a matrix is in: the data frame of its rows, and that of its columns, if any."""


def open_tree(request: base.Request) -> base.Table:
    """Return the table of an array of a file or a Zarr group, whose labels may be another array, or of an AnnData."""
    wanted, path = request.labels_column, request.path
    is_file = os.path.isfile(path)
    zarr_place = path if is_remote(path) else os.path.abspath(path)
    tree = Hdf5Tree(base.FileStamp.of(request)) if is_file else _ZarrTree(request.name, zarr_place)
    with tree.open() as root:
        located = _locate(tree, root, request.member)
        if located is None and path.lower().endswith(".h5ad"):
            located = "", request.member or ""
        if located is not None:
            return _open_part(tree, root, *located, request)
        if request.member is None and not is_array(root):
            _refuse_inner(tree, root)
        table = tree.dense(root, tree.choose(root, request), request.transpose)
        if not isinstance(wanted, str) or is_array(root) or not is_array(tree.get(root, wanted)):
            return table
        count = math.prod(tree.array(root, wanted).shape or (0,))
        return take_label_variable(table, wanted, count, partial(label_pieces, tree, wanted))


def _is_anndata(tree: Tree, root: Node, place: str) -> bool:
    """Return whether a group says that it is an AnnData or, as before anndata 0.8, has the layout of one."""
    node = tree.get(root, place)
    if node is None or is_array(node):
        return False
    frames = [one for frame in ("obs", "var") if (one := tree.get(root, f"{place}/{frame}")) is not None]
    # a data frame is a group of columns or, before anndata 0.7, an array of records
    found = ["_index" in one.attrs or (is_array(one) and np.dtype(one.dtype).names is not None) for one in frames]
    return _encoding(node) == "anndata" or found == [True, True]


def _locate(tree: Tree, root: Node, member: str | None) -> tuple[str, str] | None:
    """Return the path of the AnnData that a member is in (the root, ``mod/rna``, ...), and its path in that."""
    parts = [part for part in (member or "").split("/") if part]
    for n in range(len(parts) + 1):
        if _is_anndata(tree, root, "/".join(parts[:n])):
            return "/".join(parts[:n]), "/".join(parts[n:])
    return None


def _refuse_inner(tree: Tree, root: Node) -> None:
    """Raise ``BadInput`` that names the AnnDatas inside a tree that is none itself, if there are any."""
    groups = [path for path, node in tree.members(root) if not is_array(node)]
    there = set(groups)
    inner = [path for path in groups if f"{path}/obs" in there and _is_anndata(tree, root, path)]
    if inner:
        found = f"no matrix of its own, but an AnnData in {faults.listing(inner)}"
        otherwise = "another array than its cells might be clustered"
        raise BadInput(tree.name, found, "one that is named", otherwise, f"name it after '::', as in file::{inner[0]}")


def _open_part(tree: Tree, root: Node, place: str, part: str, request: base.Request) -> base.Table:
    """Return the table of X or of another matrix of an AnnData (``layers/counts``, ``obsm/X_pca``, ``raw/X``).

    Labels are a column of ``obs``; names of samples and features are the indices of ``obs`` and ``var``, which change
    places where the matrix is transposed.
    """
    below = f"{place}/" if place else ""
    part = part.strip("/") or "X"
    axes = AXES.get(part.partition("/")[0], (None, None))[:: -1 if request.transpose else 1]
    samples, features = (None if frame is None else f"{below}{frame}" for frame in axes)
    table = _matrix_table(tree, root, below, part, request.transpose)
    names = None if features is None else _names(tree, features)
    if names is not None and len(names) == table.shape[1]:
        table = replace(table, feature_names=names.tolist())
    if samples is not None:
        table = replace(table, row_names=partial(_names, tree, samples))
    if request.labels_column is None:
        return table
    samples, wanted = samples or f"{below}obs", str(request.labels_column)
    columns, frame = _columns(tree, root, samples), f"{request.name}, {samples}"
    if not columns:
        found, allowed = f"no columns to look for {wanted!r} in", "a data frame as anndata 0.7 or later writes it"
        otherwise = "the result would be scored against nothing"
        remedy = "write the file again with a recent anndata, or leave labels_column (--labels-column) out"
        raise BadInput(frame, found, allowed, otherwise, remedy)
    column = columns[find_column(frame, wanted, columns, len(columns))]
    path = f"{samples}/{column}"
    count = _column(tree, root, path)[1].shape[0]
    return take_label_variable(table, column, count, partial(label_pieces, tree, path))


def _text(stored: object) -> str:
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _encoding(node: Node) -> str:
    stored = _text(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))  # the latter before 0.7
    return {"csr": "csr_matrix", "csc": "csc_matrix"}.get(stored, stored)


def _matrix_table(tree: Tree, root: Node, below: str, part: str, transpose: bool) -> base.Table:
    path = f"{below}{part}"
    node = tree.get(root, path)
    if node is None:
        raise faults.absent(tree.name, "matrix", path, _matrices(tree, root, below))
    if is_array(node):
        return tree.dense(root, path, transpose)
    encoding = _encoding(node)
    if encoding == "dataframe" and not transpose:
        return _frame_table(tree, root, path)
    if encoding not in ("csr_matrix", "csc_matrix"):
        others = [name for name in _matrices(tree, root, below) if name != f"{below}{part}"]
        found = f"{part!r} with the encoding {encoding or 'none'!r}"
        remedy = f"name another matrix after '::' ({faults.listing(others, 'there is none')}), or write it as an array"
        raise BadInput(tree.name, found, "an array, csr_matrix or csc_matrix", "its values could not be placed", remedy)
    stored = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    shape = tuple(int(size) for size in stored)[:: -1 if transpose else 1]
    parts = [f"{path}/{title}" for title in ("data", "indices", "indptr")]
    return compressed_table(tree, root, parts, shape, (encoding == "csr_matrix") != transpose)


def _matrices(tree: Tree, root: Node, below: str) -> list[str]:
    groups = [f"{below}{group}" for group in ("layers", "obsm", "obsp")]
    keys = [f"{group}/{key}" for group in groups for key in tree.get(root, group) or ()]
    return [path for path in (f"{below}X", f"{below}raw/X") if tree.get(root, path) is not None] + keys


@dataclass
class _FrameRows(base.Rows):
    """The rows of a data frame of numbers, which is stored by columns."""

    tree: Tree
    columns: list[str]

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop; missing values of nullable columns are NaN."""
        with self.tree.open() as root:
            read = [_column_values(self.tree, root, path, slice(start, stop)) for path in self.columns]
        return np.column_stack([values.astype(np.float64) if values.dtype == object else values for values in read])


def _frame_table(tree: Tree, root: Node, path: str) -> base.Table:
    columns = {title: _column(tree, root, f"{path}/{title}") for title in _columns(tree, root, path)}
    titles = list(columns)
    text = [
        title
        for title, (kind, node, _) in columns.items()
        if kind == "categorical" or "categories" in node.attrs or np.dtype(node.dtype).kind not in "biuf"
    ]
    if text:
        found = f"no numbers in the columns {faults.listing(text)} of {path.strip('/')!r}"
        allowed, otherwise = "numbers in every column", "distances between samples would be undefined"
        remedy = "read it with anndata, and give the data frame without these columns"
        raise BadInput(tree.name, found, allowed, otherwise, remedy)
    nodes = [node for _, node, _ in columns.values()]
    kinds = [np.float64 if kind == "nullable" else node.dtype for kind, node, _ in columns.values()]
    shape = base.check_shape(tree.name, (nodes[0].shape[0] if nodes else 0, len(nodes)))
    fingerprint = tree.digest(root, [place for _, _, place in columns.values()], "frame", path, titles)
    rows = _FrameRows(tree, [f"{path}/{title}" for title in titles])
    return base.Table(tree.name, shape, np.result_type(*kinds), rows, fingerprint, feature_names=titles)


def _columns(tree: Tree, root: Node, frame: str) -> list[str]:
    """Return the columns of a data frame in its order; those that its list lacks come last."""
    node = tree.get(root, frame)
    if node is None or is_array(node):
        return []
    there = [key for key in node if key not in (_text(node.attrs.get("_index", "_index")), "__categories")]
    ordered = [_text(column) for column in node.attrs.get("column-order", ())]
    return [key for key in ordered if key in there] + [key for key in there if key not in ordered]


def _names(tree: Tree, frame: str) -> AnyArray | None:
    """Return the index of a data frame, or None where it only counts the rows."""
    with tree.open() as root:
        node = tree.get(root, frame)
        path = "" if node is None or is_array(node) else f"{frame}/{_text(node.attrs.get('_index', '_index'))}"
        if not path or tree.get(root, path) is None:
            return None
        return counted_names(np.array([_text(value) for value in _column_values(tree, root, path)], np.str_))


def _column_values(tree: Tree, root: Node, path: str, rows: Selection = ...) -> AnyArray:
    """Return rows of a column of a data frame, all of them if none are selected; None where one has no value."""
    kind, node, place = _column(tree, root, path)
    values = tree.values(root, place, rows)
    named = f"{path}/categories" if kind == "categorical" else node.attrs.get("categories")
    if kind == "nullable":
        values = values.astype(object)
        values[tree.values(root, f"{path}/mask", rows).astype(bool)] = None
    elif named is not None:  # before 0.8 a reference to obs/__categories/..., in Zarr its path
        if kind == "plain":
            named = f"{path.rpartition('/')[0]}/{named}" if isinstance(named, str) else root[named].name
        values = np.array([*tree.values(root, named), None], object)[values]  # the code of no value is -1
    return values


def _column(tree: Tree, root: Node, path: str) -> tuple[str, Node, str]:
    """Return a column's kind, and the array with a value for each row, with its path."""
    node = tree.get(root, path)
    if node is None or is_array(node):
        return "plain", tree.array(root, path), path
    for kind, part, other in (("categorical", "codes", "categories"), ("nullable", "values", "mask")):
        if {part, other} <= set(node):
            return kind, tree.array(root, f"{path}/{part}"), f"{path}/{part}"
    found, allowed = f"{path!r} with the encoding {_encoding(node)!r}", "a plain, categorical or nullable column"
    otherwise = "its values could not be read"
    raise BadInput(tree.name, found, allowed, otherwise, "write the file again with a recent anndata")

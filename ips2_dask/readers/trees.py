"""Trees of arrays, HDF5 files and Zarr groups, seen alike: matrices in them, and AnnDatas' names and labels."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
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


def label_pieces(tree: Tree, path: str) -> Iterator[AnyArray]:
    """Yield the values of an array, or of a column of a data frame, by pieces; the tree is opened for each.

    Each is of whole chunks. An array of several rows and columns is one piece.
    """
    with tree.open() as root:
        array = _column(tree, root, path)[1]
        shape, grain = array.shape, max(array.chunks or (1,), default=1)
    n = max(shape, default=1)
    step = n if math.prod(shape) != n else max(labels.PIECE_LABELS // grain, 1) * grain
    for low in range(0, n, step):
        selection = tuple(slice(low, low + step) if length == n else slice(None) for length in shape)
        with tree.open() as root:
            values = _column_values(tree, root, path, selection)
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
        return base.as_csr(_stretch(self.tree, self.matrix, start, stop), self.tree.name)


def _stretch(tree: Tree, matrix: Compressed, start: int, stop: int) -> sparse.csr_array:
    """Return rows start to stop of a matrix compressed by row as they are stored, unchecked."""
    with tree.open() as root:
        values, indices, indptr = (tree.array(root, path) for path in matrix.parts)
        bounds = indptr[start : stop + 1].astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        parts = (values[first:last], indices[first:last], bounds - first)
        return sparse.csr_array(parts, shape=(stop - start, matrix.shape[1]))


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
    return base.as_csr(_stretch(tree, matrix.transposed(), 0, matrix.shape[1]).T, tree.name)


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


AXES = {
    "X": ("obs", "var"),
    "layers": ("obs", "var"),
    "raw": ("obs", "raw/var"),
    "obsm": ("obs", None),
    "obsp": ("obs", None),
    "varm": ("var", None),
    "varp": ("var", None),
}
"""By the part of an AnnData that a matrix is in: the data frame of its rows, and that of its columns, if any."""


def _open_tree(tree: Tree, request: base.Request, place: tuple[str, str] | None = None) -> base.Table:
    """Return the table of an array, or of a matrix of an AnnData that is at ``place`` or found in the tree.

    The labels of an array may be another array; see `_open_part` for an AnnData.
    """
    wanted = request.labels_column
    with tree.open() as root:
        located = _locate(tree, root, request.member) or place
        if located is not None:
            return _open_part(tree, root, *located, request)
        if request.member is None and not is_array(root):
            _refuse_inner(tree, root)
        table = tree.dense(root, tree.choose(root, request), request.transpose)
        found = tree.find(root, wanted) if isinstance(wanted, str) and not is_array(root) else None
        if found is None or not is_array(found[0]):
            return table
        count = math.prod(tree.array(root, found[1]).shape or (0,))
        return take_label_variable(table, str(wanted), count, partial(label_pieces, tree, found[1]))


def open_hdf5(request: base.Request) -> base.Table:
    """Return the table of a dataset, or of a matrix of an AnnData in the file."""
    return _open_tree(Hdf5Tree(base.FileStamp.of(request)), request)


def open_h5ad(request: base.Request) -> base.Table:
    """Return the table of a matrix of an AnnData, which the file holds by its name."""
    return _open_tree(Hdf5Tree(base.FileStamp.of(request)), request, ("", request.member or ""))


def open_zarr_path(request: base.Request) -> base.Table:
    """Return the table of an array on disk or behind a URL, or of a matrix of an AnnData."""
    path = request.path if "://" in request.path else os.path.abspath(request.path)
    return _open_tree(ZarrTree(request.name, path), request)


def _is_anndata(tree: Tree, root: Node, place: str) -> bool:
    """Return whether a group says that it is an AnnData or, as before anndata 0.8, has the layout of one."""
    node = tree.get(root, place)
    if node is None or is_array(node):
        return False
    frames = (tree.get(root, f"{place}/{frame}") for frame in ("obs", "var"))
    return _encoding(node) == "anndata" or all(map(_is_frame, frames))


def _is_frame(node: Node | None) -> bool:
    """Return whether a node is a data frame: a group of columns or, before anndata 0.7, an array of records."""
    return node is not None and ("_index" in node.attrs or (is_array(node) and np.dtype(node.dtype).names is not None))


def _locate(tree: Tree, root: Node, member: str | None) -> tuple[str, str] | None:
    """Return the path of the AnnData that a member is in, and the member's path in that; None if it is in none.

    That AnnData may be the root, or a part of a MuData (``mod/rna``) or SpatialData (``tables/table``).
    """
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
    axes = AXES.get(part.partition("/")[0], (None, None))
    samples, features = (
        None if frame is None else f"{below}{frame}" for frame in axes[:: -1 if request.transpose else 1]
    )
    table = _matrix_table(tree, root, below, part, request.transpose)
    names = None if features is None else _names(tree, root, features)
    if names is not None and len(names) == table.shape[1]:
        table = replace(table, feature_names=names.tolist())
    if samples is not None:
        table = replace(table, read_sample_names=partial(_read_names, tree, samples))
    if request.labels_column is None:
        return table
    samples = samples or f"{below}obs"
    column = _label_column(tree, root, samples, request)
    path = f"{samples}/{column}"
    count = _column(tree, root, path)[1].shape[0]
    return take_label_variable(table, column, count, partial(label_pieces, tree, path))


def _text(stored: object) -> str:
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _encoding(node: Node) -> str:
    stored = _text(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))  # the latter before 0.7
    return {"csr": "csr_matrix", "csc": "csc_matrix"}.get(stored, stored)


def _matrix_table(tree: Tree, root: Node, below: str, part: str, transpose: bool) -> base.Table:
    located = tree.find(root, f"{below}{part}")
    if located is None:
        raise faults.absent(tree.name, "matrix", f"{below}{part}", _matrices(tree, root, below))
    node, path = located
    if is_array(node):
        return tree.dense(root, path, transpose)
    encoding = _encoding(node)
    if encoding == "dataframe" and not transpose:
        return _frame_table(tree, root, path)
    if encoding not in ("csr_matrix", "csc_matrix"):
        others = [name for name in _matrices(tree, root, below) if name != f"{below}{part}"]
        raise BadInput(
            tree.name,
            f"{part!r} with the encoding {encoding or 'none'!r}",
            "an array, csr_matrix or csc_matrix",
            "its values could not be placed",
            f"name another matrix after '::' ({faults.listing(others, 'there is none')}), or write it as an array",
        )
    stored = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    rows, columns = (int(size) for size in stored)
    parts = (f"{path}/data", f"{path}/indices", f"{path}/indptr")
    matrix = Compressed(parts, shape=(rows, columns), by_row=encoding == "csr_matrix")
    return compressed_table(tree, root, matrix.transposed() if transpose else matrix)


def _matrices(tree: Tree, root: Node, below: str) -> list[str]:
    """Return the paths of the matrices that may be in an AnnData."""
    there = [f"{below}{path}" for path in ("X", "raw/X") if tree.get(root, f"{below}{path}") is not None]
    groups = {f"{below}{group}": tree.get(root, f"{below}{group}") for group in ("layers", "obsm", "obsp")}
    return there + [f"{group}/{key}" for group, node in groups.items() if node is not None for key in node]


@dataclass
class FrameRows(base.Rows):
    """The rows of a data frame of numbers, which is stored by columns."""

    tree: Tree
    columns: list[str]
    n_rows: int

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop; missing values of nullable columns are NaN."""
        with self.tree.open() as root:
            return np.column_stack(
                [_numbers(_column_values(self.tree, root, path, slice(start, stop))) for path in self.columns]
            )


def _numbers(values: AnyArray) -> AnyArray:
    return values.astype(np.float64) if values.dtype.kind == "O" else values


def _frame_table(tree: Tree, root: Node, path: str) -> base.Table:
    """Return the table of a data frame of ``obsm``."""
    name, titles = tree.name, _columns(tree, root, path)
    columns = [_column(tree, root, f"{path}/{title}") for title in titles]
    text = [
        title
        for title, (kind, node, _) in zip(titles, columns, strict=True)
        if kind == "categorical" or np.dtype(node.dtype).kind not in "biuf" or "categories" in node.attrs
    ]
    if text:
        raise BadInput(
            name,
            f"no numbers in the columns {faults.listing(text)} of {path.strip('/')!r}",
            "numbers in every column",
            "distances between samples would be undefined",
            "read it with anndata, and give the data frame without these columns",
        )
    shape = base.check_shape(name, (columns[0][1].shape[0] if columns else 0, len(columns)))
    types = [
        np.dtype(np.float64) if kind == "nullable" else base.check_dtype(name, np.dtype(n.dtype))
        for kind, n, _ in columns
    ]
    return base.Table(
        name=name,
        shape=shape,
        dtype=np.result_type(*types),
        rows=FrameRows(tree, [f"{path}/{title}" for title in titles], shape[0]),
        fingerprint=tree.digest(root, [place for _, _, place in columns], "frame", path, titles),
        feature_names=titles,
    )


def _index_path(tree: Tree, root: Node, frame: str) -> str | None:
    """Return the path of the index of a data frame."""
    node = tree.get(root, frame)
    if node is None or is_array(node):
        return None
    return f"{frame}/{_text(node.attrs.get('_index', '_index'))}"


def _columns(tree: Tree, root: Node, frame: str) -> list[str]:
    """Return the columns of a data frame in its order; those that its list lacks come last."""
    node, index = tree.get(root, frame), _index_path(tree, root, frame)
    if node is None or index is None:
        return []
    there = [key for key in node if f"{frame}/{key}" != index and key != "__categories"]
    ordered = [_text(column) for column in node.attrs.get("column-order", ())]
    return [key for key in ordered if key in there] + [key for key in there if key not in ordered]


def _names(tree: Tree, root: Node, frame: str) -> AnyArray | None:
    """Return the index of a data frame, or None where it only counts the rows."""
    path = _index_path(tree, root, frame)
    if path is None or tree.find(root, path) is None:
        return None
    return counted_names(np.array([_text(value) for value in _column_values(tree, root, path)], np.str_))


def _read_names(tree: Tree, frame: str) -> AnyArray | None:
    with tree.open() as root:
        return _names(tree, root, frame)


def _label_column(tree: Tree, root: Node, frame: str, request: base.Request) -> str:
    columns = _columns(tree, root, frame)
    if not columns:
        raise BadInput(
            f"{request.name}, {frame}",
            f"no columns to look for {str(request.labels_column)!r} in",
            "a data frame as anndata 0.7 or later writes it",
            "the result would be scored against nothing",
            "write the file again with a recent anndata, or leave labels_column (--labels-column) out",
        )
    return columns[find_column(f"{request.name}, {frame}", str(request.labels_column), columns, len(columns))]


def _column_values(tree: Tree, root: Node, path: str, rows: Selection = ...) -> AnyArray:
    """Return rows of a column of a data frame, all of them if none are selected."""
    kind, node, place = _column(tree, root, path)
    values = tree.values(root, place, rows)
    if kind == "categorical":
        return _decode(values, tree.values(root, f"{path}/categories"))
    if kind == "nullable":
        values = values.astype(object)
        values[tree.values(root, f"{path}/mask", rows).astype(bool)] = None
        return values
    categories = node.attrs.get("categories")  # before 0.8 a reference to obs/__categories/..., in Zarr its path
    if categories is None:
        return values
    named = f"{path.rpartition('/')[0]}/{categories}" if isinstance(categories, str) else root[categories].name
    return _decode(values, tree.values(root, named))


def _column(tree: Tree, root: Node, path: str) -> tuple[str, Node, str]:
    """Return the kind of a column of a data frame, and the array with a value for each row, with its path.

    It may be plain, categorical (codes into categories) or nullable (values and mask).
    """
    node = tree.get(root, path)
    if node is None or is_array(node):
        return "plain", tree.array(root, path), path
    for kind, part, other in (("categorical", "codes", "categories"), ("nullable", "values", "mask")):
        if {part, other} <= set(node):
            return kind, tree.array(root, f"{path}/{part}"), f"{path}/{part}"
    found, allowed = f"{path!r} with the encoding {_encoding(node)!r}", "a plain, categorical or nullable column"
    otherwise = "its values could not be read"
    raise BadInput(tree.name, found, allowed, otherwise, "write the file again with a recent anndata")


def _decode(codes: AnyArray, categories: AnyArray) -> AnyArray:
    """Return the category of each code, object (m,), None where the code is -1."""
    values = np.full(len(codes), None, dtype=object)
    has_category = codes >= 0
    values[has_category] = categories[codes[has_category]]
    return values

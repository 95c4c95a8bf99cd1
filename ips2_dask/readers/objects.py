"""Arrays: of .npy files, local or behind a URL, of .npz archives of such, and what a caller has in memory.

The last are arrays, lists of rows, sparse matrices, data frames and AnnData objects. pandas and anndata are never
imported at run time: data frames and AnnData objects are recognised by their attributes.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import base, faults
from ips2_dask.readers.columns import counted_names, find_column, take_label_variable
from ips2_dask.typing import AnyArray, Float64

if TYPE_CHECKING:
    import pandas as pd

HEADER_BYTES = 4096  # more than any header of a plain array takes
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
FRAME_NAME, ANNDATA_NAME = "the data frame given", "the AnnData given"


@dataclass(frozen=True)
class _NpyLayout:
    """Shape, dtype and order of an array, and the offset of its values in the file, in bytes."""

    shape: tuple[int, ...]
    dtype: base.DType
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Length of the values in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def transposed(self) -> _NpyLayout:
        """Return the layout of the same bytes seen as the transpose."""
        return replace(self, shape=self.shape[::-1], fortran=not self.fortran)


def _read_layout(stream: IO[bytes], name: str) -> _NpyLayout:
    """Read the header of an array; nothing in it is unpickled. Raises ``BadInput`` if it is no .npy header."""
    start = stream.tell()
    with faults.reading(name):
        magic = stream.read(6)
        if magic[:1] == b"\x80":
            raise faults.pickled(name, "a pickle")
        stream.seek(start)
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):  # 3.0 is for structured types with names outside of latin-1 only
            raise ValueError(f"version {version} of the format, which is not for plain numbers")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        return _NpyLayout(tuple(int(size) for size in shape), dtype, bool(fortran), stream.tell())


@dataclass
class _NpyRows(base.Rows):
    """The rows of an array in C or Fortran order, from ranges of bytes of a file or of an object behind a URL."""

    stamp: base.FileStamp
    layout: _NpyLayout

    def read(self, start: int, stop: int) -> AnyArray:
        self.stamp.check()
        (m, f), dtype, offset = self.layout.shape, self.layout.dtype, self.layout.offset
        if not self.layout.fortran:
            row_bytes = f * dtype.itemsize
            values = self.stamp.read_ranges([offset + start * row_bytes], (stop - start) * row_bytes)
            return values.view(dtype).reshape(stop - start, f)
        starts = [offset + (column * m + start) * dtype.itemsize for column in range(f)]
        return np.ascontiguousarray(self.stamp.read_ranges(starts, (stop - start) * dtype.itemsize).view(dtype).T)


def _npy_table(stamp: base.FileStamp, layout: _NpyLayout) -> base.Table:
    """Return the table of an array whose values are stored as they are in memory."""
    fingerprint = stamp.digest("npy", layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    shape = base.check_shape(stamp.name, layout.shape)
    table = base.Table(stamp.name, shape, layout.dtype, _NpyRows(stamp, layout), fingerprint)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(stamp.name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    return table


def open_npy(request: base.Request) -> base.Table:
    """Return the table of a .npy file, or of such an object behind a URL."""
    stamp = base.FileStamp.of(request)
    head = stamp.read_ranges([0], min(HEADER_BYTES, stamp.size)).tobytes()
    layout = _read_layout(io.BytesIO(head), stamp.name)
    return _npy_table(stamp, layout.transposed() if request.transpose else layout)


def open_npz(request: base.Request) -> base.Table:
    """Return the table of one member of a .npz archive, or of the sparse matrix that is in it."""
    stamp, transpose, wanted = base.FileStamp.of(request), request.transpose, request.labels_column
    with faults.reading(stamp.name), zipfile.ZipFile(stamp.path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen = None
        if "format" in names and request.member is None:
            fingerprint = stamp.digest("npz", "sparse", transpose)
            table = base.loaded_table(partial(_load, stamp), stamp.name, fingerprint, transpose)
        else:
            chosen = _choose_member(archive, request, names)
            table = _member_table(archive, stamp, chosen, transpose)
        if wanted == chosen or wanted not in names:
            return table
        layout = _member_layout(archive, str(wanted), stamp.name)
        if layout.dtype.kind == "O":
            raise faults.pickled(stamp.name, f"an array of Python objects in {wanted!r}")
        pieces = partial(map, _load, [stamp], [str(wanted)])  # read when they are asked for
        return take_label_variable(table, str(wanted), math.prod(layout.shape), pieces)


def _choose_member(archive: zipfile.ZipFile, request: base.Request, names: list[str]) -> str:
    wanted, found = None if request.member is None else request.member.removesuffix(".npy"), []
    for entry, member in zip(archive.namelist(), names, strict=True):
        if entry == member or wanted is not None:
            found.append((member, "(no array)", False))
            continue
        layout = _member_layout(archive, member, request.name)
        found.append((member, f"{layout.shape} {layout.dtype}", base.is_matrix(layout.shape, layout.dtype)))
    return faults.only_matrix(request.name, "array", found, request.labels_column, wanted)


def _entry(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    return archive.NameToInfo.get(member + ".npy") or archive.getinfo(member)


def _member_layout(archive: zipfile.ZipFile, member: str, name: str) -> _NpyLayout:
    parts = member.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "":
        raise faults.outside(name, f"a member whose name points outside of the archive, {member!r}")
    with archive.open(_entry(archive, member)) as stream:
        return _read_layout(stream, name)


def _member_table(archive: zipfile.ZipFile, stamp: base.FileStamp, member: str, transpose: bool) -> base.Table:
    """Return the table of a member: read whole if it is compressed, else as a .npy file in the middle of another."""
    layout, entry = _member_layout(archive, member, stamp.name), _entry(archive, member)
    shape, _ = base.check_shape(stamp.name, layout.shape), base.check_dtype(stamp.name, layout.dtype)
    if layout.offset + layout.n_bytes > entry.file_size:
        header = f"shape {shape}, {layout.dtype}"
        raise faults.cut_off(stamp.name, entry.file_size, layout.offset + layout.n_bytes, header, f" in {member!r}")
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        fingerprint = stamp.digest("npz", member, transpose)
        return base.loaded_table(partial(_load, stamp, member), stamp.name, fingerprint, transpose)
    with open(stamp.path, "rb") as stream:
        stream.seek(entry.header_offset)
        signature, n_name, n_extra = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise zipfile.BadZipFile("no local header where the directory says one is")
    start = entry.header_offset + LOCAL_HEADER.size + n_name + n_extra
    placed = replace(layout, offset=start + layout.offset)
    return _npy_table(stamp, placed.transposed() if transpose else placed)


def _load(stamp: base.FileStamp, member: str | None = None) -> AnyArray:
    """Return a member of an archive, or the sparse matrix that is in it; neither is ever unpickled."""
    stamp.check()
    with faults.reading(stamp.name):
        if member is None:
            return sparse.load_npz(stamp.path)
        with np.load(stamp.path, allow_pickle=False) as archive:
            return archive[member]


# ---- in memory


def open_array(spec: object, request: base.Request) -> base.Table:
    """Return the table of an array, pickled with it; a read-only ``numpy.memmap`` is read from its file."""
    transpose = request.transpose
    name = "the sparse matrix given" if base.is_sparse(spec) else "the array given"
    if isinstance(spec, np.memmap) and spec.mode == "r" and spec.filename is not None:
        mapped = _mapped_table(spec.T if transpose else spec, name)
        if mapped is not None:
            return mapped
    matrix = base.as_csr(spec.T if transpose else spec, name) if base.is_sparse(spec) else _dense(spec, name, transpose)
    return base.matrix_table(matrix, name)


def _dense(spec: object, name: str, transpose: bool) -> AnyArray:
    """Return an array or a list of rows as a matrix (m, f) of native byte order."""
    refuse_masked(spec, name)
    spec = spec.data if isinstance(spec, np.ma.MaskedArray) else spec
    if not isinstance(spec, list | tuple) and not hasattr(spec, "__array__"):
        found = f"something of type {type(spec).__name__}"
        allowed = "a path, an array, a list of rows, a SciPy sparse matrix, a data frame or a zarr.Array"
        remedy = "give frame.collect()" if hasattr(spec, "collect") else "convert it to a NumPy array"
        raise BadInput(name, found, allowed, "there would be nothing to cluster", remedy)
    if isinstance(spec, list | tuple):
        _check_rectangle(spec, name)
    with faults.reading(name):
        array: AnyArray = np.asarray(spec)
        if isinstance(spec, list | tuple) and array.dtype.kind in "US":
            array = np.asarray(spec, dtype=object)  # so that the first text is named
    base.check_shape(name, array.shape)
    array = numbers_of(array, name) if array.dtype == object else array
    array = array.astype(base.check_dtype(name, array.dtype), copy=False)
    return array.T if transpose else array


def numbers_of(values: AnyArray, name: str) -> Float64:
    """Return an array of real numbers as Python objects as float64; None and NA become NaN; raises ``BadInput``."""
    numbers = np.empty(values.shape)
    for place, value in zip(np.ndindex(values.shape), values.ravel().tolist(), strict=True):
        if value is None or type(value).__name__ == "NAType":
            numbers[place] = np.nan
            continue
        where = f"in row {place[0]}" + "".join(f", column {column}" for column in place[1:])
        if isinstance(value, str | bytes):
            raise faults.text_in_array(name, f"the text {value!r} {where}")
        if not isinstance(value, Real | Decimal | np.bool_):
            seen = f"{' '.join(repr(value).split())[:40]} ({type(value).__name__}) {where}"
            remedy = "convert or drop such columns (lists of equal length are a matrix by numpy.stack(column.tolist()))"
            raise BadInput(name, seen, "real numbers", "distances between samples would be undefined", remedy)
        try:
            numbers[place] = float(value)
        except (OverflowError, ValueError):
            found, allowed = f"{' '.join(repr(value).split())[:40]} {where}", "numbers that are a float64"
            otherwise = "differences of such values would overflow float64"
            raise BadInput(name, found, allowed, otherwise, "divide the columns by a power of ten") from None
    return numbers


def _mapped_table(array: np.memmap[tuple[int, ...], base.DType], name: str) -> base.Table | None:
    """Return the table of a memory map's file, or None where the map is not a whole block of it in order."""
    if array.ndim != 2 or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    root: AnyArray = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root.base, mmap.mmap) or not isinstance(root, np.memmap):
        return None
    # `memmap.offset` is not updated where a map is sliced, so the place in the file follows from the addresses.
    offset = int(root.offset) + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    layout = _NpyLayout(tuple(array.shape), array.dtype, not array.flags.c_contiguous, offset)
    path = str(os.fspath(array.filename or ""))
    return _npy_table(base.FileStamp.of(base.Request(name, path)), layout) if os.path.isfile(path) else None


def _check_rectangle(rows: Sequence[Any], name: str) -> None:
    lengths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in rows]
    uneven = [row for row, length in enumerate(lengths) if length != lengths[0]]
    if uneven:
        row = uneven[0]
        count = "a single value" if lengths[row] is None else f"{lengths[row]} values"
        allowed = f"as many in every row as in the first ({lengths[0]})"
        otherwise = "it would be unclear which feature a value belongs to"
        raise BadInput(name, f"{count} in row {row}", allowed, otherwise, "fill or drop that row")


def refuse_masked(values: Any, name: str) -> None:
    """Raise ``BadInput`` for a masked array, or a list of masked rows, in which a value is masked."""
    rows = isinstance(values, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in values)
    masks = [np.ma.getmaskarray(part) for part in (values if rows else [values]) if rows or np.ma.is_masked(values)]
    count = sum(int(mask.sum()) for mask in masks)
    if count:
        number, mask = next((number, mask) for number, mask in enumerate(masks) if mask.any())
        where = (*([number] if rows else []), *(int(index) for index in np.argwhere(mask)[0]))
        found, allowed = f"{count} masked values, the first at {where}", "an array without masked values"
        otherwise = "what is under the mask would be clustered as if it were data"
        raise BadInput(name, found, allowed, otherwise, "fill them in with array.filled(value), or drop these rows")


def is_frame(spec: object) -> TypeGuard[pd.DataFrame]:
    """Return whether something is a data frame, without importing pandas."""
    return all(hasattr(spec, part) for part in ("iloc", "columns", "index", "dtypes"))


def index_names(index: pd.Index) -> AnyArray | None:
    """Return the names of rows or columns as strings, or None where the index is 0, 1, 2, ..."""
    names = np.asarray(index)
    if names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names))):
        return None
    return np.array([str(name) for name in index], dtype=np.str_)


def is_anndata(spec: object) -> bool:
    """Return whether something is an AnnData, without importing anndata."""
    return all(hasattr(spec, part) for part in ("obs_names", "var_names", "obsm", "X"))


REPRESENTATION = "X_pca"
"""What of ``obsm`` is clustered where the caller names nothing and it is there, as scanpy's neighbours do."""


def open_anndata(
    adata: Any,
    request: base.Request,
    open_matrix: Callable[[object, base.Request], base.Table],
    use_rep: str | None = None,
    layer: str | None = None,
) -> base.Table:
    """Return the table of a matrix of an AnnData; labels are a column of ``obs`` (``var`` where it is transposed).

    The X of a backed one is read from its file by ranges of rows, by each process that needs some. A file that is open
    for writing is closed for that; anndata opens it again when it is next asked for X.
    """
    part, key = _matrix_of(adata, request.transpose, use_rep, layer)
    plain = base.Request("", transpose=request.transpose)
    if part == "X" and getattr(adata, "isbacked", False):
        table = open_matrix(_backing_file(adata), plain)
        return _described(table, adata, request, True)
    matrix = adata.X if part == "X" else getattr(adata, part)[key]
    name = ANNDATA_NAME if part == "X" else f"{part}[{key!r}] of {ANNDATA_NAME}"
    if matrix is None:
        found, allowed, otherwise = "no X", "an AnnData with X", "there would be nothing to cluster"
        raise BadInput(ANNDATA_NAME, found, allowed, otherwise, "give one of its matrices, such as adata.obsm['X_pca']")
    return replace(_described(open_matrix(matrix, plain), adata, request, part != "obsm"), name=name)


def _matrix_of(adata: Any, transpose: bool, use_rep: str | None, layer: str | None) -> tuple[str, str]:
    """Return where the matrix is, ``X``, ``obsm`` or ``layers``, and its key there."""
    if use_rep is not None and layer is not None:
        found, allowed = f"{layer!r} with use_rep={use_rep!r}", "one of the two"
        raise BadInput("layer", found, allowed, "it would be unclear what is clustered", "leave one of them out")
    if layer is not None or use_rep not in (None, "X"):
        part, key, name = ("layers", layer, "layer") if layer is not None else ("obsm", use_rep, "use_rep")
        there = list(getattr(adata, part, {}).keys())
        if key not in there:
            keys = ["X", *there] if part == "obsm" else there
            allowed = ", ".join(map(repr, keys)) or f"none, as {part} is empty"
            otherwise = "there would be nothing to cluster"
            raise BadInput(name, repr(key), allowed, otherwise, "name one of them, or compute it first")
        return part, str(key)
    if use_rep is None and not transpose and REPRESENTATION in adata.obsm:
        return "obsm", REPRESENTATION
    return "X", "X"


def _backing_file(adata: Any) -> str:
    """Return the path of the file of a backed AnnData, which other processes may read from then on."""
    if adata.is_view:
        allowed = "all of it, or a part in memory"
        remedy = "give adata.to_memory(), or adata.copy(filename) of the part"
        raise BadInput(ANNDATA_NAME, "a part of a backed AnnData", allowed, "the whole file would be clustered", remedy)
    path = os.fspath(adata.filename)
    if adata.file._filemode != "r":  # libhdf5 locks it against all other processes
        adata.file.close()
    return path


def _described(table: base.Table, adata: Any, request: base.Request, of_var: bool) -> base.Table:
    """Return a table with the names of an AnnData's samples and, if its columns are ``of_var``, of its features."""
    transpose, labels_column = request.transpose, request.labels_column
    samples, features = (adata.var_names, adata.obs_names) if transpose else (adata.obs_names, adata.var_names)
    # that only count, as an AnnData's default ones do, are none
    names, titles = (counted_names(np.array([*map(str, index)], np.str_)) for index in (samples, features))
    label_pieces = None
    if labels_column is not None:
        frame = adata.var if transpose else adata.obs
        frame = frame.to_memory() if hasattr(frame, "to_memory") else frame  # of an AnnData that was opened lazily
        columns = [str(column) for column in frame.columns]
        column = frame.iloc[:, find_column(f"{ANNDATA_NAME}, obs", labels_column, columns, len(columns))]
        label_pieces = partial(iter, [column.to_numpy(dtype=object)])
    return replace(
        table,
        feature_names=table.feature_names if titles is None or not of_var else titles.tolist(),
        row_names=names,
        label_pieces=label_pieces,
    )

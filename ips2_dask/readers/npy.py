"""The .npy format, local or behind a URL, and the .npz format, a zip archive of such arrays."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import (
    PIECE_BYTES,
    Block,
    DType,
    FileStamp,
    Request,
    Rows,
    StreamedRows,
    Table,
    check_dtype,
    check_shape,
    digest,
    is_matrix,
)
from ips2_dask.readers.labels import PIECE_LABELS, LabelReader, take_label_column, take_label_variable
from ips2_dask.readers.matrices import Matrix, as_csr, loaded_table, transposed
from ips2_dask.store.remote import check_url, open_system, plain, reaching


@dataclass(frozen=True)
class NpyLayout:
    """Shape, dtype and order of an array, and the offset of its values in the file, in bytes."""

    shape: tuple[int, ...]
    dtype: DType
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Length of the values in the file."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def transposed(self) -> NpyLayout:
        """Return the layout of the same bytes seen as the transpose."""
        return NpyLayout(self.shape[::-1], self.dtype, not self.fortran, self.offset)


def _read_layout(stream: IO[bytes], name: str) -> NpyLayout:
    """Read the header of an array; nothing in it is unpickled.

    Raises
    ------
    BadInput
        If it is no .npy header.
    """
    start = stream.tell()
    with faults.reading(name):
        magic = stream.read(6)
        if magic[:1] == b"\x80":
            raise faults.pickled(name, "a pickle")
        stream.seek(start)
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:  # 3.0 is for structured types with names outside of latin-1 only
            raise ValueError(f"version {version} of the format, which is not for plain numbers")
        return NpyLayout(tuple(int(size) for size in shape), dtype, bool(fortran), stream.tell())


HEADER_BYTES = 4096
"""More than any header of a plain array takes."""

TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "Last-Modified", "updated", "mtime")
"""Names, by protocol, of the metadata that changes with an object's content."""


@dataclass(frozen=True)
class RemoteStamp:
    """An object's URL, size and tags, taken when the object was opened."""

    name: str
    url: str
    size: int
    tags: tuple[str, ...]

    @classmethod
    def of(cls, name: str, url: str) -> RemoteStamp:
        """Return the stamp of the object that the URL has now."""
        try:
            with reaching(url):
                system, path = open_system(url)
                metadata = system.info(path)
        except FileNotFoundError:
            faults.throw(_no_object(name))
        size = metadata.get("size")
        if size is None:
            faults.throw(_no_ranges(name, "a server that does not say how long it is"))
        return cls(name, url, int(size), tuple(str(metadata[tag]) for tag in TAGS if tag in metadata))

    def digest(self, kind: str, *options: object) -> str:
        """Return the fingerprint of the object as read with these options."""
        return digest(f"remote {kind}", self.size, self.tags, *options)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop."""
        with reaching(self.url), faults.reading(self.name):
            system, path = open_system(self.url)
            content = bytes(system.cat_file(path, start=start, end=stop))
        if len(content) == stop - start:
            return content
        if len(content) == self.size:
            raise _no_ranges(self.name, "a server that sends all of it when asked for a part")
        raise faults.changed(self.name)

    def read_ranges(self, starts: Sequence[int], n_bytes: int) -> NDArray[np.uint8]:
        """Return ranges of ``n_bytes`` bytes each, (len(starts), n_bytes), by a request for each; maybe read-only."""
        if len(starts) == 1:
            return np.frombuffer(self.read(starts[0], starts[0] + n_bytes), np.uint8)[None]
        ranges = np.empty((len(starts), n_bytes), np.uint8)
        for row, start in zip(ranges, starts, strict=True):
            row[:] = np.frombuffer(self.read(start, start + n_bytes), np.uint8)
        return ranges

    def check(self) -> None:
        """Raise ``BadInput`` if the object is no longer the one that was opened."""
        if RemoteStamp.of(self.name, self.url) != self:
            raise faults.changed(self.name)


@dataclass
class NpyRows(Rows):
    """The rows of an array in C or Fortran order, from ranges of bytes of a file or of an object behind a URL."""

    stamp: FileStamp | RemoteStamp
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop: one range of bytes in C order, one for each column in Fortran order."""
        self.stamp.check()
        (m, f), dtype, offset = self.layout.shape, self.layout.dtype, self.layout.offset
        if not self.layout.fortran:
            row_bytes = f * dtype.itemsize
            values = self.stamp.read_ranges([offset + start * row_bytes], (stop - start) * row_bytes)
            return values.view(dtype).reshape(stop - start, f)
        starts = [offset + (column * m + start) * dtype.itemsize for column in range(f)]
        return np.ascontiguousarray(self.stamp.read_ranges(starts, (stop - start) * dtype.itemsize).view(dtype).T)


def npy_table(stamp: FileStamp | RemoteStamp, layout: NpyLayout) -> Table:
    """Return the table of an array whose values are stored as they are in memory."""
    shape, dtype = check_shape(stamp.name, layout.shape), check_dtype(stamp.name, layout.dtype)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(stamp.name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    options = (layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    return Table(
        name=stamp.name,
        shape=shape,
        dtype=dtype,
        rows=NpyRows(stamp, layout),
        parallel=True,
        resident_bytes=0,
        fingerprint=stamp.digest("npy", *options),
    )


def open_npy(request: Request) -> Table:
    """Return the table of a .npy file, of which one column may hold the labels."""
    stamp = FileStamp.of(request)
    with open(request.path, "rb") as stream:
        layout = _read_layout(stream, request.name)
    table = npy_table(stamp, layout.transposed() if request.transpose else layout)
    return take_label_column(table, request.labels_column)


def open_npy_url(request: Request) -> Table:
    """Return the table of a .npy object behind a URL, of which one column may hold the labels."""
    check_url(request.path)
    name = plain(request.name)
    stamp = RemoteStamp.of(name, request.path)
    layout = _read_layout(io.BytesIO(stamp.read(0, min(HEADER_BYTES, stamp.size))), name)
    table = npy_table(stamp, layout.transposed() if request.transpose else layout)
    return take_label_column(table, request.labels_column)


def _no_object(name: str) -> BadInput:
    return BadInput(
        name, "nothing there", "the URL of a .npy file that exists", "there would be nothing to read", "check the URL"
    )


def _no_ranges(name: str, found: str) -> BadInput:
    return BadInput(
        name,
        found,
        "one that serves ranges of bytes",
        "every partition would fetch the whole file",
        "copy the file to a local disk or an object store first",
    )


LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field


def open_npz(request: Request) -> Table:
    """Return the table of one member of a .npz archive, or of the sparse matrix that is in it."""
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        archive = zipfile.ZipFile(request.path)
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if "format" in names and request.member is None:
            chosen, table = None, _sparse_table(request, stamp)
        else:
            chosen = _choose_member(archive, request, names)
            table = _member_table(archive, request, stamp, chosen)
        labels_column = request.labels_column
        if labels_column == chosen or labels_column not in names:
            return take_label_column(table, labels_column)
        layout = _member_layout(archive, str(labels_column), request.name)
        if layout.dtype.kind == "O":
            raise faults.pickled(request.name, f"an array of Python objects in {labels_column!r}")
        count = int(np.prod(layout.shape, dtype=object))
        reader = LabelReader(stamp.name, partial(_label_pieces, stamp, str(labels_column), layout))
        return take_label_variable(table, str(labels_column), count, reader)


def _choose_member(archive: zipfile.ZipFile, request: Request, names: list[str]) -> str:
    """Return the member to read: the one named, or the only matrix of numbers."""
    if request.member is not None:
        member = request.member.removesuffix(".npy")
        if member not in names:
            raise faults.absent(request.name, "array", member, names)
        return member
    shapes, suitable = [], []
    for name in archive.namelist():
        member = name.removesuffix(".npy")
        if not name.endswith(".npy"):
            shapes.append(f"{member} (no array)")
            continue
        layout = _member_layout(archive, member, request.name)
        shapes.append(f"{member} {layout.shape} {layout.dtype}")
        if is_matrix(layout.shape, layout.dtype):
            suitable.append(member)
    suitable = [member for member in suitable if member != request.labels_column]
    if len(suitable) != 1:
        raise faults.undecided(request.name, "array", suitable, shapes)
    return suitable[0]


def _open_member(archive: zipfile.ZipFile, member: str, name: str) -> IO[bytes]:
    parts = member.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "":
        raise faults.outside(name, f"a member whose name points outside of the archive, {member!r}")
    with faults.reading(name):
        return archive.open(member + ".npy" if member + ".npy" in archive.namelist() else member)


def _member_layout(archive: zipfile.ZipFile, member: str, name: str) -> NpyLayout:
    with _open_member(archive, member, name) as stream:
        return _read_layout(stream, name)


def _member_table(archive: zipfile.ZipFile, request: Request, stamp: FileStamp, member: str) -> Table:
    layout = _member_layout(archive, member, request.name)
    shape, dtype = check_shape(request.name, layout.shape), check_dtype(request.name, layout.dtype)
    entry = archive.NameToInfo.get(member + ".npy") or archive.getinfo(member)
    if layout.offset + layout.n_bytes > entry.file_size:
        raise BadInput(
            request.name,
            f"{entry.file_size} bytes in {member!r}",
            f"at least {layout.offset + layout.n_bytes}, by its header (shape {shape}, {layout.dtype})",
            "the last rows would be missing",
            "write or download the archive again",
        )
    if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
        return _stored_table(request, stamp, layout, entry)
    fingerprint = stamp.digest("npz", member)
    if layout.fortran:  # its columns are in order, not its rows
        load = partial(_load_array, stamp, member, request.transpose)
        return loaded_table(load, stamp, stamp.digest("npz", member, request.transpose))
    rows = MemberRows(stamp, member, layout)
    table = Table(
        name=request.name,
        shape=shape,
        dtype=dtype,
        rows=rows,
        parallel=False,
        resident_bytes=0,
        fingerprint=fingerprint,
    )
    return transposed(table) if request.transpose else table


def _stored_table(request: Request, stamp: FileStamp, layout: NpyLayout, entry: zipfile.ZipInfo) -> Table:
    """Return the table of a member that is not compressed: a .npy file in the middle of another file."""
    with faults.reading(request.name), open(request.path, "rb") as stream:
        stream.seek(entry.header_offset)
        signature, n_name, n_extra = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise zipfile.BadZipFile("no local header where the directory says one is")
    start = entry.header_offset + LOCAL_HEADER.size + n_name + n_extra
    placed = NpyLayout(layout.shape, layout.dtype, layout.fortran, start + layout.offset)
    return npy_table(stamp, placed.transposed() if request.transpose else placed)


@dataclass
class MemberRows(StreamedRows):
    """The rows of a compressed member, decompressed from its start on."""

    stamp: FileStamp
    member: str
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def stream(self, start: int) -> Iterator[Block]:
        """Yield the rows from `start` on, some megabytes at a time."""
        self.stamp.check()
        name, layout = self.stamp.name, self.layout
        row_bytes = layout.shape[1] * layout.dtype.itemsize
        step = max(1, PIECE_BYTES // row_bytes)
        with faults.reading(name):
            archive = zipfile.ZipFile(self.stamp.path)
        with archive, _open_member(archive, self.member, name) as stream:
            with faults.reading(name):
                stream.seek(layout.offset + start * row_bytes)
            for row in range(start, self.n_rows, step):
                count = min(step, self.n_rows - row)
                with faults.reading(name):
                    values = np.frombuffer(stream.read(count * row_bytes), layout.dtype)
                    piece = values.reshape(count, layout.shape[1])
                yield piece
            with faults.reading(name):
                stream.read()  # to the member's end, where its checksum is compared


def _load_array(stamp: FileStamp, member: str, transpose: bool = False) -> NDArray[np.generic]:
    with faults.reading(stamp.name), np.load(stamp.path, allow_pickle=False) as archive:
        array: NDArray[np.generic] = archive[member]
    return array.T if transpose else array


def _label_pieces(stamp: FileStamp, member: str, layout: NpyLayout) -> Iterator[NDArray[np.generic]]:
    """Yield the values of a member piece by piece; one of several rows and columns, in Fortran order, at once."""
    stamp.check()
    count, size, name = math.prod(layout.shape), layout.dtype.itemsize, stamp.name
    if layout.fortran and count != max(layout.shape, default=1):
        yield _load_array(stamp, member)
        return
    with faults.reading(name):
        archive = zipfile.ZipFile(stamp.path)
    with archive, _open_member(archive, member, name) as stream:
        with faults.reading(name):
            stream.seek(layout.offset)
        for low in range(0, count, PIECE_LABELS):
            n = min(PIECE_LABELS, count - low)
            with faults.reading(name):
                values = np.frombuffer(stream.read(n * size), layout.dtype, n)
            yield values
        with faults.reading(name):
            stream.read()  # to the member's end, where its checksum is compared


def _sparse_table(request: Request, stamp: FileStamp) -> Table:
    load = partial(_load_sparse, stamp, request.transpose)
    return loaded_table(load, stamp, stamp.digest("npz", "sparse", request.transpose))


def _load_sparse(stamp: FileStamp, transpose: bool) -> Matrix:
    with faults.reading(stamp.name):
        matrix = sparse.load_npz(stamp.path)  # never unpickles
    return as_csr(matrix.T if transpose else matrix, stamp.name)

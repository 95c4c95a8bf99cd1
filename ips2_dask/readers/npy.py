"""The .npy format, local or behind a URL, and the .npz format, a zip archive of such arrays."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import base, faults, labels
from ips2_dask.readers.columns import take_label_variable
from ips2_dask.store.remote import check_url, open_system, plain, reaching
from ips2_dask.typing import AnyArray, UInt8


@dataclass(frozen=True)
class NpyLayout:
    """Shape, dtype and order of an array, and the offset of its values in the file, in bytes."""

    shape: tuple[int, ...]
    dtype: base.DType
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Length of the values in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def transposed(self) -> NpyLayout:
        """Return the layout of the same bytes seen as the transpose."""
        return replace(self, shape=self.shape[::-1], fortran=not self.fortran)


def _read_layout(stream: IO[bytes], name: str) -> NpyLayout:
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
            faults.throw(
                BadInput(
                    name,
                    "nothing there",
                    "the URL of a .npy file that exists",
                    "there would be nothing to read",
                    "check the URL",
                )
            )
        size = metadata.get("size")
        if size is None:
            faults.throw(_no_ranges(name, "a server that does not say how long it is"))
        return cls(name, url, int(size), tuple(str(metadata[tag]) for tag in TAGS if tag in metadata))

    def digest(self, kind: str, *options: object) -> str:
        """Return the fingerprint of the object as read with these options."""
        return base.digest(f"remote {kind}", self.size, self.tags, *options)

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

    def read_ranges(self, starts: Sequence[int], n_bytes: int) -> UInt8:
        """Return ranges of ``n_bytes`` bytes each, (len(starts), n_bytes), by a request for each; maybe read-only."""
        ranges = [np.frombuffer(self.read(start, start + n_bytes), np.uint8) for start in starts]
        return ranges[0][None] if len(ranges) == 1 else np.stack(ranges)

    def check(self) -> None:
        """Raise ``BadInput`` if the object is no longer the one that was opened."""
        if RemoteStamp.of(self.name, self.url) != self:
            raise faults.changed(self.name)


@dataclass
class NpyRows(base.Rows):
    """The rows of an array in C or Fortran order, from ranges of bytes of a file or of an object behind a URL."""

    stamp: base.FileStamp | RemoteStamp
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def read(self, start: int, stop: int) -> AnyArray:
        self.stamp.check()
        (m, f), dtype, offset = self.layout.shape, self.layout.dtype, self.layout.offset
        if not self.layout.fortran:
            row_bytes = f * dtype.itemsize
            values = self.stamp.read_ranges([offset + start * row_bytes], (stop - start) * row_bytes)
            return values.view(dtype).reshape(stop - start, f)
        starts = [offset + (column * m + start) * dtype.itemsize for column in range(f)]
        return np.ascontiguousarray(self.stamp.read_ranges(starts, (stop - start) * dtype.itemsize).view(dtype).T)


def npy_table(stamp: base.FileStamp | RemoteStamp, layout: NpyLayout) -> base.Table:
    """Return the table of an array whose values are stored as they are in memory."""
    shape, dtype = base.check_shape(stamp.name, layout.shape), base.check_dtype(stamp.name, layout.dtype)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(stamp.name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    options = (layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    return base.Table(
        name=stamp.name,
        shape=shape,
        dtype=dtype,
        rows=NpyRows(stamp, layout),
        fingerprint=stamp.digest("npy", *options),
    )


def open_npy(request: base.Request) -> base.Table:
    """Return the table of a .npy file."""
    stamp = base.FileStamp.of(request)
    with open(request.path, "rb") as stream:
        layout = _read_layout(stream, request.name)
    return npy_table(stamp, layout.transposed() if request.transpose else layout)


def open_npy_url(request: base.Request) -> base.Table:
    """Return the table of a .npy object behind a URL."""
    check_url(request.path)
    name = plain(request.name)
    stamp = RemoteStamp.of(name, request.path)
    layout = _read_layout(io.BytesIO(stamp.read(0, min(HEADER_BYTES, stamp.size))), name)
    return npy_table(stamp, layout.transposed() if request.transpose else layout)


def _no_ranges(name: str, found: str) -> BadInput:
    return BadInput(
        name,
        found,
        "one that serves ranges of bytes",
        "every partition would fetch the whole file",
        "copy the file to a local disk or an object store first",
    )


LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field


@contextmanager
def _archive(stamp: base.FileStamp) -> Iterator[zipfile.ZipFile]:
    with faults.reading(stamp.name):
        archive = zipfile.ZipFile(stamp.path)
    with archive:
        yield archive


def open_npz(request: base.Request) -> base.Table:
    """Return the table of one member of a .npz archive, or of the sparse matrix that is in it."""
    stamp = base.FileStamp.of(request)
    with _archive(stamp) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen = None
        if "format" in names and request.member is None:
            load = partial(_load_sparse, stamp, request.transpose)
            table = base.loaded_table(load, stamp.name, stamp.digest("npz", "sparse", request.transpose))
        else:
            chosen = _choose_member(archive, request, names)
            table = _member_table(archive, request, stamp, chosen)
        labels_column = request.labels_column
        if labels_column == chosen or labels_column not in names:
            return table
        layout = _member_layout(archive, str(labels_column), request.name)
        if layout.dtype.kind == "O":
            raise faults.pickled(request.name, f"an array of Python objects in {labels_column!r}")
        pieces = partial(_label_pieces, stamp, str(labels_column), layout)
        return take_label_variable(table, str(labels_column), math.prod(layout.shape), pieces)


def _choose_member(archive: zipfile.ZipFile, request: base.Request, names: list[str]) -> str:
    """Return the member to read: the one named, or the only matrix of numbers."""
    if request.member is not None:
        member = request.member.removesuffix(".npy")
        if member not in names:
            raise faults.absent(request.name, "array", member, names)
        return member
    found = []
    for name in archive.namelist():
        member = name.removesuffix(".npy")
        if not name.endswith(".npy"):
            found.append((member, "(no array)", False))
            continue
        layout = _member_layout(archive, member, request.name)
        found.append((member, f"{layout.shape} {layout.dtype}", base.is_matrix(layout.shape, layout.dtype)))
    return faults.only_matrix(request.name, "array", found, request.labels_column)


def _open_member(archive: zipfile.ZipFile, member: str, name: str) -> IO[bytes]:
    parts = member.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "":
        raise faults.outside(name, f"a member whose name points outside of the archive, {member!r}")
    with faults.reading(name):
        return archive.open(member + ".npy" if member + ".npy" in archive.namelist() else member)


def _member_layout(archive: zipfile.ZipFile, member: str, name: str) -> NpyLayout:
    with _open_member(archive, member, name) as stream:
        return _read_layout(stream, name)


def _member_table(archive: zipfile.ZipFile, request: base.Request, stamp: base.FileStamp, member: str) -> base.Table:
    layout = _member_layout(archive, member, request.name)
    shape, dtype = base.check_shape(request.name, layout.shape), base.check_dtype(request.name, layout.dtype)
    entry = archive.NameToInfo.get(member + ".npy") or archive.getinfo(member)
    if layout.offset + layout.n_bytes > entry.file_size:
        found = f"{entry.file_size} bytes in {member!r}"
        allowed = f"at least {layout.offset + layout.n_bytes}, by its header (shape {shape}, {layout.dtype})"
        otherwise = "the last rows would be missing"
        raise BadInput(request.name, found, allowed, otherwise, "write or download the archive again")
    if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
        return _stored_table(request, stamp, layout, entry)
    if layout.fortran:  # its columns are in order, not its rows
        load = partial(_load_array, stamp, member, request.transpose)
        return base.loaded_table(load, stamp.name, stamp.digest("npz", member, request.transpose))
    rows = MemberRows(stamp, member, layout)
    fingerprint = stamp.digest("npz", member)
    table = base.Table(name=request.name, shape=shape, dtype=dtype, rows=rows, parallel=False, fingerprint=fingerprint)
    return base.transposed(table) if request.transpose else table


def _stored_table(
    request: base.Request, stamp: base.FileStamp, layout: NpyLayout, entry: zipfile.ZipInfo
) -> base.Table:
    """Return the table of a member that is not compressed: a .npy file in the middle of another file."""
    with faults.reading(request.name), open(request.path, "rb") as stream:
        stream.seek(entry.header_offset)
        signature, n_name, n_extra = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise zipfile.BadZipFile("no local header where the directory says one is")
    start = entry.header_offset + LOCAL_HEADER.size + n_name + n_extra
    placed = replace(layout, offset=start + layout.offset)
    return npy_table(stamp, placed.transposed() if request.transpose else placed)


def _member_values(stamp: base.FileStamp, member: str, layout: NpyLayout, start: int, step: int) -> Iterator[AnyArray]:
    """Yield the values of a compressed member from one on, ``step`` at a time, decompressed from its start on."""
    stamp.check()
    count, size = math.prod(layout.shape), layout.dtype.itemsize
    with _archive(stamp) as archive, _open_member(archive, member, stamp.name) as stream:
        with faults.reading(stamp.name):
            stream.seek(layout.offset + start * size)
        for low in range(start, count, step):
            n = min(step, count - low)
            with faults.reading(stamp.name):
                values = np.frombuffer(stream.read(n * size), layout.dtype, n)
            yield values
        with faults.reading(stamp.name):
            stream.read()  # to the member's end, where its checksum is compared


@dataclass
class MemberRows(base.Rows):
    """The rows of a compressed member, decompressed from its start on."""

    stamp: base.FileStamp
    member: str
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def read(self, start: int, stop: int) -> AnyArray:
        return next(base.rebatch(self._stream(start), stop - start))

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        return base.rebatch(self._stream(0), rows)

    def _stream(self, start: int) -> Iterator[AnyArray]:
        f = self.layout.shape[1]
        step = max(1, base.PIECE_BYTES // (f * self.layout.dtype.itemsize)) * f
        for values in _member_values(self.stamp, self.member, self.layout, start * f, step):
            yield values.reshape(-1, f)


def _load_array(stamp: base.FileStamp, member: str, transpose: bool = False) -> AnyArray:
    stamp.check()
    with faults.reading(stamp.name), np.load(stamp.path, allow_pickle=False) as archive:
        array: AnyArray = archive[member]
    return array.T if transpose else array


def _label_pieces(stamp: base.FileStamp, member: str, layout: NpyLayout) -> Iterator[AnyArray]:
    """Yield the values of a member piece by piece; one of several rows and columns, in Fortran order, at once."""
    if layout.fortran and math.prod(layout.shape) != max(layout.shape, default=1):
        yield _load_array(stamp, member)
    else:
        yield from _member_values(stamp, member, layout, 0, labels.PIECE_LABELS)


def _load_sparse(stamp: base.FileStamp, transpose: bool) -> base.Matrix:
    stamp.check()
    with faults.reading(stamp.name):
        matrix = sparse.load_npz(stamp.path)  # never unpickles
    return base.as_csr(matrix.T if transpose else matrix, stamp.name)

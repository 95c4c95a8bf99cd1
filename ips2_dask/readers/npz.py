"""The .npz format: one array of a zip archive, streamed where it is compressed, or a sparse matrix, read whole."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import PIECE_BYTES, Block, FileStamp, Request, StreamedRows, Table, check_dtype, check_shape
from ips2_dask.readers.labels import as_labels, take_label_column, take_label_variable
from ips2_dask.readers.npy import NpyLayout, npy_table, read_layout
from ips2_dask.readers.resident import Matrix, as_csr, loaded_table, transposed

LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field


def open_file(request: Request) -> Table:
    """Return the table of one member of a .npz archive, or of the sparse matrix that is in it."""
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        archive = zipfile.ZipFile(request.path)
    with archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        if "format" in there and request.member is None:
            chosen, table = None, _sparse_table(request, stamp)
        else:
            chosen = _choose(archive, request, there)
            table = _array_table(archive, request, stamp, chosen)
        wanted = request.labels_column
        if wanted is None:
            return table
        if wanted == chosen or wanted not in there:
            return take_label_column(table, wanted)
        layout = _layout(archive, str(wanted), request.name)
        if layout.dtype.kind == "O":
            raise faults.pickled(request.name, f"an array of Python objects in {wanted!r}")
        count = int(np.prod(layout.shape, dtype=object))
        return take_label_variable(table, str(wanted), count, partial(_load_labels, stamp, str(wanted)))


def _choose(archive: zipfile.ZipFile, request: Request, there: list[str]) -> str:
    """Return the member to read: the one named, or the only matrix of numbers."""
    if request.member is not None:
        member = request.member.removesuffix(".npy")
        if member not in there:
            raise faults.absent(request.name, "array", member, there)
        return member
    shapes, suitable = [], []
    for name in archive.namelist():
        member = name.removesuffix(".npy")
        if not name.endswith(".npy"):
            shapes.append(f"{member} (no array)")
            continue
        layout = _layout(archive, member, request.name)
        shapes.append(f"{member} {layout.shape} {layout.dtype}")
        if len(layout.shape) == 2 and min(layout.shape) > 1 and layout.dtype.kind in "biuf":
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


def _layout(archive: zipfile.ZipFile, member: str, name: str) -> NpyLayout:
    with _open_member(archive, member, name) as stream:
        return read_layout(stream, name)


def _array_table(archive: zipfile.ZipFile, request: Request, stamp: FileStamp, member: str) -> Table:
    layout = _layout(archive, member, request.name)
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


def _load_array(stamp: FileStamp, member: str, transpose: bool = False) -> NDArray[Any]:
    with faults.reading(stamp.name), np.load(stamp.path, allow_pickle=False) as archive:
        array: NDArray[Any] = archive[member]
    return array.T if transpose else array


def _load_labels(stamp: FileStamp, member: str) -> NDArray[Any]:
    stamp.check()
    return as_labels(_load_array(stamp, member), stamp.name)


def _sparse_table(request: Request, stamp: FileStamp) -> Table:
    load = partial(_load_sparse, stamp, request.transpose)
    return loaded_table(load, stamp, stamp.digest("npz", "sparse", request.transpose))


def _load_sparse(stamp: FileStamp, transpose: bool) -> Matrix:
    with faults.reading(stamp.name):
        matrix = sparse.load_npz(stamp.path)  # never unpickles
    return as_csr(matrix.T if transpose else matrix, stamp.name)

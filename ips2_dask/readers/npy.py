"""The .npy format, local or behind a URL, and the .npz format, a zip archive of such arrays."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

import numpy as np
from scipy import sparse

from ips2_dask.readers import base, faults, labels
from ips2_dask.readers.columns import take_label_variable
from ips2_dask.typing import AnyArray


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


HEADER_BYTES = 4096  # more than any header of a plain array takes


@dataclass
class NpyRows(base.Rows):
    """The rows of an array in C or Fortran order, from ranges of bytes of a file or of an object behind a URL."""

    stamp: base.FileStamp
    layout: NpyLayout

    def read(self, start: int, stop: int) -> AnyArray:
        self.stamp.check()
        (m, f), dtype, offset = self.layout.shape, self.layout.dtype, self.layout.offset
        if not self.layout.fortran:
            row_bytes = f * dtype.itemsize
            values = self.stamp.read_ranges([offset + start * row_bytes], (stop - start) * row_bytes)
            return values.view(dtype).reshape(stop - start, f)
        starts = [offset + (column * m + start) * dtype.itemsize for column in range(f)]
        return np.ascontiguousarray(self.stamp.read_ranges(starts, (stop - start) * dtype.itemsize).view(dtype).T)


def npy_table(stamp: base.FileStamp, layout: NpyLayout) -> base.Table:
    """Return the table of an array whose values are stored as they are in memory."""
    fingerprint = stamp.digest("npy", layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    shape = base.check_shape(stamp.name, layout.shape)
    table = base.Table(stamp.name, shape, layout.dtype, NpyRows(stamp, layout), fingerprint)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(stamp.name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    return table


def open_npy(request: base.Request) -> base.Table:
    """Return the table of a .npy file, or of such an object behind a URL."""
    stamp = base.FileStamp.of(request)
    head = stamp.read_ranges([0], min(HEADER_BYTES, stamp.size)).tobytes()
    layout = _read_layout(io.BytesIO(head), stamp.name)
    return npy_table(stamp, layout.transposed() if request.transpose else layout)


LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field


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
        pieces = partial(_label_pieces, stamp, str(wanted))
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


def _member_layout(archive: zipfile.ZipFile, member: str, name: str) -> NpyLayout:
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
    return npy_table(stamp, placed.transposed() if transpose else placed)


def _load(stamp: base.FileStamp, member: str | None = None) -> AnyArray:
    """Return a member of an archive, or the sparse matrix that is in it; neither is ever unpickled."""
    stamp.check()
    with faults.reading(stamp.name):
        if member is None:
            return sparse.load_npz(stamp.path)
        with np.load(stamp.path, allow_pickle=False) as archive:
            return archive[member]


def _label_pieces(stamp: base.FileStamp, member: str) -> Iterator[AnyArray]:
    values = _load(stamp, member).ravel()
    return (values[low : low + labels.PIECE_LABELS] for low in range(0, len(values), labels.PIECE_LABELS))

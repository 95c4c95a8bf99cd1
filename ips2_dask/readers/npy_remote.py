"""The .npy format behind a URL: the header and then rows by requests for ranges of bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import Block, Request, Rows, Table, check_dtype, check_shape, digest
from ips2_dask.readers.labels import take_label_column
from ips2_dask.readers.npy import NpyLayout, read_layout
from ips2_dask.store.remote import check_url, open_system, plain, reaching

HEADER_BYTES = 4096
"""More than any header of a plain array takes."""

TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "Last-Modified", "updated", "mtime")
"""What the protocols call that which changes with an object's content."""


@dataclass(frozen=True)
class RemoteStamp:
    """An object as it was when it was opened: its URL, how long it is, and its tags."""

    name: str
    url: str
    size: int
    tags: tuple[str, ...]

    @classmethod
    def of(cls, name: str, url: str) -> RemoteStamp:
        """Return the stamp of the object that is there now."""
        try:
            with reaching(url):
                system, path = open_system(url)
                known = system.info(path)
        except FileNotFoundError:
            faults.throw(_no_object(name))
        size = known.get("size")
        if size is None:
            faults.throw(_no_ranges(name, "a server that does not say how long it is"))
        return cls(name, url, int(size), tuple(str(known[tag]) for tag in TAGS if tag in known))

    def bytes(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop."""
        with reaching(self.url), faults.reading(self.name):
            system, path = open_system(self.url)
            found = bytes(system.cat_file(path, start=start, end=stop))
        if len(found) != stop - start:
            wrong = len(found) == self.size
            raise (
                _no_ranges(self.name, "a server that sends all of it when asked for a part")
                if wrong
                else (faults.changed(self.name))
            )
        return found

    def check(self) -> None:
        """Raise ``BadInput`` if the object is no longer the one that was opened."""
        if RemoteStamp.of(self.name, self.url) != self:
            raise faults.changed(self.name)


@dataclass
class RemoteNpyRows(Rows):
    """The rows of an array behind a URL, in C or Fortran order."""

    stamp: RemoteStamp
    layout: NpyLayout

    def __post_init__(self) -> None:
        self.n_rows = self.layout.shape[0]

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop; in Fortran order by a request for each column."""
        self.stamp.check()
        m, width = self.layout.shape
        if not self.layout.fortran:
            return self._values(start * width, stop * width).reshape(stop - start, width)
        columns = [self._values(column * m + start, column * m + stop) for column in range(width)]
        return np.stack(columns, axis=1)

    def _values(self, first: int, last: int) -> Block:
        size, offset = self.layout.dtype.itemsize, self.layout.offset
        return np.frombuffer(self.stamp.bytes(offset + first * size, offset + last * size), self.layout.dtype)


def open_file(request: Request) -> Table:
    """Return the table of a .npy object, of which one column may hold the labels."""
    check_url(request.path)
    name = plain(request.name)
    stamp = RemoteStamp.of(name, request.path)
    head = io.BytesIO(stamp.bytes(0, min(HEADER_BYTES, stamp.size)))
    layout = read_layout(head, name)
    layout = layout.transposed() if request.transpose else layout
    shape, dtype = check_shape(name, layout.shape), check_dtype(name, layout.dtype)
    if layout.offset + layout.n_bytes > stamp.size:
        raise faults.cut_off(name, stamp.size, layout.offset + layout.n_bytes, f"shape {shape}, {layout.dtype}")
    options: tuple[Any, ...] = (layout.offset, layout.shape, layout.dtype.str, layout.fortran)
    table = Table(
        name=name,
        shape=shape,
        dtype=dtype,
        rows=RemoteNpyRows(stamp, layout),
        parallel=True,
        resident_bytes=0,
        fingerprint=digest("remote npy", stamp.size, stamp.tags, *options),
    )
    return table if request.labels_column is None else take_label_column(table, request.labels_column)


def _no_object(name: str) -> BadInput:
    return BadInput(
        name,
        "nothing there",
        "the URL of a .npy file that exists",
        "there would be nothing to read",
        "check the URL",
    )


def _no_ranges(name: str, found: str) -> BadInput:
    return BadInput(
        name,
        found,
        "one that serves ranges of bytes",
        "every partition would fetch the whole file",
        "copy the file to a local disk or an object store first",
    )

"""One array of a part as Zarr chunks: written whole, read against its receipt, and scanned for faults by chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
import zarr.api.asynchronous
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from ips2_dask.store.integrity import Document, StoredArray, crc32c
from ips2_dask.store.layout import Array
from ips2_dask.store.remote import FreshStore, Recording, is_remote, open_zarr
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from types import EllipsisType

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, NDArrayLikeOrScalar

CHUNK_BYTES = 4 << 20
"""Most arrays are one chunk; longer ones are cut by rows, at a size that is written twice as fast as 16 MiB."""
ROWS_CHUNK_BYTES = 1 << 20

METADATA = "zarr.json"

CODECS = frozenset({"bytes", "zstd", "crc32c"})
"""What arrays of a run are decoded by: what another codec does with a stranger's bytes, nobody has looked at."""


class _Chunk(NamedTuple):
    """A chunk's key below its array, and its rows."""

    key: str
    low: int
    high: int


class _Expecting:
    """What the stores that are read from add to Zarr's: a chunk is there, and is the one of the receipt.

    Zarr takes a missing chunk for one of fill values. That a chunk's bytes fit the checksum at its end, its codec sees.
    """

    sums: Mapping[str, int] = {}

    async def get(self, key: str, prototype: Any = None, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The value of a key."""
        value: Buffer | None = await super().get(key, prototype, byte_range)  # type: ignore[misc]
        if value is None and not key.endswith(METADATA):
            raise FileNotFoundError(f"chunk {key} is missing")
        if value is not None and self.sums.get(key, (last := _checksum(value[-4:].to_bytes()))) != last:
            raise ValueError(f"chunk {key} holds other bytes than were written")
        return value


class _Local(_Expecting, LocalStore):
    pass


class _Remote(_Expecting, FsspecStore):
    pass


class _FreshLocal(Recording, LocalStore):
    pass


def _checksum(end: bytes) -> int:
    """The CRC-32C that the last codec has put at a chunk's end."""
    return int.from_bytes(end, "little")


def _place(location: str, described: StoredArray) -> _Local | _Remote:
    """The Zarr store of an array's folder or URL, to be read as its receipt describes it."""
    store = _Local(location, read_only=True)
    if is_remote(location):
        store = open_zarr(location, read_only=True, kind=_Remote)
    store.sums = dict(zip((chunk.key for chunk in chunks_of(described)), described["crc32c"], strict=True))
    return store


def _fill_of(dtype: np.dtype[Any]) -> float:
    """Fill value of an array, which readers without the receipt see in a missing chunk: no value that we store."""
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def write_group(
    location: str, arrays: Mapping[str, AnyArray], kinds: Mapping[str, Array], attributes: Document
) -> tuple[dict[str, StoredArray], int]:
    """Store arrays as a group; returns a receipt's description of each, and the CRC-32C of the group's metadata."""
    rows = {name: rows_of_chunk(kinds[name], array) for name, array in arrays.items()}
    written = sync(_write_group(location, arrays, kinds, rows, attributes))
    described: dict[str, StoredArray] = {}
    for name, array in arrays.items():
        one: StoredArray = {"shape": list(array.shape), "dtype": array.dtype.str, "rows": rows[name]}
        values = [written[f"{name}/{chunk.key}"] for chunk in chunks_of(one)]
        one["metadata"] = crc32c(written[f"{name}/{METADATA}"][1])
        one["crc32c"], one["bytes"] = [_checksum(end) for _, end in values], [size for size, _ in values]
        described[name] = one
    return described, crc32c(written[METADATA][1])


async def _write_group(
    location: str,
    arrays: Mapping[str, AnyArray],
    kinds: Mapping[str, Array],
    rows: Mapping[str, int],
    attributes: Document,
) -> dict[str, tuple[int, bytes]]:
    """Size and end of what was written by key, in one coroutine, as each call of Zarr's loop costs milliseconds."""
    store = open_zarr(location, kind=FreshStore) if is_remote(location) else _FreshLocal(location)
    group = await zarr.api.asynchronous.create_group(store=store, zarr_format=3, attributes=attributes)
    settings = {name: _settings(kinds[name], array.shape, array.dtype, rows[name]) for name, array in arrays.items()}
    tasks = [group.create_array(name, data=array, **settings[name]) for name, array in arrays.items()]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)  # all have ended, so none writes afterwards
    if isinstance(store, FreshStore):
        await store.await_writes()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return store.written


def rows_of_chunk(kind: Array, array: AnyArray) -> int:
    """How many of an array's rows are a chunk."""
    limit = ROWS_CHUNK_BYTES if kind.by_rows else CHUNK_BYTES
    rows = max(1, limit // max(1, array[:1].nbytes)) if array.ndim and array.size else 1
    return max(1, min(rows, len(array))) if array.ndim else 1


def _settings(kind: Array, shape: Sequence[int], dtype: np.dtype[np.generic], rows: int) -> dict[str, Any]:
    """How an array is stored, besides its shape and dtype."""
    return {
        "chunks": (rows, *(max(1, n) for n in shape[1:])) if shape else (),
        "compressors": [*([ZstdCodec(level=1)] if kind.packed else []), Crc32cCodec()],
        "fill_value": _fill_of(dtype),
        "attributes": {"meaning": kind.meaning},
        "config": {"write_empty_chunks": True},
    }


def chunks_of(described: StoredArray) -> list[_Chunk]:
    """The chunks of an array, in their order."""
    shape = described["shape"]
    if 0 in shape:
        return []
    if not shape:
        return [_Chunk("c", 0, 1)]
    rest = "/0" * (len(shape) - 1)
    rows = described["rows"]
    return [_Chunk(f"c/{low // rows}{rest}", low, min(low + rows, shape[0])) for low in range(0, shape[0], rows)]


def files_of(arrays: Mapping[str, StoredArray]) -> list[str]:
    """Paths of all files of a group, by the descriptions of its arrays."""
    chunks = [f"{name}/{chunk.key}" for name, described in arrays.items() for chunk in chunks_of(described)]
    return [METADATA, *(f"{name}/{METADATA}" for name in arrays), *chunks]


async def _foreseen(described: StoredArray, kind: Array, store: _Local | _Remote) -> zarr.AsyncArray[Any] | None:
    """An array behind a URL, without a request: its receipt gives its metadata; None if the stored ones differ."""
    shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
    settings = _settings(kind, shape, dtype, described["rows"])
    blank = await zarr.api.asynchronous.create_array(store=MemoryStore(), shape=shape, dtype=dtype, **settings)
    metadata = blank.metadata.to_buffer_dict(default_buffer_prototype())[METADATA].to_bytes()
    if crc32c(metadata) != described["metadata"]:  # written by another version of Zarr
        return None
    return zarr.AsyncArray(metadata=blank.metadata, store_path=StorePath(store))


async def _read(
    location: str, described: StoredArray, kind: Array | None, selection: slice | EllipsisType
) -> NDArrayLikeOrScalar:
    store = _place(location, described)
    stored = await _foreseen(described, kind, store) if kind is not None and is_remote(location) else None
    if stored is None:
        stored = await zarr.api.asynchronous.open_array(store=store, mode="r", zarr_format=3)
    if list(stored.shape) != described["shape"] or stored.dtype.str != described["dtype"]:
        raise ValueError(f"it is {stored.dtype.str} {list(stored.shape)}")
    unknown = sorted({codec.to_dict()["name"] for codec in stored.metadata.codecs} - CODECS)
    if unknown:
        raise ValueError(f"it is written with {unknown[0]!r}, which no run uses")
    return await stored.getitem(selection)


def read_rows(
    location: str, described: StoredArray, low: int = 0, high: int | None = None, kind: Array | None = None
) -> AnyArray:
    """Rows low .. high - 1, by default all, every chunk that they touch checked.

    Where ``kind`` says what the layout makes of such an array, its metadata are not fetched over a network. A damaged
    file raises whatever Zarr, a codec or a parser raise of it, and ValueError where a checksum differs.
    """
    selection = slice(low, high if high is None else max(low, high)) if described["shape"] else ...
    return np.asarray(sync(_read(location, described, kind, selection)))


def faults_of(
    location: str, described: StoredArray, metadata: bytes | None, sizes: Mapping[str, int], deep: bool
) -> list[tuple[str, str]]:
    """Faults of a stored array, (chunk, how it differs), from its ``zarr.json`` and the sizes of its files by name.

    ``deep`` reads every byte; otherwise only names and sizes of files are checked.
    """
    faults = []
    if METADATA not in sizes:
        faults.append((METADATA, "is missing"))
    elif deep and (metadata is None or crc32c(metadata) != described["metadata"]):
        faults.append((METADATA, "is not what was written"))
    for chunk, size in zip(chunks_of(described), described["bytes"], strict=True):
        if chunk.key not in sizes:
            faults.append((chunk.key, "is missing"))
        elif sizes[chunk.key] != size:
            faults.append((chunk.key, f"has {sizes[chunk.key]} bytes, and {size} were written"))
        elif deep and METADATA in sizes:
            try:
                read_rows(location, described, chunk.low, chunk.high)
            except Exception as error:  # a damaged file makes codecs and parsers raise errors of any kind
                faults.append((chunk.key, _difference(error, chunk.key)))
    return faults


def _difference(error: Exception, key: str) -> str:
    """The message of an error of a chunk, in a few words."""
    text = " ".join(str(error).split())
    if text.startswith(f"chunk {key} "):
        return text.removeprefix(f"chunk {key} ")
    if "checksum" in text:
        return "holds other bytes than were written: its checksum differs"
    return f"can't be read ({type(error).__name__}: {text[:200]})"

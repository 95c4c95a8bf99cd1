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
from ips2_dask.store.remote import FreshStore, is_remote, open_zarr
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from types import EllipsisType

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype, NDArrayLikeOrScalar

CHUNK_BYTES = 4 << 20
"""Most arrays are one chunk; longer ones are cut by rows, at a size that is written twice as fast as 16 MiB."""
ROWS_CHUNK_BYTES = 1 << 20

METADATA = "zarr.json"

CODECS = frozenset({"bytes", "zstd", "crc32c"})
"""What arrays of a run are decoded by: what another codec does with a stranger's bytes, nobody has looked at."""


class Chunk(NamedTuple):
    """A chunk's key below its array, and its rows."""

    key: str
    low: int
    high: int


class _Local(LocalStore):
    """A local store that raises for a missing chunk, which Zarr takes for one of fill values."""

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The value of a key."""
        return _there(key, await super().get(key, prototype, byte_range))


class _Remote(FsspecStore):
    """A store behind a URL that raises for a missing chunk, as `_Local` does."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The value of a key."""
        return _there(key, await super().get(key, prototype, byte_range))


def _there(key: str, value: Buffer | None) -> Buffer | None:
    if value is None and not key.endswith(METADATA):
        raise FileNotFoundError(f"chunk {key} is missing")
    return value


def place(location: str, *, fresh: bool = False) -> LocalStore | FsspecStore:
    """The Zarr store of a folder or URL; a ``fresh`` one is under a name that nobody has used before."""
    if is_remote(location):
        return open_zarr(location, kind=FreshStore if fresh else _Remote)
    return _Local(location)


def _fill_of(dtype: np.dtype[Any]) -> float:
    """Fill value of an array, which readers without the receipt see in a missing chunk: no value that we store."""
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def _metadata_crc(node: zarr.AsyncArray[Any] | zarr.AsyncGroup) -> int:
    """CRC-32C of the ``zarr.json`` of an array or a group."""
    return crc32c(node.metadata.to_buffer_dict(default_buffer_prototype())[METADATA].to_bytes())


def write_group(
    location: str, arrays: Mapping[str, AnyArray], kinds: Mapping[str, Array], attributes: Document
) -> tuple[dict[str, StoredArray], int]:
    """Store arrays as a group; returns a receipt's description of each, and the CRC-32C of the group's metadata.

    Behind a URL the number of stored bytes is included, because the store has counted them as it wrote.
    """
    written, group, sizes = sync(_write_group(location, arrays, kinds, attributes))
    for name, described in written.items():
        chunks = chunks_of(described)
        described["crc32c"] = [crc32c(_cut(arrays[name], chunk)) for chunk in chunks]
        if sizes is not None:
            described["bytes"] = [sizes[f"{name}/{chunk.key}"] for chunk in chunks]
    return written, group


async def _write_group(
    location: str, arrays: Mapping[str, AnyArray], kinds: Mapping[str, Array], attributes: Document
) -> tuple[dict[str, StoredArray], int, dict[str, int] | None]:
    """One coroutine, since each call from outside of Zarr's loop costs milliseconds."""
    store = place(location, fresh=True)
    group = await zarr.api.asynchronous.create_group(store=store, zarr_format=3, attributes=attributes)
    tasks = [_write_array(group, name, kinds[name], array) for name, array in arrays.items()]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)  # all have ended, so none writes afterwards
    if isinstance(store, FreshStore):
        await store.await_writes()
    written = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        written.append(outcome)
    sizes = store.sizes if isinstance(store, FreshStore) else None
    return dict(zip(arrays, written, strict=True)), _metadata_crc(group), sizes


def rows_of_chunk(kind: Array, array: AnyArray) -> int:
    """How many of an array's rows are a chunk."""
    limit = ROWS_CHUNK_BYTES if kind.by_rows else CHUNK_BYTES
    rows = max(1, limit // max(1, array[:1].nbytes)) if array.ndim and array.size else 1
    return max(1, min(rows, len(array))) if array.ndim else 1


async def _write_array(group: zarr.AsyncGroup, name: str, kind: Array, array: AnyArray) -> StoredArray:
    """Create an array as the layout says, and write it whole."""
    rows = rows_of_chunk(kind, array)
    stored = await group.create_array(name, data=array, **_settings(kind, array.shape, array.dtype, rows))
    return {"shape": list(array.shape), "dtype": array.dtype.str, "rows": rows, "metadata": _metadata_crc(stored)}


def _settings(kind: Array, shape: Sequence[int], dtype: np.dtype[np.generic], rows: int) -> dict[str, Any]:
    """How an array is stored, besides its shape and dtype."""
    return {
        "chunks": (rows, *(max(1, n) for n in shape[1:])) if shape else (),
        "compressors": [*([ZstdCodec(level=1)] if kind.packed else []), Crc32cCodec()],
        "fill_value": _fill_of(dtype),
        "attributes": {"meaning": kind.meaning},
        "config": {"write_empty_chunks": True},
    }


def chunks_of(described: StoredArray) -> list[Chunk]:
    """The chunks of an array, in their order."""
    shape = described["shape"]
    if 0 in shape:
        return []
    if not shape:
        return [Chunk("c", 0, 1)]
    rest = "/0" * (len(shape) - 1)
    rows = described["rows"]
    return [Chunk(f"c/{low // rows}{rest}", low, min(low + rows, shape[0])) for low in range(0, shape[0], rows)]


def files_of(arrays: Mapping[str, StoredArray]) -> list[str]:
    """Paths of all files of a group, by the descriptions of its arrays."""
    chunks = [f"{name}/{chunk.key}" for name, described in arrays.items() for chunk in chunks_of(described)]
    return [METADATA, *(f"{name}/{METADATA}" for name in arrays), *chunks]


def _cut(array: AnyArray, chunk: Chunk) -> AnyArray:
    return array[chunk.low : chunk.high] if array.ndim else array


async def _foreseen(location: str, described: StoredArray, kind: Array) -> zarr.AsyncArray[Any] | None:
    """An array behind a URL, without a request: its receipt gives its metadata; None if the stored ones differ."""
    shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
    settings = _settings(kind, shape, dtype, described["rows"])
    blank = await zarr.api.asynchronous.create_array(store=MemoryStore(), shape=shape, dtype=dtype, **settings)
    if _metadata_crc(blank) != described["metadata"]:  # written by another version of Zarr
        return None
    return zarr.AsyncArray(metadata=blank.metadata, store_path=StorePath(place(location)))


async def _read(
    location: str, described: StoredArray, kind: Array | None, selection: slice | EllipsisType
) -> NDArrayLikeOrScalar:
    stored = await _foreseen(location, described, kind) if kind is not None and is_remote(location) else None
    if stored is None:
        stored = await zarr.api.asynchronous.open_array(store=place(location), mode="r", zarr_format=3)
    if list(stored.shape) != described["shape"] or stored.dtype.str != described["dtype"]:
        raise ValueError(f"it is {stored.dtype.str} {list(stored.shape)}")
    unknown = sorted({codec.to_dict()["name"] for codec in stored.metadata.codecs} - CODECS)
    if unknown:
        raise ValueError(f"it is written with {unknown[0]!r}, which no run uses")
    return await stored.getitem(selection)


def read_rows(location: str, described: StoredArray, low: int, high: int, kind: Array | None = None) -> AnyArray:
    """Rows low .. high - 1, every chunk that they touch checked.

    Where ``kind`` says what the layout makes of such an array, its metadata are not fetched over a network.

    Raises
    ------
    Exception
        Of whatever kind a damaged file makes Zarr, a codec or a parser raise; ValueError where a digest differs.
    """
    touched = [
        (number, chunk)
        for number, chunk in enumerate(chunks_of(described))
        if low < chunk.high and chunk.low < max(high, low)
    ]
    if not described["shape"]:
        touched = list(enumerate(chunks_of(described)))
    start, end = (touched[0][1].low, touched[-1][1].high) if touched else (low, high)
    selection = slice(start, end) if described["shape"] else ...
    array = np.asarray(sync(_read(location, described, kind, selection)))
    for number, chunk in touched:
        moved = Chunk(chunk.key, chunk.low - start, chunk.high - start)
        if crc32c(_cut(array, moved)) != described["crc32c"][number]:
            raise ValueError(f"chunk {chunk.key} holds other bytes than were written")
    rows = array[low - start : high - start] if described["shape"] else array
    return rows if 2 * rows.nbytes >= array.nbytes else rows.copy()  # few rows must not keep their chunks in memory


def read_whole(location: str, described: StoredArray, kind: Array | None = None) -> AnyArray:
    """The whole array, every chunk checked; raises as `read_rows` does."""
    return read_rows(location, described, 0, described["shape"][0] if described["shape"] else 1, kind)


def faults_of(
    location: str, described: StoredArray, metadata: bytes | None, sizes: Mapping[str, int], deep: bool
) -> list[tuple[str, str]]:
    """Faults of a stored array: (chunk, how it differs).

    Parameters
    ----------
    metadata : bytes, optional
        Its ``zarr.json``, or None where there is none.
    sizes : mapping
        Bytes of each of its files, by name.
    deep : bool
        Whether to read every byte; otherwise only names and sizes of files are checked.
    """
    faults = []
    if METADATA not in sizes:
        faults.append((METADATA, "is missing"))
    elif deep and (metadata is None or crc32c(metadata) != described["metadata"]):
        faults.append((METADATA, "is not what was written"))
    for number, chunk in enumerate(chunks_of(described)):
        size = described["bytes"][number]
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

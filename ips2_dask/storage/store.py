"""Where a run keeps its arrays: parts of stages, each sealed by a receipt that is written last.

A part is the set of arrays that one task gave. Every attempt writes its arrays under a name of its own and then puts
the receipt, which names the attempt and holds each array's shape, dtype and crc32c; readers go through the receipt
alone. So a part is there as a whole or not at all, two attempts never mix, and what is read is what was written.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from threading import RLock
from typing import Any, Protocol

import google_crc32c
import numpy as np
import zarr
import zarr.api.asynchronous
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from ips2_dask.errors import Damaged
from ips2_dask.storage.files import Files, open_files
from ips2_dask.storage.layout import ARRAYS, Array

AnyArray = NDArray[Any]
Receipt = dict[str, Any]

OWNER = "ips2_dask"
"""Attribute of the root group that tells a run directory from any other Zarr group."""

CHUNK_BYTES = 4 << 20
"""Most arrays are one chunk; longer ones are cut by rows, at a size that is written twice as fast as 16 MiB."""
ROWS_CHUNK_BYTES = 1 << 20


class Store(Protocol):
    """Parts of stages, by (folder, part)."""

    location: str | None

    def create(self) -> None:
        """Make the place where parts will be, if it is not there."""
        ...

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        ...

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Receipt:
        """Store a part's arrays, then its receipt."""
        ...

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part."""
        ...

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        ...

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        ...

    def drop(self, folder: str, part: str) -> None:
        """Forget a part, receipt first."""
        ...

    def get_document(self, name: str) -> dict[str, Any] | None:
        """A JSON document of the run, or None."""
        ...

    def put_document(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON document of the run, whole."""
        ...

    def remove(self, name: str) -> None:
        """Take away a document or a folder; the place itself goes with the last of them, if it was made by `create`."""
        ...


def _digest(array: AnyArray) -> int:
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8).view()
    octets.flags.writeable = False  # the library takes nothing else
    return int(google_crc32c.value(octets)) if octets.size else 0


def _describe(array: AnyArray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.str, "crc32c": _digest(array)}


class MemoryStore:
    """Parts as NumPy arrays of this process: a small fit leaves nothing behind."""

    def __init__(self) -> None:
        self.location: str | None = None
        self._parts: dict[tuple[str, str], dict[str, AnyArray]] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self.made: dict[str, Any] = {}
        self.making = RLock()

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, and what can be made again."""
        return {name: value for name, value in vars(self).items() if name not in ("made", "making")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, made={}, making=RLock())

    def create(self) -> None:
        """Nothing to make: parts are in this process."""

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        return self._receipts.get((folder, part))

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Receipt:
        """Keep a part's arrays as they are."""
        receipt: Receipt = {
            "arrays": {name: {"shape": list(a.shape), "dtype": a.dtype.str} for name, a in arrays.items()},
            "facts": dict(facts),
        }
        self._parts[folder, part] = dict(arrays)
        self._receipts[folder, part] = receipt
        return receipt

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part."""
        return self._parts[folder, part][name]

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part."""
        return self._parts[folder, part][name][low:high]

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name."""
        self._parts[folder, name] = self._parts.pop((folder, part))
        self._receipts[folder, name] = self._receipts.pop((folder, part))

    def drop(self, folder: str, part: str) -> None:
        """Forget a part."""
        self._parts.pop((folder, part), None)
        self._receipts.pop((folder, part), None)

    def get_document(self, name: str) -> dict[str, Any] | None:
        """A document of the run, or None."""
        return self._documents.get(name)

    def put_document(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a document of the run."""
        self._documents[name] = dict(content)

    def remove(self, name: str) -> None:
        """Forget a document or a folder's parts."""
        self._documents.pop(name, None)
        for folder, part in [key for key in self._receipts if key[0] == name]:
            self.drop(folder, part)


class ZarrStore:
    """Parts as Zarr v3 groups under a local folder or a URL. Picklable: a worker opens it again by its location."""

    def __init__(self, location: str) -> None:
        self.location: str | None = location
        self._root = location
        self._files: Files | None = None
        self._made = False

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "_root": self._root, "_files": None, "_made": False}

    @property
    def files(self) -> Files:
        """The run's text files."""
        if self._files is None:
            self._files = open_files(self._root)
        return self._files

    def _zarr(self, path: str) -> LocalStore | FsspecStore:
        if "://" in self._root:
            return FsspecStore.from_url(f"{self._root}/{path}")
        return LocalStore(f"{self._root}/{path}")

    def create(self) -> None:
        """Make the root a Zarr group, so that any Zarr reader can walk the run; an attribute says what it is."""
        if self.files.read("zarr.json") is None:
            self._made = self.files.make_root()
            attributes = {OWNER: "run"}
            self.files.write(
                "zarr.json", json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes})
            )

    def is_run(self) -> bool:
        """Whether `create` made this place, or an earlier process did."""
        group, manifest = self.get_document("zarr.json"), self.get_document("manifest.json")
        marked = group is not None and OWNER in (group.get("attributes") or {})
        return marked or (manifest is not None and {"format", "created"} <= set(manifest))

    def receipt(self, folder: str, part: str) -> Receipt | None:
        """The receipt of a finished part, or None."""
        text = self.files.read(f"{folder}/{part}.json")
        if text is None:
            return None
        try:
            receipt = json.loads(text)
            return receipt if isinstance(receipt, dict) and {"attempt", "arrays", "facts"} <= set(receipt) else None
        except ValueError:
            return None  # a receipt that can't be read seals nothing: the part is computed again

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Receipt:
        """Store a part's arrays under a new attempt, then its receipt."""
        attempt = f"{part}.{uuid.uuid4().hex[:8]}"
        sync(self._write(f"{folder}/{attempt}", ARRAYS[folder.split("-")[0]], arrays, facts))
        receipt = {"attempt": attempt, "arrays": {n: _describe(a) for n, a in arrays.items()}, "facts": dict(facts)}
        self.files.write(f"{folder}/{part}.json", json.dumps(receipt))
        return receipt

    async def _write(
        self, path: str, kinds: Mapping[str, Array], arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]
    ) -> None:
        """Write a group of arrays: one coroutine, since each call from outside of Zarr's loop costs milliseconds."""
        sparse = {"indices_0", "indices_1", "values"} <= set(arrays)
        group = await zarr.api.asynchronous.create_group(
            store=self._zarr(path), attributes={"binsparse": _binsparse(arrays, facts)} if sparse else None
        )
        await asyncio.gather(*(_write_array(group, name, kinds[name], array) for name, array in arrays.items()))

    def read(self, folder: str, part: str, name: str) -> AnyArray:
        """One array of a finished part, checked against its receipt.

        Raises
        ------
        Damaged
            Where the part, a chunk or a byte of it is not what the receipt says.
        """
        receipt = self.receipt(folder, part)
        if receipt is None:
            raise Damaged(f"{self._root}/{folder}/{part}: the receipt is missing. {self._mend(folder)}")
        where = f"{folder}/{receipt['attempt']}/{name}"
        try:
            expected = receipt["arrays"][name]
            array = np.asarray(sync(_read(self._zarr(where), ...)))
            same = _describe(array) == expected
            reason = "its bytes are not those that were written, or a chunk is missing"
        except Exception as error:  # whatever a damaged file makes a codec or a parser raise
            same, reason = False, f"{type(error).__name__}: {error}"
        if not same:
            raise Damaged(f"{self._root}/{where}: array is damaged ({reason}). {self._mend(folder)}")
        return array

    def read_rows(self, folder: str, part: str, name: str, low: int, high: int) -> AnyArray:
        """Rows low .. high - 1 of one array of a finished part, whose chunks carry their own checksums.

        Raises
        ------
        Damaged
            Where a chunk is missing or is not what was written.
        """
        receipt = self.receipt(folder, part)
        if receipt is None:
            raise Damaged(f"{self._root}/{folder}/{part}: the receipt is missing. {self._mend(folder)}")
        where = f"{folder}/{receipt['attempt']}/{name}"
        try:
            rows = np.asarray(sync(_read(self._zarr(where), slice(low, high))))
            missing = bool((np.isnan(rows) if rows.dtype.kind == "f" else rows == -1).any())
            reason = "a chunk is missing" if missing else ""
        except Exception as error:  # whatever a damaged file makes a codec or a parser raise
            reason = f"{type(error).__name__}: {error}"
        if reason:
            raise Damaged(f"{self._root}/{where}: array is damaged ({reason}). {self._mend(folder)}")
        return rows

    def _mend(self, folder: str) -> str:
        return f"Remedy: delete {self._root}/{folder} and run the same command again, which computes that stage anew."

    def rename(self, folder: str, part: str, name: str) -> None:
        """Give a finished part another name: its receipt moves, its arrays stay."""
        text = self.files.read(f"{folder}/{part}.json")
        if text is not None:
            self.files.write(f"{folder}/{name}.json", text)
            self.files.remove(f"{folder}/{part}.json")

    def drop(self, folder: str, part: str) -> None:
        """Forget a part, receipt first."""
        receipt = self.receipt(folder, part)
        self.files.remove(f"{folder}/{part}.json")
        if receipt is not None:
            self.files.remove(f"{folder}/{receipt['attempt']}")

    def get_document(self, name: str) -> dict[str, Any] | None:
        """A JSON document of the run, or None where it is missing or can't be read."""
        text = self.files.read(name)
        try:
            content = json.loads(text) if text is not None else None
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def put_document(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON document of the run, whole."""
        self.files.write(name, json.dumps(content, indent=1))

    def remove(self, name: str) -> None:
        """Take away a document or a folder; the root itself goes with the last of them, if it was made by `create`."""
        self.files.remove(name)
        if self._made and not self.files.names(""):
            self.files.remove("")


async def _read(store: LocalStore | FsspecStore, selection: Any) -> Any:
    array = await zarr.api.asynchronous.open_array(store=store, mode="r")
    return await array.getitem(selection)


async def _write_array(group: zarr.AsyncGroup, name: str, kind: Array, array: AnyArray) -> None:
    """Create an array as the layout says, and write it whole."""
    size = ROWS_CHUNK_BYTES if kind.by_rows else CHUNK_BYTES
    rows = max(1, size // max(1, array[:1].nbytes)) if array.ndim and array.size else 1
    await group.create_array(
        name,
        data=array,
        chunks=(max(1, min(rows, len(array))), *(max(1, n) for n in array.shape[1:])),
        compressors=[*([ZstdCodec(level=1)] if kind.packed else []), Crc32cCodec()],
        fill_value=(np.nan if array.dtype.kind == "f" else -1) if kind.by_rows else None,
        attributes={"meaning": kind.meaning},
        config={"write_empty_chunks": True},
    )


def _binsparse(arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The binsparse descriptor of a part of a symmetric COO matrix."""
    n = int(facts.get("n_pairs_total", 0))
    return {
        "version": "0.1",
        "format": "COO",
        "shape": [n, n],
        "number_of_stored_values": len(arrays["values"]),
        "structure": "symmetric_upper",
        "data_types": {"indices_0": "int64", "indices_1": "int64", "values": "float32"},
    }

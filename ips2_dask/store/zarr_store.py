"""The store of a run on disk or behind a URL: parts of stages as Zarr groups, each sealed by a receipt written last.

A part is the set of arrays of one task. Every attempt writes its arrays under a name of its own and then puts
the receipt, which names the attempt and holds each array's shape and dtype, and crc32c and stored bytes of each chunk;
readers go through the receipt alone. So a part exists as a whole or not at all, two attempts never mix, and every
read is checked against what was written.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from ips2_dask.errors import StoreFailure
from ips2_dask.store import lock
from ips2_dask.store.arrays import faults_of, files_of, read_rows, write_group
from ips2_dask.store.base import Parts, Store
from ips2_dask.store.files import Files, open_files, writing
from ips2_dask.store.integrity import (
    Document,
    Fault,
    Receipt,
    Scan,
    content_of,
    crc32c,
    missing_receipt,
    opened,
    sealed,
)
from ips2_dask.store.layout import ARRAYS, STAGES
from ips2_dask.store.remote import check_answer, full_place, is_remote, reaching
from ips2_dask.typing import AnyArray

OWNER = "ips2_dask"
"""Attribute of the root group that tells a run directory from any other Zarr group."""

ROOT = {"zarr_format": 3, "node_type": "group", "attributes": {OWNER: "run"}}
"""The metadata of that group."""

READ_AT_ONCE = 16
"""Parts behind a URL that are read at the same time when all of them are checked: each waits for a server's answers."""

STAGE_FILE = "stage.json"
"""The file of a stage's folder that says that the stage is finished."""

FOLDER = re.compile(rf"({'|'.join((*STAGES, 'beside', 'names'))})-[0-9a-f]{{16}}")
"""Names of the folders of stages and of side inputs."""

PLAIN = re.compile(r"\w[\w.-]*")
"""Names of attempts and arrays."""


class ZarrStore(Store):
    """Parts as Zarr v3 groups under a local folder or a URL. Picklable: a worker opens it again by its location."""

    def __init__(self, place: str | Path) -> None:
        self._root = full_place(place)
        self.location: str | None = self._root
        self._files: Files | None = None
        self._receipts: dict[tuple[str, str], Receipt] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"location": self.location, "_root": self._root, "_files": None, "_receipts": {}}

    @property
    def files(self) -> Files:
        """The run's text files."""
        if self._files is None:
            self._files = open_files(self._root)
        return self._files

    def create(self) -> None:
        """Make the root a Zarr group, so that any Zarr reader can walk the run; an attribute says what it is."""
        if self.document("zarr.json")[0] != ROOT:
            self.files.write("zarr.json", json.dumps(ROOT))

    def is_run(self) -> bool:
        """Whether `create` made this place, or an earlier process did."""
        (group, _), (manifest, _) = self.document("zarr.json"), self.document("manifest.json")
        marked = group is not None and OWNER in (group.get("attributes") or {})
        return marked or (manifest is not None and {"format", "created"} <= set(manifest))

    def receipts(self, folder: str, parts: Iterable[str], cached: bool = False) -> dict[str, Receipt]:
        parts = list(parts)
        found, texts = self._cached_or_read(folder, parts, cached)
        for part in parts:
            if part not in found:
                receipt = _receipt(texts.get(part))
                self.cache_receipt(folder, part, receipt)
                found |= {} if receipt is None else {part: receipt}
        return {part: found[part] for part in parts if part in found}

    def cache_receipt(self, folder: str, part: str, receipt: Receipt | None) -> None:
        self._receipts.pop((folder, part), None)
        if receipt is not None and is_remote(self._root):
            self._receipts[folder, part] = receipt

    def listed(self, folder: str) -> frozenset[str] | None:
        if not is_remote(self._root):
            return None
        return frozenset(name.removesuffix(".json") for name in self.files.names(folder) if is_receipt(name))

    def parts(self, folder: str, cached: bool = False) -> dict[str, Receipt]:
        parts = [name.removesuffix(".json") for name in self.files.names(folder) if is_receipt(name)]
        return self.receipts(folder, parts, cached)

    def write(self, folder: str, part: str, arrays: Mapping[str, AnyArray], facts: Mapping[str, object]) -> Receipt:
        """Store a part's arrays under a new attempt, then its receipt.

        Raises
        ------
        StoreFailure
            Where the store is full or can't be written; then nothing of the attempt stays.
        Unreachable
            Where a store behind a URL gives no answer; what it has taken of the attempt is left to `ips2 verify --gc`.
        """
        attempt = f"{part}.{uuid.uuid4().hex[:8]}"
        kinds = ARRAYS[folder.split("-")[0]]
        attributes = {"binsparse": _binsparse(arrays, facts)} if {"indices_0", "indices_1"} <= set(arrays) else {}
        reached = reaching(self._root) if is_remote(self._root) else contextlib.nullcontext()
        try:
            with reached, writing(f"{self._root}/{folder}/{attempt}"):
                described, group = write_group(f"{self._root}/{folder}/{attempt}", arrays, kinds, attributes)
            receipt: Receipt = {"attempt": attempt, "group": group, "arrays": described, "facts": dict(facts)}
            self.files.write(f"{folder}/{part}.json", sealed(receipt))
        except StoreFailure:
            with contextlib.suppress(OSError, StoreFailure):
                sealing = self.receipt(folder, part)
                if sealing is None or sealing["attempt"] != attempt:
                    self.files.remove(f"{folder}/{attempt}")  # else `gc` takes it
            raise
        self.cache_receipt(folder, part, receipt)
        return receipt

    def read(self, folder: str, part: str, name: str, low: int = 0, high: int | None = None) -> AnyArray:
        kind = ARRAYS[folder.split("-")[0]].get(name)

        def array(receipt: Receipt) -> AnyArray:
            place = f"{self._root}/{folder}/{receipt['attempt']}/{name}"
            return read_rows(place, receipt["arrays"][name], low, high, kind)

        cached = self._receipts.get((folder, part))
        if cached is not None:
            try:
                return array(cached)
            except MemoryError:
                raise
            except Exception:  # another attempt may have taken its place since
                self.cache_receipt(folder, part, None)
        receipt = self.receipt(folder, part)
        if receipt is None:
            raise missing_receipt(folder, part).error(self._root)
        try:
            return array(receipt)
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes codecs and parsers raise errors of any kind
            if is_remote(self._root):
                check_answer(self._root, error)  # no answer is no damage
            faults = self._faults(folder, part, name, receipt, self.files.sizes(f"{folder}/{receipt['attempt']}"), True)
            if faults:
                raise faults[0].error(self._root, len(faults) - 1) from error
        return array(receipt)  # the array is sound: only the first reading failed

    def scan(self, folder: str, parts: Parts | None, deep: bool) -> Scan:
        result = Scan(self.parts(folder))
        if parts is None and not result.receipts:
            return result
        sizes: dict[str, dict[str, int]] = {}
        for name, size in self.files.sizes(folder).items():
            attempt, _, rest = name.partition("/")
            sizes.setdefault(attempt, {})[rest] = size

        def faults_of_part(part: str) -> list[Fault]:
            receipt = result.receipts.get(part)
            if receipt is None:
                fault = "the receipt is damaged" if f"{part}.json" in sizes else "the receipt is missing"
                return [Fault(folder, part, f"{folder}/{part}.json", fault)]
            faults = []
            if parts is not None and content_of(receipt) != parts[part]["content"]:
                fault = "the receipt is not that of the finished stage"
                faults.append(Fault(folder, part, f"{folder}/{part}.json", fault))
            attempt_sizes = sizes.get(receipt["attempt"], {})
            group = f"{folder}/{receipt['attempt']}/zarr.json"
            if "zarr.json" not in attempt_sizes:
                faults.append(Fault(folder, part, group, "is missing"))
            elif deep and crc32c((self.files.read(group) or "").encode()) != receipt["group"]:
                faults.append(Fault(folder, part, group, "is not what was written"))
            for name in receipt["arrays"]:
                faults += self._faults(folder, part, name, receipt, attempt_sizes, deep)
            return faults

        names = sorted(set(result.receipts if parts is None else parts))
        at_once = READ_AT_ONCE if deep and is_remote(self._root) else 1
        with ThreadPoolExecutor(at_once, thread_name_prefix="scan") as pool:
            for faults in pool.map(faults_of_part, names):
                result.faults += faults
        return result

    def _faults(
        self, folder: str, part: str, name: str, receipt: Receipt, sizes: Mapping[str, int], deep: bool
    ) -> list[Fault]:
        where = f"{folder}/{receipt['attempt']}/{name}"
        described = receipt["arrays"].get(name)
        if described is None:
            return [Fault(folder, part, where, "no such array is in the receipt", name)]
        array_sizes = {
            path.removeprefix(f"{name}/"): size for path, size in sizes.items() if path.startswith(f"{name}/")
        }
        metadata = (self.files.read(f"{where}/zarr.json") or "").encode() if deep else None
        faults = faults_of(f"{self._root}/{where}", described, metadata, array_sizes, deep)
        return [Fault(folder, part, where, text, name, chunk) for chunk, text in faults]

    def rename_many(self, folder: str, names: Mapping[str, str]) -> None:
        """Receipts move, arrays stay; every receipt has its new name before one of them loses its old one.

        A part that is not there is passed over, so that a run which was stopped on the way can do the same again.
        """
        receipts, texts = self._cached_or_read(folder, self._listed_among(folder, names))
        texts |= {part: sealed(receipt) for part, receipt in receipts.items()}
        for part in names:
            self.cache_receipt(folder, part, None)
        self.files.write_many({f"{folder}/{names[part]}.json": text for part, text in texts.items()})
        for part, text in texts.items():
            self.cache_receipt(folder, names[part], receipts.get(part) or _receipt(text))
        self.files.remove_many([f"{folder}/{part}.json" for part in texts])

    def _cached_or_read(
        self, folder: str, parts: Sequence[str], cached: bool = True
    ) -> tuple[dict[str, Receipt], dict[str, str]]:
        """Cached receipts of parts, and the texts of those that are not cached but there; each by the part's name.

        Where two attempts were made a cached receipt may be that of either one: both are whole.
        """
        known = {part: self._receipts[folder, part] for part in parts if cached and (folder, part) in self._receipts}
        paths = {f"{folder}/{part}.json": part for part in parts if part not in known}
        return known, {paths[path]: text for path, text in self.files.read_many(list(paths)).items()}

    def _listed_among(self, folder: str, parts: Iterable[str]) -> list[str]:
        """Those of some parts that may be finished, from one request where each receipt would take one."""
        parts = list(parts)
        listed = self.listed(folder) if len(parts) > 1 else None
        return [part for part in parts if listed is None or part in listed]

    def drop_many(self, folder: str, parts: Iterable[str]) -> None:
        """All receipts go first, then the arrays, unless a renamed part has them.

        A part without a receipt is not there; arrays of one that was not finished are left to `ips2 verify --gc`.
        """
        parts = list(parts)
        receipts, texts = self._cached_or_read(folder, self._listed_among(folder, parts))
        for part in parts:
            self.cache_receipt(folder, part, None)
        self.files.remove_many([f"{folder}/{part}.json" for part in (*receipts, *texts)])
        receipts |= {part: receipt for part, text in texts.items() if (receipt := _receipt(text)) is not None}
        own = [receipt for part, receipt in receipts.items() if receipt["attempt"].rpartition(".")[0] == part]
        self.files.remove_folders({f"{folder}/{one['attempt']}": files_of(one["arrays"]) for one in own})

    def stage_folders(self) -> list[str]:
        return [name for name in self.files.names("") if FOLDER.fullmatch(name)]

    def clear(self) -> None:
        for name in ("manifest.json", *self.stage_folders(), "zarr.json"):  # the mark of a run last
            self.remove(name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[Callable[[], None]]:
        is_new = self.files.make_root()
        try:
            with lock.Lock(self.files, self._root) as holding:
                yield holding.check
        finally:
            if is_new and not self.files.names(""):  # it was made for the lock
                self.files.remove("")

    def document(self, name: str) -> tuple[Document | None, bool]:
        """A JSON document as it is, or None where it is none; and whether it is as it was written."""
        return opened(self.files.read(name))

    def get_document(self, name: str) -> Document | None:
        content, whole = self.document(name)
        return content if whole else None

    def put_document(self, name: str, content: Mapping[str, object]) -> None:
        self.files.write(name, sealed(content, indent=1))

    def remove(self, name: str) -> None:
        """Of a stage's folder what says that something in it is finished goes first.

        Else one that is removed in part, when the process is killed, would have receipts of arrays that are gone.
        """
        self._receipts.clear()
        first: list[str] = []
        if FOLDER.fullmatch(name):
            names = self.files.names(name)
            first = [*(file for file in names if file == STAGE_FILE), *filter(is_receipt, names)]
        self.files.remove(name, first)


def is_receipt(name: str) -> bool:
    """Whether a file of a stage's folder is a receipt, by its name."""
    return name.endswith(".json") and name not in (STAGE_FILE, "zarr.json")


def _receipt(text: str | None) -> Receipt | None:
    """A receipt; one that can't be read seals nothing, and its part is computed again."""
    content, whole = opened(text)
    if content is None or not whole or not {"attempt", "arrays", "facts"} <= set(content):
        return None
    names = (content["attempt"], *content["arrays"])  # of folders: one of a stranger's may lead out of the run
    return cast(Receipt, content) if all(PLAIN.fullmatch(str(name)) for name in names) else None


def _binsparse(arrays: Mapping[str, AnyArray], facts: Mapping[str, Any]) -> Document:
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

"""How a stored run is checked: seals of documents, receipts of parts with digests of arrays, and the faults found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import google_crc32c

from ips2_dask.errors import Damaged

Facts = dict[str, Any]
"""The numbers and words that a task or a stage reports about its result; each stage has keys of its own."""

Document = dict[str, Any]
"""The content of a JSON document: plain values by name."""


class StoredArray(TypedDict):
    """Description of one array in a receipt; a store in memory gives its shape and dtype alone."""

    shape: list[int]
    dtype: str
    rows: NotRequired[int]  # of a chunk
    metadata: NotRequired[int]  # CRC-32C of its ``zarr.json``
    crc32c: NotRequired[list[int]]  # the checksum at the end of each chunk, which is that of its stored bytes
    bytes: NotRequired[list[int]]  # stored bytes of each chunk


class Receipt(TypedDict):
    """The seal of a finished part: its arrays and facts, and the attempt whose files they are."""

    arrays: dict[str, StoredArray]
    facts: Facts
    attempt: NotRequired[str]
    group: NotRequired[int]  # CRC-32C of the ``zarr.json`` of the attempt's group


SEAL = "seal"
"""Key of a document's own digest, in the file alone."""

OPEN = "0" * 8
"""Placeholder of the seal while its digest is computed."""


def crc32c(octets: bytes) -> int:
    """CRC-32C of bytes."""
    return int(google_crc32c.value(octets))


def sealed(content: Mapping[str, object], indent: int | None = None) -> str:
    """The JSON text of a document with its own digest as its last value."""
    text = json.dumps({**content, SEAL: OPEN}, indent=indent)
    return _with_seal(text, OPEN, _digest(text))


def opened(text: str | None) -> tuple[Document | None, bool]:
    """A document's content without its seal, None for a text that is no document; and whether the seal is right."""
    try:
        content = json.loads(text) if text is not None else None
    except ValueError:
        content = None
    if text is None or not isinstance(content, dict):
        return None, False
    seal = str(content.pop(SEAL, ""))
    return content, seal == _digest(_with_seal(text, seal, OPEN))


def _digest(text: str) -> str:
    return f"{crc32c(text.encode()):08x}"


def _with_seal(text: str, seal: str, other: str) -> str:
    """The text with another seal in the place of its own."""
    before, mark, after = text.rpartition(f'"{SEAL}": "{seal}"')
    return f'{before}"{SEAL}": "{other}"{after}' if mark else ""


def content_of(receipt: Receipt) -> str:
    """Digest of what a part's arrays hold, whichever attempt wrote them."""
    described = {name: [one["shape"], one["dtype"], one["crc32c"]] for name, one in receipt["arrays"].items()}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A document, part, array or chunk of a run directory that differs from what was written."""

    folder: str
    part: str  # empty for a fault of a document
    place: str  # path below the run directory
    found: str  # how it differs
    array: str = ""  # empty for a fault of no array
    chunk: str = ""

    @property
    def text(self) -> str:
        """One line without the remedy."""
        return f"{self.place}: {f'chunk {self.chunk} ' if self.chunk else ''}{self.found}"

    def as_dict(self) -> dict[str, str]:
        """Plain values, with the remedy."""
        return {**dataclasses.asdict(self), "remedy": remedy(self)}

    def error(self, root: str, more: int = 0) -> Damaged:
        """The error that names this fault and how many others there are with it."""
        others = f" (and {more} more)" if more else ""
        text = f"{root}/{self.text}{others}. Remedy: {remedy(self)}."
        return Damaged(text, folder=self.folder, part=self.part)


def missing_receipt(folder: str, part: str) -> Fault:
    """The fault of a part that a finished stage has, and whose receipt can't be read."""
    return Fault(folder, part, f"{folder}/{part}", "the receipt is missing or damaged")


def remedy(fault: Fault) -> str:
    """The remedy of a fault."""
    if not fault.part:
        return "repeat the `ips2 run` or the call that made it, which writes it anew"
    again = "repeat the `ips2 run` that made it with --verify, or the call with verify=True"
    return f"{again}, which computes part {fault.part} anew"


@dataclasses.dataclass
class Scan:
    """Result of a scan of a folder: the receipts of its parts, and the faults."""

    receipts: dict[str, Receipt] = dataclasses.field(default_factory=dict)
    faults: list[Fault] = dataclasses.field(default_factory=list)

    @property
    def lost(self) -> list[str]:
        """The parts with a fault, in their order."""
        return sorted({fault.part for fault in self.faults if fault.part})

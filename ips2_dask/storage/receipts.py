"""What seals a document or a part: digests of arrays chunk by chunk, and of the JSON that holds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Receipt = dict[str, Any]

SEAL = "seal"
"""Key of a document's own digest, in the file alone."""


def crc32c(octets: bytes | NDArray[Any]) -> int:
    """CRC-32C of bytes, or of an array's bytes in C order."""
    if isinstance(octets, np.ndarray):
        octets = np.ascontiguousarray(octets).reshape(-1).view(np.uint8).view()
        octets.flags.writeable = False  # the library takes nothing else
        return int(google_crc32c.value(octets)) if octets.size else 0
    return int(google_crc32c.value(octets))


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def sealed(content: Mapping[str, Any], indent: int | None = None) -> str:
    """The JSON text of a document with its own digest in it."""
    plain = json.loads(json.dumps(content))  # keys and tuples as they will be read
    return json.dumps({**plain, SEAL: f"{crc32c(_canonical(plain).encode()):08x}"}, indent=indent)


def opened(text: str | None) -> tuple[dict[str, Any] | None, bool]:
    """A document's content without its seal, or None where it is none; and whether it is as it was written."""
    try:
        content = json.loads(text) if text is not None else None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return None, False
    seal = content.pop(SEAL, None)
    return content, seal == f"{crc32c(_canonical(content).encode()):08x}"


def content_of(receipt: Receipt) -> str:
    """Digest of what a part's arrays hold, whichever attempt wrote them."""
    held = {
        name: [described["shape"], described["dtype"], described["crc32c"]]
        for name, described in receipt["arrays"].items()
    }
    return hashlib.sha256(_canonical(held).encode()).hexdigest()[:16]

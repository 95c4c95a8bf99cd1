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

OPEN = "0" * 8
"""What stands there while the digest is taken."""


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
    """The JSON text of a document with its own digest as its last value."""
    text = json.dumps({**content, SEAL: OPEN}, indent=indent)
    return _with_seal(text, OPEN, _digest(text))


def opened(text: str | None) -> tuple[dict[str, Any] | None, bool]:
    """A document's content without its seal, or None where it is none; and whether every byte is as it was written."""
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
    held = {
        name: [described["shape"], described["dtype"], described["crc32c"]]
        for name, described in receipt["arrays"].items()
    }
    return hashlib.sha256(_canonical(held).encode()).hexdigest()[:16]

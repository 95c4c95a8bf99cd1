"""Sample names in a run directory: UTF-8 text end to end, named by its digest, so that other names never meet it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.readers.base import digest
from ips2_dask.store.base import Store

FOLDER = "names"
PART = "whole"


def keep(store: Store, names: NDArray[np.str_]) -> str:
    """Store the names of all samples, unless they are there already; the folder they are in."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names.tolist()]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    folder = f"{FOLDER}-{digest(text.tobytes(), ends.tobytes())[:16]}"
    if store.receipt(folder, PART) is None:
        store.write(folder, PART, {"text": text, "ends": ends}, {})
    return folder


def read(store: Store, folder: str) -> NDArray[np.str_]:
    """The names that were stored: (m,)."""
    text, ends = store.read(folder, PART, "text").tobytes(), store.read(folder, PART, "ends").tolist()
    starts = [0, *ends[:-1]]
    return np.array([text[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=True)], np.str_)

"""S, V and U of a run as matrices of all samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ips2_dask.kernels.operator import assemble
from ips2_dask.storage.context import Context


def read_similarity(context: Context, name: str) -> sp.csr_array | np.ndarray[Any, Any]:
    """``pairwise`` S, ``high_order`` V or ``fused`` U: dense (m, m) where all pairs were kept, else CSR (m, m)."""
    if context.facts["fuse"]["dense"]:
        dense: np.ndarray[Any, Any] = context.read_all("fuse", name)
        return dense
    parts = range(context.n_partitions)
    entries = np.concatenate([context.read("fuse", b, "entries") for b in parts])
    prefix = "fused-" if name == "fused" else ""
    values = np.concatenate([context.read("fuse", f"{prefix}p{b:06d}", name) for b in parts])
    if name == "high_order":
        values = values / context.facts["fuse"]["largest"]
    kept = values != 0
    i, j = entries[kept].astype(np.int64).T
    return assemble(i, j, values[kept], context.m)

"""S, V and U of a run as matrices of all samples, or pair by pair in parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ips2_dask.kernels.symmetric import Part, symmetric_csr
from ips2_dask.storage.context import Context, part_name

DENSE_PAIRS = 1 << 20
"""Pairs of one part where all of them are kept."""

KINDS = ("pairwise", "high_order", "fused")


class Similarities(NamedTuple):
    """The three similarities of some pairs i < j, in the user's numbering."""

    i: np.ndarray[Any, Any]  # (n,) int64
    j: np.ndarray[Any, Any]
    pairwise: np.ndarray[Any, Any]  # (n,) S
    high_order: np.ndarray[Any, Any]  # V
    fused: np.ndarray[Any, Any]  # U


def similarity_parts(context: Context) -> Iterator[Similarities]:
    """Every stored pair of two samples once, part by part."""
    order = context.order()
    parts = _dense_parts if context.facts["fuse"]["dense"] else _sparse_parts
    for pairs, values in parts(context):
        i, j = pairs if order is None else np.sort(order[pairs], axis=0).astype(np.int64)
        yield Similarities(i, j, *values)


def _sparse_parts(context: Context) -> Iterator[tuple[Any, list[Any]]]:
    for b in range(context.n_partitions):
        entries = np.asarray(context.read("fuse", b, "entries")).astype(np.int64)
        kept = entries[:, 0] != entries[:, 1]
        names = (part_name(b), part_name(b), f"fused-{part_name(b)}")
        S, V, U = (np.asarray(context.read("fuse", p, kind))[kept] for p, kind in zip(names, KINDS, strict=True))
        yield entries[kept].T, [S, V / context.facts["fuse"]["largest"], U]


def _dense_parts(context: Context) -> Iterator[tuple[Any, list[Any]]]:
    for b in range(context.n_partitions):
        first, last = context.span(b)
        step = max(1, DENSE_PAIRS // context.m)
        for low in range(first, last, step):
            high = min(low + step, last)
            i, j = np.nonzero(np.arange(context.m) > np.arange(low, high)[:, None])
            rows = (np.asarray(context.read("fuse", b, kind))[low - first : high - first] for kind in KINDS)
            yield np.stack([i + low, j]), [block[i, j] for block in rows]


def read_similarity(context: Context, name: str) -> sp.csr_array | np.ndarray[Any, Any]:
    """``pairwise`` S, ``high_order`` V or ``fused`` U: dense (m, m) where all pairs were kept, else CSR (m, m)."""
    if context.facts["fuse"]["dense"]:
        dense: np.ndarray[Any, Any] = context.read_all("fuse", name)
        return dense
    prefix = "fused-" if name == "fused" else ""
    scale = context.facts["fuse"]["largest"] if name == "high_order" else 1.0

    def parts() -> Iterator[Part]:
        for b in range(context.n_partitions):
            entries = np.asarray(context.read("fuse", b, "entries"))
            yield entries, np.asarray(context.read("fuse", f"{prefix}{part_name(b)}", name)) / scale

    return symmetric_csr(parts, context.m)

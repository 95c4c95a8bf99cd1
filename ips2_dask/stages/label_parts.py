"""What the stage label stores by partition, and rows of the similarities by partition.

Entries (i, j), i <= j, of the similarities lie in the partition of i. The rows of a partition are its own entries and
those of others that reach it, so that each partition has to know which others reach it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels.components import Division
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.stages.views import copies_of
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float64, Int32, Int64

VECTORS, DEGREES = "vectors-", "degrees-"
"""Prefixes of the parts of the solve by piece: ``vectors`` (rows, columns) float32, eigenvectors of the normalised
U of length 1 over all samples, and ``degrees`` (rows,) float64, row sums of the weighed |U|; both 0 in islands."""

EMBEDDING, LABELS, BUCKETS = "embedding-", "labels-", "rows-"
"""Prefixes of the parts that stay."""

SHARES = "shares-"
"""Prefix of the parts by piece with the shares of samples, until they are stored beside labels."""

FEW = 1_000
"""Samples up to which a dense U is looked at for components: one of more is taken to hang together."""

DIVISION = "division"
"""The part that says which components of U take part in the solve, which edges join some of them, and what is solved
for. Its facts: ``columns`` of the embedding, of which the first ``wanted`` are to have residuals of at most ``tol`` or
to be ``settled`` (`kernels.eigen.leading_eigenpairs`), ``large`` components that take part, ``total`` of them."""

FOLLOWED = "followed"
"""The part with the sample whose label each island takes."""

REACH, REACHED = "reach-", "reached"
"""Prefix of the parts whose fact says which partitions a partition's entries reach, and the part with the reverse."""


def of_stage(context: Context) -> Context:
    """The context of the stage: samples of a dense U are one chunk."""
    if not context.facts["fuse"]["dense"]:
        return context
    return dataclasses.replace(context, choices=dataclasses.replace(context.choices, vectors="in-core"))


# ---- parts


def read_parts(context: Context, receipts: Sequence[Receipt], prefix: str, *names: str) -> Iterator[list[AnyArray]]:
    """Arrays of the parts by partition that have any rows, which their fact ``n`` says, one part after another."""
    parts = [prefix + part_name(b) for b, receipt in enumerate(receipts) if receipt["facts"]["n"]]
    arrays = [context.store.read_many(context.folders["label"], parts, name) for name in names]
    return map(list, zip(*arrays, strict=True))


def is_stored(context: Context, names: Sequence[str]) -> bool:
    """Whether all of some parts are stored."""
    return len(present(context.store, context.folders["label"], names)) == len(names)


def is_complete(context: Context, prefixes: Iterable[str]) -> bool:
    """Whether all partitions have their parts of some prefixes."""
    return is_stored(context, [prefix + part_name(b) for prefix in prefixes for b in range(context.n_partitions)])


def drop(context: Context, names: Iterable[str]) -> None:
    """Drop those of some parts of stage label that are there."""
    context.store.drop_many(context.folders["label"], list(names))


def drop_by_partition(context: Context, *prefixes: str) -> None:
    """Drop the parts of all partitions with these prefixes."""
    drop(context, (prefix + part_name(b) for prefix in prefixes for b in range(context.n_partitions)))


# ---- components


def division_of(context: Context) -> Division:
    """Which components of U take part in the solve; some may have been joined to one."""
    receipt = context.finished("label", DIVISION)
    rank = np.asarray(context.read("label", DIVISION, "rank"))
    return Division(rank, int(receipt["facts"]["large"]), int(receipt["facts"]["total"]))


def components_at(context: Context, b: int) -> Int32:
    """The component of each of partition b's samples: large ones first, joined ones as one, then islands."""
    division = division_of(context)
    return division.rank[np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))]


def followed_at(context: Context, b: int) -> Int64:
    """The sample whose label each of partition b's samples takes, its own but for samples of islands: (rows,)."""
    (low, high), large = context.span(b), division_of(context).large
    follows = np.arange(low, high)
    if context.receipt("label", FOLLOWED) is not None:
        label = components_at(context, b)
        island = label >= large
        follows[island] = np.asarray(context.read("label", FOLLOWED, "followed"))[label[island] - large]
    return follows


def extra_edges(context: Context) -> tuple[Int32, Float64]:
    """Edges (i, j), i < j, that join components of U for the solve, and their weights; U itself has none of them."""
    names = ("extra", "extra_weights")
    edges, weights = (np.asarray(context.read("label", DIVISION, name)) for name in names)
    return edges, weights


# ---- entries and rows of U and S


def weights_at(context: Context, samples: NDArray[np.integer]) -> Float64 | None:
    """The weights (`similarity_views.row_weights`) of samples in any order, or None where each is 1."""
    if not context.merged:
        return None
    ascending, place = np.unique(samples, return_inverse=True)
    copies = copies_of(context, ascending)
    return None if copies is None else np.sqrt(copies.astype(np.float64))[place.reshape(samples.shape)]


def _fused_entries(context: Context, b: int) -> tuple[Int32, Float64]:
    """Entries (n, 2), i <= j, of partition b and their |U|, not weighed; without those that are 0."""
    entries = np.asarray(context.fetch("fuse", b, "entries"))
    values = np.abs(np.asarray(context.fetch("fuse", f"fused-{part_name(b)}", "fused")))
    return entries[values != 0], values[values != 0]


def fused_edges(context: Context, b: int) -> Int32:
    """The pairs of different samples that U joins, the first one in partition b: (n, 2).

    Of a dense U of many samples its first sample is joined with all.
    """
    if context.facts["fuse"]["dense"]:
        low, high = context.span(b)
        if context.m <= FEW:
            i, j = np.nonzero(np.asarray(context.read("fuse", b, "fused")))
            return np.stack([i + low, j], axis=1)[i + low != j].astype(np.int32)
        return np.stack([np.arange(low, high), np.zeros(high - low)], axis=1).astype(np.int32)
    entries, _ = _fused_entries(context, b)
    return entries[entries[:, 0] != entries[:, 1]]


def weighed_entries(context: Context, b: int) -> tuple[Int32, Float64]:
    """`_fused_entries` times the weights of both samples: the affinity that is embedded, walked on and cut."""
    entries, values = _fused_entries(context, b)
    weights = weights_at(context, entries)
    return entries, values if weights is None else values * weights[:, 0] * weights[:, 1]


def pairwise_entries(context: Context, b: int) -> tuple[Int32, Float64]:
    """Entries of partition b and their S."""
    return np.asarray(context.fetch("fuse", b, "entries")), np.asarray(context.fetch("fuse", b, "pairwise"))


def reach(context: Context, b: int) -> TaskResult:
    """The partitions that the entries of partition b reach, as the fact ``reaches``."""
    entries = np.asarray(context.fetch("fuse", b, "entries"))
    return {}, {"reaches": np.unique(context.owner(entries[:, 1])).tolist()}


def find_reaches(context: Context, executor: Executor, report: Report) -> list[list[int]]:
    """Of each partition those whose entries reach it, itself among them, ascending; stored as `REACHED` too."""
    receipts = executor.map(Job("label", reach, REACH), context, range(context.n_partitions), report)
    sources: list[list[int]] = [[b] for b in range(context.n_partitions)]
    for b, receipt in enumerate(receipts):
        for other in receipt["facts"]["reaches"]:
            if other != b:
                sources[other].append(b)
    sources = [sorted(some) for some in sources]
    if context.receipt("label", REACHED) is None:
        start = np.cumsum([0, *map(len, sources)]).astype(np.int64)
        arrays: dict[str, AnyArray] = {"reached_start": start, "reached_by": np.concatenate(sources).astype(np.int32)}
        context.store.write(context.folders["label"], REACHED, arrays, {})
    return sources


def sources_of(context: Context, b: int) -> list[int]:
    """The partitions whose entries reach partition b, itself among them, ascending."""
    start, sources = (np.asarray(context.read("label", REACHED, name)) for name in ("reached_start", "reached_by"))
    return sources[start[b] : start[b + 1]].tolist()


def row_entries(
    low: int, high: int, parts: Iterable[tuple[Int32, Float64]]
) -> tuple[Int64, NDArray[np.integer], Float64]:
    """Entries of the rows low .. high - 1 of a symmetric matrix: (row - low, column, value), in no order.

    From entries (n, 2), i <= j, each given once, of all partitions that reach these rows.
    """
    rows, columns, values = [], [], []
    for entries, value in parts:
        i, j = entries.T
        for own, other in ((i, j), (j, i)):
            inside = (own >= low) & (own < high)
            if other is i:
                inside &= i != j  # the diagonal counts once
            rows.append(own[inside].astype(np.int64) - low)
            columns.append(other[inside])
            values.append(value[inside])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)

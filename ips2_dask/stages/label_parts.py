"""What the stage label stores by partition and by chunk, and rows of the similarities.

Entries (i, j), i <= j, of the similarities lie in the partition of i. The rows of a partition are its own entries and
those of others that reach it, so that each partition has to know which others reach it.

A chunk's part has the rows of U of its samples as CSR over the samples that they touch, as it is embedded: weighed, and
with the edges that join its components. Of a dense U it has each sample's largest similarities alone, which walks keep
to. Degrees are stored by piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report, cuts, run_sending, senders
from ips2_dask.kernels.components import Components, Division
from ips2_dask.kernels.rounding import thinned
from ips2_dask.kernels.sparse import distinct, places
from ips2_dask.stages.chunks import CHUNK_KIND, n_chunks, of_chunks, partitions_of, rows_at, sample_bounds, write_rows
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.stages.similarity_views import read_affinity, stored_values
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import Context, part_name
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

FUSED = "fused-chunk-"
"""Prefix of the parts with the rows of U of each chunk."""

REACH = "reach-"
"""Prefix of the parts whose fact says which partitions a partition's entries reach."""


def of_stage(context: Context) -> Context:
    """The context of the stage: samples of a dense U are one chunk."""
    if not context.facts["fuse"]["dense"]:
        return context
    return dataclasses.replace(context, choices=dataclasses.replace(context.choices, vectors="in-core"))


# ---- parts


def collected(context: Context, executor: Executor, report: Report, job: Job, *names: str) -> Iterator[list[AnyArray]]:
    """Arrays of the parts of a job by partition that have any rows, as their fact ``n`` says, and are dropped then."""
    receipts = executor.map(job, context, range(context.n_partitions), report)
    parts = [job.prefix + part_name(b) for b, receipt in enumerate(receipts) if receipt["facts"]["n"]]
    arrays = [context.store.read_many(context.folders["label"], parts, name) for name in names]
    yield from map(list, zip(*arrays, strict=True))
    drop(context, by_partition(context, job.prefix))


def by_partition(context: Context, *prefixes: str) -> list[str]:
    """The parts of all partitions with these prefixes."""
    return [prefix + part_name(b) for prefix in prefixes for b in range(context.n_partitions)]


def is_stored(context: Context, names: Sequence[str]) -> bool:
    """Whether all of some parts are stored."""
    return len(present(context.store, context.folders["label"], names)) == len(names)


def drop(context: Context, names: Iterable[str]) -> None:
    """Drop those of some parts of stage label that are there."""
    context.store.drop_many(context.folders["label"], list(names))


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


def extra_edges_at(context: Context, low: int, high: int) -> tuple[Int32, Float64]:
    """Such edges (i, j) with i in low .. high - 1, from either side, and their weights."""
    edges, weights = extra_edges(context)
    both = np.concatenate([edges, edges[:, ::-1]])
    own = (both[:, 0] >= low) & (both[:, 0] < high)
    return both[own], np.tile(weights, 2)[own]


# ---- entries and rows of U and S


def weights_at(context: Context, samples: NDArray[np.integer]) -> Float64 | None:
    """The weights (`similarity_views.row_weights`) of samples in any order, or None where each is 1."""
    if not context.merged:
        return None
    ascending, place = np.unique(samples, return_inverse=True)
    return np.sqrt(context.copies_at(ascending).astype(np.float64))[place.reshape(samples.shape)]


def _fused_entries(context: Context, b: int) -> tuple[Int32, Float64]:
    """Entries (n, 2), i <= j, of partition b and their |U|, not weighed; without those that are 0."""
    entries = np.asarray(context.fetch("fuse", b, "entries"))
    values = np.abs(stored_values(context, b, "fused"))
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
    return np.asarray(context.fetch("fuse", b, "entries")), stored_values(context, b, "pairwise")


def reach(context: Context, b: int) -> TaskResult:
    """The partitions that the entries of partition b reach, as facts: they read these entries as a whole."""
    return {}, cuts(context, np.unique(np.asarray(context.fetch("fuse", b, "entries"))[:, 1]))


def sources_of(context: Context, b: int) -> list[int]:
    """The partitions whose entries reach partition b, itself among them, ascending."""
    return sorted({b, *(source for source, _, _ in senders(context, "label", REACH, b))})


def symmetric_rows(low: int, high: int, parts: Iterable[tuple[Int32, Float64]]) -> tuple[sp.csr_array, Int32]:
    """The rows low .. high - 1 of a symmetric matrix, and the samples that they touch, these rows' own among them.

    From entries (n, 2), i <= j, each given once, of all partitions that reach these rows: (rows, touched), columns
    ascending, and (touched,).
    """
    rows, columns, values = [], [], []
    for entries, value in parts:
        i, j = entries.T
        for own, other in ((i, j), (j, i)):
            inside = (own >= low) & (own < high)
            if other is i:
                inside &= i != j  # the diagonal counts once
            rows.append(own[inside] - low)
            columns.append(other[inside])
            values.append(value[inside])
    j = np.concatenate(columns)
    touched = distinct(np.concatenate([j, np.arange(low, high, dtype=j.dtype)])).astype(np.int32, copy=False)
    indices = np.concatenate(rows).astype(np.int32), places(touched, j)
    matrix = sp.coo_array((np.concatenate(values), indices), shape=(high - low, len(touched))).tocsr()
    matrix.sort_indices()
    return matrix, touched


# ---- the rows of U by chunk, stored for its eigenvectors, for walks and for cuts


def fused_part(g: int) -> str:
    """The part of chunk g."""
    return FUSED + part_name(g)


def fused_touched(context: Context, g: int) -> Int32:
    """The samples that chunk g touches, ascending: (n,) int32."""
    return context.store.read(context.folders["label"], fused_part(g), "touched")


def fused_rows(context: Context, g: int) -> sp.csr_array:
    """The rows of chunk g's samples, not normalised: CSR (n_g, touched) float64."""
    folder = context.folders["label"]
    indptr, indices, data = (context.store.read(folder, fused_part(g), name) for name in ("indptr", "indices", "data"))
    return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, len(fused_touched(context, g))))


def fused_degrees(context: Context, samples: NDArray[np.integer]) -> Float64:
    """Degrees at ascending samples, 0 for those of islands: (n,) float64."""
    return np.asarray(rows_at(context, "label", "degrees", samples, DEGREES), np.float64)


def fused_components(context: Context, samples: NDArray[np.integer]) -> Components:
    """Components of U at ascending samples, as they were divided for the solve."""
    division = division_of(context)
    if division.total == 1 or not len(samples):
        return division.of(np.zeros(len(samples), np.int32))
    return division.of(context.rows_of("label", "components", samples, COMPONENTS))


def rows_of_chunk(context: Context, g: int) -> TaskResult:
    """The part of chunk g; its degrees are stored by piece."""
    low, high = sample_bounds(context)[g : g + 2]
    if context.facts["fuse"]["dense"]:
        U = read_affinity(context)
        sums, matrix, among = U.sum(axis=1), thinned(U), np.arange(context.m, dtype=np.int32)
    else:
        sources = {source for b in partitions_of(context, g) for source in sources_of(context, b)}
        parts = [*(weighed_entries(context, b) for b in sorted(sources)), extra_edges(context)]
        matrix, among = symmetric_rows(low, high, parts)
        sums = np.asarray(matrix.sum(axis=1), np.float64).ravel()
    sums[~fused_components(context, np.arange(low, high)).inside] = 0.0  # of islands, which take no part
    write_rows(context, g, "label", DEGREES, "degrees", sums)
    arrays = {
        "indptr": matrix.indptr.astype(np.int32),
        "indices": matrix.indices.astype(np.int32),
        "data": matrix.data,
        "touched": among,
    }
    return arrays, {}


def affinity_rows(context: Context, g: int) -> sp.csr_array:
    """The rows of chunk g of U as walks and cuts see it: weighed, without the edges that join its components.

    CSR (n_g, touched) float64, columns ascending.
    """
    matrix = fused_rows(context, g)
    low, high = sample_bounds(context)[g : g + 2]
    extra, _ = extra_edges_at(context, low, high)
    if not len(extra):
        return matrix
    here = np.searchsorted(fused_touched(context, g), extra[:, 1])
    keep = np.ones(len(matrix.data), np.bool_)
    for row, place in zip(extra[:, 0] - low, here, strict=True):  # U itself has no entry there
        begin, end = matrix.indptr[row : row + 2]
        keep[begin + np.searchsorted(matrix.indices[begin:end], place)] = False
    kept = np.concatenate([[0], np.cumsum(keep)]).astype(matrix.indptr.dtype)
    return sp.csr_array((matrix.data[keep], matrix.indices[keep], kept[matrix.indptr]), shape=matrix.shape)


def cut_rows(context: Context, g: int) -> sp.csr_array:
    """`affinity_rows` with all entries of a dense U."""
    return sp.csr_array(read_affinity(context)) if context.facts["fuse"]["dense"] else affinity_rows(context, g)


def store_fused_rows(context: Context, executor: Executor, report: Report) -> None:
    """Store the rows of U by chunk."""
    if not context.facts["fuse"]["dense"]:
        run_sending(context, executor, report, Job("label", reach, REACH))
    job = Job("label", rows_of_chunk, FUSED, CHUNK_KIND)
    of_chunks(context, executor).map(job, context, range(n_chunks(context)), report)

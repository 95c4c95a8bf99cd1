"""Symmetric matrices of samples whose rows are stored by chunk: the sample graph, and the fused similarity U.

A chunk's part has the rows of its samples as CSR over the samples that they touch, and where each chunk's samples begin
among these. The degrees are stored by partition.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels.components import Components
from ips2_dask.kernels.operator import ChunkRowsMatrix
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages import label_parts
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.stages.near import lists_of, reverse_at
from ips2_dask.stages.views import components_of
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

CHUNK_KIND = "chunks"
"""The kind of chunks as items of `ips2_dask.executors.placement`."""


def sample_bounds(context: Context) -> list[int]:
    """First sample of each chunk, and the number of samples."""
    return [*(context.bounds[first] for first, _ in chunk_partitions(context)), context.m]


@dataclasses.dataclass(frozen=True)
class SampleMatrix:
    """A symmetric matrix of samples, stored by chunk.

    Attributes
    ----------
    name : str
        The beginning of the names of its parts.
    stage : str
        In whose folder they are.
    degrees_prefix : str
        The beginning of the names of the parts with degrees.
    components : callable
        From the context and ascending samples to the components of the matrix at these.
    """

    name: str
    stage: str
    degrees_prefix: str
    components: Callable[[Context, NDArray[np.integer]], Components]

    def part(self, g: int) -> str:
        """The part of chunk g."""
        return f"{self.name}-chunk-{part_name(g)}"

    def cuts(self, context: Context, chunks: Iterable[int]) -> list[list[int]]:
        """Where each chunk's samples begin among those that some chunks touch, and their number, of each of these."""
        names = list(map(self.part, chunks))
        receipts = context.receipts(self.stage, names)
        return [receipts[name]["facts"]["cuts"] if name in receipts else [] for name in names]

    def touched(self, context: Context, g: int) -> Int32:
        """The samples that chunk g touches, ascending: (n,) int32."""
        return context.store.read(context.folders[self.stage], self.part(g), "touched")

    def degrees(self, context: Context, samples: NDArray[np.integer]) -> Float64:
        """Degrees at ascending samples, 0 for those of islands: (n,) float64."""
        degrees = context.rows_of(self.stage, "degrees", samples, self.degrees_prefix, remember=False)
        return np.asarray(degrees, np.float64)

    def rows(self, context: Context, g: int) -> sp.csr_array:
        """The rows of chunk g's samples, not normalised: CSR (n_g, touched) float64."""
        folder, part = context.folders[self.stage], self.part(g)
        indptr, indices, data = (context.store.read(folder, part, name) for name in ("indptr", "indices", "data"))
        cuts = self.cuts(context, [g])[0]
        return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, cuts[-1]))

    def operator(self, context: Context, g: int, own: slice) -> ChunkRowsMatrix:
        """The rows of chunk g of the normalised matrix, whose own samples are at the places ``own``."""
        rows, root = self.rows(context, g), inverse_root(self.degrees(context, self.touched(context, g)))
        data = rows.data * np.repeat(root[own], np.diff(rows.indptr)) * root[rows.indices]
        return ChunkRowsMatrix(
            sp.csr_array((data.astype(np.float32), rows.indices, rows.indptr), shape=rows.shape), own
        )

    def operator_bytes(self, context: Context) -> list[int]:
        """Bytes of each chunk's `operator`: its arrays have four bytes an entry."""
        names = [self.part(g) for g in range(len(chunk_partitions(context)))]
        receipts = context.receipts(self.stage, names)
        entries = ("indptr", "indices", "data")
        return [4 * sum(math.prod(receipts[part]["arrays"][name]["shape"]) for name in entries) for part in names]

    def store_chunk(self, context: Context, g: int, rows: Int64, columns: Int64, values: Float64) -> TaskResult:
        """The part of chunk g from the entries of its rows, each once; its degrees are stored by partition.

        Parameters
        ----------
        context : Context
        g : int
        rows, columns : (n,) int64
            Samples; the rows are chunk g's.
        values : (n,) float64
        """
        bounds = sample_bounds(context)
        low, high = bounds[g : g + 2]
        touched = np.union1d(columns, np.arange(low, high)).astype(np.int32)
        local = np.searchsorted(touched, columns).astype(np.int32)
        matrix = sp.coo_array(
            (values, ((rows - low).astype(np.int32), local)), shape=(high - low, len(touched))
        ).tocsr()
        matrix.sort_indices()
        degrees = np.asarray(matrix.sum(axis=1), np.float64).ravel()
        inside = self.components(context, np.arange(low, high)).inside
        degrees[~inside] = 0.0  # of islands, which take no part
        first, last = chunk_partitions(context)[g]
        for b in range(first, last):
            part = {"degrees": degrees[context.bounds[b] - low : context.bounds[b + 1] - low]}
            context.store.write(context.folders[self.stage], f"{self.degrees_prefix}{part_name(b)}", part, {})
        arrays = {
            "indptr": matrix.indptr.astype(np.int32), "indices": matrix.indices.astype(np.int32), "data": matrix.data,
            "touched": touched,
        }  # fmt: skip
        return arrays, {"cuts": np.searchsorted(touched, bounds).tolist()}


# ---- the sample graph


def graph_chunk(context: Context, g: int) -> TaskResult:
    """The rows of chunk g of the symmetric neighbour graph: 1 where i is in the list of j, or j in that of i."""
    low, high = sample_bounds(context)[g : g + 2]
    own, k = np.arange(low, high), context.params.n_neighbors
    lists, (start, centers) = lists_of(context, own, k), reverse_at(context, own, k)
    rows = np.concatenate([np.repeat(own, lists.shape[1]), np.repeat(own, np.diff(start))])
    keys = np.unique(rows * context.m + np.concatenate([lists.ravel(), centers]))
    return GRAPH.store_chunk(context, g, keys // context.m, keys % context.m, np.ones(len(keys)))


GRAPH = SampleMatrix("graph", "eigen", "graph-degrees-", components_of)


# ---- the fused similarity


def fused_chunk(context: Context, g: int) -> TaskResult:
    """The rows of chunk g of U as it is embedded: weighed, and with the edges that join its components."""
    first, last = chunk_partitions(context)[g]
    low, high = context.bounds[first], context.bounds[last]
    sources = {source for b in range(first, last) for source in label_parts.sources_of(context, b)}
    parts = [*(label_parts.weighed_entries(context, b) for b in sorted(sources)), label_parts.extra_edges(context)]
    rows, columns, values = label_parts.row_entries(low, high, parts)
    return FUSED.store_chunk(context, g, rows + low, columns.astype(np.int64), values)


def affinity_rows(context: Context, g: int) -> sp.csr_array:
    """The rows of chunk g of U as walks and cuts see it: weighed, without the edges that join its components.

    CSR (n_g, touched) float64, columns ascending.
    """
    rows = FUSED.rows(context, g)
    edges, _ = label_parts.extra_edges(context)
    low, high = sample_bounds(context)[g : g + 2]
    both = np.concatenate([edges, edges[:, ::-1]])
    extra = both[(both[:, 0] >= low) & (both[:, 0] < high)]
    if not len(extra):
        return rows
    here = np.searchsorted(FUSED.touched(context, g), extra[:, 1])
    keep = np.ones(len(rows.data), np.bool_)
    for row, place in zip(extra[:, 0] - low, here, strict=True):  # U itself has no entry there
        begin, end = rows.indptr[row : row + 2]
        keep[begin + np.searchsorted(rows.indices[begin:end], place)] = False
    kept = np.concatenate([[0], np.cumsum(keep)]).astype(rows.indptr.dtype)
    return sp.csr_array((rows.data[keep], rows.indices[keep], kept[rows.indptr]), shape=rows.shape)


def fused_components(context: Context, samples: NDArray[np.integer]) -> Components:
    """Components of U at ascending samples, as they were divided for the solve."""
    division = label_parts.division_of(context)
    if division.total == 1 or not len(samples):
        return division.of(np.zeros(len(samples), np.int32))
    return division.of(context.rows_of("label", "components", samples, COMPONENTS))


FUSED = SampleMatrix("fused", "label", label_parts.DEGREES, fused_components)


def store_graph(context: Context, executor: Executor, report: Report) -> None:
    """Store the rows of the neighbour graph by chunk."""
    executor.map(
        Job("eigen", graph_chunk, "graph-chunk-", CHUNK_KIND), context, range(len(chunk_partitions(context))), report
    )


def store_fused(context: Context, executor: Executor, report: Report) -> None:
    """Store the rows of U by chunk."""
    label_parts.find_reaches(context, executor, report)
    executor.map(
        Job("label", fused_chunk, "fused-chunk-", CHUNK_KIND), context, range(len(chunk_partitions(context))), report
    )

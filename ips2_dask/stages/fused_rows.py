"""The rows of the fused similarity U by chunk, stored for its eigenvectors, for walks and for cuts.

A chunk's part has the rows of its samples as CSR over the samples that they touch, as it is embedded: weighed, and with
the edges that join its components. The degrees are stored by partition.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels.components import Components
from ips2_dask.stages import label_parts
from ips2_dask.stages.chunks import CHUNK_KIND, chunk_partitions, sample_bounds
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import Float64, Int32

PREFIX = "fused-chunk-"


def part(g: int) -> str:
    """The part of chunk g."""
    return PREFIX + part_name(g)


def touched(context: Context, g: int) -> Int32:
    """The samples that chunk g touches, ascending: (n,) int32."""
    return context.store.read(context.folders["label"], part(g), "touched")


def rows(context: Context, g: int) -> sp.csr_array:
    """The rows of chunk g's samples, not normalised: CSR (n_g, touched) float64."""
    folder = context.folders["label"]
    indptr, indices, data = (context.store.read(folder, part(g), name) for name in ("indptr", "indices", "data"))
    return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, len(touched(context, g))))


def degrees(context: Context, samples: NDArray[np.integer]) -> Float64:
    """Degrees at ascending samples, 0 for those of islands: (n,) float64."""
    return np.asarray(context.rows_of("label", "degrees", samples, label_parts.DEGREES, remember=False), np.float64)


def components(context: Context, samples: NDArray[np.integer]) -> Components:
    """Components of U at ascending samples, as they were divided for the solve."""
    division = label_parts.division_of(context)
    if division.total == 1 or not len(samples):
        return division.of(np.zeros(len(samples), np.int32))
    return division.of(context.rows_of("label", "components", samples, COMPONENTS))


def rows_of_chunk(context: Context, g: int) -> TaskResult:
    """The part of chunk g; its degrees are stored by partition."""
    first, last = chunk_partitions(context)[g]
    low, high = sample_bounds(context)[g : g + 2]
    sources = {source for b in range(first, last) for source in label_parts.sources_of(context, b)}
    parts = [*(label_parts.weighed_entries(context, b) for b in sorted(sources)), label_parts.extra_edges(context)]
    i, j, values = label_parts.row_entries(low, high, parts)
    among = np.union1d(j, np.arange(low, high)).astype(np.int32)
    local = np.searchsorted(among, j).astype(np.int32)
    matrix = sp.coo_array((values, (i.astype(np.int32), local)), shape=(high - low, len(among))).tocsr()
    matrix.sort_indices()
    sums = np.asarray(matrix.sum(axis=1), np.float64).ravel()
    sums[~components(context, np.arange(low, high)).inside] = 0.0  # of islands, which take no part
    for b in range(first, last):
        stored = {"degrees": sums[context.bounds[b] - low : context.bounds[b + 1] - low]}
        context.store.write(context.folders["label"], label_parts.DEGREES + part_name(b), stored, {})
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
    matrix = rows(context, g)
    edges, _ = label_parts.extra_edges(context)
    low, high = sample_bounds(context)[g : g + 2]
    both = np.concatenate([edges, edges[:, ::-1]])
    extra = both[(both[:, 0] >= low) & (both[:, 0] < high)]
    if not len(extra):
        return matrix
    here = np.searchsorted(touched(context, g), extra[:, 1])
    keep = np.ones(len(matrix.data), np.bool_)
    for row, place in zip(extra[:, 0] - low, here, strict=True):  # U itself has no entry there
        begin, end = matrix.indptr[row : row + 2]
        keep[begin + np.searchsorted(matrix.indices[begin:end], place)] = False
    kept = np.concatenate([[0], np.cumsum(keep)]).astype(matrix.indptr.dtype)
    return sp.csr_array((matrix.data[keep], matrix.indices[keep], kept[matrix.indptr]), shape=matrix.shape)


def store_all(context: Context, executor: Executor, report: Report) -> None:
    """Store the rows of U by chunk."""
    label_parts.find_reaches(context, executor, report)
    chunks = range(len(chunk_partitions(context)))
    executor.map(Job("label", rows_of_chunk, PREFIX, CHUNK_KIND), context, chunks, report)

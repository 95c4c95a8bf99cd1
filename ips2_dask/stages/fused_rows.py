"""The rows of the fused similarity U by chunk, stored for its eigenvectors, for walks and for cuts.

A chunk's part has the rows of its samples as CSR over the samples that they touch, as it is embedded: weighed, and with
the edges that join its components. Of a dense U it has each sample's largest similarities alone, which walks keep to.
Degrees are stored by piece.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels.components import Components
from ips2_dask.kernels.rounding import thinned
from ips2_dask.kernels.sparse import Matrix, distinct, places
from ips2_dask.stages import label_parts
from ips2_dask.stages.chunks import CHUNK_KIND, n_chunks, of_chunks, partitions_of, rows_at, sample_bounds, write_rows
from ips2_dask.stages.component_labels import COMPONENTS
from ips2_dask.stages.similarity_views import read_affinity
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
    return np.asarray(rows_at(context, "label", "degrees", samples, label_parts.DEGREES), np.float64)


def components(context: Context, samples: NDArray[np.integer]) -> Components:
    """Components of U at ascending samples, as they were divided for the solve."""
    division = label_parts.division_of(context)
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
        sources = {source for b in partitions_of(context, g) for source in label_parts.sources_of(context, b)}
        parts = [*(label_parts.weighed_entries(context, b) for b in sorted(sources)), label_parts.extra_edges(context)]
        i, j, values = label_parts.row_entries(low, high, parts)
        among = distinct(np.concatenate([j, np.arange(low, high, dtype=j.dtype)])).astype(np.int32, copy=False)
        local = places(among, j)
        matrix = sp.coo_array((values, (i.astype(np.int32), local)), shape=(high - low, len(among))).tocsr()
        matrix.sort_indices()
        sums = np.asarray(matrix.sum(axis=1), np.float64).ravel()
    sums[~components(context, np.arange(low, high)).inside] = 0.0  # of islands, which take no part
    write_rows(context, g, "label", label_parts.DEGREES, "degrees", sums)
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


def cut_rows(context: Context, g: int) -> sp.csr_array:
    """`affinity_rows` with all entries of a dense U."""
    return sp.csr_array(read_affinity(context)) if context.facts["fuse"]["dense"] else affinity_rows(context, g)


def whole(context: Context) -> Matrix:
    """U as it is embedded, in this process: dense or CSR (m, m) float64."""
    if context.facts["fuse"]["dense"]:
        return read_affinity(context)
    data, indices, lengths = [], [], []
    for g in range(n_chunks(context)):
        one = rows(context, g)
        data.append(one.data)
        indices.append(touched(context, g)[one.indices])
        lengths.append(np.diff(one.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int32)
    return sp.csr_array((np.concatenate(data), np.concatenate(indices), indptr), shape=(context.m, context.m))


def store_all(context: Context, executor: Executor, report: Report) -> None:
    """Store the rows of U by chunk."""
    if not context.facts["fuse"]["dense"]:
        label_parts.find_reaches(context, executor, report)
    job = Job("label", rows_of_chunk, PREFIX, CHUNK_KIND)
    of_chunks(context, executor).map(job, context, range(n_chunks(context)), report)

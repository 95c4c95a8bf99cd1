"""Inputs beside the samples: a pairwise similarity S, a neighbour graph, and the names of samples and features.

S alone, or a graph alone, is not enough: the tensor is made of the distances inside neighbourhoods, so the samples, or
the distances of all of them (``metric="precomputed"``), are always the main input. Of a graph the stored entries of a
row count, whatever their values: they are the candidates for the row's neighbours, whose distances are measured among
the samples, and the nearest of them by (distance, id) are kept. Names are stored as UTF-8 text end to end. Folders are
named by the digest of their content, so that other inputs never meet them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.params import DENSE_MAX_SAMPLES, Params
from ips2_dask.readers import open_source
from ips2_dask.readers.base import as_csr, content_digest, digest, is_sparse
from ips2_dask.store.base import Store
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import missing_receipt
from ips2_dask.typing import AnyArray

Matrix: TypeAlias = Any
"""A dense array or a SciPy CSR array, which has no types."""

FOLDER = "beside"
"""Name of the folder of matrices, in the manifest and, with a digest, in the run directory."""

NAMES = "names"
"""The same of sample names."""

FEATURE_NAMES = "feature_names"
"""The entry of the names of features in the manifest; their folder is like that of sample names."""

NAMES_PART = "whole"

SYMMETRIC_TO = 1e-5
"""How far S_ij and S_ji may differ, as a share of the largest: the rounding of whoever computed them."""


class SideInputs(NamedTuple):
    """Matrices of all samples in the user's numbering, checked; None where none was given."""

    similarity: Matrix | None = None  # (m, m) CSR or dense, float64, symmetric
    knn_graph: sparse.csr_array | None = None  # (m, m) CSR, self-loops left out

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the content of each that was given."""
        return {name: content_digest(matrix) for name, matrix in self._asdict().items() if matrix is not None}


def open_side_inputs(similarity: Any, knn_graph: Any, m: int, params: Params) -> SideInputs:
    """Read and check the matrices that were given beside m samples.

    ``similarity``, ``knn_graph``: (m, m) array, SciPy sparse matrix, or a file of one, such as
    ``cells.h5ad::obsp/connectivities``. Raises `BadInput` where it is missing, asked for nothing, or is no such
    matrix.
    """
    _check_asked(similarity, knn_graph, params)
    S = None if similarity is None else _similarity(_matrix(similarity, "similarity", m))
    return SideInputs(S, None if knn_graph is None else _graph(_matrix(knn_graph, "knn_graph", m), params))


def _check_asked(similarity: Any, knn_graph: Any, params: Params) -> None:
    if params.affinity == "precomputed" and similarity is None:
        found, allowed = "none with affinity='precomputed'", "the (m, m) similarity beside the samples"
        otherwise = "there would be no S, and the tensor needs the distances that S alone does not have"
        raise BadInput("similarity", found, allowed, otherwise, "give the samples as the input and similarity=S")
    if params.affinity != "precomputed" and similarity is not None:
        found, allowed = f"a matrix with affinity={params.affinity!r}", "one with affinity='precomputed'"
        otherwise = "it would be ignored"
        raise BadInput("similarity", found, allowed, otherwise, "give affinity='precomputed', or leave similarity out")
    if knn_graph is not None and METRICS[params.metric].precomputed:
        raise BadInput(
            "knn_graph",
            "a graph with metric='precomputed'",
            "a graph beside samples",
            "the distances given decide the neighbours, and would contradict it",
            "leave it out, or give the samples and the metric that measures them",
        )
    if knn_graph is not None and params.graph != "auto":
        found, otherwise = f"a graph with graph={params.graph!r}", "the neighbours would be both given and searched"
        raise BadInput("knn_graph", found, "graph='auto'", otherwise, "leave graph out")


def _matrix(spec: Any, name: str, m: int) -> Matrix:
    """A matrix of all samples, dense or CSR."""
    if is_sparse(spec):
        matrix = as_csr(spec, name)
    else:
        table: Any = open_source(spec)
        matrix = table.rows.csr()
        if matrix is None:
            _check_dense(name, table.shape)
            matrix = np.concatenate(list(table.blocks(max(1, (64 << 20) // (8 * table.shape[1])))))
    if matrix.shape != (m, m):
        found = f"a matrix of {matrix.shape[0]} x {matrix.shape[1]}"
        allowed, otherwise = f"one of {m} x {m}, as there are {m} samples", "its rows would belong to no sample"
        raise BadInput(name, found, allowed, otherwise, "give the matrix of these samples, in their order")
    return matrix


def _check_dense(name: str, shape: tuple[int, ...]) -> None:
    if max(shape) > DENSE_MAX_SAMPLES:
        raise BadInput(
            name,
            f"a dense matrix of {shape[0]} x {shape[1]}",
            f"a sparse one above {DENSE_MAX_SAMPLES} samples",
            f"three such matrices would take {24 * shape[0] * shape[1] / 2**30:.0f} GiB",
            "keep the largest entries of each row, in a SciPy sparse matrix",
        )


def _similarity(S: Matrix) -> Matrix:
    values = S.data if is_sparse(S) else S
    values = np.asarray(values, np.float64)
    if values.size == 0 or not np.isfinite(values).all() or values.min() < 0 or values.max() == 0:
        defect = (
            "no entry above 0" if values.size == 0 or not values.any() else "an entry that is negative or not finite"
        )
        allowed = "finite entries of at least 0, some of them above it"
        otherwise = "a degree would be zero or have no root"
        raise BadInput("similarity", defect, allowed, otherwise, "give a similarity, such as exp(-distance)")
    S = sparse.csr_array(S, dtype=np.float64) if is_sparse(S) else values
    mirror = sparse.csr_array(S.T) if is_sparse(S) else S.T
    if abs(S - mirror).max() > SYMMETRIC_TO * values.max():
        found, allowed = f"two directions that differ by {abs(S - mirror).max():.3g}", "a symmetric matrix"
        otherwise = "the fused similarity would not be one"
        raise BadInput("similarity", found, allowed, otherwise, "give (S + S.T) / 2, or the larger of both")
    S = (S + mirror) / 2
    if is_sparse(S):
        S.sum_duplicates()
        S.eliminate_zeros()
    return S


def _graph(graph: Matrix, params: Params) -> sparse.csr_array:
    if not is_sparse(graph):
        graph = sparse.csr_array(graph)
    m, n = graph.shape[0], min(params.n_stored_neighbors, graph.shape[0]) - 1
    rows = np.repeat(np.arange(m), np.diff(graph.indptr))
    others = rows != graph.indices
    neighbors = sparse.csr_array((np.ones(others.sum(), np.int8), (rows[others], graph.indices[others])), shape=(m, m))
    neighbors.sum_duplicates()
    neighbors.data[:] = 1
    counts = np.diff(neighbors.indptr)
    if counts.min() < n:
        row = int(np.argmin(counts))
        found, allowed = f"{counts[row]} neighbours of sample {row}", f"at least {n} others in every row"
        otherwise = "its neighbourhood would be too small"
        raise BadInput("knn_graph", found, allowed, otherwise, f"build it with {n} neighbours or more")
    return neighbors


def folder_of(digests: dict[str, str]) -> str:
    """The folder of a run's directory that keeps them, named by their content."""
    return f"{FOLDER}-{digest(sorted(digests.items()))[:16]}"


def store_matrices(store: Store, folder: str, inputs: SideInputs) -> None:
    """Store the matrices that were given, each unless it is stored already."""
    for name, matrix in inputs._asdict().items():
        if matrix is None or store.receipt(folder, name) is not None:
            continue
        arrays = {"dense": matrix}
        if is_sparse(matrix):
            arrays = {"indptr": matrix.indptr.astype(np.int64), "indices": matrix.indices.astype(np.int32)}
            arrays |= {"values": matrix.data} if name == "similarity" else {}
        store.write(folder, name, arrays, {})


def given_similarity(context: Context) -> Matrix:
    """S as it was given, in the run's numbering: dense or CSR (m, m) float64."""

    def make() -> Matrix:
        order = context.order()
        if is_dense(context):
            S = np.asarray(context.read(FOLDER, "similarity", "dense"))
            return S if order is None else S[order][:, order]
        indptr, indices, values = (context.read(FOLDER, "similarity", n) for n in ("indptr", "indices", "values"))
        matrix = sparse.csr_array((values, indices, indptr), shape=(context.m, context.m))
        matrix = sparse.csr_array(matrix if order is None else matrix[order][:, order])
        matrix.sort_indices()
        return matrix

    # the graph decides the numbering, so the matrix is cached with the graph
    return context.cached("neighbors", f"given-{context.folders[FOLDER]}", make, 8 * context.m)


def is_dense(context: Context) -> bool:
    """Whether the S that was given is dense."""
    receipt = context.receipt(FOLDER, "similarity")
    return receipt is not None and "dense" in receipt["arrays"]


def given_edges(context: Context, low: int, high: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Entries {i, j}, i <= j, low <= i < high, of a sparse S that was given: (n, 2) int32 sorted, and (n,) float64."""
    upper = sparse.csr_array(sparse.triu(given_similarity(context)[low:high], k=low, format="csr"))
    upper.sort_indices()
    i = np.repeat(np.arange(low, high), np.diff(upper.indptr))
    return np.stack([i, upper.indices], axis=1).astype(np.int32), upper.data


def given_candidates(context: Context, low: int, high: int) -> NDArray[np.int32]:
    """Neighbours that were given of samples low .. high - 1: (high - low, width) int32, padded with -1.

    A sample that stands for several rows has those of all of them.
    """
    indptr, indices = (np.asarray(array) for array in _given_graph(context))
    indptr = indptr[low : high + 1]
    indices = indices[indptr[0] : indptr[-1]]
    counts = np.diff(indptr)
    candidates = np.full((high - low, int(counts.max(initial=0))), -1, np.int32)
    candidates[np.arange(candidates.shape[1]) < counts[:, None]] = indices
    return candidates


def _given_graph(context: Context) -> tuple[AnyArray, AnyArray]:
    """The graph that was given, between samples: where each one's entries begin, and the entries."""
    arrays = context.read(FOLDER, "knn_graph", "indptr"), context.read(FOLDER, "knn_graph", "indices")
    place = context.place()
    if place is None:
        return arrays

    def make() -> tuple[AnyArray, AnyArray]:
        indptr, indices = arrays
        rows, columns = place[np.repeat(np.arange(len(place)), np.diff(indptr))], place[indices]
        others = rows != columns
        shape = (context.m, context.m)
        matrix = sparse.csr_array((np.ones(others.sum(), np.int8), (rows[others], columns[others])), shape=shape)
        matrix.sum_duplicates()
        return matrix.indptr, matrix.indices

    graph: tuple[AnyArray, AnyArray] = context.cached("ingest", "given graph", make, 4 * len(arrays[1]))
    return graph


def store_names(store: Store, names: Sequence[str]) -> str:
    """Store the names of all samples, or of all features, unless they are stored already; returns their folder."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    folder = f"{NAMES}-{digest(text.tobytes(), ends.tobytes())[:16]}"
    if store.receipt(folder, NAMES_PART) is None:
        store.write(folder, NAMES_PART, {"text": text, "ends": ends}, {})
    return folder


def read_names(store: Store, folder: str, low: int = 0, high: int | None = None) -> NDArray[np.str_]:
    """The stored names of rows (or features) low .. high - 1 of the input, of all without limits: (n,)."""
    receipt = store.receipt(folder, NAMES_PART)
    if receipt is None:
        raise missing_receipt(folder, NAMES_PART).error(str(store.location))
    high = receipt["arrays"]["ends"]["shape"][0] if high is None else high
    ends = store.read_rows(folder, NAMES_PART, "ends", max(low - 1, 0), high).tolist()
    limits = ends if low else [0, *ends]
    octets, first = store.read_rows(folder, NAMES_PART, "text", limits[0], limits[-1]).tobytes(), limits[0]
    names = [octets[a - first : b - first].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(limits)]
    return np.array(names, np.str_)

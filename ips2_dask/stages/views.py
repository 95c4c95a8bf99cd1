"""Views of the stored tensor: pairs, R and its operators, and rows of the pair Laplacian near a range of samples.

A task of the latter goes over the pairs of its range once: no product with all pairs is made where labels are all that
is wanted. It sums each row over all neighbourhoods that hold the pair, in the order of their centres, whatever the
range is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import components, ritz
from ips2_dask.kernels.eigen import Known
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator, NeighborhoodOperator, assemble_normalized
from ips2_dask.kernels.sparse import assemble, distinct, places, rows_between
from ips2_dask.kernels.tensor import local_pairs, pair_ids, triplets
from ips2_dask.stages.chunks import START, rows_at
from ips2_dask.stages.near import centers_of, lists_of, neighborhoods
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import Float, Float32, Float64, Int32, Int64

PAIRS_AT_ONCE = 1 << 21
"""Pairs that are looked up in at a time: 64 MiB with their numbers and what the look-up makes of them."""


def read_pairs(context: Context) -> Int32:
    """All active pairs, sorted: (P, 2)."""
    parts = [context.read("tensor", "pairs-" + part_name(b), "pairs") for b in range(context.n_partitions)]
    return np.concatenate(parts)


def restricted_tensor(context: Context) -> sp.csr_array:
    """R: CSR (P, P), float32, both triangles, each entry once; read, or made from the blocks.

    See docs/method.md, The restricted basis.
    """

    def make() -> sp.csr_array:
        parts = [_triplets_of(context, b) for b in range(context.n_partitions)]
        rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        return assemble(rows, columns, values, n_pairs(context))

    size = 8 * int(context.facts["tensor"]["nnz"])
    R: sp.csr_array = context.cached("tensor", f"R-{_values_key(context)}", make, size)
    return R


def _values_key(context: Context) -> str:
    """Key of the parameters that entries depend on besides the stored blocks, which runs with others share."""
    return f"{context.choices.operator}-{context.params.sigma!r}-{context.params.epsilon!r}"


def n_pairs(context: Context) -> int:
    """P, the number of active pairs."""
    return int(context.facts["tensor"]["pair_offsets"][-1])


def _triplets_of(context: Context, b: int) -> tuple[Int64, Int64, Float32]:
    """Entries of R that partition b owns: as stored, or made anew from its blocks."""
    if context.choices.operator == "triplets":
        names = ("indices_0", "indices_1", "values")
        rows, columns, values = (np.asarray(context.read("tensor", b, name)) for name in names)
        return rows, columns, values
    params = context.params
    N, _ = neighborhoods(context, params.n_neighbors)
    low, high = context.span(b)
    ids = numbered_ids(context, N[low:high])
    owned = _unpack_owned(np.asarray(context.read("tensor", b, "owned")), N.shape[1])
    blocks = np.asarray(context.read("tensor", b, "blocks"))
    return triplets(blocks, ids, owned, N.shape[1], params.sigma, params.epsilon)


def numbered_ids(context: Context, N: Int32) -> NDArray[np.int64]:
    """Global numbers of the local pairs of some neighbourhoods N (rows, k): (rows, q).

    The pairs are read by some partitions at a time: neighbourhoods of a chunk reach most of them.
    """
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    owners = np.unique(context.owner(np.unique(N)))
    ids = np.empty((len(N), N.shape[1] * (N.shape[1] + 1) // 2), np.int64)
    ends = np.cumsum(offsets[owners + 1] - offsets[owners])
    for group in np.split(owners, np.searchsorted(ends, np.arange(PAIRS_AT_ONCE, ends[-1], PAIRS_AT_ONCE))):
        if len(group):
            lists = [np.asarray(context.read("tensor", "pairs-" + part_name(b), "pairs")) for b in group]
            numbers = np.concatenate([np.arange(offsets[b], offsets[b + 1]) for b in group])
            pair_ids(N, np.concatenate(lists), numbers, ids)
    return ids


def _unpack_owned(bits: NDArray[np.uint8], k: int) -> NDArray[np.bool_]:
    """Owned subsets from their stored bits: (rows, n_subsets)."""
    return np.unpackbits(bits, axis=1, count=len(local_pairs(k).masks)).astype(bool)


def neighborhood_operator(context: Context, dtype: type = np.float32) -> NeighborhoodOperator:
    """The matrix-free operator over all neighbourhoods, not yet normalised."""

    def make() -> NeighborhoodOperator:
        params = context.params
        N, _ = neighborhoods(context, params.n_neighbors)
        blocks, owned = (context.read_all("tensor", name) for name in ("blocks", "owned"))
        return NeighborhoodOperator(
            blocks,
            owned,
            pair_ids(N, read_pairs(context)),
            n_pairs(context),
            N.shape[1],
            params.sigma,
            params.epsilon,
            dtype=dtype,
        )

    q = context.params.n_neighbors * (context.params.n_neighbors + 1) // 2
    name = f"operator-{np.dtype(dtype).name}-{_values_key(context)}"
    made: NeighborhoodOperator = context.cached("tensor", name, make, context.m * 12 * q)
    return copy.copy(made)  # a caller normalises its copy, and the cached operator stays as it is


def assembled_operator(context: Context, degrees: NDArray[np.float64]) -> sp.csr_array:
    """The normalised operator over all neighbourhoods as a CSR matrix (P, P) float32, assembled in this process."""
    params = context.params
    N, _ = neighborhoods(context, params.n_neighbors)
    blocks, owned = (context.read_all("tensor", name) for name in ("blocks", "owned"))
    ids = pair_ids(N, read_pairs(context))
    return assemble_normalized(blocks, owned, ids, degrees, N.shape[1], params.sigma, params.epsilon)


def component_division(context: Context) -> components.Division:
    """Which components of the pairs are large, for as many clusters as eigenpairs are solved for."""
    n = context.choices.n_solved(context.params)

    def make() -> components.Division:
        sizes = np.asarray(context.read("assemble", "whole", "sizes"))
        if len(sizes) == 1:
            return components.Division(np.zeros(1, np.int32), 1, 1)
        return components.divide_sizes(sizes, n)

    size = 4 * len(context.bounds)  # a few components a partition
    division: components.Division = context.cached("assemble", f"division-{n}", make, size)
    return division


def components_of(context: Context, samples: NDArray[np.integer]) -> components.Components:
    """The components of the pairs of some samples, whose numbers ascend and may repeat, as `component_division` says.

    ``label`` has one entry of each.
    """
    division = component_division(context)
    if division.total == 1 or not len(samples):
        return division.of(np.zeros(len(samples), np.int32))
    return division.of(context.rows_of("assemble", "components", samples, "components-"))


def solved_degrees(context: Context, pairs: Int32, degrees: Float64) -> Float64:
    """Degrees of some pairs in the solve: 0 for those of islands, which take no part in it."""
    divided = components_of(context, pairs[:, 0])
    return np.where(divided.inside, degrees, 0.0) if divided.islands else degrees


def known_vectors(context: Context, pairs: Int32, degrees: Float64) -> Known:
    """The eigenvectors of eigenvalue 1 on some pairs, whose ``degrees`` are those in the solve."""
    divided = components_of(context, pairs[:, 0])
    label = divided.of_vectors
    if len(label) and (label == label[0]).all():
        label = np.broadcast_to(label[0], label.shape)  # one number, not one a row
    return Known(np.sqrt(degrees) * unit(pairs), label, divided.large)


def unit(pairs: Int32) -> Float64:
    """The all-ones vector in the basis of R, sqrt(2) for i < j, 1 for i = j: docs/method.md, The restricted basis."""
    return np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))


# ---- rows of the pair Laplacian near a range of samples


class _NearPairs(NamedTuple):
    """The rows of R of a range of samples' pairs, over the pairs that they touch."""

    operator: ChunkOperator | ChunkMatrix
    touched: Int64
    """Numbers of the touched pairs, ascending."""
    pairs: Int32
    """Their samples (i, j)."""

    @property
    def own(self) -> slice:
        """The range's own pairs among them."""
        return self.operator.own


def _pair_span(context: Context, low: int, high: int) -> tuple[int, int]:
    """Number of the first pair of samples low .. high - 1, and one past their last: a pair is its first sample's."""
    offsets = context.facts["tensor"]["pair_offsets"]

    def first_pair(sample: int) -> int:
        b = int(np.searchsorted(context.bounds, sample, side="right")) - 1
        if sample == context.bounds[b]:
            return int(offsets[b])
        firsts = np.asarray(context.read("tensor", "pairs-" + part_name(b), "pairs"))[:, 0]
        return int(offsets[b] + np.searchsorted(firsts, sample))

    return first_pair(low), first_pair(high)


def near_pairs(context: Context, low: int, high: int) -> _NearPairs:
    """The rows of the pairs of samples low .. high - 1, not normalised.

    With C centres and q = k (k + 1) / 2 it takes the larger of 32 bytes for each pair of the partitions near them, of
    2^21 at most, with C (8 q + 4 k) bytes, and C (20 q + 2 k (k - 1)) bytes with 8 for each touched pair.
    """
    params, span = context.params, _pair_span(context, low, high)
    centers = centers_of(context, low, high, params.n_neighbors)
    if context.choices.operator == "triplets":
        return _near_triplets(context, centers, *span)
    lists = lists_of(context, centers, params.n_neighbors)
    touched = distinct(numbered_ids(context, lists))
    pairs = _pairs_at(context, touched)
    local = pair_ids(lists, pairs)
    first, last = np.searchsorted(touched, span).tolist()
    blocks, owned = (context.rows_of("tensor", name, centers) for name in ("blocks", "owned"))
    operator = ChunkOperator(
        blocks, owned, local, slice(first, last), min(params.n_neighbors, context.m), params.sigma, params.epsilon
    )
    return _NearPairs(operator, touched.astype(np.int64, copy=False), pairs)


def _near_triplets(context: Context, centers: Int64, low: int, high: int) -> _NearPairs:
    """The same from the stored triplets of the partitions of the ``centers``, as CSR."""
    parts = [rows_between(*_triplets_of(context, int(b)), low, high) for b in np.unique(context.owner(centers))]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    touched = np.union1d(columns, np.arange(low, high))
    matrix = sp.coo_array((values, (rows, np.searchsorted(touched, columns))), shape=(high - low, len(touched))).tocsr()
    matrix.sort_indices()
    first, last = np.searchsorted(touched, (low, high)).tolist()
    return _NearPairs(ChunkMatrix(matrix, slice(first, last)), touched, _pairs_at(context, touched))


# ---- stored arrays of pairs, at any ascending numbers of pairs


def _pairs_at(context: Context, rows: NDArray[np.integer]) -> Int32:
    """Samples (i, j) of ascending numbers of pairs: (rows, 2) int32."""
    offsets = context.facts["tensor"]["pair_offsets"]
    return np.asarray(context.rows_of("tensor", "pairs", rows, "pairs-", bounds=offsets))


def degrees_at(context: Context, rows: NDArray[np.integer], pairs: Int32) -> Float64:
    """Degrees of the ``pairs`` with these ascending numbers, as the solver normalises by them: (rows,)."""
    degrees = np.asarray(context.rows_of("assemble", "degrees", rows, bounds=context.facts["tensor"]["pair_offsets"]))
    return solved_degrees(context, pairs, degrees) if component_division(context).islands else degrees


def pair_degrees(context: Context, b: int) -> TaskResult:
    """Degrees of partition b's pairs in the full T-hat, and how many of them are zero."""
    near = near_pairs(context, *context.span(b))
    units = unit(near.pairs)
    sums = near.operator.product(units[:, None], np.ones(len(units)))[:, 0] / units[near.own]
    return {"degrees": sums}, {"empty": int(np.count_nonzero(sums == 0))}


# ---- eigenvectors or Ritz vectors at pairs


def graph_rows(context: Context, samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Rows of w at ascending samples: (samples, columns) float32."""
    w: NDArray[np.float32] = rows_at(context, "eigen", "start", samples, START)
    return w


def pair_vectors(context: Context, b: int, pairs: Int32, root: Float64, columns: int) -> Callable[[slice], Float]:
    """The leading vectors outside those of the components at some of partition b's pairs, (pairs, columns), by slices.

    ``pairs`` (pairs, 2): those of partition b; ``root`` (pairs,): sqrt(degree) unit.
    """
    if context.choices.exact:
        stored = np.asarray(context.read("eigen", b, "vectors"))[:, :columns]
        return lambda some: stored[some]
    rotation, shift = (np.asarray(context.read("eigen", "whole", name))[:, :columns] for name in ("rotation", "shift"))
    samples = distinct(pairs)
    of_samples = shift[components_of(context, samples).of_vectors]
    z, (i, j) = ritz.rotated(graph_rows(context, samples), rotation, of_samples), places(samples, pairs).T
    return lambda some: (z[i[some]] + z[j[some]]) * root[some, None]

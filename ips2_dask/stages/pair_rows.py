"""Rows of the pair Laplacian near a range of samples: an operator made from the neighbourhoods that hold its pairs.

No product with all pairs is made where labels are all that is wanted: a task goes over the pairs of its range once. It
sums each row over all neighbourhoods that hold the pair, in the order of their centres, whatever the range is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import ritz
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator
from ips2_dask.kernels.sparse import distinct, places, rows_between
from ips2_dask.kernels.tensor import pair_ids
from ips2_dask.stages.checkpoints import START
from ips2_dask.stages.chunks import rows_at
from ips2_dask.stages.near import centers_of, lists_of
from ips2_dask.stages.views import component_division, components_of, numbered_ids, solved_degrees, triplets_of, unit
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float, Float64, Int32, Int64


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
    parts = [rows_between(*triplets_of(context, int(b)), low, high) for b in np.unique(context.owner(centers))]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    touched = np.union1d(columns, np.arange(low, high))
    matrix = sp.coo_array((values, (rows, np.searchsorted(touched, columns))), shape=(high - low, len(touched))).tocsr()
    matrix.sort_indices()
    first, last = np.searchsorted(touched, (low, high)).tolist()
    return _NearPairs(ChunkMatrix(matrix, slice(first, last)), touched, _pairs_at(context, touched))


# ---- stored arrays of pairs, at any ascending numbers of pairs


def _read_at(context: Context, rows: NDArray[np.integer], read: Callable[[int], AnyArray]) -> AnyArray:
    """The array that ``read(b)`` gives of each partition b, at ascending numbers of pairs."""
    offsets = np.asarray(context.facts["tensor"]["pair_offsets"])
    cuts = np.searchsorted(rows, offsets)
    return np.concatenate(
        [
            np.asarray(read(b))[rows[cuts[b] : cuts[b + 1]] - offsets[b]]
            for b in range(len(offsets) - 1)
            if cuts[b] < cuts[b + 1]
        ]
    )


def _pairs_at(context: Context, rows: NDArray[np.integer]) -> Int32:
    """Samples (i, j) of ascending numbers of pairs: (rows, 2) int32."""
    pairs: Int32 = _read_at(context, rows, lambda b: context.read("tensor", "pairs-" + part_name(b), "pairs"))
    return pairs


def degrees_at(context: Context, rows: NDArray[np.integer], pairs: Int32) -> Float64:
    """Degrees of the ``pairs`` with these ascending numbers, as the solver normalises by them: (rows,)."""
    degrees: Float64 = _read_at(context, rows, lambda b: context.read("assemble", b, "degrees"))
    return solved_degrees(context, pairs, degrees) if component_division(context).islands else degrees


def degrees(context: Context, b: int) -> TaskResult:
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


def vectors(context: Context, b: int, pairs: Int32, root: Float64, columns: int) -> Callable[[slice], Float]:
    """The leading vectors outside those of the components at some of partition b's pairs, (pairs, columns), by slices.

    Parameters
    ----------
    context : Context
    b : int
    pairs : (pairs, 2) int32
        Those of partition b.
    root : (pairs,) float64
        sqrt(degree) unit.
    columns : int
    """
    if context.choices.exact:
        stored = np.asarray(context.read("eigen", b, "vectors"))[:, :columns]
        return lambda some: stored[some]
    rotation, shift = (np.asarray(context.read("eigen", "whole", name))[:, :columns] for name in ("rotation", "shift"))
    samples = distinct(pairs)
    of_samples = shift[components_of(context, samples).of_vectors]
    z, (i, j) = ritz.rotated(graph_rows(context, samples), rotation, of_samples), places(samples, pairs).T
    return lambda some: (z[i[some]] + z[j[some]]) * root[some, None]

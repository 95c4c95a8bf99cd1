"""Views of the stored graph and tensor, each made once in a process: neighbourhoods, pairs, R and its operators."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import components
from ips2_dask.kernels.eigen import Known
from ips2_dask.kernels.operator import NeighborhoodOperator, assemble_normalized
from ips2_dask.kernels.sparse import Reverse, assemble, reverse_lists
from ips2_dask.kernels.tensor import local_pairs, pair_ids, triplets
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import Float32, Float64, Int32, Int64

PAIRS_AT_ONCE = 1 << 21
"""Pairs that are looked up in at a time: 64 MiB with their numbers and what the look-up makes of them."""


class _Neighborhoods(NamedTuple):
    """Neighbourhoods N (m, k), and the lists of those that hold each sample."""

    N: Int32
    reverse: Reverse


def neighborhoods(context: Context, n: int, prefix: str = "") -> _Neighborhoods:
    """The first n columns of the stored graph, the sample itself among them, and their reverse lists.

    ``prefix`` names lists of an earlier round of refinement.
    """

    def make() -> _Neighborhoods:
        N = np.empty((context.m, min(n, context.m)), np.int32)
        for b in range(context.n_partitions):
            low, high = context.span(b)
            N[low:high] = context.read("neighbors", f"{prefix}{part_name(b)}", "indices")[:, :n]
        return _Neighborhoods(N, reverse_lists(N))

    name, size = f"{prefix}neighborhoods-{n}", context.m * (8 * n + 8)
    view: _Neighborhoods = context.cached("neighbors", name, make, size, "samples")
    return view


def read_pairs(context: Context) -> Int32:
    """All active pairs, sorted: (P, 2)."""
    parts = [context.read("tensor", "pairs-" + part_name(b), "pairs") for b in range(context.n_partitions)]
    return np.concatenate(parts)


def restricted_tensor(context: Context) -> sp.csr_array:
    """R: CSR (P, P), float32, both triangles, each entry once; read, or made from the blocks.

    See docs/method.md, The restricted basis.
    """

    def make() -> sp.csr_array:
        parts = [triplets_of(context, b) for b in range(context.n_partitions)]
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


def triplets_of(context: Context, b: int) -> tuple[Int64, Int64, Float32]:
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


def copies_of(context: Context, samples: NDArray[np.integer]) -> NDArray[np.integer] | None:
    """How many rows of the input ascending samples stand for, (samples,), or None where each is one."""
    return context.copies_at(samples) if context.merged else None


def solved_degrees(context: Context, pairs: Int32, degrees: Float64) -> Float64:
    """Degrees of some pairs in the solve: 0 for those of islands, which take no part in it."""
    divided = components_of(context, pairs[:, 0])
    return np.where(divided.inside, degrees, 0.0) if divided.islands else degrees


def known_vectors(context: Context, pairs: Int32, degrees: Float64, volumes: Float64 | None = None) -> Known:
    """The eigenvectors of eigenvalue 1 on some pairs, whose ``degrees`` are those in the solve."""
    divided = components_of(context, pairs[:, 0])
    label = divided.of_vectors
    if len(label) and (label == label[0]).all():
        label = np.broadcast_to(label[0], label.shape)  # one number, not one a row
    return Known(np.sqrt(degrees) * unit(pairs), label, divided.large, volumes)


def unit(pairs: Int32) -> Float64:
    """The all-ones vector in the basis of R, sqrt(2) for i < j, 1 for i = j: docs/method.md, The restricted basis."""
    return np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))

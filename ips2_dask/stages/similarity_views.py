"""Views of the similarities S, V and U: S from the graph, and all three as stored, as matrices or pair by pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ips2_dask.kernels import similarity
from ips2_dask.kernels.sparse import Part, symmetric_csr
from ips2_dask.params import DENSE_MAX_SAMPLES, N_AFFINITY_NEIGHBORS
from ips2_dask.stages import metric_views, side_inputs
from ips2_dask.stages.near import graph_near
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float32, Float64, Int32

DENSE_PAIRS = 1 << 20
"""Pairs of one part where all of them are kept."""

KINDS = ("pairwise", "high_order", "fused")


class Similarities(NamedTuple):
    """The three similarities of some pairs i < j, in the run's numbering."""

    i: AnyArray  # (n,) int64
    j: AnyArray
    pairwise: AnyArray  # (n,) S
    high_order: AnyArray  # V
    fused: AnyArray  # U


def bandwidth(context: Context) -> float:
    """t of the heat kernel: the given number in the unit of the run, or the mean or median distance."""
    wanted = context.params.bandwidth
    if not isinstance(wanted, str):
        limits = np.finfo(np.float64)
        with np.errstate(over="ignore"):
            return float(np.clip(np.float64(wanted) / context.unit, limits.tiny, limits.max))
    return float(context.read("neighbors", "whole", "bandwidths")[0 if wanted == "mean" else 1])


def keeps_all_pairs(context: Context) -> bool:
    """Whether S is kept for all pairs: the Gaussian affinity of not too many samples, or a dense one given."""
    if context.params.affinity == "precomputed":
        return side_inputs.is_dense(context)
    return context.params.affinity == "gaussian" and context.m <= DENSE_MAX_SAMPLES


def dense_pairwise(context: Context) -> Float32:
    """The S of all pairs, (m, m): the Gaussian as float32, diagonal 1, or the given similarity."""
    if context.params.affinity == "precomputed":
        return side_inputs.given_similarity(context)

    def make() -> Float32:
        lengths = metric_views.all_lengths(context, np.arange(context.m))
        return similarity.heat(lengths, bandwidth(context)).astype(np.float32)

    S: Float32 = context.cached("neighbors", f"S-{context.params.bandwidth}", make, 4 * context.m**2)
    return S


def heat_edges(context: Context, low: int, high: int) -> tuple[Int32, Float64]:
    """Edges {i, j}, i < j, low <= i < high, of the heat-kernel graph on the five nearest others, and their S.

    Where S was given, its entries i <= j.
    """
    if context.params.affinity == "precomputed":
        return side_inputs.given_edges(context, low, high)
    graph = graph_near(context, low, high, N_AFFINITY_NEIGHBORS + 1, distances=True)
    assert graph.distances is not None
    edges, lengths = similarity.graph_edges(graph.N, graph.distances, graph.reverse, graph.low, graph.high)
    return graph.numbers(edges), similarity.heat(lengths, bandwidth(context))


def user_numbers(context: Context, samples: AnyArray) -> AnyArray:
    """The user's numbers of some samples of any order, looked up partition by partition."""
    used, places = np.unique(samples, return_inverse=True)
    numbers, owners = np.empty(len(used), np.int64), context.owner(used)
    for b in np.unique(owners):
        own = owners == b
        numbers[own] = context.user_numbers(int(b))[used[own] - context.bounds[b]]
    return numbers[places.reshape(samples.shape)]


def numbered_parts(context: Context) -> Iterator[Similarities]:
    """Every stored pair of two samples once, in parts of bounded size."""
    parts = _dense_parts if context.facts["fuse"]["dense"] else _sparse_parts
    for (i, j), values in parts(context):
        yield Similarities(i, j, *values)


def stored_values(context: Context, b: int, kind: str) -> AnyArray:
    """S, V or U at the entries of partition b, of a run that does not keep all pairs."""
    values = np.asarray(context.fetch("fuse", f"fused-{part_name(b)}" if kind == "fused" else b, kind))
    return values / context.facts["fuse"]["largest"] if kind == "high_order" else values


def _sparse_parts(context: Context) -> Iterator[tuple[AnyArray, list[AnyArray]]]:
    for b in range(context.n_partitions):
        entries = np.asarray(context.read("fuse", b, "entries")).astype(np.int64)
        off_diagonal = entries[:, 0] != entries[:, 1]
        yield entries[off_diagonal].T, [stored_values(context, b, kind)[off_diagonal] for kind in KINDS]


def _dense_parts(context: Context) -> Iterator[tuple[AnyArray, list[AnyArray]]]:
    for b in range(context.n_partitions):
        first, last = context.span(b)
        step = max(1, DENSE_PAIRS // context.m)
        for low in range(first, last, step):
            high = min(low + step, last)
            i, j = np.nonzero(np.arange(context.m) > np.arange(low, high)[:, None])
            rows = (np.asarray(context.read("fuse", b, kind))[low - first : high - first] for kind in KINDS)
            yield np.stack([i + low, j]), [block[i, j] for block in rows]


def fused_entries(context: Context) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Entries of a sparse U that are not zero, of each pair once and of samples with themselves, part by part.

    Yields (2, n) int64: the user's numbers of both samples; (n,) float64: U there.
    """
    for b in range(context.n_partitions):
        entries = np.asarray(context.fetch("fuse", b, "entries"))
        values = stored_values(context, b, "fused")
        yield user_numbers(context, entries[values != 0].T), values[values != 0]


def read_similarity(context: Context, name: str) -> sp.csr_array | AnyArray:
    """``pairwise`` S, ``high_order`` V or ``fused`` U: dense (m, m) where all pairs were kept, else CSR (m, m)."""
    if context.facts["fuse"]["dense"]:
        dense: AnyArray = context.read_all("fuse", name)
        return dense

    def parts() -> Iterator[Part]:
        for b in range(context.n_partitions):
            yield np.asarray(context.read("fuse", b, "entries")), stored_values(context, b, name)

    return symmetric_csr(parts, context.m)


def _row_weights(context: Context) -> AnyArray | None:
    """The root of the number of rows that each sample stands for, (m,), or None where each is one.

    Edges are multiplied by those of both ends. Of counting a sample once, by the root and by the number of its rows,
    in the graph and in k-means, this is the best in the mean of 13 tables with equal rows (``ips2 bench copies``).
    """
    copies = context.copies()
    return None if copies is None else np.sqrt(copies.astype(np.float64))


def read_affinity(context: Context) -> sp.csr_array | AnyArray:
    """The affinity that is embedded, walked on and cut: `read_unsigned` times the `_row_weights` of both samples."""
    return weighed(read_unsigned(context), _row_weights(context))


def read_unsigned(context: Context) -> sp.csr_array | AnyArray:
    """U; where a signed mean may be negative, its absolute values: an affinity may not be."""
    U = read_similarity(context, "fused")
    return abs(U) if context.params.high_order == "signed" else U


def weighed(U: sp.csr_array | AnyArray, weights: AnyArray | None) -> sp.csr_array | AnyArray:
    """U_ij times the weights of i and j, (m, m)."""
    if weights is None:
        return U
    if isinstance(U, np.ndarray):
        return U * weights[:, None] * weights
    data = U.data * np.repeat(weights, np.diff(U.indptr)) * weights[U.indices]
    return sp.csr_array((data, U.indices, U.indptr), shape=U.shape)

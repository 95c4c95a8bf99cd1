"""What several stages make from the stored graph and tensor: neighbourhoods, S, R, each once in a process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import similarity
from ips2_dask.kernels.operator import assemble
from ips2_dask.kernels.reverse import Reverse, reverse_lists
from ips2_dask.params import DENSE_MAX_SAMPLES, N_AFFINITY_NEIGHBORS
from ips2_dask.storage.context import Context

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


class Neighborhoods(NamedTuple):
    """N (m, k) and in which neighbourhoods each sample is."""

    N: Int32
    reverse: Reverse


def neighborhoods(context: Context, n: int) -> Neighborhoods:
    """The first n columns of the stored graph, the sample itself among them, and their reverse lists."""

    def make() -> Neighborhoods:
        N = np.empty((context.m, min(n, context.m)), np.int32)
        for b in range(context.n_partitions):
            low, high = context.span(b)
            N[low:high] = context.read("neighbors", b, "indices")[:, :n]
        return Neighborhoods(N, reverse_lists(N))

    found: Neighborhoods = context.remembered(f"neighborhoods-{n}", make, context.m * (8 * n + 8))
    return found


def bandwidth(context: Context) -> float:
    """t of the heat kernel: the given number, or the mean or median distance."""
    wanted = context.params.bandwidth
    if not isinstance(wanted, str):
        return wanted
    return float(context.read("neighbors", "whole", "bandwidths")[0 if wanted == "mean" else 1])


def keeps_all_pairs(context: Context) -> bool:
    """Whether S is kept for all pairs: the Gaussian affinity of not too many samples."""
    return context.params.affinity == "gaussian" and context.m <= DENSE_MAX_SAMPLES


def dense_pairwise(context: Context) -> Float32:
    """The Gaussian S of all pairs: (m, m) float32, diagonal 1."""

    def make() -> Float32:
        lengths = similarity.all_lengths(np.asarray(context.read_all("ingest", "samples")))
        return similarity.heat(lengths, bandwidth(context)).astype(np.float32)

    S: Float32 = context.remembered("dense-S", make, 4 * context.m**2)
    return S


def heat_edges(context: Context, low: int, high: int) -> tuple[Int32, Float64]:
    """Edges {i, j}, i < j, low <= i < high, of the heat-kernel graph on the five nearest others, and their S."""
    n = N_AFFINITY_NEIGHBORS + 1
    N, reverse = neighborhoods(context, n)
    distances: Float32 = context.remembered(f"distances-{n}", lambda: _distances(context, n), 4 * n * context.m)
    edges, lengths = similarity.graph_edges(N, distances, reverse, low, high)
    return edges, similarity.heat(lengths, bandwidth(context))


def _distances(context: Context, n: int) -> Float32:
    return np.concatenate([context.read("neighbors", b, "distances")[:, :n] for b in range(context.n_partitions)])


def active_lengths(context: Context, pairs: Int32) -> Float64:
    """Distances of active pairs, from the samples they name."""
    used, local = np.unique(pairs, return_inverse=True)
    X = np.asarray(context.rows_of("ingest", "samples", used))
    return similarity.pair_lengths(X, local.reshape(pairs.shape))


def read_pairs(context: Context) -> Int32:
    """All active pairs, sorted: (P, 2)."""
    parts = [context.read("tensor", f"pairs-p{b:06d}", "pairs") for b in range(context.n_partitions)]
    return np.concatenate(parts)


def restricted_tensor(context: Context) -> sp.csr_array:
    """R of DESIGN 1.6 from the stored triplets: CSR (P, P), float32, both triangles, each entry once."""

    def make() -> sp.csr_array:
        rows, columns, values = (context.read_all("tensor", name) for name in ("indices_0", "indices_1", "values"))
        return assemble(rows, columns, values, context.facts["tensor"]["pair_offsets"][-1])

    R: sp.csr_array = context.remembered("R", make, 8 * int(context.facts["tensor"]["nnz"]))
    return R


def unit(pairs: Int32) -> Float64:
    """The all-ones vector in the basis of DESIGN 1.6: sqrt(2) for i < j, 1 for i = j."""
    return np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))

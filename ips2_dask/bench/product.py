"""`ips2 bench product`: one product with the pair Laplacian at each level of assembly, against SciPy's CSR."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ips2_dask.bench.command import CLUSTERS
from ips2_dask.bench.harness import Record
from ips2_dask.bench.inputs import centred
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.parallel import threads as using
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.kernels.sparse import assemble, normalized, reverse_lists
from ips2_dask.kernels.tensor import block_distances, local_pairs, owned_pairs, owned_subsets, pair_ids, triplets
from ips2_dask.params import Params
from ips2_dask.typing import Float32, Float64, Int32, Integer, UInt8

COLUMNS = ("operator", "k", "threads", "us_per_sample", "csr_us_per_sample", "ratio", "error", "bytes_per_sample")

ROWS = 1 << 14
"""Neighbourhoods whose owned subsets are unpacked at once."""


class _Tensor(NamedTuple):
    """The indecomposable tensor of neighbourhoods (m, k), by its parts, with the default sigma and epsilon."""

    k: int
    pairs: Int32  # (P, 2)
    blocks: Float32  # (m, k (k - 1) / 2)
    owned: UInt8  # (m, bytes)
    ids: Integer  # (m, q)
    degrees: Float64  # (P,)


def _tensor_of(X: Float32, N: Int32) -> _Tensor:
    """The parts of the tensor from which the operators below are built."""
    m, reverse = len(N), reverse_lists(N)
    pairs = owned_pairs(N, reverse, 0, m)
    owned = [np.packbits(owned_subsets(N, reverse, a, min(a + ROWS, m)), axis=1) for a in range(0, m, ROWS)]
    unit = np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))  # docs/method.md, Unfolding and active pairs
    parts = _Tensor(N.shape[1], pairs, block_distances(X, N), np.concatenate(owned), pair_ids(N, pairs), unit)
    return parts._replace(degrees=_matrix_free(parts, np.float64).matmat(unit[:, None])[:, 0] / unit)


def _matrix_free(tensor: _Tensor, dtype: type) -> NeighborhoodOperator:
    """The matrix by neighbourhoods, not yet normalized."""
    parts = tensor.blocks, tensor.owned, tensor.ids, len(tensor.pairs), tensor.k
    return NeighborhoodOperator(*parts, Params().sigma, Params().epsilon, dtype=dtype)


def _csr_laplacian(tensor: _Tensor) -> sp.csr_array:
    """The Laplacian assembled: CSR (P, P) float32, both triangles."""
    count = len(local_pairs(tensor.k).masks)
    parts = []
    for a in range(0, len(tensor.blocks), ROWS):
        rows = slice(a, a + ROWS)
        owned, ids = np.unpackbits(tensor.owned[rows], axis=1, count=count).astype(bool), tensor.ids[rows]
        arrays = tensor.blocks[rows], ids.astype(np.int64), owned
        parts.append(triplets(*arrays, tensor.k, Params().sigma, Params().epsilon))
    rows_, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return normalized(assemble(rows_, columns, values, len(tensor.pairs)), tensor.degrees)


def measure(
    samples: int,
    features: int,
    neighbors: Sequence[int],
    columns: int,
    operators: Sequence[str],
    repeats: int,
    seed: int,
) -> Iterator[Record]:
    """A record for each k, number of threads and operator, on generated data.

    Our operators run on one thread and then on all cores; SciPy's product runs on one, as it always does. All are
    timed by turns, after a product that is not counted; times are medians. The owner of each entry (W_p) is determined
    once, before the clock starts, as in a run; each product applies it.
    """
    X = centred(curved_gaussians(samples, features, CLUSTERS, seed)[0])
    for k in neighbors:
        with using(usable_cores()):
            tensor = _tensor_of(X, exact_neighbors(X, 0, X, k)[0])
            csr = _csr_laplacian(tensor)
        x = np.random.default_rng(seed).standard_normal((len(tensor.pairs), columns), np.float32)
        shape: Record = {"m": samples, "f": features, "k": k, "columns": columns, "P": len(x), "entries": csr.nnz}
        for n in sorted({1, usable_cores()}):
            with using(n):
                free = _matrix_free(tensor, np.float32)
                free.normalize(tensor.degrees)
                objects = {name: MatrixOperator(csr) if name == "triplets" else free for name in operators}
                products = {name: one.matmat for name, one in objects.items()}
                us, truth = _by_turns({**products, "csr": csr.__matmul__}, x, repeats, samples), csr @ x
                for name, operator in objects.items():
                    each: Record = {"us_per_sample": us[name][0], "us_per_sample_least": us[name][1]}
                    csrs: Record = {"csr_us_per_sample": us["csr"][0], "csr_us_per_sample_least": us["csr"][1]}
                    error = float(np.abs(operator.matmat(x) - truth).max() / np.abs(truth).max())
                    found: Record = {"ratio": us["csr"][0] / us[name][0], "error": error}
                    size = {"bytes_per_sample": _bytes(operator) / samples, "repeats": repeats}
                    yield {**shape, "threads": n, "operator": name, **each, **csrs, **found, **size}


def _by_turns(
    products: Mapping[str, Callable[[Float32], object]], x: Float32, repeats: int, samples: int
) -> dict[str, tuple[float, float]]:
    """Microseconds a sample of each product, median and least of ``repeats``, after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(1 + repeats):
        for name, product in products.items():
            begun = time.perf_counter()
            product(x)
            seconds[name].append(time.perf_counter() - begun)
    of_each = {name: [1e6 * value / samples for value in of[1:]] for name, of in seconds.items()}
    return {name: (statistics.median(of), min(of)) for name, of in of_each.items()}


def _bytes(operator: MatrixOperator | NeighborhoodOperator) -> int:
    """Bytes of all arrays that an operator keeps."""
    if isinstance(operator, MatrixOperator):
        matrix = operator.matrix
        return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
    return operator.nbytes

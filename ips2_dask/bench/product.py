"""`ips2 bench product`: one product with the pair Laplacian at each level of assembly, against SciPy's CSR."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.bench import roofline
from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import CLUSTERS, centred
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.kernels.sparse import assemble, normalized, reverse_lists
from ips2_dask.kernels.tensor import block_distances, local_pairs, owned_pairs, owned_subsets, pair_ids, triplets
from ips2_dask.params import Params
from ips2_dask.typing import Float32, Int32

Operator = MatrixOperator | NeighborhoodOperator

ROWS = 1 << 14
"""Neighbourhoods whose owned subsets are unpacked at once."""


class Tensor(NamedTuple):
    """The indecomposable tensor of the neighbourhoods N (m, k), by its parts, with the default sigma and epsilon."""

    N: Int32  # (m, k)
    pairs: Int32  # (P, 2)
    blocks: Float32  # (m, k (k - 1) / 2)
    owned: NDArray[np.uint8]  # (m, bytes)
    ids: NDArray[np.integer]  # (m, q)
    unit: NDArray[np.float64]  # (P,), docs/method.md, Unfolding and active pairs
    degrees: NDArray[np.float64]  # (P,)


def tensor_of(X: Float32, N: Int32) -> Tensor:
    """The parts of the tensor from which the operators below are built."""
    m = len(N)
    reverse = reverse_lists(N)
    pairs = owned_pairs(N, reverse, 0, m)
    owned = [np.packbits(owned_subsets(N, reverse, a, min(a + ROWS, m)), axis=1) for a in range(0, m, ROWS)]
    unit = np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))
    parts = Tensor(N, pairs, block_distances(X, N), np.concatenate(owned), pair_ids(N, pairs), unit, unit)
    degrees = _neighborhood_operator(parts, NeighborhoodOperator, dtype=np.float64).matmat(unit[:, None])[:, 0] / unit
    return parts._replace(degrees=degrees)


def _neighborhood_operator(
    tensor: Tensor, kind: type[NeighborhoodOperator], *, dtype: type = np.float32
) -> NeighborhoodOperator:
    return kind(
        tensor.blocks,
        tensor.owned,
        tensor.ids,
        len(tensor.pairs),
        tensor.N.shape[1],
        Params().sigma,
        Params().epsilon,
        dtype=dtype,
    )


def laplacian(tensor: Tensor, kind: type[NeighborhoodOperator] = NeighborhoodOperator) -> NeighborhoodOperator:
    """The Laplacian in float32 by neighbourhoods, matrix-free."""
    operator = _neighborhood_operator(tensor, kind)
    operator.normalize(tensor.degrees)
    return operator


def _csr_laplacian(tensor: Tensor) -> sp.csr_array:
    """The same Laplacian assembled: CSR (P, P) float32, both triangles."""
    k = tensor.N.shape[1]
    count = len(local_pairs(k).masks)
    parts = []
    for a in range(0, len(tensor.N), ROWS):
        rows = slice(a, a + ROWS)
        owned = np.unpackbits(tensor.owned[rows], axis=1, count=count).astype(bool)
        ids = tensor.ids[rows].astype(np.int64)
        parts.append(triplets(tensor.blocks[rows], ids, owned, k, Params().sigma, Params().epsilon))
    rows_, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return normalized(assemble(rows_, columns, values, len(tensor.pairs)), tensor.degrees)


def _by_turns(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, after one that is not counted."""
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            begun = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


COLUMNS = (
    "operator",
    "k",
    "threads",
    "us_per_sample",
    "csr_us_per_sample",
    "ratio",
    "error",
    "bytes_per_sample",
    "bytes_per_sample_moved",
    "flops_per_sample",
    "bandwidth_gb_s",
    "peak_gflops",
    "bound_us",
    "bound_by",
    "share_of_bound",
)
OPERATORS = ("matrix-free", "triplets")

Product = Callable[[], NDArray[np.float32]]


def measure(
    m: int = 20_000,
    f: int = 64,
    neighbors: Sequence[int] = (10,),
    columns: int = 10,
    operators: Sequence[str] = OPERATORS,
    repeats: int = 9,
    n_threads: int | None = None,
    seed: int = 0,
) -> Iterator[Record]:
    """A record for each k, number of threads and operator, on generated data.

    Our operators run on one thread and then on all cores, or on ``n_threads`` alone; SciPy's product runs on one, as
    it always does. All are timed by turns, after a product that is not counted; times are medians. The owner of each
    entry (W_p) is determined once, before the clock starts, as in a run; each product applies it.

    **What bounds a product.** Each record says how many bytes a sample a product reads and writes and how many
    operations it makes (`roofline.needs`), and how many of both the machine does in a second on as many threads
    (`roofline.machine`). ``bound_us`` is the time a sample of the slower of the two, which ``bound_by`` names:
    ``memory`` or ``arithmetic``. ``share_of_bound`` is that time over the measured one: 1 would be perfect.
    A stored matrix reads a row of x for each of its entries, so moving rows is its bound. The matrix-free product
    reads one for each pair of a neighbourhood instead, and makes its entries again, with two exponentials each: then
    moving and computing take times of one order. No product comes near its bound. Rows of few columns lie at random
    places and use parts of the cache lines that are fetched for them; sums fill whole vectors, whatever the number of
    columns; and entries, multiplication and sums into y follow one another, so that each waits for what it alone needs.

    Parameters
    ----------
    m, f : int
    neighbors : sequence of int
        Each is a k.
    columns : int
        Of the block vector.
    operators : sequence of str
        Of ``OPERATORS``.
    repeats : int
    n_threads : int, optional
        By default one and all cores.
    seed : int
    """
    X = centred(curved_gaussians(m, f, CLUSTERS, seed)[0])
    counts = [n_threads] if n_threads else sorted({1, usable_cores()})
    rates = {}
    for n in counts:
        with threads(n):
            rates[n] = roofline.machine()
    for k in neighbors:
        with threads(usable_cores()):
            tensor = tensor_of(X, exact_neighbors(X, 0, X, k)[0])
            csr = _csr_laplacian(tensor)
        shape = {"m": m, "f": f, "k": k, "columns": columns, "P": len(tensor.pairs), "entries": csr.nnz}
        for n in counts:
            with threads(n):
                for record in _levels(tensor, csr, columns, operators, repeats, rates[n], seed):
                    yield {**shape, "threads": n, **record}


def _levels(
    tensor: Tensor,
    csr: sp.csr_array,
    columns: int,
    operators: Sequence[str],
    repeats: int,
    rates: roofline.Machine,
    seed: int,
) -> Iterator[Record]:
    m, P = len(tensor.N), len(tensor.pairs)
    x = np.random.default_rng(seed).standard_normal((P, columns), np.float32)
    objects = {name: _operator(name, tensor, csr) for name in operators}
    actions: dict[str, Product] = {name: _product(operator, x) for name, operator in objects.items()}
    actions["csr"] = lambda: csr @ x
    seconds = _by_turns(actions, repeats)
    truth = actions["csr"]()
    csr_us = statistics.median(seconds["csr"]) / m * 1e6
    for name in operators:
        us = statistics.median(seconds[name]) / m * 1e6
        needs = roofline.needs(objects[name], m, columns)
        moving, computing = needs.moved / rates.bandwidth * 1e6, needs.flops / rates.peak * 1e6
        bound = max(moving, computing)
        yield {
            "operator": name,
            "us_per_sample": us,
            "us_per_sample_least": min(seconds[name]) / m * 1e6,
            "csr_us_per_sample": csr_us,
            "csr_us_per_sample_least": min(seconds["csr"]) / m * 1e6,
            "ratio": csr_us / us,
            "error": float(np.abs(actions[name]() - truth).max() / np.abs(truth).max()),
            "bytes_per_sample": _bytes(objects[name]) / m,
            "bytes_per_sample_moved": needs.moved,
            "flops_per_sample": needs.flops,
            "bandwidth_gb_s": rates.bandwidth / 1e9,
            "peak_gflops": rates.peak / 1e9,
            "bound_us": bound,
            "bound_by": "memory" if moving >= computing else "arithmetic",
            "share_of_bound": bound / us,
            "repeats": repeats,
        }


def _operator(name: str, tensor: Tensor, csr: sp.csr_array) -> Operator:
    return MatrixOperator(csr) if name == "triplets" else laplacian(tensor)


def _product(operator: Operator, x: NDArray[np.float32]) -> Product:
    return lambda: operator.matmat(x)


def _bytes(operator: Operator) -> int:
    """Bytes of all arrays that an operator keeps."""
    if isinstance(operator, MatrixOperator):
        matrix = operator.matrix
        return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
    return operator.nbytes

"""`ips2 bench product`: one product with the pair Laplacian at each level of assembly, against SciPy's CSR."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import CLUSTERS, centred
from ips2_dask.bench.tensors import Tensor, csr_laplacian, laplacian, tensor_of
from ips2_dask.bench.timing import by_turns
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import threads, usable_cores

COLUMNS = ("operator", "k", "us_per_sample", "csr_us_per_sample", "ratio", "error", "bytes_per_sample")
OPERATORS = ("matrix-free", "elements", "triplets")

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
    """A record for each k and operator, on generated data.

    Our operators run on ``n_threads`` threads (all cores by default), SciPy's product on one, as it always does. All
    are timed by turns, after a product that is not counted; times are medians. What owns an entry (W_p) is decided
    beforehand, once, as in a run; each product applies it.

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
    seed : int
    """
    X = centred(curved_gaussians(m, f, CLUSTERS, seed)[0])
    n_threads = n_threads or usable_cores()
    with threads(n_threads):
        for k in neighbors:
            tensor = tensor_of(X, exact_neighbors(X, 0, X, k)[0])
            csr = csr_laplacian(tensor)
            shape = {"m": m, "f": f, "k": k, "columns": columns, "P": len(tensor.pairs), "entries": csr.nnz}
            for record in _levels(tensor, csr, columns, operators, repeats, seed):
                yield {**shape, "threads": n_threads, **record}


def _levels(
    tensor: Tensor, csr: sp.csr_array, columns: int, operators: Sequence[str], repeats: int, seed: int
) -> Iterator[Record]:
    m, P = len(tensor.N), len(tensor.pairs)
    x = np.random.default_rng(seed).standard_normal((P, columns), np.float32)
    held = {name: _operator(name, tensor, csr) for name in operators}
    actions: dict[str, Product] = {name: _product(operator, x) for name, operator in held.items()}
    actions["csr"] = lambda: csr @ x
    seconds = by_turns(actions, repeats)
    truth = actions["csr"]()
    csr_us = statistics.median(seconds["csr"]) / m * 1e6
    for name in operators:
        us = statistics.median(seconds[name]) / m * 1e6
        yield {
            "operator": name,
            "us_per_sample": us,
            "us_per_sample_least": min(seconds[name]) / m * 1e6,
            "csr_us_per_sample": csr_us,
            "csr_us_per_sample_least": min(seconds["csr"]) / m * 1e6,
            "ratio": csr_us / us,
            "error": float(np.abs(actions[name]() - truth).max() / np.abs(truth).max()),
            "bytes_per_sample": _bytes(held[name]) / m,
            "repeats": repeats,
        }


def _operator(name: str, tensor: Tensor, csr: sp.csr_array) -> Any:
    return MatrixOperator(csr) if name == "triplets" else laplacian(tensor, elements=name == "elements")


def _product(operator: Any, x: NDArray[np.float32]) -> Product:
    return lambda: operator.matmat(x)


def _bytes(operator: Any) -> int:
    """Bytes of all arrays that an operator keeps."""
    held = list(vars(operator).values())
    if isinstance(operator, MatrixOperator):
        held = [operator.matrix.data, operator.matrix.indices, operator.matrix.indptr]
    return sum(array.nbytes for array in held if isinstance(array, np.ndarray))

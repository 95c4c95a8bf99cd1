"""`ips2 bench product`: one product with the pair Laplacian at each level of assembly, against SciPy's CSR."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ips2_dask.bench.command import CLUSTERS
from ips2_dask.bench.harness import Record
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.parallel import threads as using
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.stages.views import assembled_operator, neighborhood_operator
from ips2_dask.typing import Float32

COLUMNS = ("operator", "k", "threads", "us_per_sample", "csr_us_per_sample", "ratio", "error", "bytes_per_sample")


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

    The operators are those of a run. Ours work on one thread and then on all cores; SciPy's product runs on one, as it
    always does. All are timed by turns, after a product that is not counted; times are medians.
    """
    X = curved_gaussians(samples, features, CLUSTERS, seed)[0]
    for k in neighbors:
        context = run(X, Params(n_clusters=CLUSTERS, n_neighbors=k, graph="exact", operator="matrix-free"))._context
        degrees = context.read_all("assemble", "degrees")
        csr, free = assembled_operator(context, degrees), neighborhood_operator(context)
        free.normalize(degrees)
        x = np.random.default_rng(seed).standard_normal((len(degrees), columns), np.float32)
        shape: Record = {"m": samples, "f": features, "k": k, "columns": columns, "P": len(x), "entries": csr.nnz}
        for n in sorted({1, usable_cores()}):
            with using(n):
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

"""`ips2 bench solve`: the leading eigenpairs of the pair Laplacian by our solver, SciPy's lobpcg and SciPy's eigsh."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import scipy.sparse.linalg as spla
from threadpoolctl import threadpool_limits

from ips2_dask.bench.document import Record
from ips2_dask.bench.graph import lists_of
from ips2_dask.bench.inputs import Data, centred
from ips2_dask.bench.process import peak, work_apart
from ips2_dask.bench.product import Tensor, laplacian, tensor_of
from ips2_dask.kernels.components import Components, neighborhood_components
from ips2_dask.kernels.eigen import ArraySpace, Known, block_width, leading_eigenpairs
from ips2_dask.kernels.operator import NeighborhoodOperator
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.kernels.ritz import start_rows
from ips2_dask.kernels.warm_start import graph_start
from ips2_dask.params import Params
from ips2_dask.plan.choices import choose
from ips2_dask.typing import Float

COLUMNS = (
    "solver",
    "blas_threads",
    "outcome",
    "seconds",
    "products",
    "columns",
    "residual",
    "converged",
    "last_eigenvalue",
)
SOLVERS = ("ips2", "lobpcg", "eigsh")
MOST_ROUNDS = 500


class Counted(NeighborhoodOperator):
    """The matrix-free Laplacian, which counts its products."""

    products = 0
    columns = 0

    def recur(self, y: Float, previous: Float | None, a: float, b: float, c: float) -> Float:
        """As `NeighborhoodOperator.recur`."""
        self.products += 1
        self.columns += y.shape[1]
        return super().recur(y, previous, a, b, c)


class Problem(NamedTuple):
    """The Laplacian, its known eigenvectors, which solvers leave out, and the block that they start from."""

    operator: Any  # Counted, whose dtype mypy infers too narrowly for `kernels.operator.Operator`
    known: Known
    start: Float  # (P, width)
    wanted: int
    tol: float
    seed: int
    blas_threads: int


class Job(TypedDict):
    """The argument of `work`: the files of `problem_files`, and one solver with its arguments."""

    X: str
    N: str
    c: int
    tol: float
    seed: int
    solver: str
    blas_threads: int


def measure(
    data: Data,
    folder: Path,
    neighbors: int = 5,
    clusters: int | None = None,
    tol: float = 1e-3,
    solvers: Sequence[str] = SOLVERS,
    limit: float | None = None,
    seed: int = 0,
) -> Iterator[Record]:
    """A record for each solver, each in a fresh process after a product that is not counted.

    All of them get the same matrix-free Laplacian in float32 with the eigenvectors of eigenvalue 1 taken out, and look
    for the same number of pairs: those of the clusters that remain, and one more for the gap. Products run on all
    cores in each of them; SciPy's own dense algebra runs on one BLAS thread and, in a second record, on all cores,
    since either may be the faster. Ours and lobpcg start from the eigenvectors of the sample graph (docs/method.md,
    The solver), and the time of both contains that of the start; lobpcg has no guard columns, which it would have to
    converge too; eigsh starts from a random vector. ``residual`` is the largest ||L y - lambda y|| of the wanted
    pairs, measured for all of them in the same way.

    Parameters
    ----------
    data : Data
    folder : Path
        For temporary files.
    neighbors, clusters : int
        k and c; c is the data's number of classes by default.
    tol : float
        Of each solver. ARPACK's is relative to the eigenvalue, which is near 1.
    solvers : sequence of str
        Of ``SOLVERS``.
    limit : float, optional
        Seconds that a solver may take in all.
    seed : int
    """
    c = clusters or data.c
    job = problem_files(data, folder, neighbors)
    shape: Record = {"data": data.name, "m": data.m, "f": data.f, "k": neighbors, "c": c, "tol": tol}
    for solver, blas in variants(solvers):
        solver_job = {**job, "c": c, "tol": tol, "seed": seed, "solver": solver, "blas_threads": blas}
        outcome = work_apart("solve", solver_job, folder, limit)
        most = peak(outcome.samples)
        yield {
            **shape,
            "solver": solver,
            "threads": usable_cores(),
            "blas_threads": blas,
            "outcome": outcome.word,
            "seconds": None,
            **outcome.answer,
            "peak_bytes": most.tree if most else None,
        }


def problem_files(data: Data, folder: Path, k: int) -> dict[str, str]:
    """Files of X, in a run's numbering, and of its neighbourhoods (m, k)."""
    X = centred(np.load(data.X))
    lists = lists_of(choose(data.m, data.f, Params()).graph, X, k)
    if lists.order is not None:  # the lists are in the numbering of shards, as in a run
        X = X[lists.order]
    job = {"X": str(folder / "ordered.npy"), "N": str(folder / "neighborhoods.npy")}
    np.save(job["X"], X)
    np.save(job["N"], lists.indices)
    return job


def variants(solvers: Sequence[str]) -> list[tuple[str, int]]:
    """Each solver with the numbers of BLAS threads that it is measured with; ours pins it to one."""
    cores = sorted({1, usable_cores()})
    return [(solver, blas) for solver in solvers for blas in ([1] if solver == "ips2" else cores)]


def work(job: Job) -> Record:
    """One solver, in a process of its own."""
    with threads(usable_cores()):
        tensor = tensor_of(np.load(job["X"]), np.load(job["N"]))
        operator: Any = laplacian(tensor, Counted)
        operator.matmat(np.ones((len(tensor.pairs), 8), np.float32))
        begun = time.perf_counter()
        problem = _problem(tensor, operator, job)
        operator.products = operator.columns = 0
        values, vectors = {"ips2": _ours, "lobpcg": _lobpcg, "eigsh": _eigsh}[job["solver"]](problem)
        seconds = time.perf_counter() - begun
        counted = {"products": operator.products, "columns": operator.columns}
        residual = _residual(operator, values, vectors)
    return {
        "P": len(tensor.pairs),
        "components": problem.known.count,
        "wanted": problem.wanted,
        "seconds": seconds,
        **counted,
        "residual": residual,
        "converged": residual <= job["tol"],
        "last_eigenvalue": float(values.min()),
    }


def _problem(tensor: Tensor, operator: Any, job: Job) -> Problem:
    """The problem that every solver gets; for eigsh, which takes no block to start from, ``start`` is (P, 0)."""
    label, count = neighborhood_components(tensor.N)
    root = np.sqrt(tensor.degrees) * tensor.unit
    known_vectors = Known(root, label[tensor.pairs[:, 0]], count)
    wanted = (job["c"] - count if count < job["c"] else job["c"]) + 1
    start: Float = np.empty((len(root), 0), np.float32)
    if job["solver"] != "eigsh":
        width = min(block_width(wanted), len(root))
        start = ArraySpace(operator, known_vectors).random(width, job["seed"])
        sample_start = graph_start(tensor.N, Components(label, count, count), width, job["seed"])
        start_rows(sample_start, tensor.pairs, root, start[:, : sample_start.shape[1]])
    return Problem(operator, known_vectors, start, wanted, job["tol"], job["seed"], job["blas_threads"])


def _ours(problem: Problem) -> tuple[Float, Float]:
    space = ArraySpace(problem.operator, problem.known)
    eigenpairs = leading_eigenpairs(space, problem.wanted, problem.start, tol=problem.tol, seed=problem.seed)
    return eigenpairs.values[: problem.wanted], eigenpairs.vectors[:, : problem.wanted]


def _deflated(problem: Problem) -> spla.LinearOperator:
    """The operator (P, P) for SciPy with the known eigenvectors projected out: their eigenvalue becomes 0."""

    def product(x: Float) -> Float:
        block = np.ascontiguousarray(x.reshape(len(x), -1), np.float32)
        return problem.known.project_out(problem.operator.matmat(block)).reshape(x.shape)

    return spla.LinearOperator(problem.operator.shape, matvec=product, matmat=product, dtype=np.float32)


def _lobpcg(problem: Problem) -> tuple[Float, Float]:
    start = problem.known.project_out(problem.start)[:, : problem.wanted]
    with warnings.catch_warnings(), threadpool_limits(problem.blas_threads):
        warnings.simplefilter("ignore")  # the residual shows whether it has converged
        values, vectors = spla.lobpcg(_deflated(problem), start, tol=problem.tol, maxiter=MOST_ROUNDS)
    return values, vectors


def _eigsh(problem: Problem) -> tuple[Float, Float]:
    first = np.random.default_rng(problem.seed).standard_normal(problem.operator.shape[0]).astype(np.float32)
    first = problem.known.project_out(first[:, None])[:, 0]
    with threadpool_limits(problem.blas_threads):
        try:
            return spla.eigsh(_deflated(problem), problem.wanted, which="LA", tol=problem.tol, v0=first)
        except spla.ArpackNoConvergence as error:
            return error.eigenvalues, error.eigenvectors


def _residual(operator: NeighborhoodOperator, values: Float, vectors: Float) -> float:
    """The largest ||L y - lambda y||, y of norm 1."""
    y = np.ascontiguousarray(vectors, np.float32)
    y /= np.linalg.norm(y, axis=0)
    return float(np.linalg.norm(operator.matmat(y) - y * values.astype(np.float32), axis=0).max())

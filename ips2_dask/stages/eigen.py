"""Stage 5: the leading eigenpairs of the pair Laplacian outside eigenvalue 1, or of L kron L without forming it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Report
from ips2_dask.kernels import decomposable, warm_start
from ips2_dask.kernels import eigen as kernel
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.selection import solved_pairs, with_ties
from ips2_dask.kernels.sparse import Matrix, assemble, inverse_root, normalized
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import checkpoints
from ips2_dask.stages.block_rounds import with_recovery
from ips2_dask.stages.block_space import ChunkedSpace
from ips2_dask.stages.sample_space import is_small, store_start
from ips2_dask.stages.similarity_views import dense_pairwise, heat_edges, keeps_all_pairs
from ips2_dask.stages.views import (
    assembled_operator,
    component_division,
    known_vectors,
    neighborhood_operator,
    neighborhoods,
    pair_components,
    read_pairs,
    restricted_tensor,
    solved_degrees,
    unit,
)
from ips2_dask.store.base import AnyArray, present
from ips2_dask.store.cache import free_pinned
from ips2_dask.store.context import Context, part_name

VERSION = 6

Float = NDArray[np.floating]
Float64 = NDArray[np.float64]

FLOAT32_TOL = 1e-5
"""Below this tolerance the block vectors are float64: float32 rounds residuals of about 1e-6."""


SETTLED = 2.0
"""Change of the wanted gaps by a filter at which the pairs' eigenvectors are exact enough for labels, where no
tolerance is asked for: the next filter changes them by some 5 % of it (.0 to .18 on the open sets, measured).

Chosen with that of the embedding by ``ips2 bench roundings``, against residuals of 1e-3."""

DECOMPOSABLE_TOL = 1e-3
"""Largest residual of the eigenvectors of L of a decomposable tensor, where no tolerance is asked for."""


def aim(params: Params) -> tuple[float, float | None]:
    """The largest residual that is asked for, and the change of the gaps that also ends a solve (None with ``tol``)."""
    return (FLOAT32_TOL, SETTLED) if params.tol is None else (params.tol, None)


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the Laplacian."""
    own: dict[str, object] = {"n_clusters": choices.n_solved(params), "tol": params.tol, "seed": params.random_state}
    own |= {"assembled": choices.assembled}
    if choices.shared:
        own["shared"] = True  # enough of them for smaller numbers of clusters too
    if params.tensor == "decomposable":
        own |= {"affinity": params.affinity, "bandwidth": params.bandwidth}
    return own


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvalues and eigenvectors; returns the solve's verdict, products, gap and warnings."""
    report(0, 1)
    facts = _finished(context)
    if facts is None and context.params.tensor == "decomposable":
        facts = _decomposable(context)
    elif facts is None and context.choices.vectors == "chunked":
        facts = _chunked(context, executor, report)
    elif facts is None:
        facts = _in_core(context, report)
    checkpoints.delete_checkpoints(context)
    report(1, 1)
    return facts


def _noting(report: Report, tol: float | None) -> Callable[[dict[str, float]], None]:
    """A callback that reports the products and residual of each cycle, and the tolerance if the user gave one."""
    return lambda entry: report.note(dict(entry) if tol is None else {**entry, "tol": tol})


def _finished(context: Context) -> dict[str, Any] | None:
    """The facts of a stage all of whose parts are stored: a run that was stopped just before the stage ended."""
    receipt = context.receipt("eigen", "whole")
    folded = context.params.tensor == "decomposable"
    names = [] if folded or receipt is None else [part_name(b) for b in range(context.n_partitions)]
    complete = len(context.store.receipts(context.folders["eigen"], names)) == len(names)
    return receipt["facts"] if receipt is not None and complete and receipt["facts"] else None


def _graph_start(context: Context, width: int) -> Float:
    """The sample graph's leading eigenvectors: (m, <= width)."""
    N, _ = neighborhoods(context, context.params.n_neighbors)
    return warm_start.graph_start(N, pair_components(context), width, context.params.random_state)


def _in_core(context: Context, report: Report) -> dict[str, Any]:
    """Solve with NumPy blocks in this process, by LAPACK where that is small."""
    params = context.params
    pairs = read_pairs(context)
    count = component_division(context).large
    degrees = solved_degrees(context, pairs, context.read_all("assemble", "degrees"))
    root = np.sqrt(degrees) * unit(pairs)
    component_vectors = known_vectors(context, pairs, degrees)
    dtype = np.float32 if aim(params)[0] >= FLOAT32_TOL else np.float64
    operator: MatrixOperator | NeighborhoodOperator
    if context.choices.operator == "triplets":
        operator = MatrixOperator(normalized(restricted_tensor(context), degrees, dtype))
    elif context.choices.assembled and dtype is np.float32:
        operator = MatrixOperator(assembled_operator(context, degrees))
    else:
        operator = neighborhood_operator(context, dtype)
        operator.normalize(degrees)
    del degrees
    wanted = solved_pairs(context.choices.n_solved(params), bool(context.choices.shared), count)
    width = kernel.block_width(wanted)
    if len(pairs) <= kernel.DENSE_BELOW or len(pairs) < 4 * width + count:
        solution = kernel.dense_eigenpairs(operator, component_vectors, wanted + 8)
    else:
        panels = kernel.panels_of(len(pairs), width, "in-core", dtype)
        space = kernel.ArraySpace(operator, component_vectors, dtype, panels)
        solve_checkpoints = checkpoints.InCore(context)

        def start() -> Float:
            w = _graph_start(context, width)
            if panels > 1:
                free_pinned()  # the graph stood in this process for the start alone
            y = space.random(width, params.random_state)
            warm_start.start_on_pairs(w, pairs, root, y)
            return y

        solution = _solve(space, wanted, start, solve_checkpoints.latest(), solve_checkpoints, params, report)
    n_kept, warnings = _judge(solution, wanted, params)
    vectors = np.ascontiguousarray(solution.vectors[:, :n_kept])
    offsets = context.facts["tensor"]["pair_offsets"]
    for b in range(context.n_partitions):
        part = {"vectors": vectors[offsets[b] : offsets[b + 1]]}
        context.store.write(context.folders["eigen"], part_name(b), part, {})
    sums = _sums(unit(pairs), vectors)
    return _finish(context, solution, wanted, n_kept, component_vectors.volume, sums, warnings)


def _sums(weights: Float64, vectors: Float) -> Float64:
    """weights' vectors in float64, without a copy of all of them."""
    step = 1 << 18
    return np.sum(
        [weights[a : a + step] @ vectors[a : a + step].astype(np.float64) for a in range(0, len(weights), step)], axis=0
    )


def _solve(
    space: kernel.Space,
    wanted: int,
    start: Callable[[], kernel.Block],
    state: kernel.State | None,
    solve_checkpoints: checkpoints.InCore | checkpoints.Chunked,
    params: Params,
    report: Report,
) -> kernel.Solution:
    """Go on from a checkpoint's ``state``, or begin at what ``start`` returns."""
    tol, settled = aim(params)
    return kernel.leading_eigenpairs(
        space, wanted, start, tol=tol, settled=settled, seed=params.random_state, state=state,
        checkpoint=solve_checkpoints.keep, watch=_noting(report, params.tol),
    )  # fmt: skip


def _chunked(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Solve with blocks in chunks on the workers; go on from the last checkpoint when one of them is lost."""
    params, count = context.params, component_division(context).large
    wanted = solved_pairs(context.choices.n_solved(params), bool(context.choices.shared), count)
    width = kernel.block_width(wanted)
    _store_start(context, executor, report, width)
    space = ChunkedSpace(context, executor, width)
    solve_checkpoints = checkpoints.Chunked(context, space)

    def solve(state: kernel.State | None) -> kernel.Solution:
        solution = _solve(space, wanted, space.start, state, solve_checkpoints, params, report)
        n_kept, warnings = _judge(solution, wanted, params)
        ended.update(n_kept=n_kept, warnings=warnings, sums=space.store_vectors(solution.vectors, n_kept))
        return solution

    ended: dict[str, Any] = {}
    solution = with_recovery(space, solve_checkpoints.latest, solve)
    volumes = space.volumes
    space.close()
    return _finish(context, solution, wanted, ended["n_kept"], volumes, ended["sums"], ended["warnings"])


def _store_start(context: Context, executor: Executor, report: Report, width: int) -> None:
    """Store the start by partition, for the workers; parts that are stored already stay."""
    if not is_small(context.m, width, component_division(context).large):
        store_start(context, executor, report, width)
        return
    folder = context.folders["eigen"]
    names = [checkpoints.start_part(b) for b in range(context.n_partitions)]
    stored = set(present(context.store, folder, names))
    missing = [b for b, name in enumerate(names) if name not in stored]
    if missing:
        w = _whole_start(context, width)
        for b in missing:
            low, high = context.span(b)
            context.store.write(folder, names[b], {"start": w[low:high]}, {})


def _whole_start(context: Context, width: int) -> Float:
    """The sample graph's start with as many columns as the block has, random ones after those it gives."""
    w = _graph_start(context, width)
    if w.shape[1] < width:
        rng = np.random.default_rng([context.params.random_state, 5])
        w = np.concatenate([w, rng.standard_normal((context.m, width - w.shape[1]), np.float32)], axis=1)
    return w


def _judge(solution: kernel.Solution, wanted: int, params: Params) -> tuple[int, list[str]]:
    """The number of vectors to keep, and warnings about them."""
    n_kept, warnings = _with_ties(solution.values, wanted)
    if solution.verdict not in (kernel.Verdict.CONVERGED, kernel.Verdict.SETTLED):
        stop = kernel.stop_of(solution, wanted, *aim(params))
        limit = f"{stop.wanted:g}" if params.tol is None else f"tol {stop.wanted:g}"
        warnings.append(f"eigenpairs: {stop.measure} {stop.found:.2g} above {limit}: {solution.verdict.value}")
    return n_kept, warnings


def _finish(
    context: Context, solution: kernel.Solution, wanted: int, n_kept: int, volumes: AnyArray, sums: Float64,
    warnings: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Store the small arrays; returns the stage's facts."""
    c = context.choices.n_solved(context.params)
    components = component_division(context)
    whole = {
        "values": solution.values[:n_kept],
        "residuals": solution.residuals[:n_kept],
        "volumes": volumes,
        "sums": sums,
    }
    eigenvalues = np.concatenate([np.ones(min(components.large, c)), solution.values[:wanted]])[:c]
    gap = float(solution.values[n_kept - 1] - solution.values[n_kept]) if 0 < n_kept < len(solution.values) else None
    facts = {
        "eigenvalues": eigenvalues.tolist(),
        "components": components.large,
        "islands": components.islands,
        "residual_max": float(solution.residuals[:n_kept].max(initial=0.0)),
        "n_vectors": n_kept,
        "gap": gap,
        "products": solution.products,
        "verdict": solution.verdict.name.lower(),
        "stop": kernel.stop_of(solution, wanted, *aim(context.params))._asdict(),
        "history": solution.history,
        "warnings": [*warnings, *_left_out(context.facts["assemble"]["antisymmetric"], eigenvalues)],
    }
    # written last: its receipt says that all parts are stored
    context.store.write(context.folders["eigen"], "whole", whole, facts)
    return facts


def _left_out(antisymmetric: float | None, eigenvalues: Float64) -> list[str]:
    """A warning if an antisymmetric eigenvector would be among the leading ones of T-hat."""
    if antisymmetric is None or antisymmetric <= eigenvalues[-1]:
        return []
    return [
        f"eigenpairs: the antisymmetric part of the tensor has the eigenvalue {antisymmetric:.4f} and the last one "
        f"used is {eigenvalues[-1]:.4f}: V leaves out an eigenvector that the paper's would hold, and is symmetric"
    ]


def _with_ties(values: Float64, wanted: int) -> tuple[int, list[str]]:
    """How many vectors V is made of: the wanted ones and those tied with the last of them."""
    wanted, n_kept = min(wanted, len(values)), with_ties(values, wanted)
    if n_kept > wanted:
        return n_kept, [
            f"eigenvalue {values[wanted - 1]:.6f} is repeated: {n_kept - wanted} tied eigenvectors were added"
        ]
    return n_kept, []


def _decomposable(context: Context) -> dict[str, Any]:
    """Eigenpairs of L from both ends of its spectrum, and the c largest products of its eigenvalues."""
    store, folder, params = context.store, context.folders["eigen"], context.params
    if keeps_all_pairs(context):
        S: Matrix = dense_pairwise(context).astype(np.float64)
        degrees = S.sum(axis=1)
        L: Matrix = S * inverse_root(degrees)[:, None] * inverse_root(degrees)
    else:
        edges, values = heat_edges(context, 0, context.m)
        S = assemble(edges[:, 0].astype(np.int64), edges[:, 1].astype(np.int64), values, context.m)
        degrees = np.asarray(S.sum(axis=1)).ravel()
        L = normalized(S, degrees, np.float64)
    spectrum, vectors, residual = _both_ends(L, params)
    products, chosen = decomposable.leading_products(spectrum, params.n_sought)
    facts = {
        "eigenvalues": products[: params.n_sought].tolist(),
        "residual_max": residual,
        "n_vectors": len(products),
        "gap": None,
        "products": 0,
        "verdict": "converged",
        "stop": kernel.Stop(
            "largest residual", DECOMPOSABLE_TOL if params.tol is None else params.tol, residual
        )._asdict(),
        "history": [],
        "warnings": [],
    }
    arrays = {"values": products, "spectrum": spectrum, "chosen": chosen, "sample_vectors": vectors}
    store.write(folder, "whole", arrays, facts)
    return facts


def _both_ends(L: Matrix, params: Params) -> tuple[Float64, Float64, float]:
    """Eigenpairs of L: all of a small or dense one, else the c + 2 outermost of each end."""
    m = L.shape[0]
    n = params.n_sought + 2
    if not sp.issparse(L) or m <= 4 * n + 64:
        values, vectors = np.linalg.eigh(L if isinstance(L, np.ndarray) else L.toarray())
        return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1]), 0.0
    ends = []
    for sign in (1.0, -1.0):
        space = kernel.ArraySpace(MatrixOperator(sp.csr_array(L * sign)), None, np.float64)
        start = space.random(kernel.block_width(n), params.random_state)
        ends.append(
            (
                sign,
                kernel.leading_eigenpairs(space, n, start, tol=DECOMPOSABLE_TOL if params.tol is None else params.tol),
            )
        )
    values = np.concatenate([sign * s.values[:n] for sign, s in ends])
    vectors = np.concatenate([s.vectors[:, :n] for _, s in ends], axis=1)
    residual = max(float(s.residuals[:n].max()) for _, s in ends)
    order = np.argsort(-values, kind="stable")
    return values[order], np.ascontiguousarray(vectors[:, order]), residual

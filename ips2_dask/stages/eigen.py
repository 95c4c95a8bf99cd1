"""Stage 5: Ritz pairs of the pair Laplacian from the sample graph, eigenpairs where asked for, or those of L kron L.

Labels need no solve on pairs: without a tolerance the Ritz vectors in the span of the sample graph's eigenvectors are
stored, as rows of samples and a rotation. With one, and for few samples, eigenpairs are solved for in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import eigen as kernel
from ips2_dask.kernels import ritz
from ips2_dask.kernels.fusion import leading_products, solved_pairs, with_ties
from ips2_dask.kernels.operator import MatrixOperator, NeighborhoodOperator
from ips2_dask.kernels.sparse import Matrix, assemble, distinct, inverse_root, normalized, places
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import checkpoints, chunks, pair_rows
from ips2_dask.stages.sample_space import store_start
from ips2_dask.stages.similarity_views import dense_pairwise, heat_edges, keeps_all_pairs
from ips2_dask.stages.views import (
    assembled_operator,
    component_division,
    components_of,
    known_vectors,
    neighborhood_operator,
    read_pairs,
    restricted_tensor,
    solved_degrees,
    unit,
)
from ips2_dask.store.base import TaskResult
from ips2_dask.store.cache import free_pinned
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float, Float64

VERSION = 8


FLOAT32_TOL = 1e-5
"""Below this tolerance the block vectors are float64: float32 rounds residuals of about 1e-6."""

SETTLED = 2.0
"""Change of the wanted gaps by a filter at which the pairs' eigenvectors are exact enough for labels, where they are
solved for and no tolerance is asked for: the next filter changes them by some 5 % of it (.0 to .18 on the open sets).

Chosen with that of the embedding by ``ips2 bench roundings``, against residuals of 1e-3."""

LARGEST_RESIDUAL = 2.0
"""No residual of a Ritz vector is larger: its operator's spectrum is within -1 and 1. Labels ask for no smaller one."""

RANGE = 1 << 14
MAX_RANGES = 2_000
"""Samples whose pairs are summed at a time, and most tasks of such sums: they follow the number of samples alone, so
that sums have the same bits for any partitions."""

SUMS = "sums-"
"""Prefix of the parts with each range's sums, which are dropped at the end."""

DECOMPOSABLE_TOL = 1e-3
"""Largest residual of the eigenvectors of L of a decomposable tensor, where no tolerance is asked for."""


def _aim(params: Params) -> tuple[float, float | None]:
    """The largest residual that is asked for, and the change of the gaps that also ends a solve (None with ``tol``)."""
    return (FLOAT32_TOL, SETTLED) if params.tol is None else (params.tol, None)


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the Laplacian."""
    own: dict[str, object] = {"n_clusters": choices.n_solved(params), "tol": params.tol, "seed": params.random_state}
    own |= {"assembled": choices.assembled, "exact": choices.exact}
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
    elif facts is None and context.choices.exact:
        facts = _exact(context, executor, report)
    elif facts is None:
        facts = _ritz(context, executor, report)
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
    names: list[str] = []
    if receipt is not None and not folded:
        by_pairs = [part_name(b) for b in range(context.n_partitions)]
        names = by_pairs if context.choices.exact else chunks.parts(context, checkpoints.START)
    complete = len(context.store.receipts(context.folders["eigen"], names)) == len(names)
    return receipt["facts"] if receipt is not None and complete and receipt["facts"] else None


def _exact(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Solve with NumPy blocks in this process, by LAPACK where that is small."""
    params = context.params
    pairs = read_pairs(context)
    count = component_division(context).large
    degrees = solved_degrees(context, pairs, context.read_all("assemble", "degrees"))
    root = np.sqrt(degrees) * unit(pairs)
    component_vectors = known_vectors(context, pairs, degrees)
    dtype = np.float32 if _aim(params)[0] >= FLOAT32_TOL else np.float64
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
        panels = kernel.panels_of(len(pairs), width, dtype)
        space = kernel.ArraySpace(operator, component_vectors, dtype, panels)
        solve_checkpoints = checkpoints.InCore(context)

        def start() -> Float:
            store_start(context, executor, report, width)
            w = pair_rows.graph_rows(context, np.arange(context.m))
            context.store.drop_many(context.folders["eigen"], chunks.parts(context, checkpoints.START))
            if panels > 1:
                free_pinned()  # the graph stood in this process for the start alone
            y = space.random(width, params.random_state)
            ritz.start_rows(w, pairs, root, y[:, : w.shape[1]])
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
    solve_checkpoints: checkpoints.InCore,
    params: Params,
    report: Report,
) -> kernel.Solution:
    """Go on from a checkpoint's ``state``, or begin at what ``start`` returns."""
    tol, settled = _aim(params)
    return kernel.leading_eigenpairs(
        space,
        wanted,
        start,
        tol=tol,
        settled=settled,
        seed=params.random_state,
        state=state,
        checkpoint=solve_checkpoints.keep,
        watch=_noting(report, params.tol),
    )


# ---- Ritz pairs in the span of the sample graph's eigenvectors


def _ranges(context: Context) -> list[tuple[int, int]]:
    """The samples of each range."""
    rows = RANGE * -(-context.m // (RANGE * MAX_RANGES))
    return [(low, min(low + rows, context.m)) for low in range(0, context.m, rows)]


def _pair_sums(context: Context, r: int) -> TaskResult:
    """What the pairs of a range add to the sums that Ritz pairs are made of."""
    low, high = _ranges(context)[r]
    parts = [_sums_of(context, a, min(a + RANGE, high)) for a in range(low, high, RANGE)]
    total = parts[0]
    if len(parts) > 1:
        whole = ritz.Total(len(total.linear), component_division(context).large)
        for part in parts:
            whole.add(part)
        total = whole.sums()
    return dict(zip(ritz.Sums._fields, total, strict=True)), {}


def _sums_of(context: Context, low: int, high: int) -> ritz.Sums:
    near = pair_rows.near_pairs(context, low, high)
    pairs = near.pairs
    degrees = pair_rows.degrees_at(context, near.touched, pairs)
    samples = distinct(pairs)
    w = pair_rows.graph_rows(context, samples)
    label = components_of(context, pairs[near.own, 0]).of_vectors
    return ritz.sums(
        near.operator, w, places(samples, pairs), unit(pairs), degrees, label, component_division(context).large
    )


def _ritz(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the sample graph's vectors by partition, and the Ritz pairs of the pairs in their span."""
    params, count = context.params, component_division(context).large
    wanted = solved_pairs(context.choices.n_solved(params), bool(context.choices.shared), count)
    width = kernel.block_width(wanted)
    store_start(context, executor, report, width)
    ranges = range(len(_ranges(context)))
    executor.map(Job("eigen", _pair_sums, SUMS, "ranges"), context, ranges, report)
    total, parts = ritz.Total(width, count), [SUMS + part_name(r) for r in ranges]
    folder = context.folders["eigen"]
    arrays = [context.store.read_many(folder, parts, name) for name in ritz.Sums._fields]
    for part in zip(*arrays, strict=True):
        total.add(ritz.Sums(*part))
    found = ritz.ritz(total.sums())
    n_kept, warnings = _with_ties(found.values, wanted)
    facts = _store_whole(
        context,
        found.values,
        found.residuals,
        wanted,
        n_kept,
        {
            "volumes": total.volumes,
            "sums": found.sums[:n_kept],
            "rotation": np.ascontiguousarray(found.rotation[:, :n_kept]),
            "shift": np.ascontiguousarray(found.shift[:, :n_kept]),
        },
        {
            "products": 1,
            "verdict": "ritz",
            "history": [],
            "stop": kernel.Stop(
                "largest residual of the Ritz vectors",
                LARGEST_RESIDUAL,
                float(found.residuals[:wanted].max(initial=0.0)),
            )._asdict(),
        },
        warnings,
    )
    context.store.drop_many(folder, parts)
    return facts


def _judge(solution: kernel.Solution, wanted: int, params: Params) -> tuple[int, list[str]]:
    """The number of vectors to keep, and warnings about them."""
    n_kept, warnings = _with_ties(solution.values, wanted)
    if solution.verdict not in (kernel.Verdict.CONVERGED, kernel.Verdict.SETTLED):
        stop = kernel.stop_of(solution, wanted, *_aim(params))
        limit = f"{stop.wanted:g}" if params.tol is None else f"tol {stop.wanted:g}"
        warnings.append(f"eigenpairs: {stop.measure} {stop.found:.2g} above {limit}: {solution.verdict.value}")
    return n_kept, warnings


def _finish(
    context: Context,
    solution: kernel.Solution,
    wanted: int,
    n_kept: int,
    volumes: AnyArray,
    sums: Float64,
    warnings: list[str],
) -> dict[str, Any]:
    """Store the small arrays of a solve; returns the stage's facts."""
    solved = {
        "products": solution.products,
        "verdict": solution.verdict.name.lower(),
        "history": solution.history,
        "stop": kernel.stop_of(solution, wanted, *_aim(context.params))._asdict(),
    }
    whole = {"volumes": volumes, "sums": sums}
    return _store_whole(context, solution.values, solution.residuals, wanted, n_kept, whole, solved, warnings)


def _store_whole(
    context: Context,
    values: Float64,
    residuals: Float64,
    wanted: int,
    n_kept: int,
    whole: dict[str, AnyArray],
    solved: dict[str, Any],
    warnings: list[str],
) -> dict[str, Any]:
    """Store the small arrays; returns the stage's facts."""
    c = context.choices.n_solved(context.params)
    components = component_division(context)
    eigenvalues = np.concatenate([np.ones(min(components.large, c)), values[:wanted]])[:c]
    facts = {
        "eigenvalues": eigenvalues.tolist(),
        "components": components.large,
        "islands": components.islands,
        "residual_max": float(residuals[:n_kept].max(initial=0.0)),
        "n_vectors": n_kept,
        "gap": float(values[n_kept - 1] - values[n_kept]) if 0 < n_kept < len(values) else None,
        **solved,
        "warnings": warnings,
    }
    # written last: its receipt says that all parts are stored
    arrays = {"values": values[:n_kept], "residuals": residuals[:n_kept], **whole}
    context.store.write(context.folders["eigen"], "whole", arrays, facts)
    return facts


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
    products, chosen = leading_products(spectrum, params.n_sought)
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

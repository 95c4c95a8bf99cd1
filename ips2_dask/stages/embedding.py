"""The spectral embedding of the fused similarity in core, the points it makes, and the tasks that round them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.kernels import density, eigen, extension, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.sparse import Matrix, inverse_root
from ips2_dask.stages import islands
from ips2_dask.stages.kmeans import density_part
from ips2_dask.stages.roundings import Rounding
from ips2_dask.stages.similarity_views import read_similarity, row_weights, weighed
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context
from ips2_dask.typing import AnyArray, Float64, Integer


def embed(context: Context, affinity: Matrix, for_new_samples: bool = True) -> dict[str, Any]:
    """Store the embedding of the ``affinity`` unless it is stored; returns its components, residual and warnings.

    Samples of islands take no part in the solve: each gets the row of the sample whose label it takes. What places
    new samples in the embedding is stored with it if asked for.
    """
    params = context.params
    receipt = context.receipt("label", "embedding")
    if receipt is not None:
        return dict(receipt["facts"])
    U = affinity
    arrays: dict[str, AnyArray] = {}
    facts: dict[str, Any] = {"u_components": 1, "large": 1}
    warnings: list[str] = []
    inside = None
    if sp.issparse(U):
        before, label = connected_components(U, directed=False)
        facts["u_components"] = int(before)
        if before > 1:
            arrays["component"] = np.asarray(label, np.int32)
            U, components = islands.connected(context, U)
            facts["large"] = components.large
            if components.islands:
                arrays["follows"] = islands.followed(context, components.label, components.inside)
                arrays["follows"] = arrays["follows"].astype(np.int32)
                sizes = np.bincount(components.label, context.copies())[components.large :]
                facts["islands"] = {"fused": len(sizes), "rows": int(sizes.sum()), "largest": int(sizes.max())}
                inside = np.flatnonzero(components.inside)
                U = sp.csr_array(U[inside][:, inside])
                warnings.append(islands.warning_of(facts))
    c, columns = params.n_sought, min(params.n_embedded, U.shape[0])
    tol, settled = kernel.solve_limits(params.tol)
    order = context.order()
    order = order if order is None or inside is None else order[inside]
    eigenpairs = kernel.spectrum(U, c, tol, params.random_state, columns=columns, settled=settled, order=order)
    solution = eigenpairs.solution
    points = kernel.embedding(eigenpairs, c)
    arrays |= {"embedding": _spread_out(points, inside, context.m)[arrays.get("follows", slice(None))]}
    arrays |= {"u_values": eigenpairs.values}
    if for_new_samples:
        weights = rounding.commute_weights(eigenpairs.values, eigenpairs.components, c)
        B = (
            eigenpairs.vectors
            * inverse_root(eigenpairs.degrees)[:, None]
            * (extension.inverse_values(eigenpairs.values) * weights)
        )
        B, rows, U = _spread_out(B, inside, context.m), row_weights(context), affinity
        if rows is not None:  # a new sample is one row, and its edges count as much as those of its neighbours' rows
            B, U = B * rows[:, None], weighed(U, 1.0 / rows)
        arrays |= basis(context, U, B)
    promised = tol if settled is not None else kernel.EMBEDDING_TOL
    facts |= {
        "embedding_products": solution.products,
        "embedding_residual": float(solution.residuals.max(initial=0.0)),
        "embedding_stop": eigen.stop_of(solution, eigenpairs.wanted, promised, settled)._asdict(),
        "warnings": warnings,
    }
    context.store.write(context.folders["label"], "embedding", arrays, facts)
    return facts


def points(context: Context, columns: int) -> Matrix:
    """The points to be clustered: the embedding of so many columns, or the rows of U."""
    if context.params.clusters_rows:
        return context.cached("fuse", "U", lambda: read_similarity(context, "fused"), 8 * context.m)
    return kernel.leading_columns(np.asarray(context.read("label", "embedding", "embedding")), columns)


def follows(context: Context) -> NDArray[np.integer] | None:
    """The sample whose label each sample takes, (m,): samples of islands follow others. None if each has its own."""
    receipt = context.receipt("label", "embedding")
    if context.params.clusters_rows or receipt is None or "follows" not in receipt["arrays"]:
        return None
    return np.asarray(context.read("label", "embedding", "follows"))


def own_rows(context: Context) -> Integer | None:
    """Samples that have a label of their own, ascending; None where all have."""
    followed = follows(context)
    return None if followed is None else np.flatnonzero(followed == np.arange(len(followed)))


def basis(context: Context, U: Matrix, B: Float64) -> dict[str, AnyArray]:
    """Arrays from which new samples compute their rows of U B: the pairwise and the high-order part, (m, c) float32."""
    params = context.params
    S = None if params.method == "ppc" else read_similarity(context, "pairwise")
    normalized = extension.is_normalized(params.fusion, params.method)
    pairwise, high_order = extension.basis(U, S, B, params.fusion_weight, normalized)
    return {"pairwise_basis": pairwise, "high_order_basis": high_order}


def _spread_out(rows: AnyArray, inside: Integer | None, m: int) -> AnyArray:
    """Rows of the samples inside among those of all samples, which are 0."""
    if inside is None:
        return rows
    all_rows = np.zeros((m, rows.shape[1]), rows.dtype)
    all_rows[inside] = rows
    return all_rows


# ---- one task of a rounding


def one_rounding(context: Context, part: str) -> TaskResult:
    """The tree of an embedding and its cut, or the best of the starts of k-means that are dealt to this task."""
    task = Rounding.of(part)
    return (_density if task.way == "density" else _kmeans)(context, points(context, task.columns), task)


def _kmeans(context: Context, X: Matrix, task: Rounding) -> TaskResult:
    """The best partition of this task's starts of k-means: labels (m,), -1 for samples of islands, and its inertia."""
    params, tasks = context.params, rounding.restart_tasks(context.m)
    c, seed, inside = params.n_clusters, params.random_state, own_rows(context)
    X = X if inside is None else X[inside]
    if X.shape[0] <= c:
        partition = kernel.Partitioning(0.0, np.arange(X.shape[0], dtype=np.int32))
    elif tasks == 1:
        partition = kernel.kmeans_best(X, c, seed, [0], rounding.RESTARTS)
    else:
        partition = kernel.kmeans_best(X, c, seed, range(task.number, rounding.kmeans_restarts(context.m), tasks))
    labels = partition.labels
    if inside is not None:
        labels = np.full(context.m, -1, np.int32)
        labels[inside] = partition.labels
    return {"labels": labels, "inertia": np.array([partition.inertia])}, {}


def _density(context: Context, X: Matrix, task: Rounding) -> TaskResult:
    """The tree on drawn samples, in the order of the user's numbers, so that no other numbering changes it."""
    del task
    rows = density.tree_rows(X, context.order(), context.params.random_state)
    followed = follows(context)
    rows = rows if followed is None else rows[followed[rows] == rows]
    return density_part(context, X[rows], rows)

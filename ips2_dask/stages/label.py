"""Stage 7: labels from the fused similarity: components tied, spectral embedding, k-means restarts as tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp

from ips2_dask.errors import BadInput
from ips2_dask.executors import Executor, Job, Report
from ips2_dask.kernels import extension, restarts, similarity
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.operator import assemble, inverse_root
from ips2_dask.kernels.reverse import reverse_lists
from ips2_dask.params import N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan import Choices
from ips2_dask.storage.context import Context
from ips2_dask.storage.similarities import read_similarity

VERSION = 6

ROWS_MAX_SAMPLES = 20_000
"""``rows`` treats the rows of U as points of m features: above this they would not fit."""


def depends_on(params: Params, choices: Choices) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the fused similarity."""
    del choices
    return {
        "n_clusters": params.n_clusters,
        "n_components": params.n_embedded,
        "assign_labels": params.assign_labels,
        "tol": params.tol,
        "seed": params.random_state,
    }


class StoredRows:
    """X by rows in any order, read partition by partition: what tying components needs of it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __len__(self) -> int:
        return self._context.m

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        if isinstance(rows, slice):
            return np.asarray(self._context.samples(np.arange(*rows.indices(len(self)))))
        ascending, place = np.unique(rows, return_inverse=True)
        return np.asarray(self._context.samples(ascending)[place.reshape(np.shape(rows))])


def points(context: Context) -> Any:
    """What k-means works on: the embedding, or the rows of U."""
    if context.params.assign_labels == "kmeans":
        return context.remembered("fuse", "U", lambda: read_similarity(context, "fused"), 8 * context.m)
    return np.asarray(context.read("label", "embedding", "embedding"))


def group(context: Context, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The best of the starts of k-means that are dealt to this task."""
    params, X, tasks = context.params, points(context), restarts.tasks(context.m)
    if tasks == 1:
        found = kernel.kmeans_best(X, params.n_clusters, params.random_state, number, restarts.RESTARTS)
        return {"labels": found.labels, "inertia": np.array([found.inertia])}, {}
    starts = range(number, restarts.restarts(context.m), tasks)
    tried = [kernel.kmeans_best(X, params.n_clusters, params.random_state, start, 1) for start in starts]
    found = min(tried, key=lambda p: p.inertia)
    return {"labels": found.labels, "inertia": np.array([found.inertia])}, {}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store embedding and labels; returns components, ties and warnings."""
    facts: dict[str, Any] = {"u_components": None, "ties": [], "warnings": []}
    if context.params.assign_labels != "kmeans":
        facts |= _embed(context)
    starts = range(restarts.tasks(context.m))
    inner = dataclasses.replace(context, facts={**context.facts, "label": facts})
    executor.map(Job("label", group, "restarts-", "starts"), inner, starts, report)
    store, folder = context.store, context.folders["label"]
    found = [
        kernel.Partitioning(
            float(store.read(folder, f"restarts-p{s:06d}", "inertia")[0]),
            store.read(folder, f"restarts-p{s:06d}", "labels"),
        )
        for s in starts
    ]
    labels = kernel.renumber(_in_users_order(context, kernel.best(found)))
    facts["clusters"] = distinct = len(np.unique(labels))
    if distinct < context.params.n_clusters:
        facts["warnings"].append(f"only {distinct} of {context.params.n_clusters} clusters could be told apart")
    store.write(folder, "whole", {"labels": labels}, {})
    _keep_means(context, labels)
    return facts


def _in_users_order(context: Context, labels: Any) -> Any:
    order = context.order()
    if order is None:
        return labels
    out = np.empty_like(labels)
    out[order] = labels
    return out


def _embed(context: Context) -> dict[str, Any]:
    """Store the spectral embedding unless it is there; returns its components, ties, residual and warnings."""
    params = context.params
    there = context.receipt("label", "embedding")
    if there is not None:
        return dict(there["facts"])
    U = read_similarity(context, "fused")
    if params.high_order == "signed":
        U = abs(U)  # a signed mean may be negative, and an affinity may not
    if params.assign_labels == "rows":
        U = _rows_graph(context, U)
    ties: list[kernel.Tie] = []
    count = 1
    if sp.issparse(U):
        U, ties, count = kernel.tie_components(U, StoredRows(context), params.n_clusters, params.metric)
    columns, tol = min(params.n_embedded, context.m), min(params.tol, kernel.EMBEDDING_TOL)
    found = kernel.spectrum(U, params.n_clusters, tol, params.random_state, columns=columns)
    embedding, solution = kernel.embedding(found, params.n_clusters), found.solution
    arrays = {"embedding": embedding, "u_values": found.values}
    if params.assign_labels == "spectral":
        factors = extension.inverse_values(found.values) * kernel.fading(found.values, params.n_clusters)
        B = found.vectors * inverse_root(found.degrees)[:, None] * factors
        arrays |= _basis(context, U, B)
    warnings = []
    if ties:
        warnings.append(
            f"the fused similarity falls into {count} components; those that are loose, {len(ties)} in all with up to "
            f"{max(t.size for t in ties)} samples, were tied to their nearest one by an edge each"
        )
    facts = {
        "u_components": count,
        "ties": [[int(n) for n in t] for t in ties[:100]],
        "embedding_products": solution.products,
        "embedding_residual": float(solution.residuals.max(initial=0.0)),
        "embedding_tol": kernel.EMBEDDING_TOL,
        "warnings": warnings,
    }
    context.store.write(context.folders["label"], "embedding", arrays, facts)
    return facts


def _basis(context: Context, U: Any, B: Any) -> dict[str, Any]:
    """What new samples need of U B, by its two parts."""
    params = context.params
    S = None if params.method == "ppc" else read_similarity(context, "pairwise")
    normalized = extension.is_normalized(params.fusion, params.method)
    pairwise, high_order = extension.basis(U, S, B, params.fusion_weight, normalized)
    return {"pairwise_basis": pairwise, "high_order_basis": high_order}


def _keep_means(context: Context, labels: Any) -> None:
    """Store the means that k-means ended with, for new samples: of the embedding, or of the rows of U."""
    params, order = context.params, context.order()
    labels = labels if order is None else labels[order]
    X = points(context)
    arrays: dict[str, Any] = {}
    if params.assign_labels == "kmeans":
        B = extension.mean_rows(X, labels, params.n_clusters)
        arrays = {"products": np.asarray(X @ B), "squares": np.square(B).sum(axis=0), **_basis(context, X, B)}
        squares = extension.gaps_of_products(arrays["products"], arrays["squares"])
        squares = squares + extension.squared_lengths(X)[:, None]
    else:
        arrays["centroids"] = extension.centroids(X, labels, params.n_clusters)
        squares = extension.gaps(X, arrays["centroids"])
    variance = float(squares[np.arange(context.m), labels].mean()) / params.n_clusters
    context.store.write(context.folders["label"], "means", arrays, {"variance": variance})


def _rows_graph(context: Context, U: Any) -> sp.csr_array:
    """The heat-kernel graph on the rows of U as points."""
    m = context.m
    if m > ROWS_MAX_SAMPLES:
        raise BadInput(
            "assign_labels", f"'rows' with {m} samples", f"'rows' with at most {ROWS_MAX_SAMPLES} samples",
            f"the rows of U as points would take {4 * m * m / 2**30:.0f} GiB", "use assign_labels='spectral'",
        )  # fmt: skip
    rows = np.ascontiguousarray(U.toarray() if sp.issparse(U) else U, np.float32)
    N, d = exact_neighbors(rows, 0, rows, min(N_AFFINITY_NEIGHBORS + 1, m))
    lengths = similarity.all_lengths(rows) if m <= 5000 else d
    t = similarity.bandwidths(lengths)[0] if m <= 5000 else float(d[:, 1:].mean())
    edges, length = similarity.graph_edges(N, d, reverse_lists(N), 0, m)
    return assemble(edges[:, 0].astype(np.int64), edges[:, 1].astype(np.int64), similarity.heat(length, t), m)

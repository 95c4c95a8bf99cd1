"""Stage 7: labels from the fused similarity: a spectral embedding, ways to round it as tasks, the better one kept."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import density, eigen, extension, rounding, similarity
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.components import Components
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.sparse import Matrix, assemble, inverse_root, reverse_lists
from ips2_dask.params import N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import chunked_label, islands, label_parts, leiden
from ips2_dask.stages.kmeans import density_part
from ips2_dask.stages.roundings import MISSING, PREFIX, Candidates, Rounding, facts_of, roundings, warnings_of
from ips2_dask.stages.similarity_views import read_affinity, read_similarity, read_unsigned, row_weights, weighed
from ips2_dask.stages.walk import LocalWalk
from ips2_dask.store.base import AnyArray, TaskResult
from ips2_dask.store.context import Context

VERSION = 9

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Integer = NDArray[np.integer]
UInt8 = NDArray[np.uint8]

ROWS_MAX_SAMPLES = 20_000
"""``rows`` treats the rows of U as points of m features: above this they would not fit."""


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the fused similarity."""
    looks = params.assign_labels in ("auto", "density") and not params.clusters_rows
    return {
        # labels that were k-means' for lack of fast-plscan are computed again once it is installed
        **({"fast_plscan": density.available()} if looks else {}),
        # runs in chunks have another layout, and other draws, than they had
        **({"by_partition": True} if choices.vectors == "chunked" and params.embedding == "spectral" else {}),
        **leiden.depends_on(params),
        "n_clusters": params.n_clusters,
        "n_components": params.n_embedded,
        "embedding": params.embedding,
        "assign_labels": params.assign_labels,
        "tol": params.tol,
        "seed": params.random_state,
    }


def points(context: Context, columns: int) -> Matrix:
    """The points to be clustered: the embedding of so many columns, or the rows of U."""
    if context.params.clusters_rows:
        return context.cached("fuse", "U", lambda: read_similarity(context, "fused"), 8 * context.m)
    return kernel.leading_columns(np.asarray(context.read("label", "embedding", "embedding")), columns)


def one_rounding(context: Context, part: str) -> TaskResult:
    """The tree of an embedding and its cut, or the best of the starts of k-means that are dealt to this task."""
    task = Rounding.of(part)
    return (_density if task.way == "density" else _kmeans)(context, points(context, task.columns), task)


def follows(context: Context) -> NDArray[np.integer] | None:
    """The sample whose label each sample takes, (m,): samples of islands follow others. None if each has its own."""
    receipt = context.receipt("label", "embedding")
    if context.params.clusters_rows or receipt is None or "follows" not in receipt["arrays"]:
        return None
    return np.asarray(context.read("label", "embedding", "follows"))


def _inside(context: Context) -> NDArray[np.integer] | None:
    """Samples that have a label of their own, ascending; None where all have."""
    followed = follows(context)
    return None if followed is None else np.flatnonzero(followed == np.arange(len(followed)))


def _kmeans(context: Context, X: Matrix, task: Rounding) -> TaskResult:
    """The best partition of this task's starts of k-means: labels (m,), -1 for samples of islands, and its inertia."""
    params, tasks = context.params, rounding.restart_tasks(context.m)
    c, seed, inside = params.n_clusters, params.random_state, _inside(context)
    X = X if inside is None else X[inside]
    if X.shape[0] <= c:
        partition = kernel.Partitioning(0.0, np.arange(X.shape[0], dtype=np.int32))
    elif tasks == 1:
        partition = kernel.kmeans_best(X, c, seed, 0, rounding.RESTARTS)
    else:
        starts = range(task.number, rounding.kmeans_restarts(context.m), tasks)
        partition = kernel.best([kernel.kmeans_best(X, c, seed, start, 1) for start in starts])
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


class _Affinity:
    """The affinity that is embedded and walked on: U, or the graph of its rows, weighed by rows; read at first use."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @cached_property
    def matrix(self) -> Matrix:
        """CSR or dense (m, m), without negative entries."""
        context = self._context
        if context.params.embedding != "rows":
            return read_affinity(context)
        return weighed(_rows_graph(context, read_unsigned(context)), row_weights(context))


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store embedding, labels and certainty; returns components, how labels were found, and warnings."""
    if label_parts.is_by_partition(context) and context.params.embedding == "spectral":
        return chunked_label.run(context, executor, report)
    return _run_in_core(context, executor, report)


def _run_in_core(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The stage on arrays of all samples: U is embedded, walked on and cut in this process."""
    params, affinity = context.params, _Affinity(context)
    facts: dict[str, Any] = {"u_components": None, "warnings": []}
    if not params.clusters_rows:
        facts |= _embed(context, affinity)
        facts["warnings"] = list(facts["warnings"])  # those of the embedding's receipt stay as they are
    inner = dataclasses.replace(context, facts={**context.facts, "label": facts})
    label = _leiden if params.assign_labels == "leiden" else _rounded
    labels, left_out, walk = label(inner, executor, report, affinity, facts)
    labels = _renumbered(context, labels)
    arrays = {"labels": context.by_row(labels)}
    arrays["certainty"] = context.by_row(walk.finish(labels))
    if left_out is not None:
        arrays["left_out"] = context.by_row(left_out)
    context.store.write(context.folders["label"], "whole", arrays, {})
    if params.clusters_rows:
        _keep_means(context, labels)
    return facts


_Labelled = tuple[Int32, UInt8 | None, LocalWalk]
"""Labels (m,) in the run's numbering, the samples that a density left out, and the walk on U."""


def _rounded(
    context: Context, executor: Executor, report: Report, affinity: _Affinity, facts: dict[str, Any]
) -> _Labelled:
    """The labels of the rounding that is kept; completes the facts."""
    params, has_density = context.params, density.available()
    if not has_density and params.assign_labels != "kmeans" and not params.clusters_rows:
        facts["warnings"].append(MISSING)
    tasks = roundings(params, context.m, has_density and not params.clusters_rows)
    receipts = executor.map(Job("label", one_rounding, PREFIX, "roundings"), context, [t.part for t in tasks], report)
    walk = LocalWalk(context, affinity.matrix)
    outcome = _Found(context, walk, dict(zip(tasks, receipts, strict=True)))
    winner, (labels, left_out) = outcome.chosen()
    facts["roundings"] = facts_of(outcome.candidates, winner)
    facts["clusters"] = len(np.unique(labels))
    facts["warnings"] += warnings_of(params, winner, facts["clusters"], has_density)
    return labels, left_out, walk


def _leiden(
    context: Context, executor: Executor, report: Report, affinity: _Affinity, facts: dict[str, Any]
) -> _Labelled:
    """The labels of Leiden's communities; completes the facts."""
    del executor
    report(0, 1)
    found = leiden.in_core(context)
    followed, walk = follows(context), LocalWalk(context, affinity.matrix)
    labels = found.labels if followed is None else found.labels[followed]
    facts |= leiden.facts_of(found, walk.cut(labels))
    facts["warnings"] += found.warnings
    report(1, 1)
    return labels, None, walk


def _renumbered(context: Context, labels: Int32) -> Int32:
    """Clusters by their first sample in the user's numbering; labels stay in the run's."""
    order = context.order()
    return kernel.renumber(labels) if order is None else kernel.renumber(context.by_row(labels))[order]


class _Found(Candidates[tuple[Int32, UInt8 | None]]):
    """Candidate labelings in core: labels (m,) in the run's numbering, and of a density the samples left out."""

    def __init__(self, context: Context, walk: LocalWalk, receipts: dict[Rounding, Any]) -> None:
        super().__init__(context.params, receipts)
        self._context, self._walk, self._follows = context, walk, follows(context)

    def _read(self, task: Rounding, name: str) -> AnyArray:
        return self._context.store.read(self._context.folders["label"], f"{PREFIX}{task.part}", name)

    def _partition(self, columns: int) -> tuple[tuple[Int32, None], int]:
        """As of `Candidates`."""
        tasks = [task for task in self._receipts if (task.way, task.columns) == ("kmeans", columns)]
        starts = [
            kernel.Partitioning(float(self._read(t, "inertia")[0]), np.asarray(self._read(t, "labels"))) for t in tasks
        ]
        labels = self._with_islands(kernel.best(starts).labels)
        return (labels, None), len(np.unique(labels))

    def _cut(self, labels: tuple[Int32, UInt8 | None]) -> float:
        """As of `Candidates`."""
        return self._walk.cut(labels[0])

    def _spread(self, one: rounding.Candidate) -> tuple[Int32, UInt8]:
        """As of `Candidates`, and which of the tree's samples it left out."""
        context, task = self._context, Rounding(one.rounding, one.columns, 0)
        drawn, leaves = np.asarray(self._read(task, "drawn")), np.asarray(self._read(task, "labels"))
        labels, left_out = np.full(context.m, -1, np.int32), np.zeros(context.m, np.uint8)
        labels[drawn], left_out[drawn] = leaves, leaves < 0
        labels = self._with_islands(self._walk.spread(labels))
        if (labels < 0).any():  # a large component without a leaf
            component = np.zeros(context.m, np.int32)
            if "component" in (context.receipt("label", "embedding") or {"arrays": {}})["arrays"]:
                component = np.asarray(context.read("label", "embedding", "component"))
            labels = labels[islands.followed(context, component, labels >= 0)]
        return labels, left_out

    def _with_islands(self, labels: Int32) -> Int32:
        """The labels (m,), each sample of an island with the label of the sample that it follows."""
        return labels if self._follows is None else labels[self._follows]


def _embed(context: Context, affinity: _Affinity) -> dict[str, Any]:
    """Store the spectral embedding unless it is stored already; returns its components, residual and warnings.

    Samples of islands take no part in the solve: each gets the row of the sample whose label it takes.
    """
    params = context.params
    receipt = context.receipt("label", "embedding")
    if receipt is not None:
        return dict(receipt["facts"])
    U = affinity.matrix
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
                facts["islands"] = _sizes(components, context.copies())
                inside = np.flatnonzero(components.inside)
                U = sp.csr_array(U[inside][:, inside])
                warnings.append(islands.warning_of(facts))
    c, columns = params.n_sought, min(params.n_embedded, U.shape[0])
    tol, settled = kernel.solve_limits(params.tol)
    eigenpairs = kernel.spectrum(U, c, tol, params.random_state, columns=columns, settled=settled)
    solution = eigenpairs.solution
    points = kernel.embedding(eigenpairs, c)
    arrays |= {"embedding": _spread_out(points, inside, context.m)[arrays.get("follows", slice(None))]}
    arrays |= {"u_values": eigenpairs.values}
    if params.embedding == "spectral":
        weights = rounding.commute_weights(eigenpairs.values, eigenpairs.components, c)
        B = (
            eigenpairs.vectors
            * inverse_root(eigenpairs.degrees)[:, None]
            * (extension.inverse_values(eigenpairs.values) * weights)
        )
        B, rows, U = _spread_out(B, inside, context.m), row_weights(context), affinity.matrix
        if rows is not None:  # a new sample is one row, and its edges count as much as those of its neighbours' rows
            B, U = B * rows[:, None], weighed(U, 1.0 / rows)
        arrays |= _basis(context, U, B)
    promised = tol if settled is not None else kernel.EMBEDDING_TOL
    facts |= {
        "embedding_products": solution.products,
        "embedding_residual": float(solution.residuals.max(initial=0.0)),
        "embedding_stop": eigen.stop_of(solution, eigenpairs.wanted, promised, settled)._asdict(),
        "warnings": warnings,
    }
    context.store.write(context.folders["label"], "embedding", arrays, facts)
    return facts


def _spread_out(rows: AnyArray, inside: Integer | None, m: int) -> AnyArray:
    """Rows of the samples inside among those of all samples, which are 0."""
    if inside is None:
        return rows
    all_rows = np.zeros((m, rows.shape[1]), rows.dtype)
    all_rows[inside] = rows
    return all_rows


def _sizes(components: Components, copies: Integer | None) -> dict[str, int]:
    """How many islands there are, and how many rows of the input they hold in all and at most."""
    rows = np.bincount(components.label, copies)[components.large :]
    return {"fused": components.islands, "rows": int(rows.sum()), "largest": int(rows.max())}


def _basis(context: Context, U: Matrix, B: Float64) -> dict[str, AnyArray]:
    """Arrays from which new samples compute their rows of U B: the pairwise and the high-order part, (m, c) float32."""
    params = context.params
    S = None if params.method == "ppc" else read_similarity(context, "pairwise")
    normalized = extension.is_normalized(params.fusion, params.method)
    pairwise, high_order = extension.basis(U, S, B, params.fusion_weight, normalized)
    return {"pairwise_basis": pairwise, "high_order_basis": high_order}


def _keep_means(context: Context, labels: Int32) -> None:
    """Store the mean rows of U that k-means ended with, for new samples; labels are in the run's numbering."""
    params, U = context.params, points(context, 0)
    B = extension.mean_rows(U, labels, params.n_clusters)
    arrays = {"products": np.asarray(U @ B), "squares": np.square(B).sum(axis=0), **_basis(context, U, B)}
    squares = extension.gaps_of_products(arrays["products"], arrays["squares"])
    squares = squares + extension.squared_lengths(U)[:, None]
    variance = float(squares[np.arange(context.m), labels].mean()) / params.n_clusters
    context.store.write(context.folders["label"], "means", arrays, {"variance": variance})


def _rows_graph(context: Context, U: Matrix) -> sp.csr_array:
    """The heat-kernel graph on the rows of U as points."""
    m = context.m
    if m > ROWS_MAX_SAMPLES:
        raise BadInput(
            "embedding", f"'rows' with {m} samples", f"'rows' with at most {ROWS_MAX_SAMPLES} samples",
            f"the rows of U as points would take {4 * m * m / 2**30:.0f} GiB", "use embedding='spectral'",
        )  # fmt: skip
    rows = np.ascontiguousarray(U if isinstance(U, np.ndarray) else U.toarray(), np.float32)
    N, d = exact_neighbors(rows, 0, rows, min(N_AFFINITY_NEIGHBORS + 1, m))
    lengths = similarity.all_lengths(rows) if m <= 5000 else d
    t = similarity.bandwidths(lengths)[0] if m <= 5000 else float(d[:, 1:].mean())
    edges, length = similarity.graph_edges(N, d, reverse_lists(N), 0, m)
    return assemble(edges[:, 0].astype(np.int64), edges[:, 1].astype(np.int64), similarity.heat(length, t), m)

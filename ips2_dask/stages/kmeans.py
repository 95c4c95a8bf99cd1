"""Rounding of an embedding that is stored by partition: draws of its rows, trees and k-means on them, labels of all.

A draw depends on the user's numbers alone. Of more rows than it has the centres of its best partition label the others.
Rounds on all rows would change ARI and NMI of MNIST's k-means by less than .0005.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import density, draws, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.stages.component_labels import bound
from ips2_dask.stages.label_parts import EMBEDDING
from ips2_dask.stages.roundings import FEWER, PREFIX, Rounding
from ips2_dask.stages.similarity_views import read_similarity
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float32, Int32, Int64

START_ROWS = 1 << 15
"""About as many rows of the embedding are drawn for k-means. On MNIST's all rows have the same inertia to .02 %."""

DRAWN = "drawn-"
"""Prefix of the parts with the rows that each partition draws."""

DRAW = 23
"""Purpose of `kernels.draws`: rows for starts and trees, so that the fewer of a tree are among those of the starts."""


def most_drawn() -> int:
    """About as many rows of the embedding are drawn at most."""
    return max(START_ROWS, *density.TREE_SAMPLES)


def labels_prefix(columns: int) -> str:
    """Prefix of the parts with the labels of k-means on so many columns."""
    return f"kmeans-{columns:04d}-"


def _embedded(context: Context, b: int) -> tuple[Float32, NDArray[np.bool_] | None]:
    """The embedding of partition b, and which samples take no other's label; None where that is all of them."""
    part = EMBEDDING + part_name(b)
    points = np.asarray(context.fetch("label", part, "embedding"))
    receipt = context.receipt("label", part)
    if receipt is None or "follows" not in receipt["arrays"]:
        return points, None
    return points, np.asarray(context.fetch("label", part, "follows")) == np.arange(*context.span(b))


# ---- trees and starts, on drawn rows


def drawn_rows(context: Context, b: int) -> TaskResult:
    """The rows of partition b that are drawn, with their samples and their user's numbers; none of islands."""
    points, inside = _embedded(context, b)
    users = np.asarray(context.user_numbers(b)).astype(np.int64)
    rows = _among(context, users, most_drawn())
    if inside is not None:
        rows = rows[inside[rows]]
    arrays: dict[str, AnyArray] = {
        "embedding": points[rows],
        "drawn": (context.span(b)[0] + rows).astype(np.int32),
        "users": users[rows],
    }
    return arrays, {"n": len(rows)}


def _gathered(context: Context, columns: int) -> tuple[Float32, Int32, Int64]:
    """All drawn rows in the order of the user's numbers: so many columns of the embedding, samples, user's numbers."""
    folder, parts = context.folders["label"], [DRAWN + part_name(b) for b in range(context.n_partitions)]
    points, samples, users = (
        np.concatenate(list(context.store.read_many(folder, parts, name))) for name in ("embedding", "drawn", "users")
    )
    order = np.argsort(users)
    return kernel.leading_columns(points[order], columns), samples[order], users[order]


def one_rounding(context: Context, part: str) -> TaskResult:
    """A tree of an embedding and its cut, or the best start of k-means, on drawn rows."""
    task = Rounding.of(part)
    return (_starts if task.way == "kmeans" else _tree)(context, task)


def _tree(context: Context, task: Rounding) -> TaskResult:
    """What is stored of a tree on some of the drawn rows, and of its cut."""
    points, samples, users = _gathered(context, task.columns)
    most, seed = density.tree_samples(context.m), context.params.random_state
    few = density.COUNTED_SAMPLES if task.way == FEWER else density.DIFFUSE_SAMPLES
    rows = _among(context, users, min(most, few))
    large = task.way == "density" and len(rows) < len(users)
    if large and density.dimension(points[rows], seed) <= density.MAX_DIMENSION:
        rows = _among(context, users, most)
    edges = density.spanning_tree(points[rows])
    cut = None if edges is None else density.cut(edges, len(rows), context.params.n_clusters)
    arrays: dict[str, AnyArray] = {"drawn": samples[rows], "edges": np.zeros((0, 3)) if edges is None else edges}
    facts: dict[str, Any] = {"drawn": len(rows), "left_out": None, "smallest": None}
    if cut is not None:
        facts |= {"left_out": cut.left_out, "smallest": cut.smallest}
        arrays["labels"] = cut.labels
    return arrays, facts


def _among(context: Context, users: Int64, most: int) -> Int64:
    """Places of about ``most`` of the drawn rows, by their user's numbers."""
    return np.flatnonzero(draws.among(draws.hashes(users, context.params.random_state, DRAW), most, context.m))


def _starts(context: Context, task: Rounding) -> TaskResult:
    """The centres of the best start; of rows of U themselves its labels (m,)."""
    rows, c, seed = context.params.clusters_rows, context.params.n_clusters, context.params.random_state
    if rows:
        points = read_similarity(context, "fused")
    else:
        points, _, users = _gathered(context, task.columns)
        points = points[_among(context, users, START_ROWS)]
    n = points.shape[0]
    if n <= c:
        best = kernel.Partitioning(0.0, np.arange(n, dtype=np.int32))
    elif n < rounding.FEW_SAMPLES:
        best = kernel.kmeans_best(points, c, seed, [0], rounding.RESTARTS)
    else:
        best = kernel.kmeans_best(points, c, seed, range(rounding.kmeans_restarts(n)))
    if rows:
        return {"labels": best.labels, "inertia": np.array([best.inertia])}, {}
    sums = np.zeros((best.labels.max() + 1, points.shape[1]))
    np.add.at(sums, best.labels, points.astype(np.float64))
    counts = np.bincount(best.labels)
    centers = sums[counts > 0] / counts[counts > 0, None]
    return {"centroids": centers, "inertia": np.array([best.inertia])}, {}


# ---- k-means on all rows


def assigned(columns: int, context: Context, b: int) -> TaskResult:
    """Labels of partition b by the nearest centre. A sample of an island has the row, so the label, of another."""
    start = PREFIX + Rounding("kmeans", columns, 0).part
    if context.params.clusters_rows:
        labels = np.asarray(context.read("label", start, "labels"))[slice(*context.span(b))]
        return {"labels": labels}, {"clusters": np.unique(labels).tolist()}
    points = kernel.leading_columns(np.asarray(context.fetch("label", EMBEDDING + part_name(b), "embedding")), columns)
    labels, _ = rounding.nearest_centers(points, np.asarray(context.read("label", start, "centroids")))
    return {"labels": labels}, {"clusters": np.unique(labels).tolist()}


def assign(context: Context, executor: Executor, report: Report, columns: int) -> list[Receipt]:
    """Store the labels of k-means on so many columns by partition."""
    job = Job("label", bound(assigned, columns), labels_prefix(columns))
    return executor.map(job, context, range(context.n_partitions), report)

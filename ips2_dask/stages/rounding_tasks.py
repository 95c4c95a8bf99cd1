"""One task of rounding an embedding in core: a tree of its density and the cut, or some starts of k-means."""

from __future__ import annotations

import numpy as np

from ips2_dask.kernels import density, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.stages.embedding import follows, own_rows, points
from ips2_dask.stages.kmeans import density_part
from ips2_dask.stages.roundings import Rounding
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context


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

"""Other numbers of clusters from a finished run: cut from its tree of density, spread over its fused similarity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import renumber
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context

Int32 = NDArray[np.int32]


def _tree_part(columns: int) -> str:
    """The part that holds the tree of this number of columns of the embedding."""
    return f"rounding-density-{columns:04d}-00"


def cut_clusters(context: Context, n_clusters: int) -> Int32:
    """Labels of this number of clusters in the user's numbering: (m,).

    Raises
    ------
    BadInput
        Where there is no tree, or no cut of it has so many clusters.
    """
    part = _tree_part(min(context.params.n_embedded, context.m))
    if context.receipt("label", part) is None or context.params.embedding != "spectral":
        raise BadInput(
            "cut", "a run without a tree of density", "assign_labels='auto' or 'density'",
            "there would be nothing to cut", "run it again with one of these",
        )  # fmt: skip
    drawn, edges = (np.asarray(context.read("label", part, name)) for name in ("drawn", "edges"))
    clustering = density.cut(edges, len(drawn), n_clusters) if len(edges) else None
    if clustering is None:
        raise BadInput(
            "n_clusters", str(n_clusters), "a number of leaves that some smallest size of a cluster gives",
            "clusters would be made up", "try another number",
        )  # fmt: skip
    labels = np.full(context.m, -1, np.int32)
    labels[drawn] = clustering.labels
    U = read_affinity(context)
    shares = rounding.spread(MatrixOperator(rounding.walk_matrix(U)).matmat, labels, n_clusters)
    labels = np.where(labels >= 0, labels, shares.argmax(axis=1)).astype(np.int32)
    receipt = context.receipt("label", "embedding")
    if receipt is not None and "follows" in receipt["arrays"]:
        labels = labels[np.asarray(context.read("label", "embedding", "follows"))]
    return renumber(context.by_row(labels))

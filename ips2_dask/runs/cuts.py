"""Other numbers of clusters from a finished run: cut from its tree of density, spread over its fused similarity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import renumber
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.runs import label_results
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context

Int32 = NDArray[np.int32]

MOST_SAMPLES = 2_000_000
"""Samples of a run in chunks up to which this process walks on its whole similarity: about 1 GiB a million."""


def _tree_part(columns: int) -> str:
    """The part that holds the tree of this number of columns of the embedding."""
    return f"rounding-density-{columns:04d}-00"


def cut_clusters(context: Context, n_clusters: int) -> Int32:
    """Labels of this number of clusters in the user's numbering: (m,).

    Raises
    ------
    BadInput
        Where there is no tree, no cut of it has so many clusters, or U is in chunks and too large for this process.
    """
    if label_results.is_in_buckets(context) and context.m > MOST_SAMPLES:
        raise BadInput(
            "cut", f"{context.m:,} samples of a run in chunks", f"at most {MOST_SAMPLES:,}",
            "the fused similarity of all of them would be read into this process",
            "run it again with this number of clusters into the same directory, which computes the last stages alone",
        )  # fmt: skip
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
    if label_results.has_followers(context):
        labels = labels[label_results.of_all(context, "follows")]
    return renumber(context.by_row(labels))

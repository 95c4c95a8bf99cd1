"""Other numbers of clusters from a finished run: cut from its tree of density, spread over its fused similarity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import renumber
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.runs import label_results
from ips2_dask.runs.directory import check_there
from ips2_dask.stages import islands
from ips2_dask.stages.roundings import PREFIX, Rounding
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.typing import Float64, Int32

MOST_SAMPLES = 2_000_000
"""Samples of a run in chunks up to which this process walks on its whole similarity: about 1 GiB a million."""


class Tree(NamedTuple):
    """A run's tree of density on the most columns of its embedding."""

    drawn: NDArray[np.integer]  # (n,) the samples it is built on, in the run's numbering
    edges: Float64  # (n - 1, 3) as of `density.spanning_tree`; none where there were too few samples


def has_tree(context: Context) -> bool:
    """Whether the run keeps a tree of density."""
    return context.params.embedding == "spectral" and context.receipt("label", _tree_part(context)) is not None


def _tree_part(context: Context) -> str:
    """The part that holds the tree of the most columns of the embedding."""
    return PREFIX + Rounding("density", min(context.params.n_embedded, context.m), 0).part


def read_tree(context: Context, what: str, again: str) -> Tree:
    """The tree of the most columns, where this process can walk on U as well.

    Parameters
    ----------
    context : Context
    what : str
        What is asked for, as an error calls it.
    again : str
        What an error for too many samples advises.

    Raises
    ------
    BadInput
        Where there is no tree, or U is in chunks and too large for this process.
    """
    if label_results.is_in_buckets(context) and context.m > MOST_SAMPLES:
        raise BadInput(
            what,
            f"{context.m:,} samples of a run in chunks",
            f"at most {MOST_SAMPLES:,}",
            "the fused similarity of all of them would be read into this process",
            again,
        )
    if not has_tree(context):
        check_there(context.store)
        raise BadInput(
            what,
            "a run without a tree of density",
            "embedding='spectral' with assign_labels='auto' or 'density'",
            "there would be nothing to cut",
            "run it again with embedding='spectral' and assign_labels='auto'",
        )
    part = _tree_part(context)
    return Tree(*(np.asarray(context.read("label", part, name)) for name in ("drawn", "edges")))


def read_walk(context: Context) -> Matrix:
    """The matrix of the random walk on U that `spread` walks with: (m, m)."""
    return rounding.walk_matrix(read_affinity(context))


def spread(context: Context, walk: Matrix, tree: Tree, leaf_of: Int32) -> Int32:
    """Labels of all rows, (rows,), from the leaf of each sample of a tree, (n,), -1 where it is in none.

    Samples in no leaf get the label of the largest share of a walk, islands and equal rows that of the sample they
    follow, and a larger component without a leaf that of the sample nearest to it. Labels are numbers of leaves.
    """
    labels = np.full(context.m, -1, np.int32)
    labels[tree.drawn] = leaf_of
    shares = rounding.spread(MatrixOperator(walk).matmat, labels, int(leaf_of.max()) + 1)
    labels = np.where(labels >= 0, labels, rounding.largest_share(shares))
    if label_results.has_followers(context):
        labels = labels[label_results.of_all(context, "follows")]
    if (labels < 0).any():
        component = connected_components(walk, directed=False)[1]
        labels = labels[islands.followed(context, component, labels >= 0)]
    return np.asarray(context.by_row(labels), np.int32)


def cut_clusters(context: Context, n_clusters: int) -> Int32:
    """Labels of this number of clusters in the user's numbering: (m,).

    Raises
    ------
    BadInput
        As of `read_tree`, and where no cut of the tree has so many clusters.
    """
    again = "run it again with this number of clusters into the same directory, which computes the last stages alone"
    if n_clusters == 1:
        return np.asarray(context.by_row(np.zeros(context.m, np.int32)), np.int32)
    tree = read_tree(context, "cut", again)
    n = len(tree.drawn)
    clustering = density.cut(tree.edges, n, n_clusters) if len(tree.edges) else None
    if clustering is None:
        levels = density.levels(tree.edges, n, n) if len(tree.edges) else []
        numbers = [c for c in (1, *(x.n_clusters for x in levels)) if c == 1 or density.cut(tree.edges, n, c)]
        raise BadInput(
            "n_clusters",
            str(n_clusters),
            f"a number of leaves that the tree of density has: {', '.join(map(str, numbers))}",
            "clusters would be made up",
            f"give one of these, or {again}",
        )
    return renumber(spread(context, read_walk(context), tree, clustering.labels))

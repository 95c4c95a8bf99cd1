"""Other clusters from a finished run: cut from its tree of density, and its layers, the cuts that persist."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from ips2_dask.errors import BadInput
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import renumber
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.runs import label_results
from ips2_dask.runs.maintenance import check_there
from ips2_dask.stages import islands, metric_views
from ips2_dask.stages.chunks import is_chunked
from ips2_dask.stages.roundings import PREFIX, Rounding
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.typing import Float64, Int32, Int64, Integer

MOST_SAMPLES = 2_000_000
"""Samples of a run in chunks up to which this process walks on its whole similarity: about 1 GiB a million."""

MIN_PART = 0.05
"""Share of a cluster that another one has to have of it at least, to be called a part into which it splits."""


class Part(NamedTuple):
    """What a cluster of the next finer layer has of a cluster."""

    cluster: int
    share: float  #: of the cluster's rows


class Layer(NamedTuple):
    """The clusters of one range of smallest sizes."""

    n_clusters: int
    labels: Int32  #: (m,), numbered by first row; -1 for a row that was left out
    stability: float  #: persistence times span
    persistence: float  #: from 0 to 1, see `ips2_dask.kernels.density.layers`
    span: float  #: logarithm of the largest smallest size of a cluster over the least one that gives this layer
    smallest: float  #: the least one, in samples that the tree was built on
    sizes: Int64  #: (n_clusters,) rows of each cluster
    each: Float64  #: (n_clusters,) persistence of each cluster, from 0 to 1
    splits: tuple[tuple[Part, ...], ...]  #: parts of each in the next finer layer, the largest first; () if none

    def parts(self, cluster: int) -> list[int]:
        """The clusters of the next finer layer with at least `MIN_PART` of a cluster; one or none if it persists."""
        return [part.cluster for part in self.splits[cluster] if part.share >= MIN_PART] if self.splits else []

    def __repr__(self) -> str:
        return f"<Layer of {self.n_clusters} clusters: stability {self.stability:.2f}>"


class Layers(tuple[Layer, ...]):
    """The layers of a run, from the fewest clusters to the most."""

    __slots__ = ()

    def __repr__(self) -> str:
        found = ", ".join(f"{layer.n_clusters} clusters (stability {layer.stability:.2f})" for layer in self)
        return f"<Layers: {found or 'none'}>"


def find_layers(context: Context) -> Layers:
    """The layers of the run's tree, labelled in the user's numbering; refused as of `_read_tree`."""
    again = "run a sample of the data, or ask for single cuts by other numbers of clusters in the same directory"
    drawn, edges = _read_tree(context, "layers", again)
    found = density.layers(edges, len(drawn))
    if not found:
        return Layers([])
    walk = rounding.walk_matrix(read_affinity(context))
    finer: Int32 | None = None
    result: list[Layer] = []
    for one in reversed(found):
        leaf_of = _spread(context, walk, drawn, one.labels)
        labels = renumber(leaf_of)
        numbers, first = np.unique(labels, return_index=True)
        leaves = leaf_of[first[numbers >= 0]]
        sizes = np.bincount(labels[labels >= 0], minlength=len(leaves))
        splits = () if finer is None else _splits(labels, finer)
        measures = one.stability, one.persistence, one.span, one.smallest
        result.append(Layer(len(leaves), labels, *measures, sizes, one.each[leaves], splits))
        finer = labels
    return Layers(result[::-1])


def _splits(labels: Int32, finer: Int32) -> tuple[tuple[Part, ...], ...]:
    """What the clusters of a finer layer have of each cluster; labels of all rows, (m,) each."""
    own = labels >= 0
    counts = np.zeros((int(labels.max()) + 1, int(finer.max()) + 1), np.int64)
    np.add.at(counts, (labels[own], finer[own]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return tuple(
        tuple(Part(int(k), float(row[k])) for k in np.argsort(-row, kind="stable") if row[k] > 0) for row in shares
    )


def _read_tree(context: Context, what: str, again: str) -> tuple[Integer, Float64]:
    """The tree of density on the most columns of the embedding, where this process can walk on U as well.

    Returns the samples that it is built on, (n,), in the run's numbering, and its edges, (n - 1, 3) as of
    `density.spanning_tree`, none where there were too few samples.

    It is refused where there is none, or U is in chunks and too large for this process. ``what`` is asked for, and
    ``again`` is the remedy for too many samples.
    """
    if is_chunked(context) and context.m > MOST_SAMPLES:
        why = "the fused similarity of all of them would be read into this process"
        raise BadInput(what, f"{context.m:,} samples of a run in chunks", f"at most {MOST_SAMPLES:,}", why, again)
    part = PREFIX + Rounding("density", min(context.params.n_embedded, context.m), 0).part
    if context.params.embedding != "spectral" or context.receipt("label", part) is None:
        check_there(context.store)
        found = "a run without a tree of density"
        allowed = "embedding='spectral' with assign_labels='auto' or 'density'"
        why = "there would be nothing to cut"
        raise BadInput(what, found, allowed, why, "run it again with embedding='spectral' and assign_labels='auto'")
    return np.asarray(context.read("label", part, "drawn")), np.asarray(context.read("label", part, "edges"))


def _spread(context: Context, walk: Matrix, drawn: Integer, leaf_of: Int32) -> Int32:
    """Labels of all rows, (rows,), from the leaf of each sample of a tree, (n,), -1 where it is in none.

    Samples in no leaf get the label of the largest share of a walk, islands and equal rows that of the sample they
    follow, and a larger component without a leaf that of the sample nearest to it. Labels are numbers of leaves.
    """
    labels = np.full(context.m, -1, np.int32)
    labels[drawn] = leaf_of
    shares = rounding.spread(MatrixOperator(walk).matmat, labels, int(leaf_of.max()) + 1)
    labels = np.where(labels >= 0, labels, rounding.largest_share(shares))
    if label_results.has_followers(context):
        labels = labels[label_results.of_all(context, "follows")]
    if (labels < 0).any():
        component, reached = connected_components(walk, directed=False)[1], np.flatnonzero(labels >= 0)
        for one in np.unique(component[labels < 0]):
            members = np.flatnonzero(component == one)
            labels[members[labels[members] < 0]] = labels[_nearest(context, members, reached)]
    return np.asarray(context.by_row(labels), np.int32)


def _nearest(context: Context, members: Int64, others: Int64) -> int:
    """The sample of some others that is nearest to the central one of a component's members."""
    rows = islands.rows_at(context, members)
    if context.metric.precomputed:
        central = rows[rows[:, members].sum(axis=1).argmin()]
        return int(others[central[others].argmin()])
    central = rows[np.square(rows - rows.mean(axis=0, dtype=np.float64)).sum(axis=1).argmin()]
    places, _ = metric_views.search(context)(central[None], np.array([-1]), islands.rows_at(context, others), 1)
    return int(others[places[0, 0]])


def cut_clusters(context: Context, n_clusters: int) -> Int32:
    """Labels of this number of clusters in the user's numbering, (m,); refused where no cut has so many."""
    again = "run it again with this number of clusters into the same directory, which computes the last stages alone"
    if n_clusters == 1:
        return np.asarray(context.by_row(np.zeros(context.m, np.int32)), np.int32)
    drawn, edges = _read_tree(context, "cut", again)
    n = len(drawn)
    clustering = density.cut(edges, n, n_clusters) if len(edges) else None
    if clustering is None:
        layers = density.cuts(edges, n, n)
        numbers = [c for c in (1, *(one.n_clusters for one in layers)) if c == 1 or density.cut(edges, n, c)]
        found = str(n_clusters)
        allowed = f"a number of leaves that the tree of density has: {', '.join(map(str, numbers))}"
        raise BadInput("n_clusters", found, allowed, "clusters would be made up", f"give one of these, or {again}")
    return renumber(_spread(context, rounding.walk_matrix(read_affinity(context)), drawn, clustering.labels))

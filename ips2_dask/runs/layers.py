"""Layers of a finished run: the cuts of its tree of density that persist, each with a label for every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels import density as kernel
from ips2_dask.kernels.labels import renumber
from ips2_dask.runs.cuts import read_tree, read_walk, spread
from ips2_dask.store.context import Context
from ips2_dask.typing import Float64, Int32

MIN_PART = 0.05
"""Share of a cluster that another one has to have of it at least, to be called a part into which it splits."""


class Part(NamedTuple):
    """What a cluster of the next finer layer has of a cluster."""

    cluster: int
    share: float  # of the cluster's rows


class Layer(NamedTuple):
    """The clusters of one range of smallest sizes."""

    n_clusters: int
    labels: Int32  # (m,), numbered by first row; -1 for a row that was left out
    stability: float  # persistence times span
    persistence: float  # from 0 to 1, see `ips2_dask.kernels.density.layers`
    span: float  # logarithm of the largest smallest size of a cluster over the least one that gives this layer
    smallest: float  # the least one, in samples that the tree was built on
    sizes: NDArray[np.int64]  # (n_clusters,) rows of each cluster
    each: Float64  # (n_clusters,) persistence of each cluster, from 0 to 1
    splits: tuple[tuple[Part, ...], ...]  # parts of each cluster in the next finer layer, the largest first; () if none

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold, all but the labels."""
        return {
            "n_clusters": self.n_clusters,
            "stability": self.stability,
            "persistence": self.persistence,
            "span": self.span,
            "smallest": self.smallest,
            "sizes": self.sizes.tolist(),
            "each": self.each.tolist(),
            "splits": [[part._asdict() for part in parts] for parts in self.splits],
        }

    def parts(self, cluster: int) -> list[int]:
        """The clusters of the next finer layer with at least `MIN_PART` of a cluster; one or none if it persists."""
        return [part.cluster for part in self.splits[cluster] if part.share >= MIN_PART] if self.splits else []

    def __repr__(self) -> str:
        return f"<Layer of {self.n_clusters} clusters: stability {self.stability:.2f}>"


class Layers(Sequence[Layer]):
    """The layers of a run, from the fewest clusters to the most.

    Parameters
    ----------
    layers : sequence of Layer
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Layers: ...
    def __getitem__(self, index: int | slice) -> Layer | Layers:
        return Layers(self._layers[index]) if isinstance(index, slice) else self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def __repr__(self) -> str:
        found = ", ".join(f"{layer.n_clusters} clusters (stability {layer.stability:.2f})" for layer in self)
        return f"<Layers: {found or 'none'}>"

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold: a list ``layers``, without labels."""
        return {"layers": [layer.as_dict() for layer in self]}


def find_layers(context: Context) -> Layers:
    """The layers of the run's tree, labelled in the user's numbering.

    Raises
    ------
    BadInput
        As of `cuts.read_tree`.
    """
    again = "run a sample of the data, or ask for single cuts by other numbers of clusters in the same directory"
    tree = read_tree(context, "layers", again)
    found = kernel.layers(tree.edges, len(tree.drawn)) if len(tree.edges) else []
    if not found:
        return Layers([])
    walk = read_walk(context)
    finer: Int32 | None = None
    result: list[Layer] = []
    for one in reversed(found):
        leaf_of = spread(context, walk, tree, one.labels)
        labels = renumber(leaf_of)
        numbers, first = np.unique(labels, return_index=True)
        leaves = leaf_of[first[numbers >= 0]]
        sizes = np.bincount(labels[labels >= 0], minlength=len(leaves))
        splits = () if finer is None else _splits(labels, finer)
        result.append(
            Layer(
                len(leaves),
                labels,
                one.stability,
                one.persistence,
                one.span,
                one.smallest,
                sizes,
                one.each[leaves],
                splits,
            )
        )
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

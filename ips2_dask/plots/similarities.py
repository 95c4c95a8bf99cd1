"""The numbers of the plots of S, V and U: block means in the order of labels, distributions, means between clusters.

Everything is summed pair by pair in one go over the stored parts, so that a sparse similarity is never dense beyond
the cells of a screen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.plots.style import KINDS
from ips2_dask.runs.run import Run

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

CELLS = 240
"""Rows and columns of a heat map, at most: more could not be told apart on a third of a screen."""

BINS = 48


class Distribution(NamedTuple):
    """How often the values of a similarity occur among pairs within a cluster and between two, without zeros."""

    edges: Float64  # (bins + 1,)
    within: Int64  # (bins,) pairs of one cluster whose similarity is not 0
    between: Int64
    pairs: tuple[int, int]  # all pairs of one cluster, and of two


class Summary(NamedTuple):
    """Summaries of a run's three similarities, each by its kind."""

    cells: dict[str, Float64]  # (n, n) means of blocks, samples in the order of their labels; NaN where no pair is
    limits: Int64  # (c + 1,) where each cluster begins, in samples
    distributions: dict[str, Distribution]
    means: dict[str, Float64]  # (c, c) mean over the pairs of two clusters, or of one
    own: Float64  # (m,) share of a sample's fused similarity that is with its own cluster
    profile: Float64 | None  # (m, c) mean fused similarity to each cluster
    sparse: bool


def summarize(run: Run, *, cells: int = CELLS, profile: bool = False) -> Summary:
    """Sum up the three similarities of a run.

    Parameters
    ----------
    run : Run
    cells : int
        Largest number of rows and columns of the heat maps.
    profile : bool
        Whether each sample's mean similarity to each cluster is wanted: (m, c) numbers.
    """
    run = run.clustered
    distinct = run.distinct  # pairs are those of distinct rows
    labels = run.labels[distinct]
    m, c = len(labels), int(labels.max()) + 1
    order = np.argsort(labels, kind="stable")
    n = min(m, cells)
    cell = np.empty(m, np.int64)
    cell[order] = np.arange(m) * n // m
    sums = _Sums(labels.astype(np.int64), c, cell, n, _ranges(run), profile)
    for part in run.iter_similarities():
        i, j = (np.searchsorted(distinct, end) for end in (part.i, part.j))
        sums.add(i, j, {kind: np.asarray(getattr(part, kind), np.float64) for kind in KINDS})
    sizes = np.bincount(labels, minlength=c)
    counts = np.bincount(cell, minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.where(sums.total > 0, sums.own / sums.total, 0.0)
        shown = {kind: _means(sums.blocks[kind], counts) for kind in KINDS}
        means = {kind: _means(sums.clusters[kind], sizes) for kind in KINDS}
    together = int((sizes * (sizes - 1) // 2).sum())
    pairs = together, m * (m - 1) // 2 - together
    distributions = {
        kind: Distribution(sums.edges[kind], counts[0], counts[1], pairs)
        for kind, counts in ((kind, sums.histograms[kind].astype(np.int64)) for kind in KINDS)
    }
    limits = np.concatenate([[0], np.cumsum(sizes)])
    position = np.searchsorted(distinct, run.first_rows)
    wide = None if sums.profile is None else (sums.profile / np.maximum(sizes, 1))[position]
    return Summary(shown, limits, distributions, means, own[position], wide, not _stored_densely(run))


def _stored_densely(run: Run) -> bool:
    """Whether the run stored the fused similarity of all pairs, also those whose similarity is 0."""
    return bool(next(stage["facts"]["dense"] for stage in run.manifest["stages"] if stage["name"] == "fuse"))


def _ranges(run: Run) -> dict[str, tuple[float, float]]:
    """Smallest (not above 0) and largest value of each similarity."""
    low, high = (dict.fromkeys(KINDS, 0.0) for _ in range(2))
    for part in run.iter_similarities():
        for kind in KINDS:
            values = getattr(part, kind)
            low[kind] = min(low[kind], float(values.min(initial=0.0)))
            high[kind] = max(high[kind], float(values.max(initial=0.0)))
    return {kind: (low[kind], high[kind] if high[kind] > low[kind] else low[kind] + 1.0) for kind in KINDS}


def _means(sums: Float64, counts: Int64) -> Float64:
    """Mean of each block (n, n), from the sums over its pairs i < j (n, n) and the samples of each row (n,)."""
    pairs = np.outer(counts, counts) - np.diag(counts)
    means: Float64 = (sums + sums.T) / pairs
    return means


class _Sums:
    """Sums over the pairs of samples, to which each stored part of the similarities is added."""

    def __init__(
        self, labels: Int64, c: int, cell: Int64, n: int, ranges: dict[str, tuple[float, float]], profile: bool
    ) -> None:
        self._labels, self._c, self._cell, self._n = labels, c, cell, n
        self.edges = {kind: np.linspace(low, high, BINS + 1) for kind, (low, high) in ranges.items()}
        self.blocks = {kind: np.zeros((n, n)) for kind in ranges}
        self.clusters = {kind: np.zeros((c, c)) for kind in ranges}
        self.histograms = {kind: np.zeros((2, BINS)) for kind in ranges}
        self.own, self.total = np.zeros(len(labels)), np.zeros(len(labels))
        self.profile = np.zeros((len(labels), c)) if profile else None

    def add(self, i: Int64, j: Int64, values: dict[str, Float64]) -> None:
        """Add pairs of samples ``i`` and ``j`` with their values of each similarity; all arrays are (pairs,)."""
        n, c = self._n, self._c
        li, lj = self._labels[i], self._labels[j]
        block, both = self._cell[i] * n + self._cell[j], li * c + lj
        same = li == lj
        for kind, v in values.items():
            self.blocks[kind] += np.bincount(block, v, n * n).reshape(n, n)
            self.clusters[kind] += np.bincount(both, v, c * c).reshape(c, c)
            for row, mask in enumerate((same, ~same)):
                self.histograms[kind][row] += np.histogram(v[mask & (v != 0)], self.edges[kind])[0]
        U, m = np.abs(values["fused"]), len(self._labels)
        for end, other in ((i, lj), (j, li)):
            self.total += np.bincount(end, U, m)
            self.own += np.bincount(end[same], U[same], m)
            if self.profile is not None:
                self.profile += np.bincount(end * c + other, U, m * c).reshape(m, c)

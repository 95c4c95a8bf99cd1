"""The similarities S, V and U: block means in the order of labels as heat maps, and distributions of their values.

Everything is summed pair by pair in one go over the stored parts, so that a sparse similarity is never dense beyond
the cells of a screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ips2_dask.plots.style import INK, KINDS, MUTED, PALETTE, SEQUENTIAL, axis, legend, titled
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import shown
from ips2_dask.stages.similarity_views import Similarities, numbered_parts
from ips2_dask.typing import Float64, Int64

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes

CELLS = 240
"""Rows and columns of a heat map, at most: more could not be told apart on a third of a screen."""

BINS = 48


class Distribution(NamedTuple):
    """How often the values of a similarity occur among pairs within a cluster and between two, without zeros."""

    edges: Float64  #: (bins + 1,)
    within: Int64  #: (bins,) pairs of one cluster whose similarity is not 0
    between: Int64
    pairs: tuple[int, int]  #: all pairs of one cluster, and of two


class Summary(NamedTuple):
    """Summaries of a run's three similarities, each by its kind."""

    cells: dict[str, Float64]  #: (n, n) means of blocks, samples in the order of their labels; NaN where no pair is
    limits: Int64  #: (c + 1,) where each cluster begins, in samples
    distributions: dict[str, Distribution]
    means: dict[str, Float64]  #: (c, c) mean over the pairs of two clusters, or of one
    own: Float64  #: (m,) share of a sample's fused similarity that is with its own cluster
    profile: Float64 | None  #: (m, c) mean fused similarity to each cluster
    sparse: bool


def summarize(run: Run, *, cells: int = CELLS, profile: bool = False) -> Summary:
    """Sum up the three similarities of a run.

    Parameters
    ----------
    cells : int
        Largest number of rows and columns of the heat maps.
    profile : bool
        Whether each sample's mean similarity to each cluster is wanted: (m, c) numbers.
    """
    run = shown(run)
    context = run._context
    most = max(run.params.n_clusters, len(run.sizes))
    counts = np.stack([np.bincount(run.labels_of_partition(b), minlength=most) for b in range(context.n_partitions)])
    counts = counts[:, : int(counts.any(axis=0).sum())]  # clusters that could not be told apart are the last ones
    sizes = counts.sum(axis=0)
    m, c = context.m, len(sizes)
    n = min(m, cells)
    firsts = np.concatenate([[0], np.cumsum(sizes)])[:-1] + np.cumsum(counts, axis=0) - counts  # by partition, cluster

    def partition_ends(b: int) -> tuple[Int64, Int64]:
        """Label and cell of each sample of a partition; samples of a cluster are in the run's order."""
        labels = run.labels_of_partition(b).astype(np.int64)
        order = np.argsort(labels, kind="stable")
        own = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=c))])[:-1]
        place = np.empty(len(labels), np.int64)
        place[order] = np.arange(len(labels)) - own[labels[order]]
        return labels, (firsts[b][labels] + place) * n // m

    def ends(samples: Int64) -> _Ends:
        used, places = np.unique(samples, return_inverse=True) if len(samples) < m else (np.arange(m), samples)
        labels, cell = (np.empty(len(used), np.int64) for _ in range(2))
        for b, own, rows in run.by_partition(used):
            labels[own], cell[own] = (values[rows] for values in partition_ends(b))
        number = np.searchsorted(run.samples, used)
        number[number == len(run.samples)] = 0
        number[run.samples[number] != used] = -1
        return _Ends(labels[places], cell[places], number[places])

    sums = _Sums(c, n, len(run.samples), _ranges(numbered_parts(context)), profile)
    for part in numbered_parts(context):
        values = {kind: np.asarray(getattr(part, kind), np.float64) for kind in KINDS}
        sums.add(ends(part.i), ends(part.j), values)
    in_cells = np.diff(-(-np.arange(n + 1) * m // n))  # samples at places of which places * n // m is a cell
    return sums.summary(sizes, in_cells, run.order, not context.facts["fuse"]["dense"])


def _ranges(parts: Iterable[Similarities]) -> dict[str, tuple[float, float]]:
    """Smallest (not above 0) and largest value of each similarity."""
    low, high = (dict.fromkeys(KINDS, 0.0) for _ in range(2))
    for part in parts:
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


class _Ends(NamedTuple):
    """One end of each of some pairs: (pairs,) int64 each."""

    labels: Int64
    cell: Int64  # of the heat maps
    number: Int64  # of the sample among those that something is said of, -1 for another


class _Sums:
    """Sums over the pairs of samples, to which each stored part of the similarities is added."""

    def __init__(self, c: int, n: int, n_samples: int, ranges: dict[str, tuple[float, float]], profile: bool) -> None:
        self._c, self._n, self._n_samples = c, n, n_samples
        self._edges = {kind: np.linspace(low, high, BINS + 1) for kind, (low, high) in ranges.items()}
        self._blocks = {kind: np.zeros((n, n)) for kind in ranges}
        self._clusters = {kind: np.zeros((c, c)) for kind in ranges}
        self._histograms = {kind: np.zeros((2, BINS)) for kind in ranges}
        self._own, self._total = np.zeros(n_samples), np.zeros(n_samples)
        self._profile = np.zeros((n_samples, c)) if profile else None

    def add(self, i: _Ends, j: _Ends, values: dict[str, Float64]) -> None:
        """Add pairs of samples with these ends, and their values of each similarity: (pairs,)."""
        n, c = self._n, self._c
        block, both = i.cell * n + j.cell, i.labels * c + j.labels
        same = i.labels == j.labels
        for kind, v in values.items():
            self._blocks[kind] += np.bincount(block, v, n * n).reshape(n, n)
            self._clusters[kind] += np.bincount(both, v, c * c).reshape(c, c)
            for row, mask in enumerate((same, ~same)):
                self._histograms[kind][row] += np.histogram(v[mask & (v != 0)], self._edges[kind])[0]
        U = np.abs(values["fused"])
        for end, other in ((i, j), (j, i)):
            said = np.flatnonzero(end.number >= 0)
            number, value, within = end.number[said], U[said], same[said]
            self._total += np.bincount(number, value, self._n_samples)
            self._own += np.bincount(number[within], value[within], self._n_samples)
            if self._profile is not None:
                places, shape = number * c + other.labels[said], self._profile.shape
                self._profile += np.bincount(places, value, self._profile.size).reshape(shape)

    def summary(self, sizes: Int64, in_cells: Int64, position: Int64, sparse: bool) -> Summary:
        """The summary, from the samples of each cluster and of each cell, and the number of each row's sample."""
        m = int(sizes.sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            own = np.where(self._total > 0, self._own / self._total, 0.0)
            shown = {kind: _means(self._blocks[kind], in_cells) for kind in KINDS}
            means = {kind: _means(self._clusters[kind], sizes) for kind in KINDS}
        together = int((sizes * (sizes - 1) // 2).sum())
        pairs = together, m * (m - 1) // 2 - together
        counts = {kind: self._histograms[kind].astype(np.int64) for kind in KINDS}
        distributions = {kind: Distribution(self._edges[kind], n[0], n[1], pairs) for kind, n in counts.items()}
        limits = np.concatenate([[0], np.cumsum(sizes)])
        wide = None if self._profile is None else (self._profile / np.maximum(sizes, 1))[position]
        return Summary(shown, limits, distributions, means, own[position], wide, sparse)


# ---- pictures

LABELLED = 0.04
"""Share of all samples that a cluster must have for its number to be written on the axes."""


def similarity(run: Run | Summary, kind: str = "fused", ax: Axes | None = None) -> Axes:
    """Draw a similarity as a heat map, samples in the order of their labels, down-sampled by block means.

    Parameters
    ----------
    run : Run or Summary
    kind : {"pairwise", "high_order", "fused"}
    """
    from matplotlib.colors import Normalize, PowerNorm  # noqa: PLC0415  the extra [report]

    summary = summarize(run) if isinstance(run, Run) else run
    ax = axis(ax, grid=None)
    M = np.nan_to_num(summary.cells[kind])
    low, high = min(0.0, float(M.min())), float(M.max()) or 1.0
    # block means of a sparse matrix span decades: a root shows the weak blocks too
    norm = PowerNorm(1 / 3, low, high) if summary.sparse and low == 0 else Normalize(low, high)
    m = int(summary.limits[-1])
    image = ax.imshow(M, cmap=SEQUENTIAL, norm=norm, extent=(0, m, m, 0), interpolation="nearest")
    ax.spines[["top", "right"]].set_visible(True)
    ax.spines[:].set_color(MUTED)
    limits, sizes = summary.limits, np.diff(summary.limits)
    for limit in limits[1:-1] if len(sizes) <= 40 else ():
        ax.axhline(limit, color=MUTED, linewidth=0.4, alpha=0.45)
        ax.axvline(limit, color=MUTED, linewidth=0.4, alpha=0.45)
    roomy = np.flatnonzero(sizes >= LABELLED * m)
    middle = (limits[:-1] + limits[1:])[roomy] / 2
    ax.set_xticks(middle, [str(i) for i in roomy])
    ax.set_yticks(middle, [str(i) for i in roomy])
    ax.tick_params(length=0)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.03)
    bar.ax.tick_params(length=2, colors=INK, labelsize="small")
    bar.ax.spines[:].set_visible(False)
    return titled(ax, _heading(kind), "samples by cluster")


def distribution(run: Run | Summary, kind: str = "fused", ax: Axes | None = None) -> Axes:
    """Draw how often each value of a similarity occurs within clusters and between them; zeros are left out.

    Parameters as of `similarity`.
    """
    shown = (summarize(run) if isinstance(run, Run) else run).distributions[kind]
    ax = axis(ax, grid="y")
    ax.set_yscale("log")
    # 0 has no place on a logarithmic axis: an empty bin stays empty
    within, between = (np.where(counts > 0, counts, np.nan) for counts in (shown.within, shown.between))
    floor, width = 0.7, np.diff(shown.edges)
    look: dict[str, Any]
    look = {"facecolor": "none", "edgecolor": PALETTE[0], "hatch": "////", "linewidth": 0.6, "align": "edge"}
    ax.bar(shown.edges[:-1], np.nan_to_num(within - floor), width, bottom=floor, label="within a cluster", **look)
    look = {"baseline": floor, "color": PALETTE[1], "linewidth": 1.6, "label": "between clusters"}
    ax.stairs(np.nan_to_num(between, nan=floor), shown.edges, **look)
    most = max(np.nanmax(within, initial=1.0), np.nanmax(between, initial=1.0))
    ax.set_ylim(floor, most * 30)
    legend(ax, loc="upper right")
    return titled(ax, _heading(kind), "similarity", "pairs")


def _heading(kind: str) -> str:
    return KINDS[kind][0].upper() + KINDS[kind][1:]

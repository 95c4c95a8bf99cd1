"""The sample graph near a range of samples: a compact graph that kernels run on as if it were the whole one.

A task reads its own lists, the reverse lists of the samples that it asks about, and the lists of the centres in these.
The samples that occur in them are numbered in the order of their numbers, so that kernels, which go by that order,
decide as they do on the whole graph, and give the same bits. In core tasks look at the whole graph itself, which
saves a twentieth of a run's time; in chunked runs reverse lists are stored by partition.

Rows that a task holds follow the number of its own samples and how the graph is cut, not the number of all samples:
with 1,000 samples a partition 3.0 lists each, with 4,000 1.2 (48,000 x 8 by 12 shards, k = 5, reverse lists of members
read, too). A sample in very many neighbourhoods is the exception: its reverse list is read whole by all tasks near it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report, cuts, exchange, received
from ips2_dask.kernels.sparse import Reverse, reverse_lists
from ips2_dask.stages.chunks import is_chunked
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float32, Int32, Int64, Integer

EDGES, REVERSE = "edges-", "reverse-"
"""Prefixes of parts of stage ``tensor``: edges to samples of other partitions, while the stage runs, and reverse
lists."""


class _Graph(NamedTuple):
    """Neighbourhoods and reverse lists for kernels, of the samples near some of them.

    Those of samples that no kernel looks at are zeros, and empty.
    """

    N: Int32  # (rows, n) neighbourhoods, as rows of this graph
    reverse: Reverse  # their reverse lists
    low: int  # the rows of the samples that were asked for, low .. high - 1
    high: int
    samples: Int32 | None  # (rows,) the run's number of each row, ascending; None where that is the row's own
    distances: Float32 | None = None  # (rows, n) to the neighbours, where asked for

    def numbers(self, rows: Int32) -> Int32:
        """The run's numbers of rows of this graph, in an array of any shape."""
        return rows if self.samples is None else self.samples[rows]


class _Neighborhoods(NamedTuple):
    """Neighbourhoods N (m, k), and the lists of those that hold each sample."""

    N: Int32
    reverse: Reverse


def neighborhoods(context: Context, n: int) -> _Neighborhoods:
    """The first n columns of the stored graph, the sample itself among them, and their reverse lists."""

    def make() -> _Neighborhoods:
        N = np.empty((context.m, min(n, context.m)), np.int32)
        for b in range(context.n_partitions):
            low, high = context.span(b)
            N[low:high] = context.read("neighbors", b, "indices")[:, :n]
        return _Neighborhoods(N, reverse_lists(N))

    name, size = f"neighborhoods-{n}", context.m * (8 * n + 8)
    view: _Neighborhoods = context.cached("neighbors", name, make, size, "samples")
    return view


def _all_distances(context: Context, n: int) -> Float32:
    """Distances to the first n neighbours of all samples: (m, n), cached with the graph."""

    def make() -> Float32:
        return np.concatenate([context.read("neighbors", b, "distances")[:, :n] for b in range(context.n_partitions)])

    found: Float32 = context.cached("neighbors", f"distances-{n}", make, 4 * n * context.m, "distances")
    return found


def graph_near(
    context: Context, low: int, high: int, n: int, *, of_members: bool = False, distances: bool = False
) -> _Graph:
    """The graph that decides about samples low .. high - 1.

    ``n``: neighbours of each sample, itself among them; at most those that are stored; ``of_members``: whether
    reverse lists of all members of their neighbourhoods are looked at, too, and not of the samples alone.

    It takes up to 40 n bytes for each list that it holds, beside parts in the cache (measured).
    """
    if not is_chunked(context):
        N, reverse = neighborhoods(context, n)
        return _Graph(N, reverse, low, high, None, _all_distances(context, n) if distances else None)
    own = np.arange(low, high)
    asked = np.unique(lists_of(context, own, n)) if of_members else own
    start, centers = reverse_at(context, asked, n)
    rows = np.union1d(centers, own)
    lists = lists_of(context, rows, n)
    samples = np.unique(lists)  # a sample is in its own list, so that all rows are among them
    N = np.zeros((len(samples), lists.shape[1]), np.int32)
    places = np.searchsorted(samples, rows)
    N[places] = np.searchsorted(samples, lists)
    lengths: Float32 | None = None
    if distances:
        lengths = np.zeros(N.shape, np.float32)
        lengths[places] = context.rows_of("neighbors", "distances", rows)[:, :n]
    ends = np.zeros(len(samples) + 1, np.int64)
    ends[np.searchsorted(samples, asked) + 1] = np.diff(start)
    reverse = Reverse(np.cumsum(ends), np.searchsorted(samples, centers).astype(np.int32))
    first = int(np.searchsorted(samples, low))
    return _Graph(N, reverse, first, first + high - low, samples, lengths)


def lists_of(context: Context, samples: Integer, n: int) -> Int32:
    """The first n neighbours, itself among them, of ascending samples: (samples, n) int32."""
    return np.asarray(context.rows_of("neighbors", "indices", samples)[:, :n])


def reverse_at(context: Context, samples: Integer, n: int) -> tuple[Int64, Int32]:
    """Reverse lists of the first n columns, of ascending samples: ``start`` (samples + 1,), and ``centers``."""
    if not is_chunked(context):
        reverse = neighborhoods(context, n).reverse
        lengths, places = _flat(reverse.start, samples)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), reverse.centers[places]
    owners = context.owner(samples)
    counts, centers = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    for b in np.unique(owners).tolist():
        rows = samples[owners == b] - context.bounds[b]
        start, stored, columns = (np.asarray(context.read("tensor", REVERSE + part_name(b), a)) for a in REVERSE_ARRAYS)
        lengths, places = _flat(start, rows)
        wanted = columns[places] < n
        counts.append(np.bincount(np.repeat(np.arange(len(rows)), lengths)[wanted], minlength=len(rows)))
        centers.append(stored[places[wanted]])
    return np.cumsum(np.concatenate(counts)), np.concatenate(centers)


def _flat(start: NDArray[np.integer], rows: Integer) -> tuple[Int64, Int64]:
    """Lengths of some lists that are stored end to end, and the places of all of their entries, list by list."""
    lengths = start[rows + 1] - start[rows]
    return lengths, np.repeat(start[rows] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def centers_of(context: Context, low: int, high: int, n: int) -> Int64:
    """The samples whose neighbourhood of n holds one of the samples low .. high - 1: (centres,) int64, ascending."""
    return np.unique(reverse_at(context, np.arange(low, high), n)[1]).astype(np.int64)


def neighborhood_edges(context: Context, b: int) -> Int32:
    """The edges from partition b's samples to the others in their neighbourhoods: (rows (k - 1), 2) int32."""
    low, high = context.span(b)
    others = np.asarray(context.read("neighbors", b, "indices"))[:, 1 : context.params.n_neighbors]
    centers = np.repeat(np.arange(low, high, dtype=np.int32), others.shape[1])
    return np.stack([centers, others.ravel()], axis=1)


# ---- reverse lists by partition, stored by stage ``tensor``

REVERSE_ARRAYS = ("reverse_start", "reverse_centers", "reverse_columns")


def store_reverse_lists(context: Context, executor: Executor, report: Report) -> None:
    """Store the reverse lists of every partition's samples."""
    exchange(context, executor, report, Job("tensor", _outer_edges, EDGES), Job("tensor", _reverse_lists, REVERSE))


def _edges(context: Context, b: int) -> tuple[Int32, NDArray[np.bool_]]:
    """Rows (neighbour, centre, column) of the lists of partition b, and whether the neighbour is in b, too."""
    low, high = context.span(b)
    indices = np.asarray(context.read("neighbors", b, "indices"))
    rows, columns = np.indices(indices.shape, np.int32)
    edges = np.stack([indices, rows + np.int32(low), columns], axis=-1).reshape(-1, 3)
    return edges, (edges[:, 0] >= low) & (edges[:, 0] < high)


def _outer_edges(context: Context, b: int) -> TaskResult:
    """Edges from partition b's lists to samples of other partitions, sorted by these samples.

    It takes at most 30 bytes for each entry of the partition's lists (measured).
    """
    edges, inside = _edges(context, b)
    edges = edges[~inside]
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    return {"edges": edges}, cuts(context, edges[:, 0])


def _reverse_lists(context: Context, b: int) -> TaskResult:
    """Reverse lists of partition b's samples, for lists of any number of columns: centres ascend.

    It takes at most 60 bytes for each of their entries (measured).
    """
    low, high = context.span(b)
    edges, inside = _edges(context, b)
    sent: list[AnyArray] = [edges for (edges,) in received(context, "tensor", EDGES, b, "edges")]
    edges = np.concatenate([edges[inside], *sent])
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    start = np.searchsorted(edges[:, 0], np.arange(low, high + 1))
    arrays = start, np.ascontiguousarray(edges[:, 1]), edges[:, 2].astype(np.uint8)
    return dict(zip(REVERSE_ARRAYS, arrays, strict=True)), {}

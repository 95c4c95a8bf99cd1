"""Connected components of a graph that is stored by partition, numbered by smallest member, by contraction.

A *piece* is what a partition's own edges join among its samples, named by its smallest one. What edges to other
partitions join are pieces, so the components of a small graph on pieces are those of the whole graph. Nothing of the
length of all samples comes together: the process that contracts the graph holds the pieces of all partitions and which
of them touch, a few a partition where samples are numbered by closeness. In an order without meaning pieces are single
samples; such an order have only graphs that are given, or searched exactly or by one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, PartFunction, Report, without_part
from ips2_dask.kernels.components import smallest_members
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Int64

Edges = Callable[[Context, int], NDArray[np.integer]]
"""From a context and a partition b to edges (n, 2), the first sample of each in b."""

PIECES, JOINS, COMPONENTS = "pieces-", "joins-", "components-"
"""Prefixes of the parts: of partitions, of groups of partitions, and of partitions; the last ones stay."""

CONTRACTION = "contraction"
"""The part with the component of each piece."""

GROUP = 16
"""Partitions whose joined pieces are one part, since the contracting process reads these parts one after another."""


def label_components(context: Context, executor: Executor, report: Report, stage: str, edges: Edges) -> Int64:
    """Store the component of each partition's samples, as parts ``components-`` of a stage with ``components``.

    ``edges``: a function of a module, which workers call. Returns (components,) int64: rows of the input in each.
    """
    store, folder, parts = context.store, context.folders[stage], range(context.n_partitions)
    groups = range(-(-context.n_partitions // GROUP))
    pieces_of = Job(stage, bound(pieces, edges), PIECES)
    components_of = Job(stage, bound(components, stage), COMPONENTS)
    contracted = store.receipt(folder, CONTRACTION) is not None
    missing = without_part(context, components_of)
    if not contracted:
        executor.map(pieces_of, context, parts, report)
        executor.map(Job(stage, bound(joins, stage), JOINS, "groups"), context, groups, report)
        _contract(context, stage, len(groups))
    elif missing:
        executor.map(pieces_of, context, missing, report)
    if missing:
        executor.map(components_of, context, missing, report)
    store.drop_many(folder, [PIECES + part_name(b) for b in parts] + [JOINS + part_name(g) for g in groups])
    sizes: Int64 = np.asarray(store.read(folder, CONTRACTION, "sizes"))
    return sizes


def bound(function: PartFunction, first: object) -> PartFunction:
    """A job's function with its first argument, under its own name."""
    return functools.update_wrapper(functools.partial(function, first), function)


def pieces(edges: Edges, context: Context, b: int) -> TaskResult:
    """The pieces of partition b, and which of them touch which samples of other partitions.

    On the neighbourhoods it takes at most 45 bytes for each of their entries (measured).
    """
    low, high = context.span(b)
    joined = np.asarray(edges(context, b))
    piece = smallest_members(joined, low, high)
    outside = joined[(joined[:, 1] < low) | (joined[:, 1] >= high)].astype(np.int64)
    crossing = np.unique(piece[outside[:, 0] - low] << 32 | outside[:, 1])  # as one number: sorted ten times as fast
    of_b, place = np.unique(piece, return_inverse=True)
    rows = np.bincount(place, context.copies_at(np.arange(low, high)) if context.merged else None)
    arrays: dict[str, AnyArray] = {
        "piece": piece.astype(np.int32),
        "pieces": of_b.astype(np.int32),
        "piece_rows": rows.astype(np.int64),
        "crossings": np.stack([crossing >> 32, crossing & 0xFFFFFFFF], axis=1).astype(np.int32),
    }
    return arrays, {}


def joins(stage: str, context: Context, group: int) -> TaskResult:
    """The pieces of a group of partitions, and pairs of a piece of the group and another piece that touch."""

    def read() -> Iterator[tuple[NDArray[np.integer], ...]]:
        members = range(group * GROUP, min((group + 1) * GROUP, context.n_partitions))
        parts = [PIECES + part_name(b) for b in members]
        arrays = [
            context.store.read_many(context.folders[stage], parts, name)
            for name in ("pieces", "piece_rows", "crossings")
        ]
        for of_b, rows, crossings in zip(*arrays, strict=True):
            if len(crossings):
                others, place = np.unique(crossings[:, 1], return_inverse=True)
                touched = context.rows_of(stage, "piece", others, PIECES)[place]
                crossings = np.unique(np.stack([crossings[:, 0], touched], axis=1), axis=0)
            yield of_b, rows, crossings

    names = ("pieces", "piece_rows", "joins")
    return {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*read(), strict=True), strict=True)}, {}


def components(stage: str, context: Context, b: int) -> TaskResult:
    """The component of each of partition b's samples."""
    found, place = np.unique(context.read(stage, PIECES + part_name(b), "piece"), return_inverse=True)
    of_all, component = (np.asarray(context.read(stage, CONTRACTION, name)) for name in ("pieces", "piece_component"))
    return {"components": component[np.searchsorted(of_all, found)][place]}, {}


def _contract(context: Context, stage: str, n_groups: int) -> None:
    """Store the components of the graph on pieces, and the rows of the input in each."""
    store, folder = context.store, context.folders[stage]
    groups = [JOINS + part_name(g) for g in range(n_groups)]
    of_all, rows = (np.concatenate(list(store.read_many(folder, groups, name))) for name in ("pieces", "piece_rows"))
    joined = [np.searchsorted(of_all, pairs).astype(np.int32) for pairs in store.read_many(folder, groups, "joins")]
    smallest = smallest_members(np.concatenate(joined), 0, len(of_all))
    first, component = np.unique(smallest, return_inverse=True)  # pieces ascend, so this is by the smallest sample
    sizes = np.zeros(len(first), np.int64)
    np.add.at(sizes, component, rows)
    arrays = {"pieces": of_all, "piece_component": component.astype(np.int32), "sizes": sizes}
    store.write(folder, CONTRACTION, arrays, {})

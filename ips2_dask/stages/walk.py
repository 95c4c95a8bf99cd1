"""Random walks on the fused similarity U, in chunks or in one chunk of all samples.

Labels spread by them to samples that have none, and their ends are a sample's shares of the clusters. The shares are
results of tasks (`ips2_dask.stages.block_tasks`). Each row is summed in the order of its columns, so that results do
not depend on partitions, chunks or workers. Of a dense U each sample's largest similarities alone are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle, Report
from ips2_dask.kernels import rounding as kernel
from ips2_dask.kernels.eigen import State
from ips2_dask.kernels.sparse import product
from ips2_dask.stages import label_parts
from ips2_dask.stages.block_tasks import Block, Halo, Needed, on_touched
from ips2_dask.stages.chunk_levels import needed_rows
from ips2_dask.stages.chunks import Checkpoints, StoredBlocks, n_chunks, of_chunks, sample_bounds, write_rows
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import Float32, Int32

STEPS = 5
"""Products after which the blocks of a spread are stored: a run that is stopped, or loses a worker, goes on from
these."""

RENEWED = "shares-between"
"""The name of blocks that are stored since a walk has many tasks."""


# ---- what walks in chunks do on a chunk. Chunk g has n_g samples


def walk_rows(context: Context, g: int) -> sp.csr_array:
    """The rows of P = D^-1 U of chunk g, without edges that the solve alone has: CSR (n_g, touched) float32."""
    return kernel.walk_matrix(label_parts.affinity_rows(context, g))


def _walk_needed(context: Context, g: int) -> Needed:
    """The rows of every other chunk that chunk g touches."""
    bounds, among = sample_bounds(context), label_parts.fused_touched(context, g)
    return needed_rows(among, bounds, g)


class _Leaves(NamedTuple):
    """Rows of a chunk that are in a leaf of a tree, and their labels."""

    rows: NDArray[np.integer]
    labels: Int32


@on_touched
def step(F: Float32, matrix: sp.csr_array, leaves: _Leaves | None) -> Float32:
    """The shares (n_g, c) after one more product; rows that are known from the leaves of a tree are set back.

    Each row is summed by ascending columns, without fused additions: the bits are those of the whole matrix.
    """
    F = np.asarray(product(matrix, F), np.float32)
    if leaves is not None:
        F[leaves.rows] = kernel.one_hot(leaves.labels, F.shape[1])
    return F


def first_shares(context: Context, g: int, prefix: str, numbers: Int32) -> Float32:
    """1 in the column of each sample's label: (n_g, c) float32, from the parts with this prefix.

    ``numbers``, (c,) int32, are the clusters' final numbers.
    """
    return kernel.one_hot(_labels(context, g, prefix, numbers), context.params.n_clusters)


def _labels(context: Context, g: int, prefix: str, numbers: Int32) -> Int32:
    """Labels of chunk g from the parts with this prefix, in the clusters' final numbers: (n_g,) int32."""
    samples = np.arange(*sample_bounds(context)[g : g + 2])
    return numbers[context.rows_of("label", "labels", samples, prefix, remember=False)]


def _leaves_of(context: Context, g: int, part: str) -> _Leaves:
    """The rows of chunk g that are in a leaf of a tree, from the tree's part."""
    low, high = sample_bounds(context)[g : g + 2]
    drawn, leaves = (np.asarray(context.read("label", part, name)) for name in ("drawn", "labels"))
    own = (drawn >= low) & (drawn < high) & (leaves >= 0)
    return _Leaves(drawn[own] - low, leaves[own])


def leaf_shares(context: Context, g: int, leaves: _Leaves) -> Float32:
    """1 in the column of each label that is known from the leaves of a tree, else 0: (n_g, c) float32."""
    low, high = sample_bounds(context)[g : g + 2]
    F = np.zeros((high - low, context.params.n_clusters), np.float32)
    F[leaves.rows] = kernel.one_hot(leaves.labels, F.shape[1])
    return F


def reached(context: Context, g: int, F: Float32) -> int:
    """Samples of chunk g's block (n_g, c) with a share that is not zero."""
    del context, g
    return int(F.any(axis=1).sum())


def _store_walked(context: Context, g: int, F: Float32, leaves: str, prefix: str) -> dict[str, Receipt]:
    """Store by piece the cluster of the largest share, -1 without any; a tree's leaves have labels already.

    Returns the receipts of the parts.
    """
    walked = kernel.largest_share(F)
    rows, labels = _leaves_of(context, g, leaves)
    walked[rows] = labels
    return write_rows(context, g, "label", prefix, "labels", walked)


def _store_shares(context: Context, g: int, F: Float32, prefix: str, numbers: Int32) -> dict[str, Receipt]:
    """Store the shares (n_g, c) of chunk g by piece; returns the receipts of the parts."""
    F = kernel.with_own(F, _labels(context, g, prefix, numbers))
    return write_rows(context, g, "label", label_parts.SHARES, "shares", F)


# ---- tasks of cuts


def _largest_degree(context: Context, g: int) -> float:
    """The largest degree in U of chunk g's samples."""
    return float(np.asarray(label_parts.cut_rows(context, g).sum(axis=1)).max(initial=0.0))


def _cut_sums(context: Context, g: int, prefix: str, scale: float) -> kernel.CutSums:
    """The share of chunk g's rows of U in the normalised cut, as whole numbers, from the labels with this prefix."""
    among, (low, high) = label_parts.fused_touched(context, g), sample_bounds(context)[g : g + 2]
    labels = np.asarray(context.rows_of("label", "labels", among, prefix))
    own = labels[slice(*np.searchsorted(among, (low, high)))]
    return kernel.cut_sums(label_parts.cut_rows(context, g), labels, own, context.params.n_clusters, scale)


WALKS = "walk"
"""Name of the checkpoints of labels that spread."""


class Walk:
    """Walks on a U whose rows are in chunks and never gathered.

    Labels are parts by partition, named by their prefix: no process holds those of all samples.
    """

    def __init__(self, context: Context, executor: Executor, report: Report) -> None:
        label_parts.store_fused_rows(context, executor, report)
        self._open(context, of_chunks(context, executor))

    def _open(self, context: Context, executor: Executor) -> None:
        self._context, self._executor, self._chunks = context, executor, range(n_chunks(context))
        self._shared = executor.share(context)
        self._stored = StoredBlocks(context, "label", executor)
        self._matrix: list[Handle] = []
        self._halo: Halo | None = None
        self._scale: float | None = None

    def close(self) -> None:
        """Let go of the matrix, and of what blocks between products were stored in."""
        if self._halo is not None and self._halo.is_long(kernel.WALK):
            self._stored.drop([RENEWED], len(self._chunks))
        self._matrix, self._halo = [], None

    def _each(self, function: Callable[..., Any], *blocks: Block, also: tuple[object, ...] = ()) -> Block:
        """Tasks ``function(context, g, *blocks[g], *also)`` for each chunk g."""
        shared = [self._shared] * len(self._chunks)
        return self._executor.each(f"label-{function.__name__}", function, shared, self._chunks, *blocks, also=also)

    def _of_chunks(self, function: Callable[..., Any], *blocks: Block, also: tuple[object, ...] = ()) -> list[Any]:
        """The results of such tasks."""
        return self._executor.results(self._each(function, *blocks, also=also))

    def _walked(self, F: Block, products: int, leaves: Block | None = None) -> Block:
        """The block after some products. The matrix and its halo are made with the first one."""
        if self._halo is None:
            self._halo = Halo(self._executor, "label", sample_bounds(self._context), self._each(_walk_needed))
            self._matrix = self._each(walk_rows)
        halo, leaves, blocks = self._halo, leaves or [None] * len(F), [F]
        del F

        def multiplied(blocks: list[Block], _: object) -> list[Block]:
            return [halo.each("label-step", step, blocks[0], self._matrix, leaves, small=False)]

        halo.repeat(multiplied, blocks, range(products), partial(self._stored.renewed, RENEWED))
        return blocks[0]

    # ---- labels of all samples

    def spread(self, leaves: str, prefix: str) -> None:
        """Store labels of all samples from those of a tree's leaves: that of the largest share, -1 where none reaches.

        Blocks are stored now and then, and a run that was stopped goes on from the last ones. ``leaves``: the part of
        the tree; ``prefix``: of the parts to store.
        """
        known = self._each(_leaves_of, also=(leaves,))
        states, none = Checkpoints(self._context, "label", self._stored, WALKS), np.empty(0)
        state = states.latest() or State(self._each(leaf_shares, known), none, none, 0.0, 0, [])
        n_before = -1
        while True:
            more = STEPS - state.products % STEPS if state.products < kernel.SPREAD_PRODUCTS else 1
            state = State(self._walked(state.y, more, known), none, none, 0.0, state.products + more, [])
            if state.products % STEPS == 0:
                states.keep(state)
            if state.products >= kernel.SPREAD_PRODUCTS:
                n_reached = sum(self._of_chunks(reached, state.y))
                if n_reached in (n_before, self._context.m):
                    break
                n_before = n_reached
        self._context.cache_receipts("label", self._of_chunks(_store_walked, state.y, also=(leaves, prefix)))
        states.drop()

    # ---- cuts

    def cut(self, prefix: str) -> float:
        """The normalised cut of the labels in the parts with this prefix, summed over the chunks."""
        if self._scale is None:
            self._scale = kernel.power_above(max(1.0, *self._of_chunks(_largest_degree)))
        parts = self._of_chunks(_cut_sums, also=(prefix, self._scale))
        within, volume = (
            [sum(map(int, column)) for column in zip(*(part[i] for part in parts), strict=True)] for i in (0, 1)
        )
        return kernel.normalized_cut(within, volume)

    # ---- shares

    def finish(self, prefix: str, numbers: Int32) -> None:
        """Store the shares of all samples, from the labels in the parts with this prefix.

        ``numbers``, (c,) int32, are the final numbers of the clusters.
        """
        F = self._walked(self._each(first_shares, also=(prefix, numbers)), kernel.WALK)
        self._context.cache_receipts("label", self._of_chunks(_store_shares, F, also=(prefix, numbers)))

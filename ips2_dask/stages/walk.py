"""Random walks on the fused similarity U: in this process if U fits into its memory, else in chunks on the workers.

Labels spread by them to samples that have none, and their ends are a sample's shares of the clusters. A chunk holds the
rows of U of some partitions; a product needs the blocks of the chunks that its rows reach. Each row is summed in the
order of its columns, so that results do not depend on partitions, chunks or workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Handle, Job, Report
from ips2_dask.kernels import rounding as kernel
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.similarity_views import row_weights
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.memory_store import MemoryStore

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
T = TypeVar("T")

STORE_EVERY = 5
"""Blocks of a spread on workers are stored after every so many products: a run that is stopped goes on from these."""

MARK = "walk"
"""The part that says after how many products the stored blocks were made; it is written when all are stored."""

KIND = "walks"
"""The kind of the chunks as items of `ips2_dask.executors.placement`: a chunk's owner caches its rows of U."""


class Walk(Protocol):
    """Walks on U; labels are in the run's numbering."""

    def spread(self, labels: Int32) -> Int32:
        """The cluster of the largest share where ``labels`` are -1, the others as they are; -1 where none reaches."""
        ...

    def cut(self, labels: Int32) -> float:
        """The normalised cut of a partition."""
        ...

    def finish(self, labels: Int32) -> Float32:
        """Store the shares of all samples; returns that of each sample's own cluster."""
        ...


class LocalWalk:
    """Walks on a U that is a matrix of this process; of a dense U each sample's largest similarities alone are used.

    Parameters
    ----------
    context : Context
    U : CSR or dense (m, m)
        The similarity that was embedded.
    """

    def __init__(self, context: Context, U: Matrix) -> None:
        self._context, self._U = context, U
        self._c = context.params.n_clusters
        self._multiply = MatrixOperator(kernel.walk_matrix(U if sp.issparse(U) else kernel.thinned(U))).matmat

    def spread(self, labels: Int32) -> Int32:
        """As of `Walk`."""
        spread = kernel.largest_share(kernel.spread(self._multiply, labels, self._c))
        return np.where(labels >= 0, labels, spread)

    def cut(self, labels: Int32) -> float:
        """As of `Walk`."""
        return kernel.cut_of(self._U, labels, self._c)

    def finish(self, labels: Int32) -> Float32:
        """As of `Walk`."""
        context, F = self._context, kernel.one_hot(labels, self._c)
        for _ in range(kernel.WALK):
            F = self._multiply(F)
        F = kernel.with_own(F, labels)
        for b in range(context.n_partitions):
            context.store.write(context.folders["label"], shares_part(b), {"shares": F[slice(*context.span(b))]}, {})
        return F[np.arange(len(labels)), labels]


def shares_part(b: int) -> str:
    """The part of stage ``label`` that has partition b's shares."""
    return f"shares-{part_name(b)}"


# ---- tasks of walks in chunks. Chunk g has n_g samples; ``near`` are the chunks that its rows of U reach, itself too.


def reach(context: Context, b: int) -> TaskResult:
    """The partitions that the entries of partition b reach, as the fact ``reaches``."""
    entries = np.asarray(context.fetch("fuse", b, "entries"))
    return {}, {"reaches": np.unique(context.owner(entries[:, 1])).tolist()}


def _spans(context: Context) -> list[tuple[int, int]]:
    """First sample of each chunk, and one past its last."""
    return [(context.bounds[first], context.bounds[last]) for first, last in chunk_partitions(context)]


def _chunk_of(context: Context, samples: NDArray[np.integer]) -> NDArray[np.integer]:
    """The chunk of each sample."""
    starts = np.array([low for low, _ in _spans(context)])
    return np.searchsorted(starts, samples, side="right") - 1


def _read_rows(context: Context, g: int, near: Sequence[int]) -> sp.csr_array:
    """Rows of U of chunk g: (n_g, samples of ``near``), one chunk's columns after another's."""
    spans, groups = _spans(context), chunk_partitions(context)
    low, high = spans[g]
    starts = np.cumsum([0, *(spans[h][1] - spans[h][0] for h in near)])
    shift = np.zeros(len(spans), np.int64)
    for position, h in enumerate(near):
        shift[h] = starts[position] - spans[h][0]
    rows, columns, values = [], [], []
    weights = row_weights(context)
    for b in (b for h in near for b in range(*groups[h])):
        i, j = np.asarray(context.fetch("fuse", b, "entries")).T
        fused = np.abs(np.asarray(context.fetch("fuse", f"fused-{part_name(b)}", "fused")))
        if weights is not None:
            fused = fused * weights[i] * weights[j]
        for own, other in ((i, j), (j, i)):
            in_chunk = (own >= low) & (own < high) & (fused != 0)
            if other is i:
                in_chunk &= i != j  # the diagonal counts once
            rows.append(own[in_chunk] - low)
            columns.append(other[in_chunk] + shift[_chunk_of(context, other[in_chunk])])
            values.append(fused[in_chunk])
    entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    matrix = sp.csr_array(sp.coo_array(entries, shape=(high - low, int(starts[-1]))))
    matrix.sort_indices()
    return matrix


def _cached_rows(
    context: Context, g: int, name: str, read: Callable[[], sp.csr_array], entry_bytes: int
) -> sp.csr_array:
    """A matrix of chunk g that takes ``entry_bytes`` for each entry of its rows, cached in its worker."""
    low, high = _spans(context)[g]
    size = entry_bytes * 2 * context.facts["fuse"]["n_entries"] * (high - low) // context.m
    return context.cached("fuse", f"{name}-{low}-{high}", read, size)


def _fused_rows(context: Context, g: int, near: tuple[int, ...]) -> sp.csr_array:
    """`_read_rows`, cached."""
    rows: sp.csr_array = _cached_rows(context, g, "fused-rows", lambda: _read_rows(context, g, near), 12)
    return rows


def _walk_rows(context: Context, g: int, near: tuple[int, ...]) -> sp.csr_array:
    """Rows of P = D^-1 U of chunk g as float32, with the columns of `_read_rows`, cached."""
    rows: sp.csr_array = _cached_rows(
        context, g, "walk-rows", lambda: kernel.walk_matrix(_fused_rows(context, g, near)), 4
    )
    return rows


def _of_chunk(context: Context, g: int, labels: Int32) -> Int32:
    """The labels of chunk g's samples: (n_g,), from those of all: (m,)."""
    return labels[slice(*_spans(context)[g])]


def first_shares(context: Context, g: int, labels: Int32) -> Float32:
    """1 in the column of each sample's label, rows of zeros without one: (n_g, c) float32, from labels (m,)."""
    return kernel.one_hot(_of_chunk(context, g, labels), context.params.n_clusters)


def step(context: Context, g: int, near: tuple[int, ...], fixed: Int32 | None, *blocks: Float32) -> Float32:
    """One product with P on chunk g.

    Parameters
    ----------
    context : Context
    g : int
    near : tuple of int
    fixed : (m,) int32, optional
        Labels: rows of samples that have one stay what `first_shares` gives.
    *blocks : (n_h, c) float32
        The shares of each chunk h of ``near``.

    Returns
    -------
    (n_g, c) float32
    """
    shares: Float32 = _walk_rows(context, g, near) @ np.concatenate(blocks)
    if fixed is not None:
        own = _of_chunk(context, g, fixed)
        labelled = np.flatnonzero(own >= 0)
        shares[labelled] = kernel.one_hot(own[labelled], context.params.n_clusters)
    return shares


def block_part(products: int, g: int) -> str:
    """The part of stage ``label`` that has chunk g's block after so many products."""
    return f"walk-{products:04d}-c{g:06d}"


def store_block(context: Context, g: int, products: int, F: Float32) -> None:
    """Store chunk g's block (n_g, c) after so many products."""
    context.store.write(context.folders["label"], block_part(products, g), {"shares": F}, {})


def read_block(context: Context, g: int, products: int) -> Float32:
    """Chunk g's stored block after so many products: (n_g, c) float32."""
    return context.store.read(context.folders["label"], block_part(products, g), "shares")


def reached(F: Float32) -> int:
    """Samples of a block (n_g, c) with a share that is not zero."""
    return int(F.any(axis=1).sum())


def largest_share(F: Float32) -> Int32:
    """The cluster of each sample's largest share, -1 without any: (n_g,) int32, from (n_g, c)."""
    return kernel.largest_share(F)


def largest_degree(context: Context, g: int, near: tuple[int, ...]) -> float:
    """The largest degree in U of chunk g's samples."""
    return float(np.asarray(_fused_rows(context, g, near).sum(axis=1)).max(initial=0.0))


def cut_sums(context: Context, g: int, near: tuple[int, ...], labels: Int32, scale: float) -> kernel.CutSums:
    """The share of chunk g's rows of U in the normalised cut of the partition ``labels`` (m,), as whole numbers."""
    spans = _spans(context)
    columns = np.concatenate([labels[slice(*spans[h])] for h in near])
    rows = _fused_rows(context, g, near)
    return kernel.cut_sums(rows, columns, _of_chunk(context, g, labels), context.params.n_clusters, scale)


def store_shares(context: Context, g: int, labels: Int32, F: Float32) -> Float32:
    """Store the shares (n_g, c) of chunk g by partition; returns each sample's share of its own cluster: (n_g,)."""
    own, (first, last) = _of_chunk(context, g, labels), chunk_partitions(context)[g]
    F = kernel.with_own(F, own)
    low = context.bounds[first]
    for b in range(first, last):
        part = F[context.bounds[b] - low : context.bounds[b + 1] - low]
        context.store.write(context.folders["label"], shares_part(b), {"shares": part}, {})
    return F[np.arange(len(F)), own]


TASKS = (
    first_shares, step, store_block, read_block, reached, largest_share, largest_degree, cut_sums, store_shares,
)  # fmt: skip
"""The tasks on chunks: a chunk's owner has the rows of U that they need in its cache."""


class ChunkedWalk:
    """Walks on a U whose rows are in chunks on the workers, and never gathered.

    Parameters
    ----------
    context : Context
    executor : Executor
    report : Report
    """

    def __init__(self, context: Context, executor: Executor, report: Report) -> None:
        parts = executor.map(Job("label", reach, "reach-"), context, range(context.n_partitions), report)
        groups = chunk_partitions(context)
        self._chunks = range(len(groups))
        chunk_of = np.repeat(self._chunks, [last - first for first, last in groups]).tolist()
        near: list[set[int]] = [{g} for g in self._chunks]
        for b, part in enumerate(parts):
            for other in part["facts"]["reaches"]:
                near[chunk_of[b]].add(chunk_of[other])
                near[chunk_of[other]].add(chunk_of[b])
        self._near = [tuple(sorted(chunks)) for chunks in near]
        cached_bytes = 32 * context.facts["fuse"]["n_entries"] // max(1, executor.n_workers)
        self._context = dataclasses.replace(context, kept=cached_bytes)
        self._executor, self._shared_context = executor, executor.share(self._context)
        executor.pin_to_owner([f"label-{function.__name__}" for function in TASKS])
        executor.assign_owners([(KIND, g) for g in self._chunks], [high - low for low, high in _spans(context)])
        self._scale: float | None = None

    def _each(self, function: Callable[..., object], arguments: Callable[[int], Sequence[object]]) -> list[Handle]:
        """Start a task of every chunk, which gets the context and the chunk's number first; returns their handles."""
        with self._executor.batch():
            return [self._submit(function, g, self._shared_context, g, *arguments(g)) for g in self._chunks]

    def _of_blocks(self, function: Callable[[Float32], T], F: Sequence[Handle]) -> list[T]:
        """The results of a function of each chunk's block."""
        with self._executor.batch():
            handles = [self._submit(function, g, F[g]) for g in self._chunks]
        return self._executor.results(handles)

    def _submit(self, function: Callable[..., object], g: int, *arguments: object) -> Handle:
        """Start a task on chunk g, on its owner."""
        name = f"label-{function.__name__}-{g}"
        return self._executor.submit(name, function, *arguments, placed_with=(KIND, g))

    def _steps(self, F: list[Handle], fixed: Handle | None) -> list[Handle]:
        """One product with P."""
        return self._each(step, lambda g: (self._near[g], fixed, *(F[h] for h in self._near[g])))

    def spread(self, labels: Int32) -> Int32:
        """As of `Walk`; blocks are stored now and then, and a run that was stopped goes on from the last ones."""
        shared = self._executor.share(labels)
        products, F = self._latest(shared)
        n_before = -1
        while True:
            F = self._steps(F, shared)
            products += 1
            if products % STORE_EVERY == 0:
                F = self._store(F, products)
            if products >= kernel.SPREAD_PRODUCTS:
                n_reached = sum(self._of_blocks(reached, F))
                if n_reached in (n_before, len(labels)):
                    break
                n_before = n_reached
        spread = np.concatenate(self._of_blocks(largest_share, F))
        self._delete_blocks(products - products % STORE_EVERY)
        return np.where(labels >= 0, labels, spread)

    def _block_parts(self, products: int) -> list[str]:
        return [block_part(products, g) for g in self._chunks]

    def _store(self, F: list[Handle], products: int) -> list[Handle]:
        """Store the blocks and then `MARK`, and delete the blocks stored before.

        Returns
        -------
        list of Handle
            The stored blocks: a lost one is read again, and not computed from the first product on.
        """
        context = self._context
        if isinstance(context.store, MemoryStore):
            return F
        folder = context.folders["label"]
        self._executor.results(self._each(store_block, lambda g: (products, F[g])))
        context.store.drop(folder, MARK)
        context.store.write(folder, MARK, {}, {"products": products})
        for part in self._block_parts(products - STORE_EVERY):
            context.store.drop(folder, part)
        return self._each(read_block, lambda g: (products,))

    def _latest(self, labels: Handle) -> tuple[int, list[Handle]]:
        """The number of products after which blocks were stored last, and these; 0 and the first shares without any."""
        context = self._context
        mark = context.receipt("label", MARK)
        products = 0 if mark is None else int(mark["facts"]["products"])
        parts = self._block_parts(products)
        if products and len(present(context.store, context.folders["label"], parts)) == len(parts):
            return products, self._each(read_block, lambda g: (products,))
        return 0, self._each(first_shares, lambda g: (labels,))

    def _delete_blocks(self, products: int) -> None:
        """Delete the stored blocks and `MARK`, which only a walk that goes on needs."""
        context = self._context
        for part in present(context.store, context.folders["label"], [MARK, *self._block_parts(products)]):
            context.store.drop(context.folders["label"], part)

    def cut(self, labels: Int32) -> float:
        """As of `Walk`, summed over the chunks."""
        if self._scale is None:
            degrees = self._executor.results(self._each(largest_degree, lambda g: (self._near[g],)))
            self._scale = kernel.power_above(max(1.0, *degrees))
        shared, scale = self._executor.share(labels), self._scale
        parts = self._executor.results(self._each(cut_sums, lambda g: (self._near[g], shared, scale)))
        within, volume = (
            [sum(map(int, column)) for column in zip(*(part[i] for part in parts), strict=True)] for i in (0, 1)
        )
        return kernel.normalized_cut(within, volume)

    def finish(self, labels: Int32) -> Float32:
        """As of `Walk`."""
        shared = self._executor.share(labels)
        F = self._each(first_shares, lambda g: (shared,))
        for _ in range(kernel.WALK):
            F = self._steps(F, None)
        return np.concatenate(self._executor.results(self._each(store_shares, lambda g: (shared, F[g]))))

"""Random walks on the fused similarity U: in this process where U fits there, else in chunks on the workers.

Labels spread by them to samples that have none, and their ends are a sample's shares of the clusters. A chunk holds the
rows of U of some partitions; a product needs the blocks of the chunks that its rows reach. Each row is summed in the
order of its columns, so that results do not depend on partitions, chunks or workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import rounding as kernel
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.similarity_views import row_weights
from ips2_dask.store.base import present
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.zarr_store import MemoryStore

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

KEPT_EACH = 5
"""Products after which the blocks of labels that spread on workers are stored, to go on from there."""

MARK = "walk"
"""The part that says which of these blocks are all there."""

KIND = "walks"
"""What the tasks are about: a chunk's owner remembers its rows of U."""


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
    """With U as a matrix of this process; walks on similarities of all pairs keep to each sample's largest ones.

    Parameters
    ----------
    context : Context
    U : CSR or dense (m, m)
        What was embedded.
    """

    def __init__(self, context: Context, U: Any) -> None:
        self._context, self._U = context, U
        self._c = context.params.n_clusters
        self._multiply = MatrixOperator(kernel.walk_matrix(U if sp.issparse(U) else kernel.thinned(U))).matmat

    def spread(self, labels: Int32) -> Int32:
        """As of `Walk`."""
        found = kernel.largest_share(kernel.spread(self._multiply, labels, self._c))
        return np.where(labels >= 0, labels, found)

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
    """Where partition b's shares are."""
    return f"shares-{part_name(b)}"


# ---- the tasks of walks in chunks


def reach(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Which partitions the entries of partition b reach."""
    entries = np.asarray(context.fetch("fuse", b, "entries"))
    return {}, {"reaches": np.unique(context.owner(entries[:, 1])).tolist()}


def _spans(context: Context) -> list[tuple[int, int]]:
    """First sample of each chunk, and one past its last."""
    return [(context.bounds[first], context.bounds[last]) for first, last in chunk_partitions(context)]


def _chunk_of(context: Context, samples: Any) -> Any:
    starts = np.array([low for low, _ in _spans(context)])
    return np.searchsorted(starts, samples, side="right") - 1


def _rows(context: Context, g: int, near: Sequence[int]) -> sp.csr_array:
    """Rows of U of chunk g; columns are the samples of the chunks ``near``, one after another."""
    spans, groups = _spans(context), chunk_partitions(context)
    low, high = spans[g]
    starts = np.cumsum([0, *(spans[h][1] - spans[h][0] for h in near)])
    shift = np.zeros(len(spans), np.int64)
    for place, h in enumerate(near):
        shift[h] = starts[place] - spans[h][0]
    rows, columns, values = [], [], []
    weights = row_weights(context)
    for b in (b for h in near for b in range(*groups[h])):
        i, j = np.asarray(context.fetch("fuse", b, "entries")).T
        held = np.abs(np.asarray(context.fetch("fuse", f"fused-{part_name(b)}", "fused")))
        if weights is not None:
            held = held * weights[i] * weights[j]
        for own, other in ((i, j), (j, i)):
            kept = (own >= low) & (own < high) & (held != 0)
            if other is i:
                kept &= i != j  # the diagonal counts once
            rows.append(own[kept] - low)
            columns.append(other[kept] + shift[_chunk_of(context, other[kept])])
            values.append(held[kept])
    parts = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    out = sp.csr_array(sp.coo_array(parts, shape=(high - low, int(starts[-1]))))
    out.sort_indices()
    return out


def _remembered(context: Context, g: int, what: str, make: Callable[[], Any], each: int) -> Any:
    """Something of a chunk that takes ``each`` bytes an entry of its rows, remembered in its worker."""
    low, high = _spans(context)[g]
    size = each * 2 * context.facts["fuse"]["n_entries"] * (high - low) // context.m
    return context.remembered("fuse", f"{what}-{low}-{high}", make, size)


def _fused_rows(context: Context, g: int, near: tuple[int, ...]) -> sp.csr_array:
    found: sp.csr_array = _remembered(context, g, "fused-rows", lambda: _rows(context, g, near), 12)
    return found


def _walk_rows(context: Context, g: int, near: tuple[int, ...]) -> sp.csr_array:
    def make() -> sp.csr_array:
        found: sp.csr_array = kernel.walk_matrix(_fused_rows(context, g, near))
        return found

    found: sp.csr_array = _remembered(context, g, "walk-rows", make, 4)
    return found


def _own(context: Context, g: int, labels: Any) -> Any:
    return labels[slice(*_spans(context)[g])]


def first_shares(context: Context, g: int, labels: Any) -> Any:
    return kernel.one_hot(_own(context, g, labels), context.params.n_clusters)


def step(context: Context, g: int, near: tuple[int, ...], held: Any, *blocks: Any) -> Any:
    """One product with P on chunk g; the rows whose labels are ``held`` stay."""
    out = _walk_rows(context, g, near) @ np.concatenate(blocks)
    if held is not None:
        own = _own(context, g, held)
        known = np.flatnonzero(own >= 0)
        out[known] = kernel.one_hot(own[known], context.params.n_clusters)
    return out


def keep(context: Context, g: int, name: str, F: Any) -> None:
    context.store.write(context.folders["label"], f"{name}-c{g:06d}", {"shares": F}, {})


def kept(context: Context, g: int, name: str) -> Any:
    return context.store.read(context.folders["label"], f"{name}-c{g:06d}", "shares")


def reached(F: Any) -> int:
    return int(F.any(axis=1).sum())


def largest_share(F: Any) -> Any:
    return kernel.largest_share(F)


def largest_degree(context: Context, g: int, near: tuple[int, ...]) -> float:
    return float(np.asarray(_fused_rows(context, g, near).sum(axis=1)).max(initial=0.0))


def cut_sums(context: Context, g: int, near: tuple[int, ...], labels: Any, scale: float) -> Any:
    spans = _spans(context)
    columns = np.concatenate([labels[slice(*spans[h])] for h in near])
    rows = _fused_rows(context, g, near)
    return kernel.cut_sums(rows, columns, _own(context, g, labels), context.params.n_clusters, scale)


def store_shares(context: Context, g: int, labels: Any, F: Any) -> Any:
    """Store the shares of chunk g by partition; returns each sample's own share."""
    own, (first, last) = _own(context, g, labels), chunk_partitions(context)[g]
    F = kernel.with_own(F, own)
    low = context.bounds[first]
    for b in range(first, last):
        part = F[context.bounds[b] - low : context.bounds[b + 1] - low]
        context.store.write(context.folders["label"], shares_part(b), {"shares": part}, {})
    return F[np.arange(len(F)), own]


TASKS = (
    first_shares, step, keep, kept, reached, largest_share, largest_degree, cut_sums, store_shares,
)  # fmt: skip
"""What is done on a chunk: its owner remembers the rows of U that it needs."""


class ChunkedWalk:
    """With the rows of U in chunks on the workers, which are never gathered.

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
        self._near = [tuple(sorted(some)) for some in near]
        kept_bytes = 32 * context.facts["fuse"]["n_entries"] // max(1, executor.n_workers)
        self._context = dataclasses.replace(context, kept=kept_bytes)
        self._executor, self._shared = executor, executor.share(self._context)
        executor.pin_to_owner([f"label-{function.__name__}" for function in TASKS])
        executor.assign_owners([(KIND, g) for g in self._chunks], [high - low for low, high in _spans(context)])
        self._scale: float | None = None

    def _each(self, function: Callable[..., Any], arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """A task of every chunk, given the context and the chunk's number; their handles."""
        name = f"label-{function.__name__}"
        with self._executor.batch():
            return [
                self._executor.submit(f"{name}-{g}", function, self._shared, g, *arguments(g), placed_with=(KIND, g))
                for g in self._chunks
            ]

    def _plain(self, function: Callable[[Any], Any], F: Sequence[Any]) -> list[Any]:
        """What a function says of each chunk's block."""
        name = f"label-{function.__name__}"
        with self._executor.batch():
            handles = [
                self._executor.submit(f"{name}-{g}", function, F[g], placed_with=(KIND, g)) for g in self._chunks
            ]
        return self._executor.results(handles)

    def _steps(self, F: list[Any], held: Any) -> list[Any]:
        return self._each(step, lambda g: (self._near[g], held, *(F[h] for h in self._near[g])))

    def spread(self, labels: Int32) -> Int32:
        """As of `Walk`; blocks are stored now and then, and a run that was stopped goes on from the last ones."""
        held = self._executor.share(labels)
        done, F = self._latest(held)
        before = -1
        while True:
            F = self._steps(F, held)
            done += 1
            if done % KEPT_EACH == 0:
                F = self._keep(F, done)
            if done >= kernel.SPREAD_PRODUCTS:
                now = sum(self._plain(reached, F))
                if now in (before, len(labels)):
                    break
                before = now
        found = np.concatenate(self._plain(largest_share, F))
        self._forget(done - done % KEPT_EACH)
        return np.where(labels >= 0, labels, found)

    def _names(self, done: int) -> list[str]:
        return [f"walk-{done:04d}-c{g:06d}" for g in self._chunks]

    def _keep(self, F: list[Any], done: int) -> list[Any]:
        """Store the blocks, say so, drop those stored before; handles that forget how the blocks were made."""
        context, name = self._context, f"walk-{done:04d}"
        if isinstance(context.store, MemoryStore):
            return F
        folder = context.folders["label"]
        self._executor.results(self._each(keep, lambda g: (name, F[g])))
        context.store.drop(folder, MARK)
        context.store.write(folder, MARK, {}, {"products": done})
        for part in self._names(done - KEPT_EACH):
            context.store.drop(folder, part)
        return self._each(kept, lambda g: (name,))

    def _latest(self, held: Any) -> tuple[int, list[Any]]:
        """The products that were made of what was stored last, and its blocks; the beginning where nothing was."""
        context = self._context
        mark = context.receipt("label", MARK)
        done = 0 if mark is None else int(mark["facts"]["products"])
        names = self._names(done)
        if done and len(present(context.store, context.folders["label"], names)) == len(names):
            return done, self._each(kept, lambda g: (f"walk-{done:04d}",))
        return 0, self._each(first_shares, lambda g: (held,))

    def _forget(self, done: int) -> None:
        """Take away what only a walk that goes on would need."""
        context = self._context
        for part in present(context.store, context.folders["label"], [MARK, *self._names(done)]):
            context.store.drop(context.folders["label"], part)

    def cut(self, labels: Int32) -> float:
        """As of `Walk`, summed over the chunks."""
        if self._scale is None:
            degrees = self._executor.results(self._each(largest_degree, lambda g: (self._near[g],)))
            self._scale = kernel.power_above(max(1.0, *degrees))
        shared, scale = self._executor.share(labels), self._scale
        parts = self._executor.results(self._each(cut_sums, lambda g: (self._near[g], shared, scale)))
        within, volume = (
            [sum(map(int, column)) for column in zip(*(part[at] for part in parts), strict=True)] for at in (0, 1)
        )
        return kernel.normalized_cut(within, volume)

    def finish(self, labels: Int32) -> Float32:
        """As of `Walk`."""
        shared = self._executor.share(labels)
        F = self._each(first_shares, lambda g: (shared,))
        for _ in range(kernel.WALK):
            F = self._steps(F, None)
        return np.concatenate(self._executor.results(self._each(store_shares, lambda g: (shared, F[g]))))

"""A layout of a run's samples in the plane: from the fused similarity, or from drawn rows of the embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.kernels import draws
from ips2_dask.kernels import layout as kernel
from ips2_dask.runs import label_results
from ips2_dask.stages.similarity_views import read_unsigned
from ips2_dask.store.context import Context
from ips2_dask.typing import AnyArray, Float32, Int64

MOST_SAMPLES = 100_000
"""Samples that UMAP lays out, of a run that has more: some three minutes of one thread."""

MOST_BY_T_SNE = 5_000
"""Samples that t-SNE lays out, of a run that has more: half a minute of one thread."""

DRAW = 23
"""The purpose of the draw, for its seed."""

COLUMNS = 10
"""Eigenvectors of U that stand for the embedding of a run that keeps none."""


class Layout(NamedTuple):
    """Samples in the plane; near ones belong together, while distances between groups mean little."""

    points: Float32  #: (n, 2)
    samples: Int64  #: (n,) the row of the input that each point is, ascending; of equal rows the first
    method: str  #: "umap" or "t-sne"
    source: str  #: what was laid out: "fused similarity" or "spectral embedding"


def lay_out(context: Context) -> Layout:
    """The layout of a run's samples, or of drawn ones: see `Run.layout`."""
    by_umap = kernel.available()
    most, method = (MOST_SAMPLES, "umap") if by_umap else (MOST_BY_T_SNE, "t-sne")
    seed = int(context.params.random_state)
    embedded = context.receipt("label", "embedding") is not None
    if context.m > MOST_SAMPLES and not embedded:
        found = f"{context.m:,} samples and no embedding"
        allowed = f"at most {MOST_SAMPLES:,}, or an embedding"
        why = "the fused similarity of all of them would be read into this process"
        raise BadInput("layout", found, allowed, why, "run it with embedding='spectral'")
    samples, rows = drawn(context, most)
    if by_umap and len(samples) == context.m:
        U = read_unsigned(context)[samples][:, samples]
        if embedded:
            start = label_results.rows_at(context, "embedding", samples)
        else:
            start = kernel.spectral_columns(U, COLUMNS, seed)
        return Layout(kernel.of_graph(U, start, seed), rows, method, "fused similarity")
    if embedded:
        vectors = label_results.rows_at(context, "embedding", samples)
    else:
        vectors = kernel.spectral_columns(read_unsigned(context), COLUMNS, seed)[samples]
    return Layout((kernel.of_vectors if by_umap else kernel.t_sne)(vectors, seed), rows, method, "spectral embedding")


def drawn(context: Context, most: int) -> tuple[Int64, Int64]:
    """All samples, or ``most`` of them: their numbers in the run and their rows, (n,) each, by ascending row.

    Those of the smallest hashes of their rows are drawn, so that the draw does not depend on how the run was cut.
    """
    numbers, rows = least(context, most, lambda _, rows: draws.hashes(rows, context.params.random_state, DRAW))
    order = np.argsort(rows)
    return numbers[order], rows[order]


def least(context: Context, n: int, key: Callable[[int, Int64], AnyArray]) -> tuple[Int64, Int64]:
    """The n samples of the smallest keys, then rows, found partition by partition: their numbers and rows, (n,) each.

    ``key(b, rows)`` gives the keys of the samples of partition b, of which these are the rows.
    """
    numbers, rows, keys = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    for b in range(context.n_partitions):
        own = np.asarray(context.user_numbers(b), np.int64)
        numbers, rows = np.concatenate([numbers, np.arange(*context.span(b))]), np.concatenate([rows, own])
        keys = np.concatenate([keys, key(b, own)]) if len(keys) else key(b, own)
        first = np.lexsort((rows, keys))[:n]
        numbers, rows, keys = numbers[first], rows[first], keys[first]
    return numbers, rows


def of_rows(context: Context, layout: Layout) -> Float32:
    """The points of all rows of the input, NaN where a row was not laid out: (rows, 2) float32."""
    found, order = np.full((context.m, 2), np.nan, np.float32), context.order()
    rows = np.arange(context.m) if order is None else order
    ranks = np.argsort(rows)
    found[ranks[np.searchsorted(rows, layout.samples, sorter=ranks)]] = layout.points
    return np.asarray(context.by_row(found), np.float32)

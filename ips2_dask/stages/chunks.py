"""Chunks of samples: consecutive partitions whose rows of a block vector are one array.

Chunks follow the partitions alone, so that results don't depend on the workers.
"""

from __future__ import annotations

from ips2_dask.store.context import Context

CHUNK_KIND = "chunks"
"""The kind of chunks as items of a job."""


def chunk_partitions(context: Context) -> list[tuple[int, int]]:
    """First partition of each chunk, and one past its last."""
    chunks, first = [], 0
    for b in range(context.n_partitions):
        if (
            context.bounds[b + 1] - context.bounds[first] >= context.choices.chunk_samples
            or b == context.n_partitions - 1
        ):
            chunks.append((first, b + 1))
            first = b + 1
    return chunks


def sample_bounds(context: Context) -> list[int]:
    """First sample of each chunk, and the number of samples."""
    return [*(context.bounds[first] for first, _ in chunk_partitions(context)), context.m]

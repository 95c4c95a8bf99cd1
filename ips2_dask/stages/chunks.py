"""Chunks of samples: runs of consecutive samples whose rows of a block vector are one array.

Chunks are cut on a grid that follows the number of samples alone, and sums over samples are made by blocks of this
grid. So results are the same bits for any chunks, partitions and workers, and where all samples are one chunk.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.kernels.parallel import whole_blocks
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Int64

CHUNK_KIND = "chunks"
"""The kind of chunks as items of a job."""


def is_chunked(context: Context) -> bool:
    """Whether block vectors of samples are in chunks on the workers; else all samples are one, in this process."""
    return context.choices.vectors == "chunked"


def of_chunks(context: Context, executor: Executor) -> Executor:
    """What runs tasks of chunks: the executor, or this process where all samples are one chunk."""
    return executor if is_chunked(context) else SerialExecutor()


def sample_bounds(context: Context) -> list[int]:
    """First sample of each chunk, and the number of samples."""
    m = context.m
    rows = whole_blocks(m, context.choices.chunk_samples) if is_chunked(context) else m
    return [*range(0, m, rows), m]


def n_chunks(context: Context) -> int:
    """How many chunks there are."""
    return len(sample_bounds(context)) - 1


def _piece_bounds(context: Context) -> list[int]:
    """Limits of partitions and of chunks: what a chunk's task stores and a partition's reads is cut at both."""
    return sorted({*context.bounds, *sample_bounds(context)})


def parts(context: Context, *prefixes: str) -> list[str]:
    """The parts by piece with these prefixes."""
    return [prefix + part_name(n) for prefix in prefixes for n in range(len(_piece_bounds(context)) - 1)]


def write_rows(context: Context, g: int, stage: str, prefix: str, name: str, values: AnyArray) -> dict[str, Receipt]:
    """Store an array of chunk g's rows in its pieces; returns their receipts by part."""
    bounds, (first, last) = _piece_bounds(context), sample_bounds(context)[g : g + 2]
    written = {}
    for n in range(bisect_left(bounds, first), bisect_left(bounds, last)):
        part, rows = prefix + part_name(n), values[bounds[n] - first : bounds[n + 1] - first]
        written[part] = context.store.write(context.folders[stage], part, {name: np.ascontiguousarray(rows)}, {})
    return written


def rows_at(context: Context, stage: str, name: str, samples: NDArray[np.integer], prefix: str) -> AnyArray:
    """Rows of an array that is stored by piece, at ascending samples."""
    return context.rows_of(stage, name, samples, prefix, bounds=_piece_bounds(context))


def partitions_of(context: Context, g: int) -> range:
    """The partitions that have samples of chunk g."""
    low, high = sample_bounds(context)[g : g + 2]
    first, last = context.owner(np.array([low, high - 1])).tolist()
    return range(first, last + 1)


def user_numbers(context: Context, g: int) -> Int64:
    """The user's numbers of chunk g's samples."""
    (low, high), own = sample_bounds(context)[g : g + 2], partitions_of(context, g)
    numbers = np.concatenate([np.asarray(context.user_numbers(b)) for b in own]).astype(np.int64)
    first = context.bounds[own[0]]
    return numbers[low - first : high - first]

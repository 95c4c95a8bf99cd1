"""The memory model: bytes that each stage needs in a worker, in the client, and on disk.

Each function below is one stage; a term is an array or a buffer that is alive at the stage's peak. The constants were
measured as the peak resident memory of processes. `tests/plan/test_plan_measured.py` measures the peaks of runs
again and compares them with this model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ips2_dask.kernels.antisymmetric import element_bytes
from ips2_dask.kernels.eigen import block_width
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.warm_start import start_bytes
from ips2_dask.plan.sizes import Sizes

BASELINE_BYTES = 420 << 20
"""Bytes of a process before it has done anything: Python, NumPy, SciPy, Numba's compiler, Dask (measured)."""

SOLVED_BYTES = 200 << 20
"""Bytes that the client has beside that after a solve: more of SciPy, and memory not given back (measured)."""

CACHE_BYTES = 256 << 20
"""Most bytes of the cache in which a process keeps the parts that it read last: a limit that is enforced."""

SHARD_SPREAD = 4
"""Times as many members as the mean shard has the largest one, at most."""

SPLIT_BYTES = 256 << 20
"""Bytes of a batch of rows that a task sorts by shard: a limit that is enforced."""

SAMPLE_PER_SHARD = 200
"""Samples, per shard, that are drawn to place the cells of the shards: a limit that is enforced."""

REMEMBERED = 24
"""Bytes that the worker of a chunk of vectors keeps of a pair besides the operator: the scale, its positions in the
blocks of other chunks and in what is sent of them, its number, and its component's vector there."""


class Footprint(NamedTuple):
    """Projected peaks of a worker and of the client, and what a stage leaves on disk."""

    worker_bytes: int
    client_bytes: int
    disk_bytes: int


def footprints(sizes: Sizes, resident: int) -> dict[str, Footprint]:
    """The footprint of each stage.

    Parameters
    ----------
    sizes : Sizes
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    """
    return {
        "ingest": _ingest(sizes, resident),
        "neighbors": _neighbors(sizes),
        "tensor": _tensor(sizes),
        "assemble": _degrees(sizes),
        "eigen": _eigen(sizes),
        "fuse": _fuse(sizes),
        "label": _label(sizes),
    }


def _ingest(sizes: Sizes, resident: int) -> Footprint:
    process = BASELINE_BYTES + 24 * sizes.partition_rows * sizes.f
    return Footprint(worker_bytes=process, client_bytes=process + resident, disk_bytes=sizes.samples_bytes)


def _neighbors(sizes: Sizes) -> Footprint:
    """The sharded graph reads a shard at a time; an exact search reads all of X in every process."""
    m, f, X, graph, n_shards = sizes.m, sizes.f, sizes.samples_bytes, sizes.graph_bytes, sizes.choices.n_shards
    searched = gathered = X + graph
    if n_shards:
        members = min(m, SHARD_SPREAD * 2 * m // n_shards)
        batch = min(X, max(SPLIT_BYTES, 4 * sizes.partition_rows * f))
        copies = 4 if METRICS[sizes.params.metric].compares_pairs else 2
        searched = max(4 * batch, 4 * members * (copies * f + 64)) + 2 * graph
        gathered = 5 * f * min(m, SAMPLE_PER_SHARD * n_shards) + 2 * graph + 24 * m
    return Footprint(
        worker_bytes=BASELINE_BYTES + searched,
        client_bytes=BASELINE_BYTES + gathered,
        disk_bytes=(X if n_shards else 0) + 8 * m * sizes.n_stored_neighbors,
    )


def _tensor(sizes: Sizes) -> Footprint:
    m, k, rows = sizes.m, sizes.k, sizes.partition_rows
    bits = sum(math.comb(k, size) for size in range(1, min(k, 4) + 1))
    made = rows * (2 * bits + 12 * sizes.local_pairs + 4 * k * k)
    stored = sizes.neighborhoods_bytes
    if sizes.choices.operator == "triplets":
        made, stored = 4 * sizes.triplets_bytes * rows // m, sizes.triplets_bytes // 2
        if sizes.is_chunked:  # a chunk's rows are cut out of the triplets of its partitions and near ones
            made = max(made, sizes.triplets_bytes * rows // m + 4 * sizes.csr_bytes * sizes.chunk_rows // m)
            stored += sizes.csr_bytes
    return Footprint(
        worker_bytes=BASELINE_BYTES + sizes.graph_bytes + _rows_measured(sizes) + made,
        client_bytes=BASELINE_BYTES + 16 * m + sizes.lists_bytes,
        disk_bytes=stored + 8 * sizes.n_pairs,
    )


def _rows_measured(sizes: Sizes) -> int:
    """Bytes of the rows that a partition's distances are measured on.

    Of given distances a partition may need the rows of all samples; else it needs those of its neighbourhoods, several
    times while they are put together, beside the parts that they were read from (measured on 4,096 features).
    """
    m, f = sizes.m, sizes.f
    if sizes.params.metric == "precomputed":
        return 12 * m * m
    return 24 * f * min(m, sizes.k * sizes.partition_rows) + min(sizes.samples_bytes, CACHE_BYTES)


def _operator_bytes(sizes: Sizes) -> int:
    """Bytes of the in-core operator, with those that are needed while it is made."""
    return {
        "triplets": sizes.triplets_bytes + 2 * sizes.csr_bytes,
        "elements": sizes.neighborhoods_bytes + 4 * sizes.entries,
        "matrix-free": sizes.neighborhoods_bytes,
    }[sizes.choices.operator]


def _chunks_operator_bytes(sizes: Sizes) -> int:
    """Bytes of the operators of all chunks together."""
    return {
        "triplets": sizes.csr_bytes,
        "elements": sizes.neighborhoods_bytes + 4 * sizes.entries,
        "matrix-free": sizes.neighborhoods_bytes,
    }[sizes.choices.operator]


def _kept_operator_bytes(sizes: Sizes) -> int:
    """Bytes of the operators that a worker keeps for its chunks, with neighbourhoods that two chunks share."""
    once = 8 * sizes.local_pairs * sizes.m if sizes.choices.operator != "triplets" else 0
    operator_bytes = _chunks_operator_bytes(sizes) - once + REMEMBERED * sizes.n_pairs
    return 5 * operator_bytes // (4 * max(1, sizes.n_workers))


def _degrees_bytes(sizes: Sizes) -> int:
    """Bytes of the degrees and of what they are computed with, in the client."""
    if sizes.is_chunked:
        return 4 * sizes.m * 16 + 64 * sizes.m
    return _operator_bytes(sizes) + 48 * sizes.n_pairs + 2 * element_bytes(sizes.m, sizes.k)


def _degrees(sizes: Sizes) -> Footprint:
    """The stage ``assemble``. In chunks, degrees are a product with one column."""
    worker = 0
    if sizes.is_chunked:
        operator = _chunks_operator_bytes(sizes) + 32 * sizes.n_pairs
        worker = _kept_operator_bytes(sizes) + 3 * operator * sizes.chunk_rows // sizes.m
    return Footprint(
        worker_bytes=BASELINE_BYTES + sizes.lists_bytes + worker,
        client_bytes=BASELINE_BYTES + sizes.graph_bytes + _degrees_bytes(sizes),
        disk_bytes=8 * sizes.n_pairs,
    )


def _eigen(sizes: Sizes) -> Footprint:
    if sizes.is_chunked:
        # blocks stay on the workers: three of them, or two, one more while one replaces another, a chunk's operator
        own = _chunks_operator_bytes(sizes)
        worker = sizes.blocks_bytes // max(1, sizes.n_workers) + sizes.graph_bytes
        worker += 3 * (own + sizes.block_bytes) * sizes.chunk_rows // sizes.m + _kept_operator_bytes(sizes)
        # the sample graph's start is made in this process
        client = max(_degrees_bytes(sizes), start_bytes(sizes.m, sizes.k, sizes.columns))
    else:
        assembled = sizes.csr_bytes + 48 * sizes.n_pairs if sizes.choices.assembled else 0
        worker, client = 0, _operator_bytes(sizes) + assembled + sizes.blocks_bytes
    return Footprint(
        worker_bytes=BASELINE_BYTES + sizes.lists_bytes + worker,
        client_bytes=BASELINE_BYTES + sizes.graph_bytes + client,
        disk_bytes=4 * sizes.n_solved * sizes.n_pairs,
    )


def _client_after_solve(sizes: Sizes) -> int:
    """Bytes of the client after the solve: the in-core operator stays in its memory."""
    operator = 0 if sizes.is_chunked else sizes.neighborhoods_bytes
    return BASELINE_BYTES + SOLVED_BYTES + sizes.lists_bytes + 100 * sizes.m + operator


def _fuse(sizes: Sizes) -> Footprint:
    part = 2 * sizes.similarity_bytes * sizes.partition_rows // sizes.m
    return Footprint(
        worker_bytes=BASELINE_BYTES + part + sizes.lists_bytes + _rows_measured(sizes),
        client_bytes=_client_after_solve(sizes) + (sizes.similarity_bytes if sizes.is_dense else 0),
        disk_bytes=sizes.similarity_bytes,
    )


def _label(sizes: Sizes) -> Footprint:
    """U as CSR, its own solve or k-means, and the shares of clusters."""
    m, c, columns = sizes.m, sizes.params.n_clusters, sizes.n_embedded
    fused = 2 * sizes.similarity_bytes if sizes.is_dense else 24 * (sizes.n_pairs + 5 * m)
    walked = 0
    if sizes.is_chunked:  # rows of U and of the walk on it, and the blocks of shares, which the workers share
        walked = (fused * 4 // 3 + 24 * m * c) // max(1, sizes.n_workers)
    solve = fused // 3 + 16 * block_width(columns) * m
    rounding = 120 * m + 56 * m * columns
    return Footprint(
        worker_bytes=BASELINE_BYTES + sizes.lists_bytes + 24 * m * columns + walked,
        client_bytes=_client_after_solve(sizes) + fused + max(solve, rounding),
        disk_bytes=12 * m * columns + 4 * m * c,
    )

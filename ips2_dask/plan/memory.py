"""The memory model of in-core runs, and the constants that all runs share: bytes by stage, role and phase.

Each function below is one stage; a term is an array or a buffer that is alive at the stage's peak. The constants were
measured as the peak resident memory of processes. `tests/plan/test_plan_measured.py` measures the peaks of runs
again and compares them with this model. Runs in chunks: `ips2_dask.plan.memory_chunked`.
"""

from __future__ import annotations

import math

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.ritz import COLUMNS as RITZ_COLUMNS
from ips2_dask.kernels.shards import MAX_IN_TREE
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.terms import Footprint, Phase, driver, worker

BASELINE_BYTES = 420 << 20
"""Bytes of a process before it has done anything: Python, NumPy, SciPy, Numba's compiler, Dask (measured)."""

SOLVED_BYTES = 200 << 20
"""Bytes that the driver has beside that after a solve: more of SciPy, and memory not given back (measured)."""

CACHE_BYTES = 256 << 20
"""Most bytes of the cache in which a process keeps the parts that it read last: a limit that is enforced."""

UNTIDIED_BYTES = 64 << 20
"""Bytes of the graph up to which a worker of a run in core keeps it from the stage before: beyond, all processes of the
run drop what they have cached after each stage (`pipeline.execution.MIN_BYTES_TO_TIDY`)."""

DIGEST_BYTES = 96
"""Bytes of a row while the digests of a range are joined, sorted and compared: 93 (measured)."""

NUMBERED_ROW_BYTES = 96
"""Bytes of a row of a partition, besides X, while its digests are sorted: 96 (measured), and fewer after that."""

EQUAL_ROW_BYTES = 48
"""Bytes on disk of a row while equal ones are found: its digest and number, its head in the partition and what that
stands for, and, once more, which rows are samples."""

JOINED_ROW_BYTES = 24
"""Bytes of a row in the driver of a run in core, which joins the numbers of samples and rows."""

SHARD_SPREAD = 4
"""Times as many members as the mean shard has the largest one, at most."""

SPLIT_BYTES = 256 << 20
"""Bytes of a batch of rows that a task sorts by shard: a limit that is enforced."""

KMEANS_BYTES = 9
"""Bytes a value of the sample for the cells while k-means runs on it: float32 and its working copies (measured)."""

SAMPLE_PER_SHARD = 200
"""Samples, per shard, that are drawn to place the cells of the shards: a limit that is enforced."""

EXACT = "solve on pairs"
"""The phase of the driver in which the pairs' eigenvectors are solved for."""

LEIDEN = "communities"
"""The phase of the driver in which it finds Leiden's communities."""

LEIDEN_EDGE_BYTES = 150
"""Bytes of the process that Leiden runs in, for each entry of U on one side of its diagonal: entries as they are read
and sorted, igraph's graph and its communities. 72 on 8.6 million edges (measured), and what their reading takes."""


RANGE_TOUCHED = 3.0
"""Samples that a range of `RANGE` samples touches over its own, where samples are numbered by closeness."""

RANGE = 1 << 14
"""Samples whose pairs a task sums at a time (`stages.eigen.RANGE`)."""

LOOKED_UP_BYTES = 32 << 21
"""Bytes of the pairs of other partitions among which a chunk's pairs are looked up at a time: a limit that is
enforced."""

NUMBERED_BYTES = 24
"""Bytes of each pair of a chunk's neighbourhoods while pairs are numbered: its number, sorted once more to find the
distinct ones, and its place among these."""


def ingest(sizes: Sizes, resident: int) -> Footprint:
    """The stage ``ingest``, partition by partition; a run in core joins the numbers of equal rows in the driver.

    Parameters
    ----------
    sizes : Sizes
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    """
    partition = 24 * sizes.partition_rows * sizes.f
    merged = sizes.m if sizes.params.merges_rows else 0
    digests = DIGEST_BYTES * -(-merged // n_ranges(sizes.m))
    joined = 0 if sizes.choices.rows_by_partition else JOINED_ROW_BYTES * merged
    return Footprint(
        (
            worker("partition", process=BASELINE_BYTES, rows_of_a_partition=partition),
            worker("equal rows", process=BASELINE_BYTES, digests_of_a_range=digests),
            worker(
                "distinct rows",
                process=BASELINE_BYTES,
                cache=min(sizes.samples_bytes, CACHE_BYTES),
                numbers_of_a_partition=NUMBERED_ROW_BYTES * sizes.partition_rows if merged else 0,
                rows_of_a_partition=8 * sizes.partition_rows * sizes.f,
            ),
            driver("partition", process=BASELINE_BYTES, rows_of_a_partition=partition, input_held_whole=resident),
            driver("equal rows", process=BASELINE_BYTES, numbers_of_all_rows=joined),
        ),
        disk_bytes=sizes.samples_bytes,
        transient_bytes=EQUAL_ROW_BYTES * merged,
    )


def neighbors(sizes: Sizes) -> Footprint:
    """The sharded graph reads a shard at a time; an exact search reads all of X in every process."""
    m, X, graph, n_shards = sizes.m, sizes.samples_bytes, sizes.graph_bytes, sizes.choices.n_shards
    lists = 8 * m * sizes.n_stored_neighbors
    if not n_shards:
        return Footprint(
            (
                worker("search", process=BASELINE_BYTES, samples=X, graph=graph),
                driver("search", process=BASELINE_BYTES, samples=X, graph=graph),
            ),
            disk_bytes=lists,
        )
    return Footprint(
        (
            cells_of_shards(sizes),
            worker("split", process=BASELINE_BYTES, batch_of_rows=4 * batch_bytes(sizes), numbering=2 * graph),
            worker("search", process=BASELINE_BYTES, shard=shard_bytes(sizes, largest_shard(sizes)), graph=2 * graph),
            driver("number", process=BASELINE_BYTES, graph=2 * graph, order_and_rank=24 * m),
        ),
        disk_bytes=X + lists,
        transient_bytes=search_disk_bytes(sizes),
    )


def cells_of_shards(sizes: Sizes) -> Phase:
    """The task that places the cells by k-means, and puts them in order by a tree of their centres."""
    n_shards = sizes.choices.n_shards
    return worker(
        "cells",
        process=BASELINE_BYTES,
        sample_for_the_cells=KMEANS_BYTES * sizes.f * min(sizes.m, SAMPLE_PER_SHARD * n_shards),
        tree_of_the_cells=8 * n_shards**2 if n_shards <= MAX_IN_TREE else 0,
    )


def largest_shard(sizes: Sizes) -> int:
    """Members of the largest shard, at most."""
    return min(sizes.m, SHARD_SPREAD * sizes.shard_members)


def shard_bytes(sizes: Sizes, members: int) -> int:
    """Bytes of a shard's rows and lists while it is searched."""
    copies = 4 if METRICS[sizes.params.metric].compares_pairs else 2
    return 4 * members * (copies * sizes.f + 64)


def batch_bytes(sizes: Sizes) -> int:
    """Bytes of the rows that a task sorts by shard."""
    return min(sizes.samples_bytes, max(SPLIT_BYTES, 4 * sizes.partition_rows * sizes.f))


def search_disk_bytes(sizes: Sizes) -> int:
    """Bytes on disk while shards are searched: each row and its number, and each list, once for either shard."""
    return 2 * sizes.m * (4 * sizes.f + 8 * sizes.n_stored_neighbors + 12)


def tensor(sizes: Sizes) -> Footprint:
    """Each task loads the whole graph, and the rows of its partition's neighbourhoods."""
    return Footprint(
        (
            worker(
                "neighbourhoods",
                process=BASELINE_BYTES,
                graph=sizes.graph_bytes,
                **rows_measured(sizes, sizes.k),
                neighbourhoods=made_bytes(sizes),
            ),
            driver("pairs", process=BASELINE_BYTES, pair_counts=16 * sizes.m, graph=sizes.lists_bytes),
        ),
        disk_bytes=stored_tensor_bytes(sizes) + 8 * sizes.n_pairs,
    )


def made_bytes(sizes: Sizes) -> int:
    """Bytes of a partition's neighbourhoods, or of its triplets, while they are made."""
    m, k, rows = sizes.m, sizes.k, sizes.partition_rows
    if sizes.choices.operator == "triplets":
        return 4 * sizes.triplets_bytes * rows // m
    bits = sum(math.comb(k, size) for size in range(1, min(k, 4) + 1))
    return rows * (2 * bits + 12 * sizes.local_pairs + 4 * k * k)


def stored_tensor_bytes(sizes: Sizes) -> int:
    """Bytes of the neighbourhoods, or of the triplets, as they are stored by partition."""
    return sizes.triplets_bytes // 2 if sizes.choices.operator == "triplets" else sizes.neighborhoods_bytes


def rows_measured(sizes: Sizes, times: float) -> dict[str, int]:
    """Terms of the rows of X that a partition's distances are measured on, ``times`` as many as the partition has.

    Of given distances a partition may need the rows of all samples; else it needs those of its neighbourhoods, several
    times while they are put together, beside the parts that they were read from (measured on 4,096 features).
    """
    m, f = sizes.m, sizes.f
    if sizes.params.metric == "precomputed":
        return {"given_distances": 12 * m * m}
    rows = min(m, int(times * sizes.partition_rows))
    return {"rows_of_neighbours": 24 * f * rows, "cache": min(sizes.samples_bytes, CACHE_BYTES)}


def operator_bytes(sizes: Sizes) -> int:
    """Bytes of the in-core operator, with those that are needed while it is made."""
    return {"triplets": sizes.triplets_bytes + 2 * sizes.csr_bytes, "matrix-free": sizes.neighborhoods_bytes}[
        sizes.choices.operator
    ]


def range_bytes(sizes: Sizes, rows: int, columns: int, touched: float = RANGE_TOUCHED) -> dict[str, int]:
    """Terms of a task on the pairs of so many samples: their rows of the operator, and of so many columns."""
    centers, pairs = (min(1.0, touched * rows / sizes.m) * n for n in (sizes.m, sizes.n_pairs))
    q = sizes.local_pairs
    once = sizes.neighborhoods_bytes // sizes.m - 8 * q
    operator = 4 * sizes.csr_bytes * touched * rows / sizes.m
    if sizes.choices.operator != "triplets":
        operator = centers * (NUMBERED_BYTES * q + once)
    own = sizes.n_pairs * min(1.0, rows / sizes.m)
    return {
        "rows_of_the_operator": int(operator),
        "pairs_looked_up": min(LOOKED_UP_BYTES, 32 * sizes.n_pairs),
        "touched_pairs": int(60 * pairs + 4 * min(columns, RITZ_COLUMNS) * pairs),
        "columns_of_its_pairs": int(3 * 4 * columns * own),
    }


def degrees(sizes: Sizes) -> Footprint:
    """The stage ``assemble``: degrees by partition, components by the driver."""
    rows = range_bytes(sizes, sizes.partition_rows, 2, min(sizes.k, sizes.n_partitions))
    return Footprint(
        (
            worker("degrees", process=BASELINE_BYTES, graph=sizes.lists_bytes, cache=CACHE_BYTES, **rows),
            driver("components", process=BASELINE_BYTES, graph=sizes.lists_bytes),
        ),
        disk_bytes=8 * sizes.n_pairs,
    )


def n_ranges_of_pairs(sizes: Sizes) -> int:
    """Tasks that sum the pairs of some samples."""
    return min(2_000, -(-sizes.m // RANGE))


def exact_solve(sizes: Sizes) -> tuple[Phase, ...]:
    """The driver's phase where the pairs' eigenvectors are solved for."""
    return (
        driver(
            EXACT,
            process=BASELINE_BYTES,
            graph=sizes.graph_bytes,
            operator=operator_bytes(sizes),
            assembled_operator=sizes.csr_bytes + 48 * sizes.n_pairs if sizes.choices.assembled else 0,
            blocks=sizes.blocks_bytes,
        ),
    )


def eigen(sizes: Sizes) -> Footprint:
    """Blocks are arrays of the driver: of samples, or of pairs where their eigenvectors are solved for."""
    m, columns = sizes.m, sizes.columns
    idle = worker("idle", process=BASELINE_BYTES, graph_of_the_stage_before=min(sizes.lists_bytes, UNTIDIED_BYTES))
    if sizes.choices.exact:
        return Footprint(
            (idle, *exact_solve(sizes)),
            disk_bytes=4 * sizes.n_solved * sizes.n_pairs,
            transient_bytes=2 * sizes.block_bytes,  # two checkpoints
        )
    rows = range_bytes(sizes, RANGE, columns, min(sizes.k, n_ranges_of_pairs(sizes)))
    return Footprint(
        (
            worker("sums of pairs", process=BASELINE_BYTES, graph=sizes.lists_bytes, cache=CACHE_BYTES, **rows),
            driver(
                "levels",
                process=BASELINE_BYTES,
                graph=sizes.lists_bytes,
                sample_graph=3 * 8 * (2 * sizes.k - 1) * m,
                blocks=5 * 4 * columns * m,
            ),
        ),
        disk_bytes=4 * columns * m,
        transient_bytes=3 * 8 * columns**2 * n_ranges_of_pairs(sizes),
    )


def _after_solve(sizes: Sizes) -> dict[str, int]:
    """Terms of the driver after an in-core solve: the operator of pairs that were solved for stays in its memory."""
    return {
        "process": BASELINE_BYTES + SOLVED_BYTES,
        "graph": sizes.lists_bytes,
        "components": 100 * sizes.m,
        "operator_of_the_solve": sizes.neighborhoods_bytes if sizes.choices.exact else 0,
    }


def fuse(sizes: Sizes) -> Footprint:
    """Each task loads the whole graph, and S, V and U of a partition."""
    return Footprint(
        (
            worker(
                "fuse",
                process=BASELINE_BYTES,
                similarities_of_a_partition=2 * sizes.similarity_bytes * sizes.partition_rows // sizes.m,
                graph=sizes.lists_bytes,
                **rows_measured(sizes, sizes.k),
            ),
            driver("fuse", **_after_solve(sizes), dense_similarity=sizes.similarity_bytes if sizes.is_dense else 0),
        ),
        disk_bytes=sizes.similarity_bytes,
    )


def graph_of_leiden(sizes: Sizes) -> dict[str, int]:
    """Terms of the driver while it finds communities: the whole graph of U, also where vectors are in chunks."""
    edges = sizes.m * (sizes.m - 1) // 2 if sizes.is_dense else sizes.n_fused
    return {"graph_of_all_samples": LEIDEN_EDGE_BYTES * edges, "labels": 40 * sizes.m}


def label(sizes: Sizes) -> Footprint:
    """U as CSR, its own solve or k-means, and the shares of clusters."""
    m, columns = sizes.m, sizes.n_embedded
    fused = 2 * sizes.similarity_bytes if sizes.is_dense else 24 * sizes.n_fused
    leiden = [driver(LEIDEN, **_after_solve(sizes), fused_similarity=fused, **graph_of_leiden(sizes))]
    if sizes.params.assign_labels != "leiden":
        leiden = []
    return Footprint(
        (
            worker(
                "k-means",
                process=BASELINE_BYTES,
                graph_of_the_stage_before=min(sizes.lists_bytes, UNTIDIED_BYTES),
                embedding=24 * m * columns,
            ),
            driver(
                "solve",
                **_after_solve(sizes),
                fused_similarity=fused + fused // 3,
                blocks=16 * sizes.embedded_columns * m,
            ),
            driver(
                "roundings", **_after_solve(sizes), fused_similarity=fused, embeddings=56 * m * columns, labels=120 * m
            ),
            *leiden,
        ),
        disk_bytes=12 * m * columns + 4 * m * sizes.params.n_clusters,
    )

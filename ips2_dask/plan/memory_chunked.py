"""The memory model of runs whose block vectors are in chunks: bytes by stage, role and phase.

No term grows with the samples at fixed rows of a partition, but for what the workers share: their chunks' rows of a
matrix and of block vectors. These are results of tasks, which Dask writes to disk where they don't fit. The driver's
terms grow with the number of partitions, shards and chunks, which are bounded (`ips2_dask.plan.choices`). Constants
marked (estimated) are the design's, and were not measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ips2_dask.kernels.density import TREE_SAMPLES
from ips2_dask.kernels.neighbors import EXACT_COLUMNS, RECALL_ROWS
from ips2_dask.kernels.rounding import ROWS as LLOYD_ROWS
from ips2_dask.kernels.rounding import START_SAMPLES
from ips2_dask.kernels.shards import rows_of_block
from ips2_dask.plan import memory
from ips2_dask.plan.memory import BASELINE_BYTES, CACHE_BYTES, SOLVED_BYTES
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.terms import HELD, Footprint, Phase, driver, usable, worker

LOCAL_ROWS = 3.0
"""Samples of a partition's local graph, its own and two hops around them, over its own, at most: 2.05 at 2,087 samples
a partition, 1.44 at 16,000 (measured)."""

LOCAL_COPIES = 3
"""Times that a local graph is in memory while it is put together: lists as they are read, compacted, and reversed."""

TOUCHED = 1.75
"""Samples that a chunk touches over its own: 1.72 in 40 chunks (measured)."""

TWO_LEVEL_MEMBERS = 4 * EXACT_COLUMNS
"""Members of a shard above which it is searched by sub-cells of `EXACT_COLUMNS`, each member in the two nearest."""

SOLVED_WORKER_BYTES = 96 << 20
"""Bytes that a worker has after a solve beside those of any process: compiled code, and memory not given back (78 MiB
measured)."""

ROW_ENTRY_BYTES = 16
"""Bytes that go with a sample to its shard where rows are merged: its first row, and how many rows it stands for."""

BY_SAMPLE_BYTES = 20
"""Bytes of a row of a bucket of labels whose rows are sorted by the distinct samples that they are: its sample, twice,
and its place while they are sorted (16 measured)."""

NEAR_CELLS = 64
"""Cells that are second nearest for samples of one cell, about (estimated)."""

NEAR_PARTITIONS = 64
"""Partitions that the neighbourhoods of a partition's samples lie in: 39 (measured), with some to spare."""

SENT_BYTES = 300
"""Bytes in the driver of what one partition sends to another: in the sender's receipt, and in the table that is made
of all of them (estimated)."""

ISLANDS = 256
"""Connected components that lie inside one partition, at most, about (estimated)."""

RECEIPT_BYTES = 2_000
"""Bytes of a part's receipt in the driver, which has read those of all parts (estimated)."""

PARTS = {"ingest": 3, "neighbors": 9, "tensor": 13, "assemble": 16, "eigen": 19, "fuse": 25, "label": 32}
"""Parts of a partition whose receipts the driver has read by the end of each stage, about (56 files, counted)."""

DENSITY_COPIES = 6
"""Times the points of a tree, as float64, with their nearest neighbours and the tree's edges (estimated)."""

BUCKET_ROWS = 1 << 24
"""Rows of a bucket of labels in the user's order, which one task fills: label, certainty and mark of each."""

ENTRY_BYTES = 8
"""Bytes of an entry of a chunk's sample graph or of its U: an int32 place and a float32 value."""

CUT_ENTRY_BYTES = 12 + 8 + 9 + 16
"""Bytes of an entry of U in a cut: as it is stored, its row, the labels of both samples and whether they are equal, and
row and value of those that are."""

FILTER_BLOCKS = 3
"""Blocks that a filter works on: y, the one before it, and the result."""

NODE_BYTES = 40
"""Bytes of a node of a graph besides its rows: degree, component, sample, priority, state and aggregate."""

COARSE_SHARE = 0.2
"""Nodes of the next coarser graph over those of a graph, about: a fifth to a seventh (measured)."""

COARSE_ENTRIES = 24
"""Entries of a row of a coarser graph, about (measured on MNIST: 15 to 30)."""

WHOLE = 1 << 19
"""Most nodes of a graph that one task solves (`stages.chunk_levels.WHOLE`)."""


def _driver(sizes: Sizes, stage: str, *, solved: bool = False) -> dict[str, int]:
    """Terms that the driver has throughout a stage."""
    return {
        "process": BASELINE_BYTES + (SOLVED_BYTES if solved else 0),
        "receipts": RECEIPT_BYTES * PARTS[stage] * sizes.n_made,
    }


def _graph_of(sizes: Sizes, rows: float) -> int:
    """Bytes of the local graph of so many samples while it is put together."""
    return int(LOCAL_COPIES * sizes.graph_row_bytes * min(sizes.m, rows))


def neighbors(sizes: Sizes) -> Footprint:
    """Searched by shards; a graph that is not sharded is that of a run in core."""
    if not sizes.is_sharded:
        return memory.neighbors(sizes)
    m, f, n_shards, lists = sizes.m, sizes.f, sizes.choices.n_shards, 8 * sizes.n_stored_neighbors
    rows, members = sizes.partition_rows, memory.largest_shard(sizes)
    row_entry = ROW_ENTRY_BYTES if sizes.params.merges_rows else 0
    return Footprint(
        (
            memory.cells_of_shards(sizes),
            worker(
                "assign",
                process=BASELINE_BYTES,
                rows_of_a_partition=8 * rows * f,
                distances_to_cells=3 * 4 * min(rows, rows_of_block(n_shards)) * n_shards,
            ),
            worker(
                "split",
                process=BASELINE_BYTES,
                batch_of_rows=4 * memory.batch_bytes(sizes),
                rows_of_the_input=3 * row_entry * memory.batch_bytes(sizes) // (4 * f),
            ),
            worker(
                "search",
                process=BASELINE_BYTES,
                shard=memory.shard_bytes(sizes, members),
                rows_of_the_input=3 * row_entry * members,
                lists_of_sub_cells=2 * lists * members if members > TWO_LEVEL_MEMBERS else 0,
            ),
            worker(
                "merge",
                process=BASELINE_BYTES,
                lists_of_two_shards=2 * (lists + 12) * members,
                lists_of_a_partition=3 * (lists + 8) * rows,
                cache=CACHE_BYTES,
            ),
            worker(
                "refine",
                process=BASELINE_BYTES,
                local_graph=_graph_of(sizes, LOCAL_ROWS * rows),
                lists_of_a_partition=3 * (lists + 8) * rows,
                **memory.rows_measured(sizes, LOCAL_ROWS),
            ),
            driver("cells", **_driver(sizes, "neighbors"), samples_by_pair_of_cells=3 * 16 * NEAR_CELLS * n_shards),
            driver(
                "recall",
                **_driver(sizes, "neighbors"),
                true_neighbours=2 * 4 * min(m, RECALL_ROWS) * sizes.n_stored_neighbors * sizes.n_made,
            ),
        ),
        disk_bytes=sizes.samples_bytes + (lists + 8) * m,
        transient_bytes=memory.search_disk_bytes(sizes) + 2 * row_entry * m,
    )


def tensor(sizes: Sizes) -> Footprint:
    """Neighbourhoods by partition from local graphs."""
    return Footprint(
        (
            worker(
                "neighbourhoods",
                process=BASELINE_BYTES,
                local_graph=_graph_of(sizes, LOCAL_ROWS * sizes.partition_rows),
                neighbourhoods=memory.made_bytes(sizes),
                **memory.rows_measured(sizes, min(sizes.k, LOCAL_ROWS)),
            ),
            driver(
                "tensor",
                **_driver(sizes, "tensor"),
                pair_counts=64 * sizes.n_made,
                who_sends_to_whom=SENT_BYTES * NEAR_PARTITIONS * sizes.n_made,
            ),
        ),
        disk_bytes=memory.stored_tensor_bytes(sizes) + 8 * sizes.n_pairs,
    )


def degrees(sizes: Sizes) -> Footprint:
    """The stage ``assemble``: degrees by partition, and components by contraction."""
    rows, n = sizes.partition_rows, sizes.n_made
    return Footprint(
        (
            worker("degrees", process=BASELINE_BYTES, cache=CACHE_BYTES, **memory.range_bytes(sizes, rows, 2)),
            worker(
                "components",
                process=BASELINE_BYTES,
                edges_of_a_partition=_graph_of(sizes, LOCAL_ROWS * rows) + 32 * sizes.n_stored_neighbors * rows,
            ),
            driver(
                "components", **_driver(sizes, "assemble"), contracted_graph=3 * 16 * (NEAR_PARTITIONS + ISLANDS) * n
            ),
        ),
        disk_bytes=8 * sizes.n_pairs + 4 * sizes.m,
        transient_bytes=16 * sizes.m,  # the islands of each partition, and its edges to others
    )


@dataclasses.dataclass(frozen=True)
class Solve:
    """A solve on blocks of samples in chunks, which are results of tasks.

    Attributes
    ----------
    name : str
    columns : int
    entries : int
        Entries of the matrix.
    """

    name: str
    columns: int
    entries: int

    def block_bytes(self, sizes: Sizes) -> int:
        """Bytes of a block."""
        return 4 * sizes.m * self.columns

    def held_bytes(self, sizes: Sizes) -> dict[str, int]:
        """Terms of a worker's share of what tasks leave for others, which Dask writes to disk where it does not fit."""
        share = sizes.worker_share
        return {
            "matrix_of_its_chunks": int(share * (ENTRY_BYTES * self.entries + NODE_BYTES * sizes.m)),
            "blocks_of_the_filter": int(FILTER_BLOCKS * share * self.block_bytes(sizes)),
            "rows_of_other_chunks": int((TOUCHED - 1) * share * self.block_bytes(sizes)),
        }

    def _products(self, sizes: Sizes) -> dict[str, int]:
        """Terms of the task that multiplies a chunk: its arguments, the rows that they make, and the result."""
        part = sizes.chunk_rows / sizes.m
        return {
            "rows_of_a_chunk": int(part * ENTRY_BYTES * self.entries),
            "product_of_a_chunk": int((3 + 2 * TOUCHED) * part * self.block_bytes(sizes)),
        }

    def _coarser(self, sizes: Sizes) -> dict[str, int]:
        """Terms of the task that merges a chunk's rows, with its share of the matrix as it is."""
        part = sizes.chunk_rows / sizes.m
        return {
            "rows_of_a_chunk": int(part * (12 + ENTRY_BYTES) * self.entries),
            "merged_rows": int(part * COARSE_SHARE * COARSE_ENTRIES * 60 * sizes.m),
        }

    def _whole(self, sizes: Sizes) -> dict[str, int]:
        """Terms of the task that solves a coarse graph, with its matrix thrice and its blocks."""
        nodes = min(WHOLE, COARSE_SHARE * sizes.m)
        return {"coarse_graph": int(nodes * (COARSE_ENTRIES * 3 * 16 + NODE_BYTES + 5 * 4 * self.columns))}

    def phases(self, sizes: Sizes) -> tuple[tuple[Phase, ...], int]:
        """The phases of a worker, and the bytes that Dask writes to its disk: 0 where they fit into its memory."""
        tasks = (
            (f"filter of {self.name}", self._products(sizes)),
            (f"levels of {self.name}", self._coarser(sizes)),
            (f"coarsest level of {self.name}", self._whole(sizes)),
        )
        held = self.held_bytes(sizes)
        matrix = {"matrix_as_it_is": int(sizes.worker_share * 12 * self.entries)}
        kept = (
            held,
            {**matrix, "matrix_of_its_chunks": held["matrix_of_its_chunks"]},
            {"matrix_of_its_chunks": held["matrix_of_its_chunks"]},
        )
        in_memory = tuple(
            worker(name, process=BASELINE_BYTES, **terms, **some)
            for (name, terms), some in zip(tasks, kept, strict=True)
        )
        limit = sizes.worker_limit
        if limit is None or (_most(in_memory) <= usable(limit) and sum(held.values()) <= HELD * limit):
            return in_memory, 0
        return tuple(worker(name, process=BASELINE_BYTES, **terms) for name, terms in tasks), sum(held.values())

    def small_bytes(self, sizes: Sizes) -> int:
        """Bytes of the small matrices of all chunks that the driver sums."""
        return 2 * 8 * self.columns**2 * sizes.n_chunks


def _most(phases: Sequence[Phase]) -> int:
    """Bytes of the largest phase."""
    return max(phase.bytes for phase in phases)


def solve_of_samples(sizes: Sizes) -> Solve:
    """The solve on the sample graph."""
    return Solve("the sample graph", sizes.columns, (2 * sizes.k - 1) * sizes.m)


def solve_of_embedding(sizes: Sizes) -> Solve:
    """The solve on the fused similarity U."""
    return Solve("the fused similarity", sizes.embedded_columns, 2 * sizes.n_fused)


def eigen(sizes: Sizes) -> Footprint:
    """The sample graph's vectors by levels, and the sums of all pairs, range by range."""
    samples, columns = solve_of_samples(sizes), sizes.columns
    (of_samples, scratch), graph = samples.phases(sizes), _graph_of(sizes, TOUCHED * sizes.chunk_rows)
    exact = memory.exact_solve(sizes) if sizes.choices.exact else ()
    return Footprint(
        (
            worker("sample graph of a chunk", process=BASELINE_BYTES, cache=CACHE_BYTES, graph_of_a_chunk=graph),
            *of_samples,
            worker(
                "sums of pairs",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                **memory.range_bytes(sizes, memory.RANGE, columns),
            ),
            driver("solve", **_driver(sizes, "eigen", solved=True), small_matrices=samples.small_bytes(sizes)),
            *exact,
        ),
        disk_bytes=4 * columns * sizes.m if not sizes.choices.exact else 4 * sizes.n_solved * sizes.n_pairs,
        transient_bytes=3 * 8 * columns**2 * memory.n_ranges_of_pairs(sizes),
        scratch_bytes=scratch,
    )


def fuse(sizes: Sizes) -> Footprint:
    """S, V and U by partition."""
    m, rows = sizes.m, sizes.partition_rows
    return Footprint(
        (
            worker(
                "fuse a partition",
                process=BASELINE_BYTES + SOLVED_WORKER_BYTES,
                local_graph=_graph_of(sizes, LOCAL_ROWS * rows),
                similarities_of_a_partition=2 * sizes.similarity_bytes * rows // m,
                vectors_of_a_partition=int(LOCAL_ROWS * rows * (4 * sizes.columns + 24 * sizes.n_solved)),
                **memory.rows_measured(sizes, min(sizes.k, LOCAL_ROWS)),
            ),
            driver(
                "fuse",
                **_driver(sizes, "fuse", solved=True),
                dense_similarity=sizes.similarity_bytes if sizes.is_dense else 0,
            ),
        ),
        disk_bytes=sizes.similarity_bytes,
        transient_bytes=32 * m if sizes.params.fusion == "normalized" else 0,  # row sums that partitions send
    )


def label(sizes: Sizes) -> Footprint:
    """The solve on U, k-means by partial sums, the tree of a sample, walks on U, and labels by buckets."""
    m, c, d, share = sizes.m, sizes.params.n_clusters, sizes.n_embedded, sizes.worker_share
    matrix = solve_of_embedding(sizes).held_bytes(sizes)["matrix_of_its_chunks"]
    solve, tree = solve_of_embedding(sizes), min(m, TREE_SAMPLES[1])
    of_solve, scratch = solve.phases(sizes)
    leiden = [driver(memory.LEIDEN, **_driver(sizes, "label", solved=True), **memory.graph_of_leiden(sizes))]
    if sizes.params.assign_labels != "leiden":
        leiden = []
    own, starts = share * m, 8 * d * min(m, 4 * START_SAMPLES)
    walk = (
        {
            "matrix_of_its_chunks": matrix,
            "shares_of_clusters": int(2 * 4 * c * own),
            "rows_of_other_chunks": int((TOUCHED - 1) * 4 * c * own),
        }
        if not scratch
        else {}
    )
    return Footprint(
        (
            worker(
                "U of a chunk",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                entries_of_a_chunk=3 * 2 * 12 * sizes.n_fused * sizes.chunk_rows // m,
            ),
            *of_solve,
            worker(
                "k-means",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                points_of_a_partition=(2 * 4 + 2 * 8) * d * sizes.partition_rows,
                distances_of_some=3 * 8 * (c + d) * min(sizes.partition_rows, LLOYD_ROWS),
            ),
            worker("starts of k-means", process=BASELINE_BYTES, sample_of_the_starts=3 * starts),
            worker("tree", process=BASELINE_BYTES, points_of_the_tree=DENSITY_COPIES * 8 * d * tree),
            worker(
                "walks",
                process=BASELINE_BYTES,
                **walk,
                product_of_a_chunk=int((2 + 2 * TOUCHED) * 4 * c * sizes.chunk_rows),
            ),
            worker(
                "cuts",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                **walk,
                entries_of_a_chunk=2 * CUT_ENTRY_BYTES * sizes.n_fused * sizes.chunk_rows // m,
            ),
            worker(
                "labels in the user's order",
                process=BASELINE_BYTES,
                bucket=(9 + (BY_SAMPLE_BYTES if sizes.params.merges_rows else 0)) * min(m, BUCKET_ROWS),
                labels_of_a_partition=64 * sizes.partition_rows,
            ),
            driver(
                "solve and roundings",
                **_driver(sizes, "label", solved=True),
                small_matrices=solve.small_bytes(sizes),
                partial_sums=2 * 8 * c * (c + d + 2) * sizes.n_chunks,
                sample_of_the_starts=starts,
            ),
            *leiden,
        ),
        disk_bytes=12 * m * d + 4 * m * c + 18 * m,
        transient_bytes=3 * solve.block_bytes(sizes) + 16 * sizes.n_fused,
        scratch_bytes=scratch,
    )


def labels_in_buckets(m: int) -> int:
    """Tasks that put labels into the user's order."""
    return math.ceil(m / BUCKET_ROWS)

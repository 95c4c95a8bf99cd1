"""The memory model of runs whose block vectors are in chunks: bytes by stage, role and phase.

No term grows with the samples at fixed rows of a partition, but for what the workers share: their chunks' operators,
blocks, and rows of the fused similarity. The driver's terms grow with the number of partitions, shards and chunks,
which are bounded (`ips2_dask.plan.choices`). Constants marked (estimated) are the design's, and were not measured.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ips2_dask.kernels.density import TREE_SAMPLES
from ips2_dask.kernels.eigen import PANELS_ABOVE, block_width, panel_bounds, panels_of, panels_on_scratch
from ips2_dask.kernels.lloyd import ROWS as LLOYD_ROWS
from ips2_dask.kernels.neighbors import EXACT_COLUMNS, RECALL_ROWS
from ips2_dask.kernels.rounding import START_SAMPLES
from ips2_dask.kernels.shards import rows_of_block
from ips2_dask.plan import memory
from ips2_dask.plan.memory import (
    BASELINE_BYTES,
    CACHE_BYTES,
    FREED_BYTES,
    REMEMBERED,
    SOLVED_BYTES,
)
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.terms import Footprint, Phase, driver, usable, worker

LOCAL_ROWS = 3.0
"""Samples of a partition's local graph, its own and two hops around them, over its own, at most: 2.05 at 2,087 samples
a partition, 1.44 at 16,000 (measured)."""

LOCAL_COPIES = 3
"""Times that a local graph is in memory while it is put together: lists as they are read, compacted, and reversed."""

TOUCHED = 1.75
"""Rows that a chunk touches over its own, of pairs and of samples: 1.72 in 40 chunks (measured)."""

SHARED = 0.9
"""Rows that a worker gets of other workers' chunks, over its own: chunks that are parts of a group (measured)."""

TWO_LEVEL_MEMBERS = 4 * EXACT_COLUMNS
"""Members of a shard above which it is searched by sub-cells of `EXACT_COLUMNS`, each member in the two nearest."""

TWICE_SHARED = 1.25
"""Neighbourhoods that the operators of two chunks hold both are counted twice: so much more than once each."""

LOOKED_UP_BYTES = 32 << 21
"""Bytes of the pairs of other partitions among which a chunk's pairs are looked up at a time: a limit that is
enforced."""

SOLVED_WORKER_BYTES = 96 << 20
"""Bytes that a worker has after a solve beside those of any process: compiled code, and memory not given back (78 MiB
measured)."""

NUMBERED_BYTES = 24
"""Bytes of each pair of a chunk's neighbourhoods while pairs are numbered: its number, sorted once more to find the
distinct ones, and its place among these."""

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

CUT_BYTES = 36 + 8
"""Bytes, for each pair of chunks, of where the rows of one begin among those that the other touches: a number in a
chunk's receipt, and one in the table of the rows that chunks share."""

DENSITY_COPIES = 6
"""Times the points of a tree, as float64, with their nearest neighbours and the tree's edges (estimated)."""

BUCKET_ROWS = 1 << 24
"""Rows of a bucket of labels in the user's order, which one task fills: label, certainty and mark of each."""

ENTRY_BYTES = 8
"""Bytes of an entry of a chunk's sample graph or of its U: an int32 place and a float32 value."""

CUT_ENTRY_BYTES = 12 + 8 + 9 + 16
"""Bytes of an entry of U in a cut: as it is stored, its row, the labels of both samples and whether they are equal, and
row and value of those that are."""

FILTER_BLOCKS = 2
"""Panels that a filter works on: y, and the result, which takes the place of the one before y chunk by chunk. Where
blocks are on the worker's scratch y alone is in memory, with the rows of one chunk of the other two."""

COPIED_FROM = 8
"""Workers from which on each keeps copies of another one's blocks. With fewer a loss is rare, and copies would take a
large share of each one's memory."""

COPIES = 3
"""Blocks' worth of rows that copies take in a worker: of the state before the last one its own, and those of another
worker's chunks at both."""

ROW_NUMBER_COPIES = 8
"""Times that the numbers of the rows which a worker needs of others are in memory while workers ask for them, in units
of int32: those of each chunk, and int64 numbers that are sent and received (counted)."""

ESTIMATED = 4
"""Columns of the blocks of the estimate of the lowest eigenvalue, which are in memory: two vectors, a product, and the
next one."""

PIECES_UNDERWAY = 3
"""Chunks' rows of a panel that are on their way: one that is sent, one that arrives, and one that arrived early."""

ROTATED = 3
"""A chunk's rows in all columns while they are rotated: side by side, their product, and its panels."""


def _driver(sizes: Sizes, stage: str, *, solved: bool = False) -> dict[str, int]:
    """Terms that the driver has throughout a stage."""
    chunks = sizes.n_chunks if stage in ("tensor", "assemble", "eigen") else 0
    return {
        "process": BASELINE_BYTES + (SOLVED_BYTES if solved else 0),
        "receipts": RECEIPT_BYTES * PARTS[stage] * sizes.n_made,
        "table_of_chunks": CUT_BYTES * chunks**2,
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
            driver(
                "cells",
                **_driver(sizes, "neighbors"),
                samples_by_pair_of_cells=3 * 16 * NEAR_CELLS * n_shards,
            ),
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
    """Neighbourhoods by partition from local graphs, and from them the chunks' operators."""
    m, k, q = sizes.m, sizes.k, sizes.local_pairs
    centers = min(m, int(TOUCHED * sizes.chunk_rows))
    stored = memory.stored_tensor_bytes(sizes)
    chunk, written = 4 * sizes.csr_bytes * sizes.chunk_rows // m, sizes.csr_bytes
    if sizes.choices.operator != "triplets":
        block = sizes.neighborhoods_bytes // m - 8 * q
        chunk = centers * (NUMBERED_BYTES * q + block)
        written = int(TOUCHED * m * block + TOUCHED * 8 * sizes.n_pairs)
    else:
        chunk += sizes.triplets_bytes * sizes.partition_rows // m
    return Footprint(
        (
            worker(
                "neighbourhoods",
                process=BASELINE_BYTES,
                local_graph=_graph_of(sizes, LOCAL_ROWS * sizes.partition_rows),
                neighbourhoods=memory.made_bytes(sizes),
                **memory.rows_measured(sizes, min(k, LOCAL_ROWS)),
            ),
            worker(
                "operator of a chunk",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                local_graph=_graph_of(sizes, TOUCHED * sizes.chunk_rows),
                operator_of_a_chunk=chunk,
                pairs_looked_up=min(LOOKED_UP_BYTES, 32 * sizes.n_pairs),
                freed_memory=FREED_BYTES,
            ),
            driver(
                "tensor",
                **_driver(sizes, "tensor"),
                pair_counts=64 * sizes.n_made,
                who_sends_to_whom=SENT_BYTES * NEAR_PARTITIONS * sizes.n_made,
            ),
        ),
        disk_bytes=stored + written + 8 * sizes.n_pairs,
    )


def _operators_bytes(sizes: Sizes) -> int:
    """Bytes of the operators of all chunks together."""
    return {
        "triplets": sizes.csr_bytes,
        "elements": sizes.neighborhoods_bytes + 4 * sizes.entries,
        "matrix-free": sizes.neighborhoods_bytes,
    }[sizes.choices.operator]


def degrees(sizes: Sizes) -> Footprint:
    """The stage ``assemble``: degrees are a product with one column, chunk by chunk; components by contraction."""
    rows, n = sizes.partition_rows, sizes.n_made
    return Footprint(
        (
            worker(
                "degrees",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                operator_of_a_chunk=2 * _operators_bytes(sizes) * sizes.chunk_rows // sizes.m,
                pairs_of_a_chunk=int(48 * TOUCHED * sizes.chunk_pairs),
            ),
            worker(
                "components",
                process=BASELINE_BYTES,
                edges_of_a_partition=_graph_of(sizes, LOCAL_ROWS * rows) + 32 * sizes.n_stored_neighbors * rows,
            ),
            driver(
                "components",
                **_driver(sizes, "assemble"),
                contracted_graph=3 * 16 * (NEAR_PARTITIONS + ISLANDS) * n,
            ),
        ),
        disk_bytes=8 * sizes.n_pairs + 4 * sizes.m,
        transient_bytes=16 * sizes.m,  # the islands of each partition, and its edges to others
    )


class Spread(NamedTuple):
    """How the rows of a block are spread over the workers.

    Attributes
    ----------
    owned : float
        Largest share of all rows whose chunks one worker owns.
    exchanged : int
        Most rows that one worker gets of others for a product, or sends them.
    touched : int
        Most rows that the product of a chunk reads, its own among them.
    """

    owned: float
    exchanged: int
    touched: int


@dataclasses.dataclass(frozen=True)
class Solve:
    """A solve on blocks in chunks, whose rows are pairs or samples.

    Attributes
    ----------
    name : str
    rows, chunk_rows : int
        Rows of a block, and of its largest chunk.
    columns : int
    operator_bytes : int
        Of a worker: the operators of its chunks, and what they need besides.
    counted : Spread, optional
        Of a run whose chunks are there. A plan estimates it, and its ``rows`` may be an upper bound.
    """

    name: str
    rows: int
    chunk_rows: int
    columns: int
    operator_bytes: int
    counted: Spread | None = None

    def spread(self, sizes: Sizes) -> Spread:
        """How the rows are spread over the workers."""
        if self.counted is not None:
            return self.counted
        owned = sizes.worker_share
        exchanged = SHARED * (1 - 1 / sizes.n_busy) * owned * self.rows
        return Spread(owned, int(exchanged), int(TOUCHED * self.chunk_rows))

    @property
    def panels(self) -> int:
        """In how many panels of columns a block is filtered."""
        return panels_of(self.rows, self.columns, "chunked")

    @property
    def panel_columns(self) -> int:
        """Columns of the widest panel."""
        return self._widest(self.panels)

    def _widest(self, panels: int) -> int:
        low, high = panel_bounds(self.columns, panels)[0]
        return high - low

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block."""
        return 4 * self.rows * self.columns

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return 4 * self.rows * self.panel_columns

    def workers(self, sizes: Sizes, *, held: bool, panels: int | None = None) -> tuple[Phase, ...]:
        """The phases of a worker, with blocks ``held`` in its memory, or on its scratch but for the one multiplied.

        Blocks in memory are filtered in so many ``panels``, or as many as they have parts. Where ``rows`` is a bound, a
        block of fewer may be small enough to be filtered as a whole, which takes more.
        """
        whole = PANELS_ABOVE["chunked"] // (4 * self.columns)
        if not held or whole >= self.rows or self.counted is not None:
            return self._phases(sizes, held, panels)
        smaller = dataclasses.replace(self, rows=whole, chunk_rows=self.chunk_rows * whole // self.rows)
        both = self._phases(sizes, True, panels), smaller._phases(sizes, True, None)
        return max(both, key=_most)

    def _phases(self, sizes: Sizes, held: bool, filter_panels: int | None) -> tuple[Phase, ...]:
        spread, chunk = self.spread(sizes), 4 * self.chunk_rows
        share = spread.owned
        panels, rows_made = (FILTER_BLOCKS, 1) if held else (1, 2)
        parts = filter_panels or self.panels if held else panels_on_scratch(self.rows, self.columns)
        columns = self._widest(parts)
        panel = 4 * self.rows * columns
        exchanged = 4 * spread.exchanged * columns
        # with blocks on scratch no product begins before the rows for others have left
        exchange = worker(
            f"exchange of rows of {self.name}",
            process=BASELINE_BYTES,
            operators_of_its_chunks=self.operator_bytes,
            blocks_of_the_filter=int(panels * share * panel),
            rows_from_other_workers=exchanged,
            rows_for_other_workers=exchanged,
        )
        return (
            *(() if held else (exchange,)),
            worker(
                f"filter of {self.name}",
                process=BASELINE_BYTES,
                operators_of_its_chunks=self.operator_bytes,
                other_panels_of_the_block=int(share * (self.block_bytes - panel)) if held else 0,
                blocks_of_the_filter=int(panels * share * panel),
                rows_from_other_workers=exchanged,
                rows_for_other_workers=exchanged if held else 0,
                product_of_a_chunk=(rows_made * chunk + 4 * spread.touched) * columns,
            ),
            worker(
                f"rotation of {self.name}",
                process=BASELINE_BYTES,
                operators_of_its_chunks=self.operator_bytes,
                block=int(share * self.block_bytes) if held else 0,
                columns_of_a_chunk=ROTATED * chunk * self.columns,
            ),
        )

    def streamed(self, sizes: Sizes) -> tuple[Phase, ...]:
        """The phases of a worker that reads operators, and rows of the panel that is multiplied, chunk by chunk."""
        spread, chunk = self.spread(sizes), 4 * self.chunk_rows
        share, numbers = spread.owned, 4 * spread.exchanged  # numbers of rows: int32
        columns = self._widest(panels_on_scratch(self.rows, self.columns))
        operator = int(2 * self.operator_bytes * self.chunk_rows / (share * self.rows))
        return (
            worker(
                f"rows of {self.name} that workers need",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                numbers_of_rows=ROW_NUMBER_COPIES * numbers,
            ),
            worker(
                f"filter of {self.name}",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                numbers_of_rows=2 * numbers,
                operator_of_a_chunk=operator,
                vectors_of_an_estimate=int(ESTIMATED * 4 * share * self.rows),
                rows_of_others=int(PIECES_UNDERWAY * chunk * columns),
                product_of_a_chunk=(3 * chunk + 4 * spread.touched) * columns,
            ),
            worker(
                f"rotation of {self.name}",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                numbers_of_rows=2 * numbers,
                columns_of_a_chunk=ROTATED * chunk * self.columns,
            ),
        )

    def filter_panels(self, sizes: Sizes) -> int:
        """In how many panels a block in memory is filtered: as few as a worker is known to have the memory for.

        A product of 16 columns takes 1.2 times as long as one of 8 (measured), since both make the same entries of the
        operator; but the filter then needs two blocks of 16 columns.
        """
        limit = sizes.worker_limit
        if limit is None or self.panels == 1 or self.needs_scratch(sizes):
            return self.panels
        room = usable(limit) - (self.copies_bytes(sizes) if self.makes_copies(sizes) else 0)
        for panels in range(1, self.panels):
            if _most(self.workers(sizes, held=True, panels=panels)) <= room:
                return panels
        return self.panels

    def needs_streaming(self, sizes: Sizes) -> bool:
        """Whether a worker has no memory for the panel that is multiplied, beside its operators."""
        limit = sizes.worker_limit
        if limit is None or not self.needs_scratch(sizes):
            return False
        return _most(self.workers(sizes, held=False)) > usable(limit)

    def needs_scratch(self, sizes: Sizes) -> bool:
        """Whether blocks of all columns don't fit into a worker's memory beside what is made of them."""
        limit = sizes.worker_limit
        return limit is not None and _most(self.workers(sizes, held=True)) > usable(limit)

    def copies_bytes(self, sizes: Sizes) -> int:
        """Bytes of a worker's copies of blocks."""
        return int(COPIES * self.spread(sizes).owned * self.block_bytes)

    def makes_copies(self, sizes: Sizes) -> bool:
        """Whether the workers are many, and are known to have memory for copies of blocks."""
        limit = sizes.worker_limit
        if limit is None or sizes.n_busy < COPIED_FROM:
            return False
        most = _most(self.workers(sizes, held=True)) + self.copies_bytes(sizes)
        return most <= usable(limit)

    def phases(self, sizes: Sizes) -> tuple[tuple[Phase, ...], int]:
        """The phases of a worker, and the bytes on its scratch: 0 where the blocks fit into its memory."""
        if not self.needs_scratch(sizes):
            return (*self._in_memory(sizes), *self._wider(sizes)), 0
        on_scratch, fitting = int(2 * sizes.worker_share * self.block_bytes), self._fitting(sizes)
        if self.needs_streaming(sizes):
            on_scratch += int(SHARED * sizes.worker_share * self.panel_bytes)
            return (*self.streamed(sizes), *fitting), on_scratch
        return (*self.workers(sizes, held=False), *fitting), on_scratch

    def _in_memory(self, sizes: Sizes) -> tuple[Phase, ...]:
        """The phases of a worker that has its blocks in memory, and copies where it is to keep some."""
        held = self.workers(sizes, held=True, panels=self.filter_panels(sizes))
        if not self.makes_copies(sizes):
            return held
        copies = self.copies_bytes(sizes)
        return tuple(phase.plus({"copies_for_a_lost_worker": copies}) for phase in held)

    def _fitting(self, sizes: Sizes) -> tuple[Phase, ...]:
        """The phases of the largest run whose blocks stay in a worker's memory, where the plan has them in files.

        A run counts the rows that it has and that its workers exchange, of which a plan takes the most there may be; so
        its blocks may stay in memory, which takes more than files do.
        """
        fitting = self._largest(lambda solve: not solve.needs_scratch(sizes))
        if fitting is None:
            return ()
        return dataclasses.replace(fitting, name=f"{self.name} in memory")._in_memory(sizes)

    def _wider(self, sizes: Sizes) -> tuple[Phase, ...]:
        """The phases of the largest run whose filter has fewer panels than this one's, for the same reason."""
        panels = self.filter_panels(sizes)
        if self.counted is not None or panels == 1:
            return ()
        fitting = self._largest(lambda solve: solve.filter_panels(sizes) < panels)
        if fitting is None or fitting.panels == 1:
            return ()
        return dataclasses.replace(fitting, name=f"{self.name} in wide panels")._in_memory(sizes)

    def _largest(self, fits: Callable[[Solve], bool]) -> Solve | None:
        """The solve of most rows, up to these, that fits; None where none does."""
        rows = bisect.bisect_left(
            range(1, self.rows + 1), True, key=lambda rows: not fits(dataclasses.replace(self, rows=rows))
        )
        return dataclasses.replace(self, rows=rows) if rows else None

    def small_bytes(self, sizes: Sizes) -> int:
        """Bytes of the small matrices of all chunks that the driver sums."""
        return 2 * 8 * self.columns**2 * sizes.n_chunks

    def checkpoints_bytes(self, sizes: Sizes) -> int:
        """Bytes of two checkpoints, with the panel before the last product of each."""
        return 2 * (self.block_bytes + 4 * self.rows * self._widest(self.filter_panels(sizes)))


def _most(phases: Sequence[Phase]) -> int:
    """Bytes of the largest phase."""
    return max(phase.bytes for phase in phases)


def solve_of_pairs(sizes: Sizes) -> Solve:
    """The solve of the pairs' eigenvectors. Neighbourhoods near two chunks are in the operators of both."""
    once = 8 * sizes.local_pairs * sizes.m if sizes.choices.operator != "triplets" else 0
    kept = TWICE_SHARED * sizes.worker_share * (_operators_bytes(sizes) - once + REMEMBERED * sizes.n_pairs)
    return Solve("pairs", sizes.n_pairs, sizes.chunk_pairs, sizes.columns, int(kept))


def solve_of_samples(sizes: Sizes) -> Solve:
    """The solve on the sample graph, the start of that of the pairs: an entry is an int32 place and a float32 value."""
    entries = ENTRY_BYTES * (2 * sizes.k - 1)
    kept = int(sizes.worker_share * sizes.m * (entries + REMEMBERED))
    return Solve("the sample graph", sizes.m, sizes.chunk_rows, block_width(sizes.columns), kept)


def solve_of_embedding(sizes: Sizes) -> Solve:
    """The solve on the fused similarity U."""
    kept = int(sizes.worker_share * (2 * ENTRY_BYTES * sizes.n_fused + REMEMBERED * sizes.m))
    return Solve("the fused similarity", sizes.m, sizes.chunk_rows, sizes.embedded_columns, kept)


def eigen(sizes: Sizes) -> Footprint:
    """Resident blocks: a worker keeps its chunks' operators and rows of all blocks, and tasks are rounds of products.

    Where blocks don't fit into a worker's memory they are on its scratch, but for the panel that is being multiplied.
    """
    pairs, samples = solve_of_pairs(sizes), solve_of_samples(sizes)
    (of_pairs, scratch), (of_samples, more_scratch) = pairs.phases(sizes), samples.phases(sizes)
    held = 0 if scratch else int(sizes.worker_share * pairs.block_bytes)
    operators = 0 if pairs.needs_streaming(sizes) else pairs.operator_bytes
    return Footprint(
        (
            worker(
                "sample graph of a chunk",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                graphs_of_its_chunks=samples.operator_bytes,
                assembly_of_a_chunk=3 * ENTRY_BYTES * (2 * sizes.k - 1) * sizes.chunk_rows,
            ),
            *of_samples,
            worker(
                "start of pairs",
                process=BASELINE_BYTES,
                operators_of_its_chunks=operators,
                block=held,
                pairs_of_a_chunk=48 * sizes.chunk_pairs,
                start_of_a_chunk=int(4 * sizes.columns * (2 * sizes.chunk_pairs + TOUCHED * sizes.chunk_rows)),
                cache=CACHE_BYTES,
            ),
            *of_pairs,
            driver(
                "solve",
                **_driver(sizes, "eigen", solved=True),
                small_matrices=max(pairs.small_bytes(sizes), samples.small_bytes(sizes)),
            ),
        ),
        disk_bytes=4 * sizes.n_solved * sizes.n_pairs,
        transient_bytes=4 * sizes.columns * sizes.m
        + max(pairs.checkpoints_bytes(sizes), samples.checkpoints_bytes(sizes)),
        scratch_bytes=max(scratch, more_scratch),
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
                eigenvectors_of_a_partition=2 * 4 * sizes.n_solved * sizes.n_pairs * rows // m,
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
    solve, tree = solve_of_embedding(sizes), min(m, TREE_SAMPLES[1])
    of_solve, scratch = solve.phases(sizes)
    leiden = [driver(memory.LEIDEN, **_driver(sizes, "label", solved=True), **memory.graph_of_leiden(sizes))]
    if sizes.params.assign_labels != "leiden":
        leiden = []
    own, starts = share * m, 8 * d * min(m, 4 * START_SAMPLES)
    exchanged = int(SHARED * (1 - 1 / sizes.n_busy) * 4 * c * own)
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
                matrix_of_its_chunks=solve.operator_bytes,
                shares_of_clusters=int(2 * 4 * c * own),
                rows_from_other_workers=exchanged,
                rows_for_other_workers=exchanged,
                product_of_a_chunk=int((1 + TOUCHED) * 4 * c * sizes.chunk_rows),
            ),
            worker(
                "cuts",
                process=BASELINE_BYTES,
                cache=CACHE_BYTES,
                matrix_of_its_chunks=solve.operator_bytes,
                shares_of_clusters=int(4 * c * own),
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
        transient_bytes=4 * solve.columns * m + solve.checkpoints_bytes(sizes) + 16 * sizes.n_fused,
        scratch_bytes=scratch,
    )


def copies(sizes: Sizes) -> int:
    """Bytes of copies of blocks in a worker that has the memory for them, 0 where the workers are few."""
    if not sizes.is_chunked or sizes.n_busy < COPIED_FROM:
        return 0
    solve = solve_of_pairs(sizes)
    return 0 if solve.needs_scratch(sizes) else solve.copies_bytes(sizes)


def labels_in_buckets(m: int) -> int:
    """Tasks that put labels into the user's order."""
    return math.ceil(m / BUCKET_ROWS)

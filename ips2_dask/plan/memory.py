"""The memory model: bytes of arrays by stage, role and phase, of runs in core and in chunks.

A stage is one function; a term is an array or a buffer that is alive at the peak of a phase. Constants were measured as
peak resident memory of processes where they don't say (estimated), or that the package enforces them as a limit.
`tests/plan/test_plan_measured.py` compares the model with the peaks of runs.

In chunks no term grows with the samples at fixed rows of a partition, but for the share of a worker: the rows that its
chunks have of a matrix and of block vectors. They are results of tasks, which Dask writes to disk where they don't fit.
The driver's terms grow with the numbers of partitions, shards and chunks, which are bounded (`ips2_dask.plan.choices`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ips2_dask.kernels.density import TREE_SAMPLES
from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import EXACT_COLUMNS, RECALL_ROWS
from ips2_dask.kernels.ritz import COLUMNS as RITZ_COLUMNS
from ips2_dask.kernels.rounding import ROWS as ASSIGNED_ROWS
from ips2_dask.kernels.rounding import START_SAMPLES
from ips2_dask.kernels.shards import MAX_IN_TREE, rows_of_block
from ips2_dask.plan.sizes import Sizes

Role: TypeAlias = Literal["worker", "driver", "scheduler"]
"""The processes of a run. The scheduler is one of its own, or shares the driver's process."""

ROLES: tuple[Role, ...] = ("worker", "driver", "scheduler")

USABLE = 0.9
"""Share of a worker's limit that a plan counts on: a little above it the worker is ended."""

HELD = 0.6
"""Share of it above which Dask writes results of tasks to disk (``distributed.worker.memory.target``)."""

EXACT, LEIDEN = "solve on pairs", "communities"
"""Phases of the driver: the pairs' eigenvectors are solved for, and it finds Leiden's communities."""

# ---- bytes of processes

BASELINE_BYTES = 420 << 20  # a process that has done nothing: Python, NumPy, SciPy, Numba's compiler, Dask
SOLVED_BYTES = 200 << 20  # more in the driver after a solve: SciPy's modules, and memory not given back
SOLVED_WORKER_BYTES = 96 << 20  # more in a worker after one: compiled code, memory not given back (78 MiB)
CACHE_BYTES = 256 << 20  # most of the cache of parts that a process read last: a limit
UNTIDIED_BYTES = 64 << 20  # graph up to which a worker keeps it between stages (`execution.MIN_BYTES_TO_TIDY`)
SCHEDULER_BYTES = 200 << 20  # a scheduler that knows no task (estimated)
TASK_BYTES = 8_500  # of a task that the scheduler knows: 7.3 to 9.3 kB
WORKER_BYTES = 1 << 20  # of a worker that it knows (estimated)
RECEIPT_BYTES = 2_000  # of a part's receipt in the driver, which has read those of all parts (estimated)
SENT_BYTES = 300  # in the driver of what one partition sends to another, in receipt and table (estimated)
PARTS = {"ingest": 3, "neighbors": 9, "tensor": 13, "assemble": 16, "eigen": 19, "fuse": 25, "label": 32}
"""Parts of a partition whose receipts the driver has read by the end of each stage (counted)."""

# ---- bytes of rows

DIGEST_BYTES = 96  # of a row while digests of a range are joined, sorted and compared
NUMBERED_ROW_BYTES = 96  # of a row of a partition, besides X, while its digests are sorted
EQUAL_ROW_BYTES = 48  # on disk while equal rows are found: digest and number, head, and which rows are samples
ROW_ENTRY_BYTES = 16  # with a sample on its way to a shard where rows are merged: first row, and number of rows
BY_SAMPLE_BYTES = 20  # of a row of a bucket whose rows are sorted by sample
KMEANS_BYTES = 9  # a value of the sample for the cells while k-means runs on it
LEIDEN_EDGE_BYTES = 150  # for each entry of U on one side of its diagonal: entries, igraph's graph, communities
NUMBERED_BYTES = 24  # of each pair of a chunk's neighbourhoods while pairs are numbered
ENTRY_BYTES = 8  # of an entry of a chunk's matrix: an int32 place and a float32 value
CUT_ENTRY_BYTES = 12 + 8 + 9 + 16  # of an entry of U in a cut: as stored, its row, labels, and what is equal
NODE_BYTES = 40  # of a node of a graph: degree, component, sample, priority, state and aggregate
LOOKED_UP_BYTES = 32 << 21  # pairs of other partitions among which pairs are looked up at a time: a limit
SPLIT_BYTES = 256 << 20  # of a batch of rows that a task sorts by shard: a limit

# ---- numbers

SAMPLE_PER_SHARD = 200  # samples, per shard, that are drawn to place the cells: a limit
SHARD_SPREAD = 4  # members of the largest shard over those of the mean shard, at most
TWO_LEVEL_MEMBERS = 4 * EXACT_COLUMNS  # members of a shard above which it is searched by sub-cells
RANGE = 1 << 14  # samples whose pairs a task sums at a time (`stages.eigen.RANGE`)
RANGE_TOUCHED = 3.0  # samples that such a range touches over its own, where samples are numbered by closeness
LOCAL_ROWS = 3.0  # samples of a partition's local graph over its own: 2.05 at 2,087 samples, 1.44 at 16,000
LOCAL_COPIES = 3  # times that a local graph is in memory while it is put together
TOUCHED = 1.75  # samples that a chunk touches over its own: 1.72 in 40 chunks
NEAR_CELLS = 64  # cells that are second nearest for samples of one cell (estimated)
NEAR_PARTITIONS = 64  # partitions that the neighbourhoods of a partition's samples lie in: 39, and some to spare
ISLANDS = 256  # connected components that lie inside one partition, at most (estimated)
DENSITY_COPIES = 6  # times the points of a tree, as float64, with neighbours and edges (estimated)
BUCKET_ROWS = 1 << 24  # rows of a bucket of labels in the user's order, which one task fills
FILTER_BLOCKS = 3  # blocks that a filter works on: y, the one before it, and the result
COARSE_SHARE, COARSE_ENTRIES = 0.2, 24  # nodes of the next coarser graph, and entries of its rows: 15 to 30
WHOLE = 1 << 19  # most nodes of a graph that one task solves (`stages.chunk_levels.WHOLE`)


def usable(limit: int) -> int:
    """The bytes that a plan counts on of a worker's memory limit."""
    return int(USABLE * limit)


@dataclasses.dataclass(frozen=True)
class Phase:
    """What a process of a role holds at most while a stage does one kind of work: names of arrays, and their bytes."""

    role: Role
    name: str
    terms: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of all terms together."""
        return sum(size for _, size in self.terms)

    @property
    def largest(self) -> tuple[str, int]:
        """The largest term."""
        return max(self.terms, key=lambda term: term[1])


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Projected memory and disk of a stage.

    Attributes
    ----------
    phases : tuple of Phase
        Of all roles. A process needs the bytes of its largest phase.
    disk_bytes, transient_bytes : int
        What the stage leaves in the run directory, and what it has there beside that until it ends.
    scratch_bytes : int
        What Dask writes to each worker's local disk, where results of tasks don't fit into its memory.
    """

    phases: tuple[Phase, ...]
    disk_bytes: int
    transient_bytes: int = 0
    scratch_bytes: int = 0

    def peak(self, role: Role) -> Phase | None:
        """The largest phase of a role, or None where it has none."""
        return max((one for one in self.phases if one.role == role), key=lambda one: one.bytes, default=None)

    def bytes_of(self, role: Role) -> int:
        """Bytes of the largest phase of a role, 0 where it has none."""
        phase = self.peak(role)
        return 0 if phase is None else phase.bytes


def _terms(terms: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Terms that are not zero, in whole bytes; underscores of their names stand for spaces."""
    return tuple((name.replace("_", " "), int(size)) for name, size in terms.items() if int(size))


def _worker(name: str, process: int = BASELINE_BYTES, **terms: int) -> Phase:
    return Phase("worker", name, _terms({"process": process, **terms}))


def _driver(name: str, process: int = BASELINE_BYTES, **terms: int) -> Phase:
    return Phase("driver", name, _terms({"process": process, **terms}))


def footprints(sizes: Sizes, resident: int, known: dict[str, int], *, scheduler_apart: bool) -> dict[str, Footprint]:
    """The footprint of each stage.

    Parameters
    ----------
    sizes : Sizes
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    known : dict
        Most tasks that the scheduler knows at a time, by stage.
    scheduler_apart : bool
        Whether the scheduler is a process of its own; else it shares the driver's.
    """
    stages = {
        "ingest": _ingest(sizes, resident),
        "neighbors": _neighbors(sizes),
        "tensor": _tensor(sizes),
        "assemble": _degrees(sizes),
        "eigen": _eigen_chunked(sizes) if sizes.is_chunked else _eigen(sizes),
        "fuse": _fuse(sizes),
        "label": _label_chunked(sizes) if sizes.is_chunked else _label(sizes),
    }
    found = {}
    for stage, footprint in stages.items():
        more = {
            "tasks that the scheduler knows": TASK_BYTES * known[stage],
            "its workers": WORKER_BYTES * sizes.n_workers,
        }
        if scheduler_apart:
            own = Phase("scheduler", "scheduler", _terms({"process": SCHEDULER_BYTES, **more}))
            phases = (*footprint.phases, own)
        else:
            phases = tuple(
                dataclasses.replace(one, terms=(*one.terms, *_terms(more))) if one.role == "driver" else one
                for one in footprint.phases
            )
        found[stage] = dataclasses.replace(footprint, phases=phases)
    return found


def _receipts(sizes: Sizes, stage: str, *, solved: bool = False) -> dict[str, int]:
    """Terms that the driver of a run in chunks has throughout a stage."""
    process = BASELINE_BYTES + (SOLVED_BYTES if solved else 0)
    return {"process": process, "receipts": RECEIPT_BYTES * PARTS[stage] * sizes.n_made}


def _graph_of(sizes: Sizes, rows: float) -> int:
    """Bytes of the local graph of so many samples while it is put together."""
    return int(LOCAL_COPIES * sizes.graph_row_bytes * min(sizes.m, rows))


def _ingest(sizes: Sizes, resident: int) -> Footprint:
    """Partition by partition."""
    partition, rows = 24 * sizes.partition_rows * sizes.f, sizes.partition_rows
    merged = sizes.m if sizes.params.merges_rows else 0
    return Footprint(
        (
            _worker("partition", rows_of_a_partition=partition),
            _worker("equal rows", digests_of_a_range=DIGEST_BYTES * -(-merged // n_ranges(sizes.m))),
            _worker(
                "distinct rows",
                cache=min(sizes.samples_bytes, CACHE_BYTES),
                numbers_of_a_partition=NUMBERED_ROW_BYTES * rows if merged else 0,
                rows_of_a_partition=8 * rows * sizes.f,
            ),
            _driver("partition", rows_of_a_partition=partition, input_held_whole=resident),
        ),
        disk_bytes=sizes.samples_bytes,
        transient_bytes=EQUAL_ROW_BYTES * merged,
    )


def largest_shard(sizes: Sizes) -> int:
    """Members of the largest shard, at most."""
    return min(sizes.m, SHARD_SPREAD * sizes.shard_members)


def _neighbors(sizes: Sizes) -> Footprint:
    """The sharded graph reads a shard at a time; an exact search reads all of X in every process."""
    m, f, graph, n_shards = sizes.m, sizes.f, sizes.graph_bytes, sizes.choices.n_shards
    lists, rows, members = 8 * sizes.n_stored_neighbors, sizes.partition_rows, largest_shard(sizes)
    if not n_shards:
        terms = {"samples": sizes.samples_bytes, "graph": graph}
        return Footprint((_worker("search", **terms), _driver("search", **terms)), disk_bytes=lists * m)
    copies = 4 if METRICS[sizes.params.metric].compares_pairs else 2
    shard = 4 * members * (copies * f + 64)
    batch = min(sizes.samples_bytes, max(SPLIT_BYTES, 4 * rows * f))
    cells = _worker(
        "cells",
        sample_for_the_cells=KMEANS_BYTES * f * min(m, SAMPLE_PER_SHARD * n_shards),
        tree_of_the_cells=8 * n_shards**2 if n_shards <= MAX_IN_TREE else 0,
    )
    transient = 2 * m * (4 * f + lists + 12)  # each row and its number, and each list, once for either shard
    if not sizes.is_chunked:
        return Footprint(
            (
                cells,
                _worker("split", batch_of_rows=4 * batch, numbering=2 * graph),
                _worker("search", shard=shard, graph=2 * graph),
                _driver("number", graph=2 * graph, order_and_rank=24 * m),
            ),
            disk_bytes=sizes.samples_bytes + lists * m,
            transient_bytes=transient,
        )
    row_entry, driver = ROW_ENTRY_BYTES if sizes.params.merges_rows else 0, _receipts(sizes, "neighbors")
    return Footprint(
        (
            cells,
            _worker(
                "assign",
                rows_of_a_partition=8 * rows * f,
                distances_to_cells=3 * 4 * min(rows, rows_of_block(n_shards)) * n_shards,
            ),
            _worker("split", batch_of_rows=4 * batch, rows_of_the_input=3 * row_entry * batch // (4 * f)),
            _worker(
                "search",
                shard=shard,
                rows_of_the_input=3 * row_entry * members,
                lists_of_sub_cells=2 * lists * members if members > TWO_LEVEL_MEMBERS else 0,
            ),
            _worker(
                "merge",
                lists_of_two_shards=2 * (lists + 12) * members,
                lists_of_a_partition=3 * (lists + 8) * rows,
                cache=CACHE_BYTES,
            ),
            _worker(
                "refine",
                local_graph=_graph_of(sizes, LOCAL_ROWS * rows),
                lists_of_a_partition=3 * (lists + 8) * rows,
                **_rows_measured(sizes, LOCAL_ROWS),
            ),
            _driver("cells", **driver, samples_by_pair_of_cells=3 * 16 * NEAR_CELLS * n_shards),
            _driver(
                "recall",
                **driver,
                true_neighbours=2 * 4 * min(m, RECALL_ROWS) * sizes.n_stored_neighbors * sizes.n_made,
            ),
        ),
        disk_bytes=sizes.samples_bytes + (lists + 8) * m,
        transient_bytes=transient + 2 * row_entry * m,
    )


def _rows_measured(sizes: Sizes, times: float) -> dict[str, int]:
    """Terms of the rows of X that a partition's distances are measured on, ``times`` as many as the partition has.

    Of given distances a partition may need the rows of all samples; else it needs those of its neighbourhoods, several
    times while they are put together, beside the parts that they were read from (measured on 4,096 features).
    """
    m, f = sizes.m, sizes.f
    if sizes.params.metric == "precomputed":
        return {"given_distances": 12 * m * m}
    rows = min(m, int(times * sizes.partition_rows))
    return {"rows_of_neighbours": 24 * f * rows, "cache": min(sizes.samples_bytes, CACHE_BYTES)}


def _tensor(sizes: Sizes) -> Footprint:
    """Neighbourhoods by partition: in core each task loads the whole graph, in chunks a local one."""
    m, k, rows, triplets = sizes.m, sizes.k, sizes.partition_rows, sizes.choices.operator == "triplets"
    bits = sum(math.comb(k, size) for size in range(1, min(k, 4) + 1))
    made = 4 * sizes.triplets_bytes * rows // m if triplets else rows * (2 * bits + 12 * sizes.local_pairs + 4 * k * k)
    stored = sizes.triplets_bytes // 2 if triplets else sizes.neighborhoods_bytes
    if sizes.is_chunked:
        phases = (
            _worker(
                "neighbourhoods",
                local_graph=_graph_of(sizes, LOCAL_ROWS * rows),
                neighbourhoods=made,
                **_rows_measured(sizes, min(k, LOCAL_ROWS)),
            ),
            _driver(
                "tensor",
                **_receipts(sizes, "tensor"),
                pair_counts=64 * sizes.n_made,
                who_sends_to_whom=SENT_BYTES * NEAR_PARTITIONS * sizes.n_made,
            ),
        )
    else:
        phases = (
            _worker("neighbourhoods", graph=sizes.graph_bytes, **_rows_measured(sizes, k), neighbourhoods=made),
            _driver("pairs", pair_counts=16 * m, graph=sizes.lists_bytes),
        )
    return Footprint(phases, disk_bytes=stored + 8 * sizes.n_pairs)


def _range_bytes(sizes: Sizes, rows: int, columns: int, touched: float = RANGE_TOUCHED) -> dict[str, int]:
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


def _degrees(sizes: Sizes) -> Footprint:
    """The stage ``assemble``: degrees by partition; components by the driver, or in chunks by contraction."""
    rows, disk = sizes.partition_rows, 8 * sizes.n_pairs
    if not sizes.is_chunked:
        terms = _range_bytes(sizes, rows, 2, min(sizes.k, sizes.n_partitions))
        return Footprint(
            (
                _worker("degrees", graph=sizes.lists_bytes, cache=CACHE_BYTES, **terms),
                _driver("components", graph=sizes.lists_bytes),
            ),
            disk_bytes=disk,
        )
    edges = _graph_of(sizes, LOCAL_ROWS * rows) + 32 * sizes.n_stored_neighbors * rows
    graph = 3 * 16 * (NEAR_PARTITIONS + ISLANDS) * sizes.n_made
    return Footprint(
        (
            _worker("degrees", cache=CACHE_BYTES, **_range_bytes(sizes, rows, 2)),
            _worker("components", edges_of_a_partition=edges),
            _driver("components", **_receipts(sizes, "assemble"), contracted_graph=graph),
        ),
        disk_bytes=disk + 4 * sizes.m,
        transient_bytes=16 * sizes.m,  # the islands of each partition, and its edges to others
    )


def n_ranges_of_pairs(sizes: Sizes) -> int:
    """Tasks that sum the pairs of some samples."""
    return min(2_000, -(-sizes.m // RANGE))


def _exact_solve(sizes: Sizes) -> Phase:
    """The driver's phase where the pairs' eigenvectors are solved for: the operator, as it is made, and blocks."""
    operator = sizes.neighborhoods_bytes
    if sizes.choices.operator == "triplets":
        operator = sizes.triplets_bytes + 2 * sizes.csr_bytes
    return _driver(
        EXACT,
        graph=sizes.graph_bytes,
        operator=operator,
        assembled_operator=sizes.csr_bytes + 48 * sizes.n_pairs if sizes.choices.assembled else 0,
        blocks=sizes.blocks_bytes,
    )


def _eigen(sizes: Sizes) -> Footprint:
    """In core: blocks are arrays of the driver, of samples, or of pairs where their eigenvectors are solved for."""
    m, columns = sizes.m, sizes.columns
    if sizes.choices.exact:
        idle = _worker("idle", graph_of_the_stage_before=min(sizes.lists_bytes, UNTIDIED_BYTES))
        return Footprint(
            (idle, _exact_solve(sizes)),
            disk_bytes=4 * sizes.n_solved * sizes.n_pairs,
            transient_bytes=2 * sizes.block_bytes,  # two checkpoints
        )
    rows = _range_bytes(sizes, RANGE, columns, min(sizes.k, n_ranges_of_pairs(sizes)))
    graph, blocks = 3 * 8 * (2 * sizes.k - 1) * m, 5 * 4 * columns * m
    return Footprint(
        (
            _worker("sums of pairs", graph=sizes.lists_bytes, cache=CACHE_BYTES, **rows),
            _driver("levels", graph=sizes.lists_bytes, sample_graph=graph, blocks=blocks),
        ),
        disk_bytes=4 * columns * m,
        transient_bytes=3 * 8 * columns**2 * n_ranges_of_pairs(sizes),
    )


@dataclasses.dataclass(frozen=True)
class Solve:
    """A solve on blocks of samples in chunks: the columns of a block, and the entries of the matrix."""

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

    def phases(self, sizes: Sizes) -> tuple[tuple[Phase, ...], int]:
        """The phases of a worker, and the bytes that Dask writes to its disk: 0 where they fit into its memory."""
        part, nodes = sizes.chunk_rows / sizes.m, min(WHOLE, COARSE_SHARE * sizes.m)
        filtered = {
            "rows_of_a_chunk": int(part * ENTRY_BYTES * self.entries),
            "product_of_a_chunk": int((3 + 2 * TOUCHED) * part * self.block_bytes(sizes)),
        }
        merged = {  # of the task that merges a chunk's rows, with its share of the matrix as it is
            "rows_of_a_chunk": int(part * (12 + ENTRY_BYTES) * self.entries),
            "merged_rows": int(part * COARSE_SHARE * COARSE_ENTRIES * 60 * sizes.m),
        }
        coarse = int(nodes * (COARSE_ENTRIES * 3 * 16 + NODE_BYTES + 5 * 4 * self.columns))
        held, limit = self.held_bytes(sizes), sizes.worker_limit
        matrix = {"matrix_of_its_chunks": held["matrix_of_its_chunks"]}
        as_it_is = {"matrix_as_it_is": int(sizes.worker_share * 12 * self.entries)}
        tasks: tuple[tuple[str, dict[str, int], dict[str, int]], ...] = (
            (f"filter of {self.name}", filtered, held),
            (f"levels of {self.name}", merged, {**as_it_is, **matrix}),
            (f"coarsest level of {self.name}", {"coarse_graph": coarse}, matrix),
        )
        in_memory = tuple(_worker(name, **terms, **kept) for name, terms, kept in tasks)
        fits = limit is None or (_most(in_memory) <= usable(limit) and sum(held.values()) <= HELD * limit)
        return (
            (in_memory, 0) if fits else (tuple(_worker(name, **terms) for name, terms, _ in tasks), sum(held.values()))
        )

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


def _eigen_chunked(sizes: Sizes) -> Footprint:
    """The sample graph's vectors by levels, and the sums of all pairs, range by range."""
    samples, columns, exact = solve_of_samples(sizes), sizes.columns, sizes.choices.exact
    (of_samples, scratch), graph = samples.phases(sizes), _graph_of(sizes, TOUCHED * sizes.chunk_rows)
    small = samples.small_bytes(sizes)
    return Footprint(
        (
            _worker("sample graph of a chunk", cache=CACHE_BYTES, graph_of_a_chunk=graph),
            *of_samples,
            _worker("sums of pairs", cache=CACHE_BYTES, **_range_bytes(sizes, RANGE, columns)),
            _driver("solve", **_receipts(sizes, "eigen", solved=True), small_matrices=small),
            *((_exact_solve(sizes),) if exact else ()),
        ),
        disk_bytes=4 * sizes.n_solved * sizes.n_pairs if exact else 4 * columns * sizes.m,
        transient_bytes=3 * 8 * columns**2 * n_ranges_of_pairs(sizes),
        scratch_bytes=scratch,
    )


def _after_solve(sizes: Sizes) -> dict[str, int]:
    """Terms of the driver after an in-core solve: the operator of pairs that were solved for stays in its memory."""
    return {
        "process": BASELINE_BYTES + SOLVED_BYTES,
        "graph": sizes.lists_bytes,
        "components": 100 * sizes.m,
        "operator_of_the_solve": sizes.neighborhoods_bytes if sizes.choices.exact else 0,
    }


def _fuse(sizes: Sizes) -> Footprint:
    """S, V and U by partition."""
    m, rows = sizes.m, sizes.partition_rows
    similarities = 2 * sizes.similarity_bytes * rows // m
    dense = sizes.similarity_bytes if sizes.is_dense else 0
    if not sizes.is_chunked:
        return Footprint(
            (
                _worker(
                    "fuse",
                    similarities_of_a_partition=similarities,
                    graph=sizes.lists_bytes,
                    **_rows_measured(sizes, sizes.k),
                ),
                _driver("fuse", **_after_solve(sizes), dense_similarity=dense),
            ),
            disk_bytes=sizes.similarity_bytes,
        )
    return Footprint(
        (
            _worker(
                "fuse a partition",
                process=BASELINE_BYTES + SOLVED_WORKER_BYTES,
                local_graph=_graph_of(sizes, LOCAL_ROWS * rows),
                similarities_of_a_partition=similarities,
                vectors_of_a_partition=int(LOCAL_ROWS * rows * (4 * sizes.columns + 24 * sizes.n_solved)),
                **_rows_measured(sizes, min(sizes.k, LOCAL_ROWS)),
            ),
            _driver("fuse", **_receipts(sizes, "fuse", solved=True), dense_similarity=dense),
        ),
        disk_bytes=sizes.similarity_bytes,
        transient_bytes=32 * m if sizes.params.fusion == "normalized" else 0,  # row sums that partitions send
    )


def _communities(sizes: Sizes, **terms: int) -> tuple[Phase, ...]:
    """The driver's phase while it finds communities: the whole graph of U, also where vectors are in chunks."""
    if sizes.params.assign_labels != "leiden":
        return ()
    edges = sizes.m * (sizes.m - 1) // 2 if sizes.is_dense else sizes.n_fused
    return (_driver(LEIDEN, **terms, graph_of_all_samples=LEIDEN_EDGE_BYTES * edges, labels=40 * sizes.m),)


def _label(sizes: Sizes) -> Footprint:
    """In core: U as CSR, its own solve or k-means, and the shares of clusters."""
    m, columns, driver = sizes.m, sizes.n_embedded, _after_solve(sizes)
    fused = 2 * sizes.similarity_bytes if sizes.is_dense else 24 * sizes.n_fused
    blocks = 16 * sizes.embedded_columns * m
    return Footprint(
        (
            _worker(
                "k-means", graph_of_the_stage_before=min(sizes.lists_bytes, UNTIDIED_BYTES), embedding=32 * m * columns
            ),
            _driver("solve", **driver, fused_similarity=fused + fused // 3, blocks=blocks),
            _driver("roundings", **driver, fused_similarity=fused, embeddings=56 * m * columns, labels=120 * m),
            *_communities(sizes, **driver, fused_similarity=fused),
        ),
        disk_bytes=12 * m * columns + 4 * m * sizes.params.n_clusters,
    )


def _label_chunked(sizes: Sizes) -> Footprint:
    """The solve on U, k-means by partial sums, the tree of a sample, walks on U, and labels by buckets."""
    m, c, d, rows, chunk = sizes.m, sizes.params.n_clusters, sizes.n_embedded, sizes.partition_rows, sizes.chunk_rows
    solve, driver = solve_of_embedding(sizes), _receipts(sizes, "label", solved=True)
    of_solve, scratch = solve.phases(sizes)
    own, starts = sizes.worker_share * m, 8 * d * min(m, 4 * START_SAMPLES)
    walk = {
        "matrix_of_its_chunks": solve.held_bytes(sizes)["matrix_of_its_chunks"],
        "shares_of_clusters": int(2 * 4 * c * own),
        "rows_of_other_chunks": int((TOUCHED - 1) * 4 * c * own),
    }
    if scratch:
        walk = {}
    bucket = (9 + (BY_SAMPLE_BYTES if sizes.params.merges_rows else 0)) * min(m, BUCKET_ROWS)
    return Footprint(
        (
            _worker("U of a chunk", cache=CACHE_BYTES, entries_of_a_chunk=3 * 2 * 12 * sizes.n_fused * chunk // m),
            *of_solve,
            _worker(
                "k-means",
                cache=CACHE_BYTES,
                points_of_a_partition=(2 * 4 + 2 * 8) * d * rows,
                distances_of_some=3 * 8 * (c + d) * min(rows, ASSIGNED_ROWS),
            ),
            _worker("starts of k-means", sample_of_the_starts=3 * starts),
            _worker("tree", points_of_the_tree=DENSITY_COPIES * 8 * d * min(m, TREE_SAMPLES[1])),
            _worker("walks", **walk, product_of_a_chunk=int((2 + 2 * TOUCHED) * 4 * c * chunk)),
            _worker(
                "cuts", cache=CACHE_BYTES, **walk, entries_of_a_chunk=2 * CUT_ENTRY_BYTES * sizes.n_fused * chunk // m
            ),
            _worker("labels in the user's order", bucket=bucket, labels_of_a_partition=64 * rows),
            _driver(
                "solve and roundings", **driver, small_matrices=solve.small_bytes(sizes), sample_of_the_starts=starts
            ),
            *_communities(sizes, **driver),
        ),
        disk_bytes=12 * m * d + 4 * m * c + 18 * m,
        transient_bytes=3 * solve.block_bytes(sizes) + 16 * sizes.n_fused,
        scratch_bytes=scratch,
    )


def labels_in_buckets(m: int) -> int:
    """Tasks that put labels into the user's order."""
    return math.ceil(m / BUCKET_ROWS)

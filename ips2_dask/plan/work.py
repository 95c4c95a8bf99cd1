"""The work of the stages as a table: what tasks go over, what one holds, and how long they take.

A row is a kind of task. Memory of a process is what it has anyway and the largest row; tasks are the items of all rows;
seconds are a rate times what a stage goes over, shared by workers. In core is the same work on one chunk of all
samples, whose tasks run in the driver. Bytes and rates were measured on processes of two virtual cores of a server,
where they don't say (estimated): seconds are a guess to a factor of about three.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ips2_dask.kernels import eigen, levels, ritz, rounding, shards
from ips2_dask.kernels.extension import is_normalized
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import EXACT_COLUMNS, RECALL_ROWS
from ips2_dask.plan.choices import DESCENT_MEMBERS, SHARD_FEATURES, SHARD_MEMBERS, comparison_times
from ips2_dask.plan.sizes import HALOS, Role, Sizes
from ips2_dask.stages import block_tasks, chunk_levels, kmeans, sharding, views
from ips2_dask.stages.eigen import RANGE
from ips2_dask.store.cache import CACHE_BYTES
from ips2_dask.store.layout import STAGES

ROLES: tuple[Role, ...] = ("worker", "driver", "scheduler")

USABLE, HELD = 0.9, 0.6
"""Shares of a worker's limit: what a plan counts on, since a little above the worker is ended; and above which Dask
writes results of tasks to disk (``distributed.worker.memory.target``)."""

EXACT, LEIDEN = "solve on pairs", "communities"
"""Rows of the driver: the pairs' eigenvectors are solved for, and it finds Leiden's communities."""

MAX_TASKS = 60_000
"""Tasks that the scheduler should know at a time, at most: a quarter of a minute of its time."""

# bytes
PROCESS = 420 << 20  # of one that has done nothing: Python, NumPy, SciPy, Numba's compiler, Dask
AFTER_SOLVE = {"driver": 200 << 20, "worker": 96 << 20}  # more after a solve: modules, code, memory not given back
TASK_BYTES = 8_500  # of a task that the scheduler knows: 7.3 to 9.3 kB
WORKER_BYTES, SCHEDULER_BYTES = 1 << 20, 200 << 20  # of a worker that it knows, and of itself (estimated)
RECEIPT_BYTES = 2_000  # of a part of a partition, whose receipt the driver has read (estimated)
EQUAL_ROW_BYTES, NUMBERED_ROW_BYTES = 48, 96  # on disk while equal rows are found; besides X while digests are sorted
ROW_ENTRY_BYTES = 16  # of a sample on its way to a shard where rows are merged: first row, and number of rows
SHARD_SPREAD = 4  # members of the largest shard over those of the mean shard, at most
LOCAL_COPIES = 3  # times that a local graph is in memory while it is put together
TOUCHED = 1.75  # samples that a chunk touches over its own: 1.72 in 40 chunks
LOOKED_UP_BYTES, NUMBERED_BYTES = 32, 24  # of pairs among which pairs are looked up, and of each pair then
FUSED_BYTES, CUT_BYTES = 120, 90  # of an entry of U on one side of its diagonal while it is made, and in a cut
COARSE_SHARE, COARSE_ENTRIES = 0.2, 24  # nodes of the next coarser graph, and entries of its rows: 15 to 30
NODE_BYTES = 40  # of a node of a graph: degree, component, sample, priority, state and aggregate
LEIDEN_EDGE_BYTES = 150  # of an entry of U on one side of its diagonal: entries, igraph's graph, communities

# seconds
SCHEDULER_TASK, TASK = 2.5e-4, 3e-4  # of a task in the scheduler, and with the driver, by simulated workers
PART = 1.6e-3  # of a part that a process reads, on a local disk
OVERHEAD, DRIVER_PARTS = 0.3, 2  # of a stage that has next to nothing to do; parts of a partition the driver waits for
INGEST = 9e-8  # per value
COMPARE = 4e-11  # per pair of samples that is compared, and feature, plus 64 features for what every pair costs
CELL_ROUNDS = 10  # of k-means of the cells
TENSOR, DEGREES, PAIR_SUMS, FUSE = 6e-7, 8e-7, 8e-7, 6e-7  # per sample and local pair
LEVELS = 1.2e-5  # per sample: a graph put together, its levels
LABEL = 3.3e-6  # per sample and cluster
LEIDEN_EDGE, LEIDEN_TRIALS = 3.5e-6, 8  # per entry of U, and searches where c is given: on 8.6 million entries
ENTRY = 1.8e-10  # per stored entry and column of a product
BLOCK, COLUMN = 1.2e-9, 6e-11  # per entry of a block that is made anew, and for each column that it multiplies
PAIR_PRODUCTS = 20.0, 50  # of a solve on pairs for each decimal of its tolerance, and without one: 14 to 90
SPILLED_TIMES = 2.0  # times as long takes a solve whose results are written to disk


def usable(limit: int) -> int:
    """The bytes that a plan counts on of a worker's memory limit."""
    return int(USABLE * limit)


class Row(NamedTuple):
    """A kind of task, or what a process does by itself: the tasks of each item, and the bytes that one holds."""

    role: Role
    name: str
    terms: tuple[tuple[str, int], ...]
    over: str = ""
    """The kind of the items, as of `Sizes.items`; none for what a process does by itself."""
    times: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of all terms together."""
        return sum(size for _, size in self.terms)

    @property
    def largest(self) -> tuple[str, int]:
        """The largest term."""
        return max(self.terms, key=lambda term: term[1])

    def tasks(self, z: Sizes) -> int:
        """Tasks of all items."""
        return self.times * z.items[self.over]

    def known(self, z: Sizes) -> int:
        """Most of them that the scheduler knows at a time: those of one pass, or of products that are sent together."""
        items = z.items[self.over]
        return min(levels.PRODUCTS * items, block_tasks.MOST_TASKS + items) if self.over == HALOS else items


class Work(NamedTuple):
    """The rows of a stage, its seconds, and bytes on disk: besides what it leaves, and on each worker's own."""

    rows: list[Row]
    seconds: float
    transient: int = 0
    scratch: int = 0
    products: int = 0


def _row(name: str, over: str = "", times: int = 1, role: Role = "worker", /, **holds: float) -> Row:
    """A row; underscores of terms stand for spaces, and terms of 0 are left out."""
    terms = tuple((term.replace("_", " "), int(n)) for term, n in holds.items() if int(n))
    return Row(role, name, terms, over, times)


def work(z: Sizes, resident: int = 0) -> dict[str, Work]:
    """The work of each stage. ``resident``: bytes that the input's format needs in one process to be read at all."""
    known = {"neighbors": _neighbors, "tensor": _tensor, "assemble": _assemble, "eigen": _eigen, "fuse": _fuse}
    of_stages = {"ingest": _ingest(z, resident), **{name: of(z) for name, of in known.items()}, "label": _label(z)}
    return {name: of_stages.get(name, Work([_row(name, "partitions")], 0.0)) for name in STAGES}  # or one pass


def _graph(z: Sizes, samples: float) -> float:
    """Bytes of the graph of so many samples while it is put together; a task in core has that of all."""
    return LOCAL_COPIES * z.graph_row_bytes * (min(z.m, samples) if z.is_chunked else z.m)


def _measured(z: Sizes) -> dict[str, float]:
    """Terms of the rows of X that a partition's distances are measured on: of given distances all may be needed."""
    if z.params.metric == "precomputed":
        return {"given_distances": 12 * z.m * z.m}
    return {"rows_of_neighbours": 24 * z.f * z.near(z.partition_rows), "cache": min(z.samples_bytes, CACHE_BYTES)}


def _ingest(z: Sizes, resident: int) -> Work:
    """Statistics and samples; of equal rows digests, numbers and the partitions of distinct samples at most."""
    rows, merged = z.partition_rows, z.m if z.params.merges_rows else 0
    partition = 24 * rows * z.f
    table = [
        _row("partition", "rows", 2, rows_of_a_partition=partition),
        _row("partition", "", 1, "driver", rows_of_a_partition=partition, input_held_whole=resident),
    ]
    if merged:
        terms = {"numbers": NUMBERED_ROW_BYTES * rows, "rows": 8 * rows * z.f}
        table.append(_row("distinct rows", "rows", 4, cache=min(z.samples_bytes, CACHE_BYTES), **terms))
        table.append(_row("equal rows", "digests", 2))
    return Work(table, INGEST * z.m * min(z.f, SHARD_FEATURES) * z.shared, EQUAL_ROW_BYTES * merged)


def _neighbors(z: Sizes) -> Work:
    """The sharded graph reads a shard at a time; an exact search reads all of X in every process."""
    m, f, n_shards = z.m, z.f, z.choices.n_shards
    compares_pairs, times = METRICS[z.params.metric].compares_pairs, comparison_times(z.params.metric)
    used = min(f, SHARD_FEATURES)
    if not n_shards:
        terms = {"samples": z.samples_bytes, "graph": m * z.graph_row_bytes}
        table = [_row("search", "rows", **terms), _row("search", "", 1, "driver", **terms)]
        return Work(table, _compared(z, m * times, used))
    batch = min(z.samples_bytes, max(sharding.SPLIT_BYTES, 4 * z.partition_rows * f))
    lists, members = 8 * z.params.n_stored_neighbors, min(m, SHARD_SPREAD * z.shard_members)
    of_row = ROW_ENTRY_BYTES if z.params.merges_rows else 0
    divided = members > shards.LARGE * SHARD_MEMBERS[1] and not compares_pairs
    shard = {"shard": 4 * members * ((4 if compares_pairs else 2) * f + 64), "rows_of_the_input": 3 * of_row * members}
    table = [
        _row("sample, assign and check", "rows", 3),
        _row("cells and their members", "groups"),
        _row("split", "batches", 2, batch_of_rows=4 * batch, rows_of_the_input=3 * of_row * batch // (4 * f)),
        _row("search", "shards", 2, **shard, lists_of_sub_cells=2 * lists * members * divided),
        _row("samples, numbers and merged lists", "partitions", 3),
        _row("recall", "reaches"),
        _row("recall", "", 1, "driver", true_neighbours=min(m, RECALL_ROWS) * lists * z.items["reaches"]),
    ]

    def compared(members: int) -> int:  # others in a shard, or in two sub-cells; pynndescent looks at no more
        at_once = members <= shards.LARGE * SHARD_MEMBERS[1]
        return times * min(members, DESCENT_MEMBERS[0] if compares_pairs else members if at_once else 4 * EXACT_COLUMNS)

    of_cells = 2 * COMPARE * (f + 64) * n_shards  # k-means of the drawn rows in one process, then the nearest of each
    cells = of_cells * (CELL_ROUNDS * min(m, sharding.SAMPLE_PER_SHARD * n_shards) + m * z.shared / 2)
    longest = 2 * COMPARE * (used + 64) * members * compared(members)  # the largest shard is one task
    search = _compared(z, (1 if compares_pairs else 2) * compared(z.shard_members), used)
    return Work(table, cells + max(longest, search), 2 * m * (4 * f + lists + 12 + of_row))


def _compared(z: Sizes, others: int, f: int) -> float:
    """Seconds of comparing each sample with so many others in f features."""
    return COMPARE * z.m * others * (f + 64) * z.shared


def exact_seconds(z: Sizes) -> float:
    """About how long it takes to compare every pair, where that follows a graph of low recall; 0 elsewhere."""
    return _compared(z, comparison_times(z.params.metric) * z.m, z.f) if z.choices.exact_after else 0.0


def _tensor(z: Sizes) -> Work:
    """Pairs and neighbourhoods by partition, from the graph near it."""
    rows = z.partition_rows
    each = 16 * z.owned_bytes + 12 * z.local_pairs + 4 * z.k**2
    made = rows * (80 * z.entries // z.m if z.choices.operator == "triplets" else each)
    terms = {"graph": _graph(z, z.near(rows)), "neighbourhoods": made, **_measured(z)}
    passes = 4 if z.is_chunked else 2  # there reverse lists are exchanged first
    return Work([_row("neighbourhoods", "partitions", passes, **terms)], TENSOR * z.m * z.local_pairs * z.shared)


def _pairs(z: Sizes, rows: int, columns: int) -> dict[str, float]:
    """Terms of a task on the pairs of so many samples: their rows of the operator, and of so many columns."""
    centers = z.near(rows)
    pairs, own = (n / z.m * z.n_pairs for n in (centers, min(z.m, rows)))
    operator = centers * ((NUMBERED_BYTES + 4) * z.local_pairs + 2 * z.k**2 + z.owned_bytes)
    if z.choices.operator == "triplets":
        operator = 64 * z.entries * centers / z.m
    return {
        "graph": 0 if z.is_chunked else _graph(z, z.m),
        "cache": CACHE_BYTES,
        "rows_of_the_operator": operator,
        "pairs_looked_up": LOOKED_UP_BYTES * min(views.PAIRS_AT_ONCE, z.n_pairs),
        "touched_pairs": (60 + 4 * min(columns, ritz.COLUMNS)) * pairs,
        "columns_of_its_pairs": 12 * columns * own,
    }


def _assemble(z: Sizes) -> Work:
    """Degrees by partition, and components by contraction."""
    degrees = _row("degrees", "partitions", 3, **_pairs(z, z.partition_rows, 2))
    table = [degrees, _row("joined pieces", "joined partitions")]
    return Work(table, DEGREES * z.m * z.local_pairs * z.shared, 16 * z.m)


def _solve(z: Sizes, name: str, columns: int, entries: int, filters: int, graph: float = 0) -> tuple[list[Row], int]:
    """A solve on blocks of samples by levels, and the bytes that Dask writes to each worker's disk.

    ``entries`` of the matrix; ``filters`` at the finest level; ``graph``: bytes that stay. A worker holds its share of
    what tasks leave for others, on disk where it does not fit. In core a task has no copies of what is held.
    """
    share, part, block, copies = z.worker_share, z.chunk_rows / z.m, 4 * z.m * columns, int(z.is_chunked)
    touched, all_levels = TOUCHED if copies else 1.0, 1 / (1 - COARSE_SHARE)  # each level has a share of the one above
    matrix = share * (8 * entries + NODE_BYTES * z.m)
    blocks = {"blocks_of_the_filter": 3 * share * block, "rows_of_other_chunks": (touched - 1) * share * block}
    held = int(matrix + sum(blocks.values()))
    product = (3 * copies + 2 * touched) * part * block
    filtered = {"rows_of_a_chunk": copies * part * 8 * entries, "product_of_a_chunk": product}
    merged = {"rows_of_a_chunk": part * 42 * entries, "merged_rows": part * COARSE_SHARE * COARSE_ENTRIES * 60 * z.m}
    nodes = min(chunk_levels.WHOLE, COARSE_SHARE * z.m)
    coarse = nodes * (COARSE_ENTRIES * 3 * 16 + NODE_BYTES + 20 * columns)
    more, halos = filters - 1, levels.PRODUCTS + 2 * levels.ROUNDS + 4  # of one level with its filter
    products, of_chunks = round(halos * all_levels + levels.PRODUCTS * more), round(16 * all_levels + 6 * more)

    def rows(kept: bool) -> list[Row]:
        terms = {"graph": graph, "matrix_of_its_chunks": kept * matrix}
        held_blocks, as_it_is = blocks if kept else {}, kept * share * 12 * entries
        filters = _row(f"filter of {name}", HALOS, products, z.solver, **terms, **held_blocks, **filtered)
        made = _row(f"levels of {name}", "chunks", of_chunks, z.solver, **terms, matrix_as_it_is=as_it_is, **merged)
        return [filters, made, _row(f"coarsest level of {name}", "", 1, z.solver, **terms, coarse_graph=coarse)]

    limit, largest = z.worker_limit if z.is_chunked else None, PROCESS + max(row.bytes for row in rows(True))
    fits = limit is None or (largest <= usable(limit) and held <= HELD * limit)
    return rows(fits), 0 if fits else held


def _eigen(z: Sizes) -> Work:
    """The sample graph's vectors by levels, and sums over the pairs by range; or the pairs' eigenvectors."""
    entries, columns, q, triplets = (2 * z.k - 1) * z.m, z.columns, z.local_pairs, z.choices.operator == "triplets"
    table, scratch = _solve(z, "the sample graph", columns, entries, 1, 0 if z.is_chunked else _graph(z, z.m))
    seconds = (
        (LEVELS * z.m + levels.PRODUCTS * ENTRY * columns * entries) * z.by_chunks * (SPILLED_TIMES if scratch else 1)
    )
    if not z.choices.exact:
        table.append(_row("sums of pairs", "ranges", **_pairs(z, RANGE, columns)))
        sums = 3 * 8 * columns**2 * z.items["ranges"]
        return Work(table, seconds + PAIR_SUMS * z.m * q * z.shared, sums, scratch)
    csr, assembled = 16 * z.entries, z.choices.assembled
    operator = 20 * z.entries + 2 * csr if triplets else z.m * (12 * q + 2 * z.k**2 + z.owned_bytes)
    terms = {"graph": z.m * z.graph_row_bytes, "operator": operator, "blocks": eigen.blocks_held(z.n_pairs, columns)}
    whole = csr + 48 * z.n_pairs if assembled else 0
    table.append(_row(EXACT, "", 1, "driver", assembled_operator=whole, **terms))
    product = z.m * q**2 * (BLOCK + COLUMN * columns)
    if assembled or triplets:
        product = ENTRY * columns * 1.5 * z.entries
    (each, settled), tol = PAIR_PRODUCTS, z.params.tol
    count = settled if tol is None else min(eigen.MAX_PRODUCTS, round(each * max(1.0, -math.log10(tol))))
    return Work(table, seconds + count * product, 8 * columns * z.n_pairs, scratch, count)


def _fuse(z: Sizes) -> Work:
    """S, V and U by partition; dense ones by the driver."""
    rows, normalized = z.partition_rows, is_normalized(z.params.fusion, z.params.method)
    terms = {"graph": _graph(z, z.near(rows)), "vectors": z.near(rows) * (4 * z.columns + 24 * z.n_solved)}
    similarities = FUSED_BYTES * z.n_joined * rows // z.m
    fuse = _row(
        "fuse a partition", "partitions", 2 + 2 * normalized, similarities=similarities, **terms, **_measured(z)
    )
    dense = _row("fuse", "", 1, "driver", dense_similarity=48 * z.n_fused if z.is_dense else 0)
    return Work([fuse, dense], FUSE * z.m * z.local_pairs * z.shared, 32 * z.m * normalized)


def _label(z: Sizes) -> Work:
    """The solve on U, trees and k-means of drawn rows, walks and cuts on U, and labels by partition and by bucket."""
    m, c, d, fused, chunk = z.m, z.params.n_clusters, z.n_embedded, z.n_fused, z.chunk_rows
    columns = eigen.block_width(d)
    table, scratch = _solve(z, "the fused similarity", columns, 2 * fused, 3)
    own = 0 if scratch else z.worker_share
    starts, cache = 8 * d * min(m, kmeans.most_drawn()), min(CACHE_BYTES, 24 * fused)
    points, distances = 24 * d * z.partition_rows, 24 * (c + d) * min(z.partition_rows, rounding.ROWS)
    walk = {"shares_of_clusters": own * (1 + TOUCHED) * 4 * c * m}
    if z.is_chunked:
        walk["matrix_of_its_chunks"] = own * (16 * fused + NODE_BYTES * m)
    else:  # parts stay in this process until the stage ends
        walk["rows_of_samples"] = 4 * m * (3 * d + c + columns)
    table += [
        _row("components, islands, embedding, drawn rows and labels", "partitions", 13),
        _row("joined pieces", "joined partitions"),
        _row("trees and starts", "roundings"),
        _row("k-means", "partitions", 2, cache=min(cache, 4 * d * m), points=points, distances=distances),
        _row("walks", HALOS, rounding.SPREAD_PRODUCTS + rounding.WALK + 3),
        _row("U and cuts", "chunks", 5, z.solver, entries_of_a_chunk=CUT_BYTES * fused * chunk // m, **walk),
        _row("labels in the user's order", "buckets"),
        _row("roundings", "", 1, "driver", sample_of_the_starts=starts, small_matrices=16 * columns**2 * z.n_chunks),
    ]
    # one task reads parts of all partitions: drawn rows, and those of a bucket
    seconds = LABEL * m * c * z.by_chunks * (SPILLED_TIMES if scratch else 1) + 7 * PART * z.n_made
    if z.params.assign_labels == "leiden":
        trials = 1 if z.params.max_clusters is not None else LEIDEN_TRIALS
        seconds += LEIDEN_EDGE * trials * fused / 2
        table.append(_row(LEIDEN, "", 1, "driver", graph_of_all_samples=LEIDEN_EDGE_BYTES * fused, labels=40 * m))
    return Work(table, seconds, 12 * m * columns + 16 * fused, scratch)

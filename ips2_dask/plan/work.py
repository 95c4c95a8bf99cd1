"""The tasks that stages hand to the scheduler, and about how many seconds they take.

Tasks: passes over partitions, shards and chunks, and cycles of solves. The seconds are a guess to a factor of about
three: their rates were fitted to runs of two workers on two virtual cores of servers. Wider machines are faster, and so
are tasks of stages that more workers share. Rates marked (estimated) were not measured.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.eigen import MAX_PRODUCTS
from ips2_dask.kernels.levels import PRODUCTS as LEVEL_PRODUCTS
from ips2_dask.kernels.levels import ROUNDS
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import EXACT_COLUMNS
from ips2_dask.kernels.rounding import SPREAD_PRODUCTS, WALK
from ips2_dask.plan.choices import DESCENT_MEMBERS, SHARD_FEATURES, comparison_times
from ips2_dask.plan.memory import (
    COARSE_SHARE,
    SAMPLE_PER_SHARD,
    SPLIT_BYTES,
    TWO_LEVEL_MEMBERS,
    WHOLE,
    labels_in_buckets,
    largest_shard,
    n_ranges_of_pairs,
    solve_of_embedding,
    solve_of_samples,
)
from ips2_dask.plan.sizes import Sizes

# ---- tasks

MAX_TASKS = 60_000  # of one pass, at most: a quarter of a minute of the scheduler's time
PRODUCTS = 20.0  # of the eigensolver for each decimal of the tolerance: 30 to 90 in all to 1e-3 (measured)
SETTLED_PRODUCTS = 50  # of a solve on pairs without a tolerance: 14 to 75 on the open sets (measured)
EMBEDDING_FILTERS = 2  # of U at the finest level after the first, until the gaps have settled (measured)
MOST_TASKS = 16_000  # that are sent before the ones sent earlier have ended (`stages.block_tasks`)
NEAR_CHUNKS = 20  # that a chunk needs rows of, about, where there are many (measured: docs/plan.md)
SUMS = 6  # tasks of a chunk, after a filter, for Gram matrices, rotations and residuals
WALK_PRODUCTS = SPREAD_PRODUCTS + WALK + 3  # labels beyond a tree's sample, what nothing reaches, and certainty
JOINED = 16  # partitions whose pieces are joined in one task (`stages.component_labels`)
CUTS = 4  # passes over chunks: the largest degree, k-means on two widths, and a density
ISLAND_PASSES = 4  # weights, sums, central samples, and the nearest ones outside
SPLIT_TWICE_ABOVE = 16  # batches above which rows are sorted by shard in two passes
REACH_TASKS = 256  # tasks at most that find the true neighbours of the recall's rows


class Pass(NamedTuple):
    """A kind of work of a stage: a task for each of its partitions, shards or chunks, or those of a whole solve."""

    name: str
    tasks: int
    times: int = 1
    """How often it is done; the scheduler forgets the tasks of one time before the next."""
    at_once: int | None = None
    """Tasks of one time that the scheduler knows together, where these are not all."""


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The tasks of a stage.

    Attributes
    ----------
    passes : tuple of Pass
    """

    passes: tuple[Pass, ...]

    @property
    def total(self) -> int:
        """Tasks of all passes."""
        return sum(one.tasks * one.times for one in self.passes)

    @property
    def known(self) -> int:
        """Most tasks that the scheduler knows at a time: those of the largest pass."""
        return max(one.tasks if one.at_once is None else min(one.tasks, one.at_once) for one in self.passes)


def n_products(sizes: Sizes) -> int:
    """About how many products the solve on pairs needs; 0 where they are not solved for."""
    if not sizes.choices.exact:
        return 0
    tol = sizes.params.tol
    return SETTLED_PRODUCTS if tol is None else min(MAX_PRODUCTS, round(PRODUCTS * max(1.0, -math.log10(tol))))


def stage_tasks(sizes: Sizes) -> dict[str, Tasks]:
    """Tasks of each stage; those of a sharded graph have at most a partition a shard more than before."""
    made, roundings = sizes.n_made, 4
    passes = {
        "ingest": _ingest(sizes),
        "neighbors": _neighbors(sizes),
        "tensor": [Pass("pairs and neighbourhoods", made, 2)],
        "assemble": [Pass("degrees", made)],
        "eigen": [Pass("sums of pairs", n_ranges_of_pairs(sizes))],
        "fuse": [Pass("fuse", made, 2)],
        "label": [Pass("roundings", roundings)],
    }
    if sizes.is_chunked:
        passes |= _chunked(sizes)
    return {stage: Tasks(tuple(some)) for stage, some in passes.items()}


def _chunked(sizes: Sizes) -> dict[str, list[Pass]]:
    """Passes of the stages that are others where vectors are in chunks."""
    made, chunks, m = sizes.n_made, sizes.n_chunks, sizes.m
    contraction = [Pass("pieces and components", made, 2), Pass("joined pieces", math.ceil(made / JOINED))]
    sums = 2 if sizes.params.fusion == "normalized" else 0
    return {
        "tensor": [Pass("edges and reverse lists", made, 2), Pass("pairs and neighbourhoods", made, 2)],
        "assemble": [*contraction, Pass("degrees", made)],
        "eigen": [*_levels(sizes, "the sample graph"), Pass("sums of pairs", n_ranges_of_pairs(sizes))],
        "fuse": [Pass("entries", made), Pass("row sums", made, sums), Pass("fused", made)],
        "label": [
            *contraction,
            Pass("islands", made, ISLAND_PASSES),
            Pass("U of chunks", chunks),
            *_levels(sizes, "the fused similarity"),
            Pass("filter of the fused similarity", _filter_tasks(sizes), EMBEDDING_FILTERS, _at_once(sizes)),
            Pass("embedding", made, 2),
            Pass("drawn rows", made),
            Pass("trees and starts", 4),
            Pass("labels by k-means", made, 2),
            Pass("cuts", chunks, CUTS),
            Pass("walks", _product_tasks(sizes), WALK_PRODUCTS, _at_once(sizes)),
            Pass("labels", made, 4),
            Pass("buckets", labels_in_buckets(m)),
        ],
    }


def _ingest(sizes: Sizes) -> list[Pass]:
    """Statistics and samples; of equal rows digests and numbers, and the partitions of distinct samples at most."""
    n, read = sizes.n_partitions, [Pass("statistics and samples", sizes.n_partitions, 2)]
    if not sizes.params.merges_rows:
        return read
    return [*read, Pass("digests, numbers and distinct rows", n, 4), Pass("ranges of digests", n_ranges(sizes.m), 2)]


def _neighbors(sizes: Sizes) -> list[Pass]:
    n, made, n_shards = sizes.n_partitions, sizes.n_made, sizes.choices.n_shards
    if not n_shards:
        return [Pass("search", n)]
    batches = min(n, math.ceil(4 * sizes.m * sizes.f / SPLIT_BYTES))
    groups = math.ceil(math.sqrt(batches)) if batches > SPLIT_TWICE_ABOVE else batches
    return [
        Pass("sample, assign, and look for what is assigned", n, 3),
        Pass("cells, and counts of them", groups + 1),
        Pass("split, in one pass or two", batches, 2),
        Pass("search and numbers", n_shards, 2),
        Pass("samples, their numbers and merged lists", made, 3),
        Pass("truth", min(made, REACH_TASKS)),
    ]


def _product_tasks(sizes: Sizes) -> int:
    """Tasks of a product in chunks: one of each chunk, and one for the rows of every other chunk that it needs."""
    return sizes.n_chunks * (1 + min(sizes.n_chunks - 1, NEAR_CHUNKS))


def _filter_tasks(sizes: Sizes) -> int:
    """Tasks of a filter in chunks, with the sums after it."""
    return LEVEL_PRODUCTS * _product_tasks(sizes) + SUMS * sizes.n_chunks


def _n_levels(sizes: Sizes) -> int:
    """Levels of a graph that are in chunks, the finest among them."""
    return max(1, 1 + math.ceil(math.log(max(1.0, COARSE_SHARE * sizes.m / WHOLE)) / -math.log(COARSE_SHARE)))


def _at_once(sizes: Sizes) -> int:
    """Tasks of products that the scheduler knows at a time: some are sent when most of the ones before have ended."""
    return MOST_TASKS + _product_tasks(sizes)


def _levels(sizes: Sizes, name: str) -> list[Pass]:
    """The levels of a graph in chunks: seeds and merged rows downwards, a filter of each upwards.

    A coarser graph has as many fewer chunks as it has nodes.
    """
    halo, all_levels = _product_tasks(sizes), sum(COARSE_SHARE**level for level in range(_n_levels(sizes)))
    return [
        Pass(f"levels of {name}", round(((2 * ROUNDS + 4) * halo + 10 * sizes.n_chunks) * all_levels), 1, halo),
        Pass(f"filters of {name}", round(_filter_tasks(sizes) * all_levels), 1, _at_once(sizes)),
    ]


# ---- seconds

OVERHEAD = 0.3  # seconds of a stage that has next to nothing to do
INGEST = 9e-8  # seconds per value
COMPARE = 4e-11  # per pair of samples that is compared, and feature, plus 64 features for what every pair costs
TENSOR = 5e-7  # per sample and local pair, in core
CHUNKED_TENSOR = 1.4e-6  # the same in chunks, with their operators: 1.2e-6 to 1.5e-6 from 200,000 to 10,000,000 samples
DEGREES = 8e-7  # the same
START = 1.2e-5  # per sample: a graph put together, its levels
PAIR_SUMS = 8e-7  # per sample and local pair: one pass over the pairs
LEVELS_TIMES = 1.3  # products of all levels over those of the finest
ENTRY = 1.8e-10  # per stored entry and column of a product
BLOCK, COLUMN = 1.2e-9, 6e-11  # per entry of a block that is made anew, and for each column that it multiplies
FUSE = 6e-7  # per sample and local pair
LABEL = 3.3e-6  # per sample and cluster
LEIDEN = 3.5e-6  # per edge of U: its graph and one search for communities (measured on 8.6 million edges)
LEIDEN_TRIALS = 8  # searches, where a number of clusters is given (estimated)

SCHEDULER_TASK = 2.5e-4  # per task in the scheduler: .20 to .28 ms (measured with simulated workers)
CLIENT_TASK = 5e-5  # per task in the driver (measured there)
PART = 1.6e-3  # per part that a process reads, on a local disk (measured)
NEAR_PARTS = 10  # parts of near partitions that a task reads, most being in its cache (estimated)
DRIVER_PARTS = 2  # parts of a partition that the driver waits for in a stage; others are read meanwhile (estimated)
BUCKET_PARTS = 4  # arrays of a partition that the task of a bucket reads: the user's numbers, labels, certainty, marks
DRAWN_PARTS = 3  # arrays of a partition's drawn rows that a tree's task reads
STREAM = 2e-9  # per byte that is read in order (estimated: half a gigabyte a second)
CHUNKED_SAMPLES_TIMES = 2.0  # times as long takes a product of samples in chunks as in core (estimated)
SPILLED_TIMES = 2.0  # times as long takes a solve whose results are written to disk (estimated)
CHECKPOINTS = 1.1  # times as long takes a solve with its checkpoints: a limit that is enforced
FUSED_SHARE = 0.52  # entries of U over the plan's bound: 16.6 a row at k = 5 (measured)
CELL_ROUNDS = 10  # of k-means of the cells: a limit that is enforced
TREES = 10.0  # trees of the sample, and the starts of k-means on another (estimated)


def stage_seconds(sizes: Sizes) -> dict[str, float]:
    """About how long each stage takes."""
    m, q = sizes.m, sizes.local_pairs
    f, spread = min(sizes.f, SHARD_FEATURES), _spread(sizes)
    work = {
        "ingest": INGEST * m * f * spread,
        "neighbors": _comparison(sizes, _compared(sizes), f),
        "tensor": TENSOR * m * q * spread,
        "assemble": DEGREES * m * q,
        "eigen": _eigen(sizes),
        "fuse": FUSE * m * q * spread,
        "label": LABEL * m * sizes.params.n_clusters,
    }
    if sizes.is_chunked:
        more = _chunked_seconds(sizes)
        work = {stage: more.get(stage, seconds) for stage, seconds in work.items()}
        tasks = stage_tasks(sizes)
        handed = {stage: (SCHEDULER_TASK + CLIENT_TASK) * tasks[stage].total for stage in work}
        looked_at = DRIVER_PARTS * PART * sizes.n_made
        work = {stage: seconds + handed[stage] + looked_at for stage, seconds in work.items()}
    if sizes.params.assign_labels == "leiden":
        trials = 1 if sizes.params.max_clusters is not None else LEIDEN_TRIALS
        work["label"] += LEIDEN * trials * FUSED_SHARE * sizes.n_fused
    return {stage: OVERHEAD + seconds for stage, seconds in work.items()}


def _eigen(sizes: Sizes) -> float:
    """Seconds of the sample graph's vectors and of what is made of them, in core."""
    m, k = sizes.m, sizes.k
    graph = START * m + LEVEL_PRODUCTS * LEVELS_TIMES * ENTRY * sizes.columns * (2 * k - 1) * m
    if not sizes.choices.exact:
        return graph + PAIR_SUMS * m * sizes.local_pairs
    return graph + n_products(sizes) * _product(sizes)


def _product(sizes: Sizes) -> float:
    """Seconds of a product in core."""
    if sizes.choices.assembled or sizes.choices.operator == "triplets":
        return ENTRY * sizes.columns * (3 * sizes.entries // 2)
    return sizes.m * sizes.local_pairs**2 * (BLOCK + COLUMN * sizes.columns)


def _chunked_seconds(sizes: Sizes) -> dict[str, float]:
    """Seconds of the stages that are others where vectors are in chunks, without those of scheduler and driver."""
    m, k, q, c, spread = sizes.m, sizes.k, sizes.local_pairs, sizes.params.n_clusters, _spread(sizes)
    slowest = 2 * sizes.worker_share  # the worker with the most chunks, over the two of the measured rates
    samples, entries = CHUNKED_SAMPLES_TIMES * slowest * ENTRY, FUSED_SHARE * 2 * sizes.n_fused
    one = LEVEL_PRODUCTS * LEVELS_TIMES * samples
    graph = one * sizes.columns * (2 * k - 1) * m + START * m * slowest
    embedding = one * (1 + EMBEDDING_FILTERS) * sizes.embedded_columns * entries + START * m * slowest
    kmeans = 2 * COMPARE * m * c * (sizes.n_embedded + 64) * slowest
    walks = WALK_PRODUCTS * samples * c * entries
    rounds = -(-labels_in_buckets(m) // max(1, sizes.n_workers))
    ordered = rounds * (13 * m * STREAM + BUCKET_PARTS * PART * sizes.n_made)
    drawn = DRAWN_PARTS * PART * sizes.n_made
    near = PART * min(NEAR_PARTS, sizes.n_made) * sizes.n_made / max(1, sizes.n_workers)
    work = {
        "tensor": CHUNKED_TENSOR * m * q * spread + near,
        "assemble": DEGREES * m * q * slowest + near,
        "eigen": graph * _times_spilled(sizes, "eigen") + PAIR_SUMS * m * q * slowest + near,
        "fuse": FUSE * m * q * spread + near,
        "label": CHECKPOINTS * embedding * _times_spilled(sizes, "label") + kmeans + walks + ordered + drawn + TREES,
    }
    if sizes.is_sharded:
        work["neighbors"] = _search(sizes, min(sizes.f, SHARD_FEATURES)) + near
    return work


def _times_spilled(sizes: Sizes, stage: str) -> float:
    """Times as long as in the workers' memory takes a solve whose results don't fit into it."""
    solve = solve_of_samples(sizes) if stage == "eigen" else solve_of_embedding(sizes)
    return SPILLED_TIMES if solve.phases(sizes)[1] else 1.0


def _search(sizes: Sizes, f: int) -> float:
    """Seconds of a sharded search: the cells, their nearest ones, and the shards, the largest of which is one task."""
    n_shards, one = sizes.choices.n_shards, 2 * COMPARE * (sizes.f + 64)
    cells = one * min(sizes.m, SAMPLE_PER_SHARD * n_shards) * n_shards * CELL_ROUNDS
    nearest = one * sizes.m * n_shards / max(1, sizes.n_workers)
    largest = largest_shard(sizes)
    compared = _compared_in_shard(sizes, largest) * comparison_times(sizes.params.metric)
    longest = 2 * COMPARE * largest * compared * (f + 64)
    return cells + nearest + max(longest, _comparison(sizes, _compared(sizes), f))


def exact_seconds(sizes: Sizes) -> float:
    """About how long it takes to compare every pair, where that follows a graph of low recall; 0 elsewhere."""
    if not sizes.choices.exact_after:
        return 0.0
    return comparison_times(sizes.params.metric) * _comparison(sizes, sizes.m, sizes.f)


def _spread(sizes: Sizes) -> float:
    """Seconds in those of the two workers that the rates were measured with."""
    return 2 / max(1, sizes.n_workers)


def _compared(sizes: Sizes) -> int:
    """Samples that each sample is compared with for the graph, in comparisons by a matrix product."""
    members = sizes.m
    if sizes.choices.n_shards:
        members = 2 * _compared_in_shard(sizes, sizes.shard_members)  # each sample is in two shards
        if METRICS[sizes.params.metric].compares_pairs:  # pynndescent compares a sample with no more
            members = min(members, DESCENT_MEMBERS[0])
    return comparison_times(sizes.params.metric) * members


def _compared_in_shard(sizes: Sizes, members: int) -> int:
    """Members of a shard that each is compared with: in a large one those of its two sub-cells."""
    if METRICS[sizes.params.metric].compares_pairs:
        return min(members, DESCENT_MEMBERS[0])
    return members if members <= TWO_LEVEL_MEMBERS else 2 * 2 * EXACT_COLUMNS


def _comparison(sizes: Sizes, compared: int, f: int) -> float:
    """Seconds of comparing each sample with so many others in f features."""
    return COMPARE * sizes.m * compared * (f + 64) * 2 / max(1, sizes.n_workers)

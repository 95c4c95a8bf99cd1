"""How many seconds a stage takes, about.

The seconds are a guess to a factor of about three: their rates were fitted to runs of two workers on two virtual cores
of servers, those of tensor and fusion to the runs of `notebooks/results`, most others to longer ones. Wider machines
are faster, and so are tasks of stages that more workers share. Rates marked (estimated) were not measured.
"""

from __future__ import annotations

from ips2_dask.kernels.levels import PRODUCTS
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.neighbors import EXACT_COLUMNS
from ips2_dask.plan.choices import DESCENT_MEMBERS, SHARD_FEATURES, comparison_times
from ips2_dask.plan.memory import SAMPLE_PER_SHARD, largest_shard
from ips2_dask.plan.memory_chunked import TWO_LEVEL_MEMBERS, labels_in_buckets, solve_of_embedding, solve_of_samples
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.tasks import EMBEDDING_FILTERS, KMEANS_ROUNDS, WALK_PRODUCTS, n_products, stage_tasks

OVERHEAD = 0.3
"""Seconds of a stage that has next to nothing to do."""

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
NEAR_PARTS = (
    10  # parts of near partitions that a task reads, where the task before it has left most in the cache (est.)
)
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
        more = _chunked(sizes)
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
    graph = START * m + PRODUCTS * LEVELS_TIMES * ENTRY * sizes.columns * (2 * k - 1) * m
    if not sizes.choices.exact:
        return graph + PAIR_SUMS * m * sizes.local_pairs
    return graph + n_products(sizes) * _product(sizes)


def _product(sizes: Sizes) -> float:
    """Seconds of a product in core."""
    if sizes.choices.assembled or sizes.choices.operator == "triplets":
        return ENTRY * sizes.columns * (3 * sizes.entries // 2)
    return sizes.m * sizes.local_pairs**2 * (BLOCK + COLUMN * sizes.columns)


def _chunked(sizes: Sizes) -> dict[str, float]:
    """Seconds of the stages that are others where vectors are in chunks, without those of scheduler and driver."""
    m, k, q, c, spread = sizes.m, sizes.k, sizes.local_pairs, sizes.params.n_clusters, _spread(sizes)
    slowest = 2 * sizes.worker_share  # the worker with the most chunks, over the two of the measured rates
    samples, entries = CHUNKED_SAMPLES_TIMES * slowest * ENTRY, FUSED_SHARE * 2 * sizes.n_fused
    one = PRODUCTS * LEVELS_TIMES * samples
    graph = one * sizes.columns * (2 * k - 1) * m + START * m * slowest
    embedding = one * (1 + EMBEDDING_FILTERS) * sizes.embedded_columns * entries + START * m * slowest
    kmeans = 2 * KMEANS_ROUNDS * COMPARE * m * c * (sizes.n_embedded + 64) * slowest
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

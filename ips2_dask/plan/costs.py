"""How many tasks, products and seconds a stage takes, about.

The seconds are a guess to a factor of about three: their rates are those of one machine, of
`notebooks/results/scaling.json`, two workers on the two threads of one core of a server. Wider machines are faster, and
so are tasks of stages that more workers share.
"""

from __future__ import annotations

import math

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.kernels.rounding import SPREAD_PRODUCTS, WALK, restart_tasks
from ips2_dask.plan.choices import CHUNKS, DESCENT_MEMBERS, SHARD_FEATURES, comparison_times
from ips2_dask.plan.memory import SPLIT_BYTES
from ips2_dask.plan.sizes import Sizes

MAX_TASKS = 20_000
"""Tasks of a stage beyond which the scheduler would be busier than the workers."""

NEAR_CHUNKS = CHUNKS - 1
"""How many others a chunk shares neighbourhoods with, at most and on average over the chunks: then a product of so many
chunks has as many tasks as a stage may have."""

PRODUCTS = 20.0
"""Products of the eigensolver for each decimal of the tolerance: 30 to 90 in all to 1e-3 (measured)."""

SETTLED_PRODUCTS = 50
"""Products where no tolerance is asked for: 14 to 75 on the open sets, 72 at a million samples (measured)."""

OVERHEAD = 0.3
"""Seconds of a stage that has next to nothing to do."""

INGEST = 9e-8  # seconds per value
COMPARE = 4e-11  # per pair of samples that is compared, and feature, plus 64 features for what every pair costs
TENSOR = 1.1e-6  # per sample and local pair
DEGREES = 8e-7  # the same
START = 3.5e-5  # per sample: the operator put together, the sample graph's eigenvectors
ENTRY = 1.8e-10  # per stored entry and column of a product
BLOCK, COLUMN = 1.2e-9, 6e-11  # per entry of a block that is made anew, and for each column that it multiplies
CHUNKED_TIMES = 4.0  # times as long takes a product whose chunks are tasks, their rows sent and written anew
FUSE = 1.3e-6  # per sample and local pair
LABEL = 3.3e-6  # per sample and cluster


def stage_tasks(sizes: Sizes) -> dict[str, int]:
    """Tasks of each stage; those of a sharded graph have at most a partition a shard more than before."""
    n, n_shards = sizes.n_partitions, sizes.choices.n_shards
    made, neighbors, chunks = n, n, 1
    if n_shards:
        made = n + n_shards
        batches = min(n, math.ceil(4 * sizes.m * sizes.f / SPLIT_BYTES))
        neighbors = 2 * n + batches + n_shards + 2 * made
    if sizes.is_chunked:
        chunks = math.ceil(sizes.m / max(sizes.choices.chunk_samples, sizes.partition_rows))
    return {
        "ingest": _ingest_tasks(sizes),
        "neighbors": neighbors,
        "tensor": 2 * made + (chunks if chunks > 1 else 0),
        "assemble": chunks,
        "eigen": product_tasks(chunks, sizes.n_workers),
        "fuse": 2 * made,
        "label": _label_tasks(sizes.m, n, chunks),
    }


def _ingest_tasks(sizes: Sizes) -> int:
    """Statistics and samples; digests, their comparison, and the partitions of distinct samples at most."""
    n = sizes.n_partitions
    return 2 * n + (2 * n + n_ranges(sizes.m) if sizes.params.merges_rows else 0)


def _label_tasks(m: int, n: int, chunks: int) -> int:
    """Two trees, the starts of k-means on two embeddings, and the walks on U where that is in chunks."""
    walks = SPREAD_PRODUCTS + 2 * WALK
    return 2 + 2 * restart_tasks(m) + (0 if chunks == 1 else n + walks * chunks)


def product_tasks(chunks: int, n_workers: int, near: float = NEAR_CHUNKS) -> int:
    """Most tasks of a product: one a chunk, and one for each other worker with chunks among the ``near`` ones to it."""
    return round(chunks * (1 + min(chunks - 1, near, n_workers - 1)))


def n_products(tol: float | None) -> int:
    """About how many products the eigensolver needs."""
    return SETTLED_PRODUCTS if tol is None else round(PRODUCTS * max(1.0, -math.log10(tol)))


def stage_seconds(sizes: Sizes) -> dict[str, float]:
    """About how long each stage takes."""
    m, q, choices, chunked = sizes.m, sizes.local_pairs, sizes.choices, sizes.is_chunked
    f = min(sizes.f, SHARD_FEATURES)
    spread = _spread(sizes)
    solve = spread if chunked else 1.0  # workers share degrees and products of chunks; the start is the client's
    sent = CHUNKED_TIMES if chunked else 1.0
    if choices.assembled or choices.operator == "triplets":
        product = ENTRY * sizes.columns * (3 * sizes.entries // 2)
    else:
        product = m * q * q * (BLOCK + COLUMN * sizes.columns)
    work = {
        "ingest": INGEST * m * f * spread,
        "neighbors": _comparison(sizes, _compared(sizes), f),
        "tensor": TENSOR * m * q * spread,
        "assemble": DEGREES * m * q * solve,
        "eigen": START * m + n_products(sizes.params.tol) * product * sent * solve,
        "fuse": FUSE * m * q * spread,
        "label": LABEL * m * sizes.params.n_clusters,
    }
    return {stage: OVERHEAD + seconds for stage, seconds in work.items()}


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
        members = 2 * 2 * sizes.m // sizes.choices.n_shards  # each sample is in two shards of 2 m / n members
        if METRICS[
            sizes.params.metric
        ].compares_pairs:  # pynndescent compares a sample with no more, however many there are
            members = min(members, DESCENT_MEMBERS[0])
    return comparison_times(sizes.params.metric) * members


def _comparison(sizes: Sizes, compared: int, f: int) -> float:
    """Seconds of comparing each sample with so many others in f features."""
    return COMPARE * sizes.m * compared * (f + 64) * 2 / max(1, sizes.n_workers)

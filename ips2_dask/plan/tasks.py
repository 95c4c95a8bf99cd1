"""How many tasks a stage hands to the scheduler: passes over partitions, shards and chunks, and cycles of solves."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.eigen import MAX_PRODUCTS
from ips2_dask.kernels.levels import PRODUCTS as LEVEL_PRODUCTS
from ips2_dask.kernels.levels import ROUNDS
from ips2_dask.kernels.rounding import SPREAD_PRODUCTS, WALK, restart_tasks
from ips2_dask.plan.memory import SPLIT_BYTES, n_ranges_of_pairs
from ips2_dask.plan.memory_chunked import COARSE_SHARE, WHOLE, labels_in_buckets
from ips2_dask.plan.sizes import Sizes

MAX_TASKS = 60_000
"""Tasks of one pass, at most: a quarter of a minute of the scheduler's time."""

PRODUCTS = 20.0
"""Products of the eigensolver for each decimal of the tolerance: 30 to 90 in all to 1e-3 (measured)."""

SETTLED_PRODUCTS = 50
"""Products of a solve on pairs where no tolerance is asked for: 14 to 75 on the open sets (measured)."""

EMBEDDING_FILTERS = 2
"""Filters of U at the finest level: one or two after the first, until the gaps have settled (measured)."""

MOST_TASKS = 16_000
"""Tasks of products that are sent before the ones sent earlier have ended (`stages.block_tasks`)."""

NEAR_CHUNKS = 20
"""Chunks that a chunk needs rows of, about, where there are many (measured: `../docs/plan.md`)."""

SUMS = 6
"""Tasks of a chunk, after a filter, for Gram matrices, rotations and residuals."""

WALK_PRODUCTS = SPREAD_PRODUCTS + WALK + 3
"""Products of U for labels beyond a tree's sample, a few until nothing else is reached, and for the certainty."""

JOINED = 16
"""Partitions whose pieces are joined in one task (`stages.component_labels`)."""

CUTS = 4
"""Passes over chunks for cuts: the largest degree, and candidates: k-means on two widths, and a density."""

KMEANS_ROUNDS = 6
"""Passes of k-means over the points: their moments, and three or four rounds, with some to spare (measured)."""

ISLAND_PASSES = 4
"""Passes over partitions where there are islands: weights, sums, central samples, and the nearest ones outside."""


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
    made, roundings = sizes.n_made, 2 + 2 * restart_tasks(sizes.m)
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
            Pass("filter of the fused similarity", filter_tasks(sizes), EMBEDDING_FILTERS, _at_once(sizes)),
            Pass("embedding", made, 2),
            Pass("drawn rows", made),
            Pass("trees and starts", 4),
            Pass("k-means", chunks, 2 * KMEANS_ROUNDS),
            Pass("labels by k-means", made, 2),
            Pass("cuts", chunks, CUTS),
            Pass("walks", product_tasks(sizes), WALK_PRODUCTS, _at_once(sizes)),
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


SPLIT_TWICE_ABOVE = 16
"""Batches above which rows are sorted by shard in two passes."""

REACH_TASKS = 256
"""Tasks at most that find the true neighbours of the recall's rows."""


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


def product_tasks(sizes: Sizes) -> int:
    """Tasks of a product in chunks: one of each chunk, and one for the rows of every other chunk that it needs."""
    return sizes.n_chunks * (1 + min(sizes.n_chunks - 1, NEAR_CHUNKS))


def filter_tasks(sizes: Sizes) -> int:
    """Tasks of a filter in chunks, with the sums after it."""
    return LEVEL_PRODUCTS * product_tasks(sizes) + SUMS * sizes.n_chunks


def n_levels(sizes: Sizes) -> int:
    """Levels of a graph that are in chunks, the finest among them."""
    return max(1, 1 + math.ceil(math.log(max(1.0, COARSE_SHARE * sizes.m / WHOLE)) / -math.log(COARSE_SHARE)))


def _at_once(sizes: Sizes) -> int:
    """Tasks of products that the scheduler knows at a time: some are sent when most of the ones before have ended."""
    return MOST_TASKS + product_tasks(sizes)


def _levels(sizes: Sizes, name: str) -> list[Pass]:
    """The levels of a graph in chunks: seeds and merged rows downwards, a filter of each upwards.

    A coarser graph has as many fewer chunks as it has nodes.
    """
    halo, all_levels = product_tasks(sizes), sum(COARSE_SHARE**level for level in range(n_levels(sizes)))
    return [
        Pass(f"levels of {name}", round(((2 * ROUNDS + 4) * halo + 10 * sizes.n_chunks) * all_levels), 1, halo),
        Pass(f"filters of {name}", round(filter_tasks(sizes) * all_levels), 1, _at_once(sizes)),
    ]

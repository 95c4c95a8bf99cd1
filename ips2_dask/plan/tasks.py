"""How many tasks a stage hands to the scheduler: passes over partitions, shards and chunks, and cycles of solves."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.eigen import MAX_PRODUCTS
from ips2_dask.kernels.rounding import SPREAD_PRODUCTS, WALK, restart_tasks
from ips2_dask.plan.memory import SPLIT_BYTES
from ips2_dask.plan.memory_chunked import (
    Solve,
    labels_in_buckets,
    solve_of_embedding,
    solve_of_pairs,
    solve_of_samples,
)
from ips2_dask.plan.sizes import Sizes

MAX_TASKS = 60_000
"""Tasks of one pass, at most: a quarter of a minute of the scheduler's time."""

LEAST_IN_WINDOW = 64
"""Tasks of a job that are sent together, at least. A window takes a few milliseconds of its own: these outweigh it."""

WINDOW_TASKS_A_THREAD = 4
"""Tasks of a window for each thread of the cluster, at least: while the next is sent, none should be idle."""

WINDOWS = 3
"""Windows that the scheduler knows at a time: two in work, and one that it has been told to forget but lately."""

PRODUCTS = 20.0
"""Products of the eigensolver for each decimal of the tolerance: 30 to 90 in all to 1e-3 (measured)."""

SETTLED_PRODUCTS = 50
"""Products where no tolerance is asked for: 14 to 75 on the open sets, 72 at a million samples (measured)."""

START_PRODUCTS = 80
"""Products of the sample graph for the start of a solve, at most: a limit that is enforced."""

EMBEDDING_PRODUCTS = 150
"""Products of U for the embedding: 150 and 155 at 240,000 samples (measured)."""

WALK_PRODUCTS = SPREAD_PRODUCTS + 2 * WALK
"""Products of U for labels beyond a tree's sample and for the certainty."""

ROUND_PRODUCTS = 3
"""Products of a filter in one task, which does all chunks that its worker owns."""

CYCLE_PRODUCTS = 16
"""Products of a cycle: 12 at least, 64 at most, and more where the gap is small (`kernels.eigen.filter_degree`)."""

JOINED = 16
"""Partitions whose pieces are joined in one task (`stages.component_labels`)."""

WALK_ROUND_PRODUCTS = 5
"""Products of a walk in one task, which does all chunks that its worker owns."""

WALK_ROUNDS = SPREAD_PRODUCTS // WALK_ROUND_PRODUCTS + WALK + 3
"""Rounds of walks: products that carry labels, some further ones with a round each, since what they reach decides
whether others follow, their count and the labels, and the products of the certainty."""

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
    known: int | None = None
    """Tasks that the scheduler knows at a time, where these are not sent in windows."""


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The tasks of a stage.

    Attributes
    ----------
    passes : tuple of Pass
    window : int
        Tasks that are sent together.
    """

    passes: tuple[Pass, ...]
    window: int

    @property
    def total(self) -> int:
        """Tasks of all passes."""
        return sum(one.tasks * one.times for one in self.passes)

    @property
    def largest(self) -> int:
        """Tasks of the pass that has most of them at a time."""
        return max(one.tasks if one.known is None else one.known for one in self.passes)

    @property
    def known(self) -> int:
        """Most tasks that the scheduler knows at a time."""
        return max(min(one.tasks, WINDOWS * self.window) if one.known is None else one.known for one in self.passes)


def tasks_in_window(threads: int) -> int:
    """Tasks of a job that are sent together to a cluster of so many threads."""
    return max(LEAST_IN_WINDOW, WINDOW_TASKS_A_THREAD * threads)


def n_products(tol: float | None) -> int:
    """About how many products the eigensolver needs."""
    return SETTLED_PRODUCTS if tol is None else min(MAX_PRODUCTS, round(PRODUCTS * max(1.0, -math.log10(tol))))


def stage_tasks(sizes: Sizes) -> dict[str, Tasks]:
    """Tasks of each stage; those of a sharded graph have at most a partition a shard more than before."""
    made, roundings = sizes.n_made, 2 + 2 * restart_tasks(sizes.m)
    passes = {
        "ingest": _ingest(sizes),
        "neighbors": _neighbors(sizes),
        "tensor": [Pass("pairs and neighbourhoods", made, 2)],
        "assemble": [Pass("degrees", 1)],
        "eigen": [Pass("solve", 1)],
        "fuse": [Pass("fuse", made, 2)],
        "label": [Pass("roundings", roundings)],
    }
    if sizes.is_chunked:
        passes |= _chunked(sizes)
    window = tasks_in_window(sizes.n_workers)  # a worker does one task at a time
    return {stage: Tasks(tuple(some), window) for stage, some in passes.items()}


def _chunked(sizes: Sizes) -> dict[str, list[Pass]]:
    """Passes of the stages that are others where vectors are in chunks."""
    made, chunks, m = sizes.n_made, sizes.n_chunks, sizes.m
    contraction = [Pass("pieces and components", made, 2), Pass("joined pieces", math.ceil(made / JOINED))]
    sums = 2 if sizes.params.fusion == "normalized" else 0
    return {
        "tensor": [
            Pass("edges and reverse lists", made, 2),
            Pass("pairs and neighbourhoods", made, 2),
            Pass("operators of chunks", chunks),
        ],
        "assemble": [*contraction, Pass("degrees", chunks)],
        "eigen": [
            Pass("graphs of chunks", chunks),
            _solve(sizes, solve_of_samples(sizes), START_PRODUCTS),
            _solve(sizes, solve_of_pairs(sizes), n_products(sizes.params.tol)),
        ],
        "fuse": [Pass("entries", made), Pass("row sums", made, sums), Pass("fused", made)],
        "label": [
            *contraction,
            Pass("islands", made, ISLAND_PASSES),
            Pass("U of chunks", chunks),
            _solve(sizes, solve_of_embedding(sizes), EMBEDDING_PRODUCTS),
            Pass("embedding", made, 2),
            Pass("drawn rows", made),
            Pass("trees and starts", 4),
            Pass("k-means", chunks, 2 * KMEANS_ROUNDS),
            Pass("labels by k-means", made, 2),
            Pass("cuts", chunks, CUTS),
            Pass("walks", sizes.n_busy, WALK_ROUNDS),
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
        Pass("sample, assign, and look for what is assigned", n, 3), Pass("cells, and counts of them", groups + 1),
        Pass("split, in one pass or two", batches, 2), Pass("search and numbers", n_shards, 2),
        Pass("samples, their numbers and merged lists", made, 3), Pass("truth", min(made, REACH_TASKS)),
    ]  # fmt: skip


def cycle_tasks(sizes: Sizes, solve: Solve) -> int:
    """Tasks of a cycle of a solve in chunks.

    Of each worker: rounds of products for each panel, one task for the deflation and two for Gram matrices, with the
    rotations between; and for the Ritz pairs one for each pair of panels, and one a panel for the residuals.
    """
    panels = solve.panels
    each = panels * math.ceil(CYCLE_PRODUCTS / ROUND_PRODUCTS) + 3 + panels**2 + panels
    return each * sizes.n_busy


def _solve(sizes: Sizes, solve: Solve, products: int) -> Pass:
    """A solve of so many products in chunks."""
    cycle = cycle_tasks(sizes, solve)
    return Pass(f"solve on {solve.name}", math.ceil(products / CYCLE_PRODUCTS) * cycle, known=cycle)

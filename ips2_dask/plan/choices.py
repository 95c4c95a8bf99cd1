"""The automatic decisions of a run: partitions, graph builder, operator, and where block vectors live."""

from __future__ import annotations

import dataclasses
import itertools
import math

from ips2_dask.kernels.density import MIN_SAMPLES
from ips2_dask.kernels.eigen import block_width
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.params import Params

PARTITION_BYTES = 16 << 20  # of the samples of a partition, about
MAX_PARTITIONS = (2_500, 5_000)
LARGE_PARTITION = 1 << 17
"""Most partitions: the smaller number until partitions have so many samples (327 million in all), then up to the larger
one. The sharded graph, which goes over partitions and shards most often, then has as many tasks as a stage may have."""

JOINED_PARTITIONS = 32
"""Shards are joined to partitions of as many samples as a partition may have, while there are more partitions than
this, so that workers of small runs have tasks: 1,000,000 x 16 took 278 s in 245 partitions, 246 s in 82 (measured)."""

MAX_SHARDS = (2_500, 4_096)
LARGE_SHARD = 1 << 16
"""The same of shards and their members: 82 million samples. A tree puts up to 4,096 cells in order."""

EXACT_WORK = 1e12
"""m^2 (f + 64) up to which every pair is compared: about ten seconds on one core (measured)."""

EXACT_AFTER_WORK = 3e13
"""m^2 (f + 64) up to which every pair is compared where an approximate graph's measured recall is too low: six minutes
on two cores (measured: 100,000 x 64 takes 29 s of processor time, 300,000 x 64 266 s)."""

COMPARED_TIMES = 5
"""How many times as long comparing two samples takes by a metric that no matrix product gives: 7 on 64 features, 3 on
784, by the Chebyshev distance 12 (measured)."""

DESCENT_MEMBERS = (4096, 1 << 16)
DESCENT_BYTES = 64 << 20
"""Bytes of a shard that pynndescent searches, and the limits of its members: its time grows little faster than they. Up
to the smaller limit all pairs of a shard are compared, which takes about as long: some 2 s on 784 features."""

SHARD_WORK = 4e5
SHARD_MEMBERS = (3072, 4096)
SHARD_FEATURES = 384
"""Members of a shard times (f + 64), with f at most so large, and the limits of their number. Of 200,000 curved x 64
shards of 4,081 and 3,125 members have a recall of .999 and .998, the smaller ones in seven eighths of a run's
processor time; of points without clusters in eight dimensions 4,054 have .952 after a round, and 2,702 too little. Of
more features neighbours are searched in principal directions first, so that these do not cost more: recall@5 on MNIST
.99 (measured)."""

TRIPLETS_BELOW = 2_000_000  # tensor entries before sharing up to which a stored matrix is faster (measured)

ASSEMBLED_NEIGHBORS = 6
ASSEMBLED_BYTES = 2 << 30
ASSEMBLED_FEATURES = 512
ASSEMBLED_BYTES_WIDE = 3 << 28
"""k and bytes up to which the in-core solver's products are made with a CSR matrix: at k = 5 that takes half the time,
at k = 7 the same (measured). The solve of wider data is a small part of their run, and what they need is memory."""

CHUNK_SAMPLES = (1 << 14, 1 << 19)
CHUNKS = 16
MAX_CHUNKS = 1_000
"""Least and most samples of a chunk of block vectors, and how many there are in between. A product of the smallest
takes a few milliseconds, of the largest some tenths of a second. Above 524 million samples chunks are larger: a product
has a task for each chunk, and for the rows of each of some twenty others."""

SHARED_SAMPLES = (2_000, 1 << 15)
SHARED_CLUSTERS = 18
"""Samples between which a solve also serves other numbers of clusters, and up to which number it always does."""

EXACT_PAIRS = 30_000
"""Pairs, about, up to which their eigenvectors are solved for where no tolerance is asked for: it takes a tenth of a
second. Labels need no solve."""

PAIRS_PER_NEIGHBOR = 2.4  # of a sample: on 64 features 7.8 pairs a sample of 5 neighbours, 26.9 of 10 (measured)
IN_CORE_BYTES = 3 << 30  # of one block of vectors above which it is cut into chunks


@dataclasses.dataclass(frozen=True)
class Choices:
    """The automatic decisions of a run; they follow from the shape of the data, parameters and explicit requests."""

    graph: str  # "exact", "shards", "pynndescent" or "given"
    n_shards: int  # overlapping shards of the sample graph, 0 where there are none
    operator: str  # "triplets" or "matrix-free"
    vectors: str = "in-core"  # where block vectors live: or "chunked"
    chunk_samples: int = CHUNK_SAMPLES[0]  # samples of a chunk of them, about
    assembled: bool = False  # whether the in-core solver puts a matrix-free operator together as CSR, in memory only
    shared: int = 0  # most clusters that the one solve serves; 0 where it serves the run's own number alone
    exact_after: bool = False  # whether every pair is compared where an approximate graph's measured recall is too low
    exact: bool = True  # whether the pairs' eigenvectors are solved for in one process, in place of Ritz vectors

    def n_solved(self, params: Params) -> int:
        """Number of eigenpairs that are solved for; those of the plan, also once a smaller c has been chosen."""
        return max(self.shared, params.n_solved)


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The arguments of `ips2_dask.plan.plan.make_plan` other than the shape of the data and the parameters.

    Samples in a partition, instead of what the shape decides; bytes that the input's format needs in one process to be
    read at all; workers that share the stages' work; where block vectors shall live, ``"auto"``, ``"in-core"`` or
    ``"chunked"``; bytes that a worker may use, if that is known; and whether the scheduler is a process of its own, or
    shares the driver's. Workers and their limit change projections and warnings, never a choice or a result.
    """

    rows: int | None = None
    resident: int = 0
    n_workers: int = 2
    vectors: str = "auto"
    worker_limit: int | None = None
    scheduler_apart: bool = False


def choose(m: int, f: int, params: Params, vectors: str = "auto", rows: int | None = None) -> Choices:
    """The automatic decisions for m samples of f features.

    ``vectors``, ``rows``: where block vectors shall live, and samples of a partition, as of `PlanRequest`.
    """
    k, q = params.n_neighbors, params.n_neighbors * (params.n_neighbors + 1) // 2
    pairs, entries = round(PAIRS_PER_NEIGHBOR * m * k), m * q * (q + 1) // 2  # about; before any is shared
    graph, n_shards = _graph(m, f, params)
    if m == 1:
        vectors = "in-core"  # its one pair is the known vector, and no block is left to iterate on
    if vectors == "auto":
        block = 4 * block_width(params.n_solved) * pairs
        vectors = "chunked" if block > IN_CORE_BYTES and params.tensor == "indecomposable" else "in-core"
    operator = params.operator
    if operator == "auto":
        operator = "triplets" if entries <= TRIPLETS_BELOW else "matrix-free"
    limit = ASSEMBLED_BYTES if f <= ASSEMBLED_FEATURES else ASSEMBLED_BYTES_WIDE
    small = k <= ASSEMBLED_NEIGHBORS and 16 * entries <= limit
    chunk = max(_between(m // CHUNKS, CHUNK_SAMPLES), math.ceil(m / MAX_CHUNKS))
    return Choices(
        graph=graph,
        n_shards=n_shards,
        operator=operator,
        vectors=vectors,
        chunk_samples=chunk if rows is None else 2 * rows,  # two partitions where the caller has cut them
        assembled=params.operator == "auto" and operator == "matrix-free" and small,
        shared=_shared(m, params),
        exact_after=graph != "exact" and _exact_work(m, f, params.metric) <= EXACT_AFTER_WORK,
        exact=params.tol is not None or pairs <= EXACT_PAIRS,
    )


def _graph(m: int, f: int, params: Params) -> tuple[str, int]:
    """The graph's builder, and the number of its shards."""
    graph, shards = params.graph, params.shards
    if params.metric == "precomputed":
        graph, shards = "exact", None
    if graph == "auto":
        graph = "shards" if shards or _exact_work(m, f, params.metric) > EXACT_WORK else "exact"
    if m <= params.n_stored_neighbors:
        graph = "exact"  # everyone's neighbours are all the others
    if graph != "shards":
        return graph, 0
    members = _between(int(SHARD_WORK / (min(f, SHARD_FEATURES) + 64)), SHARD_MEMBERS)
    if METRICS[params.metric].compares_pairs:
        members = _between(DESCENT_BYTES // (4 * max(f, 1)), DESCENT_MEMBERS)
    n_shards = min(shards or math.ceil(2 * m / members), m // 2)
    return graph, n_shards if shards else min(n_shards, _between(math.ceil(2 * m / LARGE_SHARD), MAX_SHARDS))


def _shared(m: int, params: Params) -> int:
    """The largest number of clusters that one solve serves; see `Choices.shared`.

    Where the run chooses the number, the solve that it chooses by serves the chosen one as well. Of less than
    `SHARED_SAMPLES` another solve takes no time, and eigenvalues then have the bits of a run that is told the number.
    """
    if params.n_eigenpairs is not None:
        return params.n_solved
    low, high = SHARED_SAMPLES
    if params.tensor != "indecomposable" or m < low:
        return 0
    most = max(params.n_clusters, widest(params, m).n_clusters)
    if m > high:
        return 0 if params.max_clusters is None else most
    most = max(most, SHARED_CLUSTERS)  # and as many as blocks are no wider for, where the samples hang together
    return next(c for c in itertools.count(most) if block_width(c) > block_width(most - 1))


def _between(number: int, limits: tuple[int, int]) -> int:
    """The number, or the limit that it is beyond."""
    return min(max(number, limits[0]), limits[1])


def comparison_times(metric: str) -> int:
    """How many times as long as by a matrix product comparing two samples takes."""
    return COMPARED_TIMES if METRICS[metric].compares_pairs else 1


def _exact_work(m: int, f: int, metric: str) -> float:
    """The work of comparing every pair: pairs times (features + 64); several times by a metric of pairs."""
    return float(m) * m * (f + 64) * comparison_times(metric)


def partition_bounds(m: int, f: int, rows: int | None = None) -> tuple[int, ...]:
    """Limits of the partitions: they follow the shape of the data alone, never the number of workers.

    A partition holds about 16 MiB of X, at least 1,024 and at most 16,384 samples, but there are at most 2,500 of them,
    or 5,000 where they would have more than 131,072 samples (`MAX_PARTITIONS`); or ``rows`` samples. Returns 0, the
    first sample of each later partition, and m.
    """
    if rows is None:
        rows = min(max(PARTITION_BYTES // (4 * max(f, 1)), 1024), 16384)
        rows = max(rows, math.ceil(m / _between(math.ceil(m / LARGE_PARTITION), MAX_PARTITIONS)))
    return (*range(0, m, rows), m)


def joined_rows(m: int, rows: int) -> int:
    """Samples that whole shards of a partition have at most together, where partitions have at most ``rows``."""
    return min(rows, m // JOINED_PARTITIONS)


def widest(params: Params, m: int) -> Params:
    """Parameters with the largest number of clusters that may be chosen for m samples; unchanged where c is given.

    Plan, graph and tensor are those of this number, and serve every smaller one.
    """
    if params.max_clusters is None:
        return params
    most = max(2, min(params.max_clusters, m // MIN_SAMPLES))  # fewer in each have no density
    considered = most if params.assign_labels == "leiden" else params.max_clusters  # V stays that when c is found
    return dataclasses.replace(params, n_clusters=most, max_clusters=considered)

"""The automatic decisions of a run: partitions, graph builder, operator, and where block vectors live."""

from __future__ import annotations

import dataclasses
import math

from ips2_dask.kernels.eigen import block_width
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.params import Params

PARTITION_BYTES = 16 << 20
"""Bytes of the samples of a partition, about."""

MAX_PARTITIONS = (2_500, 5_000)
LARGE_PARTITION = 1 << 17
"""Most partitions: the smaller number until partitions have so many samples (327 million in all), then up to the larger
one. The sharded graph, which goes over partitions and shards most often, then has as many tasks as a stage may have."""

JOINED_PARTITIONS = 32
"""Shards are joined to partitions of as many samples as a partition may have, while there are more partitions than
this: fewer would leave workers of small runs without a task. Every partition stores some thirty arrays in files of its
own: 1,000,000 x 16 in chunks took 278 s in 245 partitions of 4,000 samples, and 246 s in 82 of 12,000 (measured)."""

MAX_SHARDS = (2_500, 4_096)
LARGE_SHARD = 1 << 16
"""The same of shards and their members: 82 million samples. Up to 4,096 cells are put in order by a tree
(`kernels.shards.MAX_IN_TREE`), and k-means of so many takes the driver some minutes."""

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
to the smaller limit all pairs of a shard are compared, which takes about as long: some 2 s on 784 features, by the
rates of 1,500 samples compared and of 10,000 searched."""

SHARD_WORK = 1.2e6
SHARD_MEMBERS = (3072, 4096)
SHARD_FEATURES = 384
"""Members of a shard times (f + 64), with f at most so large, and the limits of their number. Of 200,000 curved x 64
shards of 8,163, 4,081 and 2,040 members take 13.9, 8.7 and 5.5 s, with a recall of 1.00, .998 and .993; of points
without clusters in eight dimensions 8,108 and 4,054 members have .962 and, after a round of refinement, .952, and with
2,702 every pair has to be compared (measured). Above that f neighbours
are searched in principal directions first, so that more features do not cost more: recall@5 on MNIST .99 (measured)."""

TRIPLETS_BELOW = 2_000_000
"""Tensor entries before sharing up to which a stored matrix is the faster operator (measured)."""

ASSEMBLED_NEIGHBORS = 6
ASSEMBLED_BYTES = 2 << 30
ASSEMBLED_FEATURES = 512
ASSEMBLED_BYTES_WIDE = 3 << 28
"""k and bytes up to which the in-core solver's products are made with a CSR matrix: at k = 5 that takes half the time,
at k = 7 the same (measured). The solve of data wider than so many features is a small part of their run, and such data
are what goes beyond a machine's memory: there a matrix that decides how much a run needs would save little."""

CHUNK_SAMPLES = (1 << 14, 1 << 19)
CHUNKS = 16
"""Least and most samples of a chunk of block vectors, of which there are about so many in between. A product of the
smallest takes a few milliseconds, of the largest some tenths of a second."""
MAX_CHUNKS = 1_000
"""Above it, which is at 524 million samples, chunks have more samples. A product has a task for each chunk, and one for
the rows of each other chunk that it needs, some twenty; the scheduler takes a quarter of a millisecond for each."""

SHARED_SAMPLES = (2_000, 1 << 15)
SHARED_CLUSTERS = 18
"""Samples between which a solve also serves other numbers of clusters, and up to which number it always does: it costs
a second or less there, and another number of clusters then costs a tenth of a run."""

EXACT_PAIRS = 30_000
"""Pairs, about, up to which their eigenvectors are solved for where no tolerance is asked for: it takes a tenth of a
second. Labels need no solve."""

PAIRS_PER_NEIGHBOR = 2.4
"""Pairs of a sample and neighbour: on 64 features 7.8 pairs a sample of 5 neighbours, 26.9 of 10 (measured)."""

IN_CORE_BYTES = 3 << 30
"""Bytes of one block of vectors above which it is cut into chunks."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """The automatic decisions of a run; they follow from the data's shape, the parameters and explicit requests alone.

    Attributes
    ----------
    graph : {"exact", "shards", "pynndescent", "given"}
    n_shards : int
        Overlapping shards of the sample graph, 0 where there are none.
    operator : {"triplets", "matrix-free"}
    vectors : {"in-core", "chunked"}
        Where block vectors live.
    chunk_samples : int
        Samples of a chunk of them, about.
    assembled : bool
        Whether the in-core solver puts a matrix-free operator together as CSR, in memory only.
    shared : int
        Largest number of clusters that the one solve serves; 0 where it serves the run's own number alone.
    exact_after : bool
        Whether every pair is compared where the measured recall of an approximate graph is too low.
    exact : bool
        Whether the pairs' eigenvectors are solved for, in one process, and not Ritz vectors in the span that the sample
        graph gives.
    """

    graph: str
    n_shards: int
    operator: str
    vectors: str = "in-core"
    chunk_samples: int = CHUNK_SAMPLES[0]
    assembled: bool = False
    shared: int = 0
    exact_after: bool = False
    exact: bool = True

    def n_solved(self, params: Params) -> int:
        """Number of eigenpairs that are solved for; those of the plan, also once a smaller c has been chosen."""
        return max(self.shared, params.n_solved)


def choose(m: int, f: int, params: Params, vectors: str = "auto", rows: int | None = None) -> Choices:
    """The automatic decisions for m samples of f features.

    Parameters
    ----------
    m, f : int
    params : Params
    vectors : {"auto", "in-core", "chunked"}
        Where block vectors shall live.
    rows : int, optional
        Samples of a partition, where the caller has asked for a number.
    """
    graph, n_shards = _graph(m, f, params)
    if m == 1:
        vectors = "in-core"  # its one pair is the known vector, and no block is left to iterate on
    if vectors == "auto":
        block = 4 * block_width(params.n_solved) * _pairs_about(m, params.n_neighbors)
        vectors = "chunked" if block > IN_CORE_BYTES and params.tensor == "indecomposable" else "in-core"
    operator = _operator(m, params)
    return Choices(
        graph=graph,
        n_shards=n_shards,
        operator=operator,
        vectors=vectors,
        chunk_samples=_chunk_samples(m, rows),
        assembled=operator == "matrix-free" and _is_assembled(m, f, params),
        shared=_shared(m, params),
        exact_after=graph != "exact" and _exact_work(m, f, params.metric) <= EXACT_AFTER_WORK,
        exact=params.tol is not None or _pairs_about(m, params.n_neighbors) <= EXACT_PAIRS,
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


def _operator(m: int, params: Params) -> str:
    """The operator that products are made with."""
    if params.operator != "auto":
        return params.operator
    q = params.n_neighbors * (params.n_neighbors + 1) // 2
    small = m * q * (q + 1) // 2 <= TRIPLETS_BELOW
    return "triplets" if small else "matrix-free"


def _is_assembled(m: int, f: int, params: Params) -> bool:
    """Whether a matrix-free operator is small enough, and its k too, to be put together as CSR."""
    q = params.n_neighbors * (params.n_neighbors + 1) // 2
    limit = ASSEMBLED_BYTES if f <= ASSEMBLED_FEATURES else ASSEMBLED_BYTES_WIDE
    small = params.n_neighbors <= ASSEMBLED_NEIGHBORS and 8 * m * q * (q + 1) <= limit
    return params.operator == "auto" and small


def _chunk_samples(m: int, rows: int | None) -> int:
    """About how many samples a chunk of block vectors has: two partitions where the caller has cut them."""
    if rows is not None:
        return 2 * rows
    return max(_between(m // CHUNKS, CHUNK_SAMPLES), math.ceil(m / MAX_CHUNKS))


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
    if m <= high:
        return _filled(max(most, SHARED_CLUSTERS))
    return 0 if params.max_clusters is None else most


def _between(number: int, limits: tuple[int, int]) -> int:
    """The number, or the limit that it is beyond."""
    return min(max(number, limits[0]), limits[1])


def comparison_times(metric: str) -> int:
    """How many times as long as by a matrix product comparing two samples takes."""
    return COMPARED_TIMES if METRICS[metric].compares_pairs else 1


def _exact_work(m: int, f: int, metric: str) -> float:
    """The work of comparing every pair: pairs times (features + 64).

    It counts several times for a metric that no matrix product gives.
    """
    return float(m) * m * (f + 64) * comparison_times(metric)


def _filled(c: int) -> int:
    """The largest number of clusters whose blocks are no wider, where the samples hang together."""
    width = block_width(c - 1)
    while block_width(c) == width:
        c += 1
    return c


def _pairs_about(m: int, k: int) -> int:
    """About how many pairs a tensor of m samples has, before its graph is known."""
    return round(PAIRS_PER_NEIGHBOR * m * k)


def partition_bounds(m: int, f: int, rows: int | None = None) -> tuple[int, ...]:
    """Limits of the partitions: they follow the shape of the data alone, never the number of workers.

    A partition holds about 16 MiB of X, at least 1,024 and at most 16,384 samples, but there are at most 2,500 of them,
    or 5,000 where they would have more than 131,072 samples (`MAX_PARTITIONS`).

    Parameters
    ----------
    m, f : int
    rows : int, optional
        Samples of a partition, in place of that rule.

    Returns
    -------
    tuple of int
        0, the first sample of each later partition, and m.
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
    most = max(2, min(params.max_clusters, m - 1))
    if params.assign_labels == "leiden":  # V stays that of this number when c is found
        return dataclasses.replace(params, n_clusters=most, max_clusters=most)
    return dataclasses.replace(params, n_clusters=most)

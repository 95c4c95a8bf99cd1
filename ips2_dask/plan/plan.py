"""What a run will do before it does it: partitions, builders, projected memory and disk of each stage."""

from __future__ import annotations

import dataclasses
import itertools
import math

from ips2_dask.errors import BadInput, Refused
from ips2_dask.kernels.antisymmetric import element_bytes
from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.eigen import block_width, blocks_held
from ips2_dask.kernels.rounding import SPREAD_PRODUCTS, WALK, restart_tasks
from ips2_dask.kernels.warm_start import start_bytes
from ips2_dask.params import COMPARED, DENSE_MAX_SAMPLES, Params
from ips2_dask.plan import costs

PARTITION_BYTES = 16 << 20
MOST_TASKS = 20_000
"""Of a stage: more of them would keep the scheduler busier than the workers."""
MOST_PARTITIONS = 2_500
"""Also shards. The stage that goes over them most often, the sharded graph, then has as many tasks as there may be."""
MOST_GIVEN = 20_000
"""Samples up to which a matrix of all distances is taken: 1.6 GB."""
BASELINE_BYTES = 420 << 20
"""What a process holds before it has done anything: Python, NumPy, SciPy, Numba's compiler, Dask (measured)."""


CACHE_BYTES = 256 << 20
"""What a process keeps at most of the parts that it read last."""

SOLVED_BYTES = 200 << 20
"""What the client holds beside that when it has solved: more of SciPy, and memory not given back (measured)."""

EXACT_WORK = 1e12
"""m^2 (f + 64) up to which every pair is compared: about ten seconds on one core (measured)."""

EXACT_AFTER_WORK = 3e13
"""m^2 (f + 64) up to which every pair is compared where an approximate graph's measured recall stays below what is
promised: six minutes on two cores (measured: 100,000 x 64 takes 29 s of processor time, 300,000 x 64 266 s)."""

COMPARED_TIMES = 5
"""How many times as long comparing two samples takes by a metric that no matrix product gives: 7 on 64 features, 3 on
784, by the Chebyshev distance 12 (measured)."""

DESCENT_MEMBERS = (4096, 1 << 16)
DESCENT_BYTES = 64 << 20
"""Bytes of a shard that pynndescent searches, and the limits of its members: its time grows little faster than they. Up
to the smaller limit all pairs of a shard are compared, which takes about as long: some 2 s on 784 features, by the
rates of 1,500 samples compared and of 10,000 searched."""

SHARD_WORK = 1.2e6
SHARD_MEMBERS = (3072, 8192)
SHARD_FEATURES = 384
SHARD_SPREAD = 4
SAMPLE_PER_SHARD = 200
SPLIT_BYTES = 256 << 20
"""Members of a shard times (f + 64), with f at most so large, and the limits of their number. Above it neighbours are
narrowed down in principal directions, so that more features do not cost more: recall@5 on MNIST .99 (measured). The
largest shard has up to four times the mean's members; its rows come from batches of a quarter of a GiB."""

TRIPLETS_BELOW = 2_000_000
"""Tensor entries before sharing up to which a stored matrix is the faster operator (measured)."""


REMEMBERED = 24
"""Bytes that the worker of a chunk of vectors remembers of a pair besides the operator: the scale, where it stands in
the blocks of other chunks and in what is sent of them, its number, and what its component's vector is there."""

ASSEMBLED_NEIGHBORS = 6
ASSEMBLED_BYTES = 2 << 30
ASSEMBLED_FEATURES = 512
ASSEMBLED_BYTES_WIDE = 3 << 28
"""k and bytes up to which the in-core solver's products are made with a CSR matrix: at k = 5 that takes half the time,
at k = 7 the same (measured). The solve of wide data is a small part of their run, and such data are what goes beyond a
machine's memory: there a matrix that decides how much a run needs would save little."""

CHUNK_SAMPLES = (1 << 14, 1 << 18)
CHUNKS = 40
"""Least and most samples of a chunk of block vectors, of which there are about so many in between. A product of the
smallest takes a tenth of a second, of the largest a second or two; and each chunk needs rows of many others, so that a
product of as many workers has up to the square of their number of tasks."""
MOST_CHUNKS = 500
NEAR_CHUNKS = CHUNKS - 1
"""How many others a chunk shares neighbourhoods with, at most and on average over the chunks: then a product of so many
chunks has as many tasks as a stage may have."""

SHARED_SAMPLES = (2_000, 1 << 15)
SHARED_CLUSTERS = 18
"""Samples between which a solve also serves other numbers of clusters, and up to which number it always does: it costs
a second or less there, and another number of clusters then costs a tenth of a run."""

PAIRS_PER_NEIGHBOR = 2.4
IN_CORE_BYTES = 3 << 30
"""Bytes of one block of vectors, at so many pairs a sample and neighbour, above which it is cut into chunks.

Measured on 64 features: 7.8 pairs a sample of 5 neighbours, 26.9 of 10."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """What was chosen automatically. It follows from the data's shape, the parameters and explicit requests alone.

    Attributes
    ----------
    graph : {"exact", "shards", "pynndescent", "given"}
    n_shards : int
        Overlapping shards of the sample graph, 0 where there are none.
    operator : {"triplets", "elements", "matrix-free"}
    vectors : {"in-core", "chunked"}
        Where block vectors live.
    chunk_samples : int
        Samples of a chunk of them, about.
    assembled : bool
        Whether the in-core solver puts a matrix-free operator together as CSR, in memory only.
    shared : int
        Number of clusters that one solve has to do for, with every smaller one; 0 where it is for the run's own alone.
    exact_after : bool
        Whether every pair is compared where the recall of an approximate graph stays below what is promised.
    """

    graph: str
    n_shards: int
    operator: str
    vectors: str = "in-core"
    chunk_samples: int = CHUNK_SAMPLES[0]
    assembled: bool = False
    shared: int = 0
    exact_after: bool = False

    def n_solved(self, params: Params) -> int:
        """Eigenpairs that are solved for. Where c is chosen, the parameters' own becomes smaller than was planned."""
        return max(self.shared, params.n_solved)


def choose(m: int, f: int, params: Params, vectors: str = "auto", rows: int | None = None) -> Choices:
    """The automatic choices for m samples of f features; ``vectors`` may ask for something else."""
    graph, shards = params.graph, params.shards
    if params.metric == "precomputed":
        graph, shards = "exact", None
    if graph == "auto":
        graph = "shards" if shards or exact_work(m, f, params.metric) > EXACT_WORK else "exact"
    members = min(max(int(SHARD_WORK / (min(f, SHARD_FEATURES) + 64)), SHARD_MEMBERS[0]), SHARD_MEMBERS[1])
    if params.metric in COMPARED:
        members = min(max(DESCENT_BYTES // (4 * max(f, 1)), DESCENT_MEMBERS[0]), DESCENT_MEMBERS[1])
    n_shards = 0 if graph != "shards" else min(shards or math.ceil(2 * m / members), m // 2)
    n_shards = n_shards if shards else min(n_shards, MOST_PARTITIONS)
    operator, q = params.operator, params.n_neighbors * (params.n_neighbors + 1) // 2
    if operator == "auto":
        operator = "triplets" if m * q * (q + 1) // 2 <= TRIPLETS_BELOW else "matrix-free"
    if vectors == "auto":
        block = 4 * block_width(params.n_solved) * pairs_about(m, params.n_neighbors)
        vectors = "chunked" if block > IN_CORE_BYTES and params.tensor == "indecomposable" else "in-core"
    if vectors == "chunked" and params.operator == "auto":
        operator = "matrix-free"  # the least memory for each worker
    most = ASSEMBLED_BYTES if f <= ASSEMBLED_FEATURES else ASSEMBLED_BYTES_WIDE
    small = params.n_neighbors <= ASSEMBLED_NEIGHBORS and 8 * m * q * (q + 1) <= most
    assembled = params.operator == "auto" and operator == "matrix-free" and vectors == "in-core" and small
    chunk = min(max(CHUNK_SAMPLES[0], m // CHUNKS), CHUNK_SAMPLES[1])
    chunk = max(chunk, math.ceil(m / MOST_CHUNKS)) if rows is None else 2 * rows
    shared = 0 if params.n_eigenpairs is None else params.n_solved
    low, high = SHARED_SAMPLES
    if not shared and params.tensor == "indecomposable" and vectors == "in-core" and low <= m <= high:
        shared = _filled(max(params.n_clusters, SHARED_CLUSTERS))
    after = graph != "exact" and exact_work(m, f, params.metric) <= EXACT_AFTER_WORK
    return Choices(graph, n_shards, operator, vectors, chunk, assembled, shared, after)


def exact_work(m: int, f: int, metric: str) -> float:
    """What comparing every pair takes: pairs times features, of which there are 64 more than there are.

    Where no matrix product does it, it counts several times.
    """
    return float(m) * m * (f + 64) * (COMPARED_TIMES if metric in COMPARED else 1)


def _filled(c: int) -> int:
    """The largest number of clusters whose blocks are no wider, where the samples hang together."""
    width = block_width(c - 1)
    while block_width(c) == width:
        c += 1
    return c


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Projections of one stage.

    Attributes
    ----------
    tasks : int
        Of all its passes over partitions, shards or chunks, if the graph needs no refinement; of a panel's product in
        eigen.
    """

    name: str
    what: str
    tasks: int
    worker_bytes: int
    client_bytes: int
    disk_bytes: int
    seconds: float = 0.0
    products: int = 0


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a plan was asked for besides the shape of the data and the parameters; see `make_plan`."""

    rows: int | None = None
    resident: int = 0
    n_workers: int = 2
    vectors: str = "auto"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that follows from the shape of the data and the parameters, settled before the first task.

    Attributes
    ----------
    exact_seconds : float
        About how much longer a run takes whose approximate graph needs an exact search, see `Choices.exact_after`; 0
        where none would follow.
    """

    m: int
    f: int
    bounds: tuple[int, ...]
    choices: Choices
    stages: tuple[StagePlan, ...]
    warnings: tuple[str, ...]
    asked: Asked = Asked()
    exact_seconds: float = 0.0

    def of_distinct(self, m: int, params: Params) -> Plan:
        """The same with choices and projections for m distinct samples, which the ingest has found among the rows."""
        f = m if params.metric == "precomputed" else self.f
        found = make_plan(m, f, params, **dataclasses.asdict(self.asked))
        found = dataclasses.replace(self, choices=found.choices, stages=(self.stages[0], *found.stages[1:]))
        return found.of_given_graph() if self.choices.graph == "given" else found

    def of_given_graph(self) -> Plan:
        """The same without a search for neighbours: who may be near is given."""
        choices = dataclasses.replace(self.choices, graph="given", n_shards=0, exact_after=False)
        return dataclasses.replace(self, choices=choices, exact_seconds=0.0)

    @property
    def worker_bytes(self) -> int:
        """Projected peak of a worker process."""
        return max(s.worker_bytes for s in self.stages)

    @property
    def client_bytes(self) -> int:
        """Projected peak of the client process."""
        return max(s.client_bytes for s in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Projected size of the run directory."""
        return sum(s.disk_bytes for s in self.stages)

    @property
    def seconds(self) -> float:
        """About how long the stages take, see `ips2_dask.plan.costs`."""
        return sum(s.seconds for s in self.stages)


def partition_bounds(m: int, f: int, rows: int | None = None) -> tuple[int, ...]:
    """Limits of the partitions: they follow the shape of the data alone, never the number of workers.

    A partition holds about 16 MiB of X, at least 1,024 and at most 16,384 samples; but there are at most 2,500.
    """
    if rows is None:
        rows = min(max(PARTITION_BYTES // (4 * max(f, 1)), 1024), 16384)
        rows = max(rows, math.ceil(m / MOST_PARTITIONS))
    return (*range(0, m, rows), m)


def widest(params: Params, m: int) -> Params:
    """Parameters with as many clusters as may be chosen for m samples; what they were where nothing is to be chosen.

    Its plan, graph and tensor are those of every number that may be chosen.
    """
    if params.max_clusters is None:
        return params
    return dataclasses.replace(params, n_clusters=max(2, min(params.max_clusters, m - 1)))


def check_shape(m: int, f: int, params: Params, name: str) -> None:
    """Refuse parameters that this many samples can't satisfy.

    Raises
    ------
    BadInput
    """
    if m < 2:
        raise BadInput(
            name,
            f"n_samples = {m}",
            "a minimum of 2 samples",
            "there would be nothing to compare",
            "give more than 1 sample",
        )
    if f < 1:
        raise BadInput(name, "0 feature(s)", "a minimum of 1 feature", "all samples would be equal", "give a column")
    if params.n_eigenpairs is not None and params.n_eigenpairs > m:
        raise BadInput(
            "n_eigenpairs", f"{params.n_eigenpairs} with {m} samples", "at most one a sample",
            "there would not be as many", f"give n_eigenpairs={m} or less",
        )  # fmt: skip
    if params.n_components is not None and params.n_components > m:
        raise BadInput(
            "n_components", f"{params.n_components} with {m} samples", "at most one a sample",
            "there would not be as many eigenvectors", f"give n_components={m} or less",
        )  # fmt: skip
    if params.n_clusters > m:
        raise BadInput(
            "n_clusters", f"{params.n_clusters} with {m} samples", "at most one cluster a sample",
            "some clusters would be empty", f"give n_clusters={m} or less",
        )  # fmt: skip
    if params.n_neighbors > m:
        raise BadInput(
            "n_neighbors", f"{params.n_neighbors} with {m} samples", "at most the number of samples",
            "a neighbourhood would hold a sample twice", f"give n_neighbors={m} or less",
        )  # fmt: skip
    if params.metric == "precomputed" and m != f:
        raise BadInput(
            name, f"{m} x {f} values with metric='precomputed'", "a square matrix, samples by samples",
            "rows of features would be read as distances", "give the distances of all samples, or another metric",
        )  # fmt: skip
    if params.metric == "precomputed" and m > MOST_GIVEN:
        raise BadInput(
            name, f"distances of {m} samples", f"at most {MOST_GIVEN} samples with metric='precomputed'",
            f"all distances would take {4 * m * m / 2**30:.0f} GiB", "give the samples, and a metric or a knn_graph",
        )  # fmt: skip


def pairs_about(m: int, k: int) -> int:
    """About how many pairs a tensor of m samples has, before its graph is known."""
    return round(PAIRS_PER_NEIGHBOR * m * k)


def make_plan(
    m: int,
    f: int,
    params: Params,
    *,
    rows: int | None = None,
    resident: int = 0,
    n_workers: int = 2,
    vectors: str = "auto",
) -> Plan:
    """The plan for m samples of f features.

    Parameters
    ----------
    rows : int, optional
        Samples in a partition, instead of what the shape decides.
    resident : int
        Bytes that the input's format needs in one process to be read at all.
    vectors : {"auto", "in-core", "chunked"}
        Where block vectors shall live.
    n_workers : int
        Who share the stages' work and the blocks of vectors; it changes projections and warnings, never a choice.
    """
    bounds = partition_bounds(m, f, rows)
    choices = choose(m, f, params, vectors, rows)
    n, k, c, solved_for = len(bounds) - 1, params.n_neighbors, params.n_clusters, choices.n_solved(params)
    embedded = min(params.n_embedded, m)
    part = min(m, max(b - a for a, b in itertools.pairwise(bounds)))
    q = k * (k + 1) // 2
    n_pairs = min(m * (m + 1) // 2, m * (k * (k - 1) // 2) + m, int(m * q * 0.75) + m)
    entries = m * q * (q + 1) // 2
    width = block_width(solved_for)
    block, blocks = 4 * width * n_pairs, blocks_held(n_pairs, width, choices.vectors)
    # of given distances a partition may need the rows of all samples; else those that its neighbourhoods use, several
    # times while they are put together, beside the parts that they were read from (measured on 4,096 features)
    near = 12 * m * m if params.metric == "precomputed" else 24 * f * min(m, k * part) + min(4 * m * f, CACHE_BYTES)
    X, graph = 4 * m * f, m * (8 * max(k, 6) + 8)
    dense = params.affinity in ("gaussian", "precomputed") and m <= DENSE_MAX_SAMPLES
    similarity = 8 * 3 * m * m if dense else 60 * (n_pairs + 5 * m)
    triplets = 20 * entries
    csr = 8 * 2 * entries
    base, kept = BASELINE_BYTES, 3 * graph  # kept: the graph's lists, which a process reads once
    searched, gathered = X + graph, X + graph  # exact: every process reads all of X
    if choices.n_shards:
        members = min(m, SHARD_SPREAD * 2 * m // choices.n_shards)
        batch = min(X, max(SPLIT_BYTES, 4 * part * f))
        searched = max(4 * batch, 4 * members * ((4 if params.metric in COMPARED else 2) * f + 64)) + 2 * graph
        gathered = 5 * f * min(m, SAMPLE_PER_SHARD * choices.n_shards) + 2 * graph + 24 * m
    bits_bytes = sum(math.comb(k, size) for size in range(5)) // 8 + 1
    q_bytes = m * (12 * q + 2 * k * k + bits_bytes)  # ids, places, distances, owner bits
    operator = {"triplets": triplets + 2 * csr, "elements": q_bytes + 4 * entries, "matrix-free": q_bytes}
    held = operator[choices.operator] + (csr + 48 * n_pairs if choices.assembled else 0)
    degrees = operator[choices.operator] + 48 * n_pairs + 2 * element_bytes(m, k)
    solved, spread, apart = held + blocks, 0, 0
    if choices.vectors == "chunked":
        chunk = min(m, 2 * choices.chunk_samples)
        degrees = 4 * m * 16 + 64 * m
        solved = max(degrees, start_bytes(m, k, width))  # the sample graph's start is made in this process
        # blocks stay on the workers: three of them, or two, one more while one replaces another, a chunk's operator
        own = {"triplets": csr, "elements": q_bytes + 4 * entries, "matrix-free": q_bytes}[choices.operator]
        spread = blocks // max(1, n_workers) + 3 * (own + block) * chunk // m + graph
        # and the operators of a worker's chunks, with neighbourhoods that two chunks share
        shared = own - (8 * q * m if choices.operator != "triplets" else 0)
        operators = 5 * (shared + REMEMBERED * n_pairs) // (4 * max(1, n_workers))
        spread += operators
        apart = operators + 3 * (own + 32 * n_pairs) * chunk // m  # degrees: a product with one column
    bits = sum(math.comb(k, size) for size in range(1, min(k, 4) + 1))
    made = part * (2 * bits + 12 * q + 4 * k * k)
    triplets_stored = 0
    if choices.operator == "triplets":
        made, triplets_stored = 4 * triplets * part // m, triplets // 2
        if choices.vectors == "chunked":  # a chunk's rows are cut out of the triplets of its partitions and near ones
            made = max(made, triplets * part // m + 4 * csr * min(m, 2 * choices.chunk_samples) // m)
            triplets_stored += csr
    # the operator stays in the client's memory when the pairs are solved; then come U as CSR, and its own solve
    solver = base + SOLVED_BYTES + kept + 100 * m + (q_bytes if choices.vectors == "in-core" else 0)
    fused = 2 * similarity if dense else 24 * (n_pairs + 5 * m)
    # rows of U and of the walk on it, and the blocks of shares, in chunks that the workers share
    walked = (fused * 4 // 3 + 24 * m * c) // max(1, n_workers) if choices.vectors == "chunked" else 0
    tasks = _tasks(m, f, n, part, choices, n_workers) | {"ingest": _ingest_tasks(m, n, params)}
    stages = (
        StagePlan(
            "ingest", "check, centre and scale X", tasks["ingest"], base + 24 * part * f,
            base + 24 * part * f + resident, X,
        ),
        StagePlan(
            "neighbors", f"{max(k, 6)} nearest of each sample", tasks["neighbors"], base + searched,
            base + gathered, (X if choices.n_shards else 0) + 8 * m * max(k, 6),
        ),
        StagePlan(
            "tensor", f"{n_pairs:,} pairs at most, {2 * entries:,} entries at most", tasks["tensor"],
            base + graph + near + made, base + 16 * m + kept,
            (triplets_stored or q_bytes) + 8 * n_pairs,
        ),
        StagePlan(
            "assemble", "degrees and components", tasks["assemble"], base + kept + apart, base + graph + degrees,
            8 * n_pairs,
        ),
        StagePlan(
            "eigen", _eigenpairs(solved_for, params.tol), tasks["eigen"], base + kept + spread,
            base + graph + solved, 4 * solved_for * n_pairs,
        ),
        StagePlan(
            "fuse", "S, V, U", tasks["fuse"], base + 2 * similarity * part // m + kept + near,
            solver + (similarity if dense else 0), similarity,
        ),
        StagePlan(
            "label", f"embedding, {c} clusters", tasks["label"], base + kept + 24 * m * embedded + walked,
            solver + fused + max(fused // 3 + 16 * block_width(embedded) * m, 120 * m + 56 * m * embedded),
            12 * m * embedded + 4 * m * c,
        ),
    )  # fmt: skip
    shard = 2 * 2 * m // choices.n_shards if choices.n_shards else m  # each sample is in two shards of 2 m / n members
    times = COMPARED_TIMES if params.metric in COMPARED else 1
    if params.metric in COMPARED and choices.n_shards:
        shard = min(shard, DESCENT_MEMBERS[0])  # pynndescent compares a sample with no more, however many there are
    taken = costs.seconds(
        m, min(f, SHARD_FEATURES), k, c, compared=times * shard, columns=width, tol=params.tol,
        stored=3 * entries // 2 if choices.assembled or choices.operator == "triplets" else 0, n_workers=n_workers,
        chunked=choices.vectors == "chunked",
    )  # fmt: skip
    timed = tuple(
        dataclasses.replace(s, seconds=taken[s.name], products=costs.products(params.tol) if s.name == "eigen" else 0)
        for s in stages
    )
    warnings = [
        f"{count} {what} for {n_workers} workers: some will have nothing to do at times"
        for what, count in (("partitions", n), ("chunks of vectors", tasks["assemble"]))
        if 1 < count < 2 * n_workers
    ]
    worst = max(stages, key=lambda stage: stage.tasks)
    if worst.tasks > MOST_TASKS:
        text = f"{worst.tasks:,} tasks in stage {worst.name} will keep the scheduler busy: use larger partitions"
        warnings.append(text)
    asked = Asked(rows, resident, n_workers, vectors)
    more = times * costs.comparison(m, m, f, n_workers) if choices.exact_after else 0.0
    return Plan(m, f, bounds, choices, timed, tuple(warnings), asked, more)


def _tasks(m: int, f: int, n: int, part: int, choices: Choices, n_workers: int) -> dict[str, int]:
    """Tasks of each stage; those of a sharded graph have at most a partition a shard more than before."""
    made, near, chunks = n, n, 1
    if choices.n_shards:
        made = n + choices.n_shards
        batches = min(n, math.ceil(4 * m * f / SPLIT_BYTES))
        near = 2 * n + batches + choices.n_shards + 2 * made
    if choices.vectors == "chunked":
        chunks = math.ceil(m / max(choices.chunk_samples, part))
    return {
        "neighbors": near, "tensor": 2 * made + (chunks if chunks > 1 else 0), "assemble": chunks,
        "eigen": product_tasks(chunks, n_workers), "fuse": 2 * made, "label": _label_tasks(m, n, chunks),
    }  # fmt: skip


def _ingest_tasks(m: int, n: int, params: Params) -> int:
    """Statistics and samples; digests, their comparison, and the partitions of distinct samples at most."""
    return 2 * n + (2 * n + n_ranges(m) if params.merges_rows else 0)


def _label_tasks(m: int, n: int, chunks: int) -> int:
    """Two trees, the starts of k-means on two embeddings, and the walks on U where that is in chunks."""
    walks = SPREAD_PRODUCTS + 2 * WALK
    return 2 + 2 * restart_tasks(m) + (0 if chunks == 1 else n + walks * chunks)


def product_tasks(chunks: int, n_workers: int, near: float = NEAR_CHUNKS) -> int:
    """Most tasks of a product: one a chunk, and one for each other worker with chunks among the ``near`` ones to it."""
    return round(chunks * (1 + min(chunks - 1, near, n_workers - 1)))


def check_memory(plan: Plan, limit: int | None) -> None:
    """Refuse a run that could not keep the memory limit.

    Raises
    ------
    Refused
        With the smallest limit that would do.
    """
    needed = max(plan.worker_bytes, plan.client_bytes)
    if limit is not None and needed > limit:
        worst = max(plan.stages, key=lambda s: max(s.worker_bytes, s.client_bytes))
        raise Refused(
            f"memory_limit: stage {worst.name} needs {needed / 2**30:.2f} GiB in one process and the limit is "
            f"{limit / 2**30:.2f} GiB, so the process would be killed. "
            f"Remedy: give --memory-limit {math.ceil(needed / 2**28) / 4:g}GiB, or {_smaller(plan, worst.name)}."
        )


def _eigenpairs(count: int, tol: float | None) -> str:
    return f"{count} eigenpairs" + ("" if tol is None else f" to {tol:g}")


def _smaller(plan: Plan, stage: str) -> str:
    """The option that makes a stage's share of memory smaller."""
    if stage == "neighbors" and not plan.choices.n_shards:
        return "--shards 8, so that no process reads all samples"
    if stage == "neighbors":
        return f"--shards {2 * plan.choices.n_shards}"
    if stage in ("assemble", "eigen") and plan.choices.vectors == "in-core":
        return "--vectors chunked, so that the workers share the block vectors"
    if stage == "ingest":
        return "a smaller --partition-rows"
    return "lower n_neighbors"

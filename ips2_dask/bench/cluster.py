"""`ips2 bench cluster`: what a solve costs Dask's scheduler on a large cluster, with simulated workers.

The scheduler is a real one in a process of its own; solver, block space, checkpoints and executor are those of a run.
The workers (`ips2_dask.bench.simulated_workers`) answer every task at once and compute nothing, so that two cores are
enough for a thousand of them. Measured are the CPU time of the scheduler and of the client, how many tasks the
scheduler is sent and knows, what memory that takes, and how much is done again after a worker is lost. Not measured is
anything that takes a network: transfers between workers, their heartbeats, slow ones among them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import dask
import numpy as np
import psutil
from distributed import Client

from ips2_dask.bench import simulated_workers
from ips2_dask.bench.document import Record
from ips2_dask.bench.task_counter import TaskCounter, counts
from ips2_dask.errors import BadInput
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.failures import PATIENCE
from ips2_dask.kernels import eigen as kernel
from ips2_dask.kernels.selection import solved_pairs
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices, choose, pairs_about
from ips2_dask.stages.block_rounds import with_recovery
from ips2_dask.stages.block_space import ChunkedSpace
from ips2_dask.stages.checkpoints import PLACES, SHARE, Chunked
from ips2_dask.store.base import AnyArray
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

COLUMNS = (
    "kind", "workers", "chunks", "near", "panels", "products", "tasks", "tasks_a_product", "scheduler_cpu_a_product",
    "client_cpu_a_product", "most_tasks", "scheduler_bytes", "bytes_a_task", "redone", "redone_share",
)  # fmt: skip

FEATURES = 64
"""Features of the simulated samples, on which the plan's number of chunks depends."""

SHARED_ROWS = 1000
"""Rows that a chunk needs of each near one."""

LATE = 0.9
"""Share of the tasks of a filter, or of those until the next checkpoint, after which a worker is lost."""

START_SECONDS = 120.0
"""How long the scheduler and the workers may take to start."""

SETTLE_SECONDS = 1.0
"""How long the scheduler gets to forget the tasks of what was measured before."""


class Setting(NamedTuple):
    """A simulated solve."""

    context: Context
    width: int  # columns of a block vector
    wanted: int  # eigenpairs

    @property
    def chunks(self) -> int:
        """Chunks of a block vector."""
        return self.context.n_partitions


class Spent(NamedTuple):
    """What something has cost."""

    seconds: float
    scheduler_cpu: float
    client_cpu: float
    sent: int
    done: int
    redone: int  # of these, a second time
    most_tasks: int
    scheduler_bytes: int  # most memory of the scheduler, beyond what it had before


def measure(
    workers: int,
    chunks: int | None,
    near: int,
    products: int,
    samples: int,
    clusters: int,
    folder: Path,
    writing: float = 1.0,
) -> Iterator[Record]:
    """A record of kind "filter", of kind "solve" and of kind "loss".

    A filter makes `ips2_dask.kernels.eigen.DEGREE` products from a random block. A solve is that of a run, checkpoints
    included, and goes on until it has made ``products`` of them. For "loss" the solve is made again, and one of the
    workers is lost shortly before the checkpoint that follows the first one, or the end of the filter after it, when
    most is lost with it; ``redone`` are the products of panels that are made a second time.

    Parameters
    ----------
    workers : int
    chunks : int, optional
        Of a block vector; None takes the plan's number.
    near : int
        Chunks of which each chunk needs rows: the neighbouring ones by number.
    products : int
        Least products of a solve.
    samples : int
        Of the simulated run: the size of a block vector follows from it, and so the number of panels.
    clusters : int
        The run's number of clusters: the width of a block vector follows from it.
    folder : Path
        For the run directory, and the scheduler's file.
    writing : float
        Storing a state of the solve takes as long as so many products: how often one is stored follows from it.

    Raises
    ------
    BadInput
        If there are fewer than two chunks, or fewer chunks than a chunk has near ones.
    """
    chosen = setting(samples, chunks, near, clusters, folder)
    with simulated_cluster(workers, chosen, folder) as (client, cluster):
        shape: Record = {
            "workers": workers, "chunks": chosen.chunks, "near": near, "samples": samples, "c": clusters,
            "columns": chosen.width, "writing": writing,
        }  # fmt: skip
        executor = DaskExecutor(client, 1, PATIENCE)
        space = ChunkedSpace(chosen.context, executor, chosen.width, wide=False, short_rounds=True)
        space.reopen()
        shape["panels"] = kernel.panels_of(space.n, chosen.width, "chunked")
        spent = cluster.spent(lambda: _filter(space, chosen.width))
        yield {"kind": "filter", **shape, **_record(spent, kernel.DEGREE)}
        nearly = int(LATE * spent.done * max(1.0, SHARE * writing / kernel.DEGREE))
        made: list[int] = []
        before = space.steps
        spent = cluster.spent(lambda: made.append(_solve(chosen, space, products, writing)))
        undisturbed = space.steps - before
        yield {"kind": "solve", **shape, **_record(spent, made[-1])}
        lose, before = partial(cluster.lose_after, nearly), space.steps
        spent = cluster.spent(lambda: made.append(_solve(chosen, space, products, writing, lose)))
        redone = space.steps - before - undisturbed
        again = {"redone": redone, "redone_share": redone / undisturbed}
        yield {"kind": "loss", **shape, **_record(spent, made[-1]), **again}


def setting(samples: int, chunks: int | None, near: int, clusters: int, folder: Path) -> Setting:
    """A stored run as far as the block space reads it: a partition a chunk, with the receipts of their operators."""
    params = Params(n_clusters=clusters)
    planned = choose(samples, FEATURES, params, "chunked")
    n = chunks or math.ceil(samples / planned.chunk_samples)
    if n < 2 or near >= n:
        raise BadInput(
            "--near", f"{near} with {n} chunks", "a number below that of chunks, of which there are two or more",
            "a chunk would need rows of chunks that are not there", "give fewer --near, or more --chunks",
        )  # fmt: skip
    context = Context(
        store=ZarrStore(str(folder / "run")), params=params, bounds=tuple(range(n + 1)), n_features=FEATURES,
        choices=Choices("shards", n, "matrix-free", "chunked", chunk_samples=1),
        folders={stage: f"{stage}-{0:016x}" for stage in STAGES},
    )  # fmt: skip
    each = max(1, pairs_about(samples, params.n_neighbors) // n)
    context.facts = {
        "tensor": {"pair_offsets": [each * g for g in range(n + 1)]}, "assemble": {"antisymmetric": None},
    }  # fmt: skip
    _store(context, near, each)
    wanted = solved_pairs(context.choices.n_solved(params), False, 1)
    return Setting(context, kernel.block_width(wanted), wanted)


def _store(context: Context, near: int, pairs: int) -> None:
    """Store the parts that the block space and the checkpoints read; operators have no neighbourhoods."""
    n, store, k = context.n_partitions, context.store, context.params.n_neighbors
    arrays: dict[str, AnyArray] = {
        "touched": np.zeros(1, np.int64), "near_blocks": np.zeros((0, k * (k - 1) // 2), np.float32),
        "near_owned": np.zeros((0, 1), np.uint8), "near_ids": np.zeros((0, k * (k + 1) // 2), np.int32),
    }  # fmt: skip
    for g in range(n):
        low = min(max(0, g - near // 2), n - 1 - near)
        touched = [pairs if h == g else SHARED_ROWS * (low <= h <= low + near) for h in range(n)]
        cuts = [0, *np.cumsum(touched).tolist()]
        store.write(context.folders["tensor"], f"chunk-{part_name(g)}", arrays, {"cuts": cuts})
    store.write(context.folders["assemble"], "whole", {"components": np.zeros(n, np.int32)}, {})


def _filter(space: ChunkedSpace, width: int) -> None:
    """One filter of a random block, and a Gram matrix of the result, which waits for it."""
    y = kernel.chebyshev_filter(space, space.random(width, 0), -1.0, 0.5, 1.0, kernel.DEGREE)
    space.gram(y, y)


def _solve(
    chosen: Setting,
    space: ChunkedSpace,
    products: int,
    writing: float,
    after_checkpoint: Callable[[], None] = lambda: None,
) -> int:
    """The solve of a run, its checkpoints included, until it has made so many products; returns how many it made.

    ``after_checkpoint`` is called once, after the first one.
    """
    for place in PLACES:  # of an earlier solve
        chosen.context.store.drop(chosen.context.folders["eigen"], place)
    solve_checkpoints, calls = _Checkpoints(chosen.context, space, writing), [after_checkpoint]

    def checkpoint(state: kernel.State) -> None:
        solve_checkpoints.keep(state)
        while calls:
            calls.pop()()

    def solve(state: kernel.State | None) -> kernel.Solution:
        solution = kernel.leading_eigenpairs(
            space, chosen.wanted, space.start, tol=1e-9, most_products=products, state=state, checkpoint=checkpoint
        )
        space.store_vectors(solution.vectors, chosen.wanted)
        return solution

    return with_recovery(space, solve_checkpoints.latest, solve).products


class _Checkpoints(Chunked):
    """Checkpoints by a clock of products, of which storing a state takes as many as is given: here neither takes time.

    Parameters
    ----------
    context : Context
    space : ChunkedSpace
    writing : float
    """

    def __init__(self, context: Context, space: ChunkedSpace, writing: float) -> None:
        self._writing, self._written = writing, 0
        super().__init__(context, space, clock=lambda: space.steps / space.panels + writing * self._written)

    def _store_blocks(self, place: str, state: kernel.State) -> Mapping[str, AnyArray]:
        self._written += 1
        return super()._store_blocks(place, state)


def _record(spent: Spent, products: int) -> Record:
    """The figures of what was measured, by product and as a whole."""
    return {
        "products": products, "tasks": spent.sent, "tasks_a_product": round(spent.sent / products),
        "seconds": spent.seconds, "seconds_a_product": spent.seconds / products,
        "scheduler_cpu": spent.scheduler_cpu, "scheduler_cpu_a_product": spent.scheduler_cpu / products,
        "scheduler_us_a_task": spent.scheduler_cpu / spent.sent * 1e6,
        "client_cpu": spent.client_cpu, "client_cpu_a_product": spent.client_cpu / products,
        "most_tasks": spent.most_tasks, "scheduler_bytes": spent.scheduler_bytes,
        "bytes_a_task": spent.scheduler_bytes / max(1, spent.most_tasks),
        "redone": 0, "redone_share": 0.0,
    }  # fmt: skip


# ---- the processes: a scheduler, and one for all workers


class SimulatedCluster:
    """A running scheduler with simulated workers, and what it costs.

    Parameters
    ----------
    client : distributed.Client
    scheduler, workers : Popen
        The processes.
    """

    def __init__(self, client: Client, scheduler: subprocess.Popen[bytes], workers: subprocess.Popen[bytes]) -> None:
        self._client, self._workers = client, workers
        self._scheduler, self._here = psutil.Process(scheduler.pid), psutil.Process()

    def lose_after(self, tasks: int) -> None:
        """Have one of the workers lost once so many more tasks are done."""
        assert self._workers.stdin is not None
        self._workers.stdin.write(f"lose {tasks}\n".encode())
        self._workers.stdin.flush()

    def spent(self, work: Callable[[], None]) -> Spent:
        """What some work costs, until its last task is done."""
        time.sleep(SETTLE_SECONDS)
        self._client.run_on_scheduler(counts)
        tasks = self._client.run_on_scheduler(counts)
        before, held = (time.perf_counter(), *self._cpu()), self._scheduler.memory_info().rss
        with _Memory(self._scheduler) as memory:
            work()
        after = (time.perf_counter(), *self._cpu())
        *tasks_after, most = self._client.run_on_scheduler(counts)
        seconds, scheduler_cpu, client_cpu = (b - a for a, b in zip(before, after, strict=True))
        sent, done, redone = (b - a for a, b in zip(tasks[:3], tasks_after, strict=True))
        return Spent(seconds, scheduler_cpu, client_cpu, sent, done, redone, most, max(0, memory.peak - held))

    def _cpu(self) -> tuple[float, float]:
        """CPU seconds of the scheduler and of this process so far."""
        times = self._scheduler.cpu_times(), self._here.cpu_times()
        first, second = (t.user + t.system for t in times)
        return first, second


class _Memory:
    """The peak of a process's resident memory while the ``with`` block lasts, looked at ten times a second."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._ended = process, threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss)
            if self._ended.wait(0.1):
                return


@contextlib.contextmanager
def simulated_cluster(n: int, chosen: Setting, folder: Path) -> Iterator[tuple[Client, SimulatedCluster]]:
    """A scheduler with n simulated workers; both end with the block."""
    _allow_files(4 * n + 256)
    file = folder / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the scheduler imports the task counter
    with contextlib.ExitStack() as stack:
        with (folder / "scheduler.log").open("wb") as log:
            scheduler = subprocess.Popen(
                [
                    sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                    "--scheduler-file", str(file),
                ],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(_end, scheduler)
        address = _address(file, scheduler)
        arguments = [address, str(n), str(chosen.chunks), str(chosen.width)]
        workers = subprocess.Popen(
            [sys.executable, "-m", simulated_workers.__name__, *arguments],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        stack.callback(_end, workers)
        stack.enter_context(dask.config.set({"distributed.comm.timeouts.connect": "60s"}))
        client = stack.enter_context(Client(address, set_as_default=False, timeout="60s"))
        client.wait_for_workers(n, timeout=START_SECONDS)
        client.register_plugin(TaskCounter())
        yield client, SimulatedCluster(client, scheduler, workers)


def _address(file: Path, scheduler: subprocess.Popen[bytes]) -> str:
    """The address that a scheduler has written into its file, once it has."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and scheduler.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise RuntimeError(f"a Dask scheduler did not start within {START_SECONDS:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started here."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _allow_files(wanted: int) -> None:
    """Let this process and those that it starts open so many files, as far as the system allows it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on Windows

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < wanted:
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

"""`ips2 bench cluster`: what a run's solves cost Dask's scheduler on a large cluster, with simulated workers.

The scheduler is a real one in a process of its own; levels, filters, checkpoints, walks and executor are those of a
run. The workers (`ips2_dask.bench.simulated_workers`) answer every task at once and compute nothing, so that two cores
are enough for a thousand of them. Measured are the CPU time of the scheduler and of the client, the tasks, the
scheduler's memory, and how much is done again after a worker is lost. Not measured is anything that takes a network:
transfers between workers, their heartbeats, slow ones among them.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import dask
import numpy as np
import psutil
from distributed import Client

from ips2_dask.bench import simulated_workers
from ips2_dask.bench.document import Record
from ips2_dask.bench.simulated_workers import Solve
from ips2_dask.errors import BadInput
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.failures import PATIENCE
from ips2_dask.kernels import eigen, levels
from ips2_dask.kernels.fusion import solved_pairs
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices, choose
from ips2_dask.stages import checkpoints, sample_space
from ips2_dask.stages.chunk_levels import ChunkedGraph
from ips2_dask.stages.walk import ChunkedWalk
from ips2_dask.store.context import Context
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

COLUMNS = (
    "kind",
    "workers",
    "chunks",
    "near",
    "products",
    "tasks",
    "scheduler_cpu",
    "client_cpu",
    "scheduler_us_a_task",
    "scheduler_peak_bytes",
    "again",
    "products_again",
)

FEATURES = 64
"""Features of the simulated samples, on which the plan's number of chunks depends."""

FILTERS = 2
"""Filters of the finest graph of U until it ends after those of its levels: mostly one or two (measured)."""

LATE = 0.9
"""Share of the tasks of a filter after which a worker is lost."""

START_SECONDS = 120.0
"""How long the scheduler and the workers may take to start."""

SETTLE_SECONDS = 1.0
"""How long the scheduler gets to forget the tasks of what was measured before."""


def measure(workers: int, chunks: int | None, near: int, samples: int, clusters: int, folder: Path) -> Iterator[Record]:
    """Records of kind "graph", "embedding" and "walk", the solves of a run; of their sum, "all"; and of kind "loss".

    The graph's eigenvectors are those of its levels. The embedding has levels of its own, and then `FILTERS` filters
    with a checkpoint after each. The walk spreads labels and ends in shares. ``products`` are those of the finest
    graph. For "loss" a filter of the finest graph begins at what is stored, and the worker that holds most is lost
    shortly before its end; ``again`` are the tasks that are done a second time, and ``products_again`` the chunks'
    products among them.

    Parameters
    ----------
    workers : int
    chunks : int, optional
        Of the samples; None takes the plan's number.
    near : int
        Chunks of which each chunk needs rows: the neighbouring ones by number.
    samples, clusters : int
        Of the simulated run: the width of a block follows from the clusters.
    folder : Path
        For the run directory, and the scheduler's file.

    Raises
    ------
    BadInput
        If there are fewer than two chunks, or fewer chunks than a chunk has near ones, or samples without levels.
    """
    context, solve = setting(samples, chunks, near, clusters, folder)
    shape: Record = {
        "workers": workers,
        "chunks": solve.chunks,
        "near": near,
        "samples": samples,
        "c": clusters,
        "columns": solve.columns,
    }
    with simulated_cluster(workers, solve, folder) as cluster:
        run = _Run(context, DaskExecutor(cluster.client, 1, PATIENCE), solve)
        found = []
        for kind in ("graph", "embedding", "walk"):
            found.append(cluster.spent(getattr(run, kind)))
            yield {"kind": kind, **shape, **_record(found[-1])}
        yield {"kind": "all", **shape, **_record(Spent.summed(found))}
        once = cluster.spent(run.filter)
        cluster.lose_after(int(LATE * once.done))
        yield {"kind": "loss", **shape, **_record(cluster.spent(run.filter))}


def setting(samples: int, chunks: int | None, near: int, clusters: int, folder: Path) -> tuple[Context, Solve]:
    """A run as far as solves look at it, with a chunk a partition, and its sizes."""
    params = Params(n_clusters=clusters)
    planned = choose(samples, FEATURES, params, "chunked")
    n = chunks or math.ceil(samples / planned.chunk_samples)
    if n < 2 or near >= n:
        raise BadInput(
            "--near",
            f"{near} with {n} chunks",
            "a number below that of chunks, of which there are two or more",
            "a chunk would need rows of chunks that are not there",
            "give fewer --near, or more --chunks",
        )
    if samples <= levels.COARSEST:
        raise BadInput(
            "--samples",
            str(samples),
            f"more than {levels.COARSEST}",
            "their graph would have no levels",
            "give more --samples",
        )
    rows = samples // n
    context = Context(
        store=ZarrStore(str(folder / "run")),
        params=params,
        bounds=tuple(rows * g for g in range(n + 1)),
        n_features=FEATURES,
        choices=Choices("shards", n, "matrix-free", "chunked", chunk_samples=rows),
        folders={stage: f"{stage}-{0:016x}" for stage in STAGES},
    )
    columns = eigen.block_width(solved_pairs(context.choices.n_solved(params), False, 1))
    return context, Solve(n, rows, near, columns)


class _Enough(Exception):
    """A solve has made its filters."""


class _Walk(ChunkedWalk):
    """The walks of a run whose rows of U are stored."""

    def __init__(self, context: Context, executor: DaskExecutor, solve: Solve) -> None:
        self._context, self._executor, self._shared = context, executor, executor.share(context)
        self._chunks, self._matrix, self._halo = range(solve.chunks), [], None


class _Run:
    """The solves of a run: each method returns how many products of the finest graph it made."""

    def __init__(self, context: Context, executor: DaskExecutor, solve: Solve) -> None:
        self._context, self._executor, self._solve = context, executor, solve
        self._opened: tuple[ChunkedGraph, checkpoints.Chunked] | None = None

    def _graph(self, name: str) -> ChunkedGraph:
        chunk_of = {"graph": sample_space.graph_chunk, "fused": sample_space.fused_chunk}[name]
        return sample_space.open_graph(self._context, self._executor, name, chunk_of, 1)

    def _start(self, graph: ChunkedGraph) -> levels.Start:
        found = levels.start(graph, self._solve.columns, self._solve.columns * 2 // 3, 0)
        assert found is not None
        return found

    def graph(self) -> int:
        """The sample graph's eigenvectors, stored."""
        graph = self._graph("graph")
        found = self._start(graph)
        graph.for_each(sample_space.store_start_rows, found.y, self._context, self._solve.columns)
        return found.products

    def embedding(self) -> int:
        """The eigenvectors of U; what is stored of the last state is kept for `filter`."""
        graph = self._graph("fused")
        states = checkpoints.Chunked(self._context, self._executor, self._solve.chunks)
        self._opened, made = (graph, states), []

        def checkpoint(state: eigen.State) -> None:
            states.keep(state)
            made.append(state.products)
            if len(made) == FILTERS:
                raise _Enough

        with contextlib.suppress(_Enough):
            levels.leading(
                graph.space,
                self._start(graph),
                self._solve.columns,
                tol=0.0,
                settled=-1.0,
                seed=0,
                checkpoint=checkpoint,
            )
        return made[-1]

    def walk(self) -> int:
        """Labels of all samples, and their shares of the clusters."""
        walk = _Walk(self._context, self._executor, self._solve)
        made: list[int] = []
        walked = walk._walked

        def counted(F: list[object], products: int, leaves: str = "") -> list[object]:
            made.append(products)
            return walked(F, products, leaves)

        walk._walked = counted  # type: ignore[method-assign]
        walk.spread("leaves", "spread-")
        walk.finish("spread-", np.arange(self._context.params.n_clusters, dtype=np.int32))
        return sum(made)

    def filter(self) -> int:
        """One filter of U from the state that is stored."""
        assert self._opened is not None
        graph, states = self._opened
        state = states.latest()
        assert state is not None
        levels.refined(graph.space, state.y, float(state.values[-1]))
        return levels.PRODUCTS + 1


class Spent(NamedTuple):
    """What something has cost."""

    products: int
    seconds: float
    scheduler_cpu: float
    client_cpu: float
    scheduler_peak_bytes: int  # most memory of the scheduler
    done: int
    again: int  # of these, a second time
    products_again: int

    @classmethod
    def summed(cls, several: list[Spent]) -> Spent:
        """What several things have cost together."""
        total = cls(*(sum(column) for column in zip(*several, strict=True)))
        return total._replace(scheduler_peak_bytes=max(one.scheduler_peak_bytes for one in several))


def _record(spent: Spent) -> Record:
    """The figures of what was measured, by product and as a whole."""
    return {
        "products": spent.products,
        "tasks": spent.done,
        "tasks_a_product": round(spent.done / spent.products),
        "seconds": spent.seconds,
        "scheduler_cpu": spent.scheduler_cpu,
        "client_cpu": spent.client_cpu,
        "scheduler_us_a_task": spent.scheduler_cpu / spent.done * 1e6,
        "scheduler_peak_bytes": spent.scheduler_peak_bytes,
        "again": spent.again,
        "products_again": spent.products_again,
    }


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
        self.client, self._workers = client, workers
        self._scheduler, self._here = psutil.Process(scheduler.pid), psutil.Process()

    def lose_after(self, tasks: int) -> None:
        """Have one of the workers lost once so many more tasks are done."""
        self._lose = tasks

    def _counts(self, lose: int | None = None) -> dict[str, int]:
        """What the workers have counted since the last call."""
        assert self._workers.stdin is not None
        assert self._workers.stdout is not None
        self._workers.stdin.write(b"count\n" if lose is None else f"lose {lose}\n".encode())
        self._workers.stdin.flush()
        return dict(json.loads(self._workers.stdout.readline()))

    def spent(self, work: Callable[[], int]) -> Spent:
        """What some work costs, which returns its products."""
        time.sleep(SETTLE_SECONDS)
        lose, self._lose = self._lose, None
        self._counts(lose)
        before = time.perf_counter(), *self._cpu()
        with _Memory(self._scheduler) as memory:
            products = work()
        after = time.perf_counter(), *self._cpu()
        seconds, scheduler_cpu, client_cpu = (b - a for a, b in zip(before, after, strict=True))
        return Spent(products, seconds, scheduler_cpu, client_cpu, memory.peak, **self._counts())

    _lose: int | None = None

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
def simulated_cluster(n: int, solve: Solve, folder: Path) -> Iterator[SimulatedCluster]:
    """A scheduler with n simulated workers; both end with the block."""
    _allow_files(4 * n + 256)
    file = folder / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with contextlib.ExitStack() as stack:
        with (folder / "scheduler.log").open("wb") as log:
            scheduler = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dask",
                    "scheduler",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--no-dashboard",
                    "--scheduler-file",
                    str(file),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        stack.callback(_end, scheduler)
        address = _address(file, scheduler)
        arguments = [address, str(n), json.dumps(solve)]
        workers = subprocess.Popen(
            [sys.executable, "-m", simulated_workers.__name__, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(_end, workers)
        stack.enter_context(dask.config.set({"distributed.comm.timeouts.connect": "60s"}))
        client = stack.enter_context(Client(address, set_as_default=False, timeout="60s"))
        client.wait_for_workers(n, timeout=START_SECONDS)
        yield SimulatedCluster(client, scheduler, workers)


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

"""What a run's solves cost Dask's scheduler on a large cluster, with simulated workers.

The scheduler is a real one in a process of its own; levels, filters, checkpoints, walks and executor are those of a
run. The workers (`simulated_workers`) answer every task at once and compute nothing, so that two cores are enough for
a thousand of them. Measured are the CPU time of the scheduler and of the client, the tasks, the scheduler's memory, and
how much is done again after a worker is lost. Not measured is anything that takes a network: transfers between workers,
their heartbeats, slow ones among them. docs/plan.md takes its seconds for a task from here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import psutil
import simulated_workers
from distributed import Client
from simulated_workers import Solve

from ips2_dask.bench.harness import Record, TreeSampler, peak, record
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.executors.failures import PATIENCE
from ips2_dask.kernels import eigen, levels
from ips2_dask.kernels.fusion import solved_pairs
from ips2_dask.kernels.parallel import grid_rows, whole_blocks
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices, choose
from ips2_dask.stages import chunk_levels, chunks, embedding
from ips2_dask.stages import eigen as eigen_stage
from ips2_dask.stages.chunk_levels import ChunkedGraph
from ips2_dask.stages.walk import Walk
from ips2_dask.store.context import Context
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

COLUMNS = (
    *("kind", "workers", "chunks", "near", "products", "tasks", "scheduler_cpu", "client_cpu", "scheduler_us_a_task"),
    *("scheduler_peak_bytes", "again", "products_again"),
)
FEATURES = 64  # of the simulated samples, on which the plan's number of chunks depends
FILTERS = 2  # of the finest graph of U until it ends after those of its levels: mostly one or two (measured)
LATE = 0.9  # share of the tasks of a filter after which a worker is lost
START_SECONDS = 120.0  # that the scheduler and the workers may take to start
SETTLE_SECONDS = 1.0  # that the scheduler gets to forget the tasks of what was measured before


def measure(workers: int, chunks: int | None, near: int, samples: int, clusters: int, folder: Path) -> Iterator[Record]:
    """Records of kind "graph", "embedding" and "walk", the solves of a run; of their sum, "all"; and of kind "loss".

    The graph's eigenvectors are those of its levels. The embedding has levels of its own, and then `FILTERS` filters
    with a checkpoint after each. The walk spreads labels and ends in shares. ``products`` are those of the finest
    graph. For "loss" a filter of the finest graph begins at what is stored, and the worker that holds most is lost
    shortly before its end; ``again`` are the tasks that are done a second time, and ``products_again`` the chunks'
    products among them.

    Chunks are whole blocks of the grid, so that there may be fewer; None takes the plan's number. Each needs rows of so
    many ``near`` ones, the neighbouring ones by number. The width of a block follows from the clusters.
    """
    context, solve = setting(samples, chunks, near, clusters, folder)
    shape: Record = {"workers": workers, "chunks": solve.chunks, "near": near, "samples": samples, "c": clusters}
    shape["columns"] = solve.columns
    with simulated_cluster(workers, solve, folder) as cluster:
        run = _Run(context, DaskExecutor(cluster.client, 1, PATIENCE), solve)
        found = []
        for kind in ("graph", "embedding", "walk"):
            found.append(cluster.spent(getattr(run, kind)))
            yield {"kind": kind, **shape, **_record(found[-1])}
        yield {"kind": "all", **shape, **_record(_together(found))}
        late = int(LATE * cluster.spent(run.filter)["tasks"])
        yield {"kind": "loss", **shape, **_record(cluster.spent(run.filter, lose_in=late))}


def setting(samples: int, chunks: int | None, near: int, clusters: int, folder: Path) -> tuple[Context, Solve]:
    """A run as far as solves look at it, with a chunk a partition, and its sizes."""
    if samples <= levels.COARSEST:
        raise ValueError(f"a graph of {samples} samples has no levels: give more than {levels.COARSEST}")
    params = Params(n_clusters=clusters)
    planned = choose(samples, FEATURES, params, "chunked")
    grid = grid_rows(samples)
    rows = grid * math.ceil(samples / chunks / grid) if chunks else whole_blocks(samples, planned.chunk_samples)
    n = math.ceil(samples / rows)
    if n < 2 or near >= n:
        raise ValueError(f"{near} near chunks of {n}: give fewer of them, or more chunks")
    context = Context(
        store=ZarrStore(str(folder / "run")),
        params=params,
        bounds=(*range(0, samples, rows), samples),
        n_features=FEATURES,
        choices=Choices("shards", n, "matrix-free", "chunked", chunk_samples=rows),
        folders={stage: f"{stage}-{0:016x}" for stage in STAGES},
    )
    columns = eigen.block_width(solved_pairs(context.choices.n_solved(params), False, 1))
    return context, Solve(n, rows, near, columns)


class _Enough(Exception):
    """A solve has made its filters."""


class _Walk(Walk):
    """The walks of a run whose rows of U are stored."""

    def __init__(self, context: Context, executor: DaskExecutor) -> None:
        self._open(context, executor)


class _Checkpoints(chunks.Checkpoints):
    """Checkpoints whose blocks no worker stores, as it computes nothing."""

    def _is_whole(self, place: str) -> bool:
        del place
        return True


class _Run:
    """The solves of a run: each method returns how many products of the finest graph it made."""

    def __init__(self, context: Context, executor: DaskExecutor, solve: Solve) -> None:
        self._context, self._executor, self._solve = context, executor, solve
        self._opened: tuple[ChunkedGraph, chunks.Checkpoints] | None = None

    def _graph(self, name: str) -> ChunkedGraph:
        chunk_of = {"graph": eigen_stage.graph_chunk, "fused": embedding.fused_chunk}[name]
        stage = {"graph": "eigen", "fused": "label"}[name]
        self._stored = chunks.StoredBlocks(self._context, stage, self._executor)
        return chunk_levels.open_graph(self._context, self._executor, name, chunk_of, 1, self._stored)

    def _start(self, graph: ChunkedGraph) -> levels.Start:
        found = levels.start(graph, self._solve.columns, self._solve.columns * 2 // 3, 0)
        assert found is not None
        return found

    def graph(self) -> int:
        """The sample graph's eigenvectors, stored."""
        graph = self._graph("graph")
        found = self._start(graph)
        graph.for_each(eigen_stage.store_start_rows, found.y, self._context, self._solve.columns)
        return found.products

    def embedding(self) -> int:
        """The eigenvectors of U; what is stored of the last state is kept for `filter`."""
        graph = self._graph("fused")
        states = _Checkpoints(self._context, "label", self._stored)
        self._opened, made = (graph, states), []

        def checkpoint(state: eigen.State) -> None:
            states.keep(state)
            made.append(state.products)
            if len(made) == FILTERS:
                raise _Enough

        with contextlib.suppress(_Enough):
            never: Any = {"tol": 0.0, "settled": -1.0, "seed": 0}
            levels.leading(graph.space, self._start(graph), self._solve.columns, **never, checkpoint=checkpoint)
        return made[-1]

    def walk(self) -> int:
        """Labels of all samples, and their shares of the clusters."""
        walk = _Walk(self._context, self._executor)
        made: list[int] = []
        walked = walk._walked

        def counted(F: list[object], products: int, leaves: list[object] | None = None) -> list[object]:
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


Spent = dict[str, float]
"""What something has cost, by the fields of its record; ``scheduler_peak_bytes`` is the most memory, others add up."""


def _record(spent: Spent) -> Record:
    """The figures of what was measured, by product and as a whole."""
    tasks, products = spent["tasks"], spent["products"]
    each = {"tasks_a_product": round(tasks / products), "scheduler_us_a_task": spent["scheduler_cpu"] / tasks * 1e6}
    return {**spent, **each}


def _together(several: list[Spent]) -> Spent:
    sums = {name: sum(one[name] for one in several) for name in several[0]}
    return {**sums, "scheduler_peak_bytes": max(one["scheduler_peak_bytes"] for one in several)}


class _Simulated(NamedTuple):
    """A running scheduler with simulated workers, and what it costs."""

    client: Client
    scheduler: psutil.Process
    workers: subprocess.Popen[bytes]

    def _counts(self, lose_in: int = 0) -> dict[str, int]:
        """What the workers have counted since the last call; one of them is lost after so many more tasks."""
        assert self.workers.stdin is not None
        assert self.workers.stdout is not None
        self.workers.stdin.write(f"{lose_in}\n".encode())
        self.workers.stdin.flush()
        return dict(json.loads(self.workers.stdout.readline()))

    def spent(self, work: Callable[[], int], lose_in: int = 0) -> Spent:
        """What some work costs, which returns its products."""
        time.sleep(SETTLE_SECONDS)
        self._counts(lose_in)
        before = self._now()
        with TreeSampler(self.scheduler.pid) as memory:
            products = work()
        after, largest = self._now(), peak(memory.samples)
        took = {name: after[name] - before[name] for name in before}
        return {"products": products, **took, "scheduler_peak_bytes": largest.root if largest else 0, **self._counts()}

    def _now(self) -> dict[str, float]:
        """The time, and CPU seconds of the scheduler and of this process so far."""
        both = {"scheduler_cpu": self.scheduler.cpu_times(), "client_cpu": psutil.Process().cpu_times()}
        return {"seconds": time.perf_counter(), **{name: times.user + times.system for name, times in both.items()}}


@contextlib.contextmanager
def simulated_cluster(n: int, solve: Solve, folder: Path) -> Iterator[_Simulated]:
    """A scheduler with n simulated workers; both end with the block."""
    _allow_files()
    file = folder / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    where = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(_started(["dask", "scheduler", *where], environment, quiet=True))
        stack.enter_context(dask.config.set({"distributed.comm.timeouts.connect": "60s"}))
        client = stack.enter_context(Client(scheduler_file=file, set_as_default=False, timeout=START_SECONDS))
        arguments = [client.scheduler.address, str(n), json.dumps(solve)]
        workers = stack.enter_context(_started([simulated_workers.__name__, *arguments], environment))
        client.wait_for_workers(n, timeout=START_SECONDS)
        yield _Simulated(client, psutil.Process(scheduler.pid), workers)


@contextlib.contextmanager
def _started(
    module: list[str], environment: Mapping[str, str], *, quiet: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    out, errors = (subprocess.DEVNULL, subprocess.DEVNULL) if quiet else (subprocess.PIPE, None)
    command = [sys.executable, "-m", *module]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=errors) as process:
        try:
            yield process
        finally:
            process.kill()


def _allow_files() -> None:
    """Let this process and those that it starts open as many files as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--workers", type=int, default=200, help="simulated workers (default %(default)s)")
    parser.add_argument("--chunks", type=int, help="of the samples, at most (default: the plan's)")
    parser.add_argument("--near", type=int, default=20, help="chunks of which each needs rows (default %(default)s)")
    parser.add_argument("--samples", type=int, default=100_000_000, help="(default %(default)s)")
    parser.add_argument("--clusters", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the records with their origin")
    options = vars(parser.parse_args())
    file = options.pop("out")
    with tempfile.TemporaryDirectory(prefix="ips2-scheduler-") as folder:
        record(measure(**options, folder=Path(folder)), COLUMNS, file, ["python", *sys.argv], None)


if __name__ == "__main__":
    _main()

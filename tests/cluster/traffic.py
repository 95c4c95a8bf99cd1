"""How many bytes pass the scheduler, and how many the workers exchange, while eigenvectors are found in chunks.

``python tests/cluster/traffic.py --samples 200000`` measures it. The kernel counts the bytes of every connection of
the scheduler's process and of the workers' (TCP_INFO of Linux), so nothing that Dask sends is left out.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
from dask.typing import Key
from dask_scheduler import dask_scheduler
from distributed import Client, Scheduler, SchedulerPlugin

import ips2_dask
from ips2_dask.kernels.eigen import block_width
from ips2_dask.kernels.selection import solved_pairs
from ips2_dask.progress import Progress

PARAMS = ips2_dask.Params(n_clusters=20)

Counts = dict[tuple[int, int], int]
"""Bytes sent and received by (own port, other's port)."""


def connection_bytes() -> Counts:
    """The bytes of each TCP connection of this process, both ways."""
    counted: Counts = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as held:
                info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                ports = held.getsockname()[1], held.getpeername()[1]
        except OSError:  # gone meanwhile, not TCP, or only listening
            continue
        counted[ports] = sum(struct.unpack_from("=QQ", info, 120))  # tcpi_bytes_acked, tcpi_bytes_received
    return counted


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes an eigen product, on average over the solve.

    Attributes
    ----------
    samples, chunks, products : int
    near : float
        Other chunks of which a chunk needs rows, on average.
    tasks : int
        Of a product: one a chunk, and one for what another worker's chunks need of it. Counted by the scheduler.
    block : int
        Bytes of the whole block.
    shared : float
        Rows that chunks need of others, as a share of all rows.
    scheduler : float
        Sent and received by the scheduler.
    workers : float
        Sent from worker to worker.
    """

    samples: int
    chunks: int
    products: int
    near: float
    tasks: int
    block: int
    shared: float
    scheduler: float
    workers: float

    @property
    def share(self) -> float:
        """The scheduler's bytes as a share of the workers'."""
        return self.scheduler / self.workers


class Done(SchedulerPlugin):
    """Counts the tasks of the solver that were done, by the function's name."""

    name = "done"

    def __init__(self) -> None:
        self.count: dict[str, int] = collections.Counter()

    def transition(self, key: Key, start: str, finish: str, *args: object, **kwargs: object) -> None:
        """Count one."""
        if (start, finish) == ("processing", "memory") and str(key).startswith("eigen-"):
            self.count[str(key).split("-")[1]] += 1


def _done(dask_scheduler: Scheduler) -> dict[str, int]:
    return dict(dask_scheduler.plugins["done"].count)


class _Watch(Progress):
    """Counts when the eigen stage begins and when it ends."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.counts: list[tuple[Counts, dict[str, Counts]]] = []

    def begin(self, stage: str) -> None:
        """Count before the stage."""
        if stage == "eigen":
            self.counts.append(self._count())

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Count after it."""
        if stage == "eigen":
            self.counts.append(self._count())

    def _count(self) -> tuple[Counts, dict[str, Counts]]:
        return self._client.run_on_scheduler(connection_bytes), self._client.run(connection_bytes)


def _passed(before: Counts, after: Counts) -> Counts:
    assert before.keys() <= after.keys(), "a connection was closed, and its bytes are not known"
    return {ports: total - before.get(ports, 0) for ports, total in after.items()}


def measure(
    samples: int, folder: Path, workers: int = 2, rows: int | None = None, shards: int | None = None,
    spread: float = 2.5,
) -> Traffic:  # fmt: skip
    """Cluster generated samples with chunked vectors on worker processes.

    ``rows`` are those of a partition; groups of a smaller ``spread`` overlap.
    """
    rng = np.random.default_rng(7)
    X = rng.normal(size=(samples, 16)) + spread * rng.normal(size=(20, 16))[rng.integers(0, 20, samples)]
    np.save(folder / "x.npy", X.astype(np.float32))
    folders = Path(ips2_dask.__file__).parents[1], Path(__file__).parent  # workers call functions of this file
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    with (
        dask_scheduler(folder, None, environment, workers) as served,
        Client(served.address, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers)
        client.run(_import)
        client.register_plugin(Done())
        watch = _Watch(client)
        resources = ips2_dask.Resources(vectors="chunked", partition_rows=rows)
        params = dataclasses.replace(PARAMS, shards=shards)
        run = ips2_dask.run(folder / "x.npy", params, resources, store=folder / "run", client=client, progress=watch)
        (before, workers_before), (after, workers_after) = watch.counts
        done = collections.Counter(client.run_on_scheduler(_done))
        central = int(served.address.rpartition(":")[2])
        listening = {int(address.rpartition(":")[2]) for address in workers_before}
    exchanged = 0
    for address, counts in workers_after.items():
        own = int(address.rpartition(":")[2])
        for (here, there), count in _passed(workers_before[address], counts).items():
            if there in listening or (here == own and there not in _ports_of(after, central)):
                exchanged += count
    facts = run.manifest["stages"][4]["facts"]
    total, products = sum(_passed(before, after).values()), facts["products"]
    chunks, near, shared = _shared(folder / "run")
    assert done["product"] >= products * chunks
    n_pairs = run.manifest["stages"][2]["facts"]["pair_offsets"][-1]
    columns = block_width(solved_pairs(PARAMS.n_clusters, False, run.manifest["stages"][3]["facts"]["components"]))
    return Traffic(
        samples, chunks, products, near, round(chunks * (1 + done["take"] / done["product"])), 4 * columns * n_pairs,
        shared / n_pairs, total / products, exchanged / 2 / products,
    )  # fmt: skip


def _shared(run: Path) -> tuple[int, float, int]:
    """Chunks, of how many others each needs rows on average, and all those rows."""
    receipts = [json.loads(path.read_text()) for path in sorted(run.glob("tensor-*/chunk-*.json"))]
    rows = np.array([np.diff(receipt["facts"]["cuts"]) for receipt in receipts])
    np.fill_diagonal(rows, 0)
    return len(rows), np.count_nonzero(rows) / len(rows), int(rows.sum())


def _ports_of(counts: Counts, central: int) -> set[int]:
    """The scheduler's own ends of connections that it has opened to workers."""
    return {here for here, _ in counts if here != central}


def _import() -> None:
    import ips2_dask.pipeline.run  # noqa: F401, PLC0415  on a worker, so that no first task does


def main() -> int:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--partition-rows", type=int)
    parser.add_argument("--shards", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ips2-traffic-") as folder:
        found = measure(options.samples, Path(folder), rows=options.partition_rows, shards=options.shards)
    print(json.dumps({**dataclasses.asdict(found), "share": found.share}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Simulated workers: they speak Dask's protocol with a scheduler, answer every task at once and compute nothing.

``python -m ips2_dask.bench.simulated_workers ADDRESS WORKERS SOLVE`` runs in a process of its own, with all workers in
one thread. A task's result is what `Solve.answer` says, and the scheduler hears of as many bytes as a real one has.
What workers tell one another does not happen: a result that a task takes is there as soon as it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from distributed.comm import Comm, CommClosedError, connect, listen
from distributed.protocol import to_serialize
from distributed.protocol.pickle import dumps
from distributed.versions import get_versions

Message = dict[str, Any]

MEMORY = 64 << 30
"""Bytes of memory that a worker says it has."""

SHRINKS = 6
"""A coarser graph has one node for so many: a fifth to a seventh remain (measured)."""

SHARED_ROWS = 1000
"""Rows of the finest graph that a chunk needs of each near one: few, so that a task takes them out."""

ENTRIES = 20
"""Entries of a row of a graph, of 8 bytes each."""

MATRICES = ("graph_chunk", "fused_chunk", "field", "normalized_rows", "walk_rows", "merge", "coarse_chunk")
PIECES = ("take", "members_rows", "share_of")
BLOCKS = (
    "multiply",
    "_rotated",
    "_freed",
    "random_rows",
    "from_pieces",
    "from_whole",
    "scaled",
    "read_rows",
    "step",
    "leaf_shares",
    "first_shares",
)
"""Functions of tasks by what their results are: rows of a matrix, rows that another chunk needs, and blocks."""


class Solve(NamedTuple):
    """The sizes of simulated solves that answers depend on."""

    chunks: int
    rows: int  # of a chunk of the finest graph
    near: int  # chunks of which each one needs rows: those next to it by number
    columns: int  # of a block

    def near_to(self, g: int, depth: int) -> list[int]:
        """The chunks that chunk g of a level needs rows of, ascending: a coarser level has as many fewer chunks."""
        chunks = -(-self.chunks // SHRINKS**depth)
        near = min(self.near, chunks - 1)
        low = min(max(0, g - near // 2), chunks - 1 - near)
        return [h for h in range(low, low + near + 1) if h != g]

    def answer(self, function: str, key: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a task, where somebody looks at it: all wait for plausible numbers, and none converges."""
        depth, g = place_of(key)
        if function == "sources_of":
            return dict.fromkeys(self.near_to(g, depth), SHARED_ROWS)
        if function in ("owners", "coarse_sources"):
            return sorted({h // SHRINKS for h in (g, *self.near_to(g, depth))})
        if function == "count_seeds":
            return -(-self.rows // SHRINKS)
        if function in ("volumes_of", "_coefficients"):
            of_one = np.ones(1) if function == "volumes_of" else np.zeros((1, self.columns))
            return np.zeros(1, np.int64), of_one
        if function == "_gram":  # of a block with itself, or with its product
            x, y = arguments
            return np.diag(np.ones(self.columns) if x == y else np.linspace(0.99, 0.5, self.columns)) / self.chunks
        if function == "_residual_squares":
            return np.ones(self.columns) / self.chunks
        if function == "last_value":
            return 0.5
        if function == "reached":
            return self.rows
        return {} if function.startswith("store_") else None

    def nbytes(self, function: str) -> int:
        """The bytes of a task's result, about."""
        if function in BLOCKS:
            return 4 * self.columns * self.rows
        if function in PIECES:
            return 4 * self.columns * SHARED_ROWS
        return 8 * ENTRIES * self.rows if function in MATRICES else 1024


def place_of(key: str) -> tuple[int, int]:
    """The level and the number of the chunk in a task's key: ``fused-1-product-17-`` and digits, ``label-step-17-``."""
    words = key.split("-")
    return (int(words[1]) if words[1].isdigit() else 0), int(words[-2]) if words[-2].isdigit() else 0


class Cluster:
    """The workers of this process, and what they share: results by key, and how often each task was done.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler.
    solve : Solve
    """

    def __init__(self, scheduler: str, solve: Solve) -> None:
        self.scheduler, self.solve = scheduler, solve
        self.versions = get_versions()
        self.folder = tempfile.gettempdir()
        self.values: dict[str, Any] = {}
        self.holders: Counter[str] = Counter()  # how many workers have each result
        self.workers: list[Worker] = []
        self.done: set[str] = set()
        self.n_done = self.again = self.products_again = 0
        self.lose_at: int | None = None

    async def start(self, n: int) -> None:
        """Connect ``n`` workers to the scheduler."""
        for number in range(n):
            worker = Worker(self, number)
            await worker.start()
            self.workers.append(worker)

    def compute(self, key: str, task: Any) -> int:
        """Keep the answer of a task that a worker was sent; returns its bytes. A worker is lost if its time has come.

        A task is ``_with_threads(count, function, *arguments)``.
        """
        function = task.args[1].__name__ if len(task.args) > 1 else ""
        value = self.solve.answer(function, key, task.args[2:])
        if value is not None:
            self.values[key] = value
        self.n_done += 1
        self.again += key in self.done
        self.products_again += key in self.done and function in ("multiply", "step")
        self.done.add(key)
        if self.lose_at is not None and self.n_done >= self.lose_at:
            self.lose_at = None
            lost = max(self.workers, key=lambda worker: len(worker.held))  # others may have been given nothing
            self.workers.remove(lost)
            lost.lose()
        return self.solve.nbytes(function)

    def counts(self) -> dict[str, int]:
        """Tasks done, those of them a second time, and products among these, since the last call."""
        found = {"done": self.n_done, "again": self.again, "products_again": self.products_again}
        self.n_done = self.again = self.products_again = 0
        return found

    def hold(self, worker: Worker, keys: Iterable[str]) -> None:
        """Note that a worker has these results, which it had not."""
        worker.held.update(keys)
        self.holders.update(keys)

    def forget(self, worker: Worker, keys: Iterable[str]) -> None:
        """Note that a worker no longer has these results, and drop those that no other one has."""
        for key in worker.held.intersection(keys):
            self.holders[key] -= 1
            if self.holders[key] <= 0:
                del self.holders[key]
                self.values.pop(key, None)
        worker.held.difference_update(keys)


class Worker:
    """One simulated worker: its connection to the scheduler, and a server for results that the client gathers."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number
        self.held: set[str] = set()
        self.address = ""
        self._comm: Comm | None = None
        self._listener: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, register with the scheduler, and work from now on."""
        self._listener = await listen("tcp://127.0.0.1:0", self._serve)
        self.address = self._listener.contact_address
        self._comm = await connect(self.cluster.scheduler, deserialize=False)
        await self._comm.write(self._registration(), serializers=["msgpack"])
        await self._comm.read()
        self._task = asyncio.create_task(self._work())

    def lose(self) -> None:
        """Cut all connections, as a machine does that is lost."""
        self._listener.stop()
        if self._comm is not None:
            self._comm.abort()
        self.held.clear()  # what stands for its results stays, for tasks that are on their way to other workers

    def _registration(self) -> Message:
        metrics = {
            "task_counts": {},
            "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
            "managed_bytes": 0,
            "digests_total_since_heartbeat": {},
            "spilled_bytes": {"memory": 0, "disk": 0},
            "transfer": {},
            "event_loop_interval": 0.02,
            "cpu": 0,
            "memory": 0,
            "time": time.time(),
            "host_net_io": {},
            "num_fds": 1,
        }
        return {
            "op": "register-worker",
            "reply": False,
            "address": self.address,
            "status": "running",
            "nthreads": 1,
            "name": f"simulated-{self.number}",
            "now": time.time(),
            "resources": {},
            "memory_limit": MEMORY,
            "local_directory": self.cluster.folder,
            "services": {},
            "nanny": None,
            "pid": os.getpid(),
            "versions": self.cluster.versions,
            "metrics": metrics,
            "extra": {},
            "stimulus_id": f"simulated-{self.number}",
            "server_id": f"simulated-{self.number}",
        }

    async def _work(self) -> None:
        """Answer the scheduler until the connection ends."""
        comm = self._comm
        assert comm is not None
        with contextlib.suppress(CommClosedError, asyncio.CancelledError):
            while True:
                messages = await comm.read()
                answers: list[Message] = []
                for message in [messages] if isinstance(messages, dict) else messages:
                    if message.get("op") == "compute-task":
                        answers += self._compute(message)
                    elif message.get("op") in ("free-keys", "remove-replicas"):
                        self.cluster.forget(self, message["keys"])
                    elif message.get("op") == "close":
                        return
                if answers:
                    await comm.write(answers)

    def _compute(self, message: Message) -> list[Message]:
        """What a worker says of a task: the results that it fetched, and that the task is done."""
        key = message["key"]
        answers: list[Message] = []
        fetched = [dependency for dependency in message["who_has"] if dependency not in self.held]
        if fetched:
            self.cluster.hold(self, fetched)
            answers.append({"op": "add-keys", "keys": fetched, "stimulus_id": f"fetched-{key}"})
        nbytes = self.cluster.compute(key, message["run_spec"])
        if key not in self.held:
            self.cluster.hold(self, [key])
        now = time.time()
        answers.append(
            {
                "op": "task-finished",
                "status": "OK",
                "key": key,
                "run_id": message["run_id"],
                "nbytes": nbytes,
                "type": _TYPE,
                "metadata": {},
                "typename": "object",
                "thread": 1,
                "stimulus_id": f"task-finished-{now}",
                "startstops": [{"action": "compute", "start": now - 0.01, "stop": now}],
            }
        )
        return answers

    async def _serve(self, comm: Comm) -> None:
        """Send the results that somebody asks for; one that is not held here is left out, as a worker does."""
        with contextlib.suppress(CommClosedError):
            while True:
                message = await comm.read()
                if not isinstance(message, dict):
                    continue  # the other side's "OK" after data
                answer: Message = {"status": "OK", "result": None}
                if message.get("op") == "get_data":
                    held = [key for key in message["keys"] if key in self.held]
                    answer = {"status": "OK", "data": {key: to_serialize(self.cluster.values.get(key)) for key in held}}
                if message.get("reply", True):
                    await comm.write(answer)


_TYPE = dumps(object)


async def serve(scheduler: str, workers: int, solve: Solve) -> None:
    """Simulate workers until standard input ends; each line of it is answered by the counts since the last one.

    The line ``lose N`` has a worker lost once so many more tasks are done.
    """
    cluster = Cluster(scheduler, solve)
    await cluster.start(workers)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(cluster.counts()), flush=True)
        word, _, number = line.decode().partition(" ")
        if word == "lose":
            cluster.lose_at = cluster.n_done + int(number)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Solve(*json.loads(sys.argv[3]))))

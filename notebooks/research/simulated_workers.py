"""Simulated workers: they speak Dask's protocol with a scheduler, answer every task at once and compute nothing.

``python -m simulated_workers ADDRESS WORKERS SOLVE`` runs in a process of its own, with all workers in
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

MEMORY = 64 << 30  # bytes of memory that a worker says it has
SHRINKS = 6  # a coarser graph has one node for so many: a fifth to a seventh remain (measured)
SHARED_ROWS = 1000  # of the finest graph that a chunk needs of each near one: few, so that a task takes them out
ENTRIES = 20  # of a row of a graph, of 8 bytes each

MATRICES = ("graph_chunk", "fused_chunk", "field", "normalized_rows", "walk_rows", "merge", "coarse_chunk")
PIECES = ("take", "members_rows", "share_of")
BLOCKS = (
    *("multiply", "_rotated", "_freed", "random_rows", "from_pieces", "from_whole", "scaled", "read_rows", "step"),
    *("leaf_shares", "first_shares"),
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
        if function == "_gram":  # of a block with itself, or with its product
            x, y, _ = arguments
            values = np.ones(self.columns) if x == y else np.linspace(0.99, 0.5, self.columns)
            return np.diag(values)[None] / self.chunks
        numbers = {"count_seeds": self.rows // SHRINKS, "last_value": 0.5, "reached": self.rows}
        first, squares = np.zeros(1, np.int64), {"_residual_squares": np.ones((1, self.columns)) / self.chunks}
        of_one = {"volumes_of": [(first, np.ones(1))], "_coefficients": [(first, np.zeros((1, self.columns)))]}
        return {**numbers, **squares, **of_one}.get(function, {} if function.lstrip("_").startswith("store_") else None)

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


class _Cluster:
    """The workers of this process, and what they share: results by key, and how often each task was done."""

    def __init__(self, scheduler: str, solve: Solve) -> None:
        self.scheduler, self._solve = scheduler, solve
        self.values: dict[str, Any] = {}
        self._holders: Counter[str] = Counter()  # how many workers have each result
        self._workers: list[_Worker] = []
        self._done: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._lose_in = 0  # tasks until a worker is lost, if it is above 0

    async def start(self, n: int) -> None:
        """Connect ``n`` workers to the scheduler."""
        for number in range(n):
            self._workers.append(_Worker(self, number))
            await self._workers[-1].start()

    def compute(self, key: str, task: Any) -> int:
        """Keep the answer of a task that a worker was sent; returns its bytes. A worker is lost if its time has come.

        A task is ``_with_threads(count, function, *arguments)``.
        """
        function = task.args[1].__name__ if len(task.args) > 1 else ""
        value = self._solve.answer(function, key, task.args[2:])
        if value is not None:
            self.values[key] = value
        again = key in self._done
        self._counts.update(tasks=1, again=again, products_again=again and function in ("multiply", "step"))
        self._done.add(key)
        self._lose_in -= 1
        if not self._lose_in:
            lost = max(self._workers, key=lambda worker: len(worker.held))  # others may have been given nothing
            self._workers.remove(lost)
            lost.lose()
        return self._solve.nbytes(function)

    def counts(self, lose_in: int) -> dict[str, int]:
        """Tasks done, those of them a second time, and products among these, since the last call."""
        found, self._counts, self._lose_in = self._counts, Counter(), lose_in
        return {name: found[name] for name in ("tasks", "again", "products_again")}

    def hold(self, worker: _Worker, keys: Iterable[str]) -> list[str]:
        """Note that a worker has these results; those that it had not."""
        new = [key for key in keys if key not in worker.held]
        worker.held.update(new)
        self._holders.update(new)
        return new

    def forget(self, worker: _Worker, keys: Iterable[str]) -> None:
        """Note that a worker no longer has these results, and drop those that no other one has."""
        for key in worker.held.intersection(keys):
            self._holders[key] -= 1
            if self._holders[key] <= 0:
                del self._holders[key]
                self.values.pop(key, None)
        worker.held.difference_update(keys)


class _Worker:
    """One simulated worker: its connection to the scheduler, and a server for results that the client gathers."""

    def __init__(self, cluster: _Cluster, number: int) -> None:
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
        nothing: Message = {"task_counts": {}, "transfer": {}, "host_net_io": {}, "digests_total_since_heartbeat": {}}
        numbers = dict.fromkeys(("managed_bytes", "event_loop_interval", "cpu", "memory", "num_fds"), 0)
        spilled, width = {"memory": 0, "disk": 0}, {"total": 1e8, "workers": {}, "types": {}}
        name, now = f"simulated-{self.number}", time.time()
        return {
            "metrics": {**nothing, **numbers, "spilled_bytes": spilled, "bandwidth": width, "time": now},
            **{"op": "register-worker", "reply": False, "address": self.address, "status": "running", "nthreads": 1},
            **{"name": name, "stimulus_id": name, "server_id": name, "now": now, "pid": os.getpid(), "nanny": None},
            **{"resources": {}, "services": {}, "extra": {}, "memory_limit": MEMORY, "versions": get_versions()},
            "local_directory": tempfile.gettempdir(),
        }

    async def _work(self) -> None:
        """Answer the scheduler until the connection ends."""
        comm: Any = self._comm
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
        key, now = message["key"], time.time()
        fetched = self.cluster.hold(self, message["who_has"])
        answers = [{"op": "add-keys", "keys": fetched, "stimulus_id": f"fetched-{key}"}] if fetched else []
        nbytes = self.cluster.compute(key, message["run_spec"])
        self.cluster.hold(self, [key])
        took = {"action": "compute", "start": now - 0.01, "stop": now}
        told = {"op": "task-finished", "status": "OK", "key": key, "run_id": message["run_id"], "nbytes": nbytes}
        kind = {"type": _TYPE, "typename": "object", "metadata": {}, "thread": 1}
        return [*answers, {**told, **kind, "stimulus_id": f"task-finished-{now}", "startstops": [took]}]

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


async def _serve(scheduler: str, workers: int, solve: Solve) -> None:
    """Simulate workers until standard input ends; each line of it is answered by the counts since the last one.

    A line is the number of tasks after which a worker is lost, or 0.
    """
    cluster = _Cluster(scheduler, solve)
    await cluster.start(workers)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        print(json.dumps(cluster.counts(int(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), Solve(*json.loads(sys.argv[3]))))

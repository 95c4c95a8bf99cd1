"""Simulated workers: one process that answers a real Dask scheduler as many workers would, and computes nothing.

``python -m ips2_dask.bench.simulated_workers SCHEDULER WORKERS CHUNKS COLUMNS`` connects so many workers. It obeys
lines on its standard input: ``lose N`` ends one of the workers once N tasks are done in all. Each worker has a
connection of its own and reports what a real one reports of tasks: those that are done, and results that it has taken
from other workers. It sends no heartbeats, and transfers nothing between workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import distributed.comm.tcp  # noqa: F401  the protocol of the addresses
import numpy as np
from distributed.comm import Comm, CommClosedError, connect, listen
from distributed.core import error_message
from distributed.protocol import to_serialize
from distributed.protocol.pickle import dumps
from distributed.versions import get_versions

from ips2_dask.executors.exchange import BlocksLost
from ips2_dask.stages import block_copies
from ips2_dask.stages import resident_blocks as blocks
from ips2_dask.stages.block_space import store_vectors

Message = dict[str, Any]

MEMORY = 64 << 30
"""Bytes of memory that a worker says it has."""


class Solve(NamedTuple):
    """The sizes of the simulated solve that results depend on."""

    chunks: int
    columns: int  # of a block vector


class FakeBlock(NamedTuple):
    """What stands for one chunk's block of a block vector, which has no entries."""

    columns: int
    multiplied: bool = False  # whether it is the operator's product with a block


def _gram(solve: Solve, x: FakeBlock, y: FakeBlock) -> Any:
    """This chunk's share of x' y: of I, or, with y the operator's product with x, of falling eigenvalues below 1."""
    projected = y.multiplied and not x.multiplied
    diagonal = np.linspace(0.99, 0.5, y.columns) if projected else np.ones(y.columns)
    return np.eye(x.columns, y.columns) * diagonal / solve.chunks


class FakeBlocks(dict[str, FakeBlock]):
    """The blocks of a solve by name: they are the same on all workers."""

    def __init__(self, solve: Solve) -> None:
        super().__init__()
        self._solve = solve

    def joined(self, names: Sequence[str]) -> FakeBlock:
        """Blocks side by side."""
        some = [self[name] for name in names]
        return FakeBlock(sum(one.columns for one in some), any(one.multiplied for one in some))

    def apply(self, operation: blocks.Operation) -> None:
        """Make the blocks that an operation makes."""
        if isinstance(operation, blocks.Make):
            self.update(zip(operation.names, map(FakeBlock, operation.widths), strict=True))
        elif isinstance(operation, block_copies.Restore):
            self[operation.result] = FakeBlock(operation.width, multiplied=True)
        elif isinstance(operation, blocks.Step):
            self[operation.result] = FakeBlock(self[operation.y].columns, multiplied=True)
        elif isinstance(operation, blocks.Rotate):
            multiplied = self.joined(operation.y).multiplied
            for name, width in zip(operation.results, operation.widths, strict=True):
                self[name] = FakeBlock(width, multiplied)

    def result(self, operation: blocks.Operation) -> Any:
        """What an operation returns for one chunk.

        The residuals never fall, so that a solve goes on for as many products as it may make.
        """
        if isinstance(operation, blocks.Gram):
            return _gram(self._solve, self.joined(operation.x), self.joined(operation.y))
        if isinstance(operation, blocks.ComponentVolumes):
            return np.zeros(1, np.int64), np.ones(1)
        if isinstance(operation, blocks.Coefficients):
            return np.zeros(1, np.int64), np.zeros((1, self.joined(operation.names).columns))
        if isinstance(operation, blocks.ResidualSquares):
            return np.ones(len(operation.values)) / self._solve.chunks
        if isinstance(operation, blocks.Apply) and operation.function is store_vectors:
            return np.zeros(operation.arguments[0])
        return None


class Cluster:
    """The workers of this process, and what they share: the results of tasks, and how many tasks are done.

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
        self.done = 0
        self.lose_at: int | None = None
        self.teams: dict[str, blocks.Team] = {}
        self.blocks: dict[str, FakeBlocks] = {}

    def result(self, task: Any, address: str) -> Any:
        """What a task of a solve returns on the worker at this address.

        Parameters
        ----------
        task : dask._task_spec.GraphNode
            Its dependencies' results are in `values`.
        address : str

        Raises
        ------
        BlocksLost
            As a real worker does that has not the blocks of a round.
        """

        def open_store(context: object, team: blocks.Team, owner: int, *more: object) -> None:
            del context, owner, more
            self.teams[team.space] = team
            self.blocks[team.space] = FakeBlocks(self.solve)

        def run_round(
            context: object, space: str, owner: int, number: int, operations: Sequence[blocks.Operation]
        ) -> list[Any]:
            del context, number
            team, made = self.teams[space], self.blocks[space]
            if team.addresses[owner] != address:
                raise BlocksLost(f"the blocks of worker {owner} are not here")
            for operation in operations:
                made.apply(operation)
            return [made.result(operations[-1]) for _ in team.chunks(owner)]

        answer = task.copy()
        answer.func = {"open_store": open_store, "run_round": run_round}.get(task.func.__name__, lambda value: value)
        return answer({key: self.values.get(key) for key in task.dependencies})

    async def start(self, n: int) -> None:
        """Connect ``n`` workers to the scheduler."""
        for number in range(n):
            worker = Worker(self, number)
            await worker.start()
            self.workers.append(worker)

    def count(self) -> None:
        """Note that a task is done, and end a worker if its time has come."""
        self.done += 1
        if self.lose_at is not None and self.done >= self.lose_at:
            self.lose_at = None
            self.workers.pop(len(self.workers) // 2).lose()

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
            "task_counts": {}, "bandwidth": {"total": 1e8, "workers": {}, "types": {}}, "managed_bytes": 0,
            "digests_total_since_heartbeat": {}, "spilled_bytes": {"memory": 0, "disk": 0}, "transfer": {},
            "event_loop_interval": 0.02, "cpu": 0, "memory": 0, "time": time.time(), "host_net_io": {}, "num_fds": 1,
        }  # fmt: skip
        return {
            "op": "register-worker", "reply": False, "address": self.address, "status": "running", "nthreads": 1,
            "name": f"simulated-{self.number}", "now": time.time(), "resources": {}, "memory_limit": MEMORY,
            "local_directory": self.cluster.folder, "services": {}, "nanny": None, "pid": os.getpid(),
            "versions": self.cluster.versions, "metrics": metrics, "extra": {},
            "stimulus_id": f"simulated-{self.number}", "server_id": f"simulated-{self.number}",
        }  # fmt: skip

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
        try:
            value = self.cluster.result(message["run_spec"], self.address)
        except BlocksLost as error:
            now = time.time()
            answers.append({
                **error_message(error), "op": "task-erred", "key": key, "run_id": message["run_id"], "thread": 1,
                "stimulus_id": f"task-erred-{now}", "startstops": [],
            })  # fmt: skip
            return answers
        self.cluster.values[key] = value
        if key not in self.held:
            self.cluster.hold(self, [key])
        self.cluster.count()
        now = time.time()
        answers.append({
            "op": "task-finished", "status": "OK", "key": key, "run_id": message["run_id"],
            "nbytes": 1024, "type": _TYPE, "metadata": {},
            "typename": "object", "thread": 1, "stimulus_id": f"task-finished-{now}",
            "startstops": [{"action": "compute", "start": now - 0.01, "stop": now}],
        })  # fmt: skip
        return answers

    async def _serve(self, comm: Comm) -> None:
        """Send the results that somebody asks for; one that is not held here is left out, as a worker does.

        Whatever else is asked, such as to take a plugin, is answered as if it were done.
        """
        with contextlib.suppress(CommClosedError):
            while True:
                message = await comm.read()
                if not isinstance(message, dict):
                    continue  # the other side's "OK" after data
                answer: Message = {"status": "OK", "result": None}
                if message.get("op") == "get_data":
                    held = [key for key in message["keys"] if key in self.held]
                    answer = {"status": "OK", "data": {key: to_serialize(self.cluster.values[key]) for key in held}}
                if message.get("reply", True):
                    await comm.write(answer)


_TYPE = dumps(object)


async def serve(scheduler: str, workers: int, solve: Solve) -> None:
    """Simulate workers until standard input ends, or the line ``lose N`` on it says otherwise."""
    cluster = Cluster(scheduler, solve)
    await cluster.start(workers)
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        word, _, number = line.decode().partition(" ")
        if word == "lose":
            cluster.lose_at = cluster.done + int(number)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Solve(int(sys.argv[3]), int(sys.argv[4]))))

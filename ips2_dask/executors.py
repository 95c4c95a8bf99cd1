"""Who runs the tasks of a stage: this process, or the workers of a Dask cluster through Dask bags."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import dask
import dask.bag
from dask.delayed import delayed
from distributed import Client, LocalCluster, as_completed

from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import Resources
from ips2_dask.storage.context import Context, part_name
from ips2_dask.storage.memory import peak_rss
from ips2_dask.storage.store import Receipt

PartFunction = Callable[[Context, Any], tuple[dict[str, Any], dict[str, Any]]]
"""From a context and an item to the arrays of its part and what is to be said of them."""

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """One stage's work on its partitions: a function, where its parts go, and what their names begin with."""

    stage: str
    function: PartFunction
    prefix: str = ""


def compute_part(item: Any, job: Job, context: Context) -> Receipt:
    """Run one task unless its part is there already, and store what it gives."""
    name = job.prefix + part_name(item)
    folder = context.folders[job.stage]
    receipt = context.store.receipt(folder, name)
    if receipt is not None:
        return receipt
    with threads(context.threads):
        arrays, facts = job.function(context, item)
        return context.store.write(folder, name, arrays, {**facts, "peak_rss_bytes": peak_rss()})


class Executor(Protocol):
    """Runs a job over items; receipts come back in the order of the items."""

    @property
    def n_workers(self) -> int:
        """Processes that share the work."""
        ...

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        ...


class SerialExecutor:
    """One task after the other in this process, each with the cores of this machine."""

    n_workers = 1

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        receipts = []
        for done, item in enumerate(items):
            receipts.append(compute_part(item, job, context))
            report(done + 1, len(items))
        return receipts


class DaskExecutor:
    """Partitions in a Dask bag on the workers of a client's cluster; only receipts come back."""

    def __init__(self, client: Client, threads_per_task: int = 1) -> None:
        self.client, self._threads = client, threads_per_task

    @property
    def n_workers(self) -> int:
        """Workers the scheduler knows now."""
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        if not items:
            return []
        shared = delayed(dataclasses.replace(context, threads=self._threads), name=f"{job.stage}-context", pure=True)
        bag = dask.bag.from_sequence(items, npartitions=len(items)).map(compute_part, job=job, context=shared)
        futures = self.client.compute(bag.to_delayed())
        try:
            for done, _ in enumerate(as_completed(futures, loop=self.client.loop, raise_errors=False)):
                report(done + 1, len(items))
            return [receipt for part in self.client.gather(futures) for receipt in part]
        finally:
            self.client.cancel(futures)


def check_address(address: str) -> None:
    """Refuse a scheduler address that Dask could only wait for.

    Raises
    ------
    BadInput
        Where nothing listens there.
    """
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    found = None
    if not host or not port.isdigit():
        found = f"{address!r}, which is no address"
    elif scheme in ("", "tcp", "tls"):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            found = f"{address!r}, where nothing answers ({error})"
    if found:
        raise BadInput(
            "--scheduler", found, "the address of a running Dask scheduler, such as tcp://127.0.0.1:8786",
            "the run would wait for a cluster that never comes", "start `dask scheduler`, or leave the option out",
        )  # fmt: skip


@contextlib.contextmanager
def cluster(resources: Resources) -> Iterator[DaskExecutor]:
    """An executor on a running scheduler, or on a local cluster of processes that ends with the block.

    A local cluster binds to 127.0.0.1, gives each worker ``threads_per_worker`` threads and keeps BLAS, OpenMP and
    Numba from starting threads of their own.
    """
    if resources.scheduler is not None:
        check_address(resources.scheduler)
        with Client(resources.scheduler, timeout="30s", set_as_default=False) as client:
            yield DaskExecutor(client, resources.threads_per_worker)
        return
    one_each = {
        name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    }
    settings = {
        "distributed.nanny.pre-spawn-environ": {**one_each, "MALLOC_TRIM_THRESHOLD_": "65536"},
        "distributed.worker.daemon": False,
        "distributed.comm.timeouts.connect": "30s",
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=resources.n_workers or min(4, usable_cores()),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=resources.memory_limit or "auto",
            local_directory=resources.scratch,
            silence_logs=40,
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield DaskExecutor(client, resources.threads_per_worker)


def dashboard(executor: Executor) -> str | None:
    """Address of the cluster's dashboard, if there is one."""
    return str(executor.client.dashboard_link) if isinstance(executor, DaskExecutor) else None

"""Who runs the tasks of a stage: this process, or the workers of a Dask cluster through Dask bags."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import logging
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from ips2_dask.storage.readers import Source
from ips2_dask.storage.readers.lazy import LazySource
from ips2_dask.storage.store import Receipt

PartFunction = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
"""From a context, an item and, while a source is staged, its rows, to a part's arrays and what is to be said of them.
"""


class Report(Protocol):
    """What a stage tells while it runs."""

    def __call__(self, done: int, total: int) -> None:
        """So many of its tasks are done."""
        ...

    def note(self, facts: Mapping[str, Any]) -> None:
        """Numbers it has come to, such as the solver's residual."""
        ...


MOST_AT_ONCE = 4
"""Tasks that one process works on at a time without a cluster: the plan's memory counts so many partitions."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One stage's work on its partitions: a function, where its parts go, and what their names begin with."""

    stage: str
    function: PartFunction
    prefix: str = ""


def compute_part(item: Any, job: Job, context: Context, *rows: Any) -> Receipt:
    """Run one task unless its part is there already, and store what it gives."""
    name = job.prefix + part_name(item)
    folder = context.folders[job.stage]
    receipt = context.store.receipt(folder, name)
    if receipt is not None:
        return receipt
    with threads(context.threads):
        arrays, facts = job.function(context, item, *rows)
        if context.store.location is not None:  # in memory there is one process, and who started it looks
            facts = {**facts, "peak_rss_bytes": peak_rss()}
        return context.store.write(folder, name, arrays, facts)


class Executor(Protocol):
    """Runs a job over items; receipts come back in the order of the items."""

    @property
    def n_workers(self) -> int:
        """Processes that share the work."""
        ...

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        ...

    def share(self, context: Context) -> Any:
        """A handle of the context for `submit`."""
        ...

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start one task on values and handles; returns a handle of its result, which stays where it is made."""
        ...

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks return."""
        ...


class SerialExecutor:
    """Tasks in this process: side by side on a few of its threads, each with its share of the cores."""

    n_workers = 1

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt; ``report(done, total)`` is called as they come."""
        side_by_side = min(context.threads, MOST_AT_ONCE, len(items))
        if side_by_side <= 1:
            receipts = []
            for done, item in enumerate(items):
                receipts.append(compute_part(item, job, context))
                report(done + 1, len(items))
            return receipts
        inner = dataclasses.replace(context, threads=context.threads // side_by_side)
        with threads(context.threads), ThreadPoolExecutor(side_by_side) as pool:
            futures = [pool.submit(contextvars.copy_context().run, compute_part, item, job, inner) for item in items]
            try:
                for done, future in enumerate(concurrent.futures.as_completed(futures)):
                    future.result()
                    report(done + 1, len(items))
            except BaseException as error:  # an interrupt as well: what has begun ends, what has not is not begun
                pool.shutdown(cancel_futures=True)
                for future in futures if isinstance(error, Exception) else ():
                    if not future.cancelled():
                        future.result()  # raises the error of the first item that has one, whichever was faster
                raise
            return [future.result() for future in futures]

    def share(self, context: Context) -> Any:
        """A handle of the context for `submit`."""
        return context

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one task now; its handle is its result."""
        del name
        return function(*arguments)

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks returned."""
        return list(handles)


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
        shared = self._shared(job, context)
        bag = dask.bag.from_sequence(items, npartitions=len(items)).map(compute_part, job=job, context=shared)
        return [receipt for part in self._gather(bag.to_delayed(), report) for receipt in part]

    def map_blocks(self, job: Job, context: Context, blocks: Sequence[Any], report: Report) -> None:
        """Run a job on each partition's rows, given as delayed values, which stay on the worker that computes them."""
        shared = self._shared(job, context)
        missing = [b for b in range(len(blocks)) if context.receipt(job.stage, job.prefix + part_name(b)) is None]
        self._gather([delayed(compute_part)(b, job, shared, blocks[b]) for b in missing], report)

    def share(self, context: Context) -> Any:
        """A handle of the context for `submit`: a task, so that a lost one is made again."""
        return self.submit("context", _same, dataclasses.replace(context, threads=self._threads))

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start one task on a worker; its handle is a future."""
        return self.client.submit(function, *arguments, key=f"{name}-{uuid.uuid4().hex}", pure=False)

    def results(self, handles: Sequence[Any]) -> list[Any]:
        """What the tasks return, sent here."""
        return list(self.client.gather(list(handles)))

    def _shared(self, job: Job, context: Context) -> Any:
        """The context as one task that all others share.

        Its key is never used again: a scheduler that serves several runs at once takes equal keys for equal tasks.
        """
        name = f"{job.stage}-context-{uuid.uuid4().hex}"
        return delayed(dataclasses.replace(context, threads=self._threads), name=name)

    def _gather(self, tasks: Sequence[Any], report: Report) -> list[Any]:
        """What the tasks return, in their order; an error is raised when all of them have ended."""
        futures = self.client.compute(list(tasks))
        try:
            for done, _ in enumerate(as_completed(futures, loop=self.client.loop, raise_errors=False)):
                report(done + 1, len(futures))
            for future in futures:
                if future.status == "error":
                    future.result()  # raises the error of the first task that has one; gather takes any
            return list(self.client.gather(futures))
        finally:
            self.client.cancel(futures)


def _same(context: Context) -> Context:
    return context


def stage_source(executor: Executor, job: Job, context: Context, source: Source, report: Report) -> None:
    """Run a job on each partition's rows of a source that not every process can read from any row on.

    The workers compute the rows of a lazy source; any other one goes through this process in one pass.
    """
    if isinstance(executor, DaskExecutor) and isinstance(source, LazySource):
        executor.map_blocks(job, context, source.delayed_blocks(context.bounds), report)
        return
    for b, block in enumerate(source.blocks(context.bounds[1])):
        compute_part(b, job, context, block)
        report(b + 1, context.n_partitions)


def dask_setup(worker: Any) -> None:
    """Prepare a worker of a local cluster; Dask calls this before it registers, so that no stage's time holds imports.

    It logs no errors: those of a task come back to the client, and the others are of connections that a run which
    stops has closed. And the process ends without taking the interpreter apart, which takes most of a second; that is
    how forked processes end, too.
    """
    del worker
    for name in ("distributed.worker", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    multiprocessing.util.Finalize(None, _leave, exitpriority=-1000)  # the last of all


def _leave() -> None:
    if sys.exc_info()[0] is None:  # an error should still be shown
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


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
        raise _no_scheduler(found)


def _no_scheduler(found: str) -> BadInput:
    return BadInput(
        "scheduler", found, "the address of a running Dask scheduler, such as tcp://127.0.0.1:8786",
        "the run would wait for a cluster that never comes", "start `dask scheduler`, or leave the option out",
    )  # fmt: skip


def _connect(address: str) -> Client:
    """A client of a running scheduler.

    Raises
    ------
    BadInput
        Where nothing listens, or something that is no scheduler with at least one worker.
    """
    check_address(address)
    try:
        client = Client(address, timeout="30s", set_as_default=False)
    except OSError as error:  # what Dask raises when nobody answers in its language
        raise _no_scheduler(f"{address!r}, which does not answer as a scheduler ({error})") from error
    try:
        client.wait_for_workers(1, timeout=60)
    except TimeoutError as error:
        client.close()
        raise _no_scheduler(f"{address!r}, a scheduler without a worker") from error
    return client


@contextlib.contextmanager
def cluster(resources: Resources) -> Iterator[DaskExecutor]:
    """An executor on a running scheduler, or on a local cluster of processes that ends with the block.

    A local cluster binds to 127.0.0.1, gives each worker ``threads_per_worker`` threads and keeps BLAS, OpenMP and
    Numba from starting threads of their own.
    """
    if resources.scheduler is not None:
        with _connect(resources.scheduler) as client:
            yield DaskExecutor(client, resources.threads_per_worker)
        return
    _check_scratch(resources.scratch)
    one_each = {
        name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    }
    settings = {
        "distributed.nanny.pre-spawn-environ": {**one_each, "MALLOC_TRIM_THRESHOLD_": "65536"},
        "distributed.worker.daemon": False,
        "distributed.worker.preload": [__name__],
        "distributed.comm.timeouts.connect": "30s",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        with _deaf_children():
            local = LocalCluster(
                n_workers=resources.n_workers or min(4, usable_cores()),
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                memory_limit=resources.memory_limit or "auto",
                local_directory=resources.scratch,
                silence_logs=40,
            )
            stack.enter_context(local)
        client = stack.enter_context(Client(local, set_as_default=False))
        yield DaskExecutor(client, resources.threads_per_worker)


def _check_scratch(scratch: str | None) -> None:
    try:
        if scratch is not None:
            os.makedirs(scratch, exist_ok=True)
    except OSError as error:
        raise BadInput(
            "scratch", f"{scratch!r}, which can't be made ({error.strerror})", "a folder that this user may write to",
            "workers would have no place for what memory does not hold", "give another one, or leave it out",
        ) from error  # fmt: skip


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """While this lasts, threads that start, and the processes that these start, don't hear Ctrl-C.

    A terminal sends it to all processes at once. The client hears it (once the workers are there), and ends them.
    """
    multiprocessing.resource_tracker.ensure_running()  # which else would undo the mask when the first process starts
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if heard is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def dashboard(executor: Executor) -> str | None:
    """Address of the cluster's dashboard, if there is one."""
    return str(executor.client.dashboard_link) if isinstance(executor, DaskExecutor) else None

"""Fixed chunks on a thread pool: work is split by the shape of the data alone, so that no thread count shows."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")

_threads: ContextVar[int] = ContextVar("ips2_threads", default=0)  # 0: BLAS is not held yet

MAX_HELPERS = 256
"""Threads that may wait for chunks; as many are started as are ever busy at once."""

_found: tuple[int, ThreadpoolController] | None = None
_pool: tuple[int, ThreadPoolExecutor] | None = None
_pool_lock = Lock()


def _pools() -> ThreadpoolController:
    """The thread pools of the loaded libraries; looking for them takes 20 ms, so only where some may be new."""
    global _found
    loaded = len(sys.modules)
    if _found is None or _found[0] != loaded:
        _found = loaded, ThreadpoolController()
    return _found[1]


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let `map_chunks` use ``count`` threads inside, and hold BLAS and OpenMP to one thread each.

    BLAS sums in another order with another number of threads; so it gets one, and the parallelism is ours, over
    chunks whose limits depend on the data alone. The results are the same bits for any ``count``.
    """
    is_limited = _threads.get() > 0
    token = _threads.set(max(1, count))
    try:
        with contextlib.nullcontext() if is_limited else _pools().limit(limits=1):
            yield
    finally:
        _threads.reset(token)


def thread_count() -> int:
    """How many threads `map_chunks` uses here."""
    return max(1, _threads.get())


def hold_openmp() -> None:
    """Hold OpenMP to one thread in the thread that calls this, for as long as it lives.

    Its limit is every thread's own: what `threads` has set in one counts for nothing in those that it starts.
    """
    _pools().limit(limits=1, user_api="openmp")


def chunk_bounds(n: int, size: int) -> list[tuple[int, int]]:
    """Limits of consecutive chunks of ``size`` (the last shorter) that cover ``range(n)``."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]


GRID = (1 << 6, 1 << 18)
RUN = 1 << 14
"""Least and most rows of a block of the grid, and rows that one thread sums at a time."""


def grid_rows(n: int) -> int:
    """Rows of each block that sums over n rows are made by: a power of two, about a sixteenth of them."""
    return min(max(1 << max(0, n // 16).bit_length() - 1, GRID[0]), GRID[1]) if n >= 16 else GRID[0]


def whole_blocks(n: int, rows: int) -> int:
    """The number of rows nearest to ``rows`` that whole blocks of the grid of n rows have, at least those of one."""
    grid = grid_rows(n)
    return grid * max(1, round(rows / grid))


def runs_of(grid: int) -> int:
    """Rows that one thread works on at a time, of blocks of the grid of so many rows."""
    return min(grid, RUN)


def map_chunks(function: Callable[[int, int], T], n: int, size: int) -> list[T]:
    """``function(start, stop)`` for each chunk of ``range(n)``, results in chunk order.

    This thread takes chunks as well, and its helpers stay for the next call: a solve makes thousands of calls of some
    milliseconds, of which threads that are started for each would be a tenth.
    """
    bounds = chunk_bounds(n, size)
    count = min(_threads.get(), len(bounds))
    if count <= 1:
        return [function(start, stop) for start, stop in bounds]
    results: list[Any] = [None] * len(bounds)
    numbers = itertools.count()  # one that several threads may ask

    def work() -> None:
        while (chunk := next(numbers)) < len(bounds):
            try:
                results[chunk] = function(*bounds[chunk])
            except BaseException:
                for _ in bounds:  # no thread starts another chunk
                    next(numbers)
                raise

    helpers = [_helpers().submit(work) for _ in range(count - 1)]
    token = _threads.set(1)  # a call inside is not parted again, as it is not in a helper
    try:
        work()
    finally:
        _threads.reset(token)
        wait(helpers)
    for helper in helpers:
        helper.result()
    return results


def _helpers() -> ThreadPoolExecutor:
    """Threads that wait for chunks, of this process: one that was forked has none of its parent's."""
    global _pool
    with _pool_lock:
        if _pool is None or _pool[0] != os.getpid():
            _pool = os.getpid(), ThreadPoolExecutor(MAX_HELPERS, thread_name_prefix="chunks")
        return _pool[1]
